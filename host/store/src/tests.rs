use super::*;
use std::fs::OpenOptions;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

fn file(path: &Path) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .unwrap()
}

fn open(file: File) -> Result<Store, StoreError> {
    Store::open(file, &tempfile::tempfile().unwrap())
}

fn applied(epoch: u64) -> Applied {
    Applied {
        epoch,
        spec: "version: 1\n".into(),
        source: "a.yaml".into(),
        digest: "00".into(),
        ids: "{}".into(),
        ..Applied::default()
    }
}

fn entry(epoch: u64) -> HistoryEntry {
    HistoryEntry {
        epoch,
        uid: 7,
        outcome: "applied".into(),
        ..HistoryEntry::default()
    }
}

#[test]
fn what_is_written_is_there_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("controller.redb");
    let mut store = open(file(&path)).unwrap();
    assert_eq!(store.applied().unwrap(), None);
    let undertaking = Undertaking {
        epoch: 1,
        uid: 7,
        ..Undertaking::default()
    };
    store.undertake(&undertaking).unwrap();
    drop(store);

    let mut store = open(file(&path)).unwrap();
    assert_eq!(store.undertaking().unwrap(), Some(undertaking));
    assert_eq!(
        store.applied().unwrap(),
        None,
        "an undertaking is not yet applied"
    );
    store.conclude(&applied(1), &entry(1), &[]).unwrap();
    drop(store);

    let mut store = open(file(&path)).unwrap();
    assert_eq!(store.undertaking().unwrap(), None);
    assert_eq!(store.applied().unwrap(), Some(applied(1)));
    assert_eq!(store.history(10).unwrap(), vec![entry(1)]);
}

#[test]
fn an_abandoned_undertaking_leaves_what_was_applied() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(file(&folder.path().join("s"))).unwrap();
    store.conclude(&applied(1), &entry(1), &[]).unwrap();
    store
        .undertake(&Undertaking {
            epoch: 2,
            ..Undertaking::default()
        })
        .unwrap();
    store
        .abandon(
            &HistoryEntry {
                outcome: "rolled back".into(),
                ..entry(2)
            },
            &[],
        )
        .unwrap();
    assert_eq!(store.applied().unwrap(), Some(applied(1)));
    assert_eq!(store.undertaking().unwrap(), None);
    assert_eq!(store.history(1).unwrap()[0].outcome, "rolled back");
}

#[test]
fn the_history_is_bounded_and_newest_first() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(file(&folder.path().join("s"))).unwrap();
    for epoch in 0..HISTORY as u64 + 5 {
        store.abandon(&entry(epoch), &[]).unwrap();
    }
    let all = store.history(usize::MAX).unwrap();
    assert_eq!(all.len(), HISTORY);
    assert_eq!(all[0].epoch, HISTORY as u64 + 4);
}

#[test]
fn a_file_that_is_no_store_is_refused_with_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    std::fs::write(&path, vec![0x55; 8192]).unwrap();
    let error = open(file(&path)).err().unwrap();
    assert!(matches!(error, StoreError::Corrupt(_)), "{error:?}");
    assert!(error.to_string().contains("Move controller.redb aside"));
}

#[test]
fn a_truncated_store_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let mut store = open(file(&path)).unwrap();
    store.conclude(&applied(1), &entry(1), &[]).unwrap();
    drop(store);
    file(&path).set_len(4096).unwrap();
    assert!(open(file(&path)).is_err());
}

#[test]
fn a_damaged_record_is_an_error_and_not_a_guess() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let mut store = open(file(&path)).unwrap();
    store
        .write(
            &[(KEY_APPLIED, Some(b"{\"epoch\": tru".to_vec()))],
            None,
            &[],
        )
        .unwrap();
    assert!(matches!(store.applied(), Err(StoreError::Corrupt(_))));
}

