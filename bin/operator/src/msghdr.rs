//! What sendto, sendmsg, sendmmsg and their counterparts point to: copied from a program, and
//! to it.

use crate::call::Call;
use circuit::{Endpoint, Family, Ip};
use notify::PIECES;
use rustix::io::Errno;

/// Bytes of a datagram at most: UDP's over IPv4.
pub const LONGEST: usize = 65_507;
/// Bytes of a struct msghdr, of a struct mmsghdr.
const HEADER: usize = 56;
const MANY: u64 = 64;
/// Bytes of control that are looked at; nobody needs more for a source address.
const CONTROL: usize = 1024;
/// Bytes of a struct cmsghdr.
const CMSG: usize = 16;

/// One message, as a call describes it.
pub struct Message {
    /// Where its struct msghdr is; 0: there is none.
    at: u64,
    /// Where an address is, and how many bytes it has.
    name: (u64, u32),
    pieces: Vec<(u64, usize)>,
    control: (u64, u64),
}

impl Message {
    /// sendto's and recvfrom's.
    pub fn plain(call: &Call<'_>) -> Result<Message, Errno> {
        let [_, at, length, _, name, name_length] = call.arguments();
        let receives = call.is(libc::SYS_recvfrom);
        let name_length = match receives {
            // Its length is told where that is.
            true => 0,
            false => name_length as u32,
        };
        Ok(Message {
            at: 0,
            name: (name, name_length),
            pieces: vec![(at, usize::try_from(length).map_err(|_| Errno::INVAL)?)],
            control: (0, 0),
        })
    }

    /// The struct msghdr at this place.
    pub fn read(call: &Call<'_>, at: u64) -> Result<Message, Errno> {
        let mut bytes = [0; HEADER];
        call.read(at, &mut bytes)?;
        let (words, _) = bytes.as_chunks::<8>();
        let word = |n: usize| words.get(n).map_or(0, |it| u64::from_ne_bytes(*it));
        let (pieces_at, count) = (word(2), word(3));
        let count = usize::try_from(count).map_err(|_| Errno::MSGSIZE)?;
        if count > PIECES {
            return Err(Errno::MSGSIZE);
        }
        let mut bytes = vec![0; count * 16];
        call.read(pieces_at, &mut bytes)?;
        let (halves, _) = bytes.as_chunks::<16>();
        let pieces = halves.iter().map(|piece| {
            let piece = u128::from_ne_bytes(*piece);
            // An address, and then a length.
            let length = usize::try_from((piece >> 64) as i64).map_err(|_| Errno::INVAL)?;
            Ok((piece as u64, length))
        });
        if (word(1) as i32) < 0 {
            return Err(Errno::INVAL);
        }
        Ok(Message {
            at,
            name: (word(0), word(1) as u32),
            pieces: pieces.collect::<Result<_, Errno>>()?,
            control: (word(4), word(5)),
        })
    }

    /// Where the struct msghdr of the message after `n` others is, of sendmmsg and recvmmsg.
    pub fn of_many(first: u64, n: u64) -> u64 {
        first.wrapping_add(n * MANY)
    }

    /// Says how much of it was sent or received, where it is one of several.
    pub fn tell_length(call: &Call<'_>, at: u64, length: usize) -> Result<(), Errno> {
        call.write(
            at.wrapping_add(HEADER as u64),
            &(length as u32).to_ne_bytes(),
        )
    }

    /// The bytes that there are, or that there is room for.
    pub fn length(&self) -> usize {
        let all = self.pieces.iter();
        all.fold(0, |sum: usize, piece| sum.saturating_add(piece.1))
    }

    /// What is to be sent.
    pub fn data(&self, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
        if self.length() > LONGEST {
            return Err(Errno::MSGSIZE);
        }
        let mut data = vec![0; self.length()];
        call.read_pieces(&self.pieces, &mut data)?;
        Ok(data)
    }

    /// Where it is to be sent; `None`: it does not say.
    pub fn destination(&self, call: &Call<'_>) -> Result<Option<Vec<u8>>, Errno> {
        // Of a struct msghdr an address of no bytes is none.
        if self.name.0 == 0 || (self.at != 0 && self.name.1 == 0) {
            return Ok(None);
        }
        let length = i32::try_from(self.name.1).map_err(|_| Errno::INVAL)? as usize;
        let length = match self.at {
            0 if length > 128 => return Err(Errno::INVAL),
            _ => length.min(128),
        };
        let mut bytes = vec![0; length];
        call.read(self.name.0, &mut bytes)?;
        Ok(Some(bytes))
    }

    /// The source that its control asks for (IP_PKTINFO, IPV6_PKTINFO); the rest of it, which
    /// bears on packets, has no effect, but for a division into several (UDP_SEGMENT).
    pub fn source(&self, call: &Call<'_>) -> Result<Option<Ip>, Errno> {
        let length = usize::try_from(self.control.1).map_err(|_| Errno::NOBUFS)?;
        if self.control.0 == 0 || length < CMSG {
            return Ok(None);
        }
        if length > CONTROL {
            return Err(Errno::NOBUFS);
        }
        let mut bytes = vec![0; length];
        call.read(self.control.0, &mut bytes)?;
        source_of(&bytes)
    }

