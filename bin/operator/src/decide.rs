//! Where a connection may go: asked of the compartment's table image, as the switch asks for
//! the first packet of one.

use guard::guard;
use image::CompartmentImage;
use image::compartment::{Endpoint, NONE, ROUTE_SUBNET, STATE_OPEN};
use image::rules::Action;
use rustix::io::Errno;
use wire::Tuple;

/// TCP's number.
pub const TCP: u8 = 6;

/// A connection that is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// The slot of the endpoint that asks.
    pub slot: u32,
    /// Its address, IPv4 as ::ffff:a.b.c.d.
    pub from: [u8; 16],
    /// Its port.
    pub from_port: u16,
    /// Where to.
    pub to: [u8; 16],
    /// The port there.
    pub to_port: u16,
}

/// What was decided: to whom, and by which rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decided {
    /// The slot of the endpoint that has the address.
    pub slot: u32,
    /// The sender's rule and the receiver's; none where nobody asks.
    pub rules: [Option<u32>; 2],
}

/// Decides.
///
/// # Errors
/// What connect(2) answers: ENETUNREACH, EHOSTUNREACH, EACCES.
pub fn decide(image: &CompartmentImage<'_>, asked: &Asked) -> Result<Decided, Errno> {
    let from = endpoint(image, asked.slot).ok_or(Errno::NETDOWN)?;
    admitted(from)?;
    let subnet = image.subnets().get(from.subnet as usize);
    let tenant = subnet.map(|subnet| subnet.tenant).ok_or(Errno::NETDOWN)?;
    let own = image.endpoint_by_address(from.subnet, asked.from);
    if own != image.endpoint_by_slot(asked.slot) && guard!("circuits-source") {
        return Err(Errno::ADDRNOTAVAIL);
    }
    let to = match image.endpoint_by_address(from.subnet, asked.to) {
        Some(to) => to,
        None => {
            let route = image.route(tenant, asked.to).ok_or(Errno::NETUNREACH)?;
            if route.kind != ROUTE_SUBNET {
                return Err(Errno::HOSTUNREACH);
            }
            let to = image.endpoint_by_address(route.subnet, asked.to);
            to.ok_or(Errno::HOSTUNREACH)?
        }
    };
    let to = image
        .endpoints()
        .get(to as usize)
        .ok_or(Errno::HOSTUNREACH)?;
    admitted(to)?;
    let tuple = Tuple {
        source: asked.from,
        destination: asked.to,
        source_port: asked.from_port,
        destination_port: asked.to_port,
        protocol: TCP,
    };
    let rules = [
        judge(image, from.egress, &tuple)?,
        judge(image, to.ingress, &tuple)?,
    ];
    Ok(Decided {
        slot: to.slot,
        rules,
    })
}

/// Who is not admitted, or in quarantine, neither sends nor receives.
fn admitted(endpoint: &Endpoint) -> Result<(), Errno> {
    match endpoint.state {
        STATE_OPEN => Ok(()),
        _ if guard!("circuits-state") => Err(Errno::ACCESS),
        _ => Ok(()),
    }
}

fn judge(image: &CompartmentImage<'_>, table: u32, tuple: &Tuple) -> Result<Option<u32>, Errno> {
    if table == NONE {
        return Ok(None);
    }
    let verdict = image.judge(table, tuple);
    match verdict.action {
        // Its answers pass by a connection; of a stateless rule they would be judged apart,
        // which one circuit cannot be.
        Action::Allow => Ok(Some(verdict.rule)),
        Action::Deny | Action::AllowStateless if guard!("circuits-rules") => Err(Errno::ACCESS),
        _ => Ok(Some(verdict.rule)),
    }
}

fn endpoint<'a>(image: &CompartmentImage<'a>, slot: u32) -> Option<&'a Endpoint> {
    let index = image.endpoint_by_slot(slot)?;
    image.endpoints().get(index as usize)
}

/// The addresses of the endpoint in a slot.
pub fn addresses(image: &CompartmentImage<'_>, slot: u32) -> Vec<[u8; 16]> {
    let Some(index) = image.endpoint_by_slot(slot) else {
        return Vec::new();
    };
    let slots = image.addresses().iter();
    let mut all: Vec<[u8; 16]> = slots
        .filter(|slot| slot.endpoint == index)
        .map(|slot| slot.address)
        .collect();
    // The one that others are shown does not depend on where a table has it.
    all.sort_unstable();
    all
}
