//! `why`, `dump`, `verify`.

use super::{FEW, as_json};
use crate::args::{Dump, EndpointName, Verify};
use crate::client::{Client, encoded};
use crate::exit::{Exit, Trouble};
use crate::table::{Table, bytes, grouped, nanoseconds, rate, when};
use api::{Endpoint, Proof, Why};
use std::fmt::Write;

/// `at most 10 Mbit/s and 1.0 k packets/s`.
fn limited(limit: &api::Limit) -> String {
    let mut parts = Vec::new();
    if limit.bits != 0 {
        parts.push(format!("{}bit/s", rate(limit.bits as f64)));
    }
    if limit.packets != 0 {
        parts.push(format!("{} packets/s", grouped(limit.packets)));
    }
    format!("at most {}", parts.join(" and "))
}

/// Why an endpoint does, or does not, work.
pub async fn why(endpoint: &EndpointName, client: &Client, json: bool) -> Result<Exit, Trouble> {
    let path = format!(
        "/v1/why/{}/{}",
        encoded(&endpoint.tenant),
        encoded(&endpoint.endpoint)
    );
    let why: Why = client.get(&path).await?;
    if json {
        return as_json(&why);
    }
    crate::print(rendered_why(&why).as_bytes())
}

fn rendered_why(why: &Why) -> String {
    let mut out = String::new();
    for sentence in &why.verdict {
        let _ = writeln!(out, "{sentence}");
    }
    for sentence in &why.advice {
        let _ = writeln!(out, "  do: {sentence}");
    }
    let endpoint = &why.endpoint;
    let compartment = &why.compartment;
    let counters = &endpoint.counters;
    let _ = writeln!(
        out,
        "\nendpoint     {}/{} in subnet {}, {}, {}",
        endpoint.tenant,
        endpoint.name,
        endpoint.subnet,
        endpoint.mac,
        endpoint.addresses.join(" ")
    );
    let _ = match endpoint.kind.as_str() {
        kind @ ("tap" | "veth") => writeln!(
            out,
            "port         {kind} {} in namespace {}, {}",
            endpoint.interface, endpoint.namespace, endpoint.port
        ),
        kind => writeln!(out, "port         {kind}, {}", endpoint.port),
    };
    // A token is not told the host's numbers.
    let numbers = match (compartment.pid, compartment.epoch) {
        (0, 0) => String::new(),
        (pid, epoch) => format!(
            "pid {pid}, image epoch {epoch} installed, {} alleged, ",
            compartment.alleged_epoch
        ),
    };
    let _ = writeln!(
        out,
        "compartment  {} ({}), {numbers}{} restarts",
        compartment.name, compartment.state, compartment.restarts
    );
    // Programs with circuits alone have none.
    if endpoint.kind != "circuits" {
        let _ = writeln!(
            out,
            "frames       {} from it, {} to it",
            grouped(counters.rx_frames),
            grouped(counters.tx_frames)
        );
    }
    for (way, limit) in [("from", &endpoint.from), ("to", &endpoint.to)] {
        if *limit != api::Limit::default() {
            let _ = writeln!(out, "rate         {} {way} it", limited(limit));
        }
    }
    if counters.paused != 0 || counters.waiting_bytes != 0 {
        let _ = writeln!(
            out,
            "waits        {} toward it; its own sender was made to wait {} times",
            bytes(counters.waiting_bytes),
            grouped(counters.paused)
        );
    }
    if !counters.drops.is_empty() {
        let [dropped, frames, _] = told_by(endpoint);
        let mut table = Table::new(&[dropped, frames, "BECAUSE"]);
        for drop in &counters.drops {
            table.row([
                drop.reason.clone(),
                grouped(drop.frames),
                drop.explain.clone(),
            ]);
        }
        let _ = write!(out, "\n{table}");
    }
    if !why.deaths.is_empty() {
        let mut table = Table::new(&["WHEN (UTC)", "DIED OF", ">OUTAGE"]);
        for death in &why.deaths {
            table.row([
                when(death.time_ms),
                death.cause.clone(),
                if death.outage_ns == 0 {
                    "no frame since".into()
                } else {
                    nanoseconds(death.outage_ns)
                },
            ]);
        }
        let _ = write!(out, "\n{table}");
    }
    if !why.happenings.is_empty() {
        let mut table = Table::new(&["WHEN (UTC)", "HAPPENED"]);
        for happening in why.happenings.iter().take(FEW) {
            table.row([when(happening.time_ms), happening.message.clone()]);
        }
        let _ = write!(out, "\n{table}");
    }
    if !why.recorded.is_empty() {
        let [_, _, recorded] = told_by(endpoint);
        let mut table = Table::new(&[">AGO", recorded]);
        for event in why.recorded.iter().take(20) {
            table.row([nanoseconds(event.age_ns), event.message.clone()]);
        }
        let _ = write!(out, "\n{table}");
    }
    out
}