    /// Writes what was received, and who sent it. `info`: where it was sent to, as control.
    pub fn tell(&self, call: &Call<'_>, came: &Came<'_>) -> Result<(), Errno> {
        call.write_pieces(&self.pieces, came.data)?;
        let (name, length) = match came.from {
            Some((family, from)) => circuit::write(family, from),
            None => ([0; circuit::SOCKADDR_BYTES], 0),
        };
        let name = name.get(..length).unwrap_or_default();
        if self.at == 0 {
            let [.., at, length_at] = call.arguments();
            return call.tell_at(name, at, length_at);
        }
        let mut flags = came.flags;
        let mut used = 0;
        if self.name.0 != 0 {
            let room = self.name.1 as usize;
            call.write(self.name.0, name.get(..room).unwrap_or(name))?;
        }
        let room = match self.control.0 {
            0 => 0,
            _ => usize::try_from(self.control.1).unwrap_or(usize::MAX),
        };
        for info in came.control {
            let (info, is_whole) = fitting(info, room.saturating_sub(used));
            if !is_whole {
                flags |= libc::MSG_CTRUNC;
            }
            call.write(self.control.0.wrapping_add(used as u64), &info)?;
            used = (used + info.len().next_multiple_of(8)).min(room);
        }
        if self.name.0 != 0 {
            call.write(self.at.wrapping_add(8), &(name.len() as u32).to_ne_bytes())?;
        }
        call.write(self.at.wrapping_add(40), &(used as u64).to_ne_bytes())?;
        call.write(self.at.wrapping_add(48), &flags.to_ne_bytes())
    }
}

/// What was received.
pub struct Came<'a> {
    /// Its bytes, of which there is room for these.
    pub data: &'a [u8],
    /// Who sent it, and how the receiver writes addresses.
    pub from: Option<(Family, Endpoint)>,
    /// Its control messages.
    pub control: &'a [Vec<u8>],
    /// MSG_TRUNC.
    pub flags: i32,
}

