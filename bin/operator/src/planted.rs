//! What an operator decides, held against what a switch does by the same image and against what
//! the proof says of that image. Hosts are compiled from specs; breaches are planted in their
//! images, those of agreements too.

mod across;

use crate::decide::{Asked, decide};
use image::compartment::{
    CROSSING_OFFERER, Crossing, NONE, ROUTE_SUBNET, ROUTE_UNREACHABLE, Route, STATE_OPEN, Subnet,
};
use image::rules::{Action, Rule};
use image::{Aligned, CompartmentImage, CompartmentTables, MappedCompartment};
use policy::{Ids, Intent};
use proof::{Breach, Claim, Known, Read, prove};
use std::cell::RefCell;
use std::collections::BTreeMap;
use switch::{Config, FABRIC, Finish, HEAD, Ingress, Outgoing, Output, Slot, Switch};
use telemetry::counters::Counter;
use telemetry::drops::DropReason;
use telemetry::trace::{Record, Step};
use wire::offload::RawOffload;
use wire::{MacAddress, Probe, Tuple};

/// 2026-01-01, seconds since 1970.
const NOW: u64 = 1_767_225_600;
/// Hosts in which something of each kind is planted, until enough of it was found.
const SEEDS: u64 = 60;
/// Of each kind so many are found.
const EACH: usize = 5;

/// Two tenants of one zone, whose image is one: red's endpoints of circuits are in two subnets,
/// both families; both tenants have the same addresses, and offer each other a service.
fn text(seed: u64) -> String {
    let rules = [
        "action: allow, from: {endpoint: a}, to: {endpoint: [b, d]}, protocol: tcp, ports: [80, 443]",
        "action: allow, from: {subnet: web}, to: {subnet: app}, protocol: udp, ports: [53, 5000-5999]",
        "action: deny, from: {endpoint: d}, to: {endpoint: a}, protocol: tcp, ports: [22], priority: 1",
        "action: allow, from: {subnet: app}, to: {endpoint: a}, protocol: tcp",
        "action: allow, from: {endpoint: b}, to: {endpoint: a}, protocol: udp, state: stateless",
    ];
    let first = seed as usize % rules.len();
    let some = (0..4).map(|n| rules[(first + n) % rules.len()]);
    let named = some.enumerate();
    let rules: String = named
        .map(|(n, rule)| format!("        - {{name: r{n}, {rule}}}\n"))
        .collect();
    let default = ["deny", "{inside: deny, inbound: deny, outbound: deny}"][seed as usize % 2];
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
      - {{name: b, subnet: web, addresses: [10.1.1.11, 'fd00:1:1::11'], attach: circuits}}
      - {{name: d, subnet: app, addresses: [10.1.2.10, 'fd00:1:2::10'], attach: circuits}}
      - {{name: e, subnet: app, addresses: [10.1.2.11], attach: {{veth: {{circuits: {{}}}}}}}}
      - {{name: q, subnet: app, addresses: [10.1.2.12], attach: circuits, state: quarantined}}
    policy:
      default: {default}
      rules:
{rules}    accepts: [{{name: theirs, from: blue, service: web, as: [10.1.200.10, 'fd00:1:200::10']}}]
  - name: blue
    placement: {{per: zone, zone: z}}
    subnets: [{{name: web, prefixes: [10.1.1.0/24, 'fd00:1:1::/64']}}]
    endpoints:
      - {{name: x, subnet: web, addresses: [10.1.1.10, 'fd00:1:1::10'], attach: {{veth: {{circuits: {{}}}}}}}}
      - {{name: y, subnet: web, addresses: [10.1.1.12, 'fd00:1:1::12'], attach: circuits}}
    offers: [{{name: web, endpoint: x, protocol: tcp, ports: [80], to: [red], pool: [10.1.250.0/28, 'fd00:1:250::/64']}}]
"
    )
}

struct Host {
    spec: Read,
    numbers: Vec<u8>,
    intent: Intent,
    slot: u32,
    /// What is installed in the zone's compartment.
    image: Vec<u8>,
}

impl Host {
    fn new(seed: u64) -> Host {
        Host::of(&text(seed))
    }

