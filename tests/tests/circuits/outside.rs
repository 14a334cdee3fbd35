//! Datagrams between programs with circuits and those who have packets.

use crate::proxy::{Mixed, box_says, in_box, proxy, scene as mixed};
use crate::scene::{GUARDED, kill};
use crate::udp::{UDP, line};
use e2e::Instance;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(10);

fn scene(rules: &str) -> Mixed {
    let scene = mixed(rules);
    scene.file("udp.py", UDP);
    scene
}

fn both_asks(scene: &Mixed, rest: &str) -> Vec<String> {
    let said = scene.says("both", &line(&format!("ask {rest}")));
    said.lines().map(str::to_owned).collect()
}

fn box_asks(scene: &Mixed, rest: &str) -> Vec<String> {
    box_says(scene, &line(&format!("ask {rest}")))
}

#[test]
fn programs_with_circuits_and_with_packets_ask_each_other() {
    let scene = scene("");
    let there = scene.spawn(in_box(&scene, &line("hear 0.0.0.0 53")));
    let six = scene.spawn(in_box(&scene, &line("hear :: 54")));
    let here = scene.start("both", &line("hear 0.0.0.0 53"), "hears");
    let _here6 = scene.start("both", &line("hear :: 54"), "hears");
    there.until("hears");
    six.until("hears");
    for how in ["", "-c "] {
        // From the endpoint's own address, both families; by circuits to who has them.
        let all = "10.1.1.20,53 10.1.1.20,54 fd00:1::20,54 10.1.1.13,53 127.0.0.1,53";
        assert_eq!(
            both_asks(&scene, &format!("{how}{all}")),
            [
                "10.1.1.13",
                "::ffff:10.1.1.13",
                "fd00:1::13",
                "10.1.1.13",
                "127.0.0.1"
            ]
        );
        // And to it.
        let all = "10.1.1.13,53 10.1.1.13,54 fd00:1::13,54";
        assert_eq!(
            box_asks(&scene, &format!("{how}{all}")),
            ["10.1.1.20", "::ffff:10.1.1.20", "fd00:1::20"]
        );
    }
    // Nobody there; who has no packets reaches nobody who has nothing else.
    assert_eq!(both_asks(&scene, "10.1.1.20,99"), ["nothing"]);
    let said = scene.says("app", &line("ask 10.1.1.20,53 -c 10.1.1.20,53"));
    assert_eq!(said, "EHOSTUNREACH\nEHOSTUNREACH\n");
    // Circuits among themselves need nobody.
    kill("STOP", &proxy(&scene).unwrap().to_string());
    let said = scene.says("app", &line("ask 10.1.1.13,53 -c 10.1.1.13,53"));
    assert_eq!(said, "10.1.1.11\n10.1.1.11\n");
    kill("CONT", &proxy(&scene).unwrap().to_string());
    // A port is closed with its program: another's, without circuits, may have it.
    drop(here);
    let plain = |_: &Instance| {
        let plain = scene.spawn(scene.line("both", &line("hear 10.1.1.13 53")));
        std::thread::sleep(Duration::from_millis(700));
        // Whoever asks there makes it known that nobody hears any more.
        let asked = box_asks(&scene, "10.1.1.13,53") == ["10.1.1.20"];
        plain.out().contains("hears") && asked
    };
    assert!(scene.instance.until(LIMIT, plain));
}

/// As circuits alone tell, and the C library asks a kernel's own stack to: a look-up of a name would take twenty seconds.
#[test]
fn where_no_route_leads_is_told_at_once() {
    let scene = scene("");
    let asks = "192.0.2.53,53 -c 192.0.2.53,53 2001:db8::53,53";
    let begun = std::time::Instant::now();
    assert_eq!(both_asks(&scene, asks), ["ENETUNREACH"; 3]);
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(15), "{took:?}");
}

/// A proxy's kernel refuses that, where nobody is told of it; and who has circuits alone has nobody there.
#[test]
fn what_is_for_all_of_the_subnet_is_refused_and_counted() {
    let scene = scene("");
    let refused = || scene.instance.drops("red", "both", "no-neighbour").unwrap();
    let before = refused();
    let asks = "10.1.1.255,53 -c 10.1.1.255,53";
    assert_eq!(both_asks(&scene, asks), ["EHOSTUNREACH"; 2]);
    assert!(refused() >= before + 2);
    assert_eq!(
        scene.says("app", &line(&format!("ask {asks}"))),
        "EHOSTUNREACH\nEHOSTUNREACH\n"
    );
}

