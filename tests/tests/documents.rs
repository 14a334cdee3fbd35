//! What the documents say is there: verbs, options, specs. That the tests and guards they name are
//! there is `cargo xtask check`.

use e2e::program;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn text(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Code spans outside fenced blocks, each on one line however it was wrapped.
fn spans(text: &str) -> Vec<String> {
    let mut fenced = false;
    let prose: Vec<&str> = text
        .lines()
        .filter(|line| {
            let fence = line.starts_with("```");
            fenced ^= fence;
            !fence && !fenced
        })
        .collect();
    prose
        .join("\n")
        .split('`')
        .skip(1)
        .step_by(2)
        .map(|span| span.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect()
}

/// The lines of the fenced blocks in this language.
fn fenced(text: &str, language: &str) -> Vec<String> {
    text.split(&format!("```{language}\n"))
        .skip(1)
        .map(|rest| rest.split("\n```").next().unwrap_or_default().to_owned() + "\n")
        .collect()
}

/// What follows `bulkhead ` in a line of code, up to a comment, a pipe or another's words.
fn calls(code: &str) -> Vec<Vec<String>> {
    let code = code.replace("\\\n", " ");
    let mut found = Vec::new();
    for line in code.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        for (i, word) in words.iter().enumerate() {
            if word.trim_start_matches('(') == "bulkhead" {
                found.push(
                    words[i + 1..]
                        .iter()
                        .take_while(|w| {
                            !["--", "|", ">", ";", "&&"].contains(w) && !w.starts_with('#')
                        })
                        .map(|w| w.trim_matches(['[', ']', ',', ')']).to_owned())
                        .collect(),
                );
            }
        }
    }
    found.retain(|words: &Vec<String>| !words.is_empty());
    found
}

fn help(verb: &str) -> Option<String> {
    let output = Command::new(program("bulkhead"))
        .args([verb, "--help"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    output
        .status
        .success()
        .then(|| String::from_utf8(output.stdout).unwrap())
}

#[test]
fn every_command_in_the_documents_is_one() {
    let mut helps: BTreeMap<String, Option<String>> = BTreeMap::new();
    let mut wrong = Vec::new();
    for file in [
        "README.md",
        "docs/operating.md",
        "docs/benching.md",
        "docs/circuits.md",
        "docs/circuits-rings.md",
        "docs/circuits-differences.md",
        "docs/circuits-figures.md",
    ] {
        let document = text(file);
        let mut code = spans(&document);
        code.extend(fenced(&document, "sh"));
        let calls: Vec<Vec<String>> = code.iter().flat_map(|c| calls(c)).collect();
        assert!(!calls.is_empty(), "{file} names no command");
        for words in calls {
            let mut words = words.iter();
            let Some(verb) = words.next() else { continue };
            if verb.starts_with('-') || verb.chars().all(|c| c.is_ascii_uppercase()) {
                continue;
            }
            let mut verb_help = helps
                .entry(verb.clone())
                .or_insert_with(|| help(verb))
                .clone();
            // A bench has options of its own.
            if let ("bench", Some(bench)) = (verb.as_str(), words.clone().next())
                && bench.chars().all(|c| c.is_ascii_lowercase())
            {
                let output = Command::new(program("bulkhead"))
                    .args(["bench", bench, "--help"])
                    .output()
                    .unwrap();
                verb_help = output
                    .status
                    .success()
                    .then(|| String::from_utf8(output.stdout).unwrap());
            } else if verb == "bench" {
                continue;
            }
            let Some(verb_help) = verb_help else {
                wrong.push(format!("{file}: `bulkhead {verb}` is no verb"));
                continue;
            };
            wrong.extend(
                words
                    .filter(|w| w.starts_with('-') && !has_option(&verb_help, w))
                    .map(|w| format!("{file}: `bulkhead {verb}` has no {w}")),
            );
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn has_option(help: &str, option: &str) -> bool {
    help.split(|c: char| !c.is_ascii_alphanumeric() && c != '-')
        .any(|word| word == option)
}

fn is_a_spec(name: &str, yaml: &str) -> Result<(), String> {
    spec::parse(name, yaml.as_bytes())
        .map(|_| ())
        .map_err(|errors| errors.to_string())
}

#[test]
fn every_spec_in_the_documents_is_good() {
    let mut count = 0;
    for file in ["README.md", "docs/spec.md", "docs/operating.md"] {
        for yaml in fenced(&text(file), "yaml") {
            is_a_spec(file, &yaml).unwrap_or_else(|e| panic!("{e}"));
            count += 1;
        }
    }
    assert!(count >= 2, "README.md and docs/spec.md show one each");
}

/// Its pieces are of one tenant, `red`, and of who accepts from it.
#[test]
fn every_piece_of_a_spec_about_circuits_is_good() {
    let pieces = fenced(&text("docs/circuits.md"), "yaml").concat();
    let lines = |begin: &str| -> String {
        let lines = pieces.lines().filter(|line| line.trim().starts_with(begin));
        lines
            .map(|line| format!("      {}\n", line.trim()))
            .collect()
    };
    let (endpoints, offers, accepts) =
        (lines("- { "), lines("- {name: db"), lines("- {name: reds"));
    let found = [&endpoints, &offers, &accepts].map(|it| it.lines().count());
    let all = pieces.lines().filter(|line| line.trim().starts_with("- {"));
    assert_eq!(found.iter().sum::<usize>(), all.count(), "{pieces}");
    assert!(found[0] >= 5 && found[1..] == [1, 1], "{pieces}");
    let spec = format!(
        "version: 1
tenants:
  - name: red
    subnets: [{{ name: lan, prefixes: [10.1.1.0/24] }}]
    endpoints:
{endpoints}    offers:
{offers}  - name: blue
    subnets: [{{ name: lan, prefixes: [10.1.1.0/24] }}]
    endpoints: [{{ name: app, subnet: lan, addresses: [10.1.1.10], attach: circuits }}]
    accepts:
{accepts}"
    );
    is_a_spec("docs/circuits.md", &spec).unwrap_or_else(|e| panic!("{e}\n{spec}"));
}

#[test]
fn every_example_is_good() {
    let mut count = 0;
    for entry in std::fs::read_dir(root().join("examples")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "yaml") {
            let name = path.display().to_string();
            let yaml = std::fs::read_to_string(&path).unwrap();
            is_a_spec(&name, &yaml).unwrap_or_else(|e| panic!("{e}"));
            count += 1;
        }
    }
    assert!(count >= 5, "only {count} examples");
}
