//! ARP for IPv4 over Ethernet (RFC 826).

use crate::address::MacAddress;
use crate::field::{self, Writer};
use crate::{Malformed, NoRoom};

/// Bytes of a message.
pub const LEN: usize = 28;

/// What is asked or told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Who has the target address?
    Request,
    /// The sender has its address.
    Reply,
}

/// An ARP message for IPv4 over Ethernet; no other kind is legal here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Request or reply.
    pub operation: Operation,
    /// Sender's MAC.
    pub sender_mac: MacAddress,
    /// Sender's IPv4 address; zero in a probe (RFC 5227).
    pub sender: [u8; 4],
    /// Target's MAC; meaningless in a request.
    pub target_mac: MacAddress,
    /// Target's IPv4 address.
    pub target: [u8; 4],
}

impl Message {
    /// The answer that `mac` has the requested address.
    pub const fn reply(&self, mac: MacAddress) -> Message {
        Message {
            operation: Operation::Reply,
            sender_mac: mac,
            sender: self.target,
            target_mac: self.sender_mac,
            target: self.sender,
        }
    }

    /// An address announcement or its probing sibling: the sender speaks of itself.
    pub fn is_gratuitous(&self) -> bool {
        self.sender == self.target
    }

    /// Reads a message from the bytes after the Ethernet header.
    ///
    /// # Errors
    /// [`Malformed`]: the bytes are not such a message, which is their sender's fault.
    pub fn parse(bytes: &[u8]) -> Result<Message, Malformed> {
        let fixed: [u8; 8] = field::array(bytes, 0).ok_or(Malformed::Truncated)?;
        let operation = match fixed {
            [0, 1, 8, 0, 6, 4, 0, 1] => Operation::Request,
            [0, 1, 8, 0, 6, 4, 0, 2] => Operation::Reply,
            _ => return Err(Malformed::Field),
        };
        Message::read(bytes, operation).ok_or(Malformed::Truncated)
    }

    fn read(bytes: &[u8], operation: Operation) -> Option<Message> {
        Some(Message {
            operation,
            sender_mac: MacAddress(field::array(bytes, 8)?),
            sender: field::array(bytes, 14)?,
            target_mac: MacAddress(field::array(bytes, 18)?),
            target: field::array(bytes, 24)?,
        })
    }

    /// Writes it to the start of `buffer`; returns [`LEN`].
    ///
    /// # Errors
    /// [`NoRoom`]: the caller's buffer is too short, which is our fault.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, NoRoom> {
        let operation = match self.operation {
            Operation::Request => 1,
            Operation::Reply => 2,
        };
        Writer::new(buffer)
            .bytes(&[0, 1, 8, 0, 6, 4, 0, operation])
            .bytes(&self.sender_mac.0)
            .bytes(&self.sender)
            .bytes(&self.target_mac.0)
            .bytes(&self.target)
            .finish()
    }
}
