//! Applies: one at a time, all or nothing.
//!
//! Intent is in the store before the first step. What is new is made first, while
//! everything that runs goes on as it is; then changed images are put in use; then
//! the store has it as applied; then what is no longer wanted is removed. A failure
//! before it is in the store undoes everything, and so does a controller that comes
//! back and finds an intent that was not concluded.

mod aside;
mod meaning;
mod recovery;
mod tenants;

pub use tenants::{ends_one, settled};

use crate::deeds;
use crate::difference::{Difference, Existing};
use crate::happenings::{Happenings, now_ms};
use crate::proof::Prover;
use crate::refuse::refused;
use crate::server::Shown;
use crate::stated::{Stated, halves, warnings};
use crate::steps::{Object, Progress, described, perform, perform_all, settle, undoing};
use crate::supervisor::{Refusal, Supervisor};
use crate::survey::Survey;
use crate::tokens::Tokens;
use crate::usage;
use crate::world::{World, now};
use api::{Applied, AuditEntry, Fault, Plan, Proof, UsageRow, Whose};
use command::cores::Cores;
use command::verbs::{FABRIC, PROVE_INSTALLED, PROVE_TO_INSTALL, PROVE_TO_KNOW};
use guard::guard;
use recovery::{installed, inventory};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;
use store::{Deed, HistoryEntry, Store, StoreError, Undertaking};

/// Applies shown by `status`.
const SHOWN: usize = 10;

/// Opens the store; asked again as long as it cannot.
pub type Opener = Box<dyn Fn() -> Result<Store, StoreError> + Send + Sync>;

/// The one who applies.
pub struct Applier {
    open: Opener,
    store: Option<Store>,
    /// What is applied is known: the store has been read.
    ready: bool,
    supervisor: Arc<Supervisor>,
    prover: Prover,
    shown: Arc<Shown>,
    happenings: Arc<Happenings>,
    tokens: Arc<Tokens>,
    cores: Cores,
    rootless: bool,
}

/// A change that somebody wants.
#[derive(Clone, Copy, Debug)]
pub enum Wanted<'a> {
    /// The provider's document is to be this one.
    Provider {
        /// Its file name.
        source: &'a str,
        /// Its text.
        text: &'a [u8],
    },
    /// A tenant's own is to be this one.
    Own {
        /// The tenant.
        tenant: &'a str,
        /// Its file name.
        source: &'a str,
        /// Its text.
        text: &'a [u8],
    },
    /// An offer or an acceptance is to count as not stated, or to count again.
    Revoke {
        /// The tenant.
        tenant: &'a str,
        /// The offer or the acceptance.
        name: &'a str,
        /// To count again.
        undo: bool,
        /// By the provider: the tenant does not take it back.
        provider: bool,
    },
}

impl<'a> Wanted<'a> {
    /// The tenant whose own document it is.
    fn by(self) -> Option<&'a str> {
        match self {
            Wanted::Own { tenant, .. } => Some(tenant),
            Wanted::Provider { .. } | Wanted::Revoke { .. } => None,
        }
    }
}

impl Applier {
    /// With a store that is opened by the first `recover`. As long as it cannot be,
    /// nothing can be applied, and what runs goes on running.
    pub fn new(
        open: Opener,
        supervisor: Arc<Supervisor>,
        shown: Arc<Shown>,
        happenings: Arc<Happenings>,
        tokens: Arc<Tokens>,
    ) -> Applier {
        Applier {
            open,
            store: None,
            ready: false,
            prover: Prover::new(supervisor.clone()),
            supervisor,
            shown,
            happenings,
            tokens,
            cores: Cores::default(),
            rootless: false,
        }
    }

    /// On a host with these cores.
    pub fn on_cores(self, cores: Cores) -> Applier {
        Applier { cores, ..self }
    }

    /// Of a supervisor that is not root, if it is.
    pub fn without_root(&mut self, rootless: bool) {
        self.rootless = rootless;
    }

    /// What this would change.
    ///
    /// # Errors
    /// A fault of the spec; or its tables cannot be proved.
    pub async fn plan(&mut self, wanted: Wanted<'_>) -> Result<Plan, Fault> {
        let old = self.shown.world();
        let new = self.worked_out(&old, wanted).await?;
        self.has_means_for(&new)?;
        let (new, proof) = self.proved(&old, new, wanted.by(), PROVE_TO_KNOW).await?;
        let existing = existing(&old);
        let difference = Difference::between(
            &existing,
            new.objects(),
            new.digests(),
            new.images(),
            new.epoch(),
        );
        Ok(Plan {
            proof: Some(proof),
            ..planned(&difference, &existing, [&old, &new], wanted.by())
        })
    }

