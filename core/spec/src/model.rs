//! The spec's types. What is absent was not written; the methods say what then holds.

use crate::decode::{model, words};
use crate::policy::{Accept, Guardrail, Offer, Policy};
use crate::rates::{Limit, Rate, ServiceClass};
use crate::segment::{Segment, VlanSegment};
use crate::selectors::Labels;
use crate::shapes::{AddressList, Attach, Class, Cores, OutsideRoute, Via, Wait};
use crate::source::{Located, Span};
use crate::values::{
    BitRate, Duration, InterfaceAddress, InterfaceName, Ip, Mac, Name, Namespace, Path, Prefix,
    Size, Toggle,
};

model! {
    /// The networking of one host: its uplinks and its tenants.
    pub struct Document as "the spec" {
        required {
            /// Version of this format: 1.
            version: Located<u32>,
        }
        optional {
            /// The host that this spec is for.
            host: Host,
        }
        lists {
            /// Hosts, where a spec is for several. This release runs one.
            hosts: Host,
            /// The host's interfaces to the world.
            uplinks: Uplink,
            /// The provider's rules, before those of every tenant that they concern.
            guardrails: Guardrail,
            /// Classes of packets beside best effort, at most 7.
            classes: ServiceClass,
            /// Who owns endpoints.
            tenants: Tenant,
        }
    }
}

model! {
    /// A host.
    pub struct Host as "a host" {
        required {
            /// Its name; the MAC addresses that its compartments have on an uplink come from it.
            name: Located<Name>,
        }
        optional {
            /// How many cores it has; `cores: {isolated: ...}` is checked against it.
            cores: Located<u32>,
        }
    }
}

words! {
    /// As whom a host's compartments appear on an uplink.
    pub enum Identity as "an identity" {
        /// Each compartment has a MAC and addresses of its own.
        Compartment = "compartment",
        /// All share the host's. Not in this release.
        Host = "host",
    }
}

words! {
    /// How the fabric reads and writes an uplink.
    pub enum Driver as "a driver" {
        /// AF_XDP where that loses nothing, else AF_PACKET.
        Auto = "auto",
        /// AF_XDP, or it is refused.
        Xdp = "xdp",
        /// AF_PACKET.
        AfPacket = "af_packet",
    }
}

model! {
    /// An interface of the host to the world.
    pub struct Uplink as "an uplink" {
        required {
            /// Its name in this spec.
            name: Located<Name>,
            /// The interface.
            interface: Located<InterfaceName>,
        }
        optional {
            /// The network namespace that it is in. Default: the host's own.
            namespace: Located<Namespace>,
            /// Bytes of IP packet that it carries. Default: 1500.
            mtu: Located<u32>,
            /// Bytes of each packet to leave free for encapsulation. Default: 0.
            overhead: Located<u32>,
            /// As whom compartments appear on it. Default: compartment.
            identity: Located<Identity>,
            /// How frames are read and written. Default: auto.
            driver: Located<Driver>,
        }
    }
}

model! {
    /// Who owns endpoints. Its addresses are its own: they may overlap any other tenant's.
    pub struct Tenant as "a tenant" {
        required {
            /// Its name.
            name: Located<Name>,
        }
        optional {
            /// Its number, 1 to 16777215. Default: chosen once and kept.
            id: Located<u32>,
            /// Where its switch runs.
            placement: Placement,
            /// The cores that its switch runs on. Default: shared.
            cores: Located<Cores>,
            /// How its switch waits for work. Default: adaptive.
            wait: Located<Wait>,
            /// How many workers its switch has, 1 to 8, each on a core of its own where there
            /// are as many. Default: 1.
            workers: Located<u32>,
            /// Its share of the fabric when all are busy, 1 to 255. Default: 1.
            weight: Located<u32>,
            /// What the fabric gives it at least, in bits a second. Default: nothing.
            guarantee: Located<BitRate>,
            /// What its endpoints may send, and be sent, all together. Default: no limit.
            rate: Rate,
            /// Each direction of its switch's channel to the fabric: a power of two,
            /// 256KiB to 16MiB. Default: 1MiB.
            channel: Located<Size>,
            /// Limit of its switch's memory, at least 4MiB. Default: 64MiB.
            memory: Located<Size>,
            /// What may talk. Default: everything that has a way.
            policy: Policy,
            /// The tenant states its subnets, endpoints, routes, policy, offers and acceptances
            /// itself, with a token, within these limits. Default: this spec does.
            self_managed as "self-managed": SelfManaged,
        }
        lists {
            /// Its subnets.
            subnets: Subnet,
            /// Its endpoints.
            endpoints: Endpoint,
            /// Its routes beyond its subnets.
            routes: Route,
            /// Its ways outside.
            outside: Outside,
            /// Services that it offers to other tenants.
            offers: Offer,
            /// Services of other tenants that it accepts.
            accepts: Accept,
        }
    }
}

