//! A network of the caller's own beyond an uplink, by the kernel's own network stack.

use crate::{Ended, Instance, Namespace, unique};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::time::Duration;

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

    /// A tenant green behind it, with an endpoint by tap in its namespace. `driver`: of the
    /// uplink, as `, driver: xdp`; `tenant`: a line more of the tenant's.
    pub fn spec(&self, driver: &str, tenant: &str) -> String {
        format!(
            "version: 1
uplinks:
  - {{ name: wan, interface: up0, namespace: {}{driver} }}
tenants:
  - name: green
    {tenant}
    subnets:
      - {{ name: lan, prefixes: [10.9.0.0/24, \"fd00:9::/64\"] }}
    endpoints:
      - name: web1
        subnet: lan
        addresses: [10.9.0.10, \"fd00:9::10\"]
        attach: {{ tap: {{ namespace: {}, interface: eth0, make: true }} }}
    outside:
      - uplink: wan
        address: [192.0.2.10/24, \"2001:db8::10/64\"]
        gateway: [192.0.2.1, \"2001:db8::1\"]
        mac: 02:00:00:00:09:10
        routes:
          - 0.0.0.0/0
          - ::/0
          - {{ to: 203.0.113.2/32, gateway: 192.0.2.9 }}
",
            self.wire.name, self.tenant
        )
    }

    /// Takes the uplink's interface away; the MAC of its other end.
    pub fn unplug(&self) -> Result<String, String> {
        let said = self.router.sh("cat /sys/class/net/r0/address")?;
        self.wire.ip("link del up0")?;
        Ok(said.out.trim().to_owned())
    }

    /// Puts one there again, to the same station as before: who has another MAC is asked
    /// for anew only in time. `each`: more of both its ends, as `numrxqueues 4`.
    pub fn plug(&self, mac: &str, each: &str) -> Result<(), String> {
        self.wire.ip(&format!(
            "link add up0 {each} type veth peer name r0 address {mac} netns {} {each}",
            self.router.name
        ))?;
        self.wire.ip("link set up0 up")?;
        for line in [
            "link set r0 up",
            "addr add 192.0.2.1/24 dev r0",
            "route add 10.9.0.0/24 via 192.0.2.10",
        ] {
            self.router.ip(line)?;
        }
        Ok(())
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

/// A page that is served by HTTP.
pub struct Page {
    folder: PathBuf,
    text: String,
}

impl Page {
    /// Of this text, in a new folder.
    pub fn new(folder: &Path, text: &str) -> Result<Page, String> {
        let says = |e: std::io::Error| format!("{}: {e}", folder.display());
        std::fs::create_dir(folder).map_err(says)?;
        std::fs::write(folder.join("index.html"), text).map_err(says)?;
        Ok(Page {
            folder: folder.to_path_buf(),
            text: text.to_owned(),
        })
    }

    /// Serves it in a namespace.
    pub fn serve(&self, at: &Namespace) -> Result<Ended, String> {
        let line = format!(
            "cd {}; exec python3 -m http.server --bind :: 80 >/dev/null 2>&1",
            self.folder.display()
        );
        let child = at.command(&line).spawn();
        child.map(Ended).map_err(|e| e.to_string())
    }

    /// Whether a host's page comes whole, within 20 s.
    pub fn comes(&self, instance: &Instance, from: &Namespace, host: &str) -> bool {
        let line = format!("curl -sg --max-time 5 http://{host}/");
        instance.until(Duration::from_secs(20), |_| {
            from.sh(&line).is_ok_and(|said| said.out == self.text)
        })
    }
}
