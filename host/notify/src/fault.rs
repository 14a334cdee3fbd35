//! Why a program could not be started, and what to do about it.

use core::fmt;
use netlink::NetlinkError;
use netlink::namespace::NamespaceError;
use rustix::io::Errno;

/// What went wrong before the program ran.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not root.
    #[error("a program's circuits are prepared by root")]
    NotRoot,
    /// A word has a NUL in it: the user's fault.
    #[error("an argument of the program has a NUL byte in it")]
    Argument,
    /// The host refused what every program needs.
    #[error("cannot {what}: {errno}")]
    Host {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
    /// The ids could not be mapped.
    #[error("cannot write {file} of the program's user namespace: {error}")]
    Mapping {
        /// `uid_map` or `gid_map`.
        file: &'static str,
        /// What the kernel said.
        error: std::io::Error,
    },
    /// The program's network namespace could not be entered.
    #[error("cannot prepare the program's network: {0}")]
    Namespace(#[from] NamespaceError),
    /// `lo` did not take an address: the user's fault where it is not an address of a host.
    #[error("cannot prepare the program's loopback: {0}")]
    Address(#[from] NetlinkError),
    /// The child could not become what the program is to be.
    #[error("cannot {step}: {errno}")]
    Child {
        /// What it was at.
        step: Step,
        /// What the kernel said.
        errno: Errno,
    },
    /// The program does not execute: the user's fault.
    #[error("cannot execute {program}: {errno}")]
    Program {
        /// As it was named.
        program: String,
        /// What the kernel said.
        errno: Errno,
    },
    /// The child was killed before it could say anything.
    #[error("the program's process was killed before the program ran")]
    Ended,
}

impl Error {
    /// Whether it is that this process may not have more descriptors open.
    pub fn is_of_descriptors(&self) -> bool {
        let errno = match self {
            Error::Host { errno, .. }
            | Error::Child { errno, .. }
            | Error::Namespace(NamespaceError::Refused { errno, .. }) => Some(*errno),
            Error::Mapping { error, .. } | Error::Address(NetlinkError::Socket(error)) => {
                Errno::from_io_error(error)
            }
            Error::Address(error) => error.errno(),
            _ => None,
        };
        errno == Some(Errno::MFILE)
    }

    /// What to do about it; empty where that is not known.
    pub fn help(&self) -> &'static str {
        match self {
            Error::NotRoot => "run this as root (sudo)",
            Error::Argument => "arguments end with a NUL",
            Error::Mapping { .. } => {
                "it takes a mounted /proc, and CAP_SETUID, CAP_SETGID and CAP_SETFCAP over this \
                 user namespace: run this as root, outside of containers without them"
            }
            Error::Namespace(NamespaceError::Refused {
                errno: Errno::PERM | Errno::ACCESS,
                ..
            }) => "it takes CAP_SYS_ADMIN and CAP_SYS_PTRACE",
            Error::Child { step, errno } => advice(*step, *errno),
            Error::Ended => "has the host too little memory? see its log",
            Error::Host { .. }
            | Error::Namespace(_)
            | Error::Address(_)
            | Error::Program { .. } => "",
        }
    }
}

/// What a child does before it is the program, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Step {
    /// Takes the owner's uid, so that the namespaces will be the owner's.
    Owner,
    /// Makes the user and the network namespace.
    Namespaces,
    /// Installs the filter.
    Filter,
    /// Hands the listener to the parent.
    Hand,
    /// Takes the identity that the program is to have.
    Identity,
    /// Executes.
    Execute,
}

impl Step {
    const ALL: [Step; 6] = [
        Step::Owner,
        Step::Namespaces,
        Step::Filter,
        Step::Hand,
        Step::Identity,
        Step::Execute,
    ];

    pub(crate) fn of(number: u8) -> Option<Step> {
        Step::ALL.into_iter().find(|step| *step as u8 == number)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Step::Owner => "take the operator's uid",
            Step::Namespaces => "make a user and a network namespace",
            Step::Filter => "install the filter of circuits",
            Step::Hand => "hand over the filter's listener",
            Step::Identity => "take the program's identity",
            Step::Execute => "execute the program",
        })
    }
}

fn advice(step: Step, errno: Errno) -> &'static str {
    match (step, errno) {
        (Step::Owner, Errno::INVAL) => {
            "where this is itself a program of circuits, or a container's, run it from the host"
        }
        (Step::Namespaces, Errno::PERM | Errno::ACCESS) => {
            "this host refuses user namespaces: allow them by the sysctls \
             kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns"
        }
        (Step::Namespaces, Errno::NOSPC | Errno::USERS) => {
            "too many for the operator's uid: raise the sysctls user.max_user_namespaces and \
             user.max_net_namespaces"
        }
        (Step::Namespaces, Errno::INVAL | Errno::NOSYS) => {
            "this kernel is built without user or network namespaces"
        }
        (Step::Filter, Errno::INVAL | Errno::NOSYS) => {
            "Linux 5.19 or later is needed, built with CONFIG_SECCOMP_FILTER"
        }
        (Step::Filter, Errno::BUSY) => {
            "another supervisor's seccomp listener is over this process already: run this \
             outside of its container"
        }
        _ => "",
    }
}
