//! Bad specs, one kind at a time, and what is said about each.

use crate::{MAX_BYTES, Spec, SpecErrors, parse};

/// A good spec around these lines of tenant `red`.
fn tenant(lines: &str) -> String {
    format!(
        "version: 1\nuplinks:\n  - {{name: wan0, interface: eth1}}\ntenants:\n  - name: red\n{}",
        lines.trim_matches('\n')
    )
}

const WEB: &str = "
    subnets:
      - {name: web, prefixes: [10.1.1.0/24, fd00:1::/64]}";

/// Endpoints to make rules about.
const POLICED: &str = "
    subnets:
      - {name: web, prefixes: [10.1.1.0/24, fd00:1::/64]}
      - {name: spare, prefixes: [10.1.2.0/24]}
    endpoints:
      - {name: web1, subnet: web, labels: {role: web, env: prod}}
      - {name: app1, subnet: web, labels: {role: app, env: test}}";

/// A tenant with these rules.
fn policy(rules: &str) -> String {
    tenant(&format!(
        "{POLICED}\n    policy:\n      rules:\n        {rules}\n"
    ))
}

const DB: &str =
    "{name: db, endpoint: db1, protocol: tcp, ports: [5432], to: [blue], pool: [10.1.250.0/28]}";

/// Red's offers and blue's acceptances.
fn offered(offers: &str, accepts: &str) -> String {
    format!(
        "version: 1
tenants:
  - name: red
    subnets: [{{name: data, prefixes: [10.1.1.0/24]}}]
    endpoints: [{{name: db1, subnet: data}}]
    offers: [{offers}]
  - name: blue
    subnets: [{{name: apps, prefixes: [10.1.1.0/24]}}]
    endpoints: [{{name: app1, subnet: apps, addresses: [10.1.1.10]}}]
    accepts: [{accepts}]
  - name: green
"
    )
}

fn errors(text: &str) -> SpecErrors {
    parse("spec.yaml", text.as_bytes()).expect_err("a bad spec was taken")
}

fn good(text: &str) -> Spec {
    parse("spec.yaml", text.as_bytes()).unwrap_or_else(|errors| panic!("{errors}"))
}

/// What a person reads, and one line a finding as `--json` would have it.
fn report(text: &str) -> String {
    errors(text).render(false)
}

fn codes(text: &str) -> Vec<&'static str> {
    errors(text).findings.iter().map(|f| f.code).collect()
}

macro_rules! reports {
    ($($name:ident: $text:expr;)*) => {$(
        #[test]
        fn $name() {
            insta::assert_snapshot!(stringify!($name), report(&$text));
        }
    )*};
}

