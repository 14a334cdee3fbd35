//! `flows`, `circuits`, `rules`.

use super::as_json;
use crate::args;
use crate::client::{Client, encoded};
use crate::exit::{Exit, Trouble};
use crate::table::{Table, bytes, grouped, nanoseconds, unless};
use api::{Flow, Flows, Listeners, RuleName, Rules};
use std::fmt::Write;

/// Connections just now.
pub async fn flows(wanted: &args::Flows, client: &Client, json: bool) -> Result<Exit, Trouble> {
    let path = path_of(wanted.most, wanted.endpoint.as_ref());
    let flows: Flows = client.get(&path).await?;
    if json {
        return as_json(&flows);
    }
    crate::print(rendered_flows(&flows).as_bytes())
}

/// What a capture does not see of what there is: circuits of two endpoints that go past every
/// process. Asked once it has begun: all that begin since go by the meter.
pub async fn unseen(endpoint: Option<&str>, client: &Client) -> Result<String, Trouble> {
    let owned = endpoint.map(str::to_owned);
    let path = path_of(MOST, owned.as_ref()) + "&circuits=true";
    let flows: Flows = client.get(&path).await?;
    Ok(rendered_unseen(&flows))
}

/// Circuits that are asked for at most.
const MOST: u32 = 1000;

fn rendered_unseen(flows: &Flows) -> String {
    let mut out = String::new();
    let direct = |flow: &&Flow| {
        let kind = flow.circuit.as_ref().map(|it| it.kind.as_str());
        let kind = matches!(kind, Some("kernel" | "ring"));
        kind && flow.protocol == "tcp" && flow.from != flow.to
    };
    let all: Vec<&Flow> = flows.flows.iter().filter(direct).collect();
    if !all.is_empty() {
        let _ = writeln!(
            out,
            "not seen, for they began before: {} {}",
            grouped(all.len() as u64),
            if all.len() == 1 {
                "circuit"
            } else {
                "circuits"
            }
        );
    }
    for flow in all {
        let circuit = flow.circuit.as_ref();
        let (id, kind) = circuit.map_or(("", ""), |it| (it.id.as_str(), it.kind.as_str()));
        let (from, to) = (&flow.source, &flow.destination);
        let gap = if id.is_empty() { "" } else { "  " };
        let _ = writeln!(out, "  {id}{gap}{from} to {to} ({kind})");
    }
    if flows.seen > flows.flows.len() as u64 {
        let _ = writeln!(
            out,
            "of {} circuits only these were asked of",
            grouped(flows.seen)
        );
    }
    for name in &flows.silent {
        let _ = writeln!(
            out,
            "{name}: its operator did not say which circuits are not seen"
        );
    }
    out
}

fn path_of(most: u32, endpoint: Option<&impl ToString>) -> String {
    let mut path = format!("/v1/flows?most={most}");
    if let Some(endpoint) = endpoint {
        path += &format!("&endpoint={}", encoded(&endpoint.to_string()));
    }
    path
}

fn rendered_flows(flows: &Flows) -> String {
    let mut table = Table::new(&[
        "FROM",
        "TO",
        "PROTOCOL",
        "SOURCE",
        "DESTINATION",
        "STATE",
        ">PACKETS",
        ">BYTES",
        ">SILENT",
        "RULES",
    ]);
    for flow in &flows.flows {
        let two = |both: [u64; 2], say: fn(u64) -> String| both.map(say).join(" / ");
        let both = |here: &str, there: &str| match here == there {
            true => here.to_owned(),
            false => format!("{here} as {there}"),
        };
        let uncounted = flow.circuit.as_ref().is_some_and(|it| !it.counted);
        table.row([
            flow.from.clone(),
            flow.to.clone(),
            flow.protocol.clone(),
            both(&flow.source, &flow.source_there),
            both(&flow.destination, &flow.destination_there),
            match &flow.circuit {
                Some(circuit) => format!("{}, {}", flow.state, circuit.kind),
                None => flow.state.clone(),
            },
            unless(uncounted, || two(flow.packets, grouped)),
            unless(uncounted, || two(flow.bytes, bytes)),
            unless(uncounted, || nanoseconds(flow.silent_ns)),
            rules_of(flow),
        ]);
    }
    listed(flows, &table, "connections", "switch")
}