#[test]
fn flipped_bytes_are_refused_or_repaired() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let mut store = open(file(&path)).unwrap();
    store.conclude(&applied(1), &entry(1), &[]).unwrap();
    drop(store);
    let length = std::fs::metadata(&path).unwrap().len();
    for step in 0..48 {
        let copy = folder.path().join("copy");
        std::fs::copy(&path, &copy).unwrap();
        let mut damaged = file(&copy);
        let at = step * 97 % length;
        let mut byte = [0];
        damaged.seek(SeekFrom::Start(at)).unwrap();
        damaged.read_exact(&mut byte).unwrap();
        damaged.seek(SeekFrom::Start(at)).unwrap();
        damaged.write_all(&[byte[0] ^ 0x10]).unwrap();
        if let Ok(mut store) = open(damaged) {
            let _ = store.applied();
            let _ = store.history(5);
        }
    }
}

#[test]
fn two_controllers_on_one_file_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let _first = open(file(&path)).unwrap();
    assert!(matches!(open(file(&path)), Err(StoreError::InUse)));
}

#[test]
fn a_newer_layout_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let mut store = open(file(&path)).unwrap();
    store
        .write(
            &[(KEY_FORMAT, Some(9u64.to_le_bytes().to_vec()))],
            None,
            &[],
        )
        .unwrap();
    drop(store);
    assert!(matches!(
        open(file(&path)),
        Err(StoreError::Format { found: 9 })
    ));
}

/// /dev/full stands for a disk without room: reading works, writing is ENOSPC.
#[test]
fn a_full_disk_is_said_so() {
    let full = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/full")
        .unwrap();
    let error = open(full).err().unwrap();
    assert!(
        matches!(
            error,
            StoreError::Disk(_) | StoreError::Corrupt(_) | StoreError::Io(_)
        ),
        "{error:?}"
    );
}

#[test]
fn a_store_that_killed_two_starts_is_not_opened_a_third_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    drop(open(file(&path)).unwrap());
    let attempts = file(&folder.path().join("attempts"));
    // Two starts that began to open it and never came to the end.
    for _ in 0..2 {
        let _never_ended = Attempts::begin(&attempts, &file(&path)).unwrap();
    }
    assert!(matches!(
        Store::open(file(&path), &attempts),
        Err(StoreError::Corrupt(_))
    ));
    // Moved aside, and a new one in its place: the count is the old file's.
    std::fs::rename(&path, folder.path().join("aside")).unwrap();
    Store::open(file(&path), &attempts).unwrap();
}

#[test]
fn what_was_used_is_added_up_by_the_hour_and_too_old_hours_go() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let row = |endpoint: &str, bytes| api::UsageRow {
        tenant: "red".into(),
        endpoint: endpoint.into(),
        sent_bytes: bytes,
        ..api::UsageRow::default()
    };
    let seen = |page: &str| Seen {
        targets: [(
            3,
            SeenTarget {
                page: page.into(),
                ..SeenTarget::default()
            },
        )]
        .into(),
        ..Seen::default()
    };
    let mut store = open(file(&path)).unwrap();
    assert_eq!(store.seen().unwrap(), Seen::default());
    assert_eq!(store.usage(0, u64::MAX).unwrap(), []);
    store.account(3600, &[row("a", 5)], &seen("x")).unwrap();
    store
        .account(3600, &[row("a", 6), row("b", 1)], &seen("y"))
        .unwrap();
    store.account(7200, &[row("a", 9)], &seen("z")).unwrap();
    drop(store);
    let mut store = open(file(&path)).unwrap();
    assert_eq!(store.seen().unwrap(), seen("z"));
    let first = (3600, vec![row("a", 11), row("b", 1)]);
    let second = (7200, vec![row("a", 9)]);
    assert_eq!(
        store.usage(0, u64::MAX).unwrap(),
        [first.clone(), second.clone()]
    );
    assert_eq!(store.usage(3600, 7200).unwrap(), [first]);
    assert_eq!(store.usage(7200, 7200).unwrap(), []);
    let late = 7200 + usage::HOURS * 3600;
    store.account(late, &[], &seen("z")).unwrap();
    assert_eq!(store.usage(0, u64::MAX).unwrap(), [second]);
}

