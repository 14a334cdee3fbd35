//! Tenants' tokens: made of the system's randomness, kept as digests.

use crate::survey::hex;
use api::{Fault, Whose};
use guard::guard;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Instant;
use store::Token;
use tokio::sync::watch;

/// Tokens of a host, at most; each request looks for one among them.
pub const MOST: usize = 4096;
/// Tokens of one tenant, at most.
pub const EACH: usize = 64;
/// What each begins with, for people and for programs that look for secrets.
const BEGIN: &str = "bulkhead";
/// Changes of a tenant that are let through at once, and one more each so many seconds:
/// each is an entry of the audit log, which nobody may push over its edge alone.
const BURST: f64 = 60.0;
pub const EVERY_S: u32 = 6;
/// Callers that are told apart in what was refused; the others are counted together.
const REFUSED: usize = 16;

/// The tokens there are, and what was refused.
#[derive(Default)]
pub struct Tokens {
    /// `None` = the store has not been read yet.
    all: RwLock<Option<Vec<Token>>>,
    changed: watch::Sender<()>,
    /// By tenant, and what is asked: when last, and how much more then.
    asked: Mutex<BTreeMap<(String, Asked), (Instant, f64)>>,
    refused: Mutex<BTreeMap<String, u64>>,
}

/// What costs the host so much that a tenant's share of it is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Asked {
    /// Applies, captures, revocations that change nothing or are taken back.
    Change,
    /// Plans: who only looks uses up no change.
    Plan,
    /// The audit log, which is looked through.
    Audit,
}

impl Asked {
    fn words(self) -> &'static str {
        match self {
            Asked::Change => "changes",
            Asked::Plan => "plans",
            Asked::Audit => "looks at the audit log",
        }
    }
}

/// A token that was just made.
pub struct Made {
    /// Its text, told once.
    pub text: String,
    /// What is kept.
    pub token: Token,
}

impl Tokens {
    /// What is kept now.
    pub fn set(&self, tokens: Vec<Token>) {
        *self.all.write().unwrap_or_else(PoisonError::into_inner) = Some(tokens);
        self.changed.send_replace(());
    }

    /// Hears of each `set` from now on.
    pub fn listen(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// All of them.
    ///
    /// # Errors
    /// The store has not been read yet.
    pub fn all(&self) -> Result<Vec<Token>, Fault> {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        all.clone().ok_or_else(unread)
    }

    /// The token with this text, if it is valid at `now_s` (Unix time). Why one is not
    /// valid is told to nobody but the audit log.
    ///
    /// # Errors
    /// Not valid; or the store has not been read yet.
    pub fn check(
        &self,
        text: &str,
        now_s: u64,
        exists: impl Fn(&str) -> bool,
    ) -> Result<Token, (Fault, &'static str)> {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        let Some(all) = &*all else {
            return Err((unread(), "no store"));
        };
        let no = |why| Err((invalid(), why));
        let mut parts = text.split('_');
        let (begin, id) = (parts.next(), parts.next().unwrap_or_default());
        if begin != Some(BEGIN) {
            return no("not a token");
        }
        let Some(token) = all.iter().find(|token| token.id == id) else {
            return no("an unknown token");
        };
        let digest = hex(&Sha256::digest(text));
        if guard!("token-secret") && !same(digest.as_bytes(), token.digest.as_bytes()) {
            return no("a wrong token");
        }
        if guard!("token-until") && ended(token, now_s) {
            return no("a token that has ended");
        }
        if guard!("token-tenant") && !exists(&token.tenant) {
            return no("a token of a tenant that is no more");
        }
        Ok(token.clone())
    }

    /// Whether a token is valid still.
    pub fn is_valid(&self, id: &str, now_s: u64) -> bool {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        let found = all.iter().flatten().find(|token| token.id == id);
        found.is_some_and(|token| !ended(token, now_s))
    }

    /// Whether a tenant may have this once more just now.
    ///
    /// # Errors
    /// It has had too much.
    pub fn share(&self, tenant: &str, what: Asked, now: Instant) -> Result<(), Fault> {
        let mut all = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() > MOST {
            all.clear();
        }
        let key = (tenant.to_owned(), what);
        let (at, left) = all.get(&key).copied().unwrap_or((now, BURST));
        let more = now.saturating_duration_since(at).as_secs_f64() / f64::from(EVERY_S);
        let left = (left + more).min(BURST);
        if guard!("token-changes") && left < 1.0 {
            all.insert(key, (now, left));
            return Err(Fault::new(
                "too-many",
                Whose::User,
                format!("too many {} by this tenant", what.words()),
                "wait a little: one every six seconds is let through, and what ends an offer or an acceptance always",
            ));
        }
        all.insert(key, (now, left - 1.0));
        Ok(())
    }

    /// Remembers that somebody was refused something.
    pub fn refuse(&self, who: String) {
        let mut all = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let who = match all.len() < REFUSED || all.contains_key(&who) {
            true => who,
            false => "others".into(),
        };
        *all.entry(who).or_default() += 1;
    }

    /// What was refused since the last call, a line each.
    pub fn refusals(&self) -> Vec<String> {
        let mut all = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = std::mem::take(&mut *all).into_iter();
        lines
            .map(|(who, times)| format!("{who}, {times} times"))
            .collect()
    }
}

