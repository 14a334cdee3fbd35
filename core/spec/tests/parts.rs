//! Several documents as one spec.

use core_spec as spec;
use proptest::prelude::*;
use spec::{Aside, Parts, Spec, Written};

const HOST: &str = "version: 1
tenants:
  - name: red
    subnets: [{name: web, prefixes: [10.1.1.0/24]}]
    endpoints: [{name: a, subnet: web}]
    accepts: [{name: lent, from: blue, service: db, as: [10.1.200.10]}]
  - name: blue
    self-managed: {endpoints: 2, rules: 1}
";
const BLUE: &str = "version: 1
tenants:
  - name: blue
    subnets: [{name: data, prefixes: [10.1.1.0/24]}]
    endpoints: [{name: db1, subnet: data}]
    policy: {rules: [{name: users, action: allow, from: {agreement: db}, to: {endpoint: db1}}]}
    offers: [{name: db, endpoint: db1, protocol: tcp, ports: [1], to: [red], pool: [10.1.250.0/28]}]
";

fn parts(host: &str, documents: &[(&str, &str)]) -> Parts {
    let written = |file: &str, text: &str| Written {
        file: file.into(),
        text: text.into(),
    };
    Parts {
        provider: written("host.yaml", host),
        documents: (documents.iter())
            .map(|(tenant, text)| ((*tenant).to_owned(), written("own.yaml", text)))
            .collect(),
        ..Parts::default()
    }
}

fn read(parts: &Parts) -> Result<Spec, Vec<String>> {
    spec::parse("host.yaml", parts.joined().as_bytes()).map_err(|errors| {
        let findings = errors.findings.iter();
        findings
            .map(|f| {
                format!(
                    "{}:{}:{} {} {}",
                    f.file(),
                    f.line(),
                    f.column(),
                    f.code,
                    f.message
                )
            })
            .collect()
    })
}

fn wrong(host: &str, blue: &str) -> Vec<String> {
    read(&parts(host, &[("blue", blue)]))
        .err()
        .unwrap_or_default()
}

#[test]
fn documents_say_what_one_spec_would() {
    let joined = read(&parts(HOST, &[("blue", BLUE)])).unwrap();
    let own: String = BLUE
        .lines()
        .skip(3)
        .map(|line| format!("{line}\n"))
        .collect();
    let one = format!("{HOST}{own}");
    let one = one.replace("    self-managed: {endpoints: 2, rules: 1}\n", "");
    let mut one = spec::parse("one.yaml", one.as_bytes()).unwrap();
    one.document.tenants[1].self_managed = joined.tenants[1].self_managed.clone();
    assert!(one == joined);
    // The provider's alone is good as well, and one of nobody says nothing.
    assert!(
        read(&parts(HOST, &[])).unwrap().tenants[1]
            .endpoints
            .is_empty()
    );
    let other = read(&parts(HOST, &[("red", BLUE), ("green", BLUE)])).unwrap();
    assert!(other == read(&parts(HOST, &[])).unwrap());
}

#[test]
fn places_are_those_of_the_document() {
    let bad = BLUE.replace("subnet: data}", "subnet: dat}");
    assert_eq!(
        wrong(HOST, &bad)[0],
        "blue:own.yaml:5:37 missing-reference there is no subnet `dat`"
    );
    let host = HOST.replace("subnet: web}", "subnet: wep}");
    assert_eq!(
        wrong(&host, BLUE)[0],
        "host.yaml:5:35 missing-reference there is no subnet `wep`"
    );
    for (bad, place) in [
        ("{", "blue:own.yaml:1:1 yaml"),
        ("", "blue:own.yaml:1:1 empty"),
    ] {
        assert!(
            wrong(HOST, bad)[0].starts_with(place),
            "{:?}",
            wrong(HOST, bad)
        );
    }
}

