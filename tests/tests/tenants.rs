//! Tenants that manage themselves with tokens: on real processes, as a user without
//! rights, each sees and changes what is its own.

use e2e::talk::{Hosts, Talk, last_heard, monotonic_ns};
use e2e::{Ended, Instance, Said, program};
use serde_json::Value;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const HOST: &str = "version: 1
tenants:
  - {name: {ns}-r, self-managed: {endpoints: 4}}
  - {name: {ns}-b, self-managed: {endpoints: 4}}
";
const RED: &str = r#"version: 1
tenants:
  - name: {ns}-r
    subnets: [{name: crimsonlan, prefixes: [10.77.88.0/24]}]
    endpoints:
      - {name: crimsondb, subnet: crimsonlan, addresses: [10.77.88.10]}
      - {name: crimsonother, subnet: crimsonlan, addresses: [10.77.88.11]}
    policy: {rules: [{name: crimsonrule, action: allow, from: {agreement: db}, to: {endpoint: crimsondb}, protocol: tcp, ports: [5432], log: on}]}
    offers: [{name: db, endpoint: crimsondb, protocol: tcp, ports: [5432], to: ["{ns}-b"], pool: [10.77.99.0/28]}]
"#;
const BLUE: &str = r#"version: 1
tenants:
  - name: {ns}-b
    subnets: [{name: apps, prefixes: [10.1.1.0/24]}]
    endpoints:
      - {name: app1, subnet: apps, addresses: [10.1.1.10]}
      - {name: app2, subnet: apps, addresses: [10.1.1.11]}
    accepts: [{name: lent, from: "{ns}-r", service: db, as: [10.1.200.10]}]
"#;
/// What blue may never be told: names and addresses that are found nowhere else.
const SECRETS: [&str; 3] = ["crimson", "10.77.", "secret.yaml"];
/// A user that is nobody here.
const STRANGER: u32 = 4242;

struct Tenants {
    instance: Instance,
    hosts: Hosts,
    talk: Talk,
    bulkhead: PathBuf,
}

impl Tenants {
    fn start() -> Tenants {
        let hosts = Hosts::of(HOST);
        let instance = Instance::start().unwrap();
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(instance.folder(), mode).unwrap();
        let bulkhead = instance.folder().join("bulkhead");
        std::fs::copy(program("bulkhead"), &bulkhead).unwrap();
        let talk = Talk::new(instance.folder());
        let tenants = Tenants {
            instance,
            hosts,
            talk,
            bulkhead,
        };
        tenants.instance.apply(&tenants.hosts.spec).unwrap();
        tenants
    }

    fn name(&self, tenant: &str) -> String {
        self.hosts.other(&format!("{{ns}}-{tenant}"))
    }

    /// A token in a file, and its id.
    fn token(&self, tenant: &str, more: &[&str]) -> (PathBuf, String) {
        let name = self.name(tenant);
        let words = [&["token", "create", &name], more].concat();
        let made = self.instance.ask(&words).unwrap();
        let id = made["token"]["id"].as_str().unwrap().to_owned();
        let file = self.instance.folder().join(&id);
        std::fs::write(&file, made["text"].as_str().unwrap()).unwrap();
        (file, id)
    }

    /// As a user without rights, with a token.
    fn say(&self, token: &Path, words: &[&str]) -> Said {
        let mut command = Command::new(&self.bulkhead);
        command
            .uid(STRANGER)
            .gid(STRANGER)
            .current_dir("/")
            .arg("--socket")
            .arg(self.instance.run_dir().join("api.sock"))
            .arg("--token-file")
            .arg(token)
            .args(words);
        Said::of(&mut command).unwrap()
    }

    fn good(&self, token: &Path, words: &[&str]) -> Value {
        let said = self.say(token, &[&["--json"], words].concat());
        assert!(said.ok(), "{words:?}: {said:?}");
        serde_json::from_str(&said.out).unwrap()
    }

    fn apply(&self, token: &Path, document: &str) -> Said {
        let file = self.instance.folder().join("own.yaml");
        std::fs::write(&file, self.hosts.other(document)).unwrap();
        self.say(token, &["apply", &file.display().to_string()])
    }

