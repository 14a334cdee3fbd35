//! `bench scale`: what idle tenants beside cost a packet: instructions, by callgrind.

use crate::Options;
use crate::forward::count;
use crate::results::Figure;

/// Tenants beside.
const TENANTS: usize = 1000;

/// Runs it.
pub fn run(options: &Options) -> Result<Vec<Figure>, String> {
    let beside = if options.smoke { 50 } else { TENANTS };
    let (adaptive, many) = ("--adaptive", beside.to_string());
    let alone = count(&[adaptive])?.instructions;
    let mut words = vec![adaptive, "--beside", &many];
    if options.hindered {
        // What polls looks at every channel, whether anybody speaks or not.
        words.remove(0);
    }
    let crowded = count(&words)?.instructions;
    Ok(vec![
        Figure::of("scale.idle_tenants_ratio", "ratio", &[crowded / alone])
            .ours("instructions_alone", alone)
            .ours("instructions_beside_others", crowded)
            .ours("tenants_beside", beside)
            .note("64 B over FIFO through the loop of bulkhead-switch, two idle endpoints of each other tenant in the same switch (`placement: { per: host }`), which waits as by default; where each has a switch of its own, as by default, an idle one is a process that sleeps"),
    ])
}