#[test]
fn own_document_of_another_or_about_the_host() {
    for (key, bad) in [
        (
            "host",
            BLUE.replace("tenants:", "host: {name: x}\ntenants:"),
        ),
        (
            "uplinks",
            BLUE.replace("tenants:", "uplinks: [{name: x, interface: y}]\ntenants:"),
        ),
        (
            "guardrails",
            BLUE.replace(
                "tenants:",
                "guardrails: [{name: x, action: allow}]\ntenants:",
            ),
        ),
        ("red", BLUE.replace("name: blue", "name: red")),
        ("id", BLUE.replace("name: blue", "name: blue\n    id: 7")),
        (
            "placement",
            BLUE.replace("name: blue", "name: blue\n    placement: {sandbox: off}"),
        ),
        (
            "memory",
            BLUE.replace("name: blue", "name: blue\n    memory: 1GiB"),
        ),
        (
            "outside",
            BLUE.replace(
                "name: blue",
                "name: blue\n    outside: [{uplink: x, address: [192.0.2.1/24]}]",
            ),
        ),
        (
            "self-managed",
            BLUE.replace("name: blue", "name: blue\n    self-managed: {endpoints: 9}"),
        ),
    ] {
        let found = wrong(HOST, &bad);
        let sentence = format!("`{key}` is not the tenant's to state");
        assert!(
            found.iter().any(|one| one.ends_with(&sentence)),
            "{key}: {found:?}"
        );
    }
    assert!(!wrong(HOST, &format!("{BLUE}  - name: red\n")).is_empty());
    assert!(!wrong(HOST, "version: 1\ntenants: []\n").is_empty());
}

#[test]
fn every_key_is_somebodys_to_state() {
    // Of the format as it is: who adds a key has to say here whose it is.
    let schema: serde_json::Value = serde_json::from_str(&spec::json_schema()).unwrap();
    let keys = |of: &serde_json::Value| -> Vec<String> {
        let properties = of["properties"].as_object().unwrap();
        properties.keys().cloned().collect()
    };
    let document = keys(&schema);
    let tenant = keys(&schema["$defs"]["Tenant"]);
    assert!(
        document.len() >= 7 && tenant.len() >= 18,
        "{document:?} {tenant:?}"
    );
    let own = |key: &str| {
        let tenants = [
            "name",
            "subnets",
            "endpoints",
            "routes",
            "policy",
            "offers",
            "accepts",
        ];
        tenants.contains(&key)
    };
    for key in document
        .iter()
        .filter(|key| !["version", "tenants"].contains(&key.as_str()))
    {
        let found = wrong(
            HOST,
            &BLUE.replace("tenants:", &format!("{key}: \ntenants:")),
        );
        let sentence = format!("`{key}` is not the tenant's to state");
        assert_eq!(
            found,
            [format!("blue:own.yaml:2:1 self-managed {sentence}")]
        );
    }
    for key in tenant.iter().filter(|key| !own(key)) {
        let found = wrong(
            HOST,
            &BLUE.replace("name: blue", &format!("name: blue\n    {key}: ")),
        );
        let sentence = format!("`{key}` is not the tenant's to state");
        assert_eq!(
            found,
            [format!("blue:own.yaml:4:5 self-managed {sentence}")]
        );
    }
    for (key, bad) in [("rate", "rate: {from: 1Mbit}"), ("weight", "weight: 3")] {
        let found = wrong(
            HOST,
            &BLUE.replace("name: blue", &format!("name: blue\n    {bad}")),
        );
        assert!(found[0].contains(&format!("`{key}` is not")), "{found:?}");
    }
}

