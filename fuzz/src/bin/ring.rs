#![no_main]
//! See `bulkhead_fuzz::ring`.
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bulkhead_fuzz::ring::run(bytes));