/// The table of these, how many are left out, and who did not say its own.
fn listed(flows: &Flows, table: &Table, what: &str, who: &str) -> String {
    let mut out = String::new();
    if table.is_empty() {
        let _ = writeln!(out, "no {what}");
    } else {
        let _ = write!(out, "{table}");
        let (shown, seen) = (flows.flows.len() as u64, flows.seen);
        if seen > shown {
            let _ = writeln!(out, "{} of {}, the busiest", grouped(shown), grouped(seen));
        }
    }
    for name in &flows.silent {
        let _ = writeln!(out, "{name}: its {who} did not answer in time");
    }
    out
}

/// Circuits just now, or the end of one.
pub async fn circuits(
    wanted: &args::Circuits,
    client: &Client,
    json: bool,
) -> Result<Exit, Trouble> {
    if let Some(args::CircuitVerb::Cut { id }) = &wanted.verb {
        // Clap would name the word behind `cut` instead.
        let of_list = [
            (wanted.listeners, "--listeners"),
            (wanted.endpoint.is_some(), "TENANT/ENDPOINT"),
        ];
        if let Some((_, word)) = of_list.iter().find(|(is_given, _)| *is_given) {
            return Err(Trouble::new(
                Exit::Usage,
                format!("`cut` cannot be used with {word}"),
                "bulkhead circuits cut ID",
            ));
        }
        let path = format!("/v1/circuits/{}/cut", encoded(id));
        let answer: serde_json::Value = client.post(&path, Vec::new()).await?;
        return match json {
            true => as_json(&answer),
            false => crate::print(format!("circuit {id} is cut\n").as_bytes()),
        };
    }
    let path = path_of(wanted.most, wanted.endpoint.as_ref());
    if wanted.listeners {
        let path = path.replacen("/v1/flows", "/v1/listeners", 1);
        let listeners: Listeners = client.get(&path).await?;
        return match json {
            true => as_json(&listeners),
            false => crate::print(rendered_listeners(&listeners).as_bytes()),
        };
    }
    let flows: Flows = client.get(&(path + "&circuits=true")).await?;
    if json {
        return as_json(&flows);
    }
    crate::print(rendered_circuits(&flows).as_bytes())
}

fn rendered_listeners(listeners: &Listeners) -> String {
    let mut table = Table::new(&["ENDPOINT", "PROTOCOL", "ADDRESS", ">WAITING", ">BACKLOG"]);
    for one in &listeners.listeners {
        let count = |it: Option<u64>| it.map_or_else(|| "-".to_owned(), grouped);
        table.row([
            one.endpoint.clone(),
            one.protocol.clone(),
            one.address.clone(),
            count(one.waiting),
            count(one.backlog),
        ]);
    }
    let mut out = match table.is_empty() {
        true => "nobody listens\n".to_owned(),
        false => table.to_string(),
    };
    let (shown, seen) = (listeners.listeners.len() as u64, listeners.seen);
    if seen > shown {
        let _ = writeln!(out, "{} of {}", grouped(shown), grouped(seen));
    }
    for name in &listeners.silent {
        let _ = writeln!(out, "{name}: its operator did not answer in time");
    }
    out
}

