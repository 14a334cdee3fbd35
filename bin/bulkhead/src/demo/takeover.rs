//! The act in which a controller that was taken over hands the supervisor tables that nobody
//! proved: it says what a controller may say, by the controller's own socket.

use super::acts::{Score, compartment};
use super::say;
use super::stage::{Stage, finished};
use crate::exit::Trouble;
use crate::verbs::up::beside;
use std::process::Stdio;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// What it says, in this order: its word; what its answer begins with; for people.
const ANSWERS: [(&str, &str, &str); 5] = [
    ("unasked", "not proved: ", "it hands them to the supervisor"),
    (
        "verdict",
        "breaches: ",
        "it asks this host's verifier, whose verdict is",
    ),
    ("refuted", "not proved: ", "it hands them over once more"),
    (
        "forged",
        "bad message: ",
        "it says in the verifier's name that they are proved",
    ),
    ("again", "not proved: ", "and hands them over again"),
];

/// Has it try with the tables for `target` of a question for the verifier.
pub async fn taken_over(
    stage: &Stage,
    score: &mut Score,
    target: u32,
    bundle: &[u8],
) -> Result<(), Trouble> {
    let Ok(program) = beside("bulkhead-liar") else {
        say("     skipped: bulkhead-liar, a test program, is not installed; `make demo` has it");
        return Ok(());
    };
    let Some(controller) = stage.child("bulkhead-controller") else {
        score.line(false, "this host's controller is not found");
        return Ok(());
    };
    say(&format!(
        "     with this host's daemons: process {controller}, the controller, is taken over"
    ));
    let before = ["red", "blue"].map(|name| name.to_owned());
    let status = stage.status().await?;
    let switches = |status: &api::Status| {
        before.each_ref().map(|name| {
            let compartment = compartment(status, name);
            (compartment.pid, compartment.restarts)
        })
    };
    let then = switches(&status);
    let mut liar = Command::new(program)
        .args(["controller", &controller.to_string(), &target.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    if let Some(mut stdin) = liar.stdin.take() {
        stdin.write_all(bundle).await?;
    }
    let output = finished(liar.wait_with_output(), "bulkhead-liar controller").await?;
    let said = String::from_utf8_lossy(&output.stdout);
    if said.is_empty() {
        let why = String::from_utf8_lossy(&output.stderr);
        say(&format!(
            "     skipped: this host lends nobody the controller's socket: {}",
            why.trim()
        ));
        return stage.answers_again().await;
    }
    for (word, begins, tried) in ANSWERS {
        let answer = (said.lines())
            .find_map(|line| line.split_once('\t').filter(|(first, _)| *first == word))
            .map_or("no answer", |(_, answer)| answer);
        score.line(answer.starts_with(begins), &format!("{tried}: {answer}"));
    }
    // It is another process from here on, and knows from the store and the host what is.
    stage.answers_again().await?;
    let now = stage.status().await?;
    score.line(
        switches(&now) == then,
        &format!(
            "nothing of it was started: red's switch is process {} still, blue's {}",
            then[0].0, then[1].0
        ),
    );
    Ok(())
}
