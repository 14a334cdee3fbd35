//! Virtual machines as tenants' endpoints: real QEMU guests, and DPDK's virtio-user.

#[path = "machines/sharing.rs"]
mod sharing;

use e2e::machine::{Card, Machine, Setup};
use e2e::monitor::Monitor;
use e2e::virtio_user::{Reflector, reflected};
use e2e::{Ended, Instance, Namespace, enter, leave_to, unique};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde_json::json;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// An emulated machine is slow where others compile.
const PATIENCE: Duration = Duration::from_secs(90);

const MACS: [&str; 2] = ["52:54:00:00:00:01", "52:54:00:00:00:02"];

fn spec(app: &str) -> String {
    format!(
        r#"version: 1
tenants:
  - name: red
    subnets:
      - {{name: lan, prefixes: [10.1.1.0/24, "fd00:1::/64"]}}
    endpoints:
      - {{name: vm1, subnet: lan, addresses: [10.1.1.10, "fd00:1::10"], mac: "{}", attach: vhost}}
      - {{name: vm2, subnet: lan, addresses: [10.1.1.11, "fd00:1::11"], mac: "{}", attach: {{vhost: {{queues: 2}}}}}}
      - {{name: app, subnet: lan, addresses: [10.1.1.12, "fd00:1::12"], attach: {{tap: {{namespace: {app}, interface: eth0, make: true}}}}}}
"#,
        MACS[0], MACS[1]
    )
}

fn mac(name: &str) -> &'static str {
    if name == "vm1" { MACS[0] } else { MACS[1] }
}

struct Home {
    instance: Instance,
    app: Namespace,
}

fn home() -> Home {
    let app = Namespace::named(unique("bht-vm"));
    let instance = Instance::start().unwrap();
    instance.apply(&spec(&app.name)).unwrap();
    Home { instance, app }
}

impl Home {
    fn boot(&self, name: &str, device: &str, script: &str) -> Machine {
        let (socket, mac) = (self.socket(name), mac(name));
        let folder = self.instance.folder();
        Machine::boot(folder, name, (&socket, mac), device, script).unwrap()
    }

    fn socket(&self, name: &str) -> std::path::PathBuf {
        let folder = self.instance.run_dir().join("vhost/red");
        folder.join(format!("{name}.sock"))
    }

    /// Frames that an endpoint has received, and sent.
    fn counted(&self, name: &str) -> (u64, u64) {
        let endpoint = self.instance.endpoint("red", name).unwrap();
        let count = |which: &str| endpoint["counters"][which].as_u64().unwrap_or(0);
        (count("tx_frames"), count("rx_frames"))
    }

    fn restarts(&self) -> u64 {
        let status = self.instance.ask(&["status"]).unwrap();
        let all = status["compartments"].as_array().unwrap();
        let red = all.iter().find(|one| one["name"] == "red").unwrap();
        red["restarts"].as_u64().unwrap_or(0)
    }
}

#[test]
fn a_switch_that_dies_costs_a_machine_no_link_and_no_connection() {
    let home = home();
    for (device, features) in [("", "split"), (",packed=on", "packed")] {
        let taker = home
            .app
            .command("timeout 120 socat -u TCP-LISTEN:5001,reuseaddr - | wc -c")
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let script = "ip addr add 10.1.1.10/24 dev eth0\n\
             cp /sys/class/net/eth0/carrier_changes /tmp/before\n\
             (dd if=/dev/zero bs=64k count=256 2>/dev/null | nc 10.1.1.12 5001; echo SENT) &\n\
             ping -c 60 -i 0.1 10.1.1.12; wait\n\
             cmp /tmp/before /sys/class/net/eth0/carrier_changes && echo STEADY\n";
        let mut machine = home.boot("vm1", device, script);
        machine.wait_for("bytes from", PATIENCE).unwrap();
        for _ in 0..3 {
            let restarts = home.restarts();
            home.instance.kill("red");
            let end = std::time::Instant::now() + PATIENCE;
            while home.restarts() == restarts {
                assert!(std::time::Instant::now() < end, "it was not restarted");
                std::thread::sleep(Duration::from_millis(20));
            }
            std::thread::sleep(Duration::from_millis(500));
        }
        let console = machine.wait_for("ENDED", PATIENCE).unwrap();
        assert!(console.contains("STEADY"), "{features}: {console}");
        assert!(console.contains("SENT"), "{features}: {console}");
        // What was in a ring at a death may be lost, and what came during the outage.
        assert!(received(&console) >= 40, "{features}: {console}");
        assert_eq!(printed(taker).trim(), (256 << 16).to_string(), "{features}");
    }
}

