//! More programs that know nothing of circuits, with their servers: packages, mail, peers of a
//! torrent, a game, tokio.

use crate::scene::{OPEN, Program, Scene};
use e2e::Said;
use std::process::Command;
use std::time::Duration;

/// A shell line on this machine; it must succeed.
fn here(scene: &Scene, line: &str) -> String {
    let line = line.replace("{f}", &scene.files());
    let said = Said::of(Command::new("sh").args(["-ec", &line])).unwrap();
    assert!(said.ok(), "{line}: {said:?}");
    said.out
}

/// A line as an unprivileged user, not waited for.
fn start_as_nobody(scene: &Scene, at: &str, line: &str) -> Program {
    scene.spawn(scene.command_of(at, &["--user", "nobody"], line))
}

/// A package and a mirror that has it; all of apt's own is in folders of the test's.
const MIRROR: &str = r#"
mkdir -p {f}/package/DEBIAN {f}/package/usr/share/greeting {f}/mirror
head -c 5000000 /dev/urandom > {f}/package/usr/share/greeting/data
cat > {f}/package/DEBIAN/control <<END
Package: greeting
Version: 1.0
Architecture: all
Maintainer: a <a@example.com>
Description: says hello
END
cd {f}/mirror
dpkg-deb -Znone --build {f}/package greeting.deb > /dev/null
{
  dpkg-deb -f greeting.deb
  echo Filename: ./greeting.deb
  echo Size: $(stat -c %s greeting.deb)
  echo SHA256: $(sha256sum greeting.deb | cut -d' ' -f1)
} > Packages
mkdir -p {f}/apt/etc/apt.conf.d {f}/apt/etc/preferences.d {f}/apt/state/lists {f}/apt/cache/archives {f}/apt/log
: > {f}/apt/state/status
echo 'deb [trusted=yes] http://10.1.1.10/ ./' > {f}/apt/etc/sources.list
cat > {f}/apt.conf <<END
Dir "{f}/apt/"; Dir::Etc "etc"; Dir::State "state"; Dir::State::status "{f}/apt/state/status";
Dir::Cache "cache"; Dir::Log "log"; Acquire::http::Proxy "DIRECT"; Acquire::Languages "none";
END
"#;

#[test]
fn apt_and_aptitude_fetch_from_a_mirror() {
    let scene = Scene::of(OPEN);
    here(&scene, MIRROR);
    let conf = "daemon off; worker_processes 1; pid {f}/nginx.pid; error_log stderr;
events {} http { access_log {f}/asked; server { listen 80; root {f}/mirror; } }";
    scene.file("nginx.conf", &conf.replace("{f}", &scene.files()));
    let line = "exec nginx -e stderr -p {f} -c {f}/nginx.conf";
    let _nginx = scene.serve("web", line, "10.1.1.10", 80);
    let apt = |line: &str| {
        let line = format!("export APT_CONFIG={{f}}/apt.conf; {line}");
        let said = scene.sh("app", &line);
        assert!(said.ok(), "{line}: {said:?}");
        // Its methods fetch as `_apt`, and not as who runs it.
        assert!(!said.err.contains("unsandboxed"), "{}", said.err);
        said.out
    };
    let fetched = "cmp {f}/mirror/greeting.deb {f}/apt/cache/archives/greeting_1.0_all.deb";
    // Without and with the filter of system calls that apt's methods have of their own.
    for filter in ["false", "true"] {
        let with = format!("-q -o APT::Sandbox::Seccomp={filter}");
        apt(&format!(
            "rm -rf {{f}}/apt/state/lists/*; apt-get {with} update"
        ));
        assert!(apt("apt-cache show greeting").contains("says hello"));
        apt(&format!(
            "apt-get {with} -y -d install greeting && {fetched}"
        ));
        apt("apt-get clean");
    }
    assert_eq!(
        here(&scene, "stat -c %U {f}/apt/state/lists/partial"),
        "_apt\n"
    );
    apt(&format!("aptitude -q -y -d install greeting && {fetched}"));
    let asked = std::fs::read_to_string(format!("{}/asked", scene.files())).unwrap();
    assert!(asked.lines().count() >= 5, "{asked}");
    assert!(
        asked.lines().all(|line| line.starts_with("10.1.1.11 ")),
        "{asked}"
    );
    assert!(asked.contains("Debian APT-HTTP"), "{asked}");
}

const DOVECOT: &str = "base_dir = {f}/run
state_dir = {f}/state
log_path = {f}/dovecot.log
protocols = imap
listen = 10.1.1.10, fd00:1::10
ssl = no
disable_plaintext_auth = no
mail_location = maildir:{f}/mail
first_valid_uid = 1
passdb {
  driver = static
  args = password=word
}
userdb {
  driver = static
  args = uid=mail gid=mail home={f}/home
}
service imap-login {
  inet_listener imap {
    port = 143
  }
  inet_listener imaps {
    port = 0
  }
}
";

