//! Circuits: what an operator tells of one, and cutting it.

use crate::caller::Changer;
use crate::flows;
use crate::names::Names;
use crate::refuse::{Failure, refused};
use crate::server::Server;
use crate::supervisor::Supervisor;
use crate::turns::Rank;
use crate::world::World;
use api::{Circuit, Fault, Flow, Listener, RuleName, Whose};
use axum::Json;
use axum::extract::{Path, State};
use command::verbs::{
    CONTAINER_BUSY, CONTAINER_DESCRIPTORS, CONTAINER_LONG, CONTAINER_NO_LISTENER,
    CONTAINER_NOT_ROOT, CONTAINER_NOTHING, CONTAINER_PROGRAMS, CutCircuit,
};
use serde_json::{Value, json};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;
use telemetry::circuits::{CUT_DONE, CUT_HIDDEN, CUT_ROW_AT, CUT_UNKNOWN, ROW_WORDS, Row};

/// An operator that is busy, or that has to be started, takes less.
const PATIENCE: Duration = Duration::from_secs(3);
/// Between two looks at a page that is being written.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// A row with its names; `None`: it is none.
pub fn told(row: &Row, compartment: u32, world: &World, names: &Names) -> Option<Flow> {
    let flow = flows::told(&row.flow, compartment, world, names)?;
    let kind = kind(row.carrier)?;
    Some(Flow {
        circuit: Some(Circuit {
            id: match row.id {
                0 => String::new(),
                id => format!("{compartment}-{id}"),
            },
            kind: kind.into(),
            captured: row.carrier == CAPTURED,
            age_ns: (row.age != u64::MAX).then_some(row.age),
            rate: row.rate,
            counted: kind == "metered",
        }),
        ..flow
    })
}

/// A socket that waits, with its endpoint's name; `None`: it is none.
pub fn waiting(row: &Row, compartment: u32, world: &World) -> Option<Listener> {
    let end = &row.flow.a;
    let protocol = flows::protocol(row.flow.protocol);
    let [waiting, backlog] = row.rate.map(|it| (protocol == "tcp").then_some(it));
    Some(Listener {
        endpoint: world.name_at(compartment, end.slot)?,
        address: flows::at(end.source, end.source_port, row.flow.protocol),
        protocol,
        waiting,
        backlog,
    })
}

/// `circuit::Carrier::Captured`.
const CAPTURED: u8 = 4;

/// Why a container was refused, and what to do.
pub fn why_refused(why: u64) -> &'static str {
    match u32::try_from(why).unwrap_or(0) {
        CONTAINER_NOT_ROOT => {
            "who handed it over is not root; see who may open its endpoint's socket"
        }
        CONTAINER_NOTHING => {
            "its runtime sent no listener: see what it says itself of why it failed, or take one that knows listenerPath (crun, or runc from 1.1)"
        }
        CONTAINER_NO_LISTENER => {
            "what came is no seccomp listener; is it a runtime that was started by `bulkhead oci`?"
        }
        CONTAINER_DESCRIPTORS => {
            "more than one descriptor came; a runtime sends the listener alone"
        }
        CONTAINER_LONG => "its state has more than a mebibyte; have it fewer annotations",
        CONTAINER_PROGRAMS => {
            "its tenant's compartment has as many programs and containers as it may (4,096, or its part of what the daemon may have open)"
        }
        CONTAINER_BUSY => "its tenant's operator had too much to do at that moment; start it again",
        _ => "for a reason that a newer release knows",
    }
}

/// By what a circuit's bytes go.
pub const KINDS: [&str; 4] = ["kernel", "ring", "metered", "proxied"];

/// The kind of this number; `None`: it is none.
pub fn kind(carrier: u8) -> Option<&'static str> {
    let number = match carrier {
        CAPTURED => 2,
        other => other,
    };
    KINDS.get(usize::from(number)).copied()
}

/// Between whom it is, by what and by whose rules: a line of the audit log.
pub fn described(flow: &Flow) -> String {
    let rule = |rule: &RuleName| match &rule.place {
        Some(at) => format!("{} {} ({}:{})", rule.kind, rule.name, at.file, at.line),
        None => format!("{} {}", rule.kind, rule.name).trim_end().to_owned(),
    };
    let [from, to] = flow.rules.each_ref().map(rule);
    let kind = flow.circuit.as_ref().map_or("", |it| it.kind.as_str());
    format!(
        "from {} {} to {} {}, {}, {kind}, by {from} and {to}",
        flow.from, flow.source, flow.to, flow.destination, flow.protocol,
    )
}

/// Cuts a circuit: both its ends find it over.
#[utoipa::path(post, path = "/v1/circuits/{id}/cut", params(("id" = String, Path)),
    responses((status = 200), (status = 403, body = Fault), (status = 404, body = Fault)))]
