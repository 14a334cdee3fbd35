//! Bad input and a bad host: what ran goes on running, before, during and after; and
//! what is said names the place.

use e2e::frames::TwoTenants;
use e2e::{Ended, Instance, Said, private_folder};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// A ping every 10 ms from an endpoint, for as long as this lives.
struct Witness {
    ping: Ended,
    said: File,
}

impl Witness {
    fn of(tenants: &TwoTenants, tenant: &str, endpoint: &str) -> Witness {
        let at = std::mem::ManuallyDrop::new(tenants.at(tenant, endpoint));
        let mut ping = at.command("exec ping -n -i 0.01 -W 1 10.1.1.10");
        let said = File::from(memfd_create("said", MemfdFlags::CLOEXEC).unwrap());
        let ping = ping.stdout(said.try_clone().unwrap());
        Witness {
            ping: Ended(ping.spawn().unwrap()),
            said,
        }
    }

    /// The numbers of those that came back, in their order.
    fn came_back(&self) -> Vec<usize> {
        // From its beginning, wherever ping writes.
        let at = format!("/proc/self/fd/{}", self.said.as_raw_fd());
        let said = std::fs::read_to_string(at).unwrap();
        let lines = said.lines().filter_map(|line| line.split_once("icmp_seq="));
        let numbers = lines.filter_map(|(_, rest)| rest.split_once(' ')?.0.parse().ok());
        numbers.collect()
    }

    /// All came back up to the last that did, thirty of them after what it watched.
    fn lost_nothing(mut self) {
        let enough = self.came_back().len() + 30;
        let until = Instant::now() + Duration::from_secs(10);
        while self.came_back().len() < enough {
            assert!(Instant::now() < until, "{:?}", self.came_back());
            std::thread::sleep(Duration::from_millis(100));
        }
        self.ping.end();
        let came_back = self.came_back();
        assert!(
            came_back.iter().copied().eq(1..=came_back.len()),
            "{came_back:?}"
        );
    }
}

fn up(tenants: &TwoTenants) -> Instance {
    let instance = Instance::start().unwrap();
    instance.apply(&tenants.spec).unwrap();
    for tenant in ["red", "blue"] {
        assert!(instance.until(Duration::from_secs(3), |_| pings(tenants, tenant)));
    }
    instance
}

fn pings(tenants: &TwoTenants, tenant: &str) -> bool {
    let line = "ping -n -c 1 -W 1 10.1.1.10";
    tenants.sh(tenant, "app1", line).unwrap().ok()
}

#[test]
fn a_bad_spec_is_refused_with_its_line_and_disturbs_nobody() {
    let tenants = TwoTenants::default();
    let instance = up(&tenants);
    let before = instance.ask(&["status"]).unwrap();
    let witness = Witness::of(&tenants, "blue", "app1");
    let mut aliases = String::from("version: 1\nx0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n");
    for n in 1..20 {
        let many = format!("*a{}, ", n - 1).repeat(10);
        aliases += &format!("x{n}: &a{n} [{}]\n", many.trim_end_matches(", "));
    }
    let deep = format!(
        "version: 1\ntenants: {}{}\n",
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    let twice = tenants
        .spec
        .replacen("version: 1\n", "version: 1\nversion: 1\n", 1);
    let unknown = tenants
        .spec
        .replacen("  - name: blue\n", "  - name: blue\n    colour: 3\n", 1);
    let colour = unknown
        .lines()
        .position(|line| line.contains("colour"))
        .unwrap()
        + 1;
    for (name, text, place, says) in [
        (
            "syntax",
            "version: 1\ntenants: [\n".to_owned(),
            "syntax.yaml:".to_owned(),
            "",
        ),
        (
            "unknown",
            unknown,
            format!("unknown.yaml:{colour}:"),
            "colour",
        ),
        ("twice", twice, "twice.yaml:2:".to_owned(), "version"),
        ("aliases", aliases, "aliases.yaml:".to_owned(), ""),
        ("deep", deep, "deep.yaml:".to_owned(), ""),
        (
            "bytes",
            "version: \u{0}1".to_owned(),
            "bytes.yaml:".to_owned(),
            "",
        ),
    ] {
        let file = instance.folder().join(format!("{name}.yaml"));
        std::fs::write(&file, text).unwrap();
        let said = instance.say(&["apply", file.to_str().unwrap()]).unwrap();
        assert_eq!(said.code, 2, "{name}: {said:?}");
        assert!(
            said.err.contains(&place) && said.err.contains(says),
            "{name}: {}",
            said.err
        );
        // The same straight to the API, past what the command line checks.
        let socket = instance.run_dir().join("api.sock");
        let line = format!(
            "curl -s -o /dev/null -w '%{{http_code}}' --unix-socket {} --data-binary @{} 'http://x/v1/apply?file=x'",
            socket.display(),
            file.display()
        );
        assert_eq!(
            Said::of(Command::new("sh").args(["-c", &line]))
                .unwrap()
                .out,
            "422",
            "{name}"
        );
    }
    // 100 MB: by its size, by what comes down a pipe, and straight to the API.
    let huge = instance.folder().join("huge.yaml");
    std::fs::File::create(&huge)
        .unwrap()
        .set_len(100 << 20)
        .unwrap();
    let said = instance.say(&["apply", huge.to_str().unwrap()]).unwrap();
    assert!(said.code == 2 && said.err.contains("huge.yaml"), "{said:?}");
    let mut piped = instance.command(&["apply", "-"]);
    piped.stdin(std::fs::File::open(&huge).unwrap());
    assert_eq!(Said::of(&mut piped).unwrap().code, 2);
    let line = format!(
        "curl -s -o /dev/null -w '%{{http_code}}' -H expect: --unix-socket {} -T {} -X POST 'http://x/v1/apply?file=x'",
        instance.run_dir().join("api.sock").display(),
        huge.display()
    );
    assert_eq!(
        Said::of(Command::new("sh").args(["-c", &line]))
            .unwrap()
            .out,
        "413"
    );
    witness.lost_nothing();
    let after = instance.ask(&["status"]).unwrap();
    assert_eq!(
        (&before["epoch"], &before["history"]),
        (&after["epoch"], &after["history"])
    );
    assert!(pings(&tenants, "red") && pings(&tenants, "blue"));
}

#[test]
fn an_interface_that_vanishes_takes_nobody_along_and_comes_back() {
    let tenants = TwoTenants::default();
    let instance = up(&tenants);
    let witness = Witness::of(&tenants, "red", "app2");
    tenants.sh("red", "app1", "ip link del eth0").unwrap();
    let closed = instance.until(Duration::from_secs(3), |i| {
        i.endpoint("red", "app1").unwrap()["port"] != "open"
    });
    assert!(closed, "{}", instance.endpoint("red", "app1").unwrap());
    let why = instance.say(&["why", "red/app1"]).unwrap();
    assert!(why.out.contains("port is closed"), "{why:?}");
    // The same spec again makes it anew, and touches nobody else's.
    instance.apply(&tenants.spec).unwrap();
    assert!(instance.until(Duration::from_secs(3), |_| pings(&tenants, "red")));
    witness.lost_nothing();
    // An uplink that is not there is one at its line, and nothing is begun.
    let gone = tenants.spec.replacen(
        "version: 1\n",
        "version: 1\nuplinks:\n  - name: wan\n    interface: bht-gone\n",
        1,
    );
    let file = instance.folder().join("gone.yaml");
    std::fs::write(&file, gone).unwrap();
    let said = instance.say(&["apply", file.to_str().unwrap()]).unwrap();
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.err.contains("gone.yaml:4:"), "{}", said.err);
    assert!(pings(&tenants, "red") && pings(&tenants, "blue"));
}

