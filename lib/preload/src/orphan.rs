//! A copy of this process that is nobody's child, of which the program hears nothing.
//!
//! Its parent is a first one, which ends at once. That shares this process's memory (`vfork`): page tables are copied
//! once, for the copy that stays, and not for the first one too, of which it would be a copy.
#![expect(unsafe_code, reason = "two processes out of one")]

use crate::real;
use libc::{CLONE_PARENT_SETTID, CLONE_VFORK, CLONE_VM};
use std::convert::Infallible;
use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, Ordering};

/// Makes one that lives by `lives`, which is told whom the first one had for a parent; whether there is one.
/// Signals are blocked.
pub fn make(lives: impl FnOnce(isize) -> Infallible) -> bool {
    // The kernel says there which one was made: the first one may be killed before it could.
    let made = AtomicI32::new(0);
    let (first, parent) = splits(&made);
    if first == 0 {
        lives(parent);
    }
    let ended_well = first > 0 && waited_for(first as c_int);
    made.load(Ordering::Relaxed) != 0 || ended_well
}

/// The first one's number, or an error, and nothing; in the copy zero, and the number of the first one's parent.
fn splits(made: &AtomicI32) -> (isize, isize) {
    let (first, parent);
    // SAFETY: of what is here only the kernel's `made` is written by the first one, which has this thread's stack, and its
    // thread's memory, too: it touches neither, goes by registers alone, and ends here. This thread stands still meanwhile
    // (CLONE_VFORK), so that the copy finds the stack as it is; no handler runs, for signals are blocked. It has no robust
    // list, no place for its number and no restartable sequence by which the kernel would write at its end: none is
    // handed on with memory that is shared. The kernel keeps all other registers, also in the copy. Where it is not
    // given this thread's memory (valgrind), all is the same but `made`.
    unsafe {
        core::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            // The first one. The parent's number is not to be had once it has ended.
            "mov eax, {getppid}",
            "syscall",
            "mov r9, rax",
            "mov edi, {alone}",
            "mov eax, {clone}",
            "syscall",
            "test rax, rax",
            "jz 2f",
            // 1 for an error.
            "shr rax, 63",
            "mov edi, eax",
            "3:",
            "mov eax, {exit_group}",
            "syscall",
            "jmp 3b",
            "2:",
            getppid = const libc::SYS_getppid,
            clone = const libc::SYS_clone,
            exit_group = const libc::SYS_exit_group,
            alone = const CLONE_PARENT_SETTID,
            inlateout("rax") libc::SYS_clone as isize => first,
            // Of no signal when it ends.
            inlateout("rdi") (CLONE_VM | CLONE_VFORK) as usize => _,
            // On the same stack.
            in("rsi") 0_usize,
            in("rdx") made.as_ptr(),
            in("r10") 0_usize,
            in("r8") 0_usize,
            inlateout("r9") 0_isize => parent,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    (first, parent)
}

/// Waits for the first one; whether it says that it made one. Whom the program waited for itself, of all its
/// children, says nothing.
fn waited_for(first: c_int) -> bool {
    let mut status = 0;
    // Bound: signals, and the life of one that does nothing else.
    loop {
        // SAFETY: room for the answer.
        let ended = unsafe { libc::waitpid(first, &raw mut status, libc::__WALL) };
        if ended == first || real::errno() != libc::EINTR {
            return ended == first && status == 0;
        }
    }
}
