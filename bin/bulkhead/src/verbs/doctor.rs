//! `doctor`: what this kernel offers. Refuses where a promise cannot be kept.

use crate::exit::{Exit, Trouble};
use crate::table::Table;
use confine::{Feature, Found, features};
use std::fmt::Write;

/// Looks at the host; exit code 5 where Bulkhead refuses to run on it.
pub fn doctor(json: bool) -> Result<Exit, Trouble> {
    let mut features = features();
    features.push(super::wakes::wakes());
    let refused: Vec<&Feature> = features
        .iter()
        .filter(|feature| feature.refuses())
        .collect();
    let exit = if refused.is_empty() {
        Exit::Done
    } else {
        Exit::Refused
    };
    if json {
        let list: Vec<_> = features.iter().map(as_json).collect();
        super::as_json(&serde_json::json!({ "refused": !refused.is_empty(), "features": list }))?;
        return Ok(exit);
    }
    crate::print(rendered(&features).as_bytes())?;
    Ok(exit)
}

fn as_json(feature: &Feature) -> serde_json::Value {
    serde_json::json!({
        "name": feature.name,
        "kernel": feature.kernel,
        "used_by": feature.used_by,
        "found": found(feature.found),
        "detail": feature.detail,
        "lost": feature.lost,
        "required": feature.required,
        "refuses": feature.refuses(),
    })
}

fn found(found: Found) -> &'static str {
    match found {
        Found::Yes => "yes",
        Found::Partly => "partly",
        Found::No => "no",
    }
}

fn rendered(features: &[Feature]) -> String {
    let mut out = String::new();
    let mut table = Table::new(&["FEATURE", "LINUX", "HERE", "SEEN", "USED BY"]);
    for feature in features {
        table.row([
            feature.name.into(),
            feature.kernel.into(),
            found(feature.found).into(),
            feature.detail.clone(),
            feature.used_by.into(),
        ]);
    }
    let _ = writeln!(out, "{table}");
    for feature in features
        .iter()
        .filter(|feature| feature.found != Found::Yes && !feature.refuses())
    {
        let _ = writeln!(out, "weaker: {}: {}", feature.name, feature.lost);
    }
    for feature in features.iter().filter(|feature| feature.refuses()) {
        let _ = writeln!(
            out,
            "REFUSED: without {} a promise cannot be kept: {}",
            feature.name, feature.lost
        );
    }
    if features.iter().any(Feature::refuses) {
        let _ = writeln!(out, "Bulkhead does not run on this host as it is");
    } else {
        let _ = writeln!(out, "Bulkhead runs on this host");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feature(found: Found, required: bool) -> Feature {
        Feature {
            name: "user namespaces",
            kernel: "3.8",
            used_by: "confinement",
            found,
            detail: "tried".into(),
            lost: "switches would share the host's users",
            required,
        }
    }

    #[test]
    fn what_is_required_and_missing_is_refused_and_the_rest_is_weaker() {
        assert!(rendered(&[feature(Found::Yes, true)]).ends_with("runs on this host\n"));
        let weaker = rendered(&[feature(Found::No, false)]);
        assert!(
            weaker.contains("weaker: user namespaces") && weaker.ends_with("runs on this host\n")
        );
        let refused = rendered(&[feature(Found::No, true)]);
        assert!(refused.contains("REFUSED") && refused.contains("does not run"));
    }
}
