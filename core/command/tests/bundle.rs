//! A bundle is read as it was written, and whatever else is read is refused or harmless.

use core_command::bundle::{ALIGN, Bundle, BundleError, MOST_COMPARTMENTS, Part};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Given {
    Bytes(Vec<u8>),
    Held([u8; 32]),
}

impl Given {
    fn part(&self) -> Part<'_> {
        match self {
            Given::Bytes(bytes) => Part::Bytes(bytes),
            Given::Held(digest) => Part::Held(*digest),
        }
    }
}

fn given() -> impl Strategy<Value = Given> {
    prop_oneof![
        vec(any::<u8>(), 0..200).prop_map(Given::Bytes),
        any::<[u8; 32]>().prop_map(Given::Held),
    ]
}

/// Nothing of a part lies outside of the bytes, nor begins where none may.
fn lies_inside(bytes: &[u8], part: Part<'_>) {
    if let Part::Bytes(part) = part {
        let (whole, own) = (bytes.as_ptr_range(), part.as_ptr_range());
        assert!(whole.start <= own.start && own.end <= whole.end);
        assert_eq!((own.start as usize - whole.start as usize) % ALIGN, 0);
    }
}

fn harmless(bytes: &[u8]) {
    if let Ok(bundle) = Bundle::read(bytes) {
        let parts = [Some(bundle.spec), bundle.fabric];
        for part in parts
            .into_iter()
            .flatten()
            .chain(bundle.compartments.values().copied())
        {
            lies_inside(bytes, part);
        }
        assert!(bundle.compartments.len() <= MOST_COMPARTMENTS);
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        now: u64, source in ".{0,20}", spec in given(), numbers in vec(any::<u8>(), 0..100),
        fabric in proptest::option::of(given()), compartments in btree_map(any::<u32>(), given(), 0..20),
        torn: prop::sample::Index, value: u8,
    ) {
        let bundle = Bundle {
            now,
            source: &source,
            spec: spec.part(),
            numbers: &numbers,
            fabric: fabric.as_ref().map(Given::part),
            compartments: compartments.iter().map(|(slot, part)| (*slot, part.part())).collect(),
        };
        let mut bytes = bundle.write();
        prop_assert_eq!(Bundle::read(&bytes), Ok(bundle));
        harmless(&bytes[..torn.index(bytes.len())]);
        let at = torn.index(bytes.len());
        bytes[at] = value;
        harmless(&bytes);
    }

    #[test]
    fn random_bytes_are_harmless(mut bytes in vec(any::<u8>(), 0..2000), ours: bool) {
        if ours && bytes.len() >= 8 {
            bytes[..8].copy_from_slice(b"bhproof1");
        }
        harmless(&bytes);
    }
}

#[test]
fn what_is_wrong_is_named() {
    let honest = Bundle {
        compartments: [(3, Part::Bytes(b"three")), (7, Part::Held([7; 32]))].into(),
        ..Bundle::ahead("a.yaml", b"version: 1\n")
    }
    .write();
    let torn = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = honest.clone();
        change(&mut bytes);
        Bundle::read(&bytes).err()
    };
    // Header: magic, now, count, reserved, then four records of 56 bytes; the list behind.
    const LIST: usize = 24 + 4 * 56;
    assert_eq!(torn(&|_| {}), None);
    assert_eq!(torn(&|bytes| bytes[0] ^= 1), Some(BundleError::Form));
    assert_eq!(
        torn(&|bytes| bytes.truncate(LIST + 60)),
        Some(BundleError::Place)
    );
    assert_eq!(torn(&|bytes| bytes[17] = 255), Some(BundleError::TooMuch));
    assert_eq!(torn(&|bytes| bytes[LIST + 4] = 7), Some(BundleError::Order));
    // The length, the offset: outside; at no multiple; in the list itself.
    assert_eq!(
        torn(&|bytes| bytes[LIST + 23] = 255),
        Some(BundleError::Place)
    );
    assert_eq!(
        torn(&|bytes| bytes[LIST + 8] += 1),
        Some(BundleError::Place)
    );
    assert_eq!(
        torn(&|bytes| bytes[LIST + 8..LIST + 16].fill(0)),
        Some(BundleError::Place)
    );
    assert_eq!(torn(&|bytes| bytes[LIST] = 9), Some(BundleError::Form));
}
