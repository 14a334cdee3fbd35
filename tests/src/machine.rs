//! Real virtual machines: QEMU, emulated where there is no KVM for it, with a Debian
//! kernel and a busybox that runs one script.

use crate::namespace::Ended;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Modules of the guest kernel, in the order in which they are loaded.
const MODULES: [&str; 8] = [
    "virtio_ring",
    "virtio",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "failover",
    "net_failover",
    "virtio_net",
];
/// What runs first: the script is the test's.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t devtmpfs d /dev; mount -t proc p /proc; mount -t sysfs s /sys
for m in MODULES; do insmod /m/$m.ko || echo "no module $m"; done
ip link set lo up; ip link set eth0 up
for n in 1 2 3 4 5 6 7 8 9 10; do [ "$(cat /sys/class/net/eth0/carrier)" = 1 ] && break; sleep 0.1; done
echo BOOTED
. /script
echo ENDED
poweroff -f
"#;
/// What its kernel is told. On a busy machine its timer is too slow for the check of it.
const APPENDED: &str = "console=ttyS0 quiet panic=-1 nokaslr mitigations=off no_timer_check";
/// Memory of a machine: 128 MiB and a little. When QEMU before 9.0 emulates a processor and
/// moves the machine, what the guest writes is not always copied if memory is a multiple of
/// 256 KiB: that way of reading which pages are dirty leaves its TLB as it was. Its kernel
/// has died of it.
const MEMORY: &str = "131080K";
/// A client's script, which sets what a DHCP server offers and prints it.
pub const DHCP: &str = r#"#!/bin/busybox sh
[ "$1" = bound ] || exit 0
ip addr add $ip/$mask dev $interface
[ -n "$router" ] && ip route add default via $router
echo "DHCP $ip/$mask via $router mtu $mtu"
"#;

/// Takes what comes to port 5001 and answers with its digest.
pub const TAKES: &str = "socat -t 60 TCP6-LISTEN:5001,fork,reuseaddr,ipv6only=0 EXEC:sha256sum";
/// The same in a machine that has `socat`, which also sends to whom port 5002 is told, and
/// has printed the digest of that.
const TALKS: &str = r#"dd if=/dev/urandom of=/data bs=64k count=UNITS 2>/dev/null
echo SUM $(sha256sum < /data)
printf '#!/bin/busybox sh\nread to\nexec socat -t 60 - $to < /data\n' > /bin/sends
chmod +x /bin/sends
TAKES &
socat -t 60 TCP6-LISTEN:5002,fork,reuseaddr,ipv6only=0 EXEC:sends &
echo SERVES
"#;

/// Lines of a script that let a machine take, and send so many bytes, a multiple of 64 KiB.
pub fn talks(bytes: u64) -> String {
    let units = (bytes >> 16).to_string();
    TALKS.replace("UNITS", &units).replace("TAKES", TAKES)
}

/// What its network interface is.
#[derive(Clone, Copy)]
pub enum Card<'a> {
    /// A vhost-user socket.
    Vhost(&'a Path),
    /// A tap of this name in a namespace: what is on the other side is that tap.
    Tap(&'a str, &'a str),
}

/// One machine, ended on drop.
pub struct Machine {
    process: Ended,
    console: PathBuf,
}

/// What a machine is like.
#[derive(Clone, Copy)]
pub struct Setup<'a> {
    /// Where its files go, and their names' beginning.
    pub folder: &'a Path,
    /// Its name.
    pub name: &'a str,
    /// Its network interface.
    pub card: Card<'a>,
    /// The interface's MAC.
    pub mac: &'a str,
    /// More for QEMU's virtio-net-pci, as `,packed=on`.
    pub device: &'a str,
    /// Pairs of queues; it has as many processors.
    pub queues: u32,
    /// Modules of its kernel besides those for the interface.
    pub modules: &'a [&'a str],
    /// Programs of this host that it has.
    pub programs: &'a [&'a str],
    /// More for QEMU.
    pub arguments: &'a [&'a str],
    /// What it runs once its interface is up.
    pub script: &'a str,
}

