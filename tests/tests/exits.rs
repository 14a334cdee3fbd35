//! How the command line ends: exit codes 1 to 6, each provoked for real, and the shape
//! of what it says with `--json`.

use e2e::frames::TwoTenants;
use e2e::{Instance, Said, program};
use serde_json::Value;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Ends with `code` for people and for programs; gives what programs are told.
fn ends(command: &mut dyn FnMut(&[&str]) -> Said, words: &[&str], code: i32) -> Value {
    let said = command(words);
    assert_eq!(said.code, code, "{words:?}: {said:?}");
    assert!(
        said.err.len() > 10 && !said.err.contains("panicked"),
        "{words:?}: {said:?}"
    );
    let json = [&["--json"], words].concat();
    let said = command(&json);
    assert_eq!(said.code, code, "{json:?}: {said:?}");
    let fault: Value = serde_json::from_str(&said.out)
        .unwrap_or_else(|error| panic!("{json:?}: {error}: {said:?}"));
    for key in ["code", "message", "whose", "help"] {
        assert!(fault[key].is_string(), "{json:?}: no {key} in {fault}");
    }
    fault
}

#[test]
fn each_way_to_end_has_its_code_and_says_why() {
    let tenants = TwoTenants::default();
    let instance = Instance::start().unwrap();
    instance.apply(&tenants.spec).unwrap();
    let file = |name: &str, text: &str| {
        let path = instance.folder().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let mut here = |words: &[&str]| instance.say(words).unwrap();

    // 1: what was asked for is right, but cannot be.
    let missing = tenants
        .spec
        .replacen("make: true", "make: false", 1)
        .replacen(&tenants.name("red", "web1"), "bht-nowhere", 1);
    let missing = file("missing.yaml", &missing);
    let fault = ends(&mut here, &["apply", &missing], 1);
    assert_eq!(fault["where"]["line"], 8, "{fault}");
    assert!(
        fault["where"]["file"]
            .as_str()
            .unwrap()
            .ends_with("missing.yaml")
    );
    assert_eq!(
        ends(&mut here, &["why", "red/nobody"], 1)["code"],
        "not-found"
    );

    // 2: wrong usage, a bad spec.
    let bad = file("bad.yaml", "version: 1\ntenants:\n  - nam: red\n");
    let fault = ends(&mut here, &["apply", &bad], 2);
    let findings = fault["findings"].as_array().unwrap();
    let unknown = findings
        .iter()
        .find(|f| f["code"] == "unknown-key")
        .unwrap();
    assert_eq!(
        (&unknown["where"]["line"], &unknown["where"]["column"]),
        (&3.into(), &5.into())
    );
    ends(&mut here, &["plan", "/nowhere/spec.yaml"], 2);
    ends(
        &mut here,
        &["capture", "--filter", "sideways", "-w", "/dev/null"],
        2,
    );
    assert_eq!(here(&["sideways"]).code, 2);
    assert_eq!(here(&["why", "red"]).code, 2);

    // 3: nobody there.
    let nowhere = instance.folder().join("nowhere.sock");
    let mut away = |words: &[&str]| {
        let mut command = Command::new(program("bulkhead"));
        Said::of(command.arg("--socket").arg(&nowhere).args(words)).unwrap()
    };
    assert_eq!(ends(&mut away, &["status"], 3)["code"], "not-running");
    // A daemon's own socket is nowhere else.
    let fault = ends(&mut away, &["up", "--run-dir", "/proc/none"], 2);
    let message = fault["message"].as_str().unwrap();
    assert!(message.contains("/proc/none/api.sock, not "), "{message}");
    // A spec with errors is one whoever runs.
    ends(&mut away, &["apply", &bad], 2);

    // 4: another user may neither look nor change.
    let open = |path: &Path| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(path, mode).unwrap();
    };
    open(instance.folder());
    let own = instance.folder().join("bulkhead");
    std::fs::copy(program("bulkhead"), &own).unwrap();
    let good = file("good.yaml", &tenants.spec);
    let mut stranger = |words: &[&str]| {
        let mut command = Command::new(&own);
        command
            .uid(4242)
            .gid(4242)
            .arg("--socket")
            .arg(instance.run_dir().join("api.sock"));
        Said::of(command.args(words)).unwrap()
    };
    for words in [&["status"][..], &["apply", &good], &["down"], &["up"]] {
        let fault = ends(&mut stranger, words, 4);
        assert_eq!(
            (&fault["code"], &fault["whose"]),
            (&"denied".into(), &"user".into())
        );
    }

    let words = ["run", "--endpoint", "red/web1", "--", "true"];
    let fault = ends(&mut stranger, &words, 4);
    let help = fault["help"].as_str().unwrap();
    assert!(help.contains("takes root on its host"), "{fault}");

    // 5: a host that cannot do what Bulkhead needs.
    let line = format!(
        "echo 0 > /proc/sys/user/max_user_namespaces && exec {} doctor",
        program("bulkhead").display()
    );
    let said = Said::of(Command::new("unshare").args(["-Ur", "sh", "-c", &line])).unwrap();
    assert_eq!(said.code, 5, "{said:?}");
    assert!(
        said.out.contains("REFUSED: without user namespaces"),
        "{said:?}"
    );
    let line = line + " --json";
    let said = Said::of(Command::new("unshare").args(["-Ur", "sh", "-c", &line])).unwrap();
    let told: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((said.code, &told["refused"]), (5, &Value::Bool(true)));
    // A daemon that is not root has no circuits, which a plan says as well.
    let rootless = Instance::start_with(&["--rootless"]).unwrap();
    let circuits = "version: 1\ntenants: [{name: red, subnets: [{name: lan, prefixes: [10.1.1.0/24]}], endpoints: [{name: web, subnet: lan, attach: circuits}]}]\n";
    let circuits = file("circuits.yaml", circuits);
    let mut there = |words: &[&str]| rootless.say(words).unwrap();
    for verb in ["plan", "apply"] {
        let fault = ends(&mut there, &[verb, &circuits], 5);
        assert_eq!(fault["code"], "host", "{fault}");
    }

    // 6: the answer is no, which is no error.
    let words = ["--json", "explain", "red/app1", "blue/app1", "tcp", "80"];
    let said = here(&words);
    let told: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((said.code, &told["allowed"]), (6, &Value::Bool(false)));
    assert_eq!(
        here(&["explain", "red/app1", "red/web1", "tcp", "80"]).code,
        0
    );

    // 0, and a folder for manual pages is made.
    let pages = instance.folder().join("man/man1");
    assert_eq!(here(&["man", pages.to_str().unwrap()]).code, 0);
    assert!(pages.join("bulkhead.1").is_file());
    assert_eq!(here(&["status"]).code, 0);
}
