//! Turns at what is one for all: who ends something goes first, then the host's own users,
//! then tenants and who only looks. Of these each has one of a kind at a time, so that they
//! go round, and who hangs up while it waits leaves the line.

use api::{Fault, Whose};
use guard::guard;
use std::collections::{BTreeMap, HashSet};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Mutex as Held, OwnedMutexGuard, oneshot};

/// Turns of [`Rank::Ends`] one after another while others wait: agreements whose `until` is
/// a second apart keep nobody out.
const ENDS_IN_A_ROW: u32 = 4;

/// Who goes first; in a rank who came first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// A revocation, an agreement's end.
    Ends,
    /// The host's own users, and what the controller does by itself.
    Host,
    /// A tenant, or who only looks.
    Tenant,
}

/// What is waited for, one after another.
#[derive(Debug)]
pub struct Turns<T> {
    value: Arc<Held<T>>,
    line: Mutex<Line<T>>,
}

#[derive(Debug)]
struct Line<T> {
    /// Somebody has the turn.
    busy: bool,
    number: u64,
    ends: u32,
    waiting: BTreeMap<(Rank, u64), oneshot::Sender<Pass<T>>>,
}

/// A turn, until it is dropped.
#[derive(Debug)]
pub struct Turn<T> {
    // Let go of before the next has the pass.
    value: OwnedMutexGuard<T>,
    _pass: Pass<T>,
}

impl<T> Deref for Turn<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Turn<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

/// The right to what is waited for. Wherever it is dropped, it goes on to the next.
#[derive(Debug)]
struct Pass<T>(Arc<Turns<T>>);

impl<T> Drop for Pass<T> {
    fn drop(&mut self) {
        let next = self.0.line().next();
        if let Some(next) = next {
            // One that has just left drops it again.
            let _ = next.send(Pass(self.0.clone()));
        }
    }
}

/// A place in the line, left when it is dropped.
struct Waiting<'a, T>(&'a Turns<T>, (Rank, u64));

impl<T> Drop for Waiting<'_, T> {
    fn drop(&mut self) {
        if guard!("turn-leave") {
            self.0.line().waiting.remove(&self.1);
        }
    }
}

impl<T> Line<T> {
    /// Whose turn it is next.
    fn next(&mut self) -> Option<oneshot::Sender<Pass<T>>> {
        let mut key = self.waiting.keys().next().copied();
        if self.ends >= ENDS_IN_A_ROW && guard!("turn-row") {
            let others = (Rank::Host, 0)..;
            key = (self.waiting.range(others).next())
                .map(|(key, _)| *key)
                .or(key);
        }
        let Some(key) = key else {
            self.busy = false;
            return None;
        };
        self.count(key.0);
        self.waiting.remove(&key)
    }

    fn count(&mut self, rank: Rank) {
        self.ends = match rank {
            Rank::Ends => self.ends.saturating_add(1),
            _ => 0,
        };
    }
}

impl<T> Turns<T> {
    /// At this.
    pub fn new(value: T) -> Arc<Turns<T>> {
        Arc::new(Turns {
            value: Arc::new(Held::new(value)),
            line: Mutex::new(Line {
                busy: false,
                number: 0,
                ends: 0,
                waiting: BTreeMap::new(),
            }),
        })
    }

    /// Waits for a turn. Dropped meanwhile, it waits no more.
    pub async fn turn(self: &Arc<Self>, rank: Rank) -> Turn<T> {
        let rank = if guard!("turn-first") {
            rank
        } else {
            Rank::Tenant
        };
        let (waits, key) = {
            let mut line = self.line();
            if line.busy {
                let (sender, receiver) = oneshot::channel();
                line.number += 1;
                let key = (rank, line.number);
                line.waiting.insert(key, sender);
                (Some(receiver), key)
            } else {
                line.busy = true;
                line.count(rank);
                (None, (rank, 0))
            }
        };
        let pass = match waits {
            None => Pass(self.clone()),
            Some(receiver) => {
                let _place = Waiting(self, key);
                match receiver.await {
                    Ok(pass) => pass,
                    // INVARIANT: a sender is in the line until it sends, or we are dropped.
                    Err(_) => std::future::pending().await,
                }
            }
        };
        Turn {
            value: self.value.clone().lock_owned().await,
            _pass: pass,
        }
    }

    fn line(&self) -> MutexGuard<'_, Line<T>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether somebody has the turn.
    #[cfg(test)]
    pub fn busy(&self) -> bool {
        self.line().busy
    }

    /// How many wait.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.line().waiting.len()
    }
}

/// Somebody with no right to more than its share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Who {
    /// Who only looks.
    Uid(u32),
    /// A tenant, by its tokens.
    Tenant(String),
}

/// What each has one of at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// An apply, a revocation that is taken back.
    Change,
    /// A revocation.
    Ending,
    /// A token's.
    Token,
    /// A capture that begins.
    Capture,
    /// A plan, proof, listing or sum.
    Look,
}

/// Who waits for what, or has it.
#[derive(Debug, Default)]
pub struct Places(Mutex<HashSet<(Who, Kind)>>);

/// One of these, given back when it is dropped.
#[derive(Debug)]
pub struct Place(Arc<Places>, (Who, Kind));

impl Drop for Place {
    fn drop(&mut self) {
        self.0.all().remove(&self.1);
    }
}

impl Places {
    /// One for this.
    ///
    /// # Errors
    /// It has one.
    pub fn take(self: &Arc<Self>, who: Who, kind: Kind) -> Result<Place, Fault> {
        let key = (who, kind);
        if !self.all().insert(key.clone()) && guard!("turn-each") {
            let what = match kind {
                Kind::Look => "a plan, proof, listing or sum that you asked for",
                Kind::Change => "a change of this tenant",
                Kind::Ending => "a revocation of this tenant",
                Kind::Token => "a revocation of a token of this tenant",
                Kind::Capture => "the start of a capture of this tenant",
            };
            return Err(Fault::new(
                "too-many",
                Whose::User,
                format!("{what} is not done yet"),
                "wait for it, then ask again: of each kind there is one at a time",
            ));
        }
        Ok(Place(self.clone(), key))
    }

    fn all(&self) -> MutexGuard<'_, HashSet<(Who, Kind)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
