//! How things are just now: the supervisor's word on each process, and the numbers
//! each process alleges.

use crate::pages::{Counters, Pages, cause};
use crate::supervisor::Supervisor;
use crate::world::World;
use api::{Compartment, Endpoint, EndpointRates, Sample, Tenant, Uplink};
use command::verbs::{
    FABRIC, Inspect, Inventory, RUN_BACKOFF, RUN_QUARANTINED, RUN_STARTING, RUN_UP,
};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;
use telemetry::counters::{Counter, ProcessWord};
use tokio::task::JoinSet;

/// One look at everything.
pub struct Survey {
    taken: Instant,
    looks: BTreeMap<u32, Look>,
    /// How each uplink is read and written, by its number.
    hows: BTreeMap<u32, String>,
}

struct Look {
    inspect: Inspect,
    counters: Option<Counters>,
    pages: Option<Pages>,
}

impl Survey {
    /// Looks at the fabric and all compartments of this world.
    pub async fn take(supervisor: &Arc<Supervisor>, world: &World) -> Survey {
        let mut running = JoinSet::new();
        for target in world
            .compartments()
            .iter()
            .map(|compartment| compartment.id)
            .chain([FABRIC])
        {
            let supervisor = supervisor.clone();
            running.spawn(async move { (target, look(&supervisor, target).await) });
        }
        let mut looks = BTreeMap::new();
        while let Some(ended) = running.join_next().await {
            if let Ok((target, Some(look))) = ended {
                looks.insert(target, look);
            }
        }
        Survey {
            hows: BTreeMap::new(),
            taken: Instant::now(),
            looks,
        }
    }

    /// What the supervisor knows of a target; `None` = it does not answer for it.
    pub fn inspected(&self, target: u32) -> Option<&Inspect> {
        self.looks.get(&target).map(|look| &look.inspect)
    }

    /// The pages of a target.
    pub fn pages(&self, target: u32) -> Option<&Pages> {
        self.looks.get(&target)?.pages.as_ref()
    }

    /// The fabric.
    pub fn fabric(&self) -> Compartment {
        self.filled(Compartment {
            id: FABRIC,
            name: "fabric".into(),
            ..Compartment::default()
        })
    }

    /// The compartments of this world, filled in.
    pub fn compartments(&self, world: &World) -> Vec<Compartment> {
        world
            .compartments()
            .iter()
            .map(|compartment| self.compartment(compartment))
            .collect()
    }

    /// One compartment, filled in.
    pub fn compartment(&self, compartment: &Compartment) -> Compartment {
        let mut filled = self.filled(compartment.clone());
        // The fabric's slot of a compartment's channel has the compartment's id.
        if let Some(fabric) = self.counters(FABRIC) {
            filled.reports = fabric.counter(compartment.id, Counter::Reports);
            filled.fabric_drops = fabric.drops(compartment.id);
        }
        // A switch's slot 0 is its channel to the fabric; endpoints follow.
        if let Some(own) = self.counters(compartment.id) {
            filled.outside_drops = own.drops(0);
        }
        filled
    }

    /// The tenants of this world, filled in.
    pub fn tenants(&self, world: &World, closed: &HashMap<String, String>) -> Vec<Tenant> {
        let mut tenants = world.tenants().to_vec();
        for endpoint in tenants.iter_mut().flat_map(|tenant| &mut tenant.endpoints) {
            self.fill(endpoint, closed);
        }
        tenants
    }

    /// Fills in one endpoint.
    pub fn fill(&self, endpoint: &mut Endpoint, closed: &HashMap<String, String>) {
        let name = format!("{}/{}", endpoint.tenant, endpoint.name);
        endpoint.port = closed.get(&name).cloned().unwrap_or_else(|| "open".into());
        let uncounted = endpoint.counters.uncounted;
        endpoint.counters = self
            .counters(endpoint.compartment)
            .map(|counters| counters.totals(endpoint.slot))
            .unwrap_or_default();
        name_it(&mut endpoint.counters, &endpoint.tenant, &endpoint.name);
        endpoint.counters.uncounted = uncounted;
    }

    /// Notes how each uplink is read and written.
    pub fn note_uplinks(&mut self, things: &[Inventory]) {
        let uplinks = things.iter().filter(|thing| thing.kind == 3);
        self.hows = uplinks
            .map(|uplink| (uplink.id, uplink.how.as_str().to_owned()))
            .collect();
    }