impl Machine {
    /// Boots one whose network interface is this vhost-user socket. `device`: more for
    /// QEMU's virtio-net-pci, as `,packed=on`. `folder` is the caller's own.
    pub fn boot(
        folder: &Path,
        name: &str,
        (socket, mac): (&Path, &str),
        device: &str,
        script: &str,
    ) -> Result<Machine, String> {
        Machine::start(&Setup {
            folder,
            name,
            card: Card::Vhost(socket),
            mac,
            device,
            queues: 1,
            modules: &[],
            programs: &[],
            arguments: &[],
            script,
        })
    }

    /// Boots one.
    ///
    /// # Errors
    /// A program, the kernel or a module is not there.
    pub fn start(setup: &Setup<'_>) -> Result<Machine, String> {
        let kernel = kernel()?;
        let file = |kind: &str| setup.folder.join(format!("{}.{kind}", setup.name));
        let image = file("cpio");
        pack(setup, &file("root"), &image)?;
        let console = file("console");
        // One of the same name that was there before has said what it has said.
        let _ = std::fs::remove_file(&console);
        let (queues, mac) = (setup.queues, setup.mac);
        let several = match queues {
            1 => "",
            _ => ",mq=on",
        };
        let mut qemu = match setup.card {
            Card::Vhost(_) => Command::new("qemu-system-x86_64"),
            Card::Tap(namespace, _) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", namespace, "qemu-system-x86_64"]);
                command
            }
        };
        qemu.args(["-accel", "tcg,tb-size=64", "-cpu", "max", "-M", "pc"])
            .args(["-m", MEMORY, "-display", "none", "-nodefaults"])
            .args(["-no-reboot", "-smp", &queues.to_string()])
            .args([Path::new("-kernel"), kernel, Path::new("-initrd"), &image])
            .arg("-object")
            .arg(format!(
                "memory-backend-memfd,id=mem,size={MEMORY},share=on"
            ))
            .args(["-numa", "node,memdev=mem"]);
        match setup.card {
            Card::Vhost(socket) => {
                let path = socket.display();
                qemu.arg("-chardev")
                    .arg(format!("socket,id=c0,path={path},reconnect=1"))
                    .arg("-netdev")
                    .arg(format!(
                        "vhost-user,id=n0,chardev=c0,vhostforce=on,queues={queues}"
                    ))
            }
            Card::Tap(_, interface) => qemu.arg("-netdev").arg(format!(
                "tap,id=n0,ifname={interface},script=no,downscript=no,vhost=off"
            )),
        };
        qemu
            // With MSI-X this QEMU dies when the driver starts a vhost-user device.
            .arg("-device")
            .arg(format!(
                "virtio-net-pci,netdev=n0,mac={mac},romfile=,vectors=0{several}{}",
                setup.device
            ))
            .arg("-serial")
            .arg(format!("file:{}", console.display()))
            .args(["-append", APPENDED])
            .args(setup.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let process = qemu
            .spawn()
            .map_err(|e| format!("qemu-system-x86_64: {e}"))?;
        Ok(Machine {
            process: Ended(process),
            console,
        })
    }

    /// What it has written on its console.
    pub fn console(&self) -> String {
        let bytes = std::fs::read(&self.console).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\r', "")
    }

