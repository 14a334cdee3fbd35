//! `bulkhead demo`, as a person runs it, and what is left of it: nothing.

use e2e::{Said, private_folder, program};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Where a demo puts its files, which is how its processes are known.
struct Place(PathBuf);

impl Place {
    fn new() -> Place {
        let folder = private_folder("bht-demo-").unwrap();
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o1777)).unwrap();
        Place(folder)
    }

    fn demo(&self, words: &[&str]) -> Command {
        let mut command = Command::new(program("bulkhead"));
        command.arg("demo").args(words).env("TMPDIR", &self.0);
        // A group of its own, as a shell gives it, for Ctrl-C to go to.
        command.process_group(0).stdin(Stdio::null());
        command
    }

    /// Processes, namespaces and files that a demo left.
    fn left(&self) -> Vec<String> {
        let named = |path: &Path| path.display().to_string();
        let mut left: Vec<String> = std::fs::read_dir(&self.0)
            .unwrap()
            .flatten()
            .map(|entry| named(&entry.path()))
            .collect();
        for tenant in ["red", "blue"] {
            for endpoint in ["web1", "app1", "app2"] {
                let namespace = Path::new("/run/netns").join(format!("{tenant}-{endpoint}"));
                left.extend(namespace.exists().then(|| named(&namespace)));
            }
        }
        let place = named(&self.0);
        for process in std::fs::read_dir("/proc").unwrap().flatten() {
            // A worker's command line does not name the folder; its environment does.
            let says = |file| std::fs::read(process.path().join(file)).unwrap_or_default();
            let all = [says("cmdline"), says("environ")].concat();
            if String::from_utf8_lossy(&all).contains(&place) {
                let line = String::from_utf8_lossy(&says("cmdline")).replace('\0', " ");
                left.push(format!("{}: {line}", named(&process.path())));
            }
        }
        left
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn all_is_well(said: &Said) {
    assert_eq!(said.code, 0, "{said:?}");
    for line in ["Everything came out as it should.", "Cleaned up:"] {
        assert!(said.out.contains(line), "no {line:?} in {}", said.out);
    }
    assert!(!said.out.contains('✗'), "{}", said.out);
    for line in CHAPTERS {
        assert!(said.out.contains(line), "no {line:?} in {}", said.out);
    }
}

/// What the chapters of every demo show.
const CHAPTERS: &[&str] = &[
    "✓ no outage for blue: its switch goes on as process ",
    "✓ allowed: blue's switch by acceptance reds-page (line ",
    "✓ blue was told: packets of 1400 bytes at most",
    "✓ and a new connection gets no answer",
    "== a gateway with NAT",
    "✓ with-gateway.yaml as it was compiled: proved",
    "✓ refused: missing deny: its ingress table says allow where rule no-ssh says deny",
    "       packet  tcp 10.1.2.",
    " to 10.1.1.10:22\n",
    "       path    from red/app",
    " by the ingress table of red/web1\n",
    "       spec    rule no-ssh (with-gateway.yaml:",
    "✓ refused: fabric entry: ",
];

/// What only a host that makes a network outside can show: root always can.
const OUTSIDE: &[&str] = &[
    "✓ the server was asked by 192.0.2.10, port ",
    "✓ the server was asked by 192.0.2.11, port ",
    "✓ red/app1 to uplink wan: leaves as tcp 192.0.2.10:",
    "✓ uplink wan to red/app1: leaves as tcp 198.51.100.2:80 to 10.1.2.10:",
    "✓ no answer: what nobody of red asked for does not come in",
    "✓ dropped: from red/app1: deny (rule no-ssh, line ",
];

/// What only a host shows that lends root the descriptors of its own processes.
const TAKEN_OVER: &[&str] = &[
    "✓ it hands them to the supervisor: not proved: the verifier has not proved this image",
    "✓ it asks this host's verifier, whose verdict is: breaches: ",
    "✓ it hands them over once more: not proved: the verifier has not proved this image",
    "✓ it says in the verifier's name that they are proved: bad message: ",
    "✓ and hands them over again: not proved: the verifier has not proved this image",
    "✓ nothing of it was started: red's switch is process ",
];

/// Of each table that is tampered with: a compartment's and the fabric's.
fn taken_over_too(said: &Said) {
    for line in TAKEN_OVER {
        let times = said.out.matches(line).count();
        assert_eq!(times, 2, "{line:?} in {}", said.out);
    }
}

fn outside_too(said: &Said) {
    for line in OUTSIDE {
        assert!(said.out.contains(line), "no {line:?} in {}", said.out);
    }
}

/// All of it, or a line that says why not.
fn outside_or_named(said: &Said) {
    if !said.out.contains("skipped: this host makes no network") {
        outside_too(said);
    }
    if !said.out.contains("skipped: this host lends nobody") {
        taken_over_too(said);
    }
}

#[test]
fn it_shows_what_it_promises_and_leaves_nothing() {
    let place = Place::new();
    let said = Said::of(&mut place.demo(&[])).unwrap();
    all_is_well(&said);
    outside_too(&said);
    taken_over_too(&said);
    assert_eq!(place.left(), Vec::<String>::new());
}

/// Waits until it has printed a line with `sign` in it, then Ctrl-C.
fn interrupted(place: &Place, sign: &str) -> String {
    let mut demo = place
        .demo(&[])
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines();
    let seen = lines
        .by_ref()
        .map_while(Result::ok)
        .any(|line| line.contains(sign));
    let group = format!("-{}", demo.id());
    let _ = Command::new("kill").args(["-INT", "--", &group]).status();
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    let code = ended(&mut demo);
    assert!(seen, "never came to {sign:?}");
    assert_eq!(code, Some(1), "{rest:?}");
    rest.join("\n")
}

fn ended(child: &mut Child) -> Option<i32> {
    let end = Instant::now() + Duration::from_secs(40);
    while Instant::now() < end {
        if let Ok(Some(status)) = child.try_wait() {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = child.kill();
    None
}

#[test]
fn ctrl_c_in_the_middle_leaves_nothing() {
    // While the daemon starts, while everything is up, while it is attacked, while there is a
    // network outside, and while its controller is stopped by who took it over.
    for sign in [
        "Bulkhead: two tenants",
        "== The same address",
        "attacks red",
        "the server was asked by",
        "the controller, is taken over",
    ] {
        let place = Place::new();
        let rest = interrupted(&place, sign);
        assert_eq!(place.left(), Vec::<String>::new(), "at {sign:?}: {rest}");
    }
}

#[test]
fn without_root_it_shows_the_same_or_names_what_is_missing() {
    let place = Place::new();
    // In a user namespace of root's.
    let said = Said::of(&mut place.demo(&["--rootless"])).unwrap();
    all_is_well(&said);
    outside_or_named(&said);
    assert_eq!(place.left(), Vec::<String>::new());

    // As an ordinary user, who may not look into the folder of the programs here.
    let programs = place.0.join("programs");
    std::fs::create_dir(&programs).unwrap();
    for name in [
        "",
        "-keeper",
        "-supervisor",
        "-controller",
        "-switch",
        "-fabric",
        "-auditor",
        "-verifier",
        "-solver",
        "-vhost",
        "-operator",
        "-proxy",
        "-liar",
    ] {
        let name = format!("bulkhead{name}");
        std::fs::copy(program(&name), programs.join(name)).unwrap();
    }
    let temporary = place.0.join("tmp");
    std::fs::create_dir(&temporary).unwrap();
    std::fs::set_permissions(&temporary, PermissionsExt::from_mode(0o1777)).unwrap();
    let as_user = |program: &Path| {
        let mut command = Command::new(program);
        command
            .uid(4242)
            .gid(4242)
            .env("TMPDIR", &temporary)
            .env("HOME", &temporary);
        command
    };
    let mut open = as_user(Path::new("sh"));
    let tun = Said::of(open.args(["-c", "exec 3<>/dev/net/tun"])).unwrap();
    let namespaces = Said::of(as_user(Path::new("unshare")).args(["-Urn", "true"])).unwrap();
    let said = Said::of(as_user(&programs.join("bulkhead")).arg("demo")).unwrap();
    if tun.ok() && namespaces.ok() {
        all_is_well(&said);
        outside_or_named(&said);
    } else if namespaces.ok() {
        println!("not shown as an ordinary user: /dev/net/tun is not for uid 4242 here");
        assert!(
            said.code == 1 && said.err.contains("/dev/net/tun cannot be opened"),
            "{said:?}"
        );
    } else {
        println!("not shown as an ordinary user: user namespaces are not for uid 4242 here");
        assert!(
            said.code == 5 && said.err.contains("user namespaces"),
            "{said:?}"
        );
    }
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 0);
}
