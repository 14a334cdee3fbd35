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
