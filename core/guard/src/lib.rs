//! Mutation points for guards.
//!
//! `guard!("name")` stands in the condition of every check that keeps a promise
//! of SPECIFICATION.md: `if guard!("source-mac") && frame.src != endpoint.mac`.
//! In every ordinary build it is the constant `true`. A build with `--cfg mutants`
//! takes out the one guard that the environment variable `BULKHEAD_MUTANT` names,
//! and `make test-mutants` must then see a test go red. Nothing of this is in a
//! shipped binary.

/// `true`, unless this is a mutant build and this guard is the one taken out.
#[macro_export]
macro_rules! guard {
    ($name:literal) => {
        $crate::stands($name)
    };
}

/// Whether the named guard stands. Constant `true` outside mutant builds.
#[cfg(not(mutants))]
#[inline(always)]
pub const fn stands(_name: &'static str) -> bool {
    true
}

/// Whether the named guard stands: not if `BULKHEAD_MUTANT` names it.
#[cfg(mutants)]
pub fn stands(name: &'static str) -> bool {
    use std::sync::OnceLock;
    static TAKEN_OUT: OnceLock<Option<String>> = OnceLock::new();
    TAKEN_OUT
        .get_or_init(|| std::env::var("BULKHEAD_MUTANT").ok())
        .as_deref()
        != Some(name)
}
