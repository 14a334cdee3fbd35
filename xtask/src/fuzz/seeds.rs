//! Writes fuzz/seeds, and the words of specs that a fuzzer needs to know. What it writes is
//! the same each time.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Bytes of no pattern.
fn random(seed: u32, count: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 11) as u8
    };
    (0..count).map(|_| next()).collect()
}

/// Writes them.
pub fn write(root: &Path) -> std::io::Result<()> {
    let folder = root.join("fuzz");
    let seeds = folder.join("seeds");
    let write = |target: &str, name: String, bytes: Vec<u8>| {
        fs::create_dir_all(seeds.join(target))?;
        fs::write(seeds.join(target).join(name), bytes)
    };
    // Any beginnings: the first byte says which way each of these targets goes.
    for target in [
        "circuit",
        "command",
        "image",
        "restoration",
        "ring",
        "stream",
    ] {
        for first in 0..8u8 {
            let name = format!("way-{first}");
            write(
                target,
                name,
                [vec![first], random(u32::from(first) + 1, 160)].concat(),
            )?;
        }
    }
    // Rings of both kinds, frames and chains; sizes; what the driver says of its first chains.
    for bits in 0..16u8 {
        let mut bytes = vec![bits | 0x30, 3];
        for n in 0..16u8 {
            // Take; an index or flags; a descriptor.
            bytes.extend([0, n + 1, n, 4, 60, 0, n, 0, n + 1, 3, 1, 100, 6]);
        }
        write("virtqueue", format!("ring-{bits:02}"), bytes.clone())?;
        let race = [&[bits], &random(bits.into(), 120)[..]].concat();
        write("virtqueue_race", format!("ring-{bits:02}"), race)?;
    }
    // A front end's way to queues that run, with and without a log and packed rings.
    for taken in 0..4u8 {
        let mut bytes = vec![2, taken, 0, 3, 0, 0];
        bytes.extend([0xff; 8]);
        bytes.extend([4, 0, 1, 0, 0]);
        for queue in 0..4u8 {
            bytes.extend([7, queue, 0, 9, queue, 0, 8, queue, 0, 0, 1, 2]);
            bytes.extend([11, queue, 0, 12, queue, 1]);
        }
        bytes.extend([13, 0, 1, 1, 5, 0, 0, 1, 0, 10, 0, 0, 15, 0, 0]);
        write("vhostuser", format!("begins-{taken}"), bytes)?;
    }
    // Each kind of frame, from each station.
    for kind in 0..16u8 {
        let each: Vec<u8> = (0..7).map(|from| from | 0x10).collect();
        let mut bytes = Vec::new();
        for (n, from) in each.iter().enumerate() {
            let to = n as u8 + kind;
            bytes.extend([*from, kind | 0x20, to, 0, kind.wrapping_mul(9), 0]);
            bytes.extend([*from, kind, to, 0, 1, 0]);
        }
        write("frames", format!("kind-{kind:02}"), bytes)?;
    }
    // A flow that takes the short way, on the subnet and through the gateway; then a frame of
    // it with another byte somewhere, its sum put right or not.
    for (to, bend) in [
        (2, 22),
        (2, 24),
        (4, 22),
        (4, 24),
        (4, 16),
        (4, 40),
        (2, 38),
    ] {
        for kind in [0, 0x20] {
            let mut bytes = Vec::new();
            (0..6).for_each(|_| bytes.extend([1, kind, to, 0, 2, 0]));
            bytes.extend([1, kind, to, 0, 2, 1, bend, 1, 1, kind, to, 0, 2, 0]);
            write("frames", format!("short-way-{to}-{bend}-{kind}"), bytes)?;
        }
    }
    // A connection of two stations, answered, whose other end becomes the other tenant's.
    let mut bytes = vec![2, 1, 0, 2, 3, 2, 0, 2, 0, 1, 0x30, 2, 0, 2];
    bytes.extend([0xc0, 1, 4, 0xee, 0, 0xc0, 2, 2, 12, 0]);
    write("restoration", "other-tenants".into(), bytes)?;
    // Records of one section that say the same.
    for section in 0..16u8 {
        let mut bytes = vec![0x31 + section % 2];
        (0..3).for_each(|n| bytes.extend([1, section, n, n + 1, section * 4]));
        write("image", format!("section-{section:02}"), bytes)?;
    }
    let stations = "version: 1\ntenants:\n  - name: a\n    subnets: [{name: s, prefixes: [10.1.1.0/24]}]\n    endpoints:\n      - {name: x, subnet: s, addresses: [10.1.1.10]}\n      - {name: y, subnet: s, addresses: [10.1.1.11]}\n";
    write("spec", "stations".into(), stations.into())?;
    // Which is refused.
    let same = stations.replace("1.11", "1.10");
    write("spec", "stations-of-one-address".into(), same.into())?;
    let examples = root.join("examples");
    let mut words = BTreeSet::new();
    for entry in fs::read_dir(examples)? {
        let path = entry?.path();
        let text = fs::read_to_string(&path)?;
        let is_word = |c: char| c.is_ascii_alphanumeric() || "-_./:".contains(c);
        words.extend(
            text.lines()
                .filter_map(|line| line.split('#').next())
                .flat_map(|line| line.split(|c| !is_word(c)))
                .filter(|word| (2..24).contains(&word.len()))
                .map(str::to_owned),
        );
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        // The reference is longer than an input is to be.
        if text.len() < 3000 {
            let bare = |line: &&str| !line.trim_start().starts_with('#');
            let lines: Vec<&str> = text.lines().filter(bare).collect();
            write("spec", name.into_owned(), lines.join("\n").into_bytes())?;
        }
    }
    let lines = words.iter().map(|word| format!("\"{word}\"\n"));
    fs::write(folder.join("spec.dict"), lines.collect::<String>())
}
