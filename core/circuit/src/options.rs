//! The options that are kept as numbers: their defaults and legal values, as measured on
//! Linux 6.18. The order is the record's format.

use crate::Errno;

pub(crate) const SOL_IP: i32 = 0;
pub(crate) const SOL_SOCKET: i32 = 1;
pub(crate) const SOL_TCP: i32 = 6;
pub(crate) const SOL_IPV6: i32 = 41;

/// What is kept of a number that is set.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    /// 0 or 1: whether it is not 0.
    Flag,
    /// 0 or 1, nothing else.
    Bit,
    /// From the first to the last.
    Range(i32, i32),
    /// So, and -1 is the default.
    OrDefault(i32, i32),
    /// So, and 0 is the default.
    ZeroIsDefault(i32, i32),
    /// Any number.
    Any,
    /// 0 alone: the rest needs a privilege.
    Privileged,
    /// 0 alone: there is no such device.
    NoDevice,
    /// A byte without its two bits of ECN, which are TCP's.
    Tos,
    /// So in a range, -1 being 0.
    Class,
    /// `TCP_LINGER2`: seconds up to two minutes, less than 0 as -1.
    Linger,
    /// `TCP_WINDOW_CLAMP`: not below half the smallest receive buffer.
    Clamp,
    /// `TCP_DEFER_ACCEPT`: kept as a count of retransmissions.
    Defer,
    /// `TCP_FASTOPEN`: up to `somaxconn`.
    Queue,
}

/// One option.
pub(crate) struct Int {
    pub(crate) level: i32,
    pub(crate) name: i32,
    pub(crate) default: i32,
    pub(crate) rule: Rule,
}

const fn int(level: i32, name: i32, default: i32, rule: Rule) -> Int {
    Int {
        level,
        name,
        default,
        rule,
    }
}

/// Places in [`INTS`] of those that the table itself looks at.
pub(crate) const REUSE_ADDRESS: usize = 0;
pub(crate) const REUSE_PORT: usize = 1;
pub(crate) const V6ONLY: usize = 2;
pub(crate) const ADDRESS_NO_PORT: usize = 3;

