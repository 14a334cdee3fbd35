//! `bench policy`: what rules and connections cost in the switch's own pipeline, on one
//! core, beside the plain alternative: a list that is walked rule by rule.

use crate::Options;
use crate::flow::{Flow, PORT};
use crate::results::Figure;
use e2e::Instance;
use flow::{Connections, Segment, Side};
use image::compartment::*;
use image::rules::{Action, Region, Rule, RuleTable, Verdict};
use image::{Aligned, CompartmentImage, CompartmentTables, MappedCompartment};
use std::hint::black_box;
use std::process::Command;
use std::time::Duration;
use switch::{Config, Finish, HEAD, Ingress, Outgoing, Output, Slot, Switch, bytes_for};
use telemetry::counters::Counter;
use telemetry::drops::DropReason;
use wire::address::mapped;
use wire::tcp::{ACK, FIN, SYN};
use wire::{MacAddress, RawOffload, Tuple, build, ethernet, ipv4, tcp};

/// Rules of each side.
const RULES: usize = 250;
/// Connections that an endpoint has room for by default.
const CAPACITY: u32 = 8192;
/// How the process that valgrind runs is told what to do.
const HITS: &str = "BULKHEAD_BENCH_HITS";
/// Hits that are counted.
const COUNTED: u32 = 4096;

/// Edits of one table of live connections.
const EDITS: u16 = 5;

/// Runs it.
pub fn run(options: &Options) -> Result<Vec<Figure>, String> {
    if let Ok(rules) = std::env::var(HITS) {
        return hits(rules.parse().map_err(|_| "not a number of rules")?).map(|()| Vec::new());
    }
    let runs = options.runs(15, 5);
    let size = if options.smoke { 20_000 } else { 1_000_000 };
    let mut figures = Vec::new();
    let (mut misses, mut attacks, mut lists) = (Vec::new(), Vec::new(), Vec::new());
    for seed in 0..runs as u64 {
        let one = miss(seed, options.hindered);
        misses.push(one.miss_ns);
        attacks.push(one.attack_ns / one.judge_ns);
        lists.push(one.list_ns);
    }
    let list = Figure::of("", "", &lists).value;
    figures.push(
        Figure::of("policy.miss_ns", "ns", &misses)
            .peer(
                "name",
                "two lists of 250 rules walked, connection installed the same",
            )
            .peer("ns", list)
            .note("both sides judged by 250 rules each, a connection looked for and opened"),
    );
    figures.push(
        Figure::of("policy.attack_ratio", "ratio", &attacks)
            .note("judging headers that no rule has against headers that rules have"),
    );
    if !options.hindered {
        let (one, many) = (instructions(1)?, instructions(10_000)?);
        figures.push(
            Figure::of("policy.hit_ratio_10k", "ratio", &[many / one])
                .ours("instructions_1_rule", one)
                .ours("instructions_10000_rules", many)
                .note("a packet of a connection through the switch, by callgrind"),
        );
    }
    let (mut rates, mut dips, mut mib) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.runs(15, 5) {
        rates.push(connections(size / 4, options.hindered));
    }
    for _ in 0..options.runs(7, 3) {
        let (some, grown) = edit(size);
        dips.extend(some);
        mib.push(grown);
    }
    figures.push(
        Figure::of("policy.conn_per_s", "1/s", &rates)
            .note("TCP, seven packets from SYN to the last ACK, through the switch on one core, each written to its journal"),
    );
    figures.push(Figure::of("policy.edit_dip", "ratio", &dips).note(
        "packets of live connections, at random, in the 100 ms after an edit against before",
    ));
    if !options.smoke {
        // What is resident is not given back: the first run's growth is all of it.
        let most = mib.iter().copied().fold(0.0, f64::max);
        figures.push(
            Figure::of("policy.mflow_mib", "MiB", &[most])
                .ours("journal_mib", bytes_for(size) as f64 / f64::from(1 << 20))
                .note("resident memory that 1,000,000 connections add to the switch; what outlives it of those that both sides agreed to is the journal"),
        );
    }
    figures.push(revoke(options)?);
    Ok(figures)
}

/// xorshift64*.
struct Random(u64);
impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() >> 11) as usize % n
    }
}

