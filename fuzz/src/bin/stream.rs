#![no_main]
//! See `bulkhead_fuzz::stream`.
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bulkhead_fuzz::stream::run(bytes));
