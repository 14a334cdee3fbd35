//! CPython's own tests of sockets and of asyncio, in an endpoint and natively: what differs is
//! what docs/circuits-cpython.md lists.

use crate::scene::{OPEN, Scene};
use e2e::{Namespace, Said};
use std::collections::{BTreeMap, BTreeSet};

const RUNNER: &str = include_str!("cpython.py");
const LISTED: &str = include_str!("../../../docs/circuits-cpython.md");

/// Of asyncio, what opens sockets and takes no more than a few seconds.
const NETWORK: &[&str] = &[
    "test_socket",
    "test_asyncio.test_base_events",
    "test_asyncio.test_buffered_proto",
    "test_asyncio.test_events",
    "test_asyncio.test_selector_events",
    "test_asyncio.test_sendfile",
    "test_asyncio.test_server",
    "test_asyncio.test_sock_lowlevel",
    "test_asyncio.test_streams",
    "test_asyncio.test_unix_events",
];

/// What became of each test: whether it passed, and what was said of it.
type Became = BTreeMap<String, (bool, String)>;

#[test]
fn cpythons_tests_that_open_sockets_pass_as_natively() {
    compare(NETWORK, 1_000, 90);
}

#[test]
#[ignore = "by `cargo xtask test --full`: as long as all other programs together"]
fn all_of_cpythons_tests_of_sockets_and_asyncio_pass_as_natively() {
    compare(&["test_socket", "test_asyncio"], 2_500, 95);
}

/// Runs these on both sides. At least so many pass natively, and so many in 100 of them here.
fn compare(names: &[&str], least: usize, share: usize) {
    let scene = Scene::of(OPEN);
    scene.file("cpython.py", RUNNER);
    let plain = Namespace::make().unwrap();
    for address in ["10.1.1.10/32", "fd00:1::10/128"] {
        plain.ip(&format!("addr add {address} dev lo")).unwrap();
    }
    let names = names.join(" ");
    let (mut native, mut here) = std::thread::scope(|both| {
        let native = both.spawn(|| natively(&scene, &plain, &names));
        let here = in_endpoint(&scene, &names);
        (native.join().unwrap(), here)
    });
    let listed = listed();
    // By its name, or its class's.
    let is_listed = |test: &str| {
        let class = test.rsplit_once('.').map_or("", |(class, _)| class);
        listed.contains(test) || listed.contains(class)
    };
    // What comes out otherwise than it should, on a machine that has other things to do, is asked
    // again alone, on both sides.
    for _ in 0..4 {
        let odd = |test: &&String| match (native[*test].0, here.get(*test)) {
            (true, Some((passed, _))) => *passed == is_listed(test),
            (true, None) => true,
            (false, _) => is_listed(test),
        };
        let odd: Vec<String> = native.keys().filter(odd).cloned().collect();
        if odd.is_empty() {
            break;
        }
        scene.file("odd", &odd.join("\n"));
        let again = format!("@{}/odd", scene.files());
        for (all, again) in [
            (&mut native, natively(&scene, &plain, &again)),
            (&mut here, in_endpoint(&scene, &again)),
        ] {
            all.extend(again.into_iter().filter(|(_, (passed, _))| *passed));
        }
    }
    let passes: Vec<&String> = native.iter().filter(|it| it.1.0).map(|it| it.0).collect();
    assert!(passes.len() > least, "only {} pass natively", passes.len());
    let here_too = |test: &&&String| here.get(**test).is_some_and(|became| became.0);
    let alike = passes.iter().filter(here_too).count();
    eprintln!("{alike} of {} that pass natively", passes.len());
    assert!(
        alike * 100 >= passes.len() * share,
        "{alike} of {}",
        passes.len()
    );
    for name in &listed {
        let is_of_it = |test: &&String| test.starts_with(name.as_str());
        let asked = passes.iter().any(is_of_it);
        assert!(asked, "{name} is listed, and never passes natively");
    }
    for test in passes {
        let (passed, why) = here
            .get(test)
            .map_or((false, "it did not run"), |it| (it.0, it.1.as_str()));
        assert!(
            passed || is_listed(test),
            "{test} passes natively and not here: {why}"
        );
        assert!(
            !(passed && is_listed(test)),
            "{test} is listed as different, and passes"
        );
    }
}

/// The names in the list's first column.
fn listed() -> BTreeSet<String> {
    let rows = LISTED.lines().filter_map(|line| line.strip_prefix("| `"));
    let names: BTreeSet<String> = rows
        .filter_map(|row| row.split_once('`'))
        .map(|(name, _)| name.to_owned())
        .collect();
    assert!(names.len() >= 10, "{names:?}");
    names
}

fn natively(scene: &Scene, plain: &Namespace, names: &str) -> Became {
    let user = "setpriv --reuid nobody --regid nogroup --clear-groups";
    let line = format!(
        "exec {user} /usr/bin/python3 {}/cpython.py {names}",
        scene.files()
    );
    became(&plain.sh(&line).unwrap())
}

fn in_endpoint(scene: &Scene, names: &str) -> Became {
    let line = format!("exec /usr/bin/python3 {{f}}/cpython.py {names}");
    let mut program = scene.spawn(scene.command_of("web", &["--user", "nobody"], &line));
    let code = program.wait(std::time::Duration::from_secs(300));
    became(&Said {
        code: code.unwrap_or(-2),
        out: program.out(),
        err: program.err(),
    })
}

fn became(said: &Said) -> Became {
    assert!(said.ok(), "{}{}", said.err, said.out);
    let lines = said.out.lines().filter_map(|line| {
        let (what, rest) = line.split_once(' ')?;
        let (test, why) = rest.split_once(' ').unwrap_or((rest, ""));
        Some((test.to_owned(), (what == "passed", why.to_owned())))
    });
    lines.collect()
}
