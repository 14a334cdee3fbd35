//! The same of connections between tenants: what leaves by an agreement, and where what comes by
//! it goes.

use super::*;
use crate::decide::across;
use image::compartment::{
    CROSSING_ACCEPTOR, CROSSING_BOTH, ROUTE_SERVICE, RouteRange, RoutedPrefix, ServicePorts,
};
use image::rules::RuleTable;
use rustix::io::Errno;

/// Two tenants of one zone, who offer each other services and prefixes: with the same addresses
/// (`a`, `x`), and with their own (`d`, `z`).
fn text(seed: u64) -> String {
    let rules = [
        "action: deny, from: {endpoint: a}, to: {agreement: theirs}, protocol: tcp, ports: [81]",
        "action: allow, from: {agreement: lan}, to: {endpoint: d}, protocol: tcp, ports: [80, 443]",
        "action: deny, from: {endpoint: d}, to: {agreement: lan}, protocol: tcp, ports: [22], priority: 1",
        "action: allow, from: {endpoint: b}, to: {agreement: theirs}, protocol: tcp, state: stateless",
        "action: deny, from: {agreement: lan}, protocol: tcp, ports: [22]",
    ];
    let first = seed as usize % rules.len();
    let some = (0..4).map(|n| rules[(first + n) % rules.len()]);
    let rules: String = some
        .enumerate()
        .map(|(n, rule)| format!("        - {{name: r{n}, {rule}}}\n"))
        .collect();
    let both = ["", ", both: yes"][seed as usize % 2];
    format!(
        "version: 1
tenants:
  - name: red
    placement: {{per: zone, zone: z}}
    subnets:
      - {{name: web, prefixes: [10.1.1.0/24, 'fd00:1:1::/64']}}
      - {{name: app, prefixes: [10.1.2.0/24, 'fd00:1:2::/64']}}
    endpoints:
      - {{name: a, subnet: web, addresses: [10.1.1.10, 'fd00:1:1::10'], attach: circuits}}
      - {{name: b, subnet: web, addresses: [10.1.1.11, 'fd00:1:1::11'], attach: circuits, labels: {{role: no}}}}
      - {{name: d, subnet: app, addresses: [10.1.2.10, 'fd00:1:2::10'], attach: circuits}}
      - {{name: q, subnet: app, addresses: [10.1.2.12], attach: circuits, state: quarantined}}
    policy:
      default: allow
      rules:
{rules}    accepts:
      - {{name: theirs, from: blue, service: web, as: [10.1.200.10, 'fd00:1:200::10'], endpoints: {{endpoint: [a, d, q]}}}}
    offers:
      - {{name: lan, route: [10.1.2.0/24, 'fd00:1:2::/64'], users: [10.2.0.0/16], to: [blue]{both}}}
  - name: blue
    placement: {{per: zone, zone: z}}
    subnets:
      - {{name: web, prefixes: [10.1.1.0/24, 'fd00:1:1::/64']}}
      - {{name: own, prefixes: [10.2.1.0/24]}}
    endpoints:
      - {{name: x, subnet: web, addresses: [10.1.1.10, 'fd00:1:1::10'], attach: {{veth: {{circuits: {{}}}}}}}}
      - {{name: y, subnet: web, addresses: [10.1.1.12, 'fd00:1:1::12'], attach: circuits}}
      - {{name: z, subnet: own, addresses: [10.2.1.10], attach: circuits}}
    policy:
      rules: [{{name: in, action: deny, from: {{agreement: web}}, protocol: tcp, ports: [443]}}]
    offers:
      - {{name: web, endpoint: x, protocol: tcp, ports: [80-90, 443], to: [red], pool: [10.1.250.0/28, 'fd00:1:250::/64']}}
    accepts:
      - {{name: reds, from: red, service: lan, route: [10.1.2.0/24], users: [10.2.1.0/24]{both}}}
"
    )
}

/// Connections from everybody to everybody, to services, to what nobody has.
fn asks(tables: &CompartmentTables) -> Vec<Asked> {
    let own = |asked: &Asked| {
        let endpoint = tables.endpoints.iter().position(|e| e.slot == asked.slot);
        tables
            .addresses
            .contains(&(endpoint.unwrap() as u32, asked.to))
    };
    let ports = |asked: &Asked| [22, 80, 81, 443].map(|to_port| Asked { to_port, ..*asked });
    let all = super::asks(tables).into_iter();
    let all = all.filter(|asked| (asked.protocol, asked.to_port) == (6, 22) && !own(asked));
    all.flat_map(|asked| ports(&asked)).collect()
}

