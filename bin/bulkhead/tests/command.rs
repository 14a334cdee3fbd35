//! The command as a script has it.

use std::process::{Command, Output};

fn run(shell: &str, words: &[&str]) -> Output {
    let line = format!("{shell}; exec \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &line, env!("CARGO_BIN_EXE_bulkhead")]);
    command.args(words).output().unwrap()
}

#[test]
fn who_has_too_few_descriptors_is_told_so_in_a_line() {
    for most in 5..12 {
        let limit = format!("ulimit -n {most}");
        let output = run(&limit, &["--socket", "/nowhere/api.sock", "status"]);
        let said = String::from_utf8(output.stderr).unwrap();
        match output.status.code() {
            Some(1) => assert!(said.contains("raise `ulimit -n`"), "{most}: {said}"),
            code => assert!(code == Some(3) && most > 6, "{most}: {code:?}, {said}"),
        }
    }
}

#[test]
fn what_is_wrong_usage_is_an_object_too() {
    for (words, message) in [
        (
            &["status", "--jsn", "--json"][..],
            "unexpected argument '--jsn' found",
        ),
        (&["--json", "why", "red"], "'red'"),
        (&["--json", "explain"], "not provided: <FROM> <TO>"),
        (&["--json", "token"], "what to do is not said"),
        (&["--json", "circuits", "-n", "0"], "'0'"),
    ] {
        let output = run(":", words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert_eq!(output.stderr, b"", "{words:?}");
        let fault: api::Fault = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&*fault.code, fault.whose), ("usage", api::Whose::User));
        assert!(fault.message.contains(message), "{fault:?}");
        assert!(fault.help.contains("see `--help`"), "{fault:?}");
    }
    // Of people's, and of another command's.
    for words in [
        &["status", "--jsn"][..],
        &["run", "--jsn", "--", "ls", "--json"],
    ] {
        let output = run(":", words);
        assert_eq!((output.status.code(), &*output.stdout), (Some(2), &b""[..]));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.starts_with("error: unexpected argument '--jsn' found"));
    }
    // What is asked for is no error.
    let output = run(":", &["--json", "--help"]);
    assert!(output.status.success() && output.stdout.starts_with(b"Secure"));
}

#[test]
fn what_is_cut_is_a_circuit_and_nothing_is_listed() {
    for (words, says) in [
        (
            &["circuits", "--listeners", "cut", "1-7"][..],
            "`cut` cannot be used with --listeners",
        ),
        (
            &["circuits", "red/web", "cut", "1-7"],
            "`cut` cannot be used with TENANT/ENDPOINT",
        ),
        (&["circuits", "cut", "abc"], "`abc` is no id of a circuit"),
        (&["circuits", "cut", "3"], "`3` is no id of a circuit"),
    ] {
        let output = run(":", words);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(says), "{said}");
        assert_eq!(output.status.code(), Some(2), "{said}");
    }
    let output = run(
        ":",
        &["--socket", "/nowhere/api.sock", "circuits", "cut", "1-7"],
    );
    assert_eq!(output.status.code(), Some(3), "it is asked for");
}

#[test]
fn who_cannot_take_down_is_told_how_the_daemon_is_ended() {
    let folder = tempfile::tempdir().unwrap();
    // Nobody answers, and the lock says who would have to.
    let own = std::process::id();
    std::fs::write(folder.path().join("keeper.lock"), format!("{own}\n")).unwrap();
    let socket = folder.path().join("api.sock");
    let socket = socket.to_str().unwrap();
    let ends = format!("`kill {own}` ends it");
    for (words, told) in [(&["down", "--stop"][..], true), (&["down"], false)] {
        let output = run(":", &[&["--socket", socket], words].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{said}");
        assert_eq!(said.contains(&ends), told, "{said}");
    }
}
