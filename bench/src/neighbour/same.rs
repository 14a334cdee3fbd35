//! An endpoint beside one of its own compartment that does its worst: what it gets of the
//! switch, against half of what it gets alone.

use super::{ATTACKS, Attack, a_second, pin, plain, pour, rules, take};
use crate::Options;
use crate::flow::{attach, packet, station};
use crate::results::Figure;
use e2e::Instance;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

pub fn run(options: &Options) -> Result<Figure, String> {
    let instance = Instance::start()?;
    let mut spec = String::from(
        "version: 1\ntenants:\n  - name: red\n    subnets: [{ name: lan, prefixes: [10.1.1.0/24] }]\n    endpoints:\n",
    );
    for (n, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
        spec += &format!(
            "      - {{ name: {name}, subnet: lan, addresses: [10.1.1.1{n}], attach: {{ fifo: {{ capacity: 1MiB }} }} }}\n"
        );
    }
    spec += &rules(&[("a", "b"), ("c", "d")]);
    instance.apply(&spec)?;
    // The switch has a core, whoever sends and takes the other.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let apart = cores > 1;
    if apart {
        pin(Some(instance.pid("red")?), 0)?;
    }
    let time = Duration::from_millis(if options.smoke { 300 } else { 1000 });
    let (mut worst, mut name) = (Figure::of("", "", &[f64::INFINITY]), "");
    let mut seen = Vec::new();
    for (attack, make) in ATTACKS {
        let mut ratios = Vec::new();
        for _ in 0..options.runs(9, 3) {
            let alone = share(&instance, apart, options.hindered, time, None)?;
            let beside = share(&instance, apart, options.hindered, time, Some(*make))?;
            ratios.push(2.0 * beside / alone);
        }
        let figure = Figure::of("neighbour.same_compartment", "ratio", &ratios);
        seen.push(format!("{attack}: {:.3}", figure.value));
        if figure.value < worst.value {
            (worst, name) = (figure, attack);
        }
    }
    let kernel = plain::share(options, plain::Meet::Apart)?;
    Ok(worst
        .ours("by_attack", seen.join("; "))
        .peer("name", "Linux bridge with four veth pairs, UDP floods of 64-byte frames")
        .peer("share", kernel)
        .note(format!("packets that an endpoint's peer receives while another endpoint attacks in the same switch, against half of those alone; the worst is {name}; switch core 0, the rest core 1")))
}

/// Packets a second from a to b, with c's attack on d beside or none.
fn share(
    instance: &Instance,
    apart: bool,
    hindered: bool,
    time: Duration,
    attack: Option<Attack>,
) -> Result<f64, String> {
    let stop = AtomicBool::new(false);
    let (own, ignored) = (AtomicU64::new(0), AtomicU64::new(0));
    let at = |name: &str| attach(&instance.run_dir(), "red", name);
    let frame = |from: &str, to: &str| -> Result<Vec<u8>, String> {
        let (from, to) = (
            station(instance, "red", from)?,
            station(instance, "red", to)?,
        );
        Ok(packet(from, to))
    };
    let (one, other) = (frame("a", "b")?, frame("c", "d")?);
    let (mut a, mut b) = (at("a")?, at("b")?);
    let mut others = match attack {
        Some(_) => Some((at("c")?, at("d")?)),
        None => None,
    };
    // Hindered, it pours only now and then beside an attack.
    let slow = hindered && attack.is_some();
    let rest = |_: &mut [u8], random: u64| {
        if slow && random & 63 == 0 {
            std::thread::sleep(Duration::from_micros(200));
        }
    };
    let place = || if apart { pin(None, 1) } else { Ok(()) };
    std::thread::scope(|scope| {
        let mut threads = vec![
            scope.spawn(|| place().and_then(|()| pour(&mut a, one, rest, &stop))),
            scope.spawn(|| place().and_then(|()| take(&mut b, &own, &stop))),
        ];
        if let (Some(make), Some((c, d))) = (attack, &mut others) {
            let (stop, ignored) = (&stop, &ignored);
            threads.push(scope.spawn(move || place().and_then(|()| pour(c, other, make, stop))));
            threads.push(scope.spawn(move || place().and_then(|()| take(d, ignored, stop))));
        }
        let rate = a_second(&own, &stop, time);
        for thread in threads {
            thread.join().map_err(|_| "a thread panicked")??;
        }
        rate
    })
}
