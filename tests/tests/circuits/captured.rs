//! Circuits that are captured: what tshark makes of them, and who is in whose way.

use crate::scene::{OPEN, Scene, kill};
use e2e::{Instance, Said};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(20);

/// `bulkhead capture` into a file.
struct Capture {
    child: Child,
    file: PathBuf,
    says: PathBuf,
}

impl Capture {
    /// One that has begun.
    fn of(scene: &Scene, words: &[&str]) -> Capture {
        Capture::by(scene, words, None)
    }

    /// The same, by a token.
    fn by(scene: &Scene, words: &[&str], token: Option<&str>) -> Capture {
        let mut capture = Capture::begin(scene, words, token);
        let limit = Instant::now() + LIMIT;
        while std::fs::metadata(&capture.file).map_or(0, |it| it.len()) == 0 {
            assert!(
                Instant::now() < limit && capture.goes_on(),
                "{}",
                capture.said()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        capture
    }

    fn begin(scene: &Scene, words: &[&str], token: Option<&str>) -> Capture {
        let file = scene.file(&e2e::unique("capture"), "");
        let says = file.with_extension("err");
        let mut all = vec!["capture", "--snap", "65535", "-w", file.to_str().unwrap()];
        all.extend(words);
        let mut command = scene.instance.command(&all);
        if let Some(token) = token {
            command.env("BULKHEAD_TOKEN", token);
        }
        let child = command
            .stderr(std::fs::File::create(&says).unwrap())
            .spawn()
            .unwrap();
        Capture { child, file, says }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.says).unwrap()
    }

    fn goes_on(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Its exit code, if it ends by itself.
    fn wait(&mut self) -> Option<i32> {
        let limit = Instant::now() + LIMIT;
        while Instant::now() < limit {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Some(status.code().unwrap_or(-1));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    }

    /// Ends it, once all that was shown is written.
    fn end(&mut self) {
        std::thread::sleep(Duration::from_secs(1));
        kill("INT", &self.child.id().to_string());
        assert_eq!(self.wait(), Some(0), "{}", self.said());
    }

    /// Waits until so many packets match; the last one may be half written meanwhile.
    fn until(&self, filter: &str, many: usize) {
        let end = Instant::now() + LIMIT;
        let matching = || {
            let mut tshark = Command::new("tshark");
            tshark.args(["-n", "-r", self.file.to_str().unwrap(), "-Y", filter]);
            Said::of(&mut tshark).unwrap().out.lines().count()
        };
        while matching() < many && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// What tshark says of it.
    fn tshark(&self, words: &[&str]) -> String {
        let mut tshark = Command::new("tshark");
        tshark
            .args(["-n", "-r", self.file.to_str().unwrap()])
            .args(words);
        let said = Said::of(&mut tshark).unwrap();
        assert!(said.ok(), "{words:?}: {}", said.err);
        said.out
    }

    /// These fields of the packets that match, a line each.
    fn fields(&self, filter: &str, fields: &[&str]) -> Vec<Vec<String>> {
        let mut words = vec!["-Y", filter, "-T", "fields"];
        words.extend(fields.iter().flat_map(|field| ["-e", field]));
        let lines = self.tshark(&words);
        let split = |line: &str| line.split('\t').map(str::to_owned).collect();
        lines.lines().map(split).collect()
    }

    fn streams(&self) -> Vec<String> {
        let all = self.fields("tcp", &["tcp.stream"]);
        let all: BTreeSet<u32> = all.iter().map(|it| it[0].parse().unwrap()).collect();
        all.iter().map(u32::to_string).collect()
    }

    /// What both sides said: the one who is first seen, and the other.
    fn followed(&self, stream: &str) -> [Vec<u8>; 2] {
        let said = self.tshark(&["-q", "-z", &format!("follow,tcp,raw,{stream}")]);
        let mut both = [Vec::new(), Vec::new()];
        for line in said.lines() {
            let (hex, side) = match line.strip_prefix('\t') {
                Some(hex) => (hex, 1),
                None => (line, 0),
            };
            let is_hex = |text: &str| text.bytes().all(|it| it.is_ascii_hexdigit());
            if !hex.is_empty() && is_hex(hex) {
                let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
                both[side].extend((0..hex.len()).step_by(2).map(byte));
            }
        }
        both
    }

    /// Nothing that TCP would not have sent, in the order in which it would, with its sums.
    fn is_right(&self) {
        let wrong = "tcp.analysis.flags || _ws.malformed || tcp.checksum.status == \"Bad\" || ip.checksum.status == \"Bad\" || _ws.expert.severity >= \"Warning\" && !tcp.flags.reset == 1";
        let checked = [
            "-o",
            "tcp.check_checksum:TRUE",
            "-o",
            "ip.check_checksum:TRUE",
        ];
        let mut words = checked.to_vec();
        words.extend(["-Y", wrong]);
        assert_eq!(self.tshark(&words), "");
        words.pop();
        words.push("tcp && tcp.checksum.status != \"Good\"");
        assert_eq!(self.tshark(&words), "", "sums are looked at");
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn circuits(scene: &Scene) -> Vec<Value> {
    let said = scene.instance.ask(&["circuits"]).unwrap();
    said["flows"].as_array().unwrap().clone()
}

/// Of those from this endpoint: by what their bytes go, and whether that is for a capture.
fn kinds(scene: &Scene, from: &str) -> Vec<(String, bool)> {
    let all = circuits(scene);
    let of = all.iter().filter(|it| it["from"] == from);
    let kind = |it: &Value| {
        let circuit = &it["circuit"];
        let kind = circuit["kind"].as_str().unwrap().to_owned();
        (kind, circuit["captured"] == true)
    };
    of.map(kind).collect()
}

fn metered() -> (String, bool) {
    ("metered".to_owned(), true)
}

fn direct() -> (String, bool) {
    ("kernel".to_owned(), false)
}

/// `app` metered by itself.
fn counted() -> String {
    let plain = "\"fd00:1::11\"], attach: circuits }";
    assert!(OPEN.contains(plain));
    OPEN.replace(
        plain,
        "\"fd00:1::11\"], attach: { circuits: { metered: on } } }",
    )
}

const NGINX: &str =
    "daemon off; user root; worker_processes 1; pid {f}/nginx.pid; error_log stderr;
events {} http { access_log off; sendfile on; keepalive_timeout 0;
  server { listen 80; listen [::]:80; root {f}; } }";

#[test]
fn tshark_follows_what_curl_and_nginx_said_to_each_other() {
    let scene = Scene::of(OPEN);
    scene.file("nginx.conf", &NGINX.replace("{f}", &scene.files()));
    let body: Vec<u8> = (0..300_000_u32)
        .map(|n| (n.wrapping_mul(n) >> 7) as u8)
        .collect();
    std::fs::write(PathBuf::from(scene.files()).join("body"), &body).unwrap();
    let line = "exec nginx -e stderr -p {f} -c {f}/nginx.conf";
    let _nginx = scene.serve("web", line, "10.1.1.10", 80);
    let mut capture = Capture::of(&scene, &["--endpoint", "red/app"]);
    assert_eq!(capture.said(), "", "nothing was there before");
    for to in ["10.1.1.10", "[fd00:1::10]"] {
        let line = format!("curl -sS http://{to}/body | cmp - {{f}}/body && echo same");
        assert_eq!(scene.says("app", &line), "same\n");
    }
    // Whom nobody captures nobody carries.
    let _few = scene.start("few", "{peer} serve 81", "serving");
    let idle = "exec python3 -c 'import socket,time; s=socket.create_connection((\"10.1.1.12\",81)); print(\"in\",flush=True); time.sleep(60)'";
    let _held = scene.start("web", idle, "in");
    assert!(
        scene
            .instance
            .until(LIMIT, |_| kinds(&scene, "red/web") == [direct()])
    );
    capture.end();
    capture.is_right();
    let streams = capture.streams();
    assert_eq!(streams.len(), 2);
    let ends = [["10.1.1.11", "10.1.1.10"], ["fd00:1::11", "fd00:1::10"]];
    for (stream, [client, server]) in streams.iter().zip(ends) {
        let [asked, answered] = capture.followed(stream);
        assert!(asked.starts_with(b"GET /body HTTP/1.1\r\n"), "{asked:?}");
        let head = answered
            .windows(4)
            .position(|it| it == b"\r\n\r\n")
            .unwrap()
            + 4;
        assert!(answered[head..] == body, "{} bytes", answered.len() - head);
        let filter = format!("tcp.stream == {stream}");
        let ip = if client.contains(':') { "ipv6" } else { "ip" };
        let names = [format!("{ip}.src"), format!("{ip}.dst")];
        let fields = [&names[0], &names[1], "tcp.flags", "tcp.dstport"];
        let all = capture.fields(&filter, &fields);
        let first: Vec<&str> = all[..3].iter().map(|it| it[2].as_str()).collect();
        assert_eq!(
            first,
            ["0x0002", "0x0012", "0x0010"],
            "SYN, SYN and ACK, ACK"
        );
        assert_eq!(all[0], [client, server, "0x0002", "80"]);
        // Whoever was first, both have said all and were heard.
        let last: Vec<[&str; 2]> = all[all.len() - 4..]
            .iter()
            .map(|it| [it[0].as_str(), it[2].as_str()])
            .collect();
        let (first, then) = match last[0][0] == server {
            true => (server, client),
            false => (client, server),
        };
        let fins = [
            [first, "0x0011"],
            [then, "0x0010"],
            [then, "0x0011"],
            [first, "0x0010"],
        ];
        assert_eq!(last, fins);
    }
    let interfaces = capture.fields("tcp", &["frame.interface_name"]);
    let interfaces: BTreeSet<&String> = interfaces.iter().map(|it| &it[0]).collect();
    assert_eq!(interfaces.len(), 1, "all as app sees it: {interfaces:?}");
}

/// `serve` says a word, that it is all, hears the other's and reads no more; one who `asks` does
/// what is said.
const ENDS: &str = r"
import socket, sys, time
if sys.argv[1] == 'serve':
    s = socket.create_server(('10.1.1.10', 7000)); print('serving', flush=True)
    c, _ = s.accept(); c.sendall(b'first'); c.shutdown(socket.SHUT_WR)
    assert c.recv(100) == b'then' and c.recv(100) == b''; c.close()
    c, _ = s.accept(); time.sleep(0.3); assert c.recv(1) == b'n'; c.close()
    print('done', flush=True); time.sleep(60)
else:
    c = socket.create_connection(('10.1.1.10', 7000))
    assert c.recv(5) == b'first' and c.recv(100) == b''
    c.sendall(b'then'); time.sleep(0.1); c.close()
    c = socket.create_connection(('10.1.1.10', 7000)); c.sendall(b'never read')
    try:
        while c.recv(100): pass
    except ConnectionResetError: print('reset')
";

#[test]
fn ends_are_in_the_order_in_which_programs_made_them() {
    let scene = Scene::of(OPEN);
    scene.file("ends.py", ENDS);
    let web = scene.start("web", "exec python3 {f}/ends.py serve", "serving");
    let mut capture = Capture::of(&scene, &["--endpoint", "red/web"]);
    scene.says("app", "python3 {f}/ends.py ask");
    web.until("done");
    capture.end();
    capture.is_right();
    let packets = |stream: &str| {
        let fields = ["tcp.srcport", "tcp.flags", "tcp.len"];
        let all = capture.fields(&format!("tcp.stream == {stream}"), &fields);
        let short = |it: Vec<String>| {
            let from = if it[0] == "7000" { "web" } else { "app" };
            format!("{from} {} {}", it[1].trim_start_matches("0x00"), it[2])
        };
        all.into_iter().map(short).collect::<Vec<_>>()
    };
    let begins = ["app 02 0", "web 12 0", "app 10 0"];
    let said = [
        "web 18 5", "web 11 0", "app 10 0", "app 18 4", "web 10 0", "app 11 0", "web 10 0",
    ];
    let all = packets("0");
    // What comes at once may be heard at once.
    let without = |all: &[String]| {
        let heard = |at: &usize| all[*at] != "app 10 0" || *at < 3 || all[at - 1] == "web 11 0";
        let kept = (0..all.len()).filter(heard);
        kept.map(|at| all[at].clone()).collect::<Vec<_>>()
    };
    assert_eq!(without(&all), [&begins[..], &said].concat(), "{all:?}");
    let all = packets("1");
    assert_eq!(all[..3], begins);
    assert_eq!(all[3], "app 18 10");
    assert_eq!(
        all.last().unwrap(),
        "web 14 0",
        "it left something unread: {all:?}"
    );
}

#[test]
fn while_somebody_captures_circuits_are_metered_and_afterwards_not() {
    let scene = Scene::of(OPEN);
    let _web = scene.start("web", "{peer} stream 9001", "serving");
    let before = scene.start("app", "{peer} follow 10.1.1.10 9001", "100\n");
    let id = circuits(&scene)[0]["circuit"]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let mut capture = Capture::of(&scene, &["--endpoint", "red/web"]);
    let told = format!("not seen, for they began before: 1 circuit\n  {id}  10.1.1.11:");
    assert!(
        scene
            .instance
            .until(LIMIT, |_| capture.said().starts_with(&told)),
        "{}",
        capture.said()
    );
    assert!(capture.said().ends_with(" to 10.1.1.10:9001 (kernel)\n"));
    let within = scene.start("few", "{peer} follow fd00:1::10 9001", "300\n");
    assert_eq!(kinds(&scene, "red/app"), [direct()]);
    assert_eq!(kinds(&scene, "red/few"), [metered()]);
    let shown = scene.instance.say(&["circuits"]).unwrap().out;
    assert!(shown.contains("metered, captured"), "{shown}");
    // What the operator's death, and the next one, do not change.
    scene.kill_operator();
    let again = scene.start("app", "{peer} follow 10.1.1.10 9001", "100\n");
    let both = |_: &Instance| kinds(&scene, "red/app").contains(&metered());
    assert!(scene.instance.until(LIMIT, both));
    assert_eq!(kinds(&scene, "red/few"), [metered()]);
    assert!(capture.goes_on(), "{}", capture.said());
    // One that is cut is reset, from both sides.
    let all = circuits(&scene);
    let one = all.iter().find(|it| it["from"] == "red/few").unwrap();
    let port = one["source"]
        .as_str()
        .unwrap()
        .rsplit(':')
        .next()
        .unwrap()
        .to_owned();
    let id = one["circuit"]["id"].as_str().unwrap();
    assert!(scene.instance.say(&["circuits", "cut", id]).unwrap().ok());
    // What is done by a person is nothing that the log says of itself.
    let check = scene.instance.say(&["audit", "--check"]).unwrap();
    assert!(check.ok(), "{check:?}");
    drop(within);
    capture.until("tcp.flags.reset == 1", 2);
    capture.end();
    capture.is_right();
    let syns = capture.fields("tcp.flags.syn == 1 && tcp.flags.ack == 0", &["tcp.srcport"]);
    assert_eq!(syns.len(), 2, "{syns:?}");
    let resets = capture.fields("tcp.flags.reset == 1", &["ipv6.src", "tcp.port"]);
    let sources: Vec<&str> = resets.iter().map(|it| it[0].as_str()).collect();
    assert_eq!(sources, ["fd00:1::12", "fd00:1::10"], "{resets:?}");
    assert!(resets.iter().all(|it| it[1].contains(&port)), "{resets:?}");
    // Each number in its place, as the program got them.
    let [_, numbers] = capture.followed("0");
    assert!(numbers.len() >= 300 * 8);
    for (n, eight) in numbers.chunks_exact(8).enumerate() {
        assert_eq!(u64::from_be_bytes(eight.try_into().unwrap()), n as u64);
    }
    // It goes on as it began; the next is direct again, with what it may have.
    let far = again.out().lines().count() + 5;
    assert!(
        scene
            .instance
            .until(LIMIT, |_| again.out().lines().count() > far)
    );
    assert!(kinds(&scene, "red/app").contains(&metered()));
    let _next = scene.start("few", "{peer} follow 10.1.1.10 9001", "100\n");
    assert_eq!(kinds(&scene, "red/few"), [direct()]);
    drop(before);
}

#[test]
fn one_that_is_met_on_its_way_begins_there() {
    let scene = Scene::of(&counted());
    let _web = scene.start("web", "{peer} stream 9001", "serving");
    let follow = scene.start("app", "{peer} follow 10.1.1.10 9001", "300\n");
    let mut capture = Capture::of(&scene, &["--endpoint", "red/app"]);
    let far = follow.out().lines().count() + 20;
    assert!(
        scene
            .instance
            .until(LIMIT, |_| follow.out().lines().count() > far)
    );
    capture.end();
    assert_eq!(capture.said(), "");
    capture.is_right();
    assert_eq!(
        capture.fields("tcp.flags.syn == 1", &["tcp.stream"]).len(),
        0
    );
    let [one, other] = capture.followed("0");
    let numbers = if one.is_empty() { other } else { one };
    assert!(
        numbers.len() >= 2000 * 8 && numbers.len() % 8 == 0,
        "{}",
        numbers.len()
    );
    let numbers: Vec<u64> = numbers
        .chunks_exact(8)
        .map(|eight| u64::from_be_bytes(eight.try_into().unwrap()))
        .collect();
    assert!(numbers[0] >= 300, "{}", numbers[0]);
    assert!(numbers.windows(2).all(|two| two[1] == two[0] + 1));
}

/// The last number of lost packets that a capture's blocks say.
fn lost(bytes: &[u8]) -> u64 {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let (mut at, mut last) = (0, 0);
    while at + 12 <= bytes.len() {
        if word(at) == 5 {
            last = u64::from(word(at + 24)) | u64::from(word(at + 28)) << 32;
        }
        at += word(at + 4) as usize;
    }
    last
}

const BULK: &str = "exec python3 -uc '
import socket, sys
s = socket.create_server((\"10.1.1.10\", 7000)); print(\"serving\")
while True:
    c, _ = s.accept(); n = 0
    while part := c.recv(1 << 16): n += len(part)
    print(n, \"came\")
'";

const SEND: &str = "python3 -c '
import socket
s = socket.create_connection((\"10.1.1.10\", 7000)); data = bytes(1 << 16)
for _ in range(1600): s.sendall(data)
'";

#[test]
fn who_reads_a_capture_slowly_loses_of_it_and_holds_nobody_up() {
    let scene = Scene::of(OPEN);
    let web = scene.start("web", BULK, "serving");
    let words = ["capture", "--endpoint", "red/app", "--snap", "65535"];
    let mut command = scene.instance.command(&words);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut first = vec![0; 28];
    out.read_exact(&mut first).unwrap();
    let begun = Instant::now();
    scene.says("app", SEND);
    web.until("104857600 came");
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(45), "{took:?}");
    // It reads on; the number of lost packets comes with the next that is not.
    let reading = std::thread::spawn(move || {
        let mut all = first;
        out.read_to_end(&mut all).unwrap();
        all
    });
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(scene.tries("app", "10.1.1.12,1"), ["ECONNREFUSED"]);
    let _few = scene.start("few", "{peer} serve 80", "serving");
    assert_eq!(scene.tries("app", "10.1.1.12,80"), ["10.1.1.11"]);
    std::thread::sleep(Duration::from_millis(500));
    kill("INT", &child.id().to_string());
    assert!(child.wait().unwrap().success());
    let all = reading.join().unwrap();
    let lost = lost(&all);
    assert!(lost > 100, "{lost} lost, {} bytes came", all.len());
    assert!(all.len() < 100 << 20);
}

#[test]
fn a_tenant_captures_its_own_circuits_and_nobody_elses() {
    let blue = "  - name: blue
    subnets: [{ name: lan, prefixes: [10.1.1.0/24] }]
    endpoints:
      - { name: web, subnet: lan, addresses: [10.1.1.10], attach: circuits }
";
    let scene = Scene::of(&format!("{OPEN}{blue}"));
    let _web = scene.start("web", "{peer} stream 9001", "serving");
    let _before = scene.start("app", "{peer} follow 10.1.1.10 9001", "100\n");
    let token = |tenant: &str| {
        let made = scene.instance.ask(&["token", "create", tenant]).unwrap();
        made["text"].as_str().unwrap().to_owned()
    };
    let (red, blue) = (token("red"), token("blue"));
    let mut refused = Capture::begin(&scene, &["--endpoint", "red/app"], Some(&blue));
    assert_ne!(refused.wait(), Some(0));
    assert!(refused.said().contains("red/app"), "{}", refused.said());
    // It changed nothing.
    let follow = scene.start("app", "{peer} follow 10.1.1.10 9001", "100\n");
    assert_eq!(kinds(&scene, "red/app"), [direct(), direct()]);
    drop(follow);
    // Its own, of which it is told without the ids by which circuits are cut.
    let mut own = Capture::begin(&scene, &["--endpoint", "red/app"], Some(&red));
    let told = "not seen, for they began before: 1 circuit\n  10.1.1.11:";
    assert!(
        scene
            .instance
            .until(LIMIT, |_| own.said().starts_with(told)),
        "{}",
        own.said()
    );
    let _follow = scene.start("app", "{peer} follow 10.1.1.10 9001", "100\n");
    own.end();
    own.is_right();
    assert_eq!(own.streams().len(), 1);
}

/// Where a switch is shared, what was a tenant's own to see may be another's next.
#[test]
fn a_capture_ends_where_others_come_into_it() {
    let zone = "    placement: {per: zone, zone: z}\n";
    let blue = format!(
        "  - name: blue\n{zone}    subnets: [{{ name: lan, prefixes: [10.1.1.0/24] }}]
    endpoints: [{{ name: web, subnet: lan, addresses: [10.1.1.10], attach: circuits }}]\n"
    );
    let red = format!("{OPEN}{zone}");
    let scene = Scene::of(&red);
    let made = scene.instance.ask(&["token", "create", "red"]).unwrap();
    let token = made["text"].as_str();
    // All of its compartment, until it is not alone there.
    let mut all = Capture::by(&scene, &[], token);
    let mut one = Capture::by(&scene, &["--endpoint", "red/app"], None);
    scene.apply(&format!("{red}{blue}"));
    assert!(!matches!(all.wait(), Some(0) | None), "{}", all.said());
    assert!(one.goes_on(), "{}", one.said());
    let mut all = Capture::begin(&scene, &[], token);
    assert_ne!(all.wait(), Some(0));
    assert!(all.said().contains("shared"), "{}", all.said());
    // Its endpoint, until that is no more: the next to have its place may be anybody's.
    let mut own = Capture::by(&scene, &["--endpoint", "red/app"], token);
    let line = red.lines().find(|line| line.contains("name: app"));
    let without = format!("{red}{blue}").replace(&format!("{}\n", line.unwrap()), "");
    scene.apply(&without);
    for capture in [&mut own, &mut one] {
        assert!(
            !matches!(capture.wait(), Some(0) | None),
            "{}",
            capture.said()
        );
    }
}

#[test]
fn a_meters_death_and_the_supervisors_end_a_capture_that_says_so() {
    let scene = Scene::of(OPEN);
    let _web = scene.start("web", "{peer} stream 9001", "serving");
    for program in ["bulkhead-proxy", "bulkhead-supervisor"] {
        let mut capture = Capture::of(&scene, &["--endpoint", "red/app"]);
        let mut follow = scene.start("app", "{peer} follow 10.1.1.10 9001", "100\n");
        assert_eq!(kinds(&scene, "red/app"), [metered()]);
        let whom = scene.instance.child(program).unwrap();
        kill("KILL", &whom.to_string());
        assert!(
            !matches!(capture.wait(), Some(0) | None),
            "{}",
            capture.said()
        );
        assert!(
            capture.said().contains("the capture has ended"),
            "{}",
            capture.said()
        );
        capture.is_right();
        match program {
            "bulkhead-proxy" => assert!(follow.wait(LIMIT).is_some(), "it went by that"),
            _ => assert_eq!(follow.wait(Duration::from_millis(500)), None),
        }
        // Nothing of it is left: what begins is direct.
        let again = |_: &Instance| {
            let _app = scene.start("few", "{peer} follow 10.1.1.10 9001", "100\n");
            let _own = scene.start("app", "{peer} follow 10.1.1.10 9001", "100\n");
            kinds(&scene, "red/app").contains(&direct())
        };
        assert!(scene.instance.until(LIMIT, again), "{program}");
    }
}

/// SHUT_RD ends one direction and leaves the other, by the kernel, by a meter, and by one that is captured.
#[test]
fn who_hears_no_more_says_all_the_same() {
    const SERVER: &str = "
import socket
s = socket.socket(); s.bind(('10.1.1.10', 9001)); s.listen()
print('serving', flush=True)
while True:
    c, _ = s.accept()
    total = 0
    while data := c.recv(65536):
        try: c.send(bytes(1000))
        except OSError: pass
        total += len(data)
    print(total, flush=True)
    c.close()
";
    const SAYS: &str = "
import os, socket, sys, time
c = socket.create_connection(('10.1.1.10', 9001)); c.shutdown(socket.SHUT_RD)
for _ in range(100): c.sendall(bytes(20000)); time.sleep(0.002)
while not os.path.exists(sys.argv[1]): time.sleep(0.02)
c.shutdown(socket.SHUT_WR); time.sleep(0.5)
";
    let metered = OPEN.replace(
        "attach: circuits }",
        "attach: { circuits: { metered: on } } }",
    );
    assert_ne!(metered, OPEN);
    for (spec, captures, kind) in [
        (OPEN, false, direct()),
        (&metered, false, ("metered".to_owned(), false)),
        (OPEN, true, self::metered()),
    ] {
        let scene = Scene::of(spec);
        scene.file("server.py", SERVER);
        scene.file("says.py", SAYS);
        let server = scene.start("web", "exec python3 {f}/server.py", "serving");
        let mut capture = captures.then(|| Capture::of(&scene, &["--endpoint", "red/app"]));
        let mut says = scene.spawn(scene.command("app", "exec python3 {f}/says.py {f}/seen"));
        let is_one = |_: &Instance| kinds(&scene, "red/app").contains(&kind);
        assert!(scene.instance.until(LIMIT, is_one), "{kind:?}");
        scene.file("seen", "");
        server.until("2000000\n");
        assert_eq!(says.wait(LIMIT), Some(0), "{}", says.err());
        if let Some(capture) = &mut capture {
            capture.end();
            capture.is_right();
        }
    }
}
