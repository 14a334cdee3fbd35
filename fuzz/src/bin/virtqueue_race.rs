#![no_main]
//! See `bulkhead_fuzz::virtqueue_race`.
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bulkhead_fuzz::virtqueue_race::run(bytes));
