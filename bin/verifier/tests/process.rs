//! The real program in its place: confined, asked as the supervisor asks it, about worlds
//! that the real compiler made.

use command::bundle::{Bundle, Part};
use command::verbs::*;
use command::{Body, Message};
use confine::{Profile, Spawn, Stages};
use proptest::prelude::*;
use seqpacket::Socket;
use shm::SealedImage;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);

struct Verifier {
    control: Socket,
    child: confine::Child,
    stages: Stages,
    uid: u32,
    seq: u32,
    /// In questions: whose switch is a liar.
    compromised: u32,
}

/// What it said to one question.
#[derive(Debug, Default)]
struct Said {
    verdict: Verdict,
    proved: BTreeSet<(u32, [u8; 32])>,
    report: Vec<(u32, String)>,
}

impl Verifier {
    fn start() -> Verifier {
        let program = File::open(env!("CARGO_BIN_EXE_bulkhead-verifier")).expect("built");
        let (control, its) = Socket::pair().expect("sockets");
        let own = rustix::process::geteuid().as_raw();
        let uid = if own == 0 { 3_910_001 } else { own };
        let gid = if own == 0 {
            uid
        } else {
            rustix::process::getegid().as_raw()
        };
        let child = confine::spawn(&Spawn {
            profile: Profile::Verifier,
            program: program.as_fd(),
            name: "bulkhead-verifier",
            arguments: &[],
            uid,
            gid,
            descriptors: &[its.as_fd()],
            stderr: Some(std::io::stderr().as_fd()),
            cgroup: None,
        })
        .expect("starts");
        drop(its);
        let (message, _) = control
            .recv_wait(PATIENCE)
            .expect("alive")
            .expect("in time");
        let ready: Ready = message.body().expect("Ready");
        assert_eq!(ready.role, ROLE_VERIFIER);
        Verifier {
            control,
            child,
            stages: Stages(ready.stages),
            uid,
            seq: 0,
            compromised: 0,
        }
    }

    fn send<B: Body>(&mut self, body: &B, fds: &[BorrowedFd<'_>]) {
        self.control
            .send_wait(&Message::new(self.seq, body), fds, PATIENCE)
            .expect("it reads");
    }

    fn ask(&mut self, purpose: u32, bundle: &Bundle<'_>) -> Said {
        self.ask_bytes(purpose, &bundle.write())
    }

    fn ask_bytes(&mut self, purpose: u32, bytes: &[u8]) -> Said {
        let fd = SealedImage::create("bundle", bytes).expect("memory");
        self.ask_fds(purpose, &[fd.as_fd()])
    }

    fn ask_fds(&mut self, purpose: u32, fds: &[BorrowedFd<'_>]) -> Said {
        let compromised = self.compromised;
        self.seq += 1;
        self.send(
            &Prove {
                purpose,
                compromised,
            },
            fds,
        );
        let mut said = Said::default();
        loop {
            let (message, fds) = self
                .control
                .recv_wait(PATIENCE)
                .expect("alive")
                .expect("in time");
            assert_eq!(message.seq, self.seq);
            if let Some(proved) = message.body::<Proved>() {
                let places = proved.targets.into_iter().zip(proved.digests);
                said.proved.extend(places.take(proved.count as usize));
                continue;
            }
            said.verdict = message.body().expect("a verdict");
            if let Some(fd) = fds.first() {
                let report = SealedImage::map(fd).expect("a sealed report");
                let report: Vec<serde_json::Value> =
                    serde_json::from_slice(report.as_slice()).expect("JSON");
                let one = |breach: &serde_json::Value| {
                    let slot = breach["slot"].as_u64().unwrap() as u32;
                    (slot, breach["what"].as_str().unwrap().to_owned())
                };
                said.report = report.iter().map(one).collect();
            }
            assert_eq!(said.report.len(), said.verdict.breaches as usize);
            return said;
        }
    }

    /// Shows what lies in seats, as the supervisor does ahead of such a question.
    fn show(&mut self, images: &BTreeMap<u32, Vec<u8>>) {
        let fds: Vec<(u32, OwnedFd)> = images
            .iter()
            .map(|(target, bytes)| (*target, SealedImage::create("image", bytes).unwrap()))
            .collect();
        for some in fds.chunks(LYING_AT_ONCE) {
            let mut body = Lying {
                count: some.len() as u32,
                ..Lying::default()
            };
            let mut borrowed = Vec::new();
            for (to, (target, fd)) in body.targets.iter_mut().zip(some) {
                *to = *target;
                borrowed.push(fd.as_fd());
            }
            self.send(&body, &borrowed);
        }
    }
}

/// A spec, worked out.
struct World {
    text: String,
    numbers: Vec<u8>,
    fabric: Vec<u8>,
    compartments: BTreeMap<u32, Vec<u8>>,
}

fn digest(bytes: &[u8]) -> [u8; 32] {
    image::digest(bytes).expect("an image").0
}

impl World {
    /// So many tenants with so many endpoints each; the last has an address by `variant`.
    fn of(tenants: usize, endpoints: usize, variant: usize) -> World {
        let mut text = String::from("version: 1\ntenants:\n");
        for t in 0..tenants {
            text += &format!(
                "- name: t{t}\n  subnets: [{{name: lan, prefixes: [10.1.1.0/24]}}]\n  endpoints:\n"
            );
            for e in 0..endpoints {
                let last = t + 1 == tenants && e + 1 == endpoints;
                let address = if last { 100 + variant } else { 10 + e };
                text += &format!(
                    "  - {{name: e{e}, subnet: lan, addresses: [10.1.1.{address}], attach: fifo}}\n"
                );
            }
        }
        let spec = spec::parse("a.yaml", text.as_bytes()).expect("a good spec");
        let ids = policy::Ids::assign(&spec, &policy::Ids::default());
        let intent = policy::compile_after(&spec, &ids, 0, None).expect("tables");
        let compartments = intent.compartments.iter();
        World {
            text,
            numbers: serde_json::to_vec(&ids).expect("JSON"),
            fabric: intent.fabric.bytes.to_vec(),
            compartments: compartments
                .map(|(slot, made)| (*slot, made.image.bytes.to_vec()))
                .collect(),
        }
    }

    fn whole(&self) -> Bundle<'_> {
        Bundle {
            now: 1_800_000_000,
            numbers: &self.numbers,
            fabric: Some(Part::Bytes(&self.fabric)),
            compartments: self
                .compartments
                .iter()
                .map(|(slot, bytes)| (*slot, Part::Bytes(bytes)))
                .collect(),
            ..Bundle::ahead("a.yaml", self.text.as_bytes())
        }
    }

    /// Only what is not in `held` comes whole.
    fn after(&self, held: &World) -> Bundle<'_> {
        let old: BTreeSet<[u8; 32]> = held.digests();
        let part = |bytes| match old.contains(&digest(bytes)) {
            true => Part::Held(digest(bytes)),
            false => Part::Bytes(bytes),
        };
        Bundle {
            fabric: Some(part(&self.fabric)),
            compartments: self
                .compartments
                .iter()
                .map(|(slot, bytes)| (*slot, part(bytes)))
                .collect(),
            ..self.whole()
        }
    }

