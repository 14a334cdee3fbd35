//! Connections, what rules decided, and what was used, on a host of two tenants.

use e2e::frames::TwoTenants;
use e2e::{Ended, Instance};
use serde_json::Value;
use std::process::Child;
use std::time::Duration;

const POLICY: &str = "    policy:
      default: {inside: deny, inbound: deny, outbound: allow}
      rules:
        - {name: web, action: allow, to: {endpoint: web1}, protocol: tcp, ports: [80], log: on}
        - {name: no-dns, action: deny, priority: 9, protocol: udp, ports: [53], log: on}
";

/// Answers each byte on port 80 with the same.
fn echo(tenants: &TwoTenants) -> Child {
    let line = "exec python3 -c \"
import socket
s=socket.create_server(('10.1.1.10',80))
while True:
    c=s.accept()[0]
    while d:=c.recv(65536): c.sendall(d)\"";
    let namespace = std::mem::ManuallyDrop::new(tenants.at("red", "web1"));
    namespace.command(line).spawn().unwrap()
}

/// Sends and gets 100,000 bytes, and keeps the connection.
fn talk(tenants: &TwoTenants, tenant: &str, to: &str) -> Child {
    let line = format!(
        "exec python3 -c \"
import socket,time
for attempt in range(100):
    try: s=socket.create_connection(('{to}',80),2,('10.1.2.11',4321)); break
    except OSError: time.sleep(.1)
for n in range(100):
    s.sendall(b'x'*1000); left=1000
    while left: left-=len(s.recv(left))
time.sleep(60)\""
    );
    let namespace = std::mem::ManuallyDrop::new(tenants.at(tenant, "app1"));
    namespace.command(&line).spawn().unwrap()
}

fn flows(instance: &Instance, words: &[&str]) -> Vec<Value> {
    let mut all = vec!["flows"];
    all.extend(words);
    let flows = instance.ask(&all).unwrap();
    assert_eq!(flows["silent"], serde_json::json!([]), "{flows}");
    flows["flows"].as_array().unwrap().clone()
}

fn count(instance: &Instance, rule: &str) -> (u64, u64) {
    let rules = instance.ask(&["rules", "red"]).unwrap();
    let all = rules["rules"].as_array().unwrap();
    let found = all.iter().find(|count| count["rule"]["name"] == rule);
    let found = found.unwrap_or_else(|| panic!("{rule} is not in {rules}"));
    assert!(found["rule"]["place"]["line"].as_u64() > Some(1), "{found}");
    let figure = |name: &str| found[name].as_u64().unwrap();
    (figure("connections"), figure("denied"))
}

/// (sent bytes, got bytes, connections, processor ns)
fn used(instance: &Instance, tenant: &str, endpoint: &str) -> [u64; 4] {
    let usage = instance.ask(&["usage"]).unwrap();
    let rows = usage["rows"].as_array().unwrap();
    let is = |row: &&Value| row["tenant"] == tenant && row["endpoint"] == endpoint;
    let Some(row) = rows.iter().find(is) else {
        return [0; 4];
    };
    ["sent_bytes", "got_bytes", "connections", "cpu_ns"].map(|name| row[name].as_u64().unwrap())
}

/// (bytes let pass, packets denied, bytes denied) of a rule of red's
fn by_rule(instance: &Instance, rule: &str) -> [u64; 3] {
    let usage = instance.ask(&["usage"]).unwrap();
    let rows = usage["rows"].as_array().unwrap();
    let is = |row: &&Value| row["tenant"] == "red" && row["rule"] == rule;
    rows.iter().find(is).map_or([0; 3], |row| {
        ["sent_bytes", "denied_packets", "denied_bytes"]
            .map(|name| row[name].as_u64().unwrap_or_default())
    })
}

fn kill(pid: u32) {
    let status = std::process::Command::new("kill")
        .args(["-9", &pid.to_string()])
        .status();
    assert!(status.unwrap().success());
}

fn not_less(before: [u64; 4], now: [u64; 4]) {
    for (before, now) in before.into_iter().zip(now) {
        assert!(now >= before, "{now} after {before}");
    }
}