    fn of(text: &str) -> Host {
        let spec = spec::parse("spec.yaml", text.as_bytes());
        let spec = spec.unwrap_or_else(|errors| panic!("{errors}"));
        let ids = Ids::assign(&spec, &Ids::default());
        let intent = policy::compile(&spec, &ids, NOW).unwrap_or_else(|e| panic!("{}", e[0]));
        let compartment = intent.compartment_of("red").unwrap();
        Host {
            slot: compartment.create.id,
            image: compartment.image.bytes.to_vec(),
            numbers: serde_json::to_vec(&ids).unwrap(),
            spec: Read::new(spec),
            intent,
        }
    }

    fn breaches(&self) -> Vec<Breach> {
        let claim = Claim {
            spec: &self.spec,
            numbers: &self.numbers,
            now: NOW,
            fabric: &self.intent.fabric.bytes,
            compartments: BTreeMap::from([(self.slot, &self.image[..])]),
            compromised: None,
            before: BTreeMap::new(),
            counted: false,
        };
        prove(&claim, &mut Known::default())
            .err()
            .unwrap_or_default()
    }

    fn tables(&self) -> CompartmentTables {
        let memory = Aligned::copy_of(&self.image);
        CompartmentImage::map(memory.as_ref()).unwrap().decode()
    }
}

/// Connections and datagrams between all addresses that there are, and to some that nobody has.
fn asks(honest: &CompartmentTables) -> Vec<Asked> {
    let mut others: Vec<[u8; 16]> = honest.addresses.iter().map(|a| a.1).collect();
    let nobodys = ["10.1.1.77", "10.1.200.10", "fd00:1:200::10", "192.0.2.1"];
    others.extend(nobodys.map(|a| spec::mapped(a.parse().unwrap())));
    others.sort_unstable();
    others.dedup();
    let mut all = Vec::new();
    let own = |endpoint: u32, to: &[u8; 16]| honest.addresses.contains(&(endpoint, *to));
    for (endpoint, from) in &honest.addresses {
        // Inside an endpoint nobody is asked.
        for to in others.iter().filter(|to| !own(*endpoint, to)) {
            for (protocol, port) in [(6, 22), (6, 80), (6, 81), (17, 53), (17, 5001), (17, 81)] {
                all.push(Asked {
                    slot: honest.endpoints[*endpoint as usize].slot,
                    from: *from,
                    from_port: 40_000,
                    to: *to,
                    to_port: port,
                    protocol,
                });
            }
        }
    }
    all.retain(|asked| {
        let four = |a: &[u8; 16]| wire::address::unmapped(a).is_some();
        four(&asked.from) == four(&asked.to)
    });
    all
}

/// To whom the operator lets it go; `None`: it refuses.
fn decided(image: &CompartmentImage<'_>, asked: &Asked) -> Option<u32> {
    decide(image, asked).ok().map(|decided| decided.slot)
}

/// To whom a switch that has just started hands its first packet; `None`: it drops it, or it is
/// for elsewhere.
fn switched(image: &MappedCompartment<Aligned>, asked: &Asked) -> Option<u32> {
    let (to, ..) = handed(image, asked)?;
    (to != FABRIC).then_some(to)
}

/// The same to whom, by which tag, and the frame.
fn handed(image: &MappedCompartment<Aligned>, asked: &Asked) -> Option<(u32, u16, Vec<u8>)> {
    let tables = image.image();
    let at = tables.endpoint_by_slot(asked.slot)?;
    let sender = tables.endpoints().get(at as usize)?;
    let near = tables.endpoint_by_address(sender.subnet, asked.to);
    let near = near.and_then(|at| tables.endpoints().get(at as usize));
    let gateway = tables.subnets()[sender.subnet as usize].gateway_mac;
    let mac = near.map_or(gateway, |near| near.mac);
    let packet = Tuple {
        source: asked.from,
        destination: asked.to,
        source_port: asked.from_port,
        destination_port: asked.to_port,
        protocol: asked.protocol,
    };
    let probe = Probe::first(MacAddress(sender.mac), MacAddress(mac), packet, 1);
    let mut frame = vec![0; 200];
    let length = probe.emit(&mut frame).unwrap();
    frame.truncate(length);
    traced(&tables, asked.slot, 0, &frame)
}