    /// Everything by its digest.
    fn named(&self) -> Bundle<'_> {
        self.after(self)
    }

    fn digests(&self) -> BTreeSet<[u8; 32]> {
        let images = self.compartments.values().chain([&self.fabric]);
        images.map(|bytes| digest(bytes)).collect()
    }

    /// Each with whose it is.
    fn placed(&self) -> BTreeSet<(u32, [u8; 32])> {
        let seats = self.seats();
        let one = |(target, bytes): (&u32, &Vec<u8>)| (*target, digest(bytes));
        seats.iter().map(one).collect()
    }

    /// As it lies in the seats.
    fn seats(&self) -> BTreeMap<u32, Vec<u8>> {
        let mut seats = self.compartments.clone();
        seats.insert(FABRIC, self.fabric.clone());
        seats
    }
}

#[test]
fn it_is_confined_as_every_worker_and_ends_with_its_socket() {
    let verifier = Verifier::start();
    assert!(verifier.stages.missing(Profile::Verifier).is_empty());
    let seen = confine::observe(verifier.child.pid).expect("seen");
    assert!(seen.is_confined(), "{seen:?}");
    assert_eq!(seen.uids, [verifier.uid; 4]);
    drop(verifier.control);
    let status = rustix::process::waitid(
        rustix::process::WaitId::PidFd(verifier.child.pidfd.as_fd()),
        rustix::process::WaitIdOptions::EXITED,
    );
    assert_eq!(status.unwrap().unwrap().exit_status(), Some(0));
}

#[test]
fn what_the_compiler_made_is_proved_whole_and_then_by_what_changed() {
    let mut verifier = Verifier::start();
    let (first, second) = (World::of(20, 3, 0), World::of(20, 3, 1));
    // It holds nothing yet.
    let said = verifier.ask(PROVE_TO_INSTALL, &first.named());
    assert_eq!(said.verdict.outcome, VERDICT_NEED);
    assert!(said.proved.is_empty());
    let said = verifier.ask(PROVE_TO_INSTALL, &first.whole());
    assert_eq!(said.verdict.outcome, VERDICT_PROVED, "{said:?}");
    assert_eq!(said.proved, first.placed());
    assert_eq!(
        (said.verdict.compartments, said.verdict.endpoints),
        (20, 60)
    );
    let said = verifier.ask(PROVE_TO_INSTALL, &second.after(&first));
    assert_eq!(said.proved, second.placed());
    assert_eq!(said.verdict.endpoints, 60);
    // The last world is held, the one before it is not.
    let said = verifier.ask(PROVE_TO_INSTALL, &second.named());
    assert_eq!(said.proved, second.placed());
    let said = verifier.ask(PROVE_TO_INSTALL, &first.named());
    assert_eq!(said.verdict.outcome, VERDICT_NEED);
    // Who only wants to know is told, and nothing is said to be installed.
    let said = verifier.ask(PROVE_TO_KNOW, &first.whole());
    assert_eq!(said.verdict.outcome, VERDICT_PROVED);
    assert!(said.proved.is_empty());
}

