//! Unmodified programs in endpoints of circuits: what they do, what they may, how their
//! sockets are like the kernel's, and what becomes of them when processes die or when they
//! are hostile.

#[path = "circuits/abandoned.rs"]
mod abandoned;
#[path = "circuits/across.rs"]
mod across;
#[path = "circuits/anew.rs"]
mod anew;
#[path = "circuits/captured.rs"]
mod captured;
#[path = "circuits/chain.rs"]
mod chain;
#[path = "circuits/closed.rs"]
mod closed;
#[path = "circuits/containers.rs"]
mod containers;
#[path = "circuits/cpython.rs"]
mod cpython;
#[path = "circuits/datagrams.rs"]
mod datagrams;
#[path = "circuits/deaf.rs"]
mod deaf;
#[path = "circuits/death.rs"]
mod death;
#[path = "circuits/early.rs"]
mod early;
#[path = "circuits/files.rs"]
mod files;
#[path = "circuits/forks.rs"]
mod forks;
#[path = "circuits/heirs.rs"]
mod heirs;
#[path = "circuits/held.rs"]
mod held;
#[path = "circuits/hostile.rs"]
mod hostile;
#[path = "circuits/instants.rs"]
mod instants;
#[path = "circuits/interrupted.rs"]
mod interrupted;
#[path = "circuits/judged.rs"]
mod judged;
#[path = "circuits/late.rs"]
mod late;
#[path = "circuits/library.rs"]
mod library;
#[path = "circuits/merged.rs"]
mod merged;
#[path = "circuits/metered.rs"]
mod metered;
#[path = "circuits/outside.rs"]
mod outside;
#[path = "circuits/policy.rs"]
mod policy;
#[path = "circuits/ports.rs"]
mod ports;
#[path = "circuits/preload.rs"]
mod preload;
#[path = "circuits/programs.rs"]
mod programs;
#[path = "circuits/proxy.rs"]
mod proxy;
#[path = "circuits/resets.rs"]
mod resets;
#[path = "circuits/revoked.rs"]
mod revoked;
#[path = "circuits/rings.rs"]
mod rings;
#[path = "circuits/room.rs"]
mod room;
#[path = "circuits/scene.rs"]
mod scene;
#[path = "circuits/scope.rs"]
mod scope;
#[path = "circuits/services.rs"]
mod services;
#[path = "circuits/slow.rs"]
mod slow;
#[path = "circuits/sockets.rs"]
mod sockets;
#[path = "circuits/taken.rs"]
mod taken;
#[path = "circuits/told.rs"]
mod told;
#[path = "circuits/udp.rs"]
mod udp;
#[path = "circuits/waited.rs"]
mod waited;