thread_local! {
    /// One for all: a new one's memory is made zero, which takes longer than all that is asked of it.
    static SWITCH: RefCell<Switch> = RefCell::new(Switch::new(Config::default()));
}

/// What becomes of a frame that comes from there.
fn traced(
    tables: &CompartmentImage<'_>,
    from: u32,
    tag: u16,
    frame: &[u8],
) -> Option<(u32, u16, Vec<u8>)> {
    let mut head = frame[..frame.len().min(HEAD)].to_vec();
    let ingress = Ingress {
        from,
        tag,
        offload: RawOffload::default(),
        head: &mut head,
        total: frame.len(),
    };
    let mut record = Record::default();
    SWITCH.with_borrow_mut(|switch| {
        switch.use_image(tables, 1);
        switch.trace(tables, 1, ingress, false, &mut record, &mut Nowhere(frame));
    });
    let dropped = record
        .steps()
        .iter()
        .any(|step| matches!(step, Step::Dropped { .. }));
    let (to, tag, frame) = record.left().filter(|_| !dropped)?;
    Some((to, tag, frame.to_vec()))
}

/// Nothing is sent.
struct Nowhere<'a>(&'a [u8]);

impl Output for Nowhere<'_> {
    fn ingress(&mut self, offset: usize, into: &mut [u8]) -> usize {
        let rest = self.0.get(offset..).unwrap_or(&[]);
        into.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
        rest.len().min(into.len())
    }
    fn send(&mut self, _: &Outgoing<'_>) {}
    fn finish(&mut self, _: &Outgoing<'_>, _: &Finish) {}
    fn reply(&mut self, _: Slot, _: u16, _: &[u8]) {}
    fn dropped(&mut self, _: Slot, _: DropReason) {}
    fn count(&mut self, _: Slot, _: Counter, _: u64) {}
}

/// Whether a table says of it that it passes without its answers, which no circuit does.
fn is_stateless(image: &CompartmentImage<'_>, asked: &Asked, to: u32) -> bool {
    let tuple = Tuple {
        source: asked.from,
        destination: asked.to,
        source_port: asked.from_port,
        destination_port: asked.to_port,
        protocol: asked.protocol,
    };
    let endpoint = |slot: u32| {
        let at = image.endpoint_by_slot(slot).unwrap();
        &image.endpoints()[at as usize]
    };
    let tables = [endpoint(asked.slot).egress, endpoint(to).ingress];
    let mut tables = tables.into_iter().filter(|table| *table != NONE);
    tables.any(|table| image.judge(table, &tuple).action == Action::AllowStateless)
}

#[test]
fn an_operator_lets_begin_what_a_switch_would_and_what_is_proved() {
    let (mut passed, mut refused, mut stateless) = (0, 0, 0);
    for seed in 0..10 {
        let host = Host::new(seed);
        assert_eq!(host.breaches(), [], "{seed}");
        let memory = MappedCompartment::map(Aligned::copy_of(&host.image)).unwrap();
        let image = memory.image();
        for asked in asks(&host.tables()) {
            let (here, there) = (decided(&image, &asked), switched(&memory, &asked));
            match there {
                Some(to) if is_stateless(&image, &asked, to) => {
                    assert_eq!(here, None, "{asked:?}");
                    stateless += 1;
                }
                _ => assert_eq!(here, there, "{seed}: {asked:?}"),
            }
            match here {
                Some(_) => passed += 1,
                None => refused += 1,
            }
            // Whatever a record of its table says, nobody asks as another.
            for slot in image.endpoints().iter().map(|endpoint| endpoint.slot) {
                let as_another = Asked { slot, ..asked };
                let subnet = image
                    .endpoint_by_slot(slot)
                    .map(|at| image.endpoints()[at as usize].subnet);
                let whose = image.endpoint_by_address(subnet.unwrap(), asked.from);
                assert!(
                    whose == image.endpoint_by_slot(slot) || decide(&image, &as_another).is_err()
                );
            }
        }
    }
    assert!(
        passed > 200 && refused > 2_000 && stateless > 5,
        "{passed} {refused} {stateless}"
    );
}

/// Numbers that follow from a seed (splitmix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % n.max(1) as u64) as usize
    }
}

