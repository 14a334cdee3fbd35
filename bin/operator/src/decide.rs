//! Where a connection may go: asked of the compartment's table image, as the switch asks for
//! the first packet of one.

pub mod across;
pub mod let_in;

use guard::guard;
use image::CompartmentImage;
use image::compartment::{Endpoint, NONE, ROUTE_SUBNET, STATE_OPEN, STATE_QUARANTINED};
use image::rules::Action;
use rustix::io::Errno;
use telemetry::drops::DropReason;
use wire::Tuple;
use wire::address::is_link_local;

/// TCP's number.
pub const TCP: u8 = 6;
/// UDP's.
pub const UDP: u8 = 17;

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
    /// [`TCP`] or [`UDP`].
    pub protocol: u8,
}

/// What was decided: to whom, and by which rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decided {
    /// The slot of the endpoint that has the address.
    pub slot: u32,
    /// The sender's rule and the receiver's; none where nobody asks.
    pub rules: [Option<Ruling>; 2],
}

/// A rule that decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ruling {
    /// Its number.
    pub rule: u32,
    /// What it decides is logged.
    pub logs: bool,
}

/// Why a connection may not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// What its program hears.
    pub errno: Errno,
    /// As of a packet that is dropped for it.
    pub reason: DropReason,
    /// The rule that denies it, where one does.
    pub by: Option<Ruling>,
    /// Of what comes by an agreement, whom it would have come to.
    pub at: Option<At>,
}

/// The end here of a connection that comes by an agreement, as the endpoint sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// Its slot.
    pub slot: u32,
    /// Who begins it, by the address that the endpoint knows.
    pub client: [u8; 16],
}

impl Refused {
    /// For no rule.
    pub const fn new(errno: Errno, reason: DropReason) -> Refused {
        Refused {
            errno,
            reason,
            by: None,
            at: None,
        }
    }
}

impl From<Refused> for Errno {
    fn from(refused: Refused) -> Errno {
        refused.errno
    }
}

/// Nothing says yet who is where.
pub const NO_IMAGE: Refused = Refused::new(Errno::NETDOWN, DropReason::NoImage);
const NO_ROUTE: Refused = Refused::new(Errno::NETUNREACH, DropReason::NoRoute);
/// Nobody of circuits has the address.
pub const NOBODY: Refused = Refused::new(Errno::HOSTUNREACH, DropReason::NoNeighbour);
/// Nobody of circuits has the address, and who would find others is not there just now.
pub const NO_PROXY: Refused = Refused::new(Errno::HOSTUNREACH, DropReason::ProxyGone);

/// Decides.
///
/// # Errors
/// With what connect(2) answers: ENETUNREACH, EHOSTUNREACH, EACCES.
pub fn decide(image: &CompartmentImage<'_>, asked: &Asked) -> Result<Decided, Refused> {
    let from = endpoint(image, asked.slot).ok_or(NO_IMAGE)?;
    admitted(from)?;
    let to = located(image, asked)?;
    admitted(to)?;
    let tuple = Tuple {
        source: asked.from,
        destination: asked.to,
        source_port: asked.from_port,
        destination_port: asked.to_port,
        protocol: asked.protocol,
    };
    let rules = [
        judge(image, from.egress, &tuple, DropReason::EgressRule)?,
        judge(image, to.ingress, &tuple, DropReason::IngressRule)?,
    ];
    Ok(Decided {
        slot: to.slot,
        rules,
    })
}

/// Whether what goes this way answers what might be asked the other way: who would be asked
/// may be asked by whom it answers. Whether it was is for the caller to know.
///
/// # Errors
/// As for [`decide`]: nobody may ask that.
pub fn decide_answer(image: &CompartmentImage<'_>, asked: &Asked) -> Result<Decided, Refused> {
    let to = located(image, asked)?;
    let back = Asked {
        slot: to.slot,
        from: asked.to,
        from_port: asked.to_port,
        to: asked.from,
        to_port: asked.from_port,
        protocol: asked.protocol,
    };
    let decided = decide(image, &back)?;
    match decided.slot == asked.slot {
        true => Ok(Decided {
            slot: to.slot,
            ..decided
        }),
        false => Err(Refused::new(Errno::ACCESS, DropReason::ConnectionState)),
    }
}