/// How many answers each `ping` got, of its line of sums.
fn answers(console: &str) -> Vec<u32> {
    let sums = console
        .lines()
        .filter(|l| l.contains("packets transmitted"));
    sums.filter_map(|l| l.split(", ").nth(1)?.split(' ').next()?.parse().ok())
        .collect()
}

/// The same of the first.
fn received(console: &str) -> u32 {
    answers(console).first().copied().unwrap_or(0)
}

/// What a command printed, once it has ended.
fn printed(mut child: std::process::Child) -> String {
    let mut out = String::new();
    if let Some(mut pipe) = child.stdout.take() {
        pipe.read_to_string(&mut out).unwrap();
    }
    assert!(child.wait().unwrap().success());
    out
}

#[test]
fn a_helper_that_dies_costs_a_machine_a_moment_and_no_connection() {
    let home = home();
    for (device, kind) in [("", "split"), (",packed=on", "packed")] {
        let taker = home
            .app
            .command("timeout 120 socat -u TCP-LISTEN:5001,reuseaddr - | sha256sum")
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let script = "ip addr add 10.1.1.10/24 dev eth0\n\
             cp /sys/class/net/eth0/carrier_changes /tmp/before\n\
             dd if=/dev/urandom bs=64k count=200 of=/tmp/sent 2>/dev/null\n\
             (nc 10.1.1.12 5001 < /tmp/sent; echo SENT) &\n\
             ping -c 120 -i 0.1 10.1.1.12; wait; sha256sum /tmp/sent\n\
             echo CHANGES $(($(cat /sys/class/net/eth0/carrier_changes) - $(cat /tmp/before)))\n";
        let mut machine = home.boot("vm1", device, script);
        for seq in ["seq=5 ", "seq=55 "] {
            machine.wait_for(seq, PATIENCE).unwrap();
            // That of the other endpoint too: which is which, nobody says.
            home.instance.kill_all("bulkhead-vhost");
        }
        let console = machine.wait_for("ENDED", PATIENCE).unwrap();
        // The link is down until QEMU has connected again, once each time.
        assert!(console.contains("CHANGES 4\n"), "{kind}: {console}");
        assert!(console.contains("SENT"), "{kind}: {console}");
        assert!(
            !console.contains("DUP!"),
            "{kind}: nothing twice: {console}"
        );
        assert!(received(&console) >= 70, "{kind}: {console}");
        let whole = printed(taker);
        let sum = whole.split(' ').next().unwrap();
        assert!(console.contains(sum), "{kind}: {whole} {console}");
    }
    assert_eq!(home.restarts(), 0, "no switch died");
}