#[test]
fn a_connection_is_listed_with_its_rule_and_both_are_counted_over_a_restart() {
    let tenants = TwoTenants::new(POLICY);
    let instance = Instance::start().unwrap();
    instance.apply(&tenants.spec).unwrap();
    let _server = Ended(echo(&tenants));
    let talking = Ended(talk(&tenants, "red", "10.1.1.10"));
    let through = |flow: &Value| flow["bytes"][1].as_u64() > Some(100_000);
    let seen = instance.until(Duration::from_secs(20), |i| {
        flows(i, &["red/app1"]).iter().any(through)
    });
    assert!(seen, "{:?}", flows(&instance, &[]));
    let all = flows(&instance, &["red/web1"]);
    let flow = all.iter().find(|flow| through(flow)).unwrap();
    for (name, value) in [
        ("from", "red/app1"),
        ("to", "red/web1"),
        ("protocol", "tcp"),
        ("source", "10.1.2.11:4321"),
        ("destination", "10.1.1.10:80"),
        ("state", "established"),
    ] {
        assert_eq!(flow[name], value, "{flow}");
    }
    assert_eq!(flow["rules"][0]["name"], "red/web", "{flow}");
    assert_eq!(flow["translated"], false);
    // Blue has the same addresses, and none of it; nor has red's other endpoint.
    for other in ["blue/app1", "red/app2"] {
        let theirs = flows(&instance, &[other]);
        assert!(!theirs.iter().any(through), "{theirs:?}");
    }
    assert_eq!(flows(&instance, &["-n", "1"]).len(), 1);

    let (began, _) = count(&instance, "red/web");
    assert!(began >= 1);
    let before = count(&instance, "red/no-dns").1;
    tenants
        .sh(
            "red",
            "app1",
            "bash -c 'for i in 1 2 3; do echo x > /dev/udp/10.1.1.10/53; done'",
        )
        .unwrap();
    let denied = instance.until(Duration::from_secs(5), |i| {
        count(i, "red/no-dns").1 >= before + 3
    });
    assert!(denied, "{:?}", count(&instance, "red/no-dns"));
    let told = instance.until(Duration::from_secs(5), |i| {
        let mut command = i.command(&["events", "--last", "100"]);
        let child = command
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(300));
        kill(child.id());
        let out = child.wait_with_output().unwrap().stdout;
        let text = String::from_utf8_lossy(&out).into_owned();
        text.contains("rule red/no-dns")
            && text.contains("denied a packet to 10.1.1.10 (udp")
            && text.contains("rule red/web")
            && text.contains("let a connection begin")
    });
    assert!(told, "the log's packets are not among the events");

    let first = used(&instance, "red", "app1");
    assert!(
        first[0] > 100_000 && first[1] > 100_000 && first[2] >= 1,
        "{first:?}"
    );
    let whole = used(&instance, "red", "");
    assert!(whole[3] > 0, "{whole:?}");
    // Processor time is its endpoints', who did all of it.
    let usage = instance.ask(&["usage", "--tenant", "red"]).unwrap();
    let rows = usage["rows"].as_array().unwrap();
    let sum = |figure: &str, endpoint: bool| {
        let rows = rows
            .iter()
            .filter(|row| (row["endpoint"] != "") == endpoint);
        rows.map(|row| row[figure].as_u64().unwrap()).sum::<u64>()
    };
    for figure in ["cpu_ns", "memory_byte_seconds"] {
        assert_eq!(sum(figure, true), sum(figure, false), "{figure}: {usage}");
    }
    let busy = used(&instance, "red", "app1")[3];
    assert!(busy > used(&instance, "red", "app2")[3], "{usage}");
    // What its rules denied, and which: counted, and said by `why`.
    let [_, packets, bytes] = by_rule(&instance, "rule no-dns");
    assert!(packets >= 3 && bytes >= 3 * 40, "{packets}, {bytes}");
    let mut why = Value::Null;
    let named = instance.until(Duration::from_secs(10), |i| {
        // What its kernel says by itself is denied too, and may have been the last.
        let asks = "bash -c 'echo x > /dev/udp/10.1.1.10/53'";
        tenants.sh("red", "app1", asks).unwrap();
        why = i.ask(&["why", "red/app1"]).unwrap();
        let verdict = why["verdict"].to_string();
        verdict.contains("the last by rule red/no-dns (") && verdict.contains(".yaml:")
    });
    assert!(named, "{why}");
    let rules = count(&instance, "red/web");
    drop(talking);
    // All that passed both ways is its rule's, whether it has ended or not.
    let through = instance.until(Duration::from_secs(20), |i| {
        by_rule(i, "rule web")[0] > 200_000
    });
    let passed = by_rule(&instance, "rule web");
    assert!(through && passed[0] < 1_000_000, "{passed:?}");
    // A successor of the switch, and one of the controller, go on where they were.
    kill(instance.pid("red").unwrap());
    let back = instance.until(Duration::from_secs(10), |i| {
        i.pid("red").is_ok_and(|pid| pid > 0)
    });
    assert!(back);
    not_less(first, used(&instance, "red", "app1"));
    not_less(whole, used(&instance, "red", ""));
    assert!(count(&instance, "red/web") >= rules);
    assert!(by_rule(&instance, "rule web")[0] >= passed[0]);
    let once = used(&instance, "red", "app1")[0];
    assert!(once < 2 * first[0], "{once} after {first:?}: counted twice");
    for name in ["bulkhead-supervisor", "bulkhead-controller"] {
        let pid = instance.child(name).unwrap();
        kill(pid);
        let answers = instance.until(Duration::from_secs(20), |i| {
            i.child(name).is_some_and(|now| now != pid) && i.ask(&["usage"]).is_ok()
        });
        assert!(answers, "{name} does not come back: {}", instance.log());
        let after = used(&instance, "red", "app1");
        not_less(first, after);
        assert!(
            after[0] < 2 * first[0],
            "{after:?} after {first:?}: counted twice"
        );
        not_less(whole, used(&instance, "red", ""));
    }
    let csv = instance
        .say(&["usage", "--csv", "--tenant", "red"])
        .unwrap();
    assert!(csv.out.contains(",red,app1,"), "{}", csv.out);
    assert!(!csv.out.contains(",blue,"), "{}", csv.out);
    // Who is nobody is not shown as somebody who is idle.
    let top = |tenant| {
        instance
            .say(&["top", "--once", "--tenant", tenant])
            .unwrap()
    };
    assert_eq!(["red", "nobody"].map(|of| top(of).code), [0, 2]);
    // What goes is counted to its end.
    instance.say(&["down"]).unwrap();
    let last = used(&instance, "red", "app1");
    not_less(first, last);
    assert_eq!(used(&instance, "red", "app1"), last);
}