/// By which tag it leaves, and where it comes; by none, or nowhere.
type Went = Option<(u16, Option<u32>)>;

/// The tag of the other side of an agreement.
fn beyond(image: &CompartmentImage<'_>, tag: u16) -> u16 {
    let (_, own) = image.crossing_by_tag(tag).unwrap();
    let all = image.crossings().iter();
    let mut other = all.filter(|c| c.agreement == own.agreement && c.tag != tag);
    other.next().unwrap().tag
}

/// What both sides' operators decide.
fn decided(image: &CompartmentImage<'_>, asked: &Asked) -> Went {
    if decide(image, asked).is_ok() {
        return None;
    }
    let tag = across::leaves(image, asked)?.ok()?.tag;
    let arrives = across::arrives(image, beyond(image, tag), asked, 7).ok();
    if let Some(arrives) = &arrives {
        // As its program sees it, it may go on.
        let stays = Asked {
            slot: arrives.slot,
            from: arrives.client,
            to: arrives.local,
            ..*asked
        };
        let stays = across::stays_here(image, beyond(image, tag), &stays);
        assert_eq!(stays, Ok(arrives.rule));
    }
    Some((tag, arrives.map(|arrives| arrives.slot)))
}

/// What a switch that has just started does with the first packet, and with what it handed to the
/// fabric as the other side.
fn switched(image: &MappedCompartment<Aligned>, asked: &Asked) -> Went {
    let (to, tag, frame) = handed(image, asked)?;
    if to != FABRIC {
        return None;
    }
    let tables = image.image();
    let slot = traced(&tables, FABRIC, beyond(&tables, tag), &frame);
    Some((tag, slot.map(|(slot, ..)| slot)))
}

/// Whether the sender's table lets it pass without its answers, which no circuit does.
fn is_stateless_here(image: &CompartmentImage<'_>, asked: &Asked) -> bool {
    let at = image.endpoint_by_slot(asked.slot).unwrap();
    let egress = image.endpoints()[at as usize].egress;
    let tuple = Tuple {
        source: asked.from,
        destination: asked.to,
        source_port: asked.from_port,
        destination_port: asked.to_port,
        protocol: asked.protocol,
    };
    egress != NONE && image.judge(egress, &tuple).action == Action::AllowStateless
}

/// A host, with what is installed for it.
fn host(seed: u64) -> Host {
    Host::of(&text(seed))
}

#[test]
fn operators_of_both_sides_let_across_an_agreement_what_switches_would() {
    let (mut crossed, mut stopped, mut kept) = (0, 0, 0);
    for seed in 0..10 {
        let host = host(seed);
        assert_eq!(host.breaches(), [], "{seed}");
        let memory = MappedCompartment::map(Aligned::copy_of(&host.image)).unwrap();
        let image = memory.image();
        for asked in asks(&host.tables()) {
            let (here, there) = (decided(&image, &asked), switched(&memory, &asked));
            match is_stateless_here(&image, &asked) {
                true => assert_eq!(here, None, "{seed}: {asked:?}"),
                false => assert_eq!(here, there, "{seed}: {asked:?}"),
            }
            match here {
                Some((_, Some(_))) => crossed += 1,
                Some((_, None)) => stopped += 1,
                None => kept += 1,
            }
        }
    }
    assert!(
        crossed > 100 && stopped > 10 && kept > 1_000,
        "{crossed} {stopped} {kept}"
    );
}