model! {
    /// How much a tenant that manages itself may have.
    pub struct SelfManaged as "limits of a tenant that manages itself" {
        optional {
            /// Endpoints, at most. Default: 16.
            endpoints: Located<u32>,
            /// Rules, at most. Default: 200.
            rules: Located<u32>,
            /// Whether it may attach by fifo. Default: off.
            fifo: Located<Toggle>,
            /// Whether it may attach virtual machines by vhost-user. Default: off.
            vhost: Located<Toggle>,
        }
    }
}

words! {
    /// How many tenants share a switch.
    pub enum Per as "a level" {
        /// All tenants that say `host` share one.
        Host = "host",
        /// All tenants of the same `zone` share one.
        Zone = "zone",
        /// The tenant has its own.
        Tenant = "tenant",
    }
}

words! {
    /// What a compartment is.
    pub enum Kind as "a kind of compartment" {
        /// A sandboxed process.
        Process = "process",
        /// A virtual machine. Not in this release.
        Vm = "vm",
    }
}

model! {
    /// Where a tenant's switch runs. Tenants that share a switch must agree on it.
    pub struct Placement as "a placement" {
        optional {
            /// How many tenants share a switch. Default: tenant.
            per: Located<Per>,
            /// With `per: zone`: which.
            zone: Located<Name>,
            /// What the compartment is. Default: process.
            kind: Located<Kind>,
            /// Whether it is sandboxed. Off is for comparisons only. Default: on.
            sandbox: Located<Toggle>,
            /// Run this program in place of the switch (tests: one that has been taken over).
            program: Located<Path>,
        }
    }
}

model! {
    /// A broadcast domain with its prefixes and an always-there gateway.
    pub struct Subnet as "a subnet" {
        required {
            /// Its name.
            name: Located<Name>,
            /// At most one IPv4 and one IPv6 prefix.
            prefixes: Vec<Located<Prefix>>,
        }
        optional {
            /// The gateway's addresses, or auto: the first of each prefix. Default: auto.
            gateway: AddressList,
            /// Bytes of IP packet. Default: 1500.
            mtu: Located<u32>,
            /// Answer DHCPv4. Default: on where there is an IPv4 prefix.
            dhcp: Located<Toggle>,
            /// Send router advertisements. Default: on where there is an IPv6 prefix.
            ra: Located<Toggle>,
            /// Endpoints may form their own IPv6 address from their MAC (needs a /64). Default: off.
            slaac: Located<Toggle>,
            /// How long a DHCP lease lasts. Default: 1h.
            lease: Located<Duration>,
            /// How its frames cross between hosts. Default: local.
            segment: Located<Segment>,
        }
        lists {
            /// DNS servers that DHCP and router advertisements name, at most one of each family.
            dns: Located<Ip>,
        }
    }
}

words! {
    /// Whether an endpoint's port forwards.
    pub enum State as "a state" {
        /// Forwards.
        Open = "open",
        /// Not admitted yet.
        Unauthorised = "unauthorised" | "unauthorized",
        /// Cut off.
        Quarantined = "quarantined",
    }
}

words! {
    /// What an endpoint may do beyond being a host.
    pub enum Role as "a role" {
        /// Forward for its `prefixes` and send router advertisements.
        Router = "router",
        /// Answer DHCP.
        DhcpServer = "dhcp-server",
    }
}

words! {
    /// Who sets an endpoint's addresses inside its namespace.
    pub enum Configure as "a way of configuring" {
        /// Bulkhead sets them, and the default routes.
        Static = "static",
        /// The workload does, by DHCP or router advertisements.
        None = "none",
    }
}

words! {
    /// An offload that a port takes.
    pub enum Offload as "an offload" {
        /// Partial checksums.
        Csum = "csum",
        /// TCP over IPv4 in large frames.
        Tso4 = "tso4",
        /// TCP over IPv6 in large frames.
        Tso6 = "tso6",
        /// UDP in large frames.
        Uso = "uso",
    }
}

