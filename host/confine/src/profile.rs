//! Who is confined how: the profiles and the stages.

/// The environment variable by which [`crate::spawn`] tells a worker that it is
/// the unsandboxed baseline; set by the trusted parent only.
pub(crate) const PROFILE_VARIABLE: &str = "BULKHEAD_PROFILE";

/// The environment variable by which [`crate::spawn`] tells an operator its user id.
pub(crate) const UID_VARIABLE: &str = "BULKHEAD_UID";

/// What kind of process is confined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// A tenant's switch: FIFOs, taps, its control socket, nothing else.
    Switch,
    /// The fabric: the same and packet sockets it was handed.
    Fabric,
    /// The auditor: a capture channel in, a pipe out.
    Auditor,
    /// The verifier: its control socket; it reads sealed memory and writes its report.
    Verifier,
    /// The solver: a text in, a pipe out; becomes the host's z3, whose libraries it reads.
    Solver,
    /// A virtual machine's interface: a front end's socket and descriptors, a switch's socket.
    Vhost,
    /// A compartment's operator: programs' seccomp listeners, sockets that it makes for them.
    /// It owns the user namespaces of these programs, which it could not from inside another
    /// one, and sees them as the host does; Landlock would forbid it to look at any.
    Operator,
    /// A proxy: TCP in the network namespace that it was started in, circuits' other ends.
    Proxy,
    /// The controller: threads, an accepted unix socket, files below one directory.
    Controller,
    /// The supervisor: keeps its privilege; no stage applies.
    Supervisor,
    /// A switch with `sandbox: off`, to compare with (the baseline of the MTS paper): the host's
    /// namespaces and every system call. It still has an own uid, no capability
    /// and no way to gain one, its limits and its speculation controls.
    Baseline,
}

impl Profile {
    /// Its name, as `spawn` and the tests write it.
    pub const fn name(self) -> &'static str {
        match self {
            Profile::Switch => "switch",
            Profile::Fabric => "fabric",
            Profile::Auditor => "auditor",
            Profile::Verifier => "verifier",
            Profile::Solver => "solver",
            Profile::Vhost => "vhost",
            Profile::Operator => "operator",
            Profile::Proxy => "proxy",
            Profile::Controller => "controller",
            Profile::Supervisor => "supervisor",
            Profile::Baseline => "baseline",
        }
    }

    /// From its name.
    pub fn from_name(name: &str) -> Option<Profile> {
        Profile::ALL
            .into_iter()
            .find(|profile| profile.name() == name)
    }

    /// Every profile.
    pub const ALL: [Profile; 11] = [
        Profile::Switch,
        Profile::Fabric,
        Profile::Auditor,
        Profile::Verifier,
        Profile::Solver,
        Profile::Vhost,
        Profile::Operator,
        Profile::Proxy,
        Profile::Controller,
        Profile::Supervisor,
        Profile::Baseline,
    ];

    /// Descriptors that it starts with, from 3 on. Switch, fabric, auditor,
    /// verifier, vhost helper and baseline: the control socket. Controller: the control socket, the listening
    /// API socket, its state directory. Solver: the control socket, the program that it
    /// becomes. Others: whatever they were given.
    pub const fn descriptors(self) -> u32 {
        match self {
            Profile::Switch
            | Profile::Fabric
            | Profile::Auditor
            | Profile::Verifier
            | Profile::Vhost
            | Profile::Operator
            | Profile::Proxy
            | Profile::Baseline => 1,
            Profile::Solver => 2,
            Profile::Controller => 3,
            Profile::Supervisor => 0,
        }
    }

    /// Whether it lives in user, mount, pid, net, ipc and uts namespaces of its own. The
    /// operator has mount, ipc and uts namespaces, and the network namespace that it was
    /// started in; in such a one is the proxy too.
    pub const fn is_namespaced(self) -> bool {
        !matches!(
            self,
            Profile::Supervisor | Profile::Baseline | Profile::Operator
        )
    }

    /// Whether it may be that it serves one tenant alone, and then needs no barrier against others'
    /// branches: all that it has, that tenant's own processes have too, or what runs its virtual
    /// machines, and they have none. At each switch between two processes a barrier is what most of
    /// a short call costs. It raises one when it is to serve several
    /// ([`raise_branch_barrier`](crate::raise_branch_barrier)).
    pub const fn may_be_one_tenants(self) -> bool {
        matches!(
            self,
            Profile::Switch | Profile::Baseline | Profile::Operator | Profile::Proxy
        )
    }

    /// The stages without which it must not run. Core scheduling is done where the
    /// kernel has it, and is in no profile's list.
    pub const fn stages(self) -> Stages {
        match self {
            Profile::Supervisor => Stages(0),
            Profile::Baseline => Stages(
                1 << Stage::Descriptors as u32
                    | 1 << Stage::Limits as u32
                    | 1 << Stage::Speculation as u32
                    | 1 << Stage::Identity as u32
                    | 1 << Stage::Capabilities as u32
                    | 1 << Stage::NoNewPrivileges as u32
                    | 1 << Stage::Dumpable as u32,
            ),
            Profile::Operator => Stages(
                ((1 << Stage::ALL.len()) - 1)
                    & !(1 << Stage::CoreScheduling as u32 | 1 << Stage::Landlock as u32),
            ),
            _ => Stages(((1 << Stage::ALL.len()) - 1) & !(1 << Stage::CoreScheduling as u32)),
        }
    }
}