    /// Has what is installed proved, and says where it is not what was applied.
    ///
    /// # Errors
    /// What is wrong with it, or why nobody could look.
    pub async fn verify(&mut self) -> Result<Proof, Fault> {
        let world = self.shown.world();
        if world.images().is_empty() {
            return Ok(Proof::default());
        }
        let outcome = self.prover.prove(&world, PROVE_INSTALLED).await;
        match &outcome {
            Ok(_) => self.shown.tell(|health| {
                health.drift.clear();
                health.proved_s = now_ms() / 1000;
            }),
            Err(fault) if fault.code == "unproved" => {
                // Said once, however often it is found.
                if self.shown.health().drift != fault.message {
                    self.happenings.drifted(fault.message.clone());
                    let drift = fault.message.clone();
                    self.shown.tell(|health| health.drift = drift);
                }
            }
            // Nobody looked: the time of the last proof grows old.
            Err(_) => {}
        }
        outcome
    }

    /// The same with the switch of a compartment taken for a liar: that tenants are kept
    /// apart whatever it does. `name`: the compartment's, or a tenant's in it.
    ///
    /// # Errors
    /// What is wrong, or why nobody could look; there is no such compartment.
    pub async fn verify_despite(&mut self, name: &str) -> Result<Proof, Fault> {
        let world = self.shown.world();
        let all = world.compartments();
        let has = |tenants: &[String]| tenants.iter().any(|tenant| tenant == name);
        let found =
            (all.iter().find(|c| c.name == name)).or_else(|| all.iter().find(|c| has(&c.tenants)));
        let Some(compartment) = found else {
            return Err(Fault::new(
                "not-found",
                Whose::User,
                format!("there is no compartment or tenant {name}"),
                "`bulkhead status` lists them",
            ));
        };
        let prover = &mut self.prover;
        prover
            .prove_despite(&world, PROVE_INSTALLED, compartment.id)
            .await
    }

    /// Makes the host as this says.
    ///
    /// # Errors
    /// A fault of the spec, of the host or ours; what ran goes on running.
    pub async fn apply(&mut self, wanted: Wanted<'_>, deed: AuditEntry) -> Result<Applied, Fault> {
        let begun = Instant::now();
        self.recovered().await?;
        let old = self.shown.world();
        if let Wanted::Revoke {
            tenant,
            name,
            undo,
            provider,
        } = wanted
            && settled(&old, (tenant, name), undo, provider)?
        {
            return Ok(unchanged(&old, begun));
        }
        let new = self.worked_out(&old, wanted).await?;
        self.has_means_for(&new)?;
        self.account_before(&old, &new).await;
        self.move_to(&old, new, deed, wanted.by(), "applied", begun)
            .await
    }

    /// The world that a change leads to.
    async fn worked_out(&mut self, old: &World, wanted: Wanted<'_>) -> Result<World, Fault> {
        let stated = tenants::stated(old, wanted)?;
        self.prover
            .ahead(&stated.source, stated.joined().as_bytes())
            .await;
        // Only the provider's word moves what others state.
        match wanted {
            Wanted::Provider { .. } => World::fitted(stated, old),
            Wanted::Own { .. } | Wanted::Revoke { .. } => Ok(World::of(stated, old)?),
        }
    }

    /// Adds up what was used since the last time, by counters that were just read.
    ///
    /// # Errors
    /// A fault of the host: the store.
    pub async fn account(&mut self, world: &World, survey: &Survey) -> Result<(), Fault> {
        self.recovered().await?;
        let happenings = self.happenings.clone();
        let store = self.store()?;
        let seen = store.seen().map_err(|error| stored(&error))?;
        let (rows, now) = usage::since(&seen, world, survey, &happenings);
        store
            .account(usage::hour(), &rows, &now)
            .map_err(|error| stored(&error))
    }

    /// What was used in the hours that begin from `from` on and before `to`.
    ///
    /// # Errors
    /// A fault of the host: the store.
    pub fn usage(&mut self, from: u64, to: u64) -> Result<Vec<(u64, Vec<UsageRow>)>, Fault> {
        let store = self.store()?;
        store.usage(from, to).map_err(|error| stored(&error))
    }

