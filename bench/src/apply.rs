//! `bench apply`: one endpoint of a thousand changed, while packets of another
//! tenant are counted.

use crate::Options;
use crate::flow::Flow;
use crate::results::Figure;
use e2e::Instance;
use std::time::Duration;

const TENANTS: usize = 100;
const ENDPOINTS: usize = 10;
const RATE: u64 = 20_000;

/// Runs it.
pub fn run(options: &Options) -> Result<Vec<Figure>, String> {
    let tenants = if options.smoke { 4 } else { TENANTS };
    let instance = Instance::start()?;
    instance.apply(&spec(tenants, 0))?;
    let runs = options.runs(60, 15);
    let flow = Flow::start(
        &instance,
        "t0",
        "e0",
        "e1",
        RATE,
        Duration::from_secs(runs as u64 + 30),
    )?;
    flow.running()?;
    std::thread::sleep(Duration::from_millis(300));
    let from = flow.began().elapsed().as_nanos() as u64;
    let (mut inside, mut whole) = (Vec::new(), Vec::new());
    for run in 1..=runs {
        let text = spec(tenants, run);
        let start = std::time::Instant::now();
        let applied = instance.apply(&text)?;
        whole.push(start.elapsed().as_secs_f64() * 1e3);
        let changes = applied["plan"]["changes"].as_array().map_or(0, Vec::len);
        if changes == 0 {
            return Err(format!("the change changed nothing: {applied}"));
        }
        inside.push(applied["took_us"].as_f64().ok_or("no took_us")? / 1e3);
    }
    std::thread::sleep(Duration::from_millis(300));
    let to = flow.began().elapsed().as_nanos() as u64 - 100_000_000;
    let tally = flow.end()?;
    if tally.misread > 0 || tally.duplicated > 0 {
        return Err(format!(
            "{} misread, {} duplicated",
            tally.misread, tally.duplicated
        ));
    }
    Ok(vec![
        Figure::of("apply.one_of_1000_ms", "ms", &whole)
            .ours("inside_the_daemon_ms", Figure::of("", "", &inside).value)
            .ours("endpoints", tenants * ENDPOINTS)
            .note("from starting `bulkhead apply` to its end: client, parse, compile, plan, journal, swap"),
        Figure::of("apply.lost", "packets", &[tally.lost_between(from, to) as f64])
            .ours("offered", tally.offered)
            .note("20 kpps numbered UDP of a tenant that does not change, during all applies"),
    ])
}

/// A thousand endpoints; the last tenant's last endpoint differs from run to run.
fn spec(tenants: usize, run: usize) -> String {
    let mut text = String::from("version: 1\ntenants:\n");
    for t in 0..tenants {
        text += &format!(
            "  - name: t{t}\n    subnets:\n      - {{ name: lan, prefixes: [10.1.1.0/24] }}\n    endpoints:\n"
        );
        for e in 0..ENDPOINTS {
            let last = t + 1 == tenants && e + 1 == ENDPOINTS;
            let address = if last { 100 + run % 100 } else { 10 + e };
            text += &format!(
                "      - {{ name: e{e}, subnet: lan, addresses: [10.1.1.{address}], attach: fifo }}\n"
            );
        }
    }
    text
}
