//! `plan`, `apply`, `down`, `release`.

use super::look::proved;
use super::{FEW, as_json};
use crate::args::{Down, Release, SpecFile};
use crate::client::{Client, encoded};
use crate::daemon::Daemon;
use crate::exit::{Exit, Trouble};
use crate::table::bytes;
use api::{Applied, Fault, Finding, Half, Needs, Plan, Where, Whose};
use spec::SpecErrors;
use std::fmt::Write;
use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::Path;

/// What would change, and what it needs.
pub async fn plan(file: &SpecFile, client: &Client, json: bool) -> Result<Exit, Trouble> {
    let spec = SpecText::read(file)?;
    let plan: Plan = client
        .post(
            &format!("/v1/plan?file={}", encoded(&spec.name)),
            spec.text.clone(),
        )
        .await
        .map_err(|trouble| spec.checked(trouble, client))?;
    if json {
        return as_json(&plan);
    }
    let mut out = changes(&plan, "would be kept");
    out.push_str(&warnings(&plan));
    out.push_str(&halves(&plan.halves));
    out.push_str(&needs(&plan.needs));
    out.extend(plan.proof.as_ref().map(proved));
    crate::print(out.as_bytes())
}

/// Makes it so.
pub async fn apply(file: &SpecFile, client: &Client, json: bool) -> Result<Exit, Trouble> {
    let spec = SpecText::read(file)?;
    let applied: Applied = client
        .post(
            &format!("/v1/apply?file={}", encoded(&spec.name)),
            spec.text.clone(),
        )
        .await
        .map_err(|trouble| spec.checked(trouble, client))?;
    if json {
        return as_json(&applied);
    }
    crate::print(done(&applied).as_bytes())
}

/// Takes all down; ends the daemon if asked.
pub async fn down(
    down: &Down,
    client: &Client,
    socket: &Path,
    json: bool,
) -> Result<Exit, Trouble> {
    let applied: Result<Applied, Trouble> = client.post("/v1/down", Vec::new()).await;
    let applied = applied.map_err(|mut trouble| {
        if let (true, Ok(daemon)) = (down.stop, Daemon::of(socket)) {
            let help = &mut trouble.fault.help;
            if !help.is_empty() {
                help.push('\n');
            }
            help.push_str(&daemon.by_hand());
        }
        trouble
    })?;
    if down.stop {
        Daemon::of(socket)?.stop()?;
    }
    if json {
        return as_json(&applied);
    }
    let mut out = done(&applied);
    if down.stop {
        out.push_str("the daemon has ended\n");
    }
    crate::print(out.as_bytes())
}

/// Lifts a quarantine.
pub async fn release(release: &Release, client: &Client, json: bool) -> Result<Exit, Trouble> {
    let path: Vec<String> = release.what.split('/').map(encoded).collect();
    let answer: serde_json::Value = client
        .post(&format!("/v1/release/{}", path.join("/")), Vec::new())
        .await?;
    if json {
        return as_json(&answer);
    }
    crate::print(format!(
            "no quarantine that somebody set by hand holds {} now; one that the spec states (`state:`) stays\n",
            release.what
        ).as_bytes())
}

/// What an apply did.
pub fn done(applied: &Applied) -> String {
    let mut out = changes(&applied.plan, "is kept");
    if !applied.plan.changes.is_empty() {
        // A token is not told which epoch of the host that is.
        let what = match applied.epoch {
            0 => "it runs".to_owned(),
            epoch => format!("epoch {epoch} runs"),
        };
        let took = applied.took_us as f64 / 1000.0;
        let _ = writeln!(out, "{what}, in {took:.1} ms");
    }
    out.push_str(&warnings(&applied.plan));
    out.push_str(&halves(&applied.plan.halves));
    out
}

/// What one side alone states, a line each: with a name misspelt as with another side that has yet to state its own.
pub fn halves(halves: &[Half]) -> String {
    let mut out = String::new();
    for half in halves.iter().take(FEW) {
        let (tenant, name, other) = (&half.tenant, &half.name, &half.other);
        let lacks = &half.lacks;
        let _ = writeln!(out, "{tenant}/{name} with {other} is no agreement: {lacks}");
    }
    if halves.len() > FEW {
        let _ = writeln!(out, "and more that are none (`--json`)");
    }
    out
}

