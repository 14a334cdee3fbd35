//! What tenants and the log of deeds need of the store: tokens, who did what, and what is
//! stated once one of several documents has changed.

use super::{Applier, Wanted, stored, untouched};
use crate::happenings::now_ms;
use crate::stated::Stated;
use crate::tokens::{EACH, MOST, Made, make};
use crate::world::World;
use api::{AuditCheck, AuditEntry, Fault, Whose};
use guard::guard;
use store::{Barred, Deed, Document, Token};

impl Applier {
    /// Makes a token of a tenant that there is.
    ///
    /// # Errors
    /// There is no such tenant, there are too many tokens, or a fault of the host.
    pub async fn create_token(
        &mut self,
        wanted: Token,
        mut deed: AuditEntry,
    ) -> Result<Made, Fault> {
        self.recovered().await?;
        let world = self.shown.world();
        if !world.tenants().iter().any(|one| one.name == wanted.tenant) {
            return Err(Fault::new(
                "not-found",
                Whose::User,
                format!("there is no tenant {}", wanted.tenant),
                "`bulkhead status` lists them",
            ));
        }
        let mut all = self.tokens.all()?;
        let own = all.iter().filter(|one| one.tenant == wanted.tenant).count();
        if own >= EACH || all.len() >= MOST {
            return Err(Fault::new(
                "limit",
                Whose::User,
                format!("there are too many tokens: {EACH} a tenant, {MOST} in all"),
                "revoke some: `bulkhead token list`, `bulkhead token revoke`",
            ));
        }
        let made = make(wanted)?;
        deed.tenants = vec![made.token.tenant.clone()];
        deed.object = format!("{} {}", made.token.id, made.token.name);
        all.push(made.token.clone());
        let kept = self.store()?.keep_tokens(&all, &[Deed(deed)]);
        kept.map_err(|error| untouched(&error))?;
        self.tokens.set(all);
        Ok(made)
    }

    /// Revokes a token, of `tenant` where one is named.
    ///
    /// # Errors
    /// There is no such token, or a fault of the host.
    pub async fn revoke_token(
        &mut self,
        id: &str,
        tenant: Option<&str>,
        mut deed: AuditEntry,
    ) -> Result<Token, Fault> {
        self.recovered().await?;
        let mut all = self.tokens.all()?;
        let found = all
            .iter()
            .position(|one| one.id == id && tenant.is_none_or(|tenant| one.tenant == tenant));
        let Some(at) = found else {
            return Err(Fault::new(
                "not-found",
                Whose::User,
                format!("there is no token {id}"),
                "`bulkhead token list` lists them",
            ));
        };
        let token = all.remove(at);
        deed.tenants = vec![token.tenant.clone()];
        deed.object = format!("{} {}", token.id, token.name);
        // Whatever the disk says: from now on it lets nobody in.
        self.tokens.set(all.clone());
        let kept = self.store()?.keep_tokens(&all, &[Deed(deed)]);
        kept.map_err(|error| Fault {
            help:
                "make room there and revoke it again: until then the token lets nobody in, but a \
                   controller that starts anew takes it as before"
                    .into(),
            ..stored(&error)
        })?;
        Ok(token)
    }

    /// Tokens end with their tenant, also where one of that name is made again; a down
    /// is no such end, and neither is a spec that is not understood.
    pub(super) fn end_tokens(&mut self) {
        let world = self.shown.world();
        if world.applied().down || world.made().is_none() {
            return;
        }
        let Ok(all) = self.tokens.all() else { return };
        let exists = |token: &Token| world.tenants().iter().any(|one| one.name == token.tenant);
        if all.iter().all(exists) || !guard!("token-ends") {
            return;
        }
        let (kept, gone): (Vec<Token>, Vec<Token>) = all.into_iter().partition(exists);
        let deeds: Vec<Deed> = gone
            .iter()
            .map(|token| {
                Deed(AuditEntry {
                    time_ms: now_ms(),
                    tenants: vec![token.tenant.clone()],
                    kind: "token-revoked".into(),
                    object: format!("{} {}", token.id, token.name),
                    details: vec!["its tenant is no more".into()],
                    outcome: "done".into(),
                    ..AuditEntry::default()
                })
            })
            .collect();
        self.tokens.set(kept.clone());
        let written = self
            .store()
            .and_then(|store| store.keep_tokens(&kept, &deeds).map_err(|e| stored(&e)));
        if let Err(fault) = written {
            self.happenings.left_behind(fault.message);
        }
    }

    /// Remembers who did something.
    ///
    /// # Errors
    /// A fault of the host: the store.
    pub async fn note(&mut self, deed: AuditEntry) -> Result<(), Fault> {
        self.recovered().await?;
        let noted = self.store()?.note(&[Deed(deed)]);
        noted.map_err(|error| stored(&error))
    }

