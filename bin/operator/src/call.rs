//! One call of a program: its arguments copied, its descriptor taken.

use crate::place;
use crate::threads::Targets;
use circuit::{Endpoint, Family};
use guard::guard;
use notify::{Listener, Notification, OpenError, Target};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
use rustix::net::sockopt::socket_domain;
use std::cell::OnceCell;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

/// AUDIT_ARCH_X86_64: the filter notifies of no other.
const ARCH: u32 = 0xc000_003e;
/// The longest address (struct sockaddr_storage), and the longest value of an option that is
/// looked at.
const LONGEST: usize = 128;
/// Options of any socket by which descriptors or names get from one process to another: they
/// are set and read by this process, on the very socket that it looked at.
const OWN: [i32; 5] = [16, 28, 34, 76, notify::PASS_RIGHTS];

/// Why there is no call to look at.
pub enum Ended {
    /// Nobody waits for it any more.
    Gone,
    /// It has this answer.
    With(Errno),
}

/// A call.
pub struct Call<'a> {
    call: &'a Notification,
    listener: &'a Listener,
    target: Rc<Target>,
    /// Its socket, and that one's cookie.
    fd: Option<(OwnedFd, u64)>,
    flags: OnceCell<OFlags>,
}

impl<'a> Call<'a> {
    /// Takes what it needs of the program.
    pub fn of(
        call: &'a Notification,
        listener: &'a Listener,
        targets: &mut Targets,
    ) -> Result<Call<'a>, Ended> {
        if call.arch != ARCH {
            return Err(Ended::With(Errno::NOSYS));
        }
        let opened = |opened: Result<Option<Rc<Target>>, OpenError>| match opened {
            Ok(Some(target)) => Ok(target),
            Ok(None) | Err(OpenError::Gone) => Err(Ended::Gone),
            Err(OpenError::Thread) => Err(Ended::With(Errno::NOSYS)),
            Err(OpenError::Refused(errno)) => Err(Ended::With(errno)),
        };
        let mut target = opened(targets.of(call, listener))?;
        // No descriptor is their first argument.
        let makes = [
            libc::SYS_socket,
            libc::SYS_socketpair,
            libc::SYS_io_uring_setup,
        ];
        let number = call.arguments[0] as i32;
        let fd = match makes.contains(&i64::from(call.number)) {
            true => None,
            false => Some(match target.take_socket(number) {
                // It is another thread's number by now.
                Err(Errno::SRCH) => {
                    target = opened(targets.anew(call, listener))?;
                    target.take_socket(number).map_err(Ended::With)?
                }
                taken => taken.map_err(Ended::With)?,
            }),
        };
        Ok(Call {
            call,
            listener,
            target,
            fd,
            flags: OnceCell::new(),
        })
    }

    /// Whether it is this system call.
    pub fn is(&self, number: i64) -> bool {
        i64::from(self.call.number) == number
    }

    /// The first three arguments, as ints.
    pub fn numbers(&self) -> [i32; 3] {
        let [a, b, c, ..] = self.call.arguments;
        [a as i32, b as i32, c as i32]
    }

    /// All of them.
    pub fn arguments(&self) -> [u64; 6] {
        self.call.arguments
    }

    /// Its descriptor's copy, for as long as it waits.
    pub fn take_fd(&mut self) -> Result<OwnedFd, Errno> {
        self.fd.take().map(|(fd, _)| fd).ok_or(Errno::BADF)
    }

    /// A copy of its descriptor.
    pub fn fd(&self) -> Result<&OwnedFd, Errno> {
        self.fd.as_ref().map(|(fd, _)| fd).ok_or(Errno::BADF)
    }

    /// Which thread it is of, and the number that its descriptor has there.
    pub fn place(&self, number: u32) -> u64 {
        place::of(&self.target, number)
    }

    /// As the kernel told of it.
    pub fn notification(&self) -> &Notification {
        self.call
    }

    /// Which thread it is of.
    pub fn thread(&self) -> u32 {
        self.call.thread
    }

    /// What the kernel knows its socket by.
    pub fn cookie(&self) -> Result<u64, Errno> {
        self.fd
            .as_ref()
            .map(|(_, cookie)| *cookie)
            .ok_or(Errno::BADF)
    }

    /// Whether its socket does not block.
    pub fn is_nonblocking(&self) -> Result<bool, Errno> {
        Ok(self.flags()?.contains(OFlags::NONBLOCK))
    }

    /// Its socket's flags, as they were when this was asked first.
    pub fn flags(&self) -> Result<OFlags, Errno> {
        if let Some(flags) = self.flags.get() {
            return Ok(*flags);
        }
        let flags = fcntl_getfl(self.fd()?)?;
        Ok(*self.flags.get_or_init(|| flags))
    }

    /// The address of connect and bind, a copy.
    pub fn address(&self) -> Result<Vec<u8>, Errno> {
        let length = self.call.arguments[2] as i32;
        let length = usize::try_from(length).map_err(|_| Errno::INVAL)?;
        if length > LONGEST {
            return Err(Errno::INVAL);
        }
        self.copy(self.call.arguments[1], length)
    }

    /// The value that an option is set to, a copy.
    pub fn value(&self) -> Result<Vec<u8>, Errno> {
        let length = self.call.arguments[4] as i32;
        let length = usize::try_from(length).map_err(|_| Errno::INVAL)?;
        self.copy(self.call.arguments[3], length.min(LONGEST))
    }

    /// Level and name of an option.
    pub fn option(&self) -> (i32, i32) {
        let [_, level, name, ..] = self.call.arguments;
        (level as i32, name as i32)
    }

    /// How much room there is for an option's value.
    pub fn room(&self) -> Result<i32, Errno> {
        self.int(self.call.arguments[4])
    }

    /// accept4's: whether the new socket does not block, and whether it closes on exec.
    pub fn accept_flags(&self) -> Result<(bool, bool), Errno> {
        if self.is(libc::SYS_accept) {
            return Ok((false, false));
        }
        let flags = self.call.arguments[3] as i32;
        if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
            return Err(Errno::INVAL);
        }
        Ok((
            flags & libc::SOCK_NONBLOCK != 0,
            flags & libc::SOCK_CLOEXEC != 0,
        ))
    }

    /// Writes a name where accept, getsockname and getpeername want it, as much as there is
    /// room for, and how long it is.
    pub fn tell_name(&self, family: Family, name: Endpoint) -> Result<(), Errno> {
        let (bytes, length) = circuit::write(family, name);
        self.tell(bytes.get(..length).unwrap_or_default())
    }

    fn tell(&self, name: &[u8]) -> Result<(), Errno> {
        let [_, at, length_at, ..] = self.call.arguments;
        let accepts = self.is(libc::SYS_accept) || self.is(libc::SYS_accept4);
        if at == 0 && accepts {
            return Ok(());
        }
        self.tell_at(name, at, length_at)
    }

    /// Writes a name where `at` is, as much as the room at `length_at` says, and how long it is.
    pub fn tell_at(&self, name: &[u8], at: u64, length_at: u64) -> Result<(), Errno> {
        let room = usize::try_from(self.int(length_at)?).map_err(|_| Errno::INVAL)?;
        self.reply(at, name.get(..room).unwrap_or(name), length_at, name.len())
    }

    /// Copies memory of the program, all of it.
    pub fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Errno> {
        self.read_pieces(&[(at, into.len())], into)
    }

    /// The same of several pieces.
    pub fn read_pieces(&self, pieces: &[(u64, usize)], into: &mut [u8]) -> Result<(), Errno> {
        if !into.is_empty() {
            self.target.read_pieces(pieces, into)?;
        }
        self.still_waits()
    }

    /// Copies bytes to the program.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.write_pieces(&[(at, bytes.len())], bytes)
    }

    /// The same to several pieces.
    pub fn write_pieces(&self, pieces: &[(u64, usize)], bytes: &[u8]) -> Result<(), Errno> {
        self.still_waits()?;
        match bytes {
            [] => Ok(()),
            bytes => self.target.write_pieces(pieces, bytes),
        }
    }

    /// Writes an option's value.
    pub fn tell_option(&self, value: &[u8]) -> Result<(), Errno> {
        let [_, _, _, at, length_at, _] = self.call.arguments;
        self.reply(at, value, length_at, value.len())
    }

    /// Whether it is getsockopt(SO_ERROR).
    pub fn asks_what_failed(&self) -> bool {
        self.is(libc::SYS_getsockopt) && self.option() == (libc::SOL_SOCKET, libc::SO_ERROR)
    }

    /// A call about a socket that is no circuit: the kernel does it, but for what could tell
    /// it of a circuit if another thread put one in its place meanwhile, which is done here,
    /// on the socket that was looked at.
    pub fn foreign(&mut self) -> Result<Option<i64>, Errno> {
        let fd = self.fd()?;
        let names = self.is(libc::SYS_getsockname) || self.is(libc::SYS_getpeername);
        if names && guard!("circuits-foreign") {
            let peer = self.is(libc::SYS_getpeername);
            self.tell(&notify::name_of(fd.as_fd(), peer)?)?;
            return Ok(Some(0));
        }
        let (level, name) = self.option();
        let own =
            level == libc::SOL_SOCKET && OWN.contains(&name) && guard!("circuits-foreign-options");
        if own && self.is(libc::SYS_setsockopt) {
            // Another compartment's circuit, perhaps: what was made to refuse them goes on to.
            if name == notify::PASS_RIGHTS
                && notify::refuses_descriptors(fd.as_fd())?
                && guard!("circuits-foreign-rights")
            {
                return Err(Errno::PERM);
            }
            notify::set_option(fd.as_fd(), level, name, &self.value()?)?;
            return Ok(Some(0));
        }
        if own && self.is(libc::SYS_getsockopt) {
            let mut value = vec![
                0;
                usize::try_from(self.room()?)
                    .map_err(|_| Errno::INVAL)?
                    .min(LONGEST)
            ];
            let length = notify::option(fd.as_fd(), level, name, &mut value)?;
            self.tell_option(value.get(..length).unwrap_or_default())?;
            return Ok(Some(0));
        }
        // A circuit that nobody knows any more is no native socket.
        let internet = socket_domain(fd).is_ok_and(|domain| {
            matches!(
                domain,
                rustix::net::AddressFamily::INET | rustix::net::AddressFamily::INET6
            )
        });
        match internet {
            true => Err(Errno::AFNOSUPPORT),
            false => Ok(None),
        }
    }

    /// Puts a descriptor into the program, closed on exec; its number there. The call waits on.
    pub fn install(&self, fd: &OwnedFd) -> Result<u32, Errno> {
        match self.listener.install(self.call.id, fd.as_fd(), true) {
            Ok(notify::Outcome::Done(number)) => Ok(number),
            Ok(notify::Outcome::Gone) => Err(Errno::INTR),
            Err(error) => Err(error
                .raw_os_error()
                .map_or(Errno::NFILE, Errno::from_raw_os_error)),
        }
    }

    fn int(&self, at: u64) -> Result<i32, Errno> {
        let mut bytes = [0; 4];
        self.target.read(at, &mut bytes)?;
        Ok(i32::from_ne_bytes(bytes))
    }

    fn copy(&self, at: u64, length: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; length];
        if length > 0 {
            self.target.read(at, &mut bytes)?;
        }
        self.still_waits()?;
        Ok(bytes)
    }

    /// Writes an answer, and how long the whole of it is.
    fn reply(&self, at: u64, bytes: &[u8], length_at: u64, length: usize) -> Result<(), Errno> {
        let pieces = [(at, bytes.len()), (length_at, 4)];
        let all = [bytes, &(length as u32).to_ne_bytes()].concat();
        self.write_pieces(&pieces, &all)
    }

    /// Its thread is the one that was opened for as long as it waits.
    fn still_waits(&self) -> Result<(), Errno> {
        match self.listener.is_live(self.call.id) {
            true => Ok(()),
            false => Err(Errno::INTR),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::gettid;

    /// What a call of this thread comes to that nobody waits for: whatever is said of it goes
    /// nowhere.
    fn foreign(number: i64, arguments: [u64; 6], fd: OwnedFd) -> Result<Option<i64>, Errno> {
        let call = Notification {
            id: 1,
            thread: gettid().as_raw_nonzero().get().cast_unsigned(),
            number: number as i32,
            arch: ARCH,
            arguments,
        };
        let sizes = notify::Sizes::of_kernel().unwrap();
        let nowhere = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::empty());
        let listener = Listener::new(nowhere.unwrap(), sizes);
        let target = Target::open(call.thread).unwrap();
        let fd = Some((fd, 1));
        let mut call = Call {
            call: &call,
            listener: &listener,
            target: Rc::new(target),
            fd,
            flags: OnceCell::new(),
        };
        call.foreign()
    }

    fn unix() -> OwnedFd {
        let (one, _) = std::os::unix::net::UnixStream::pair().unwrap();
        one.into()
    }

    #[test]
    fn what_could_tell_of_a_circuit_is_never_left_to_the_kernel() {
        let name = [0_u8; 128];
        let length = 128_u32;
        let at = core::ptr::from_ref(&name).expose_provenance() as u64;
        let length_at = core::ptr::from_ref(&length).expose_provenance() as u64;
        for number in [libc::SYS_getsockname, libc::SYS_getpeername] {
            let done = foreign(number, [0, at, length_at, 0, 0, 0], unix());
            assert_eq!(done, Err(Errno::INTR), "{number}");
        }
        let level = libc::SOL_SOCKET as u64;
        for name in OWN {
            let name = name as u64;
            let set = foreign(libc::SYS_setsockopt, [0, level, name, at, 4, 0], unix());
            assert_eq!(set, Err(Errno::INTR), "{name}");
            let read = [0, level, name, at, length_at, 0];
            assert_ne!(
                foreign(libc::SYS_getsockopt, read, unix()),
                Ok(None),
                "{name}"
            );
        }
        let other = [0, level, libc::SO_KEEPALIVE as u64, at, 4, 0];
        assert_eq!(foreign(libc::SYS_setsockopt, other, unix()), Ok(None));
    }

    #[test]
    fn an_unknown_socket_of_the_internet_is_not_used() {
        let native = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let done = foreign(libc::SYS_connect, [0; 6], native.into());
        assert_eq!(done, Err(Errno::AFNOSUPPORT));
        assert_eq!(foreign(libc::SYS_connect, [0; 6], unix()), Ok(None));
    }
}
