//! SPECIFICATION.md names tests and guards, and SECURITY.md its promises: each that is named is
//! there, and each test from end to end is named by a promise.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// A promise's number: 14.25 is (14, 25).
type Number = (u32, u32);

/// Says what is named and not there, and which tests of tests/tests no promise names. Those that
/// are run by hand or by others (`#[ignore]`) need not be.
pub fn complete(root: &Path, wrong: &mut Vec<String>) {
    let text = |file: &str| fs::read_to_string(root.join(file)).unwrap_or_default();
    let (specification, security) = (text("SPECIFICATION.md"), text("SECURITY.md"));
    let (body, invariants) = specification
        .split_once("\n## Invariants")
        .unwrap_or((&specification, ""));
    let promises = promises(body, wrong);
    tested(
        &promises,
        |file| fs::read_to_string(root.join(file)).ok(),
        wrong,
    );
    let guards = crate::mutants::listed(root).unwrap_or_default();
    invariant(
        invariants,
        &promises,
        |guard| guards.contains_key(guard),
        wrong,
    );
    claimed(&security, &promises, wrong);
    let named: BTreeSet<(&str, &str)> = named(&specification).collect();
    for path in crate::shelves::rust_files(&root.join("tests/tests")) {
        let source = fs::read_to_string(&path).unwrap_or_default();
        let file = path.strip_prefix(root).unwrap_or(&path).display();
        for (test, is_ignored) in tests(&source) {
            if !is_ignored && !named.contains(&(file.to_string().as_str(), test)) {
                wrong.push(format!("SPECIFICATION.md: no promise names {file}: {test}"));
            }
        }
    }
}

/// The promises by number, each with its text.
fn promises<'a>(body: &'a str, wrong: &mut Vec<String>) -> BTreeMap<Number, &'a str> {
    let mut found = BTreeMap::new();
    for paragraph in body.split("\n**").skip(1) {
        let Some((number, rest)) = paragraph.split_once("**") else {
            continue;
        };
        let rest = rest.split("\n## ").next().unwrap_or_default();
        match parsed(number) {
            None => wrong.push(format!("SPECIFICATION.md: {number} is no number")),
            Some(key) if found.insert(key, rest).is_some() => {
                wrong.push(format!("SPECIFICATION.md: {number} is there twice"));
            }
            Some(_) => {}
        }
    }
    for (group, place) in found.keys().filter(|(_, place)| *place > 1) {
        if !found.contains_key(&(*group, place - 1)) {
            wrong.push(format!(
                "SPECIFICATION.md: {group}.{place}: the one before is not there"
            ));
        }
    }
    if found.is_empty() {
        wrong.push("SPECIFICATION.md: no promises".to_owned());
    }
    found
}

fn parsed(number: &str) -> Option<Number> {
    let (group, place) = number.split_once('.')?;
    Some((group.parse().ok()?, place.parse().ok()?))
}

/// Each promise names tests, which are there, or says that they are pending.
fn tested(
    promises: &BTreeMap<Number, &str>,
    source: impl Fn(&str) -> Option<String>,
    wrong: &mut Vec<String>,
) {
    let mut sources = BTreeMap::new();
    for ((group, place), promise) in promises {
        let mut count = 0;
        for (file, name) in named(promise) {
            count += 1;
            match sources.entry(file).or_insert_with(|| source(file)) {
                None => wrong.push(format!("SPECIFICATION.md: {group}.{place}: no {file}")),
                Some(source) if !has_test(source, name) => wrong.push(format!(
                    "SPECIFICATION.md: {group}.{place}: {file}: no test {name}"
                )),
                Some(_) => {}
            }
        }
        if count == 0 && !promise.to_lowercase().contains("pending") {
            wrong.push(format!(
                "SPECIFICATION.md: {group}.{place}: neither a test nor \"pending\""
            ));
        }
    }
}

/// The table of invariants names promises and guards.
fn invariant(
    table: &str,
    promises: &BTreeMap<Number, &str>,
    is_guard: impl Fn(&str) -> bool,
    wrong: &mut Vec<String>,
) {
    let mut count = 0;
    for row in rows(table).filter(|row| !row.starts_with(&["invariant"])) {
        let [name, numbers, guards] = row[..] else {
            wrong.push(format!("SPECIFICATION.md: invariants: {row:?}"));
            continue;
        };
        count += 1;
        for number in numbers.split(", ") {
            if !parsed(number).is_some_and(|key| promises.contains_key(&key)) {
                wrong.push(format!("SPECIFICATION.md: {name}: no promise {number}"));
            }
        }
        for guard in spans(guards).filter(|guard| !is_guard(guard)) {
            wrong.push(format!("SPECIFICATION.md: {name}: no guard {guard}"));
        }
    }
    if count != 8 {
        wrong.push(format!("SPECIFICATION.md: {count} invariants, and not 8"));
    }
}