    /// Remembers what is done already (or was tried: its outcome says), and gives `outcome`: where it
    /// cannot be written, that is said together with what was done, and among what happened.
    ///
    /// # Errors
    /// That of the outcome; or a fault of the host: the store.
    pub async fn note_done(
        &mut self,
        deed: AuditEntry,
        done: &str,
        outcome: Result<(), Fault>,
    ) -> Result<(), Fault> {
        let line = format!("{} {}: {}", deed.kind, deed.object, deed.outcome);
        let by = deed
            .uid
            .map_or_else(String::new, |uid| format!(" by uid {uid}"));
        let Err(unwritten) = self.note(deed).await else {
            return outcome;
        };
        let without = format!("the audit log has no entry of it: {}", unwritten.message);
        self.happenings
            .say("audit-missing", format!("{line}{by}; {without}"));
        Err(match outcome {
            Ok(()) => Fault {
                message: format!("{done}, but {without}"),
                help:
                    "it need not be done again; `bulkhead events` has who did it. Make room there, \
                       and what follows is in the audit log"
                        .into(),
                ..unwritten
            },
            Err(fault) => Fault {
                message: format!("{}; and {without}", fault.message),
                ..fault
            },
        })
    }

    /// The audit log: see `Store::audit`.
    ///
    /// # Errors
    /// A fault of the host: the store.
    pub async fn audit(
        &mut self,
        (from_ms, to_ms): (u64, u64),
        most: usize,
        passes: impl Fn(&AuditEntry) -> bool,
    ) -> Result<Vec<AuditEntry>, Fault> {
        self.recovered().await?;
        let found = self.store()?.audit(from_ms, to_ms, most, passes);
        found.map_err(|error| stored(&error))
    }

    /// Whether the audit log is whole.
    ///
    /// # Errors
    /// A fault of the host: the store.
    pub async fn audit_check(&mut self) -> Result<AuditCheck, Fault> {
        self.recovered().await?;
        let checked = self.store()?.audit_check();
        checked.map_err(|error| stored(&error))
    }
}

/// Whether a revocation (the `provider`'s, or the tenant's own), or taking one back, would
/// change nothing: found by name in what was worked out before.
///
/// # Errors
/// There is no such offer or acceptance, or it is not revoked.
pub fn settled(
    world: &World,
    (tenant, name): (&str, &str),
    undo: bool,
    provider: bool,
) -> Result<bool, Fault> {
    let key = (tenant.to_owned(), name.to_owned());
    let revoked = world.applied().revoked.contains(&key);
    let mut barred = world.applied().barred.iter();
    let barred = barred.any(|one| one.tenant == key.0 && one.name == key.1);
    let mut tenants = world
        .made()
        .into_iter()
        .flat_map(|(spec, ..)| &spec.tenants);
    let stated = tenants.find(|one| one.name.as_str() == tenant);
    let stands = stated.is_some_and(|one| {
        one.offers.iter().any(|offer| offer.name.as_str() == name)
            || (one.accepts.iter()).any(|accept| accept.name.as_str() == name)
    });
    let aside = world.applied().aside.get(tenant);
    let is_aside = aside.is_some_and(|aside| aside.what != spec::Aside::Reach.as_str());
    let none = match undo {
        true if revoked || barred => return Ok(false),
        true => format!("{tenant}/{name} is not revoked"),
        // Both where another of that name was stated since.
        false if stands => return Ok(false),
        // What its tenant revoked, the provider may make last.
        false if revoked => return Ok(barred || !provider),
        // It is revoked for when it comes back.
        false if is_aside && aside_states(world, &key) => return Ok(false),
        false => format!("there is no offer or acceptance {tenant}/{name}"),
    };
    Err(Fault::new(
        "not-found",
        Whose::User,
        none,
        "see the tenant's document, and in `bulkhead status` what is revoked",
    ))
}

/// Whether the document that is set aside has an offer or an acceptance of this name. One
/// that does not read any more may have any, so many at most.
fn aside_states(world: &World, (tenant, name): &(String, String)) -> bool {
    let applied = world.applied();
    let document = applied.documents.get(tenant);
    match document.and_then(|document| spec::offered_or_accepted(&document.text)) {
        _ if !guard!("revoke-stated") => true,
        Some(names) => names.contains(name.as_str()),
        None => {
            let revoked = applied.revoked.iter().filter(|(of, _)| of == tenant);
            revoked.count() < spec::MAX_OFFERS + spec::MAX_ACCEPTS
        }
    }
}