    fn serve(&self) -> (Ended, PathBuf) {
        self.talk
            .start(&self.hosts.at("r-crimsondb"), "serve tcp=5432 tcp=22")
    }

    fn asks(&self) -> bool {
        let at = self.hosts.at("b-app1");
        self.talk.ask(&at, "tcp 10.1.200.10 5432").is_some()
    }

    fn comes_to_ask(&self) -> bool {
        self.instance.until(Duration::from_secs(5), |_| self.asks())
    }

    /// All of an answer over the socket, or of one without an end what comes until it is silent, in
    /// five seconds at most; as the stranger would get it: who has a token has no other rights.
    fn http(&self, token: &str, method: &str, path: &str, body: &str) -> String {
        let mut stream = UnixStream::connect(self.instance.run_dir().join("api.sock")).unwrap();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
        );
        // What is too long is answered before all of it is read.
        let _ = stream.write_all(request.as_bytes());
        stream
            .set_read_timeout(Some(Duration::from_millis(300)))
            .unwrap();
        let (mut said, mut some) = (Vec::new(), [0; 65_536]);
        let begun = Instant::now();
        let (mut is_endless, mut most) = (false, Duration::from_secs(20));
        while begun.elapsed() < most {
            match stream.read(&mut some) {
                Ok(0) => break,
                Ok(more) => said.extend_from_slice(&some[..more]),
                // What has an end comes later on a machine that stands still.
                Err(error) if error.kind() == ErrorKind::WouldBlock && !is_endless => {}
                Err(_) => break,
            }
            let text = String::from_utf8_lossy(&said);
            let head = text.split("\r\n\r\n").next().unwrap_or_default();
            if head.contains("transfer-encoding: chunked") {
                (is_endless, most) = (true, Duration::from_secs(5));
            }
        }
        String::from_utf8_lossy(&said).into_owned()
    }
}

#[test]
fn tenants_share_a_service_and_either_ends_it_by_its_own_token() {
    let tenants = Tenants::start();
    let (red, _) = tenants.token("r", &["--name", "red's ci"]);
    let (blue, _) = tenants.token("b", &[]);
    for (token, document) in [(&blue, BLUE), (&red, RED)] {
        let said = tenants.apply(token, document);
        assert!(said.ok(), "{said:?}");
    }
    let _served = tenants.serve();
    assert!(tenants.comes_to_ask());
    for (token, tenant, what) in [(&red, "r", "db"), (&blue, "b", "lent")] {
        let stream = tenants
            .talk
            .start(&tenants.hosts.at("b-app1"), "stream 10.1.200.10 5432");
        let fresh =
            |_: &Instance| monotonic_ns().saturating_sub(last_heard(&stream.1)) < 50_000_000;
        assert!(tenants.instance.until(Duration::from_secs(5), fresh));
        let what = format!("{}/{what}", tenants.name(tenant));
        // Not by the other's.
        let other = if tenant == "r" { &blue } else { &red };
        assert_eq!(tenants.say(other, &["revoke", &what]).code, 1);
        let begun = monotonic_ns();
        let said = tenants.say(token, &["revoke", &what]);
        let done = monotonic_ns();
        assert!(said.ok(), "{said:?}");
        std::thread::sleep(Duration::from_millis(500));
        let last = last_heard(&stream.1);
        let after = last.saturating_sub(done) / 1_000_000;
        println!(
            "{what}: the last byte {} ms after the revocation began, {after} after it returned",
            last.saturating_sub(begun) / 1_000_000
        );
        assert!(after <= 400, "{after} ms");
        // Neither the provider's spec nor the other's document brings it back.
        tenants.instance.apply(&tenants.hosts.spec).unwrap();
        let again = if tenant == "r" { BLUE } else { RED };
        assert!(tenants.apply(other, again).ok());
        assert!(!tenants.asks());
        assert!(tenants.say(token, &["revoke", "--undo", &what]).ok());
        assert!(tenants.comes_to_ask());
    }
    assert!(tenants.instance.ask(&["verify"]).is_ok());
}

