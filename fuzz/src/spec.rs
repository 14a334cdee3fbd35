//! A spec as its user, or a tenant, wrote it, and what is compiled of it.
//!
//! Held: it is refused with a finding that points into it, or what is made of it are images
//! that a switch and the fabric take.

use ::policy::{Ids, compile};
use ::spec::{AddressList, Finding, MAX_FINDINGS, Spec, parse};
use image::{Aligned, CompartmentImage, FabricImage};
use std::collections::BTreeSet;

/// One run.
pub fn run(bytes: &[u8]) {
    let spec = match parse("fuzz.yaml", bytes) {
        Ok(spec) => spec,
        Err(errors) => {
            assert!((1..=MAX_FINDINGS).contains(&errors.findings.len()));
            errors
                .findings
                .iter()
                .for_each(|finding| points(finding, bytes.len()));
            let _ = (errors.to_string(), errors.render(false));
            return;
        }
    };
    for tenant in &spec.tenants {
        let names: BTreeSet<&str> = tenant.endpoints.iter().map(|e| e.name.as_str()).collect();
        assert_eq!(names.len(), tenant.endpoints.len(), "two of one name");
    }
    stations(&spec);
    let ids = Ids::assign(&spec, &Ids::default());
    assert_eq!(Ids::assign(&spec, &ids), ids, "numbers stay");
    match compile(&spec, &ids, 0) {
        Ok(intent) => {
            if !intent.fabric.is_none() {
                FabricImage::map(Aligned::copy_of(&intent.fabric.bytes).as_ref())
                    .expect("the fabric takes it");
            }
            for made in intent
                .compartments
                .values()
                .filter(|made| !made.image.is_none())
            {
                CompartmentImage::map(Aligned::copy_of(&made.image.bytes).as_ref())
                    .expect("a switch takes it");
            }
        }
        Err(errors) => {
            assert!(!errors.is_empty());
            errors
                .iter()
                .for_each(|finding| points(finding, bytes.len()));
        }
    }
}

/// No two of a subnet are the same to others.
fn stations(spec: &Spec) {
    for tenant in &spec.tenants {
        let mut seen = BTreeSet::new();
        for endpoint in &tenant.endpoints {
            let Some(AddressList::List(list)) = &endpoint.addresses else {
                continue;
            };
            for address in list {
                let place = (endpoint.subnet.value.as_str(), address.value.to_string());
                assert!(seen.insert(place), "two at {}", address.value);
            }
        }
    }
}

/// It says what is wrong, and where: in a text that is longer where bytes were no text.
fn points(finding: &Finding, bytes: usize) {
    assert!(!finding.message.is_empty() && !finding.code.is_empty());
    let span = finding.span;
    assert!(
        span.start <= span.end && span.end as usize <= 3 * bytes + 1,
        "{span:?}"
    );
}
