//! Where a program is looked for that is named without its folder.

use rustix::fs::{FileType, stat};
use rustix::io::Errno;
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// The folders that execvp(3) looks through: this process' PATH, or the C library's where it has none.
pub fn searched() -> OsString {
    std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into())
}

/// The files that a program of this name may be; none where it is named by its path.
pub fn candidates(program: &OsStr) -> Vec<CString> {
    let (folders, name) = (searched(), program.as_bytes());
    if name.contains(&b'/') {
        return Vec::new();
    }
    let folders = folders.as_bytes().split(|it| *it == b':');
    let file = |folder: &[u8]| match folder {
        // Where the caller is.
        [] => CString::new(name),
        folder => CString::new([folder, b"/", name].concat()),
    };
    folders.filter_map(|folder| file(folder).ok()).collect()
}

/// Why none of these was executed, of which execvp(3) says this: it says EACCES too where a folder is closed to the
/// caller and no other has the program, and then there is none. Allocates nothing.
pub fn why(candidates: &[CString], errno: Errno) -> Errno {
    let is_there = |file: &CString| {
        stat(file.as_c_str()).is_ok_and(|it| FileType::from_raw_mode(it.st_mode).is_file())
    };
    match errno {
        Errno::ACCESS if !candidates.is_empty() && !candidates.iter().any(is_there) => Errno::NOENT,
        errno => errno,
    }
}