pub(crate) const INTS: [Int; 68] = [
    int(SOL_SOCKET, 2, 0, Rule::Flag),  // SO_REUSEADDR
    int(SOL_SOCKET, 15, 0, Rule::Flag), // SO_REUSEPORT
    int(SOL_IPV6, 26, 0, Rule::Flag),   // IPV6_V6ONLY
    int(SOL_IP, 24, 0, Rule::Flag),     // IP_BIND_ADDRESS_NO_PORT
    int(SOL_TCP, 1, 1, Rule::Flag),     // TCP_NODELAY: nothing is ever delayed
    int(SOL_TCP, 2, 536, Rule::ZeroIsDefault(88, 32767)), // TCP_MAXSEG
    int(SOL_TCP, 3, 0, Rule::Flag),     // TCP_CORK
    int(SOL_TCP, 4, 7200, Rule::Range(1, 32767)), // TCP_KEEPIDLE
    int(SOL_TCP, 5, 75, Rule::Range(1, 32767)), // TCP_KEEPINTVL
    int(SOL_TCP, 6, 9, Rule::Range(1, 127)), // TCP_KEEPCNT
    int(SOL_TCP, 7, 6, Rule::Range(1, 127)), // TCP_SYNCNT
    int(SOL_TCP, 8, 60, Rule::Linger),  // TCP_LINGER2
    int(SOL_TCP, 9, 0, Rule::Defer),    // TCP_DEFER_ACCEPT
    int(SOL_TCP, 10, 0, Rule::Clamp),   // TCP_WINDOW_CLAMP
    int(SOL_TCP, 12, 1, Rule::Flag),    // TCP_QUICKACK
    int(SOL_TCP, 16, 0, Rule::Bit),     // TCP_THIN_LINEAR_TIMEOUTS
    int(SOL_TCP, 18, 0, Rule::Range(0, i32::MAX)), // TCP_USER_TIMEOUT
    int(SOL_TCP, 23, 0, Rule::Queue),   // TCP_FASTOPEN
    int(SOL_TCP, 25, 0, Rule::Any),     // TCP_NOTSENT_LOWAT
    int(SOL_TCP, 27, 0, Rule::Bit),     // TCP_SAVE_SYN
    int(SOL_TCP, 30, 0, Rule::Bit),     // TCP_FASTOPEN_CONNECT
    int(SOL_TCP, 34, 0, Rule::Bit),     // TCP_FASTOPEN_NO_COOKIE
    int(SOL_IP, 1, 0, Rule::Tos),       // IP_TOS
    int(SOL_IP, 2, 64, Rule::OrDefault(1, 255)), // IP_TTL
    int(SOL_IP, 6, 0, Rule::Flag),      // IP_RECVOPTS
    int(SOL_IP, 7, 0, Rule::Flag),      // IP_RETOPTS
    int(SOL_IP, 8, 0, Rule::Flag),      // IP_PKTINFO
    int(SOL_IP, 10, 1, Rule::Range(0, 5)), // IP_MTU_DISCOVER
    int(SOL_IP, 11, 0, Rule::Flag),     // IP_RECVERR
    int(SOL_IP, 12, 0, Rule::Flag),     // IP_RECVTTL
    int(SOL_IP, 13, 0, Rule::Flag),     // IP_RECVTOS
    int(SOL_IP, 15, 0, Rule::Flag),     // IP_FREEBIND
    int(SOL_IP, 18, 0, Rule::Flag),     // IP_PASSSEC
    int(SOL_IP, 19, 0, Rule::Privileged), // IP_TRANSPARENT
    int(SOL_IP, 20, 0, Rule::Flag),     // IP_RECVORIGDSTADDR
    int(SOL_IP, 21, 0, Rule::Range(0, 255)), // IP_MINTTL
    int(SOL_IP, 34, 1, Rule::Flag),     // IP_MULTICAST_LOOP
    int(SOL_IP, 50, 0, Rule::NoDevice), // IP_UNICAST_IF
    int(SOL_IPV6, 2, 0, Rule::Flag),    // IPV6_2292PKTINFO
    int(SOL_IPV6, 8, 0, Rule::Flag),    // IPV6_2292HOPLIMIT
    int(SOL_IPV6, 16, 64, Rule::OrDefault(0, 255)), // IPV6_UNICAST_HOPS
    int(SOL_IPV6, 19, 1, Rule::Bit),    // IPV6_MULTICAST_LOOP
    int(SOL_IPV6, 23, 1, Rule::Range(0, 5)), // IPV6_MTU_DISCOVER
    int(SOL_IPV6, 25, 0, Rule::Flag),   // IPV6_RECVERR
    int(SOL_IPV6, 29, 1, Rule::Flag),   // IPV6_MULTICAST_ALL
    int(SOL_IPV6, 33, 0, Rule::Flag),   // IPV6_FLOWINFO_SEND
    int(SOL_IPV6, 49, 0, Rule::Flag),   // IPV6_RECVPKTINFO
    int(SOL_IPV6, 51, 0, Rule::Flag),   // IPV6_RECVHOPLIMIT
    int(SOL_IPV6, 62, 0, Rule::Flag),   // IPV6_DONTFRAG
    int(SOL_IPV6, 66, 0, Rule::Flag),   // IPV6_RECVTCLASS
    int(SOL_IPV6, 67, 0, Rule::Class),  // IPV6_TCLASS
    int(SOL_IPV6, 70, 1, Rule::Flag),   // IPV6_AUTOFLOWLABEL
    int(SOL_IPV6, 73, 0, Rule::Range(0, 255)), // IPV6_MINHOPCOUNT
    int(SOL_IPV6, 74, 0, Rule::Flag),   // IPV6_RECVORIGDSTADDR
    int(SOL_IPV6, 75, 0, Rule::Privileged), // IPV6_TRANSPARENT
    int(SOL_IPV6, 78, 0, Rule::Flag),   // IPV6_FREEBIND
    int(SOL_IP, 51, 0, Rule::Any),      // IP_LOCAL_PORT_RANGE
    int(SOL_IP, 23, 0, Rule::Flag),     // IP_CHECKSUM
    int(SOL_IPV6, 30, 0, Rule::Flag),   // IPV6_ROUTER_ALERT_ISOLATE
    int(SOL_IPV6, 3, 0, Rule::Flag),    // IPV6_2292HOPOPTS
    int(SOL_IPV6, 4, 0, Rule::Flag),    // IPV6_2292DSTOPTS
    int(SOL_IPV6, 5, 0, Rule::Flag),    // IPV6_2292RTHDR
    int(SOL_IPV6, 11, 0, Rule::Flag),   // IPV6_FLOWINFO
    int(SOL_IPV6, 53, 0, Rule::Flag),   // IPV6_RECVHOPOPTS
    int(SOL_IPV6, 56, 0, Rule::Flag),   // IPV6_RECVRTHDR
    int(SOL_IPV6, 58, 0, Rule::Flag),   // IPV6_RECVDSTOPTS
    int(SOL_IPV6, 60, 0, Rule::Flag),   // IPV6_RECVPATHMTU
    int(SOL_IPV6, 76, 0, Rule::NoDevice), // IPV6_UNICAST_IF
];

