//! What a tenant's token shows of what the host knows: its own names and figures. What
//! is made here is put together from what is the tenant's, so that what is added to an
//! answer later is not shown before somebody says that it may be.

use crate::deeds::is_own;
use crate::world::World;
use api::{
    Aside, Circuit, Compartment, Endpoint, Explanation, Fault, Flow, Happening, Judgement, Plan,
    Recorded, RuleName, Status, Tenant, Translation, UsageRow, Way, Whose,
};
use guard::guard;

/// What kinds of flight recorder events are about one slot alone.
const OF_A_SLOT: [&str; 5] = ["port-added", "port-closed", "drop", "quarantine", "refused"];

/// Its own endpoint, without the host's numbers.
pub fn endpoint(endpoint: Endpoint) -> Endpoint {
    Endpoint {
        id: 0,
        compartment: 0,
        slot: 0,
        ..endpoint
    }
}

/// Itself, without the host's numbers.
pub fn tenant(tenant: Tenant) -> Tenant {
    let begin = format!("{}:", tenant.name);
    Tenant {
        name: tenant.name,
        endpoints: tenant.endpoints.into_iter().map(endpoint).collect(),
        kind: tenant.kind,
        sandbox: tenant.sandbox,
        aside: tenant.aside.map(|aside| own_aside(aside, &begin)),
        ..Tenant::default()
    }
}

/// Why its own document is set aside, at places of its own alone.
fn own_aside(mut aside: Aside, begin: &str) -> Aside {
    aside
        .findings
        .retain_mut(|finding| match finding.place.file.strip_prefix(begin) {
            Some(file) => {
                finding.place.file = file.to_owned();
                true
            }
            None => false,
        });
    aside
}

/// What its switch runs in: of one that is shared only whether it runs.
pub fn compartment(compartment: Compartment, name: &str) -> Compartment {
    let bare = Compartment {
        name: name.to_owned(),
        tenants: vec![name.to_owned()],
        state: compartment.state,
        ..Compartment::default()
    };
    if compartment.tenants.len() > 1 {
        return bare;
    }
    Compartment {
        restarts: compartment.restarts,
        last_cause: compartment.last_cause,
        last_outage_ns: compartment.last_outage_ns,
        heartbeat: compartment.heartbeat,
        asleep: compartment.asleep,
        reports: compartment.reports,
        fabric_drops: compartment.fabric_drops,
        outside_drops: compartment.outside_drops,
        operator: api::Operator {
            // The host's number.
            pid: 0,
            ..compartment.operator
        },
        ..bare
    }
}

/// The fabric: whether it runs.
pub fn fabric(fabric: &Compartment) -> Compartment {
    Compartment {
        name: "fabric".into(),
        state: fabric.state.clone(),
        ..Compartment::default()
    }
}

/// Everything of its own at a glance.
pub fn status(status: Status, name: &str) -> Status {
    let id = status.tenants.iter().find(|one| one.name == name);
    let id = id.map(|tenant| tenant.compartment);
    let own = |one: &Compartment| Some(one.id) == id;
    Status {
        version: status.version,
        health: match status.health == "ok" {
            true => status.health,
            false => "degraded: the provider of this host can say why".into(),
        },
        fabric: fabric(&status.fabric),
        compartments: (status.compartments.into_iter().filter(own))
            .map(|one| compartment(one, name))
            .collect(),
        tenants: (status.tenants.into_iter())
            .filter(|one| one.name == name)
            .map(tenant)
            .collect(),
        agreements: (status.agreements.into_iter())
            .filter(|one| one.offerer == name || one.acceptor == name)
            .map(|mut one| {
                // What the other side asks for in vain is that side's.
                if one.rings_asked_by != name {
                    one.rings_asked_by.clear();
                }
                one
            })
            .collect(),
        halves: status.halves,
        revoked: status.revoked,
        ..Status::default()
    }
}

