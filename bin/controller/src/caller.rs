//! Who is calling: the kernel's word (SO_PEERCRED), and what they may.

use api::{Fault, Whose};
use axum::extract::FromRequestParts;
use axum::extract::connect_info::ConnectInfo;
use axum::http::request::Parts;
use guard::guard;
use tokio::net::UnixStream;

use crate::refuse::Failure;
use crate::server::Server;
use std::sync::Arc;

/// A caller, as of its connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// User id; the overflow id where it has no meaning here.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
}

/// Who may do what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// Besides root, this user may change and read.
    pub owner: Option<u32>,
    /// Members (by primary group) may read.
    pub readers: Option<u32>,
    /// All that runs here is one user's, who is 0 in this process's namespace.
    pub rootless: bool,
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// To look.
    Read,
    /// To change, to see a tenant's frames.
    Change,
}

/// The kernel's stand-in for a user that has no number in our namespace
/// (/proc/sys/kernel/overflowuid). Nobody with it is ever the owner.
const OVERFLOW: u32 = 65534;

impl Rights {
    /// Whether this caller may.
    ///
    /// # Errors
    /// A sentence on who may.
    pub fn check(&self, caller: Caller, wish: Wish) -> Result<(), Fault> {
        let owner = caller.uid == 0 || (Some(caller.uid) == self.owner && caller.uid != OVERFLOW);
        let reader = Some(caller.gid) == self.readers && caller.gid != OVERFLOW;
        let may = owner || (wish == Wish::Read && reader);
        if guard!("api-caller") && !may {
            let who = if caller.uid == OVERFLOW {
                "this user".to_owned()
            } else {
                format!("uid {}", caller.uid)
            };
            let deed = if wish == Wish::Read {
                "read its state"
            } else {
                "change anything or see frames"
            };
            return Err(Fault::new(
                "denied",
                Whose::User,
                format!("{who} may not {deed} here"),
                "ask as root or as the owner, whom the daemon's --owner names; a group may be given reading by its --readers",
            ));
        }
        Ok(())
    }
}

impl Caller {
    /// Whose the other end is. `rootless`: all that runs here is one user's.
    pub fn of(stream: &UnixStream, rootless: bool) -> Caller {
        match stream.peer_cred() {
            // The kernel speaks in the terms of our user namespace.
            Ok(cred) => Caller {
                uid: on_the_host(cred.uid(), rootless),
                gid: on_the_host(cred.gid(), rootless),
            },
            // Without the kernel's word: nobody.
            Err(_) => Caller {
                uid: OVERFLOW,
                gid: OVERFLOW,
            },
        }
    }
}

/// The host's number for an id of our user namespace. 0 there is this process's own
/// user: the owner, where everything runs without root; but else it
/// is the controller's own uid, which somebody else may have got hold of.
fn on_the_host(id: u32, rootless: bool) -> u32 {
    match id {
        confine::HOST_ROOT => 0,
        0 if guard!("api-own-uid") && !rootless => OVERFLOW,
        id => id,
    }
}

/// A caller that may read.
pub struct Reader;
/// A caller that may change.
#[derive(Clone, Copy)]
pub struct Changer(pub Caller);

impl FromRequestParts<Arc<Server>> for Reader {
    type Rejection = Failure;
    async fn from_request_parts(
        parts: &mut Parts,
        server: &Arc<Server>,
    ) -> Result<Reader, Failure> {
        server.rights.check(caller(parts), Wish::Read)?;
        Ok(Reader)
    }
}

impl FromRequestParts<Arc<Server>> for Changer {
    type Rejection = Failure;
    async fn from_request_parts(
        parts: &mut Parts,
        server: &Arc<Server>,
    ) -> Result<Changer, Failure> {
        let caller = caller(parts);
        server.rights.check(caller, Wish::Change)?;
        Ok(Changer(caller))
    }
}

fn caller(parts: &Parts) -> Caller {
    match parts.extensions.get::<ConnectInfo<Caller>>() {
        Some(ConnectInfo(caller)) => *caller,
        None => Caller {
            uid: OVERFLOW,
            gid: OVERFLOW,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(uid: u32, gid: u32) -> Caller {
        Caller { uid, gid }
    }

    #[test]
    fn root_and_the_owner_may_change_a_reader_may_look_others_neither() {
        let rights = Rights {
            owner: Some(1000),
            readers: Some(50),
            ..Rights::default()
        };
        for (who, read, change) in [
            (caller(0, 0), true, true),
            (caller(1000, 1000), true, true),
            (caller(1001, 50), true, false),
            (caller(1001, 51), false, false),
        ] {
            assert_eq!(rights.check(who, Wish::Read).is_ok(), read, "{who:?}");
            assert_eq!(rights.check(who, Wish::Change).is_ok(), change, "{who:?}");
        }
    }

    #[test]
    fn a_user_without_a_number_is_never_the_owner() {
        let rights = Rights {
            owner: Some(OVERFLOW),
            readers: Some(OVERFLOW),
            ..Rights::default()
        };
        assert!(
            rights
                .check(caller(OVERFLOW, OVERFLOW), Wish::Read)
                .is_err()
        );
    }

    #[test]
    fn the_controllers_own_uid_is_root_only_where_all_is_one_users() {
        let rights = Rights::default();
        let may = |id, rootless| {
            let uid = on_the_host(id, rootless);
            rights.check(caller(uid, uid), Wish::Change).is_ok()
        };
        assert!(may(confine::HOST_ROOT, false), "the host's root");
        assert!(!may(0, false), "who got hold of the controller's uid");
        assert!(may(0, true), "the one user there is");
        assert!(!may(1000, false) && !may(OVERFLOW, false));
    }
}
