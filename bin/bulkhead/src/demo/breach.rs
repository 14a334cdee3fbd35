//! The act in which somebody tampers with tables on their way from the compiler, and the
//! proof refuses them, with a packet that shows why.

use super::acts::{Score, title};
use super::gateway::{FILE, spec};
use super::say;
use super::stage::Stage;
use super::takeover::taken_over;
use crate::client::encoded;
use crate::exit::{Exit, Trouble};
use api::{Applied, Traces};
use command::bundle::{Bundle, Part};
use image::compartment::NONE;
use image::fabric::{FORWARD_UNICAST, Forward};
use image::rules::Action;
use image::{Aligned, CompartmentImage, FabricImage};
use policy::Ids;
use proof::{Breach, Claim, Class, Known, Packet, Read};
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// The fabric's own image among a host's.
const FABRIC: u32 = 0;

/// What the compiler made of a spec, before it is installed.
struct Tables {
    spec: Read,
    ids: Ids,
    numbers: Vec<u8>,
    now: u64,
    /// By the slot at the fabric; [`FABRIC`] = its own.
    images: BTreeMap<u32, Vec<u8>>,
}

impl Tables {
    fn compile(text: &str) -> Result<Tables, Trouble> {
        let failed = |what: String| Trouble::new(Exit::Failed, what, "");
        let spec = spec::parse(FILE, text.as_bytes()).map_err(|e| failed(e.to_string()))?;
        let ids = Ids::assign(&spec, &Ids::default());
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |since| since.as_secs());
        let intent = policy::compile(&spec, &ids, now).map_err(|errors| {
            let all: Vec<String> = errors.iter().map(ToString::to_string).collect();
            failed(all.join("; "))
        })?;
        let mut images: BTreeMap<u32, Vec<u8>> = (intent.compartments.iter())
            .map(|(slot, made)| (*slot, made.image.bytes.to_vec()))
            .collect();
        images.insert(FABRIC, intent.fabric.bytes.to_vec());
        let numbers = serde_json::to_vec(&ids).map_err(|e| failed(e.to_string()))?;
        Ok(Tables {
            spec: Read::new(spec),
            ids,
            numbers,
            now,
            images,
        })
    }

    /// What the verifier's engine says to them; none = proved.
    fn breaches(&self) -> Vec<Breach> {
        let claim = Claim {
            spec: &self.spec,
            numbers: &self.numbers,
            now: self.now,
            fabric: self.images.get(&FABRIC).map_or(&[], Vec::as_slice),
            compartments: (self.images.iter())
                .filter(|(slot, _)| **slot != FABRIC)
                .map(|(slot, bytes)| (*slot, bytes.as_slice()))
                .collect(),
            compromised: None,
            before: BTreeMap::new(),
            counted: false,
        };
        proof::prove(&claim, &mut Known::default())
            .err()
            .unwrap_or_default()
    }

    /// The same question for a verifier's process.
    fn question(&self) -> Vec<u8> {
        let part = |slot: &u32| self.images.get(slot).map(|bytes| Part::Bytes(bytes));
        let slots = self.images.keys().filter(|slot| **slot != FABRIC);
        let bundle = Bundle {
            now: self.now,
            source: FILE,
            spec: Part::Bytes(self.spec.source.text().as_bytes()),
            numbers: &self.numbers,
            fabric: part(&FABRIC),
            compartments: slots
                .filter_map(|slot| Some((*slot, part(slot)?)))
                .collect(),
        };
        bundle.write()
    }

    fn slot(&self, tenant: &str) -> Option<u32> {
        self.ids.compartments.get(tenant).map(|own| own.id)
    }

    /// Takes red's `no-ssh` out of the table of what comes to red/web1.
    fn forget_the_rule(&mut self) -> Option<()> {
        let slot = self.slot("red")?;
        let red = self.ids.tenants.get("red")?;
        let (rule, web1) = (*red.rules.get("no-ssh")?, red.endpoints.get("web1")?.id);
        let memory = Aligned::copy_of(self.images.get(&slot)?);
        let mut tables = CompartmentImage::map(memory.as_ref()).ok()?.decode();
        let table = tables.endpoints.iter().find(|e| e.id == web1)?.ingress;
        let table = (table != NONE).then_some(table as usize)?;
        let rules = &mut tables.rule_tables.get_mut(table)?.rules;
        let before = rules.len();
        rules.retain(|one| one.id != rule || one.action != Action::Deny);
        if rules.len() == before {
            return None;
        }
        self.images.insert(slot, tables.finish().ok()?);
        Some(())
    }

    /// Adds an entry to the fabric's table that takes blue's frames to red's switch.
    fn join_the_tenants(&mut self) -> Option<()> {
        let (red, blue) = (self.slot("red")?, self.slot("blue")?);
        let memory = Aligned::copy_of(self.images.get(&FABRIC)?);
        let mut tables = FabricImage::map(memory.as_ref()).ok()?.decode();
        let taken = tables.forwards.iter().map(|entry| entry.tag).max();
        let tag = taken.unwrap_or(0).checked_add(1)?;
        tables.forwards.push(Forward {
            ingress: blue,
            tag,
            target: red,
            out_tag: tag,
            kind: FORWARD_UNICAST,
            ..Forward::default()
        });
        self.images.insert(FABRIC, tables.finish().ok()?);
        Some(())
    }
}

/// How tables are tampered with, and what of it is to be found.
struct Plant {
    what: &'static str,
    plant: fn(&mut Tables) -> Option<()>,
    class: Class,
}