#[test]
fn a_tenant_is_told_nothing_of_another_by_any_route() {
    let tenants = Tenants::start();
    let (red, _) = tenants.token("r", &[]);
    let (blue, _) = tenants.token("b", &[]);
    let secret = tenants.instance.folder().join("secret.yaml");
    std::fs::write(&secret, &tenants.hosts.spec).unwrap();
    assert!(tenants.apply(&red, RED).ok() && tenants.apply(&blue, BLUE).ok());
    let _served = tenants.serve();
    assert!(tenants.comes_to_ask());
    let _ = tenants
        .instance
        .ask(&["apply", &secret.display().to_string()]);
    // The switches of both are killed: that is told to each of its own.
    let (red_name, blue_name) = (tenants.name("r"), tenants.name("b"));
    for name in [&red_name, &blue_name] {
        let pid = tenants.instance.pid(name).unwrap().to_string();
        Command::new("kill").args(["-KILL", &pid]).status().unwrap();
    }
    assert!(tenants.comes_to_ask());
    let token = std::fs::read_to_string(&blue).unwrap();
    let description = tenants.http(&token, "GET", "/openapi.json", "");
    let json = description.split_once("\r\n\r\n").unwrap().1;
    let from = json.find('{').unwrap();
    let description: Value = serde_json::Deserializer::from_str(&json[from..])
        .into_iter()
        .next()
        .unwrap()
        .unwrap();
    let mut asked = 0;
    for (path, methods) in description["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            for (tenant, endpoint) in [(&red_name, "crimsondb"), (&blue_name, "app1")] {
                let both = format!("{tenant}/{endpoint}");
                let path = path
                    .replace("{tenant}", tenant)
                    .replace("{endpoint}", endpoint)
                    .replace("{name}", endpoint)
                    .replace("{compartment}", tenant)
                    .replace("{id}", "0");
                for query in [
                    "?last=4096&most=1000".to_owned(),
                    format!("?tenant={tenant}&endpoint={both}&from={both}&to={both}"),
                    format!("?endpoint={tenant}&from={blue_name}/app1&to={both}&last=9"),
                    format!("?from={blue_name}/app1&to=10.1.200.10&protocol=tcp&port=5432"),
                ] {
                    let path = format!("{path}{query}");
                    let body = if method == "post" { RED } else { "" };
                    let said = tenants.http(&token, &method.to_uppercase(), &path, body);
                    assert!(said.starts_with("HTTP/1.1 "), "{path}: {said}");
                    asked += 1;
                    // A refusal may name what it was asked about.
                    let refused = said.starts_with("HTTP/1.1 4");
                    for secret in SECRETS {
                        let back = refused && (path.contains(secret) || body.contains(secret));
                        assert!(
                            back || !said.contains(secret),
                            "{method} {path}: {secret}: {said}"
                        );
                    }
                }
            }
        }
    }
    assert!(asked > 150, "{asked}");
    // Its own is there: it was not the silence of a dead one.
    let status = tenants.good(&blue, &["status"]);
    assert_eq!(status["tenants"][0]["endpoints"][0]["name"], "app1");
    let flows = tenants.good(&blue, &["flows"]);
    assert!(flows["flows"].is_array());
    for refused in [&["down"][..], &["dump"], &["verify"], &["audit", "--check"]] {
        assert_eq!(tenants.say(&blue, refused).code, 4, "{refused:?}");
    }
}