    /// What goes with a change is accounted before.
    async fn account_before(&mut self, old: &World, new: &World) {
        let stays = |(key, digest)| new.digests().get(key) == Some(digest);
        if !old.digests().iter().all(stays) {
            let survey = Survey::take(&self.supervisor, old).await;
            // No reason not to apply: a store that cannot be written says so itself.
            let _ = self.account(old, &survey).await;
        }
    }

    /// Takes everything down.
    ///
    /// # Errors
    /// A fault of the host or ours.
    pub async fn down(&mut self, deed: AuditEntry) -> Result<Applied, Fault> {
        let begun = Instant::now();
        self.recovered().await?;
        let old = self.shown.world();
        let new = World::nothing(&old)?;
        self.account_before(&old, &new).await;
        self.move_to(&old, new, deed, None, "down", begun).await
    }

    /// Works out what is applied once more, now that an agreement of it has ended.
    ///
    /// # Errors
    /// A fault of the host or ours: the agreement is still live.
    pub async fn expire(&mut self) -> Result<(), Fault> {
        let begun = Instant::now();
        let outcome = self.end_agreements(begun).await;
        if let Err(fault) = &outcome {
            self.degraded(format!(
                "an agreement that has ended is still live: {}",
                fault.message
            ));
        }
        outcome
    }

    async fn end_agreements(&mut self, begun: Instant) -> Result<(), Fault> {
        self.recovered().await?;
        let old = self.shown.world();
        // An apply may have been faster.
        if old.expires().is_none_or(|ends| ends > now()) {
            return Ok(());
        }
        let new = World::of(Stated::before(old.applied()), &old)?;
        let deed = AuditEntry {
            time_ms: now_ms(),
            kind: "ended".into(),
            object: "an agreement whose time was over".into(),
            outcome: "done".into(),
            ..AuditEntry::default()
        };
        self.move_to(&old, new, deed, None, "an agreement ended", begun)
            .await
            .map(drop)
    }

    /// Whether this host has what it takes, as far as that is known before anything is begun: root for circuits, a core
    /// for every isolated switch, and one that is left for the rest.
    fn has_means_for(&self, new: &World) -> Result<(), Fault> {
        if self.rootless && !new.with_circuits().is_empty() && guard!("circuits-root") {
            return Err(Fault::new(
                "host",
                Whose::Host,
                "circuits need a supervisor that is root: their programs get user namespaces of another's",
                "start the daemon as root, without --rootless, or attach those endpoints otherwise",
            ));
        }
        let bodies = new.objects().values().filter_map(|object| match object {
            Object::Compartment(body) => Some(body),
            _ => None,
        });
        let isolated = bodies.flat_map(|body| body.cores().map(|core| (core, body.name.as_str())));
        if guard!("cores-left")
            && let Err(sentence) = self.cores.check(isolated)
        {
            return Err(Fault::new(
                "host",
                Whose::User,
                sentence,
                "change `cores: {isolated: ...}`; `lscpu --extended` shows cores and siblings",
            ));
        }
        Ok(())
    }