#[test]
fn after_a_power_cut_what_was_left_behind_is_in_nobodys_way() {
    let tenants = TwoTenants::default();
    let folder = up(&tenants).cut_off();
    let instance = Instance::start_in(folder, &[]).unwrap();
    for tenant in ["red", "blue"] {
        let back = instance.until(Duration::from_secs(5), |_| pings(&tenants, tenant));
        assert!(back, "{tenant}: {}", instance.ask(&["status"]).unwrap());
    }
    let again = instance.apply(&tenants.spec).unwrap();
    assert_eq!(
        again["plan"]["changes"].as_array().map(Vec::len),
        Some(0),
        "{again}"
    );
    assert!(pings(&tenants, "red"));
}

/// A small disk as the state directory of the instance whose folder this is.
struct Disk(PathBuf);

impl Disk {
    fn under(folder: &std::path::Path) -> Disk {
        let state = folder.join("state");
        std::fs::create_dir(&state).unwrap();
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", "size=8m,mode=700", "bht"])
            .arg(&state);
        assert!(mount.status().unwrap().success());
        Disk(state)
    }

    fn fill(&self) {
        let line = format!("cat /dev/zero > {}/filler 2>/dev/null", self.0.display());
        let _ = Command::new("sh").args(["-c", &line]).status();
    }

    fn free(&self) {
        std::fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_is_said_and_forgotten_once_there_is_room() {
    let tenants = TwoTenants::default();
    let folder = private_folder("bulkhead-").unwrap();
    let disk = Disk::under(&folder);
    disk.fill();
    let instance = Instance::start_in(folder, &[]).unwrap();
    let health = |i: &Instance| {
        i.ask(&["status"]).unwrap()["health"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert!(
        health(&instance).contains("make room on the disk"),
        "{}",
        health(&instance)
    );
    let file = instance.folder().join("spec.yaml");
    std::fs::write(&file, &tenants.spec).unwrap();
    let apply = |i: &Instance| i.say(&["apply", file.to_str().unwrap()]).unwrap();
    let said = apply(&instance);
    assert!(said.code == 1 && said.err.contains("make room"), "{said:?}");
    // Room, and nobody starts anything again.
    disk.free();
    assert!(instance.until(Duration::from_secs(5), |i| health(i) == "ok"));
    assert_eq!(apply(&instance).code, 0);
    assert!(instance.until(Duration::from_secs(3), |_| pings(&tenants, "red")));

    // Full while it runs: the change is refused, what ran runs.
    let witness = Witness::of(&tenants, "red", "app1");
    disk.fill();
    let grown = tenants.spec.replace("name: app2,", "name: app3,");
    std::fs::write(&file, format!("# {}\n{grown}", "x".repeat(100_000))).unwrap();
    let said = apply(&instance);
    assert!(said.code == 1 && said.err.contains("make room"), "{said:?}");
    assert!(pings(&tenants, "red"));
    witness.lost_nothing();
    disk.free();
    assert_eq!(apply(&instance).code, 0);
    assert!(instance.endpoint("red", "app3").is_ok());
}
