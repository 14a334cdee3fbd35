//! Errors: what was wrong, where, whose fault, and what to do.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Body of every answer whose status is not 2xx.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Fault {
    /// Stable name of the kind of error, e.g. `spec`, `denied`, `host`.
    pub code: String,
    /// One sentence for a person.
    pub message: String,
    /// Where in the spec, when it is the spec's fault.
    #[serde(rename = "where", skip_serializing_if = "Option::is_none")]
    pub place: Option<Where>,
    /// Whose fault it is.
    pub whose: Whose,
    /// What to do about it.
    pub help: String,
    /// All findings, when there is more than one thing to say (spec errors).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
}

/// A position in a spec file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Where {
    /// The file's name as the caller gave it.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1, in characters.
    pub column: u32,
}

/// Whose fault an error is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Whose {
    /// The spec or the request.
    User,
    /// A tenant's workload or switch.
    Tenant,
    /// The host: a limit, a missing feature, the operating system.
    Host,
    /// Bulkhead itself.
    #[default]
    Bulkhead,
}

/// One thing wrong in a spec.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Finding {
    /// Stable name of the kind of error.
    pub code: String,
    /// What is wrong.
    pub message: String,
    /// Where.
    #[serde(rename = "where")]
    pub place: Where,
    /// What to do.
    pub help: String,
}

impl From<&spec::Finding> for Finding {
    fn from(finding: &spec::Finding) -> Finding {
        Finding {
            code: finding.code.into(),
            message: finding.message.clone(),
            place: Where {
                file: finding.file().into(),
                line: finding.line(),
                column: finding.column(),
            },
            help: finding.help.clone(),
        }
    }
}

impl Fault {
    /// A fault without a position.
    pub fn new(
        code: &str,
        whose: Whose,
        message: impl Into<String>,
        help: impl Into<String>,
    ) -> Fault {
        Fault {
            code: code.into(),
            message: message.into(),
            place: None,
            whose,
            help: help.into(),
            findings: Vec::new(),
        }
    }
}

impl core::fmt::Display for Fault {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if let Some(place) = &self.place {
            write!(f, "{}:{}:{}: ", place.file, place.line, place.column)?;
        }
        f.write_str(&self.message)?;
        if !self.help.is_empty() {
            write!(f, "\n  help: {}", self.help)?;
        }
        Ok(())
    }
}
