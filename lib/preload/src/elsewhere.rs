//! Calls by which bytes move where nothing here counts them: by threads of the C library's own, and by other
//! programs that are executed and have the socket from then on.
#![expect(unsafe_code, reason = "functions of C, by their names")]

use crate::calls::exported;
use crate::leave::left;
use crate::{real, table};
use libc::{aiocb, sigevent};
use std::ffi::{c_char, c_int};

/// Leaves its ring, if it has one; the answer where it cannot.
unsafe fn leaves(one: *const aiocb) -> Result<(), c_int> {
    // SAFETY: the caller's promise: one that is there, or null.
    match unsafe { one.as_ref() } {
        Some(one) if !left(one.aio_fildes) => Err(-1),
        _ => Ok(()),
    }
}

type Words = *const *const c_char;

exported! {
    aio_read(one: *mut aiocb) -> c_int {
        leaves(one).map_or_else(|it| it, |()| real::aio_read(one))
    }
    aio_read64(one: *mut aiocb) -> c_int { aio_read(one) }
    aio_write(one: *mut aiocb) -> c_int {
        leaves(one).map_or_else(|it| it, |()| real::aio_write(one))
    }
    aio_write64(one: *mut aiocb) -> c_int { aio_write(one) }
    lio_listio(how: c_int, list: *const *mut aiocb, n: c_int, event: *mut sigevent) -> c_int {
        for at in 0..if list.is_null() { 0 } else { n.max(0) as usize } {
            if let Err(answer) = leaves(*list.add(at)) {
                return answer;
            }
        }
        real::lio_listio(how, list, n, event)
    }
    lio_listio64(how: c_int, list: *const *mut aiocb, n: c_int, event: *mut sigevent) -> c_int {
        lio_listio(how, list, n, event)
    }
    execve(path: *const c_char, words: Words, environment: Words) -> c_int {
        table::starts();
        real::execve(path, words, environment)
    }
    execv(path: *const c_char, words: Words) -> c_int {
        table::starts();
        real::execv(path, words)
    }
    execvp(file: *const c_char, words: Words) -> c_int {
        table::starts();
        real::execvp(file, words)
    }
    execvpe(file: *const c_char, words: Words, environment: Words) -> c_int {
        table::starts();
        real::execvpe(file, words, environment)
    }
    fexecve(fd: c_int, words: Words, environment: Words) -> c_int {
        table::starts();
        real::fexecve(fd, words, environment)
    }
    execveat(folder: c_int, path: *const c_char, words: Words, environment: Words, flags: c_int) -> c_int {
        table::starts();
        real::execveat(folder, path, words, environment, flags)
    }
}
