//! What all requests share.

use crate::applier::Applier;
use crate::caller::Rights;
use crate::happenings::Happenings;
use crate::supervisor::Supervisor;
use crate::survey::Survey;
use crate::world::World;
use api::Fault;
use std::collections::HashMap;
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
    pub applier: tokio::sync::Mutex<Applier>,
    /// What is applied, for everyone who only looks.
    pub world: Arc<Shown>,
}

/// The world that is applied, swapped whole.
#[derive(Default)]
pub struct Shown(RwLock<(Arc<World>, Health)>);

/// What `status` says beside the world.
#[derive(Clone, Debug, Default)]
pub struct Health {
    /// What is degraded; empty = nothing.
    pub degraded: String,
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
    }

    /// Changes what is said beside it.
    pub fn tell(&self, change: impl FnOnce(&mut Health)) {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner).1);
    }
}

impl Server {
    /// One look at everything, with the world it was looked at by.
    pub async fn survey(&self) -> (Arc<World>, Survey) {
        let world = self.world.world();
        let survey = Survey::take(&self.supervisor, &world).await;
        (world, survey)
    }

    /// Endpoints whose port is closed, `tenant/name` to why: the newest of what was
    /// heard of each.
    pub fn closed(&self) -> HashMap<String, String> {
        let mut newest: HashMap<String, Option<String>> = HashMap::new();
        for happening in self
            .happenings
            .last(usize::MAX, |happening| !happening.endpoint.is_empty())
        {
            let state = match happening.kind.as_str() {
                "port-closed" => Some(happening.cause),
                "quarantine" => Some("quarantined after repeated deaths".to_owned()),
                "port-added" => None,
                _ => continue,
            };
            newest.entry(happening.endpoint).or_insert(state);
        }
        newest
            .into_iter()
            .filter_map(|(name, state)| Some((name, state?)))
            .collect()
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
