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
    store.conclude(&applied(1), &entry(1)).unwrap();
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
    store.conclude(&applied(1), &entry(1)).unwrap();
    store
        .undertake(&Undertaking {
            epoch: 2,
            ..Undertaking::default()
        })
        .unwrap();
    store
        .abandon(&HistoryEntry {
            outcome: "rolled back".into(),
            ..entry(2)
        })
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
        store.abandon(&entry(epoch)).unwrap();
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
    store.conclude(&applied(1), &entry(1)).unwrap();
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
        .write(&[(KEY_APPLIED, Some(b"{\"epoch\": tru".to_vec()))], None)
        .unwrap();
    assert!(matches!(store.applied(), Err(StoreError::Corrupt(_))));
}

#[test]
fn flipped_bytes_are_refused_or_repaired() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let mut store = open(file(&path)).unwrap();
    store.conclude(&applied(1), &entry(1)).unwrap();
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
        .write(&[(KEY_FORMAT, Some(9u64.to_le_bytes().to_vec()))], None)
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