/// What is set aside of tenants' own documents, a line each.
fn warnings(plan: &Plan) -> String {
    let mut out = String::new();
    for warning in &plan.warnings {
        let _ = writeln!(
            out,
            "warning: {}: {}",
            place(&warning.place),
            warning.message
        );
    }
    out
}

/// `FILE:LINE`.
fn place(place: &Where) -> String {
    format!("{}:{}", place.file, place.line)
}

/// `kept`: what comes of a spec by which nothing is done.
fn changes(plan: &Plan, kept: &str) -> String {
    if plan.changes.is_empty() {
        return match plan.restated {
            false => "nothing to do: the host is as the spec says\n".to_owned(),
            true => format!(
                "nothing to do: the spec {kept} in place of another; no process and no table is another by it\n"
            ),
        };
    }
    let mut out = String::new();
    for change in &plan.changes {
        let sign = match change.action.as_str() {
            "create" => "+",
            "destroy" => "-",
            "replace" => "±",
            _ => "~",
        };
        let _ = writeln!(out, "{sign} {:<40} {}", change.object, change.reason);
    }
    out
}

fn needs(needs: &Needs) -> String {
    let cores = match needs.cores.as_slice() {
        [] => "no core of its own".to_owned(),
        cores => format!(
            "cores {}",
            cores
                .iter()
                .map(u32::to_string)
                .collect::<Vec<_>>()
                .join(", ")
        ),
    };
    format!(
        "needs {} processes, {} of memory, {cores}\n",
        needs.processes,
        bytes(needs.memory_bytes)
    )
}

/// A spec as it was read. The daemon checks it.
pub struct SpecText {
    /// Its file's name for messages.
    pub name: String,
    /// Its bytes.
    pub text: Vec<u8>,
}

impl SpecText {
    /// Reads a spec of a size that the daemon takes.
    pub fn read(file: &SpecFile) -> Result<SpecText, Trouble> {
        let limit = spec::MAX_BYTES as u64;
        let (name, reader, size): (String, Box<dyn Read>, Option<u64>) =
            if file.file.as_os_str() == "-" {
                (
                    "<standard input>".into(),
                    Box::new(std::io::stdin().lock()),
                    None,
                )
            } else {
                let name = file.file.display().to_string();
                let opened = File::open(&file.file).map_err(|e| {
                    Trouble::new(Exit::Usage, format!("{name}: {e}"), "is the path right?")
                })?;
                let metadata = opened.metadata()?;
                if metadata.is_dir() {
                    return Err(Trouble::new(
                        Exit::Usage,
                        format!("{name} is a folder"),
                        "name the spec's file",
                    ));
                }
                (name, Box::new(opened), Some(metadata.len()))
            };
        // By its size, before a byte is read; a pipe by what came.
        if let Some(size) = size.filter(|size| *size > limit) {
            return Err(refused(&spec::too_large(&name, size)));
        }
        let mut text = Vec::new();
        reader
            .take(limit + 1)
            .read_to_end(&mut text)
            .map_err(|e| Trouble::new(Exit::Usage, format!("{name}: {e}"), ""))?;
        if text.len() as u64 > limit {
            spec::parse(&name, &text).map_err(|errors| refused(&errors))?;
        }
        Ok(SpecText { name, text })
    }

    /// What went wrong; where it is the spec, shown here with the place in it, also
    /// when no daemon answers. A tenant's own document is a part of a spec: only the
    /// daemon has the rest.
    fn checked(&self, trouble: Trouble, client: &Client) -> Trouble {
        if client.has_token() {
            return trouble;
        }
        spec::parse(&self.name, &self.text).map_or_else(|errors| refused(&errors), |_| trouble)
    }
}

/// All that is wrong with a spec: for programs as one fault, for people with snippets.
fn refused(errors: &SpecErrors) -> Trouble {
    let findings: Vec<Finding> = errors.findings.iter().map(Finding::from).collect();
    let first = findings.first().cloned().unwrap_or_default();
    let mut fault = Fault::new("spec", Whose::User, first.message, first.help);
    fault.place = Some(first.place);
    fault.findings = findings;
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    Trouble {
        exit: Exit::Usage,
        fault,
        rendered: errors.render(colour),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_nothing_is_done_is_told_from_that_nothing_is_another() {
        let mut applied = Applied::default();
        assert_eq!(
            done(&applied),
            "nothing to do: the host is as the spec says\n"
        );
        applied.plan.restated = true;
        assert_eq!(
            done(&applied),
            "nothing to do: the spec is kept in place of another; no process and no table is another by it\n"
        );
    }
}