#[test]
fn a_machine_moves_while_it_talks_and_keeps_its_connections() {
    let home = home();
    let folder = home.instance.folder();
    for (device, kind) in [("", "split"), (",packed=on", "packed")] {
        // Both ways at once: what comes is written into the guest's memory by the switch,
        // and is wrong there if it does not know of it.
        let taker = home
            .app
            .command("timeout 400 socat -u TCP-LISTEN:5001,reuseaddr - | sha256sum")
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let source = "head -c 6553600 /dev/urandom > $T; sha256sum < $T; \
             for n in $(seq 400); do dd bs=16k count=1 2>/dev/null; sleep 0.03; done \
             < $T | timeout 400 socat -u - TCP-LISTEN:5002,reuseaddr; rm $T";
        let source = source.replace("$T", &folder.join("sent").display().to_string());
        let giver = home
            .app
            .command(&source)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let script = "ip addr add 10.1.1.10/24 dev eth0\n\
             dd if=/dev/urandom bs=16k count=400 of=/tmp/sent 2>/dev/null\n\
             ping -c 200 -i 0.1 10.1.1.12 > /tmp/ping &\n\
             (for n in $(seq 400); do dd bs=16k count=1 2>/dev/null; sleep 0.03; done \
              < /tmp/sent | nc 10.1.1.12 5001; echo SENT) &\n\
             nc 10.1.1.12 5002 | sha256sum\n\
             wait; sha256sum /tmp/sent; tail -3 /tmp/ping\n";
        let files = ["source.qmp", "target.qmp", "moves"].map(|name| folder.join(name));
        let [source_qmp, target_qmp, moves] = &files;
        let monitor =
            |path: &std::path::Path| format!("unix:{},server=on,wait=off", path.display());
        let setup = Setup {
            folder,
            name: "vm1",
            card: Card::Vhost(&home.socket("vm1")),
            mac: MACS[0],
            device,
            queues: 1,
            modules: &[],
            programs: &[],
            arguments: &["-qmp", &monitor(source_qmp)],
            script,
        };
        let mut machine = Machine::start(&setup).unwrap();
        machine.wait_for("BOOTED", PATIENCE).unwrap();
        let incoming = format!("unix:{}", moves.display());
        let mut target = Machine::start(&Setup {
            name: "vm1-there",
            arguments: &["-qmp", &monitor(target_qmp), "-incoming", &incoming],
            ..setup
        })
        .unwrap();
        drop(Monitor::connect(target_qmp).unwrap());
        let mut monitor = Monitor::connect(source_qmp).unwrap();
        // Once it is there it says so to its subnet.
        let hears = "timeout 400 tcpdump -n -i eth0 -c 3 'arp[6:2]=1 and arp[14:4]=arp[24:4]' >/dev/null 2>&1";
        let mut hears = home.app.command(hears).spawn().unwrap();
        monitor.migrate(moves, 10 << 20).unwrap();
        if kind == "split" {
            // Pages that its switch has noted are not forgotten by the next one.
            monitor.copies().unwrap();
            home.instance.kill("red");
        }
        let said = monitor.migrated(PATIENCE).unwrap();
        // It was written to while it was copied, more than once.
        assert!(said["ram"]["dirty-sync-count"].as_u64() > Some(2), "{said}");
        let _ = monitor.ask("quit", json!({}));
        let there = target.wait_for("ENDED", 2 * PATIENCE);
        let there = there.unwrap_or_else(|error| panic!("{kind}: {error}"));
        let here = machine.console();
        let (taken, given) = (printed(taker), printed(giver));
        for (way, whole) in [("out", taken), ("in", given)] {
            let sum = whole.split(' ').next().unwrap();
            assert!(
                there.contains(sum) && !here.contains(sum),
                "{kind} {way}: {whole} {there}"
            );
        }
        assert!(there.contains("SENT"), "{kind}: {there}");
        assert!(
            received(&there) >= 180 && !there.contains("DUP!"),
            "{kind}: {there}"
        );
        assert!(hears.wait().unwrap().success(), "{kind}: no announcement");
        for file in files {
            let _ = std::fs::remove_file(file);
        }
    }
    assert_eq!(home.restarts(), 1, "the one that was killed");
}

