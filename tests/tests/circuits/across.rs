//! Circuits between tenants: by what both agreed, decided by both, for as long as both want it.

use crate::scene::{Program, Scene, kill};
use e2e::Instance;
use serde_json::Value;
use std::time::Duration;

/// The same addresses on both sides. `db` offers a service by TCP, and what two prefixes route to
/// each other either may begin. `shown` has an interface as well.
pub const SPEC: &str = r#"version: 1
tenants:
  - name: red
    subnets:
      - {name: data, prefixes: [10.1.1.0/24, "fd00:1:1:1::/64"]}
      - {name: lan, prefixes: [10.3.1.0/24]}
    endpoints:
      - {name: db, subnet: data, addresses: [10.1.1.10, "fd00:1:1:1::10"], attach: circuits}
      - {name: backup, subnet: data, addresses: [10.1.1.11, "fd00:1:1:1::11"], attach: circuits}
      - {name: host, subnet: lan, addresses: [10.3.1.10], attach: circuits}
    offers:
      - {name: db, endpoint: db, protocol: tcp, ports: [5432-5440], to: [blue], pool: [10.1.250.0/28, "fd00:1:250::/64"]}
      - {name: lan, route: [10.3.1.0/24], users: [10.4.0.0/16], to: [blue], both: yes}
  - name: blue
    subnets:
      - {name: apps, prefixes: [10.1.1.0/24, "fd00:1:1:1::/64"]}
      - {name: lan, prefixes: [10.4.1.0/24]}
    endpoints:
      - {name: app, subnet: apps, addresses: [10.1.1.10, "fd00:1:1:1::10"], labels: {role: app}, attach: circuits}
      - {name: other, subnet: apps, addresses: [10.1.1.11, "fd00:1:1:1::11"], attach: circuits}
      - {name: host, subnet: lan, addresses: [10.4.1.10], attach: circuits}
    accepts:
      - {name: reds-db, from: red, service: db, as: [10.1.200.10, "fd00:1:200::10"], endpoints: {label: {role: app}}}
      - {name: reds-lan, from: red, service: lan, route: [10.3.0.0/16], users: [10.4.1.0/24], both: yes}
"#;
pub const DB: [&str; 2] = ["10.1.200.10", "fd00:1:200::10"];

pub fn scene(spec: &str) -> Scene {
    let scene = Scene::of_several(spec, &["red/db", "blue/app"]);
    assert!(scene.instance.ask(&["verify"]).is_ok());
    scene
}

/// The same tenants in one compartment: one operator has both sides.
fn of_one_zone() -> String {
    let placed = |name: &str| format!("  - name: {name}\n    placement: {{per: zone, zone: z}}\n");
    SPEC.replace("  - name: red\n", &placed("red"))
        .replace("  - name: blue\n", &placed("blue"))
}

pub fn without(begin: &str) -> String {
    let kept = SPEC.lines().filter(|l| !l.trim_start().starts_with(begin));
    kept.map(|line| format!("{line}\n")).collect()
}

pub fn circuits(scene: &Scene) -> Vec<Value> {
    let all = scene.instance.ask(&["circuits"]).unwrap();
    all["flows"].as_array().unwrap().clone()
}

pub fn text<'a>(row: &'a Value, name: &str) -> &'a str {
    row[name].as_str().unwrap_or_default()
}

/// Of blue's application the end of a stream that red's database sends, which goes on.
fn stream(scene: &Scene) -> [Program; 2] {
    let server = scene.start("red/db", "{peer} stream 5432", "serving");
    let follow = format!("{{peer}} follow {} 5432", DB[0]);
    [server, scene.start("blue/app", &follow, "100\n")]
}

