//! `status`, `why`, `dump`.

use super::as_json;
use crate::args::{Dump, EndpointName};
use crate::client::{Client, encoded};
use crate::exit::{Exit, Trouble};
use crate::table::{Table, grouped, nanoseconds};
use api::{Compartment, EndpointRates, Status, Why};
use std::fmt::Write;

/// What exists and how it is.
pub async fn status(client: &Client, json: bool) -> Result<Exit, Trouble> {
    let status: Status = client.get("/v1/status").await?;
    if json {
        return as_json(&status);
    }
    crate::print(rendered_status(&status).as_bytes())
}

fn rendered_status(status: &Status) -> String {
    let mut out = String::new();
    let _ = match status.epoch {
        0 => writeln!(out, "nothing applied yet"),
        epoch => writeln!(
            out,
            "epoch {epoch} of {} ({:.12})",
            if status.source.is_empty() {
                "an empty spec"
            } else {
                &status.source
            },
            status.digest
        ),
    };
    if status.health != "ok" {
        let _ = writeln!(out, "degraded: {}", status.health);
    }
    for what in &status.weaker {
        let _ = writeln!(out, "weaker here: {what}");
    }
    if let Some(undertaking) = &status.undertaking {
        let _ = writeln!(
            out,
            "under way: epoch {}, {}, asked by uid {}",
            undertaking.epoch, undertaking.phase, undertaking.uid
        );
    }
    let mut table = Table::new(&[
        "COMPARTMENT",
        "STATE",
        ">PID",
        ">UID",
        ">EPOCH",
        ">RESTARTS",
        "LAST",
        ">OUTAGE",
    ]);
    for compartment in std::iter::once(&status.fabric).chain(&status.compartments) {
        table.row(compartment_row(compartment));
    }
    let _ = write!(out, "\n{table}");
    let mut table = Table::new(&[
        "ENDPOINT",
        "PORT",
        "STATE",
        "ADDRESSES",
        ">FROM",
        ">TO",
        ">DROPS",
    ]);
    for endpoint in status.tenants.iter().flat_map(|tenant| &tenant.endpoints) {
        let port = match endpoint.kind.as_str() {
            "tap" => format!("{} in {}", endpoint.interface, endpoint.namespace),
            kind => kind.to_owned(),
        };
        let state = if endpoint.port == "open" {
            endpoint.state.clone()
        } else {
            format!("{}, port {}", endpoint.state, endpoint.port)
        };
        let counters = &endpoint.counters;
        table.row([
            format!("{}/{}", endpoint.tenant, endpoint.name),
            port,
            state,
            endpoint.addresses.join(" "),
            grouped(counters.rx_frames),
            grouped(counters.tx_frames),
            grouped(drops(counters)),
        ]);
    }
    if !table.is_empty() {
        let _ = write!(out, "\n{table}");
    }
    if !status.uplinks.is_empty() {
        let mut table = Table::new(&["UPLINK", "INTERFACE", ">IN", ">OUT"]);
        for uplink in &status.uplinks {
            table.row([
                uplink.name.clone(),
                uplink.interface.clone(),
                grouped(uplink.counters.rx_frames),
                grouped(uplink.counters.tx_frames),
            ]);
        }
        let _ = write!(out, "\n{table}");
    }
    out
}

fn compartment_row(compartment: &Compartment) -> [String; 8] {
    let epoch = if compartment.alleged_epoch == compartment.epoch {
        compartment.epoch.to_string()
    } else {
        format!("{} (says {})", compartment.epoch, compartment.alleged_epoch)
    };
    [
        compartment.name.clone(),
        compartment.state.clone(),
        compartment.pid.to_string(),
        compartment.uid.to_string(),
        epoch,
        compartment.restarts.to_string(),
        if compartment.last_cause.is_empty() {
            "-".into()
        } else {
            compartment.last_cause.clone()
        },
        if compartment.last_outage_ns == 0 {
            "-".into()
        } else {
            nanoseconds(compartment.last_outage_ns)
        },
    ]
}

fn drops(counters: &EndpointRates) -> u64 {
    counters.drops.iter().map(|drop| drop.frames).sum()
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
        "tap" => writeln!(
            out,
            "port         tap {} in namespace {}, {}",
            endpoint.interface, endpoint.namespace, endpoint.port
        ),
        kind => writeln!(out, "port         {kind}, {}", endpoint.port),
    };
    let _ = writeln!(
        out,
        "compartment  {} ({}), pid {}, image epoch {} installed, {} alleged, {} restarts",
        compartment.name,
        compartment.state,
        compartment.pid,
        compartment.epoch,
        compartment.alleged_epoch,
        compartment.restarts
    );
    let _ = writeln!(
        out,
        "frames       {} from it, {} to it",
        grouped(counters.rx_frames),
        grouped(counters.tx_frames)
    );
    if !counters.drops.is_empty() {
        let mut table = Table::new(&["DROPPED", ">FRAMES", "BECAUSE"]);
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
        let mut table = Table::new(&["DIED OF", ">OUTAGE"]);
        for death in &why.deaths {
            table.row([
                death.cause.clone(),
                if death.outage_ns == 0 {
                    "not back yet".into()
                } else {
                    nanoseconds(death.outage_ns)
                },
            ]);
        }
        let _ = write!(out, "\n{table}");
    }
    if !why.recorded.is_empty() {
        let mut table = Table::new(&[">AGO", "RECORDED BY ITS SWITCH"]);
        for event in why.recorded.iter().take(20) {
            table.row([nanoseconds(event.age_ns), event.message.clone()]);
        }
        let _ = write!(out, "\n{table}");
    }
    out
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
