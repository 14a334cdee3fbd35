//! `explain`: whether one may talk to another, and what says so.

use super::{FEW, as_json};
use crate::args::Explain;
use crate::client::{Client, encoded};
use crate::exit::{Exit, Trouble};
use crate::table::Table;
use api::{Explanation, Judgement, Way};
use std::fmt::Write;

/// Whether one may begin to talk to another: done = it may.
pub async fn explain(explain: &Explain, client: &Client, json: bool) -> Result<Exit, Trouble> {
    let mut path = format!(
        "/v1/explain?from={}&to={}&source_port={}",
        encoded(&explain.from),
        encoded(&explain.to),
        explain.source_port
    );
    for (key, word) in [("protocol", &explain.protocol), ("port", &explain.port)] {
        if let Some(word) = word {
            path += &format!("&{key}={}", encoded(word));
        }
    }
    let answer: Explanation = client.get(&path).await?;
    if json {
        as_json(&answer)?;
    } else {
        crate::print(rendered(explain, &answer).as_bytes())?;
    }
    Ok(if answer.allowed { Exit::Done } else { Exit::No })
}

fn rendered(asked: &Explain, answer: &Explanation) -> String {
    let mut out = String::new();
    let what = match (&asked.protocol, &asked.port) {
        (None, _) => "ping".to_owned(),
        (Some(protocol), None) => protocol.clone(),
        (Some(protocol), Some(port)) => format!("{protocol} {port}"),
    };
    for (from, to, ways) in [
        (&asked.from, &asked.to, &answer.there),
        (&asked.to, &asked.from, &answer.back),
    ] {
        let yes = ways.iter().filter(|way| way.allowed).count();
        let word = match (yes, ways.len()) {
            (_, 0) => "no way: nothing joins the two",
            (0, _) if ways.iter().any(by_rules_alone) => "NOT possible, though rules allow it",
            (0, _) => "NOT allowed",
            (yes, all) if yes < all => "allowed over one family only",
            _ if ways.iter().any(|way| way.half) => "allowed on this side",
            _ => "allowed",
        };
        let _ = writeln!(out, "{from} to {to}, {what}: {word}");
        let mut table = Table::new(&["SWITCH", "AT", "SAYS", "BY", "WRITTEN AT"]);
        for way in ways {
            let verdicts = way.verdicts.iter();
            for (place, verdict) in verdicts.enumerate() {
                // Who is behind a refusal is not asked.
                if way.verdicts[..place].iter().any(denies) {
                    break;
                }
                table.row(row(verdict, way));
            }
        }
        if !table.is_empty() {
            for line in table.to_string().lines() {
                let _ = writeln!(out, "  {line}");
            }
        }
        for way in ways {
            if let Some(note) = note(way) {
                let _ = writeln!(out, "  {note}");
            }
        }
    }
    for revoked in answer.revoked.iter().take(FEW) {
        let _ = writeln!(out, "  {revoked}");
    }
    out
}

/// Rules let it pass, and nothing carries it.
fn by_rules_alone(way: &Way) -> bool {
    let offered = way.service.as_ref().is_none_or(|service| service.offered);
    !way.bar.is_empty() && offered && !way.verdicts.iter().any(denies)
}

fn denies(verdict: &Judgement) -> bool {
    verdict.action == "deny"
}

fn row(verdict: &Judgement, way: &Way) -> [String; 5] {
    let family = if way.source.contains(':') { "v6" } else { "v4" };
    let side = match verdict.side.as_str() {
        "egress" => "from",
        _ => "to",
    };
    [
        verdict.compartment.clone(),
        format!("{side} {} {family}", verdict.endpoint),
        verdict.action.clone(),
        match verdict.by.as_str() {
            "nothing" => verdict.name.clone(),
            by => format!("{by} {}", verdict.name),
        },
        match &verdict.place {
            Some(at) => format!("{}:{}:{}", at.file, at.line, at.column),
            None => "-".into(),
        },
    ]
}

