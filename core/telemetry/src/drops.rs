//! Every reason a frame can be thrown away for, by name.

macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])+ $variant:ident = $value:literal $slug:literal,)+) => {
        /// Why a frame was dropped. The numbers are stable: they are in shared memory.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum DropReason { $($(#[doc = $doc])+ $variant = $value,)+ }
        impl DropReason {
            /// All reasons in order of their numbers.
            pub const ALL: &'static [DropReason] = &[$(DropReason::$variant,)+];
            /// The name shown by `top`, `status`, metrics and captures.
            pub const fn slug(self) -> &'static str { match self { $(DropReason::$variant => $slug,)+ } }
            /// One sentence for a person.
            pub const fn explain(self) -> &'static str { match self { $(DropReason::$variant => concat!($($doc),+),)+ } }
            /// From its number in shared memory.
            pub const fn from_number(n: u8) -> Option<DropReason> { match n { $($value => Some(DropReason::$variant),)+ _ => None } }
        }
    };
}

drop_reasons! {
    /// The frame ends before its headers do, or a length field contradicts it.
    Malformed = 1 "malformed",
    /// Longer than anything this port may send.
    Oversize = 2 "oversize",
    /// Offload fields do not match the frame (type, segment size, checksum position).
    BadOffload = 3 "bad-offload",
    /// The source MAC is not this endpoint's.
    SourceMac = 4 "source-mac",
    /// The source IP address is not this endpoint's.
    SourceIp = 5 "source-ip",
    /// ARP speaks for a MAC or address that is not this endpoint's.
    ArpSpoof = 6 "arp-spoof",
    /// Neighbour discovery speaks for an address or MAC that is not this endpoint's.
    NdSpoof = 7 "nd-spoof",
    /// A router advertisement or redirect from an endpoint without the router role.
    RouterAdvert = 8 "router-advert",
    /// A DHCP server's reply from an endpoint without that role.
    DhcpServer = 9 "dhcp-server",
    /// Neighbour discovery inside a fragment (RFC 6980).
    NdFragment = 10 "nd-fragment",
    /// An IPv6 extension header chain longer than allowed, or of an unknown header.
    ExtensionChain = 11 "extension-chain",
    /// A VLAN tag from a port that carries none.
    VlanTag = 12 "vlan-tag",
    /// An EtherType that is neither IPv4, IPv6 nor ARP.
    EtherType = 13 "ethertype",
    /// The endpoint is not admitted (unauthorised).
    Unauthorised = 14 "unauthorised",
    /// The endpoint is quarantined.
    Quarantined = 15 "quarantined",
    /// Over the endpoint's ingress rate.
    IngressRate = 16 "ingress-rate",
    /// No endpoint of this subnet has the destination MAC.
    UnknownMac = 17 "unknown-mac",
    /// No route to the destination address.
    NoRoute = 18 "no-route",
    /// A route, but nobody has the address.
    NoNeighbour = 19 "no-neighbour",
    /// The hop limit ran out.
    HopLimit = 20 "hop-limit",
    /// Does not fit the next hop's MTU and must not be fragmented.
    TooBig = 21 "too-big",
    /// The receiver's queue was full.
    QueueFull = 22 "queue-full",
    /// The receiver is gone or its port is closed.
    PortClosed = 23 "port-closed",
    /// The next hop's MAC is being resolved.
    Resolving = 24 "resolving",
    /// A destination that may never be routed (loopback, unspecified, link-local via gateway, multicast across subnets).
    Martian = 25 "martian",
    /// Source and destination are the same port.
    Hairpin = 26 "hairpin",
    /// The fabric has no entry for (ingress channel, tag, destination MAC).
    FabricNoEntry = 27 "fabric-no-entry",
    /// Toward an uplink: the source is not this compartment's.
    FabricSource = 28 "fabric-source",
    /// In flight when a side of the channel restarted.
    Restart = 29 "restart",
    /// Reserved MAC addresses (01:80:c2:00:00:0x) are never forwarded.
    ReservedMac = 30 "reserved-mac",
    /// An answer (ARP, ICMP, DHCP) held back by the responder's own rate limit.
    ReplyRate = 31 "reply-rate",
    /// IP options or a routing header that the guard refuses.
    SourceRoute = 32 "source-route",
    /// A DHCP message that is not a well-formed client request.
    BadDhcp = 33 "bad-dhcp",
    /// A group's copies would exceed the sender's budget.
    FloodRate = 34 "flood-rate",
    /// No table image is loaded yet.
    NoImage = 35 "no-image",
    /// The operating system refused the frame (interface down or gone).
    PortRefused = 36 "port-refused",
    /// The MAC in the frame is multicast where a station's is required.
    GroupSource = 37 "group-source",
    /// Sent to the gateway itself, which answers ping, DHCP and neighbour questions only.
    GatewayPort = 38 "gateway-port",
    /// The rules about what this endpoint sends do not let it pass.
    EgressRule = 39 "egress-rule",
    /// The rules about what the receiver gets do not let it pass.
    IngressRule = 40 "ingress-rule",
    /// It does not fit the connection it names, or begins none.
    ConnectionState = 41 "connection-state",
    /// A fragment whose first did not pass, or that overlaps another.
    Fragment = 42 "fragment",
    /// To another tenant: not one of the service's ports.
    ServicePort = 43 "service-port",
    /// From another tenant, or back to one: nobody asked for it.
    ServiceUnasked = 44 "service-unasked",
    /// No address and port is left for it, or it cannot be translated.
    NoTranslation = 45 "no-translation",
    /// Over the rate toward the endpoint, and no room is left where such frames wait.
    EgressRate = 46 "egress-rate",
    /// Across an agreement of prefixes: one of its addresses takes no part in it.
    RoutedPrefix = 50 "routed-prefix",
    /// A datagram to or from an endpoint of circuits whose bytes are counted: these nobody could count.
    Unmetered = 51 "unmetered",
    /// A program of circuits asked for a socket that there is none of: raw, of packets, of another family.
    SocketKind = 52 "socket-kind",
    /// An endpoint of circuits has as many sockets as it may, or calls that wait, or circuits by a meter.
    SocketLimit = 53 "socket-limit",
    /// A program of circuits asked for io_uring, whose requests nobody could judge.
    IoUring = 54 "io-uring",
    /// A call of a program's that only its endpoint's proxy could do, of which there is none just now.
    ProxyGone = 55 "proxy-gone",
}

/// Reasons fit 0..64 in the counters' layout.
pub const MAX_REASONS: usize = 64;
