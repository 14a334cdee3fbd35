#![no_main]
//! See `bulkhead_fuzz::command`.
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bulkhead_fuzz::command::run(bytes));
