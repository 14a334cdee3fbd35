//! Who may connect to whom.

use crate::scene::{GUARDED, OPEN, Scene};

fn guarded() -> String {
    format!("{OPEN}{GUARDED}")
}

const WEB: &str = "10.1.1.10,80 fd00:1::10,80 10.1.1.10,81 fd00:1::10,81 10.1.1.10,82";

#[test]
fn what_no_rule_allows_is_refused_and_the_rest_connects() {
    let scene = Scene::of(&guarded());
    let _web = scene.start("web", "{peer} serve 80 81", "serving");
    let _app = scene.start("app", "{peer} serve 80", "serving");
    // Nobody is told whether somebody listens where they may not go (port 82: nobody).
    assert_eq!(
        scene.tries("app", WEB),
        ["10.1.1.11", "fd00:1::11", "EACCES", "EACCES", "EACCES"]
    );
    assert_eq!(scene.tries("few", WEB), ["EACCES"; 5]);
    assert_eq!(
        scene.tries("web", "10.1.1.11,80 fd00:1::11,80 10.1.1.12,80"),
        ["EACCES"; 3]
    );
    // Nobody is there, and no way.
    let nowhere = scene.tries("app", "10.1.1.77,80 fd00:1::77,80 192.0.2.1,80");
    assert_eq!(nowhere, ["EHOSTUNREACH", "EHOSTUNREACH", "ENETUNREACH"]);
    // Programs of other users are under the same rules.
    let said = scene.sh_as("app", "nobody", "{peer} try 10.1.1.10,80 10.1.1.10,81");
    assert_eq!(said.out, "10.1.1.11\nEACCES\n", "{said:?}");
}

#[test]
fn a_closed_port_that_is_allowed_is_refused_as_by_a_host() {
    let scene = Scene::of(OPEN);
    assert_eq!(
        scene.tries("app", "10.1.1.10,80 fd00:1::10,80"),
        ["ECONNREFUSED"; 2]
    );
    let web = scene.start("web", "{peer} serve 80", "serving");
    assert_eq!(scene.tries("app", "10.1.1.10,80"), ["10.1.1.11"]);
    // Its port is closed with its program.
    drop(web);
    assert_eq!(scene.tries("app", "10.1.1.10,80"), ["ECONNREFUSED"]);
}

