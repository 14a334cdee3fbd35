//! DPDK: the generator over its ports, and testpmd that forwards bare, without a look at
//! what it forwards.

use super::{Load, Shape, Trial};
use crate::peer;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const SOURCE: &str = include_str!("../../peers/dpdk_load.c");
/// Megabytes of huge pages of a generator and of testpmd.
const GENERATOR_MB: u32 = 128;
const TESTPMD_MB: u32 = 192;

/// How two ports are joined to a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// Shared memory between two DPDK programs.
    Memif,
    /// virtio-user here, a vhost back end at the switch, which listens.
    Vhost,
    /// The same, and the switch connects.
    VhostClient,
}

/// Huge pages, so many more than there were; given back at the end.
pub struct HugePages(u64);

/// Open vSwitch 1 GB at most, testpmd and two generators.
const MEGABYTES: u64 = 2048;
const PAGES: &str = "/proc/sys/vm/nr_hugepages";

impl HugePages {
    /// Asks for what the DPDK programs of one bench need together.
    pub fn take() -> Result<HugePages, String> {
        let pages = MEGABYTES / 2;
        let now = read_pages()?;
        std::fs::write(PAGES, (now + pages).to_string()).map_err(|e| format!("{PAGES}: {e}"))?;
        let taken = HugePages(pages);
        match read_pages()? >= now + pages {
            true => Ok(taken),
            false => Err(format!(
                "peer missing: no {MEGABYTES} MB of huge pages here"
            )),
        }
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if let Ok(now) = read_pages() {
            let _ = std::fs::write(PAGES, now.saturating_sub(self.0).to_string());
        }
    }
}

fn read_pages() -> Result<u64, String> {
    let text = std::fs::read_to_string(PAGES).map_err(|e| format!("{PAGES}: {e}"))?;
    text.trim().parse().map_err(|_| format!("{PAGES}: {text}"))
}

/// A folder for a peer's files: the last of it that goes.
pub struct Folder(PathBuf);

impl Folder {
    /// Makes it.
    pub fn make(prefix: &str) -> Result<Folder, String> {
        e2e::private_folder(prefix).map(Folder)
    }
}

impl std::ops::Deref for Folder {
    type Target = Path;
    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A process with words in and lines out; ends with this.
pub struct Program {
    child: Child,
    input: Option<ChildStdin>,
    output: Option<BufReader<ChildStdout>>,
    log: PathBuf,
}

impl Program {
    /// Starts it; what it complains of goes to a file in `folder`.
    pub fn start(mut command: Command, folder: &Path, name: &str) -> Result<Program, String> {
        let log = folder.join(format!("{name}.log"));
        let file = std::fs::File::create(&log).map_err(|e| e.to_string())?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(file)
            .spawn()
            .map_err(|e| format!("peer missing: {:?}: {e}", command.get_program()))?;
        Ok(Program {
            input: child.stdin.take(),
            output: child.stdout.take().map(BufReader::new),
            child,
            log,
        })
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The next line that it prints.
    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        let output = self.output.as_mut().ok_or("no output")?;
        output.read_line(&mut line).map_err(|e| e.to_string())?;
        match line.is_empty() {
            false => Ok(line.trim().to_owned()),
            true => Err(format!(
                "it ended: {}",
                std::fs::read_to_string(&self.log).unwrap_or_default()
            )),
        }
    }

