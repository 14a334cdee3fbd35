#![no_main]
//! See `bulkhead_fuzz::virtqueue`.
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bulkhead_fuzz::virtqueue::run(bytes));