/// Half of `SOCK_MIN_RCVBUF`.
const LEAST_CLAMP: i32 = 1152;
/// `SOMAXCONN`
pub(crate) const SOMAXCONN: i32 = 4096;
/// Seconds that a retransmission waits at most.
const RTO_MAX: i32 = 120;
const ECN: i32 = 3;

/// Which place an option has.
pub(crate) fn place(level: i32, name: i32) -> Option<usize> {
    INTS.iter()
        .position(|it| it.level == level && it.name == name)
}

impl Int {
    /// What is kept when `value` is set.
    pub(crate) fn kept(&self, value: i32) -> Result<i32, Errno> {
        let within = |first: i32, last: i32| {
            if (first..=last).contains(&value) {
                Ok(value)
            } else {
                Err(Errno::EINVAL)
            }
        };
        let zero_or = |or: Errno| if value == 0 { Ok(0) } else { Err(or) };
        match self.rule {
            Rule::Flag => Ok(i32::from(value != 0)),
            Rule::Bit => within(0, 1),
            Rule::Range(first, last) => within(first, last),
            Rule::OrDefault(..) if value == -1 => Ok(self.default),
            Rule::ZeroIsDefault(..) if value == 0 => Ok(self.default),
            Rule::OrDefault(first, last) | Rule::ZeroIsDefault(first, last) => within(first, last),
            Rule::Any => Ok(value),
            Rule::Privileged => zero_or(Errno::EPERM),
            Rule::NoDevice => zero_or(Errno::EADDRNOTAVAIL),
            Rule::Tos => Ok(value & 0xff & !ECN),
            Rule::Class if value == -1 => Ok(0),
            Rule::Class => within(0, 255).map(|it| it & !ECN),
            Rule::Linger => Ok(match value {
                i32::MIN..=-1 => -1,
                0 => self.default,
                _ => value.min(RTO_MAX),
            }),
            Rule::Clamp => Ok(if value == 0 {
                0
            } else {
                value.max(LEAST_CLAMP)
            }),
            Rule::Defer => Ok(deferred(value)),
            Rule::Queue if value < 0 => Err(Errno::EINVAL),
            Rule::Queue => Ok(value.min(SOMAXCONN)),
        }
    }

    /// Whether `value` can be what is kept.
    pub(crate) fn is_kept(&self, value: i32) -> bool {
        value == self.default || self.kept(value) == Ok(value)
    }
}

/// Seconds as the kernel tells them back: so many as the retransmissions take that the
/// wait is counted in, which double from one second to [`RTO_MAX`]. At most 255 of them.
fn deferred(seconds: i32) -> i32 {
    if seconds <= 0 {
        return 0;
    }
    let (mut period, mut wait) = (1, 1);
    for _ in 1..255 {
        if seconds <= period {
            break;
        }
        wait = (wait * 2).min(RTO_MAX);
        period += wait;
    }
    period
}