/// The slot of the endpoint that this goes to, whether it may or not.
///
/// # Errors
/// As for [`decide`], but for EACCES.
pub fn locate(image: &CompartmentImage<'_>, asked: &Asked) -> Result<u32, Refused> {
    located(image, asked).map(|to| to.slot)
}

fn located<'a>(image: &CompartmentImage<'a>, asked: &Asked) -> Result<&'a Endpoint, Refused> {
    let from = endpoint(image, asked.slot).ok_or(NO_IMAGE)?;
    let tenant = tenant(image, asked.slot).ok_or(NO_IMAGE)?;
    let own = image.endpoint_by_address(from.subnet, asked.from);
    if own != image.endpoint_by_slot(asked.slot) && guard!("circuits-source") {
        return Err(Refused::new(Errno::ADDRNOTAVAIL, DropReason::SourceIp));
    }
    // A link's addresses lead nowhere beyond it.
    let beyond = !is_link_local(&asked.from) || !guard!("circuits-link");
    having(image, (from.subnet, tenant), asked.to, beyond)
}

/// The slot of the endpoint that has an address, as another sees it: from whichever of its own.
pub fn whose(image: &CompartmentImage<'_>, slot: u32, ip: [u8; 16]) -> Option<u32> {
    let of = (endpoint(image, slot)?.subnet, tenant(image, slot)?);
    having(image, of, ip, true).ok().map(|it| it.slot)
}

/// Who has an address: in a subnet, or `beyond` it where a tenant's routes lead.
fn having<'a>(
    image: &CompartmentImage<'a>,
    (subnet, tenant): (u32, u32),
    ip: [u8; 16],
    beyond: bool,
) -> Result<&'a Endpoint, Refused> {
    let to = match image.endpoint_by_address(subnet, ip) {
        Some(to) => to,
        None if !beyond => return Err(NO_ROUTE),
        None => {
            let route = image.route(tenant, ip).ok_or(NO_ROUTE)?;
            if route.kind != ROUTE_SUBNET {
                return Err(NOBODY);
            }
            let to = image.endpoint_by_address(route.subnet, ip);
            to.ok_or(NOBODY)?
        }
    };
    image.endpoints().get(to as usize).ok_or(NOBODY)
}

/// Who is not admitted, or in quarantine, neither sends nor receives.
fn admitted(endpoint: &Endpoint) -> Result<(), Refused> {
    let reason = match endpoint.state {
        STATE_OPEN => return Ok(()),
        STATE_QUARANTINED => DropReason::Quarantined,
        _ => DropReason::Unauthorised,
    };
    match guard!("circuits-state") {
        true => Err(Refused::new(Errno::ACCESS, reason)),
        false => Ok(()),
    }
}

/// What a table says, and by which rule; none: nobody asks.
fn ruled(image: &CompartmentImage<'_>, table: u32, tuple: &Tuple) -> Option<(Action, Ruling)> {
    let verdict = (table != NONE).then(|| image.judge(table, tuple))?;
    let by = Ruling {
        rule: verdict.rule,
        logs: verdict.log,
    };
    Some((verdict.action, by))
}

/// By a table of the sender's or the receiver's, which `reason` says.
fn judge(
    image: &CompartmentImage<'_>,
    table: u32,
    tuple: &Tuple,
    reason: DropReason,
) -> Result<Option<Ruling>, Refused> {
    let Some((action, by)) = ruled(image, table, tuple) else {
        return Ok(None);
    };
    let by = Some(by);
    match action {
        // Its answers pass by a connection; of a stateless rule they would be judged apart,
        // which one circuit cannot be.
        Action::Allow => Ok(by),
        Action::Deny | Action::AllowStateless if guard!("circuits-rules") => Err(Refused {
            by,
            ..Refused::new(Errno::ACCESS, reason)
        }),
        _ => Ok(by),
    }
}

/// The endpoint in a slot.
pub fn endpoint<'a>(image: &CompartmentImage<'a>, slot: u32) -> Option<&'a Endpoint> {
    let index = image.endpoint_by_slot(slot)?;
    image.endpoints().get(index as usize)
}