#[test]
fn what_both_agreed_is_reached_as_by_packets_and_nothing_else() {
    for spec in [SPEC.to_owned(), of_one_zone()] {
        let scene = scene(&spec);
        let servers = [
            ("red/db", "{peer} serve 5432 22"),
            ("red/host", "{peer} serve 80"),
            ("blue/app", "{peer} serve 5432"),
            ("blue/host", "{peer} serve 80"),
        ];
        let servers = servers.map(|(at, line)| scene.start(at, line, "serving"));
        // Red sees its users come from its own pool.
        for (to, pool) in DB.iter().zip(["10.1.250.", "fd00:1:250:"]) {
            let said = scene.tries("blue/app", &format!("{to},5432"));
            assert!(said[0].starts_with(pool), "{said:?}");
        }
        // Its addresses are both tenants'; one is blue's own, the next nobody's.
        let all = scene.tries(
            "blue/app",
            "10.1.1.10,5432 10.1.200.10,22 10.1.200.10,5441 10.1.200.11,5432 10.1.250.1,5432",
        );
        let expected = [
            "10.1.1.10",
            "EACCES",
            "EACCES",
            "ENETUNREACH",
            "ENETUNREACH",
        ];
        assert_eq!(all, expected);
        // By nobody who is not let, and not back.
        assert_eq!(scene.tries("blue/other", "10.1.200.10,5432"), ["EACCES"]);
        let back = scene.tries("red/db", "10.1.250.1,5432 10.1.250.10,80");
        assert_eq!(back, ["EACCES", "EACCES"]);
        // A place where nobody listens.
        assert_eq!(
            scene.tries("blue/app", "10.1.200.10,5433"),
            ["ECONNREFUSED"]
        );
        // What is routed keeps its addresses, both ways, in its prefixes.
        assert_eq!(scene.tries("blue/host", "10.3.1.10,80"), ["10.4.1.10"]);
        assert_eq!(scene.tries("red/host", "10.4.1.10,80"), ["10.3.1.10"]);
        let all = scene.tries("blue/app", "10.3.1.10,80 10.3.1.11,80");
        assert_eq!(all, ["EACCES", "EACCES"]);
        assert_eq!(scene.tries("blue/host", "10.3.1.11,80"), ["EHOSTUNREACH"]);
        assert_eq!(scene.tries("red/db", "10.4.1.10,80"), ["EACCES"]);
        drop(servers);
        assert!(circuits(&scene).is_empty());
    }
}

#[test]
fn both_sides_see_a_circuit_and_either_cuts_it() {
    let scene = scene(SPEC);
    for at in 0..2 {
        let [server, mut follow] = stream(&scene);
        let all = circuits(&scene);
        let of = |name: &str| {
            let mut all = all.iter().filter(|row| text(row, "compartment") == name);
            let row = all.next().cloned().unwrap_or_default();
            assert_eq!(all.next(), None, "{name}");
            row
        };
        let [blue, red] = [of("blue"), of("red")];
        let beyond = "agreement red/db with blue";
        assert_eq!(
            (text(&blue, "from"), text(&blue, "to")),
            ("blue/app", beyond)
        );
        assert_eq!((text(&red, "from"), text(&red, "to")), (beyond, "red/db"));
        assert_eq!(text(&blue, "destination"), "10.1.200.10:5432");
        assert!(text(&red, "source").starts_with("10.1.250."), "{red}");
        assert_eq!(blue["rules"][0]["name"], "blue/reds-db", "{blue}");
        assert_eq!(blue["rules"][1]["kind"], "elsewhere", "{blue}");
        assert_eq!(red["rules"][1]["name"], "red/db", "{red}");
        for row in [&blue, &red] {
            assert_eq!(row["circuit"]["kind"], "kernel");
        }
        let id = text(&[blue, red][at]["circuit"], "id").to_owned();
        assert!(scene.instance.say(&["circuits", "cut", &id]).unwrap().ok());
        assert_eq!(
            follow.wait(Duration::from_secs(5)),
            Some(0),
            "{}",
            follow.err()
        );
        drop(server);
        let over = |_: &Instance| circuits(&scene).is_empty();
        let limit = Duration::from_secs(5);
        assert!(scene.instance.until(limit, over), "{:?}", circuits(&scene));
    }
}

