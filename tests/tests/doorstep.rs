//! Who stands at the daemon's door: users without rights, a second daemon, a caller
//! that does not wait.

use e2e::frames::TwoTenants;
use e2e::{Ended, Instance, Said, program};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// As user `uid`, opens so many connections to the API, says half a request on each
/// and prints how many are still open after three seconds. Ended, it lets go.
fn crowd(instance: &Instance, uid: u32, connections: u32) -> Ended {
    let program = format!(
        "
import socket,sys,time
held=[]
for n in range({connections}):
  s=socket.socket(socket.AF_UNIX); s.connect('{}'); held.append(s)
  try: s.send(b'GET /v1/status HTT')
  except OSError: pass
time.sleep(3)
kept=0
for s in held:
  s.setblocking(False)
  try: s.recv(1)
  except BlockingIOError: kept += 1
  except OSError: pass
print(kept,flush=True)
time.sleep(60)",
        instance.run_dir().join("api.sock").display()
    );
    let child = Command::new("python3")
        .args(["-c", &program])
        .uid(uid)
        .gid(uid)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    Ended(child)
}

fn kept(crowd: &mut Ended) -> u32 {
    let mut line = String::new();
    let out = crowd.0.stdout.take().unwrap();
    BufReader::new(out).read_line(&mut line).unwrap();
    line.trim().parse().unwrap()
}

#[test]
fn a_crowd_of_idle_connections_keeps_root_from_nothing() {
    let instance = Instance::start().unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(instance.folder(), mode).unwrap();
    let mut one = crowd(&instance, 4242, 200);
    assert_eq!(kept(&mut one), 32, "one user's share");
    assert_eq!(instance.say(&["status"]).unwrap().code, 0);
    // The one that is too many is told so.
    let own = instance.folder().join("bulkhead");
    std::fs::copy(program("bulkhead"), &own).unwrap();
    let stranger = |uid: u32| {
        let mut command = Command::new(&own);
        let socket = instance.run_dir().join("api.sock");
        command.uid(uid).arg("--socket").arg(socket).arg("status");
        Said::of(&mut command).unwrap()
    };
    let said = stranger(4242);
    assert!(
        said.code == 1 && said.err.contains("too many connections"),
        "{said:?}"
    );
    // Many users together fill what is not reserved, and each makes room for the next.
    let mut many: Vec<Ended> = (1..12).map(|n| crowd(&instance, 4242 + n, 40)).collect();
    let all: u32 = many.iter_mut().map(kept).sum();
    assert!((150..=256 - 32).contains(&all), "{all} of all users' share");
    for _ in 0..5 {
        let begun = Instant::now();
        assert_eq!(instance.say(&["status"]).unwrap().code, 0);
        assert!(begun.elapsed() < Duration::from_secs(6));
    }
    // Who comes and asks is answered (that it may not), though all places are taken.
    for uid in 5000..5010 {
        assert_eq!(stranger(uid).code, 4);
    }
    // And who left makes room.
    drop(one);
    drop(many);
    assert!(instance.until(Duration::from_secs(3), |_| stranger(4242).code == 4));
}

#[test]
fn a_second_daemon_is_told_who_runs_and_the_first_goes_on() {
    let tenants = TwoTenants::default();
    let instance = Instance::start().unwrap();
    instance.apply(&tenants.spec).unwrap();
    let pings = || {
        tenants
            .sh("red", "app1", "ping -n -c 1 -W 1 10.1.1.10")
            .unwrap()
            .ok()
    };
    assert!(instance.until(Duration::from_secs(3), |_| pings()));
    let elsewhere = instance.folder().join("elsewhere");
    let state = instance.folder().join("state");
    let another = format!("another Bulkhead (pid {})", instance.keeper());
    let file = instance.folder().join("file");
    std::fs::write(&file, "").unwrap();
    for (run, state, why) in [
        (instance.run_dir(), elsewhere.clone(), &another[..]),
        (elsewhere.clone(), state, &another),
        (file.clone(), elsewhere.clone(), "give another --run-dir"),
        (elsewhere, file, "give another --state-dir"),
    ] {
        let mut second = Command::new(program("bulkhead"));
        second
            .args(["up", "--detach", "--run-dir"])
            .arg(&run)
            .arg("--state-dir")
            .arg(&state);
        let said = Said::of(&mut second).unwrap();
        assert!(said.code == 1 && said.err.contains(why), "{said:?}");
        assert!(pings());
        instance.ask(&["status"]).unwrap();
    }
}

#[test]
fn a_detached_daemon_holds_nothing_of_its_callers() {
    let folder = e2e::private_folder("bulkhead-").unwrap();
    let bulkhead = program("bulkhead");
    // A relative run directory, as a person types it.
    let mut up = Command::new(&bulkhead);
    up.current_dir(&folder)
        .args(["up", "--detach", "--run-dir", "run", "--state-dir", "state"]);
    let mut up = up
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (sender, read) = std::sync::mpsc::channel();
    let (mut out, mut err) = (up.stdout.take().unwrap(), up.stderr.take().unwrap());
    std::thread::spawn(move || {
        let mut text = String::new();
        let _ = out.read_to_string(&mut text);
        let _ = err.read_to_string(&mut text);
        let _ = sender.send(text);
    });
    // The end of both pipes, though the daemon goes on.
    let said = read.recv_timeout(Duration::from_secs(15));
    let _ = up.wait();
    let log = folder.join("run/log");
    let logged = std::fs::read_to_string(&log).unwrap_or_default();
    let mut down = Command::new(&bulkhead);
    down.arg("--socket")
        .arg(folder.join("run/api.sock"))
        .args(["down", "--stop"]);
    let down = Said::of(&mut down).unwrap();
    let mode = std::fs::symlink_metadata(&log)
        .map(|m| std::os::unix::fs::PermissionsExt::mode(&m.permissions()));
    std::fs::remove_dir_all(&folder).unwrap();
    let said = said.expect("`up --detach` hangs on to its caller's pipes");
    assert!(
        said.contains("running, pid") && said.contains("run/log"),
        "{said}"
    );
    assert_eq!(mode.map(|mode| mode & 0o777).ok(), Some(0o600));
    assert!(!logged.contains("panicked"), "{logged}");
    assert!(down.ok(), "{down:?}");
}

/// Where a compartment's switch is, in each hierarchy that has one.
fn groups(instance: &Instance) -> Vec<String> {
    let switch = instance.pid("red").unwrap();
    let all = std::fs::read_to_string(format!("/proc/{switch}/cgroup")).unwrap();
    let own = all.lines().filter(|line| line.contains("compartment-"));
    own.map(str::to_owned).collect()
}

#[test]
fn two_instances_have_control_groups_of_their_own() {
    const SPEC: &str = "version: 1
tenants:
  - name: red
    subnets: [{ name: lan, prefixes: [10.9.0.0/24] }]
    endpoints: [{ name: a, subnet: lan, addresses: [10.9.0.10], attach: fifo }]
";
    let instances = [Instance::start().unwrap(), Instance::start().unwrap()];
    for instance in &instances {
        instance.apply(SPEC).unwrap();
        let limited = instance.until(Duration::from_secs(10), |i| !groups(i).is_empty());
        // Without cgroups there is nothing to have in common.
        if !limited {
            assert!(
                instance
                    .log()
                    .contains("memory is limited by rlimits alone")
            );
            return;
        }
    }
    let [one, other] = instances.each_ref().map(groups);
    for group in &one {
        assert!(!other.contains(group), "{one:?} {other:?}");
    }
}
