#![no_main]
//! See `bulkhead_fuzz::image`.
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bulkhead_fuzz::image::run(bytes));
