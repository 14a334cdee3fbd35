#![no_main]
//! See `bulkhead_fuzz::restoration`.
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bulkhead_fuzz::restoration::run(bytes));