/// A new token.
///
/// # Errors
/// The system gives no randomness.
pub fn make(wanted: Token) -> Result<Made, Fault> {
    let mut random = [0; 40];
    let mut filled = 0;
    // Bound: so few bytes come at once, or not at all.
    while filled < random.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        match rustix::rand::getrandom(&mut random[filled..], flags) {
            Ok(more) if more > 0 => filled += more,
            _ => {
                return Err(Fault::new(
                    "host",
                    Whose::Host,
                    "the system gives no randomness",
                    "try again",
                ));
            }
        }
    }
    let (id, secret) = random.split_at(8);
    let id = hex(id);
    let text = format!("{BEGIN}_{id}_{}", hex(secret));
    let digest = hex(&Sha256::digest(&text));
    Ok(Made {
        token: Token {
            id,
            digest,
            ..wanted
        },
        text,
    })
}

fn unread() -> Fault {
    Fault::new(
        "store",
        Whose::Host,
        "which tokens there are is not known yet",
        "`bulkhead status` as root says why",
    )
}

/// For who is not let in, whatever the reason.
pub fn invalid() -> Fault {
    Fault::new(
        "unauthenticated",
        Whose::User,
        "this token is not valid: it may be mistyped, revoked, or have ended",
        "ask the provider of this host for another",
    )
}

fn ended(token: &Token, now_s: u64) -> bool {
    token.until_s != 0 && token.until_s <= now_s
}

/// Whether two are equal, in a time that says nothing about where they differ.
fn same(a: &[u8], b: &[u8]) -> bool {
    let differ = a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b));
    a.len() == b.len() && std::hint::black_box(differ) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    fn one(tenant: &str, until_s: u64) -> (Tokens, Made) {
        let tokens = Tokens::default();
        let made = make(Token {
            tenant: tenant.into(),
            until_s,
            ..Token::default()
        });
        let made = made.map_err(|fault| fault.message).unwrap();
        tokens.set(vec![made.token.clone()]);
        (tokens, made)
    }

    fn why(tokens: &Tokens, text: &str, now_s: u64) -> Option<&'static str> {
        let checked = tokens.check(text, now_s, |tenant| tenant == "red");
        checked.err().map(|(_, why)| why)
    }

    #[test]
    fn a_token_is_let_in_by_its_whole_text_until_it_ends() {
        let (tokens, made) = one("red", 100);
        assert_eq!(why(&tokens, &made.text, 99), None);
        assert_eq!(
            why(&tokens, &made.text, 100),
            Some("a token that has ended")
        );
        assert!(tokens.is_valid(&made.token.id, 99) && !tokens.is_valid(&made.token.id, 100));
        let mut other = made.text.clone();
        let last = if other.ends_with('0') { "1" } else { "0" };
        other.replace_range(other.len() - 1.., last);
        assert_eq!(why(&tokens, &other, 0), Some("a wrong token"));
        let short = &made.text[..made.text.len() - 1];
        assert_eq!(why(&tokens, short, 0), Some("a wrong token"));
        assert!(!made.text.contains(&made.token.digest));
        tokens.set(Vec::new());
        assert_eq!(why(&tokens, &made.text, 0), Some("an unknown token"));
        assert!(!tokens.is_valid(&made.token.id, 0));
    }

    #[test]
    fn a_token_of_a_tenant_that_is_no_more_is_none() {
        let (tokens, made) = one("gone", 0);
        let why = why(&tokens, &made.text, 0);
        assert_eq!(why, Some("a token of a tenant that is no more"));
    }

    #[test]
    fn before_the_store_is_read_nobody_is_let_in() {
        let checked = Tokens::default().check("bulkhead_0_0", 0, |_| true);
        assert_eq!(
            checked.err().map(|(fault, _)| fault.code),
            Some("store".into())
        );
    }

    #[test]
    fn no_tenant_changes_without_end_and_another_is_not_held_up() {
        let (tokens, _) = one("red", 0);
        let now = Instant::now();
        let passed = |tenant| {
            (0..1000)
                .filter(|_| tokens.share(tenant, Asked::Change, now).is_ok())
                .count()
        };
        assert_eq!((passed("red"), passed("blue")), (60, 60));
        assert!(tokens.share("red", Asked::Audit, now).is_ok());
        let later = now + Duration::from_secs(13);
        assert!(
            tokens.share("red", Asked::Change, later).is_ok()
                && tokens.share("red", Asked::Change, later).is_ok()
        );
        assert!(tokens.share("red", Asked::Change, later).is_err());
    }

    #[test]
    fn what_is_refused_is_counted_by_few() {
        let tokens = Tokens::default();
        for n in 0..100 {
            tokens.refuse(format!("uid {n}"));
            tokens.refuse("uid 0".into());
        }
        let lines = tokens.refusals();
        assert_eq!(lines.len(), REFUSED + 1);
        assert!(lines.contains(&"uid 0, 101 times".to_owned()));
        assert!(lines.contains(&"others, 84 times".to_owned()));
        assert!(tokens.refusals().is_empty());
    }

    proptest! {
        #[test]
        fn any_other_text_is_refused(text in ".{0,200}", part in 0_usize..90) {
            let (tokens, made) = one("red", 0);
            prop_assert!(why(&tokens, &text, 0).is_some());
            let cut: String = made.text.chars().take(part).chain(text.chars()).collect();
            prop_assert!(cut == made.text || why(&tokens, &cut, 0).is_some());
        }
    }
}
