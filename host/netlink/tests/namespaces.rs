//! Links, addresses, routes and namespaces on the real kernel. Needs root.

use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use host_netlink::namespace::{self, NamespaceError};
use host_netlink::{Netlink, NetlinkError};

/// A namespace of this test's own, removed also when the test fails.
struct Namespace {
    name: String,
    fd: OwnedFd,
}

impl Namespace {
    fn new() -> Namespace {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("bhp-{}-{number}", std::process::id());
        let fd = namespace::create_named(&name).expect("a namespace (are you root?)");
        Namespace { name, fd }
    }

    fn within<T>(&self, work: impl FnOnce() -> T) -> T {
        namespace::within(self.fd.as_fd(), work).unwrap()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = namespace::delete_named(&self.name);
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn current() -> u64 {
    rustix::fs::fstat(namespace::open_current().unwrap())
        .unwrap()
        .st_ino
}

#[test]
fn a_named_namespace_comes_and_goes() {
    let here = current();
    let made = Namespace::new();
    assert_eq!(current(), here);
    let path = Path::new(namespace::DIRECTORY).join(&made.name);
    assert!(path.exists());
    let inside = made.within(current);
    assert_ne!(inside, here);
    assert_eq!(current(), here);
    let by_name = namespace::open(&made.name).unwrap();
    let by_path = namespace::open(path.to_str().unwrap()).unwrap();
    for fd in [by_name, by_path] {
        assert_eq!(rustix::fs::fstat(fd).unwrap().st_ino, inside);
    }
    let again = namespace::create_named(&made.name);
    assert!(matches!(again, Err(NamespaceError::Exists(_))));
    namespace::delete_named(&made.name).unwrap();
    assert!(!path.exists());
    namespace::delete_named(&made.name).unwrap();
    let gone = namespace::open(&made.name);
    assert!(matches!(gone, Err(NamespaceError::Missing(_))));
}

#[test]
fn the_way_back_is_taken_after_a_panic_too() {
    let here = current();
    let made = Namespace::new();
    let panicked = std::panic::catch_unwind(|| made.within(|| panic!("in the namespace")));
    assert!(panicked.is_err());
    assert_eq!(current(), here);
}

#[test]
fn what_is_no_namespace_is_said() {
    let is_missing = |name| matches!(namespace::open(name), Err(NamespaceError::Missing(_)));
    assert!(is_missing("/proc/self/status"));
    assert!(is_missing("/no/such/file"));
    assert!(is_missing("bhp-no-such-name"));
    for name in ["", ".", "..", "a\0b"] {
        assert!(
            matches!(namespace::open(name), Err(NamespaceError::Name(_))),
            "{name:?}"
        );
        assert!(matches!(
            namespace::create_named(name),
            Err(NamespaceError::Name(_))
        ));
    }
}

#[test]
fn the_hosts_own_namespace_is_refused_by_whatever_path() {
    for path in ["/proc/self/ns/net", "/proc/thread-self/ns/net"] {
        assert!(
            matches!(namespace::open(path), Err(NamespaceError::Host(_))),
            "{path}"
        );
    }
    let made = Namespace::new();
    // From inside, it is the own one that is refused.
    let name = made.name.clone();
    let inside = made.within(|| namespace::open(&name));
    assert!(matches!(inside, Err(NamespaceError::Host(_))));
    assert!(namespace::open(&made.name).is_ok());
}

#[test]
fn what_is_no_namespace_is_not_even_opened() {
    use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
    let file = std::env::temp_dir().join(format!("bhp-{}-file", std::process::id()));
    std::fs::write(&file, "").unwrap();
    let watch = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
    inotify::add_watch(&watch, &file, WatchFlags::OPEN).unwrap();
    let opened = namespace::open(file.to_str().unwrap());
    let mut room = [0; 4096];
    let events = rustix::io::read(&watch, &mut room);
    std::fs::remove_file(&file).unwrap();
    assert!(matches!(opened, Err(NamespaceError::Missing(_))));
    assert_eq!(events, Err(rustix::io::Errno::AGAIN));
}

#[test]
fn a_name_that_leads_elsewhere_by_now_is_seen() {
    let made = Namespace::new();
    assert!(namespace::is_at(made.fd.as_fd(), &made.name));
    namespace::delete_named(&made.name).unwrap();
    assert!(!namespace::is_at(made.fd.as_fd(), &made.name));
    namespace::create_named(&made.name).unwrap();
    assert!(!namespace::is_at(made.fd.as_fd(), &made.name));
}

#[test]
fn an_interface_is_set_up_whole() {
    let (red, blue) = (Namespace::new(), Namespace::new());
    red.within(|| {
        let mut netlink = Netlink::open().unwrap();
        let batch = netlink.batch().create_veth("a", "b", Some(blue.fd.as_fd()));
        batch.commit().unwrap();
        let index = netlink.link("a").unwrap().index;
        let set = |netlink: &mut Netlink| {
            netlink
                .batch()
                .without_own_link_local(index)
                .set_mac(index, [2, 0, 0, 0, 0, 7])
                .set_mtu(index, 1400)
                .set_up(index)
                .add_address(index, ip("10.1.0.5"), 24)
                .add_address(index, ip("fd00:1::5"), 64)
                .add_address(index, ip("fe80::ff:fe00:7"), 64)
                .add_default_route(index, ip("10.1.0.1"))
                .add_default_route(index, ip("fd00:1::1"))
                .commit()
        };
        set(&mut netlink).unwrap();
        // Once more is no error.
        set(&mut netlink).unwrap();
        let link = netlink.link("a").unwrap();
        assert_eq!(
            (link.mac, link.mtu, link.up),
            (Some([2, 0, 0, 0, 0, 7]), 1400, true)
        );
        let own: Vec<_> = netlink
            .addresses()
            .unwrap()
            .into_iter()
            .filter(|address| address.index == index)
            .collect();
        let mut named: Vec<String> = own
            .iter()
            .map(|own| format!("{}/{}", own.address, own.prefix_len))
            .collect();
        named.sort();
        assert_eq!(named, ["10.1.0.5/24", "fd00:1::5/64", "fe80::ff:fe00:7/64"]);
        assert!(own.iter().all(|address| !address.tentative));
        let routes = std::fs::read_to_string("/proc/thread-self/net/route").unwrap();
        assert!(routes.contains("a\t00000000\t0100010A"), "{routes}");
        let routes = std::fs::read_to_string("/proc/thread-self/net/ipv6_route").unwrap();
        let gateway = "fd000001000000000000000000000001";
        assert!(
            routes.lines().any(
                |line| line.starts_with("00000000000000000000000000000000 00")
                    && line.contains(gateway)
            ),
            "{routes}"
        );
    });
    blue.within(|| {
        let mut netlink = Netlink::open().unwrap();
        let index = netlink.link("b").unwrap().index;
        netlink.batch().rename(index, "c").commit().unwrap();
        assert_eq!(netlink.link("c").unwrap().index, index);
        netlink
            .batch()
            .move_to(index, red.fd.as_fd())
            .commit()
            .unwrap();
        assert!(matches!(netlink.link("c"), Err(NetlinkError::NoLink(_))));
    });
    red.within(|| {
        let mut netlink = Netlink::open().unwrap();
        let index = netlink.link("c").unwrap().index;
        netlink
            .batch()
            .set_up(index)
            .set_down(index)
            .commit()
            .unwrap();
        assert!(!netlink.link("c").unwrap().up);
        netlink.batch().delete(index).commit().unwrap();
        let names: Vec<String> = netlink
            .links()
            .unwrap()
            .into_iter()
            .map(|l| l.name)
            .collect();
        assert!(
            !names.iter().any(|name| name == "a" || name == "c"),
            "{names:?}"
        );
    });
}

#[test]
fn a_refusal_names_the_request_and_the_rest_is_done() {
    let made = Namespace::new();
    made.within(|| {
        let mut netlink = Netlink::open().unwrap();
        netlink
            .batch()
            .create_veth("a", "b", None)
            .commit()
            .unwrap();
        let index = netlink.link("a").unwrap().index;
        let refused = netlink
            .batch()
            .set_up(index)
            .set_mtu(index, 1)
            .add_address(index, ip("10.1.0.5"), 24)
            .commit()
            .unwrap_err();
        assert!(refused.to_string().contains("set the MTU"), "{refused}");
        assert_eq!(refused.errno(), Some(rustix::io::Errno::INVAL));
        assert!(netlink.link("a").unwrap().up);
        assert!(
            netlink
                .addresses()
                .unwrap()
                .iter()
                .any(|own| own.address == ip("10.1.0.5"))
        );
        // More requests than go out at once.
        let mut batch = netlink.batch();
        for at in 0..300u32 {
            let address = std::net::Ipv4Addr::from_bits(0x0a02_0000 + at);
            batch = batch.add_address(index, address.into(), 32);
        }
        batch.commit().unwrap();
        assert_eq!(netlink.addresses().unwrap().len(), 301);
    });
}

/// 400 endpoints, as `boot.t200_s` has them: prints how long; asserts nothing of it.
#[test]
#[ignore = "a measurement: cargo test -p host-netlink --release -- --ignored --nocapture"]
fn four_hundred_endpoints() {
    let started = Instant::now();
    let mut all = Vec::new();
    for _ in 0..400 {
        let made = Namespace::new();
        let tap = made.within(|| {
            let (tap, _) = port::tap::create("eth0").unwrap();
            let mut netlink = Netlink::open().unwrap();
            let index = netlink.link("eth0").unwrap().index;
            netlink
                .batch()
                .without_own_link_local(index)
                .set_mac(index, [2, 0, 0, 0, 0, 7])
                .set_mtu(index, 1400)
                .set_up(1)
                .set_up(index)
                .add_address(index, ip("10.1.0.5"), 24)
                .add_address(index, ip("fd00:1::5"), 64)
                .add_address(index, ip("fe80::ff:fe00:7"), 64)
                .add_default_route(index, ip("10.1.0.1"))
                .add_default_route(index, ip("fd00:1::1"))
                .commit()
                .unwrap();
            tap
        });
        all.push((made, tap));
    }
    println!(
        "400 namespaces, taps, addresses and routes: {:?}",
        started.elapsed()
    );
    let started = Instant::now();
    for (made, tap) in all {
        port::tap::leave_to_namespace(tap);
        drop(made);
    }
    println!("removed: {:?}", started.elapsed());
}