#[test]
fn what_is_set_aside_of_a_document() {
    let blue = BLUE.replace(
        "policy: {rules:",
        "policy: {reach: [{from: {endpoint: db1}, to: outside, allowed: no}], rules:",
    );
    let with = |aside: Option<Aside>, host: &str, blue: &str| {
        let mut all = parts(host, &[("blue", blue)]);
        all.aside
            .extend(aside.map(|aside| ("blue".to_owned(), aside)));
        read(&all)
    };
    let whole = with(None, HOST, &blue).unwrap();
    assert_eq!(whole.tenants[1].policy.as_ref().unwrap().reach.len(), 1);
    let mut reach = with(Some(Aside::Reach), HOST, &blue).unwrap();
    let policy = reach.document.tenants[1].policy.as_mut().unwrap();
    assert!(policy.reach.is_empty());
    policy
        .reach
        .clone_from(&whole.tenants[1].policy.as_ref().unwrap().reach);
    assert!(reach == whole, "and nothing else");
    // Its endpoints are there, and nothing passes.
    let closed = with(Some(Aside::Closed), HOST, &blue).unwrap();
    let tenant = &closed.tenants[1];
    assert_eq!(tenant.endpoints, whole.tenants[1].endpoints);
    assert!(tenant.offers.is_empty() && tenant.routes.is_empty());
    let policy = tenant.policy.as_ref().unwrap();
    let default = policy.default.unwrap().value;
    let deny = spec::Action::Deny;
    assert!(policy.rules.is_empty() && policy.reach.is_empty());
    assert_eq!(
        (default.inside, default.inbound, default.outbound),
        (deny, deny, deny)
    );
    // As many as it may have, attached as they may be, whatever else it says.
    let many = blue.replace(
        "[{name: db1, subnet: data}]",
        "[{name: x, subnet: data, attach: {fifo: {}}}, {name: db1, subnet: data}, {name: b, subnet: data}]",
    );
    let many = many.replace("name: blue", "name: blue\n    weight: 7");
    let host = HOST.replace("endpoints: 2", "endpoints: 1");
    assert!(with(None, &host, &many).is_err());
    let closed = with(Some(Aside::Closed), &host, &many).unwrap();
    let names: Vec<&str> = closed.tenants[1]
        .endpoints
        .iter()
        .map(|e| e.name.as_str())
        .collect();
    assert_eq!((names, closed.tenants[1].weight), (vec!["db1"], None));
    // Nothing of it, not even whether it can be read.
    for text in [blue.as_str(), "{", ""] {
        let none = with(Some(Aside::Whole), HOST, text).unwrap();
        assert!(none.tenants[1].endpoints.is_empty() && none.tenants[1].policy.is_none());
    }
    for aside in Aside::ALL {
        assert_eq!(Aside::of(aside.as_str()), Some(aside));
    }
}

#[test]
fn a_barred_service_is_accepted_by_no_name() {
    let mut stated = parts(HOST, &[("blue", BLUE)]);
    let barred = ("red".into(), "blue".into(), "db".into());
    stated.barred.insert(barred);
    let spec = read(&stated).unwrap();
    assert!(spec.tenants[0].accepts.is_empty());
    let of = (
        ("red".to_owned(), "lent".to_owned()),
        ("blue".to_owned(), "db".to_owned()),
    );
    assert_eq!(spec.revoked.into_iter().collect::<Vec<_>>(), [of]);
    let mut other = parts(HOST, &[("blue", BLUE)]);
    other
        .barred
        .insert(("red".into(), "blue".into(), "web".into()));
    assert_eq!(read(&other).unwrap().tenants[0].accepts.len(), 1);
}

#[test]
fn own_attachment_to_the_host() {
    const LEFT_OUT: &str = "leave it out: the endpoint gets a namespace of its own";
    const CIRCUITS: &str = "circuits are for tenants whose endpoints the provider";
    for (bad, help) in [
        ("attach: {tap: {namespace: /proc/1/ns/net}}", LEFT_OUT),
        ("attach: {tap: {namespace: red-a}}", LEFT_OUT),
        ("attach: {tap: {make: off}}", LEFT_OUT),
        ("attach: {fifo: {}}", "`fifo: on`"),
        ("attach: {vhost: {}}", "`vhost: on`"),
        ("attach: {tap: {circuits: {}}}", CIRCUITS),
        ("attach: {veth: {circuits: {sockets: 8}}}", CIRCUITS),
        ("attach: circuits", CIRCUITS),
    ] {
        let own = BLUE.replace("subnet: data}", &format!("subnet: data, {bad}}}"));
        let found = wrong(HOST, &own);
        assert!(
            found.iter().any(|one| one.contains("not the tenant's")),
            "{bad}: {found:?}"
        );
        let text = parts(HOST, &[("blue", &own)]).joined();
        let found = spec::parse("host.yaml", text.as_bytes()).err().unwrap();
        let helped = found.findings.iter().any(|one| one.help.contains(help));
        assert!(helped, "{bad}: {found:?}");
    }
    let good = BLUE.replace(
        "subnet: data}",
        "subnet: data, attach: {tap: {interface: net0}}}",
    );
    assert_eq!(wrong(HOST, &good), Vec::<String>::new());
    let host = HOST.replace("rules: 1", "rules: 1, vhost: on");
    for (memory, fine) in [("4GiB", true), ("5GiB", false)] {
        let machine = format!("subnet: data, attach: {{vhost: {{memory: {memory}}}}}}}");
        let found = wrong(&host, &BLUE.replace("subnet: data}", &machine));
        assert_eq!(found.is_empty(), fine, "{memory}: {found:?}");
    }
    let fifo = BLUE.replace("subnet: data}", "subnet: data, attach: {fifo: {}}}");
    let host = HOST.replace("rules: 1", "rules: 1, fifo: on");
    assert_eq!(wrong(&host, &fifo), Vec::<String>::new());
}

