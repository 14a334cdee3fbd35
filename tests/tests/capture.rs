//! `bulkhead capture` through the whole stack, read by tshark.

use e2e::frames::{self, TwoTenants};
use e2e::talk::Hosts;
use e2e::{Ended, Instance, Said};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Captures with these words while `traffic` makes some, until `frames` frames are
/// there; what tshark reads of them: one line a frame, `fields` separated by tabs.
fn captured(
    instance: &Instance,
    words: &[&str],
    frames: u32,
    fields: &[&str],
    traffic: impl Fn(),
) -> Vec<String> {
    let file = instance.folder().join("c.pcapng");
    let count = frames.to_string();
    let mut all = vec!["capture", "-c", &count, "-w", file.to_str().unwrap()];
    all.extend(words);
    let _ = std::fs::remove_file(&file);
    let mut capture = Ended(
        instance
            .command(&all)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let done = instance.until(Duration::from_secs(10), |_| {
        traffic();
        matches!(capture.0.try_wait(), Ok(Some(_)))
    });
    assert!(done, "capture {words:?} does not get {frames} frames");
    let ended = capture.0.wait().unwrap();
    let mut why = String::new();
    let _ = std::io::Read::read_to_string(capture.0.stderr.as_mut().unwrap(), &mut why);
    assert!(ended.success(), "{ended:?}: {why}");
    let mut tshark = Command::new("tshark");
    tshark.args(["-n", "-r", file.to_str().unwrap(), "-T", "fields"]);
    for field in fields {
        tshark.args(["-e", field]);
    }
    let said = Said::of(&mut tshark).unwrap();
    assert!(said.ok(), "{}", said.err);
    said.out.lines().map(str::to_owned).collect()
}

#[test]
fn an_endpoints_frames_a_filters_frames_and_dropped_frames_with_their_reason() {
    let tenants = TwoTenants::default();
    let instance = Instance::start().unwrap();
    instance.apply(&tenants.spec).unwrap();
    let ping = |tenant: &str, size: u32| {
        let line = format!("ping -n -c 1 -W 1 -s {size} 10.1.1.10");
        tenants.sh(tenant, "app1", &line).unwrap().ok()
    };
    assert!(instance.until(Duration::from_secs(3), |_| ping("red", 56)
        && ping("blue", 56)));

    // By endpoint: both directions of red/app1's echo, and nothing of blue's, which
    // has the same addresses; told apart by their sizes.
    let lines = captured(
        &instance,
        &["--endpoint", "red/app1", "--filter", "icmp and ip"],
        4,
        &["icmp.type", "ip.src", "ip.dst", "frame.len"],
        || {
            ping("blue", 500);
            ping("red", 100);
        },
    );
    for line in &lines {
        let (to, from) = (
            "8\t10.1.2.11\t10.1.1.10\t142",
            "0\t10.1.1.10\t10.1.2.11\t142",
        );
        assert!(line == to || line == from, "{lines:?}");
    }
    assert!(lines.iter().any(|l| l.starts_with('8')) && lines.iter().any(|l| l.starts_with('0')));

    // By filter: of echoes and datagrams to two ports, one port's only.
    let send = |port| {
        let line = format!("echo x | socat -u - UDP4:10.1.1.10:{port}");
        tenants.sh("red", "app1", &line).unwrap();
    };
    let lines = captured(
        &instance,
        &[
            "--endpoint",
            "red/app1",
            "--filter",
            "udp and port 5005 and host 10.1.1.10",
        ],
        3,
        &["udp.dstport", "ip.dst"],
        || {
            ping("red", 56);
            send(5006);
            send(5005);
        },
    );
    assert_eq!(lines, vec!["5005\t10.1.1.10"; 3]);

    // Drops only: each with its reason as the comment, and none that went through.
    let mine = tenants.mac("red", "app1").unwrap();
    let spoofed = frames::ipv4([10, 1, 2, 99], [10, 1, 1, 10], 17, &frames::udp(1, 2, b"x"));
    let bad = [
        frames::ethernet([2, 0, 0, 0, 0, 9], mine, 0x0800, &spoofed),
        frames::ethernet([0xff; 6], [2, 0xbb, 0, 0, 0, 1], 0x0800, &spoofed),
    ];
    let lines = captured(
        &instance,
        &["--endpoint", "red/app1", "--drops"],
        4,
        &["eth.src", "ip.src", "frame.comment"],
        || {
            ping("red", 56);
            frames::send(&tenants.name("red", "app1"), "eth0", &bad).unwrap();
        },
    );
    let [a, b, c, d, e, f] = mine;
    let mine = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
    for line in &lines {
        let fields: Vec<&str> = line.split('\t').collect();
        assert_eq!(fields[1], "10.1.2.99", "{lines:?}");
        let reason = if fields[0] == mine {
            "source-ip"
        } else {
            "source-mac"
        };
        assert!(fields[2].contains(reason), "{lines:?}");
    }
    for reason in ["source-ip", "source-mac"] {
        assert!(lines.iter().any(|line| line.contains(reason)), "{lines:?}");
    }
}

/// Two tenants that share a switch.
const SHARED: &str = "version: 1
tenants:
  - name: {ns}-r
    placement: {per: zone, zone: z}
    subnets: [{name: a, prefixes: [10.1.1.0/24]}]
    endpoints: [{name: x, subnet: a, addresses: [10.1.1.10]}, {name: y, subnet: a, addresses: [10.1.1.11]}]
  - name: {ns}-b
    placement: {per: zone, zone: z}
    subnets: [{name: a, prefixes: [10.1.1.0/24]}]
    endpoints: [{name: x, subnet: a, addresses: [10.1.1.10]}, {name: y, subnet: a, addresses: [10.1.1.11]}]
";

#[test]
fn a_tenants_capture_is_in_nobody_elses_way() {
    let hosts = Hosts::of(SHARED);
    let instance = Instance::start().unwrap();
    instance.apply(&hosts.spec).unwrap();
    let (red, blue) = (hosts.other("{ns}-r"), hosts.other("{ns}-b"));
    let token = |tenant: &str| {
        let made = instance.ask(&["token", "create", tenant]).unwrap();
        made["text"].as_str().unwrap().to_owned()
    };
    let (reds, blues) = (token(&red), token(&blue));
    let begin = |token: &str, file: &str, words: &[&str]| {
        let file = instance.folder().join(file);
        let mut all = vec!["capture", "-w", file.to_str().unwrap()];
        all.extend(words);
        let mut command = instance.command(&all);
        if !token.is_empty() {
            command.env("BULKHEAD_TOKEN", token);
        }
        Ended(command.stderr(Stdio::piped()).spawn().unwrap())
    };
    let endpoint = |tenant: &str| format!("{tenant}/x");
    let (redx, bluex) = (endpoint(&red), endpoint(&blue));
    // Red captures its own, without end.
    let mut long = begin(&reds, "long", &["--endpoint", &redx]);
    let pings = || {
        for at in ["r-x", "b-x"] {
            hosts.sh(at, "ping -n -c 1 -W 1 10.1.1.11");
        }
    };
    let grows = |file: &str| {
        let length = std::fs::metadata(instance.folder().join(file)).map_or(0, |m| m.len());
        pings();
        length
    };
    assert!(instance.until(Duration::from_secs(10), |_| grows("long") > 1000));
    // Its neighbour, and the provider, capture beside it.
    for (token, words) in [
        (&blues, ["--endpoint", &bluex, "-c", "1"]),
        (&String::new(), ["--endpoint", &red, "-c", "1"]),
        (&String::new(), ["--endpoint", &blue, "-c", "1"]),
    ] {
        let mut other = begin(token, "other", &words);
        let ended = instance.until(Duration::from_secs(10), |_| {
            pings();
            matches!(other.0.try_wait(), Ok(Some(_)))
        });
        assert!(ended && other.0.wait().unwrap().success(), "{words:?}");
    }
    // A second one of its own is not let begin, and the first goes on.
    let mut second = begin(&reds, "second", &["--endpoint", &redx, "-c", "1"]);
    assert!(!second.0.wait().unwrap().success());
    let before = grows("long");
    assert!(instance.until(Duration::from_secs(10), |_| grows("long") > before));
    assert!(matches!(long.0.try_wait(), Ok(None)));
}
