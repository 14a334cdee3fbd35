//! Programs that have their operator wait a little, and often.

use crate::across;
use crate::scene::{GUARDED, OPEN, Scene};
use std::time::{Duration, Instant};

const KEEPS: &str = "
import socket
s = socket.socket(); s.bind(('10.1.1.10', 80)); s.listen(512); print('serving', flush=True)
kept = []
while True: kept.append(s.accept()[0])
";

fn scene(spec: &str) -> Scene {
    let scene = Scene::of(spec);
    let c = concat!(include_str!("fuse.c"), include_str!("slow.c"));
    scene.compile("slow", c);
    scene.file("keeps.py", KEEPS);
    scene
}

/// Each end that is to be cut has a file in its place that is closed after a tenth of a second: eighty would take eight.
#[test]
fn who_is_slow_eighty_times_holds_no_rule_up() {
    let spec = format!("{OPEN}{GUARDED}");
    let scene = scene(&spec);
    let _web = scene.start("web", "exec python3 {f}/keeps.py", "serving");
    let _slow = scene.start("app", "exec {f}/slow cut 100 80", "ready");
    let all = |scene: &Scene| across::circuits(scene).len();
    assert_eq!(all(&scene), 80);
    let began = Instant::now();
    scene.apply(&spec.replace("ports: [80]", "ports: [99]"));
    let took = began.elapsed();
    assert!(took < Duration::from_secs(6), "{took:?}");
    let over = |_: &e2e::Instance| all(&scene) == 0;
    assert!(scene.instance.until(Duration::from_secs(5), over));
    let status = scene.instance.ask(&["status"]).unwrap();
    let operator = &status["compartments"][0]["operator"];
    assert!(
        operator["stalls"] == 0 && operator["unfound"] == 0,
        "{operator}"
    );
}

/// So many of its numbers are looked at as take a tenth of a second, and no more.
#[test]
fn who_is_slow_where_numbers_are_looked_at_is_looked_at_no_more() {
    for (what, said) in [("puts", "EMFILE"), ("binds", "bound")] {
        let scene = scene(OPEN);
        let slow = scene.start("app", &format!("exec {{f}}/slow {what} 60 60"), " ms\n");
        let out = slow.out();
        let words: Vec<&str> = out.split_whitespace().collect();
        // All sixty would take 3.6 s.
        let took: u32 = words[1].parse().unwrap();
        assert!(words[0] == said && (60..2500).contains(&took), "{out}");
    }
}