    async fn move_to(
        &mut self,
        old: &World,
        mut new: World,
        deed: AuditEntry,
        by: Option<&str>,
        outcome: &str,
        begun: Instant,
    ) -> Result<Applied, Fault> {
        let mut existing = existing(old);
        if self.happenings.take_doubt() {
            let asking = |refusal: Refusal| refused(&refusal, "asking what exists");
            existing.objects = inventory(&self.supervisor).await.map_err(asking)?;
            existing.images = installed(&self.supervisor, &existing.objects)
                .await
                .map_err(asking)?;
        }
        let steps = |new: &World| {
            let (objects, digests) = (new.objects(), new.digests());
            Difference::between(&existing, objects, digests, new.images(), new.epoch())
        };
        let mut difference = steps(&new);
        // What is missing is told to whoever asks, as that one may know it.
        let asks = Some(deed.by.clone()).filter(|tenant| !tenant.is_empty());
        let asks = asks.as_deref();
        let mut plan = planned(&difference, &existing, [old, &new], asks);
        let (was, is) = (old.applied(), new.applied());
        let same = old.text() == new.text() && (was.down, &was.barred) == (is.down, &is.barred);
        if difference.is_empty() && same {
            if old.expires() != new.expires() {
                new.keep_epoch(old.epoch());
                self.shown.show(Arc::new(new));
            }
            return Ok(Applied {
                epoch: old.epoch(),
                plan,
                took_us: micros(begun),
                already: false,
            });
        }
        let text = new.digest().to_owned();
        match self.proved(old, new, by, PROVE_TO_INSTALL).await {
            Ok((proved, proof)) => {
                if proved.digest() != text {
                    // Something was set aside, and all was worked out once more.
                    difference = steps(&proved);
                    plan = planned(&difference, &existing, [old, &proved], asks);
                }
                new = proved;
                plan.warnings = warnings(&new.applied().aside);
                plan.proof = Some(proof);
            }
            Err(fault) => {
                self.happenings.say("unproved", fault.message.clone());
                return Err(fault);
            }
        }
        if difference.is_empty() {
            // Another text for the same thing (a comment, the order): remembered, nothing else.
            new.keep_epoch(old.epoch());
        }
        let uid = deed.uid.unwrap_or(0);
        let source = match (deed.kind.as_str(), deed.tenants.first()) {
            ("apply", Some(tenant)) => format!("{tenant}:{}", deed.object),
            ("revoke", _) => format!("revoke {}", deed.object),
            ("revoke-undone", _) => format!("revoke --undo {}", deed.object),
            _ => new.source().to_owned(),
        };
        let said = deeds::entries(deed, old, &new, &plan);
        let mut deeds: Vec<Deed> = said.into_iter().map(Deed).collect();
        deeds.extend(deeds::shared(old, &new).into_iter().map(Deed));
        let mut entry = HistoryEntry {
            time_s: now_ms() / 1000,
            uid,
            epoch: new.epoch(),
            digest: new.digest().into(),
            source,
            changes: u32::try_from(plan.changes.len()).unwrap_or(u32::MAX),
            outcome: outcome.into(),
        };
        let undertaking = Undertaking {
            epoch: entry.epoch,
            digest: entry.digest.clone(),
            source: entry.source.clone(),
            uid,
            time_s: entry.time_s,
        };
        if !difference.is_empty() {
            self.store()?
                .undertake(&undertaking)
                .map_err(|error| untouched(&error))?;
        }
        let under_way = api::Undertaking {
            epoch: entry.epoch,
            phase: "under way".into(),
            uid,
        };
        self.shown
            .tell(|health| health.undertaking = Some(under_way));
        let outcome = self.carry_out(old, &new, difference, &entry, &deeds).await;
        self.shown.tell(|health| health.undertaking = None);
        if let Err(fault) = outcome {
            entry.outcome = format!("rolled back: {}", fault.message);
            self.happenings.say("rolled-back", fault.message.clone());
            deeds.truncate(1);
            if let Some(deed) = deeds.first_mut() {
                deed.0.outcome = entry.outcome.clone();
            }
            if let Some(store) = &mut self.store {
                // A store that cannot take this finds the undertaking at the next start.
                let _ = store.abandon(&entry, &deeds);
            }
            self.refresh_history();
            return Err(fault);
        }
        let epoch = new.epoch();
        self.tell_aside(old, &new);
        self.shown.show(Arc::new(new));
        self.shown.tell(|health| {
            health.degraded.clear();
            health.behind = false;
        });
        self.end_tokens();
        self.refresh_history();
        self.happenings.say(
            outcome_kind(&entry.outcome),
            format!(
                "epoch {epoch} of {}, by uid {uid}: {} changes",
                entry.source, entry.changes
            ),
        );
        Ok(Applied {
            epoch,
            plan,
            took_us: micros(begun),
            already: false,
        })
    }