#[test]
fn a_tenant_traces_from_its_own_and_beyond_is_told_only_whether_it_came_out() {
    let tenants = Tenants::start();
    let (red, _) = tenants.token("r", &[]);
    let (blue, _) = tenants.token("b", &[]);
    let (look, _) = tenants.token("b", &["--read-only"]);
    assert!(tenants.apply(&red, RED).ok() && tenants.apply(&blue, BLUE).ok());
    let _served = tenants.serve();
    assert!(tenants.comes_to_ask());
    let [red_name, blue_name] = ["r", "b"].map(|tenant| tenants.name(tenant));
    let [app1, app2, lent] = ["app1", "app2", "lent"].map(|name| format!("{blue_name}/{name}"));
    let db = format!("{red_name}/crimsondb");
    let trace = |token, words: &[&str]| {
        let said = tenants.say(token, &[&["--json", "trace"], words].concat());
        let told: Value = serde_json::from_str(&said.out).unwrap_or_default();
        (said, told)
    };
    let silent = |said: &Said| {
        let text = format!("{} {}", said.out, said.err);
        for secret in SECRETS {
            assert!(!text.contains(secret), "{secret}: {text}");
        }
    };
    let steps = |way: &Value| way["steps"].as_array().unwrap().clone();

    // Inside: all of it, at its own switch.
    let (said, told) = trace(&blue, &[&app1, &app2, "tcp", "80", "--answer", "no"]);
    silent(&said);
    let inside = steps(&told["traces"][0]["packet"]);
    assert!(inside.len() > 3, "{told}");
    assert!(inside.iter().all(|step| step["at"] == *blue_name), "{told}");

    // Across: what its own switch did, which agreement, and that it came out.
    let (said, told) = trace(&blue, &[&app1, &lent, "tcp", "5432"]);
    assert_eq!((said.code, &told["passed"]), (0, &true.into()), "{said:?}");
    silent(&said);
    let way = &told["traces"][0];
    assert_eq!(way["packet"]["outcome"], "held", "{told}");
    assert_eq!(way["packet"]["to"], "the other tenant of the agreement");
    assert_eq!(way["answer"], Value::Null, "{told}");
    let across = steps(&way["packet"]);
    let places: Vec<_> = across
        .iter()
        .map(|step| step["at"].as_str().unwrap())
        .collect();
    assert_eq!(places.last(), Some(&"fabric"), "{told}");
    let says = across.last().unwrap()["says"].as_str().unwrap();
    let agreement = format!("{red_name}/db with {blue_name}");
    assert!(says.contains(&agreement), "{says}");
    assert!(
        across
            .iter()
            .any(|step| step["by"] == "acceptance" && step["name"] != ""),
        "its own acceptance lets it: {told}"
    );
    assert!(!said.out.contains("by tag"), "the host's numbers: {told}");

    // The host's own user is told all of it.
    let whole = tenants
        .instance
        .ask(&["trace", &app1, &lent, "tcp", "5432"])
        .unwrap();
    assert!(whole.to_string().contains("crimsonrule"), "{whole}");

    // From another's endpoint, or to one by its name: as if there were none.
    for words in [[&db, &app1], [&app1, &db]] {
        let none = words.map(|word| word.replace("crimsondb", "nothing"));
        let (there, _) = trace(&blue, &[words[0], words[1]]);
        let (nowhere, _) = trace(&blue, &[&none[0], &none[1]]);
        assert!(there.code != 0 && there.code == nowhere.code, "{there:?}");
        assert_eq!(there.out.replace("crimsondb", "nothing"), nowhere.out);
    }
    // A broken packet is told what is wrong with it; who may only look sends none.
    let (short, _) = trace(&blue, &[&app1, "--packet", "00"]);
    assert!(short.out.contains("after 1 of the 14 bytes"), "{short:?}");
    assert_eq!(trace(&look, &[&app1, &app2]).0.code, 4);
    // As many as other changes, then it waits.
    let end = (0..70).find(|_| {
        trace(&blue, &[&app1, "--packet", "00"])
            .0
            .out
            .contains("too-many")
    });
    assert!(end.is_some(), "no end of it");
}