/// What became of what is counted, what that is, and who recorded it: a switch of frames, an operator
/// of what programs asked for.
fn told_by(endpoint: &Endpoint) -> [&'static str; 3] {
    match (endpoint.kind.as_str(), endpoint.circuits) {
        ("circuits", _) => [
            "REFUSED OR LOST",
            ">TIMES",
            "RECORDED BY ITS SWITCH OR OPERATOR",
        ],
        (_, true) => [
            "DROPPED OR REFUSED",
            ">TIMES",
            "RECORDED BY ITS SWITCH OR OPERATOR",
        ],
        _ => ["DROPPED", ">FRAMES", "RECORDED BY ITS SWITCH"],
    }
}

/// The table image that a compartment forwards by.
pub async fn dump(dump: &Dump, client: &Client, json: bool) -> Result<Exit, Trouble> {
    let decoded: serde_json::Value = client
        .get(&format!("/v1/dump/{}", encoded(&dump.compartment)))
        .await?;
    match decoded.get("text").and_then(serde_json::Value::as_str) {
        Some(text) if !json => crate::print(text.as_bytes()),
        _ => as_json(&decoded),
    }
}

/// What is installed, proved just now.
pub async fn verify(verify: &Verify, client: &Client, json: bool) -> Result<Exit, Trouble> {
    let path = match &verify.compromised {
        Some(name) => format!("/v1/verify?compromised={}", encoded(name)),
        None => "/v1/verify".into(),
    };
    let proof: Proof = client.get(&path).await?;
    if json {
        return as_json(&proof);
    }
    crate::print(told(&proof).as_bytes())
}

fn told(proof: &Proof) -> String {
    let is_none = proof.entries == 0 && proof.compartments == 0;
    let liar = &proof.compromised;
    match (is_none, liar.is_empty()) {
        (true, true) => "nothing is applied\n".to_owned(),
        (false, true) => proved(proof),
        // The liar's own is not counted.
        (true, false) => format!(
            "{liar} is the only compartment, and no fabric entry leads out of it: whatever its switch does, \
             there is nobody else to be kept apart from it; of what is inside it nothing is proved\n"
        ),
        (false, false) => format!(
            "{}whatever the switch of {liar} does: between tenants only what is agreed passes\n",
            proved(proof),
        ),
    }
}

/// What was proved, in a line.
pub fn proved(proof: &Proof) -> String {
    let count = |count: u32, one: &str, many: &str| {
        format!("{count} {}", if count == 1 { one } else { many })
    };
    format!(
        "proved: {}, {}, {}, in {:.1} ms\n",
        count(proof.compartments, "compartment", "compartments"),
        count(proof.endpoints, "endpoint", "endpoints"),
        count(proof.entries, "fabric entry", "fabric entries"),
        proof.took_us as f64 / 1000.0
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_says_who_tells_by_how_an_endpoint_is_attached() {
        let shown = |kind: &str, circuits: bool| {
            let mut why = Why::default();
            (why.endpoint.kind, why.endpoint.circuits) = (kind.into(), circuits);
            why.endpoint.counters.drops = vec![api::DropCount {
                reason: "socket-kind".into(),
                frames: 3,
                ..api::DropCount::default()
            }];
            why.recorded = vec![api::Recorded::default()];
            rendered_why(&why)
        };
        for (kind, circuits, has, has_not) in [
            (
                "circuits",
                true,
                ["REFUSED OR LOST", "TIMES", "BY ITS SWITCH OR OPERATOR"],
                "rames",
            ),
            (
                "veth",
                true,
                ["DROPPED OR REFUSED", "TIMES", "BY ITS SWITCH OR OPERATOR"],
                "FRAMES",
            ),
            (
                "tap",
                false,
                ["DROPPED", "FRAMES", "BY ITS SWITCH"],
                "OPERATOR",
            ),
        ] {
            let shown = shown(kind, circuits);
            assert!(has.iter().all(|word| shown.contains(word)), "{shown}");
            assert!(!shown.contains(has_not), "{shown}");
        }
    }

    #[test]
    fn where_the_liar_is_alone_it_is_not_said_that_nothing_is_applied() {
        let said = |compartments, compromised: &str| {
            told(&Proof {
                compartments,
                compromised: compromised.into(),
                ..Proof::default()
            })
        };
        assert_eq!(said(0, ""), "nothing is applied\n");
        assert!(said(0, "red").starts_with("red is the only compartment"));
        assert!(said(1, "red").contains("\nwhatever the switch of red does"));
        assert!(said(1, "").starts_with("proved: 1 compartment,"));
    }

    #[test]
    fn deaths_and_happenings_say_when() {
        let why = Why {
            deaths: vec![api::Death {
                time_ms: 1_795_283_045_007,
                cause: "trip".into(),
                outage_ns: 2_000_000,
            }],
            happenings: vec![api::Happening {
                time_ms: 1_795_283_046_000,
                message: "red forwards again".into(),
                ..api::Happening::default()
            }],
            ..Why::default()
        };
        let shown = rendered_why(&why);
        assert!(shown.contains("2026-11-21 17:44:05.007  trip"), "{shown}");
        assert!(
            shown.contains("2026-11-21 17:44:06.000  red forwards again"),
            "{shown}"
        );
    }
}