/// What can be planted.
const KINDS: [&str; 12] = [
    "a wider rule",
    "a rule is gone",
    "an action is another",
    "stateless",
    "no table",
    "another's tables",
    "another's address",
    "one address more",
    "somebody is let in",
    "a route leads elsewhere",
    "another tenant's subnet",
    "a service is an endpoint",
];

/// Changes the tables; `None`: there is nothing of the kind to change. A rule is changed in the
/// tables of both ends: either would stop alone what the other lets through.
fn plant(kind: &str, tables: &mut CompartmentTables, dice: &mut Dice) -> Option<()> {
    let endpoints = tables.endpoints.len();
    let some = dice.below(endpoints);
    let rules = tables.rule_tables.iter().flat_map(|table| &table.rules);
    let mut ids: Vec<u32> = rules.map(|rule| rule.id).collect();
    ids.sort_unstable();
    ids.dedup();
    let id = ids.get(dice.below(ids.len())).copied()?;
    let mut of_it = |change: &dyn Fn(&mut Rule)| {
        let all = tables.rule_tables.iter_mut();
        let rules = all.flat_map(|table| &mut table.rules);
        rules.filter(|rule| rule.id == id).for_each(change);
    };
    match kind {
        "a wider rule" => of_it(&|rule| rule.region.destination_port = 0..=u16::MAX),
        "a rule is gone" => {
            for table in &mut tables.rule_tables {
                table.rules.retain(|rule| rule.id != id);
            }
        }
        "an action is another" => of_it(&|rule| {
            rule.action = match rule.action {
                Action::Deny => Action::Allow,
                _ => Action::Deny,
            }
        }),
        "stateless" => of_it(&|rule| {
            if rule.action == Action::Allow {
                rule.action = Action::AllowStateless;
            }
        }),
        "no table" => {
            let other = dice.below(endpoints);
            tables.endpoints[some].egress = NONE;
            tables.endpoints[other].ingress = NONE;
        }
        "another's tables" => {
            let other = dice.below(endpoints);
            let theirs = tables.endpoints[other].ingress;
            tables.endpoints[some].ingress = theirs;
        }
        "another's address" => {
            let at = dice.below(tables.addresses.len());
            let subnet = |at: u32| tables.endpoints[at as usize].subnet;
            let from = tables.addresses[at].0;
            let to = (0..endpoints as u32).find(|to| *to != from && subnet(*to) == subnet(from))?;
            tables.addresses[at].0 = to;
        }
        "one address more" => {
            let mut address = tables.addresses[dice.below(tables.addresses.len())];
            address.1 = spec::mapped("10.1.1.77".parse().unwrap());
            tables.addresses.push(address);
        }
        "somebody is let in" => {
            let shut = tables
                .endpoints
                .iter_mut()
                .find(|e| e.state != STATE_OPEN)?;
            shut.state = STATE_OPEN;
        }
        "a route leads elsewhere" => {
            let at = dice.below(tables.ranges.len());
            tables.routes.push(Route {
                kind: [ROUTE_UNREACHABLE, ROUTE_SUBNET][dice.below(2)],
                subnet: dice.below(tables.subnets.len()) as u32,
                ..Route::default()
            });
            tables.ranges[at].1.route = tables.routes.len() as u32 - 1;
        }
        // Whose addresses nobody has there.
        "another tenant's subnet" => {
            let other = tables.subnets.iter().position(|s| s.tenant == 1)? as u32;
            let all = [[10, 1, 1, 11], [10, 1, 2, 10], [10, 1, 2, 11]];
            let address = wire::address::mapped(all[dice.below(all.len())]);
            let (at, _) = *tables.addresses.iter().find(|(_, a)| *a == address)?;
            tables.endpoints[at as usize].subnet = other;
            let member = tables
                .members
                .iter_mut()
                .find(|(_, member)| *member == at)?;
            member.0 = other;
        }
        // Who asks for another tenant's service is led to one of its own, who has its address. (To
        // the other tenant's subnet no image leads: it could not be mapped.)
        _ => {
            let asks = |c: &&Crossing| c.role != CROSSING_OFFERER;
            let service = tables.crossings.iter().find(asks)?;
            let to = match dice.below(2) {
                0 => wire::address::mapped(service.address4),
                _ => service.address6,
            };
            let own = |s: &Subnet| s.tenant == service.tenant;
            let subnet = tables.subnets.iter().position(own)? as u32;
            tables.routes.push(Route {
                kind: ROUTE_SUBNET,
                subnet,
                ..Route::default()
            });
            let route = tables.routes.len() as u32 - 1;
            let tenant = service.tenant;
            let taken = tables
                .ranges
                .iter_mut()
                .find(|(of, range)| *of == tenant && (range.start..=range.end).contains(&to))?;
            taken.1.route = route;
            let all = tables.endpoints.iter().enumerate();
            let own: Vec<usize> = all
                .filter(|(_, e)| e.subnet == subnet)
                .map(|it| it.0)
                .collect();
            tables
                .addresses
                .push((own[dice.below(own.len())] as u32, to));
        }
    }
    Some(())
}