fn deed(time_ms: u64, object: &str) -> Deed {
    Deed(api::AuditEntry {
        time_ms,
        kind: "apply".into(),
        object: object.into(),
        ..api::AuditEntry::default()
    })
}

/// Puts these bytes for an entry of the audit log, or takes it out.
fn tamper(store: &mut Store, number: u64, bytes: Option<&[u8]>) {
    let table: TableDefinition<'static, u64, &[u8]> = TableDefinition::new("audit");
    let write = store.database().unwrap().begin_write().unwrap();
    {
        let mut table = write.open_table(table).unwrap();
        match bytes {
            Some(bytes) => drop(table.insert(number, bytes).unwrap()),
            None => drop(table.remove(number).unwrap()),
        }
    }
    write.commit().unwrap();
}

#[test]
fn the_audit_log_is_a_chain_and_shows_where_it_was_tampered_with() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let mut store = open(file(&path)).unwrap();
    assert!(store.audit_check().unwrap().whole);
    for time in 0..4 {
        store.note(&[deed(time, "a"), deed(time, "b")]).unwrap();
    }
    store
        .conclude(&applied(1), &entry(1), &[deed(9, "c")])
        .unwrap();
    drop(store);
    let mut store = open(file(&path)).unwrap();
    let all = store.audit(0, u64::MAX, usize::MAX, |_| true).unwrap();
    let check = store.audit_check().unwrap();
    assert_eq!((check.whole, check.entries, check.last), (true, 9, 8));
    assert_eq!(check.head, all[8].digest);
    let two = store.audit(1, 3, 3, |entry| entry.object == "a").unwrap();
    assert_eq!(two.iter().map(|e| e.number).collect::<Vec<_>>(), [2, 4]);
    let last = store.audit(0, u64::MAX, 2, |_| true).unwrap();
    assert_eq!(last.iter().map(|e| e.number).collect::<Vec<_>>(), [7, 8]);
    // Another word in one entry, with or without a digest that fits it.
    for (number, kept) in all.iter().enumerate() {
        let mut forged = kept.clone();
        forged.outcome = "nothing".into();
        tamper(&mut store, number as u64, Some(&encode(&forged)));
        assert!(!store.audit_check().unwrap().whole, "{number}");
        tamper(&mut store, number as u64, Some(&encode(kept)));
        assert!(store.audit_check().unwrap().whole);
        // One that is missing; the newest leaves no gap.
        tamper(&mut store, number as u64, None);
        assert_eq!(store.audit_check().unwrap().whole, number == 8);
        tamper(&mut store, number as u64, Some(&encode(kept)));
    }
    // And none can be put in between.
    tamper(&mut store, 3, Some(&encode(&all[4])));
    assert!(!store.audit_check().unwrap().whole);
}

#[test]
fn an_entry_with_a_digest_that_fits_it_does_not_fit_its_follower() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(file(&folder.path().join("s"))).unwrap();
    let mut other = open(file(&folder.path().join("t"))).unwrap();
    store.note(&[deed(1, "a"), deed(2, "b")]).unwrap();
    other.note(&[deed(1, "x"), deed(2, "b")]).unwrap();
    let forged = other.audit(0, u64::MAX, usize::MAX, |_| true).unwrap();
    tamper(&mut store, 0, Some(&encode(&forged[0])));
    let check = store.audit_check().unwrap();
    assert_eq!((check.whole, check.broken), (false, vec![0]));
}