/// Every length, by messages and natively, from and to the very port, in order, with the address
/// that it was sent to.
#[test]
fn boundaries_ports_and_addresses_are_kept() {
    const ECHO: &str = "
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('0.0.0.0', 7000)); print('echoes', flush=True)
while True:
    data, who = s.recvfrom(70000)
    s.sendto(data, who)
    if data.startswith(b'who'): s.sendto(repr(who).encode(), who)
";
    const ASKS: &str = "
import socket, struct, sys
to, own = (sys.argv[1], 7000), sys.argv[2]
lengths = [0, 1, 8, 1471, 1472, 1473, 9000, 60000, 65507]
def opened(port=0):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(None)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack('ll', 5, 0))
    if port: s.bind((own, port))
    return s
one = opened(7001); one.setsockopt(socket.IPPROTO_IP, 8, 1)
for n in lengths:
    data = bytes(i * 7 % 251 for i in range(n)); one.sendto(data, to)
    came, control, flags, who = one.recvmsg(70000, 100)
    assert (came == data, who, flags) == (True, to, 0), (n, len(came), who, flags)
    assert socket.inet_ntoa(control[0][2][8:12]) == own, control
one.sendto(b'who', to); assert one.recv(100) == b'who'
assert eval(one.recv(100)) == (own, 7001)
two = opened(7002); two.connect(to)
assert (two.getpeername(), two.getsockname()) == (to, (own, 7002))
for n in lengths[1:]:
    data = bytes(i * 3 % 251 for i in range(n)); two.send(data)
    assert two.recv(70000) == data, n
two.send(b'who'); assert two.recv(100) == b'who'; assert eval(two.recv(100)) == (own, 7002)
# Nobody else is heard by who is connected.
one.sendto(b'not for you', (own, 7002))
for n in range(200): two.send(b'%d' % n)
assert [int(two.recv(100)) for _ in range(200)] == list(range(200))
# And by who is not any more.
two.connect(('10.1.1.13' if own != '10.1.1.13' else '10.1.1.20', 9)); two.connect(to); two.send(b'again'); assert two.recv(100) == b'again'
print('all')
";
    let scene = scene("");
    scene.file("echo.py", ECHO);
    scene.file("asks.py", ASKS);
    let there = scene.spawn(in_box(&scene, "exec python3 {f}/echo.py"));
    there.until("echoes");
    let said = scene.sh("both", "exec python3 {f}/asks.py 10.1.1.20 10.1.1.13");
    assert_eq!(said.out, "all\n", "{said:?}");
    drop(there);
    let _here = scene.start("both", "exec python3 {f}/echo.py", "echoes");
    let said = scene.run(in_box(
        &scene,
        "exec python3 {f}/asks.py 10.1.1.13 10.1.1.20",
    ));
    assert_eq!(said.out, "all\n", "{said:?}");
}

#[test]
fn what_no_rule_allows_arrives_nowhere_and_the_switch_counts_it() {
    let rules = GUARDED.trim_end().to_owned()
        + "
        - {name: out, action: allow, from: {endpoint: both}, to: {endpoint: box}, protocol: udp, ports: [53]}
        - {name: in, action: allow, from: {endpoint: box}, to: {endpoint: both}, protocol: udp, ports: [53]}
        - {name: settle, action: allow, from: {endpoint: both}, to: {endpoint: box}, protocol: tcp, ports: [1]}
";
    let scene = scene(&rules);
    let there = scene.spawn(in_box(&scene, &line("hear 0.0.0.0 53 5353")));
    let here = scene.start("both", &line("hear 0.0.0.0 53 5353"), "hears");
    there.until("hears");
    let denied = || {
        let of = |at| scene.instance.drops("red", at, "egress-rule").unwrap();
        ["both", "box"].map(of)
    };
    for how in ["", "-c "] {
        let before = denied();
        let to = format!("{how}10.1.1.20,53 10.1.1.20,5353");
        assert_eq!(both_asks(&scene, &to), ["10.1.1.13", "nothing"], "{how}");
        let to = format!("{how}10.1.1.13,53 10.1.1.13,5353");
        assert_eq!(box_asks(&scene, &to), ["10.1.1.20", "nothing"], "{how}");
        let after = denied();
        assert!(
            after.iter().zip(before).all(|(n, before)| *n > before),
            "{how}"
        );
    }
    for heard in [&there, &here] {
        assert!(!heard.out().contains("5353 "), "{}", heard.out());
    }
}