/// What a side that is taken over might say, and a program that has taken another's address.
#[test]
fn nobody_comes_across_an_agreement_who_may_not_begin_and_nobody_leaves_as_another() {
    // Of an even seed who offers prefixes begins nothing. No rule stands in for what is offered.
    let open = "default: allow\n      rules: [{name: in";
    let host = Host::of(&text(0).replace("rules: [{name: in", open));
    let memory = MappedCompartment::map(Aligned::copy_of(&host.image)).unwrap();
    let image = memory.image();
    let asks = asks(&host.tables());
    let ends = |tag: u16| image.crossing_by_tag(tag).unwrap().1;
    let arrive = |tag: u16| {
        let came = asks
            .iter()
            .map(|asked| across::arrives(&image, tag, asked, 7).map_err(Errno::from));
        let (came, refused): (Vec<_>, Vec<_>) = came.partition(Result::is_ok);
        (came.len(), refused.contains(&Err(Errno::ACCESS)))
    };
    let tags = image.crossings().iter().map(|crossing| crossing.tag);
    for tag in tags {
        let (came, refused) = arrive(tag);
        assert_eq!(came > 0, ends(tag).is_begun_with(), "{tag}");
        // Nor at a port that is not offered.
        let offered = ends(tag).is_routed()
            || asks.iter().all(|asked| {
                let comes = across::arrives(&image, tag, asked, 7).is_ok();
                !comes || [80, 81, 443].contains(&asked.to_port)
            });
        assert!(offered, "{tag}");
        assert!(refused, "{tag}");
    }
    let mut left = 0;
    for asked in &asks {
        let leaves = across::leaves(&image, asked);
        left += u32::from(leaves.is_some_and(|it| it.is_ok()));
        let others = asks
            .iter()
            .filter(|it| it.slot != asked.slot && it.from != asked.from);
        for other in others.take(20) {
            let as_other = Asked {
                from: other.from,
                ..*asked
            };
            assert_eq!(across::leaves(&image, &as_other), None, "{as_other:?}");
        }
    }
    assert!(left > 10, "{left}");
}

#[test]
fn memory_is_shared_where_both_sides_ask_for_it() {
    let texts = ["pool: [10.1.250.0/28, 'fd00:1:250::/64']", "service: web"];
    for (both, asked) in [(true, 2), (false, 1)] {
        let mut text = text(0);
        for line in &texts[..asked] {
            text = text.replace(line, &format!("{line}, rings: yes"));
        }
        let host = Host::of(&text);
        let memory = MappedCompartment::map(Aligned::copy_of(&host.image)).unwrap();
        let image = memory.image();
        let tags = image.crossings().iter();
        let shares = tags.filter(|it| across::shares(&image, it.tag)).count();
        // Of both agreements one, and of that both sides, which are of one zone.
        assert_eq!(shares, if both { 2 } else { 0 });
    }
}

/// So many of each kind are found.
const EACH: usize = 3;
/// What can be planted.
const KINDS: [&str; 10] = [
    "a port more",
    "a port less",
    "another serves",
    "another address leads there",
    "a prefix more",
    "who offers begins",
    "a rule is gone",
    "another table here",
    "another table there",
    "somebody is let in",
];

/// The index of a table that denies nothing.
fn anything(tables: &mut CompartmentTables) -> u32 {
    tables.rule_tables.push(RuleTable {
        rules: Vec::new(),
        default: Action::Allow,
    });
    tables.rule_tables.len() as u32 - 1
}

