//! Steps: what an apply asks of the supervisor, and what undoes it.

use crate::supervisor::{Refusal, Supervisor};
use command::verbs::{
    CreateCompartment, CreatePort, CreateUplink, DestroyCompartment, DestroyPort, DestroyUplink,
    FABRIC, Install, Settle,
};
use sha2::{Digest, Sha256};
use std::collections::HashSet;
use std::sync::Arc;
use tokio::task::JoinSet;
use zerocopy::IntoBytes;

/// Something that the supervisor makes and removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Object {
    /// A compartment.
    Compartment(CreateCompartment),
    /// An endpoint's port.
    Port(CreatePort),
    /// An uplink.
    Uplink(CreateUplink),
}

/// What names an object for the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A compartment by its id.
    Compartment(u32),
    /// A port by its compartment and slot.
    Port(u32, u32),
    /// An uplink by its number.
    Uplink(u32),
}

impl Object {
    /// Its name for the supervisor.
    pub fn key(&self) -> Key {
        match self {
            Object::Compartment(body) => Key::Compartment(body.id),
            Object::Port(body) => Key::Port(body.compartment, body.slot),
            Object::Uplink(body) => Key::Uplink(body.uplink),
        }
    }

    /// SHA-256 over the body that makes it, as the supervisor's inventory gives it.
    pub fn digest(&self) -> [u8; 32] {
        let bytes = match self {
            Object::Compartment(body) => body.as_bytes(),
            Object::Port(body) => body.as_bytes(),
            Object::Uplink(body) => body.as_bytes(),
        };
        Sha256::digest(bytes).into()
    }

    /// Its name for people.
    pub fn name(&self) -> String {
        match self {
            Object::Compartment(body) => format!("compartment {}", body.name.as_str()),
            Object::Port(body) => format!("endpoint {}", body.name.as_str()),
            Object::Uplink(body) => format!("uplink on {}", body.interface.as_str()),
        }
    }
}

/// A table image, and for whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Compartment id or [`FABRIC`].
    pub target: u32,
    /// Its digest, as the image says it.
    pub digest: [u8; 32],
    /// The bytes.
    pub bytes: Arc<[u8]>,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Makes it.
    Create(Object),
    /// Takes it away for now: a namespace that was made for it stays, for what is made
    /// next. The body, where it is known, is what makes it again.
    Destroy(Key, Option<Object>),
    /// Removes it for good.
    Remove(Key, Option<Object>),
    /// Puts the image in use under this epoch.
    Install(Image, u64),
}

/// Steps that may run side by side, after all before them are done.
pub type Batch = Vec<Step>;

/// What was done of a list of batches, and what stopped it.
#[derive(Debug, Default)]
pub struct Progress {
    /// Steps done, in order.
    pub done: Vec<Step>,
    /// The first that failed; nothing after its batch was begun.
    pub failed: Option<(Step, Refusal)>,
}

/// Does the batches in order, each batch's steps side by side, until one fails.
pub async fn perform(supervisor: &Arc<Supervisor>, batches: Vec<Batch>, progress: &mut Progress) {
    perform_all(supervisor, batches, false, progress).await;
}

/// The same; `must`: no switch is in the way of its image.
pub async fn perform_all(
    supervisor: &Arc<Supervisor>,
    batches: Vec<Batch>,
    must: bool,
    progress: &mut Progress,
) {
    for batch in batches {
        let mut running = JoinSet::new();
        for step in batch {
            let supervisor = supervisor.clone();
            running.spawn(async move {
                let outcome = one(&supervisor, &step, must).await;
                (step, outcome)
            });
        }
        while let Some(ended) = running.join_next().await {
            match ended {
                Ok((step, Ok(()))) => progress.done.push(step),
                Ok((step, Err(refusal))) => {
                    progress.failed.get_or_insert((step, refusal));
                }
                // A task of ours never panics and is never aborted; were it so, the
                // step counts as neither done nor failed and recovery finds it.
                Err(_) => {}
            }
        }
        if progress.failed.is_some() {
            return;
        }
    }
}

async fn one(supervisor: &Supervisor, step: &Step, must: bool) -> Result<(), Refusal> {
    match step {
        Step::Create(Object::Compartment(body)) => supervisor.request(body, &[]).await.map(drop),
        Step::Create(Object::Port(body)) => supervisor.request(body, &[]).await.map(drop),
        Step::Create(Object::Uplink(body)) => supervisor.request(body, &[]).await.map(drop),
        Step::Destroy(key, _) | Step::Remove(key, _) => match destroy(
            supervisor,
            *key,
            u32::from(matches!(step, Step::Destroy(..))),
        )
        .await
        {
            // Gone is what was wanted.
            Err(Refusal::Refused {
                code: Some(command::message::ErrorCode::NotFound),
                ..
            }) => Ok(()),
            other => other,
        },
        Step::Install(image, epoch) => {
            let sealed = shm::SealedImage::create("image", &image.bytes).map_err(|error| {
                Refusal::Refused {
                    code: Some(command::message::ErrorCode::System),
                    errno: error.raw_os_error().unwrap_or(0).cast_unsigned(),
                    detail: format!("no memory for the table image: {error}"),
                }
            })?;
            let body = Install {
                target: image.target,
                must: u32::from(must),
                epoch: *epoch,
                digest: image.digest,
            };
            supervisor.request(&body, &[sealed]).await.map(drop)
        }
    }
}

