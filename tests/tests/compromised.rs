//! A switch that has been taken over, in its place in a running instance: the proof says
//! that it reaches nobody but where an agreement lets it, and so it is.

use e2e::talk::{Hosts, Talk};
use e2e::{Ended, Instance, Namespace};
use serde_json::Value;
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::time::Duration;

/// Red offers, blue accepts, green has nothing to do with them; all have the same addresses.
const SPEC: &str = r#"version: 1
tenants:
  - name: red
    PLACE_red
    subnets:
      - {name: lan, prefixes: [10.1.1.0/24, "fd00:1:1:1::/64"], ra: off, dhcp: off}
    endpoints:
      - {name: db1, subnet: lan, addresses: [10.1.1.10, "fd00:1:1:1::10"], attach: {tap: {namespace: "{ns}-db1", interface: eth0, make: true}}}
      - {name: backup, subnet: lan, addresses: [10.1.1.11, "fd00:1:1:1::11"], attach: {tap: {namespace: "{ns}-backup", interface: eth0, make: true}}}
    offers:
      - {name: db, endpoint: db1, protocol: tcp, ports: [5432], to: [blue], pool: [10.1.250.0/28, "fd00:1:250::/64"]}
  - name: blue
    PLACE_blue
    subnets:
      - {name: lan, prefixes: [10.1.1.0/24, "fd00:1:1:1::/64"], ra: off, dhcp: off}
    endpoints:
      - {name: app1, subnet: lan, addresses: [10.1.1.10, "fd00:1:1:1::10"], attach: {tap: {namespace: "{ns}-app1", interface: eth0, make: true}}}
      - {name: app2, subnet: lan, addresses: [10.1.1.11, "fd00:1:1:1::11"], attach: {tap: {namespace: "{ns}-app2", interface: eth0, make: true}}}
    accepts:
      - {name: reds-db, from: red, service: db, as: [10.1.200.10, "fd00:1:200::10"]}
  - name: green
    PLACE_green
    subnets:
      - {name: lan, prefixes: [10.1.1.0/24, "fd00:1:1:1::/64"], ra: off, dhcp: off}
    endpoints:
      - {name: z, subnet: lan, addresses: [10.1.1.10, "fd00:1:1:1::10"], attach: {tap: {namespace: "{ns}-z", interface: eth0, make: true}}}
"#;
const TENANTS: [(&str, &[&str]); 3] = [
    ("red", &["db1", "backup"]),
    ("blue", &["app1", "app2"]),
    ("green", &["z"]),
];
/// So many frames to nowhere, and half of all frames have had every tag there is.
const ALL_TAGS: u64 = 2 * 65_536;

/// A spec in which everybody else has a switch of Bulkhead's.
fn honest(spec: &str) -> String {
    TENANTS.iter().fold(spec.to_owned(), |spec, (tenant, _)| {
        spec.replace(&format!("PLACE_{tenant}"), "weight: 1")
    })
}

/// The liar under another name, which says what it does. It stands beside the others: no
/// other folder's programs are started.
struct Program(PathBuf);

