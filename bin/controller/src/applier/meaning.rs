//! What a change means for who runs now, where no step says so: agreements that begin and end, memory that tenants come to
//! share, endpoints that are cut off, circuits that end for a rate, an address or a rule, what holds where no rule decides.

use crate::deeds;
use crate::world::World;
use api::Change;
use core::ops::RangeInclusive;
use policy::Agreement;
use spec::{Action, Attach, Endpoint, Prefix, State, Tenant};
use std::collections::{BTreeMap, BTreeSet};

/// All of it, for people.
pub(super) fn meaning(old: &World, new: &World) -> Vec<Change> {
    let mut all = agreements(old, new);
    all.extend(endpoints(old, new));
    all.extend(rules(old, new));
    all.extend(defaults(old, new));
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
    let with = new
        .tenants()
        .iter()
        .filter(|one| one.endpoints.iter().any(|it| it.circuits));
    let with_circuits: BTreeSet<&String> = with.map(|one| &one.name).collect();
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
                } else {
                    if was.until != it.until {
                        let reason = match it.until {
                            Some(until) => format!("ends at another time: {}", spec::Until(until)),
                            None => "has no end any more".into(),
                        };
                        told.push(change("end", of(name), reason));
                    }
                    let sides = [&it.offerer, &it.acceptor];
                    if sides.iter().any(|side| with_circuits.contains(*side)) {
                        let ends = ended(was, it).into_iter();
                        told.extend(ends.map(|reason| change("change", of(name), reason)));
                    }
                }
                match (was.rings, it.rings) {
                    (false, true) => told.push(change("change", of(name), shares.into())),
                    (true, false) => {
                        let reason = "programs of both sides share no memory any more: circuits by rings end";
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

/// Which circuits by an agreement end, for it is in force in another way. Both sides read it: which addresses and endpoints the
/// other has is not said.
fn ended(was: &Agreement, is: &Agreement) -> Vec<String> {
    let has = |all: &[Prefix], one: &Prefix| all.iter().any(|it| it.includes(one));
    // Services have none of these.
    let offered = |of: &Agreement| of.routed.clone().map_or(Vec::new(), |it| it.offered);
    let (now, before) = (offered(is), offered(was));
    // No ports: all of them.
    let holds = |it: &RangeInclusive<u16>| {
        let within = |now: &RangeInclusive<u16>| now.contains(it.start()) && now.contains(it.end());
        is.ports.is_empty() || is.ports.iter().any(within)
    };
    let loses = [
        (
            was.routed.is_some() != is.routed.is_some(),
            "is of prefixes in place of a service, or no longer: its circuits end",
        ),
        (
            was.endpoint != is.endpoint,
            "is served by another endpoint: circuits to the one before end",
        ),
        (
            !was.addresses.iter().all(|it| is.addresses.contains(it)),
            "is at other addresses of who accepts (`as`): circuits by those before end",
        ),
        (
            !before.iter().all(|it| has(&now, it)),
            "routes less: circuits to what it routes no more end",
        ),
        (
            !was.pool.iter().all(|it| has(&is.pool, it)),
            "has its users at other addresses (`pool`, `users`): circuits from those before end",
        ),
        (
            !was.ports.iter().all(holds) || was.ports.is_empty() && !is.ports.is_empty(),
            "has other ports: circuits to those that it has no more end",
        ),
        (
            is.protocol != was.protocol && is.protocol.is_some_and(|it| it != TCP),
            "is of another protocol: its circuits end",
        ),
        (
            was.both() && !is.both(),
            "is begun by one side alone: circuits that the other began end",
        ),
    ];
    let loses = loses.into_iter().filter(|(ends, _)| *ends);
    loses.map(|(_, reason)| reason.to_owned()).collect()
}

const TCP: u8 = 6;

/// What of an endpoint means something for its programs.
struct Stands {
    state: State,
    /// Circuits alone, and how they are counted.
    meter: Option<Meter>,
    /// Of circuits alone: beside an interface other addresses are another port, which says so.
    addresses: Vec<String>,
}

/// What is asked of its circuits' bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Meter {
    Uncounted,
    Counted,
    Rate,
}

fn endpoints(old: &World, new: &World) -> Vec<Change> {
    let [before, after] = [old, new].map(|world| {
        let tenants = world
            .made()
            .into_iter()
            .flat_map(|(spec, ..)| &spec.tenants);
        let each = tenants.flat_map(|tenant| {
            let of = tenant.name.value.as_str();
            let named = move |it: &Endpoint| format!("endpoint {of}/{}", it.name.value);
            let stands = move |it: &Endpoint| stands(world, of, it);
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
            if matches!(now.meter, Some(Meter::Counted | Meter::Rate)) {
                told.push(change("change", name, NO_UDP.into()));
            }
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
        let gone: Vec<&str> = (was.addresses.iter())
            .filter(|it| !now.addresses.contains(it))
            .map(String::as_str)
            .collect();
        if let (Some(_), false) = (now.meter, gone.is_empty()) {
            let reason = format!(
                "is no more at {}: its circuits by that end",
                gone.join(", ")
            );
            told.push(change("change", name.clone(), reason));
        }
        if let (Some(was), Some(now)) = (was.meter, now.meter)
            && let Some(reason) = metered(was, now)
        {
            told.push(change("change", name.clone(), reason.into()));
            if was == Meter::Uncounted {
                told.push(change("change", name, NO_UDP.into()));
            }
        }
    }
    told
}

/// Of who is metered: programs that look names up notice first.
const NO_UDP: &str =
    "its circuits are metered: no UDP but inside it, so that names are to be looked up by TCP";

fn stands(world: &World, tenant: &str, endpoint: &Endpoint) -> Stands {
    let alone = matches!(endpoint.attach(), Attach::Circuits(_));
    let addresses = world.endpoint(tenant, endpoint.name.as_str());
    let addresses = addresses.filter(|_| alone).map(|it| it.addresses.clone());
    Stands {
        state: endpoint.state.map_or(State::Open, |state| state.value),
        meter: alone.then(|| match endpoint.is_metered() {
            _ if endpoint.limits_circuits() => Meter::Rate,
            true => Meter::Counted,
            false => Meter::Uncounted,
        }),
        addresses: addresses.unwrap_or_default(),
    }
}

/// How a circuit is carried is settled when it begins: only past a rate none goes on.
fn metered(was: Meter, now: Meter) -> Option<&'static str> {
    match (was, now) {
        (Meter::Uncounted, Meter::Counted) => {
            Some("circuits that begin from now on are metered: those that are not go on uncounted")
        }
        (Meter::Uncounted | Meter::Counted, Meter::Rate) => {
            Some("its circuits have a rate from now on: those that are not metered end")
        }
        (Meter::Rate, Meter::Counted) => {
            Some("its circuits have no rate any more, and are metered all the same")
        }
        (Meter::Counted | Meter::Rate, Meter::Uncounted) => {
            Some("circuits that begin from now on are not metered")
        }
        _ => None,
    }
}

/// Tenants with circuits whose rules are others: which circuits that ends only their operators know.
fn rules(old: &World, new: &World) -> Vec<Change> {
    let (Some((was, ..)), Some((is, ..))) = (old.made(), new.made()) else {
        return Vec::new();
    };
    let guarded = was.guardrails != is.guardrails;
    let before: BTreeMap<&str, &Tenant> = (was.tenants.iter())
        .map(|tenant| (tenant.name.as_str(), tenant))
        .collect();
    let mut told = Vec::new();
    for tenant in &is.tenants {
        let has = |of: &Tenant| {
            of.endpoints
                .iter()
                .any(|it| it.attach().circuits().is_some())
        };
        let both = before.get(tenant.name.as_str()).copied();
        let Some(before) = both.filter(|before| has(before) && has(tenant)) else {
            continue;
        };
        if guarded || decides(before) != decides(tenant) {
            let reason = "circuits of its endpoints that they allow no longer end";
            let object = format!("rules of {}", tenant.name.value);
            told.push(change("change", object, reason.into()));
        }
    }
    told
}

/// Tenants of which another answer holds where no rule decides: that the tables change says nothing of it.
fn defaults(old: &World, new: &World) -> Vec<Change> {
    let (Some((was, ..)), Some((is, ..))) = (old.made(), new.made()) else {
        return Vec::new();
    };
    let before: BTreeMap<&str, &Tenant> = (was.tenants.iter())
        .map(|tenant| (tenant.name.as_str(), tenant))
        .collect();
    let both = is.tenants.iter().filter_map(|tenant| {
        let before = before.get(tenant.name.as_str())?;
        Some((*before, tenant))
    });
    let told = both.filter_map(|(before, tenant)| {
        let reason = other_default(before, tenant)?;
        Some(change(
            "change",
            format!("default of {}", tenant.name.value),
            reason,
        ))
    });
    told.collect()
}

/// `deny becomes allow`, with the directions where it is not so in all.
fn other_default(before: &Tenant, after: &Tenant) -> Option<String> {
    let [was, is] = [before, after].map(|tenant| {
        let all = tenant.defaults();
        [all.inside, all.inbound, all.outbound]
    });
    let mut told = Vec::new();
    for (now, words) in [
        (Action::Deny, "allow becomes deny"),
        (Action::Allow, "deny becomes allow"),
    ] {
        let directions = ["inside", "inbound", "outbound"];
        let others = directions.iter().zip(was.iter().zip(&is));
        let others: Vec<&str> = others
            .filter(|(_, (was, is))| was != is && **is == now)
            .map(|(direction, _)| *direction)
            .collect();
        match others.len() {
            0 => {}
            3 => told.push(words.to_owned()),
            _ => told.push(format!("{}: {words}", others.join(", "))),
        }
    }
    let why = match (&before.policy, &after.policy) {
        (None, Some(_)) => " (there was no policy)",
        (Some(_), None) => " (there is no policy any more)",
        _ => "",
    };
    (!told.is_empty()).then(|| format!("{}{why}", told.join("; ")))
}

/// All that a tenant's rules are made of, whom they mean included.
fn decides(tenant: &Tenant) -> impl PartialEq {
    let policy = tenant.policy.as_ref();
    let labels = tenant.endpoints.iter();
    let labels = labels.map(|it| (it.name.value.clone(), it.labels.clone()));
    (
        policy.map(|policy| (policy.default, policy.rules.clone())),
        labels.collect::<BTreeMap<_, _>>(),
    )
}
