//! Proofs: asked of the verifier, through the supervisor, before anything is installed,
//! and again and again of what is.

use crate::happenings::now_ms;
use crate::refuse::refused;
use crate::supervisor::{Refusal, Supervisor};
use crate::world::World;
use api::{Fault, Finding, Proof, Where, Whose};
use command::bundle::{Bundle, Part};
use command::verbs::{
    FABRIC, PROVE_AHEAD, PROVE_INSTALLED, PROVE_TO_KNOW, Prove, VERDICT_BREACHES, VERDICT_NEED,
    VERDICT_PROVED, Verdict,
};
use guard::guard;
use sha2::{Digest, Sha256};
use shm::SealedImage;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

type Sum = [u8; 32];

/// The supervisor refuses what waits 15 s for a verifier, or keeps one busy for 10 s.
const PATIENCE: Duration = Duration::from_secs(30);
/// In a compartment's place: no switch is taken for a liar.
const NOBODY: u32 = 0;
/// Bytes of a verifier's report, at most.
const MOST_REPORT: usize = 1 << 20;

/// Who asks, and remembers what the verifier should still hold: what has not changed is
/// named to it by its digest.
pub struct Prover {
    supervisor: Arc<Supervisor>,
    spec: Option<Sum>,
    images: HashSet<Sum>,
}

/// A breach as the verifier reports it.
#[derive(Debug, serde::Deserialize)]
struct Breach {
    /// Whose: the compartment's slot, 0 = the fabric's.
    slot: u32,
    /// What, in sentences.
    what: String,
    /// What is asked for by `reach` and does not hold: the document's name, and the line.
    #[serde(default)]
    asked: Option<(String, u32)>,
}

/// Why there is no proof.
pub enum Unproved {
    /// Nothing is wrong but that this does not hold, by tenant: what they ask for in their
    /// own documents by `reach`.
    Unmet(BTreeMap<String, Vec<Where>>, Fault),
    /// Something else.
    Other(Fault),
}

impl From<Unproved> for Fault {
    fn from(why: Unproved) -> Fault {
        match why {
            Unproved::Unmet(_, fault) | Unproved::Other(fault) => fault,
        }
    }
}

impl Prover {
    /// That asks this supervisor.
    pub fn new(supervisor: Arc<Supervisor>) -> Prover {
        Prover {
            supervisor,
            spec: None,
            images: HashSet::new(),
        }
    }

    /// Gives the verifier a spec to read while we work out its tables. What comes of it is
    /// not waited for: a verifier that could not read it says so when it is asked.
    pub async fn ahead(&mut self, source: &str, text: &[u8]) {
        let sum = sum(source, text);
        if self.spec.replace(sum) == Some(sum) {
            return;
        }
        let Ok(bundle) = sealed(&Bundle::ahead(source, text)) else {
            return;
        };
        let supervisor = self.supervisor.clone();
        tokio::spawn(async move {
            let body = question(PROVE_AHEAD, NOBODY);
            let _ = supervisor.ask(&body, &[bundle]).await;
        });
        // So that it is sent before the compiler has this thread.
        tokio::task::yield_now().await;
    }

    /// Has a world's tables proved.
    ///
    /// # Errors
    /// Why they are not: all breaches, or why nobody could look.
    pub async fn prove(&mut self, world: &World, purpose: u32) -> Result<Proof, Fault> {
        self.prove_despite(world, purpose, NOBODY).await
    }

    /// The same, telling apart what tenants ask for in their own documents. Where a tenant
    /// changes what it has, the verifier is first shown the world as it was `accepted`: so it
    /// looks at what this one asks for, whatever all the others' take.
    ///
    /// # Errors
    /// Likewise.
    pub async fn prove_asked(
        &mut self,
        accepted: Option<&World>,
        world: &World,
        purpose: u32,
    ) -> Result<Proof, Unproved> {
        self.prove_of(accepted, world, purpose, NOBODY).await
    }

    /// The same with the switch of a compartment taken for a liar.
    ///
    /// # Errors
    /// Likewise.
    pub async fn prove_despite(
        &mut self,
        world: &World,
        purpose: u32,
        compromised: u32,
    ) -> Result<Proof, Fault> {
        Ok(self.prove_of(None, world, purpose, compromised).await?)
    }