reports! {
    mistyped_key: "version: 1\ntenant:\n  - name: red\n";
    unknown_key: tenant("    colour: red\n");
    mistyped_word: tenant(&format!("{WEB}\n    endpoints:\n      - {{name: a, subnet: web, state: opne}}\n"));
    missing_key: tenant(&format!("{WEB}\n    endpoints:\n      - {{name: a}}\n"));
    wrong_type: tenant("    subnets: web\n");
    duplicate_key: tenant("    weight: 2\n    weight: 3\n");
    overlapping_prefixes: tenant("
    subnets:
      - {name: web, prefixes: [10.1.0.0/16]}
      - {name: app, prefixes: [10.1.2.0/24]}\n");
    prefix_not_canonical: tenant("    subnets:\n      - {name: web, prefixes: [10.1.1.5/24]}\n");
    address_outside_subnet: tenant(&format!("{WEB}\n    endpoints:\n      - {{name: a, subnet: web, addresses: [10.1.2.10]}}\n"));
    address_of_the_gateway: tenant(&format!("{WEB}\n    endpoints:\n      - {{name: a, subnet: web, addresses: [10.1.1.1]}}\n"));
    address_of_the_network: tenant(&format!("{WEB}\n    endpoints:\n      - {{name: a, subnet: web, addresses: [10.1.1.0]}}\n"));
    address_of_broadcast: tenant(&format!("{WEB}\n    endpoints:\n      - {{name: a, subnet: web, addresses: [10.1.1.255]}}\n"));
    duplicate_address: tenant(&format!("{WEB}\n    endpoints:\n      - {{name: a, subnet: web, addresses: [10.1.1.7]}}\n      - {{name: b, subnet: web, addresses: [10.1.1.7]}}\n"));
    duplicate_mac: tenant(&format!("{WEB}\n    endpoints:\n      - {{name: a, subnet: web, mac: \"02:00:00:00:00:01\"}}\n      - {{name: b, subnet: web, mac: \"02:00:00:00:00:01\"}}\n"));
    multicast_mac: tenant(&format!("{WEB}\n    endpoints:\n      - {{name: a, subnet: web, mac: \"01:00:5e:00:00:01\"}}\n"));
    duplicate_name: "version: 1\ntenants:\n  - name: red\n  - name: red\n";
    segment_below_what_any_switch_takes: tenant(&format!("{WEB}\n    endpoints:\n      - {{name: a, subnet: web, min_gso: 255}}\n      - {{name: b, subnet: web, min_gso: 256}}\n"));
    name_of_the_fabric: "version: 1\ntenants:\n  - name: fabric\n";
    duplicate_id: "version: 1\ntenants:\n  - {name: red, id: 7}\n  - {name: blue, id: 7}\n";
    missing_reference: tenant(&format!("{WEB}\n    endpoints:\n      - {{name: a, subnet: wbe}}\n"));
    missing_uplink: tenant("    outside:\n      - {uplink: wan1, address: [192.0.2.1/24]}\n");
    mtu_too_small_for_ipv6: tenant("    subnets:\n      - {name: web, prefixes: [fd00::/64], mtu: 1200}\n");
    mtu_too_large: tenant("    subnets:\n      - {name: web, prefixes: [10.1.0.0/24], mtu: 70000}\n");
    interface_name_too_long: tenant(&format!("{WEB}\n    endpoints:\n      - {{name: a, subnet: web, attach: {{tap: {{interface: much-too-long-a-name}}}}}}\n"));
    interface_name_with_slash: tenant(&format!("{WEB}\n    endpoints:\n      - {{name: a, subnet: web, attach: {{tap: {{interface: eth/0}}}}}}\n"));
    core_that_is_not_there: "version: 1\nhost: {name: h1, cores: 4}\ntenants:\n  - name: red\n    cores: {isolated: [4]}\n";
    core_for_two: "version: 1\ntenants:\n  - name: red\n    cores: {isolated: [1]}\n  - name: blue\n    cores: {isolated: [1]}\n";
    not_yet: tenant("    placement: {kind: vm}\n");
    zone_that_disagrees: "version: 1\ntenants:\n  - name: red\n    placement: {per: zone, zone: z}\n  - name: blue\n    placement: {per: zone, zone: z, sandbox: off}\n";
    route_by_no_router: tenant(&format!("{WEB}\n    endpoints:\n      - {{name: a, subnet: web}}\n    routes:\n      - {{to: 10.9.0.0/16, via: a}}\n"));
    route_into_a_subnet: tenant(&format!("{WEB}\n    routes:\n      - {{to: 10.1.1.128/25, via: unreachable}}\n"));
    gateway_off_link: tenant("    outside:\n      - {uplink: wan0, address: [192.0.2.10/24], gateway: [198.51.100.1]}\n");
    same_namespace_twice: tenant(&format!("{WEB}\n    endpoints:\n      - {{name: a, subnet: web, attach: {{tap: {{namespace: x}}}}}}\n      - {{name: b, subnet: web, attach: {{tap: {{namespace: x}}}}}}\n"));
    the_namespaces_own_loopback: tenant(&format!("{WEB}\n    endpoints:\n      - {{name: a, subnet: web, attach: {{tap: {{interface: lo}}}}}}\n"));
    ports_without_a_protocol: policy("- {name: a, action: allow, ports: [80], protocol: icmp}");
    ports_of_any_protocol: policy("- {name: a, action: allow, source-ports: 80}");
    port_that_is_none: policy("- {name: a, action: allow, protocol: tcp, ports: [70000, 9-1, http]}");
    no_port_at_all: policy("- {name: a, action: allow, protocol: tcp, ports: []}");
    protocol_mistyped: policy("- {name: a, action: allow, protocol: tpc}\n        - {name: b, action: allow, protocol: 256}");
    message_of_the_other_family: policy("- {name: a, action: allow, protocol: icmp, icmp: [packet-too-big]}\n        - {name: b, action: allow, protocol: icmp6, icmp: [fragmentation-needed]}");
    message_mistyped: policy("- {name: a, action: allow, protocol: icmp, icmp: [echo-requst, 3/300]}");
    message_without_icmp: policy("- {name: a, action: allow, protocol: tcp, icmp: [echo-request]}");
    icmp_of_ipv6: policy("- {name: a, action: allow, protocol: icmp, from: {prefix: [10.0.0.0/8, 'fd00::/8']}}\n        - {name: b, action: allow, protocol: icmp6, to: {prefix: 10.0.0.0/8}}");
    families_that_never_meet: policy("- {name: a, action: allow, from: {prefix: 10.0.0.0/8}, to: {prefix: 'fd00::/8'}}");
    rule_named_twice: policy("- {name: a, action: allow}\n        - {name: a, action: deny}");
    rule_without_an_action: policy("- {name: a}");
    rule_of_a_priority_too_high: policy("- {name: a, action: deny, priority: 65536}");
    selector_of_an_unknown_endpoint: policy("- {name: a, action: allow, to: {endpoint: [web1, wbe2]}}");
    selector_of_an_unknown_subnet: policy("- {name: a, action: allow, to: {subnet: webb}}");
    selector_of_an_unknown_agreement: policy("- {name: a, action: allow, from: {agreement: db}}");
    selector_of_a_label_that_nobody_has: policy("- {name: a, action: allow, from: {label: {role: ap}}}");
    selector_of_labels_that_nobody_has_together: policy("- {name: a, action: allow, from: {label: {role: web, env: test}}}");
    selector_that_is_empty: policy("- {name: a, action: allow, from: {label: {}}}\n        - {name: b, action: allow, from: {endpoint: []}}\n        - {name: c, action: allow, from: {prefix: []}}");
    selector_of_a_subnet_without_endpoints: policy("- {name: a, action: allow, from: {subnet: spare}}");
    selector_that_is_a_word: policy("- {name: a, action: allow, from: web1, to: outsid}");
    selector_of_two_kinds: policy("- {name: a, action: allow, from: {subnet: web, endpoint: web1}}");
    rule_about_nobody: policy("- {name: a, action: deny, from: outside, to: {prefix: [8.8.8.8/32]}}");
    reach_without_an_answer: tenant(&format!("{POLICED}\n    policy:\n      reach: [{{from: outside, to: {{endpoint: web9}}}}]\n"));
    default_that_is_no_action: tenant(&format!("{POLICED}\n    policy: {{default: {{inside: yes, outward: deny}}}}\n"));
    guardrail_that_names_a_tenants_thing: "version: 1\nguardrails:\n  - {name: a, action: deny, to: {endpoint: web1}}\ntenants:\n  - name: red\n";
    guardrail_of_an_unknown_tenant: "version: 1\nguardrails:\n  - {name: a, action: deny, tenants: [redd]}\n  - {name: a, action: deny, tenants: []}\ntenants:\n  - name: red\n";
    too_many_connections: tenant(&format!("{WEB}\n    endpoints:\n      - {{name: a, subnet: web, connections: 1048577}}\n"));
    label_that_is_no_name: tenant(&format!("{WEB}\n    endpoints:\n      - {{name: a, subnet: web, labels: {{'a b': c, d: [e]}}}}\n"));
    offer_of_what_is_not_there: offered("{name: db, endpoint: db2, protocol: tcp, ports: [1], to: [bleu], pool: [10.1.250.0/28]}", "");
    offer_to_oneself: offered("{name: db, endpoint: db1, protocol: tcp, ports: [1], to: [red], pool: [10.1.250.0/28]}", "");
    offer_of_another_protocol: offered("{name: db, endpoint: db1, protocol: sctp, ports: [1], to: [blue], pool: [10.1.250.0/28]}", "");
    offer_of_rings_by_udp: offered("{name: db, endpoint: db1, protocol: udp, ports: [1], to: [blue], pool: [10.1.250.0/28], rings: yes}", "");
    offer_that_lacks_everything: offered("{name: db, endpoint: db1, protocol: tcp, ports: [], to: [], pool: []}", "");
    offer_until_no_day: offered("{name: db, endpoint: db1, protocol: tcp, ports: [1], to: [blue], pool: [10.1.250.0/28], until: 2027-02-29}", "");
    pool_in_a_subnet: offered("{name: db, endpoint: db1, protocol: tcp, ports: [1], to: [blue], pool: [10.1.1.128/28]}", "");
    pool_of_two_offers: offered("{name: db, endpoint: db1, protocol: tcp, ports: [1], to: [blue], pool: [10.1.250.0/28]}, {name: dc, endpoint: db1, protocol: tcp, ports: [2], to: [blue], pool: [10.1.250.8/29]}", "");
    pool_too_large_and_too_many: offered("{name: db, endpoint: db1, protocol: tcp, ports: [1], to: [blue], pool: [10.0.0.0/15, 10.4.0.0/16, 'fd00::/63']}", "");
    pool_for_too_many_tenants: offered("{name: db, endpoint: db1, protocol: tcp, ports: [1], to: [blue, green], pool: [10.1.250.1/32]}", "");
    pool_of_another_family: offered("{name: db, endpoint: db1, protocol: tcp, ports: [1], to: [blue], pool: ['fd00:1:250::/64']}", "");
    agreements_of_one_name: offered("{name: db, endpoint: db1, protocol: tcp, ports: [1], to: [blue], pool: [10.1.250.0/28]}, {name: db, endpoint: db1, protocol: udp, ports: [1], to: [blue, blue], pool: [10.1.251.0/28]}", "");
    acceptance_of_oneself: offered(DB, "{name: x, from: blue, service: db, as: 10.1.200.10}");
    acceptance_of_an_unknown_tenant: offered(DB, "{name: x, from: rde, service: db, as: 10.1.200.10}");
    acceptance_as_an_endpoint: offered(DB, "{name: x, from: red, service: db, as: 10.1.1.10}");
    acceptance_as_the_gateway: offered(DB, "{name: x, from: red, service: db, as: 10.1.1.1}");
    acceptance_as_no_host: offered(DB, "{name: x, from: red, service: db, as: 10.1.1.255}, {name: y, from: red, service: dc, as: 224.0.0.1}");
    acceptance_as_the_same_twice: offered(DB, "{name: x, from: red, service: db, as: 10.1.200.10}, {name: y, from: red, service: dc, as: [10.1.200.10, 10.1.200.11]}");
    acceptance_of_the_same_twice: offered(DB, "{name: x, from: red, service: db, as: 10.1.200.10}, {name: y, from: red, service: db, as: 10.1.200.11}");
    acceptance_of_another_family: offered(DB, "{name: x, from: red, service: db, as: 'fd00::1'}");
    acceptance_for_no_endpoints: offered(DB, "{name: x, from: red, service: db, as: 10.1.200.10, endpoints: outside}, {name: y, from: red, service: dc, as: 10.1.200.11, endpoints: {label: {a: b}}}");
    route_that_is_not_ones_own: offered("{name: lan, route: [10.1.1.0/24, 10.1.1.0/25, 10.7.0.0/16], users: [10.2.0.0/16], to: [blue]}", "");
    route_that_lacks_its_other_half: offered("{name: lan, route: [10.1.1.0/24], to: [blue]}", "{name: x, from: red, service: db, users: [10.1.1.0/24]}");
    route_to_several: offered("{name: lan, route: [10.1.1.0/24], users: [10.2.0.0/16], to: [blue, green], protocol: icmp6, ports: [80]}", "");
    route_of_a_service: offered("{name: lan, endpoint: db1, route: [10.1.1.0/24], users: [10.2.0.0/16], to: [blue]}, {name: db, endpoint: db1, protocol: tcp, ports: [1], to: [blue], pool: [10.1.250.0/28], both: yes}", "{name: x, from: red, service: db, as: 10.1.200.10, route: [10.5.0.0/16], users: [10.1.1.0/24]}");
    route_where_one_has_something_oneself: offered("{name: lan, route: [10.1.1.0/24], users: [10.1.0.0/16, 10.3.0.0/16], to: [blue]}, {name: wan, route: [10.1.1.0/24], users: [10.3.1.0/24], to: [green]}, {name: db, endpoint: db1, protocol: tcp, ports: [1], to: [blue], pool: [10.3.250.0/28]}", "{name: x, from: red, service: lan, route: [10.1.1.128/25], users: [10.1.1.0/24]}");
    route_that_is_a_service_there: offered(&format!("{DB}, {{name: lan, route: [10.1.1.0/24], users: [10.2.0.0/16], to: [blue]}}"), "{name: x, from: red, service: db, route: [10.5.0.0/16], users: [10.1.1.0/24]}, {name: y, from: red, service: lan, as: 10.1.200.11}");
    route_that_both_name_nothing_of: offered("{name: lan, route: [10.1.1.0/24], users: [10.2.0.0/16], to: [blue]}", "{name: x, from: red, service: lan, route: [10.5.0.0/16], users: [10.1.1.0/24]}");
    vlan_that_is_none: tenant("    outside:\n      - {uplink: wan0, vlan: 4095, address: [192.0.2.1/24]}\n");
    vlan_of_two: format!("{}\n  - name: blue\n    outside:\n      - {{uplink: wan0, vlan: 7, address: [192.0.2.1/24]}}\n", tenant("    outside:\n      - {uplink: wan0, vlan: 7, address: [192.0.2.2/24]}\n"));
    vlan_of_a_subnet_and_a_way_outside: tenant("    outside:\n      - {uplink: wan0, vlan: 7, address: [192.0.2.1/24]}\n    subnets:\n      - {name: a, prefixes: [10.1.1.0/24], segment: {technology: vlan, uplink: wan0, vlan: 7}}\n");
    segment_of_no_kind: tenant("    subnets:\n      - {name: a, prefixes: [10.1.1.0/24], segment: remote}\n      - {name: b, prefixes: [10.1.2.0/24], segment: {technology: vxlan, uplink: wan0, vlan: 7}}\n      - {name: c, prefixes: [10.1.3.0/24], segment: {technology: vlan, uplink: wan0}}\n");
    segment_that_its_uplink_does_not_carry: tenant("    subnets:\n      - {name: a, prefixes: [10.1.1.0/24], mtu: 9000, segment: {technology: vlan, uplink: wan0, vlan: 7}}\n      - {name: b, prefixes: [10.1.2.0/24], segment: {technology: vlan, uplink: wan9, vlan: 0}}\n");
    nat_without_ipv4: tenant("    outside:\n      - {uplink: wan0, address: ['2001:db8::1/64'], nat: on}\n");
    nat_blocks_that_do_not_fit: tenant(&format!("{POLICED}\n    outside:\n      - {{uplink: wan0, address: [192.0.2.1/24], nat: on, ports-per-endpoint: 32257}}\n"));
    nat_ports_without_nat: tenant("    outside:\n      - {uplink: wan0, address: [192.0.2.1/24], ports-per-endpoint: 1024}\n");
    not_yaml: "version: 1\ntenants: [\n  - name: red\n";
    empty: "# nothing\n";
    two_documents: "version: 1\n---\nversion: 1\n";
    another_version: "version: 2\n";
    workers_without_cores_of_their_own: format!("{}\n  - name: blue\n    workers: 2\n    cores: {{isolated: [2, 2]}}\n", tenant("    workers: 3\n    cores: {isolated: [1]}\n"));
    workers_out_of_range: tenant("    workers: 9\n    memory: 256MiB\n");
    workers_without_memory: tenant("    workers: 6\n");
    sockets_out_of_range: tenant(&format!("{WEB}\n    endpoints:\n      - {{name: a, subnet: web, attach: {{circuits: {{sockets: 0}}}}}}\n      - {{name: b, subnet: web, attach: {{circuits: {{sockets: 16385}}}}}}\n"));
    setups_out_of_range: tenant(&format!("{WEB}\n    endpoints:\n      - {{name: a, subnet: web, attach: {{circuits: {{setups: 0}}}}}}\n      - {{name: b, subnet: web, attach: {{veth: {{circuits: {{setups: 1000001}}}}}}}}\n"));
    memory_of_a_machine_out_of_range: tenant(&format!("{WEB}\n    endpoints:\n      - {{name: a, subnet: web, attach: {{vhost: {{memory: 1023KiB}}}}}}\n      - {{name: b, subnet: web, attach: {{vhost: {{memory: 1025GiB}}}}}}\n"));
    circuits_with_a_rate: tenant(&format!("    rate: 1Gbit\n{WEB}\n    endpoints:\n      - {{name: a, subnet: web, rate: {{packets: 9}}, attach: circuits}}\n      - {{name: b, subnet: web, rate: 1Gbit, attach: {{veth: {{circuits: {{metered: on}}}}}}}}\n      - {{name: c, subnet: web, rate: {{from: 1Gbit, to: 2Gbit}}, attach: {{circuits: {{metered: on}}}}}}\n"));
    rates_that_let_nothing_through: tenant(&format!("    rate: {{to: 1kbit}}\n{WEB}\n    endpoints:\n      - {{name: a, subnet: web, weight: 0, rate: {{from: {{packets: 0}}, to: {{burst: 1MiB}}, bits: 1Mbit}}}}\n"));
    classes_that_share_a_value: "version: 1\nclasses:\n  - {name: voice, dscp: [ef, 46], strict: 1kbit}\n  - {name: voice, dscp: [af44, 64], weight: 256}\n  - {name: none, dscp: []}\n";
    unit_unknown: tenant("    guarantee: 100MB\n");
    several_at_once: tenant("
    weight: 300
    subnets:
      - {name: web, prefixes: [10.1.1.0/33], colour: 1}
      - {name: app, prefixes: [10.2.0.0/16], gateway: 10.3.0.1, mtu: big}
    endpoints:
      - {name: 'a b', subnet: web}
      - {name: b, subnet: app, mac: 02:00}\n");
}

#[test]
fn rates_are_one_way_or_both() {
    let spec = good(&tenant(&format!(
        "    rate: {{to: 1Gbit}}
{WEB}
    endpoints:
      - {{name: a, subnet: web, rate: {{bits: 8Mbit, packets: 9}}}}
      - {{name: b, subnet: web, rate: 80Mbit, weight: 7, guarantee: 8Mbit}}
      - {{name: c, subnet: web, rate: {{from: 8Mbit, to: {{bits: 800Gbit, burst: 1MiB}}}}}}
"
    )));
    let tenant = &spec.tenants[0];
    let least = 128 << 10;
    assert_eq!(tenant.meter_from(), (0, 0, 0));
    assert_eq!(tenant.meter_to(), (125_000_000, 1_250_000, 0));
    let [a, b, c] = &tenant.endpoints[..] else {
        panic!("three endpoints");
    };
    assert_eq!(a.meter_from(), (1_000_000, least, 9));
    assert_eq!((a.meter_to(), a.weight()), ((0, 0, 0), 1));
    assert_eq!(b.meter_from(), (10_000_000, least, 0));
    assert_eq!((b.weight(), b.guarantee_bits()), (7, 8_000_000));
    assert_eq!(c.meter_from(), (1_000_000, least, 0));
    assert_eq!(c.meter_to(), (100_000_000_000, 1 << 20, 0));
}

#[test]
fn classes_list_values_by_number_and_by_name() {
    let text = "version: 1
classes:
  - {name: voice, dscp: [ef, cs5], strict: 2Mbit}
  - {name: bulk, dscp: [8, af11, AF43], weight: 3}
";
    let spec = good(text);
    let [voice, bulk] = &spec.classes[..] else {
        panic!("two classes");
    };
    assert_eq!(voice.values(), 1 << 46 | 1 << 40);
    assert_eq!((voice.weight(), voice.strict()), (1, (250_000, 16_384)));
    assert_eq!(bulk.values(), 1 << 8 | 1 << 10 | 1 << 38);
    assert_eq!((bulk.weight(), bulk.strict()), (3, (0, 0)));
    for bad in ["64", "cs8", "af10", "af45", "af51", "cs", "-1", "efe"] {
        assert!(bad.parse::<crate::Dscp>().is_err(), "{bad}");
    }
}

#[test]
fn a_finding_says_file_line_and_column() {
    let errors = errors("version: 1\ntenants:\n  - name: red\n    colour: 1\n");
    let finding = &errors.findings[0];
    assert_eq!(
        (finding.file(), finding.line(), finding.column()),
        ("spec.yaml", 4, 5)
    );
    assert_eq!(
        serde_json::to_value(finding).expect("json"),
        serde_json::json!({
            "file": "spec.yaml", "line": 4, "column": 5, "code": "unknown-key",
            "message": finding.message, "help": finding.help,
        })
    );
}

#[test]
fn columns_count_characters() {
    let errors = errors("version: 1\ntenants: [{name: röd, colour: 1}]\n");
    // The name is refused at 18, the key after it has one byte more than characters.
    assert_eq!(
        errors
            .findings
            .iter()
            .map(|f| f.column())
            .collect::<Vec<_>>(),
        [18, 23]
    );
}

#[test]
fn a_large_file_is_refused_by_its_size() {
    let text = vec![b'#'; 100 << 20];
    let errors = parse("big.yaml", &text).expect_err("taken");
    assert_eq!(errors.findings[0].code, "too-large");
    assert!(
        parse("edge.yaml", &vec![b' '; MAX_BYTES])
            .expect_err("empty")
            .findings[0]
            .code
            == "empty"
    );
}

#[test]
fn bytes_that_are_no_text() {
    let errors = parse("x", b"version: 1\n\xff").expect_err("taken");
    assert_eq!(
        (errors.findings[0].code, errors.findings[0].line()),
        ("utf-8", 2)
    );
}

#[test]
fn a_bomb_of_aliases_is_refused_before_it_expands() {
    let mut text = String::from("a: &a [x,x,x,x,x,x,x,x,x,x]\n");
    for (this, last) in "bcdefghijk".chars().zip("abcdefghij".chars()) {
        text += &format!(
            "{this}: &{this} [{}]\n",
            vec![format!("*{last}"); 10].join(",")
        );
    }
    assert!(
        matches!(codes(&text)[..], ["yaml-bomb"] | ["yaml-size"]),
        "{:?}",
        codes(&text)
    );
}

#[test]
fn a_deep_bomb_is_refused() {
    let deep = format!("{}x{}", "[".repeat(10_000), "]".repeat(10_000));
    assert!(codes(&deep).iter().all(|c| c.starts_with("yaml")));
    let mut chain = String::from("k0: &a0 [x]\n");
    for i in 1..200 {
        chain += &format!("k{i}: &a{i} [*a{}]\n", i - 1);
    }
    assert_eq!(codes(&chain), ["yaml-bomb"]);
}

#[test]
fn an_alias_of_itself_is_refused() {
    assert!(!codes("a: &a [*a]\n").is_empty());
}

#[test]
fn many_values_and_many_keys_are_refused() {
    assert_eq!(
        codes(&format!("a: [{}]", "x,".repeat(1 << 20))),
        ["yaml-size"]
    );
    let keys: String = (0..1000).map(|i| format!("k{i}: 1\n")).collect();
    assert_eq!(codes(&keys), ["yaml-size"]);
}

#[test]
fn too_many_tenants_and_endpoints() {
    let tenants: String = (0..1025).map(|i| format!("  - name: t{i}\n")).collect();
    assert_eq!(
        codes(&format!("version: 1\ntenants:\n{tenants}")),
        ["too-many"]
    );
    let endpoints: String = (0..4097)
        .map(|i| format!("      - {{name: e{i}, subnet: web}}\n"))
        .collect();
    let text = tenant("    subnets: [{name: web, prefixes: [10.0.0.0/8]}]\n")
        + "\n    endpoints:\n"
        + &endpoints;
    assert_eq!(codes(&text), ["too-many"]);
}

#[test]
fn what_a_spec_says_does_nothing_to_the_terminal_that_shows_it() {
    // By an escape of YAML's and, in the snippet, as the bytes that they are.
    let escaped = tenant("    \"\\e[2J\\u202e\\x9b31m\": 3");
    let direct = tenant("    colour: \u{7f}\u{9b}2J\u{202e}red");
    let broken = "version: \u{1b}[2J1\ntenants: [\n".to_owned();
    for text in [escaped, direct, broken] {
        let errors = errors(&text);
        for said in [errors.to_string(), errors.render(false)] {
            let acts = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
            assert!(!said.contains(acts), "{said:?}");
        }
    }
}

#[test]
fn no_more_than_a_hundred_findings() {
    let text: String = (0..200).map(|i| format!("  - colour{i}: 1\n")).collect();
    let errors = errors(&format!("version: 1\ntenants:\n{text}"));
    assert_eq!((errors.findings.len(), errors.more), (100, 300));
}

#[test]
fn anchors_and_merge_keys_save_typing() {
    let spec = good(&tenant(&format!(
        "{WEB}\n    endpoints:\n      - &web {{name: a, subnet: web, mtu: 1400, offloads: [csum]}}\n      - {{<<: *web, name: b}}\n"
    )));
    let [a, b] = &spec.tenants[0].endpoints[..] else {
        panic!("two endpoints")
    };
    assert_eq!((a.mtu, b.mtu, b.name.as_str()), (a.mtu, a.mtu, "b"));
}

#[test]
fn what_is_absent_has_its_default() {
    let spec = good(&tenant(&format!(
        "{WEB}\n    endpoints: [{{name: a, subnet: web}}]\n"
    )));
    let tenant = &spec.tenants[0];
    assert_eq!(
        (tenant.weight(), tenant.sandbox(), tenant.channel_bytes()),
        (1, true, 1 << 20)
    );
    let subnet = &tenant.subnets[0];
    assert_eq!(
        (
            subnet.mtu(),
            subnet.dhcp(),
            subnet.ra(),
            subnet.slaac(),
            subnet.lease_s()
        ),
        (1500, true, true, false, 3600)
    );
    let prefix = subnet.prefix4().expect("IPv4");
    assert_eq!(subnet.gateway_in(&prefix).to_string(), "10.1.1.1");
    let endpoint = &tenant.endpoints[0];
    assert_eq!(
        endpoint.interface(&tenant.name),
        Some(("red-a".into(), "eth0".into(), true))
    );
    assert_eq!(
        (endpoint.min_gso(), endpoint.meter_from()),
        (536, (0, 0, 0))
    );
}

#[test]
fn the_smallest_segment_is_one_that_the_data_path_obeys() {
    let with = |min_gso: u32| {
        tenant(&format!(
            "{WEB}\n    endpoints: [{{name: a, subnet: web, min_gso: {min_gso}}}]\n"
        ))
    };
    let least = u32::from(wire::offload::MIN_GSO_FLOOR);
    assert_eq!(good(&with(least)).tenants[0].endpoints[0].min_gso(), least);
    assert_eq!(codes(&with(least - 1)), ["range"]);
    assert_eq!(codes(&with(65_536)), ["range"]);
}

#[test]
fn two_tenants_may_have_the_same_everything() {
    let one = |name: &str| {
        format!(
            "  - name: {name}\n    subnets: [{{name: web, prefixes: [10.1.1.0/24]}}]\n    endpoints: [{{name: a, subnet: web, addresses: [10.1.1.9], mac: \"02:00:00:00:00:09\"}}]\n"
        )
    };
    good(&format!(
        "version: 1\ntenants:\n{}{}",
        one("red"),
        one("blue")
    ));
}

#[test]
fn layout_changes_nothing() {
    let spaced = "\n\nversion: 1   # the first\ntenants:\n\n  -  name:   red\n";
    assert!(good(spaced) == good("{version: 1, tenants: [{name: red}]}"));
}

#[test]
fn too_many_of_a_policy_is_refused_before_it_is_looked_at() {
    let many = |n: usize, of: &dyn Fn(usize) -> String| -> String {
        (0..n).map(of).collect::<Vec<_>>().join(", ")
    };
    let rules = |n| {
        let rules = many(n, &|i| format!("{{name: r{i}, action: deny}}"));
        tenant(&format!("{POLICED}\n    policy: {{rules: [{rules}]}}\n"))
    };
    good(&rules(crate::MAX_RULES));
    assert_eq!(codes(&rules(crate::MAX_RULES + 1)), ["too-many"]);
    let ports = |n| {
        let ports = many(n, &|i| i.to_string());
        policy(&format!(
            "- {{name: a, action: allow, protocol: tcp, ports: [{ports}]}}"
        ))
    };
    good(&ports(crate::MAX_PORTS));
    assert_eq!(codes(&ports(crate::MAX_PORTS + 1)), ["too-many"]);
    let labels = |n| {
        let labels = many(n, &|i| format!("l{i}: v"));
        tenant(&format!(
            "{WEB}\n    endpoints: [{{name: a, subnet: web, labels: {{{labels}}}}}]\n"
        ))
    };
    good(&labels(crate::MAX_LABELS));
    assert_eq!(codes(&labels(crate::MAX_LABELS + 1)), ["too-many"]);
    let rails = |n| {
        let rails = many(n, &|i| format!("{{name: r{i}, action: deny}}"));
        format!("version: 1\nguardrails: [{rails}]\n")
    };
    good(&rails(crate::MAX_GUARDRAILS));
    assert_eq!(codes(&rails(crate::MAX_GUARDRAILS + 1)), ["too-many"]);
    let reach = |n| {
        let reach = many(n, &|_| "{allowed: no}".into());
        tenant(&format!("{POLICED}\n    policy: {{reach: [{reach}]}}\n"))
    };
    good(&reach(crate::MAX_REACH));
    assert_eq!(codes(&reach(crate::MAX_REACH + 1)), ["too-many"]);
    let offers = |n| {
        let offer = |i| {
            format!(
                "{{name: o{i}, endpoint: db1, protocol: udp, ports: 53, to: blue, pool: 10.2.0.{i}/32}}"
            )
        };
        offered(&many(n, &offer), "")
    };
    good(&offers(crate::MAX_OFFERS));
    assert_eq!(codes(&offers(crate::MAX_OFFERS + 1)), ["too-many"]);
    let accepts = |n| {
        let accept = |i| format!("{{name: a{i}, from: red, service: s{i}, as: 10.2.0.{i}}}");
        offered(DB, &many(n, &accept).replace("10.2.0.0}", "10.3.0.1}"))
    };
    good(&accepts(crate::MAX_ACCEPTS));
    assert_eq!(codes(&accepts(crate::MAX_ACCEPTS + 1)), ["too-many"]);
    // Each that is accepted inside one switch takes two tags.
    let most = crate::MAX_AGREEMENTS_INSIDE;
    let near = |n: usize| {
        let tenant = |t: usize| {
            let accept = |i| format!("{{name: a{i}, from: t0, service: s{i}, as: 10.2.0.{i}}}");
            let own = (n - t * 128).min(128);
            format!(
                "{{name: t{}, placement: {{per: host}}, accepts: [{}]}}",
                t + 1,
                many(own, &accept).replace("10.2.0.0}", "10.3.0.1}")
            )
        };
        let tenants: Vec<String> = (0..n.div_ceil(128)).map(tenant).collect();
        format!(
            "version: 1\ntenants: [{{name: t0, placement: {{per: host}}}}, {}]\n",
            tenants.join(", ")
        )
    };
    assert!(good(&near(most)).tenants.len() > 1);
    assert_eq!(codes(&near(most + 1)), ["too-many"]);
    // Apart, they take one.
    good(&near(most + 1).replacen("{name: t0, placement: {per: host}}", "{name: t0}", 1));
}

#[test]
fn a_policy_has_its_defaults() {
    use crate::{Action::*, Defaults};
    let of = |lines: &str| good(&tenant(lines)).tenants[0].defaults();
    assert_eq!(of(""), Defaults::OPEN);
    let closed = Defaults {
        inside: Allow,
        inbound: Deny,
        outbound: Allow,
    };
    assert_eq!(of("    policy: {rules: []}\n"), closed);
    let one = Defaults {
        inside: Deny,
        inbound: Deny,
        outbound: Deny,
    };
    assert_eq!(of("    policy: {default: deny}\n"), one);
    let some = of("    policy: {default: {outbound: deny}}\n");
    assert_eq!(
        (some.inside, some.inbound, some.outbound),
        (Allow, Deny, Deny)
    );
    let spec = good(&policy(
        "- {name: a, action: allow}\n        - {name: b, action: deny, priority: 999}",
    ));
    let policy = spec.tenants[0].policy.as_ref().expect("policy");
    let order: Vec<&str> = policy.in_order().iter().map(|r| r.name.as_str()).collect();
    assert_eq!(order, ["b", "a"]);
    assert!(policy.rules[0].stateful() && !policy.rules[0].log());
}

#[test]
fn either_side_of_an_agreement_may_come_first_or_alone() {
    let both = offered(DB, "{name: x, from: red, service: db, as: 10.1.200.10}");
    good(&both);
    good(&offered(
        "",
        "{name: x, from: red, service: db, as: 10.1.200.10}",
    ));
    good(&offered(DB, ""));
    good(&offered(
        &DB.replace("[blue]", "[green]"),
        "{name: x, from: red, service: db, as: 10.1.200.10}",
    ));
}

#[test]
fn a_day_is_the_moment_that_it_begins() {
    let until = |text: &str| text.parse::<crate::Until>().map(|u| u.0);
    assert_eq!(until("1970-01-01"), Ok(0));
    assert_eq!(until("2000-02-29"), Ok(951_782_400));
    assert_eq!(until("2027-01-01T12:30Z"), Ok(1_798_806_600));
    assert_eq!(until("2027-01-01 12:30:01Z"), Ok(1_798_806_601));
    for bad in [
        "2100-02-29",
        "1969-12-31",
        "2027-13-01",
        "2027-00-01",
        "2027-01-00",
        "2027-1-1",
        "2027-01-01T12:30",
        "2027-01-01T24:00Z",
        "2027-01-01T12:60Z",
        "tomorrow",
        "2027-01-01T1:00Z",
        "2027-01-01-01",
        "2027-01-01T12:30:01:02Z",
    ] {
        assert!(until(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_pool_is_shared_out_by_the_place_of_its_tenants() {
    let spec = good(&offered(
        "{name: db, endpoint: db1, protocol: tcp, ports: [1], to: [green, blue], pool: [10.1.250.0/28, 'fd00::/64']}",
        "",
    ));
    let offer = &spec.tenants[0].offers[0];
    let part = |tenant: &str| -> Vec<String> {
        let name = tenant.parse().expect("name");
        offer.pool_of(&name).iter().map(|p| p.to_string()).collect()
    };
    assert_eq!(part("green"), ["10.1.250.0/29", "fd00::/65"]);
    assert_eq!(part("blue"), ["10.1.250.8/29", "fd00::8000:0:0:0/65"]);
    assert!(part("red").is_empty());
}

mod arbitrary {
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = crate::parse("x", &bytes).map_err(|e| e.render(false));
        }

        #[test]
        fn a_moment_is_read_as_it_is_written(seconds in 0u64..253_402_300_800) {
            let until = crate::Until(seconds);
            prop_assert_eq!(until.to_string().parse(), Ok(until));
        }

        #[test]
        fn mutations_of_the_reference_never_panic(
            at in 0usize..12000, cut in 0usize..40, put in "[-:,{}\\[\\]&*!|>'\"#%a-z0-9 /.\n]{0,12}",
        ) {
            let mut text = include_str!("../../../examples/reference.yaml").to_owned();
            let start = (0..=at.min(text.len())).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
            let end = (start + cut).min(text.len());
            text.replace_range(start..end, &put);
            if let Err(errors) = crate::parse("x", text.as_bytes()) {
                prop_assert!(!errors.findings.is_empty());
                let _ = (errors.render(false), errors.to_string());
            }
        }

        #[test]
        fn a_prefix_contains_what_its_range_does(a in any::<u128>(), b in any::<u128>(), len in 0u8..=128) {
            use core::net::{IpAddr, Ipv6Addr};
            let network = crate::Prefix::network_of(IpAddr::V6(Ipv6Addr::from_bits(a)), len);
            let prefix = crate::Prefix { network, len };
            let (first, last) = prefix.range();
            let other = Ipv6Addr::from_bits(b);
            let inside = (first..=last).contains(&other.octets());
            prop_assert_eq!(prefix.contains(IpAddr::V6(other)), inside);
        }
    }
}

/// What the reader does for each name or prefix against all others stays bounded.
#[test]
fn a_bomb_of_routes_is_refused_by_its_size() {
    let routes = |n: usize, via: &str| {
        let mut text = format!(
            "{WEB}\n    endpoints:\n      - {{name: r, subnet: web, roles: [router], prefixes: [20.0.0.0/8]}}\n    routes:\n"
        );
        for i in 0..n {
            text += &format!(
                "      - {{to: 20.{}.{}.{}/32, via: {via}}}\n",
                i >> 16,
                i >> 8 & 255,
                i & 255
            );
        }
        tenant(&text)
    };
    good(&routes(crate::MAX_ROUTES, "r"));
    assert_eq!(codes(&routes(crate::MAX_ROUTES + 1, "r")), ["too-many"]);
    // Nothing else is looked at then.
    assert_eq!(codes(&routes(5_000, "nobody")), ["too-many"]);
    let some = errors(&routes(300, "nobody"));
    assert_eq!((some.findings.len(), some.more), (100, 200));
}

/// So that whoever comments out what is behind a key has the default, and of two ways of writing nothing none is another's.
#[test]
fn a_key_with_nothing_behind_it_is_as_if_it_was_not_written() {
    let with = |rest: &str| {
        tenant(&format!(
            "{WEB}\n    endpoints:\n      - name: a\n        subnet: web\n{rest}"
        ))
    };
    let without = good(&with(""));
    for key in ["attach", "rate", "state", "addresses", "mtu", "roles"] {
        for nothing in ["", " ~", " null"] {
            let text = with(&format!("        {key}:{nothing}\n"));
            assert!(good(&text) == without, "{text}");
        }
    }
    assert_eq!(codes(&with("        attach: {circuits: }\n")), ["type"]);
}