/// The busiest circuits, of a tenant or of all; nothing where there are none.
pub async fn busiest(tenant: Option<&str>, client: &Client) -> Result<String, Trouble> {
    const BUSIEST: u32 = 10;
    // Of others' it is known only here that they are.
    let most = if tenant.is_some() { MOST } else { BUSIEST };
    let path = path_of(most, None::<&String>) + "&circuits=true";
    let mut flows: Flows = client.get(&path).await?;
    if let Some(tenant) = tenant {
        let is_its = |of: &str| of.split('/').next() == Some(tenant);
        let all = flows.flows.len() as u64;
        flows
            .flows
            .retain(|flow| is_its(&flow.from) || is_its(&flow.to));
        let has = flows.flows.len() as u64;
        flows.seen = flows.seen.saturating_sub(all - has);
        flows.flows.truncate(BUSIEST as usize);
    }
    Ok(match flows.flows.is_empty() {
        true => String::new(),
        false => rendered_circuits(&flows),
    })
}

fn rendered_circuits(flows: &Flows) -> String {
    let mut table = Table::new(&[
        "ID",
        "FROM",
        "TO",
        "PROTOCOL",
        "SOURCE",
        "DESTINATION",
        "KIND",
        ">AGE",
        ">BYTES",
        ">PER SECOND",
        "RULES",
    ]);
    for flow in &flows.flows {
        let Some(circuit) = &flow.circuit else {
            continue;
        };
        // Of others nobody knows.
        let counted = |both: [u64; 2]| match circuit.counted {
            true => both.map(bytes).join(" / "),
            false => "-".to_owned(),
        };
        let or_dash = |text: &str| if text.is_empty() { "-" } else { text }.to_owned();
        table.row([
            or_dash(&circuit.id),
            flow.from.clone(),
            flow.to.clone(),
            flow.protocol.clone(),
            flow.source.clone(),
            flow.destination.clone(),
            match circuit.captured {
                true => format!("{}, captured", circuit.kind),
                false => circuit.kind.clone(),
            },
            circuit.age_ns.map_or_else(|| "-".to_owned(), nanoseconds),
            counted(flow.bytes),
            counted(circuit.rate),
            rules_with_lines(flow),
        ]);
    }
    listed(flows, &table, "circuits", "operator")
}

/// The rules that decided, with where they stand.
fn rules_with_lines(flow: &Flow) -> String {
    let one = |rule: &RuleName| match &rule.place {
        Some(at) => format!("{} ({}:{})", named(rule), at.file, at.line),
        None => named(rule),
    };
    let [sent, got] = flow.rules.each_ref().map(one);
    match sent == got {
        true => sent,
        false => format!("{sent}, {got}"),
    }
}

fn rules_of(flow: &Flow) -> String {
    let [sent, got] = flow.rules.each_ref().map(named);
    match sent == got {
        true => sent,
        false => format!("{sent}, {got}"),
    }
}

fn named(rule: &RuleName) -> String {
    match rule.kind.as_str() {
        "rule" => rule.name.clone(),
        "default" => "default".to_owned(),
        // The other side of an agreement's, which is not known here.
        "elsewhere" => "-".to_owned(),
        kind => format!("{kind} {}", rule.name),
    }
}

/// What each rule of a tenant decided.
pub async fn rules(wanted: &args::Rules, client: &Client, json: bool) -> Result<Exit, Trouble> {
    let path = format!("/v1/rules/{}", encoded(&wanted.tenant));
    let rules: Rules = client.get(&path).await?;
    if json {
        return as_json(&rules);
    }
    crate::print(rendered_rules(&rules).as_bytes())
}

