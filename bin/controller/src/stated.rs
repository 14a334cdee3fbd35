//! What a world is worked out from: the documents, what of them is revoked, and what of
//! tenants' own is set aside because it does not fit what the provider states.

use crate::revoked;
use crate::survey::hex;
use crate::world::{World, now, refused};
use api::{Aside, Fault, Finding, Where};
use guard::guard;
use policy::{Lacks, Unaccepted};
use sha2::{Digest, Sha256};
use spec::{Parts, Spec, Written};
use std::collections::{BTreeMap, BTreeSet};
use store::{Applied, Barred, Document};

/// What a world is worked out from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stated {
    /// The provider's file name.
    pub source: String,
    /// The provider's document.
    pub text: String,
    /// Tenants' own, by tenant.
    pub documents: BTreeMap<String, Document>,
    /// Offers and acceptances that are revoked, as (tenant, name).
    pub revoked: BTreeSet<(String, String)>,
    /// Those that the provider revoked.
    pub barred: BTreeSet<Barred>,
    /// What of tenants' own documents is set aside.
    pub aside: BTreeMap<String, Aside>,
}

/// Why documents make no spec.
#[derive(Debug)]
pub struct Unfit {
    /// All of it.
    pub fault: Fault,
    /// What of it is wrong with tenants' own documents, by tenant.
    own: BTreeMap<String, Vec<Finding>>,
}

impl From<Fault> for Unfit {
    fn from(fault: Fault) -> Unfit {
        Unfit {
            fault,
            own: BTreeMap::new(),
        }
    }
}

impl From<Unfit> for Fault {
    fn from(unfit: Unfit) -> Fault {
        unfit.fault
    }
}

impl Unfit {
    /// By what was found.
    pub fn by(findings: &[spec::Finding]) -> Unfit {
        let mut own: BTreeMap<String, Vec<Finding>> = BTreeMap::new();
        for finding in findings {
            if let Some(tenant) = finding.source.tenant_at(finding.span.start) {
                let (own, found) = (
                    own.entry(tenant.into()).or_default(),
                    Finding::from(finding),
                );
                own.extend((own.len() < MOST_FINDINGS).then_some(found));
            }
        }
        // Where only the provider's own is wrong, an own one may be the other half of it.
        if own.is_empty() {
            for finding in findings {
                for (span, _) in &finding.also {
                    let Some(tenant) = finding.source.tenant_at(span.start) else {
                        continue;
                    };
                    let position = finding.source.position(span.start);
                    let found = Finding {
                        code: finding.code.into(),
                        message: "this does not go with what the provider of this host states"
                            .into(),
                        place: Where {
                            file: finding.source.name_at(span.start).into(),
                            line: position.line,
                            column: position.column,
                        },
                        help: String::new(),
                    };
                    own.insert(tenant.into(), vec![found]);
                }
            }
        }
        Unfit {
            fault: refused(findings),
            own,
        }
    }
}

/// Findings that are kept of a document that is set aside.
const MOST_FINDINGS: usize = 8;

impl Stated {
    /// The provider's document alone.
    ///
    /// # Errors
    /// It is not text.
    pub fn alone(source: &str, text: &[u8]) -> Result<Stated, Fault> {
        let Ok(text) = std::str::from_utf8(text) else {
            let errors = spec::parse(source, text).err();
            return Err(refused(
                &errors.map(|errors| errors.findings).unwrap_or_default(),
            ));
        };
        Ok(Stated {
            source: source.to_owned(),
            text: text.to_owned(),
            ..Stated::default()
        })
    }

    /// What was stated before.
    pub fn before(applied: &Applied) -> Stated {
        Stated {
            source: applied.source.clone(),
            text: applied.spec.clone(),
            documents: applied.documents.clone(),
            revoked: applied.revoked.clone(),
            barred: applied.barred.clone(),
            aside: applied.aside.clone(),
        }
    }