/// The stages of confinement, in the order in which they are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Stage {
    /// Only the expected descriptors are open; 0 to 2 lead nowhere.
    Descriptors = 0,
    /// Own user, pid and net namespace: pid 1, one uid mapped, no interface but lo.
    Namespaces = 1,
    /// Resource limits.
    Limits = 2,
    /// Speculative store bypass is off for good, and indirect branch speculation, but of who
    /// [may serve one tenant alone](Profile::may_be_one_tenants).
    Speculation = 3,
    /// A core-scheduling cookie of its own, where the kernel has that.
    CoreScheduling = 4,
    /// The root is an empty read-only directory; the old tree is gone. The solver's holds
    /// the host's libraries, read-only.
    Root = 5,
    /// No supplementary group; real, effective and saved ids the same.
    Identity = 6,
    /// No capability in any set, nor a way to one (securebits locked).
    Capabilities = 7,
    /// PR_SET_NO_NEW_PRIVS.
    NoNewPrivileges = 8,
    /// No core dump, no ptrace by an equal.
    Dumpable = 9,
    /// Landlock: every right the kernel knows is denied but what the profile lists.
    Landlock = 10,
    /// The system call filter: anything not listed kills the process.
    Seccomp = 11,
}

impl Stage {
    /// Every stage in order.
    pub const ALL: [Stage; 12] = [
        Stage::Descriptors,
        Stage::Namespaces,
        Stage::Limits,
        Stage::Speculation,
        Stage::CoreScheduling,
        Stage::Root,
        Stage::Identity,
        Stage::Capabilities,
        Stage::NoNewPrivileges,
        Stage::Dumpable,
        Stage::Landlock,
        Stage::Seccomp,
    ];

    /// Its name, for people.
    pub const fn name(self) -> &'static str {
        match self {
            Stage::Descriptors => "descriptors",
            Stage::Namespaces => "namespaces",
            Stage::Limits => "limits",
            Stage::Speculation => "speculation",
            Stage::CoreScheduling => "core-scheduling",
            Stage::Root => "root",
            Stage::Identity => "identity",
            Stage::Capabilities => "capabilities",
            Stage::NoNewPrivileges => "no-new-privileges",
            Stage::Dumpable => "dumpable",
            Stage::Landlock => "landlock",
            Stage::Seccomp => "seccomp",
        }
    }
}

/// A set of stages, bit n for the stage with number n: the `stages` word of
/// `command::verbs::Ready`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages(pub u32);

impl Stages {
    /// Whether the stage is in the set.
    pub const fn contains(self, stage: Stage) -> bool {
        self.0 & (1 << stage as u32) != 0
    }

    /// With this stage.
    #[must_use]
    pub const fn with(self, stage: Stage) -> Stages {
        Stages(self.0 | 1 << stage as u32)
    }

    /// What the profile needs and this set lacks; empty = enough.
    pub fn missing(self, profile: Profile) -> Vec<Stage> {
        let need = profile.stages();
        Stage::ALL
            .into_iter()
            .filter(|s| need.contains(*s) && !self.contains(*s))
            .collect()
    }

    /// The stages in it, in order.
    pub fn iter(self) -> impl Iterator<Item = Stage> {
        Stage::ALL
            .into_iter()
            .filter(move |stage| self.contains(*stage))
    }
}
