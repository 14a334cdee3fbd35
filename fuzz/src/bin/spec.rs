#![no_main]
//! See `bulkhead_fuzz::spec`.
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bulkhead_fuzz::spec::run(bytes));
