//! Each test from end to end is named by a promise of SPECIFICATION.md. That what is named there
//! exists is a test of its own, `tests/tests/documents.rs`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Says which tests of tests/tests no promise names. Those that are run by hand or by others
/// (`#[ignore]`) need not be.
pub fn complete(root: &Path, wrong: &mut Vec<String>) {
    let specification = fs::read_to_string(root.join("SPECIFICATION.md")).unwrap_or_default();
    let named = named(&specification);
    for file in crate::shelves::rust_files(&root.join("tests/tests")) {
        let source = fs::read_to_string(&file).unwrap_or_default();
        let file = file.strip_prefix(root).unwrap_or(&file).display();
        for test in tests(&source) {
            if !named.contains(&format!("{file}: {test}")) {
                wrong.push(format!("SPECIFICATION.md: no promise names {file}: {test}"));
            }
        }
    }
}

/// What code spans like `tests/tests/x.rs: one, another` name, as `tests/tests/x.rs: one`.
fn named(specification: &str) -> BTreeSet<String> {
    let spans = specification.split('`').skip(1).step_by(2);
    let files = spans.filter_map(|span| span.split_once(".rs: "));
    files
        .flat_map(|(file, names)| names.split(',').map(move |name| (file, name.trim())))
        .map(|(file, name)| format!("{file}.rs: {name}"))
        .collect()
}

/// The names of a source's tests. One that a macro makes shows as the macro has it (`$name`), which
/// nothing names: such tests are written out here.
fn tests(source: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let (mut is_test, mut is_ignored) = (false, false);
    for line in source.lines().map(str::trim) {
        is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        is_ignored |= line.starts_with("#[ignore");
        if let Some((before, rest)) = line.split_once("fn ")
            && !line.starts_with("//")
            && ["", "async ", "pub "].contains(&before)
        {
            if is_test && !is_ignored {
                found.extend(rest.split(['(', '<']).next());
            }
            (is_test, is_ignored) = (false, false);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_found_and_so_is_what_names_them() {
        let source = "/// fn no(\n#[test]\n// Why.\nfn one() {\n}\nfn none() {}\n#[test]\n#[ignore = \"by hand\"]\nfn two() {}\n#[tokio::test]\nasync fn three() {}\n    #[test]\n    fn $name() {}\n";
        assert_eq!(tests(source), ["one", "three", "$name"]);
        let named = named("**1.1** So.\n`a/b.rs: one,\nthree`\n`c.rs` `x`\n");
        let all: Vec<&str> = named.iter().map(String::as_str).collect();
        assert_eq!(all, ["a/b.rs: one", "a/b.rs: three"]);
    }
}