    async fn prove_of(
        &mut self,
        accepted: Option<&World>,
        world: &World,
        purpose: u32,
        compromised: u32,
    ) -> Result<Proof, Unproved> {
        let mut shown = Ok(());
        if self.images.is_empty() {
            shown = self.show(accepted).await;
        }
        let mut outcome = match shown {
            Ok(()) => self.ask(world, purpose, compromised).await,
            Err(failed) => Err(failed),
        };
        // It has been started anew, or remembers another world.
        if let Err(Failed::Need) = outcome {
            self.spec = None;
            self.images.clear();
            outcome = match self.show(accepted).await {
                Ok(()) => self.ask(world, purpose, compromised).await,
                Err(failed) => Err(failed),
            };
        }
        match outcome {
            Ok(proof) => {
                self.spec = Some(sum(world.source(), world.text().as_bytes()));
                if purpose != PROVE_INSTALLED {
                    self.images = world.images().values().map(|image| image.digest).collect();
                }
                Ok(proof)
            }
            Err(failed) => {
                let unmet = match &failed {
                    Failed::Breaches(breaches, _) => unmet(breaches, world),
                    _ => None,
                };
                let fault = fault(failed, world);
                Err(match unmet {
                    Some(unmet) => Unproved::Unmet(unmet, fault),
                    None => Unproved::Other(fault),
                })
            }
        }
    }

    /// Lets a verifier that knows nothing prove a world that was accepted before. One that
    /// does not would not look at what is asked for by `reach` in the next one's changes, and
    /// take it for asked from then on: so nothing is proved to it, and the next time it is
    /// shown again.
    async fn show(&mut self, accepted: Option<&World>) -> Result<(), Failed> {
        let Some(world) = accepted.filter(|world| !world.images().is_empty()) else {
            return Ok(());
        };
        self.spec = None;
        match self.ask(world, PROVE_TO_KNOW, NOBODY).await {
            Err(failed) if guard!("reach-shown") => Err(match failed {
                // What is wrong is not of this change.
                Failed::Breaches(breaches, _) | Failed::Unreadable(breaches) => {
                    Failed::Unshown(breaches)
                }
                other => other,
            }),
            outcome => {
                if outcome.is_ok() {
                    let images = world.images().values();
                    self.images = images.map(|image| image.digest).collect();
                }
                Ok(())
            }
        }
    }

    async fn ask(&self, world: &World, purpose: u32, compromised: u32) -> Result<Proof, Failed> {
        let spec = sum(world.source(), world.text().as_bytes());
        let part = |image: &'_ crate::steps::Image| {
            let known = purpose == PROVE_INSTALLED || self.images.contains(&image.digest);
            known.then_some(Part::Held(image.digest))
        };
        let parts = world.images().values().map(|image| {
            let part = part(image).unwrap_or(Part::Bytes(&image.bytes));
            (image.target, part)
        });
        let (fabric, compartments): (Vec<_>, Vec<_>) =
            parts.partition(|(target, _)| *target == FABRIC);
        let bundle = Bundle {
            now: now_ms() / 1000,
            source: world.source(),
            spec: match self.spec == Some(spec) {
                true => Part::Held(spec),
                false => Part::Bytes(world.text().as_bytes()),
            },
            numbers: world.applied().ids.as_bytes(),
            fabric: fabric.first().map(|(_, part)| *part),
            compartments: compartments.into_iter().collect(),
        };
        let bundle = sealed(&bundle).map_err(Failed::NoMemory)?;
        let (message, fds) = self
            .supervisor
            .ask_within(PATIENCE, &question(purpose, compromised), &[bundle])
            .await
            .map_err(Failed::Refused)?;
        let verdict: Verdict = message.body().ok_or(Failed::Refused(Refusal::Garbled))?;
        let proof = Proof {
            compartments: verdict.compartments,
            endpoints: verdict.endpoints,
            entries: verdict.entries,
            took_us: verdict.took_us,
            compromised: (world.compartment(compromised))
                .map_or_else(String::new, |compartment| compartment.name.clone()),
        };
        match verdict.outcome {
            VERDICT_PROVED => Ok(proof),
            _ if !guard!("apply-proved") => Ok(proof),
            VERDICT_NEED => Err(Failed::Need),
            outcome => {
                let breaches = fds.into_iter().next().and_then(report).unwrap_or_default();
                Err(match outcome {
                    VERDICT_BREACHES => Failed::Breaches(breaches, verdict.breaches),
                    _ => Failed::Unreadable(breaches),
                })
            }
        }
    }
}

/// Why there is no proof.
enum Failed {
    /// The supervisor, or the verifier by its silence.
    Refused(Refusal),
    /// The verifier lacks something that was named by its digest.
    Need,
    /// It does not understand the question.
    Unreadable(Vec<Breach>),
    /// It does not prove what was accepted before.
    Unshown(Vec<Breach>),
    /// It found so many, of which these are the first.
    Breaches(Vec<Breach>, u32),
    NoMemory(std::io::Error),
}

