//! `bench verify`: what the proof of a large host costs, and what an adversary's tables
//! cost it. The plain alternative is Z3, asked about a sample of the same tables.

use crate::Options;
use crate::results::Figure;
use image::Aligned;
use image::rules::{Action, Region, Rule, RuleTable};
use policy::{Ids, Intent, compile, compile_after};
use proof::{Claim, Cubes, Fuel, Known, Read, TABLE_FUEL, anywhere, difference, packets, prove};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::time::Instant;

/// 2026-01-01, seconds since 1970.
const NOW: u64 = 1_767_225_600;
/// Tenants, each a compartment, and endpoints of each.
const FULL: (usize, usize) = (100, 100);
const SMOKE: (usize, usize) = (4, 25);
/// Each direction of each endpoint has these prefixes, half of them IPv6, by these ports.
const PREFIXES: usize = 25;
const PORTS: usize = 5;

/// Runs it.
pub fn run(options: &Options) -> Result<Vec<Figure>, String> {
    if let Ok(folder) = std::env::var(CHILD) {
        return child(&folder).map(|()| Vec::new());
    }
    let size = if options.smoke { SMOKE } else { FULL };
    let runs = options.runs(5, 3);
    let before = Host::new(&text(size, 0))?;
    let after = Host::after(&before, &text(size, 1))?;
    let rules = before.rules()?;
    let images: usize = before
        .intent
        .compartments
        .values()
        .map(|c| c.image.bytes.len())
        .sum();

    let [mut full, mut mib] = [Vec::new(), Vec::new()];
    let folder = before.save()?;
    for _ in 0..runs {
        let (seconds, growth) = in_child(&folder, options)?;
        full.push(seconds);
        mib.push(growth);
    }
    let _ = std::fs::remove_dir_all(&folder);
    let (one, digest) = one(&before, &after, options, runs.max(3) * 3)?;
    let (adversarial, refused) = adversarial(options);
    let (z3, boxes) = z3(&before, options)?;

    let shape = format!(
        "{} endpoints, {rules} rules in {} compartments, both directions, IPv4 and IPv6, 1 thread",
        size.0 * size.1,
        size.0
    );
    Ok(vec![
        Figure::of("verify.full_s", "s", &full)
            .ours("images_mib", images as f64 / 1048576.0)
            .peer("name", "z3, one table after another")
            .peer("s_extrapolated", z3 * (size.0 * size.1 * 2) as f64)
            .note(format!("{shape}; mapping every image, its digest included")),
        Figure::of("verify.full_mib", "MiB", &mib)
            .note("growth of peak RSS over what was there with spec, numbers and images read"),
        Figure::of("verify.one_ms", "ms", &one)
            .ours("digest_ms", digest)
            .ours("boxes_per_table_us", boxes * 1e6)
            .peer("name", "z3, the same two tables")
            .peer("ms", z3 * 2e3)
            .note("one endpoint's rules changed in the same host; counting the digest of its image and mapping it included"),
        Figure::quantile_of("verify.adversarial_ms", "ms", &adversarial, 1.0)
            .ours("refused", refused)
            .note("the worst of slabs, tiles and heaps of 256 rules, and heaps of 10,000: proved, or refused"),
    ])
}

struct Host {
    text: String,
    spec: Read,
    ids: Ids,
    numbers: Vec<u8>,
    intent: Intent,
}

impl Host {
    fn new(text: &str) -> Result<Host, String> {
        let spec = spec::parse("bench.yaml", text.as_bytes()).map_err(|e| e.to_string())?;
        let ids = Ids::assign(&spec, &Ids::default());
        let intent = compile(&spec, &ids, NOW).map_err(|e| format!("{e:?}"))?;
        Host::of(text, Read::new(spec), ids, intent)
    }

    fn after(before: &Host, text: &str) -> Result<Host, String> {
        let spec = spec::parse("bench.yaml", text.as_bytes()).map_err(|e| e.to_string())?;
        let ids = Ids::assign(&spec, &before.ids);
        let old = (&*before.spec, &before.ids, &before.intent);
        let intent = compile_after(&spec, &ids, NOW, Some(old)).map_err(|e| format!("{e:?}"))?;
        Host::of(text, Read::after(spec, &before.spec), ids, intent)
    }

    fn of(text: &str, spec: Read, ids: Ids, intent: Intent) -> Result<Host, String> {
        Ok(Host {
            text: text.to_owned(),
            spec,
            numbers: serde_json::to_vec(&ids).map_err(|e| e.to_string())?,
            ids,
            intent,
        })
    }