/// Rules as tenants write them: some networks, some ports, in no order.
fn table(random: &mut Random, rules: usize) -> RuleTable {
    let rules = (0..rules as u32)
        .map(|id| {
            let network = mapped([10, 0, 0, 0]);
            let base = u128::from_be_bytes(network) + ((random.next() as u128 & 0xfff) << 8);
            let ports = 1 + (random.next() & 0x7fff) as u16;
            let region = Region {
                source: base.to_be_bytes()..=(base + 255).to_be_bytes(),
                destination: [0; 16]..=[0xff; 16],
                source_port: 0..=u16::MAX,
                destination_port: ports..=ports + (random.next() & 7) as u16,
                protocol: if id % 3 == 0 { 17..=17 } else { 6..=6 },
            };
            Rule {
                region,
                action: Action::Allow,
                log: false,
                id,
            }
        })
        .collect();
    RuleTable {
        rules,
        default: Action::Deny,
    }
}

/// A header that a rule of the table has.
fn inside(random: &mut Random, table: &RuleTable) -> Tuple {
    let region = &table.rules[random.below(table.rules.len())].region;
    let source = u128::from_be_bytes(*region.source.start()) + (random.next() as u128 & 255);
    Tuple {
        source: source.to_be_bytes(),
        destination: mapped([10, 99, (random.next() & 255) as u8, 7]),
        source_port: random.next() as u16,
        destination_port: *region.destination_port.start(),
        protocol: *region.protocol.start(),
    }
}

/// One that none has.
fn outside(random: &mut Random) -> Tuple {
    let source = u128::from_be_bytes(mapped([10, 0, 0, 0])) + (random.next() as u128 & 0xf_ffff);
    Tuple {
        source: source.to_be_bytes(),
        destination: mapped((random.next() as u32).to_be_bytes()),
        source_port: random.next() as u16,
        destination_port: random.next() as u16,
        protocol: [6, 17][random.below(2)],
    }
}

struct Miss {
    miss_ns: f64,
    judge_ns: f64,
    attack_ns: f64,
    list_ns: f64,
}

fn miss(seed: u64, hindered: bool) -> Miss {
    const N: usize = 1_500;
    let mut random = Random(seed * 77 + 1);
    let egress = table(&mut random, RULES);
    // The same rules on both sides let the same packets through.
    let ingress = egress.clone();
    let tables = compartment(vec![egress.clone(), ingress], CAPACITY);
    let bytes = Aligned::copy_of(&tables.finish().expect("legal tables"));
    let mapped = MappedCompartment::map(bytes).expect("a legal image");
    let image = mapped.image();
    let known: Vec<Tuple> = (0..N).map(|_| inside(&mut random, &egress)).collect();
    let strange: Vec<Tuple> = (0..N).map(|_| outside(&mut random)).collect();
    let rounds = if hindered { 3 } else { 1 };
    let judged = |tuples: &[Tuple]| {
        per(tuples.len(), || {
            for tuple in tuples {
                for _ in 0..rounds {
                    black_box((image.judge(0, tuple), image.judge(1, tuple)));
                }
            }
        })
    };
    let both = |verdicts: (Verdict, Verdict)| {
        verdicts.0.action != Action::Deny && verdicts.1.action != Action::Deny
    };
    let install = |judge: &dyn Fn(&Tuple) -> (Verdict, Verdict)| {
        let segment = Segment {
            packets: 1,
            bytes: 100,
            kind: flow::segment::Kind::Plain,
        };
        let round = || {
            let capacities = [0, CAPACITY, CAPACITY];
            let mut connections = Connections::new([1, 2], &capacities).expect("room");
            per(known.len(), || {
                for tuple in &known {
                    // As UDP: the first packet of TCP needs its flags, and costs the same.
                    let tuple = Tuple {
                        protocol: 17,
                        ..*tuple
                    };
                    if connections.find(1, 1, 0, &tuple).is_none() && both(judge(&tuple)) {
                        let side = |owner, tuple| Side {
                            owner,
                            zone: 0,
                            tuple,
                        };
                        let (a, b) = (side(1, tuple), side(2, tuple.reversed()));
                        let _ =
                            black_box(connections.open(1, &a, &b, &Default::default(), &segment));
                    }
                }
            })
        };
        let rounds: Vec<f64> = (0..9).map(|_| round()).collect();
        Figure::of("", "", &rounds).value
    };
    let (judge_ns, attack_ns) = (judged(&known), judged(&strange));
    Miss {
        miss_ns: install(&|tuple| {
            for _ in 1..rounds {
                black_box(image.judge(0, tuple));
            }
            let open = |v: Verdict| Verdict {
                action: Action::Allow,
                ..v
            };
            (open(image.judge(0, tuple)), open(image.judge(1, tuple)))
        }),
        judge_ns,
        attack_ns,
        list_ns: install(&|tuple| {
            let open = |v: Verdict| Verdict {
                action: Action::Allow,
                ..v
            };
            (open(egress.judge(tuple)), open(egress.judge(tuple)))
        }),
    }
}