#[test]
fn it_is_over_when_either_side_does_not_want_it_any_more() {
    let scene = scene(SPEC);
    let deny = |tenant: &str, rule: &str| {
        let of = format!("  - name: {tenant}\n");
        let rules = format!("{of}    policy: {{rules: [{{name: no, action: deny, {rule}}}]}}\n");
        SPEC.replace(&of, &rules)
    };
    for spec in [
        without("- {name: db, endpoint"),
        without("- {name: reds-db"),
        deny("red", "from: {agreement: db}"),
        deny("blue", "to: {agreement: reds-db}"),
        SPEC.replace("{label: {role: app}}", "{endpoint: other}"),
        SPEC.replace("5432-5440", "5433-5440"),
        SPEC.replace("10.1.250.0/28", "10.1.251.0/28"),
    ] {
        let [_server, mut follow] = stream(&scene);
        scene.apply(&spec);
        let ended = follow.wait(Duration::from_secs(3));
        assert_eq!(ended, Some(0), "it goes on: {spec}");
        scene.apply(SPEC);
        let again = || scene.tries("blue/app", "10.1.200.10,5433") == ["ECONNREFUSED"];
        assert!(scene.instance.until(Duration::from_secs(5), |_| again()));
    }
    // What concerns it not leaves it.
    let [_server, follow] = stream(&scene);
    scene.apply(&without("- {name: reds-lan"));
    let from = follow.out().len();
    let more = |_: &Instance| follow.out().len() > from + 50;
    assert!(scene.instance.until(Duration::from_secs(5), more));
}

/// Connects one after another as fast as it can, each answered with what it asked, until a file
/// is there, and fifty times at least; says how many.
const ASKS: &str = "
import os, socket, sys
n = lost = 0
while n <= 50 or not os.path.exists(sys.argv[1]):
    n += 1
    with socket.create_connection(('10.1.200.10', 5432), timeout=20) as c:
        try:
            c.sendall(b'%d' % n); c.shutdown(socket.SHUT_WR)
            got = c.recv(100)
        except ConnectionError: got = b''
        assert got in (b'', b'%d' % n), (n, got)
        lost += not got
print(n, lost)
";
pub const ANSWERS: &str = "
import socket
s = socket.create_server(('10.1.1.10', 5432)); print('serving', flush=True)
while True:
    c, _ = s.accept(); got = b''
    while more := c.recv(100): got += more
    c.sendall(got); c.close()
";

#[test]
fn operators_of_both_sides_die_and_no_connection_is_lost_but_those_in_their_hands() {
    for spec in [SPEC.to_owned(), of_one_zone()] {
        let scene = scene(&spec);
        scene.file("asks.py", ASKS);
        scene.file("answers.py", ANSWERS);
        let _server = scene.start("red/db", "exec python3 {f}/answers.py", "serving");
        let line = "exec python3 {f}/asks.py {f}/stop";
        let mut asks: Vec<Program> = (0..4)
            .map(|_| scene.spawn(scene.command("blue/app", line)))
            .collect();
        let mut killed = 0;
        for round in 0..8 {
            std::thread::sleep(Duration::from_millis(250));
            let all = scene.instance.children("bulkhead-operator");
            // Those that follow as well, now and then.
            for (at, pid) in all.iter().enumerate() {
                if at % 2 == round % 2 || round % 4 == 3 {
                    kill("KILL", &pid.to_string());
                    killed += 1;
                }
            }
        }
        assert!(killed >= 4, "{killed}");
        std::thread::sleep(Duration::from_millis(500));
        scene.file("stop", "");
        let mut lost = 0;
        for ask in &mut asks {
            let ended = ask.wait(Duration::from_secs(25));
            assert_eq!(ended, Some(0), "{}\n{}", ask.err(), scene.instance.log());
            let out = ask.out();
            let (count, of_it) = out.trim().split_once(' ').unwrap();
            let count: u32 = count.parse().unwrap();
            assert!(count > 50, "{count}");
            lost += of_it.parse::<u64>().unwrap();
        }
        // Between two system calls a connection is in no queue, and in no keeper's hands either.
        let taken = scene.taken_along();
        assert!(lost <= taken && taken <= 12, "{lost} lost, {taken} may be");
    }
}

