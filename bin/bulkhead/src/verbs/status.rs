//! `status`.

use super::change::halves;
use super::{FEW, as_json};
use crate::client::Client;
use crate::exit::{Exit, Trouble};
use crate::table::{Table, grouped, nanoseconds, unless, when};
use api::{Compartment, Endpoint, EndpointRates, Status};
use std::fmt::Write;

/// What exists and how it is.
pub async fn status(client: &Client, json: bool) -> Result<Exit, Trouble> {
    let status: Status = client.get("/v1/status").await?;
    if json {
        return as_json(&status);
    }
    let mut out = rendered_status(&status);
    if endpoints(&status).any(|endpoint| endpoint.circuits) {
        let _ = match super::flows::busiest(None, client).await {
            Ok(circuits) if circuits.is_empty() => Ok(()),
            Ok(circuits) => write!(out, "\n{circuits}"),
            // What else there is is no less true.
            Err(trouble) => writeln!(out, "\nno list of circuits: {}", trouble.fault.message),
        };
    }
    crate::print(out.as_bytes())
}

fn rendered_status(status: &Status) -> String {
    let mut out = String::new();
    let _ = match (status.epoch, status.tenants.first()) {
        (0, None) => writeln!(out, "nothing applied yet"),
        // By a token: how often the host's spec changes is not told.
        (0, Some(own)) => match own.endpoints.len() {
            0 => writeln!(out, "tenant {}: no endpoints", own.name),
            1 => writeln!(out, "tenant {}: 1 endpoint", own.name),
            many => writeln!(out, "tenant {}: {many} endpoints", own.name),
        },
        (epoch, _) => writeln!(
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
    weaker_by_the_spec(&mut out, status);
    aside(&mut out, status);
    if let Some(undertaking) = &status.undertaking {
        let _ = writeln!(
            out,
            "under way: epoch {}, {}, asked by uid {}",
            undertaking.epoch, undertaking.phase, undertaking.uid
        );
    }
    if !status.compartments.is_empty() {
        let _ = writeln!(out, "{}", summary(status));
    }
    // A token is not told the host's numbers: those columns go.
    let host = status.epoch != 0 || status.tenants.is_empty();
    let columns = [
        "COMPARTMENT",
        "STATE",
        ">PID",
        ">UID",
        ">EPOCH",
        ">RESTARTS",
        "LAST",
        ">OUTAGE",
        ">KEPT",
    ];
    let shown = |at: usize| host || !OF_HOST.contains(&at);
    let columns = (columns.iter().enumerate()).filter(|(at, _)| shown(*at));
    let mut table = Table::new(&columns.map(|(_, title)| *title).collect::<Vec<_>>());
    // What is not well first: a full host has hundreds of rows.
    let mut compartments: Vec<_> = std::iter::once(&status.fabric)
        .chain(&status.compartments)
        .collect();
    compartments.sort_by_key(|compartment| compartment.state == "up");
    for compartment in compartments {
        let row = compartment_row(compartment).into_iter().enumerate();
        table.row(row.filter(|(at, _)| shown(*at)).map(|(_, cell)| cell));
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
    let mut endpoints: Vec<_> = endpoints(status).collect();
    endpoints.sort_by_key(|endpoint| speaks(endpoint));
    for endpoint in endpoints {
        let port = match endpoint.kind.as_str() {
            "tap" | "veth" => format!("{} in {}", endpoint.interface, endpoint.namespace),
            kind => kind.to_owned(),
        };
        // Why is said below: a sentence would widen every row.
        let state = if endpoint.port == "open" {
            endpoint.state.clone()
        } else {
            "NOT open".to_owned()
        };
        let counters = &endpoint.counters;
        table.row([
            format!("{}/{}", endpoint.tenant, endpoint.name),
            port,
            state,
            endpoint.addresses.join(" "),
            unless(counters.uncounted, || grouped(counters.rx_frames)),
            unless(counters.uncounted, || grouped(counters.tx_frames)),
            grouped(drops(counters)),
        ]);
    }
    if !table.is_empty() {
        let _ = write!(out, "\n{table}");
    }
    for endpoint in endpoints_not_open(status) {
        let (tenant, name, port) = (&endpoint.tenant, &endpoint.name, &endpoint.port);
        let _ = writeln!(out, "{tenant}/{name}: the port is {port}");
    }
    for compartment in &status.compartments {
        if let Some(said) = operator(&compartment.operator) {
            let _ = writeln!(out, "circuits of {}: {said}", compartment.name);
        }
    }
    // What tenants must know of each other: which share memory.
    for agreement in status.agreements.iter().filter(|one| one.rings) {
        let name = &agreement.name;
        let _ = writeln!(
            out,
            "{name}: programs of both may share memory (`rings: yes` of both), unless an end is metered"
        );
    }
    let alone = |one: &&api::Agreement| !one.rings_asked_by.is_empty();
    for agreement in status.agreements.iter().filter(alone).take(FEW) {
        let (name, by) = (&agreement.name, &agreement.rings_asked_by);
        let _ = writeln!(
            out,
            "{name}: {by} alone asks for rings (`rings: yes`), so programs share no memory"
        );
    }
    out.push_str(&halves(&status.halves));
    for revoked in status.revoked.iter().take(FEW) {
        let _ = writeln!(out, "{revoked}");
    }
    if status.revoked.len() > FEW {
        let _ = writeln!(out, "and more that are revoked (`--json`)");
    }
    if !status.uplinks.is_empty() {
        let mut table = Table::new(&["UPLINK", "INTERFACE", ">IN", ">OUT", "BY"]);
        for uplink in &status.uplinks {
            table.row([
                uplink.name.clone(),
                uplink.interface.clone(),
                grouped(uplink.counters.rx_frames),
                grouped(uplink.counters.tx_frames),
                uplink.how.clone(),
            ]);
        }
        let _ = write!(out, "\n{table}");
        let mut table = Table::new(&["UPLINK", ">VLAN", "TENANT", "SUBNET"]);
        for (uplink, vlan) in (status.uplinks.iter())
            .flat_map(|uplink| uplink.vlans.iter().map(move |vlan| (uplink, vlan)))
        {
            table.row([
                uplink.name.clone(),
                vlan.vlan.to_string(),
                vlan.tenant.clone(),
                match vlan.subnet.as_str() {
                    "" => "(outside)".into(),
                    subnet => subnet.into(),
                },
            ]);
        }
        if !table.is_empty() {
            let _ = write!(out, "\n{table}");
        }
    }
    let mut table = Table::new(&[
        "WHEN (UTC)",
        ">EPOCH",
        ">UID",
        ">CHANGES",
        "SPEC",
        "OUTCOME",
    ]);
    for entry in status.history.iter().take(FEW) {
        table.row([
            when(entry.time_s * 1000).replace(".000", ""),
            entry.epoch.to_string(),
            entry.uid.to_string(),
            entry.changes.to_string(),
            entry.source.clone(),
            entry.outcome.clone(),
        ]);
    }
    if !table.is_empty() {
        let _ = write!(out, "\n{table}");
    }
    out
}

/// What of tenants' own documents does not hold, and why.
fn aside(out: &mut String, status: &Status) {
    for tenant in &status.tenants {
        let Some(aside) = &tenant.aside else { continue };
        let what = match aside.what.as_str() {
            "reach" => "what its document asks for by `reach` does not hold",
            "closed" => "its document is set aside: it keeps its endpoints, and nothing passes",
            _ => "its document is set aside, its endpoints with it",
        };
        let _ = writeln!(out, "{}: {what}", tenant.name);
        for finding in &aside.findings {
            let place = &finding.place;
            let (file, line) = (&place.file, place.line);
            let _ = writeln!(out, "  {file}:{line}: {}", finding.message);
        }
    }
}

/// Switches without a sandbox, and those that several tenants share.
fn weaker_by_the_spec(out: &mut String, status: &Status) {
    for compartment in &status.compartments {
        let inside = |tenant: &&api::Tenant| tenant.compartment == compartment.id;
        let tenants: Vec<_> = status.tenants.iter().filter(inside).collect();
        let name = &compartment.name;
        if tenants.iter().any(|tenant| !tenant.sandbox) {
            let _ = writeln!(
                out,
                "weaker by the spec: the switch of {name} has no sandbox (`sandbox: off`)"
            );
        }
        if let [first, _, ..] = tenants[..] {
            let (per, count) = (&first.per, tenants.len());
            let _ = writeln!(
                out,
                "weaker by the spec: {count} tenants share the switch of {name} (`per: {per}`)"
            );
        }
    }
}

/// What became of a compartment's operators; `None`: nothing that anybody need know.
fn operator(operator: &api::Operator) -> Option<String> {
    let counted = [
        (
            u64::from(operator.restarts),
            ["operator", "operators"],
            "came after another",
        ),
        (
            u64::from(operator.stalls),
            ["of them", "of them"],
            "after one that stood still",
        ),
        (
            u64::from(operator.given_up),
            ["program", "programs"],
            "given up (`bulkhead events` says which), to be started again",
        ),
        (
            operator.taken,
            ["of them", "of them"],
            "after one that may have taken a connection along",
        ),
        (operator.delayed, ["set-up", "set-ups"], "delayed"),
        (
            operator.cut,
            ["circuit", "circuits"],
            "cut, allowed no more",
        ),
        (
            operator.unfound,
            ["end", "ends"],
            "of circuits, to be cut or linked, not found",
        ),
    ];
    let said = counted.into_iter().filter(|(count, ..)| *count > 0);
    let said: Vec<String> = said
        .map(|(count, [one, many], what)| {
            let of = if count == 1 { one } else { many };
            format!("{} {of} {what}", grouped(count))
        })
        .collect();
    (!said.is_empty()).then(|| said.join(", "))
}

fn endpoints(status: &Status) -> impl Iterator<Item = &Endpoint> {
    status.tenants.iter().flat_map(|tenant| &tenant.endpoints)
}

fn endpoints_not_open(status: &Status) -> impl Iterator<Item = &Endpoint> {
    endpoints(status).filter(|endpoint| endpoint.port != "open")
}

fn speaks(endpoint: &Endpoint) -> bool {
    endpoint.port == "open" && endpoint.state == "open"
}

/// How many there are, and how many of them are not well.
fn summary(status: &Status) -> String {
    let up = |compartment: &&Compartment| compartment.state == "up";
    let counted = |what: &str, all: usize, well: usize, is: &str| match (all, all - well) {
        (1, 0) => format!("1 {what}, {is}"),
        (1, _) => format!("1 {what}, NOT {is}"),
        (_, 0) => format!("{all} {what}s, all {is}"),
        (_, not) => format!("{all} {what}s, {not} NOT {is}"),
    };
    let bare = |endpoint: &Endpoint| endpoint.kind == "circuits";
    let sum = |circuits: bool| -> u64 {
        let of = endpoints(status).filter(|e| bare(e) == circuits);
        of.map(|e| drops(&e.counters)).sum()
    };
    // Where there are circuits alone it is calls that an operator counts. Beside an interface both are one number.
    let refused = match endpoints(status).any(bare) {
        true => format!("; {} refused or lost with circuits", grouped(sum(true))),
        false => String::new(),
    };
    let lost = sum(false);
    format!(
        "{}; {}; {} dropped{refused}",
        counted(
            "compartment",
            status.compartments.len(),
            status.compartments.iter().filter(up).count(),
            "up"
        ),
        counted(
            "endpoint",
            endpoints(status).count(),
            endpoints(status).filter(|e| speaks(e)).count(),
            "open"
        ),
        match lost {
            1 => "1 frame".to_owned(),
            many => format!("{} frames", grouped(many)),
        }
    )
}

/// The columns of a compartment's row that are the host's numbers: PID, UID, epoch.
const OF_HOST: std::ops::Range<usize> = 2..5;

fn compartment_row(compartment: &Compartment) -> [String; 9] {
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
        if compartment.restarts == 0 {
            "-".into()
        } else if compartment.last_outage_ns == 0 {
            "no frame since".into()
        } else {
            nanoseconds(compartment.last_outage_ns)
        },
        // Connections of its predecessor that go on, of all that it had.
        match compartment
            .restored
            .saturating_add(compartment.not_restored)
        {
            0 => "-".into(),
            all => format!("{} of {}", grouped(compartment.restored), grouped(all)),
        },
    ]
}

fn drops(counters: &EndpointRates) -> u64 {
    counters.drops.iter().map(|drop| drop.frames).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_host_is_summed_up_and_what_is_not_well_comes_first() {
        let mut status = Status::default();
        status.fabric.state = "up".into();
        for n in 0..200 {
            let state = if n == 150 { "backoff" } else { "up" };
            status.compartments.push(Compartment {
                id: n,
                name: format!("c{n}"),
                state: state.into(),
                ..Compartment::default()
            });
            let port = if n == 120 { "gone" } else { "open" };
            let endpoint = Endpoint {
                name: format!("e{n}"),
                port: port.into(),
                state: "open".into(),
                ..Endpoint::default()
            };
            status.tenants.push(api::Tenant {
                sandbox: true,
                compartment: n,
                endpoints: vec![endpoint],
                ..api::Tenant::default()
            });
        }
        let shown = rendered_status(&status);
        assert!(
            shown.contains("200 compartments, 1 NOT up; 200 endpoints, 1 NOT open; 0 frames"),
            "{shown}"
        );
        let after = |title: &str| shown.lines().skip_while(|l| !l.starts_with(title)).nth(1);
        assert!(after("COMPARTMENT").unwrap().starts_with("c150"), "{shown}");
        let first = after("ENDPOINT").unwrap();
        assert!(
            first.contains("/e120") && first.contains("NOT open"),
            "{shown}"
        );
        assert!(shown.contains("/e120: the port is gone\n"), "{shown}");
        assert!(!shown.contains("weaker"), "{shown}");
    }

    #[test]
    fn rings_that_one_side_alone_asks_for_are_told() {
        let status = Status {
            agreements: vec![api::Agreement {
                name: "agreement red/db with blue".into(),
                rings_asked_by: "blue".into(),
                ..api::Agreement::default()
            }],
            ..Status::default()
        };
        let told = "agreement red/db with blue: blue alone asks for rings";
        assert!(rendered_status(&status).contains(told));
    }

    #[test]
    fn what_one_side_alone_states_is_told_but_not_without_end() {
        let half = |n| api::Half {
            tenant: "blue".into(),
            name: format!("reds-{n}"),
            other: "red".into(),
            lacks: "red does not offer it db".into(),
        };
        let mut status = Status {
            halves: (0..FEW).map(half).collect(),
            ..Status::default()
        };
        let told = "\nblue/reds-0 with red is no agreement: red does not offer it db\n";
        let shown = rendered_status(&status);
        assert!(
            shown.contains(told) && !shown.contains("and more"),
            "{shown}"
        );
        status.halves.push(half(7));
        assert!(rendered_status(&status).contains("\nand more that are none"));
        let revoked = |n: usize| api::Revoked {
            tenant: "red".into(),
            name: format!("db{n}"),
            by: "provider".into(),
        };
        status.revoked = (0..FEW).map(revoked).collect();
        let told =
            "\nred/db0 is revoked by the provider of this host: `bulkhead revoke --undo red/db0`";
        let shown = rendered_status(&status);
        assert!(
            shown.contains(told) && !shown.contains("more that are revoked"),
            "{shown}"
        );
        status.revoked.push(revoked(FEW));
        assert!(rendered_status(&status).contains("\nand more that are revoked"));
    }

    #[test]
    fn one_is_told_as_one() {
        let mut status = Status::default();
        for n in [1, 2] {
            status.compartments.push(Compartment {
                state: "up".into(),
                ..Compartment::default()
            });
            let told = match n {
                1 => "1 compartment, up; 0 endpoints, all open",
                _ => "2 compartments, all up;",
            };
            let said = summary(&status);
            assert!(said.starts_with(told), "{said}");
        }
        assert!(summary(&status).ends_with("; 0 frames dropped"));
        let mut endpoint = Endpoint::default();
        endpoint.counters.drops = vec![api::DropCount {
            frames: 1,
            ..api::DropCount::default()
        }];
        status.tenants.push(api::Tenant {
            endpoints: vec![endpoint],
            ..api::Tenant::default()
        });
        let said = summary(&status);
        assert!(said.ends_with("; 1 frame dropped"), "{said}");
        let mut with = status.tenants[0].endpoints[0].clone();
        with.kind = "circuits".into();
        status.tenants[0].endpoints.push(with);
        let said = summary(&status);
        assert!(
            said.ends_with("; 1 frame dropped; 1 refused or lost with circuits"),
            "{said}"
        );
    }

    #[test]
    fn what_the_spec_made_weaker_and_the_last_applies_are_shown() {
        let mut status = Status::default();
        for (id, name) in [(1, "open"), (2, "zone:shop")] {
            status.compartments.push(Compartment {
                id,
                name: name.into(),
                ..Compartment::default()
            });
        }
        for (compartment, per, sandbox) in
            [(1, "tenant", false), (2, "zone", true), (2, "zone", true)]
        {
            status.tenants.push(api::Tenant {
                compartment,
                per: per.into(),
                sandbox,
                ..api::Tenant::default()
            });
        }
        for epoch in 0..9 {
            status.history.push(api::HistoryEntry {
                time_s: 1_795_283_045 - epoch,
                epoch,
                outcome: format!("outcome {epoch}"),
                ..api::HistoryEntry::default()
            });
        }
        let shown = rendered_status(&status);
        for line in [
            "weaker by the spec: the switch of open has no sandbox (`sandbox: off`)\n",
            "weaker by the spec: 2 tenants share the switch of zone:shop (`per: zone`)\n",
            "2026-11-21 17:44:05",
            "outcome 4",
        ] {
            assert!(shown.contains(line), "{line}: {shown}");
        }
        assert_eq!(shown.matches("weaker").count(), 2, "{shown}");
        assert!(!shown.contains("outcome 5"), "{shown}");
    }

    #[test]
    fn a_successor_that_forwards_nothing_ends_no_outage() {
        let mut dead = Compartment {
            restarts: 1,
            ..Compartment::default()
        };
        assert_eq!(compartment_row(&dead)[7], "no frame since");
        dead.last_outage_ns = 2_000_000;
        assert_eq!(compartment_row(&dead)[7], "2.0 ms");
        assert_eq!(compartment_row(&Compartment::default())[7], "-");
        assert_eq!(compartment_row(&dead)[8], "-");
        (dead.restored, dead.not_restored) = (1_200, 3);
        assert_eq!(compartment_row(&dead)[8], "1,200 of 1,203");
    }
}