#[test]
fn a_document_is_held_to_what_is_the_tenants_and_a_bad_one_changes_nothing() {
    let tenants = Tenants::start();
    let (blue, _) = tenants.token("b", &[]);
    assert!(tenants.apply(&blue, BLUE).ok());
    for (bad, says) in [
        (BLUE.replace("{ns}-b\n", "{ns}-r\n"), "own.yaml:3:"),
        (
            BLUE.replace(
                "subnet: apps, addresses: [10.1.1.11]",
                "subnet: apps, attach: {tap: {namespace: /proc/1/ns/net}}",
            ),
            "own.yaml:7:",
        ),
        (
            BLUE.replace("subnets:", "placement: {sandbox: off}\n    subnets:"),
            "placement",
        ),
        (BLUE.replace("10.1.1.11", "10.9.9.9"), "own.yaml:7:"),
    ] {
        let said = tenants.apply(&blue, &bad);
        assert!(said.code == 2 && said.err.contains(says), "{said:?}");
    }
    let ping = "ping -n -c 1 -W 1 10.1.1.11";
    assert!(tenants.instance.until(Duration::from_secs(5), |_| {
        tenants.hosts.sh("b-app1", ping).ok()
    }));
    let plan = tenants.instance.folder().join("own.yaml");
    std::fs::write(&plan, tenants.hosts.other(&BLUE.replace("app2", "app3"))).unwrap();
    let plan = tenants.good(&blue, &["plan", &plan.display().to_string()]);
    let made = plan["changes"].as_array().unwrap().iter().any(|one| {
        one["action"] == "create" && one["object"].as_str().unwrap().ends_with("-b/app3")
    });
    assert!(made, "{plan}");
}

#[test]
fn the_providers_word_goes_before_what_a_tenant_asks_for() {
    let tenants = Tenants::start();
    let (blue, _) = tenants.token("b", &[]);
    // The least MTU that IPv4 has: no IPv6 is set up there.
    let asks = BLUE.replace(
        "prefixes: [10.1.1.0/24]",
        "mtu: 576, prefixes: [10.1.1.0/24]",
    ) + "    policy:\n      rules: [{name: all, action: allow}]\n      reach: [{from: {endpoint: app1}, to: {endpoint: app2}, protocol: tcp, ports: [445], allowed: yes}]\n";
    let said = tenants.apply(&blue, &asks);
    assert!(said.ok(), "{said:?}");
    let _served = tenants
        .talk
        .start(&tenants.hosts.at("b-app2"), "serve tcp=445 tcp=80");
    let passes = |port: u16| {
        let ask = format!("tcp 10.1.1.11 {port}");
        tenants
            .talk
            .ask(&tenants.hosts.at("b-app1"), &ask)
            .is_some()
    };
    let long = "ping -n -c 1 -W 1 -M do -s 548 10.1.1.11";
    let within = Duration::from_secs(5);
    assert!(
        tenants
            .instance
            .until(within, |_| passes(445) && passes(80))
    );
    assert!(tenants.hosts.sh("b-app1", long).ok());
    let aside = || {
        let status = tenants.good(&blue, &["status"]);
        status["tenants"][0]["aside"]["what"]
            .as_str()
            .map(str::to_owned)
    };
    let rail = "tenants:\n";
    let railed = tenants.hosts.spec.replacen(
        rail,
        &format!("guardrails: [{{name: worm, action: deny, protocol: tcp, ports: [445]}}]\n{rail}"),
        1,
    );
    let applied = tenants.instance.apply(&railed).unwrap();
    let warning = applied["plan"]["warnings"][0]["message"].as_str().unwrap();
    assert!(
        warning.contains("asks for by `reach` is not held"),
        "{warning}"
    );
    assert!(!passes(445) && passes(80));
    assert_eq!(aside().as_deref(), Some("reach"));
    assert!(tenants.instance.ask(&["verify"]).is_ok());
    // Of its own apply it is asked.
    let said = tenants.apply(&blue, &format!("{asks}# again\n"));
    assert!(!said.ok(), "{said:?}");
    // With less than it has: its endpoints as far as it may have them, and nothing passes.
    let name = tenants.name("b");
    let less = tenants.hosts.spec.replace(
        &format!("{{name: {name}, self-managed: {{endpoints: 4}}}}"),
        &format!("{{name: {name}, self-managed: {{endpoints: 1}}}}"),
    );
    tenants.instance.apply(&less).unwrap();
    assert_eq!(aside().as_deref(), Some("closed"));
    assert!(!passes(80));
    let status = tenants.good(&blue, &["status"]);
    assert_eq!(
        status["tenants"][0]["endpoints"].as_array().unwrap().len(),
        1
    );
    assert!(tenants.instance.ask(&["verify"]).is_ok());
    // And all of it again.
    tenants.instance.apply(&tenants.hosts.spec).unwrap();
    assert_eq!(aside(), None);
    let _served = tenants
        .talk
        .start(&tenants.hosts.at("b-app2"), "serve tcp=445 tcp=80");
    assert!(
        tenants
            .instance
            .until(within, |_| passes(445) && passes(80))
    );
}