#[test]
fn the_audit_log_is_bounded_and_says_what_went() {
    let folder = tempfile::tempdir().unwrap();
    let bounds = Bounds {
        age_s: 100,
        entries: 10,
    };
    let mut store = open(file(&folder.path().join("s")))
        .unwrap()
        .bounded(bounds);
    for time in 0..50 {
        store.note(&[deed(time, "a")]).unwrap();
        let check = store.audit_check().unwrap();
        assert!(check.whole && check.entries <= 11, "{check:?}");
    }
    let check = store.audit_check().unwrap();
    assert!(check.first > 30, "{check:?}");
    // All but the last grow too old.
    store.note(&[deed(1_000_000, "late")]).unwrap();
    let left = store.audit(0, u64::MAX, usize::MAX, |_| true).unwrap();
    let left: Vec<&str> = left.iter().map(|entry| entry.kind.as_str()).collect();
    assert_eq!(left, ["apply", "cut"]);
    assert!(store.audit_check().unwrap().whole);
    // The oldest entries cannot be taken out without a cut.
    store.note(&[deed(1_000_001, "a")]).unwrap();
    let first = store.audit_check().unwrap().first;
    tamper(&mut store, first, None);
    assert!(!store.audit_check().unwrap().whole);
}

#[test]
fn who_does_much_pushes_nobody_elses_history_out() {
    let folder = tempfile::tempdir().unwrap();
    let bounds = Bounds {
        age_s: 1000,
        entries: 40,
    };
    let mut store = open(file(&folder.path().join("s")))
        .unwrap()
        .bounded(bounds);
    let by = |tenant: &str, kind: &str, time_ms| {
        let mut deed = deed(time_ms, tenant);
        (deed.0.by, deed.0.kind) = (tenant.into(), kind.into());
        deed
    };
    for time in 0..3 {
        for (tenant, kind) in [("", "apply"), ("", "shared"), ("green", "apply")] {
            store.note(&[by(tenant, kind, time)]).unwrap();
        }
    }
    for time in 3..300 {
        let tenant = ["red", "blue"][time as usize % 2];
        store.note(&[by(tenant, "revoke", time)]).unwrap();
        // What follows from what they state is nobody else's loss either.
        store.note(&[by("", "ended", time)]).unwrap();
        let check = store.audit_check().unwrap();
        assert!(check.whole && check.entries <= 43, "{check:?}");
    }
    let left = store.audit(0, u64::MAX, usize::MAX, |_| true).unwrap();
    let of = |by: &str, kind: &str| {
        let all = left.iter();
        all.filter(|one| one.by == by && one.kind == kind).count()
    };
    assert_eq!(of("green", "apply"), 3);
    assert_eq!((of("", "apply"), of("", "shared")), (3, 3));
    assert!(of("red", "revoke") > 5 && of("blue", "revoke") > 5);
    let mut said = left.iter().filter(|one| one.kind == "cut");
    let said = said.any(|one| {
        one.details
            .iter()
            .any(|line| line.ends_with("of tenant red"))
    });
    assert!(said);
    // What is taken out is missed, also where what is remembered is made to fit.
    let one = left.iter().find(|one| one.by == "green").unwrap();
    let bytes = encode(one);
    tamper(&mut store, one.number, None);
    assert!(!store.audit_check().unwrap().whole);
    forget(&mut store, one);
    let check = store.audit_check().unwrap();
    assert_eq!((check.whole, check.broken.len()), (false, 1), "{check:?}");
    tamper(&mut store, one.number, Some(&bytes));
    assert!(!store.audit_check().unwrap().whole);
}

/// Makes one that is missing one of those that a cut took.
fn forget(store: &mut Store, entry: &api::AuditEntry) {
    let table: TableDefinition<'static, u64, &[u8]> = TableDefinition::new("audit-gaps");
    let write = store.database().unwrap().begin_write().unwrap();
    {
        let mut table = write.open_table(table).unwrap();
        let gap = serde_json::json!({
            "to": entry.number, "previous": entry.previous, "digest": entry.digest,
        });
        table
            .insert(entry.number, gap.to_string().as_bytes())
            .unwrap();
    }
    write.commit().unwrap();
}