/// What is metered on either side is carried by that side's meter, and counted to the byte.
#[test]
fn each_side_meters_its_own_end() {
    let of = |names: &[&str]| {
        let mut spec = SPEC.to_owned();
        for name in names {
            let line = SPEC.lines().find(|l| l.contains(name)).unwrap();
            let metered = line.replace("attach: circuits", "attach: {circuits: {metered: on}}");
            spec = spec.replace(line, &metered);
        }
        spec
    };
    const HOLDS: &str = "
import socket, sys
if sys.argv[1] == 'serve':
    s = socket.create_server(('10.1.1.10', 5432)); print('serving', flush=True)
    c, _ = s.accept(); n = 0
    while n < 1000000: n += len(c.recv(1 << 16))
    c.sendall(b'x' * 100); print('got', flush=True); c.recv(1)
else:
    c = socket.create_connection(('10.1.200.10', 5432)); c.sendall(bytes(1000000)); n = 0
    while n < 100: n += len(c.recv(100))
    print('held', flush=True); c.recv(1); print('end', flush=True)
";
    let (db, app) = ("name: db, subnet", "name: app, subnet");
    for (names, seen) in [
        (&[db][..], &["red"][..]),
        (&[app], &["blue"]),
        (&[db, app], &["red", "blue"]),
    ] {
        let scene = scene(&of(names));
        scene.file("holds.py", HOLDS);
        let _server = scene.start("red/db", "exec python3 {f}/holds.py serve", "serving");
        let client = scene.start("blue/app", "exec python3 {f}/holds.py ask", "held");
        let kinds = || -> Vec<(String, String, Value)> {
            let all = circuits(&scene).into_iter();
            let all = all.map(|row| {
                let kind = text(&row["circuit"], "kind").to_owned();
                (
                    text(&row, "compartment").to_owned(),
                    kind,
                    row["bytes"].clone(),
                )
            });
            all.collect()
        };
        let counted = |_: &Instance| {
            let bytes = serde_json::json!([1_000_000, 100]);
            let kinds = kinds();
            let counts = |of: &&str| {
                kinds.contains(&((*of).to_owned(), "metered".to_owned(), bytes.clone()))
            };
            seen.iter().all(counts)
        };
        let limit = Duration::from_secs(5);
        assert!(
            scene.instance.until(limit, counted),
            "{seen:?}: {:?}",
            kinds()
        );
        let others = kinds();
        let mut others = others.iter().filter(|it| !seen.contains(&it.0.as_str()));
        assert!(others.all(|it| it.1 == "kernel"), "{:?}", kinds());
        // Cut by the side that does not meter it, if one does not, both programs see the end.
        let all = circuits(&scene);
        let row = all
            .iter()
            .find(|row| !seen.contains(&text(row, "compartment")));
        let id = text(&row.unwrap_or(&all[0])["circuit"], "id").to_owned();
        assert!(scene.instance.say(&["circuits", "cut", &id]).unwrap().ok());
        client.until("end\n");
    }
}

/// No descriptor goes from one tenant to another.
#[test]
fn nobody_passes_a_descriptor_to_another_tenant() {
    const PASSES: &str = "
import errno, os, socket, sys
if sys.argv[1] == 'serve':
    s = socket.create_server(('10.1.1.10', 5432)); print('serving', flush=True)
    c, _ = s.accept()
else: c = socket.create_connection(('10.1.200.10', 5432))
try: socket.send_fds(c, [b'x'], [0]); print('passed', flush=True)
except OSError as error: print(errno.errorcode[error.errno], flush=True)
c.sendall(b'plain'); c.shutdown(socket.SHUT_WR); got = b''
while True:
    more, fds, *_ = socket.recv_fds(c, 100, 4); got += more
    assert not fds, 'a descriptor came'
    if not more: break
assert got == b'plain', got
print('done', flush=True)
";
    // Nor by a program of a third one, that is given an end of the circuit and has it take some.
    const THIRD: &str = "
import errno, socket, sys
u = socket.socket(socket.AF_UNIX)
if sys.argv[1] == 'takes':
    u.bind(sys.argv[2]); u.listen(); print('takes', flush=True)
    _, [end, *_], *_ = socket.recv_fds(u.accept()[0], 9, 1)
    try: socket.socket(fileno=end).setsockopt(socket.SOL_SOCKET, 83, 1); print('set', flush=True)
    except OSError as error: print(errno.errorcode[error.errno], flush=True)
else:
    c = socket.create_connection(('10.1.200.10', 5432)); u.connect(sys.argv[2]); socket.send_fds(u, [b'x'], [c.fileno()])
    u.recv(1)
";
    let scene = scene(SPEC);
    scene.file("passes.py", PASSES);
    scene.file("third.py", THIRD);
    let server = scene.start("red/db", "exec python3 {f}/passes.py serve", "serving");
    let said = scene.says("blue/app", "exec python3 {f}/passes.py ask");
    assert_eq!(said, "EPERM\ndone\n");
    server.until("EPERM\ndone\n");
    drop(server);
    let _server = scene.start("red/db", "exec python3 {f}/passes.py serve", "serving");
    let third = |what| format!("exec python3 {{f}}/third.py {what} {{f}}/third");
    let takes = scene.start("red/backup", &third("takes"), "takes");
    scene.says("blue/app", &third("gives"));
    takes.until("EPERM\n");
    assert_eq!(takes.out(), "takes\nEPERM\n");
}