/// CPU time that this thread has had: what others make the machine do is not ours.
fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn per(n: usize, work: impl FnOnce()) -> f64 {
    let begun = cpu();
    work();
    (cpu() - begun).as_nanos() as f64 / n as f64
}

const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const ADDRESSES: [[u8; 4]; 2] = [[10, 1, 0, 10], [10, 1, 0, 11]];

/// Two endpoints of one subnet under the first two tables (one: both under it).
fn compartment(rule_tables: Vec<RuleTable>, connections: u32) -> CompartmentTables {
    let ingress = rule_tables.len() as u32 - 1;
    let endpoint = |at: usize| Endpoint {
        id: at as u32 + 1,
        slot: at as u32 + 1,
        mac: MACS[at],
        mtu: 1500,
        min_gso: 536,
        features: FEATURE_ALL,
        egress: 0,
        ingress,
        // Only who begins is charged.
        connections: if at == 0 { connections } else { 1024 },
        ..Endpoint::default()
    };
    CompartmentTables {
        tenants: vec![Tenant {
            id: 1,
            ..Tenant::default()
        }],
        subnets: vec![Subnet {
            id: 1,
            prefix4: [10, 1, 0, 0],
            prefix4_len: 16,
            gateway4: [10, 1, 0, 1],
            gateway_mac: [2, 9, 9, 9, 9, 9],
            mtu: 1500,
            ..Subnet::default()
        }],
        endpoints: vec![endpoint(0), endpoint(1)],
        addresses: vec![(0, mapped(ADDRESSES[0])), (1, mapped(ADDRESSES[1]))],
        members: vec![(0, 0), (0, 1)],
        rule_tables,
        ..CompartmentTables::default()
    }
}

fn open_image(rules: usize, connections: u32) -> MappedCompartment<Aligned> {
    image_of(&compartment(vec![open_table(rules)], connections))
}

/// A switch under a table that lets everything between the two through, last of all.
struct Site {
    switch: Switch,
    out: Sink,
    now: u64,
}

#[derive(Default)]
struct Sink {
    sent: u64,
    dropped: u64,
}

impl Output for Sink {
    fn ingress(&mut self, _: usize, _: &mut [u8]) -> usize {
        0
    }
    fn send(&mut self, frame: &Outgoing<'_>) {
        black_box(frame.head);
        self.sent += 1;
    }
    fn finish(&mut self, _: &Outgoing<'_>, _: &Finish) {}
    fn reply(&mut self, _: Slot, _: u16, _: &[u8]) {}
    fn dropped(&mut self, _: Slot, _: DropReason) {
        self.dropped += 1;
    }
    fn count(&mut self, _: Slot, _: Counter, _: u64) {}
}

fn open_table(rules: usize) -> RuleTable {
    let mut made = table(&mut Random(5), rules - 1);
    made.rules.push(Rule {
        region: Region::ALL,
        action: Action::Allow,
        log: false,
        id: rules as u32,
    });
    made
}

fn image_of(tables: &CompartmentTables) -> MappedCompartment<Aligned> {
    let bytes = Aligned::copy_of(&tables.finish().expect("legal tables"));
    MappedCompartment::map(bytes).expect("a legal image")
}

impl Site {
    /// With a journal that has room for so many.
    fn keeping(image: &MappedCompartment<Aligned>, connections: usize) -> Site {
        let file = shm::sparse_file("bench-journal", bytes_for(connections)).expect("memory");
        let journal = worker::Journal::open(file).expect("a mapping");
        let mut site = Site::new(image);
        site.switch.keep(Box::new(journal));
        site
    }

    fn new(image: &MappedCompartment<Aligned>) -> Site {
        let config = Config {
            slots: 8,
            seed: 7,
            ..Config::default()
        };
        let mut switch = Switch::new(config);
        switch.use_image(&image.image(), 1);
        Site {
            switch,
            out: Sink::default(),
            now: 1_000_000_000,
        }
    }