impl Program {
    fn named(name: &str) -> Program {
        let liar = e2e::program("bulkhead-liar");
        let program = Program(liar.with_file_name(name));
        std::fs::copy(&liar, &program.0).unwrap();
        program
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Somebody who hears all that comes to an endpoint.
struct Ear {
    at: ManuallyDrop<Namespace>,
    heard: PathBuf,
    listening: Ended,
}

impl Ear {
    fn of(instance: &Instance, hosts: &Hosts, name: &str) -> Ear {
        let at = hosts.at(name);
        let heard = instance.folder().join(format!("heard-{name}"));
        let line = format!("exec tshark -q -i eth0 -w {} 2>/dev/null", heard.display());
        let listening = Ended(at.command(&line).spawn().unwrap());
        assert!(instance.until(Duration::from_secs(10), |_| heard.exists()));
        Ear {
            at,
            heard,
            listening,
        }
    }

    /// What came of the liar, not what was answered: source, protocol, TCP ports
    /// of each frame, place of a fragment.
    fn of_the_liar(mut self) -> Vec<[String; 5]> {
        self.listening.end();
        let said = self.at.sh(&format!(
            "tshark -o ip.defragment:FALSE -r {} -Y \"frame contains 6c:69:61:72 && eth.src != $(cat /sys/class/net/eth0/address)\" -T fields -E occurrence=f -e ip.src -e ipv6.src -e ip.proto -e ipv6.nxt -e tcp.srcport -e tcp.dstport -e ip.frag_offset",
            self.heard.display()
        ));
        let said = said.unwrap();
        assert!(said.ok(), "{}", said.err);
        let line = |line: &str| {
            let mut fields = line.split('\t').map(str::to_owned);
            let mut next = || fields.next().unwrap_or_default();
            let either = |a: String, b: String| if a.is_empty() { b } else { a };
            let (v4, v6, proto, header) = (next(), next(), next(), next());
            [
                either(v4, v6),
                either(proto, header),
                next(),
                next(),
                next(),
            ]
        };
        said.out.lines().map(line).collect()
    }
}

#[test]
fn a_switch_that_was_taken_over_reaches_nobody_but_by_its_agreement() {
    for (liar, _) in TENANTS {
        let hosts = Hosts::of(SPEC);
        let instance = Instance::start().unwrap();
        let program = Program::named("bulkhead-liar-crossing");
        let lies = format!("placement: {{ program: {} }}", program.0.display());
        let spec = |lies: &str| {
            let placed = hosts.spec.replace(&format!("PLACE_{liar}"), lies);
            honest(&placed)
        };
        // While all are honest, nobody's lies are heard: then the ears are there first.
        instance.apply(&spec("weight: 1")).unwrap();
        let talk = Talk::new(instance.folder());
        let _server = talk.start(&hosts.at("db1"), "serve tcp=5432 tcp=22 udp=5432");
        let others = TENANTS.iter().filter(|(tenant, _)| *tenant != liar);
        let ears: Vec<(&str, Ear)> = others
            .flat_map(|(_, endpoints)| endpoints.iter())
            .map(|name| (*name, Ear::of(&instance, &hosts, name)))
            .collect();
        instance.apply(&spec(&lies)).unwrap();
        // The first sum is what differences are taken from.
        instance.ask(&["usage"]).unwrap();

        let proof = instance.ask(&["verify", "--compromised", liar]).unwrap();
        assert_eq!(proof["compromised"], liar, "{proof}");
        assert_eq!(proof["compartments"], 2, "{proof}");
        let all_tags = instance.until(Duration::from_secs(60), |i| to_nowhere(i, liar) > ALL_TAGS);
        assert!(all_tags, "{}", instance.ask(&["status"]).unwrap());
        the_fabric_is_billed(&instance, liar);

        for (name, ear) in ears {
            let heard = ear.of_the_liar();
            if (liar, name) == ("blue", "db1") {
                // The service is its to use, by whatever packets: as one of red's pool.
                let agreed = |of: &&[String; 5]| {
                    let [source, protocol, from, to, fragment] = *of;
                    let pool = source.starts_with("10.1.250.") || source.starts_with("fd00:1:250:");
                    let error = ["1", "58"].contains(&protocol.as_str()) && from == "5432";
                    // One that goes on where its first, which has the ports, was let in.
                    let later = protocol == "6" && !["", "0"].contains(&fragment.as_str());
                    pool && (protocol == "6" && to == "5432" || error || later)
                };
                let wrong = heard.iter().find(|of| !agreed(of));
                assert_eq!(wrong, None, "{liar} reached {name}");
                // And the ear hears.
                assert_ne!(heard.first(), None);
            } else {
                assert_eq!(heard.first(), None, "{liar} reached {name}");
            }
        }
    }
}

/// Its switch says that it sent nothing, and that is said to be no truth; what is billed is
/// what the fabric counted: of an agreement what went on by it, and nothing else.
fn the_fabric_is_billed(instance: &Instance, liar: &str) {
    let usage = instance.ask(&["usage"]).unwrap();
    let rows = usage["rows"].as_array().unwrap();
    let sent = |row: &&Value| row["sent_bytes"].as_u64() > Some(0) && row["endpoint"] == "";
    let whole = |row: &&Value| row["tenant"] == liar && row["agreement"].is_null();
    assert!(rows.iter().filter(whole).any(|row| sent(&row)), "{usage}");
    let agreed = |row: &&Value| row["agreement"] == "red/db with blue";
    let by_it = |row: &&Value| row["tenant"] == liar && agreed(row);
    let any = rows.iter().filter(by_it).any(|row| sent(&row));
    assert_eq!(any, liar != "green", "{usage}");
    let others = rows.iter().filter(|row| !row["agreement"].is_null());
    assert!(others.into_iter().all(|row| agreed(&row)), "{usage}");
    let endpoint = TENANTS
        .iter()
        .find(|(tenant, _)| *tenant == liar)
        .unwrap()
        .1[0];
    let why = instance
        .ask(&["why", &format!("{liar}/{endpoint}")])
        .unwrap();
    assert!(why.to_string().contains("usage-difference"), "{why}");
}

/// Frames of a compartment that the fabric had no way for.
fn to_nowhere(instance: &Instance, name: &str) -> u64 {
    let status = instance.ask(&["status"]).unwrap();
    let all = status["compartments"].as_array().unwrap();
    let of = all.iter().find(|c| c["name"] == name).unwrap();
    let drops = of["fabric_drops"].as_array().unwrap();
    let found = drops.iter().find(|d| d["reason"] == "fabric-no-entry");
    found.and_then(|d| d["frames"].as_u64()).unwrap_or(0)
}

#[test]
fn a_proof_despite_a_liar_says_what_it_is_and_nobody_unknown_is_one() {
    let hosts = Hosts::of(SPEC);
    let instance = Instance::start().unwrap();
    instance.apply(&honest(&hosts.spec)).unwrap();
    let whole = instance.ask(&["verify"]).unwrap();
    assert_eq!(whole["compartments"], 3, "{whole}");
    assert!(whole["compromised"].is_null(), "{whole}");
    let said = instance.say(&["verify", "--compromised", "blue"]).unwrap();
    assert!(said.ok(), "{}", said.err);
    assert!(
        said.out.contains("2 compartments")
            && said.out.contains("whatever the switch of blue does"),
        "{}",
        said.out
    );
    let said = instance.say(&["verify", "--compromised", "pink"]).unwrap();
    assert!(
        !said.ok() && said.err.contains("no compartment or tenant pink"),
        "{}",
        said.err
    );
}
