//! A barrier against other processes' branches, in who serves several tenants.

use e2e::Instance;
use std::time::Duration;

/// Two tenants of one zone, the second of which may be missing.
fn spec(second: bool) -> String {
    let mut text = "version: 1\ntenants:\n".to_owned();
    for (tenant, net) in [("red", 1), ("blue", 2)]
        .iter()
        .take(1 + usize::from(second))
    {
        text += &format!(
            "  - name: {tenant}
    placement: {{ per: zone, zone: z }}
    workers: 2
    subnets: [{{ name: lan, prefixes: [10.{net}.1.0/24] }}]
    endpoints:
      - {{ name: a, subnet: lan, addresses: [10.{net}.1.10], attach: fifo }}
      - {{ name: c, subnet: lan, addresses: [10.{net}.1.11], attach: circuits }}
"
        );
    }
    text
}

/// What the kernel says of all threads of a process, where it can say more than one thing.
fn branches(process: u32) -> Vec<String> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let of = |thread: std::fs::DirEntry| {
        let text = std::fs::read_to_string(thread.path().join("status")).ok()?;
        let line = text
            .lines()
            .find_map(|it| it.strip_prefix("SpeculationIndirectBranch:"));
        Some(line.unwrap_or("").trim().to_owned())
    };
    threads.filter_map(|thread| of(thread.ok()?)).collect()
}

const NONE: &str = "conditional enabled";
const UP: &str = "conditional force disabled";

#[test]
fn it_is_up_for_two_tenants_and_not_for_one() {
    if branches(std::process::id()).iter().any(|it| it != NONE) {
        eprintln!("this processor, or its hypervisor, has no barrier that one could raise");
        return;
    }
    let instance = Instance::start().unwrap();
    instance.apply(&spec(false)).unwrap();
    let all = |of: &[u32], word: &str| {
        let all: Vec<String> = of.iter().flat_map(|it| branches(*it)).collect();
        !all.is_empty() && all.iter().all(|it| it == word)
    };
    let serve = || {
        let status = instance.ask(&["status"]).unwrap();
        let operator = &status["compartments"][0]["operator"]["pid"];
        [operator.as_u64().unwrap() as u32]
    };
    let workers = |switch: u32| {
        let mut all = branches(switch);
        // Who speaks for workers has it at any time.
        let own = all.iter().position(|it| it == UP).expect("a crew");
        all.remove(own);
        all
    };
    let switch = instance.pid("zone:z").unwrap();
    assert_eq!(workers(switch), [NONE, NONE]);
    assert!(all(&serve(), NONE), "{:?}", serve());
    assert!(all(&[instance.pid("fabric").unwrap()], UP));

    instance.apply(&spec(true)).unwrap();
    let limit = Duration::from_secs(5);
    let is_up =
        |it: &Instance| it.pid("zone:z").is_ok_and(|it| all(&[it], UP)) && all(&serve(), UP);
    assert!(instance.until(limit, is_up), "{:?}", branches(switch));
    // It is never taken away again.
    instance.apply(&spec(false)).unwrap();
    assert!(instance.until(limit, is_up));
}