/// Another tenant's endpoint offers a service by UDP, and `both` has it at an address of its own.
const OFFERED: &str = r#"    accepts:
      - { name: blues-dns, from: blue, service: dns, as: [10.1.200.10, "fd00:1:200::10"] }
  - name: blue
    subnets:
      - { name: lan, prefixes: [10.1.1.0/24, "fd00:1::/64"] }
    endpoints:
      - { name: web, subnet: lan, addresses: [10.1.1.13, "fd00:1::13"], attach: { veth: { namespace: {ns}-web, make: true, circuits: {} } } }
    offers:
      - { name: dns, endpoint: web, protocol: udp, ports: [53], to: [red], pool: [10.1.250.0/28, "fd00:1:250::/64"] }
"#;

#[test]
fn programs_of_two_tenants_meet_by_an_agreement() {
    let scene = scene(OFFERED);
    let words = line("hear :: 53 54").replace("{f}", &scene.files());
    let words = ["run", "--endpoint", "blue/web", "--", "sh", "-c", &words];
    let mut command = scene.instance.command(&words);
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let there = scene.spawn(command);
    there.until("hears");
    for how in ["", "-c "] {
        let reached = |_: &Instance| {
            let said = both_asks(&scene, &format!("{how}10.1.200.10,53 fd00:1:200::10,53"));
            said[0].starts_with("::ffff:10.1.250.") && said[1].starts_with("fd00:1:250:")
        };
        assert!(scene.instance.until(LIMIT, reached), "{}", there.out());
        // That service alone.
        assert_eq!(
            both_asks(&scene, &format!("{how}10.1.200.10,54")),
            ["nothing"]
        );
    }
    assert!(!there.out().contains("54 "), "{}", there.out());
    let said = scene.says("app", &line("ask 10.1.200.10,53"));
    assert_eq!(said, "EHOSTUNREACH\n");
}

/// Connected, bound and fresh sockets go on through the proxy's death and the operator's.
#[test]
fn its_process_and_the_operator_may_die() {
    const ASKS: &str = "
import os, socket, struct, sys
to, stop = ('10.1.1.20', 7000), sys.argv[1]
def opened():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack('ll', 0, 200000))
    return s
a, b = opened(), opened(); a.connect(to); n = 0; came = {}
print('asks', flush=True)
while not os.path.exists(stop):
    n += 1; text = b'%d' % n; c = opened()
    for name, s in ('connected', a), ('bound', b), ('fresh', c):
        try:
            if s is a: s.send(text)
            else: s.sendto(text, to)
            while True:
                data, who = s.recvfrom(100)
                if s is not a: assert who == to, who
                if data == text: came[name] = n; break
        except OSError: pass
    c.close()
    print(n, came, flush=True)
";
    let scene = scene("");
    scene.file("asks.py", ASKS);
    scene.file(
        "echo.py",
        "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('0.0.0.0', 7000)); print('echoes', flush=True)
while True:
    data, who = s.recvfrom(70000)
    s.sendto(data, who)
",
    );
    let there = scene.spawn(in_box(&scene, "exec python3 {f}/echo.py"));
    there.until("echoes");
    let _here = scene.start("both", &line("hear 0.0.0.0 53"), "hears");
    let asks = scene.start("both", "exec python3 {f}/asks.py {f}/stop", "asks");
    let last = || asks.out().lines().last().unwrap_or_default().to_owned();
    let goes_on = || {
        let first: u64 = last().split(' ').next().unwrap().parse().unwrap_or(0) + 3;
        let all = |_: &Instance| {
            let last = last();
            let came = last.split(": ").skip(1);
            let came: Vec<u64> = came
                .filter_map(|rest| rest.split([',', '}']).next()?.parse().ok())
                .collect();
            came.len() == 3 && came.iter().all(|n| *n > first)
        };
        assert!(scene.instance.until(LIMIT, all), "{}", last());
        let reached = |_: &Instance| box_asks(&scene, "10.1.1.13,53") == ["10.1.1.20"];
        assert!(scene.instance.until(LIMIT, reached));
    };
    goes_on();
    for _ in 0..3 {
        let before = proxy(&scene).unwrap();
        kill("KILL", &before.to_string());
        let other = |_: &Instance| proxy(&scene).is_some_and(|pid| pid != before);
        assert!(scene.instance.until(LIMIT, other), "no proxy any more");
        goes_on();
    }
    scene.kill_operator();
    goes_on();
    scene.file("stop", "");
}

