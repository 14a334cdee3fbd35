//! The far end of an uplink that carries VLANs: a relay that takes tags off and puts them on,
//! and a kernel's own stack behind each VLAN.

use crate::{Ended, Namespace};
use std::process::Stdio;

/// Takes tags off what comes by the trunk and hands it to the port of its VLAN, and back. A
/// tag that the kernel has taken off already stands beside the frame.
const TRUNK: &str = "
import select, socket, struct, sys
def opened(name):
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    s.setsockopt(263, 8, 1)
    s.setsockopt(263, 23, 1)
    s.bind((name, 0))
    return s
trunk, ports = opened('r0'), {int(v): opened('p' + v) for v in sys.argv[1:]}
print('on', flush=True)
while True:
    for s in select.select([trunk, *ports.values()], [], [])[0]:
        frame, beside, _, _ = s.recvmsg(65536, 256)
        if s is trunk:
            vlan = 0
            for level, kind, data in beside:
                status, _, _, _, _, tci, tpid = struct.unpack('=IIIHHHH', data)
                if status & 0x10: vlan = tci & 0xfff
            if vlan in ports: ports[vlan].send(frame)
        else:
            vlan = next(v for v, p in ports.items() if p is s)
            trunk.send(frame[:12] + struct.pack('!HH', 0x8100, vlan) + frame[12:])
";

/// An uplink's other end, and a network behind each VLAN.
pub struct Trunk {
    // First: it ends before what it reads goes.
    _relay: Ended,
    /// Where the uplink is: `up0`.
    pub wire: Namespace,
    /// Its other end, `r0`, and the relay.
    pub trunk: Namespace,
    /// Behind each VLAN, by `n0`.
    pub behind: Vec<Namespace>,
}

impl Trunk {
    /// With these VLANs, and behind each what these `ip` lines set up.
    pub fn make(vlans: &[u16], lines: &[&str]) -> Trunk {
        let wire = Namespace::make().unwrap();
        let trunk = Namespace::make().unwrap();
        let behind: Vec<Namespace> = (vlans.iter()).map(|_| Namespace::make().unwrap()).collect();
        for space in [&wire, &trunk] {
            let off =
                "sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1";
            assert!(space.sh(off).unwrap().ok());
        }
        let pair = |near: &Namespace, name: &str, far: &Namespace, peer: &str| {
            near.ip(&format!(
                "link add {name} type veth peer name {peer} netns {}",
                far.name
            ))
            .unwrap();
            // Plain frames between them: the relay knows of nothing else.
            for (at, name) in [(near, name), (far, peer)] {
                at.ip(&format!("link set {name} up")).unwrap();
                let off = format!("ethtool -K {name} tx off tso off gso off txvlan off");
                assert!(at.sh(&off).unwrap().ok());
            }
        };
        pair(&wire, "up0", &trunk, "r0");
        for (vlan, net) in vlans.iter().zip(&behind) {
            pair(&trunk, &format!("p{vlan}"), net, "n0");
            for line in lines {
                net.ip(line).unwrap();
            }
        }
        let words: Vec<String> = vlans.iter().map(u16::to_string).collect();
        let words = words.join(" ");
        let mut command = trunk.command(&format!("exec python3 -c \"$TRUNK\" {words}"));
        let relay = command.env("TRUNK", TRUNK).stdout(Stdio::null()).spawn();
        Trunk {
            _relay: Ended(relay.unwrap()),
            wire,
            trunk,
            behind,
        }
    }
}
