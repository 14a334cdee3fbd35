//! What each tenant is told of circuits: its own, and nothing of another's.

use crate::scene::{Program, Scene};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Both log what the other may not; a guardrail of the host's does too.
const SPEC: &str = r#"version: 1
guardrails: [{name: crimsonrail, action: deny, protocol: tcp, ports: [25], log: yes}]
tenants:
  - name: red
    subnets:
      - {name: data, prefixes: [10.1.1.0/24]}
    endpoints:
      - {name: db, subnet: data, addresses: [10.1.1.10], attach: circuits}
      - {name: db2, subnet: data, addresses: [10.1.1.11], attach: circuits}
    policy:
      rules:
        - {name: no-admin, action: deny, from: {agreement: db}, protocol: tcp, ports: [5433], log: yes}
        - {name: served, action: allow, from: {agreement: db}, log: yes}
    offers:
      - {name: db, endpoint: db, protocol: tcp, ports: [5432-5434], to: [blue], pool: [10.1.250.0/28]}
  - name: blue
    subnets:
      - {name: apps, prefixes: [172.23.99.0/24]}
    endpoints:
      - {name: app, subnet: apps, addresses: [172.23.99.10], attach: circuits}
    accepts:
      - {name: reds-db, from: red, service: db, as: [10.1.200.10]}
"#;

impl Scene {
    /// A token of a tenant's, in a file.
    fn token(&self, tenant: &str) -> PathBuf {
        let made = self.instance.ask(&["token", "create", tenant]).unwrap();
        let text = made["text"].as_str().unwrap();
        self.file(&format!("{tenant}.token"), text)
    }

    fn of_tenant(&self, token: &Path, words: &[&str]) -> std::process::Command {
        let mut command = self.instance.command(words);
        command.arg("--token-file").arg(token);
        command
    }

    /// What a tenant is told of why its endpoint does not work.
    fn why(&self, token: &Path, endpoint: &str) -> String {
        let said = self.run(self.of_tenant(token, &["why", endpoint]));
        format!("{}{}", said.out, said.err)
    }

    fn events(&self, token: &Path) -> Program {
        self.spawn(self.of_tenant(token, &["events", "--last", "100"]))
    }

    /// What a rule has let begin and denied.
    fn decided(&self, tenant: &str, rule: &str) -> [u64; 2] {
        let rules = self.instance.ask(&["rules", tenant]).unwrap();
        let all = rules["rules"].as_array().unwrap().clone();
        let is = |it: &&Value| it["rule"]["name"] == rule;
        let of = all.iter().find(is).unwrap_or_else(|| panic!("{rules}"));
        ["connections", "denied"].map(|word| of[word].as_u64().unwrap())
    }
}

#[test]
fn neither_side_learns_an_address_or_a_name_of_the_other_and_both_are_told_their_own() {
    let scene = Scene::of_several(SPEC, &["red/db", "blue/app"]);
    let [red, blue] = ["red", "blue"].map(|tenant| scene.token(tenant));
    // Nothing is wrong, and a tenant is told so.
    for (token, endpoint) in [(&red, "red/db"), (&red, "red/db2"), (&blue, "blue/app")] {
        let said = scene.why(token, endpoint);
        assert!(said.contains("nothing is wrong"), "{endpoint}: {said}");
    }
    let _db = scene.start("db", "{peer} serve 5432", "serving");
    let tries = |targets: &str| scene.tries("blue/app", targets);
    let seen = tries("10.1.200.10,5432");
    assert!(seen[0].starts_with("10.1.250."), "{seen:?}");
    assert_eq!(scene.decided("red", "red/served"), [1, 0]);
    // Nobody listens there: nothing has begun.
    assert_eq!(tries("10.1.200.10,5434"), ["ECONNREFUSED"]);
    assert_eq!(scene.decided("red", "red/served"), [1, 0]);
    assert_eq!(tries("10.1.200.10,5433"), ["EACCES"]);
    assert_eq!(scene.decided("red", "red/no-admin"), [0, 1]);
    assert_eq!(scene.tries("db2", "10.1.1.10,25"), ["EACCES"]);
    let events = scene.events(&red);
    events.until("rule red/no-admin");
    events.until("denied a connection from 10.1.250.");
    events.until("red/db2: guardrail denied");
    let told = [
        events.out(),
        scene.why(&red, "red/db"),
        scene.why(&red, "red/db2"),
    ];
    for told in &told {
        assert!(!told.contains("172.23.99."), "{told}");
        assert!(!told.contains("crimson"), "{told}");
    }
    // The host's own names it.
    let all = scene.spawn(scene.instance.command(&["events", "--last", "100"]));
    all.until("guardrail crimsonrail");
    let told = scene.why(&blue, "blue/app");
    assert!(!told.contains("10.1.1.") && !told.contains("red"), "{told}");
}

