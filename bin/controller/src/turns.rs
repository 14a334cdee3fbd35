//! Turns of those who only look at what is costly to look at (plans, proofs, sums,
//! listings): one after another, and of each caller one at a time, so that of all of them
//! at most one look is in the way of a change, of an agreement's end, or of who may change.

use crate::caller::{Rights, Viewer, Wish};
use api::{Fault, Whose};
use guard::guard;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use tokio::sync::{Mutex as Turns, MutexGuard};

/// Who waits or has its turn: a uid, or a tenant by its token.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Who {
    Uid(u32),
    Tenant(String),
}

/// Whose turn it is.
#[derive(Debug, Default)]
pub struct Looks {
    turns: Turns<()>,
    waiting: Mutex<HashSet<Who>>,
}

/// A turn, until it is dropped. Who may change things needs none.
#[derive(Debug)]
pub struct Turn<'a> {
    _turn: Option<MutexGuard<'a, ()>>,
    _place: Option<Place<'a>>,
}

#[derive(Debug)]
struct Place<'a>(&'a Looks, Who);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.waiting().remove(&self.1);
    }
}

impl Looks {
    /// Waits for this caller's turn.
    ///
    /// # Errors
    /// It waits, or looks, already.
    pub async fn turn(&self, rights: &Rights, viewer: &Viewer) -> Result<Turn<'_>, Fault> {
        let changes =
            viewer.tenant().is_none() && rights.check(viewer.caller, Wish::Change).is_ok();
        if changes || !guard!("looks-turn") {
            return Ok(Turn {
                _turn: None,
                _place: None,
            });
        }
        let who = match viewer.tenant() {
            Some(tenant) => Who::Tenant(tenant.to_owned()),
            None => Who::Uid(viewer.caller.uid),
        };
        if !self.waiting().insert(who.clone()) {
            return Err(Fault::new(
                "limit",
                Whose::User,
                "a plan, proof, listing or sum that you asked for before is not done yet",
                "wait for it: of those who only look each has one at a time",
            ));
        }
        let place = Place(self, who);
        Ok(Turn {
            _turn: Some(self.turns.lock().await),
            _place: Some(place),
        })
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, HashSet<Who>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::Caller;
    use std::time::Duration;

    fn viewer(uid: u32) -> Viewer {
        let caller = Caller {
            uid,
            gid: 7,
            pid: None,
        };
        Viewer {
            caller,
            token: None,
        }
    }

    #[tokio::test]
    async fn who_only_looks_has_one_turn_at_a_time_and_who_changes_needs_none() {
        guard::stands("");
        let rights = Rights {
            owner: Some(5),
            readers: Some(7),
            rootless: false,
        };
        let looks = Looks::default();
        let first = looks.turn(&rights, &viewer(100)).await.unwrap();
        let again = looks.turn(&rights, &viewer(100)).await.unwrap_err();
        assert_eq!(again.code, "limit");
        let other = viewer(101);
        let mut other = Box::pin(looks.turn(&rights, &other));
        let soon = Duration::from_millis(50);
        assert!(tokio::time::timeout(soon, &mut other).await.is_err());
        for uid in [0, 5] {
            looks.turn(&rights, &viewer(uid)).await.unwrap();
        }
        drop(first);
        drop(other.await.unwrap());
        // One that hung up while it waited holds no place.
        let first = looks.turn(&rights, &viewer(100)).await.unwrap();
        let waits = viewer(101);
        drop(tokio::time::timeout(soon, looks.turn(&rights, &waits)).await);
        drop(first);
        assert!(looks.turn(&rights, &viewer(101)).await.is_ok());
    }
}
