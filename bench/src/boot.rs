//! `bench boot`: 200 tenants with two endpoints each from nothing, then every
//! ordered pair of endpoints tried by ICMP and TCP, and a broadcast from each.
//! Tenants 2k and 2k+1 have the same addresses, so that reaching the wrong one
//! would look like success to anybody who did not ask who answered.

mod prober;

use crate::Options;
use crate::results::Figure;
use e2e::Instance;
use std::time::Instant;

/// Runs it.
pub fn run(options: &Options) -> Result<Vec<Figure>, String> {
    let tenants = if options.smoke { 4 } else { 200 };
    let mut seconds = Vec::new();
    let mut verdict = None;
    let runs = options.runs(3, 1);
    for run in 0..runs {
        let spec = spec(tenants);
        let start = Instant::now();
        let instance = Instance::start()?;
        instance.apply(&spec)?;
        seconds.push(start.elapsed().as_secs_f64());
        // The pairs need a minute or two: tried once.
        if run + 1 == runs {
            verdict = Some(prober::every_pair(
                &prober::places(tenants),
                options.quick || options.smoke,
            )?);
        }
    }
    let verdict = verdict.ok_or("no run")?;
    if verdict.wrong > 0 {
        return Err(format!(
            "{} of {} tries came out wrong: {}",
            verdict.wrong, verdict.tries, verdict.first_wrong
        ));
    }
    Ok(vec![
        Figure::of("boot.t200_s", "s", &seconds)
            .ours("tenants", tenants)
            .ours("endpoints", tenants * 2)
            .ours("tries_all_right", verdict.tries)
            .note(format!("keeper start to apply done; then {}", verdict.what)),
    ])
}

/// The spec: tenant `t` has endpoints a and b in 10.0.(t/2).0/24.
fn spec(tenants: usize) -> String {
    let mut text = String::from("version: 1\ntenants:\n");
    for t in 0..tenants {
        let net = t / 2;
        text += &format!(
            "  - name: t{t}\n    subnets:\n      - {{ name: lan, prefixes: [10.0.{net}.0/24], gateway: [10.0.{net}.1] }}\n    endpoints:\n"
        );
        for (name, host) in [("a", 10), ("b", 11)] {
            text += &format!(
                "      - {{ name: {name}, subnet: lan, addresses: [10.0.{net}.{host}], attach: {{ tap: {{ namespace: {}, interface: eth0, make: true }} }} }}\n",
                prober::namespace(t, name)
            );
        }
    }
    text
}
