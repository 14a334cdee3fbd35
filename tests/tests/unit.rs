//! The unit for systemd: it is understood, and the daemon serves under what it takes away.

use e2e::outside::Outside;
use e2e::{Instance, Said};
use std::path::{Path, PathBuf};
use std::process::Command;

const UNIT: &str = "packaging/systemd/bulkhead.service";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn unit() -> String {
    std::fs::read_to_string(root().join(UNIT)).unwrap()
}

/// Starts one under what a unit takes away.
fn started(unit: &str) -> Result<Instance, String> {
    let folder = e2e::private_folder("bulkhead-")?;
    let file = folder.join("bulkhead.service");
    std::fs::write(&file, unit).map_err(|e| e.to_string())?;
    // The distribution's, which has its package for libseccomp.
    let mut under = Command::new("/usr/bin/python3");
    under.arg("-c").arg(include_str!("unit/under.py"));
    under.arg(&file).arg(e2e::program("bulkhead"));
    Instance::start_under(under, folder, &[])
}

/// What can be held without a systemd to run under: that it understands the unit.
#[test]
fn the_unit_is_understood_by_systemd() {
    let unit = unit();
    let keeper = "/usr/local/lib/bulkhead/bulkhead-keeper";
    assert!(unit.contains(&format!("ExecStart={keeper} --run-dir")));
    let denied = unit
        .lines()
        .find(|line| line.starts_with("SystemCallFilter=~"));
    for needed in ["@debug", "pidfd_getfd", "ptrace", "@ipc", "seccomp", "bpf"] {
        assert!(!denied.unwrap().contains(needed), "{needed} is needed");
    }
    // As installed: with the program where it says, and its manual page.
    let folder = e2e::private_folder("bulkhead-").unwrap();
    let file = folder.join("bulkhead.service");
    let program = e2e::program("bulkhead-keeper").display().to_string();
    let installed = unit
        .replace(keeper, &program)
        .replace("Documentation=man:bulkhead(1)\n", "");
    std::fs::write(&file, installed).unwrap();
    let said = Said::of(Command::new("systemd-analyze").arg("verify").arg(&file));
    std::fs::remove_dir_all(&folder).unwrap();
    // `tools/setup test` has it installed.
    let said = said.unwrap();
    assert!(said.ok() && said.err.is_empty(), "{said:?}");
}

/// Without a systemd: its bounding set, calls and socket families are read from the unit, and taken away as it does.
#[test]
fn all_that_takes_privilege_goes_under_what_the_unit_leaves() {
    let outside = Outside::make().unwrap();
    outside.finish().unwrap();
    let instance = started(&unit()).unwrap();
    let status = std::fs::read_to_string(format!("/proc/{}/status", instance.keeper())).unwrap();
    let line = |name: &str| {
        let mut words = status.lines().filter_map(|line| line.strip_prefix(name));
        words.next().unwrap().trim().to_owned()
    };
    assert_eq!([line("NoNewPrivs:"), line("Seccomp:")], ["1", "2"]);
    // Root is known, an uplink by AF_XDP is made, and a namespace, a veth and a tap.
    let spec = outside.spec(", driver: xdp", "weight: 1")
        + &format!(
            "  - name: red
    subnets: [{{ name: lan, prefixes: [10.1.1.0/24] }}]
    endpoints:
      - {{ name: web, subnet: lan, addresses: [10.1.1.10], attach: circuits }}
      - {{ name: app, subnet: lan, addresses: [10.1.1.11], attach: circuits }}
      - {{ name: slow, subnet: lan, addresses: [10.1.1.12], attach: circuits, rate: {{ to: 100mbit }} }}
      - {{ name: packets, subnet: lan, addresses: [10.1.1.13], attach: {{ veth: {{ namespace: {ns}, make: true, circuits: {{}} }} }} }}
",
            ns = format_args!("bh-unit-{}", instance.keeper()),
        );
    instance.apply(&spec).unwrap();
    let status = instance.ask(&["status"]).unwrap();
    assert_eq!(status["uplinks"][0]["how"], "AF_XDP, copy, queues: 1");
    // A circuit by the kernel, one by a meter, and one by a proxy.
    for (to, address) in [("web", 10), ("slow", 12), ("packets", 13)] {
        let serves = "import socket; s = socket.create_server(('', 7000)); print('up', flush=True)
c, _ = s.accept(); c.sendall(c.recv(9)); c.close()";
        let endpoint = format!("red/{to}");
        let mut server = instance.command(&["run", "--endpoint", &endpoint, "--"]);
        server
            .args(["python3", "-c", serves])
            .stdout(std::process::Stdio::piped());
        let mut server = e2e::Ended(server.spawn().unwrap());
        let mut up = [0; 3];
        std::io::Read::read_exact(server.0.stdout.as_mut().unwrap(), &mut up).unwrap();
        let asks = format!(
            "import socket; c = socket.create_connection(('10.1.1.{address}', 7000), 10); c.sendall(b'all well'); print(c.recv(9))"
        );
        let words = ["run", "--endpoint", "red/app", "--", "python3", "-c", &asks];
        let said = instance.say(&words).unwrap();
        assert!(said.out.contains("all well"), "{to}: {said:?}");
    }
    let log = instance.log();
    assert!(!log.contains("not permitted"), "{log}");

    // Of root nobody would be sure without it: told, and nothing serves.
    let without = unit().replace(" CAP_SETFCAP", "");
    assert_ne!(without, unit());
    let Err(why) = started(&without) else {
        panic!("it serves, and knows no root");
    };
    assert!(why.contains("CAP_SETFCAP"), "{why}");
}