/// What the rows of a way do not say.
fn note(way: &Way) -> Option<String> {
    let by = match (way.allowed, way.circuits) {
        (true, true) => "; by circuits alone, no packet goes there",
        _ => "",
    };
    let answers = match (way.allowed, way.answers) {
        (true, false) => format!("{by}; what answers needs a rule of its own"),
        _ => by.to_owned(),
    };
    if !way.bar.is_empty() {
        return Some(format!(
            "{} to {}: {}",
            way.source, way.destination, way.bar
        ));
    }
    match &way.service {
        Some(service) if way.half => {
            let is = match service.offered {
                true => "",
                false => ", which does not offer that",
            };
            Some(format!(
                "{} to {}: by the agreement on {}{is}; what the other side's rules say is not known here{answers}",
                way.source, way.destination, service.offer
            ))
        }
        Some(service)
            if (&service.source, &service.destination) == (&way.source, &way.destination) =>
        {
            let is = if service.offered {
                ""
            } else {
                ", which does not offer that"
            };
            Some(format!(
                "{} to {}: routed by {} (tag {}){is}{answers}",
                way.source, way.destination, service.offer, service.tag
            ))
        }
        Some(service) => {
            let is = if service.offered {
                ""
            } else {
                ", which does not offer that port"
            };
            let source = match service.pool.as_str() {
                "" => service.source.clone(),
                one if one == format!("{}/32", service.source) => service.source.clone(),
                one if one == format!("{}/128", service.source) => service.source.clone(),
                pool => format!("one of {pool}"),
            };
            Some(format!(
                "{} to {}: the service {} (tag {}){is}; there it is {source} to {}{answers}",
                way.source, way.destination, service.offer, service.tag, service.destination
            ))
        }
        None if answers.is_empty() => None,
        None => Some(format!("{} to {}{answers}", way.source, way.destination)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_as_an_answer() {
        let asked = Explain {
            from: "blue/app1".into(),
            to: "red/db1".into(),
            protocol: Some("tcp".into()),
            port: Some("22".into()),
            source_port: 1,
        };
        let verdict = |tenant: &str, side: &str, action: &str| Judgement {
            compartment: tenant.into(),
            endpoint: format!("{tenant}/x"),
            side: side.into(),
            action: action.into(),
            by: "rule".into(),
            name: "r".into(),
            place: None,
        };
        let answer = Explanation {
            allowed: false,
            there: vec![Way {
                source: "10.1.1.1".into(),
                destination: "10.1.2.1".into(),
                verdicts: vec![
                    verdict("blue", "egress", "deny"),
                    verdict("red", "ingress", "allow"),
                ],
                service: Some(api::Translation {
                    offer: "red/db".into(),
                    source: "10.9.0.0".into(),
                    pool: "10.9.0.0/28".into(),
                    ..Default::default()
                }),
                ..Way::default()
            }],
            back: vec![],
            revoked: vec![api::Revoked {
                tenant: "red".into(),
                name: "db".into(),
                by: "tenant".into(),
            }],
        };
        let shown = rendered(&asked, &answer);
        for part in [
            "blue/app1 to red/db1, tcp 22: NOT allowed\n",
            "from blue/x v4  deny  rule r",
            "the service red/db (tag 0), which does not offer that port",
            "there it is one of 10.9.0.0/28 to",
            "red/db1 to blue/app1, tcp 22: no way: nothing joins the two\n  red/db is revoked by its tenant: `bulkhead revoke --undo red/db` takes that back\n",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        // Red's switch never sees it.
        assert!(!shown.contains("to red/x"), "{shown}");
        // What rules allow and nothing carries.
        let mut carried = answer.clone();
        carried.there[0].bar = "10.1.1.1 has circuits alone, and 10.1.2.1 has none".into();
        carried.there[0].verdicts[0].action = "allow".into();
        carried.there[0].service = None;
        let shown = rendered(&asked, &carried);
        for part in [
            "tcp 22: NOT possible, though rules allow it\n",
            "from blue/x v4  allow  rule r",
            "10.1.1.1 to 10.1.2.1: 10.1.1.1 has circuits alone, and 10.1.2.1 has none\n",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        // What carries it, where that is not packets.
        let mut circuits = answer.clone();
        circuits.there[0] = Way {
            allowed: true,
            answers: true,
            circuits: true,
            service: None,
            ..circuits.there[0].clone()
        };
        let shown = rendered(&asked, &circuits);
        let part = "10.1.1.1 to 10.1.2.1; by circuits alone, no packet goes there\n";
        assert!(shown.contains(part), "{shown}");
        // A tenant's token is told its own half.
        let half = Explanation {
            allowed: true,
            there: vec![Way {
                source: "10.1.1.1".into(),
                destination: "10.1.2.1".into(),
                allowed: true,
                answers: true,
                half: true,
                verdicts: vec![verdict("blue", "egress", "allow")],
                service: Some(api::Translation {
                    offer: "red/db".into(),
                    offered: true,
                    ..Default::default()
                }),
                ..Way::default()
            }],
            back: vec![],
            revoked: vec![],
        };
        let shown = rendered(&asked, &half);
        for part in [
            "tcp 22: allowed on this side\n",
            "10.1.1.1 to 10.1.2.1: by the agreement on red/db; what the other side's rules say is not known here\n",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
    }
}
