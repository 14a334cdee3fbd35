//! What Linux 6.18 answers was measured with Python in an empty network namespace; each
//! table here is such a measurement, unless it says otherwise.

mod address;
mod asked;
mod bindings;
mod datagrams;
mod model;
mod options;
mod queue;
mod states;

use crate::address::v4;
use crate::*;

std::thread_local! {
    /// Looks at slots by this thread: what something costs.
    pub(crate) static LOOKS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

const LO4: Ip = v4([127, 0, 0, 1]);
const LO4B: Ip = v4([127, 0, 0, 2]);
const ANY4: Ip = v4([0; 4]);
const ANY6: Ip = [0; 16];
const LO6: Ip = crate::address::LOOPBACK6;
const OWN4: Ip = v4([10, 0, 0, 5]);
const OWN6: Ip = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5];

fn table() -> Table {
    let own = Addresses::new(&[OWN4, OWN6]).unwrap();
    let other = Addresses::new(&[v4([10, 0, 0, 6])]).unwrap();
    Table::new(
        Limits {
            sockets: 64,
            pending: 16,
        },
        vec![own, other],
    )
}

fn bytes(family: Family, ip: Ip, port: u16) -> Vec<u8> {
    let (bytes, length) = write(family, Endpoint { ip, port });
    bytes[..length].to_vec()
}

fn at(ip: Ip, port: u16) -> Endpoint {
    Endpoint { ip, port }
}