const MUTT: &str = "set folder=\"imap://somebody@{host}/\"
set spoolfile=+INBOX imap_pass=word tmpdir={f} record=\"\" header_cache=\"\"
set ssl_starttls=no ssl_force_tls=no quit=yes wait_key=no
";

#[test]
fn mutt_reads_mail_by_imap() {
    let scene = Scene::of(OPEN);
    let text = |text: &str, host: &str| text.replace("{f}", &scene.files()).replace("{host}", host);
    scene.file("dovecot.conf", &text(DOVECOT, ""));
    let mail = "mkdir -p {f}/mail/cur {f}/mail/new {f}/mail/tmp {f}/home {f}/run {f}/state
printf 'From: a@example.com\\nSubject: by circuits\\n\\nthe body of it\\n' > {f}/mail/new/1.mail
chown -R mail {f}/mail {f}/home";
    here(&scene, mail);
    let line = "exec /usr/sbin/dovecot -F -c {f}/dovecot.conf";
    let _dovecot = scene.serve("web", line, "10.1.1.10", 143);
    // It wants a terminal: opens the message, has its text written to a file, marks it.
    for (host, marks) in [("10.1.1.10", "<flag-message>"), ("[fd00:1::10]", "")] {
        let keys = format!("<pipe-message>cat >>{{f}}/piped<enter>{marks}<sync-mailbox><quit>");
        scene.file("muttrc", &text(MUTT, host));
        let line = format!(
            "export HOME={{f}} TERM=vt100; exec timeout 20 script -qec 'mutt -n -F {{f}}/muttrc -e \"push \\\"{keys}\\\"\"' /dev/null"
        );
        let screen = scene.says("app", &line);
        assert!(screen.contains("by circuits"), "{screen}");
    }
    let piped = std::fs::read_to_string(format!("{}/piped", scene.files())).unwrap();
    assert_eq!(piped.matches("the body of it").count(), 2, "{piped}");
    // What it marked its server has.
    let kept = here(&scene, "ls {f}/mail/cur");
    assert!(
        kept.starts_with("1.mail:2,") && kept.contains('F'),
        "{kept}"
    );
    let log = std::fs::read_to_string(format!("{}/dovecot.log", scene.files())).unwrap();
    assert!(log.contains("rip=10.1.1.11, lip=10.1.1.10"), "{log}");
    assert!(log.contains("rip=fd00:1::11, lip=fd00:1::10"), "{log}");
}

/// Nobody is found but by the tracker.
const TRANSMISSION: &str = r#"{"dht-enabled": false, "lpd-enabled": false, "pex-enabled": false,
"port-forwarding-enabled": false, "rpc-enabled": false, "utp-enabled": true}"#;

#[test]
fn a_torrent_reaches_three_endpoints() {
    let scene = Scene::of(OPEN);
    let make = "
for at in web app few; do mkdir -p {f}/$at {f}/of-$at; cp {f}/settings.json {f}/of-$at; done
head -c 6000000 /dev/urandom > {f}/web/data
transmission-create -o {f}/torrent -t udp://10.1.1.10:6969/announce {f}/web/data > {f}/made 2>&1
transmission-show {f}/torrent | sed -n 's/.*Hash: //p' > {f}/known
chown -R nobody {f}/web {f}/app {f}/few {f}/of-* {f}/torrent";
    scene.file("settings.json", TRANSMISSION);
    here(&scene, make);
    let line = "exec opentracker -i 10.1.1.10 -p 6969 -P 6969 -d {f}/web -w {f}/known";
    let tracker = start_as_nobody(&scene, "web", line);
    // Who asks it before it is there asks again a minute later. It has both ports before it
    // answers by either.
    let asked = "curl -s --max-time 2 http://10.1.1.10:6969/stats";
    let answers = |_: &e2e::Instance| !scene.sh("app", asked).out.is_empty();
    let limit = Duration::from_secs(20);
    assert!(scene.instance.until(limit, answers), "{}", tracker.err());
    // It verifies what is new to it. Asked to by `-v` it does so twice, and ends where it looks between the two.
    let transmission = |at: &str| {
        let line = format!(
            "export HOME={{f}}/{at}; exec transmission-cli -ep -g {{f}}/of-{at} -w {{f}}/{at} {{f}}/torrent"
        );
        start_as_nobody(&scene, at, &line)
    };
    let all = ["web", "app", "few"].map(transmission);
    let of = |at: &str| std::fs::read(format!("{}/{at}/data", scene.files())).unwrap_or_default();
    let wanted = of("web");
    assert_eq!(wanted.len(), 6_000_000);
    // Who may fetch is decided every ten seconds.
    let limit = Duration::from_secs(120);
    let came = |_: &e2e::Instance| ["app", "few"].iter().all(|at| of(at) == wanted);
    assert!(
        scene.instance.until(limit, came),
        "{}",
        all.map(|it| it.out() + &it.err()).concat()
    );
}

