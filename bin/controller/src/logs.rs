//! What rules that log decided: from the switches' and operators' flight recorders to the events.

use crate::names::Names;
use crate::pages::logged_packet;
use crate::server::Server;
use crate::survey::Survey;
use crate::view;
use api::RuleName;
use std::collections::BTreeMap;
use std::time::Duration;
use telemetry::recorder::EventKind;
use telemetry::rules::Logged;

/// Between two looks. A recorder of 4,096 events holds what is logged in minutes.
const EVERY: Duration = Duration::from_secs(1);

/// So many of a compartment are told at a time: who writes within its rates has fewer, of each of a
/// switch's workers 20 a second.
const MOST: usize = 200;

/// Tells as long as the server lives; only looks where a rule logs, or did.
pub async fn tell(server: &Server) {
    let started = crate::routes::now_ns();
    let mut told: BTreeMap<u32, [u64; 2]> = BTreeMap::new();
    let mut logged = false;
    loop {
        tokio::time::sleep(EVERY).await;
        let world = server.world.world();
        let logs = world.made().is_some_and(|(spec, _, _)| {
            let tenants = spec.tenants.iter().flat_map(|tenant| &tenant.policy);
            spec.guardrails.iter().any(|rail| rail.log())
                || tenants
                    .flat_map(|policy| &policy.rules)
                    .any(|rule| rule.log())
        });
        // Once more after the last one is gone, for what it decided since.
        if !std::mem::replace(&mut logged, logs) && !logs {
            continue;
        }
        let survey = Survey::take(&server.supervisor, &world).await;
        let names = Names::of(&world);
        for compartment in world.compartments() {
            let Some(pages) = survey.pages(compartment.id) else {
                continue;
            };
            let next = told.get(&compartment.id).copied().unwrap_or_default();
            let (events, next) = pages.recorded_since(&[EventKind::Rule], next, started);
            told.insert(compartment.id, next);
            // The newest: a process that writes its page as it likes has nobody else's lost.
            let more = events.len().saturating_sub(MOST);
            if more > 0 {
                let message = format!("{more} decisions of rules that log were too many to tell");
                server
                    .happenings
                    .told(compartment.id, "rule", &compartment.name, message);
            }
            for event in events.into_iter().skip(more) {
                let logged = Logged::of([event.a, event.b]);
                let endpoint = world
                    .name_at(compartment.id, event.slot)
                    .unwrap_or_default();
                let tenant = match (endpoint.split_once('/'), &compartment.tenants[..]) {
                    (Some((tenant, _)), _) => tenant,
                    (None, [one]) => one,
                    (None, _) => "",
                };
                let rule = names.rule(logged.rule);
                let own = view::rule(rule.clone(), tenant);
                let packet = logged_packet(&logged);
                let messages =
                    [rule, own].map(|rule| format!("{endpoint}: {} {packet}", called(&rule)));
                let name = &compartment.name;
                server
                    .happenings
                    .of_rule(compartment.id, name, endpoint, messages);
            }
        }
        told.retain(|id, _| world.compartment(*id).is_some());
    }
}

fn called(rule: &RuleName) -> String {
    let place = rule.place.as_ref();
    let place = place.map_or_else(String::new, |at| format!(" ({}:{})", at.file, at.line));
    match rule.name.as_str() {
        "" => rule.kind.clone(),
        name => format!("{} {name}{place}", rule.kind),
    }
}