#[test]
fn a_rule_that_is_removed_allows_nothing_from_then_on() {
    let scene = Scene::of(&guarded());
    let _web = scene.start("web", "{peer} serve 80", "serving");
    let denied = guarded().replace("ports: [80]", "ports: [99]");
    // At once: what `apply` has returned for holds.
    for round in 0..5 {
        assert_eq!(scene.tries("app", "10.1.1.10,80"), ["10.1.1.11"], "{round}");
        scene.apply(&denied);
        assert_eq!(scene.tries("app", "10.1.1.10,80"), ["EACCES"], "{round}");
        scene.apply(&guarded());
    }
    // For a program that has run all the time too.
    let line = "python3 -uc '
import socket, time
while True:
    s = socket.socket()
    try: s.connect((\"10.1.1.10\", 80)); print(\"in\", end=\" \")
    except OSError as e: print(e.errno, end=\" \")
    s.close(); time.sleep(0.01)
'";
    let asks = scene.start("app", line, "in");
    scene.apply(&denied);
    asks.until(" 13 13 13");
    let after = asks.out();
    let (_, after) = after.split_once("13").unwrap();
    assert!(!after.contains("in"), "{after}");
}

#[test]
fn loopback_is_the_endpoints_own() {
    let scene = Scene::of(&guarded());
    let web = scene.start("web", "{peer} serve 80", "serving");
    let app = scene.start("app", "{peer} serve 80", "serving");
    let own = "127.0.0.1,80 127.1.2.3,80 ::1,80";
    for at in ["web", "app"] {
        // No rule allows it; none is needed.
        assert_eq!(
            scene.tries(at, own),
            ["127.0.0.1", "127.0.0.1", "::1"],
            "{at}"
        );
    }
    assert_eq!(scene.tries("few", own), ["ECONNREFUSED"; 3]);
    // Its own addresses are, as well.
    assert_eq!(
        scene.tries("app", "10.1.1.11,80 fd00:1::11,80"),
        ["10.1.1.11", "fd00:1::11"]
    );
    for (server, count) in [(web, 3), (app, 5)] {
        let heard = server.out();
        assert_eq!(heard.lines().count(), 1 + count, "{heard}");
    }
}

#[test]
fn a_circuit_ends_with_the_address_that_it_was_by() {
    let scene = Scene::of(OPEN);
    let _web = scene.start("web", "{peer} stream 80", "serving");
    let mut follow = scene.start("app", "{peer} follow 10.1.1.10 80", "200\n");
    let mut other = scene.start("app", "{peer} follow fd00:1::10 80", "200\n");
    // Of who has begun it, whose side alone is looked at when rules change.
    scene.apply(&OPEN.replace("10.1.1.11", "10.1.1.15"));
    let limit = std::time::Duration::from_secs(10);
    assert!(follow.wait(limit).is_some(), "it goes on");
    // The endpoint's other address is still its own.
    assert_eq!(other.wait(std::time::Duration::from_millis(300)), None);
}

/// As on Linux: a server that is bound to an address waits for it to come back.
#[test]
fn who_listens_at_an_address_that_goes_is_reached_once_it_is_back() {
    const SERVER: &str = "
import socket, threading
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(('10.1.1.10', 53))
s = socket.socket(); s.bind(('10.1.1.10', 80)); s.listen()
def udp():
    while True: u.sendto(*u.recvfrom(100))
threading.Thread(target=udp).start()
print('listens', flush=True)
while True:
    c, _ = s.accept()
    with c: c.sendall(c.recv(100))
";
    const ASKS: &str = "
import socket
def asks(kind, port):
    try:
        s = socket.socket(socket.AF_INET, kind); s.settimeout(2); s.connect(('10.1.1.10', port)); s.sendall(b'word')
        return s.recv(100).decode()
    except OSError as error: return type(error).__name__
print(asks(socket.SOCK_STREAM, 80), asks(socket.SOCK_DGRAM, 53))
";
    let scene = Scene::of(OPEN);
    scene.file("server.py", SERVER);
    scene.file("asks.py", ASKS);
    let server = scene.start("web", "exec python3 {f}/server.py", "listens");
    let asks = |at: &str| scene.says(at, "python3 {f}/asks.py");
    assert_eq!(asks("app"), "word word\n", "{}", server.err());
    // Who has it meanwhile listens at nothing.
    let moved = OPEN.replace("10.1.1.10", "10.1.1.99");
    scene.apply(&moved.replace("10.1.1.11", "10.1.1.10"));
    let refused = "ConnectionRefusedError ConnectionRefusedError\n";
    assert_eq!(asks("few"), refused);
    scene.apply(OPEN);
    assert_eq!(asks("app"), "word word\n", "{}", server.err());
    scene.kill_operator();
    assert_eq!(asks("app"), "word word\n", "{}", server.err());
}

/// `late` listens at port 80 and accepts when the file NAME is there, prints what came, and ends; `early` connects, sends
/// a word and then, for as long as it can, another.
const WAITING: &str = r#"
import os, socket, sys, time
if sys.argv[1] == 'late':
    s = socket.socket(); s.bind(('0.0.0.0', 80)); s.listen(8); print('listens', flush=True)
    while not os.path.exists(sys.argv[2]): time.sleep(0.02)
    c, _ = s.accept(); came = b''
    try:
        while data := c.recv(1000): came += data
    except OSError: pass
    print(len(came), came[:5], flush=True)
else:
    c = socket.create_connection(('10.1.1.10', 80)); c.sendall(b'early'); print('sent', flush=True)
    sent = 5
    try:
        while True: sent += c.send(b'.'); time.sleep(0.01)
    except OSError: print('over', sent, flush=True)
"#;

/// Nobody says to who connects that nobody has accepted yet: it is ended where it waits.
#[test]
fn who_waits_to_be_accepted_when_its_rule_goes_says_nothing_more() {
    for app in ["attach: circuits", "attach: { circuits: { metered: on } }"] {
        let plain = "\"fd00:1::11\"], attach: circuits }";
        let open = OPEN.replace(plain, &format!("\"fd00:1::11\"], {app} }}"));
        let scene = Scene::of(&format!("{open}{GUARDED}"));
        scene.file("waiting.py", WAITING);
        let web = scene.start("web", "exec python3 {f}/waiting.py late {f}/go", "listens");
        let app = scene.start("app", "exec python3 {f}/waiting.py early", "sent");
        scene.apply(&format!("{open}{}", GUARDED.replace("[80]", "[81]")));
        app.until("over");
        scene.file("go", "");
        let over = app.out();
        let sent: usize = over.split("over ").nth(1).unwrap().trim().parse().unwrap();
        web.until("b'early'");
        let came = web.out();
        let came: usize = came.split_whitespace().nth(1).unwrap().parse().unwrap();
        assert!((5..=sent).contains(&came), "{came} of {sent}");
    }
}

/// By default nothing; both rules log.
const LOGGED: &str = r"    policy:
      default: {inside: deny}
      rules:
        - {name: app-to-web, action: allow, from: {endpoint: app}, to: {endpoint: web}, protocol: tcp, ports: [80], log: yes}
        - {name: no-ssh, action: deny, to: {endpoint: web}, protocol: tcp, ports: [22], log: yes}
";

#[test]
fn what_rules_decide_of_circuits_is_counted_logged_and_said() {
    let scene = Scene::of(&format!("{OPEN}{LOGGED}"));
    let ask = |words: &[&str]| scene.instance.ask(words).unwrap();
    // Of a rule, or of what all that none decides is: connections, denied.
    let counts = |name: &str| {
        let rules = ask(&["rules", "red"]);
        let all = rules["rules"].as_array().unwrap().clone();
        let is = |it: &&serde_json::Value| it["rule"]["name"] == name;
        let of = all.iter().find(is).unwrap_or_else(|| panic!("{rules}"));
        ["connections", "denied"].map(|word| of[word].as_u64().unwrap())
    };
    let why = |at: &str| scene.instance.say(&["why", at]).unwrap().out;
    let fine = why("red/few");
    assert!(fine.contains("nothing is wrong with red/few"), "{fine}");
    let _web = scene.start("web", "{peer} serve 80", "serving");
    assert_eq!(
        scene.tries("app", "10.1.1.10,80 fd00:1::10,80"),
        ["10.1.1.11", "fd00:1::11"]
    );
    assert_eq!(
        scene.tries("few", "10.1.1.10,22 10.1.1.10,22 10.1.1.10,80"),
        ["EACCES"; 3]
    );
    assert_eq!(scene.tries("few", "10.1.1.77,80"), ["EHOSTUNREACH"]);
    assert_eq!(counts("red/app-to-web"), [2, 0]);
    assert_eq!(counts("red/no-ssh"), [0, 2]);
    let said = why("red/few");
    for words in [
        "red/few's programs were refused 3 calls by egress-rule",
        "rule red/no-ssh (",
        "refused 1 call by no-neighbour",
        "refused a connection to 10.1.1.10, port 22",
    ] {
        assert!(said.contains(words), "no {words:?}: {said}");
    }
    let status = ask(&["status"]);
    let endpoint = |name: &str| {
        let tenants = status["tenants"].as_array().unwrap();
        let mut all = tenants
            .iter()
            .flat_map(|it| it["endpoints"].as_array().unwrap());
        all.find(|it| it["name"] == name).unwrap().clone()
    };
    let drops = endpoint("few")["counters"]["drops"].to_string();
    assert!(drops.contains("egress-rule"), "{drops}");
    assert!(
        !endpoint("app")["counters"]["drops"]
            .to_string()
            .contains("rule")
    );
    // Who logs has it among the events.
    let events = scene.spawn(scene.instance.command(&["events", "--last", "100"]));
    events.until("rule red/no-ssh (");
    events.until("rule red/app-to-web (");
    assert!(events.out().contains("red/few: "), "{}", events.out());
    // It is not the operator's alone to remember.
    scene.kill_operator();
    assert_eq!(scene.tries("app", "10.1.1.10,80"), ["10.1.1.11"]);
    assert_eq!(scene.tries("few", "10.1.1.10,22"), ["EACCES"]);
    assert_eq!(
        (counts("red/app-to-web"), counts("red/no-ssh")),
        ([3, 0], [0, 3])
    );
    assert!(why("red/few").contains("refused 4 calls by egress-rule"));
}
