//! What a change means for who runs now, where no step says so: agreements that begin and end, memory that tenants come to
//! share, endpoints that are cut off, circuits that end for a rate.

use crate::deeds;
use crate::world::World;
use api::Change;
use policy::Agreement;
use spec::{Endpoint, State};
use std::collections::BTreeMap;

/// All of it, for people.
pub(super) fn meaning(old: &World, new: &World) -> Vec<Change> {
    let mut all = agreements(old, new);
    all.extend(endpoints(old, new));
    all
}

fn change(action: &str, object: String, reason: String) -> Change {
    Change {
        action: action.into(),
        object,
        reason,
    }
}

fn agreements(old: &World, new: &World) -> Vec<Change> {
    let [before, after] = [old, new].map(|world| {
        let made = world.made().into_iter();
        made.flat_map(|(_, _, intent)| &intent.agreements)
            .map(|it| (deeds::name_of(it), it.clone()))
            .collect::<BTreeMap<String, Agreement>>()
    });
    let of = |name: &String| format!("agreement {name}");
    let shares = "programs of both sides may share memory (rings)";
    let mut told = Vec::new();
    for (name, it) in &after {
        match before.get(name) {
            None => {
                let memory = if it.rings {
                    format!("; {shares}")
                } else {
                    String::new()
                };
                let reason = format!("begins: {} reaches {}{memory}", it.acceptor, it.offerer);
                told.push(change("create", of(name), reason));
            }
            Some(was) => {
                if was.tag != it.tag {
                    let reason = "another in its place: what goes by it is cut";
                    told.push(change("change", of(name), reason.into()));
                } else if was.until != it.until {
                    let reason = match it.until {
                        Some(until) => format!("ends at another time: {}", spec::Until(until)),
                        None => "has no end any more".into(),
                    };
                    told.push(change("end", of(name), reason));
                }
                match (was.rings, it.rings) {
                    (false, true) => told.push(change("change", of(name), shares.into())),
                    (true, false) => {
                        let reason = "programs of both sides share no memory any more";
                        told.push(change("change", of(name), reason.into()));
                    }
                    _ => {}
                }
            }
        }
    }
    for name in before.keys().filter(|name| !after.contains_key(*name)) {
        let reason = "no longer in force: what goes by it is cut";
        told.push(change("destroy", of(name), reason.into()));
    }
    told
}

/// An endpoint's own word, or that its circuits are counted for a rate.
struct Stands {
    state: State,
    metered: bool,
    circuits: bool,
}

fn endpoints(old: &World, new: &World) -> Vec<Change> {
    let [before, after] = [old, new].map(|world| {
        let tenants = world
            .made()
            .into_iter()
            .flat_map(|(spec, ..)| &spec.tenants);
        let each = tenants.flat_map(|tenant| {
            let named = |it: &Endpoint| format!("endpoint {}/{}", tenant.name.value, it.name.value);
            tenant
                .endpoints
                .iter()
                .map(move |it| (named(it), stands(it)))
        });
        each.collect::<BTreeMap<String, Stands>>()
    });
    let mut told = Vec::new();
    for (name, now) in after {
        let Some(was) = before.get(&name) else {
            continue;
        };
        if was.state != now.state {
            let reason = match now.state {
                State::Open => "is let in",
                State::Unauthorised => "is not admitted any more: its connections and circuits end",
                State::Quarantined => "is cut off: its connections and circuits end",
            };
            told.push(change("change", name.clone(), reason.into()));
        }
        if was.circuits && now.circuits && was.metered != now.metered {
            let reason = match now.metered {
                true => "its circuits are metered from now on: those that are not end",
                false => "its circuits are not metered any more",
            };
            told.push(change("change", name, reason.into()));
        }
    }
    told
}

fn stands(endpoint: &Endpoint) -> Stands {
    Stands {
        state: endpoint.state.map_or(State::Open, |state| state.value),
        metered: endpoint.is_metered(),
        circuits: endpoint.attach().circuits().is_some(),
    }
}