/// Of a plan what it does with what is its own, and with agreements that it is a party to.
pub fn plan(plan: Plan, name: &str) -> Plan {
    let changes = plan.changes.into_iter();
    let accepts = |object: &str| {
        let parties = object.strip_prefix("agreement ");
        parties
            .and_then(|it| it.rsplit_once(" with "))
            .is_some_and(|(_, acceptor)| acceptor == name)
    };
    let is_its = |object: &str| is_own(object, name) || accepts(object);
    Plan {
        changes: changes.filter(|one| is_its(&one.object)).collect(),
        halves: (plan.halves.into_iter())
            .filter(|one| one.tenant == name)
            .collect(),
        ..Plan::default()
    }
}

/// A fault of a change that it wanted: what is wrong with its own document as it is, of
/// what else stands against it only that something does.
pub fn fault(fault: Fault, name: &str) -> Fault {
    let begin = format!("{name}:");
    let own = |file: &str| file.strip_prefix(&begin).map(str::to_owned);
    // What it named itself and the host has not is its own mistake, told in full.
    let mistake = fault.whose == Whose::User && fault.findings.is_empty();
    let named = fault.place.as_ref().filter(|_| mistake);
    let named = named.and_then(|place| Some((own(&place.file)?, place.clone())));
    if let ("host" | "conflict" | "limit", Some((file, place))) = (fault.code.as_str(), named) {
        return Fault {
            code: "spec".into(),
            place: Some(api::Where { file, ..place }),
            ..fault
        };
    }
    match fault.code.as_str() {
        "denied" | "not-found" | "too-large" | "request" | "limit" | "too-many" | "store"
        | "supervisor"
            if fault.place.is_none() =>
        {
            return fault;
        }
        "spec" => {
            let mut findings = fault.findings;
            if let (true, Some(place)) = (findings.is_empty(), fault.place.clone()) {
                findings.push(api::Finding {
                    code: fault.code.clone(),
                    message: fault.message,
                    place,
                    help: fault.help,
                });
            }
            findings.retain_mut(|finding| match own(&finding.place.file) {
                Some(file) => {
                    finding.place.file = file;
                    true
                }
                None => !guard!("tenant-findings"),
            });
            if let Some(first) = findings.first().cloned() {
                return Fault {
                    code: "spec".into(),
                    message: match findings.len() {
                        1 => first.message,
                        many => format!("{} (and {} more)", first.message, many - 1),
                    },
                    place: Some(first.place),
                    whose: Whose::User,
                    help: first.help,
                    findings: if findings.len() > 1 {
                        findings
                    } else {
                        Vec::new()
                    },
                };
            }
        }
        "unproved" => {
            let mine = (fault.findings.iter()).filter_map(|finding| unmet(finding, &begin));
            let mine: Vec<api::Finding> = mine.collect();
            if let Some(first) = mine.first() {
                return Fault {
                    message: match mine.len() {
                        1 => first.message.clone(),
                        many => format!("{} (and {} more)", first.message, many - 1),
                    },
                    place: Some(first.place.clone()),
                    whose: Whose::User,
                    findings: if mine.len() > 1 { mine } else { Vec::new() },
                    ..fault
                };
            }
        }
        _ => {}
    }
    let place = fault.place.and_then(|place| {
        let file = own(&place.file)?;
        Some(api::Where { file, ..place })
    });
    Fault {
        place,
        ..Fault::new(
            match fault.code.as_str() {
                "spec" => "host",
                other => other,
            },
            fault.whose,
            "this host cannot take the change; nothing was changed, and what runs goes on running",
            "ask the provider of this host, whose log says why",
        )
    }
}

/// What its own document asks for by `reach` and is not so: whole where nothing of others
/// is in it, but for the host's numbers.
fn unmet(finding: &api::Finding, begin: &str) -> Option<api::Finding> {
    let file = finding.place.file.strip_prefix(begin)?.to_owned();
    let place = api::Where {
        file,
        ..finding.place.clone()
    };
    let message = match finding.code.as_str() {
        "reach" => without_slots(&finding.message.replace(begin, "")),
        "reach-others" => format!(
            "your reach at line {} is not met, by what is not yours alone to say",
            place.line
        ),
        _ => return None,
    };
    Some(api::Finding {
        code: "reach".into(),
        message,
        place,
        help: String::new(),
    })
}

