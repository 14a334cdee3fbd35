//! Three tiers, each in an endpoint of its own: a proxy of HTTP, an application, a database. On
//! circuits, under rules that let each ask the next alone, and on a bridge: the same programs, the
//! same answers.

use crate::scene::{OPEN, Program, Scene};
use e2e::{Namespace, Said};
use std::process::Command;
use std::time::{Duration, Instant};

/// Anybody asks the proxy, the proxy the application, the application the database.
const RULES: &str = "    policy:
      default: {inside: deny}
      rules:
        - {name: to-proxy, action: allow, from: any, to: {endpoint: web}, protocol: tcp, ports: [80]}
        - {name: to-app, action: allow, from: {endpoint: web}, to: {endpoint: app}, protocol: tcp, ports: [8000]}
        - {name: to-db, action: allow, from: {endpoint: app}, to: {endpoint: few}, protocol: tcp, ports: [6379]}
";

const PROXY: &str =
    "daemon off; user www-data; worker_processes 1; pid {f}/{on}.pid; error_log stderr;
events { worker_connections 256; }
http {
  access_log off; keepalive_requests 100000;
  client_body_temp_path {f}/body; proxy_temp_path {f}/proxy; fastcgi_temp_path {f}/fastcgi;
  uwsgi_temp_path {f}/uwsgi; scgi_temp_path {f}/scgi;
  upstream app { server 10.1.1.11:8000; keepalive 16; }
  server {
    listen 80;
    location / { proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Connection ''; proxy_set_header From $remote_addr; }
  }
}
";

/// `PUT /NAME` keeps a body in redis, `GET /NAME` gives it, `POST /NAME` adds one to a number; each
/// thread, which is each connection of the proxy's, has a connection to the database of its own.
const APPLICATION: &str = r#"
import http.server, socket, threading
held = threading.local()
def redis(*words):
    if not hasattr(held, 'file'):
        held.file = socket.create_connection(('10.1.1.12', 6379)).makefile('rwb')
    held.file.write(b'*%d\r\n' % len(words) + b''.join(b'$%d\r\n%s\r\n' % (len(w), w) for w in words))
    held.file.flush()
    kind, rest = (line := held.file.readline().rstrip())[:1], line[1:]
    if kind != b'$' or rest == b'-1': return rest
    return held.file.read(int(rest) + 2)[:-2]
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version, disable_nagle_algorithm = 'HTTP/1.1', True
    def answer(self, body):
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.send_header('Seen-From', self.client_address[0] + ' ' + self.headers['From'])
        self.end_headers(); self.wfile.write(body)
    def do_GET(self): self.answer(redis(b'GET', self.path.encode()))
    def do_POST(self): self.answer(redis(b'INCR', self.path.encode()))
    def do_PUT(self):
        body = self.rfile.read(int(self.headers['Content-Length']))
        self.answer(redis(b'SET', self.path.encode(), body))
    def log_message(self, *_): pass
class Server(http.server.ThreadingHTTPServer): request_queue_size = 128
print('serving', flush=True)
Server(('10.1.1.11', 8000), Handler).serve_forever()
"#;

/// Eight at once: each adds to one number, and keeps bodies of several sizes and reads them back.
const CLIENT: &str = r#"
import hashlib, http.client, threading
def ask(connection, method, path, body=None):
    connection.request(method, path, body); answer = connection.getresponse(); data = answer.read()
    if answer.status != 200: raise SystemExit(f'{method} {path}: {answer.status} {data}')
    return data, answer.headers['Seen-From']
wrong, seen = [], set()
def one(number):
    connection = http.client.HTTPConnection('10.1.1.10', 80, timeout=20)
    for turn in range(60):
        if turn % 20 == 0: connection.close()
        _, who = ask(connection, 'POST', '/count'); seen.add(who)
        body = hashlib.sha512(b'%d %d' % (number, turn)).digest() * (1, 16, 1500)[turn % 3]
        ask(connection, 'PUT', f'/{number}', body)
        if ask(connection, 'GET', f'/{number}')[0] != body: wrong.append((number, turn))
threads = [threading.Thread(target=one, args=(n,)) for n in range(8)]
for t in threads: t.start()
for t in threads: t.join()
count, _ = ask(http.client.HTTPConnection('10.1.1.10', 80), 'GET', '/count')
print(count.decode(), wrong, sorted(seen))
"#;