model! {
    /// One network attachment of one workload.
    pub struct Endpoint as "an endpoint" {
        required {
            /// Its name, unique in its tenant.
            name: Located<Name>,
            /// The subnet that it is in.
            subnet: Located<Name>,
        }
        optional {
            /// Its addresses, or auto: the next free of each prefix, kept. Default: auto.
            addresses: AddressList,
            /// Its MAC. Default: made from the tenant's and its own name.
            mac: Located<Mac>,
            /// How the workload is attached. Default: a tap in a namespace made for it.
            attach: Located<Attach>,
            /// Whether its port forwards. Default: open.
            state: Located<State>,
            /// Service class, 0 to 7 or a name. Default: best-effort.
            class: Located<Class>,
            /// What it may send, and be sent. Default: no limit.
            rate: Rate,
            /// Its share of its switch's work when all are busy, 1 to 255. Default: 1.
            weight: Located<u32>,
            /// What its switch does for it at least, in bits a second. Default: nothing.
            guarantee: Located<BitRate>,
            /// Smallest segment that it may ask to have its large frames cut into: 256 to 65535 bytes. Default: 536.
            min_gso: Located<u32>,
            /// Bytes of IP packet toward it, at most the subnet's. Default: the subnet's.
            mtu: Located<u32>,
            /// Who sets its addresses inside. Default: static.
            configure: Located<Configure>,
            /// Offloads that its port takes. Default: all.
            offloads: Vec<Located<Offload>>,
            /// The host that it is on, where a spec is for several.
            host: Located<Name>,
            /// What rules may select it by, at most 16.
            labels: Labels,
            /// Connections of its own that are tracked at a time, 0 to 1048576. Default: 8192, or
            /// fewer in a large compartment.
            connections: Located<u32>,
        }
        lists {
            /// What it may do beyond being a host.
            roles: Located<Role>,
            /// Role router: the prefixes behind it.
            prefixes: Located<Prefix>,
        }
    }
}

model! {
    /// A route of a tenant beyond its subnets. The longest prefix decides.
    pub struct Route as "a route" {
        required {
            /// Destinations.
            to: Located<Prefix>,
            /// The endpoint (role router) that leads there, `outside`,
            /// `{outside: UPLINK}`, or `unreachable`.
            via: Located<Via>,
        }
    }
}

model! {
    /// A tenant's way outside: its switch is a machine of its own on an uplink.
    pub struct Outside as "a way outside" {
        required {
            /// The uplink.
            uplink: Located<Name>,
            /// Its own addresses there, at most one IPv4 and one IPv6.
            address: Vec<Located<InterfaceAddress>>,
        }
        optional {
            /// The 802.1Q VLAN of the uplink that it is in, 1 to 4094, which no other tenant is
            /// in. Default: none, its frames there have no tag.
            vlan: Located<u32>,
            /// Its own MAC there. Default: made from the host's, tenant's and uplink's names.
            mac: Located<Mac>,
            /// What goes out here. Default: everything, in each family that has a gateway.
            routes: Vec<OutsideRoute>,
            /// Translate IPv4 sources to its IPv4 address here. Default: off.
            nat: Located<Toggle>,
            /// With `nat: on`: ports of the address that each endpoint has. Default: 1024.
            ports_per_endpoint as "ports-per-endpoint": Located<u32>,
        }
        lists {
            /// The routers there, at most one IPv4 and one IPv6.
            gateway: Located<Ip>,
        }
    }
}

/// The smallest MTU of IPv6 (RFC 8200, section 5).
pub const MIN_MTU6: u32 = 1280;
/// What every IPv4 host must take (RFC 791, section 3.1; RFC 1122, section 3.3.2).
pub const MIN_MTU4: u32 = 576;

/// The value where one was written, else the default.
fn or<T: Copy>(written: &Option<Located<T>>, default: T) -> T {
    written.as_ref().map_or(default, |w| w.value)
}

impl Outside {
    /// The VLAN that it is in; 0 = none.
    pub fn vlan(&self) -> u16 {
        self.vlan.map_or(0, |vlan| vlan.value as u16)
    }
}

impl Uplink {
    /// How frames are read and written.
    pub fn driver(&self) -> Driver {
        self.driver.map_or(Driver::Auto, |driver| driver.value)
    }
    /// Bytes of IP packet that it carries.
    pub fn mtu(&self) -> u32 {
        or(&self.mtu, 1500)
    }
    /// Bytes of IP packet left once encapsulation has taken its share.
    pub fn effective_mtu(&self) -> u32 {
        self.mtu().saturating_sub(or(&self.overhead, 0))
    }
}