#[test]
fn own_subnet_in_a_vlan() {
    let segment = "segment: {technology: vlan, uplink: wan0, vlan: 7}";
    let own = |segment: &str| BLUE.replacen("prefixes: ", &format!("{segment}, prefixes: "), 1);
    let found = wrong(HOST, &own(segment));
    let [only] = &found[..] else {
        panic!("{found:?}")
    };
    // Which uplinks there are is not said.
    assert!(
        only.contains("a VLAN of an uplink is not the tenant's to state"),
        "{only}"
    );
    assert_eq!(wrong(HOST, &own("segment: local")), Vec::<String>::new());
}

#[test]
fn own_limits() {
    let many = BLUE.replace(
        "[{name: db1, subnet: data}]",
        "[{name: db1, subnet: data}, {name: b, subnet: data}, {name: c, subnet: data}]",
    );
    let found = wrong(HOST, &many);
    assert!(
        found[0].contains("3 endpoints, more than the 2"),
        "{found:?}"
    );
    let many = BLUE.replace("rules: [", "rules: [{name: x, action: allow}, ");
    let found = wrong(HOST, &many);
    assert!(found[0].contains("2 rules, more than the 1"), "{found:?}");
    // A few aliases are a great many values.
    let nine = |name: char, of: char| {
        format!(
            "{name}: &{name} [{}]\n",
            vec![format!("*{of}"); 9].join(",")
        )
    };
    let bomb: String = ('b'..'g')
        .map(|c| nine(c, char::from(c as u8 - 1)))
        .collect();
    let found = wrong(HOST, &format!("a: &a [1,2,3,4,5,6,7,8,9]\n{bomb}{BLUE}"));
    assert!(
        found.iter().any(|one| one.contains("yaml-bomb")),
        "{found:?}"
    );
}

#[test]
fn own_namespaces_of_another_name() {
    // Of a tenant; by name of an endpoint's; by what its name and its tenant's come to.
    let endpoint = |name: &str, attach: &str| {
        format!(
            "\n    subnets: [{{name: x, prefixes: [10.9.0.0/24]}}]\n    endpoints: [{{name: {name}, subnet: x{attach}}}]\n"
        )
    };
    let attach = ", attach: {tap: {namespace: blue-db1, interface: eth7}}";
    for other in [
        "blue-db1\n".to_owned(),
        format!("green{}", endpoint("a", attach)),
        format!(
            "green{}",
            endpoint("a", &attach.replace("interface: eth7", "make: on"))
        ),
    ] {
        let found = wrong(&format!("{HOST}  - name: {other}"), BLUE);
        assert!(
            found
                .iter()
                .any(|one| one.contains("could take the namespace blue-")),
            "{found:?}"
        );
    }
    let host = HOST.replace("blue", "bl-ue");
    let found = wrong(&format!("{host}  - name: bl{}", endpoint("ue-a", "")), BLUE);
    assert!(
        found
            .iter()
            .any(|one| one.contains("could take the namespace bl-ue-a")),
        "{found:?}"
    );
}