/// What is not met, where all breaches are of that kind and of tenants' own documents.
fn unmet(breaches: &[Breach], world: &World) -> Option<BTreeMap<String, Vec<Where>>> {
    let documents = &world.applied().documents;
    let mut unmet: BTreeMap<String, Vec<Where>> = BTreeMap::new();
    for breach in breaches {
        let (file, line) = breach.asked.clone()?;
        let (tenant, _) = documents
            .iter()
            .find(|(tenant, of)| file == format!("{tenant}:{}", of.source))?;
        let tenant = tenant.clone();
        let place = asked_at(world, file, line);
        unmet.entry(tenant).or_default().push(place);
    }
    (!unmet.is_empty()).then_some(unmet)
}

fn fault(failed: Failed, world: &World) -> Fault {
    const CHANGED: &str = "nothing was changed; what runs goes on running";
    let unanswered = |message: String| Fault::new("verifier", Whose::Bulkhead, message, CHANGED);
    match failed {
        Failed::Refused(refusal @ Refusal::Refused { .. }) => {
            unanswered(format!("the tables were not proved: {refusal}"))
        }
        Failed::Refused(refusal) => refused(&refusal, "asking for a proof"),
        Failed::Need => unanswered("the verifier lacks what it was just given".into()),
        Failed::NoMemory(error) => {
            unanswered(format!("no memory for what is to be proved: {error}"))
        }
        Failed::Unreadable(why) => {
            let why = why.first().map_or("", |breach| breach.what.as_str());
            unanswered(format!(
                "the verifier does not understand the question: {why}"
            ))
        }
        Failed::Unshown(why) => {
            let why = why.first().map_or("", |breach| breach.what.as_str());
            unanswered(format!(
                "what is applied already is not proved, so no change of a tenant's can be: {why}"
            ))
        }
        Failed::Breaches(breaches, count) => {
            let findings: Vec<Finding> = breaches.iter().map(|b| found(b, world)).collect();
            let first = findings.first().cloned().unwrap_or_default();
            let more = match count {
                0 | 1 => String::new(),
                count => format!(" (and {} more)", count - 1),
            };
            let message = format!("not proved: {}{more}", first.message);
            let mut fault = Fault::new("unproved", Whose::Bulkhead, message, CHANGED);
            if first.place.line != 0 {
                fault.place = Some(first.place);
                fault.whose = Whose::User;
            }
            if findings.len() > 1 || breaches.iter().any(|one| one.asked.is_some()) {
                fault.findings = findings;
            }
            fault
        }
    }
}

/// Where it is asked for, with the column.
fn asked_at(world: &World, file: String, line: u32) -> Where {
    let spec = world.made().map(|(spec, ..)| spec);
    let positions = spec.into_iter().flat_map(|spec| {
        let all = (spec.tenants.iter()).flat_map(|tenant| tenant.policy.iter());
        let all = all.flat_map(|policy| &policy.reach);
        all.map(|reach| reach.allowed.span.start)
            .map(|at| (spec.source.name_at(at), spec.source.position(at)))
    });
    let column = positions
        .filter(|(name, at)| *name == file && at.line == line)
        .map(|(_, at)| at.column)
        .min();
    Where {
        file,
        line,
        column: column.unwrap_or(1),
    }
}

/// Whether a text about what a document asks for names nothing that is another's, so that
/// it may be told the document's tenant: no other tenant, no other document (where a
/// guardrail is written), nothing across an agreement, no uplink. Rather too much is taken
/// for another's.
fn is_own<'a>(text: &str, document: &str, mut others: impl Iterator<Item = &'a str>) -> bool {
    let text = text.replace(&format!("{document}:"), " ");
    let is_of_a_name = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let has = |word: &str| {
        text.match_indices(word).any(|(at, _)| {
            let before = text.get(..at).and_then(|text| text.chars().next_back());
            let after = text.get(at + word.len()..);
            let after = after.and_then(|text| text.chars().next());
            !before.is_some_and(is_of_a_name) && !after.is_some_and(is_of_a_name)
        })
    };
    let shared = [
        "agreement",
        "uplink",
        "guardrail",
        "outside (",
        ".yaml",
        ".yml",
    ];
    !shared.iter().any(|word| text.contains(word))
        && !others.any(|word| !word.is_empty() && has(word))
}