/// Where the tiers are.
enum On<'a> {
    Circuits(&'a Scene),
    Bridge(
        &'a Scene,
        [Namespace; 3],
        #[expect(dead_code, reason = "kept for as long as the tiers are")] Namespace,
    ),
}

impl On<'_> {
    fn bridge(scene: &Scene) -> On<'_> {
        let middle = Namespace::make().unwrap();
        middle.ip("link add br0 type bridge").unwrap();
        middle.ip("link set br0 up").unwrap();
        let tiers = [10, 11, 12].map(|host| {
            let tier = Namespace::make().unwrap();
            let veth = "link add eth0 type veth peer name";
            tier.ip(&format!("{veth} p{host} netns {}", middle.name))
                .unwrap();
            tier.ip(&format!("addr add 10.1.1.{host}/24 dev eth0"))
                .unwrap();
            tier.ip("link set eth0 up").unwrap();
            middle
                .ip(&format!("link set p{host} master br0 up"))
                .unwrap();
            tier
        });
        On::Bridge(scene, tiers, middle)
    }

    fn scene(&self) -> &Scene {
        match self {
            On::Circuits(scene) | On::Bridge(scene, ..) => scene,
        }
    }

    fn command(&self, at: &str, line: &str) -> Command {
        match self {
            On::Circuits(scene) => scene.command(at, line),
            On::Bridge(scene, tiers, _) => {
                let at = ["web", "app", "few"].iter().position(|it| *it == at);
                let line = line.replace("{f}", &scene.files());
                let mut command = tiers[at.unwrap()].command(&line);
                std::os::unix::process::CommandExt::process_group(&mut command, 0);
                command
            }
        }
    }

    fn start(&self, at: &str, line: &str, until: &str) -> Program {
        let program = self.scene().spawn(self.command(at, line));
        program.until(until);
        program
    }

    /// What the client says of the whole chain, and how long it took.
    fn answers(&self, name: &str) -> (String, Duration) {
        let scene = self.scene();
        let conf = PROXY.replace("{on}", name).replace("{f}", &scene.files());
        scene.file(&format!("{name}.conf"), &conf);
        let redis = "exec redis-server --port 6379 --bind 10.1.1.12 --protected-mode no --save '' --dir {f}";
        let _db = self.start("few", redis, "Ready to accept connections");
        let app = "exec /usr/bin/python3 {f}/application.py";
        let _app = self.start("app", app, "serving");
        let line = format!("exec nginx -e stderr -p {{f}} -c {{f}}/{name}.conf");
        let _proxy = scene.spawn(self.command("web", &line));
        let ready = "for i in $(seq 100); do curl -sSf -X PUT -d x http://10.1.1.10/x >/dev/null 2>&1 && exit; sleep 0.05; done; exit 1";
        let said: Said = scene.run(self.command("app", ready));
        assert!(said.ok(), "{name}: {}", _proxy.err());
        let begun = Instant::now();
        let said = scene.run(self.command("few", "exec /usr/bin/python3 {f}/client.py"));
        assert!(said.ok(), "{name}: {said:?}");
        (said.out, begun.elapsed())
    }
}

#[test]
fn a_chain_of_three_tiers_answers_as_on_a_bridge() {
    let scene = Scene::of(&format!("{OPEN}{RULES}"));
    scene.file("application.py", APPLICATION);
    scene.file("client.py", CLIENT);
    let (here, took) = On::Circuits(&scene).answers("circuits");
    // 480 times; nothing else than was kept; by the proxy, for the client.
    assert_eq!(here, "480 [] ['10.1.1.10 10.1.1.12']\n");
    // Past the proxy there is no way.
    let tries = scene.tries("few", "10.1.1.11,8000 10.1.1.12,6379");
    assert_eq!(tries[0], "EACCES");
    assert_eq!(scene.tries("web", "10.1.1.12,6379"), ["EACCES"]);
    let (there, bridge) = On::bridge(&scene).answers("bridge");
    assert_eq!(here, there);
    eprintln!("1,440 requests: {took:?} by circuits, {bridge:?} by a bridge");
}
