//! The lists as filters of the kernel.

use crate::lists::{self, Condition, Width};
use crate::profile::Profile;
use guard::guard;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};
use std::collections::BTreeMap;

/// Installs the profile's filter: what is not listed kills the process (SIGSYS).
pub(crate) fn install(profile: Profile) -> Result<(), String> {
    if !guard!("confine-seccomp") {
        return Ok(());
    }
    // The one that only refuses goes first: the strict one lets no more in.
    if !lists::refused(profile).is_empty() {
        apply(&refusing(profile)?)?;
    }
    apply(&strict(profile)?)
}

fn apply(program: &BpfProgram) -> Result<(), String> {
    apply_filter(program).map_err(|error| error.to_string())
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// The strict filter of a profile.
pub(crate) fn strict(profile: Profile) -> Result<BpfProgram, String> {
    let mut rules = Rules::new();
    let mut unconditional = Vec::new();
    for entry in lists::entries(profile) {
        let forms = rules.entry(entry.number).or_default();
        if entry.forms.is_empty() || !guard!("confine-arguments") {
            unconditional.push(entry.number);
        }
        for form in entry.forms {
            let conditions: Result<Vec<_>, String> = form.iter().map(condition).collect();
            forms.push(SeccompRule::new(conditions?).map_err(|error| error.to_string())?);
        }
    }
    for number in unconditional {
        rules.insert(number, Vec::new());
    }
    compile(rules, SeccompAction::KillProcess, SeccompAction::Allow)
}

fn refusing(profile: Profile) -> Result<BpfProgram, String> {
    let rules = lists::refused(profile)
        .iter()
        .map(|number| (*number, Vec::new()))
        .collect();
    compile(
        rules,
        SeccompAction::Allow,
        SeccompAction::Errno(libc::ENOSYS as u32),
    )
}

fn compile(
    rules: Rules,
    otherwise: SeccompAction,
    listed: SeccompAction,
) -> Result<BpfProgram, String> {
    SeccompFilter::new(rules, otherwise, listed, TargetArch::x86_64)
        .and_then(BpfProgram::try_from)
        .map_err(|error| error.to_string())
}

fn condition(condition: &Condition) -> Result<SeccompCondition, String> {
    let width = match condition.width {
        Width::Bits32 => SeccompCmpArgLen::Dword,
        Width::Bits64 => SeccompCmpArgLen::Qword,
    };
    let compare = SeccompCmpOp::MaskedEq(condition.mask);
    SeccompCondition::new(condition.argument, width, compare, condition.value)
        .map_err(|error| error.to_string())
}
