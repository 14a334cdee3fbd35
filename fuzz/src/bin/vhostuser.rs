#![no_main]
//! See `bulkhead_fuzz::vhostuser`.
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bulkhead_fuzz::vhostuser::run(bytes));
