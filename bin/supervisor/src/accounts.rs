//! Whom else the host gives uids to: nobody may share one with a confined process.

use guard::guard;
use std::io::ErrorKind;
use std::path::Path;

/// The files, and which of their fields are the first id and how many there are.
const FILES: [(&str, usize, Option<usize>); 4] = [
    ("passwd", 2, None),
    ("group", 2, None),
    ("subuid", 1, Some(2)),
    ("subgid", 1, Some(2)),
];

/// Whether the `count` ids from `first` on are nobody else's by the host's own files.
/// Directories beyond the host (LDAP) are not asked.
///
/// # Errors
/// A sentence: the file and line that gives one away, or what the system refused.
pub fn keep_clear_of(first: u32, count: u32) -> Result<(), String> {
    clear_of_in(Path::new("/etc"), first, count)
}

fn clear_of_in(folder: &Path, first: u32, count: u32) -> Result<(), String> {
    let ours = u64::from(first)..u64::from(first) + u64::from(count);
    for (name, start, many) in FILES {
        let path = folder.join(name);
        let text = match std::fs::read(&path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(format!("{}: {error}", path.display())),
        };
        for (at, line) in text.lines().enumerate() {
            let fields: Vec<&str> = line.split(':').collect();
            let number = |field: usize| fields.get(field)?.trim().parse::<u64>().ok();
            let Some((from, many)) = number(start).zip(many.map_or(Some(1), number)) else {
                continue;
            };
            let meets = from < ours.end && ours.start < from.saturating_add(many);
            if guard!("uids-of-accounts") && meets {
                return Err(format!(
                    "{}:{}: {line:?} gives away ids that Bulkhead's processes have ({} to {}): move it, or give this instance another --run-dir, whose ids are others",
                    path.display(),
                    at + 1,
                    ours.start,
                    ours.end - 1,
                ));
            }
        }
    }
    Ok(())
}

/// Whether this user namespace has the `count` ids from `first` on.
///
/// # Errors
/// A sentence: it has not (a container with ids of its own), or what the system refused.
pub fn are_mapped(first: u32, count: u32) -> Result<(), String> {
    for map in ["/proc/self/uid_map", "/proc/self/gid_map"] {
        let text = std::fs::read_to_string(map).map_err(|error| format!("{map}: {error}"))?;
        if !covers(&text, first, count) {
            return Err(format!(
                "{map}: the ids {first} to {} do not exist here: this is a user namespace with fewer (a container's?); give it these, or use --rootless",
                first + (count - 1),
            ));
        }
    }
    Ok(())
}

/// Whether one line of a map (first inside, first outside, how many) has all of them.
fn covers(map: &str, first: u32, count: u32) -> bool {
    map.lines().any(|line| {
        let numbers: Vec<u64> = line.split_whitespace().flat_map(str::parse).collect();
        matches!(numbers[..], [from, _, many]
            if from <= first.into() && u64::from(first) + u64::from(count) <= from + many)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_the_user_namespace_lacks_are_told() {
        let whole = "         0          0 4294967295\n";
        assert!(covers(whole, 1000, 100));
        let container = "0 100000 65536\n";
        assert!(covers(container, 65436, 100));
        assert!(!covers(container, 65437, 100));
        assert!(!covers("", 0, 1));
        assert!(!covers("0 0\n", 0, 1));
    }

    #[test]
    fn an_account_or_a_range_in_ours_is_told_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let with = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).unwrap();
            let result = clear_of_in(folder.path(), 1000, 100);
            std::fs::remove_file(folder.path().join(name)).unwrap();
            result
        };
        assert_eq!(clear_of_in(folder.path(), 1000, 100), Ok(()));
        // Beside ours, on both sides, and lines that are none.
        assert_eq!(with("subuid", "a:900:100\nb:1100:5\n\nc:x:y\n"), Ok(()));
        assert_eq!(
            with("passwd", "a:x:999:999::/:/bin/sh\nb:x:1100:1:::\n"),
            Ok(())
        );
        for (name, text) in [
            ("subuid", "a:900:100\nb:900:101\n"),
            ("subgid", "# none\nb:1099:1\n"),
            ("subuid", "\nb:0:4294967295\n"),
            ("passwd", "a:x:5:5:::\nb:x:1050:1050::/:/bin/sh\n"),
            ("group", "a:x:5:\nb:x:1099:\n"),
        ] {
            let refused = with(name, text).unwrap_err();
            assert!(refused.contains(&format!("/{name}:2: ")), "{refused}");
        }
    }
}