    fn claim(&self) -> Claim<'_> {
        let compartments = self.intent.compartments.iter();
        Claim {
            spec: &self.spec,
            numbers: &self.numbers,
            now: NOW,
            fabric: &self.intent.fabric.bytes,
            compartments: compartments
                .map(|(slot, c)| (*slot, &*c.image.bytes))
                .collect(),
            compromised: None,
            before: BTreeMap::new(),
            counted: false,
        }
    }

    fn rules(&self) -> Result<usize, String> {
        let tables = self.intent.compartments.values().flat_map(|c| &c.tables);
        Ok(tables.map(|t| t.rules.len()).sum())
    }

    /// For a process of its own, in which nothing else has been.
    fn save(&self) -> Result<String, String> {
        let folder = std::env::temp_dir().join(format!("bulkhead-verify-{}", std::process::id()));
        let put = |name: &str, bytes: &[u8]| std::fs::write(folder.join(name), bytes);
        std::fs::create_dir_all(&folder)
            .and_then(|()| put("spec.yaml", self.text.as_bytes()))
            .and_then(|()| put("numbers", &self.numbers))
            .and_then(|()| put("0", &self.intent.fabric.bytes))
            .map_err(|e| e.to_string())?;
        for (slot, compartment) in &self.intent.compartments {
            put(&slot.to_string(), &compartment.image.bytes).map_err(|e| e.to_string())?;
        }
        Ok(folder.to_string_lossy().into_owned())
    }
}

const CHILD: &str = "BULKHEAD_BENCH_VERIFY";

/// Seconds and MiB of a proof in a new process.
fn in_child(folder: &str, options: &Options) -> Result<(f64, f64), String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let out = Command::new(program)
        .args(["verify", "--results", "-"])
        .env(CHILD, folder)
        .env(HINDERED, if options.hindered { "1" } else { "" })
        // What reading the spec freed is no room for the proof.
        .env("MALLOC_TRIM_THRESHOLD_", "0")
        .env("MALLOC_TOP_PAD_", "0")
        .output()
        .map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&out.stdout);
    let mut words = text.split_whitespace().map(str::parse::<f64>);
    match (words.next(), words.next()) {
        (Some(Ok(seconds)), Some(Ok(mib))) => Ok((seconds, mib)),
        _ => Err(format!(
            "no figures: {text}{}",
            String::from_utf8_lossy(&out.stderr)
        )),
    }
}

const HINDERED: &str = "BULKHEAD_BENCH_VERIFY_TWICE";

fn child(folder: &str) -> Result<(), String> {
    let read = |name: &str| std::fs::read(format!("{folder}/{name}")).map_err(|e| e.to_string());
    let spec = spec::parse("bench.yaml", &read("spec.yaml")?).map_err(|e| e.to_string())?;
    let spec = Read::new(spec);
    let numbers = read("numbers")?;
    let fabric = read("0")?;
    let mut images = Vec::new();
    for slot in 1..=spec.tenants.len() as u32 {
        images.push((slot, Aligned::copy_of(&read(&slot.to_string())?)));
    }
    let claim = Claim {
        spec: &spec,
        numbers: &numbers,
        now: NOW,
        fabric: &fabric,
        compartments: images
            .iter()
            .map(|(slot, image)| (*slot, image.as_ref()))
            .collect(),
        compromised: None,
        before: BTreeMap::new(),
        counted: false,
    };
    let before = kib("VmRSS")?;
    std::fs::write("/proc/self/clear_refs", "5").map_err(|e| e.to_string())?;
    let start = Instant::now();
    let mut kept = Vec::new();
    let rounds = if std::env::var(HINDERED).is_ok_and(|v| !v.is_empty()) {
        2
    } else {
        1
    };
    for _ in 0..rounds {
        let mut known = Known::default();
        let proved = prove(&claim, &mut known).map_err(|b| b[0].to_string())?;
        if proved.len() != images.len() + 1 {
            return Err("not all was proved".into());
        }
        kept.push(known);
    }
    let seconds = start.elapsed().as_secs_f64();
    let growth = kib("VmHWM")?.saturating_sub(before) as f64 / 1024.0;
    println!("{seconds} {growth}");
    Ok(())
}

fn kib(what: &str) -> Result<u64, String> {
    let status = std::fs::read_to_string("/proc/self/status").map_err(|e| e.to_string())?;
    let line = status.lines().find(|l| l.starts_with(what));
    let number = line.and_then(|l| l.split_whitespace().nth(1)?.parse().ok());
    number.ok_or_else(|| format!("no {what}"))
}