#[test]
fn what_the_tenant_states_the_provider_does_not() {
    let host = HOST.replace(
        "self-managed: {endpoints: 2, rules: 1}",
        "self-managed: {}\n    subnets: [{name: x, prefixes: [10.9.0.0/24]}]",
    );
    assert!(wrong(&host, BLUE)[0].contains("states its `subnets` itself"));
    let host = HOST.replace(
        "self-managed: {endpoints: 2, rules: 1}",
        "self-managed: {}\n    placement: {per: host}",
    );
    assert!(wrong(&host, BLUE)[0].contains("a switch of its own"));
}

#[test]
fn own_references_to_others_tell_nothing() {
    // Whom it names may be there or not, and state what it likes.
    let bad = BLUE.replace("to: [red]", "to: [red, nobody]");
    assert_eq!(wrong(HOST, &bad), Vec::<String>::new());
    let six = HOST.replace("as: [10.1.200.10]", "as: [\"fd00:1:200::10\"]");
    assert_eq!(wrong(&six, BLUE), Vec::<String>::new());
    // The provider's own mistakes are told to it.
    let host = HOST.replace("from: blue", "from: bleu");
    assert!(wrong(&host, BLUE)[0].contains("no tenant `bleu`"));
}

#[test]
fn a_revoked_offer_counts_as_not_stated_and_what_names_it_is_good() {
    let mut stated = parts(HOST, &[("blue", BLUE)]);
    for (tenant, name) in [("blue", "db"), ("red", "lent"), ("red", "gone")] {
        stated.revoked.insert((tenant.into(), name.into()));
    }
    let spec = read(&stated).unwrap();
    assert!(spec.tenants[0].accepts.is_empty() && spec.tenants[1].offers.is_empty());
    assert_eq!(spec.revoked.len(), 2);
}

#[test]
fn a_text_that_looks_joined_is_only_what_it_is() {
    let forged = parts(HOST, &[("blue", BLUE)]).joined();
    let again = parts(&forged, &[]);
    // What one document says of itself is its own: a comment, and no YAML.
    assert!(read(&again).is_err());
    let forged = BLUE.replace(
        "version: 1",
        "version: 1\n# \nrevoked red lent\npart 3 red x\n",
    );
    assert!(read(&parts(HOST, &[("blue", &forged)])).is_err());
}

proptest! {
    #[test]
    fn a_document_says_nothing_of_another(text in "(part|revoked|[ .#!\n:a-z0-9]){0,60}", file in ".{0,20}") {
        let mut stated = parts(HOST, &[("blue", &text)]);
        stated.documents.get_mut("blue").unwrap().file = file;
        let text = stated.joined();
        if let Ok(spec) = spec::parse("host.yaml", text.as_bytes()) {
            let alone = read(&parts(HOST, &[])).unwrap();
            prop_assert!(spec.tenants[0] == alone.tenants[0]);
        }
    }

    #[test]
    fn any_joined_text_is_read_without_harm(text in "#!bulkhead-parts\n(part [0-9]{1,20} [.a]{1,3} x\n|revoked a b\n|[a-z\u{fc}]{0,9}\n?){0,9}") {
        let _ = spec::parse("x", text.as_bytes());
    }
}

/// The provider's: so many that manage themselves beside blue, each with these limits.
fn many(tenants: usize, limits: &str) -> String {
    let mut text = HOST.replace("{endpoints: 2, rules: 1}", limits);
    for n in 0..tenants - 1 {
        text += &format!("  - {{name: t{n}, self-managed: {limits}}}\n");
    }
    text
}