/// A text about a path without the numbers of slots and ports.
fn without_slots(text: &str) -> String {
    const SWITCH: &str = "the switch in slot ";
    let digits = |text: &str| {
        let end = text.find(|c: char| !c.is_ascii_digit());
        end.unwrap_or(text.len())
    };
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(SWITCH) {
        let kept = before.rsplit_once("port ").filter(|(_, number)| {
            let number = number.strip_suffix(" of ");
            number.is_some_and(|number| digits(number) == number.len())
        });
        out += match kept {
            Some((kept, _)) => kept,
            None => before,
        };
        out += "its switch";
        rest = after.get(digits(after)..).unwrap_or_default();
    }
    out + rest
}

/// A rule, of the provider's only that it is one.
pub fn rule(mut rule: RuleName, name: &str) -> RuleName {
    let others = rule.name.split_once('/').is_some_and(|(of, _)| of != name);
    if rule.kind == "guardrail" || others {
        rule.name = String::new();
        rule.place = None;
    }
    let begin = format!("{name}:");
    rule.place = rule.place.and_then(|place| {
        let file = place.file.strip_prefix(&begin)?.to_owned();
        Some(api::Where { file, ..place })
    });
    rule
}

/// What was used of what is its own: of the provider's rules only that they are some.
pub fn usage(mut row: UsageRow) -> UsageRow {
    if row.rule.starts_with("guardrail ") && guard!("tenant-usage-rules") {
        "guardrail".clone_into(&mut row.rule);
    }
    row
}

/// Whether an endpoint, by its name, is the tenant's own.
pub fn has(endpoint: &str, name: &str) -> bool {
    endpoint.split_once('/').is_some_and(|(of, _)| of == name) || !guard!("tenant-listeners")
}

/// A connection that an endpoint of its own has a side of, as that side sees it.
pub fn flow(flow: Flow, name: &str) -> Option<Flow> {
    let own = |end: &str| end.split_once('/').is_some_and(|(of, _)| of == name);
    let (begins, answers) = (own(&flow.from), own(&flow.to));
    if !begins && !answers && guard!("tenant-flows") {
        return None;
    }
    let [a, b] = flow.rules;
    // Numbers of circuits are the host's: how fast they rise says how busy others are.
    let circuit = flow.circuit.map(|circuit| Circuit {
        id: String::new(),
        ..circuit
    });
    let mut flow = Flow {
        circuit,
        compartment: name.to_owned(),
        rules: [rule(a, name), rule(b, name)],
        ..flow
    };
    for end in [&mut flow.from, &mut flow.to] {
        // By which uplink is the host's matter.
        if end.starts_with("outside (") {
            *end = "outside".into();
        }
    }
    // The other tenant's own addresses, before or after they are translated, stay its own;
    // those that go outside are both this tenant's.
    if !begins && guard!("tenant-flow-addresses") {
        flow.source.clone_from(&flow.source_there);
        flow.destination.clone_from(&flow.destination_there);
    } else if !answers && flow.to != "outside" && guard!("tenant-flow-addresses-there") {
        flow.source_there.clone_from(&flow.source);
        flow.destination_there.clone_from(&flow.destination);
    }
    flow.translated =
        (&flow.source, &flow.destination) != (&flow.source_there, &flow.destination_there);
    Some(flow)
}

/// Whether something happened to it: to an endpoint of its own, or to its compartment
/// where that is nobody else's.
pub fn happened(happening: &Happening, name: &str, world: &World) -> bool {
    let own = happening.endpoint.strip_prefix(name);
    if own.is_some_and(|rest| rest.starts_with('/')) || !guard!("tenant-events") {
        return true;
    }
    let mut all = world.compartments().iter();
    happening.endpoint.is_empty()
        && happening.target == name
        && all.any(|one| one.name == name && one.tenants == [name])
}