impl SelfManaged {
    /// Endpoints, at most.
    pub fn endpoints(&self) -> u32 {
        or(&self.endpoints, 16)
    }
    /// Rules, at most.
    pub fn rules(&self) -> u32 {
        or(&self.rules, 200)
    }
    /// Whether it may attach virtual machines.
    pub fn vhost(&self) -> bool {
        or(&self.vhost, Toggle(false)).0
    }
    /// Whether it may attach by fifo.
    pub fn fifo(&self) -> bool {
        or(&self.fifo, Toggle(false)).0
    }
}

impl Tenant {
    /// How many tenants share its switch.
    pub fn per(&self) -> Per {
        self.placement
            .as_ref()
            .map_or(Per::Tenant, |p| or(&p.per, Per::Tenant))
    }
    /// The name of its compartment: its own, `zone:ZONE` or `host:all`.
    pub fn compartment(&self) -> String {
        let zone = self.placement.as_ref().and_then(|p| p.zone.as_ref());
        match self.per() {
            Per::Tenant => self.name.value.to_string(),
            Per::Zone => format!("zone:{}", zone.map_or("", |z| z.as_str())),
            Per::Host => "host:all".into(),
        }
    }
    /// Whether its switch is sandboxed.
    pub fn sandbox(&self) -> bool {
        self.placement
            .as_ref()
            .is_none_or(|p| or(&p.sandbox, Toggle(true)).0)
    }
    /// The program run in place of the switch.
    pub fn program(&self) -> Option<&Path> {
        self.placement.as_ref()?.program.as_ref().map(|p| &p.value)
    }
    /// Cores of its own; the first runs the switch. Empty = shared.
    pub fn isolated_cores(&self) -> &[Located<u32>] {
        match self.cores.as_ref().map(|c| &c.value) {
            Some(Cores::Isolated(cores)) => cores,
            _ => &[],
        }
    }
    /// How its switch waits.
    pub fn wait(&self) -> Wait {
        or(&self.wait, Wait::Adaptive(None))
    }
    /// Workers of its switch, 1 to 8.
    pub fn workers(&self) -> u32 {
        or(&self.workers, 1)
    }
    /// Its weight, 1 to 255.
    pub fn weight(&self) -> u32 {
        or(&self.weight, 1)
    }
    /// Guaranteed minimum, bits a second.
    pub fn guarantee_bits(&self) -> u64 {
        or(&self.guarantee, BitRate(0)).0
    }
    /// What its endpoints may send together, as [`Limit::meter`] says.
    pub fn meter_from(&self) -> (u64, u64, u64) {
        meter(&self.rate, |rate| &rate.from)
    }
    /// What may be sent to them together.
    pub fn meter_to(&self) -> (u64, u64, u64) {
        meter(&self.rate, |rate| &rate.to)
    }
    /// Bytes of each direction of its channel to the fabric.
    pub fn channel_bytes(&self) -> u64 {
        or(&self.channel, Size(1 << 20)).0
    }
    /// Limit of its switch's memory, bytes.
    pub fn memory_bytes(&self) -> u64 {
        or(&self.memory, Size(64 << 20)).0
    }
    /// One of its subnets.
    pub fn subnet(&self, name: &Name) -> Option<&Subnet> {
        self.subnets.iter().find(|s| s.name.value == *name)
    }
}

impl Subnet {
    /// Its IPv4 prefix.
    pub fn prefix4(&self) -> Option<Prefix> {
        self.prefixes.iter().map(|p| p.value).find(Prefix::is_v4)
    }
    /// Its IPv6 prefix.
    pub fn prefix6(&self) -> Option<Prefix> {
        self.prefixes.iter().map(|p| p.value).find(|p| !p.is_v4())
    }
    /// The gateway's address in a prefix of the subnet.
    pub fn gateway_in(&self, prefix: &Prefix) -> core::net::IpAddr {
        let written = match &self.gateway {
            Some(AddressList::List(list)) => {
                list.iter().map(|a| a.value.0).find(|a| prefix.contains(*a))
            }
            _ => None,
        };
        written.unwrap_or_else(|| prefix.nth(1))
    }
    /// Bytes of IP packet.
    pub fn mtu(&self) -> u32 {
        or(&self.mtu, 1500)
    }
    /// Whether the gateway answers DHCPv4.
    pub fn dhcp(&self) -> bool {
        or(&self.dhcp, Toggle(true)).0 && self.prefix4().is_some()
    }
    /// The VLAN that it goes on in; `None`: it is on this host only.
    pub fn vlan(&self) -> Option<&VlanSegment> {
        match self.segment.as_ref().map(|segment| &segment.value) {
            Some(Segment::Vlan(vlan)) => Some(vlan),
            Some(Segment::Local) | None => None,
        }
    }
    /// Whether the gateway sends router advertisements.
    pub fn ra(&self) -> bool {
        or(&self.ra, Toggle(true)).0 && self.prefix6().is_some()
    }
    /// Whether endpoints may form their own address.
    pub fn slaac(&self) -> bool {
        or(&self.slaac, Toggle(false)).0 && self.prefix6().is_some()
    }
    /// Lease time, seconds.
    pub fn lease_s(&self) -> u32 {
        (or(&self.lease, Duration(3_600_000_000)).0 / 1_000_000).min(u64::from(u32::MAX)) as u32
    }
}

