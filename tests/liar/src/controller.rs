//! A controller that was taken over: whoever has its socket says to the supervisor what it
//! likes, and asks for tables that nobody proved.
//!
//! `bulkhead-liar controller PID TARGET`, with a question for the verifier (a bundle) that has
//! the tables in it on standard input. It stops that controller, takes its socket, and says in
//! a line each what the supervisor answers: a word, a tab, a sentence. The controller is
//! killed at the end: what the supervisor told it meanwhile it never heard.

use command::bundle::{Bundle, Part};
use command::message::ErrorCode;
use command::verbs::{
    Done, FABRIC, Install, PROVE_TO_INSTALL, Prove, Proved, VERDICT_BREACHES, VERDICT_PROVED,
    Verdict,
};
use command::{Body, Message};
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open, pidfd_send_signal,
};
use seqpacket::Socket;
use shm::SealedImage;
use std::error::Error;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// The descriptor of the controller's that is its socket to the supervisor.
const CONTROL: i32 = 3;
/// The supervisor answers, or has ended: it gives a verifier 10 s.
const PATIENCE: Duration = Duration::from_secs(20);
/// No controller counts so far.
const FIRST: u32 = 0xfeed_0000;

/// All of it; `words` are the arguments behind the first.
///
/// # Errors
/// The arguments, the bundle, the controller or the socket are not as they should be.
pub fn run(mut words: impl Iterator<Item = String>) -> Result<(), Box<dyn Error>> {
    let mut number = |what: &str| -> Result<u32, Box<dyn Error>> {
        let word = words.next().ok_or_else(|| format!("{what} is missing"))?;
        Ok(word.parse().map_err(|e| format!("{what} {word:?}: {e}"))?)
    };
    let (pid, target) = (number("PID")?, number("TARGET")?);
    let mut bundle = Vec::new();
    std::io::stdin().read_to_end(&mut bundle)?;
    let pid = Pid::from_raw(pid.cast_signed()).ok_or("PID is 0")?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let socket = pidfd_getfd(&process, CONTROL, PidfdGetfdFlags::empty())?;
    pidfd_send_signal(&process, Signal::STOP)?;
    let mut taken = Taken {
        socket: Socket::from_fd(socket),
        last: FIRST,
    };
    let outcome = taken.tries(target, &bundle);
    pidfd_send_signal(&process, Signal::KILL)?;
    outcome
}

struct Taken {
    socket: Socket,
    last: u32,
}

impl Taken {
    fn tries(&mut self, target: u32, bundle: &[u8]) -> Result<(), Box<dyn Error>> {
        let read = Bundle::read(bundle).map_err(|e| e.to_string())?;
        let part = match target {
            FABRIC => read.fabric,
            slot => read.compartments.get(&slot).copied(),
        };
        let Some(Part::Bytes(image)) = part else {
            return Err("the bundle has no tables for TARGET".into());
        };
        let digest = image::digest(image).ok_or("these are no tables")?.0;
        let install = Install {
            target,
            must: 0,
            epoch: u64::MAX,
            digest,
        };
        self.says("unasked", &install, Some(image))?;
        let prove = Prove {
            purpose: PROVE_TO_INSTALL,
            compromised: 0,
        };
        let (answer, _) = self.ask(&prove, Some(bundle))?;
        match answer.body::<Verdict>() {
            Some(verdict) => match verdict.outcome {
                VERDICT_PROVED => println!("verdict\tproved"),
                VERDICT_BREACHES => println!("verdict\tbreaches: {}", verdict.breaches),
                other => println!("verdict\tnone ({other})"),
            },
            None => println!("verdict\t{}", sentence(&answer)),
        }
        self.says("refuted", &install, Some(image))?;
        let mut proved = Proved {
            count: 1,
            ..Proved::default()
        };
        (proved.targets[0], proved.digests[0]) = (target, digest);
        self.says("forged", &proved, None)?;
        self.says("again", &install, Some(image))
    }

    /// Asks, and prints what is answered.
    fn says<B: Body>(
        &mut self,
        word: &str,
        body: &B,
        sealed: Option<&[u8]>,
    ) -> Result<(), Box<dyn Error>> {
        let (answer, _) = self.ask(body, sealed)?;
        println!("{word}\t{}", sentence(&answer));
        Ok(())
    }

    fn ask<B: Body>(
        &mut self,
        body: &B,
        sealed: Option<&[u8]>,
    ) -> Result<(Message, Vec<OwnedFd>), Box<dyn Error>> {
        self.last += 1;
        let sealed = sealed.map(|bytes| SealedImage::create("liar", bytes));
        let sealed = sealed.transpose()?;
        let fds: Vec<_> = sealed.iter().map(AsFd::as_fd).collect();
        let message = Message::new(self.last, body);
        let (answer, fds) = self.socket.ask(&message, &fds, PATIENCE)?;
        Ok((answer, fds.into_iter().collect()))
    }
}

fn sentence(answer: &Message) -> String {
    let code = match answer.error {
        0 => return "done".to_owned(),
        code if code == ErrorCode::NotProved as u32 => "not proved",
        code if code == ErrorCode::BadMessage as u32 => "bad message",
        _ => "refused",
    };
    let done = answer.body::<Done>().unwrap_or_default();
    format!("{code}: {}", done.detail.as_str())
}
