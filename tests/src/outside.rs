//! A network of the caller's own beyond an uplink, by the kernel's own network stack.

use crate::{Namespace, unique};
use std::mem::ManuallyDrop;

/// Beyond the uplink: `wire` holds the interface that the fabric takes, `router` the
/// other end of it, `server` is a network further.
pub struct Outside {
    /// Holds the uplink's interface, `up0`.
    pub wire: Namespace,
    /// 192.0.2.1 and 2001:db8::1 there (`r0`), 198.51.100.1 and 2001:db8:1::1 beyond (`r1`).
    pub router: Namespace,
    /// 198.51.100.2 and 2001:db8:1::2.
    pub server: Namespace,
    /// Name of a tenant's namespace, removed in the end.
    pub tenant: String,
}

impl Outside {
    /// Makes it.
    pub fn make() -> Result<Outside, String> {
        let outside = Outside {
            wire: Namespace::make()?,
            router: Namespace::make()?,
            server: Namespace::make()?,
            tenant: unique("bht-green-"),
        };
        let (wire, router, server) = (&outside.wire, &outside.router, &outside.server);
        // Only the fabric speaks on the uplink, not the kernel it is in.
        wire.sh(
            "sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1",
        )?;
        for (from, name, to, peer) in [(wire, "up0", router, "r0"), (router, "r1", server, "s0")] {
            from.ip(&format!(
                "link add {name} type veth peer name {peer} netns {}",
                to.name
            ))?;
            from.ip(&format!("link set {name} up"))?;
            to.ip(&format!("link set {peer} up"))?;
        }
        for (at, line) in [
            (router, "addr add 192.0.2.1/24 dev r0"),
            (router, "addr add 2001:db8::1/64 dev r0 nodad"),
            (router, "addr add 198.51.100.1/24 dev r1"),
            (router, "addr add 2001:db8:1::1/64 dev r1 nodad"),
            // Two hosts of its own, for routes of a tenant's own.
            (router, "addr add 203.0.113.1/32 dev lo"),
            (router, "addr add 203.0.113.2/32 dev lo"),
            (router, "route add 10.9.0.0/24 via 192.0.2.10"),
            (router, "route add fd00:9::/64 via 2001:db8::10"),
            (server, "addr add 198.51.100.2/24 dev s0"),
            (server, "addr add 2001:db8:1::2/64 dev s0 nodad"),
            (server, "route add default via 198.51.100.1"),
            (server, "route add default via 2001:db8:1::1"),
        ] {
            at.ip(line)?;
        }
        let said = router.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")?;
        said.ok().then_some(outside).ok_or(said.err)
    }

    /// From now on the far end leaves nothing of its frames to others: no checksum and no
    /// tag beside them, as AF_XDP wants them.
    pub fn finish(&self) -> Result<(), String> {
        let said = self.router.sh("ethtool -K r0 tx off txvlan off gso off")?;
        said.ok().then_some(()).ok_or(said.err)
    }

    /// The tenant's namespace.
    pub fn tenant(&self) -> ManuallyDrop<Namespace> {
        ManuallyDrop::new(Namespace::named(&self.tenant))
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        drop(Namespace::named(&self.tenant));
    }
}
