//! An operator that is taken over.

use crate::scene::{OPEN, Scene, kill};
use command::Message;
use command::verbs::{Done, Program};
use std::fmt::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

fn hex(message: &Message) -> String {
    message
        .as_bytes()
        .iter()
        .fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}

/// Who closes what it gives waits for as long as its maker likes: a file of a FUSE, TCP that lingers.
/// Nobody does but who is sent for it.
#[test]
fn what_it_gives_holds_nobody_up() {
    let spec = OPEN;
    let scene = Scene::of(spec);
    scene.compile("held", crate::held::C);
    let _web = scene.start("web", "{peer} serve 80", "serving");
    let program = Message::new(
        0,
        &Program {
            slot: 0,
            number: 99,
            port: 0,
        },
    );
    let other = Message::new(0, &Done::default());
    for (how, said) in [
        ("give", program),
        ("give", other),
        ("linger", program),
        ("linger", other),
    ] {
        let before = scene.operator().unwrap();
        let mut held = Command::new(format!("{}/held", scene.files()));
        held.args([how, &before.to_string(), &hex(&said)]);
        let held = scene.spawn(held);
        held.until("gave");
        let begun = Instant::now();
        // Another is there, and programs that were there and new ones are served.
        let is_another = |_: &e2e::Instance| scene.operator().is_some_and(|now| now != before);
        assert!(
            scene.instance.until(Duration::from_secs(8), is_another),
            "{how}: {}",
            scene.instance.log()
        );
        assert_eq!(scene.tries("few", "10.1.1.10,80"), ["10.1.1.12"]);
        // Of the supervisor and of the keeper.
        scene.apply(&spec.replace("sockets: 100", "sockets: 101"));
        scene.apply(spec);
        // The next supervisor is given all by the keeper.
        let supervisor = scene.instance.child("bulkhead-supervisor").unwrap();
        kill("KILL", &supervisor.to_string());
        let is_there = |at: &e2e::Instance| {
            at.child("bulkhead-supervisor")
                .is_some_and(|it| it != supervisor)
                && at.ask(&["status"]).is_ok()
        };
        assert!(
            scene.instance.until(Duration::from_secs(4), is_there),
            "{how}"
        );
        scene.apply(&spec.replace("sockets: 100", "sockets: 102"));
        scene.apply(spec);
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(40), "{how}: {took:?}");
        drop(held);
    }
}

/// Programs that it took over are its successor's, also where the supervisor had not heard of them when it
/// died.
#[test]
fn what_it_said_at_last_is_heard() {
    let scene = Scene::of(OPEN);
    let _web = scene.start("web", "{peer} serve 80", "serving");
    let supervisor = scene.instance.child("bulkhead-supervisor").unwrap();
    for _ in 0..3 {
        let operator = scene.operator().unwrap();
        let mut line = scene.command("few", "echo begun; read go; {peer} try 10.1.1.10,80");
        line.stdin(std::process::Stdio::piped());
        // It has asked whom it has to ask, and waits for the operator.
        kill("STOP", &operator.to_string());
        let mut tries = scene.spawn(line);
        std::thread::sleep(Duration::from_millis(500));
        kill("STOP", &supervisor.to_string());
        kill("CONT", &operator.to_string());
        tries.until("begun");
        kill("KILL", &operator.to_string());
        kill("CONT", &supervisor.to_string());
        tries.go_on();
        assert_eq!(
            tries.wait(Duration::from_secs(10)),
            Some(0),
            "{}",
            tries.err()
        );
        assert_eq!(tries.out(), "begun\n10.1.1.12\n");
    }
}

/// Has little room in an operator's link with the supervisor, its descriptor 3.
const NARROWS: &str = "
import ctypes, os, socket, sys
link = ctypes.CDLL(None).syscall(438, os.pidfd_open(int(sys.argv[1])), 3, 0)
socket.socket(fileno=link).setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
";