    async fn carry_out(
        &mut self,
        old: &World,
        new: &World,
        difference: Difference,
        entry: &HistoryEntry,
        deeds: &[Deed],
    ) -> Result<(), Fault> {
        let mut progress = Progress::default();
        // What ends an agreement is not for one of its sides' switches to stop.
        let must = ends_agreements(old, new);
        for batches in [difference.prepare, difference.commit] {
            if progress.failed.is_none() {
                perform_all(&self.supervisor, batches, must, &mut progress).await;
            }
        }
        if let Some((step, refusal)) = progress.failed.take() {
            self.undo(old, &progress).await;
            let mut fault = refused(&refusal, &described(&step));
            fault.place = new.place_of(&step, &refusal);
            return Err(fault);
        }
        let concluded = self.store().and_then(|store| {
            store
                .conclude(new.applied(), entry, deeds)
                .map_err(|error| untouched(&error))
        });
        if let Err(fault) = concluded {
            self.undo(old, &progress).await;
            return Err(fault);
        }
        // Nothing speaks of these any more, and a restart would not make them again.
        // One that cannot be removed now is a stranger in the inventory, removed then.
        let mut removed = Progress::default();
        for batch in difference.cleanup {
            perform(&self.supervisor, vec![batch], &mut removed).await;
            if let Some((step, refusal)) = removed.failed.take() {
                self.happenings
                    .left_behind(format!("{}: {refusal}", described(&step)));
            }
        }
        settle(&self.supervisor).await;
        Ok(())
    }

    /// Takes back what was done, and looks whether it took.
    async fn undo(&mut self, old: &World, progress: &Progress) {
        if !guard!("apply-undo") {
            return;
        }
        let undo = undoing(&progress.done, old.epoch(), |target| {
            old.image(target).cloned()
        });
        for batch in undo {
            let mut undone = Progress::default();
            perform(&self.supervisor, vec![batch], &mut undone).await;
            if let Some((step, refusal)) = undone.failed {
                self.happenings
                    .left_behind(format!("undoing: {}: {refusal}", described(&step)));
            }
        }
        if let Err(refusal) = self.reconcile(old, false).await {
            self.behind(&format!("undoing: {refusal}"));
        }
    }

    fn refresh_history(&mut self) {
        let Some(store) = &mut self.store else { return };
        let Ok(history) = store.history(SHOWN) else {
            return;
        };
        let history = history
            .into_iter()
            .map(|entry| api::HistoryEntry {
                time_s: entry.time_s,
                uid: entry.uid,
                epoch: entry.epoch,
                digest: entry.digest,
                source: entry.source,
                changes: entry.changes,
                outcome: entry.outcome,
            })
            .collect();
        self.shown.tell(|health| health.history = history);
    }
}

/// A world as it is, once it has been applied.
pub(crate) fn existing(world: &World) -> Existing<'_> {
    Existing {
        objects: world.digests().clone(),
        bodies: Some(world.objects()),
        images: world
            .images()
            .iter()
            .map(|(target, image)| (*target, image.digest))
            .collect(),
    }
}

pub(crate) fn planned(
    difference: &Difference,
    existing: &Existing<'_>,
    [old, new]: [&World; 2],
    by: Option<&str>,
) -> Plan {
    let name = |target| match target {
        FABRIC => "the fabric".to_owned(),
        id => new.compartment(id).map_or_else(
            || format!("compartment {id}"),
            |compartment| format!("compartment {}", compartment.name),
        ),
    };
    let mut changes = difference.changes(existing, name);
    changes.extend(meaning::meaning(old, new));
    Plan {
        restated: changes.is_empty() && old.text() != new.text(),
        changes,
        needs: new.needs(),
        digest: new.digest().into(),
        proof: None,
        warnings: warnings(&new.applied().aside),
        halves: halves(new, by),
    }
}

/// Whether an agreement of before is not one any more.
fn ends_agreements(old: &World, new: &World) -> bool {
    let tags = |world: &World| -> BTreeSet<u16> {
        let made = world.made().into_iter();
        made.flat_map(|(_, _, intent)| &intent.agreements)
            .map(|agreement| agreement.tag)
            .collect()
    };
    !tags(old).is_subset(&tags(new))
}

fn stored(error: &StoreError) -> Fault {
    Fault::new(
        "store",
        Whose::Host,
        error.to_string(),
        "what runs goes on running",
    )
}

/// The same of what was not begun, or was taken back.
fn untouched(error: &StoreError) -> Fault {
    let fault = stored(error);
    Fault {
        message: format!("{}; nothing was changed", fault.message),
        ..fault
    }
}

fn outcome_kind(outcome: &str) -> &'static str {
    if outcome == "down" { "down" } else { "applied" }
}

/// The answer where nothing had to be done.
pub fn unchanged(world: &World, begun: Instant) -> Applied {
    Applied {
        epoch: world.epoch(),
        took_us: micros(begun),
        already: true,
        ..Applied::default()
    }
}

fn micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}
