//! One question: what it says is looked at, and the images are proved by their bytes.

use crate::memory::{Image, Images, Specs, Sum};
use command::bundle::{Bundle, Part};
use command::verbs::{
    PROVE_AHEAD, PROVE_INSTALLED, PROVE_TO_INSTALL, PROVE_TO_KNOW, Prove, VERDICT_BREACHES,
    VERDICT_NEED, VERDICT_PROVED, VERDICT_UNREADABLE,
};
use guard::guard;
use proof::{Breach, Claim, Class, Known, Solver};
use shm::SealedImage;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::rc::Rc;

/// What lies in a seat; `None`: something that is not sealed.
pub type Seat = Option<Rc<SealedImage>>;

/// The fabric's among the compartments'.
pub const FABRIC_SLOT: u32 = 0;

/// What came of a question.
#[derive(Debug, Default)]
pub struct Answer {
    /// `VERDICT_*`.
    pub outcome: u32,
    /// Why not.
    pub breaches: Vec<Breach>,
    /// What was proved, by slot.
    pub proved: Vec<(u32, Sum)>,
    /// Compartments that were looked at.
    pub compartments: u32,
    /// Their endpoints.
    pub endpoints: u32,
    /// Entries of the fabric's table.
    pub entries: u32,
}

impl Answer {
    /// No proof, and a sentence on why.
    pub fn refused(outcome: u32, what: &str) -> Answer {
        Answer {
            outcome,
            breaches: vec![Breach::new(Class::Unreadable, 0, what)],
            ..Answer::default()
        }
    }
}

/// Who answers.
#[derive(Default)]
pub struct Judge {
    specs: Specs,
    images: Images,
    known: Known,
}

/// Why a question is not answered by a proof.
enum Stop {
    Need,
    Unreadable(String),
}

impl Judge {
    /// Answers one; what the boxes do not settle the solver is asked.
    pub fn answer(
        &mut self,
        question: Prove,
        bundle: &Rc<SealedImage>,
        lying: &BTreeMap<u32, Seat>,
        solver: &dyn Solver,
    ) -> Answer {
        match self.consider(question, bundle, lying, solver) {
            Ok(answer) => answer,
            Err(Stop::Need) => Answer {
                outcome: VERDICT_NEED,
                ..Answer::default()
            },
            Err(Stop::Unreadable(why)) => Answer::refused(VERDICT_UNREADABLE, &why),
        }
    }

    /// After an answer, while nobody waits: gives back memory.
    pub fn tidy(&mut self) {
        self.images.tidy();
    }

    fn consider(
        &mut self,
        question: Prove,
        sealed: &Rc<SealedImage>,
        lying: &BTreeMap<u32, Seat>,
        solver: &dyn Solver,
    ) -> Result<Answer, Stop> {
        let bundle = Bundle::read(sealed.as_slice()).map_err(|e| unreadable(e.to_string()))?;
        let spec = match bundle.spec {
            Part::Bytes(text) => self.specs.read(bundle.source, text).map_err(unreadable)?,
            Part::Held(sum) => sum,
        };
        let Prove {
            purpose,
            compromised,
        } = question;
        match purpose {
            PROVE_TO_INSTALL if compromised != 0 && guard!("proof-install-whole") => {
                return Err(unreadable("nothing is installed by half a proof"));
            }
            PROVE_AHEAD => return Ok(Answer::default()),
            PROVE_TO_INSTALL | PROVE_TO_KNOW | PROVE_INSTALLED => {}
            other => return Err(unreadable(format!("purpose {other} is not known"))),
        }
        let mut parts = parts(&bundle)?;
        if compromised != 0 && parts.remove(&compromised).is_none() {
            return Err(unreadable("the compartment taken for a liar is not there"));
        }
        let mut answer = Answer::default();
        let images: BTreeMap<u32, Image> = if purpose == PROVE_INSTALLED {
            let mut lying = lying.clone();
            if compromised != 0 {
                lying.remove(&compromised);
            }
            let images = seated(&lying);
            answer.breaches = differences(&parts, &lying, &images)?;
            images
        } else {
            let take = |(slot, part)| Ok((slot, self.image(sealed, slot, part)?));
            parts.into_iter().map(take).collect::<Result<_, Stop>>()?
        };
        // Of what is another than the one before, that one: what is equal is not proved anew.
        let before = images.iter().filter_map(|(slot, image)| {
            let last = self
                .known
                .proved(*slot)
                .filter(|last| last.0 != image.digest)?;
            Some((*slot, self.images.held(&last.0)?.bytes()))
        });
        let said = |image: &Image| image::claimed_digest(image.bytes()).map(|said| said.0);
        let claim = Claim {
            before: before.collect(),
            counted: images
                .values()
                .all(|image| said(image) == Some(image.digest)),
            spec: self.specs.held(&spec).ok_or(Stop::Need)?,
            numbers: bundle.numbers,
            now: bundle.now,
            compromised: (compromised != 0).then_some(compromised),
            fabric: images.get(&FABRIC_SLOT).map_or(&[], Image::bytes),
            compartments: (images.iter())
                .filter(|(slot, _)| **slot != FABRIC_SLOT)
                .map(|(slot, image)| (*slot, image.bytes()))
                .collect(),
        };
        answer.compartments = u32::try_from(claim.compartments.len()).unwrap_or(u32::MAX);
        for (slot, image) in &images {
            match *slot {
                FABRIC_SLOT => answer.entries = image.count,
                _ => answer.endpoints = answer.endpoints.saturating_add(image.count),
            }
        }
        // What is installed is looked at whole, as if nothing had been proved.
        let mut nothing = Known::default();
        let known = match purpose == PROVE_INSTALLED {
            true => &mut nothing,
            false => &mut self.known,
        };
        match proof::prove_by(&claim, known, solver) {
            Ok(proved) => {
                let proved: BTreeSet<Sum> = proved.into_iter().map(|digest| digest.0).collect();
                // What is said is our own sum over the bytes, never only what was returned.
                let unsaid = images
                    .iter()
                    .filter(|(_, image)| !proved.contains(&image.digest));
                let missed = "it was not looked at; this is a bug of the proof";
                let missed = |(slot, _): (&u32, _)| Breach::new(Class::NoImage, *slot, missed);
                answer.breaches.extend(unsaid.map(missed));
            }
            Err(breaches) => answer.breaches.extend(breaches),
        }
        if !answer.breaches.is_empty() {
            answer.outcome = VERDICT_BREACHES;
            return Ok(answer);
        }
        answer.outcome = VERDICT_PROVED;
        let proved = images.iter().map(|(slot, image)| (*slot, image.digest));
        answer.proved = proved.collect();
        if purpose != PROVE_INSTALLED && compromised == 0 {
            self.images.keep(images.into_values());
        }
        Ok(answer)
    }