/// Blue uses red's web1. `more` is put under each tenant.
fn agreed(more: &str) -> TwoTenants {
    let mut tenants = TwoTenants::new(more);
    tenants.spec = tenants
        .spec
        .replace(
            "  - name: red\n",
            "  - name: red\n    offers: [{name: web, endpoint: web1, protocol: tcp, ports: [80], to: [blue], pool: [10.1.250.0/28]}]\n",
        )
        .replace(
            "  - name: blue\n",
            "  - name: blue\n    accepts: [{name: reds, from: red, service: web, as: [10.1.200.10]}]\n",
        );
    tenants
}

/// (sent bytes, got bytes) of a tenant's by the agreement.
fn billed(instance: &Instance, tenant: &str) -> [u64; 2] {
    let usage = instance.ask(&["usage"]).unwrap();
    let rows = usage["rows"].as_array().unwrap();
    let is = |row: &&Value| row["tenant"] == tenant && row["agreement"] == "red/web with blue";
    rows.iter().find(is).map_or([0; 2], |row| {
        ["sent_bytes", "got_bytes"].map(|name| row[name].as_u64().unwrap())
    })
}

#[test]
fn tenants_of_one_compartment_are_billed_for_what_either_sends_by_an_agreement() {
    let tenants = agreed("    placement: {per: zone, zone: z}\n");
    let instance = Instance::start().unwrap();
    instance.apply(&tenants.spec).unwrap();
    used(&instance, "red", "");
    let _server = Ended(echo(&tenants));
    let _talking = Ended(talk(&tenants, "blue", "10.1.200.10"));
    let all = |i: &Instance| billed(i, "red").iter().all(|bytes| *bytes > 100_000);
    let billed_all = instance.until(Duration::from_secs(20), all);
    assert!(billed_all, "{:?}", instance.ask(&["usage"]));
    let [red, blue] = ["red", "blue"].map(|tenant| billed(&instance, tenant));
    let [sent, got] = red;
    assert!(sent < 200_000 && got < 200_000, "{red:?}");
    // What one sent the other got; a word and its answer may come between the two looks, and on a busy machine more.
    let agree = |i: &Instance| {
        let [red, blue] = ["red", "blue"].map(|tenant| billed(i, tenant));
        blue[0].abs_diff(red[1]) < 2000 && blue[1].abs_diff(red[0]) < 2000
    };
    assert!(
        instance.until(Duration::from_secs(5), agree),
        "{red:?}, {blue:?}"
    );
}