    #[inline]
    fn pass(&mut self, image: &CompartmentImage<'_>, from: usize, frame: &[u8]) {
        let mut head = [0; HEAD];
        let length = frame.len().min(HEAD);
        head[..length].copy_from_slice(&frame[..length]);
        let ingress = Ingress {
            from: from as Slot + 1,
            tag: 0,
            offload: RawOffload::default(),
            head: &mut head[..length],
            total: frame.len(),
        };
        self.switch.process(image, self.now, ingress, &mut self.out);
    }
}

fn link(from: usize) -> ethernet::Header {
    ethernet::Header::new(
        MacAddress(MACS[1 - from]),
        MacAddress(MACS[from]),
        ethernet::IPV4,
    )
}

fn udp(from: usize, ports: (u16, u16)) -> Vec<u8> {
    let mut frame = vec![0; 128];
    let header = ipv4::Header::new(ADDRESSES[from], ADDRESSES[1 - from], 17);
    let n = build::udp4(&mut frame, &link(from), &header, ports, |b| {
        b[..18].fill(7);
        Ok(18)
    });
    frame.truncate(n.expect("room"));
    frame
}

fn segment(from: usize, ports: (u16, u16), flags: u8, seq: u32, ack: u32) -> Vec<u8> {
    let mut frame = vec![0; 128];
    let header = ipv4::Header::new(ADDRESSES[from], ADDRESSES[1 - from], 6);
    let message = tcp::Header {
        source: ports.0,
        destination: ports.1,
        sequence: seq,
        acknowledgement: ack,
        header_len: 20,
        flags,
        window: 60_000,
    };
    let n = build::ipv4(&mut frame, &link(from), &header, |b| message.emit(b));
    frame.truncate(n.expect("room"));
    frame
}

/// TCP connections from SYN to the last ACK, a second.
fn connections(count: usize, hindered: bool) -> f64 {
    let rules = if hindered { 10_000 } else { RULES };
    let mapped = open_image(rules, CAPACITY);
    let image = mapped.image();
    let mut site = Site::keeping(&mapped, CAPACITY as usize);
    // Frames are made ahead; only their passing is timed.
    let one = |n: usize| {
        let forth = (1024 + (n % 60_000) as u16, 80 + (n / 60_000) as u16);
        let back = (forth.1, forth.0);
        [
            (0, segment(0, forth, SYN, 100, 0)),
            (1, segment(1, back, SYN | ACK, 500, 101)),
            (0, segment(0, forth, ACK, 101, 501)),
            (0, segment(0, forth, FIN | ACK, 101, 501)),
            (1, segment(1, back, ACK, 501, 102)),
            (1, segment(1, back, FIN | ACK, 501, 102)),
            (0, segment(0, forth, ACK, 102, 502)),
        ]
    };
    let mut took = Duration::ZERO;
    let mut passed = 0;
    for chunk in 0..count / 1000 {
        let frames: Vec<_> = (0..1000).map(|n| one(chunk * 1000 + n)).collect();
        let begun = cpu();
        for connection in &frames {
            for (from, frame) in connection {
                site.pass(&image, *from, frame);
            }
        }
        took += cpu() - begun;
        passed += 1000;
        // Time passes in the switch's eyes as fast as it would.
        site.now += 10_000_000;
        site.switch.tick(&image, site.now, &mut site.out);
    }
    assert_eq!(site.out.sent, passed * 7, "not all packets passed");
    passed as f64 / took.as_secs_f64()
}

/// Throughput in the 100 ms after an edit against the 100 ms before, with `live` connections,
/// for one edit after another; and MiB that these connections added.
fn edit(live: usize) -> (Vec<f64>, f64) {
    let before = resident_mib();
    let mapped = open_image(RULES, live as u32 * 51 / 50);
    let image = mapped.image();
    let mut site = Site::new(&mapped);
    let ports = |n: usize| (1 + (n % 65_000) as u16, 1 + (n / 65_000) as u16);
    for n in 0..live {
        let (a, b) = ports(n);
        site.pass(&image, 0, &udp(0, (a, b)));
        site.pass(&image, 1, &udp(1, (b, a)));
    }
    let grown = resident_mib() - before;
    let mut random = Random(3);
    let frames: Vec<_> = (0..400_000)
        .map(|_| udp(0, ports(random.below(live))))
        .collect();
    let mut at = 0;
    let mut rate = |site: &mut Site, image: &CompartmentImage<'_>, time: Duration| {
        let begun = cpu();
        let mut done = 0u64;
        while cpu() - begun < time {
            for _ in 0..64 {
                site.pass(image, 0, &frames[at % frames.len()]);
                at += 1;
                done += 1;
            }
            site.now += 20_000;
            if site.switch.next_deadline() <= site.now {
                site.switch.tick(image, site.now, &mut site.out);
            }
        }
        done as f64 / (cpu() - begun).as_secs_f64()
    };
    rate(&mut site, &image, Duration::from_millis(100));
    let mut dips = Vec::new();
    let mut now = mapped;
    for n in 0..EDITS {
        let before = rate(&mut site, &now.image(), Duration::from_millis(100));
        // One rule, before all others, is another.
        let mut rules = open_table(RULES);
        rules.rules[0].region.destination_port = n..=n;
        let edited = image_of(&compartment(vec![rules], live as u32 * 51 / 50));
        site.switch
            .swap_image(&now.image(), &edited.image(), site.now);
        now = edited;
        let after = rate(&mut site, &now.image(), Duration::from_millis(100));
        dips.push(after / before);
        // Of two edits only one finds all judged by the last image.
        if n % 2 == 1 {
            continue;
        }
        // All were judged again before the next.
        for _ in 0..3000 {
            site.now += 2_000_000;
            site.switch.tick(&now.image(), site.now, &mut site.out);
        }
    }
    (dips, grown)
}

