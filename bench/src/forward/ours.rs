//! A Bulkhead with one tenant in one compartment on core 0, under the generator; and the
//! proof by its own counters that it looked at every packet.

use super::site::{RULES, Site, Station};
use crate::flow::{attach, station};
use crate::load::dpdk::{Generator, Wire};
use crate::load::fifo::Fifo;
use crate::load::{Load, Shape, Slowed, Trial, signal};
use e2e::Instance;
use rustix::process::Signal;
use std::time::Duration;

/// Connections that a listing has room for.
const LISTED: u32 = 1000;

/// What drives it.
enum Drive {
    Fifo(Box<Fifo>),
    Vhost(Box<Generator>),
}

impl Drive {
    fn name(&self) -> &'static str {
        match self {
            Drive::Fifo(_) => "fifo",
            Drive::Vhost(_) => "vhost",
        }
    }
}

/// It.
pub struct Ours {
    // The generator first: it lets go of the endpoints.
    drive: Drive,
    instance: Instance,
    switch: u32,
    /// Packets that its ports took from the generator.
    taken: u64,
    connections: u32,
    before: Seen,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    received: u64,
    /// The packets on the wire that what was received stands for.
    segments: u64,
    sent: u64,
    dropped: u64,
    /// By `bulkhead usage`: connections on the sender's account, and packets that the
    /// flows' rule let pass.
    connections: u64,
    passed: u64,
    /// By `bulkhead flows`: connections there are, and packets that the sender's side of
    /// those listed sent.
    live: u64,
    conversed: u64,
}

impl Ours {
    /// Over FIFOs of so many bytes, a number and a unit as a spec has it.
    pub fn fifo(capacity: &str, flows: u32) -> Result<Ours, String> {
        let attach = format!("{{ fifo: {{ capacity: {capacity} }} }}");
        let instance = started(&attach, flows)?;
        let run = instance.run_dir();
        let ends = [
            self::attach(&run, "red", "a")?,
            self::attach(&run, "red", "b")?,
        ];
        let stations = stations(&instance)?;
        let drive = Drive::Fifo(Box::new(Fifo::new(ends, stations)));
        Ours::joined(drive, instance, flows)
    }

    /// Over vhost-user.
    pub fn vhost(flows: u32) -> Result<Ours, String> {
        let instance = started("vhost", flows)?;
        let stations = stations(&instance)?;
        let socket = |name: &str| instance.run_dir().join(format!("vhost/red/{name}.sock"));
        let macs = stations.map(|(mac, _)| mac.map(|byte| format!("{byte:02x}")).join(":"));
        let addresses = stations.map(|(_, four)| four.map(|byte| byte.to_string()).join("."));
        let sockets = [socket("a"), socket("b")];
        let folder = instance.folder();
        let mut generator = Generator::start(Wire::Vhost, folder, &sockets, &macs)?;
        generator.join(&macs, &addresses, instance.pid("red")?, false)?;
        Ours::joined(Drive::Vhost(Box::new(generator)), instance, flows)
    }

    fn joined(drive: Drive, instance: Instance, flows: u32) -> Result<Ours, String> {
        let switch = instance.pid("red")?;
        let mut ours = Ours {
            drive,
            instance,
            switch,
            taken: 0,
            connections: flows,
            before: Seen::default(),
        };
        let conversed = match &mut ours.drive {
            Drive::Fifo(fifo) => fifo.converse(flows),
            Drive::Vhost(generator) => generator.converse(flows),
        };
        if let Err(why) = conversed {
            let of = |name: &str| ours.instance.endpoint("red", name);
            let (a, b) = (of("a")?, of("b")?);
            return Err(format!("{why}: a {}, b {}", a["counters"], b["counters"]));
        }
        ours.before = ours.seen()?;
        if ours.before.connections < u64::from(flows) {
            return Err(format!("{flows} connections were begun: {:?}", ours.before));
        }
        signal(&[switch], Signal::STOP);
        Ok(ours)
    }