#[test]
fn what_crosses_to_another_tenant_is_listed_with_both_tuples_and_counted_by_the_fabric() {
    let tenants = agreed("");
    let instance = Instance::start().unwrap();
    instance.apply(&tenants.spec).unwrap();
    // The first sum is what differences are taken from.
    used(&instance, "red", "");
    let _server = Ended(echo(&tenants));
    let _talking = Ended(talk(&tenants, "blue", "10.1.200.10"));
    let theirs = |i: &Instance| {
        let all = flows(i, &["red/web1"]);
        all.into_iter()
            .find(|flow| flow["bytes"][1].as_u64() > Some(100_000))
    };
    assert!(
        instance.until(Duration::from_secs(20), |i| theirs(i).is_some()),
        "{:?}",
        flows(&instance, &[])
    );
    let flow = theirs(&instance).unwrap();
    assert_eq!(flow["from"], "agreement red/web with blue", "{flow}");
    assert_eq!(
        (&flow["to"], &flow["translated"]),
        (&"red/web1".into(), &true.into())
    );
    assert_eq!(flow["source"], "10.1.2.11:4321", "{flow}");
    assert_eq!(flow["destination_there"], "10.1.1.10:80", "{flow}");
    let there = flow["source_there"].as_str().unwrap();
    assert!(there.starts_with("10.1.250."), "{flow}");
    // Several who ask at once are all answered.
    std::thread::scope(|scope| {
        let asking = || assert!(flows(&instance, &[]).len() >= 2);
        for _ in 0..4 {
            scope.spawn(asking);
        }
    });
    let ours = flows(&instance, &["blue/app1"]);
    assert!(
        ours.iter()
            .any(|flow| flow["destination"] == "10.1.200.10:80" && flow["from"] == "blue/app1"),
        "{ours:?}"
    );
    for tenant in ["red", "blue"] {
        let [sent, got, ..] = used(&instance, tenant, "");
        assert!(sent > 100_000 && got > 100_000, "{tenant}: {sent}, {got}");
        assert!(sent < 200_000 && got < 200_000, "{tenant}: {sent}, {got}");
    }
    // All of it by their agreement: what one sent the other got.
    // An acknowledgement may be on its way between the two questions.
    let [sent, got] = billed(&instance, "red");
    assert!(sent > 100_000 && got > 100_000, "{sent}, {got}");
    assert!(instance.until(Duration::from_secs(5), |i| {
        let [sent, got] = billed(i, "red");
        billed(i, "blue") == [got, sent]
    }));
    // An honest switch and the fabric say the same.
    let status = instance.ask(&["why", "red/web1"]).unwrap();
    assert!(!status.to_string().contains("usage-difference"), "{status}");
}