fn resident_mib() -> f64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: f64 = text
        .split(' ')
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or(0.0);
    pages * 4096.0 / f64::from(1 << 20)
}

/// What valgrind counts.
#[inline(never)]
fn bulkhead_measured_hits(site: &mut Site, image: &CompartmentImage<'_>, frame: &[u8]) {
    for _ in 0..COUNTED {
        site.pass(image, 0, frame);
    }
}

fn hits(rules: usize) -> Result<(), String> {
    let mapped = open_image(rules, 1024);
    let image = mapped.image();
    let mut site = Site::new(&mapped);
    let frame = udp(0, (5, 6));
    site.pass(&image, 0, &frame);
    site.pass(&image, 1, &udp(1, (6, 5)));
    bulkhead_measured_hits(&mut site, &image, &frame);
    (site.out.sent == u64::from(COUNTED) + 2)
        .then_some(())
        .ok_or(format!("{} frames passed", site.out.sent))
}

/// Instructions of a hit under so many rules.
fn instructions(rules: usize) -> Result<f64, String> {
    let this = std::env::current_exe().map_err(|e| e.to_string())?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg("--toggle-collect=*bulkhead_measured_hits*")
        .arg(this)
        .args(["policy", "--results", "-"])
        .env(HITS, rules.to_string())
        .output()
        .map_err(|e| format!("valgrind: {e}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    text.lines()
        .find_map(|l| l.split("Collected :").nth(1)?.trim().parse::<u64>().ok())
        .filter(|n| *n > 0)
        .map(|n| n as f64 / f64::from(COUNTED))
        .ok_or_else(|| format!("valgrind counted nothing: {text}"))
}

/// From the moment that an apply is asked for which denies a live flow to its last packet.
fn revoke(options: &Options) -> Result<Figure, String> {
    let instance = Instance::start()?;
    let spec = |action: &str| {
        format!(
            "version: 1
tenants:
  - name: red
    subnets: [{{ name: lan, prefixes: [10.1.1.0/24] }}]
    endpoints:
      - {{ name: a, subnet: lan, addresses: [10.1.1.10], attach: {{ fifo: {{ capacity: 1MiB }} }} }}
      - {{ name: b, subnet: lan, addresses: [10.1.1.11], attach: {{ fifo: {{ capacity: 1MiB }} }} }}
    policy:
      default: deny
      rules:
        - {{ name: flow, action: {action}, from: {{ endpoint: a }}, to: {{ endpoint: b }}, protocol: udp, ports: [{PORT}] }}
"
        )
    };
    let mut samples = Vec::new();
    for _ in 0..options.runs(20, 5) {
        instance.apply(&spec("allow"))?;
        let flow = Flow::start(&instance, "red", "a", "b", 20_000, Duration::from_secs(5))?;
        flow.running()?;
        std::thread::sleep(Duration::from_millis(100));
        let asked = flow.began().elapsed().as_nanos() as u64;
        instance.apply(&spec("deny"))?;
        std::thread::sleep(Duration::from_millis(200));
        let last = flow.end()?.last_arrival().ok_or("nothing came")?;
        samples.push(last.saturating_sub(asked) as f64 / 1e6);
    }
    Ok(Figure::quantile_of("policy.revoke_ms", "ms", &samples, 1.0)
        .note("the worst; from asking for the apply to the live flow's last packet, 20,000 packets a second"))
}