/// One program sends to thousands of ports from tens of sockets, which are more than may be
/// remembered; strangers send from hundreds. Others go on.
#[test]
fn a_flood_of_ports_keeps_nobody_else_from_anything() {
    const FLOODS: &str = "
import socket, sys, time
all = []
for _ in range(int(sys.argv[2])):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.setblocking(False); all.append(s)
print('floods', flush=True); until = time.monotonic() + 6; n = 0
while time.monotonic() < until:
    for s in all:
        n += 1
        try: s.sendto(b'flood', (sys.argv[1], 10000 + n % 40000))
        except BlockingIOError: pass
print('over', flush=True)
";
    let scene = scene("");
    scene.file("floods.py", FLOODS);
    let there = scene.spawn(in_box(&scene, &line("hear 0.0.0.0 53")));
    there.until("hears");
    let _here = scene.start("both", &line("hear 0.0.0.0 53"), "hears");
    let _web = scene.start("web", &line("hear 0.0.0.0 53"), "hears");
    let out = scene.start("both", "exec python3 {f}/floods.py 10.1.1.20 40", "floods");
    let into = scene.spawn(in_box(&scene, "exec python3 {f}/floods.py 10.1.1.13 400"));
    into.until("floods");
    for _ in 0..5 {
        let said = scene.says("app", &line("ask 10.1.1.10,53 -c 10.1.1.10,53"));
        assert_eq!(said, "10.1.1.11\n10.1.1.11\n");
    }
    out.until("over");
    into.until("over");
    // And its own programs, once it is over: what it left is bounded.
    let reached = |_: &Instance| {
        both_asks(&scene, "10.1.1.20,53 -c 10.1.1.20,53") == ["10.1.1.13"; 2]
            && box_asks(&scene, "10.1.1.13,53") == ["10.1.1.20"]
    };
    assert!(scene.instance.until(LIMIT, reached));
    let pid = proxy(&scene).unwrap();
    let open = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .count();
    assert!(open < 2_200, "{open}");
}

const NAMED: &str =
    "options { directory \"{f}\"; listen-on port 53 { any; }; listen-on-v6 port 53 { any; };
  recursion no; pid-file none; session-keyfile none; dnssec-validation no; allow-query { any; }; };
controls { };
zone \"test\" { type primary; file \"{f}/zone\"; };
";

#[test]
fn dig_and_bind_and_iperf3_do_both_ways() {
    let scene = scene("");
    scene.file(
        "zone",
        "$TTL 60\n@ SOA ns hostmaster 1 60 60 60 60\n@ NS ns\nns A 10.1.1.20\nname A 192.0.2.7\n",
    );
    scene.file("named.conf", &NAMED.replace("{f}", &scene.files()));
    let named = "exec named -g -n 2 -c {f}/named.conf 2>&1";
    let dig = |server: &str| format!("dig +short +notcp +tries=2 +time=3 @{server} name.test A");
    let there = scene.spawn(in_box(&scene, named));
    there.until("all zones loaded");
    for server in ["10.1.1.20", "fd00:1::20"] {
        assert_eq!(scene.says("both", &dig(server)), "192.0.2.7\n");
    }
    drop(there);
    let here = scene.start("both", named, "all zones loaded");
    for server in ["10.1.1.13", "fd00:1::13"] {
        assert_eq!(
            box_says(&scene, &dig(server)),
            ["192.0.2.7"],
            "{}",
            here.out()
        );
    }
    drop(here);
    let server = "exec iperf3 -s -p 5201 --forceflush";
    let client =
        |to: &str, more: &str| format!("iperf3 -c {to} -p 5201 -u -b 2M -l 1200 -t 2 {more} -J");
    let moved = |out: &str| {
        let all: serde_json::Value = serde_json::from_str(out).unwrap();
        let sum = &all["end"]["sum"];
        let lost = sum["lost_percent"].as_f64().unwrap_or(100.0);
        let bits = sum["bits_per_second"].as_f64().unwrap_or(0.0);
        // A socket's queue holds what comes while its program has no processor for 0.4 s.
        assert!(lost < 20.0 && bits > 1.5e6, "{out}");
    };
    // It closes its port between two tests, and opens it again.
    let listens = |server: &crate::scene::Program, times| {
        let said = |_: &Instance| server.out().matches("listening").count() == times;
        assert!(scene.instance.until(LIMIT, said), "{}", server.out());
    };
    let there = scene.spawn(in_box(&scene, server));
    for (times, more) in [(1, ""), (2, "-R")] {
        listens(&there, times);
        moved(&scene.says("both", &client("10.1.1.20", more)));
    }
    drop(there);
    let here = scene.start("both", server, "listening");
    for (times, more) in [(1, ""), (2, "-R")] {
        listens(&here, times);
        moved(&box_says(&scene, &client("10.1.1.13", more)).join("\n"));
    }
}
