//! Confinement: how Bulkhead's processes are started and how they give up, stage
//! by stage, all they do not need.
//!
//! The parent calls [`spawn`]: own namespaces, own uid, descriptors at fixed
//! numbers, nothing else open. The worker calls [`enter`] first thing in `main`:
//! named, ordered [`Stage`]s, each looked at again after it was done. What the
//! parent believes of it comes from the kernel ([`observe`]), not from the worker.
//! [`lists`] says which system calls each profile keeps, each with its reason.
//!
//! Linux on x86_64 only: the lists name that architecture's calls.

pub mod cgroup;
pub mod clock;
mod enter;
pub mod features;
mod filter;
pub mod inherited;
mod kernel;
pub mod lists;
mod observe;
mod profile;
mod root;
pub mod rootless;
mod say;
pub mod signals;
mod spawn;
mod speculation;

pub use cgroup::{Cgroup, Limits};
pub use enter::{FILES, OPERATOR_PROCESSES, OPERATOR_TASKS, StageError, enter, enter_until};
pub use features::{Feature, Found, features, weaker};
pub use inherited::descriptor;
pub use observe::{Observed, exit_status, observe};
pub use profile::{Profile, Stage, Stages};
pub use say::say;
pub use spawn::{Child, HOST_ROOT, Spawn, SpawnError, become_solver, spawn};
pub use speculation::raise_branch_barrier;
