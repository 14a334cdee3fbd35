//! A container's filter, as its runtime had libseccomp make it: it does with each call what the
//! filter of circuits and the container's own profile would do one on top of the other.

use crate::containers::Container;
use crate::scene::{OPEN, Scene};
use notify::filter::{CALLS, program};
use serde_json::{Value, json};

const ALLOW: u32 = 0x7fff_0000;
const NOTIFY: u32 = 0x7fc0_0000;
const ERRNO: u32 = 0x0005_0000;
const X86_64: u64 = 0xc000_003e;
/// socket, shutdown, getppid, chmod, mkdir.
const SOCKET: i64 = 41;
const SHUTDOWN: i64 = 48;
const OTHERS: [(i64, bool); 3] = [(110, true), (90, true), (83, false)];

/// An instruction: code, jumps if so and if not, a number.
type Instruction = (u16, u8, u8, u32);

/// What a filter says of a call of x86_64.
fn said(filter: &[Instruction], call: i64, arguments: [u64; 6]) -> u32 {
    let mut data = vec![call as u32, X86_64 as u32, 0, 0];
    data.extend(
        arguments
            .iter()
            .flat_map(|it| [*it as u32, (it >> 32) as u32]),
    );
    let (mut at, mut a, mut x) = (0, 0_u32, 0_u32);
    let mut memory = [0_u32; 16];
    loop {
        let (code, yes, no, k) = filter[at];
        at += 1;
        let jump = |so: bool| if so { yes } else { no } as usize;
        match code {
            0x20 => a = data[k as usize / 4],
            0x05 => at += k as usize,
            0x06 => return k,
            0x15 => at += jump(a == k),
            0x25 => at += jump(a > k),
            0x35 => at += jump(a >= k),
            0x45 => at += jump(a & k != 0),
            0x54 => a &= k,
            0x00 => a = k,
            0x02 => memory[k as usize] = a,
            0x60 => a = memory[k as usize],
            0x07 => x = a,
            0x87 => a = x,
            other => panic!("instruction {other:#x} is not known here"),
        }
    }
}

/// What the profile below says of the calls of circuits.
fn profile(call: i64, arguments: [u64; 6]) -> u32 {
    match call {
        SHUTDOWN => ERRNO | 1,
        SOCKET if arguments[0] == 16 && arguments[2] == 9 => ERRNO | 22,
        SOCKET if arguments[0] == 40 && arguments[2] != 9 => ERRNO | 38,
        _ => ALLOW,
    }
}

fn names(denied: &[&str]) -> Vec<Value> {
    let all = "read write openat close fstat mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn \
        ioctl pread64 access faccessat2 newfstatat dup2 getpid clone fork vfork execve exit exit_group wait4 uname fcntl \
        getcwd chdir readlink getuid getgid geteuid getegid setuid setgid getppid setsid arch_prctl set_tid_address \
        set_robust_list rseq prlimit64 getrandom futex clock_nanosleep nanosleep capset capget prctl setgroups \
        chmod setresuid setresgid statfs fstatfs getdents64 lseek stat lstat pipe pipe2 poll select dup \
        sendto recvfrom sendmsg recvmsg sendmmsg recvmmsg socketpair accept4 accept connect bind listen \
        getsockname getpeername setsockopt getsockopt shutdown io_uring_setup io_uring_enter io_uring_register \
        fallocate madvise process_madvise";
    let all = all.split_whitespace().filter(|name| !denied.contains(name));
    all.map(Value::from).collect()
}

