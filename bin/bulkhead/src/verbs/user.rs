//! Who a program of circuits runs as: a user of the host's own files.

use crate::exit::{Exit, Trouble};
use notify::User;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;

/// A variable of the environment, and its value.
pub type Variable = (OsString, OsString);

/// A user by name or number, with its groups as the host has them, and what its programs know it by.
pub fn user(text: &str) -> Result<(User, Vec<Variable>), Trouble> {
    let (user, variables) = who(text, |path| std::fs::read(path))?;
    match [user.uid, user.gid]
        .iter()
        .any(|id| notify::OWN.contains(id))
    {
        false => Ok((user, variables)),
        true => Err(Trouble::new(
            Exit::Usage,
            format!("--user {text}: this is a number of Bulkhead's own processes"),
            "numbers from 1879048192 to 2147352575 are nobody else's",
        )),
    }
}

/// These are bytes: a name in a comment may be of an encoding of before.
fn who(
    text: &str,
    read: impl Fn(&str) -> io::Result<Vec<u8>>,
) -> Result<(User, Vec<Variable>), Trouble> {
    let unknown = || {
        Trouble::new(
            Exit::Usage,
            format!("--user {text}: there is no such user"),
            "a name of /etc/passwd, or UID:GID",
        )
    };
    if let Some((uid, gid)) = text.split_once(':') {
        // To the kernel the last number means that nothing changes.
        let number = |word: &str| word.parse().ok().filter(|it: &u32| *it != u32::MAX);
        let numbers = number(uid).zip(number(gid));
        let (uid, gid) = numbers.ok_or_else(|| {
            let is_number = |it: &str| !it.is_empty() && it.bytes().all(|b| b.is_ascii_digit());
            match is_number(uid) && is_number(gid) {
                true => Trouble::new(
                    Exit::Usage,
                    format!("--user {text}: there is no such number"),
                    "UID and GID are from 0 to 4294967294",
                ),
                false => Trouble::new(
                    Exit::Usage,
                    format!(
                        "--user {text}: this is neither a name nor UID:GID, which are two numbers"
                    ),
                    "for example: --user www-data, or --user 1000:1000",
                ),
            }
        })?;
        let (groups, name) = (Vec::new(), uid.to_string());
        return Ok((User { uid, gid, groups }, known_as(b"/", name.as_bytes())));
    }
    let unread = |path: &'static str| {
        move |error| {
            Trouble::of_host(
                format!("{path}: {error}: it is not known who {text} is"),
                "have it readable, or say UID:GID, who is in no other group",
            )
        }
    };
    let people = read("/etc/passwd").map_err(unread("/etc/passwd"))?;
    let person = lines(&people)
        .find(|words| [words.first(), words.get(2)].contains(&Some(&text.as_bytes())))
        .ok_or_else(unknown)?;
    let name = person.first().copied().unwrap_or_default();
    let groups = match read("/etc/group") {
        // Where there are no groups nobody is in one.
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        groups => groups.map_err(unread("/etc/group"))?,
    };
    let of = lines(&groups).filter_map(|words| {
        let is = words.get(3)?.split(|it| *it == b',').any(|it| it == name);
        is.then(|| number(&words, 2)).flatten()
    });
    let user = User {
        uid: number(&person, 2).ok_or_else(unknown)?,
        gid: number(&person, 3).ok_or_else(unknown)?,
        groups: of.collect(),
    };
    let home = person.get(5).copied().unwrap_or(b"/");
    Ok((user, known_as(home, name)))
}

fn lines(text: &[u8]) -> impl Iterator<Item = Vec<&[u8]>> {
    let lines = text.split(|it| *it == b'\n');
    lines.map(|line| line.split(|it| *it == b':').collect())
}

fn number(words: &[&[u8]], at: usize) -> Option<u32> {
    str::from_utf8(words.get(at)?).ok()?.parse().ok()
}

fn known_as(home: &[u8], name: &[u8]) -> Vec<Variable> {
    let variables = [("HOME", home), ("USER", name), ("LOGNAME", name)];
    variables
        .map(|(name, value)| (name.into(), OsStr::from_bytes(value).into()))
        .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEOPLE: &[u8] =
        b"root:x:0:0:r\xf6\xf6t:/root:/bin/sh\nweb:x:1000:33:J\xfcrgen:/home/w\xe9b:/bin/sh\n";
    const GROUPS: &[u8] = b"adm:x:4:web,m\xfcller\nm\xfcller:x:5:\nssl:x:115:other,web";

    #[test]
    fn bytes_that_are_no_text_hide_neither_users_nor_groups() {
        let read = |path: &str| match path {
            "/etc/passwd" => Ok(PEOPLE.to_vec()),
            _ => Ok(GROUPS.to_vec()),
        };
        for text in ["web", "1000"] {
            let (user, variables) = who(text, read).unwrap();
            assert_eq!((user.uid, user.gid, user.groups), (1000, 33, vec![4, 115]));
            assert_eq!(variables, known_as(b"/home/w\xe9b", b"web"));
        }
        for (text, says) in [
            ("99999999999:1", "from 0 to 4294967294"),
            ("1:4294967295", "from 0 to 4294967294"),
            ("nobody", "UID:GID"),
        ] {
            let trouble = who(text, read).unwrap_err();
            assert_eq!(trouble.exit, Exit::Usage);
            assert!(
                trouble.fault.help.contains(says),
                "{text}: {}",
                trouble.fault
            );
        }
        for text in ["web:33", ":33", "33:", ":", "1:2:3", "web:33:", "-1:2"] {
            let trouble = who(text, read).unwrap_err();
            let form = format!("--user {text}: this is neither a name nor UID:GID");
            assert!(
                trouble.fault.message.starts_with(&form),
                "{}",
                trouble.fault
            );
        }
        let trouble = who("nobody", read).unwrap_err();
        assert_eq!(
            (trouble.exit, trouble.fault.whose),
            (Exit::Usage, api::Whose::User)
        );
    }

    #[test]
    fn a_file_that_cannot_be_read_is_no_fault_of_the_users() {
        for (closed, error) in [("/etc/passwd", 13), ("/etc/group", 13), ("/etc/passwd", 2)] {
            let read = |path: &str| match path {
                it if it == closed => Err(io::Error::from_raw_os_error(error)),
                "/etc/passwd" => Ok(PEOPLE.to_vec()),
                _ => Ok(GROUPS.to_vec()),
            };
            let trouble = who("web", read).unwrap_err();
            assert_eq!(
                (trouble.exit, trouble.fault.whose),
                (Exit::Failed, api::Whose::Host)
            );
            assert!(trouble.fault.message.starts_with(closed));
            assert!(who("1000:33", read).is_ok(), "no file says it");
        }
        let groupless = |path: &str| match path {
            "/etc/passwd" => Ok(PEOPLE.to_vec()),
            _ => Err(ErrorKind::NotFound.into()),
        };
        assert!(who("web", groupless).unwrap().0.groups.is_empty());
    }
}