#[test]
fn a_spec_is_read_ahead_and_then_named_by_its_digest() {
    use sha2::{Digest, Sha256};
    let mut verifier = Verifier::start();
    let world = World::of(2, 2, 0);
    let sum = |text: &str| Sha256::digest([b"a.yaml\0", text.as_bytes()].concat()).into();
    let named = |text| Bundle {
        spec: Part::Held(sum(text)),
        ..world.whole()
    };
    let said = verifier.ask(PROVE_TO_INSTALL, &named(&world.text));
    assert_eq!(said.verdict.outcome, VERDICT_NEED);
    let ahead = Bundle::ahead("a.yaml", world.text.as_bytes());
    let said = verifier.ask(PROVE_AHEAD, &ahead);
    assert_eq!(said.verdict.outcome, VERDICT_PROVED);
    assert!(said.proved.is_empty());
    let said = verifier.ask(PROVE_TO_INSTALL, &named(&world.text));
    assert_eq!(said.proved, world.placed());
    let said = verifier.ask(PROVE_TO_INSTALL, &named("version: 1\n"));
    assert_eq!(said.verdict.outcome, VERDICT_NEED);
    let said = verifier.ask(PROVE_AHEAD, &Bundle::ahead("b.yaml", b"version: 1\nx: y\n"));
    assert_eq!(said.verdict.outcome, VERDICT_UNREADABLE);
    assert!(said.report[0].1.contains("b.yaml:2"), "{said:?}");
}

#[test]
fn a_torn_image_is_a_breach_and_nothing_is_proved() {
    let mut verifier = Verifier::start();
    let mut world = World::of(3, 2, 0);
    let slot = *world.compartments.keys().nth(1).unwrap();
    let bytes = world.compartments.get_mut(&slot).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    let said = verifier.ask(PROVE_TO_INSTALL, &world.whole());
    assert_eq!(said.verdict.outcome, VERDICT_BREACHES);
    assert_eq!(said.report[0].0, slot);
    assert!(said.proved.is_empty());
    // Nor is it kept.
    let said = verifier.ask(PROVE_TO_INSTALL, &world.named());
    assert_eq!(said.verdict.outcome, VERDICT_NEED);
}

#[test]
fn what_lies_in_the_seats_is_judged_and_held_against_what_was_applied() {
    let mut verifier = Verifier::start();
    let (world, other) = (World::of(15, 2, 0), World::of(15, 2, 1));
    verifier.show(&world.seats());
    let said = verifier.ask(PROVE_INSTALLED, &world.named());
    assert_eq!(said.verdict.outcome, VERDICT_PROVED, "{said:?}");
    assert_eq!((said.verdict.compartments, said.proved.len()), (15, 0));
    // Shown once, looked at once.
    let said = verifier.ask(PROVE_INSTALLED, &world.named());
    assert_eq!(said.verdict.outcome, VERDICT_BREACHES);
    assert!(said.report.iter().all(|(_, what)| !what.is_empty()));

    let changed = (world.compartments.iter())
        .find(|(slot, bytes)| other.compartments[slot] != **bytes)
        .map(|(slot, _)| *slot)
        .expect("one differs");
    let mut seats = world.seats();
    seats.insert(changed, other.compartments[&changed].clone());
    verifier.show(&seats);
    let said = verifier.ask(PROVE_INSTALLED, &world.named());
    assert_eq!(said.verdict.outcome, VERDICT_BREACHES);
    assert!(
        said.report
            .iter()
            .any(|(slot, what)| *slot == changed && what.contains("the one that was applied"))
    );

    let mut seats = world.seats();
    seats.remove(&changed);
    seats.insert(900, other.compartments[&changed].clone());
    verifier.show(&seats);
    let said = verifier.ask(PROVE_INSTALLED, &world.named());
    let slots: BTreeSet<u32> = said.report.iter().map(|(slot, _)| *slot).collect();
    assert!(slots.contains(&changed) && slots.contains(&900), "{said:?}");
    // Named by its bytes: nobody's word for what lies there.
    verifier.show(&world.seats());
    let said = verifier.ask(PROVE_INSTALLED, &world.whole());
    assert_eq!(said.verdict.outcome, VERDICT_UNREADABLE);
}