#[test]
fn virtio_user_passes_frames_both_ways_by_every_kind_and_number_of_queues() {
    let home = home();
    let kinds = [
        ("vm1", 1, ""),
        ("vm1", 1, ",packed_vq=1"),
        ("vm1", 1, ",in_order=0,mrg_rxbuf=0"),
        ("vm2", 2, ""),
        ("vm2", 2, ",packed_vq=1"),
        // Fewer than there may be.
        ("vm2", 1, ",packed_vq=1,in_order=0"),
    ];
    for (name, queues, device) in kinds {
        let what = format!("{name} {queues} {device}");
        let address = if name == "vm1" {
            "10.1.1.10"
        } else {
            "10.1.1.11"
        };
        let six = address.replace("10.1.1.", "fd00:1::");
        let card = (&*home.socket(name), mac(name));
        let before = home.counted(name);
        let reflector = Reflector::start(card, queues, device).unwrap();
        let (flows, rounds) = (16, 10);
        for target in [address, &six] {
            let back = reflected(&home.app.name, target, flows, rounds).unwrap();
            assert_eq!(back, usize::from(flows) * rounds, "{what} {target}");
        }
        // What a neighbour asks as it ends (ND, ARP) may come before it is gone, or not.
        let asked = home.counted(name);
        let counted = reflector.end().unwrap();
        let after = home.counted(name);
        let count = |what: &str| counted.get(what).copied().unwrap_or(0);
        let (mut received, mut sent) = (0, 0);
        for queue in 0..queues {
            let of = |way: &str| count(&format!("{way}_q{queue}_good_packets"));
            // Each flow keeps to its queue, and they are spread.
            assert!(of("rx") >= 2 * rounds as u64, "{what}: {counted:?}");
            (received, sent) = (received + of("rx"), sent + of("tx"));
        }
        assert!(received >= 320 && sent >= 320, "{what}: {counted:?}");
        for (way, from, until, theirs) in [
            ("got", asked.0, after.0, received + before.0),
            ("sent", asked.1, after.1, sent + before.1),
        ] {
            let ours = from..=until;
            assert!(
                ours.contains(&theirs),
                "{what}: {way}: {theirs} of {ours:?}"
            );
            assert!(until - from <= 4, "{what}: {way}: {ours:?}");
        }
    }
    assert_eq!(home.restarts(), 0, "no switch died");
}

