//! Who is calling: the kernel's word (SO_PEERCRED), and what they may.

use api::{AuditEntry, Fault, Whose};
use axum::extract::FromRequestParts;
use axum::extract::connect_info::ConnectInfo;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use guard::guard;
use tokio::net::UnixStream;

use crate::happenings::now_ms;
use crate::refuse::Failure;
use crate::server::Server;
use crate::tokens::{Tokens, invalid};
use crate::turns::Rank;
use std::sync::Arc;
use std::time::Duration;
use store::Token;

/// Between two looks whether a token's time is over.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A caller, as of its connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// User id; the overflow id where it has no meaning here.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// Process id, where it has one here.
    pub pid: Option<i32>,
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
                pid: cred.pid().filter(|pid| *pid > 0),
            },
            // Without the kernel's word: nobody.
            Err(_) => NOBODY,
        }
    }
}

const NOBODY: Caller = Caller {
    uid: OVERFLOW,
    gid: OVERFLOW,
    pid: None,
};

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

/// Somebody who asks, by uid or by a token.
#[derive(Clone, Debug)]
pub struct Viewer {
    /// Who it is by the kernel's word.
    pub caller: Caller,
    /// With which token; then the tenant's rights are all that it has.
    pub token: Option<Token>,
}

impl Viewer {
    /// Whose token it has; `None` = the host's own user, who sees all.
    pub fn tenant(&self) -> Option<&str> {
        self.token.as_ref().map(|token| token.tenant.as_str())
    }

    /// When its turn at a change comes.
    pub fn rank(&self) -> Rank {
        match self.tenant() {
            Some(_) => Rank::Tenant,
            None => Rank::Host,
        }
    }

    /// Whether it may know of this tenant.
    pub fn sees(&self, tenant: &str) -> bool {
        self.tenant().is_none_or(|own| own == tenant) || !guard!("tenant-sees-own")
    }

    /// Returns once its token is valid no more; never where it has none.
    pub async fn ended(&self, server: &Server) {
        let Some(token) = &self.token else {
            return std::future::pending().await;
        };
        let mut changes = server.tokens.listen();
        while server.tokens.is_valid(&token.id, now_ms() / 1000) || !guard!("token-stream") {
            let _ = tokio::time::timeout(LOOK_AGAIN, changes.changed()).await;
        }
    }

    /// Whether what it asked for may still be done, now that its turn has come.
    ///
    /// # Errors
    /// Its token is valid no more.
    pub fn still(&self, tokens: &Tokens) -> Result<(), Fault> {
        match &self.token {
            Some(token) if guard!("token-late") && !tokens.is_valid(&token.id, now_ms() / 1000) => {
                Err(invalid())
            }
            _ => Ok(()),
        }
    }

    /// What it does, for the audit log.
    pub fn deed(&self, kind: &str, object: impl Into<String>) -> AuditEntry {
        AuditEntry {
            time_ms: now_ms(),
            uid: Some(self.caller.uid),
            pid: self.caller.pid,
            token: self
                .token
                .as_ref()
                .map_or_else(String::new, |token| format!("{} {}", token.id, token.name)),
            by: self.tenant().unwrap_or_default().to_owned(),
            tenants: self.tenant().map(str::to_owned).into_iter().collect(),
            kind: kind.into(),
            object: object.into(),
            outcome: "done".into(),
            ..AuditEntry::default()
        }
    }
}

/// A caller that may read all of the host.
pub struct Reader(pub Viewer);
/// A caller that may change all of the host.
#[derive(Clone)]
pub struct Changer(pub Viewer);
/// A caller that may change all of the host, or what is a tenant's.
#[derive(Clone)]
pub struct Editor(pub Viewer);

impl FromRequestParts<Arc<Server>> for Reader {
    type Rejection = Failure;
    async fn from_request_parts(
        parts: &mut Parts,
        server: &Arc<Server>,
    ) -> Result<Reader, Failure> {
        let viewer = viewer(parts, server, Wish::Read)?;
        no_tenant(&viewer)?;
        Ok(Reader(viewer))
    }
}

impl FromRequestParts<Arc<Server>> for Changer {
    type Rejection = Failure;
    async fn from_request_parts(
        parts: &mut Parts,
        server: &Arc<Server>,
    ) -> Result<Changer, Failure> {
        let viewer = viewer(parts, server, Wish::Change)?;
        no_tenant(&viewer)?;
        Ok(Changer(viewer))
    }
}

impl FromRequestParts<Arc<Server>> for Viewer {
    type Rejection = Failure;
    async fn from_request_parts(
        parts: &mut Parts,
        server: &Arc<Server>,
    ) -> Result<Viewer, Failure> {
        Ok(viewer(parts, server, Wish::Read)?)
    }
}

impl FromRequestParts<Arc<Server>> for Editor {
    type Rejection = Failure;
    async fn from_request_parts(
        parts: &mut Parts,
        server: &Arc<Server>,
    ) -> Result<Editor, Failure> {
        Ok(Editor(viewer(parts, server, Wish::Change)?))
    }
}

/// What is for the host's own users alone.
fn no_tenant(viewer: &Viewer) -> Result<(), Fault> {
    match viewer.tenant().filter(|_| guard!("tenant-host-routes")) {
        None => Ok(()),
        Some(_) => Err(Fault::new(
            "denied",
            Whose::User,
            "this is about the host as a whole, which is not a tenant's to know or to change",
            "ask the provider of this host; docs/operating.md lists what a tenant's token is good for",
        )),
    }
}

fn viewer(parts: &Parts, server: &Server, wish: Wish) -> Result<Viewer, Fault> {
    let caller = parts
        .extensions
        .get::<ConnectInfo<Caller>>()
        .map_or(NOBODY, |ConnectInfo(caller)| *caller);
    let Some(value) = parts.headers.get(AUTHORIZATION) else {
        server.rights.check(caller, wish)?;
        return Ok(Viewer {
            caller,
            token: None,
        });
    };
    // Who shows a token has that tenant's rights, and no others: root as well.
    let text = value.to_str().ok();
    let text = text.and_then(|text| text.strip_prefix("Bearer "));
    let world = server.world.world();
    let exists = |tenant: &str| world.tenants().iter().any(|one| one.name == tenant);
    let now_s = now_ms() / 1000;
    let checked = server
        .tokens
        .check(text.unwrap_or_default().trim(), now_s, exists);
    let token = checked.map_err(|(fault, why)| {
        server
            .tokens
            .refuse(format!("uid {} showed {why}", caller.uid));
        fault
    })?;
    if wish == Wish::Change && token.read_only && guard!("token-read-only") {
        return Err(Fault::new(
            "denied",
            Whose::User,
            "this token may only look",
            "ask the provider of this host for one that may change things",
        ));
    }
    Ok(Viewer {
        caller,
        token: Some(token),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(uid: u32, gid: u32) -> Caller {
        Caller {
            uid,
            gid,
            pid: None,
        }
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

    #[test]
    fn what_has_waited_for_its_turn_is_not_done_for_a_token_that_was_revoked_meanwhile() {
        let token = Token {
            id: "id".into(),
            ..Token::default()
        };
        let viewer = |token| Viewer {
            caller: caller(1, 1),
            token,
        };
        let (tenant, host) = (viewer(Some(token.clone())), viewer(None));
        let tokens = Tokens::default();
        tokens.set(vec![token]);
        assert!(tenant.still(&tokens).is_ok());
        tokens.set(Vec::new());
        assert!(tenant.still(&tokens).is_err() && host.still(&tokens).is_ok());
    }
}