    /// Says a line and gives the answer.
    fn ask(&mut self, words: &str) -> Result<String, String> {
        let input = self.input.as_mut().ok_or("no input")?;
        writeln!(input, "{words}").map_err(|e| format!("{words}: {e}"))?;
        self.line().map_err(|e| format!("{words}: {e}"))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Where it was stopped it would not hear that its input is at its end.
        super::signal(&[self.id()], rustix::process::Signal::CONT);
        self.input = None;
        let patience = Instant::now() + Duration::from_secs(2);
        while Instant::now() < patience {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The generator and sink, on core 1.
pub struct Generator {
    program: Program,
    /// The switch's process, as a run is told it.
    switch: u32,
}

impl Generator {
    /// Starts it over sockets `0` and `1` in `folder`, or those given.
    pub fn start(
        wire: Wire,
        folder: &Path,
        sockets: &[PathBuf; 2],
        macs: &[String; 2],
    ) -> Result<Generator, String> {
        let pkg = said("pkg-config", &["--cflags", "--libs", "libdpdk"])?;
        let flags: Vec<&str> = pkg.split_whitespace().collect();
        let built = peer::built("dpdk_load", SOURCE, &flags)?;
        let mut command = Command::new(built);
        command.args(eal(1, GENERATOR_MB, "bhgen"));
        for (n, (socket, mac)) in sockets.iter().zip(macs).enumerate() {
            command.arg(match wire {
                Wire::Memif => memif("client", n, socket),
                Wire::Vhost | Wire::VhostClient => format!(
                    "--vdev=virtio_user{n},path={},queues=1,queue_size=1024,mrg_rxbuf=0,in_order=1,mac={mac}{}",
                    socket.display(),
                    if wire == Wire::VhostClient { ",server=1" } else { "" }
                ),
            });
        }
        let mut program = Program::start(command, folder, "generator")?;
        // What the libraries print on standard output comes before.
        while program.line()? != "ready" {}
        Ok(Generator { program, switch: 0 })
    }

    /// Waits until both ports are linked, says who they are and has a switch learn it.
    pub fn join(
        &mut self,
        macs: &[String; 2],
        addresses: &[String; 2],
        switch: u32,
        learn: bool,
    ) -> Result<(), String> {
        self.switch = switch;
        let patience = Instant::now() + Duration::from_secs(20);
        while self.program.ask("links")? != "2" {
            if Instant::now() > patience {
                return Err("the ports are not linked within 20 s".into());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let ([a, b], [x, y]) = (macs, addresses);
        self.program.ask(&format!("stations {a} {x} {b} {y}"))?;
        let mut said = String::new();
        for _ in 0..25 {
            if !learn {
                return Ok(());
            }
            said = self.program.ask("learn")?;
            if said.starts_with("ok") {
                return Ok(());
            }
        }
        Err(format!("no frames pass: {said}"))
    }

    /// A packet of each flow both ways.
    pub fn converse(&mut self, flows: u32) -> Result<(), String> {
        match self.program.ask(&format!("converse {flows}"))? {
            said if said == "ok" => Ok(()),
            said => Err(format!("{flows} connections: {said}")),
        }
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.program.id()
    }

    /// A run, as [`Load::run`].
    pub fn run(&mut self, shape: &Shape, pps: f64) -> Result<Trial, String> {
        let words = format!(
            "run {} {} {pps:.0} {} {}",
            shape.size,
            shape.flows,
            shape.time.as_secs_f64() * 1e3,
            if shape.every {
                -1
            } else {
                i64::from(self.switch)
            }
        );
        let said = self.program.ask(&words)?;
        let all = numbers(&said)?;
        let [offered, got, seconds, clean, _, p50, p99, p999, taken] = all[..] else {
            return Err(format!("{words}: {said}"));
        };
        Ok(Trial {
            offered,
            got,
            seconds,
            clean: clean as u32,
            delays: [p50, p99, p999],
            taken: taken as u64,
        })
    }
}

fn numbers(text: &str) -> Result<Vec<f64>, String> {
    let words = text.split_whitespace();
    let all: Result<_, _> = words.map(str::parse::<f64>).collect();
    all.map_err(|_| format!("no numbers: {text}"))
}

fn said(program: &str, words: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(words).output();
    let output = output.map_err(|e| format!("peer missing: {program}: {e}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("peer missing: {program} {}", words.join(" "))),
    }
}

/// The version of DPDK here.
pub fn version() -> Result<String, String> {
    Ok(said("pkg-config", &["--modversion", "libdpdk"])?
        .trim()
        .to_owned())
}

fn memif(role: &str, n: usize, socket: &Path) -> String {
    format!(
        "--vdev=net_memif{n},role={role},id={n},socket={},socket-abstract=no,rsize=10",
        socket.display()
    )
}

/// Apart from every other DPDK program: no files of its runs shared, huge pages by memfd.
fn eal(core: usize, megabytes: u32, prefix: &str) -> Vec<String> {
    let lcores = match core {
        // testpmd wants one for its words beside the one that forwards.
        0 => "(0,1)@0".to_owned(),
        core => format!("0@{core}"),
    };
    [
        format!("--lcores={lcores}"),
        "--in-memory".into(),
        "--single-file-segments".into(),
        "--no-pci".into(),
        "--no-telemetry".into(),
        "-m".into(),
        megabytes.to_string(),
        "--log-level=3".into(),
        format!("--file-prefix={prefix}"),
    ]
    .into()
}

const MACS: [&str; 2] = ["02:00:00:00:00:0a", "02:00:00:00:00:0b"];
const ADDRESSES: [&str; 2] = ["10.1.1.10", "10.1.1.11"];

/// Who the generator's ports are where the switch does not care.
pub fn stations() -> ([String; 2], [String; 2]) {
    (MACS.map(str::to_owned), ADDRESSES.map(str::to_owned))
}

/// testpmd on core 0, with its generator.
pub struct Testpmd {
    // The generator first: it lets go of the sockets.
    generator: Generator,
    testpmd: Program,
    _folder: Folder,
}

impl Testpmd {
    /// Starts both.
    pub fn start(wire: Wire) -> Result<Testpmd, String> {
        let folder = Folder::make("bulkhead-testpmd-")?;
        let sockets = match wire {
            Wire::Memif => [folder.join("m"), folder.join("m")],
            _ => [folder.join("0"), folder.join("1")],
        };
        let mut command = Command::new("dpdk-testpmd");
        command.args(eal(0, TESTPMD_MB, "bhpmd"));
        for (n, socket) in sockets.iter().enumerate() {
            command.arg(match wire {
                Wire::Memif => memif("server", n, socket),
                _ => format!("--vdev=net_vhost{n},iface={},queues=1", socket.display()),
            });
        }
        command.args([
            "--",
            "--nb-cores=1",
            "--forward-mode=io",
            "--total-num-mbufs=32768",
            "--rxd=1024",
            "--txd=1024",
            "--auto-start",
            "-i",
        ]);
        let testpmd = Program::start(command, &folder, "testpmd")?;
        let patience = Instant::now() + Duration::from_secs(10);
        while !sockets[0].exists() {
            if Instant::now() > patience {
                let log = std::fs::read_to_string(&testpmd.log).unwrap_or_default();
                return Err(format!("testpmd does not listen: {log}"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        std::thread::sleep(Duration::from_millis(500));
        let (macs, addresses) = stations();
        let mut generator = Generator::start(wire, &folder, &sockets, &macs)?;
        generator.join(&macs, &addresses, testpmd.id(), true)?;
        super::signal(&[testpmd.id()], rustix::process::Signal::STOP);
        Ok(Testpmd {
            generator,
            testpmd,
            _folder: folder,
        })
    }
}

impl Load for Testpmd {
    fn run(&mut self, shape: &Shape, pps: f64) -> Result<Trial, String> {
        self.generator.run(shape, pps)
    }
    fn switch(&self) -> Vec<u32> {
        vec![self.testpmd.id()]
    }
    fn generator(&self) -> Option<u32> {
        Some(self.generator.id())
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        super::signal(&[self.testpmd.id()], rustix::process::Signal::CONT);
    }
}
