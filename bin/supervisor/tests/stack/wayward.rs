//! A worker for the supervisor's tests: speaks like a switch (or, by its name, like the
//! fabric) and moves no frame. How it misbehaves is the `wait_us` of its `Attach`. What
//! it was handed it counts in its counters page, where a test reads it:
//! per slot `RxFrames` = ports added, `RxBytes` = those with `resume`, `TxFrames` =
//! ports removed; `Replies` of slot 0 = images, `Finished` = journals that a predecessor
//! wrote in, `Connections` = journals that nobody did.

use crate::host::epoch_bytes;
use command::Message;
use command::bundle::{Bundle, Part};
use command::verbs::{
    AddPort, Attach, CAUSE_EXIT, FABRIC, Lying, NeedReplace, Operate, PROVE_TO_INSTALL,
    PROVED_AT_ONCE, PortClosed, Program, Prove, Proved, ROLE_FABRIC, ROLE_OPERATOR, ROLE_SWITCH,
    ROLE_VERIFIER, Ready, RemovePort, Report, Running, START_FRESH, Solve, UseImage,
    VERDICT_BREACHES, Verdict,
};
use confine::Profile;
use rustix::event::{PollFd, PollFlags, poll};
use seqpacket::Socket;
use shm::{CountersPage, SealedImage, Words};
use std::io::Write;
use std::os::fd::AsFd;
use telemetry::counters::{Counter, ProcessWord, worker_word};
use telemetry::operator::ASLEEP;

/// Exits with a code while working on slot 1, when it gets its image.
const CRASH: u32 = 101;
/// Spins for ever, when it gets its image.
const SPIN: u32 = 102;
/// Has two workers, when it gets its image: one goes on, the other spins for ever over what
/// slot 1 sent.
const ONE_SPINS: u32 = 120;
/// Has two workers, when it gets its image: one says that it panicked over what slot 1 sent,
/// while the other worked on slot 2.
const ONE_PANICS: u32 = 121;
/// The same, and neither says so.
const ONE_DIES: u32 = 122;
/// Has two workers that sleep, from its `Attach` on.
const TWO_SLEEP: u32 = 123;
/// Opens a file, which its filter forbids, when it gets its image.
const TRIP: u32 = 103;
/// Refuses every image.
const REFUSE: u32 = 104;
/// Says nothing about images.
const SILENT: u32 = 105;
/// Says that the port in slot 1 closed (ENODEV), when it gets its image.
const PORT_GONE: u32 = 106;
/// Wants the channel in slot 0 replaced, once, when it gets its image.
const REPLACE: u32 = 107;

/// Says without end that the port in slot 1 closed, when it gets its image.
const CLOSES: u32 = 108;
/// Says a hundred times that a port closed that never was, and then once that the one
/// in slot 1 did, when it gets its image.
const CLOSES_NONE: u32 = 109;
/// Wants the channel in slot 0 replaced twenty times, when it gets its image.
const REPLACES: u32 = 110;
/// With an image of this epoch or a later one a switch says that it forwarded a frame.
pub const FORWARDS: u64 = 500;
/// Writes a MiB to its standard error and exits, when it gets its image.
const SHOUTS: u32 = 111;
/// Reads nothing any more and sleeps, when it gets its image.
const DEAF: u32 = 112;
/// Refuses, a hundred times, an image that nobody gave it, when it gets its image.
const REFUSES_NONE: u32 = 113;
/// Refuses its image, if it is the first process of its compartment.
const REFUSES_FIRST: u32 = 114;
/// Says nothing about its image, if it is the first process of its compartment.
const SILENT_FIRST: u32 = 115;
/// Says that the port in slot 1 broke the protocol, when it gets its image.
const BREACH: u32 = 116;
/// Says that it proved the image of [`NEVER_PROVED`], and a verdict, when it gets its image.
const JUDGES: u32 = 117;
/// Asks for a solver, when it gets its image.
const ASKS: u32 = 118;
/// A word that it writes in its journal.
const WRITTEN: usize = 100;
/// The epoch of an image that no verifier is asked about.
pub const NEVER_PROVED: u64 = 999;