/// The claims of SECURITY.md rest on promises.
fn claimed(security: &str, promises: &BTreeMap<Number, &str>, wrong: &mut Vec<String>) {
    let mut count = 0;
    for row in rows(security).filter(|row| !row.starts_with(&["claim"])) {
        let last = row.last().copied().unwrap_or_default();
        for key in last.split(", ").filter_map(parsed) {
            count += 1;
            if !promises.contains_key(&key) {
                wrong.push(format!("SECURITY.md: no promise {}.{}", key.0, key.1));
            }
        }
    }
    if count == 0 {
        wrong.push("SECURITY.md refers to no promise".to_owned());
    }
}

/// The rows of a text's tables, by their columns.
fn rows(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines()
        .filter(|line| line.starts_with("| "))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
}

fn spans(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// What code spans like `core/x/src/tests.rs: one, another` name: each test with its file.
fn named(text: &str) -> impl Iterator<Item = (&str, &str)> {
    spans(text)
        .filter_map(|span| span.split_once(": "))
        .filter(|(file, _)| file.ends_with(".rs"))
        .flat_map(|(file, names)| names.split(',').map(move |name| (file, name.trim())))
}

/// Whether the source has a test of this name: a function under `#[test]`, a row of the list that a
/// harness of its own runs, or a line of a macro that makes tests.
fn has_test(source: &str, name: &str) -> bool {
    let function = format!("fn {name}(");
    tests(source).iter().any(|(test, _)| *test == name)
        || source.contains(&format!("\"{name}\",")) && source.contains(&function)
        || source.contains("macro_rules! reports")
            && source
                .lines()
                .any(|line| line.trim().starts_with(&format!("{name}: ")))
}

/// The names of a source's tests, and which of them are ignored. One that a macro makes shows as the macro has it (`$name`), which
/// nothing names: such tests are written out.
fn tests(source: &str) -> Vec<(&str, bool)> {
    let mut found = Vec::new();
    let (mut is_test, mut is_ignored) = (false, false);
    for line in source.lines().map(str::trim) {
        is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        is_ignored |= line.starts_with("#[ignore");
        if let Some((before, rest)) = line.split_once("fn ")
            && !line.starts_with("//")
            && ["", "async ", "pub "].contains(&before)
        {
            if is_test {
                let name = rest.split(['(', '<']).next().unwrap_or_default();
                found.push((name, is_ignored));
            }
            (is_test, is_ignored) = (false, false);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "/// fn no(\n#[test]\n// Why.\nfn one() {\n}\nfn none() {}\n#[test]\n#[ignore = \"by hand\"]\nfn two() {}\n#[tokio::test]\nasync fn three() {}\n    #[test]\n    fn $name() {}\n";

    #[test]
    fn tests_are_found_and_so_is_what_names_them() {
        let found = [
            ("one", false),
            ("two", true),
            ("three", false),
            ("$name", false),
        ];
        assert_eq!(tests(SOURCE), found);
        let all: Vec<_> = named("**1.1** So.\n`a/b.rs: one,\nthree`\n`c.rs` `x: y`\n").collect();
        assert_eq!(all, [("a/b.rs", "one"), ("a/b.rs", "three")]);
        let listed = "fn row() {}\n    (\"row\", row),\nfn no() {}\n";
        assert!(has_test(listed, "row") && !has_test(listed, "no"));
        let made = "macro_rules! reports\n    made: 1,\n";
        assert!(has_test(made, "made") && !has_test(made, "other"));
    }

    fn said(specification: &str, security: &str) -> Vec<String> {
        let mut wrong = Vec::new();
        let (body, table) = specification.split_once("\n## Invariants").unwrap();
        let promises = promises(body, &mut wrong);
        let source = |file: &str| (file == "a.rs").then(|| SOURCE.to_owned());
        tested(&promises, source, &mut wrong);
        invariant(table, &promises, |guard| guard == "held", &mut wrong);
        claimed(security, &promises, &mut wrong);
        wrong
    }

    #[test]
    fn what_is_named_and_not_there_is_said() {
        let row = "| an | 1.1, 1.2 | `held` |\n";
        let good = format!(
            "\n**1.1** So.\n`a.rs: one, three`\n\n**1.2** Pending.\n\n## Invariants\n| invariant | promises | guards |\n|---|---|---|\n{}",
            row.repeat(8)
        );
        let security = "| claim | by what | promises |\n| a | b | 1.2, none |\n";
        assert_eq!(said(&good, security), [""; 0]);
        for (from, to, expected) in [
            ("one, three", "one, none", "1.1: a.rs: no test none"),
            ("a.rs: one", "b.rs: one", "1.1: no b.rs"),
            ("Pending", "So", "1.2: neither"),
            ("**1.2**", "**1.1**", "1.1 is there twice"),
            ("**1.2**", "**1.3**", "1.3: the one before"),
            ("`held`", "`lost`", "an: no guard lost"),
            ("| 1.1,", "| 2.1,", "an: no promise 2.1"),
            (row, "", "0 invariants"),
        ] {
            let wrong = said(&good.replace(from, to), security);
            assert!(wrong.iter().any(|it| it.contains(expected)), "{wrong:?}");
        }
        let wrong = said(&good, &security.replace("1.2", "1.7"));
        assert_eq!(wrong, ["SECURITY.md: no promise 1.7"]);
        let wrong = said(&good, "");
        assert_eq!(wrong, ["SECURITY.md refers to no promise"]);
    }
}
