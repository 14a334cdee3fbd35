//! What crossed by agreements.

use super::grown;
use crate::pages::Counters;
use crate::world::World;
use api::UsageRow;
use policy::Agreement;
use store::Seen;
use telemetry::crossed;

/// What crossed by each agreement, of each of its two tenants.
pub fn agreed(
    seen: &Seen,
    now: &mut Seen,
    world: &World,
    fabric: Option<(&Counters, &str)>,
) -> Vec<UsageRow> {
    let Some((fabric, page)) = fabric else {
        // Not seen: it is as it was.
        now.fabric_page.clone_from(&seen.fabric_page);
        now.crossed.clone_from(&seen.crossed);
        return Vec::new();
    };
    now.fabric_page = page.to_owned();
    let same = seen.fabric_page == page;
    let all = world.made().map(|(_, _, intent)| &intent.agreements);
    let mut rows = Vec::new();
    for (key, [segments, bytes, ..]) in fabric.rules() {
        let is = [segments, bytes];
        let was = seen.crossed.get(&key).filter(|_| same);
        let [packets, bytes] = grown(was.copied().unwrap_or_default(), is);
        now.crossed.insert(key, is);
        let (from, tag) = crossed::parts(key);
        let all = all.into_iter().flatten();
        let mut crossed = all.filter_map(|one| Some((one, sent_by(one, from, tag)?)));
        let Some((agreement, by_acceptor)) = crossed.next() else {
            continue;
        };
        let (offerer, acceptor) = (&agreement.offerer, &agreement.acceptor);
        let (sender, receiver) = match by_acceptor {
            true => (acceptor, offerer),
            false => (offerer, acceptor),
        };
        let name = format!("{offerer}/{} with {acceptor}", agreement.offer);
        let row = |tenant: &String| UsageRow {
            tenant: tenant.clone(),
            agreement: name.clone(),
            ..UsageRow::default()
        };
        rows.push(UsageRow {
            sent_packets: packets,
            sent_bytes: bytes,
            ..row(sender)
        });
        rows.push(UsageRow {
            got_packets: packets,
            got_bytes: bytes,
            ..row(receiver)
        });
    }
    rows
}

/// Whether what the fabric takes from a slot by a tag is sent by the agreement's acceptor,
/// or by its offerer: where both are in one compartment, that has a tag of its own.
fn sent_by(agreement: &Agreement, slot: u32, tag: u16) -> Option<bool> {
    if (slot, tag) == (agreement.acceptor_slot, agreement.tag) {
        return Some(true);
    }
    ((slot, tag) == (agreement.offerer_slot, agreement.offerer_tag)).then_some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_either_side_of_an_agreement_sends_is_its_own() {
        let zone = "\n    placement: {per: zone, zone: z}";
        for placement in ["", zone] {
            let spec = format!(
                "version: 1\ntenants:\n  - name: red{placement}\n    subnets: [{{name: a, prefixes: [10.1.1.0/24]}}]\n    endpoints: [{{name: x, subnet: a}}]\n    offers: [{{name: db, endpoint: x, protocol: tcp, ports: [1], to: [blue], pool: [10.1.250.0/28]}}]\n  - name: blue{placement}\n    subnets: [{{name: a, prefixes: [10.1.1.0/24]}}]\n    endpoints: [{{name: x, subnet: a}}]\n    accepts: [{{name: db, from: red, service: db, as: [10.1.200.10]}}]\n"
            );
            let spec = spec::parse("spec.yaml", spec.as_bytes()).unwrap();
            let ids = policy::Ids::assign(&spec, &policy::Ids::default());
            let intent = policy::compile(&spec, &ids, 0).unwrap();
            let [one] = &intent.agreements[..] else {
                panic!("{:?}", intent.agreements);
            };
            let shared = one.acceptor_slot == one.offerer_slot;
            assert_eq!(shared, !placement.is_empty());
            let of = |slot, tag| sent_by(one, slot, tag);
            assert_eq!(of(one.acceptor_slot, one.tag), Some(true));
            assert_eq!(of(one.offerer_slot, one.offerer_tag), Some(false));
            assert_eq!(of(one.offerer_slot + 9, one.tag), None);
            assert_eq!(
                of(one.acceptor_slot, one.tag.max(one.offerer_tag) + 1),
                None
            );
        }
    }
}
