//! Hosts to prove things about: specs, compiled by the compiler whose work is judged.

use crate::{Breach, Claim, Known, prove};
use policy::{Ids, Intent};
use spec::Spec;
use std::collections::BTreeMap;

/// 2026-01-01, seconds since 1970.
pub const NOW: u64 = 1_767_225_600;

/// A host as it would be installed.
pub struct Compiled {
    pub spec: Spec,
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
    read(&std::fs::read_to_string(path).expect(name))
}

impl Compiled {
    pub fn new(spec: Spec) -> Compiled {
        let ids = Ids::assign(&spec, &Ids::default());
        Compiled::with(spec, &ids)
    }
    pub fn with(spec: Spec, ids: &Ids) -> Compiled {
        let intent = policy::compile(&spec, ids, NOW).unwrap_or_else(|e| panic!("{}", e[0]));
        let mut images: BTreeMap<u32, Vec<u8>> = (intent.compartments.iter())
            .map(|(slot, c)| (*slot, c.image.bytes.to_vec()))
            .collect();
        images.insert(0, intent.fabric.bytes.to_vec());
        Compiled {
            numbers: serde_json::to_vec(ids).unwrap(),
            spec,
            intent,
            now: NOW,
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
            compartments: compartments.map(|(slot, bytes)| (*slot, &bytes[..])).collect(),
            compromised: None,
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
        prove(&claim, &mut Known::default()).err().unwrap_or_default()
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
    "reference.yaml",
];