/// The control messages that say where a datagram was sent to. It came by `lo`, as all that
/// there is does.
pub fn packet_info(asked: (bool, bool), family: Family, to: Ip) -> Vec<Vec<u8>> {
    const LO: u32 = 1;
    let [.., a, b, c, d] = to;
    let mapped = to.starts_with(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
    let mut all = Vec::new();
    if asked.0 && mapped {
        let address = [a, b, c, d];
        let body = [LO.to_ne_bytes(), address, address].concat();
        all.push(control(libc::IPPROTO_IP, libc::IP_PKTINFO, &body));
    }
    if asked.1 && family == Family::V6 {
        let body = [&to[..], &LO.to_ne_bytes()].concat();
        all.push(control(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &body));
    }
    all
}

/// The control messages that say how far a datagram might have gone, and its class: as its
/// sender has them, for it passes no router. `asked` and `sent`: see [`circuit::Options::hops`].
pub fn hops(asked: [bool; 4], sent: [i32; 4], to: Ip) -> Vec<Vec<u8>> {
    let mapped = to.starts_with(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
    let [ttl, tos, limit, class] = sent;
    let byte = [tos as u8];
    let [ttl, limit, class] = [ttl, limit, class].map(i32::to_ne_bytes);
    let all: [(bool, i32, i32, &[u8]); 4] = [
        (mapped, libc::IPPROTO_IP, libc::IP_TTL, &ttl),
        (mapped, libc::IPPROTO_IP, libc::IP_TOS, &byte),
        (!mapped, libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, &limit),
        (!mapped, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &class),
    ];
    let told = all.iter().zip(asked).filter(|(it, asked)| it.0 && *asked);
    told.map(|((_, level, kind, body), _)| control(*level, *kind, body))
        .collect()
}

/// A control message as far as there is room for it, as Linux cuts it: it says itself how much
/// of it is there, and of less than a header there is nothing. Whether it is all of it.
fn fitting(message: &[u8], room: usize) -> (Vec<u8>, bool) {
    match message.get(..room) {
        None => (message.to_vec(), true),
        Some(all) if all.len() == message.len() => (message.to_vec(), true),
        Some(part) if part.len() < CMSG => (Vec::new(), false),
        Some(part) => {
            let mut part = part.to_vec();
            if let Some(length) = part.first_chunk_mut() {
                *length = (room as u64).to_ne_bytes();
            }
            (part, false)
        }
    }
}

/// One control message.
fn control(level: i32, kind: i32, body: &[u8]) -> Vec<u8> {
    let length = (CMSG + body.len()) as u64;
    let parts: [&[u8]; 4] = [
        &length.to_ne_bytes(),
        &level.to_ne_bytes(),
        &kind.to_ne_bytes(),
        body,
    ];
    parts.concat()
}

/// The source that control messages ask for. Bound: the bytes that there are.
fn source_of(bytes: &[u8]) -> Result<Option<Ip>, Errno> {
    let (mut source, mut rest) = (None, bytes);
    while let Some((header, _)) = rest.split_first_chunk::<CMSG>() {
        let [a, b, c, d, e, f, g, h, l0, l1, l2, l3, k0, k1, k2, k3] = *header;
        let length = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
        let length = usize::try_from(length).map_err(|_| Errno::INVAL)?;
        let body = rest.get(CMSG..length).ok_or(Errno::INVAL)?;
        let level = i32::from_ne_bytes([l0, l1, l2, l3]);
        match (level, i32::from_ne_bytes([k0, k1, k2, k3])) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                // The interface; the source; a field that is read alone.
                let [_, _, _, _, a, b, c, d, ..] = *body else {
                    return Err(Errno::INVAL);
                };
                let mut ip = [0; 16];
                ip[10..].copy_from_slice(&[0xff, 0xff, a, b, c, d]);
                source = Some(ip);
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                let ip = body.first_chunk::<16>().filter(|_| body.len() >= 20);
                source = Some(*ip.ok_or(Errno::INVAL)?);
            }
            (libc::IPPROTO_UDP, _) => return Err(Errno::INVAL),
            _ => {}
        }
        rest = rest.get(length.next_multiple_of(8)..).unwrap_or_default();
    }
    Ok(source)
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: Ip = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 1, 10];
    const V6: Ip = [0xfd, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10];

    #[test]
    fn what_a_receiver_is_told_a_sender_may_ask_for() {
        for (asked, family, to, count) in [
            ((true, false), Family::V4, V4, 1),
            ((true, true), Family::V6, V4, 2),
            ((true, true), Family::V6, V6, 1),
            ((true, false), Family::V6, V6, 0),
            ((false, true), Family::V4, V4, 0),
        ] {
            let all = packet_info(asked, family, to);
            assert_eq!(all.len(), count, "{asked:?} {family:?}");
            for one in all {
                assert_eq!(source_of(&one), Ok(Some(to)));
            }
        }
        let v4 = packet_info((true, false), Family::V4, V4).concat();
        assert_eq!(v4.len(), 28);
        assert_eq!(v4[16..], [1, 0, 0, 0, 10, 1, 1, 10, 10, 1, 1, 10]);
    }

    #[test]
    fn a_receiver_is_told_of_its_senders_hops_and_class_by_family() {
        let sent = [1, 8, 2, 16];
        assert_eq!(hops([false; 4], sent, V4), Vec::<Vec<u8>>::new());
        let four = hops([true; 4], sent, V4);
        let ttl = control(libc::IPPROTO_IP, libc::IP_TTL, &[1, 0, 0, 0]);
        assert_eq!(four, [ttl, control(libc::IPPROTO_IP, libc::IP_TOS, &[8])]);
        let six = hops([true, true, false, true], sent, V6);
        let class = control(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &[16, 0, 0, 0]);
        assert_eq!(six, [class]);
        let limit = hops([false, false, true, false], sent, V6);
        assert_eq!(limit[0][16..], [2, 0, 0, 0]);
    }

    #[test]
    fn control_is_cut_to_its_room_and_says_so() {
        let whole = control(libc::IPPROTO_IP, libc::IP_TTL, &[64, 0, 0, 0]);
        for room in 0..30 {
            let (part, is_whole) = fitting(&whole, room);
            assert_eq!(is_whole, room >= 20, "{room}");
            let length = if room < 16 { 0 } else { room.min(20) };
            assert_eq!(part.len(), length, "{room}");
            if let Some(said) = part.first_chunk() {
                assert_eq!(u64::from_ne_bytes(*said), length as u64);
                assert_eq!(part[8..], whole[8..length]);
            }
        }
    }

    #[test]
    fn control_that_is_none_is_refused_within_bounds() {
        assert_eq!(source_of(&[]), Ok(None));
        let ttl = control(libc::IPPROTO_IP, libc::IP_TTL, &[64, 0, 0, 0]);
        assert_eq!(source_of(&ttl), Ok(None));
        let segment = control(libc::IPPROTO_UDP, libc::UDP_SEGMENT, &[0, 1]);
        assert_eq!(source_of(&segment), Err(Errno::INVAL));
        let short = control(libc::IPPROTO_IP, libc::IP_PKTINFO, &[1, 2, 3]);
        assert_eq!(source_of(&short), Err(Errno::INVAL));
        for length in [0, 1, 15, 25, 4096, u64::MAX - 7, u64::MAX] {
            let mut bytes = ttl.clone();
            bytes[..8].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(source_of(&bytes), Err(Errno::INVAL), "{length}");
        }
    }
}