    /// Waits until its console has a text; the console.
    ///
    /// # Errors
    /// Not in this time, or the machine ended without it; with the console.
    pub fn wait_for(&mut self, text: &str, time: Duration) -> Result<String, String> {
        let end = Instant::now() + time;
        loop {
            let over = !matches!(self.process.0.try_wait(), Ok(None)) || Instant::now() > end;
            let console = self.console();
            if console.contains(text) {
                return Ok(console);
            }
            if over {
                return Err(format!("no {text:?} on the console:\n{console}"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// The newest cloud kernel that is installed, unpacked once.
fn kernel() -> Result<&'static Path, String> {
    static UNPACKED: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let unpacked = UNPACKED.get_or_init(|| {
        let (packed, _) = installed()?;
        let bytes = std::fs::read(&packed).map_err(|e| format!("{}: {e}", packed.display()))?;
        // What boots fast under emulation is not what unpacks itself: lz4 from its magic on.
        let magic = [0x02, 0x21, 0x4c, 0x18];
        let at = bytes.windows(4).position(|w| w == magic);
        let at = at.ok_or_else(|| format!("{}: not packed by lz4", packed.display()))?;
        let folder = crate::private_folder("bulkhead-kernel-")?;
        let path = folder.join("vmlinux");
        let target = std::fs::File::create(&path).map_err(|e| e.to_string())?;
        let mut lz4 = Command::new("lz4")
            .arg("-dc")
            .stdin(Stdio::piped())
            .stdout(target)
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| format!("lz4: {e}"))?;
        let rest = bytes.get(at..).unwrap_or(&[]);
        // What lies behind the packed kernel makes it complain, after all is written.
        let _ = lz4.stdin.take().map(|mut stdin| stdin.write_all(rest));
        let _ = lz4.wait();
        Ok(path)
    });
    unpacked.as_deref().map_err(Clone::clone)
}

/// The packed kernel and its modules.
fn installed() -> Result<(PathBuf, PathBuf), String> {
    let mut found: Vec<PathBuf> = std::fs::read_dir("/boot")
        .map_err(|e| format!("/boot: {e}"))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.to_string_lossy().ends_with("-cloud-amd64"))
        .filter(|path| path.to_string_lossy().contains("/vmlinuz-"))
        .collect();
    found.sort();
    let kernel = found
        .pop()
        .ok_or("no kernel: apt-get install linux-image-cloud-amd64")?;
    let name = kernel.to_string_lossy().replace("/boot/vmlinuz-", "");
    let modules = Path::new("/lib/modules").join(name);
    Ok((kernel, modules))
}

/// Packs what the machine boots into.
fn pack(setup: &Setup<'_>, root: &Path, image: &Path) -> Result<(), String> {
    let says = |what: &str| {
        let what = what.to_owned();
        move |error: std::io::Error| format!("{what}: {error}")
    };
    for part in ["bin", "m", "dev", "proc", "sys", "tmp"] {
        std::fs::create_dir_all(root.join(part)).map_err(says(part))?;
    }
    let busybox = ["/bin/busybox", "/usr/bin/busybox"];
    let busybox = busybox.iter().find(|path| Path::new(path).exists());
    let busybox = busybox.ok_or("no busybox: apt-get install busybox-static")?;
    std::fs::copy(busybox, root.join("bin/busybox")).map_err(says("busybox"))?;
    for program in setup.programs {
        copy_program(program, root)?;
    }
    let (_, modules) = installed()?;
    let wanted: Vec<&str> = MODULES.iter().chain(setup.modules).copied().collect();
    for module in &wanted {
        let file = format!("{module}.ko");
        let from = find(&modules, &file).ok_or_else(|| format!("no module {file}"))?;
        std::fs::copy(from, root.join("m").join(&file)).map_err(says(&file))?;
    }
    let init = INIT.replace("MODULES", &wanted.join(" "));
    let script = setup.script;
    for (file, text) in [("init", init.as_str()), ("dhcp", DHCP), ("script", script)] {
        let path = root.join(file);
        std::fs::write(&path, text).map_err(says(file))?;
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(path, mode).map_err(says(file))?;
    }
    let target = std::fs::File::create(image).map_err(says("the image"))?;
    let packed = Command::new("sh")
        .args(["-c", "find . | cpio --quiet -o -H newc"])
        .current_dir(root)
        .stdout(target)
        .status()
        .map_err(says("cpio"))?;
    match packed.success() {
        true => Ok(()),
        false => Err("cpio failed: apt-get install cpio".into()),
    }
}

/// Copies a program of this host, with the libraries that it names.
fn copy_program(program: &str, root: &Path) -> Result<(), String> {
    // Each where it is looked for.
    let line = format!(
        "set -e; p=$(command -v {program}); cp $p bin/; \
         ldd $p | grep -o '/[^ ]*' | while read lib; do \
         mkdir -p .$(dirname $lib); cp -L $lib .$lib; done"
    );
    let copied = Command::new("sh")
        .args(["-c", &line])
        .current_dir(root)
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .status();
    match copied {
        Ok(status) if status.success() => Ok(()),
        _ => Err(format!("{program} is not installed")),
    }
}

fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    for entry in std::fs::read_dir(folder).ok()?.flatten() {
        let path = entry.path();
        if path.is_dir() && !path.is_symlink() {
            if let Some(found) = find(&path, name) {
                return Some(found);
            }
        } else if path.file_name().is_some_and(|n| n == name) {
            return Some(path);
        }
    }
    None
}
