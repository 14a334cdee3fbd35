//! A front end's connection: a stream of requests, each with its descriptors.

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use vhostuser::{Fault, HEADER_BYTES, Header, MAX_PAYLOAD};
use virtqueue::Breach;

/// Descriptors beside one request at most: of a table of memory.
const MAX_FDS: usize = 8;
const CONTROL_BYTES: usize = rustix::cmsg_space!(ScmRights(MAX_FDS));

/// Why a connection is over.
#[derive(Debug, thiserror::Error)]
pub enum Over {
    /// The front end left.
    #[error("the front end closed the connection")]
    Closed,
    /// It asked what nobody may ask.
    #[error("the front end sent {0}")]
    Fault(#[from] Fault),
    /// More descriptors than there are places, or some in the middle of a request.
    #[error("the front end sent descriptors where there are none")]
    Descriptors,
    /// It does not read its answers.
    #[error("the front end does not read its answers")]
    Deaf,
    /// The operating system refused.
    #[error("the front end's socket: {0}")]
    System(Errno),
    /// What its memory and rings were, a new switch cannot use.
    #[error("the guest's memory or a ring cannot be used any more")]
    Unusable,
    /// It wanted an interface that another front end has.
    #[error("a second front end wanted the guest's interface while the first one's queues run")]
    Second,
    /// Its memory is a file that can make who reads it wait.
    #[error("the guest's memory or log is no memfd, nor a file of tmpfs or of huge pages")]
    Memory,
    /// What its driver kicks can make who waits for it wait longer.
    #[error("the guest's driver kicks neither a pipe nor an eventfd or the like")]
    Kick,
    /// It is answered so, too: it shares more memory than its endpoint says, bytes.
    #[error(
        "the machine shares {has} bytes of memory and may share {most}: its endpoint wants \
         `attach: {{vhost: {{memory: {}MiB}}}}`, or the machine has to have less",
        has.div_ceil(1 << 20)
    )]
    TooMuch {
        /// In whole pages of its files.
        has: u64,
        /// As much is allowed.
        most: u64,
    },
    /// Where its written pages are to be noted is out of proportion to its memory.
    #[error("the front end's log of {0} bytes is too large for the memory that it may share")]
    Notes(u64),
    /// The switch ended its queues.
    #[error("the guest's driver made {0}")]
    Driver(Breach),
    /// The switch found a part of its memory gone.
    #[error("the guest's memory was cut off")]
    CutOff,
}

impl Over {
    /// Why the switch ended a guest's queues.
    pub fn broken(reason: u32) -> Over {
        Breach::from_number(reason).map_or(Over::CutOff, Over::Driver)
    }
}

impl Over {
    /// Whether the front end has the answer to what it asked before it is cut off.
    pub fn is_answered(&self) -> bool {
        matches!(self, Over::TooMuch { .. })
    }
}

/// A request.
pub struct Asked {
    pub header: Header,
    pub payload: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

/// The connection, and as much of a request as has come.
pub struct Front {
    socket: OwnedFd,
    bytes: [u8; HEADER_BYTES + MAX_PAYLOAD],
    filled: usize,
    header: Option<Header>,
    fds: Vec<OwnedFd>,
}

impl Front {
    pub fn new(socket: OwnedFd) -> Front {
        Front {
            socket,
            bytes: [0; HEADER_BYTES + MAX_PAYLOAD],
            filled: 0,
            header: None,
            fds: Vec::new(),
        }
    }

    /// The next request, once it is whole; `None`: more is to come.
    pub fn next(&mut self) -> Result<Option<Asked>, Over> {
        loop {
            let payload = self.header.map_or(0, |header| header.size as usize);
            let wanted = HEADER_BYTES + payload;
            if self.filled == wanted
                && let Some(header) = self.header.take()
            {
                self.filled = 0;
                let body = self.bytes.get(HEADER_BYTES..wanted).unwrap_or(&[]);
                return Ok(Some(Asked {
                    header,
                    payload: body.to_vec(),
                    fds: std::mem::take(&mut self.fds),
                }));
            }
            if !self.read(wanted)? {
                return Ok(None);
            }
            if self.filled == HEADER_BYTES
                && self.header.is_none()
                && let Some(head) = self.bytes.first_chunk()
            {
                self.header = Some(Header::read(head)?);
            }
        }
    }

    /// Reads on, never past the request that comes: what is beside the next is its own.
    fn read(&mut self, wanted: usize) -> Result<bool, Over> {
        let begins = self.filled == 0;
        let room = self.bytes.get_mut(self.filled..wanted).unwrap_or(&mut []);
        let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = loop {
            match recvmsg(
                &self.socket,
                &mut [IoSliceMut::new(room)],
                &mut control,
                flags,
            ) {
                Ok(received) => break received,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::CONNRESET) => return Err(Over::Closed),
                Err(errno) => return Err(Over::System(errno)),
            }
        };
        let before = self.fds.len();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = part {
                self.fds.extend(rights);
            }
        }
        let some = self.fds.len() > before;
        let cut = received.flags.contains(ReturnFlags::CTRUNC);
        if cut || self.fds.len() > MAX_FDS || some && !begins {
            return Err(Over::Descriptors);
        }
        if received.bytes == 0 {
            return Err(Over::Closed);
        }
        self.filled += received.bytes;
        Ok(true)
    }

    /// Answers. One that does not read has no use for its answers.
    pub fn answer(&self, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> Result<(), Over> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&fds));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            match sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, flags) {
                Ok(sent) if sent == bytes.len() => return Ok(()),
                Ok(_) | Err(Errno::AGAIN) => return Err(Over::Deaf),
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(Over::Closed),
                Err(errno) => return Err(Over::System(errno)),
            }
        }
    }
}

impl AsFd for Front {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
