//! What the compiler makes of honest specs is no breach.

use super::hosts::{Compiled, EXAMPLES, example};

#[test]
fn every_example_is_proved() {
    for name in EXAMPLES {
        let host = Compiled::new(example(name));
        let breaches = host.breaches();
        assert!(breaches.is_empty(), "{name}: {}", breaches[0]);
    }
}
