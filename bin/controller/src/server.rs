//! What all requests share.

use crate::applier::Applier;
use crate::caller::{Rights, Viewer, Wish};
use crate::happenings::Happenings;
use crate::pages::port_closed;
use crate::routes::Room;
use crate::supervisor::Supervisor;
use crate::survey::Survey;
use crate::tokens::Tokens;
use crate::turns::{Kind, Place, Places, Rank, Turn, Turns, Who};
use crate::world::World;
use api::Fault;
use command::verbs::Inventory;
use guard::guard;
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, PoisonError, RwLock};

/// The controller, as its API sees it.
pub struct Server {
    /// Who may do what.
    pub rights: Rights,
    /// What this host separates less well than the best one can.
    pub weaker: Vec<String>,
    /// The way to what has privilege.
    pub supervisor: Arc<Supervisor>,
    /// What happened.
    pub happenings: Arc<Happenings>,
    /// Applies, one at a time; holds the store.
    pub applier: Arc<Turns<Applier>>,
    /// What is applied, for everyone who only looks.
    pub world: Arc<Shown>,
    /// Tenants' tokens.
    pub tokens: Arc<Tokens>,
    /// Turns of those who only look: of all of them one waits for the applier.
    pub looks: Arc<Turns<()>>,
    /// What of that each has under way.
    pub places: Arc<Places>,
    /// For documents on their way.
    pub room: Room,
}

/// The world that is applied, swapped whole.
#[derive(Default)]
pub struct Shown(RwLock<(Arc<World>, Health)>, tokio::sync::Notify);

/// What `status` says beside the world.
#[derive(Clone, Debug, Default)]
pub struct Health {
    /// What is degraded; empty = nothing.
    pub degraded: String,
    /// What exists is not as what is applied says, and is to be made so.
    pub behind: bool,
    /// What is installed that was not applied, or cannot be proved; empty = nothing.
    pub drift: String,
    /// When what is installed was proved last, seconds since 1970; 0 = not yet.
    pub proved_s: u64,
    /// An apply under way.
    pub undertaking: Option<api::Undertaking>,
    /// The last applies.
    pub history: Vec<api::HistoryEntry>,
}

impl Shown {
    /// The world now.
    pub fn world(&self) -> Arc<World> {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .0
            .clone()
    }

    /// The health now.
    pub fn health(&self) -> Health {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .1
            .clone()
    }

    /// Another world from now on.
    pub fn show(&self, world: Arc<World>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).0 = world;
        self.1.notify_one();
    }

    /// Returns once there is another world than at the last return.
    pub async fn another(&self) {
        self.1.notified().await;
    }

    /// Changes what is said beside it.
    pub fn tell(&self, change: impl FnOnce(&mut Health)) {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner).1);
    }
}

/// The turn of one who only looks at what is costly to look at.
pub struct Alone {
    place: Option<Place>,
    _turn: Option<Turn<()>>,
}

/// The applier, for such a one.
pub struct Look {
    applier: Turn<Applier>,
    _alone: Alone,
}

impl Deref for Look {
    type Target = Applier;
    fn deref(&self) -> &Applier {
        &self.applier
    }
}

impl DerefMut for Look {
    fn deref_mut(&mut self) -> &mut Applier {
        &mut self.applier
    }
}

impl Server {
    /// A place for this caller, before anything that it costs; who may change the host
    /// needs none.
    ///
    /// # Errors
    /// It has one of that kind.
    pub fn place(&self, viewer: &Viewer, kind: Kind) -> Result<Option<Place>, Fault> {
        let who = match viewer.tenant() {
            Some(tenant) => Who::Tenant(tenant.to_owned()),
            None if self.rights.check(viewer.caller, Wish::Change).is_ok() => return Ok(None),
            None => Who::Uid(viewer.caller.uid),
        };
        self.places.take(who, kind).map(Some)
    }

    /// Waits until who has this place may look.
    pub async fn alone(&self, place: Option<Place>) -> Alone {
        let turn = match &place {
            Some(_) if guard!("turn-look") => Some(self.looks.turn(Rank::Tenant).await),
            _ => None,
        };
        Alone { place, _turn: turn }
    }

    /// Waits until who has this place may look at what the applier has.
    pub async fn look(&self, place: Option<Place>) -> Look {
        let alone = self.alone(place).await;
        let rank = match alone.place {
            None => Rank::Host,
            Some(_) => Rank::Tenant,
        };
        Look {
            applier: self.applier.turn(rank).await,
            _alone: alone,
        }
    }

    /// One look at everything, with the world it was looked at by.
    pub async fn survey(&self) -> (Arc<World>, Survey) {
        let world = self.world.world();
        let survey = Survey::take(&self.supervisor, &world).await;
        (world, survey)
    }

    /// The same, with the endpoints whose port is not open, `tenant/name` to why: by the
    /// supervisor's word of what exists now, not by what was heard of it.
    pub async fn ports(&self) -> (Arc<World>, Survey, HashMap<String, String>) {
        let world = self.world.world();
        let (mut survey, things) = tokio::join!(
            Survey::take(&self.supervisor, &world),
            self.supervisor.inventory()
        );
        survey.note_uplinks(things.as_deref().unwrap_or(&[]));
        let ports: Option<HashMap<(u32, u32), Inventory>> = things.ok().map(|things| {
            let ports = things.into_iter().filter(|thing| thing.kind == 2);
            ports.map(|port| ((port.id, port.slot), port)).collect()
        });
        let endpoints = world.tenants().iter().flat_map(|tenant| &tenant.endpoints);
        let closed = endpoints
            .filter_map(|endpoint| {
                let place = (endpoint.compartment, endpoint.slot);
                let state = match &ports {
                    None => Some("unknown: the supervisor does not answer".to_owned()),
                    Some(ports) => state_of(ports.get(&place)),
                };
                Some((format!("{}/{}", endpoint.tenant, endpoint.name), state?))
            })
            .collect();
        (world, survey, closed)
    }
}

/// Why a port is not open; `None` = it is.
fn state_of(port: Option<&Inventory>) -> Option<String> {
    match port {
        None => Some("it is not made".to_owned()),
        Some(port) if port.quarantined != 0 => Some("quarantined after repeated deaths".to_owned()),
        Some(port) if port.closed != 0 => Some(port_closed(port.closed.into())),
        Some(_) => None,
    }
}

/// The named endpoint does not exist.
pub fn no_endpoint(tenant: &str, endpoint: &str) -> Fault {
    Fault::new(
        "not-found",
        api::Whose::User,
        format!("there is no endpoint {tenant}/{endpoint}"),
        "`bulkhead status` lists them",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ports_state_is_what_the_supervisor_says_of_it_now() {
        let port = |closed, quarantined| Inventory {
            kind: 2,
            closed,
            quarantined,
            ..Inventory::default()
        };
        assert_eq!(state_of(Some(&port(0, 0))), None);
        assert!(state_of(Some(&port(3, 0))).unwrap().contains("breach 3"));
        assert!(state_of(Some(&port(3, 1))).unwrap().contains("quarantined"));
        assert!(state_of(None).is_some());
    }
}