#[test]
fn with_one_switch_taken_over_the_rest_is_proved_and_nothing_may_be_installed() {
    let mut verifier = Verifier::start();
    let world = World::of(3, 2, 0);
    let liar = *world.compartments.keys().nth(1).unwrap();
    let mut seats = world.seats();
    seats.get_mut(&liar).unwrap()[100] ^= 1;
    let outcome = |verifier: &mut Verifier, compromised: u32| {
        verifier.compromised = compromised;
        verifier.show(&seats);
        let said = verifier.ask(PROVE_INSTALLED, &world.named());
        assert!(said.proved.is_empty());
        (said.verdict.outcome, said.verdict.compartments)
    };
    assert_eq!(outcome(&mut verifier, 0).0, VERDICT_BREACHES);
    // Its image is no evidence, whatever it is; another's, and the fabric's, are.
    assert_eq!(outcome(&mut verifier, liar), (VERDICT_PROVED, 2));
    let others = world.compartments.keys().filter(|slot| **slot != liar);
    for other in others.copied().chain([FABRIC]) {
        assert_ne!(outcome(&mut verifier, other).0, VERDICT_PROVED, "{other}");
    }
    verifier.compromised = liar;
    let said = verifier.ask(PROVE_TO_INSTALL, &world.whole());
    assert_eq!(said.verdict.outcome, VERDICT_UNREADABLE);
    assert!(said.proved.is_empty());
    // Nothing that such a claim found is known to the next.
    verifier.compromised = 0;
    verifier.show(&seats);
    let said = verifier.ask(PROVE_INSTALLED, &world.named());
    assert_eq!(said.verdict.outcome, VERDICT_BREACHES);
}

#[test]
fn questions_without_sense_are_answered_and_harm_nobody() {
    let mut verifier = Verifier::start();
    let world = World::of(2, 2, 0);
    let outcome = |said: Said| said.verdict.outcome;
    assert_eq!(
        outcome(verifier.ask_fds(PROVE_TO_INSTALL, &[])),
        VERDICT_UNREADABLE
    );
    let open = rustix::fs::memfd_create("open", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::io::write(&open, &world.whole().write()).unwrap();
    let said = verifier.ask_fds(PROVE_TO_INSTALL, &[open.as_fd()]);
    assert_eq!(outcome(said), VERDICT_UNREADABLE);
    let without = Bundle {
        fabric: None,
        ..world.whole()
    };
    assert_eq!(
        outcome(verifier.ask(PROVE_TO_INSTALL, &without)),
        VERDICT_UNREADABLE
    );
    let mut taken = world.whole();
    taken.compartments.insert(0, Part::Bytes(&world.fabric));
    assert_eq!(
        outcome(verifier.ask(PROVE_TO_INSTALL, &taken)),
        VERDICT_UNREADABLE
    );
    let short = Bundle {
        fabric: Some(Part::Bytes(&[1; 20])),
        ..world.whole()
    };
    assert_eq!(
        outcome(verifier.ask(PROVE_TO_INSTALL, &short)),
        VERDICT_UNREADABLE
    );
    assert_eq!(
        outcome(verifier.ask(99, &world.whole())),
        VERDICT_UNREADABLE
    );
    let said = verifier.ask(PROVE_TO_INSTALL, &world.whole());
    assert_eq!(said.proved, world.placed());
}

#[test]
fn torn_and_random_bundles_are_answered_and_prove_nothing_else() {
    let verifier = std::cell::RefCell::new(Verifier::start());
    let world = World::of(3, 2, 0);
    let honest = world.whole().write();
    let digests = world.placed();
    proptest!(ProptestConfig::with_cases(300), |(
        random in proptest::collection::vec(any::<u8>(), 1..600),
        torn in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
        purpose in 0_u32..6,
    )| {
        let mut verifier = verifier.borrow_mut();
        let said = verifier.ask_bytes(purpose, &random);
        prop_assert_eq!(said.verdict.outcome, VERDICT_UNREADABLE);
        let mut bytes = honest.clone();
        for (at, value) in &torn {
            bytes[at.index(honest.len())] = *value;
        }
        let said = verifier.ask_bytes(purpose, &bytes);
        prop_assert!(said.proved.is_subset(&digests));
        let said = verifier.ask_bytes(purpose, &bytes[..1 + cut.index(honest.len() - 1)]);
        prop_assert!(said.proved.is_subset(&digests));
    });
    let said = verifier.borrow_mut().ask(PROVE_TO_INSTALL, &world.whole());
    assert_eq!(said.proved, digests);
}
