//! Linux's error numbers, those that a socket call answers with.

/// An error number; `as i32` is what goes to the program, negated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(i32)]
#[allow(clippy::upper_case_acronyms, reason = "their names")]
pub enum Errno {
    /// Not permitted.
    EPERM = 1,
    /// No such thing.
    ENOENT = 2,
    /// Not a file of ours.
    EBADF = 9,
    /// Would block.
    EAGAIN = 11,
    /// Not allowed: a privileged port.
    EACCES = 13,
    /// No such device.
    ENODEV = 19,
    /// Not a legal value, or not in this state.
    EINVAL = 22,
    /// No more sockets.
    ENFILE = 23,
    /// A pipe that was shut.
    EPIPE = 32,
    /// No such data.
    ENODATA = 61,
    /// Of another protocol.
    EPROTO = 71,
    /// To nobody.
    EDESTADDRREQ = 89,
    /// Longer than a datagram is.
    EMSGSIZE = 90,
    /// No such option.
    ENOPROTOOPT = 92,
    /// No such protocol.
    EPROTONOSUPPORT = 93,
    /// No such type of socket.
    ESOCKTNOSUPPORT = 94,
    /// Not on a socket like this.
    EOPNOTSUPP = 95,
    /// No such family.
    EAFNOSUPPORT = 97,
    /// Taken.
    EADDRINUSE = 98,
    /// Not an address of this endpoint, or no port is left.
    EADDRNOTAVAIL = 99,
    /// No way there.
    ENETUNREACH = 101,
    /// No more storage.
    ENOBUFS = 105,
    /// Connected already.
    EISCONN = 106,
    /// Not connected.
    ENOTCONN = 107,
    /// Nobody listens.
    ECONNREFUSED = 111,
    /// Being connected already.
    EALREADY = 114,
}
