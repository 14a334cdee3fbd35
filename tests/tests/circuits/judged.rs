//! UDP by the rules: what they let through, what they end, and what answers.

use crate::scene::{OPEN, Program, Scene};
use crate::udp::{GUARDED, asks, hear, line, scene};
use e2e::Said;
use std::time::Duration;

/// Who hears prints no more, once what was under way has come: what it is sent comes ten times a second.
fn falls_silent(scene: &Scene, hears: &Program) {
    let is_silent = |_: &e2e::Instance| {
        let heard = hears.out().lines().count();
        std::thread::sleep(Duration::from_millis(700));
        hears.out().lines().count() == heard
    };
    let is_silent = scene.instance.until(Duration::from_secs(10), is_silent);
    assert!(is_silent, "{}", hears.out());
}

#[test]
fn what_no_rule_allows_never_arrives_and_answers_do() {
    let scene = scene(&format!("{OPEN}{GUARDED}"));
    let web = hear(&scene, "web", "0.0.0.0 53 5353");
    let app = hear(&scene, "app", "0.0.0.0 53 7000");
    for how in ["", "-c "] {
        let app = asks(&scene, "app", &format!("{how}10.1.1.10,53 10.1.1.10,5353"));
        assert_eq!(app, ["10.1.1.11", "EACCES"], "{how}");
        let few = asks(&scene, "few", &format!("{how}10.1.1.10,53 10.1.1.11,53"));
        assert_eq!(few, ["EACCES"; 2], "{how}");
        assert_eq!(
            asks(&scene, "web", &format!("{how}10.1.1.11,53")),
            ["EACCES"]
        );
    }
    // Who may be asked tells nobody anything unasked, from that very port either.
    drop(web);
    for to in ["53", "7000"] {
        let said = scene.says("web", &line(&format!("send 10.1.1.11 {to} 10.1.1.10 53")));
        assert_eq!(said, "EACCES\n");
    }
    assert_eq!(app.out(), "hears\n");
}

/// Who asked has ended: a server that answers it late cannot know, and hears of no misdeed.
#[test]
fn an_answer_to_who_is_gone_gets_nowhere() {
    let scene = scene(&format!("{OPEN}{GUARDED}"));
    let web = scene.start("web", &line("late 10.1.1.10 53 {f}/go"), "hears");
    let ask = line("send 10.1.1.10 53 10.1.1.11 7000");
    assert_eq!(scene.says("app", &ask), "sent\n");
    web.until("asked");
    // A listing forgets whose sockets are closed, and another has the port by then.
    let said = Said::of(&mut scene.instance.command(&["flows", "red/app"])).unwrap();
    assert!(said.ok(), "{said:?}");
    let app = hear(&scene, "app", "10.1.1.11 7000");
    scene.file("go", "");
    web.until("ECONNREFUSED");
    assert_eq!(web.out(), "hears\nasked\nanswered\nECONNREFUSED\n");
    assert_eq!(app.out(), "hears\n");
    // Once somebody asks from there it is joined.
    drop(app);
    let again = line("again 10.1.1.10 53 10.1.1.11 7000");
    assert_eq!(scene.says("app", &again), "at last\n");
}

/// The address flips between the allowed port and a denied one while it is sent to.
#[test]
fn a_destination_that_changes_meanwhile_reaches_nothing_denied() {
    const FLIP: &str = r#"
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
static volatile int over;
static volatile struct sockaddr_in to;
static void *flips(void *none) {
  while (!over) to.sin_port = htons(5353), to.sin_port = htons(53);
  return none;
}
int main(void) {
  pthread_t thread;
  int sent = 0, denied = 0, full = 0, wrong = 0;
  struct sockaddr_in first = {.sin_family = AF_INET, .sin_port = htons(53)};
  inet_pton(AF_INET, "10.1.1.10", &first.sin_addr);
  memcpy((void *)&to, &first, sizeof first);
  pthread_create(&thread, 0, flips, 0);
  for (int n = 0; n < 1500; n++) {
    int s = socket(AF_INET, SOCK_DGRAM, 0), done;
    struct iovec piece = {"flip", 4};
    struct msghdr message = {.msg_name = (void *)&to, .msg_namelen = sizeof to, .msg_iov = &piece, .msg_iovlen = 1};
    struct mmsghdr many = {.msg_hdr = message};
    switch (n % 4) {
      case 0: done = sendto(s, "flip", 4, 0, (void *)&to, sizeof to); break;
      case 1: done = sendmsg(s, &message, 0); break;
      case 2: done = sendmmsg(s, &many, 1, 0); break;
      default: done = connect(s, (void *)&to, sizeof to); if (!done) done = send(s, "flip", 4, 0);
    }
    // Natively sent where as many wait as may: who is connected is told after a while.
    if (done >= 0) sent++; else if (errno == EACCES) denied++; else if (errno == EAGAIN && n % 4 == 3) full++; else wrong++, fprintf(stderr, "%d.%d ", n, errno);
    shutdown(s, 2);
    close(s);
  }
  over = 1;
  pthread_join(thread, 0);
  printf("%d %d %d %d\n", sent, denied, full, wrong);
}
"#;
    let scene = scene(&format!("{OPEN}{GUARDED}"));
    scene.compile(
        "flip",
        &FLIP.replace(
            "#include <sys/socket.h>",
            "#include <sys/socket.h>\n#include <unistd.h>",
        ),
    );
    let web = hear(&scene, "web", "0.0.0.0 53 5353");
    let said = scene.sh("app", "{f}/flip");
    let counts: Vec<u32> = said.out.split_whitespace().flat_map(str::parse).collect();
    let [sent, denied, full, 0] = counts[..] else {
        panic!("{said:?}");
    };
    assert!(
        sent > 0 && denied > 0 && sent + denied + full == 1500,
        "{said:?}"
    );
    web.until("53 10.1.1.11 flip");
    assert!(!web.out().contains("5353 "), "{}", web.out());
}

