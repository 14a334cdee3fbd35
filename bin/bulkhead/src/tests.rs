//! What users and scripts see of the command line.

use crate::args::Cli;
use clap::{CommandFactory, Parser};

#[test]
fn help() {
    let mut command = Cli::command().term_width(100);
    command.build();
    let mut text = command.render_long_help().to_string();
    for verb in command
        .get_subcommands_mut()
        .filter(|verb| !verb.is_hide_set())
    {
        let name = verb.get_name().to_owned();
        text += &format!("\n==== {name}\n{}", verb.render_long_help());
    }
    insta::assert_snapshot!(text);
}

#[test]
fn the_command_line_holds_together() {
    Cli::command().debug_assert();
}

#[test]
fn what_the_environment_says_is_demanded_by_no_usage_line() {
    let said = |words: &[&str]| {
        let error = Cli::try_parse_from(words).unwrap_err();
        error.render().to_string()
    };
    // Whatever it is set to where the tests are run.
    if std::env::var_os("BULKHEAD_SOCKET").is_none_or(|it| it != "/some.sock") {
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        again.args([
            "--exact",
            "tests::what_the_environment_says_is_demanded_by_no_usage_line",
        ]);
        let again = again
            .env("BULKHEAD_SOCKET", "/some.sock")
            .env("BULKHEAD_OCI_RUNTIME", "some")
            .output()
            .unwrap();
        assert!(again.status.success(), "{again:?}");
        return;
    }
    let text = said(&["bulkhead", "circuits", "cut"]);
    assert!(text.contains("Usage: bulkhead circuits cut <ID>"), "{text}");
    let text = said(&["bulkhead", "oci"]);
    assert!(!text.contains("--runtime"), "{text}");
    let cli = Cli::try_parse_from(["bulkhead", "status"]).unwrap();
    assert_eq!(cli.socket.to_str(), Some("/some.sock"));
    let cli = Cli::try_parse_from(["bulkhead", "status", "--socket", "/x.sock"]).unwrap();
    assert_eq!(cli.socket.to_str(), Some("/x.sock"));
}

#[test]
fn an_endpoint_is_two_names() {
    for (text, good) in [
        ("red/web1", true),
        ("red", false),
        ("/web1", false),
        ("red/", false),
        ("a/b/c", false),
    ] {
        assert_eq!(
            Cli::try_parse_from(["bulkhead", "why", text]).is_ok(),
            good,
            "{text}"
        );
    }
}

#[test]
fn bench_takes_whatever_comes() {
    assert!(Cli::try_parse_from(["bulkhead", "bench", "reboot", "--quick", "--json"]).is_ok());
}

#[test]
fn an_owner_who_could_never_be_let_in_is_refused_at_once() {
    for word in ["--owner", "--readers"] {
        assert!(Cli::try_parse_from(["bulkhead", "up", word, "1000"]).is_ok());
        assert!(Cli::try_parse_from(["bulkhead", "up", word, "65534"]).is_err());
    }
}