#[test]
fn a_containers_filter_is_that_of_circuits_and_its_own() {
    let scene = Scene::of(OPEN);
    let own = json!({
        "defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 38,
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
        "syscalls": [
            { "names": names(&["shutdown"]), "action": "SCMP_ACT_ALLOW" },
            { "names": ["shutdown", "mkdir"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1 },
            // As Podman's and Docker's have it.
            { "names": ["socket"], "action": "SCMP_ACT_ERRNO", "errnoRet": 22, "args": [
                { "index": 0, "value": 16, "op": "SCMP_CMP_EQ" }, { "index": 2, "value": 9, "op": "SCMP_CMP_EQ" }] },
            { "names": ["socket"], "action": "SCMP_ACT_ALLOW", "args": [
                { "index": 0, "value": 40, "op": "SCMP_CMP_NE" }, { "index": 2, "value": 9, "op": "SCMP_CMP_NE" }] },
            { "names": ["socket"], "action": "SCMP_ACT_ALLOW", "args": [
                { "index": 0, "value": 16, "op": "SCMP_CMP_NE" }, { "index": 2, "value": 9, "op": "SCMP_CMP_EQ" }] },
        ],
    });
    let none = json!({ "defaultAction": "SCMP_ACT_ALLOW" });
    let ours: Vec<Instruction> = program()
        .iter()
        .map(|it| (it.code, it.jt, it.jf, it.k))
        .collect();
    for (seccomp, has_profile) in [(own, true), (none, false)] {
        let container = Container::new(&scene, "crun", "app", "echo runs; exec sleep 1000");
        let container = container.with("/linux/seccomp", seccomp);
        let _running = container.start("runs");
        let bytes = std::fs::read(container.state().join("seccomp.bpf")).unwrap();
        let filter: Vec<Instruction> = bytes
            .chunks(8)
            .map(|it| {
                let k = u32::from_ne_bytes([it[4], it[5], it[6], it[7]]);
                (u16::from_ne_bytes([it[0], it[1]]), it[2], it[3], k)
            })
            .collect();
        let mut looked = 0;
        let mut look = |call: i64, arguments: [u64; 6]| {
            let theirs = match has_profile {
                true => profile(call, arguments),
                false => ALLOW,
            };
            // What is stricter: a number that is less.
            let both = said(&ours, call, arguments).min(theirs);
            let is = said(&filter, call, arguments);
            // A domain whose upper half is not zero is one that no program asks for: denied too.
            let odd = has_profile && call == SOCKET && arguments[0] >> 32 != 0;
            assert!(
                is == both || odd && is == ERRNO | 38,
                "call {call} {arguments:x?}: {is:#x} and not {both:#x}"
            );
            looked += 1;
        };
        let descriptors = [
            0,
            1,
            2,
            3,
            10,
            16,
            17,
            31,
            38,
            40,
            41,
            44,
            511,
            512,
            513,
            800,
            1023,
            1024,
            1025,
            1535,
            1536,
            2048,
            0x7fff_ffff,
            0x8000_0200,
            0xffff_ffff,
            1 << 32,
            1 << 32 | 1,
            1 << 32 | 2,
            1 << 32 | 600,
            u64::MAX,
        ];
        let levels = [
            0,
            1,
            2,
            5,
            6,
            7,
            17,
            41,
            263,
            0x4248,
            0xffff_ffff,
            1 << 32 | 1,
            1 << 32 | 6,
        ];
        let options: Vec<u64> = (0..100)
            .chain([0xffff_ffff, 1 << 32 | 4, 1 << 32 | 9])
            .collect();
        for &(call, _) in CALLS {
            for first in descriptors {
                for second in levels {
                    for &third in &options {
                        look(call, [first, second, third, 0, 0, 0]);
                    }
                }
                for name in [1, 0x7fff_0000_0000, 1 << 32] {
                    look(call, [first, 0, 9, 0, name, 0]);
                }
            }
        }
        assert!(looked > 500_000, "{looked}");
        for (call, permitted) in OTHERS {
            let expected = match permitted || !has_profile {
                true => ALLOW,
                false => ERRNO | 1,
            };
            assert_eq!(said(&filter, call, [0; 6]), expected, "call {call}");
        }
        // It is the filter that decides: what is notified of a socket is.
        assert_eq!(said(&filter, SOCKET, [2, 1, 0, 0, 0, 0]), NOTIFY);
        // Another architecture's calls have other numbers.
        let foreign = filter.iter().position(|it| it.0 == 0x20 && it.3 == 4);
        assert_eq!(foreign, Some(0), "the architecture is not looked at first");
    }
}

/// What a program asks the kernel for past libc: a socket, and that others may hand it descriptors over that.
const ASKS: &str = "
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def asked(*words):
    done = libc.syscall(*[ctypes.c_long(word) for word in words])
    return done if done >= 0 else 'E%d' % ctypes.get_errno()
one = ctypes.c_int(1)
given = asked(41, 2, 1, 0, 0, 0, 0)
print('runs', asked(54, given, 1, 83, ctypes.addressof(one), 4, 0), flush=True)
";

#[test]
fn a_profile_that_runtimes_would_read_otherwise_starts_no_container() {
    let scene = Scene::of(OPEN);
    scene.file("asks.py", ASKS);
    let is =
        |index: u64, value: u64| json!({ "index": index, "value": value, "op": "SCMP_CMP_EQ" });
    let but = |rule: Value| {
        let mut all = names(&["setsockopt"]);
        all.extend(["socket", "shutdown"].map(Value::from));
        // What Python asks for before.
        let more = "fadvise64 sysinfo madvise mremap epoll_create1 sched_getaffinity readv writev sigaltstack gettid clone3 unlink";
        all.extend(more.split(' ').map(Value::from));
        json!({ "defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{ "names": all, "action": "SCMP_ACT_ALLOW" }, rule] })
    };
    let with = |args: Vec<Value>| {
        but(json!({ "names": ["setsockopt"], "action": "SCMP_ACT_ALLOW", "args": args }))
    };
    let nameless = json!({ "value": 83, "op": "SCMP_CMP_EQ" });
    // Each is that any setsockopt is made, or any call, to one runtime at least.
    let twice = with(vec![is(1, 1), is(2, 4), is(5, 0), is(5, 1)]);
    let no_index = with(vec![is(1, 1), is(2, 4), nameless]);
    let ends = but(json!({ "names": ["setsockopt"], "action": "SCMP_ACT_ALLOW\0" }));
    let whole = json!({ "defaultAction": "SCMP_ACT_ALLOW\0" });
    let none = json!({ "defaultAction": "" });
    let said = |runtime: &'static str, seccomp: &Value| {
        let app = Container::new(&scene, runtime, "app", "exec python3 {f}/asks.py");
        app.with("/linux/seccomp", seccomp.clone()).run()
    };
    for runtime in ["crun", "runc"] {
        // Nobody is handed a descriptor over a circuit.
        let plain = said(runtime, &with(vec![is(1, 1), is(5, 0)]));
        assert_eq!(plain.out, "runs E95\n", "{runtime}: {plain:?}");
        for (seccomp, what) in [
            (&twice, "says two things of argument 5"),
            (&no_index, "lacks index"),
            (&ends, "there is a NUL"),
            (&whole, "there is a NUL"),
            (&none, "\"\" is not known"),
        ] {
            let said = said(runtime, seccomp);
            let is_refused = said.code == 2 && said.err.contains(what);
            assert!(is_refused, "{runtime}: {what}: {said:?}");
        }
    }
}

#[test]
fn a_container_is_in_no_group_of_a_switch() {
    let scene = Scene::of(OPEN);
    for runtime in ["crun", "runc"] {
        let app = Container::new(&scene, runtime, "app", "echo runs");
        let app = app.with("/linux/cgroupsPath", json!("/x/bulkhead/compartment-1-2"));
        let said = app.run();
        let is_refused = said.code == 2 && said.err.contains("is one of Bulkhead's");
        assert!(is_refused, "{runtime}: {said:?}");
    }
}
