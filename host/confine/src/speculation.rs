//! Speculation of one process that another steers, or that reads what its code did not mean to
//! (the kernel's "speculation" documentation: states and controls of PR_SPEC_*).

use crate::kernel;
use crate::profile::Profile;
use guard::guard;
use rustix::io::Errno;

const STORE_BYPASS: Control = (0, "store bypass");
const INDIRECT_BRANCH: Control = (1, "indirect branch speculation");
type Control = (u64, &'static str);

const FORCE_DISABLE: u64 = 1 << 3;
const PRCTL: i32 = 1;
const ENABLE: i32 = 1 << 1;

/// What is off from the start: all of it, but who [may serve one tenant
/// alone](Profile::may_be_one_tenants) raises the barrier of branches when it serves several.
pub(crate) fn at_start(profile: Profile) -> Result<(), String> {
    match profile.may_be_one_tenants() {
        true => forced_off(&[STORE_BYPASS], prctl),
        false => forced_off(&[STORE_BYPASS, INDIRECT_BRANCH], prctl),
    }
}

/// Has the processor forget, at each switch to this thread and from it, what other processes'
/// branches taught it: for good, also for the threads that it starts. For who [was started
/// without](Profile::may_be_one_tenants) and is to serve several tenants.
///
/// # Errors
/// A sentence: it did not take. Serve nobody then.
pub fn raise_branch_barrier() -> Result<(), String> {
    forced_off(&[INDIRECT_BRANCH], prctl)
}

fn prctl(option: i32, which: u64, value: u64) -> Result<i32, Errno> {
    kernel::prctl(option, which, value, 0, 0)
}

/// A processor (often a hypervisor's) may offer no control: `features` says what is
/// lost, and `weaker` has the daemon say it too.
fn forced_off(
    controls: &[Control],
    prctl: impl Fn(i32, u64, u64) -> Result<i32, Errno>,
) -> Result<(), String> {
    let says = |error: Errno| error.to_string();
    for &(which, name) in controls {
        let state = || prctl(libc::PR_GET_SPECULATION_CTRL, which, 0);
        let before = match state() {
            Ok(before) => before,
            Err(Errno::INVAL | Errno::NODEV) => continue,
            Err(error) => return Err(says(error)),
        };
        if guard!("confine-speculation") && before & PRCTL != 0 {
            let set = prctl(libc::PR_SET_SPECULATION_CTRL, which, FORCE_DISABLE);
            // EPERM: forced off already, and for good.
            if let Err(error) = set
                && error != Errno::PERM
            {
                return Err(format!("{name}: {error}"));
            }
            if state().map_err(says)? & ENABLE != 0 {
                return Err(format!("{name} is still on"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// What the kernel's controls hold after [`forced_off`], by what they held.
    fn after(controls: [i32; 2], takes: bool) -> (Result<(), String>, [i32; 2]) {
        let controls = controls.map(Cell::new);
        let outcome = forced_off(&[STORE_BYPASS, INDIRECT_BRANCH], |option, which, value| {
            let control = &controls[which as usize];
            if option == libc::PR_SET_SPECULATION_CTRL && takes {
                control.set(1 | value as i32);
            }
            Ok(control.get())
        });
        (outcome, controls.map(|control| control.get()))
    }

    #[test]
    fn speculation_is_forced_off_wherever_it_can_be() {
        const CAN: i32 = 1 | 2;
        const CANNOT: i32 = 2;
        const FORCED: i32 = 1 | 8;
        assert_eq!(after([CAN, CAN], true), (Ok(()), [FORCED, FORCED]));
        assert_eq!(after([CANNOT, CAN], true), (Ok(()), [CANNOT, FORCED]));
        assert_eq!(after([CANNOT, CANNOT], true), (Ok(()), [CANNOT, CANNOT]));
        assert!(after([CAN, CAN], false).0.is_err(), "it did not take");
    }
}