    /// All of it as one text.
    pub fn joined(&self) -> String {
        let written = |source: &str, text: &str| Written {
            file: source.to_owned(),
            text: text.to_owned(),
        };
        let own = self.documents.iter();
        let barred = self.barred.iter();
        let parts = Parts {
            provider: written(&self.source, &self.text),
            documents: own
                .map(|(tenant, of)| (tenant.clone(), written(&of.source, &of.text)))
                .collect(),
            revoked: (self.revoked.iter().cloned())
                .chain(barred.clone().map(|b| (b.tenant.clone(), b.name.clone())))
                .collect(),
            barred: barred
                .filter(|b| !b.from.is_empty())
                .map(|b| (b.tenant.clone(), b.from.clone(), b.service.clone()))
                .collect(),
            aside: (self.aside.iter())
                .filter_map(|(tenant, of)| Some((tenant.clone(), spec::Aside::of(&of.what)?)))
                .collect(),
        };
        parts.joined()
    }

    /// Reads it.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn read(&self) -> Result<Spec, Unfit> {
        spec::parse(&self.source, self.joined().as_bytes())
            .map_err(|errors| Unfit::by(&errors.findings))
    }

    /// As the store remembers it; what the spec of it does not state is still there.
    pub fn applied(self) -> Applied {
        Applied {
            digest: hex(&Sha256::digest(&self.text)),
            spec: self.text,
            source: self.source,
            documents: self.documents,
            revoked: self.revoked,
            barred: self.barred,
            aside: self.aside,
            ..Applied::default()
        }
    }

    /// Makes a world of it; what of tenants' own documents does not fit is set aside,
    /// step by step, until the rest does.
    ///
    /// # Errors
    /// What is wrong with the provider's.
    pub fn fit(
        mut self,
        mut make: impl FnMut(Stated) -> Result<World, Unfit>,
    ) -> Result<World, Fault> {
        // Bound: each turn sets more of a document aside, two steps each.
        loop {
            let unfit = match make(self.clone()) {
                Ok(world) => return Ok(world),
                Err(unfit) => unfit,
            };
            let mut more = false;
            for (tenant, findings) in unfit.own {
                more |= self.set_aside(&tenant, findings);
            }
            if !more || !guard!("own-document-yields") {
                return Err(unfit.fault);
            }
        }
    }

    /// Sets more of a tenant's document aside; `false` = all of it is.
    fn set_aside(&mut self, tenant: &str, findings: Vec<Finding>) -> bool {
        let before = self.aside.get(tenant);
        let what = match before.and_then(|aside| spec::Aside::of(&aside.what)) {
            None | Some(spec::Aside::Reach) => spec::Aside::Closed,
            Some(spec::Aside::Closed) => spec::Aside::Whole,
            Some(spec::Aside::Whole) => return false,
        };
        // Why it did not fit as it was written.
        let first = before.filter(|aside| aside.what == spec::Aside::Closed.as_str());
        let aside = Aside {
            what: what.as_str().into(),
            findings: first.map_or(findings, |first| first.findings.clone()),
        };
        self.aside.insert(tenant.to_owned(), aside);
        true
    }

    /// Sets aside what these tenants ask for by `reach`, at these places (none: it was not
    /// asked for); `false` = there is
    /// nothing more of it to set aside.
    pub fn without_reach(&mut self, unmet: BTreeMap<String, Vec<Where>>) -> bool {
        let mut more = false;
        for (tenant, places) in unmet {
            let Some(document) = self.documents.get(&tenant) else {
                continue;
            };
            if self.aside.contains_key(&tenant) {
                continue;
            }
            let unasked = Finding {
                code: "reach".into(),
                message: "what is asked for here is not held: of what tenants ask for too much \
                          does not hold any more to ask for all of it"
                    .into(),
                place: Where {
                    file: format!("{tenant}:{}", document.source),
                    line: 1,
                    column: 1,
                },
                help: "apply the document again".into(),
            };
            let unasked = places.is_empty().then_some(unasked);
            let found = |place: Where| Finding {
                code: "reach".into(),
                message: "what is asked for here does not hold: what others state stands \
                          against it"
                    .into(),
                place,
                help: "`bulkhead explain` says what decides; apply the document again once it \
                       asks for what can be"
                    .into(),
            };
            let aside = Aside {
                what: spec::Aside::Reach.as_str().into(),
                findings: (places.into_iter().take(MOST_FINDINGS))
                    .map(found)
                    .chain(unasked)
                    .collect(),
            };
            self.aside.insert(tenant, aside);
            more = true;
        }
        more
    }
}

