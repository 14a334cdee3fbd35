//! What a packet costs, in instructions as valgrind counts them: it does not depend on
//! tenants, endpoints, subnets or routes that the packet does not touch.

use fabric::{Batch, Counters, Egress, Frame, Ingress as From, Refused, Rounds, Turn, serve};
use image::compartment::*;
use image::fabric::{
    CHANNEL_COMPARTMENT, CHANNEL_UPLINK, Channel, FORWARD_UNICAST, Forward, Template,
};
use image::{Aligned, CompartmentTables, FabricTables, MappedCompartment, MappedFabric};
use std::process::Command;
use switch::{Config, Finish, HEAD, Ingress, Outgoing, Output, Slot, Switch};
use telemetry::counters::Counter;
use telemetry::drops::DropReason;
use wire::address::mapped;
use wire::{MacAddress, RawOffload, build, ethernet, ipv4, ipv6};

/// How many others there are where there are many. With the own ones that is a power of
/// two, as those are alone: hash tables are then equally full, and as good.
const MANY: u32 = 2048 - 2 * OWN;
/// What more a packet may cost among them: nothing, but for where its keys come to lie
/// in a hash table.
const MOST: f64 = 1.02;
/// Packets that are counted.
const PACKETS: u32 = 1_024;
/// Endpoints of the subnet, and of the one beside it, that the packets are about.
const OWN: u32 = 64;

/// Instructions of one packet; the tables are made before [`measured`].
fn cost(of: &str, others: u32) -> f64 {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg("--toggle-collect=*measured*")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "packets", "--ignored", "--test-threads=1"])
        .env("COST", format!("{of} {others}"))
        .output()
        .expect("valgrind: `tools/setup test` installs it");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let counted = text.lines().find_map(|l| l.split("Collected :").nth(1));
    match counted.and_then(|n| n.trim().parse::<u64>().ok()) {
        Some(n) if output.status.success() => n as f64 / f64::from(PACKETS),
        _ => panic!("{text}\n{}", String::from_utf8_lossy(&output.stdout)),
    }
}

/// What is counted: valgrind finds it by its name.
#[inline(never)]
fn measured(work: impl FnOnce()) {
    work();
}

#[track_caller]
fn compare(of: &str, most: f64) {
    let (few, many) = (cost(of, 0), cost(of, MANY));
    println!("{of}: {few:.0} instructions a packet alone, {many:.0} among {MANY} others");
    assert!(few > 100.0, "nothing was run");
    assert!(many / few <= most, "{:.3} times as many", many / few);
}

#[test]
fn a_switch_does_not_slow_down_for_what_a_packet_does_not_touch() {
    compare("switch", MOST);
}

#[test]
fn routes_of_ones_own_cost_their_binary_search() {
    // Nine steps more, for 480 times as many ranges.
    compare("routes", 1.10);
}

#[test]
fn the_fabric_does_not_slow_down_for_other_tenants() {
    compare("fabric", MOST);
}

/// What the others run under valgrind.
#[test]
#[ignore = "run by the others under valgrind"]
fn packets() {
    let words = std::env::var("COST").expect("run by the others");
    let words: Vec<&str> = words.split(' ').collect();
    let others = words[1].parse().unwrap();
    match words[0] {
        "switch" => through_the_switch(others, 0),
        "routes" => through_the_switch(0, others),
        "fabric" => through_the_fabric(others),
        other => panic!("{other}"),
    }
}

fn mac(number: u32) -> [u8; 6] {
    let [_, a, b, c] = number.to_be_bytes();
    [2, 0, 1, a, b, c]
}

fn gateway(subnet: u32) -> [u8; 6] {
    let [_, a, b, c] = subnet.to_be_bytes();
    [2, 0, 2, a, b, c]
}

/// Subnet `n` is 10.0.0.0/8's n-th /24, endpoints count from 10 in it.
fn v4(subnet: u32, host: u32) -> [u8; 4] {
    (0x0a00_0000 | subnet << 8 | host).to_be_bytes()
}

fn v6(subnet: u32, host: u32) -> [u8; 16] {
    (0xfd00_u128 << 112 | u128::from(subnet) << 64 | u128::from(host)).to_be_bytes()
}

