use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn counts_are_a_maps(seed: u64, steps in prop::collection::vec(
        (any::<bool>(), 0u32..3, 0u16..6), 0..300)) {
        const ROOM: u32 = 40;
        let mut shares = Shares::new(seed, ROOM as usize).unwrap();
        let mut model: HashMap<(u32, u16), u32> = HashMap::new();
        let mut all = 0;
        for (more, owner, zone) in steps {
            let count = model.entry((owner, zone)).or_default();
            if more && all < ROOM {
                prop_assert_eq!(shares.add(owner, zone), Some(*count));
                (*count, all) = (*count + 1, all + 1);
            } else if !more && *count > 0 {
                (*count, all) = (*count - 1, all - 1);
                prop_assert_eq!(shares.take(owner, zone), *count);
            }
            for (&(owner, zone), count) in &model {
                prop_assert_eq!(shares.count(owner, zone), *count);
            }
        }
    }
}

#[test]
fn as_many_zones_as_there_may_be_connections_have_a_count_each() {
    let mut shares = Shares::new(0x1234_5678_9abc_def1, 2048).unwrap();
    for round in 0..3 {
        for zone in 0..2048 {
            assert_eq!(shares.add(round, zone * 31), Some(0));
        }
        assert!((0..2048).all(|zone| shares.count(round, zone * 31) == 1));
        assert!((0..2048).all(|zone| shares.take(round, zone * 31) == 0));
    }
}
