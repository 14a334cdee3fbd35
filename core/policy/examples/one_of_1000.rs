//! How long one changed endpoint among 1,000 takes from text to tables, in one
//! tenant (the dearest case) and in 100: `cargo run --release -p core-policy --example one_of_1000`

use core_policy as policy;
use std::time::Instant;

fn text(tenants: usize, changed: bool) -> String {
    let each = 1000 / tenants;
    let mut text = String::from("version: 1\ntenants:\n");
    for t in 0..tenants {
        text += &format!(
            "  - name: t{t}\n    subnets: [{{name: lan, prefixes: [10.1.0.0/16, fd00:1::/64]}}]\n    endpoints:\n"
        );
        for e in 0..each {
            let state = if changed && t == tenants / 2 && e == each / 2 {
                ", state: quarantined"
            } else {
                ""
            };
            text += &format!("      - {{name: e{e}, subnet: lan{state}}}\n");
        }
    }
    text
}

fn main() {
    for tenants in [1, 10, 100, 500] {
        let [old, new] = [false, true].map(|changed| text(tenants, changed));
        let parse = |text: &str| spec::parse("bench.yaml", text.as_bytes()).expect("spec");
        let (before, mut ids) = (parse(&old), policy::Ids::default());
        ids = policy::Ids::assign(&before, &ids);
        let start = Instant::now();
        let intent = policy::compile(&before, &ids, 0).expect("compiles");
        let first = start.elapsed();
        let mut runs: Vec<_> = (0..20)
            .map(|_| {
                let start = Instant::now();
                let spec = parse(&new);
                let parsed = start.elapsed();
                let next = policy::Ids::assign(&spec, &ids);
                let after = policy::compile_after(&spec, &next, 0, Some((&before, &ids, &intent)))
                    .expect("compiles");
                let changed =
                    |id: &&u32| intent.compartments[id].image != after.compartments[id].image;
                assert_eq!(after.compartments.keys().filter(changed).count(), 1);
                (start.elapsed() - parsed, parsed)
            })
            .collect();
        runs.sort();
        let (compiled, parsed) = runs[runs.len() / 2];
        println!(
            "{tenants:>4} tenants: first compile {first:?}; then parse {parsed:?}, assign + compile {compiled:?}"
        );
    }
}