/// A map of one empty room, as Quake III reads them (IBSP 46): entities, one shader, a plane each
/// way, a node, a leaf, a model; nothing to see.
const ROOM: &str = r#"
import struct, sys
entities = b'{\n"classname" "worldspawn"\n}\n{\n"classname" "info_player_deathmatch"\n"origin" "0 0 0"\n}\n\0'
low, high = [-512] * 3, [512] * 3
lumps = [entities, struct.pack('<64sii', b'noshader', 0, 0), struct.pack('<8f', 1, 0, 0, 0, -1, 0, 0, 0),
    struct.pack('<9i', 0, -1, -1, *low, *high), struct.pack('<12i', 0, 0, *low, *high, 0, 0, 0, 0),
    b'', b'', struct.pack('<6f4i', *low, *high, 0, 0, 0, 0)] + [b''] * 9
at, table = 8 + 8 * len(lumps), b''
for lump in lumps:
    table += struct.pack('<ii', at, len(lump)); at += len(lump)
open(sys.argv[1], 'wb').write(b'IBSP' + struct.pack('<i', 46) + table + b''.join(lumps))
"#;

/// A server of an empty room at web, as an unprivileged user.
fn game(scene: &Scene) -> Program {
    scene.file("room.py", ROOM);
    let make = "mkdir -p {f}/base/room/maps {f}/home && echo > {f}/base/room/default.cfg
cp /usr/lib/ioquake3/baseq3/qagamex86_64.so {f}/base/room
/usr/bin/python3 {f}/room.py {f}/base/room/maps/empty.bsp && chown nobody {f}/home";
    here(scene, make);
    let line = "export HOME={f}/home; exec /usr/lib/ioquake3/ioq3ded +set com_standalone 1 +set com_basegame room \
        +set fs_basepath {f}/base +set fs_homepath {f}/home +set dedicated 1 +set vm_game 0 +set bot_enable 0 \
        +set sv_hostname circuits +set rconPassword word +set net_enabled 3 +set net_ip 10.1.1.10 +set net_ip6 fd00:1::10 +map empty";
    let server = start_as_nobody(scene, "web", line);
    let limit = Duration::from_secs(20);
    let asks = |_: &e2e::Instance| players(scene) == Some(0);
    assert!(scene.instance.until(limit, asks), "{:?}", server.err());
    server
}

/// As many play, as the server tells whoever asks it.
fn players(scene: &Scene) -> Option<u32> {
    let line = "quakestat -raw , -nh -q3s 10.1.1.10 -timeout 1";
    let said = scene.sh("app", line).out;
    // Kind, address, name, map, most players, players, milliseconds, retries.
    let rest = said.strip_prefix("Q3S,10.1.1.10,circuits,empty,8,")?;
    rest.split(',').next()?.parse().ok()
}

/// What the server answers who knows its word, by IPv6.
fn commands(scene: &Scene, command: &str) -> String {
    let line = r#"/usr/bin/python3 -c '
import socket
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); s.settimeout(5)
s.connect(("fd00:1::10", 27960)); s.send(b"\xff" * 4 + b"rcon word COMMAND"); print(s.recv(4000).decode("latin"))'"#;
    scene.says("app", &line.replace("COMMAND", command))
}

#[test]
fn a_game_server_is_asked_by_datagrams() {
    let scene = Scene::of(OPEN);
    let _server = game(&scene);
    // Questions one after another, each by a socket of its own (of ten at once it passes some over)
    // and its commands by IPv6.
    let line = "for i in $(seq 8); do quakestat -raw , -nh -q3s 10.1.1.10; done | grep -c ,circuits,empty,";
    assert_eq!(scene.says("few", line), "8\n");
    let said = commands(&scene, "status");
    assert!(said.contains("map: empty"), "{said}");
}

/// Whoever joins a Quake III server: asks for a number, and gives it back with what is to be known
/// of the player, which is packed as the server unpacks it: by a tree that grows with each byte
/// (FGK).
const JOINS: &str = r#"
import socket, sys
class Node:
    def __init__(self, parent, weight): self.parent, self.weight, self.left, self.right = parent, weight, None, None