pub async fn cut(
    Changer(viewer): Changer,
    State(server): State<Arc<Server>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Failure> {
    let world = server.world.world();
    let named = id.split_once('-');
    let named = named.and_then(|(at, id)| Some((at.parse().ok()?, id.parse().ok()?)));
    let (compartment, number): (u32, u64) = named.ok_or_else(|| unknown(&id))?;
    // Which tenant's it is only its operator could say: it is told to all of the compartment.
    let found = world.compartment(compartment);
    let found = found.filter(|_| world.with_circuits().contains(&compartment));
    let found = found.ok_or_else(|| unknown(&id))?;
    let mut deed = viewer.deed("circuit-cut", format!("circuit {id}"));
    deed.tenants.clone_from(&found.tenants);
    let body = CutCircuit {
        compartment,
        reserved: 0,
        id: number,
    };
    let (row, outcome) = cut_one(&server.supervisor, &body, &id).await;
    let flow = row.and_then(|row| told(&row, compartment, &world, &Names::of(&world)));
    deed.details.extend(flow.as_ref().map(described));
    if let Err(Failure(fault)) = &outcome {
        deed.outcome.clone_from(&fault.message);
    }
    let mut applier = server.applier.turn(Rank::Host).await;
    let outcome = outcome.map_err(|Failure(fault)| fault);
    let done = format!("circuit {id} was cut");
    applier.note_done(deed, &done, outcome).await?;
    Ok(Json(json!({ "cut": id })))
}

/// What it was, if its operator said that, and what came of it.
async fn cut_one(
    supervisor: &Supervisor,
    body: &CutCircuit,
    id: &str,
) -> (Option<Row>, Result<(), Failure>) {
    let (_, fds) = match supervisor.query(body).await {
        Ok(answer) => answer,
        Err(refusal) => return (None, Err(refused(&refusal, "cutting the circuit").into())),
    };
    let page = fds.into_iter().next().map(File::from);
    let outcome = match &page {
        Some(page) => outcome(page).await,
        None => None,
    };
    let row = page.and_then(|page| row_of_cut(&page, body.id));
    (row, came_of(outcome, id))
}

fn came_of(outcome: Option<u64>, id: &str) -> Result<(), Failure> {
    match outcome {
        Some(CUT_DONE) => Ok(()),
        Some(CUT_UNKNOWN) => Err(unknown(id).into()),
        Some(CUT_HIDDEN) => Err(Fault::new(
            "hidden",
            Whose::Tenant,
            format!("neither program of the circuit {id} has it where it was seen"),
            "its sockets are looked for in every process, and end where they are found; look \
             whether it is still there: `bulkhead circuits`",
        )
        .into()),
        Some(_) => Ok(()),
        None => Err(Fault::new(
            "unavailable",
            Whose::Bulkhead,
            "the operator of these circuits did not answer in time",
            "look whether the circuit is still there: `bulkhead circuits`",
        )
        .into()),
    }
}

/// What the operator wrote, an allegation; `None`: nothing in time.
async fn outcome(page: &File) -> Option<u64> {
    let end = tokio::time::Instant::now() + PATIENCE;
    // Bound: the patience.
    loop {
        let mut word = [0; 8];
        page.read_exact_at(&mut word, 0).ok()?;
        let word = u64::from_le_bytes(word);
        if word != 0 {
            return Some(word);
        }
        if tokio::time::Instant::now() >= end {
            return None;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// What it says of the circuit that was to be cut, an allegation; `None`: nothing.
fn row_of_cut(page: &File, id: u64) -> Option<Row> {
    let mut bytes = [0; ROW_WORDS * 8];
    page.read_exact_at(&mut bytes, (CUT_ROW_AT * 8) as u64)
        .ok()?;
    let row = Row::of(&flows::words_of(&bytes));
    (row.id == id && id != 0).then_some(row)
}

fn unknown(id: &str) -> Fault {
    Fault::new(
        "not-found",
        Whose::User,
        format!("there is no circuit {id}"),
        "`bulkhead circuits` lists them; one that ended has no id any more",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::Where;
    use std::io::Write;

    #[test]
    fn what_was_cut_is_told_by_the_page_of_its_cut() {
        let row = Row {
            id: 7,
            carrier: 2,
            ..Row::default()
        };
        let mut page = tempfile::tempfile().unwrap();
        for word in [CUT_DONE].into_iter().chain(row.words()) {
            page.write_all(&word.to_le_bytes()).unwrap();
        }
        assert_eq!(row_of_cut(&page, 7), Some(row));
        assert_eq!(row_of_cut(&page, 8), None);
        page.set_len(8).unwrap();
        assert_eq!(row_of_cut(&page, 7), None);
    }

    #[test]
    fn a_circuit_is_described_with_its_ends_and_what_let_it_begin() {
        let place = Where {
            file: "shop.yaml".into(),
            line: 9,
            column: 3,
        };
        let flow = Flow {
            from: "shop/web".into(),
            to: "shop/db".into(),
            protocol: "tcp".into(),
            source: "10.1.1.10:40001".into(),
            destination: "10.1.1.11:6379".into(),
            rules: [
                RuleName {
                    kind: "rule".into(),
                    name: "shop/redis".into(),
                    place: Some(place),
                },
                RuleName {
                    kind: "default".into(),
                    ..RuleName::default()
                },
            ],
            circuit: Some(Circuit {
                kind: "kernel".into(),
                ..Circuit::default()
            }),
            ..Flow::default()
        };
        assert_eq!(
            described(&flow),
            "from shop/web 10.1.1.10:40001 to shop/db 10.1.1.11:6379, tcp, kernel, by rule shop/redis (shop.yaml:9) and default"
        );
    }
}