/// Memory in common, between programs that can use it: where both tenants ask for it, of nobody who
/// is metered, and no longer than both do.
#[test]
fn programs_share_memory_where_both_tenants_ask() {
    let asked = |offer: &str, accept: &str, metered: &str| {
        let line = SPEC
            .lines()
            .find(|l| l.contains("name: db, subnet"))
            .unwrap();
        let db = line.replace(
            "attach: circuits",
            &format!("attach: {{circuits: {{{metered}}}}}"),
        );
        SPEC.replace(line, &db)
            .replace("to: [blue], pool: ", &format!("to: [blue], {offer}pool: "))
            .replace("service: db, ", &format!("service: db, {accept}"))
    };
    let yes = "rings: yes, ";
    let both = asked(yes, yes, "");
    let scene = scene(&both);
    let native = scene.file("native", "");
    std::fs::copy(e2e::program("bulkhead-native"), native).unwrap();
    let limit = Duration::from_secs(5);
    let by = |to: &str| {
        let line = format!("{{f}}/native ask {to}:5432 50");
        let said = scene.says("blue/app", &line);
        said.trim_start_matches("connected\n").trim().to_owned()
    };
    let _echo = scene.start("red/db", "exec {f}/native echo [::]:5432", "serving");
    for (offer, accept, metered, expected) in [
        (yes, yes, "", "ring"),
        (yes, "", "", "socket"),
        ("", yes, "", "socket"),
        (yes, yes, "metered: on", "socket"),
        (yes, yes, "", "ring"),
    ] {
        scene.apply(&asked(offer, accept, metered));
        for to in ["10.1.200.10", "[fd00:1:200::10]"] {
            let as_expected = |_: &Instance| by(to) == format!("50 by {expected}");
            assert!(
                scene.instance.until(limit, as_expected),
                "{offer} {accept} {metered} {to}"
            );
        }
    }
    let status = scene.instance.say(&["status"]).unwrap();
    let told = "agreement red/db with blue: programs of both may share memory";
    assert!(status.out.contains(told), "{status:?}");
    // Both sides are told beforehand, and see it; it lives through the death of their operators.
    let mut held = scene.start(
        "blue/app",
        "exec {f}/native hold 10.1.200.10:5432",
        "held by ring\n",
    );
    let kinds = || -> Vec<String> {
        let all = circuits(&scene);
        let kind = |row: &Value| text(&row["circuit"], "kind").to_owned();
        all.iter().map(kind).collect()
    };
    assert!(
        scene.instance.until(limit, |_| kinds() == ["ring", "ring"]),
        "{:?}",
        kinds()
    );
    for pid in scene.instance.children("bulkhead-operator") {
        kill("KILL", &pid.to_string());
    }
    assert!(
        scene.instance.until(limit, |_| kinds() == ["ring", "ring"]),
        "{:?}",
        kinds()
    );
    assert!(
        scene
            .instance
            .until(limit, |_| by("10.1.200.10") == "50 by ring")
    );
    // Who takes it back has it end.
    scene.apply(&asked(yes, "", ""));
    assert_eq!(held.wait(limit), Some(0), "{}", held.err());
    assert!(
        scene
            .instance
            .until(limit, |_| by("10.1.200.10") == "50 by socket")
    );
}