/// The tenant of the endpoint in a slot.
pub fn tenant(image: &CompartmentImage<'_>, slot: u32) -> Option<u32> {
    let subnet = endpoint(image, slot)?.subnet;
    image
        .subnets()
        .get(subnet as usize)
        .map(|subnet| subnet.tenant)
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

#[cfg(test)]
pub mod tests {
    use super::*;
    use image::compartment::{
        ROUTE_UNREACHABLE, Route, RouteRange, STATE_UNAUTHORISED, Subnet, Tenant,
    };
    use image::rules::{Region, Rule, RuleTable};
    use image::{Aligned, CompartmentTables};

    pub const WEB: u32 = 1;
    pub const NEAR: u32 = 2;
    pub const FAR: u32 = 3;
    pub const OTHER: u32 = 4;

    fn v4(address: [u8; 4]) -> [u8; 16] {
        let [a, b, c, d] = address;
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, a, b, c, d]
    }

    /// 10.0.0.1 and .2 in one subnet, 10.0.1.3 in another; another tenant's 10.0.2.4.
    pub fn tables() -> CompartmentTables {
        let mut tables = CompartmentTables {
            tenants: vec![
                Tenant {
                    id: 7,
                    ..Tenant::default()
                },
                Tenant {
                    id: 8,
                    ..Tenant::default()
                },
            ],
            ..CompartmentTables::default()
        };
        for (subnet, tenant) in [(0, 0), (1, 0), (2, 1)] {
            let net = subnet as u8;
            tables.subnets.push(Subnet {
                id: 50 + subnet,
                tenant,
                prefix4: [10, 0, net, 0],
                prefix4_len: 24,
                gateway4: [10, 0, net, 254],
                gateway_mac: [2, 9, 0, 0, 0, net],
                mtu: 1500,
                ..Subnet::default()
            });
            tables.routes.push(Route {
                kind: ROUTE_SUBNET,
                subnet,
                ..Route::default()
            });
            let range = RouteRange {
                start: v4([10, 0, net, 0]),
                end: v4([10, 0, net, 255]),
                route: subnet,
                reserved: [0; 3],
            };
            tables.ranges.push((tenant, range));
        }
        let places = [(WEB, 0), (NEAR, 0), (FAR, 1), (OTHER, 2)];
        for (index, (slot, subnet)) in (0..).zip(places) {
            tables.endpoints.push(Endpoint {
                id: 100 + slot,
                subnet,
                slot,
                mac: [2, 0, 0, 0, 0, slot as u8],
                mtu: 1500,
                own_first: NONE,
                ..Endpoint::default()
            });
            tables.members.push((subnet, index));
            tables.addresses.push((index, of(slot)));
        }
        tables
    }

    pub fn of(slot: u32) -> [u8; 16] {
        let net = [0, 0, 0, 1, 2].get(slot as usize).copied();
        v4([10, 0, net.unwrap_or(9), slot as u8])
    }

    fn ask(tables: &CompartmentTables, asked: &Asked) -> Result<Decided, Errno> {
        Ok(told(tables, asked)?)
    }

    fn told(tables: &CompartmentTables, asked: &Asked) -> Result<Decided, Refused> {
        let bytes = Aligned::copy_of(&tables.finish().unwrap());
        decide(&CompartmentImage::map(bytes.as_ref()).unwrap(), asked)
    }

    fn by(rule: u32) -> Option<Ruling> {
        Some(Ruling { rule, logs: false })
    }

    fn from_to(from: u32, to: u32) -> Asked {
        Asked {
            slot: from,
            from: of(from),
            from_port: 40_000,
            to: of(to),
            to_port: 80,
            protocol: TCP,
        }
    }

    /// Port 80 by this, else denied.
    pub fn judged(action: Action, id: u32) -> RuleTable {
        let region = Region {
            destination_port: 80..=80,
            protocol: TCP..=TCP,
            ..Region::ALL
        };
        let rules = vec![Rule {
            region,
            action,
            log: false,
            id,
        }];
        RuleTable {
            rules,
            default: Action::Deny,
        }
    }

    #[test]
    fn a_tenants_own_are_reached_in_any_of_its_subnets() {
        for to in [NEAR, FAR] {
            let decided = ask(&tables(), &from_to(WEB, to));
            assert_eq!(
                decided,
                Ok(Decided {
                    slot: to,
                    rules: [None; 2]
                })
            );
        }
    }

    #[test]
    fn rules_of_both_sides_decide() {
        let allows = Decided {
            slot: NEAR,
            rules: [by(5), by(6)],
        };
        for (out, into, expected) in [
            (Action::Allow, Action::Allow, Ok(allows)),
            (Action::Deny, Action::Allow, Err(Errno::ACCESS)),
            (Action::Allow, Action::Deny, Err(Errno::ACCESS)),
            (Action::AllowStateless, Action::Allow, Err(Errno::ACCESS)),
            (Action::Allow, Action::AllowStateless, Err(Errno::ACCESS)),
        ] {
            let mut tables = tables();
            tables.rule_tables = vec![judged(out, 5), judged(into, 6)];
            tables.endpoints[0].egress = 0;
            tables.endpoints[1].ingress = 1;
            for endpoint in &mut tables.endpoints {
                endpoint.connections = 64;
            }
            assert_eq!(
                ask(&tables, &from_to(WEB, NEAR)),
                expected,
                "{out:?} {into:?}"
            );
            let elsewhere = Asked {
                to_port: 81,
                ..from_to(WEB, NEAR)
            };
            assert_eq!(ask(&tables, &elsewhere), Err(Errno::ACCESS));
            let back = ask(&tables, &from_to(NEAR, WEB));
            assert!(back.is_ok(), "neither asks about this way: {back:?}");
        }
    }

    #[test]
    fn nobody_asks_as_another() {
        for from in [NEAR, FAR, OTHER] {
            let asked = Asked {
                from: of(from),
                ..from_to(WEB, FAR)
            };
            assert_eq!(ask(&tables(), &asked), Err(Errno::ADDRNOTAVAIL));
        }
        let nobody = Asked {
            from: v4([10, 0, 0, 77]),
            ..from_to(WEB, FAR)
        };
        assert_eq!(ask(&tables(), &nobody), Err(Errno::ADDRNOTAVAIL));
    }

    #[test]
    fn who_is_not_admitted_neither_connects_nor_is_connected_to() {
        for state in [STATE_UNAUTHORISED, STATE_QUARANTINED] {
            let mut tables = tables();
            tables.endpoints[0].state = state;
            assert_eq!(ask(&tables, &from_to(WEB, NEAR)), Err(Errno::ACCESS));
            assert_eq!(ask(&tables, &from_to(FAR, WEB)), Err(Errno::ACCESS));
            assert!(ask(&tables, &from_to(FAR, NEAR)).is_ok());
        }
    }

    #[test]
    fn an_address_of_a_link_reaches_nobody_beyond_it() {
        let mut tables = tables();
        let link = |n: u8| {
            let mut address = [0; 16];
            (address[0], address[1], address[15]) = (0xfe, 0x80, n);
            address
        };
        for (endpoint, n) in [(0, 1), (1, 2), (2, 3)] {
            tables.addresses.push((endpoint, link(n)));
        }
        let asked = |to: [u8; 16]| Asked {
            from: link(1),
            to,
            ..from_to(WEB, NEAR)
        };
        assert_eq!(ask(&tables, &asked(link(2))).map(|it| it.slot), Ok(NEAR));
        let mut six = [0; 16];
        (six[0], six[15]) = (0xfd, 3);
        for subnet in [0, 1] {
            let range = RouteRange {
                start: six,
                end: six,
                route: subnet,
                reserved: [0; 3],
            };
            let mut tables = tables.clone();
            tables.addresses.push((subnet * 2, six));
            tables.ranges.push((0, range));
            let decided = ask(&tables, &asked(six)).map(|it| it.slot);
            match subnet {
                0 => assert_eq!(decided, Ok(WEB)),
                _ => assert_eq!(decided, Err(Errno::NETUNREACH)),
            }
        }
    }

    #[test]
    fn where_no_route_leads_nobody_is_reached() {
        assert_eq!(
            ask(&tables(), &from_to(WEB, OTHER)),
            Err(Errno::NETUNREACH),
            "another tenant's"
        );
        let to = v4([192, 0, 2, 1]);
        assert_eq!(
            ask(
                &tables(),
                &Asked {
                    to,
                    ..from_to(WEB, FAR)
                }
            ),
            Err(Errno::NETUNREACH)
        );
        let to = v4([10, 0, 1, 99]);
        assert_eq!(
            ask(
                &tables(),
                &Asked {
                    to,
                    ..from_to(WEB, FAR)
                }
            ),
            Err(Errno::HOSTUNREACH)
        );
        assert_eq!(
            ask(
                &tables(),
                &Asked {
                    slot: 9,
                    ..from_to(WEB, FAR)
                }
            ),
            Err(Errno::NETDOWN)
        );
        let mut tables = tables();
        tables.routes[1].kind = ROUTE_UNREACHABLE;
        assert_eq!(ask(&tables, &from_to(WEB, FAR)), Err(Errno::HOSTUNREACH));
    }

    #[test]
    fn an_answer_passes_where_what_it_answers_may_be_asked() {
        let mut tables = tables();
        tables.rule_tables = vec![judged(Action::Allow, 5), judged(Action::Deny, 6)];
        // The other is asked at port 80 by this one, and asks nobody.
        tables.endpoints[0].egress = 0;
        tables.endpoints[1].egress = 1;
        for endpoint in &mut tables.endpoints {
            endpoint.connections = 64;
        }
        let bytes = Aligned::copy_of(&tables.finish().unwrap());
        let image = CompartmentImage::map(bytes.as_ref()).unwrap();
        let back = |from_port| Asked {
            from_port,
            to_port: 40_000,
            ..from_to(NEAR, WEB)
        };
        let denied = |asked: &Asked| decide(&image, asked).map_err(Errno::from);
        assert_eq!(denied(&back(80)), Err(Errno::ACCESS));
        let decided = decide_answer(&image, &back(80)).unwrap();
        assert_eq!((decided.slot, decided.rules), (WEB, [by(5), None]));
        let unasked = decide_answer(&image, &back(81)).map_err(Errno::from);
        assert_eq!(unasked, Err(Errno::ACCESS));
        assert_eq!(locate(&image, &back(81)), Ok(WEB));
        // Another protocol is another rule's.
        let udp = Asked {
            protocol: UDP,
            ..from_to(WEB, NEAR)
        };
        assert_eq!(denied(&udp), Err(Errno::ACCESS));
    }

    #[test]
    fn it_is_said_why_and_by_which_rule_somebody_is_refused() {
        let mut tables = tables();
        let mut logs = judged(Action::Deny, 6);
        logs.rules[0].log = true;
        tables.rule_tables = vec![judged(Action::Allow, 5), logs];
        tables.endpoints[0].egress = 0;
        tables.endpoints[1].ingress = 1;
        for endpoint in &mut tables.endpoints {
            endpoint.connections = 64;
        }
        let denied = told(&tables, &from_to(WEB, NEAR)).unwrap_err();
        let loud = Some(Ruling {
            rule: 6,
            logs: true,
        });
        assert_eq!((denied.reason, denied.by), (DropReason::IngressRule, loud));
        let elsewhere = Asked {
            to_port: 81,
            ..from_to(WEB, NEAR)
        };
        let denied = told(&tables, &elsewhere).unwrap_err();
        let default = by(image::rules::DEFAULT_RULE);
        assert_eq!(
            (denied.reason, denied.by),
            (DropReason::EgressRule, default)
        );
        let to_nobody = Asked {
            to: v4([10, 0, 1, 99]),
            ..from_to(WEB, FAR)
        };
        for (state, to, reason) in [
            (STATE_OPEN, from_to(WEB, OTHER), DropReason::NoRoute),
            (STATE_OPEN, to_nobody, DropReason::NoNeighbour),
            (
                STATE_QUARANTINED,
                from_to(WEB, FAR),
                DropReason::Quarantined,
            ),
            (
                STATE_UNAUTHORISED,
                from_to(WEB, FAR),
                DropReason::Unauthorised,
            ),
        ] {
            tables.endpoints[0].state = state;
            let refused = told(&tables, &to).unwrap_err();
            assert_eq!((refused.reason, refused.by), (reason, None));
        }
    }

    #[test]
    fn addresses_come_in_one_order() {
        let mut tables = tables();
        for last in [90, 9, 50] {
            tables.addresses.push((0, v4([10, 0, 0, last])));
        }
        let bytes = Aligned::copy_of(&tables.finish().unwrap());
        let image = CompartmentImage::map(bytes.as_ref()).unwrap();
        let all = [1, 9, 50, 90].map(|last| v4([10, 0, 0, last]));
        assert_eq!(addresses(&image, WEB), all);
        assert_eq!(addresses(&image, 77), Vec::<[u8; 16]>::new());
    }
}
