//! `bulkhead`: the command line, a client of the controller's API.
#![expect(
    clippy::result_large_err,
    reason = "a trouble is made once a run, and ends it"
)]

mod args;
mod client;
mod daemon;
mod demo;
mod exit;
mod table;
#[cfg(test)]
mod tests;
mod verbs;

use args::{Cli, Verb};
use clap::{CommandFactory, Parser};
use client::Client;
use exit::{Exit, Trouble};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let words = words(std::env::args_os());
    let cli = match Cli::try_parse_from(&words) {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() && asks_for_json(&words) => {
            let trouble = Trouble::of_words(&error);
            trouble.show(true);
            return trouble.exit.into();
        }
        Err(error) => error.exit(),
    };
    let json = cli.json;
    let built = has_descriptors().and_then(|()| {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build()
    });
    let runtime = match built {
        Ok(runtime) => runtime,
        Err(error) => {
            Trouble::from(error).show(json);
            return Exit::Failed.into();
        }
    };
    match runtime.block_on(perform(cli)) {
        Ok(exit) => exit.into(),
        Err(trouble) => {
            trouble.show(json);
            trouble.exit.into()
        }
    }
}

/// Whether `--json` is among them, who are not understood; what follows `--` is another command's.
fn asks_for_json(words: &[OsString]) -> bool {
    let mut own = words.iter().skip(1).take_while(|word| *word != "--");
    own.any(|word| word == "--json")
}

/// As many more can be open as a runtime has for itself, which ends by a panic where it has none for signals.
fn has_descriptors() -> std::io::Result<()> {
    const OWN: usize = 6;
    let some = (0..OWN).map(|_| std::io::stderr().as_fd().try_clone_to_owned());
    some.collect::<Result<Vec<_>, _>>().map(drop)
}

/// As `bulkhead-oci` it is a runtime, and all that follows is one's arguments.
fn words(mut given: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let name = given.next().unwrap_or_default();
    let own = match Path::new(&name).file_name() {
        Some(file) if file == "bulkhead-oci" => vec![name, "oci".into(), "--".into()],
        _ => vec![name],
    };
    own.into_iter().chain(given).collect()
}

async fn perform(cli: Cli) -> Result<Exit, Trouble> {
    let client = Client::new(&cli.socket).with_token(token(&cli)?);
    let json = cli.json;
    match cli.verb {
        Verb::Up(up) => verbs::up::up(&up, &cli.socket, json).await,
        Verb::Plan(spec) => verbs::change::plan(&spec, &client, json).await,
        Verb::Apply(spec) => verbs::change::apply(&spec, &client, json).await,
        Verb::Down(down) => verbs::change::down(&down, &client, &cli.socket, json).await,
        Verb::Release(release) => verbs::change::release(&release, &client, json).await,
        Verb::Revoke(revoke) => verbs::tenants::revoke(&revoke, &client, json).await,
        Verb::Token(token) => verbs::tenants::token(&token, &client, json).await,
        Verb::Audit(audit) => verbs::tenants::audit(&audit, &client, json).await,
        Verb::Status => verbs::status::status(&client, json).await,
        Verb::Flows(flows) => verbs::flows::flows(&flows, &client, json).await,
        Verb::Circuits(circuits) => verbs::flows::circuits(&circuits, &client, json).await,
        Verb::Rules(rules) => verbs::flows::rules(&rules, &client, json).await,
        Verb::Usage(usage) => verbs::usage::usage(&usage, &client, json).await,
        Verb::Why(endpoint) => verbs::look::why(&endpoint.endpoint, &client, json).await,
        Verb::Explain(explain) => verbs::explain::explain(&explain, &client, json).await,
        Verb::Dump(dump) => verbs::look::dump(&dump, &client, json).await,
        Verb::Verify(verify) => verbs::look::verify(&verify, &client, json).await,
        Verb::Events(events) => verbs::events::events(&events, &client, json).await,
        Verb::Top(top) => verbs::top::top(&top, &client, json).await,
        Verb::Run(run) => verbs::run::run(&run, &client, &cli.socket).await,
        Verb::Oci(oci) => verbs::oci::oci(&oci, &client, &cli.socket).await,
        Verb::Trace(trace) => verbs::trace::trace(&trace, &client, json).await,
        Verb::Capture(capture) => verbs::capture::capture(&capture, &client).await,
        Verb::Demo(demo) => demo::demo(&demo).await,
        Verb::Attack(attack) => demo::actor::attack(&attack),
        Verb::Listen(listen) => demo::actor::listen(&listen),
        Verb::Doctor => verbs::doctor::doctor(json),
        Verb::Bench(bench) => verbs::up::bench(&bench),
        Verb::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "bulkhead", &mut script);
            print(&script)
        }
        Verb::Man { folder } => {
            std::fs::create_dir_all(&folder)
                .and_then(|()| clap_mangen::generate_to(Cli::command(), &folder))
                .map_err(|error| {
                    Trouble::new(
                        Exit::Failed,
                        format!("{}: {error}", folder.display()),
                        "name a folder that this user may write in",
                    )
                })?;
            Ok(Exit::Done)
        }
    }
}

/// The token to ask with, by --token-file or BULKHEAD_TOKEN.
fn token(cli: &Cli) -> Result<Option<String>, Trouble> {
    /// A token is much shorter: whatever is longer is another file.
    const LONGEST: u64 = 4096;
    let text = match &cli.token_file {
        Some(file) => {
            use std::io::Read;
            let mut text = String::new();
            let read = std::fs::File::open(file)
                .and_then(|file| file.take(LONGEST).read_to_string(&mut text));
            read.map_err(|error| {
                let sentence = format!("{}: {error}", file.display());
                Trouble::new(
                    Exit::Usage,
                    sentence,
                    "name the file that a token was written to",
                )
            })?;
            text
        }
        None => match std::env::var("BULKHEAD_TOKEN") {
            Ok(text) => text,
            Err(std::env::VarError::NotPresent) => return Ok(None),
            Err(error) => {
                let sentence = format!("BULKHEAD_TOKEN: {error}");
                return Err(Trouble::new(Exit::Usage, sentence, "is it a token?"));
            }
        },
    };
    let text = text.trim();
    if text.is_empty() || !text.chars().all(|c| c.is_ascii_graphic()) {
        return Err(Trouble::new(
            Exit::Usage,
            match &cli.token_file {
                Some(file) => format!("{}: what should be a token is none", file.display()),
                None => "BULKHEAD_TOKEN: what should be a token is none".to_owned(),
            },
            "`bulkhead token create TENANT` prints one, a single word",
        ));
    }
    Ok(Some(text.to_owned()))
}

/// Writes to standard output; a reader that went away is no failure.
fn print(bytes: &[u8]) -> Result<Exit, Trouble> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(Exit::Done),
    }
}
