//! Hosts to prove things about: specs, compiled by the compiler whose work is judged.

use crate::{Breach, Claim, Known, Read, prove};
use policy::{Ids, Intent};
use spec::Spec;
use std::collections::BTreeMap;

/// 2026-01-01, seconds since 1970.
pub const NOW: u64 = 1_767_225_600;

/// A host as it would be installed.
pub struct Compiled {
    pub spec: Read,
    pub ids: Ids,
    pub numbers: Vec<u8>,
    pub intent: Intent,
    pub now: u64,
    /// Images by slot, 0 = the fabric's.
    pub images: BTreeMap<u32, Vec<u8>>,
}

pub fn read(text: &str) -> Spec {
    spec::parse("spec.yaml", text.as_bytes()).unwrap_or_else(|errors| panic!("{errors}"))
}

pub fn example(name: &str) -> Spec {
    let path = format!("{}/../../examples/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect(name);
    read(&text)
}

impl Compiled {
    pub fn new(spec: Spec) -> Compiled {
        let ids = Ids::assign(&spec, &Ids::default());
        Compiled::with(spec, &ids)
    }
    pub fn with(spec: Spec, ids: &Ids) -> Compiled {
        Compiled::at(spec, ids, NOW)
    }
    pub fn at(spec: Spec, ids: &Ids, now: u64) -> Compiled {
        let intent = policy::compile(&spec, ids, now).unwrap_or_else(|e| panic!("{}", e[0]));
        let mut images: BTreeMap<u32, Vec<u8>> = (intent.compartments.iter())
            .map(|(slot, c)| (*slot, c.image.bytes.to_vec()))
            .collect();
        images.insert(0, intent.fabric.bytes.to_vec());
        Compiled {
            ids: ids.clone(),
            numbers: serde_json::to_vec(ids).unwrap(),
            spec: Read::new(spec),
            intent,
            now,
            images,
        }
    }
    pub fn claim(&self) -> Claim<'_> {
        let compartments = self.images.iter().filter(|(slot, _)| **slot != 0);
        Claim {
            spec: &self.spec,
            numbers: &self.numbers,
            now: self.now,
            fabric: &self.images[&0],
            compartments: compartments
                .map(|(slot, bytes)| (*slot, &bytes[..]))
                .collect(),
            compromised: None,
            before: BTreeMap::new(),
            counted: false,
        }
    }
    pub fn breaches(&self) -> Vec<Breach> {
        self.but_for(None)
    }
    pub fn but_for(&self, compromised: Option<u32>) -> Vec<Breach> {
        let claim = Claim {
            compromised,
            ..self.claim()
        };
        prove(&claim, &mut Known::default())
            .err()
            .unwrap_or_default()
    }
    pub fn slot_of(&self, tenant: &str) -> u32 {
        self.intent.compartment_of(tenant).unwrap().create.id
    }
}

pub const EXAMPLES: &[&str] = &[
    "two-tenants.yaml",
    "uplink.yaml",
    "fifo.yaml",
    "levels.yaml",
    "policy.yaml",
    "agreement.yaml",
    "routed.yaml",
    "segment.yaml",
    "reference.yaml",
];

/// Tenants that know each other, around these rules of red: both families, a router, a
/// way outside with translation, services both ways.
pub fn text(rules: &[String], rails: &[String], default: &str, ends: &str) -> String {
    let list = |rules: &[String], what: &str, indent: &str| {
        let named = rules.iter().enumerate();
        named
            .map(|(i, rule)| format!("{indent}- {{name: {what}{i}, {rule}}}\n"))
            .collect::<String>()
    };
    let rails = match list(rails, "g", "  ") {
        none if none.is_empty() => String::new(),
        rails => format!("guardrails:\n{rails}"),
    };
    let rules = list(rules, "r", "        ");
    format!(
        "version: 1
uplinks: [{{name: wan0, interface: eth1}}]
{rails}tenants:
  - name: red
    subnets:
      - {{name: web, prefixes: [10.1.1.0/24, 'fd00:1:1::/64'], slaac: on}}
      - {{name: app, prefixes: [10.1.2.0/25]}}
      - {{name: six, prefixes: ['fd00:1:3::/64']}}
    endpoints:
      - {{name: a, subnet: web, addresses: [10.1.1.10, 'fd00:1:1::10'], labels: {{k: one, l: x}}}}
      - {{name: b, subnet: web, addresses: [10.1.1.11, 'fd00:1:1::11'], labels: {{k: two}}}}
      - {{name: c, subnet: app, labels: {{k: one}}}}
      - {{name: d, subnet: six, labels: {{l: x}}}}
      - {{name: fw, subnet: app, roles: [router], prefixes: [10.9.0.0/16, 'fd00:9::/48']}}
    routes: [{{to: 10.9.5.0/24, via: unreachable}}, {{to: 10.77.0.0/16, via: outside}}]
    outside: [{{uplink: wan0, address: [192.0.2.10/24, '2001:db8::10/64'], gateway: [192.0.2.1, '2001:db8::1'], nat: on}}]
    policy:
      default: {default}
      rules:
{rules}        - {{name: last, action: deny, priority: 60000, from: {{prefix: 203.0.113.99/32}}, to: {{endpoint: b}}, protocol: 99}}
    offers:
      - {{name: mine, endpoint: a, protocol: tcp, ports: [80, 8000-8010], to: [green, blue], until: {ends}, pool: [10.1.250.0/30, 'fd00:1:250::/64']}}
    accepts:
      - {{name: theirs, from: blue, service: web, as: [10.1.200.10, 'fd00:1:200::10'], endpoints: {{label: {{k: one}}}}}}
  - name: blue
    subnets: [{{name: web, prefixes: [10.1.1.0/24, 'fd00:1:1::/64']}}]
    endpoints: [{{name: x, subnet: web}}, {{name: y, subnet: web}}]
    outside: [{{uplink: wan0, address: [192.0.2.11/24], gateway: [192.0.2.1]}}]
    offers:
      - {{name: web, endpoint: x, protocol: tcp, ports: [80, 443], to: [red], pool: [10.1.251.0/29, 'fd00:1:251::/64']}}
    accepts:
      - {{name: reds, from: red, service: mine, as: [10.1.200.9, 'fd00:1:200::9']}}
  - name: green
    subnets: [{{name: web, prefixes: [10.1.1.0/24]}}]
    endpoints: [{{name: z, subnet: web}}, {{name: w, subnet: web}}]
"
    )
}
