//! Namespaces that Bulkhead makes outlive a change of what they are called by: the
//! processes inside stay, and stay reachable.

use e2e::{Instance, Namespace, unique};
use std::process::{Child, Command};
use std::time::Duration;

/// A tenant with a server's and a client's namespace, both made.
struct Pair {
    web: Namespace,
    app: Namespace,
}

impl Pair {
    fn new() -> Pair {
        Pair {
            web: Namespace::named(unique("bht-web")),
            app: Namespace::named(unique("bht-app")),
        }
    }

    /// The server is called `web`; `more` endpoints are put behind. Its MAC is written
    /// down, since one made from another name leaves the client's neighbour entry stale.
    fn spec(&self, tenant: &str, web: &str, more: &str) -> String {
        let endpoint = |name: &str, host: u32, namespace: &str| {
            format!(
                "      - {{ name: {name}, subnet: lan, addresses: [10.1.1.{host}], mac: \"02:00:00:00:01:{host}\", attach: {{ tap: {{ namespace: {namespace}, interface: eth0, make: true }} }} }}\n"
            )
        };
        format!(
            "version: 1\ntenants:\n  - name: {tenant}\n    subnets:\n      - {{ name: lan, prefixes: [10.1.1.0/24] }}\n      - {{ name: back, prefixes: [10.1.2.0/24] }}\n    endpoints:\n{}{}{more}",
            endpoint(web, 10, &self.web.name),
            endpoint("app", 11, &self.app.name),
        )
    }

    fn serve(&self) -> Ended {
        let server = self
            .web
            .command("exec python3 -m http.server 80 --directory /sys/class/net 2>/dev/null")
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        Ended(server)
    }

    fn reaches(&self, instance: &Instance) -> bool {
        instance.until(Duration::from_secs(5), |_| {
            self.app
                .sh("curl -s -o /dev/null --max-time 1 http://10.1.1.10/")
                .unwrap()
                .ok()
        })
    }
}

struct Ended(Child);
impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn exists(namespace: &Namespace) -> bool {
    std::path::Path::new("/run/netns")
        .join(&namespace.name)
        .exists()
}

#[test]
fn an_endpoint_and_a_tenant_are_renamed_around_their_processes() {
    let pair = Pair::new();
    let instance = Instance::start().unwrap();
    instance.apply(&pair.spec("red", "web1", "")).unwrap();
    let _server = pair.serve();
    assert!(pair.reaches(&instance));
    instance.apply(&pair.spec("red", "web2", "")).unwrap();
    assert!(pair.reaches(&instance), "after the endpoint's new name");
    instance.apply(&pair.spec("green", "web2", "")).unwrap();
    assert!(pair.reaches(&instance), "after the tenant's new name");
    // What a change does to the interface does not take the namespace along either.
    let slower = pair
        .spec("green", "web2", "")
        .replace("name: lan,", "name: lan, mtu: 1400,");
    instance.apply(&slower).unwrap();
    assert!(pair.reaches(&instance), "after another MTU");
    instance.ask(&["down"]).unwrap();
    assert!(!exists(&pair.web) && !exists(&pair.app));
}

#[test]
fn a_refused_change_leaves_the_namespace_and_who_is_in_it() {
    let pair = Pair::new();
    let instance = Instance::start().unwrap();
    instance.apply(&pair.spec("red", "web1", "")).unwrap();
    let _server = pair.serve();
    assert!(pair.reaches(&instance));
    let missing = unique("bht-none");
    let more = format!(
        "      - {{ name: lost, subnet: lan, addresses: [10.1.1.12], attach: {{ tap: {{ namespace: {missing}, interface: eth0 }} }} }}\n"
    );
    for (tenant, web) in [("red", "web2"), ("green", "web1")] {
        let refused = instance
            .apply(&pair.spec(tenant, web, &more))
            .expect_err("the namespace of one endpoint is missing");
        assert!(refused.contains(&missing), "{refused}");
        assert!(pair.reaches(&instance), "after {tenant}/{web} was refused");
        assert_eq!(instance.endpoint("red", "web1").unwrap()["port"], "open");
    }
}

#[test]
fn two_ports_share_a_made_namespace_until_the_last_one_goes() {
    let pair = Pair::new();
    let instance = Instance::start().unwrap();
    let second = format!(
        "      - {{ name: side, subnet: back, addresses: [10.1.2.20], attach: {{ tap: {{ namespace: {}, interface: eth1, make: true }} }} }}\n",
        pair.web.name
    );
    instance.apply(&pair.spec("red", "web1", &second)).unwrap();
    let _server = pair.serve();
    assert!(pair.reaches(&instance));
    assert!(pair.web.sh("ip link show eth1").unwrap().ok());
    let leaves_by = |gateway: &str| {
        let route = pair.web.sh("ip route get 192.0.2.1").unwrap().out;
        assert!(route.contains(gateway), "{route}");
    };
    // Who comes after the supervisor counts what is there.
    let supervisor =
        std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", instance.keeper()))
            .unwrap()
            .split_whitespace()
            .find(|pid| {
                std::fs::read_to_string(format!("/proc/{pid}/comm"))
                    .is_ok_and(|name| name.trim() == "supervisor")
            })
            .expect("the keeper has a supervisor")
            .to_owned();
    Command::new("kill")
        .args(["-KILL", &supervisor])
        .status()
        .unwrap();
    assert!(instance.until(Duration::from_secs(5), |i| i.ask(&["status"]).is_ok()));
    instance.apply(&pair.spec("red", "web1", "")).unwrap();
    assert!(!pair.web.sh("ip link show eth1").unwrap().ok());
    assert!(pair.reaches(&instance), "the other port goes on");
    leaves_by("via 10.1.1.1 dev eth0");
    let app = pair.spec("red", "web1", "");
    let app: String = app
        .lines()
        .filter(|line| !line.contains("name: web1"))
        .map(|line| format!("{line}\n"))
        .collect();
    instance.apply(&app).unwrap();
    assert!(!exists(&pair.web));
}