/// Whose address and port another has here already is seen by another port.
#[test]
fn two_users_of_one_address_are_told_apart() {
    const ANSWERS: &str = "
import socket
s = socket.create_server(('10.1.1.10', 5432)); print('serving', flush=True); all = []
while True:
    c, who = s.accept(); all.append(c); c.sendall(b'%s %d\\n' % (who[0].encode(), who[1]))
";
    const ASKS: &str = "
import socket
s = socket.socket(); s.bind(('', 40000)); s.connect(('10.1.200.10', 5432))
print(s.recv(100).decode(), flush=True); s.recv(1)
";
    let spec = SPEC
        .replace("pool: [10.1.250.0/28", "pool: [10.1.250.1/32")
        .replace(", endpoints: {label: {role: app}}", "");
    let scene = scene(&spec);
    scene.file("answers.py", ANSWERS);
    scene.file("asks.py", ASKS);
    let _server = scene.start("red/db", "exec python3 {f}/answers.py", "serving");
    let seen = ["blue/app", "blue/other"].map(|who| {
        let asks = scene.start(who, "exec python3 {f}/asks.py", "\n");
        (asks.out().trim().to_owned(), asks)
    });
    assert_eq!(seen[0].0, "10.1.250.1 40000");
    assert!(
        seen[1].0.starts_with("10.1.250.1 ") && seen[0].0 != seen[1].0,
        "{}",
        seen[1].0
    );
}

/// What has come and is in no program yet is cut as what is.
#[test]
fn what_nobody_has_accepted_yet_is_cut_too() {
    const LATE: &str = "
import os, socket, sys, time
s = socket.create_server(('10.1.1.10', 5432)); s.settimeout(1); print('serving', flush=True)
while not os.path.exists(sys.argv[1]): time.sleep(0.05)
try: c, _ = s.accept(); print('came', c.recv(10), flush=True)
except TimeoutError: print('nobody', flush=True)
";
    const HOLDS: &str = "
import socket
c = socket.create_connection(('10.1.200.10', 5432)); print('held', flush=True)
c.settimeout(None); print('end', c.recv(10), flush=True)
";
    let denied = SPEC.replace(
        "  - name: red\n",
        "  - name: red\n    policy: {rules: [{name: no, action: deny, from: {agreement: db}}]}\n",
    );
    for cut in [true, false] {
        let scene = scene(SPEC);
        scene.file("late.py", LATE);
        scene.file("holds.py", HOLDS);
        let late = scene.start("red/db", "exec python3 {f}/late.py {f}/go", "serving");
        let holds = scene.start("blue/app", "exec python3 {f}/holds.py", "held");
        let row = |of: &str| {
            let mut all = circuits(&scene).into_iter();
            all.rfind(|row| text(row, "compartment") == of)
        };
        assert!(
            scene
                .instance
                .until(Duration::from_secs(5), |_| row("red").is_some())
        );
        match cut {
            true => {
                let id = text(&row("red").unwrap()["circuit"], "id").to_owned();
                assert!(scene.instance.say(&["circuits", "cut", &id]).unwrap().ok());
            }
            false => scene.apply(&denied),
        }
        holds.until("end b''\n");
        scene.file("go", "");
        late.until("nobody");
    }
}

/// Each side's meter carries its own end: of who began it, and of who took it in.
#[test]
fn what_a_meter_carries_across_ends_with_the_agreement_though_its_program_has_closed_it() {
    let attached = "attach: circuits";
    for metered in ["app", "db"] {
        let slow = |line: &str| match line.contains(&format!("name: {metered}, subnet")) {
            true => line.replace(attached, "rate: 1Mbit, attach: circuits"),
            false => line.to_owned(),
        };
        let spec: Vec<String> = SPEC.lines().map(slow).collect();
        let spec = spec.join("\n") + "\n";
        let scene = scene(&spec);
        scene.file("left.py", crate::metered::LEFT);
        let says = |at: &str, words: &str, until: &str| {
            scene.start(at, &format!("exec python3 {{f}}/left.py {words}"), until)
        };
        let to = format!("{} 5432", DB[0]);
        // Who has closed, and who is there still.
        let (left, stays) = match metered {
            "app" => {
                let sink = says("red/db", "sink 5432", "serving");
                (says("blue/app", &format!("leaves {to}"), "\n"), sink)
            }
            _ => {
                let gives = says("red/db", "gives 5432", "serving");
                (gives, says("blue/app", &format!("takes {to}"), "\n"))
            }
        };
        let last_of = crate::metered::last_of;
        let has_sent = |_: &Instance| last_of(&left) > 0;
        assert!(scene.instance.until(Duration::from_secs(10), has_sent));
        let sent = last_of(&left);
        assert!(sent > 500_000, "{sent}");
        let came = || last_of(&stays);
        let before = came();
        let goes_on = |_: &Instance| came() > before;
        assert!(scene.instance.until(Duration::from_secs(5), goes_on));
        let is_metered = |it: &Value| it["circuit"]["kind"] == "metered";
        let listed = circuits(&scene);
        assert!(listed.iter().any(is_metered), "{metered}: {listed:?}");
        scene.apply(&spec.replace("      - {name: reds-db,", "      # - {name: reds-db,"));
        assert_eq!(circuits(&scene), Vec::<Value>::new(), "{metered}");
        let is_still = |_: &Instance| {
            let then = came();
            std::thread::sleep(Duration::from_millis(700));
            came() == then
        };
        let is_still = scene.instance.until(Duration::from_secs(10), is_still);
        assert!(is_still, "{metered}: it goes on");
        // Nor was that for want of more.
        let then = came();
        assert!(then < sent, "{metered}: {then} of {sent}");
    }
}