/// What the provider is told of what is set aside, a line a tenant.
pub fn warnings(aside: &BTreeMap<String, Aside>) -> Vec<Finding> {
    let warning = |(tenant, of): (&String, &Aside)| {
        let why = of.findings.first().cloned().unwrap_or_default();
        let what = match spec::Aside::of(&of.what) {
            Some(spec::Aside::Reach) => format!("what {tenant} asks for by `reach` is not held"),
            Some(spec::Aside::Closed) => format!(
                "the own document of {tenant} is set aside: it keeps its endpoints, and \
                 nothing passes between them"
            ),
            _ => format!("the own document of {tenant} is set aside, its endpoints with it"),
        };
        Finding {
            code: "set-aside".into(),
            message: format!("{what}: {}", why.message),
            place: why.place,
            help: "the tenant is told; a document of its own that fits takes its place".into(),
        }
    };
    aside.iter().map(warning).collect()
}

/// Halves of agreements that are told of, of all tenants or of the one that asks: who states thousands makes no
/// answer long.
const HALVES: usize = 100;

/// What is offered or accepted, by all or by one, and comes to no agreement.
pub fn halves(world: &World, of: Option<&str>) -> Vec<api::Half> {
    let halves = world.made().map_or_else(Vec::new, |(spec, _, intent)| {
        policy::halves(spec, &intent.agreements, (of, HALVES), now())
    });
    let halves = halves.into_iter();
    // Whether another revoked it, or never stated it, a tenant is not told.
    let lacking = |half: &policy::Half| {
        let missing = match &half.lacks {
            Lacks::Offer(service) => Ok(service.as_str()),
            Lacks::Acceptance => Err((half.tenant.as_str(), half.name.as_str())),
            Lacks::Time | Lacks::Common => return None,
        };
        let asked = of.is_none() || !guard!("half-revoked");
        asked.then(|| revoked::lacking(world, &half.other, missing))?
    };
    let told = halves.map(|half| api::Half {
        lacks: match half.lacks {
            _ if let Some(revoked) = lacking(&half) => revoked.to_string(),
            Lacks::Acceptance => format!("{} does not accept it", half.other),
            Lacks::Offer(service) => format!("{} does not offer it {service}", half.other),
            Lacks::Time => "its time (`until`) is over".into(),
            Lacks::Common => {
                "both sides have nothing in common (family of addresses, prefixes, or one routes)"
                    .into()
            }
        },
        tenant: half.tenant,
        name: half.name,
        other: half.other,
    });
    told.collect()
}

/// What others offer a tenant, and it has not accepted: that name it, so that its own token may know of them. What it
/// accepted and is revoked is told as that.
pub fn unaccepted(world: &World, tenant: &str) -> Vec<Unaccepted> {
    let made = world.made().into_iter();
    let all = made.flat_map(|(spec, ..)| policy::unaccepted(spec, tenant, HALVES, now()));
    let is_revoked = |it: &Unaccepted| {
        let missing = Err((it.offerer.as_str(), it.offer.as_str()));
        revoked::lacking(world, tenant, missing).is_some()
    };
    all.filter(|it| !is_revoked(it)).collect()
}