class Packs:
    def __init__(self):
        self.new = Node(None, 0)
        # The lightest first.
        self.all, self.known = [self.new], {}
    def way(self, node):
        bits = []
        while node.parent:
            bits.append(int(node.parent.right is node)); node = node.parent
        return bits[::-1]
    def change_places(self, a, b):
        here, there = self.all.index(a), self.all.index(b)
        self.all[here], self.all[there] = b, a
    def change_parents(self, a, b):
        right_of_a, right_of_b = a.parent.right is a, b.parent.right is b
        a.parent, b.parent = b.parent, a.parent
        for node, right in (a, right_of_b), (b, right_of_a):
            if right: node.parent.right = node
            else: node.parent.left = node
    def heavier(self, node):
        if node is None: return
        last = [other for other in self.all if other.weight == node.weight][-1]
        if last is not node:
            if last is not node.parent: self.change_parents(last, node)
            self.change_places(last, node)
        node.weight += 1
        if node.parent:
            self.heavier(node.parent)
            at = self.all.index(node)
            if at and self.all[at - 1] is node.parent: self.change_places(node, node.parent)
    def byte(self, byte):
        if byte in self.known:
            bits = self.way(self.known[byte])
            self.heavier(self.known[byte])
            return bits
        bits = self.way(self.new) + [byte >> n & 1 for n in range(7, -1, -1)]
        both = Node(self.new.parent, 1)
        leaf = Node(both, 1)
        both.left, both.right = self.new, leaf
        if both.parent and both.parent.left is self.new: both.parent.left = both
        elif both.parent: both.parent.right = both
        self.new.parent, self.known[byte] = both, leaf
        self.all[1:1] = [leaf, both]
        self.heavier(both.parent)
        return bits
def packed(text):
    packs = Packs()
    bits = [bit for byte in text for bit in packs.byte(byte)]
    octets = (bits[n:n + 8] for n in range(0, len(bits), 8))
    return len(text).to_bytes(2, 'big') + bytes(sum(bit << n for n, bit in enumerate(octet)) for octet in octets)
def asks(s, text, *words):
    # What is lost is asked for again, as games do, and answers to what was asked before are none.
    for _ in range(4):
        s.send(b'\xff' * 4 + text)
        try:
            while True:
                answer = s.recv(4000)
                for word in words:
                    if answer.startswith(b'\xff' * 4 + word): return answer[4:].decode().strip()
        except TimeoutError: pass
    sys.exit(f'no {words}')
to, name = sys.argv[1:]
s = socket.socket(socket.AF_INET6 if ':' in to else socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(5); s.connect((to, 27960))
def joins(number, word):
    what = f'"\\protocol\\71\\challenge\\{number}\\qport\\{s.getsockname()[1]}\\name\\{name}\\rate\\25000\\snaps\\20"'
    return asks(s, b'connect ' + packed(what.encode()), word)
word, number, own, protocol = asks(s, b'getchallenge 4711 Quake3Arena', b'challengeResponse').split()
print(word, own, protocol)
print(joins(int(number) ^ 1, b'print'))
print(joins(number, b'connectResponse').replace(number, 'N'))
"#;

/// One joins who gives back the number that it was given, and is told so; the server knows each by
/// its endpoint's address.
#[test]
fn players_join_a_game_server() {
    let scene = Scene::of(OPEN);
    let _server = game(&scene);
    scene.file("joins.py", JOINS);
    let all = [("app", "10.1.1.10", "ann"), ("few", "fd00:1::10", "bob")];
    for (n, (at, to, name)) in (1..).zip(all) {
        let said = scene.says(at, &format!("/usr/bin/python3 {{f}}/joins.py {to} {name}"));
        let expected = "challengeResponse 4711 71
print
No or bad challenge for your address.
connectResponse N
";
        assert_eq!(said, expected);
        assert_eq!(players(&scene), Some(n));
    }
    let said = commands(&scene, "status");
    for (name, address) in [("ann", "^710.1.1.11 "), ("bob", "^7fd00:1::12 ")] {
        let of = |line: &&str| line.contains(name) && line.contains(address);
        assert_eq!(said.lines().filter(of).count(), 1, "{said}");
    }
}

#[test]
fn a_static_rust_program_on_tokio_serves_and_asks() {
    let scene = Scene::of(OPEN);
    // Every user may read it there.
    let to = scene.file("tokio", "");
    std::fs::copy(e2e::program("bulkhead-tokio"), to).unwrap();
    let run = |at: &str, line: &str| scene.run(scene.command_of(at, &["--user", "nobody"], line));
    for address in ["10.1.1.10:7000", "[fd00:1::10]:7000"] {
        let server = start_as_nobody(&scene, "web", &format!("exec {{f}}/tokio serve {address}"));
        server.until("serving");
        let said = run("app", &format!("exec {{f}}/tokio ask {address} 100"));
        assert_eq!(said.out, "100 100\n", "{said:?}");
    }
    let said = run("app", "exec {f}/tokio closed 10.1.1.10:1");
    assert_eq!(said.out, "Some(ConnectionRefused) true\n", "{said:?}");
}
