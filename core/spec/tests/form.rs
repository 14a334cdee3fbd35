//! What is told at once: all of a spec's form, and then all of what refers to something.

use core_spec::parse;

#[test]
fn what_refers_to_something_is_checked_once_the_form_is_right() {
    const FORM: &str = "    colour: 1\n    weight: much\n";
    let text = format!(
        "version: 1\ntenants:\n  - name: red\n{FORM}    subnets: [{{name: web, prefixes: [10.1.1.0/24]}}]\n    \
         endpoints: [{{name: a, subnet: wbe}}]\n    routes: [{{to: 10.9.0.0/16, via: nobody}}]\n"
    );
    let codes = |text: &str| -> Vec<&str> {
        let errors = parse("spec.yaml", text.as_bytes()).expect_err("a bad spec was taken");
        let findings = errors.findings.iter();
        findings.map(|finding| finding.code).collect()
    };
    // What is missed may be what did not read.
    assert_eq!(codes(&text), ["unknown-key", "value"]);
    assert_eq!(
        codes(&text.replace(FORM, "")),
        ["missing-reference", "missing-reference"]
    );
}
