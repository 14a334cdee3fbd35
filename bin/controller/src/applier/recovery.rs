//! What is there when the controller comes, or an apply failed: read, and made to be as what
//! is applied.

use super::{Applier, stored};
use crate::difference::{Difference, Existing};
use crate::happenings::now_ms;
use crate::steps::{Batch, Key, Progress, Step, described, perform_all, settle};
use crate::supervisor::{Refusal, Supervisor};
use crate::world::World;
use api::{AuditEntry, Fault, Whose};
use command::verbs::{FABRIC, Inspect, PROVE_TO_INSTALL};
use guard::guard;
use std::collections::BTreeMap;
use std::sync::Arc;
use store::{Deed, HistoryEntry, Store, StoreError, Token, Undertaking};

impl Applier {
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

    /// Recovers; and where the host could not be made as what is applied says, tries it
    /// again: an agreement that ended meanwhile is live until then. Gives whether it is so.
    pub async fn catch_up(&mut self) -> bool {
        if !self.recover().await {
            return false;
        }
        let shown = self.shown.clone();
        let behind = || shown.health().behind && guard!("recover-again");
        if behind() {
            self.catch_up_with(self.shown.world()).await;
        }
        !behind()
    }

    async fn catch_up_with(&mut self, world: Arc<World>) {
        match self.reconcile(&world, true).await {
            Ok(steps) => {
                self.shown.tell(|health| {
                    if std::mem::take(&mut health.behind) {
                        health.degraded.clear();
                    }
                });
                if steps > 0 {
                    let said = format!("{steps} steps to be again as the spec says");
                    self.happenings.say("recovered", said);
                }
            }
            Err(refusal) => self.behind(&refusal),
        }
    }

    /// What exists is not what is applied; it is tried again.
    pub(super) fn behind(&self, refusal: &str) {
        self.shown.tell(|health| health.behind = true);
        let sentence = format!(
            "the host is not as the spec says: {refusal}; it is tried again, and applying it \
             tries as well"
        );
        if self.shown.health().degraded != sentence {
            self.happenings.left_behind(sentence.clone());
        }
        self.degraded(sentence);
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
        if guard!("apply-recover") {
            self.catch_up_with(world).await;
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
    pub(super) fn degraded(&self, sentence: String) {
        if self.shown.health().degraded != sentence {
            self.happenings.say("degraded", sentence.clone());
            self.shown.tell(|health| health.degraded = sentence);
        }
    }

    pub(super) async fn recovered(&mut self) -> Result<(), Fault> {
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

    pub(super) fn store(&mut self) -> Result<&mut Store, Fault> {
        // INVARIANT: nothing is asked of it before `recover` has opened it.
        self.store
            .as_mut()
            .ok_or_else(|| Fault::new("store", Whose::Bulkhead, "the state file is not open", ""))
    }

    /// Makes what exists as this world says, whatever it is. Gives how many steps it took.
    /// Where an image is to be installed, all are proved first: these were compiled anew.
    /// `must`: no switch is in the way of its image.
    pub(super) async fn reconcile(&mut self, world: &World, must: bool) -> Result<usize, String> {
        let said = |refusal: Refusal| refusal.to_string();
        let objects = inventory(&self.supervisor).await.map_err(said)?;
        let images = installed(&self.supervisor, &objects).await.map_err(said)?;
        let existing = Existing {
            objects,
            images,
            ..Existing::default()
        };
        let steps = |world: &World| -> Vec<Batch> {
            let (objects, digests) = (world.objects(), world.digests());
            let images = world.images();
            let all = Difference::between(&existing, objects, digests, images, world.epoch());
            let made = all.prepare.into_iter().chain(all.commit);
            made.chain(all.cleanup).collect()
        };
        let mut batches = steps(world);
        let mut all = batches.iter().flatten();
        if all.any(|step| matches!(step, Step::Install(..))) {
            let proved = self.proved_less(world, world, None, PROVE_TO_INSTALL).await;
            // What tenants ask for by `reach` stops this no more than an apply.
            if let (Some(mut less), _) = proved.map_err(|fault| fault.message)? {
                less.keep_epoch(world.epoch());
                batches = steps(&less);
                self.keep_less(world, less).map_err(|fault| fault.message)?;
            }
        }
        let count = batches.iter().map(Vec::len).sum();
        let mut first = None;
        for batch in batches {
            let mut progress = Progress::default();
            perform_all(&self.supervisor, vec![batch], must, &mut progress).await;
            if let Some((step, refusal)) = progress.failed {
                first.get_or_insert_with(|| format!("{}: {refusal}", described(&step)));
            }
        }
        settle(&self.supervisor).await;
        first.map_or(Ok(count), Err)
    }

    /// From now on this is applied: what was, with less of what tenants ask for.
    fn keep_less(&mut self, was: &World, less: World) -> Result<(), Fault> {
        let outcome = "done: what tenants ask for by `reach` does not hold".to_owned();
        let deed = AuditEntry {
            time_ms: now_ms(),
            kind: "recovered".into(),
            object: less.source().to_owned(),
            outcome: outcome.clone(),
            ..AuditEntry::default()
        };
        let entry = HistoryEntry {
            time_s: now_ms() / 1000,
            epoch: less.epoch(),
            digest: less.digest().into(),
            source: less.source().into(),
            outcome,
            ..HistoryEntry::default()
        };
        let kept = (self.store()?).conclude(less.applied(), &entry, &[Deed(deed)]);
        kept.map_err(|error| stored(&error))?;
        self.tell_aside(was, &less);
        self.shown.show(Arc::new(less));
        Ok(())
    }
}

/// What exists, with the digests of the bodies that made it.
pub(super) async fn inventory(supervisor: &Supervisor) -> Result<BTreeMap<Key, [u8; 32]>, Refusal> {
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
pub(super) async fn installed(
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