#[test]
fn tokens_end_and_the_log_is_whole_after_a_power_cut() {
    let tenants = Tenants::start();
    let (look, _) = tenants.token("b", &["--read-only"]);
    let (blue, id) = tenants.token("b", &["--name", "ci"]);
    assert_eq!(tenants.apply(&look, BLUE).code, 4);
    assert!(tenants.apply(&blue, BLUE).ok());
    let huge = "x".repeat(300_000);
    for (bad, status) in [(huge.as_str(), 431), ("x", 401), ("bulkhead_0_0", 401)] {
        let said = tenants.http(bad, "GET", "/v1/status", "");
        assert!(said.starts_with(&format!("HTTP/1.1 {status} ")), "{said}");
    }
    let soon = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let soon = (soon.unwrap().as_secs() + 3).to_string();
    let (short, _) = tenants.token("b", &["--until", &soon]);
    assert!(tenants.say(&short, &["status"]).ok());
    // A stream that is under way ends with its token.
    let mut events = Command::new(&tenants.bulkhead);
    events
        .arg("--socket")
        .arg(tenants.instance.run_dir().join("api.sock"))
        .arg("--token-file")
        .arg(&blue)
        .arg("events");
    let mut events = Ended(events.spawn().unwrap());
    std::thread::sleep(Duration::from_millis(500));
    assert!(matches!(events.0.try_wait(), Ok(None)));
    tenants.instance.ask(&["token", "revoke", &id]).unwrap();
    assert!(tenants.instance.until(Duration::from_secs(5), |_| matches!(
        events.0.try_wait(),
        Ok(Some(_))
    )));
    assert_eq!(tenants.say(&blue, &["status"]).code, 4);
    assert!(tenants.instance.until(
        Duration::from_secs(6),
        |_| tenants.say(&short, &["status"]).code == 4
    ));
    let check = |instance: &Instance| instance.ask(&["audit", "--check"]).unwrap();
    // What was refused is written down within seconds.
    let refused = |instance: &Instance| {
        instance
            .say(&["audit"])
            .unwrap()
            .out
            .contains("an unknown token")
    };
    assert!(tenants.instance.until(Duration::from_secs(90), refused));
    let before = check(&tenants.instance);
    assert_eq!(before["whole"], true);
    let Tenants {
        instance, hosts, ..
    } = tenants;
    let instance = Instance::start_in(instance.cut_off(), &[]).unwrap();
    let after = check(&instance);
    assert!(after["whole"] == true && after["entries"].as_u64() >= before["entries"].as_u64());
    let said = instance
        .say(&["--json", "audit", "--tenant", &hosts.other("{ns}-b")])
        .unwrap();
    let entries: Vec<Value> = said
        .out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let own = entries.iter().find(|one| {
        one["kind"] == "apply" && one["token"].as_str().is_some_and(|t| t.ends_with(" ci"))
    });
    assert_eq!(own.expect("who applied it")["uid"], STRANGER);
    // With less room for it, the oldest go, and an entry says so.
    let few = ["--audit-entries", "16"];
    let instance = Instance::start_in(instance.cut_off(), &few).unwrap();
    for n in 0..20 {
        let name = n.to_string();
        let words = ["token", "create", &hosts.other("{ns}-b"), "--name", &name];
        instance.ask(&words).unwrap();
    }
    let cut = check(&instance);
    assert!(
        cut["whole"] == true && cut["entries"].as_u64() <= Some(18),
        "{cut}"
    );
    assert!(instance.say(&["audit"]).unwrap().out.contains(" cut "));
}