/// Many start at once while the supervisor, who has them kept, stands still: its socket has no room for all.
#[test]
fn programs_that_nobody_can_keep_just_now_start_later() {
    const MANY: usize = 20;
    let scene = Scene::of(OPEN);
    let supervisor = scene.instance.child("bulkhead-supervisor").unwrap();
    // One that stood still for too long on a slow machine has been replaced by one with room; or none had begun by then.
    let mut counts = Vec::new();
    let all = (0..5).find_map(|_| {
        let operator = scene.operator().unwrap();
        let narrows = Command::new("python3")
            .args(["-c", NARROWS, &operator.to_string()])
            .status();
        assert!(narrows.unwrap().success());
        // They have asked whom they have to ask, and wait for the operator.
        kill("STOP", &operator.to_string());
        let all: Vec<_> = (0..MANY)
            .map(|_| scene.spawn(scene.command("few", "echo runs; sleep 3")))
            .collect();
        std::thread::sleep(Duration::from_millis(250));
        kill("STOP", &supervisor.to_string());
        kill("CONT", &operator.to_string());
        std::thread::sleep(Duration::from_millis(500));
        let runs = all.iter().filter(|it| it.out() == "runs\n").count();
        let same = scene.operator() == Some(operator);
        kill("CONT", &supervisor.to_string());
        counts.push(runs);
        (same && (1..MANY).contains(&runs)).then_some(all)
    });
    let mut all = all.unwrap_or_else(|| panic!("{counts:?}: all had room, or none"));
    for one in &mut all {
        let ended = one.wait(Duration::from_secs(10));
        assert_eq!(
            (ended, one.out().as_str()),
            (Some(0), "runs\n"),
            "{}",
            one.err()
        );
    }
}

/// Programs outlive their operator, their endpoint and the supervisor; whoever has the operator's uid can read
/// them.
#[test]
fn nobody_else_is_given_the_uid_of_an_operator_whose_programs_are_left() {
    let scene = Scene::of(OPEN);
    let uid = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
        line.and_then(|uids| uids.split_whitespace().next()?.parse::<u32>().ok())
    };
    let mut left = scene.start("app", "echo here; exec sleep 600", "here");
    let before = uid(scene.operator().unwrap()).unwrap();
    let supervisor = scene.instance.child("bulkhead-supervisor").unwrap();
    kill("KILL", &supervisor.to_string());
    let is_there = |at: &e2e::Instance| {
        let other = at.child("bulkhead-supervisor");
        other.is_some_and(|it| it != supervisor) && at.ask(&["status"]).is_ok()
    };
    let limit = Duration::from_secs(8);
    assert!(scene.instance.until(limit, is_there));
    let tenant = |n: u32| {
        format!(
            "  - name: green{n}
    subnets:
      - {{ name: lan, prefixes: [10.9.{n}.0/24] }}
    endpoints:
      - {{ name: one, subnet: lan, addresses: [10.9.{n}.10], attach: circuits }}
"
        )
    };
    let all: String = (0..5).map(tenant).collect();
    scene.apply(&format!("version: 1\ntenants:\n{all}"));
    let mut uids = Vec::new();
    let has_all = |at: &e2e::Instance| {
        let all = at.children("bulkhead-operator").into_iter();
        uids = all.filter_map(uid).collect();
        // Those of before may be on their way to their end.
        uids.len() == 5 && !uids.contains(&before)
    };
    let has_all = scene.instance.until(limit, has_all);
    assert!(has_all, "{before}: {uids:?}");
    for program in ["supervisor", "controller", "switch", "fabric"] {
        let all = scene.instance.children(&format!("bulkhead-{program}"));
        let is_one = |pid: &u32| uid(*pid) == Some(before);
        assert!(!all.is_empty() && !all.iter().any(is_one), "{program}");
    }
    assert_eq!(left.wait(Duration::from_millis(1)), None);
}