async fn destroy(supervisor: &Supervisor, key: Key, keep_namespace: u32) -> Result<(), Refusal> {
    match key {
        Key::Compartment(id) => supervisor
            .request(&DestroyCompartment { id }, &[])
            .await
            .map(drop),
        Key::Port(compartment, slot) => supervisor
            .request(
                &DestroyPort {
                    compartment,
                    slot,
                    keep_namespace,
                },
                &[],
            )
            .await
            .map(drop),
        Key::Uplink(uplink) => supervisor
            .request(&DestroyUplink { uplink }, &[])
            .await
            .map(drop),
    }
}

/// Tells the supervisor that a change is over. One of the release before does not know
/// of it, and has kept nothing.
pub async fn settle(supervisor: &Supervisor) {
    let _ = supervisor.request(&Settle::default(), &[]).await;
}

/// What takes these steps back, newest first. `before` gives the image that a
/// target had, `None` = none, and then there is nothing to put back.
pub fn undoing(done: &[Step], epoch: u64, before: impl Fn(u32) -> Option<Image>) -> Vec<Batch> {
    let mut undo: Vec<Batch> = Vec::new();
    let mut then = |back: Step| match undo.last_mut() {
        // Neighbours of one kind do not depend on each other.
        Some(batch) if batch.last().is_some_and(|last| rank(last) == rank(&back)) => {
            batch.push(back)
        }
        _ => undo.push(vec![back]),
    };
    let made: HashSet<Key> = done
        .iter()
        .filter_map(|step| match step {
            Step::Create(object) => Some(object.key()),
            _ => None,
        })
        .collect();
    let image = |target: u32| before(target).map(|old| Step::Install(old, epoch));
    for step in done.iter().rev() {
        match step {
            Step::Create(object) => then(Step::Destroy(object.key(), Some(*object))),
            Step::Destroy(key, Some(object)) => {
                then(Step::Create(*object));
                // Its image went with it, and its ports come next.
                if let Key::Compartment(id) = key {
                    image(*id).into_iter().for_each(&mut then);
                }
            }
            // What is removed for good is not put back: the change stands by then.
            Step::Destroy(_, None) | Step::Remove(..) => {}
            // It goes with the compartment that was made for it.
            Step::Install(new, _) if made.contains(&Key::Compartment(new.target)) => {}
            Step::Install(new, _) => image(new.target).into_iter().for_each(&mut then),
        }
    }
    undo
}

/// Steps of one rank may run side by side.
fn rank(step: &Step) -> u8 {
    match step {
        Step::Create(Object::Compartment(_)) => 0,
        Step::Create(_) => 1,
        Step::Install(image, _) if image.target != FABRIC => 2,
        Step::Install(..) => 3,
        Step::Destroy(Key::Compartment(_), _) | Step::Remove(Key::Compartment(_), _) => 5,
        Step::Destroy(..) | Step::Remove(..) => 4,
    }
}

/// What a step is about, for messages: `making endpoint red/web1`.
pub fn described(step: &Step) -> String {
    match step {
        Step::Create(made) => format!("making {}", made.name()),
        Step::Destroy(_, Some(removed)) | Step::Remove(_, Some(removed)) => {
            format!("removing {}", removed.name())
        }
        Step::Destroy(key, None) | Step::Remove(key, None) => format!("removing {key:?}"),
        Step::Install(image, _) if image.target == FABRIC => {
            "installing the fabric's table image".into()
        }
        Step::Install(image, _) => {
            format!("installing the table image of compartment {}", image.target)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compartment(id: u32) -> Object {
        Object::Compartment(CreateCompartment {
            id,
            ..CreateCompartment::default()
        })
    }

    fn port(slot: u32) -> Object {
        Object::Port(CreatePort {
            slot,
            ..CreatePort::default()
        })
    }

    fn destroy(object: Object) -> Step {
        Step::Destroy(object.key(), Some(object))
    }

    fn image(target: u32, byte: u8) -> Image {
        Image {
            target,
            digest: [byte; 32],
            bytes: Arc::from([byte]),
        }
    }

    #[test]
    fn undoing_is_the_reverse_with_the_old_images() {
        let done = [
            Step::Create(compartment(1)),
            Step::Create(port(1)),
            Step::Create(port(2)),
            Step::Install(image(1, 9), 5),
            Step::Install(image(2, 9), 5),
            Step::Install(image(FABRIC, 9), 5),
        ];
        let undo = undoing(&done, 4, |target| (target != 1).then(|| image(target, 3)));
        assert_eq!(
            undo,
            [
                vec![Step::Install(image(FABRIC, 3), 4)],
                vec![Step::Install(image(2, 3), 4)],
                vec![destroy(port(2)), destroy(port(1))],
                vec![destroy(compartment(1))],
            ]
        );
    }

    #[test]
    fn what_was_removed_to_make_room_is_made_again() {
        let undo = undoing(&[destroy(port(1)), Step::Create(port(1))], 1, |_| None);
        assert_eq!(undo, [vec![destroy(port(1))], vec![Step::Create(port(1))]]);
    }

    #[test]
    fn a_compartment_made_again_has_its_image_before_its_ports() {
        let done = [
            destroy(port(1)),
            destroy(compartment(1)),
            Step::Create(compartment(1)),
            Step::Install(image(1, 9), 5),
        ];
        let undo = undoing(&done, 4, |target| Some(image(target, 3)));
        assert_eq!(
            undo,
            [
                vec![destroy(compartment(1))],
                vec![Step::Create(compartment(1))],
                vec![Step::Install(image(1, 3), 4)],
                vec![Step::Create(port(1))],
            ]
        );
    }
}