/// What happened, as its tenant is told.
pub fn happening(mut happening: Happening) -> Happening {
    if !happening.own.is_empty() && guard!("tenant-event-rules") {
        happening.message = std::mem::take(&mut happening.own);
    }
    happening
}

/// An event in the flight recorder, of the endpoint's own slot.
pub fn recorded(mut event: Recorded, slot: u32) -> Option<Recorded> {
    if event.slot != slot || !OF_A_SLOT.contains(&event.kind.as_str()) {
        return None;
    }
    event.slot = 0;
    Some(event)
}

/// An answer to whether its own may talk: what its own switch says, and of a service of
/// another tenant what it has accepted.
pub fn explanation(explanation: Explanation, name: &str) -> Explanation {
    let way = |way: Way| {
        let verdicts = way.verdicts.into_iter();
        let verdicts: Vec<Judgement> = verdicts
            .filter_map(|verdict| judgement(verdict, name))
            .collect();
        // Of a way across an agreement the other side's rules are the other tenant's: what is
        // told of it is the own half.
        let half = way.service.is_some() && guard!("tenant-explain-half");
        let offered = way.service.as_ref().is_some_and(|service| service.offered);
        let own = |stateful: bool| {
            let passes = |one: &Judgement| match one.action.as_str() {
                "allow" => true,
                "deny" => false,
                _ => !stateful,
            };
            offered && verdicts.iter().all(passes)
        };
        Way {
            allowed: if half {
                own(false) && way.bar.is_empty()
            } else {
                way.allowed
            },
            answers: if half {
                own(true) && way.bar.is_empty()
            } else {
                way.answers
            },
            half,
            service: way.service.map(|service| Translation {
                offer: service.offer,
                offered: service.offered,
                ..Translation::default()
            }),
            verdicts,
            ..way
        }
    };
    let there: Vec<Way> = explanation.there.into_iter().map(way).collect();
    Explanation {
        allowed: !there.is_empty() && there.iter().all(|way| way.allowed),
        there,
        back: explanation.back.into_iter().map(way).collect(),
        revoked: Vec::new(),
    }
}