/// What a direction of a rate says; nothing = no limit.
fn meter(rate: &Option<Rate>, of: fn(&Rate) -> &Option<Limit>) -> (u64, u64, u64) {
    rate.as_ref()
        .and_then(|rate| of(rate).as_ref())
        .map_or((0, 0, 0), Limit::meter)
}

impl Endpoint {
    /// How it is attached, defaults filled in.
    pub fn attach(&self) -> Attach {
        self.attach
            .as_ref()
            .map_or_else(Attach::default, |a| a.value.clone())
    }
    /// Its namespace and interface, where it has one, and whether the namespace is made.
    pub fn interface(&self, tenant: &Name) -> Option<(String, String, bool)> {
        let attach = self.attach();
        let named = attach.interface()?;
        let default = || format!("{tenant}-{}", self.name.value);
        let namespace = named
            .namespace
            .as_ref()
            .map_or_else(default, |n| n.as_str().to_owned());
        let interface = named
            .interface
            .as_ref()
            .map_or("eth0", |i| i.as_str())
            .to_owned();
        // A namespace that the spec names is expected to be there; its own is made.
        let make = or(&named.make, Toggle(named.namespace.is_none())).0;
        Some((namespace, interface, make))
    }
    /// The addresses written; `None` = automatic.
    pub fn addresses(&self) -> Option<&[Located<Ip>]> {
        match &self.addresses {
            Some(AddressList::List(list)) => Some(list),
            _ => None,
        }
    }
    /// Whether it has the role.
    pub fn has_role(&self, role: Role) -> bool {
        self.roles.iter().any(|r| r.value == role)
    }
    /// Whether its port forwards.
    pub fn state(&self) -> State {
        or(&self.state, State::Open)
    }
    /// Service class, 0 to 7.
    pub fn class(&self) -> u8 {
        or(&self.class, Class(0)).0
    }
    /// Least gso_size accepted from it.
    pub fn min_gso(&self) -> u32 {
        or(&self.min_gso, 536)
    }
    /// Who sets its addresses inside.
    pub fn configure(&self) -> Configure {
        or(&self.configure, Configure::Static)
    }
    /// Whether its port takes the offload.
    pub fn takes(&self, offload: Offload) -> bool {
        self.offloads
            .as_ref()
            .is_none_or(|list| list.iter().any(|o| o.value == offload))
    }
    /// What it may send, each as [`Limit::meter`] says.
    pub fn meter_from(&self) -> (u64, u64, u64) {
        meter(&self.rate, |rate| &rate.from)
    }
    /// What may be sent to it.
    pub fn meter_to(&self) -> (u64, u64, u64) {
        meter(&self.rate, |rate| &rate.to)
    }
    /// Its weight in its switch, 1 to 255.
    pub fn weight(&self) -> u32 {
        or(&self.weight, 1)
    }
    /// What its switch does for it at least, bits a second.
    pub fn guarantee_bits(&self) -> u64 {
        or(&self.guarantee, BitRate(0)).0
    }
    /// Where its name stands.
    pub fn span(&self) -> Span {
        self.name.span
    }
}

impl Outside {
    /// Its IPv4 address there.
    pub fn address4(&self) -> Option<InterfaceAddress> {
        self.address
            .iter()
            .map(|a| a.value)
            .find(|a| a.address.is_ipv4())
    }
    /// Its IPv6 address there.
    pub fn address6(&self) -> Option<InterfaceAddress> {
        self.address
            .iter()
            .map(|a| a.value)
            .find(|a| a.address.is_ipv6())
    }
    /// Ports that each endpoint has behind the IPv4 address; 0 = nothing is translated.
    pub fn nat_ports(&self) -> u32 {
        match or(&self.nat, Toggle(false)) {
            Toggle(true) => or(&self.ports_per_endpoint, 1024),
            Toggle(false) => 0,
        }
    }
    /// The router for a family.
    pub fn gateway_for(&self, v4: bool) -> Option<Ip> {
        self.gateway
            .iter()
            .map(|g| g.value)
            .find(|g| g.0.is_ipv4() == v4)
    }
}