fn rendered_rules(rules: &Rules) -> String {
    let mut table = Table::new(&[
        "RULE",
        "AT",
        ">CONNECTIONS",
        ">PACKETS",
        ">BYTES",
        ">DENIED",
        ">BYTES",
    ]);
    for count in &rules.rules {
        let place = count.rule.place.as_ref();
        table.row([
            named(&count.rule),
            place.map_or_else(String::new, |at| format!("{}:{}", at.file, at.line)),
            grouped(count.connections),
            grouped(count.packets.saturating_add(count.carried)),
            bytes(count.bytes),
            grouped(count.denied),
            bytes(count.denied_bytes),
        ]);
    }
    let mut out = table.to_string();
    if rules.unlogged > 0 {
        let _ = writeln!(
            out,
            "{} packets of rules that log are not among the events, being too many",
            grouped(rules.unlogged)
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::{RuleCount, Where};

    fn rule(kind: &str, name: &str) -> RuleName {
        RuleName {
            kind: kind.into(),
            name: name.into(),
            place: None,
        }
    }

    #[test]
    fn a_translated_connection_shows_both_tuples() {
        let flow = Flow {
            from: "blue/app1".into(),
            to: "agreement red/db with blue".into(),
            protocol: "tcp".into(),
            source: "10.1.1.10:4000".into(),
            source_there: "10.1.1.10:4000".into(),
            destination: "10.1.200.10:5432".into(),
            destination_there: "10.1.1.9:5432".into(),
            rules: [rule("acceptance", "blue/reds-db"), rule("default", "")],
            ..Flow::default()
        };
        let text = rendered_flows(&Flows {
            flows: vec![flow],
            seen: 7,
            silent: vec!["green".into()],
        });
        for part in [
            "10.1.200.10:5432 as 10.1.1.9:5432",
            "  10.1.1.10:4000  ",
            "acceptance blue/reds-db, default",
            "1 of 7, the busiest",
            "green: its switch did not answer",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }

    #[test]
    fn circuits_say_what_is_known_of_them() {
        let circuit = |kind: &str, id: &str| api::Circuit {
            id: id.into(),
            kind: kind.into(),
            captured: kind == "metered",
            age_ns: Some(3_000_000_000),
            rate: [1 << 20, 0],
            counted: kind == "metered",
        };
        let mut by = rule("rule", "red/app-to-web");
        by.place = Some(Where {
            file: "a.yaml".into(),
            line: 7,
            column: 3,
        });
        let flow = |kind: &str, id: &str| Flow {
            from: "red/app".into(),
            to: "red/web".into(),
            bytes: [5 << 20, 77],
            rules: [by.clone(), by.clone()],
            circuit: Some(circuit(kind, id)),
            ..Flow::default()
        };
        let text = rendered_circuits(&Flows {
            flows: vec![flow("metered", "3-99"), flow("kernel", "")],
            seen: 2,
            silent: vec!["green".into()],
        });
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("3-99  red/app  red/web"), "{text}");
        assert!(lines[1].contains("5.0 MiB / 77 B"), "{text}");
        assert!(lines[1].contains("1.0 MiB / 0 B"), "{text}");
        assert!(lines[1].contains("metered, captured"), "{text}");
        assert!(lines[1].ends_with("red/app-to-web (a.yaml:7)"), "{text}");
        assert!(lines[2].starts_with("-     red/app"), "{text}");
        assert!(!lines[2].contains("MiB"), "{text}");
        assert!(
            text.contains("green: its operator did not answer"),
            "{text}"
        );
    }

    #[test]
    fn rules_have_their_line_and_counts() {
        let mut count = RuleCount {
            rule: rule("rule", "red/web"),
            connections: 1234,
            denied: 5,
            packets: 2,
            carried: 10,
            bytes: 7 << 10,
            denied_bytes: 300,
        };
        count.rule.place = Some(Where {
            file: "a.yaml".into(),
            line: 7,
            column: 3,
        });
        let rules = Rules {
            rules: vec![count],
            unlogged: 2,
            ..Rules::default()
        };
        let text = rendered_rules(&rules);
        let line = text
            .lines()
            .find(|line| line.starts_with("red/web"))
            .unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(
            (words[1], words[2], words[3], words[words.len() - 3]),
            ("a.yaml:7", "1,234", "12", "5"),
            "{text}"
        );
        assert!(line.contains("KiB") && line.ends_with("300 B"), "{text}");
        assert!(text.contains("2 packets of rules that log"), "{text}");
    }
}