/// Says one thing as a front end does; what is answered, and the file beside it.
fn say(
    front: &UnixStream,
    request: u32,
    payload: &[u8],
    answers: bool,
) -> (Vec<u8>, Option<OwnedFd>) {
    let mut message = Vec::new();
    for word in [request, 1, payload.len() as u32] {
        message.extend(word.to_ne_bytes());
    }
    message.extend(payload);
    (&*front).write_all(&message).unwrap();
    if !answers {
        return (Vec::new(), None);
    }
    let (mut bytes, mut space) = (vec![0; 64], [MaybeUninit::uninit(); 64]);
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let got = recvmsg(front, &mut parts, &mut beside, RecvFlags::CMSG_CLOEXEC).unwrap();
    let file = beside.drain().find_map(|one| match one {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    bytes.truncate(got.bytes);
    (bytes, file)
}

#[test]
fn a_front_end_that_asks_for_something_to_keep_gets_it_from_a_confined_helper() {
    const PROTOCOL_FEATURES: u64 = 1 << 30;
    const INFLIGHT: u64 = 1 << 12;
    let home = home();
    let connects = || {
        let front = UnixStream::connect(home.socket("vm1")).unwrap();
        front
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        let (features, _) = say(&front, 1, &[], true);
        assert_eq!(features.len(), 20, "{features:?}");
        say(&front, 2, &PROTOCOL_FEATURES.to_ne_bytes(), false);
        say(&front, 16, &INFLIGHT.to_ne_bytes(), false);
        front
    };
    let front = connects();
    // struct VhostUserInflight: size and place of what is to be kept, queues, their length.
    let mut asked = [0; 20];
    asked[16] = 2;
    asked[18..].copy_from_slice(&256_u16.to_ne_bytes());
    let (kept, file) = say(&front, 31, &asked, true);
    assert_eq!(
        kept.get(12..20),
        Some(&4096_u64.to_ne_bytes()[..]),
        "{kept:?}"
    );
    let file = file.expect("a file to keep");
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_size, 4096);
    drop(front);
    // Who comes again with it is served.
    let front = connects();
    let (again, _) = say(&front, 31, &asked, true);
    assert_eq!(again.len(), kept.len());
}

/// Sends datagrams from so many ports of a namespace, in so many rounds.
fn send_to(namespace: &str, target: &str, ports: usize, rounds: usize) -> Result<(), String> {
    let home = enter(namespace)?;
    let sockets: Result<Vec<_>, _> = (0..ports).map(|_| UdpSocket::bind("0.0.0.0:0")).collect();
    leave_to(&home)?;
    for socket in sockets.iter().flatten().cycle().take(ports * rounds) {
        let sent = socket.send_to(b"here", target);
        sent.map_err(|error| error.to_string())?;
        std::thread::sleep(Duration::from_millis(1));
    }
    sockets.map(|_| ()).map_err(|error| error.to_string())
}

/// Frames by queue that `ethtool -S` told between two marks of a console.
fn by_queue(console: &str, from: &str, to: &str) -> Vec<u64> {
    let part = console.split(from).nth(1).and_then(|c| c.split(to).next());
    let lines = part.unwrap_or_default().lines();
    let count = |line: &str| line.trim().split_once("_packets: ")?.1.parse().ok();
    lines.filter_map(count).collect()
}

#[test]
fn a_machine_of_two_processors_uses_two_pairs_of_queues_or_one() {
    let home = home();
    let script = "ip addr add 10.1.1.11/24 dev eth0\n\
        got() { cat /sys/class/net/eth0/statistics/rx_packets; }\n\
        more() { was=$(got); echo $1; n=0; while [ $(($(got) - was)) -lt $2 ] && [ $n -lt 300 ]; \
        do sleep 0.1; n=$((n+1)); done; [ $n -lt 300 ] && echo CAME $1; }\n\
        told() { ethtool -S eth0 | grep '[01]_packets'; echo $1; }\n\
        for cpu in 1 2; do taskset $cpu ping -q -c 20 -i 0.05 10.1.1.12; done\n\
        more BOTH 320; told TOLD\n\
        ethtool -L eth0 combined 1 && more ONE 320; told AGAIN\n\
        ethtool -L eth0 combined 2; more TWO 320\n\
        for cpu in 1 2; do taskset $cpu ping -q -c 20 -i 0.05 10.1.1.12; done; told LAST\n";
    for device in ["", ",packed=on"] {
        let mut machine = Machine::start(&Setup {
            folder: home.instance.folder(),
            name: "vm2",
            card: Card::Vhost(&home.socket("vm2")),
            mac: MACS[1],
            device,
            queues: 2,
            modules: &[],
            programs: &["ethtool"],
            arguments: &[],
            script,
        })
        .unwrap();
        for mark in ["BOTH", "ONE", "TWO"] {
            machine.wait_for(&format!("\n{mark}\n"), PATIENCE).unwrap();
            // Again where some found no room: a machine may have had no processor for long.
            let sends = || send_to(&home.app.name, "10.1.1.11:9", 64, 5);
            let comes = |machine: &mut Machine| {
                machine.wait_for(&format!("CAME {mark}"), Duration::from_secs(5))
            };
            let came = (0..5).any(|_| sends().is_ok() && comes(&mut machine).is_ok());
            assert!(came, "{device} {mark}");
        }
        let console = machine.wait_for("ENDED", PATIENCE).unwrap();
        for mark in ["CAME BOTH", "CAME ONE", "CAME TWO"] {
            assert!(console.contains(mark), "{device} {mark}: {console}");
        }
        let pings = answers(&console);
        // The last of twenty a ping does not wait for on a machine that has no processor for a second.
        assert!(
            pings.len() == 4 && pings.iter().all(|n| *n >= 15),
            "{console}"
        );
        let all = [
            ("CAME BOTH", "TOLD"),
            ("CAME ONE", "AGAIN"),
            ("CAME TWO", "LAST"),
        ];
        let [both, one, two] = all.map(|(from, to)| by_queue(&console, from, to));
        // Received by the first and the second, sent by the first and the second.
        assert!(both.iter().all(|n| *n >= 20) && both.len() == 4, "{both:?}");
        assert_eq!(one.len(), 2, "there is no second: {one:?}");
        assert!(two[1] >= both[1] + 50 && two[3] >= both[3] + 15, "{two:?}");
    }
    assert_eq!(home.restarts(), 0, "no switch died");
}

/// A front end's request, and what is answered: `None`, it was disconnected.
fn asked(socket: &mut UnixStream, request: u32, flags: u32, payload: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for word in [request, flags, payload.len() as u32] {
        bytes.extend_from_slice(&word.to_ne_bytes());
    }
    bytes.extend_from_slice(payload);
    socket.write_all(&bytes).ok()?;
    let mut answer = vec![0; 20];
    socket.read_exact(&mut answer).ok()?;
    Some(answer.split_off(12))
}

#[test]
fn a_front_end_that_talks_nonsense_is_disconnected_and_the_next_is_served() {
    let home = home();
    let path = home.instance.run_dir().join("vhost/red/vm1.sock");
    let connect = || {
        let end = std::time::Instant::now() + PATIENCE;
        loop {
            let socket = UnixStream::connect(&path);
            if let Ok(mut socket) = socket {
                socket.set_read_timeout(Some(PATIENCE)).unwrap();
                // GET_FEATURES: version 1 and packed rings are among them.
                if let Some(answer) = asked(&mut socket, 1, 1, &[]) {
                    let features = u64::from_ne_bytes(answer.try_into().unwrap());
                    assert_eq!(features >> 32 & 5, 5, "{features:#x}");
                    return socket;
                }
            }
            assert!(std::time::Instant::now() < end, "nobody serves it");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let nonsense: [(u32, u32, &[u8]); 5] = [
        (1, 2, &[]),
        (77, 1, &[]),
        (2, 1, &u64::MAX.to_ne_bytes()),
        (8, 1, &[9, 0, 0, 0, 0, 1, 0, 0]),
        (5, 1, &[1, 0, 0, 0, 0, 0, 0, 0]),
    ];
    for (request, flags, payload) in nonsense {
        let mut socket = connect();
        assert_eq!(
            asked(&mut socket, request, flags, payload),
            None,
            "{request}"
        );
    }
    for said in [
        "which is not offered",
        "which are not offered",
        "queue 9, which there is not",
    ] {
        // A helper is reaped a moment after its front end is gone.
        let is_said = |i: &Instance| i.log().contains(said);
        assert!(home.instance.until(PATIENCE, is_said), "{said}");
    }
    // Nonsense that waits for a helper ends it while it is still told what to serve.
    for _ in 0..30 {
        let mut socket = UnixStream::connect(&path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(asked(&mut socket, 77, 1, &[]), None, "nonsense is ended");
    }
    // One that says half and waits holds up itself; when it is gone the next is served.
    let mut half = connect();
    half.write_all(&[1, 0, 0]).unwrap();
    drop(half);
    let held = connect();
    home.instance.kill_program("bulkhead-vhost");
    home.instance.kill_program("bulkhead-vhost");
    drop(held);
    connect();
    assert_eq!(home.restarts(), 0, "no switch died");
}

/// Says it with a descriptor.
fn says(socket: &UnixStream, bytes: &[u8], fd: std::os::fd::BorrowedFd<'_>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    control.push(rustix::net::SendAncillaryMessage::ScmRights(&fds));
    let flags = rustix::net::SendFlags::empty();
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags).unwrap();
}

/// A table of one region of memory, said by a front end.
fn says_its_memory(socket: &UnixStream) {
    let memory = rustix::fs::memfd_create("vm", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&memory, 1 << 20).unwrap();
    let mut bytes = Vec::new();
    for word in [5u32, 1, 40, 1, 0] {
        bytes.extend_from_slice(&word.to_ne_bytes());
    }
    for word in [0u64, 1 << 20, 1 << 40, 0] {
        bytes.extend_from_slice(&word.to_ne_bytes());
    }
    says(socket, &bytes, memory.as_fd());
}

#[test]
fn a_second_front_end_takes_nothing_from_the_first() {
    let home = home();
    let card = (&*home.socket("vm1"), MACS[0]);
    let reflector = Reflector::start(card, 1, "").unwrap();
    let passes = || reflected(&home.app.name, "10.1.1.10", 2, 5).unwrap() == 10;
    assert!(passes());
    let connect = || {
        let mut socket = UnixStream::connect(home.socket("vm1")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        assert!(asked(&mut socket, 1, 1, &[]).is_some(), "it is answered");
        socket
    };
    for _ in 0..3 {
        let mut second = connect();
        says_its_memory(&second);
        assert_eq!(asked(&mut second, 1, 1, &[]), None, "it is turned away");
        let mut second = connect();
        assert_eq!(asked(&mut second, 77, 1, &[]), None, "so is nonsense");
        assert!(passes());
    }
    let said = "a second front end wanted the guest's interface";
    let counted = reflector.end().unwrap();
    assert_eq!(counted["rx_errors"], 0);
    // Now there is nobody else.
    let mut next = connect();
    says_its_memory(&next);
    assert!(asked(&mut next, 1, 1, &[]).is_some());
    home.instance.kill_all("bulkhead-vhost");
    home.instance.until(PATIENCE, |i| i.log().contains(said));
    assert!(home.instance.log().contains(said));
    assert_eq!(home.restarts(), 0, "no switch died");
}

#[test]
fn what_a_machine_tags_is_dropped_and_counted_and_the_rest_goes_on() {
    let home = home();
    // A neighbour is known for good: only what is tagged is to fail.
    let script = "ip addr add 10.1.1.10/24 dev eth0\n\
        ping -q -c 3 -i 0.2 10.1.1.12; set -- $(grep 10.1.1.12 /proc/net/arp); mac=$4\n\
        tag() { ip link add link eth0 name $1 type vlan protocol $2 id $3 && ip link set $1 up && \
        ip addr add 10.9.$3.10/24 dev $1 && arp -i $1 -s 10.9.$3.12 $mac && echo TAGS $1; }\n\
        tag one 802.1q 42; tag two 802.1ad 43; tag none 802.1q 0\n\
        for n in 42 43 0; do ping -q -c 5 -W 1 -i 0.2 10.9.$n.12; done\n\
        (head -c 200000 /dev/zero | nc -w 2 10.9.42.12 5001)\n\
        ping -q -c 3 -i 0.2 10.1.1.12\n";
    let hears = home
        .app
        .command(
            "timeout 60 tcpdump -n -i eth0 -c 1 'ether proto 0x8100 or ether proto 0x88a8 or vlan'",
        )
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut hears = Ended(hears);
    let mut machine = Machine::start(&Setup {
        folder: home.instance.folder(),
        name: "vm1",
        card: Card::Vhost(&home.socket("vm1")),
        mac: MACS[0],
        device: "",
        queues: 1,
        modules: &["llc", "stp", "garp", "mrp", "8021q"],
        programs: &[],
        arguments: &[],
        script,
    })
    .unwrap();
    let console = machine.wait_for("ENDED", PATIENCE).unwrap();
    assert_eq!(console.matches("TAGS").count(), 3, "{console}");
    assert_eq!(console.matches(" 0% packet loss").count(), 2, "{console}");
    assert_eq!(console.matches(" 100% packet loss").count(), 3, "{console}");
    let endpoint = home.instance.endpoint("red", "vm1").unwrap();
    let drops = endpoint["counters"]["drops"].as_array().unwrap();
    let tagged = drops.iter().find(|drop| drop["reason"] == "vlan-tag");
    let tagged = tagged.and_then(|drop| drop["frames"].as_u64());
    // Fifteen of the three pings, and what else its kernel says by them.
    assert!(tagged >= Some(15 + 1), "{endpoint}");
    assert!(hears.0.try_wait().unwrap().is_none(), "a tag got through");
    hears.end();
}
