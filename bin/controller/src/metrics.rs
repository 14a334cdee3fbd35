//! /metrics: Prometheus' text form (OpenMetrics), made anew for each scrape from
//! one survey.

use crate::server::Health;
use crate::survey::Survey;
use crate::world::World;
use api::{Compartment, EndpointRates, Operator};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use std::collections::{BTreeMap, HashMap};
use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfEndpoint {
    tenant: String,
    endpoint: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfDrop {
    tenant: String,
    endpoint: String,
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfCompartment {
    compartment: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfFabricDrop {
    compartment: String,
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfCircuits {
    compartment: String,
    kind: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfOperator {
    compartment: String,
    what: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfEvent {
    kind: String,
}

#[derive(Default)]
struct Families {
    rx_frames: Family<OfEndpoint, Counter>,
    rx_segments: Family<OfEndpoint, Counter>,
    rx_bytes: Family<OfEndpoint, Counter>,
    tx_frames: Family<OfEndpoint, Counter>,
    tx_segments: Family<OfEndpoint, Counter>,
    tx_bytes: Family<OfEndpoint, Counter>,
    drops: Family<OfDrop, Counter>,
    fabric_drops: Family<OfFabricDrop, Counter>,
    up: Family<OfCompartment, Gauge>,
    restarts: Family<OfCompartment, Counter>,
    reports: Family<OfCompartment, Counter>,
    epoch: Family<OfCompartment, Gauge>,
    events: Family<OfEvent, Counter>,
    circuits: Family<OfCircuits, Gauge>,
    operators: Family<OfOperator, Counter>,
    applied: Gauge,
    drift: Gauge,
    proved: Gauge,
}

/// The text of one scrape.
///
/// # Errors
/// None that can happen: a String takes all that is written to it.
pub fn render(
    survey: &Survey,
    world: &World,
    health: &Health,
    events: BTreeMap<String, u64>,
    circuits: BTreeMap<(String, String), u64>,
) -> Result<String, fmt::Error> {
    let families = Families::default();
    let mut registry = Registry::with_prefix("bulkhead");
    families.register(&mut registry);
    for tenant in survey.tenants(world, &HashMap::new()) {
        for endpoint in tenant.endpoints {
            families.endpoint(&endpoint.counters);
        }
    }
    for uplink in survey.uplinks(world) {
        families.endpoint(&uplink.counters);
    }
    for compartment in std::iter::once(survey.fabric()).chain(survey.compartments(world)) {
        let of = OfCompartment {
            compartment: compartment.name.clone(),
        };
        families
            .up
            .get_or_create(&of)
            .set(i64::from(compartment.state == "up"));
        families
            .restarts
            .get_or_create(&of)
            .inc_by(compartment.restarts.into());
        families
            .reports
            .get_or_create(&of)
            .inc_by(compartment.reports);
        families
            .epoch
            .get_or_create(&of)
            .set(compartment.epoch.cast_signed());
        families.operator(&compartment);
        for drop in &compartment.fabric_drops {
            let of = OfFabricDrop {
                compartment: compartment.name.clone(),
                reason: drop.reason.clone(),
            };
            families.fabric_drops.get_or_create(&of).inc_by(drop.frames);
        }
    }
    for (kind, count) in events {
        families
            .events
            .get_or_create(&OfEvent { kind })
            .inc_by(count);
    }
    for ((compartment, kind), count) in circuits {
        let of = OfCircuits { compartment, kind };
        families
            .circuits
            .get_or_create(&of)
            .set(count.cast_signed());
    }
    families.applied.set(world.epoch().cast_signed());
    families.drift.set(i64::from(!health.drift.is_empty()));
    families.proved.set(health.proved_s.cast_signed());
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(ordered(&text))
}

/// The same with what is of one kind in the same order at each scrape: a family is kept by hashes.
fn ordered(text: &str) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    for series in lines.chunk_by_mut(|a, b| a.starts_with('#') == b.starts_with('#')) {
        if series.first().is_some_and(|line| !line.starts_with('#')) {
            series.sort_unstable();
        }
    }
    lines.iter().flat_map(|line| [line, "\n"]).collect()
}

impl Families {
    fn register(&self, registry: &mut Registry) {
        registry.register(
            "events",
            "Events by kind since the controller started, as `bulkhead events` lists them; usage-difference: a switch and the fabric do not say the same",
            self.events.clone(),
        );
        registry.register(
            "received_frames",
            "Frames from the workload (uplink: from the wire); a large (GSO) frame is one",
            self.rx_frames.clone(),
        );
        registry.register(
            "received_segments",
            "Wire segments from the workload (uplink: from the wire); a large (GSO) frame is many",
            self.rx_segments.clone(),
        );
        registry.register_with_unit(
            "received",
            "Bytes from the workload (uplink: from the wire)",
            Unit::Bytes,
            self.rx_bytes.clone(),
        );
        registry.register(
            "sent_frames",
            "Frames to the workload (uplink: to the wire); a large (GSO) frame is one",
            self.tx_frames.clone(),
        );
        registry.register(
            "sent_segments",
            "Wire segments to the workload (uplink: to the wire); a large (GSO) frame is many",
            self.tx_segments.clone(),
        );
        registry.register_with_unit(
            "sent",
            "Bytes to the workload (uplink: to the wire)",
            Unit::Bytes,
            self.tx_bytes.clone(),
        );
        registry.register(
            "dropped_frames",
            "Frames dropped, by reason",
            self.drops.clone(),
        );
        registry.register(
            "fabric_dropped_frames",
            "Frames of a compartment's channel dropped by the fabric, by reason",
            self.fabric_drops.clone(),
        );
        registry.register(
            "compartment_up",
            "1 where the compartment's process runs",
            self.up.clone(),
        );
        registry.register(
            "compartment_restarts",
            "Restarts of the compartment's process",
            self.restarts.clone(),
        );
        registry.register(
            "compartment_reports",
            "Times the fabric caught it speaking with what is not its own",
            self.reports.clone(),
        );
        registry.register(
            "image_epoch",
            "Epoch of the table image installed",
            self.epoch.clone(),
        );
        registry.register(
            "circuits",
            "Circuits just now, by what their bytes go: kernel, ring, metered, proxied; beyond a thousand of a compartment: unlisted",
            self.circuits.clone(),
        );
        registry.register(
            "operator",
            "What became of a compartment's operators of circuits: restarts, of them stalls and taken (a connection at most went with each), given_up programs, delayed set-ups, cut circuits, unfound ends",
            self.operators.clone(),
        );
        registry.register(
            "applied_epoch",
            "Epoch of the spec applied",
            self.applied.clone(),
        );
        registry.register(
            "proof_drift",
            "1 where what is installed is not what was applied, or cannot be proved",
            self.drift.clone(),
        );
        registry.register(
            "proof_last_seconds",
            "When what is installed was proved last, seconds since 1970",
            self.proved.clone(),
        );
    }

    /// Of a compartment that has, or had, one.
    fn operator(&self, of: &Compartment) {
        let operator = &of.operator;
        if *operator == Operator::default() {
            return;
        }
        let all = [
            ("restarts", operator.restarts.into()),
            ("stalls", operator.stalls.into()),
            ("taken", operator.taken),
            ("given_up", operator.given_up.into()),
            ("delayed", operator.delayed),
            ("cut", operator.cut),
            ("unfound", operator.unfound),
        ];
        for (what, count) in all {
            let compartment = of.name.clone();
            let of = OfOperator { compartment, what };
            self.operators.get_or_create(&of).inc_by(count);
        }
    }

    fn endpoint(&self, counters: &EndpointRates) {
        let of = OfEndpoint {
            tenant: counters.tenant.clone(),
            endpoint: counters.endpoint.clone(),
        };
        // A series that stays at 0 would say that nothing passes.
        if !counters.uncounted {
            self.rx_frames.get_or_create(&of).inc_by(counters.rx_frames);
            let (rx, tx) = (counters.rx_segments, counters.tx_segments);
            self.rx_segments.get_or_create(&of).inc_by(rx);
            self.tx_segments.get_or_create(&of).inc_by(tx);
            self.rx_bytes.get_or_create(&of).inc_by(counters.rx_bytes);
            self.tx_frames.get_or_create(&of).inc_by(counters.tx_frames);
            self.tx_bytes.get_or_create(&of).inc_by(counters.tx_bytes);
        }
        for drop in &counters.drops {
            let of = OfDrop {
                tenant: of.tenant.clone(),
                endpoint: of.endpoint.clone(),
                reason: drop.reason.clone(),
            };
            self.drops.get_or_create(&of).inc_by(drop.frames);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_of_one_kind_are_in_order_and_stay_with_what_they_are() {
        let text = "# HELP a A.\n# TYPE a counter\na{x=\"2\"} 1\na{x=\"1\"} 9\n# HELP b B.\n# TYPE b gauge\nb 3\n# EOF\n";
        let right = "# HELP a A.\n# TYPE a counter\na{x=\"1\"} 9\na{x=\"2\"} 1\n# HELP b B.\n# TYPE b gauge\nb 3\n# EOF\n";
        assert_eq!(ordered(text), right);
    }
}
