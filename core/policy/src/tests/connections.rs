//! Room for connections: as written, or shared out of the switch's memory.

use crate::{CompileError, Ids, compile};

fn capacities(endpoints: u32, more: &str) -> Result<Vec<u32>, Vec<CompileError>> {
    let mut text = String::from(
        "version: 1\ntenants:\n  - name: red\n    policy: {rules: []}\n    subnets: [{name: web, prefixes: [10.1.0.0/16]}]\n    endpoints:\n",
    );
    for n in 0..endpoints {
        text += &format!("      - {{name: e{n}, subnet: web}}\n");
    }
    text += more;
    let spec = spec::parse("s.yaml", text.as_bytes()).expect("a good spec");
    let ids = Ids::assign(&spec, &Ids::default());
    let intent = compile(&spec, &ids, 0)?;
    Ok(intent.ports().map(|(_, port)| port.connections).collect())
}

#[test]
fn room_is_shared_out_of_half_the_memory_in_powers_of_two() {
    assert_eq!(capacities(3, "").unwrap(), [8192; 3]);
    assert_eq!(capacities(13, "").unwrap(), [4096; 13]);
    assert_eq!(capacities(500, "").unwrap(), [128; 500]);
    let written = "      - {name: big, subnet: web, connections: 50000}\n";
    let mixed = capacities(2, written).unwrap();
    assert_eq!(mixed, [50_000, 4096, 4096]);
}

#[test]
fn what_memory_does_not_hold_is_told_with_what_would() {
    let written = "      - {name: big, subnet: web, connections: 1000000}\n";
    let errors = capacities(2, written).unwrap_err();
    let text = errors[0].to_string();
    assert!(text.contains("need 500 MiB"), "{text}");
}
