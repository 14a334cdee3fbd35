//! What the documents say is there: tests, verbs, options, guards, specs.

use e2e::program;
use std::collections::{BTreeMap, BTreeSet};
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

/// The tests that a span like `core/x/src/tests.rs: one, another` names.
fn named(span: &str) -> Option<(&str, Vec<&str>)> {
    let (file, names) = span.split_once(": ")?;
    file.ends_with(".rs")
        .then(|| (file, names.split(", ").collect()))
}

/// Whether the file has a test of this name: a function under `#[test]`, a row of the
/// list that a harness of its own runs, or a line of a macro that makes tests.
fn has_test(source: &str, name: &str) -> bool {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let row = format!("\"{name}\",");
    let function = format!("fn {name}(");
    let made = format!("{name}: ");
    lines.iter().enumerate().any(|(i, line)| {
        let above = || {
            lines[..i]
                .iter()
                .rev()
                .take_while(|l| l.starts_with(['#', '/']))
        };
        line.trim_start_matches("async ").starts_with(&function)
            && (above().any(|l| {
                ["#[test]", "#[tokio::test"]
                    .iter()
                    .any(|a| l.starts_with(a))
            }) || source.contains(&row))
            || line.starts_with(&made) && source.contains("macro_rules! reports")
    })
}

/// The promises by number, each with its text.
fn promises() -> BTreeMap<(u32, u32), String> {
    let specification = text("SPECIFICATION.md");
    let body = specification
        .split("\n## Invariants")
        .next()
        .unwrap_or_default();
    let mut found = BTreeMap::new();
    for paragraph in body.split("\n**").skip(1) {
        let (number, rest) = paragraph.split_once("**").unwrap();
        let (group, place) = number.split_once('.').unwrap();
        let key = (group.parse().unwrap(), place.parse().unwrap());
        let rest = rest.split("\n## ").next().unwrap_or_default();
        assert!(
            found.insert(key, rest.to_owned()).is_none(),
            "{number} is there twice"
        );
    }
    found
}

#[test]
fn every_promise_names_tests_that_exist_or_says_pending() {
    let promises = promises();
    assert!(promises.len() > 50, "only {} promises", promises.len());
    let mut missing = Vec::new();
    for ((group, place), promise) in &promises {
        let number = format!("{group}.{place}");
        if *place > 1 && !promises.contains_key(&(*group, place - 1)) {
            missing.push(format!("{number}: the one before is not there"));
        }
        let mut tests = 0;
        for span in spans(promise) {
            let Some((file, names)) = named(&span) else {
                continue;
            };
            tests += names.len();
            match std::fs::read_to_string(root().join(file)) {
                Err(error) => missing.push(format!("{number}: {file}: {error}")),
                Ok(source) => missing.extend(
                    names
                        .iter()
                        .filter(|name| !has_test(&source, name))
                        .map(|name| format!("{number}: {file}: no test {name}")),
                ),
            }
        }
        if tests == 0 && !promise.to_lowercase().contains("pending") {
            missing.push(format!("{number}: neither a test nor \"pending\""));
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn the_table_of_invariants_names_promises_and_guards_that_exist() {
    let promises = promises();
    let folder = std::fs::read_dir(root().join("tests/mutants.d")).unwrap();
    let mut guards = BTreeSet::new();
    for file in folder {
        let lines = std::fs::read_to_string(file.unwrap().path()).unwrap();
        guards.extend(
            lines
                .lines()
                .filter_map(|line| line.split_once(" | "))
                .map(|(guard, _)| guard.trim().to_owned()),
        );
    }
    let specification = text("SPECIFICATION.md");
    let (_, table) = specification.split_once("\n## Invariants").unwrap();
    let rows: Vec<Vec<&str>> = table
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| invariant"))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert_eq!(rows.len(), 8, "invariants 1-8");
    for row in rows {
        let [invariant, numbers, named] = row[..] else {
            panic!("not three columns: {row:?}")
        };
        for number in numbers.split(", ") {
            let (group, place) = number.split_once('.').unwrap();
            let key = (group.parse().unwrap(), place.parse().unwrap());
            assert!(
                promises.contains_key(&key),
                "{invariant}: no promise {number}"
            );
        }
        for guard in spans(named) {
            assert!(guards.contains(&guard), "{invariant}: no guard {guard}");
        }
    }
}

#[test]
fn security_refers_to_promises_that_exist() {
    let promises = promises();
    let security = text("SECURITY.md");
    let mut count = 0;
    for line in security
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| claim"))
    {
        let last = line
            .trim_matches('|')
            .split('|')
            .next_back()
            .unwrap_or_default();
        for number in last.split(", ").map(str::trim) {
            let Some((group, place)) = number.split_once('.') else {
                continue;
            };
            let key = (group.parse().unwrap(), place.parse().unwrap());
            assert!(
                promises.contains_key(&key),
                "SECURITY.md: no promise {number}"
            );
            count += 1;
        }
    }
    assert!(count > 0, "SECURITY.md refers to no promise");
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
