//! Why a request of the controller's was not done.

use command::message::{ErrorCode, Name};
use command::verbs::Done;
use rustix::io::Errno;

/// A code for programs, an errno where there is one, a sentence for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The code.
    pub code: ErrorCode,
    /// errno, or 0.
    pub errno: u32,
    /// The sentence.
    pub detail: String,
}

impl Refusal {
    /// Without an errno.
    pub fn new(code: ErrorCode, detail: impl Into<String>) -> Refusal {
        Refusal {
            code,
            errno: 0,
            detail: detail.into(),
        }
    }

    /// The operating system refused.
    pub fn system(what: &str, error: &std::io::Error) -> Refusal {
        let errno = error.raw_os_error().unwrap_or(0).unsigned_abs();
        Refusal {
            code: ErrorCode::System,
            errno,
            detail: format!("cannot {what}: {error}"),
        }
    }

    /// The same from an errno.
    pub fn errno(what: &str, errno: Errno) -> Refusal {
        Refusal::system(what, &errno.into())
    }

    /// As an answer's body.
    pub fn body(&self) -> Done {
        Done {
            errno: self.errno,
            value: 0,
            detail: shortened(&self.detail),
        }
    }
}

/// The text, cut at a character's edge to what a [`Name`] holds.
fn shortened<const N: usize>(text: &str) -> Name<N> {
    let clean = text.replace('\0', " ");
    let mut end = clean.len().min(N);
    while !clean.is_char_boundary(end) {
        end -= 1;
    }
    Name::new(clean.get(..end).unwrap_or("")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_sentence_is_cut_at_a_character() {
        let refusal = Refusal::new(ErrorCode::Limit, "ü".repeat(200));
        let body = refusal.body();
        assert_eq!(body.detail.as_str(), "ü".repeat(120));
    }
}