/// A breach for people: whose, what, and the first place in the spec that it names.
fn found(breach: &Breach, world: &World) -> Finding {
    let mut documents = world.applied().documents.iter();
    let own = breach.asked.as_ref().and_then(|(file, line)| {
        let is = |of: &store::Document, tenant: &str| *file == format!("{tenant}:{}", of.source);
        let (tenant, _) = documents.find(|(tenant, of)| is(of, tenant))?;
        Some((tenant, file, *line))
    });
    if let Some((tenant, file, line)) = own {
        let others = world.tenants().iter().map(|one| one.name.as_str());
        let others = others.filter(|name| name != tenant);
        let spec = world.made().map(|(spec, ..)| spec);
        let rails = spec.into_iter().flat_map(|spec| &spec.guardrails);
        let rails = rails.map(|one| one.name.as_str());
        let others = others.chain(rails).chain([world.source()]);
        let is_own = !guard!("tenant-reach") || is_own(&breach.what, file, others);
        return Finding {
            code: if is_own { "reach" } else { "reach-others" }.into(),
            message: breach.what.clone(),
            place: asked_at(world, file.clone(), line),
            help: String::new(),
        };
    }
    let whose = match (breach.slot, world.compartment(breach.slot)) {
        (0, _) => "the fabric".to_owned(),
        (_, Some(compartment)) => format!("compartment {}", compartment.name),
        (slot, None) => format!("slot {slot}"),
    };
    Finding {
        code: "breach".into(),
        message: format!("{whose}: {}", breach.what),
        place: named(world, &breach.what).unwrap_or_default(),
        help: String::new(),
    }
}

/// The place that a text names in one of a world's documents: a tenant's own first, as the
/// name of the provider's may be a part of its.
fn named(world: &World, text: &str) -> Option<Where> {
    let own = world.applied().documents.iter();
    let own = own.map(|(tenant, of)| format!("{tenant}:{}", of.source));
    own.chain([world.source().to_owned()])
        .find_map(|source| place(&source, text))
}

/// The first `SOURCE:LINE` or `SOURCE:LINE:COLUMN` in a text.
fn place(source: &str, text: &str) -> Option<Where> {
    if source.is_empty() {
        return None;
    }
    text.match_indices(source).find_map(|(at, _)| {
        let mut numbers = text
            .get(at + source.len()..)?
            .strip_prefix(':')?
            .splitn(3, ':')
            .map(|word| {
                let end = word
                    .find(|c: char| !c.is_ascii_digit())
                    .unwrap_or(word.len());
                (
                    word.get(..end).and_then(|n| n.parse().ok()),
                    end == word.len(),
                )
            });
        let (line, goes_on) = numbers.next()?;
        let column = numbers.next().filter(|_| goes_on).and_then(|(n, _)| n);
        Some(Where {
            file: source.into(),
            line: line?,
            column: column.unwrap_or(1),
        })
    })
}

fn question(purpose: u32, compromised: u32) -> Prove {
    Prove {
        purpose,
        compromised,
    }
}

fn sealed(bundle: &Bundle<'_>) -> std::io::Result<std::os::fd::OwnedFd> {
    SealedImage::create("bundle", &bundle.write())
}

/// The verifier's report. Its word, taken for an allegation: sealed, bounded, JSON.
fn report(fd: std::os::fd::OwnedFd) -> Option<Vec<Breach>> {
    let bytes = SealedImage::map(fd).ok()?;
    let bytes = bytes.as_slice();
    (bytes.len() <= MOST_REPORT)
        .then(|| serde_json::from_slice(bytes).ok())
        .flatten()
}

/// By what a bundle names a spec: SHA-256 over its name, a zero, its text.
fn sum(source: &str, text: &[u8]) -> Sum {
    let mut sha = Sha256::new();
    sha.update(source);
    sha.update([0]);
    sha.update(text);
    sha.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_anothers_is_not_the_tenants_own() {
        let own = |text: &str| {
            let others = ["red", "green", "host.yaml"];
            is_own(text, "blue:own.yaml", others.into_iter())
        };
        assert!(own(
            "blue/x: not all passes from blue/x to blue/y, for example tcp 10.1.1.1:0 \
             to 10.1.1.2:80; the spec: r (blue:own.yaml:7), reach (blue:own.yaml:10)"
        ));
        assert!(own("blue/reddish to blue/x-green"));
        for text in [
            "blue/x to red/y",
            "the other side of agreement 7",
            "from green: blue/x",
            "rule g (host.yaml:3)",
            "rule g (red:own.yaml:3)",
            "blue/x to outside (wan)",
        ] {
            assert!(!own(text), "{text}");
        }
    }

    #[test]
    fn a_breach_names_its_place_in_the_spec() {
        let at = |text: &str| place("a.yaml", text).map(|at| (at.line, at.column));
        assert_eq!(
            at("red/a reaches blue/b by a.yaml:12:7, which denies"),
            Some((12, 7))
        );
        assert_eq!(at("rule web (a.yaml:12) is missing"), Some((12, 1)));
        assert_eq!(at("b.yaml, a.yaml, a.yaml:x, a.yaml:3:"), Some((3, 1)));
        assert_eq!(at("a.yaml:12: 7 frames"), Some((12, 1)));
        assert_eq!(at("nothing of the kind"), None);
        assert_eq!(place("", "1:2:3"), None);
    }
}
