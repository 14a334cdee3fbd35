//! The library that is loaded before a program's others. All else here is static, so it takes a
//! build of its own.

use crate::steps::target;
use std::path::Path;
use std::process::{Command, Stdio};

/// Its file.
const NAME: &str = "libbulkhead_preload.so";
/// By which profile it is built: it is unwound through.
const PROFILE: &str = "preload";
/// Where what is built for this machine lies below a target folder.
const HERE: &str = "x86_64-unknown-linux-gnu";

/// Builds it, and puts it beside the programs that there are.
pub fn build(root: &Path) -> Result<(), String> {
    let own = target(root).join("shared");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args([
            "rustc",
            "--profile",
            PROFILE,
            "--locked",
            "--quiet",
            "-p",
            "lib-preload",
        ])
        .args(["--crate-type", "cdylib", "--target-dir"])
        .arg(&own)
        .current_dir(root)
        .stdin(Stdio::null())
        .env("RUSTFLAGS", "-C target-feature=-crt-static")
        .env_remove("CARGO_MANIFEST_DIR")
        .status()
        .map_err(|e| format!("cargo: {e}"))?;
    if !status.success() {
        return Err(format!("{NAME} was not built"));
    }
    let library = own.join(HERE).join(PROFILE).join(NAME);
    for profile in ["debug", "release"] {
        let folder = target(root).join(HERE).join(profile);
        if folder.is_dir() {
            // Beside, and then in its place: who has the old one mapped keeps that.
            let new = folder.join(format!(".{NAME}"));
            let copied = std::fs::copy(&library, &new);
            let put = copied.and_then(|_| std::fs::rename(&new, folder.join(NAME)));
            put.map_err(|e| format!("{}: {e}", folder.display()))?;
        }
    }
    Ok(())
}