#[test]
fn a_connected_socket_is_cut_and_joined_again_with_its_rule() {
    let scene = scene(&format!("{OPEN}{GUARDED}"));
    let web = hear(&scene, "web", "0.0.0.0 53");
    let _app = scene.start("app", &line("pulse 10.1.1.10 53"), "connected");
    web.until("pulse 3");
    let flows = || {
        let said = Said::of(&mut scene.instance.command(&["flows", "red/app"])).unwrap();
        assert!(said.ok(), "{said:?}");
        said.out
    };
    let listed = flows();
    assert!(
        listed.contains("udp") && listed.contains("10.1.1.10:53"),
        "{listed}"
    );
    for _ in 0..3 {
        scene.apply(&format!("{OPEN}{}", GUARDED.replace("[53]", "[99]")));
        falls_silent(&scene, &web);
        let heard = web.out().lines().count();
        assert!(!flows().contains("10.1.1.10:53"), "{}", flows());
        scene.apply(&format!("{OPEN}{GUARDED}"));
        let more = |_: &e2e::Instance| web.out().lines().count() > heard + 3;
        assert!(
            scene.instance.until(Duration::from_secs(10), more),
            "{}",
            web.out()
        );
    }
}

/// A server that answers each that asks may send to it by a rule of its own: that is no question, which who may ask no more
/// would go on to answer.
#[test]
fn who_is_answered_is_answered_no_more_once_it_may_not_ask() {
    const GOES_ON: &str = "
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(0.1); to = '10.1.1.10', 53; n = 0
if 'c' in sys.argv: s.connect(to)
while True:
    try:
        s.send(b'x') if 'c' in sys.argv else s.sendto(b'x', to)
        s.recvfrom(100); n += 1; print('answered', n, flush=True)
    except OSError: pass
    time.sleep(0.05)
";
    let denied = |port: u16| {
        let rule = format!(
            "        - {{name: no, action: deny, from: {{endpoint: app}}, to: {{endpoint: web}}, protocol: udp, ports: [{port}]}}\n"
        );
        format!("{OPEN}    policy:\n      rules:\n{rule}")
    };
    let scene = scene(OPEN);
    scene.file("goes-on.py", GOES_ON);
    let _web = hear(&scene, "web", "10.1.1.10 53");
    let apps = ["", "c"].map(|how| {
        let line = format!("exec python3 {{f}}/goes-on.py {how}");
        scene.start("app", &line, "answered 3")
    });
    let heard = || apps.each_ref().map(|it| it.out().lines().count());
    let goes_on = |before: [usize; 2]| {
        let more = |_: &e2e::Instance| heard().iter().zip(before).all(|(now, it)| *now > it + 3);
        assert!(scene.instance.until(Duration::from_secs(10), more));
    };
    for _ in 0..2 {
        scene.apply(&denied(99));
        goes_on(heard());
        scene.apply(&denied(53));
        // What was under way comes still.
        let is_still = |_: &e2e::Instance| {
            let before = heard();
            std::thread::sleep(Duration::from_secs(1));
            heard() == before
        };
        let is_cut = scene.instance.until(Duration::from_secs(10), is_still);
        assert!(is_cut, "connected or not: {:?}", heard());
    }
    scene.apply(OPEN);
    goes_on(heard());
}

