//! DHCPv4, answered from the table (RFC 2131): each endpoint has one address, so
//! there is no pool, no state, and nothing to exhaust.

use crate::Output;
use crate::frame::{Frame, Sender};
use guard::guard;
use telemetry::counters::Counter;
use telemetry::drops::DropReason;
use wire::address::MacAddress;
use wire::dhcpv4::{self, ClientMessage, Kind, Reply, ReplyKind};
use wire::{build, ethernet, ipv4};

/// Answers the DHCP message in the frame, or says why not.
pub(crate) fn answer(
    sender: &Sender<'_>,
    frame: &Frame<'_>,
    head: &[u8],
    ident: u16,
    out: &mut impl Output,
) -> Result<(), DropReason> {
    let mut message = [0u8; dhcpv4::MAX_MESSAGE];
    let length = read(frame, head, &mut message, out).ok_or(DropReason::BadDhcp)?;
    let message = message.get(..length).unwrap_or(&[]);
    let message = dhcpv4::parse(message).map_err(|_| DropReason::BadDhcp)?;
    if guard!("dhcp-client") && message.client_mac.0 != sender.endpoint.mac {
        return Err(DropReason::BadDhcp);
    }
    let Some(reply) = reply(sender, &message) else {
        return Ok(());
    };
    let mut buffer = [0u8; ethernet::HEADER + 576];
    if let Some(bytes) =
        emit(&mut buffer, sender, &message, &reply, ident).and_then(|n| buffer.get(..n))
    {
        out.count(frame.from, Counter::Replies, 1);
        out.reply(frame.face.slot, frame.face.tag, bytes);
    }
    Ok(())
}

fn read(frame: &Frame<'_>, head: &[u8], into: &mut [u8], out: &mut impl Output) -> Option<usize> {
    let start = frame.parsed.payload_offset()?;
    let length = frame.parsed.packet_end.checked_sub(start)?;
    let message = into.get_mut(..length)?;
    let have = head.get(start..)?;
    let from_head = have.len().min(length);
    message
        .get_mut(..from_head)?
        .copy_from_slice(have.get(..from_head)?);
    let rest = message.get_mut(from_head..)?;
    if !rest.is_empty() && out.ingress(head.len(), rest) != rest.len() {
        return None;
    }
    Some(length)
}

/// What the server says, if anything.
fn reply<'a>(sender: &Sender<'_>, message: &ClientMessage<'_>) -> Option<Reply<'a>> {
    let subnet = sender.subnet;
    let own = sender.endpoint.dhcp4;
    if own == [0; 4] {
        return None;
    }
    let ours = message
        .server
        .is_none_or(|server| server == subnet.gateway4);
    let kind = match message.kind {
        Kind::Discover => ReplyKind::Offer,
        Kind::Request if !ours => return None,
        Kind::Request => {
            // Selecting and init-reboot name the address in option 50, renewing
            // and rebinding in ciaddr (RFC 2131 4.3.2).
            let asked = message.requested.unwrap_or(message.client_address);
            if asked == own {
                ReplyKind::Ack
            } else {
                ReplyKind::Nak
            }
        }
        Kind::Inform => ReplyKind::Ack,
        Kind::Decline | Kind::Release => return None,
    };
    let inform = message.kind == Kind::Inform;
    Some(Reply {
        kind,
        xid: message.xid,
        broadcast: message.broadcast,
        client_address: if kind == ReplyKind::Ack {
            message.client_address
        } else {
            [0; 4]
        },
        your_address: if inform { [0; 4] } else { own },
        client_mac: MacAddress(sender.endpoint.mac),
        server: subnet.gateway4,
        lease_s: (!inform).then_some(subnet.lease_s.max(60)),
        prefix_len: subnet.prefix4_len,
        router: Some(subnet.gateway4),
        dns: (subnet.dns4 != [0; 4]).then_some(subnet.dns4),
        mtu: Some(sender.endpoint.mtu),
        further: &[],
    })
}

fn emit(
    buffer: &mut [u8],
    sender: &Sender<'_>,
    message: &ClientMessage<'_>,
    reply: &Reply<'_>,
    ident: u16,
) -> Option<usize> {
    // RFC 2131 4.1: to ciaddr if it has one, else by broadcast where it asks or is
    // refused, else to the address it is given.
    let to = match reply.kind {
        ReplyKind::Nak => [255; 4],
        _ if message.client_address != [0; 4] => message.client_address,
        _ if message.broadcast => [255; 4],
        _ => reply.your_address,
    };
    let mac = if to == [255; 4] {
        MacAddress::BROADCAST
    } else {
        MacAddress(sender.endpoint.mac)
    };
    let link = ethernet::Header::new(mac, MacAddress(sender.subnet.gateway_mac), ethernet::IPV4);
    let header = ipv4::Header {
        id: ident,
        dont_fragment: false,
        ..ipv4::Header::new(sender.subnet.gateway4, to, 17)
    };
    build::udp4(
        buffer,
        &link,
        &header,
        (dhcpv4::SERVER_PORT, dhcpv4::CLIENT_PORT),
        |body| reply.emit(body),
    )
    .ok()
}