/// Two subnets of one tenant; and others, each a tenant of one subnet, one endpoint and
/// its routes.
fn compartment(others: u32, routes: u32) -> CompartmentTables {
    let mut t = CompartmentTables::default();
    let subnet = |t: &mut CompartmentTables, tenant: u32, hosts: u32| {
        let index = t.subnets.len() as u32;
        t.subnets.push(Subnet {
            id: index + 1,
            tenant,
            prefix4: v4(index, 0),
            prefix4_len: 24,
            gateway4: v4(index, 1),
            prefix6: v6(index, 0),
            prefix6_len: 64,
            gateway6: v6(index, 1),
            gateway_mac: gateway(index),
            mtu: 1500,
            ..Subnet::default()
        });
        t.routes.push(Route {
            kind: ROUTE_SUBNET,
            subnet: index,
            ..Route::default()
        });
        for (start, end) in [
            (mapped(v4(index, 0)), mapped(v4(index, 255))),
            (v6(index, 0), v6(index, 0xffff)),
        ] {
            let reserved = [0; 3];
            let route = index;
            t.ranges.push((
                tenant,
                RouteRange {
                    start,
                    end,
                    route,
                    reserved,
                },
            ));
        }
        for host in 10..10 + hosts {
            let endpoint = t.endpoints.len() as u32;
            t.endpoints.push(Endpoint {
                id: endpoint + 1,
                subnet: index,
                slot: endpoint + 1,
                mac: mac(endpoint),
                mtu: 1500,
                min_gso: 536,
                features: FEATURE_ALL,
                ..Endpoint::default()
            });
            t.addresses.push((endpoint, mapped(v4(index, host))));
            t.addresses.push((endpoint, v6(index, host)));
            t.members.push((index, endpoint));
        }
    };
    for tenant in 0..=others {
        t.tenants.push(Tenant {
            id: tenant + 1,
            ..Tenant::default()
        });
        if tenant == 0 {
            subnet(&mut t, tenant, OWN);
            subnet(&mut t, tenant, OWN);
        } else {
            subnet(&mut t, tenant, 1);
        }
    }
    // More routes of the tenant whose packets they are, behind those in use.
    let nowhere = t.routes.len() as u32;
    t.routes.push(Route {
        kind: ROUTE_UNREACHABLE,
        ..Route::default()
    });
    for n in 0..routes {
        let [_, _, a, b] = n.to_be_bytes();
        let range = RouteRange {
            start: mapped([172, a, b, 0]),
            end: mapped([172, a, b, 255]),
            route: nowhere,
            reserved: [0; 3],
        };
        t.ranges.push((0, range));
    }
    t
}

/// Ports that keep nothing.
#[derive(Default)]
struct Nowhere {
    sent: u32,
}

impl Output for Nowhere {
    fn ingress(&mut self, _: usize, into: &mut [u8]) -> usize {
        into.len()
    }
    fn send(&mut self, _: &Outgoing<'_>) {
        self.sent += 1;
    }
    fn finish(&mut self, _: &Outgoing<'_>, _: &Finish) {
        self.sent += 1;
    }
    fn reply(&mut self, _: Slot, _: u16, _: &[u8]) {
        self.sent += 1;
    }
    fn dropped(&mut self, _: Slot, reason: DropReason) {
        panic!("{reason:?}");
    }
    fn count(&mut self, _: Slot, _: Counter, _: u64) {}
}

/// Of either family, from one endpoint to another of its subnet or, by the gateway, of
/// the other one.
fn frames() -> Vec<(Slot, Vec<u8>)> {
    let mut frames = Vec::new();
    for from in 0..OWN {
        let (near, far) = ((from + 1) % OWN, OWN + from);
        for (to_mac, subnet, host) in [(mac(near), 0, 10 + near), (gateway(0), 1, 10 + far - OWN)] {
            let mut frame = vec![0; 200];
            let link = (MacAddress(to_mac), MacAddress(mac(from)));
            let (own4, own6) = (v4(0, 10 + from), v6(0, 10 + from));
            let (to4, to6) = (v4(subnet, host), v6(subnet, host));
            let four = ethernet::Header::new(link.0, link.1, ethernet::IPV4);
            let header = ipv4::Header::new(own4, to4, 17);
            let n = build::udp4(&mut frame, &four, &header, (1, 2), |_| Ok(64)).unwrap();
            frames.push((from + 1, frame[..n].to_vec()));
            let six = ethernet::Header::new(link.0, link.1, ethernet::IPV6);
            let header = ipv6::Header::new(own6, to6, 17);
            let n = build::udp6(&mut frame, &six, &header, (1, 2), |_| Ok(64)).unwrap();
            frames.push((from + 1, frame[..n].to_vec()));
        }
    }
    frames
}

fn through_the_switch(others: u32, routes: u32) {
    let bytes = compartment(others, routes).finish().expect("legal tables");
    let mapped = MappedCompartment::map(Aligned::copy_of(&bytes)).expect("a legal image");
    let image = mapped.image();
    let mut switch = Switch::new(Config {
        slots: 2049,
        ..Config::default()
    });
    switch.use_image(&image, 1);
    let frames = frames();
    let mut out = Nowhere::default();
    measured(|| {
        for (n, (from, frame)) in (0..PACKETS).zip(frames.iter().cycle()) {
            let mut head = [0; HEAD];
            head[..frame.len()].copy_from_slice(frame);
            let ingress = Ingress {
                from: *from,
                tag: 0,
                offload: RawOffload::default(),
                head: &mut head[..frame.len()],
                total: frame.len(),
            };
            switch.process(&image, u64::from(n) * 1_000_000, ingress, &mut out);
        }
    });
    assert_eq!(out.sent, PACKETS);
}

