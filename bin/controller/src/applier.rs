//! Applies: one at a time, all or nothing.
//!
//! Intent is in the store before the first step. What is new is made first, while
//! everything that runs goes on as it is; then changed images are put in use; then
//! the store has it as applied; then what is no longer wanted is removed. A failure
//! before it is in the store undoes everything, and so does a controller that comes
//! back and finds an intent that was not concluded.

mod tenants;

use crate::deeds;
use crate::difference::{Difference, Existing};
use crate::happenings::{Happenings, now_ms};
use crate::proof::Prover;
use crate::refuse::refused;
use crate::server::Shown;
use crate::steps::{
    Batch, Key, Object, Progress, Step, described, perform, perform_all, settle, undoing,
};
use crate::supervisor::{Refusal, Supervisor};
use crate::survey::Survey;
use crate::tokens::Tokens;
use crate::usage;
use crate::world::{Stated, World, now};
use api::{Applied, AuditEntry, Fault, Plan, Proof, UsageRow, Whose};
use command::cores::Cores;
use command::verbs::{FABRIC, Inspect, PROVE_INSTALLED, PROVE_TO_INSTALL, PROVE_TO_KNOW};
use guard::guard;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;
use store::{Deed, HistoryEntry, Store, StoreError, Token, Undertaking};

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
    },
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
        }
    }

    /// On a host with these cores.
    pub fn on_cores(self, cores: Cores) -> Applier {
        Applier { cores, ..self }
    }

    /// What this would change.
    ///
    /// # Errors
    /// A fault of the spec; or its tables cannot be proved.
    pub async fn plan(&mut self, wanted: Wanted<'_>) -> Result<Plan, Fault> {
        let old = self.shown.world();
        let new = self.worked_out(&old, wanted).await?;
        self.has_cores_for(&new)?;
        let existing = existing(&old);
        let difference = Difference::between(
            &existing,
            new.objects(),
            new.digests(),
            new.images(),
            new.epoch(),
        );
        Ok(Plan {
            proof: Some(self.prover.prove(&new, PROVE_TO_KNOW).await?),
            ..planned(&difference, &existing, &new)
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
        let new = self.worked_out(&old, wanted).await?;
        self.has_cores_for(&new)?;
        self.account_before(&old, &new).await;
        self.move_to(&old, new, deed, "applied", begun).await
    }

    /// The world that a change leads to.
    async fn worked_out(&mut self, old: &World, wanted: Wanted<'_>) -> Result<World, Fault> {
        let stated = tenants::stated(old, wanted)?;
        self.prover
            .ahead(&stated.source, stated.joined().as_bytes())
            .await;
        let new = World::of(stated, old)?;
        if let Wanted::Revoke { tenant, name, undo } = wanted {
            let key = (tenant.to_owned(), name.to_owned());
            let known = new.applied().revoked.contains(&key)
                || undo && old.applied().revoked.contains(&key);
            if !known {
                return Err(Fault::new(
                    "not-found",
                    Whose::User,
                    match undo {
                        true => format!("{tenant}/{name} is not revoked"),
                        false => format!("there is no offer or acceptance {tenant}/{name}"),
                    },
                    "`bulkhead rules TENANT` lists those that there are",
                ));
            }
        }
        Ok(new)
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
        self.move_to(&old, new, deed, "down", begun).await
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
        self.move_to(&old, new, deed, "an agreement ended", begun)
            .await
            .map(drop)
    }

    /// Whether every isolated switch can have its core, and one is left for the rest.
    fn has_cores_for(&self, new: &World) -> Result<(), Fault> {
        let bodies = new.objects().values().filter_map(|object| match object {
            Object::Compartment(body) => Some(body),
            _ => None,
        });
        let isolated = bodies
            .filter(|body| body.core != u32::MAX)
            .map(|body| (body.core, body.name.as_str()));
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
        mut deed: AuditEntry,
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
        let difference = Difference::between(
            &existing,
            new.objects(),
            new.digests(),
            new.images(),
            new.epoch(),
        );
        let mut plan = planned(&difference, &existing, &new);
        if difference.is_empty() && old.text() == new.text() {
            if old.expires() != new.expires() {
                new.keep_epoch(old.epoch());
                self.shown.show(Arc::new(new));
            }
            return Ok(Applied {
                epoch: old.epoch(),
                plan,
                took_us: micros(begun),
            });
        }
        if difference.is_empty() {
            // Another text for the same thing (a comment, the order): remembered, nothing else.
            new.keep_epoch(old.epoch());
        }
        match self.prover.prove(&new, PROVE_TO_INSTALL).await {
            Ok(proof) => plan.proof = Some(proof),
            Err(fault) => {
                self.happenings.say("unproved", fault.message.clone());
                return Err(fault);
            }
        }
        let uid = deed.uid.unwrap_or(0);
        let source = match (deed.kind.as_str(), deed.tenants.first()) {
            ("apply", Some(tenant)) => format!("{tenant}:{}", deed.object),
            ("revoke" | "restore", _) => format!("{} {}", deed.kind, deed.object),
            _ => new.source().to_owned(),
        };
        deeds::describe(&mut deed, old, &new, &plan);
        let mut deeds = vec![Deed(deed)];
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
                .map_err(|error| stored(&error))?;
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
        self.shown.show(Arc::new(new));
        self.shown.tell(|health| health.degraded.clear());
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
                .map_err(|error| stored(&error))
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
        if let Err(refusal) = reconcile(&self.supervisor, &mut self.prover, old).await {
            self.happenings.left_behind(format!("undoing: {refusal}"));
        }
    }

    /// At the start, and again until it succeeds (a disk that was full gets room):
    /// finds what is applied and makes the host so, whatever was under way: an apply
    /// that was not concluded is undone. Gives whether what is applied is known.
    pub async fn recover(&mut self) -> bool {
        if self.ready {
            return true;
        }
        let (applied, undertaking, tokens) = match self.remembered() {
            Ok(remembered) => remembered,
            Err(error) => {
                self.degraded(error.to_string());
                return false;
            }
        };
        self.ready = true;
        self.shown.tell(|health| health.degraded.clear());
        if let Err(sentence) = self.resume(applied, undertaking).await {
            self.happenings.left_behind(sentence.clone());
            self.degraded(sentence);
        }
        self.tokens.set(tokens);
        self.end_tokens();
        self.refresh_history();
        true
    }

    async fn resume(
        &mut self,
        applied: Option<store::Applied>,
        undertaking: Option<Undertaking>,
    ) -> Result<(), String> {
        let new = applied.is_none() && undertaking.is_none();
        let world = match applied {
            None => Arc::new(World::default()),
            Some(applied) => Arc::new(World::recall(&applied).map_err(|fault| {
                format!(
                    "the spec that was applied is not understood any more: {}",
                    fault.message
                )
            })?),
        };
        self.shown.show(world.clone());
        if new {
            // Nobody said that what runs is to go: the file was moved aside, or lost.
            let running = inventory(&self.supervisor)
                .await
                .map_err(|refusal| refusal.to_string())?;
            return if running.is_empty() {
                Ok(())
            } else {
                Err(
                    "the state file is new, and what runs goes on running: apply the spec again"
                        .into(),
                )
            };
        }
        let again = if guard!("apply-recover") {
            reconcile(&self.supervisor, &mut self.prover, &world).await
        } else {
            Ok(0)
        };
        match again {
            Ok(steps) if steps > 0 => self.happenings.say(
                "recovered",
                format!("{steps} steps to be again as the spec says"),
            ),
            Ok(_) => {}
            Err(refusal) => {
                self.degraded(format!(
                    "the host is not as the spec says: {refusal}; apply it again"
                ));
                self.happenings.left_behind(self.shown.health().degraded);
            }
        }
        if let Some(undertaking) = undertaking {
            let entry = HistoryEntry {
                time_s: now_ms() / 1000,
                uid: undertaking.uid,
                epoch: undertaking.epoch,
                digest: undertaking.digest,
                source: undertaking.source,
                outcome: "rolled back: the controller was restarted before it was complete".into(),
                ..HistoryEntry::default()
            };
            let ended = self.store().and_then(|store| {
                let deed = AuditEntry {
                    time_ms: now_ms(),
                    uid: Some(entry.uid),
                    kind: "apply".into(),
                    object: entry.source.clone(),
                    outcome: entry.outcome.clone(),
                    ..AuditEntry::default()
                };
                let deeds = [Deed(deed)];
                store
                    .abandon(&entry, &deeds)
                    .map_err(|error| stored(&error))
            });
            if let Err(fault) = ended {
                self.degraded(fault.message);
            }
        }
        Ok(())
    }

    #[expect(clippy::type_complexity, reason = "three records of the store")]
    fn remembered(
        &mut self,
    ) -> Result<(Option<store::Applied>, Option<Undertaking>, Vec<Token>), StoreError> {
        let store = match &mut self.store {
            Some(store) => store,
            none => none.insert((self.open)()?),
        };
        Ok((store.applied()?, store.undertaking()?, store.tokens()?))
    }

    /// Says it once, however often it is tried again.
    fn degraded(&self, sentence: String) {
        if self.shown.health().degraded != sentence {
            self.happenings.say("degraded", sentence.clone());
            self.shown.tell(|health| health.degraded = sentence);
        }
    }

    async fn recovered(&mut self) -> Result<(), Fault> {
        if self.recover().await {
            return Ok(());
        }
        let sentence = self.shown.health().degraded;
        Err(Fault::new(
            "store",
            Whose::Host,
            sentence,
            "nothing was changed",
        ))
    }

    fn store(&mut self) -> Result<&mut Store, Fault> {
        // INVARIANT: nothing is asked of it before `recover` has opened it.
        self.store
            .as_mut()
            .ok_or_else(|| Fault::new("store", Whose::Bulkhead, "the state file is not open", ""))
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

/// Makes what exists as this world says, whatever it is. Gives how many steps it took.
/// Where an image is to be installed, all are proved first: these were compiled anew.
async fn reconcile(
    supervisor: &Arc<Supervisor>,
    prover: &mut Prover,
    world: &World,
) -> Result<usize, String> {
    let objects = inventory(supervisor)
        .await
        .map_err(|refusal| refusal.to_string())?;
    let mut existing = Existing {
        objects,
        ..Existing::default()
    };
    existing.images = installed(supervisor, &existing.objects)
        .await
        .map_err(|refusal| refusal.to_string())?;
    let difference = Difference::between(
        &existing,
        world.objects(),
        world.digests(),
        world.images(),
        world.epoch(),
    );
    let batches: Vec<Batch> = difference
        .prepare
        .into_iter()
        .chain(difference.commit)
        .chain(difference.cleanup)
        .collect();
    let steps = batches.iter().map(Vec::len).sum();
    let mut all = batches.iter().flatten();
    if all.any(|step| matches!(step, Step::Install(..))) {
        prover
            .prove(world, PROVE_TO_INSTALL)
            .await
            .map_err(|fault| fault.message)?;
    }
    let mut first = None;
    for batch in batches {
        let mut progress = Progress::default();
        perform(supervisor, vec![batch], &mut progress).await;
        if let Some((step, refusal)) = progress.failed {
            first.get_or_insert_with(|| format!("{}: {refusal}", described(&step)));
        }
    }
    settle(supervisor).await;
    first.map_or(Ok(steps), Err)
}

/// What exists, with the digests of the bodies that made it.
async fn inventory(supervisor: &Supervisor) -> Result<BTreeMap<Key, [u8; 32]>, Refusal> {
    let things = supervisor.inventory().await?;
    let keyed = things.into_iter().filter_map(|thing| {
        let key = match thing.kind {
            1 => Key::Compartment(thing.id),
            2 => Key::Port(thing.id, thing.slot),
            3 => Key::Uplink(thing.id),
            _ => return None,
        };
        Some((key, thing.created))
    });
    Ok(keyed.collect())
}

/// Digests of the images in use.
async fn installed(
    supervisor: &Arc<Supervisor>,
    objects: &BTreeMap<Key, [u8; 32]>,
) -> Result<BTreeMap<u32, [u8; 32]>, Refusal> {
    let mut running = tokio::task::JoinSet::new();
    let compartments = objects.keys().filter_map(|key| match key {
        Key::Compartment(id) => Some(*id),
        _ => None,
    });
    for target in compartments.chain([FABRIC]) {
        let supervisor = supervisor.clone();
        running.spawn(async move {
            (
                target,
                supervisor
                    .query(&Inspect {
                        target,
                        ..Inspect::default()
                    })
                    .await,
            )
        });
    }
    let mut images = BTreeMap::new();
    while let Some(ended) = running.join_next().await {
        let Ok((target, outcome)) = ended else {
            continue;
        };
        match outcome {
            Ok((inspect, _)) if inspect.digest != [0; 32] => {
                images.insert(target, inspect.digest);
            }
            Ok(_) | Err(Refusal::Refused { .. }) => {}
            Err(refusal) => return Err(refusal),
        }
    }
    Ok(images)
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

fn planned(difference: &Difference, existing: &Existing<'_>, new: &World) -> Plan {
    let name = |target| match target {
        FABRIC => "the fabric".to_owned(),
        id => new.compartment(id).map_or_else(
            || format!("compartment {id}"),
            |compartment| format!("compartment {}", compartment.name),
        ),
    };
    Plan {
        changes: difference.changes(existing, name),
        needs: new.needs(),
        digest: new.digest().into(),
        proof: None,
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

fn outcome_kind(outcome: &str) -> &'static str {
    if outcome == "down" { "down" } else { "applied" }
}

fn micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}