    /// An image that is asked about.
    fn image(&self, sealed: &Rc<SealedImage>, slot: u32, part: Part<'_>) -> Result<Image, Stop> {
        match part {
            Part::Held(sum) => self.images.held(&sum).cloned().ok_or(Stop::Need),
            Part::Bytes(bytes) => Image::of(sealed, bytes)
                .ok_or_else(|| unreadable(format!("slot {slot}: shorter than an image"))),
        }
    }
}

fn unreadable(why: impl Into<String>) -> Stop {
    Stop::Unreadable(why.into())
}

/// The bundle's images by slot, the fabric's under its own.
fn parts<'a>(bundle: &Bundle<'a>) -> Result<BTreeMap<u32, Part<'a>>, Stop> {
    let mut parts = bundle.compartments.clone();
    let fabric = bundle
        .fabric
        .ok_or_else(|| unreadable("no image of the fabric"))?;
    match parts.insert(FABRIC_SLOT, fabric) {
        None => Ok(parts),
        Some(_) => Err(unreadable("a compartment in the fabric's own slot")),
    }
}

/// Images that lie in seats and can be looked at.
fn seated(lying: &BTreeMap<u32, Seat>) -> BTreeMap<u32, Image> {
    let image = |(slot, seat): (&u32, &Seat)| {
        let sealed = seat.as_ref()?;
        Some((*slot, Image::of(sealed, sealed.as_slice())?))
    };
    lying.iter().filter_map(image).collect()
}

/// Where something else lies than what was applied.
fn differences(
    parts: &BTreeMap<u32, Part<'_>>,
    lying: &BTreeMap<u32, Seat>,
    images: &BTreeMap<u32, Image>,
) -> Result<Vec<Breach>, Stop> {
    let mut breaches = Vec::new();
    let mut say =
        |slot: u32, what: String| breaches.push(Breach::new(Class::ImageSwapped, slot, what));
    for (slot, part) in parts {
        let Part::Held(applied) = part else {
            return Err(unreadable("what is installed is named by its digest"));
        };
        match images.get(slot) {
            Some(image) if image.digest == *applied || !guard!("proof-drift") => {}
            Some(image) => say(
                *slot,
                format!(
                    "the image in use is {}, the one that was applied {}",
                    short(&image.digest),
                    short(applied)
                ),
            ),
            None if lying.contains_key(slot) => {
                say(*slot, "what is in use is no sealed image".into());
            }
            None => say(*slot, "no image is in use".into()),
        }
    }
    for slot in lying.keys().filter(|slot| !parts.contains_key(slot)) {
        say(*slot, "an image is in use, and none was applied".into());
    }
    Ok(breaches)
}

/// The first bytes of a digest, for people.
fn short(sum: &Sum) -> String {
    sum.iter().take(6).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