/// What keeps a connection from being carried is told where it is of the tenant's own end.
#[test]
fn explain_tells_a_tenant_what_its_own_end_carries_and_not_how_the_other_is_attached() {
    let name = e2e::unique("ct");
    let more = [
        (
            "attach: circuits}\n    policy",
            "attach: circuits}\n      - {name: box, subnet: data, addresses: [10.1.1.12], attach: {tap: {namespace: NS, make: true}}}\n    policy",
        ),
        (
            "    offers:\n",
            "    offers:\n      - {name: dns, endpoint: db, protocol: udp, ports: [53], to: [blue], pool: [10.1.251.0/28]}\n      - {name: raw, endpoint: box, protocol: tcp, ports: [80], to: [blue], pool: [10.1.252.0/28]}\n",
        ),
        (
            "    accepts:\n",
            "    accepts:\n      - {name: reds-dns, from: red, service: dns, as: [10.1.200.11]}\n      - {name: reds-raw, from: red, service: raw, as: [10.1.200.12]}\n",
        ),
    ];
    let mut spec = SPEC.to_owned();
    for (place, text) in more {
        assert!(spec.contains(place), "{place}");
        spec = spec.replace(place, text);
    }
    let scene = Scene::of_several(&spec.replace("NS", &name), &["red/db", "blue/app"]);
    let blue = scene.token("blue");
    let own = |to: &str, what: [&str; 2]| {
        let words = ["explain", "blue/app", to, what[0], what[1]];
        let host = scene.instance.say(&words).unwrap();
        let told = scene.run(scene.of_tenant(&blue, &words));
        [(host.code, host.out), (told.code, told.out)]
    };
    let no_datagrams = "circuits carry TCP alone across an agreement";
    for (code, out) in own("10.1.200.11", ["udp", "53"]) {
        assert!(code == 6 && out.contains(no_datagrams), "{code}: {out}");
    }
    let [host, told] = own("10.1.200.12", ["tcp", "80"]);
    assert!(
        host.0 == 6 && host.1.contains("has circuits alone"),
        "{host:?}"
    );
    assert!(
        told.0 == 0 && told.1.contains("allowed on this side"),
        "{told:?}"
    );
    // By its own end, and as where the other has circuits too.
    assert!(told.1.contains("by circuits alone"), "{told:?}");
    assert!(!told.1.contains("has circuits"), "{told:?}");
}

/// In one zone: the endpoints of both, with a slot each.
fn zone(endpoints: [&str; 2]) -> String {
    let [red, blue] = endpoints;
    let of = |name: &str, prefix: &str, more: &str, endpoints: &str| {
        format!(
            "  - name: {name}\n    placement: {{per: zone, zone: z}}\n    subnets: [{{name: a, prefixes: [{prefix}]}}]\n    endpoints: [{endpoints}]\n{more}"
        )
    };
    let deny = "    policy: {default: {inside: deny}}\n";
    format!(
        "version: 1\ntenants:\n{}{}",
        of("red", "10.77.1.0/24", deny, red),
        of("blue", "172.23.99.0/24", "", blue)
    )
}