/// One changed endpoint, to and fro: milliseconds each, and those of them that counting
/// the digest of its image took.
fn one(
    before: &Host,
    after: &Host,
    options: &Options,
    runs: usize,
) -> Result<(Vec<f64>, f64), String> {
    let mut known = Known::default();
    let hosts = [before, after];
    prove(&before.claim(), &mut known).map_err(|b| b[0].to_string())?;
    let changed = |host: &Host, other: &Host| {
        let mut all = host.intent.compartments.iter();
        let one = all.find(|(slot, c)| c.image != other.intent.compartments[slot].image);
        one.map(|(slot, c)| (*slot, Aligned::copy_of(&c.image.bytes)))
    };
    let images = [changed(before, after), changed(after, before)];
    let [Some(was), Some(is)] = images else {
        return Err("nothing changed".into());
    };
    let images = [was, is];
    let mut all = Vec::new();
    let mut digests = Vec::new();
    for round in 0..runs {
        let (old, new) = (round % 2, (round + 1) % 2);
        let (slot, image) = &images[new];
        // As the verifier asks: it has the image of the claim before, and counts the new
        // one's digest itself.
        let mut claim = Claim {
            before: BTreeMap::from([(images[old].0, images[old].1.as_ref())]),
            counted: true,
            ..hosts[new].claim()
        };
        claim.compartments.insert(*slot, image.as_ref());
        if options.hindered {
            known = Known::default();
        }
        let start = Instant::now();
        if image::digest(image.as_ref()) != image::claimed_digest(image.as_ref()) {
            return Err("a digest is wrong".into());
        }
        digests.push(start.elapsed().as_secs_f64() * 1e3);
        prove(&claim, &mut known).map_err(|b| b[0].to_string())?;
        all.push(start.elapsed().as_secs_f64() * 1e3);
    }
    Ok((all, digests.iter().sum::<f64>() / digests.len() as f64))
}

/// A host whose endpoints have all rules of their own; `variant` changes those of one.
fn text((tenants, endpoints): (usize, usize), variant: usize) -> String {
    let mut text = String::from("version: 1\ntenants:\n");
    for t in 0..tenants {
        let _ = write!(
            text,
            "  - name: t{t}\n    subnets: [{{name: lan, prefixes: [10.1.0.0/22, 'fd00:1::/64']}}]\n    endpoints:\n"
        );
        for e in 0..endpoints {
            let _ = writeln!(text, "      - {{name: e{e}, subnet: lan}}");
        }
        text += "    policy:\n      default: deny\n      rules:\n";
        for e in 0..endpoints {
            let list = |seed: usize| {
                let mut prefixes = Vec::new();
                for n in 0..PREFIXES {
                    let bits = (t * 7919 + e * 104_729 + seed * 31 + n * 3571) % 65_000 + n * 2;
                    prefixes.push(match n % 2 {
                        0 => format!("172.{}.{}.{}/32", 16 + n % 14, bits >> 8, bits & 0xfe),
                        _ => format!("'2001:db8:{:x}:{n:x}::/64'", bits),
                    });
                }
                prefixes.join(", ")
            };
            let mut ports: Vec<usize> = (0..PORTS)
                .map(|n| 1000 + n * 11_000 + (e * 37 + t * 11) % 9000)
                .collect();
            if variant > 0 && (t, e) == (0, 0) {
                ports[0] += 1;
            }
            let ports = ports
                .iter()
                .map(|p| format!("{p}-{}", p + 9))
                .collect::<Vec<_>>()
                .join(", ");
            let action = ["allow", "deny"][e % 7 / 6];
            let _ = write!(
                text,
                "        - {{name: o{e}, action: {action}, from: {{endpoint: e{e}}}, to: {{prefix: [{}]}}, protocol: tcp, ports: [{ports}]}}\n        - {{name: i{e}, action: {action}, from: {{prefix: [{}]}}, to: {{endpoint: e{e}}}, protocol: udp, ports: [{ports}]}}\n",
                list(1),
                list(2)
            );
        }
    }
    text
}

