#![no_main]
//! See `bulkhead_fuzz::circuit`.
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bulkhead_fuzz::circuit::run(bytes));