#[test]
fn whatever_would_have_an_operator_decide_otherwise_is_found() {
    let mut found: BTreeMap<&str, usize> = KINDS.map(|kind| (kind, 0)).into();
    let mut shown = 0;
    let all = (0..SEEDS).flat_map(|seed| KINDS.map(|kind| (seed, kind)));
    for (seed, kind) in all {
        if found.get(kind) == Some(&EACH) {
            continue;
        }
        let mut dice = Dice(seed);
        let mut host = Host::new(seed);
        let honest = Aligned::copy_of(&host.image);
        let mut tables = host.tables();
        let all = asks(&tables);
        if plant(kind, &mut tables, &mut dice).is_none() {
            continue;
        }
        // What cannot even be built is no breach.
        let Ok(image) = tables.finish() else { continue };
        host.image = image;
        let Ok(memory) = MappedCompartment::map(Aligned::copy_of(&host.image)) else {
            continue;
        };
        let planted = memory.image();
        let honest = CompartmentImage::map(honest.as_ref()).unwrap();
        let other = |asked: &&Asked| decided(&planted, asked) != decided(&honest, asked);
        let differs = all.iter().find(other);
        let breaches = host.breaches();
        let Some(differs) = differs else { continue };
        assert!(
            !breaches.is_empty(),
            "{seed}: {kind}: {differs:?} is not found"
        );
        *found.entry(kind).or_default() += 1;
        // There, too, it decides as a switch does.
        for asked in all.iter().skip(seed as usize).step_by(7) {
            let (here, there) = (decided(&planted, asked), switched(&memory, asked));
            if here == Some(asked.slot) {
                continue;
            }
            let stateless = there.is_some_and(|to| is_stateless(&planted, asked, to));
            assert_eq!(
                here,
                there.filter(|_| !stateless),
                "{seed}: {kind}: {asked:?}"
            );
        }
        // What shows a breach of tables shows it at the operator too, where it is of TCP or UDP
        // between two who are here.
        for packet in breaches.iter().filter_map(|breach| breach.packet) {
            let tuple = Tuple::from(packet);
            let sender = host
                .tables()
                .addresses
                .into_iter()
                .find(|(_, a)| *a == tuple.source);
            let Some((sender, _)) = sender else { continue };
            let asked = Asked {
                slot: planted.endpoints()[sender as usize].slot,
                from: tuple.source,
                from_port: tuple.source_port,
                to: tuple.destination,
                to_port: tuple.destination_port,
                protocol: tuple.protocol,
            };
            if [6, 17].contains(&tuple.protocol) && other(&&asked) {
                shown += 1;
                break;
            }
        }
    }
    let all: usize = found.values().sum();
    assert_eq!(all, EACH * KINDS.len(), "{found:?}");
    assert!(shown >= 20, "{shown} of {all}");
}