    /// Whether guard, policy, meter and accounting were at work on every packet: each that a
    /// port took was received on its endpoint's account, and went on or was dropped for a
    /// reason that is counted, by a connection that was there before.
    pub fn proof(&mut self) -> Result<serde_json::Value, String> {
        signal(&[self.switch], Signal::CONT);
        // What is in the rings, or waits for room in one, comes to its end, and the background
        // pass that tells rules what passed comes by all connections.
        let mut proof = Err(String::new());
        for _ in 0..10 {
            let time = Duration::from_millis(300);
            match &mut self.drive {
                Drive::Fifo(fifo) => fifo.rest(time)?,
                // Its generator takes all the time.
                Drive::Vhost(_) => std::thread::sleep(time),
            }
            proof = self.seen().and_then(|after| self.judged(&after));
            if proof.is_ok() {
                break;
            }
        }
        // Of a process that does not go on, or another, these numbers say something else.
        let (pid, wire) = (self.instance.pid("red"), self.drive.name());
        let proof = proof.map_err(|why| {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.switch));
            format!(
                "{wire}, process {} of {pid:?}, {stat:?}: {why}",
                self.switch
            )
        });
        signal(&[self.switch], Signal::STOP);
        proof
    }

    fn judged(&self, after: &Seen) -> Result<serde_json::Value, String> {
        let since = |what: fn(&Seen) -> u64| what(after) - what(&self.before);
        let (received, sent) = (since(|s| s.received), since(|s| s.sent));
        let (dropped, passed) = (since(|s| s.dropped), since(|s| s.passed));
        let segments = since(|s| s.segments);
        let begun = since(|s| s.connections);
        let conversed = since(|s| s.conversed);
        let said = serde_json::json!({
            "packets": self.taken,
            "received": received,
            "segments": segments,
            "passed_by_the_rule": passed,
            "passed_by_connections_listed": conversed,
            "sent": sent,
            "dropped": dropped,
            "connections": after.live,
            "connections_begun_under_load": begun,
            "rules": RULES,
        });
        // A listing has room for a thousand. A rule is told of live connections to within a
        // 512th (core/flow/src/tally.rs), and of a million of them minutes later; of the packets
        // that set them up perhaps only now. The switch advertises by itself: more may be sent.
        let listed = self.connections <= LISTED;
        let all = received == self.taken
            && sent + dropped >= received
            && passed <= segments + 2 * u64::from(self.connections)
            && (!listed || conversed == segments && passed >= segments - segments / 256)
            && begun == 0
            && after.live >= u64::from(self.connections);
        match all {
            true => Ok(said),
            false => Err(format!("not every packet was looked at: {said}")),
        }
    }

    fn seen(&self) -> Result<Seen, String> {
        let (a, b) = (
            self.instance.endpoint("red", "a")?,
            self.instance.endpoint("red", "b")?,
        );
        let number = |of: &serde_json::Value, name: &str| of["counters"][name].as_u64();
        let drops = |of: &serde_json::Value| -> u64 {
            let all = of["counters"]["drops"].as_array().into_iter().flatten();
            all.filter_map(|d| d["frames"].as_u64()).sum()
        };
        let usage = self.instance.ask(&["usage"])?;
        let row = |endpoint: &str, rule: &str, of: &str| -> u64 {
            let rows = usage["rows"].as_array().into_iter().flatten();
            let text = |row: &serde_json::Value, key: &str| row[key].as_str().map(str::to_owned);
            rows.filter(|row| {
                text(row, "endpoint").unwrap_or_default() == endpoint
                    && text(row, "rule").unwrap_or_default() == rule
            })
            .filter_map(|row| row[of].as_u64())
            .sum()
        };
        let flows = self
            .instance
            .ask(&["flows", "red/a", "--most", &LISTED.to_string()])?;
        let listed = flows["flows"].as_array().into_iter().flatten();
        let missing = || format!("status has no such counters: {a}");
        Ok(Seen {
            received: number(&a, "rx_frames").ok_or_else(missing)?,
            segments: number(&a, "rx_segments").ok_or_else(missing)?,
            sent: number(&b, "tx_frames").ok_or_else(missing)?,
            dropped: drops(&a) + drops(&b),
            connections: row("a", "", "connections"),
            live: flows["seen"].as_u64().unwrap_or(0),
            conversed: listed.filter_map(|f| f["packets"][0].as_u64()).sum(),
            passed: row("", "rule flows", "sent_packets"),
        })
    }
}

impl Load for Ours {
    fn run(&mut self, shape: &Shape, pps: f64) -> Result<Trial, String> {
        let _slowed = shape
            .hindered
            .then(|| Slowed::start(self.switch, 3_000, 1_000));
        let trial = match &mut self.drive {
            Drive::Fifo(fifo) => fifo.run(shape, pps, self.switch),
            Drive::Vhost(generator) => generator.run(shape, pps),
        }?;
        self.taken += trial.taken;
        Ok(trial)
    }
    fn switch(&self) -> Vec<u32> {
        vec![self.switch]
    }
    fn generator(&self) -> Option<u32> {
        match &self.drive {
            Drive::Fifo(_) => None,
            Drive::Vhost(generator) => Some(generator.id()),
        }
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        signal(&[self.switch], Signal::CONT);
    }
}

fn started(attach: &str, flows: u32) -> Result<Instance, String> {
    let instance = Instance::start()?;
    let site = Site {
        attach,
        // A connection and its journal; no less than what a switch has by default.
        tenant: &[
            "cores: { isolated: [0] }",
            "wait: poll",
            if flows > 10_000 {
                "memory: 2GiB"
            } else {
                "memory: 64MiB"
            },
        ],
        connections: flows + flows / 50 + 64,
        rules: RULES,
        beside: 0,
    };
    instance.apply(&site.spec())?;
    Ok(instance)
}

fn stations(instance: &Instance) -> Result<[Station; 2], String> {
    Ok([
        station(instance, "red", "a")?,
        station(instance, "red", "b")?,
    ])
}
