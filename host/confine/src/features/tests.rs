use super::{Found, features};

#[test]
fn every_feature_says_what_is_lost_and_what_was_seen() {
    let all = features();
    for feature in &all {
        assert!(!feature.name.is_empty() && !feature.used_by.is_empty());
        assert!(
            feature.found == Found::Yes || !feature.lost.is_empty(),
            "{feature:?}"
        );
        assert!(!feature.required || !feature.lost.is_empty(), "{feature:?}");
        println!("{:?} {}: {}", feature.found, feature.name, feature.detail);
    }
    let mut names: Vec<_> = all.iter().map(|feature| feature.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all.len());
}

#[test]
fn what_is_required_and_missing_refuses() {
    let mut feature = features()
        .into_iter()
        .find(|f| f.name == "seccomp filters")
        .unwrap();
    assert!(feature.required);
    feature.found = Found::No;
    assert!(feature.refuses());
    feature.required = false;
    assert!(!feature.refuses());
}