#[test]
fn a_log_that_an_earlier_release_cut_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let bounds = Bounds {
        age_s: 1000,
        entries: 10,
    };
    let mut store = open(file(&folder.path().join("s")))
        .unwrap()
        .bounded(bounds);
    for time in 0..6 {
        store.note(&[deed(time, "a")]).unwrap();
    }
    let all = store.audit(0, u64::MAX, usize::MAX, |_| true).unwrap();
    let cut = deed(6, &format!("3 {}", all[2].digest));
    store.note(&[cut]).unwrap();
    rename_last(&mut store, "cut");
    assert!(store.audit_check().unwrap().whole);
    for number in 0..3 {
        tamper(&mut store, number, None);
    }
    for time in 7..40 {
        let check = store.audit_check().unwrap();
        assert!(check.whole && check.first > 2, "{check:?}");
        store.note(&[deed(time, "a")]).unwrap();
    }
}

/// Makes the newest entry one of this kind, as an earlier release wrote it.
fn rename_last(store: &mut Store, kind: &str) {
    let mut last = store.audit(0, u64::MAX, 1, |_| true).unwrap().remove(0);
    last.kind = kind.into();
    last.digest = audit::digest(&last);
    tamper(store, last.number, Some(&encode(&last)));
}

#[test]
fn no_deed_is_taken_for_the_logs_own_word_about_what_it_cut() {
    let folder = tempfile::tempdir().unwrap();
    let bounds = Bounds {
        age_s: 1000,
        entries: 10,
    };
    let mut store = open(file(&folder.path().join("s")))
        .unwrap()
        .bounded(bounds);
    // Whoever does it: one of nobody is one as well.
    for uid in [None, Some(7)] {
        let mut cut = deed(1, "circuit 1-2");
        (cut.0.kind, cut.0.uid) = ("cut".into(), uid);
        store.note(&[cut]).unwrap();
        assert!(store.audit_check().unwrap().whole, "{uid:?}");
        let last = store.audit(0, u64::MAX, 1, |_| true).unwrap().remove(0);
        assert_eq!(last.kind, "cut-by");
    }
    // Earlier releases wrote such deeds, before and after what the log cut itself.
    for time in 2..40 {
        let mut cut = deed(time, "circuit 1-2");
        cut.0.uid = Some(7);
        store.note(&[cut]).unwrap();
        let last = store.audit(0, u64::MAX, 1, |_| true).unwrap().remove(0);
        if last.kind == "apply" {
            rename_last(&mut store, "cut");
        }
        let check = store.audit_check().unwrap();
        assert!(check.whole, "{time}: {check:?}");
    }
    // They are the provider's, not the log's.
    let left = store.audit(0, u64::MAX, usize::MAX, |_| true).unwrap();
    let own = left.iter().filter(|one| one.uid.is_none());
    let lines: Vec<&String> = own.flat_map(|one| &one.details).collect();
    let of = |owner: &str| lines.iter().any(|line| line.ends_with(owner));
    assert!(of("of the provider") && !of("of tenant"), "{lines:?}");
}

#[test]
fn a_long_entry_is_cut_to_its_first_lines() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(file(&folder.path().join("s"))).unwrap();
    let mut long = deed(1, "a");
    long.0.details = vec!["x".repeat(1000); 1000];
    store.note(&[long]).unwrap();
    let kept = store.audit(0, u64::MAX, 1, |_| true).unwrap();
    assert_eq!(kept[0].details.len(), 17);
    assert_eq!(kept[0].details[16], "and 984 more");
}

#[test]
fn tokens_and_documents_are_there_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let mut store = open(file(&path)).unwrap();
    assert_eq!(store.tokens().unwrap(), []);
    let token = Token {
        id: "x".into(),
        tenant: "red".into(),
        ..Token::default()
    };
    store
        .keep_tokens(std::slice::from_ref(&token), &[deed(1, "x")])
        .unwrap();
    let mut stated = applied(1);
    stated.documents.insert("red".into(), Document::default());
    stated.revoked.insert(("red".into(), "db".into()));
    store.conclude(&stated, &entry(1), &[]).unwrap();
    drop(store);
    let mut store = open(file(&path)).unwrap();
    assert_eq!(store.tokens().unwrap(), [token]);
    assert_eq!(store.applied().unwrap(), Some(stated));
}