#[test]
fn who_gets_anothers_slot_is_told_nothing_of_it() {
    const DB: &str = "{name: db, subnet: a, addresses: [10.77.1.10], attach: circuits}";
    const GONE: &str = "{name: gone, subnet: a, addresses: [10.77.1.11], attach: circuits}";
    const APP: &str = "{name: app, subnet: a, addresses: [172.23.99.10], attach: circuits}";
    let red = format!("{DB}, {GONE}");
    let scene = Scene::of_several(&zone([&red, APP]), &["red/gone", "blue/app"]);
    let token = scene.token("blue");
    let slot = |name: &str| {
        let status = scene.instance.ask(&["status"]).unwrap();
        let tenants = status["tenants"].as_array().unwrap().clone();
        let mut all = tenants
            .iter()
            .flat_map(|it| it["endpoints"].as_array().unwrap());
        all.find(|it| it["name"] == name)
            .map(|it| it["slot"].as_u64())
    };
    assert_eq!(scene.tries("gone", "10.77.1.10,5432"), ["EACCES"]);
    let was = slot("gone").unwrap();
    scene.apply(&zone([DB, APP]));
    // Until somebody has it again.
    let mut endpoints = APP.to_owned();
    let mut has = None;
    for n in 0..4 {
        endpoints += &format!(
            ", {{name: new{n}, subnet: a, addresses: [172.23.99.{}], attach: circuits}}",
            20 + n
        );
        scene.apply(&zone([DB, &endpoints]));
        if slot(&format!("new{n}")).unwrap() == was {
            has = Some(format!("blue/new{n}"));
            break;
        }
    }
    let has = has.expect("a slot is used again");
    let said = scene.why(&token, &has);
    assert!(said.contains("nothing is wrong"), "{said}");
    assert!(!said.contains("10.77.1."), "{said}");
    // Its own it is told.
    assert_eq!(scene.tries(&has, "172.23.99.77,80"), ["EHOSTUNREACH"]);
    let said = scene.why(&token, &has);
    assert!(said.contains("refused 1 call by no-neighbour"), "{said}");
}

/// An operator of a zone lists no more than a thousand at a time: of whom that is, each is asked for alone.
#[test]
fn what_others_of_a_zone_have_much_of_hides_nobodys_own() {
    const HAS: &str = "
import resource, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (16000, 16000)); keeps = []
for n in range(int(sys.argv[2])):
    s = socket.socket(); s.bind((sys.argv[1], 10000 + n)); s.listen(1); keeps.append(s)
    c = socket.socket(); c.connect((sys.argv[1], 10000 + n)); keeps += [c, s.accept()[0]]
print('there', flush=True); time.sleep(600)
";
    let of = |name: &str, at: &str| {
        format!(
            "{{name: {name}, subnet: a, addresses: [{at}], attach: {{circuits: {{sockets: 8000}}}}}}"
        )
    };
    let endpoints = [of("db", "10.77.1.10"), of("app", "172.23.99.10")];
    let spec = zone([&endpoints[0], &endpoints[1]]);
    let scene = Scene::of_several(&spec, &["red/db", "blue/app"]);
    scene.file("has.py", HAS);
    let has = |endpoint: &str, at: &str, many: u32| {
        let line = format!("exec python3 {{f}}/has.py {at} {many}");
        scene.start(endpoint, &line, "there")
    };
    let _many = has("red/db", "10.77.1.10", 1010);
    let _one = has("blue/app", "172.23.99.10", 1);
    let [reds, blues] = ["red", "blue"].map(|tenant| scene.token(tenant));
    let list = |token: &Path, words: &[&str]| -> Value {
        let words = [&["--json", "circuits"], words].concat();
        let said = scene.run(scene.of_tenant(token, &words));
        assert!(said.ok(), "{said:?}");
        serde_json::from_str(&said.out).unwrap()
    };
    let listens = list(&blues, &["--listeners"]);
    assert_eq!(listens["listeners"][0]["address"], "172.23.99.10:10000");
    let circuits = list(&blues, &[]);
    assert_eq!(circuits["flows"][0]["to"], "blue/app");
    for told in [listens, circuits] {
        assert_eq!(told["seen"], 1, "{told}");
    }
    // Whose they are is told how many are left out.
    for (words, of) in [(&["--listeners"][..], "listeners"), (&[], "flows")] {
        let told = list(&reds, &[words, &["-n", "1000"]].concat());
        let rows = told[of].as_array().unwrap().len();
        assert_eq!((rows, &told["seen"]), (1000, &Value::from(1010)));
    }
    let own = scene.instance.ask(&["circuits", "blue/app"]).unwrap();
    let id = own["flows"][0]["circuit"]["id"].as_str().unwrap();
    assert!(scene.instance.say(&["circuits", "cut", id]).unwrap().ok());
    let audit = scene.instance.say(&["audit", "--json"]).unwrap();
    let line = audit.out.lines().find(|line| line.contains("circuit-cut"));
    let line = line.unwrap_or_default();
    assert!(line.contains("to blue/app 172.23.99.10:10000"), "{line}");
}