const UPLINK: u32 = 60_000;

/// Compartments 1 and 2, which have an agreement and an uplink; and others like them.
fn fabric_tables(others: u32) -> FabricTables {
    let mut t = FabricTables::default();
    let entry = |ingress, tag, mac, target, out_tag| Forward {
        ingress,
        tag,
        mac,
        target,
        out_tag,
        kind: FORWARD_UNICAST,
    };
    let channel = |kind, slot| Channel {
        id: slot,
        kind,
        slot,
        weight: 1,
        ..Channel::default()
    };
    for slot in 1..=2 + others {
        t.channels.push(channel(CHANNEL_COMPARTMENT, slot));
        let other = ((slot - 1) ^ 1) + 1;
        t.forwards.push(entry(slot, 7, mac(other), other, 7));
        t.forwards.push(entry(slot, 5, [0; 6], UPLINK, 0));
        t.forwards.push(entry(UPLINK, 0, mac(slot), slot, 5));
        let mut template = Template {
            egress: UPLINK,
            tag: 5,
            len: 14,
            ..Template::default()
        };
        template.mask[6..12].fill(255);
        template.value[6..12].copy_from_slice(&mac(slot));
        t.templates.push((slot - 1, template));
    }
    t.channels.push(channel(CHANNEL_UPLINK, UPLINK));
    t
}

/// A channel that holds so many frames more.
struct Full<'a> {
    frames: &'a [Frame],
    next: usize,
    left: u32,
}

impl From for Full<'_> {
    type Source<'a>
        = ()
    where
        Self: 'a;
    fn peek(&mut self) -> Option<(Frame, ())> {
        let frame = self.frames[self.next % self.frames.len()];
        (self.left > 0).then_some((frame, ()))
    }
    fn advance(&mut self) {
        self.next += 1;
        self.left -= 1;
    }
}

impl Egress<Full<'_>> for Nowhere {
    fn send(&mut self, _: u32, _: u16, _: &Frame, (): &()) -> Result<(), Refused> {
        self.sent += 1;
        Ok(())
    }
    fn calls(&self) -> u64 {
        0
    }
}

impl Counters for Nowhere {
    fn add(&mut self, _: u32, _: Counter, _: u64) {}
    fn crossed(&mut self, _: u32, _: u16, _: u64, _: u64) {}
    fn dropped(&mut self, slot: u32, reason: DropReason, _: &Frame) {
        panic!("{slot}: {reason:?}");
    }
}

fn through_the_fabric(others: u32) {
    let bytes = fabric_tables(others).finish().expect("legal tables");
    let mapped = MappedFabric::map(Aligned::copy_of(&bytes)).expect("a legal image");
    let image = mapped.image();
    let mut rounds = Rounds::new(UPLINK as usize + 1, fabric::UNITS);
    rounds.configure(fabric::shares(&image));
    let frame = |tag, to: [u8; 6], from: [u8; 6]| {
        let mut head = [0; fabric::HEAD];
        head[..6].copy_from_slice(&to);
        head[6..12].copy_from_slice(&from);
        head[12..14].copy_from_slice(&[8, 0]);
        Frame {
            tag,
            offload: RawOffload::default(),
            len: 200,
            head,
        }
    };
    let router = [2, 9, 9, 9, 9, 9];
    let kinds: Vec<(u32, Vec<Frame>)> = vec![
        (1, vec![frame(7, mac(2), mac(1)), frame(5, router, mac(1))]),
        (2, vec![frame(7, mac(1), mac(2)), frame(5, router, mac(2))]),
        (
            UPLINK,
            vec![frame(0, mac(1), router), frame(0, mac(2), router)],
        ),
    ];
    let (mut out, mut tally) = (Nowhere::default(), Nowhere::default());
    let (mut moved, mut now) = (0, 1);
    measured(|| {
        while moved < PACKETS {
            for (slot, frames) in &kinds {
                let left = (PACKETS - moved).min(10);
                let mut from = Full {
                    frames,
                    next: 0,
                    left,
                };
                rounds.activate(*slot, now);
                // Bound: each visit moves a frame at least.
                while from.left > 0 {
                    let (next, allowance) = rounds.next(now).expect("it is active");
                    assert_eq!(next, *slot);
                    let turn = Turn {
                        allowance,
                        now,
                        parked: 0,
                        may_park: true,
                    };
                    let Batch { cost, outcome, .. } =
                        serve(&image, next, &mut from, &mut out, &mut tally, turn);
                    rounds.settle(next, cost, outcome, true);
                    now += 1_000_000;
                }
                rounds.remove(*slot);
                moved += left;
            }
        }
    });
    assert_eq!(out.sent, PACKETS);
}