/// What both programs have closed nobody ends: it is no news.
#[test]
fn what_was_closed_before_an_agreement_changes_is_not_counted_as_cut() {
    let scene = scene(SPEC);
    let _server = scene.start("red/db", "{peer} serve 5432", "serving");
    let targets = format!("{},5432 ", DB[0]).repeat(20);
    assert_eq!(scene.tries("blue/app", &targets).len(), 20);
    scene.apply(&SPEC.replace("pool: [10.1.250.0/28,", "pool: [10.1.251.0/28,"));
    let status = scene.instance.ask(&["status"]).unwrap();
    for compartment in status["compartments"].as_array().unwrap() {
        assert_eq!(compartment["operator"]["cut"], 0, "{compartment}");
    }
}

/// Many of them, of both sides, when the agreement goes: none is cut, or looked for, or there when it comes back.
#[test]
fn what_was_closed_before_an_agreement_goes_is_forgotten() {
    const CLOSES: &str = "
import socket
for _ in range(600):
    s = socket.create_connection(('10.1.200.10', 5432)); s.recv(100); s.close()
";
    const ACCEPTS: &str = "
import socket
s = socket.create_server(('10.1.1.10', 5432), backlog=64); print('serving', flush=True)
while True: s.accept()[0].close()
";
    let scene = scene(SPEC);
    scene.file("closes.py", CLOSES);
    scene.file("accepts.py", ACCEPTS);
    let _server = scene.start("red/db", "exec python3 {f}/accepts.py", "serving");
    scene.says("blue/app", "exec python3 {f}/closes.py");
    scene.apply(&without("- {name: reds-db"));
    // Searches that are for nothing are over by then.
    std::thread::sleep(Duration::from_secs(3));
    let status = scene.instance.ask(&["status"]).unwrap();
    for compartment in status["compartments"].as_array().unwrap() {
        let operator = &compartment["operator"];
        let said = ["cut", "unfound"].map(|it| operator[it].as_u64());
        assert_eq!(said, [Some(0); 2], "{compartment}");
    }
    scene.apply(SPEC);
    assert_eq!(circuits(&scene), [Value::Null; 0]);
}

/// The other tenant's sockets, however many, make it no longer than it takes to ask: `bind` waits for that.
#[test]
fn a_server_starts_again_though_another_tenants_connections_to_it_were_many() {
    const CLOSES: &str = "
import resource, socket, time
resource.setrlimit(resource.RLIMIT_NOFILE, (9000, 9000))
idle = [socket.socket() for _ in range(4000)]
for _ in range(600):
    s = socket.create_connection(('10.1.200.10', 5432)); s.recv(100); s.close()
print('closed', flush=True); time.sleep(60)
";
    // A second time at once, and not by SO_REUSEADDR.
    const SERVES: &str = "
import socket
for many in (600, 0):
    s = socket.socket(); s.bind(('10.1.1.10', 5432)); s.listen(64); print('serving', many, flush=True)
    for _ in range(many): s.accept()[0].close()
    s.close()
";
    let many = "attach: {circuits: {sockets: 6000}}";
    let scene = scene(&SPEC.replace("attach: circuits", many));
    scene.file("closes.py", CLOSES);
    scene.file("serves.py", SERVES);
    let server = scene.start("red/db", "exec python3 {f}/serves.py", "serving 600");
    let _client = scene.start("blue/app", "exec python3 {f}/closes.py", "closed");
    server.until("serving 0");
}