#[test]
fn of_what_a_host_has_each_document_has_a_share_whatever_others_state() {
    let endpoints = |count: usize| {
        let all: Vec<String> = (0..count)
            .map(|n| format!("{{name: e{n}, subnet: data}}"))
            .collect();
        BLUE.replace("10.1.1.0/24", "10.3.0.0/16")
            .replace("endpoint: db1", "endpoint: e0")
            .replace("{name: db1, subnet: data}", &all.join(", "))
    };
    // Promised are 40,000, and one of 16,384 is the provider's.
    let host = many(100, "{endpoints: 400, rules: 1}");
    assert!(read(&parts(&host, &[("blue", &endpoints(163))])).is_ok());
    let over = parts(&host, &[("blue", &endpoints(164))]);
    let found = read(&over).err().unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    let told = "164 endpoints, more than the 163 that this tenant may have, its share of the 16384";
    assert!(
        found[0].starts_with("blue:own.yaml:5:") && found[0].contains(told),
        "{found:?}"
    );
    let closed = Parts {
        aside: [("blue".to_owned(), Aside::Closed)].into(),
        ..over
    };
    assert_eq!(read(&closed).unwrap().tenants[1].endpoints.len(), 163);
    // Where all that was promised is there, it is had.
    let few = many(40, "{endpoints: 400, rules: 1}");
    assert!(read(&parts(&few, &[("blue", &endpoints(400))])).is_ok());

    let accepts = |count: usize| {
        let all: Vec<String> = (0..count)
            .map(|n| {
                format!(
                    "{{name: a{n}, from: red, service: s{n}, as: [10.2.0.{}]}}",
                    n + 1
                )
            })
            .collect();
        format!("{BLUE}    accepts: [{}]\n", all.join(", "))
    };
    let host = many(200, "{endpoints: 2, rules: 1}");
    assert!(read(&parts(&host, &[("blue", &accepts(163))])).is_ok());
    let found = wrong(&host, &accepts(164));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].contains("164 acceptances, more than the 163"),
        "{found:?}"
    );
}

#[test]
fn all_documents_together_leave_room_for_the_providers_and_each_other() {
    let host = many(80, "{}");
    let own = |name: &str, bytes: usize| {
        let text = BLUE.replace("name: blue", &format!("name: {name}"));
        format!("{text}#{}\n", "x".repeat(bytes - text.len() - 2))
    };
    let share = ((16 << 20) - host.len()) / 80;
    let names: Vec<String> = (0..79)
        .map(|n| format!("t{n}"))
        .chain(["blue".into()])
        .collect();
    let all = |bytes: usize| {
        let texts: Vec<String> = names.iter().map(|name| own(name, bytes)).collect();
        let documents = names
            .iter()
            .map(String::as_str)
            .zip(texts.iter().map(String::as_str));
        parts(&host, &documents.collect::<Vec<_>>())
    };
    assert_eq!(read(&all(share)).err(), None);
    // Who goes beyond its share is at fault, however many, and nobody else.
    let mut over = all(share);
    over.documents.get_mut("t7").unwrap().text = own("t7", share + 1);
    let found = read(&over).err().unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].starts_with("t7:own.yaml:1:1 too-large")
            && found[0].contains("its share of the 16777216"),
        "{found:?}"
    );
    over.aside = [("t7".to_owned(), Aside::Whole)].into();
    assert!(read(&over).is_ok());
    // The provider's may have all of it, and no more.
    let whole = |bytes: usize| format!("{HOST}#{}\n", "x".repeat(bytes - HOST.len() - 2));
    let mut all = parts(&whole(16 << 20), &[("blue", BLUE)]);
    all.aside = [("blue".to_owned(), Aside::Whole)].into();
    assert!(read(&all).is_ok());
    all.provider.text = whole((16 << 20) + 1);
    let found = read(&all).err().unwrap();
    assert!(found[0].starts_with("host.yaml:1:1 too-large"), "{found:?}");
}

#[test]
fn who_is_at_fault_is_found_however_much_is_wrong_with_another() {
    let host = many(4, "{}");
    let own = |name: &str, wrong: usize| {
        let text = BLUE.replace("name: blue", &format!("name: {name}"));
        let keys: String = (0..wrong).map(|n| format!("wrong{n}: 1\n")).collect();
        text + &keys
    };
    let texts =
        [("blue", 150), ("t0", 2), ("t1", 0), ("t2", 1)].map(|(name, n)| (name, own(name, n)));
    let documents: Vec<(&str, &str)> = texts.iter().map(|(n, t)| (*n, t.as_str())).collect();
    let text = parts(&host, &documents).joined();
    let errors = spec::parse("host.yaml", text.as_bytes()).unwrap_err();
    let of = |name: &str| {
        let file = format!("{name}:own.yaml");
        errors
            .findings
            .iter()
            .filter(|one| one.file() == file)
            .count()
    };
    assert_eq!(["blue", "t0", "t1", "t2"].map(of), [100, 1, 0, 1]);
    assert_eq!(errors.findings.len() + errors.more, 153);
}