/// Who asked gives its port up before it is answered, and takes it again: the answer is no question, which it would go on to
/// answer once its rule is gone.
#[test]
fn who_asked_from_a_port_that_it_gave_up_is_answered_and_asked_nothing() {
    const GIVES_UP: &str = "
import ctypes, os, socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(0.1); to = '10.1.1.10', 53; n = 0
s.sendto(b'x', to); port = s.getsockname()[1]
assert ctypes.CDLL(None).connect(s.fileno(), bytes(16), 16) == 0
s.bind(('0.0.0.0', port)); print('bound', flush=True)
while True:
    try:
        if n: s.sendto(b'x', to)
        s.recvfrom(100); n += 1; print('answered', n, flush=True)
        while not os.path.exists(sys.argv[1]): time.sleep(0.05)
    except OSError as e:
        if n: print(e.strerror, flush=True)
    time.sleep(0.05)
";
    const SLOW: &str = "
import os, socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('10.1.1.10', 53)); print('hears', flush=True)
while True:
    data, who = s.recvfrom(100); print('asked', flush=True)
    while not os.path.exists(sys.argv[1]): time.sleep(0.05)
    s.sendto(data, who)
";
    let scene = scene(OPEN);
    scene.programs([("gives-up.py", GIVES_UP), ("slow.py", SLOW)]);
    let web = scene.start("web", "exec python3 {f}/slow.py {f}/go", "hears");
    let app = scene.start("app", "exec python3 {f}/gives-up.py {f}/on", "bound");
    web.until("asked");
    scene.file("go", "");
    app.until("answered 1");
    scene.apply(&format!(
        "{OPEN}    policy:\n      rules:\n        - {{name: no, action: deny, from: {{endpoint: app}}, to: {{endpoint: web}}, protocol: udp, ports: [53]}}\n"
    ));
    scene.file("on", "");
    app.until("Permission denied");
    assert!(!app.out().contains("answered 2"), "{}", app.out());
}

/// The thread that made and connected it is gone, and it is at another number.
#[test]
fn a_connected_socket_that_moved_is_cut_and_joined_again() {
    const MOVED: &str = "
import fcntl, os, socket, threading, time
made = []
def makes():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(('10.1.1.10', 53))
    made.append(fcntl.fcntl(s, fcntl.F_DUPFD, 3)); s.close()
t = threading.Thread(target=makes); t.start(); t.join()
socket.socket().close()
print('connected', flush=True); n = 0
while True:
    try: os.write(made[0], b'pulse %d' % n)
    except OSError: pass
    n += 1; time.sleep(0.1)
";
    let scene = scene(&format!("{OPEN}{GUARDED}"));
    scene.file("moved.py", MOVED);
    let web = hear(&scene, "web", "0.0.0.0 53");
    let _app = scene.start("app", "exec python3 {f}/moved.py", "connected");
    web.until("pulse 3");
    scene.apply(&format!("{OPEN}{}", GUARDED.replace("[53]", "[99]")));
    falls_silent(&scene, &web);
    let heard = web.out().lines().count();
    // And linked again where it was found.
    scene.apply(&format!("{OPEN}{GUARDED}"));
    let goes_on = |_: &e2e::Instance| web.out().lines().count() > heard + 2;
    assert!(scene.instance.until(Duration::from_secs(5), goes_on));
}

/// Its own way is denied; the other is not, and it hears by it.
#[test]
fn a_socket_that_is_cut_still_hears_who_may_send_to_it() {
    const BOTH: &str = r"        - {name: web-tells, action: allow, from: {endpoint: web}, to: {endpoint: app}, protocol: udp, ports: [7000]}
";
    const HEARS: &str = "
import socket, threading, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('10.1.1.11', 7000)); s.connect(('10.1.1.10', 53))
def pulses():
    while True:
        try: s.send(b'pulse')
        except OSError: pass
        time.sleep(0.1)
threading.Thread(target=pulses, daemon=True).start(); print('connected', flush=True)
while True:
    try: print('came', s.recv(100).decode(), flush=True)
    except OSError: time.sleep(0.05)
";
    // It answers nobody: who is told something by its rule may answer that.
    const LISTENS: &str = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('10.1.1.10', 53)); print('listens', flush=True)
while True:
    data, who = s.recvfrom(100)
    print(who[0], data.decode(), flush=True)
";
    let both = format!("{OPEN}{GUARDED}{BOTH}");
    let scene = scene(&both);
    scene.file("hears.py", HEARS);
    scene.file("listens.py", LISTENS);
    let web = scene.start("web", "exec python3 {f}/listens.py", "listens");
    let app = scene.start("app", "exec python3 {f}/hears.py", "connected");
    web.until("10.1.1.11 pulse");
    scene.apply(&both.replace("[53]", "[99]"));
    falls_silent(&scene, &web);
    drop(web);
    let tells = line("send 10.1.1.11 7000 10.1.1.10 53");
    assert_eq!(scene.says("web", &tells), "sent\n");
    app.until("came unasked");
}