/// Its whole life; never returns.
pub fn run(is_fabric: bool) -> ! {
    let (role, profile) = if is_fabric {
        (ROLE_FABRIC, Profile::Fabric)
    } else {
        (ROLE_SWITCH, Profile::Switch)
    };
    let Some(control) = confine::descriptor(3) else {
        std::process::exit(2)
    };
    // The first call looks for the kernel's clock, which it may not later.
    monotonic();
    let stages = match confine::enter(profile) {
        Ok(stages) => stages.0,
        Err(error) => {
            eprintln!("wayward: {error}");
            std::process::exit(3);
        }
    };
    let control = Socket::from_fd(control);
    let _ = control.send(&Message::new(0, &Ready { role, stages }), &[]);
    let mut page: Option<CountersPage> = None;
    let mut mode = 0;
    loop {
        if let Some(page) = &page {
            page.add_process(ProcessWord::Heartbeat, 1);
            page.set(ProcessWord::Asleep, 1);
        }
        let _ = poll(&mut [PollFd::new(&control, PollFlags::IN)], None);
        if let Some(page) = &page {
            page.set(ProcessWord::Asleep, 0);
        }
        loop {
            let (message, fds) = match control.recv() {
                Ok(Some(received)) => received,
                Ok(None) => break,
                Err(_) => std::process::exit(0),
            };
            if let Some(body) = message.body::<Attach>() {
                mode = match (body.wait_us, body.start) {
                    (REFUSES_FIRST, START_FRESH) => REFUSE,
                    (SILENT_FIRST, START_FRESH) => SILENT,
                    (mode, _) => mode,
                };
                page = fds
                    .first()
                    .and_then(|fd| CountersPage::open(fd, body.slots as usize).ok());
                if mode == TWO_SLEEP {
                    (0..2).for_each(|_| drop(std::thread::spawn(std::thread::park)));
                }
                let journal = fds.get(2).and_then(|fd| Words::map_whole(fd).ok());
                if let (Some(page), Some(journal)) = (&page, journal) {
                    let found = match journal.load(WRITTEN) {
                        0 => Counter::Connections,
                        _ => Counter::Finished,
                    };
                    page.count(0, found, 1);
                    journal.store(WRITTEN, 1);
                }
                continue;
            }
            let Some(page) = &page else {
                std::process::exit(4)
            };
            if let Some(body) = message.body::<AddPort>() {
                page.count(body.slot as usize, Counter::RxFrames, 1);
                page.count(body.slot as usize, Counter::RxBytes, u64::from(body.resume));
            } else if let Some(body) = message.body::<RemovePort>() {
                page.count(body.slot as usize, Counter::TxFrames, 1);
            } else if let Some(body) = message.body::<UseImage>() {
                page.count(0, Counter::Replies, 1);
                if !is_fabric && body.epoch >= FORWARDS {
                    page.set(ProcessWord::FirstFrame, monotonic());
                }
                act(mode, &control, page, &body);
                // The fabric is told by the image's epoch whom to report.
                if is_fabric && body.epoch >= 1000 {
                    let slot = (body.epoch - 1000) as u32;
                    let report = Report {
                        slot,
                        reason: CAUSE_EXIT,
                        head: [0; 64],
                    };
                    let _ = control.send(&Message::new(0, &report), &[]);
                }
            }
        }
    }
}

fn monotonic() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

