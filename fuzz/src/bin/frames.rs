#![no_main]
//! See `bulkhead_fuzz::frames`.
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bulkhead_fuzz::frames::run(bytes));
