//! Words on standard error that harm nobody who says them.

use std::io::Write;

/// Says a line on standard error, as far as that takes it: whoever reads it may be
/// gone, its disk full, a confined process may not write a file, and nobody dies of
/// that, as `eprintln!` would.
#[macro_export]
macro_rules! say {
    ($($what:tt)*) => { $crate::say(::core::format_args!($($what)*)) };
}

/// The same, for [`say!`](crate::say!): one write, so that two who speak keep whole lines.
pub fn say(what: std::fmt::Arguments<'_>) {
    let _ = std::io::stderr().write_all(format!("{what}\n").as_bytes());
}