/// Tables that are made to be hard, each with the same in other words: milliseconds, and
/// how many were refused.
fn adversarial(options: &Options) -> (Vec<f64>, usize) {
    let space = packets(&anywhere(), &anywhere());
    let mut times = Vec::new();
    let mut refused = 0;
    let mut dice = 88_172_645_463_325_252u64;
    let mut roll = |below: u64| {
        // Xorshift (Marsaglia, 2003).
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        dice % below
    };
    for kind in 0..4 {
        // The last have as many rules as a table can: those are refused.
        let rules = match (options.smoke, kind) {
            (true, _) => 64,
            (false, 3) => 10_000,
            (false, _) => 256,
        };
        for _ in 0..if options.smoke { 2 } else { 12 } {
            let list: Vec<Rule> = (0..rules)
                .map(|n| {
                    let mut region = Region::ALL;
                    let fields = match kind {
                        // Slabs: one field each.
                        0 => 1 << (n % 4),
                        // Tiles: every field.
                        1 => 0b1111,
                        // Heaps: some.
                        _ => roll(15) + 1,
                    };
                    let mut range = |width: u64| {
                        let first = roll(65_536 - width);
                        (first as u16, (first + roll(width)) as u16)
                    };
                    let width = if kind == 1 { 30_000 } else { 9000 };
                    let wide = |(first, last): (u16, u16)| {
                        let at = |n: u16| (0xffff_0a00_0000u128 + u128::from(n) * 7).to_be_bytes();
                        at(first)..=at(last)
                    };
                    if fields & 1 != 0 {
                        region.source = wide(range(width));
                    }
                    if fields & 2 != 0 {
                        region.destination = wide(range(width));
                    }
                    if fields & 4 != 0 {
                        let (first, last) = range(width);
                        region.source_port = first..=last;
                    }
                    if fields & 8 != 0 {
                        let (first, last) = range(width);
                        region.destination_port = first..=last;
                    }
                    Rule {
                        region,
                        action: Action::Deny,
                        log: false,
                        id: 0,
                    }
                })
                .collect();
            let table = |rules: Vec<Rule>| RuleTable {
                rules,
                default: Action::Allow,
            };
            let other = table(list.iter().rev().cloned().collect());
            let (one, other) = (Cubes::of(&table(list)), Cubes::of(&other));
            let rounds = if options.hindered { 2 } else { 1 };
            let start = Instant::now();
            for _ in 0..rounds {
                let mut fuel = Fuel(TABLE_FUEL);
                refused += usize::from(difference(&one, &other, &space, &mut fuel).is_err());
            }
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    (times, refused)
}

/// Seconds a table of Z3 and of ours: whether it says the same as its rules in reverse,
/// which do all the same.
fn z3(host: &Host, options: &Options) -> Result<(f64, f64), String> {
    let tables = host.intent.compartments.values().flat_map(|c| &c.tables);
    let sample = if options.smoke { 1 } else { 5 };
    let space = packets(&anywhere(), &anywhere());
    let (mut theirs, mut ours, mut asked) = (0.0, 0.0, 0);
    for table in tables.step_by(97).take(sample) {
        let mut other = table.clone();
        other.rules.reverse();
        let start = Instant::now();
        let found = difference(
            &Cubes::of(table),
            &Cubes::of(&other),
            &space,
            &mut Fuel(u64::MAX),
        );
        ours += start.elapsed().as_secs_f64();
        if !matches!(found, Ok(None)) {
            return Err("the sample's rules are not apart".into());
        }
        let start = Instant::now();
        let mut child = Command::new("z3")
            .args(["-in", "-smt2"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("z3: {e}"))?;
        let text = format!(
            "(set-logic QF_BV)
             (declare-const s (_ BitVec 128)) (declare-const d (_ BitVec 128))
             (declare-const sp (_ BitVec 16)) (declare-const dp (_ BitVec 16))
             (declare-const p (_ BitVec 8))
             (assert (not (= {} {}))) (check-sat) (exit)\n",
            smt(table),
            smt(&other)
        );
        let mut to = child.stdin.take().ok_or("z3 has no input")?;
        to.write_all(text.as_bytes()).map_err(|e| e.to_string())?;
        drop(to);
        let mut line = String::new();
        let from = child.stdout.take().ok_or("z3 has no output")?;
        BufReader::new(from)
            .read_line(&mut line)
            .map_err(|e| e.to_string())?;
        let _ = child.wait();
        if line.trim() != "unsat" {
            return Err(format!("z3 says {line}"));
        }
        theirs += start.elapsed().as_secs_f64();
        asked += 1;
    }
    Ok((
        theirs / f64::from(asked.max(1)),
        ours / f64::from(asked.max(1)),
    ))
}

fn smt(table: &RuleTable) -> String {
    let mut text = String::new();
    for rule in &table.rules {
        let r = &rule.region;
        let within = |name: &str, first: u128, last: u128, digits: usize| {
            format!("(bvule #x{first:0digits$x} {name}) (bvule {name} #x{last:0digits$x})")
        };
        let wide = |a: &[u8; 16]| u128::from_be_bytes(*a);
        let _ = write!(
            text,
            "(ite (and {} {} {} {} {}) #x0{} ",
            within("s", wide(r.source.start()), wide(r.source.end()), 32),
            within(
                "d",
                wide(r.destination.start()),
                wide(r.destination.end()),
                32
            ),
            within(
                "sp",
                (*r.source_port.start()).into(),
                (*r.source_port.end()).into(),
                4
            ),
            within(
                "dp",
                (*r.destination_port.start()).into(),
                (*r.destination_port.end()).into(),
                4
            ),
            within(
                "p",
                (*r.protocol.start()).into(),
                (*r.protocol.end()).into(),
                2
            ),
            rule.action as u8
        );
    }
    let _ = write!(text, "#x0{}", table.default as u8);
    text + &")".repeat(table.rules.len())
}