fn act(mode: u32, control: &Socket, page: &CountersPage, image: &UseImage) {
    let epoch = image.epoch;
    let closed = |slot| Message::new(0, &PortClosed { slot, reason: 1019 });
    let say = |message: Message| {
        let _ = control.send(&message, &[]);
    };
    match mode {
        CRASH => {
            page.set(ProcessWord::Working, 2);
            std::process::exit(101);
        }
        SPIN => {
            page.set(ProcessWord::Working, 2);
            loop {
                std::hint::spin_loop();
            }
        }
        ONE_SPINS => std::thread::scope(|scope| {
            let own = |worker, word: ProcessWord| worker_word(worker, word as usize);
            scope.spawn(move || {
                for beat in 1.. {
                    page.words().store(own(0, ProcessWord::Heartbeat), beat);
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
            });
            scope.spawn(move || {
                page.words().store(own(1, ProcessWord::Working), 2);
                loop {
                    std::hint::spin_loop();
                }
            });
        }),
        ONE_PANICS | ONE_DIES => {
            for (worker, slot) in [(0, 2), (1, 1)] {
                let word = worker_word(worker, ProcessWord::Working as usize);
                page.words().store(word, slot + 1);
            }
            page.set(ProcessWord::Died, if mode == ONE_PANICS { 2 } else { 0 });
            std::process::exit(101);
        }
        SHOUTS => {
            let line = [b'!'; 1024];
            (0..1024).for_each(|_| drop(std::io::stderr().write(&line)));
            std::process::exit(111);
        }
        TRIP => drop(std::fs::File::open("/")),
        REFUSE => {
            return say(running(epoch, 7));
        }
        SILENT => return,
        DEAF => {
            say(running(epoch, 0));
            loop {
                page.add_process(ProcessWord::Heartbeat, 1);
                page.set(ProcessWord::Asleep, 1);
                let moment = rustix::event::Timespec {
                    tv_sec: 0,
                    tv_nsec: 10_000_000,
                };
                let _ = poll(&mut [], Some(&moment));
            }
        }
        REFUSES_NONE => (0..100).for_each(|_| say(running(999, 7))),
        BREACH => say(Message::new(0, &PortClosed { slot: 1, reason: 3 })),
        PORT_GONE => say(closed(1)),
        CLOSES => loop {
            say(closed(1));
        },
        CLOSES_NONE => {
            (0..100).for_each(|_| say(closed(9)));
            say(closed(1));
        }
        REPLACES => (0..20).for_each(|_| say(Message::new(0, &NeedReplace { slot: 0 }))),
        JUDGES => {
            // The number of the question that is under way: it has guessed well.
            let serial = 2;
            for body in said(&[epoch_bytes(NEVER_PROVED)]) {
                say(Message::new(serial, &body));
            }
            say(Message::new(serial, &Verdict::default()));
        }
        ASKS => {
            let error = std::io::stderr();
            let _ = control.send(&Message::new(0, &Solve::default()), &[error.as_fd()]);
        }
        REPLACE => say(Message::new(0, &NeedReplace { slot: 0 })),
        _ => {}
    }
    say(running(epoch, 0));
}

fn running(epoch: u64, refused: u32) -> Message {
    let body = Running {
        epoch,
        refused,
        reserved: 0,
    };
    Message::new(0, &body)
}

/// All of these were proved, for the fabric and for any of the tests' compartments.
fn said(images: &[Vec<u8>]) -> Vec<Proved> {
    let sums = images.iter().map(|bytes| image::digest(bytes).unwrap().0);
    let places: Vec<(u32, [u8; 32])> = sums
        .flat_map(|sum| (0..32).chain([FABRIC]).map(move |target| (target, sum)))
        .collect();
    let message = |some: &[(u32, [u8; 32])]| {
        let mut body = Proved {
            count: some.len() as u32,
            ..Proved::default()
        };
        for (at, (target, sum)) in some.iter().enumerate() {
            (body.targets[at], body.digests[at]) = (*target, *sum);
        }
        body
    };
    places.chunks(PROVED_AT_ONCE).map(message).collect()
}

/// Stands for the verifier: says `Proved` of whatever it is asked, or does what the
/// question's name is. Of what lies in seats it says how many, as `entries`.
pub fn verify() -> ! {
    let Some(control) = confine::descriptor(3) else {
        std::process::exit(2)
    };
    let stages = match confine::enter(Profile::Verifier) {
        Ok(stages) => stages.0,
        Err(error) => {
            eprintln!("wayward: {error}");
            std::process::exit(3);
        }
    };
    let control = Socket::from_fd(control);
    let role = ROLE_VERIFIER;
    let _ = control.send(&Message::new(0, &Ready { role, stages }), &[]);
    let mut entries = 0;
    loop {
        let (message, fds) = match control.recv_wait(std::time::Duration::from_secs(60)) {
            Ok(Some(received)) => received,
            Ok(None) => continue,
            Err(_) => std::process::exit(0),
        };
        if let Some(body) = message.body::<Lying>() {
            entries += body.count.min(fds.len() as u32);
        }
        let Some(question) = message.body::<Prove>() else {
            continue;
        };
        let sealed = SealedImage::map(&fds[0]).unwrap();
        let bundle = Bundle::read(sealed.as_slice()).unwrap();
        let images = bundle.compartments.values().map(|part| match part {
            Part::Bytes(bytes) => bytes.to_vec(),
            Part::Held(_) => Vec::new(),
        });
        let images: Vec<Vec<u8>> = images.collect();
        let mut verdict = Verdict {
            compartments: images.len() as u32,
            entries: std::mem::take(&mut entries),
            ..Verdict::default()
        };
        let say = |message: Message| {
            let _ = control.send(&message, &[]);
        };
        match bundle.source {
            "dies" => std::process::exit(9),
            // Never on its own.
            "hangs" => loop {
                let _ = poll(&mut [], None);
            },
            "breach" => verdict.outcome = VERDICT_BREACHES,
            // Of another question.
            "other" => {
                for body in said(&images) {
                    say(Message::new(message.seq + 1, &body));
                }
            }
            // For one place alone.
            "for-three" => {
                let mut body = Proved {
                    count: 1,
                    ..Proved::default()
                };
                body.targets[0] = 3;
                body.digests[0] = image::digest(&images[0]).unwrap().0;
                say(Message::new(message.seq, &body));
                say(Message::new(message.seq, &verdict));
                continue;
            }
            "many" => {
                let count = u32::MAX;
                say(Message::new(
                    message.seq,
                    &Proved {
                        count,
                        ..Proved::default()
                    },
                ));
            }
            _ => {}
        }
        if question.purpose == PROVE_TO_INSTALL || bundle.source == "talks" {
            for body in said(&images) {
                say(Message::new(message.seq, &body));
            }
        }
        say(Message::new(message.seq, &verdict));
    }
}

/// How many programs the first operator of a compartment says that it has: what is told of them is
/// more than waits in a socket.
pub const PROGRAMS: u32 = 4200;

/// Three that it says it has of another port, from this number on.
pub const FORMER: u32 = 5001;

/// Stands for the operator: the first of a compartment says that it has many programs, and reads.
/// Those after it read until they are told to operate, and no further.
pub fn operate() -> ! {
    let Some(control) = confine::descriptor(3) else {
        std::process::exit(2)
    };
    // Any listener will do, and its filter lets all pass.
    let _ = rustix::thread::set_no_new_privs(true);
    let all = [libc::sock_filter {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: libc::SECCOMP_RET_ALLOW,
    }];
    // It is where it would say its last words: nothing else may be open yet.
    let listener = notify::filter::install(&all);
    let _ = listener.map(|fd| rustix::stdio::dup2_stderr(&fd));
    let stages = match confine::enter(Profile::Operator) {
        Ok(stages) => stages.0,
        Err(error) => {
            eprintln!("wayward: {error}");
            std::process::exit(3);
        }
    };
    let control = Socket::from_fd(control);
    let role = ROLE_OPERATOR;
    let _ = control.send(&Message::new(0, &Ready { role, stages }), &[]);
    loop {
        let _ = poll(&mut [PollFd::new(&control, PollFlags::IN)], None);
        let (message, fds) = match control.recv() {
            Ok(Some(received)) => received,
            Ok(None) => continue,
            Err(_) => std::process::exit(0),
        };
        if message.body::<Operate>().is_none() {
            continue;
        }
        let Some(page) = fds.first().and_then(|fd| Words::map_whole(fd).ok()) else {
            std::process::exit(4)
        };
        page.store(ASLEEP, 1);
        if page.load(WRITTEN) != 0 {
            loop {
                let _ = poll(&mut [], None);
            }
        }
        page.store(WRITTEN, 1);
        let former = (FORMER..FORMER + 3).map(|number| (number, 1));
        for (number, port) in former.chain((1..=PROGRAMS).map(|number| (number, 0))) {
            // It may not talk without end, nor have more descriptors under way than open.
            let moment = rustix::event::Timespec {
                tv_sec: 0,
                tv_nsec: 800_000,
            };
            let program = Message::new(
                0,
                &Program {
                    slot: 1,
                    number,
                    port,
                },
            );
            while control
                .send(&program, &[std::io::stderr().as_fd()])
                .is_err()
            {
                let _ = poll(&mut [], Some(&moment));
            }
            let _ = poll(&mut [], Some(&moment));
        }
    }
}

/// A program that gives nothing up and says that it did.
pub fn claim() -> ! {
    let Some(control) = confine::descriptor(3) else {
        std::process::exit(2)
    };
    let control = Socket::from_fd(control);
    let _ = control.send(
        &Message::new(
            0,
            &Ready {
                role: ROLE_SWITCH,
                stages: u32::MAX,
            },
        ),
        &[],
    );
    loop {
        let _ = poll(&mut [PollFd::new(&control, PollFlags::IN)], None);
        if control.recv().is_err() {
            std::process::exit(0);
        }
    }
}
