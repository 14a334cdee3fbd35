//! What a process is, what it was started for, and where it is.

use crate::capture::CaptureOf;
use crate::registry::Seat;
use command::verbs::{
    ROLE_AUDITOR, ROLE_FABRIC, ROLE_OPERATOR, ROLE_PROXY, ROLE_SOLVER, ROLE_SWITCH, ROLE_VERIFIER,
    ROLE_VHOST,
};
use confine::Profile;

impl Place {
    /// The compartment that it is in.
    pub fn compartment(self) -> Option<u32> {
        match self {
            Place::Seated(Seat::Compartment(it)) | Place::Circuits(it) | Place::Meter(it) => {
                Some(it)
            }
            Place::Proxy((it, _)) | Place::Guest((it, _)) => Some(it),
            _ => None,
        }
    }
}

/// What a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A tenant's switch.
    Switch,
    /// The fabric.
    Fabric,
    /// A capture's writer.
    Auditor,
    /// Who proves images.
    Verifier,
    /// Whom the verifier asks.
    Solver,
    /// A virtual machine's interface.
    Vhost,
    /// A compartment's circuits.
    Operator,
    /// Where an endpoint's circuits become TCP.
    Proxy,
    /// The controller.
    Controller,
}

impl Role {
    /// Its name in notes and of its program.
    pub fn name(self) -> &'static str {
        match self {
            Role::Switch => "switch",
            Role::Fabric => "fabric",
            Role::Auditor => "auditor",
            Role::Verifier => "verifier",
            Role::Solver => "solver",
            Role::Vhost => "vhost",
            Role::Operator => "operator",
            Role::Proxy => "proxy",
            Role::Controller => "controller",
        }
    }
    /// From its name.
    pub fn from_name(name: &str) -> Option<Role> {
        let all = [
            Role::Switch,
            Role::Fabric,
            Role::Auditor,
            Role::Verifier,
            Role::Solver,
            Role::Vhost,
            Role::Operator,
            Role::Proxy,
            Role::Controller,
        ];
        all.into_iter().find(|role| role.name() == name)
    }
    /// What it is confined to.
    pub fn profile(self) -> Profile {
        match self {
            Role::Switch => Profile::Switch,
            Role::Fabric => Profile::Fabric,
            Role::Auditor => Profile::Auditor,
            Role::Verifier => Profile::Verifier,
            Role::Solver => Profile::Solver,
            Role::Vhost => Profile::Vhost,
            Role::Operator => Profile::Operator,
            Role::Proxy => Profile::Proxy,
            Role::Controller => Profile::Controller,
        }
    }
    /// `Ready::role`.
    pub fn number(self) -> u32 {
        match self {
            Role::Switch => ROLE_SWITCH,
            Role::Fabric => ROLE_FABRIC,
            Role::Auditor => ROLE_AUDITOR,
            Role::Verifier => ROLE_VERIFIER,
            Role::Solver => ROLE_SOLVER,
            Role::Vhost => ROLE_VHOST,
            Role::Operator => ROLE_OPERATOR,
            Role::Proxy => ROLE_PROXY,
            // It is no worker, and says no `Ready`.
            Role::Controller => 0,
        }
    }
}

/// Where a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Confining itself; once ready it goes to the purpose.
    Starting(Purpose),
    /// Confined, and knows no tenant.
    Spare,
    /// In a seat.
    Seated(Seat),
    /// Writes this capture.
    Capture(CaptureOf),
    /// Is the verifier.
    Verifier,
    /// Works on a question of the verifier's.
    Solver,
    /// Serves the guest at (compartment, slot).
    Guest((u32, u32)),
    /// Mediates the circuits of this compartment.
    Circuits(u32),
    /// Is the proxy of the endpoint at (compartment, slot).
    Proxy((u32, u32)),
    /// Is the meter of this compartment's circuits.
    Meter(u32),
    /// Is the controller.
    Controller,
    /// Killed; only its death is awaited.
    Ending,
}

/// What a process was started for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Whatever comes.
    Spare,
    /// A seat that wants a program or a sandbox of its own.
    Seat(Seat),
    /// This capture.
    Capture(CaptureOf),
    /// To be the verifier.
    Verifier,
    /// A question of the verifier's.
    Solver,
    /// The guest at (compartment, slot).
    Guest((u32, u32)),
    /// The circuits of this compartment.
    Circuits(u32),
    /// To be the proxy of the endpoint at (compartment, slot).
    Proxy((u32, u32)),
    /// To be the meter of this compartment's circuits.
    Meter(u32),
}
