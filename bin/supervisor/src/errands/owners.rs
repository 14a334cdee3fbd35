//! It is looked whether anybody is left in user namespaces that these users made: programs of circuits outlive
//! their operator, and whoever has its uid can read them.

use std::collections::BTreeSet;
use std::io::{Read, Result, Write};

/// The word by which this program looks.
pub const OWNERS: &str = "owners";

/// Looks for the uids on its input, one a line, and says for whom somebody is there.
///
/// # Errors
/// What is asked for is not understood; nobody listens.
pub fn run() -> Result<()> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let uids = parsed(&text).ok_or(std::io::ErrorKind::InvalidInput)?;
    let found = found(uids, super::search::numbers("/proc"));
    std::io::stdout().write_all(text_of(&found).as_bytes())
}

/// As lines.
pub fn text_of(uids: &BTreeSet<u32>) -> String {
    uids.iter().map(|uid| format!("{uid}\n")).collect()
}

/// And back.
pub fn parsed(text: &str) -> Option<BTreeSet<u32>> {
    text.lines().map(|line| line.parse().ok()).collect()
}

/// Those of them that made a namespace which one of these processes is in.
fn found(mut uids: BTreeSet<u32>, processes: impl Iterator<Item = u32>) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    for process in processes {
        let Some(namespace) = notify::user_namespace(process) else {
            continue;
        };
        for owner in notify::owners(namespace) {
            if uids.remove(&owner) {
                found.insert(owner);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_made_a_namespace_that_somebody_is_in_is_found_and_nobody_else() {
        // The inner one is in a namespace that is in one of this user's.
        let mut child = std::process::Command::new("unshare")
            .args(["-Ur", "unshare", "-Ur", "sh", "-c", "echo; exec sleep 60"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = child.stdout.take().unwrap();
        out.read_exact(&mut [0]).unwrap();
        let me = rustix::process::geteuid().as_raw();
        let uids = || BTreeSet::from([me, me + 54_321]);
        assert_eq!(found(uids(), [child.id()].into_iter()), [me].into());
        assert!(found([me + 54_321].into(), [child.id()].into_iter()).is_empty());
        let _ = child.kill();
        let _ = child.wait();
        assert!(found([me + 54_321].into(), [child.id()].into_iter()).is_empty());
        assert_eq!(parsed(&text_of(&uids())), Some(uids()));
        assert_eq!(parsed("7\nx\n"), None);
    }
}