/// Whether a revocation of this ends an agreement that is live.
pub fn ends_one(world: &World, (tenant, name): (&str, &str)) -> bool {
    let live = (world.made().into_iter()).flat_map(|(_, _, intent)| &intent.agreements);
    live.into_iter().any(|one| {
        (one.offerer == tenant && one.offer == name)
            || (one.acceptor == tenant && one.acceptance == name)
    })
}

/// What is stated once a change is made.
pub(super) fn stated(old: &World, wanted: Wanted<'_>) -> Result<Stated, Fault> {
    let before = Stated::before(old.applied());
    let (tenant, source, text) = match wanted {
        Wanted::Provider { source, text } => {
            return Ok(Stated {
                documents: before.documents,
                revoked: before.revoked,
                barred: before.barred,
                ..Stated::alone(source, text)?
            });
        }
        Wanted::Revoke {
            tenant,
            name,
            undo,
            provider,
        } => {
            let mut after = before;
            let key = (tenant.to_owned(), name.to_owned());
            let this = barred(old, tenant, name);
            let is = |one: &Barred| {
                let service = (&one.from, &one.service) == (&this.from, &this.service);
                one.tenant == tenant && (one.name == name || service && !one.from.is_empty())
            };
            match undo {
                true => {
                    let barred = after.barred.iter().any(is);
                    if !provider && barred && guard!("revoked-by-provider") {
                        return Err(Fault::new(
                            "denied",
                            Whose::User,
                            format!("{tenant}/{name} was revoked by the provider of this host"),
                            "ask the provider, who alone takes that back",
                        ));
                    }
                    // By its service too, where the tenant gave the acceptance another name.
                    let named = after
                        .barred
                        .iter()
                        .find(|one| is(one) && !one.from.is_empty());
                    let service = named.map(|one| (one.from.clone(), one.service.clone()));
                    let of_service = |from: &String, name: &String| {
                        let it = service.as_ref().filter(|_| guard!("undo-by-service"));
                        it.is_some_and(|(of, service)| (of, service) == (from, name))
                    };
                    let spec = old.made().map(|(spec, ..)| spec);
                    let renamed = spec.into_iter().flat_map(|spec| &spec.revoked);
                    for (renamed, (from, service)) in renamed {
                        if renamed.0 == tenant && of_service(from, service) {
                            after.revoked.remove(renamed);
                        }
                    }
                    (after.barred).retain(|one| {
                        !(is(one) || one.tenant == tenant && of_service(&one.from, &one.service))
                    });
                    after.revoked.remove(&key);
                }
                false => {
                    if provider {
                        after.barred.insert(this);
                    }
                    after.revoked.insert(key);
                }
            }
            return Ok(after);
        }
        Wanted::Own {
            tenant,
            source,
            text,
        } => (tenant, source, text),
    };
    let mut tenants = old.made().into_iter().flat_map(|(spec, ..)| &spec.tenants);
    let own = tenants.find(|one| one.name.as_str() == tenant);
    if own.is_none_or(|own| own.self_managed.is_none()) {
        return Err(Fault::new(
            "denied",
            Whose::User,
            format!("what the tenant {tenant} has is stated by the provider of this host"),
            "`self-managed` in its spec would let the tenant state it",
        ));
    }
    if text.len() > spec::MAX_DOCUMENT_BYTES {
        return Err(Fault::new(
            "too-large",
            Whose::User,
            format!(
                "{source} is larger than the limit of {} bytes",
                spec::MAX_DOCUMENT_BYTES
            ),
            "is this the right file?",
        ));
    }
    let named = format!("{tenant}:{source}");
    let text = Stated::alone(&named, text)?.text;
    let mut after = before;
    after.aside.remove(tenant);
    // Who states it anew means it; what the provider revoked stays so.
    after.revoked.retain(|(of, _)| of != tenant);
    let document = Document {
        source: source.to_owned(),
        text,
    };
    after.documents.insert(tenant.to_owned(), document);
    Ok(after)
}

/// What is revoked: of an acceptance also whose service it is, so that it is not accepted
/// by another name.
fn barred(old: &World, tenant: &str, name: &str) -> Barred {
    let spec = old.made().map(|(spec, ..)| spec);
    let mut tenants = spec.into_iter().flat_map(|spec| &spec.tenants);
    let of = tenants.find(|one| one.name.as_str() == tenant);
    let mut accepts = of.into_iter().flat_map(|of| &of.accepts);
    let accept = accepts.find(|one| one.name.as_str() == name);
    let key = (tenant.to_owned(), name.to_owned());
    let (from, service) = match accept {
        Some(one) => (
            one.from.as_str().to_owned(),
            one.service.as_str().to_owned(),
        ),
        None => spec
            .and_then(|spec| spec.revoked.get(&key).cloned())
            .unwrap_or_default(),
    };
    Barred {
        tenant: key.0,
        name: key.1,
        from,
        service,
    }
}
