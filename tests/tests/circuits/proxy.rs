//! Circuits to and from those who have packets.

use crate::scene::{GUARDED, OPEN, Program, Scene, kill};
use e2e::{Instance, Namespace, Said, unique};
use std::mem::ManuallyDrop;
use std::process::Command;
use std::time::{Duration, Instant};

/// Beside those of circuits: `both`, which has them and an interface, and `box`, which has packets
/// alone.
const BOTH: &str = r#"      - { name: both, subnet: lan, addresses: [10.1.1.13, "fd00:1::13"], attach: { veth: { namespace: {ns}-both, make: true, circuits: {} } } }
      - { name: box, subnet: lan, addresses: [10.1.1.20, "fd00:1::20"], attach: { tap: { namespace: {ns}-box, make: true } } }
"#;

/// A scene with both, and what their namespaces' names begin with.
pub struct Mixed {
    scene: Scene,
    prefix: String,
}

impl std::ops::Deref for Mixed {
    type Target = Scene;

    fn deref(&self) -> &Scene {
        &self.scene
    }
}

/// One whose proxy is there, under these rules.
pub fn scene(rules: &str) -> Mixed {
    scene_beside("veth", rules)
}

/// The same, its circuits beside an interface of this kind.
fn scene_beside(kind: &str, rules: &str) -> Mixed {
    let prefix = unique("cp");
    let both = BOTH.replace("veth", kind);
    let spec = format!("{OPEN}{both}{rules}").replace("{ns}", &prefix);
    let scene = Scene::of(&spec);
    settled(&scene);
    Mixed { scene, prefix }
}

impl Mixed {
    /// A shell line in the namespace of an endpoint.
    pub fn line(&self, at: &str, line: &str) -> Command {
        let line = line
            .replace("{peer}", "/usr/bin/python3 {f}/peer.py")
            .replace("{f}", &self.scene.files());
        let namespace = ManuallyDrop::new(Namespace::named(format!("{}-{at}", self.prefix)));
        let mut command = namespace.command(&line);
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command
    }
}

/// The process.
pub fn proxy(scene: &Scene) -> Option<u32> {
    scene.instance.child("bulkhead-proxy")
}

/// Waits until the box is reached: the proxy is there, and neighbours know each other.
fn settled(scene: &Scene) {
    let limit = Duration::from_secs(10);
    let reached = |_: &Instance| {
        let said = scene.sh("both", "{peer} try 10.1.1.20,1 fd00:1::20,1");
        said.out == "ECONNREFUSED\nECONNREFUSED\n"
    };
    assert!(
        scene.instance.until(limit, reached),
        "{}",
        scene.instance.log()
    );
}

/// A shell line where packets are.
pub fn in_box(scene: &Mixed, line: &str) -> Command {
    scene.line("box", line)
}

/// The lines that it prints.
pub fn box_says(scene: &Mixed, line: &str) -> Vec<String> {
    let said: Said = scene.run(in_box(scene, line));
    assert!(said.ok(), "{said:?}");
    said.out.lines().map(str::to_owned).collect()
}

#[test]
fn a_program_with_circuits_and_one_with_packets_reach_each_other() {
    for kind in ["veth", "tap"] {
        reach_each_other(&scene_beside(kind, ""));
    }
}

fn reach_each_other(scene: &Mixed) {
    let there = scene.spawn(in_box(scene, "exec {peer} serve 80"));
    there.until("serving");
    // From the endpoint's own address, both families.
    assert_eq!(
        scene.tries("both", "10.1.1.20,80 fd00:1::20,80 10.1.1.20,81"),
        ["10.1.1.13", "fd00:1::13", "ECONNREFUSED"]
    );
    // And to it: the program sees who it is.
    let here = scene.start("both", "{peer} serve 80 8080", "serving");
    let line = "{peer} try 10.1.1.13,80 fd00:1::13,80 10.1.1.13,8080 10.1.1.13,81";
    assert_eq!(
        box_says(scene, line),
        ["10.1.1.20", "fd00:1::20", "10.1.1.20", "ECONNREFUSED"]
    );
    // Circuits among themselves need nobody.
    kill("STOP", &proxy(scene).unwrap().to_string());
    assert_eq!(scene.tries("app", "10.1.1.13,80"), ["10.1.1.11"]);
    assert_eq!(
        scene.tries("both", "10.1.1.13,80 127.0.0.1,80"),
        ["10.1.1.13", "127.0.0.1"]
    );
    kill("CONT", &proxy(scene).unwrap().to_string());
    // Who has no packets reaches nobody who has nothing else.
    assert_eq!(scene.tries("app", "10.1.1.20,80"), ["EHOSTUNREACH"]);
    // Its port is closed with its program: whoever comes then is the first to know.
    drop(here);
    let limit = Duration::from_secs(10);
    let refused = |_: &Instance| box_says(scene, "{peer} try 10.1.1.13,80") == ["ECONNREFUSED"];
    assert!(scene.instance.until(limit, refused));
}