const PLANTS: [Plant; 2] = [
    Plant {
        what: "red's rule no-ssh is taken out of the table of red/web1",
        plant: Tables::forget_the_rule,
        class: Class::MissingDeny,
    },
    Plant {
        what: "an entry is added to the fabric's table that takes blue's frames to red's switch",
        plant: Tables::join_the_tenants,
        class: Class::FabricEntry,
    },
];

/// All of it. `installed` = the network namespace of the uplink of the spec that is
/// installed; none = another spec is.
pub async fn breach(
    stage: &Stage,
    score: &mut Score,
    installed: Option<String>,
) -> Result<(), Trouble> {
    title("a planted breach: tables are tampered with between compiler and proof");
    say("   (asked of the engine that every apply asks; then handed to this host's own daemons)");
    let text = spec(installed.as_deref().unwrap_or("outside"));
    let honest = Tables::compile(&text)?.breaches();
    score.line(
        honest.is_empty(),
        &format!("{FILE} as it was compiled: proved"),
    );
    let mut shown = None;
    for Plant { what, plant, class } in PLANTS {
        say(&format!("   {what}"));
        let mut tables = Tables::compile(&text)?;
        if plant(&mut tables).is_none() {
            score.line(false, "there was nothing to tamper with");
            continue;
        }
        let breaches = tables.breaches();
        let found = (breaches.iter()).find(|b| b.class == class && b.packet.is_some());
        let Some(found) = found else {
            score.line(false, "NOT refused with a packet that shows it");
            continue;
        };
        score.line(true, &format!("refused: {}: {}", found.class, found.what));
        for line in lines(found) {
            say(&format!("       {line}"));
        }
        if class == Class::MissingDeny {
            shown = found.packet;
        }
        let target = match found.slot {
            FABRIC => command::verbs::FABRIC,
            slot => slot,
        };
        taken_over(stage, score, target, &tables.question()).await?;
    }
    if let (Some(packet), true) = (shown, installed.is_some()) {
        dropped(stage, score, &packet).await?;
    }
    Ok(())
}

/// The packet, its way, and what the spec says.
fn lines(breach: &Breach) -> Vec<String> {
    let packet = breach.packet.iter().map(|p| format!("packet  {p}"));
    let path = (!breach.path.is_empty()).then(|| format!("path    {}", breach.path));
    let rules = breach.rules.iter().map(|rule| format!("spec    {rule}"));
    packet.chain(path).chain(rules).collect()
}

/// The same packet on the host as it is, whose tables were proved.
async fn dropped(stage: &Stage, score: &mut Score, packet: &Packet) -> Result<(), Trouble> {
    let status = stage.status().await?;
    let source = packet.source.to_string();
    let sender = (status.tenants.iter())
        .filter(|tenant| tenant.name == "red")
        .flat_map(|tenant| &tenant.endpoints)
        .find(|endpoint| endpoint.addresses.contains(&source));
    let Some(sender) = sender else {
        score.line(false, &format!("nobody of red is {source}"));
        return Ok(());
    };
    let from = format!("red/{}", sender.name);
    let Packet {
        destination,
        source_port,
        destination_port,
        ..
    } = packet;
    say(&format!(
        "   $ bulkhead trace {from} {destination} tcp {destination_port} --source-port {source_port}        (that packet, on the host as it is)"
    ));
    let path = format!(
        "/v1/trace?from={}&to={}&protocol=tcp&port={destination_port}&source_port={source_port}&answer=false&deliver=false",
        encoded(&from),
        encoded(&destination.to_string())
    );
    let traces: Traces = stage.client.post(&path, Vec::new()).await?;
    let ways = traces.traces.iter().map(|traced| &traced.packet);
    let by = (ways.clone().flat_map(|way| &way.steps))
        .find(|step| step.by == "rule" && step.name == "no-ssh");
    let text = match by {
        Some(step) => {
            let line = step.place.as_ref().map_or(0, |place| place.line);
            format!("dropped: {} (rule {}, line {line})", step.says, step.name)
        }
        None => "not judged by red's rule".to_owned(),
    };
    let outcomes: Vec<&str> = ways.map(|way| way.outcome.as_str()).collect();
    score.line(by.is_some() && outcomes == ["dropped"], &text);
    Ok(())
}

/// The two tenants as they were before these acts.
pub async fn restored(stage: &Stage) -> Result<(), Trouble> {
    let path = "/v1/apply?file=examples%2Ftwo-tenants.yaml";
    let _: Applied = stage.client.post(path, super::SPEC.into()).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_plant_is_found_with_a_packet_and_honest_tables_are_proved() {
        let text = spec("outside");
        assert_eq!(Tables::compile(&text).unwrap().breaches(), []);
        for Plant { what, plant, class } in PLANTS {
            let mut tables = Tables::compile(&text).unwrap();
            plant(&mut tables).expect(what);
            let breaches = tables.breaches();
            let found = breaches.iter().find(|b| b.class == class).expect(what);
            assert!(found.packet.is_some(), "{found}");
            assert!(lines(found).len() >= 2, "{found}");
        }
    }

    #[test]
    fn what_a_rule_forbids_is_shown_with_the_rules_line() {
        let text = spec("outside");
        let mut tables = Tables::compile(&text).unwrap();
        tables.forget_the_rule().unwrap();
        let breaches = tables.breaches();
        let packet = breaches[0].packet.unwrap();
        assert_eq!((packet.protocol, packet.destination_port), (6, 22));
        let line = text.lines().position(|l| l.contains("no-ssh")).unwrap() + 1;
        let told = lines(&breaches[0]).join("\n");
        assert!(told.contains(&format!("{FILE}:{line}")), "{told}");
    }
}