    /// The uplinks of this world, filled in.
    pub fn uplinks(&self, world: &World) -> Vec<Uplink> {
        let mut uplinks = world.uplinks().to_vec();
        for uplink in &mut uplinks {
            uplink.counters = self
                .counters(FABRIC)
                .map(|counters| counters.totals(uplink.slot))
                .unwrap_or_default();
            name_it(&mut uplink.counters, "", &uplink.name);
            uplink.how = self.hows.get(&uplink.number).cloned().unwrap_or_default();
        }
        uplinks
    }

    /// Rates between an earlier survey and this one.
    pub fn sample(&self, earlier: Option<&Survey>, world: &World) -> Sample {
        let seconds = earlier.map_or(0.0, |earlier| {
            self.taken.duration_since(earlier.taken).as_secs_f64()
        });
        let rates = |target: u32, slot: u32, tenant: &str, name: &str| {
            let before = earlier.and_then(|earlier| earlier.counters(target));
            let mut rates = self
                .counters(target)
                .map(|now| now.rates(before, slot, seconds))
                .unwrap_or_default();
            name_it(&mut rates, tenant, name);
            rates
        };
        let endpoints = world.tenants().iter().flat_map(|tenant| &tenant.endpoints);
        let mut all: Vec<_> = endpoints
            .map(|e| EndpointRates {
                uncounted: e.counters.uncounted,
                ..rates(e.compartment, e.slot, &e.tenant, &e.name)
            })
            .collect();
        all.extend(
            world
                .uplinks()
                .iter()
                .map(|uplink| rates(FABRIC, uplink.slot, "", &uplink.name)),
        );
        Sample {
            time_ms: crate::happenings::now_ms(),
            seconds,
            endpoints: all,
        }
    }

    /// A copy of the counters of a target.
    pub fn counters(&self, target: u32) -> Option<&Counters> {
        self.looks.get(&target)?.counters.as_ref()
    }

    fn filled(&self, mut compartment: Compartment) -> Compartment {
        let Some(look) = self.looks.get(&compartment.id) else {
            compartment.state = "unknown".into();
            return compartment;
        };
        let inspect = &look.inspect;
        compartment.state = match inspect.state {
            RUN_STARTING => "starting",
            RUN_UP => "up",
            RUN_BACKOFF => "backoff",
            RUN_QUARANTINED => "quarantined",
            _ => "unknown",
        }
        .into();
        compartment.pid = inspect.pid;
        compartment.uid = inspect.uid;
        compartment.restarts = inspect.restarts;
        compartment.last_cause = cause(inspect.cause).into();
        compartment.last_outage_ns = inspect.outage_ns;
        compartment.epoch = inspect.epoch;
        compartment.image = hex(&inspect.digest);
        compartment.stages = inspect.stages;
        compartment.operator = api::Operator {
            pid: inspect.operator,
            restarts: inspect.operator_restarts,
            stalls: inspect.operator_stalls,
            given_up: inspect.given_up,
            delayed: inspect.delayed,
            unfound: inspect.unfound,
            taken: inspect.taken,
            cut: inspect.cut,
        };
        if let Some(counters) = &look.counters {
            compartment.alleged_epoch = counters.process(ProcessWord::Epoch);
            (compartment.heartbeat, compartment.asleep) = counters.liveliness();
            compartment.frame_syscalls = counters.process(ProcessWord::FrameSyscalls);
            compartment.frame_syscall_frames = counters.process(ProcessWord::FrameSyscallFrames);
            compartment.restored = counters.process(ProcessWord::Restored);
            compartment.not_restored = counters.process(ProcessWord::NotRestored);
        }
        compartment
    }
}

async fn look(supervisor: &Supervisor, target: u32) -> Option<Look> {
    let (inspect, fds) = supervisor
        .query(&Inspect {
            target,
            ..Inspect::default()
        })
        .await
        .ok()?;
    let pages = Pages::new(fds);
    let counters = pages
        .as_ref()
        .and_then(|pages| pages.counters(inspect.slots));
    Some(Look {
        inspect,
        counters,
        pages,
    })
}

fn name_it(rates: &mut EndpointRates, tenant: &str, name: &str) {
    rates.tenant = tenant.into();
    rates.endpoint = name.into();
}

/// Lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}