#[test]
fn what_no_rule_allows_passes_neither_way() {
    let rules = GUARDED.trim_end().to_owned()
        + "
        - {name: out, action: allow, from: {endpoint: both}, to: {endpoint: box}, protocol: tcp, ports: [1, 80]}
        - {name: in, action: allow, from: {endpoint: box}, to: {endpoint: both}, protocol: tcp, ports: [80]}
";
    let scene = scene(&rules);
    let there = scene.spawn(in_box(&scene, "exec {peer} serve 80 81"));
    there.until("serving");
    assert_eq!(
        scene.tries("both", "10.1.1.20,80 10.1.1.20,81 fd00:1::20,81"),
        ["10.1.1.13", "EACCES", "EACCES"]
    );
    let _here = scene.start("both", "{peer} serve 80 81", "serving");
    let line = "timeout 20 {peer} try 10.1.1.13,80 10.1.1.13,81";
    assert_eq!(box_says(&scene, line), ["10.1.1.20", "timed out"]);
    assert!(!there.out().contains("81 "), "{}", there.out());
}

/// One in `box` that follows what `both` streams, once it has printed this. Until the proxy listens there it is refused, and
/// begins anew; who was in is not.
fn follows(scene: &Mixed, until: &str) -> Program {
    let begins = || scene.spawn(in_box(scene, "exec {peer} follow 10.1.1.13 9001"));
    let limit = Instant::now() + Duration::from_secs(60);
    let mut follow = begins();
    while !follow.out().contains(until) {
        assert!(Instant::now() < limit, "no {until:?}: {}", follow.err());
        if follow.wait(Duration::ZERO).is_some() {
            assert_eq!(follow.out(), "", "it ended: {}", follow.err());
            follow = begins();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    follow
}

/// As what goes there by circuits.
#[test]
fn what_comes_from_packets_is_listed_and_cut_by_id_and_with_its_rule() {
    let rules = GUARDED.trim_end().to_owned()
        + "
        - {name: out, action: allow, from: {endpoint: both}, to: {endpoint: box}, protocol: tcp, ports: [1]}
        - {name: in, action: allow, from: {endpoint: box}, to: {endpoint: both}, protocol: tcp, ports: [9001]}
";
    let scene = scene(&rules);
    let _stream = scene.start("both", "exec {peer} stream 9001", "serving");
    let limit = Duration::from_secs(10);
    let listed = || {
        let all = scene.instance.ask(&["circuits"]).unwrap();
        all["flows"].as_array().unwrap().clone()
    };
    let mut follow = follows(&scene, "200\n");
    let [one] = &listed()[..] else {
        panic!("{:?}", listed())
    };
    let said = |of: &serde_json::Value| (of["from"].clone(), of["to"].clone());
    assert_eq!(said(one), ("red/box".into(), "red/both".into()), "{one}");
    assert_eq!(one["circuit"]["kind"], "proxied", "{one}");
    let age = one["circuit"]["age_ns"].as_u64();
    assert!(age.is_some_and(|age| age < 60_000_000_000), "{one}");
    assert!(one.to_string().contains("red/in"), "{one}");
    let id = one["circuit"]["id"].as_str().unwrap();
    assert!(scene.instance.say(&["circuits", "cut", id]).unwrap().ok());
    assert!(follow.wait(limit).is_some(), "it goes on");
    assert!(listed().is_empty(), "{:?}", listed());
    // Its rule is removed; another's end is not touched.
    let mut follow = follows(&scene, "200\n");
    let spec = |rules: &str| format!("{OPEN}{BOTH}{rules}").replace("{ns}", &scene.prefix);
    scene.apply(&spec(&rules.replace("ports: [1]}", "ports: [1, 2]}")));
    assert!(
        follow.wait(Duration::from_millis(500)).is_none(),
        "it ended"
    );
    scene.apply(&spec(&rules.replace("ports: [9001]", "ports: [9002]")));
    assert!(listed().is_empty(), "{:?}", listed());
    let status = scene.instance.ask(&["status"]).unwrap();
    assert_eq!(status["compartments"][0]["operator"]["cut"], 1, "{status}");
    // Nobody tells it, for no packet may go there any more; nor does anything come.
    let stands = |_: &e2e::Instance| {
        let then = follow.out();
        std::thread::sleep(Duration::from_millis(500));
        follow.out() == then
    };
    let stands = scene.instance.until(limit, stands);
    assert!(stands, "it goes on without a rule");
}

#[test]
fn bytes_come_whole_both_ways_and_ends_are_told() {
    let scene = scene("");
    scene.file("large", "");
    let large = format!("{}/large", scene.files());
    let bytes: Vec<u8> = (0..60_000_000_u32)
        .map(|n| (n.wrapping_mul(n) >> 7) as u8)
        .collect();
    std::fs::write(&large, &bytes).unwrap();
    // The server reads to the end, then answers with all of it: the client's half is closed,
    // the other is open.
    scene.file(
        "mirror.py",
        "
import socket, sys
family = socket.AF_INET6 if ':' in sys.argv[2] else socket.AF_INET
s = socket.socket(family)
if sys.argv[1] == 'serve':
    s.bind((sys.argv[2], 9000)); s.listen(8); print('serving', flush=True)
    while True:
        c, _ = s.accept(); parts = []
        while part := c.recv(1 << 16): parts.append(part)
        c.sendall(b''.join(parts)); c.close()
else:
    data = open(sys.argv[3], 'rb').read()
    s.connect((sys.argv[2], 9000)); s.sendall(data); s.shutdown(socket.SHUT_WR)
    parts = []
    while part := s.recv(1 << 16): parts.append(part)
    print(b''.join(parts) == data)
",
    );
    let mirror = "/usr/bin/python3 {f}/mirror.py";
    let there = scene.spawn(in_box(&scene, &format!("exec {mirror} serve ::")));
    there.until("serving");
    let said = scene.says("both", &format!("{mirror} get 10.1.1.20 {{f}}/large"));
    assert_eq!(said, "True\n");
    let _here = scene.start("both", &format!("exec {mirror} serve 10.1.1.13"), "serving");
    let said = box_says(&scene, &format!("{mirror} get 10.1.1.13 {{f}}/large"));
    assert_eq!(said, ["True"]);
    // A program that is killed ends what it had, and is heard to.
    let stream = scene.start("both", "exec {peer} stream 9001", "serving");
    let mut follow = follows(&scene, "500\n");
    drop(stream);
    assert!(
        follow.wait(Duration::from_secs(10)).is_some(),
        "it hears nothing"
    );
}

/// Asked by circuits, it asks by packets.
const NGINX: &str =
    "daemon off; user root; worker_processes 2; pid {f}/nginx.pid; error_log stderr;
events { worker_connections 256; }
http {
  access_log {f}/asked; proxy_http_version 1.1;
  client_body_temp_path {f}/body; proxy_temp_path {f}/proxy; fastcgi_temp_path {f}/fastcgi;
  uwsgi_temp_path {f}/uwsgi; scgi_temp_path {f}/scgi;
  server {
    listen 80; listen [::]:80; client_max_body_size 0;
    location /four/ { proxy_pass http://10.1.1.20:8000/; }
    location /six/ { proxy_pass http://[fd00:1::20]:8000/; }
  }
}
";

/// Gives files, gives back what is posted, and prints who asked.
const UPSTREAM: &str = "
import http.server, os, socket
class Answers(http.server.SimpleHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers['Content-Length']))
        self.send_response(200); self.send_header('Content-Length', str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(self, form, *rest):
        print(self.client_address[0].removeprefix('::ffff:'), self.command, self.path, flush=True)
class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6
os.chdir(os.path.dirname(__file__))
with Server(('::', 8000), Answers) as server:
    print('serving', flush=True)
    server.serve_forever()
";

#[test]
fn nginx_that_is_asked_by_circuits_asks_a_server_that_has_packets() {
    let scene = scene("");
    scene.file("nginx.conf", &NGINX.replace("{f}", &scene.files()));
    scene.file("upstream.py", UPSTREAM);
    let large: Vec<u8> = (0..20_000_000_u32)
        .map(|n| (n.wrapping_mul(n) >> 7) as u8)
        .collect();
    std::fs::write(format!("{}/large", scene.files()), large).unwrap();
    scene.file("small", "small\n");
    let line = "exec nginx -e stderr -p {f} -c {f}/nginx.conf";
    let _nginx = scene.serve("both", line, "10.1.1.13", 80);
    // Nobody is there yet.
    let code = "curl -sS -o /dev/null -w '%{http_code}' http://10.1.1.13/four/small";
    assert_eq!(scene.says("app", code), "502");
    let there = scene.spawn(in_box(&scene, "exec /usr/bin/python3 {f}/upstream.py"));
    there.until("serving");
    let mut expected = String::from("serving\n");
    for (way, from) in [("four", "10.1.1.13"), ("six", "fd00:1::13")] {
        for host in ["10.1.1.13", "[fd00:1::13]"] {
            let url = format!("http://{host}/{way}");
            let line = format!("curl -sS {url}/large | cmp - {{f}}/large");
            scene.says("app", &line);
            let line =
                format!("curl -sS --data-binary @{{f}}/large {url}/there | cmp - {{f}}/large");
            scene.says("app", &line);
            let line = format!(
                "for i in $(seq 10); do curl -sS {url}/small || exit 1; done | sort | uniq -c | xargs"
            );
            assert_eq!(scene.says("app", &line), "10 small\n");
            expected += &format!("{from} GET /large\n{from} POST /there\n");
            expected += &format!("{from} GET /small\n").repeat(10);
        }
    }
    // Whom it was asked by is the endpoint, whose own clients it hides; each question came once.
    assert_eq!(there.out(), expected);
    let asked = std::fs::read_to_string(format!("{}/asked", scene.files())).unwrap();
    for (from, times) in [("10.1.1.11 ", 25), ("fd00:1::11 ", 24)] {
        let of = asked.lines().filter(|line| line.starts_with(from));
        assert_eq!(of.count(), times, "{asked}");
    }
}

#[test]
fn towards_who_is_near_there_is_no_pace_and_towards_others_what_the_host_has() {
    let hosts = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap();
    let scene = scene("");
    let there = scene.spawn(in_box(&scene, "exec {peer} stream 9001"));
    there.until("serving");
    let has = |control: &str| {
        let line = "ss -tinH state established dport = :9001";
        let said: Said = scene.run(scene.line("both", line));
        said.out.split_whitespace().any(|word| word == control)
    };
    // A busy machine's handshake may take longer than is near.
    let near = |_: &Instance| {
        let _follow = scene.start("both", "exec {peer} follow 10.1.1.20 9001", "100");
        has("reno")
    };
    assert!(scene.instance.until(Duration::from_secs(20), near));
    let switches = scene.instance.children("bulkhead-switch");
    scene.file(
        "late.py",
        "
import os, socket, sys, time
s = socket.socket(); print('ready', flush=True)
while not os.path.exists(sys.argv[1]): time.sleep(0.001)
s.connect(('10.1.1.20', 9001)); print('there', flush=True); time.sleep(60)
",
    );
    let all = |signal| {
        for switch in &switches {
            kill(signal, &switch.to_string());
        }
    };
    // On a busy machine who is to connect meanwhile may not come to it.
    let is_the_hosts = (0..6).any(|time| {
        let late = format!("exec /usr/bin/python3 {{f}}/late.py {{f}}/go{time}");
        let late = scene.start("both", &late, "ready");
        all("STOP");
        scene.file(&format!("go{time}"), "");
        std::thread::sleep(Duration::from_millis(8 << time));
        all("CONT");
        late.until("there");
        has(hosts.trim())
    });
    assert!(is_the_hosts);
}

#[test]
fn its_process_and_the_operator_may_die() {
    let scene = scene("");
    let there = scene.spawn(in_box(&scene, "exec {peer} serve 80"));
    there.until("serving");
    let _here = scene.start("both", "{peer} serve 80", "serving");
    let limit = Duration::from_secs(10);
    for round in 0..3 {
        let before = proxy(&scene).unwrap();
        kill("KILL", &before.to_string());
        let other = |_: &Instance| proxy(&scene).is_some_and(|pid| pid != before);
        assert!(
            scene.instance.until(limit, other),
            "{round}: no proxy any more"
        );
        let reached = |_: &Instance| scene.tries("both", "10.1.1.20,80") == ["10.1.1.13"];
        assert!(scene.instance.until(limit, reached), "{round}");
        // What listened before listens on.
        let reached = |_: &Instance| box_says(&scene, "{peer} try 10.1.1.13,80") == ["10.1.1.20"];
        assert!(scene.instance.until(limit, reached), "{round}");
    }
    // With the operator goes nothing that is joined, and its successor is found.
    let follow = {
        let _stream = scene.spawn(in_box(&scene, "exec {peer} stream 9001"));
        _stream.until("serving");
        let follow = scene.start("both", "exec {peer} follow 10.1.1.20 9001", "300\n");
        let listed = scene.instance.ask(&["circuits"]).unwrap();
        assert_eq!(listed["flows"][0]["circuit"]["kind"], "proxied", "{listed}");
        scene.kill_operator();
        let far = follow.out().lines().count() + 20;
        let on = |_: &Instance| follow.out().lines().count() > far;
        assert!(scene.instance.until(limit, on), "the stream stands still");
        follow
    };
    assert!(follow.err().is_empty(), "{}", follow.err());
    let reached = |_: &Instance| scene.tries("both", "10.1.1.20,80") == ["10.1.1.13"];
    assert!(scene.instance.until(limit, reached));
    let reached = |_: &Instance| box_says(&scene, "{peer} try 10.1.1.13,80") == ["10.1.1.20"];
    assert!(scene.instance.until(limit, reached));
}

#[test]
fn a_proxy_that_stands_still_holds_nobody_for_ever() {
    let scene = scene("");
    let there = scene.spawn(in_box(&scene, "exec {peer} serve 80"));
    there.until("serving");
    let proxy = proxy(&scene).unwrap().to_string();
    kill("STOP", &proxy);
    let begun = std::time::Instant::now();
    assert_eq!(scene.tries("both", "10.1.1.20,80"), ["ETIMEDOUT"]);
    let took = begun.elapsed();
    assert!(took >= Duration::from_secs(14), "{took:?}");
    // It is the one that it was, and goes on.
    kill("CONT", &proxy);
    let reached = |_: &Instance| scene.tries("both", "10.1.1.20,80") == ["10.1.1.13"];
    assert!(scene.instance.until(Duration::from_secs(10), reached));
}

#[test]
fn an_ordinary_program_in_its_namespace_is_found_too() {
    let scene = scene("");
    // Not by `bulkhead run`: a socket of the namespace's own.
    let plain = scene.spawn(scene.line("both", "exec {peer} serve 7070"));
    plain.until("serving");
    assert_eq!(scene.tries("both", "10.1.1.13,7070"), ["10.1.1.13"]);
    assert_eq!(box_says(&scene, "{peer} try 10.1.1.13,7070"), ["10.1.1.20"]);
}

/// Ports that programs of its namespace have the operator does not know of: where one was taken for a connect, another is.
#[test]
fn a_connect_takes_a_port_that_nobody_in_the_namespace_has() {
    const HOLDS: &str = "
import resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (20000, 20000)); all = []
for port in range(32768, 61000, 2):
    s = socket.socket()
    try: s.bind(('10.1.1.13', port))
    except OSError: continue
    all.append(s)
print('holds', flush=True); input()
";
    const ASKS: &str = "
import socket
for n in range(24): socket.create_connection(('10.1.1.20', 80), 10).close()
s = socket.socket(); s.bind(('10.1.1.13', 40000))
try: s.connect(('10.1.1.20', 80)); print('by its own')
except OSError as error: print(error.errno)
";
    let scene = scene("");
    scene.programs([("holds.py", HOLDS), ("asks.py", ASKS)]);
    let _served = scene.spawn(scene.line("box", "exec {peer} serve 80"));
    let mut holds = scene.line("both", "exec python3 {f}/holds.py");
    holds.stdin(std::process::Stdio::piped());
    let holds = scene.spawn(holds);
    holds.until("holds");
    // What a program bound it has, and nobody else takes for it.
    assert_eq!(scene.says("both", "python3 {f}/asks.py"), "98\n");
}

/// Another tenant, whose endpoint is of circuits beside a veth too, offers a service, and `both`
/// may use it by an address of its own.
const OFFERED: &str = r#"    accepts:
      - { name: blues-web, from: blue, service: web, as: [10.1.200.10, "fd00:1:200::10"] }
  - name: blue
    subnets:
      - { name: lan, prefixes: [10.1.1.0/24, "fd00:1::/64"] }
    endpoints:
      - { name: web, subnet: lan, addresses: [10.1.1.13, "fd00:1::13"], attach: { veth: { namespace: {ns}-web, make: true, circuits: {} } } }
    offers:
      - { name: web, endpoint: web, protocol: tcp, ports: [80], to: [red], pool: [10.1.250.0/28, "fd00:1:250::/64"] }
"#;

#[test]
fn programs_of_two_tenants_meet_by_an_agreement() {
    let scene = scene(OFFERED);
    let command = |line: &str| {
        let line = line
            .replace("{peer}", "/usr/bin/python3 {f}/peer.py")
            .replace("{f}", &scene.files());
        let words = ["run", "--endpoint", "blue/web", "--", "sh", "-c", &line];
        let mut command = scene.instance.command(&words);
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command
    };
    let there = scene.spawn(command("exec {peer} serve 80 81"));
    there.until("serving");
    let limit = Duration::from_secs(10);
    let reached = |_: &Instance| {
        let said = scene.tries("both", "10.1.200.10,80 fd00:1:200::10,80");
        said.iter()
            .all(|one| one.starts_with("10.1.250.") || one.starts_with("fd00:1:250:"))
    };
    assert!(scene.instance.until(limit, reached), "{}", there.out());
    // That service alone, and by its address alone: both tenants have the same ones.
    let refused = scene.tries("both", "10.1.1.13,81");
    assert_eq!(refused, ["ECONNREFUSED"], "its own address is its own");
    let none = scene.sh("both", "timeout 20 {peer} try 10.1.200.10,81");
    assert!(!none.out.contains("10.1.250"), "{none:?}");
    // Who has circuits alone reaches its circuits, with no packets.
    let said = scene.tries("app", "10.1.200.10,80");
    assert!(said[0].starts_with("10.1.250."), "{said:?}");
}

/// Its routes, and others' addresses in it, lead elsewhere: past the switches.
#[test]
fn a_namespace_that_is_shared_leads_nowhere_past_the_switches() {
    const SHARED: &str = r#"version: 1
tenants:
  - name: red
    subnets:
      - { name: lan, prefixes: [10.1.1.0/24] }
    endpoints:
      - { name: app, subnet: lan, addresses: [10.1.1.11], attach: { veth: { namespace: {ns}, interface: eth1, circuits: {} } } }
      - { name: box, subnet: lan, addresses: [10.1.1.20], attach: { tap: { namespace: {ns}-box, make: true } } }
    policy:
      default: deny
      rules:
        - {name: both-ways, action: allow, from: {subnet: lan}, to: {subnet: lan}}
  - name: blue
    subnets:
      - { name: lan, prefixes: [10.2.2.0/24] }
    endpoints:
      - { name: web, subnet: lan, addresses: [10.2.2.10], attach: { veth: { namespace: {ns}, interface: eth2, circuits: {} } } }
"#;
    const HEARS: &str = "
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind((sys.argv[1], 8080)); print('hears', flush=True)
while True:
    said, who = s.recvfrom(9); print(who, flush=True); s.sendto(said, who)
";
    const SAYS: &str = "
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(0.2)
for _ in range(int(sys.argv[2])):
    try: s.sendto(b'x', (sys.argv[1], 8080)); print(s.recv(9).decode()); break
    except OSError: pass
";
    // One interface more, which leads outside.
    let (shared, outside) = (Namespace::make().unwrap(), Namespace::make().unwrap());
    let veth = "link add out type veth peer name in netns";
    shared.ip(&format!("{veth} {}", outside.name)).unwrap();
    for (at, lines) in [
        (
            &shared,
            ["addr add 192.0.2.1/24 dev out", "link set out up"],
        ),
        (&outside, ["addr add 192.0.2.2/24 dev in", "link set in up"]),
    ] {
        lines.iter().for_each(|line| at.ip(line).unwrap());
    }
    let beside = Namespace::named(format!("{}-box", shared.name));
    let spec = SHARED.replace("{ns}", &shared.name);
    let scene = Scene::of_several(&spec, &["app", "blue/web"]);
    outside.ip("route add 10.0.0.0/8 via 192.0.2.1").unwrap();
    scene.file("hears.py", HEARS);
    scene.file("says.py", SAYS);
    let lines = |at: &Namespace, line: &str| {
        let line = line.replace("{peer}", "/usr/bin/python3 {f}/peer.py");
        let mut command = at.command(&line.replace("{f}", &scene.files()));
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        scene.spawn(command)
    };
    // Its proxy is there, and neighbours know each other.
    let there = lines(&beside, "exec {peer} serve 8080");
    there.until("serving");
    let hears = lines(&beside, "exec python3 {f}/hears.py 10.1.1.20");
    hears.until("hears");
    let limit = Duration::from_secs(10);
    let reached = |_: &Instance| scene.tries("app", "10.1.1.20,8080") == ["10.1.1.11"];
    assert!(
        scene.instance.until(limit, reached),
        "{}",
        scene.instance.log()
    );
    assert_eq!(scene.says("app", "python3 {f}/says.py 10.1.1.20 20"), "x\n");
    // Who is beyond the other interface, and another tenant's address.
    let mut servers = Vec::new();
    for (address, at) in [("192.0.2.2", None), ("10.2.2.10", Some("blue/web"))] {
        for (line, until) in [
            ("exec {peer} serve 8080", "serving"),
            (&*format!("exec python3 {{f}}/hears.py {address}"), "hears"),
        ] {
            let server = match at {
                Some(at) => scene.start(at, line, until),
                None => lines(&outside, line),
            };
            server.until(until);
            servers.push(server);
        }
        let said = scene.tries("app", &format!("{address},8080"));
        assert!(!said[0].contains('.'), "{said:?}");
        let said = scene.says("app", &format!("python3 {{f}}/says.py {address} 5"));
        assert_eq!(said, "", "{address}");
    }
    for server in &servers {
        let out = server.out();
        assert!(["serving\n", "hears\n"].contains(&&*out), "{out}");
    }
    // And from there to a program of it, which others reach.
    let here = scene.start("app", "exec {peer} serve 8080", "serving");
    let _heard = scene.start("app", "exec python3 {f}/hears.py 10.1.1.11", "hears");
    let from = |at: &Namespace, line: &str| {
        let mut said = lines(at, line);
        said.wait(Duration::from_secs(20));
        said.out()
    };
    let reached = |_: &Instance| from(&beside, "{peer} try 10.1.1.11,8080") == "10.1.1.20\n";
    assert!(scene.instance.until(limit, reached), "{}", here.out());
    let says = "python3 {f}/says.py 10.1.1.11";
    assert_eq!(from(&beside, &format!("{says} 20")), "x\n");
    let said = from(&outside, "{peer} try 10.1.1.11,8080 192.0.2.1,8080");
    assert!(!said.contains('.'), "{said}");
    assert_eq!(from(&outside, &format!("{says} 5")), "");
    // Whatever it is called by now, and another is.
    for line in ["link set eth1 name own", "link set out name eth1"] {
        shared.ip(line).unwrap();
    }
    for operator in scene.instance.children("bulkhead-operator") {
        kill("KILL", &operator.to_string());
    }
    let reached = |_: &Instance| scene.tries("app", "10.1.1.20,8080") == ["10.1.1.11"];
    assert!(scene.instance.until(limit, reached));
    let said = scene.tries("app", "192.0.2.2,8080");
    assert!(!said[0].contains('.'), "{said:?}");
    // Once it is gone its index is another's before long.
    let proxies = || scene.instance.children("bulkhead-proxy").len();
    assert_eq!(proxies(), 2);
    shared.ip("link del own").unwrap();
    assert!(scene.instance.until(limit, |_| proxies() == 1));
}

/// What nobody has at the loopback is refused, at once, and no packet of it goes by the interface. What an
/// ordinary program has there, by TCP, is reached.
#[test]
fn the_loopback_beside_an_interface_is_the_namespaces_own() {
    const TRIES: &str = "
import errno, socket
for to, of in [('127.0.0.1', None), ('127.0.0.9', '127.0.0.1'), ('127.0.0.1', '10.1.1.13'), ('0.0.0.0', None), ('::1', None),
               ('::', None), ('::ffff:127.0.0.1', None), ('10.1.1.13', None), ('fd00:1::13', None)]:
    s = socket.socket(socket.AF_INET6 if ':' in to else socket.AF_INET); s.settimeout(5)
    try:
        if of: s.bind((of, 0))
        s.connect((to, 7999)); print(to, of, 'connected')
    except OSError as e: print(to, of, errno.errorcode.get(e.errno, e))
for to in '127.0.0.1', '::1':
    s = socket.socket(socket.AF_INET6 if ':' in to else socket.AF_INET, socket.SOCK_DGRAM)
    for _ in range(3):
        try: s.sendto(b'x', (to, 7999))
        except OSError: pass
";
    const SNIFFS: &str = "
import socket
s = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3)); s.bind(('eth0', 3)); print('sniffs', flush=True)
while True:
    d = s.recv(100)
    at = {4: lambda: socket.inet_ntop(socket.AF_INET, d[16:20]), 6: lambda: socket.inet_ntop(socket.AF_INET6, d[24:40])}.get(d[0] >> 4)
    if at: print(at(), flush=True)
";
    let scene = scene("");
    scene.file("tries.py", TRIES);
    scene.file("sniffs.py", SNIFFS);
    let sniffs = scene.spawn(scene.line("both", "exec /usr/bin/python3 {f}/sniffs.py"));
    sniffs.until("sniffs");
    let said = scene.says("both", "python3 {f}/tries.py");
    let refused = said.lines().all(|line| line.ends_with("ECONNREFUSED"));
    assert!(refused && said.lines().count() == 9, "{said}");
    let _there = scene.spawn(in_box(&scene, "exec {peer} serve 80"));
    let reached = |_: &Instance| scene.tries("both", "10.1.1.20,80") == ["10.1.1.13"];
    assert!(scene.instance.until(Duration::from_secs(10), reached));
    sniffs.until("10.1.1.20");
    let out = sniffs.out();
    let mut lines = out.lines();
    assert!(
        !lines.any(|it| it.starts_with("127.") || it == "::1"),
        "{out}"
    );
    let there = scene.spawn(scene.line("both", "exec {peer} serve 7999"));
    there.until("serving");
    assert_eq!(scene.tries("both", "127.0.0.1,7999"), ["127.0.0.1"]);
}

/// It says what comes of a try, and nothing is to be tried by packets where there are none.
#[test]
fn explain_and_trace_know_what_carries_a_connection() {
    let scene = scene("");
    let bulkhead = |words: &[&str]| scene.instance.say(words).unwrap();
    for (from, to, carried) in [
        ("app", "box", false),
        ("box", "app", false),
        ("app", "web", true),
        ("app", "both", true),
        ("both", "app", true),
        ("both", "box", true),
    ] {
        let [a, b] = [from, to].map(|name| format!("red/{name}"));
        let told = bulkhead(&["explain", &a, &b, "tcp", "7001"]);
        assert_eq!(told.code, if carried { 0 } else { 6 }, "{a} {b} {told:?}");
        let line = "NOT possible, though rules allow it";
        assert_eq!(told.out.contains(line), !carried, "{a} {b} {told:?}");
        let by_circuits = carried && (from, to) != ("both", "box");
        let line = "by circuits alone";
        assert_eq!(told.out.contains(line), by_circuits, "{a} {b} {told:?}");
    }
    let told = bulkhead(&["explain", "red/app", "red/box", "tcp", "7001"]).out;
    let line = "10.1.1.11 to 10.1.1.20: 10.1.1.11 has circuits alone, and 10.1.1.20 has none";
    assert!(told.contains(line), "{told}");
    let said = scene.says("app", "{peer} try 10.1.1.20,7001");
    assert_eq!(said, "EHOSTUNREACH\n");
    let told = bulkhead(&["trace", "red/app", "red/box", "tcp", "7001"]);
    let line = "red/app has circuits alone: no packet comes from it";
    assert!(told.code == 2 && told.err.contains(line), "{told:?}");
    let told = bulkhead(&["trace", "red/box", "red/app", "tcp", "7001"]);
    let line = "who is to get it has circuits alone, which no packet reaches";
    assert!(told.code == 6 && told.out.contains(line), "{told:?}");
}