/// Changes the tables; `None`: there is nothing of the kind to change.
fn plant(kind: &str, tables: &mut CompartmentTables, dice: &mut Dice) -> Option<()> {
    let crossing = |tables: &CompartmentTables, is: &dyn Fn(&Crossing) -> bool| {
        let at = tables.crossings.iter().position(is)?;
        Some((at as u32, tables.crossings[at]))
    };
    let service = |role: u16| move |c: &Crossing| c.role == role && !c.is_routed();
    let of = |tables: &CompartmentTables, address: &str| {
        let address = spec::mapped(address.parse().unwrap());
        let found = tables.addresses.iter().find(|(_, a)| *a == address);
        found.map(|found| found.0)
    };
    let some = dice.below(tables.endpoints.len());
    match kind {
        // Either side alone would stop it, and the rules that follow from what is agreed.
        "a port more" => {
            let open = anything(tables);
            for endpoint in &mut tables.endpoints {
                (endpoint.egress, endpoint.ingress) = (open, open);
            }
            for role in [CROSSING_ACCEPTOR, CROSSING_OFFERER] {
                let (at, _) = crossing(tables, &service(role))?;
                let ports = ServicePorts {
                    protocol: 6,
                    first: 22,
                    last: 22,
                    ..ServicePorts::default()
                };
                tables.service_ports.push((at, ports));
            }
        }
        "a port less" => {
            let role = [CROSSING_ACCEPTOR, CROSSING_OFFERER][dice.below(2)];
            let (at, _) = crossing(tables, &service(role))?;
            tables
                .service_ports
                .retain(|(of, ports)| *of != at || ports.first > 90);
        }
        "another serves" => {
            let (at, _) = crossing(tables, &service(CROSSING_OFFERER))?;
            let other = of(tables, "10.1.1.12")?;
            let crossing = &mut tables.crossings[at as usize];
            crossing.endpoint = other;
            crossing.address4 = [10, 1, 1, 12];
            crossing.address6[15] = 0x12;
        }
        "another address leads there" => {
            let (at, asks) = crossing(tables, &service(CROSSING_ACCEPTOR))?;
            let via = |route: &Route| route.kind == ROUTE_SERVICE && route.via == at;
            let route = tables.routes.iter().position(via)? as u32;
            let address = spec::mapped("192.0.2.1".parse().unwrap());
            let range = RouteRange {
                start: address,
                end: address,
                route,
                reserved: [0; 3],
            };
            tables.ranges.push((asks.tenant, range));
        }
        "a prefix more" => {
            let routed = |c: &Crossing| c.is_routed() && c.role == CROSSING_OFFERER && c.begins();
            let (at, _) = crossing(tables, &routed)?;
            let prefix = RoutedPrefix {
                prefix: spec::mapped("10.1.1.0".parse().unwrap()),
                len: 120,
                theirs: 0,
            };
            tables.routed_prefixes.push((at, prefix));
            let b = of(tables, "10.1.1.11")?;
            tables.endpoints[b as usize].egress = anything(tables);
        }
        "who offers begins" => {
            let shut = |c: &Crossing| c.is_routed() && c.role == CROSSING_OFFERER && !c.begins();
            let (at, _) = crossing(tables, &shut)?;
            tables.crossings[at as usize].flags |= CROSSING_BOTH;
            let d = of(tables, "10.1.2.10")?;
            tables.endpoints[d as usize].egress = anything(tables);
        }
        "a rule is gone" => {
            let rules = tables.rule_tables.iter().flat_map(|table| &table.rules);
            let ids: Vec<u32> = rules.map(|rule| rule.id).collect();
            let id = ids.get(dice.below(ids.len())).copied()?;
            for table in &mut tables.rule_tables {
                table.rules.retain(|rule| rule.id != id);
            }
        }
        "another table here" => tables.endpoints[some].egress = anything(tables),
        "another table there" => tables.endpoints[some].ingress = anything(tables),
        _ => {
            let mut all = tables.endpoints.iter_mut();
            all.find(|e| e.state != STATE_OPEN)?.state = STATE_OPEN;
        }
    }
    Some(())
}

#[test]
fn whatever_would_have_them_decide_otherwise_across_an_agreement_is_found() {
    let mut found: BTreeMap<&str, usize> = KINDS.map(|kind| (kind, 0)).into();
    for (seed, kind) in (0..SEEDS).flat_map(|seed| KINDS.map(|kind| (seed, kind))) {
        if found.get(kind) == Some(&EACH) {
            continue;
        }
        let mut dice = Dice(seed);
        let mut host = host(seed);
        let honest = Aligned::copy_of(&host.image);
        let mut tables = host.tables();
        let all = asks(&tables);
        if plant(kind, &mut tables, &mut dice).is_none() {
            continue;
        }
        let Ok(image) = tables.finish() else { continue };
        host.image = image;
        let Ok(memory) = MappedCompartment::map(Aligned::copy_of(&host.image)) else {
            continue;
        };
        let planted = memory.image();
        let honest = CompartmentImage::map(honest.as_ref()).unwrap();
        let other = |asked: &&Asked| decided(&planted, asked) != decided(&honest, asked);
        let Some(differs) = all.iter().find(other) else {
            continue;
        };
        assert!(
            !host.breaches().is_empty(),
            "{seed}: {kind}: {differs:?} is not found"
        );
        *found.entry(kind).or_default() += 1;
        // There, too, they decide as a switch does.
        for asked in all.iter().filter(other).take(20) {
            let there = switched(&memory, asked);
            if !is_stateless_here(&planted, asked) {
                assert_eq!(decided(&planted, asked), there, "{seed}: {kind}: {asked:?}");
            }
        }
    }
    let all: usize = found.values().sum();
    assert_eq!(all, EACH * KINDS.len(), "{found:?}");
}
