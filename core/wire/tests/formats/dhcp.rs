//! DHCP: a client's message is read strictly.

use wire::MacAddress;
use wire::dhcpv4::{DhcpError, Kind, MIN_REPLY, Reply, ReplyKind, parse};

fn message(options: &[u8]) -> Vec<u8> {
    let mut message = vec![0; 236];
    message[..4].copy_from_slice(&[1, 1, 6, 0]);
    message[4..8].copy_from_slice(&0xdead_beefu32.to_be_bytes());
    message[10] = 0x80;
    message[28..34].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    message.extend([99, 130, 83, 99]);
    message.extend(options);
    message
}

#[test]
fn a_discover_is_read() {
    let bytes = message(&[
        53, 1, 1, 0, 61, 7, 1, 2, 0, 0, 0, 0, 1, 50, 4, 10, 1, 0, 5, 57, 2, 5, 220, 55, 3, 1, 3, 6,
        12, 3, b'r', b'e', b'd', 255, 0, 0,
    ]);
    let read = parse(&bytes).unwrap();
    assert_eq!(
        (read.kind, read.xid, read.broadcast),
        (Kind::Discover, 0xdead_beef, true)
    );
    assert_eq!(read.client_mac, MacAddress([2, 0, 0, 0, 0, 1]));
    assert_eq!(read.requested, Some([10, 1, 0, 5]));
    assert_eq!(
        (read.max_size, read.parameters),
        (Some(1500), &[1, 3, 6][..])
    );
    assert_eq!((read.host_name, read.server), (Some(&b"red"[..]), None));
}

#[test]
fn options_overloaded_into_the_fixed_fields_are_read() {
    let mut bytes = message(&[52, 1, 3, 255]);
    bytes[108..112].copy_from_slice(&[53, 1, 3, 255]);
    bytes[44..51].copy_from_slice(&[54, 4, 10, 1, 0, 1, 255]);
    let read = parse(&bytes).unwrap();
    assert_eq!(
        (read.kind, read.server),
        (Kind::Request, Some([10, 1, 0, 1]))
    );
    // An overloaded field that has no end, or overloads again.
    bytes[50] = 0;
    assert_eq!(parse(&bytes), Err(DhcpError::End));
    bytes[50..54].copy_from_slice(&[52, 1, 1, 255]);
    assert_eq!(parse(&bytes), Err(DhcpError::Duplicate));
}

#[test]
fn lengths_that_lie_are_refused() {
    let refused = |options: &[u8]| parse(&message(options)).unwrap_err();
    assert_eq!(refused(&[53, 1]), DhcpError::Option);
    assert_eq!(refused(&[53]), DhcpError::Option);
    assert_eq!(refused(&[53, 1, 1]), DhcpError::End);
    assert_eq!(refused(&[53, 2, 1, 1, 255]), DhcpError::Option);
    assert_eq!(
        refused(&[53, 1, 1, 50, 5, 10, 1, 0, 5, 255]),
        DhcpError::Option
    );
    assert_eq!(refused(&[53, 1, 1, 12, 255, 1]), DhcpError::Option);
    assert_eq!(refused(&[52, 1, 4, 255]), DhcpError::Option);
    assert_eq!(refused(&[53, 1, 1, 53, 1, 1, 255]), DhcpError::Duplicate);
    assert_eq!(refused(&[255]), DhcpError::Kind);
    for server in [2, 5, 6, 0, 18] {
        assert_eq!(refused(&[53, 1, server, 255]), DhcpError::Kind);
    }
    assert_eq!(parse(&[0; 239]), Err(DhcpError::Length));
    assert_eq!(parse(&[0; 1473]), Err(DhcpError::Length));
}

#[test]
fn a_relay_is_not_a_client() {
    let with_82 = message(&[53, 1, 1, 82, 4, 1, 2, 9, 9, 255]);
    assert_eq!(parse(&with_82), Err(DhcpError::Relayed));
    let mut with_address = message(&[53, 1, 1, 255]);
    with_address[24] = 10;
    assert_eq!(parse(&with_address), Err(DhcpError::Relayed));
}

#[test]
fn a_reply_of_another_cookie_or_hardware_is_refused() {
    for (at, value) in [(0, 2), (1, 6), (2, 16), (236, 0)] {
        let mut bytes = message(&[53, 1, 1, 255]);
        bytes[at] = value;
        assert_eq!(parse(&bytes), Err(DhcpError::Fixed));
    }
}

fn reply(kind: ReplyKind) -> Vec<u8> {
    let mut buffer = [0xaa; 600];
    let length = Reply {
        kind,
        xid: 7,
        broadcast: false,
        client_address: [0; 4],
        your_address: [10, 1, 0, 5],
        client_mac: MacAddress([2, 0, 0, 0, 0, 1]),
        server: [10, 1, 0, 1],
        lease_s: Some(3600),
        prefix_len: 24,
        router: Some([10, 1, 0, 1]),
        dns: Some([10, 1, 0, 2]),
        mtu: Some(1450),
        further: &[],
    }
    .emit(&mut buffer)
    .unwrap();
    buffer[..length].to_vec()
}

#[test]
fn an_offer_holds_what_a_client_needs() {
    let bytes = reply(ReplyKind::Offer);
    assert!(bytes.len() >= MIN_REPLY);
    assert_eq!(bytes[16..20], [10, 1, 0, 5]);
    let options = [
        53, 1, 2, 54, 4, 10, 1, 0, 1, 51, 4, 0, 0, 14, 16, 58, 4, 0, 0, 7, 8, 59, 4, 0, 0, 12, 78,
        1, 4, 255, 255, 255, 0, 3, 4, 10, 1, 0, 1, 6, 4, 10, 1, 0, 2, 26, 2, 5, 170, 255,
    ];
    assert_eq!(bytes[240..240 + options.len()], options);
    // Nothing of the buffer leaks.
    assert!(bytes[240 + options.len()..].iter().all(|byte| *byte == 0));
    assert!(bytes[34..236].iter().all(|byte| *byte == 0));
}

#[test]
fn a_refusal_gives_nothing_and_is_broadcast() {
    let bytes = reply(ReplyKind::Nak);
    assert_eq!((bytes[10], &bytes[16..20]), (0x80, &[0; 4][..]));
    assert_eq!(bytes[240..250], [53, 1, 6, 54, 4, 10, 1, 0, 1, 255]);
}
