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
    not_yaml: "version: 1\ntenants: [\n  - name: red\n";
    empty: "# nothing\n";
    two_documents: "version: 1\n---\nversion: 1\n";
    another_version: "version: 2\n";
    rate_that_drops_all: tenant(&format!("{WEB}\n    endpoints:\n      - {{name: a, subnet: web, rate: {{bits: 1Mbit, burst: 1500}}}}\n"));
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
        endpoint.tap(&tenant.name),
        Some(("red-a".into(), "eth0".into(), true))
    );
    assert_eq!((endpoint.min_gso(), endpoint.meter()), (536, (0, 0, 0)));
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

mod arbitrary {
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = crate::parse("x", &bytes).map_err(|e| e.render(false));
        }

        #[test]
        fn mutations_of_the_reference_never_panic(
            at in 0usize..6000, cut in 0usize..40, put in "[-:,{}\\[\\]&*!|>'\"#%a-z0-9 /.\n]{0,12}",
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