fn judgement(verdict: Judgement, name: &str) -> Option<Judgement> {
    let own = verdict.endpoint.strip_prefix(name);
    if !own.is_some_and(|rest| rest.starts_with('/')) && guard!("tenant-verdicts") {
        return None;
    }
    let decided = RuleName {
        kind: verdict.by,
        name: verdict.name,
        place: verdict.place,
    };
    let decided = rule(decided, name);
    Some(Judgement {
        compartment: name.to_owned(),
        by: decided.kind,
        name: decided.name,
        place: decided.place,
        ..verdict
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::{Finding, Where};

    fn at(file: &str, line: u32) -> Where {
        Where {
            file: file.into(),
            line,
            column: 1,
        }
    }

    #[test]
    fn who_listens_elsewhere_is_not_told() {
        assert!(has("blue/app", "blue"));
        for other in ["bluer/app", "red/blue", "blue", ""] {
            assert!(!has(other, "blue"), "{other}");
        }
    }

    #[test]
    fn of_what_is_wrong_a_tenant_is_told_what_is_wrong_in_its_own_document() {
        let found = |file: &str, message: &str| Finding {
            message: message.into(),
            place: at(file, 3),
            ..Finding::default()
        };
        let mut whole = Fault::new("spec", Whose::User, "secret (and 2 more)", "secret");
        whole.place = Some(at("host.yaml", 7));
        whole.findings = vec![
            found("host.yaml", "secret"),
            found("blue:own.yaml", "mine"),
            found("red:own.yaml", "secret"),
        ];
        let told = fault(whole.clone(), "blue");
        assert_eq!((told.message.as_str(), told.findings.len()), ("mine", 0));
        assert_eq!(told.place, Some(at("own.yaml", 3)));
        // Where nothing of its own is wrong, only that it cannot be.
        let told = fault(whole, "green");
        assert_eq!((told.code.as_str(), told.place.clone()), ("host", None));
        assert!(!format!("{told:?}").contains("secret"));
        // What the host refuses of what is in its own document is told as it is, where it is
        // its own mistake.
        for (whose, file, tells) in [
            (Whose::User, "blue:own.yaml", true),
            (Whose::Bulkhead, "blue:own.yaml", false),
            (Whose::User, "bluer:own.yaml", false),
            (Whose::User, "host.yaml", false),
        ] {
            let mut refused = Fault::new("host", whose, "no interface lo", "`ip link`");
            refused.place = Some(at(file, 5));
            let told = fault(refused, "blue");
            assert_eq!(told.message == "no interface lo", tells, "{file}");
            assert_eq!(told.code == "spec", tells, "{file}");
        }
        for code in ["unproved", "conflict", "bulkhead", "host", "verifier"] {
            let mut other = Fault::new(code, Whose::Bulkhead, "secret", "secret");
            other.place = Some(at("red:own.yaml", 2));
            let told = format!("{:?}", fault(other, "blue"));
            assert!(!told.contains("secret") && !told.contains("red"), "{told}");
        }
    }

    #[test]
    fn of_its_own_reach_a_tenant_is_told_all_that_is_its_own() {
        let found = |code: &str, file: &str, message: &str| Finding {
            code: code.into(),
            message: message.into(),
            place: Where {
                column: 9,
                ..at(file, 8)
            },
            ..Finding::default()
        };
        let mine = "reach: blue/x (the switch in slot 3): goes from blue/x (port 1 of the switch \
                    in slot 3) to nobody: the switch in slot 3 drops it; reach (blue:own.yaml:8)";
        let others = found("reach-others", "blue:own.yaml", "secret");
        let told_of = |findings: &[Finding]| {
            let mut whole = Fault::new("unproved", Whose::User, "not proved: secret", "help");
            whole.place = Some(at("red:own.yaml", 7));
            whole.findings = findings.to_vec();
            fault(whole, "blue")
        };
        let reds = [
            found("reach", "red:own.yaml", "secret"),
            found("breach", "blue:own.yaml", "secret"),
        ];
        let mut all = vec![found("reach", "blue:own.yaml", mine)];
        all.extend(reds.clone());
        let told = told_of(&all);
        assert_eq!(
            told.message,
            "reach: blue/x (its switch): goes from blue/x (its switch) to nobody: its switch \
             drops it; reach (own.yaml:8)"
        );
        let place = told.place.clone().unwrap();
        assert_eq!(
            (place.file.as_str(), place.line, place.column),
            ("own.yaml", 8, 9)
        );
        assert!(!format!("{told:?}").contains("secret"), "{told:?}");
        let told = told_of(&[others]);
        assert!(told.message.starts_with("your reach at line 8 is not met"));
        assert!(!format!("{told:?}").contains("secret"), "{told:?}");
        assert!(!format!("{:?}", told_of(&reds)).contains("secret"));
    }

    #[test]
    fn across_an_agreement_a_tenant_is_told_its_own_half() {
        let verdict = |endpoint: &str, action: &str| Judgement {
            endpoint: endpoint.into(),
            action: action.into(),
            by: "rule".into(),
            ..Judgement::default()
        };
        let asked = |mine: &str, theirs: &str, offered: bool, between: Option<()>| {
            let passes = mine != "deny" && theirs != "deny" && offered;
            let whole = Explanation {
                allowed: passes,
                there: vec![Way {
                    allowed: passes,
                    answers: passes && theirs == "allow",
                    verdicts: vec![verdict("red/a", mine), verdict("blue/b", theirs)],
                    service: between.map(|()| Translation {
                        offered,
                        ..Translation::default()
                    }),
                    ..Way::default()
                }],
                back: vec![],
                revoked: vec![],
            };
            explanation(whole, "red")
        };
        // Whatever the other side says.
        let whole = asked("allow", "allow", true, Some(()));
        for theirs in ["deny", "allow stateless"] {
            assert_eq!(asked("allow", theirs, true, Some(())), whole);
        }
        let way = &whole.there[0];
        assert!(whole.allowed && way.allowed && way.answers && way.half);
        assert_eq!(way.verdicts.len(), 1);
        assert!(!asked("deny", "allow", true, Some(())).allowed);
        assert!(!asked("allow", "allow", false, Some(())).allowed);
        assert!(!asked("allow stateless", "allow", true, Some(())).there[0].answers);
        // What is its own alone is known whole.
        assert!(!asked("allow", "deny", true, None).there[0].half);
    }

    #[test]
    fn of_what_guardrails_did_a_tenant_is_told_no_name() {
        let row = |rule: &str| UsageRow {
            tenant: "blue".into(),
            rule: rule.into(),
            sent_bytes: 7,
            ..UsageRow::default()
        };
        let told = ["guardrail secret", "rule guardrail", "default"].map(|rule| usage(row(rule)));
        let names = told.each_ref().map(|row| row.rule.as_str());
        assert_eq!(names, ["guardrail", "rule guardrail", "default"]);
        assert!(told.iter().all(|row| row.sent_bytes == 7));
    }

    #[test]
    fn connections_of_others_are_not_shown_and_a_guardrail_has_no_name() {
        let rule = |kind: &str, file: &str| RuleName {
            kind: kind.into(),
            name: "name".into(),
            place: Some(at(file, 1)),
        };
        let between = |from: &str, to: &str| Flow {
            compartment: "zone:secret".into(),
            from: from.into(),
            to: to.into(),
            rules: [
                rule("guardrail", "host.yaml"),
                rule("rule", "blue:own.yaml"),
            ],
            ..Flow::default()
        };
        assert_eq!(flow(between("red/a", "bluer/b"), "blue"), None);
        let own = flow(between("outside (wan)", "blue/b"), "blue").unwrap();
        assert_eq!(own.compartment, "blue");
        assert_eq!(
            (own.rules[0].name.as_str(), &own.rules[0].place),
            ("", &None)
        );
        assert_eq!(own.rules[1].place, Some(at("own.yaml", 1)));
        assert_eq!(own.from, "outside");
    }

    #[test]
    fn of_a_service_each_side_is_told_its_own_addresses() {
        let translated = |from: &str, to: &str| Flow {
            from: from.into(),
            to: to.into(),
            source: "10.1.1.10:7".into(),
            destination: "10.1.200.10:80".into(),
            source_there: "10.2.0.1:9".into(),
            destination_there: "10.2.2.10:80".into(),
            translated: true,
            ..Flow::default()
        };
        let agreement = "agreement red/db with blue";
        let told = format!("{:?}", flow(translated(agreement, "red/db1"), "red"));
        assert!(told.contains("10.2.0.1") && told.contains("10.2.2.10") && !told.contains("10.1."));
        let told = format!("{:?}", flow(translated("blue/app", agreement), "blue"));
        assert!(
            told.contains("10.1.1.10") && told.contains("10.1.200.10") && !told.contains("10.2.")
        );
        let own = flow(translated("blue/app", "outside (wan)"), "blue").unwrap();
        assert!(own.translated && own.source_there == "10.2.0.1:9");
    }

    #[test]
    fn what_happens_to_others_is_not_told() {
        let world = World::default();
        let to = |endpoint: &str, target: &str| Happening {
            endpoint: endpoint.into(),
            target: target.into(),
            ..Happening::default()
        };
        assert!(happened(&to("blue/a", "zone:x"), "blue", &world));
        for (endpoint, target) in [
            ("red/a", "blue"),
            ("bluer/a", "blue"),
            ("", "controller"),
            ("", "blue"),
        ] {
            assert!(
                !happened(&to(endpoint, target), "blue", &world),
                "{endpoint}"
            );
        }
    }
}