/// What `ss` shows elsewhere: who listens, with what waits there, and who is sent to by UDP.
#[test]
fn who_listens_is_listed_to_its_own_tenant_and_to_the_host() {
    const LISTENS: &str = r"
import resource, socket, time
t = socket.socket(); t.bind(('10.1.1.10', 5432)); t.listen(7)
s = socket.socket(socket.AF_INET6); s.bind(('::', 5440)); s.listen(3)
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(('0.0.0.0', 53))
c = socket.socket(); c.connect(('10.1.1.10', 5432))
idle = socket.socket(); idle.bind(('0.0.0.0', 9999))
# A second, that is accepted by who has no number for it: it waits on, in no queue of the kernel's.
d = socket.socket(); d.connect(('10.1.1.10', 5432))
numbers = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (0, numbers[1]))
try: t.accept()
except OSError: resource.setrlimit(resource.RLIMIT_NOFILE, numbers)
print('there', flush=True); time.sleep(600)
";
    let scene = Scene::of_several(SPEC, &["red/db", "blue/app"]);
    scene.file("listens.py", LISTENS);
    let list = |token: Option<&Path>, words: &[&str]| -> Value {
        let words = [&["--json", "circuits", "--listeners"], words].concat();
        let command = match token {
            Some(token) => scene.of_tenant(token, &words),
            None => scene.instance.command(&words),
        };
        let said = scene.run(command);
        assert!(said.ok(), "{said:?}");
        serde_json::from_str(&said.out).unwrap()
    };
    assert_eq!(list(None, &[])["listeners"], serde_json::json!([]));
    let program = scene.start("red/db", "exec python3 {f}/listens.py", "there");
    let _other = scene.start("blue/app", "exec python3 -c 'import socket, time; s = socket.socket(); s.bind((\"172.23.99.10\", 80)); s.listen(1); print(\"there\", flush=True); time.sleep(600)'", "there");
    let tcp = |endpoint: &str, address: &str, waiting: u64, backlog: u64| serde_json::json!({"endpoint": endpoint, "protocol": "tcp", "address": address, "waiting": waiting, "backlog": backlog});
    let red = [
        tcp("red/db", "10.1.1.10:5432", 2, 7),
        tcp("red/db", "[::]:5440", 0, 3),
        serde_json::json!({"endpoint": "red/db", "protocol": "udp", "address": "0.0.0.0:53"}),
    ];
    let blue = tcp("blue/app", "172.23.99.10:80", 0, 1);
    let all = list(None, &[]);
    let expected: Vec<&Value> = [&blue].into_iter().chain(&red).collect();
    assert_eq!(all["listeners"], serde_json::json!(expected));
    assert_eq!(all["seen"], 4);
    assert_eq!(list(None, &["red/db"])["listeners"], serde_json::json!(red));
    assert_eq!(list(None, &["red/db2"])["seen"], 0);
    // The operator's death takes nothing of it away.
    scene.kill_operator();
    let again = || list(None, &["red/db"])["listeners"] == serde_json::json!(red);
    let limit = std::time::Duration::from_secs(10);
    assert!(scene.instance.until(limit, |_| again()));
    let [reds, blues] = ["red", "blue"].map(|tenant| scene.token(tenant));
    assert_eq!(list(Some(&reds), &[])["listeners"], serde_json::json!(red));
    assert_eq!(
        list(Some(&blues), &[])["listeners"],
        serde_json::json!([blue])
    );
    let said = scene.run(scene.of_tenant(&blues, &["circuits", "--listeners", "red/db"]));
    assert!(!said.ok(), "{said:?}");
    let said = scene.instance.say(&["circuits", "--listeners"]).unwrap();
    assert!(said.out.contains("[::]:5440"), "{said:?}");
    program.is_sent("TERM");
    let gone = |_: &e2e::Instance| list(None, &["red/db"])["seen"] == 0;
    assert!(scene.instance.until(limit, gone));
}
