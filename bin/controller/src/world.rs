//! A spec that has been worked out: what has to exist for it, and what it is called.

use crate::stated::{Stated, Unfit};
use crate::steps::{Image, Key, Object, Step};
use crate::supervisor::Refusal;
use ::image::{Aligned, MappedCompartment, MappedFabric};
use api::{
    Aside, Compartment, Endpoint, EndpointRates, Fault, Finding, Limit, Needs, Tenant, Uplink,
    Vlan, Where, Whose,
};
use command::message::ErrorCode;
use command::verbs::{ENDPOINT_CIRCUITS, ENDPOINT_FIFO, ENDPOINT_VETH, ENDPOINT_VHOST, FABRIC};
use guard::guard;
use policy::{Answer, Ids, Intent, PortIntent, Unclear};
use spec::{Per, Span, Spec, State};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};
use store::Applied;

/// Everything about one spec. Never changed once it is shown.
#[derive(Debug, Default)]
pub struct World {
    applied: Applied,
    objects: BTreeMap<Key, Object>,
    /// Digests of the bodies of `objects`.
    digests: BTreeMap<Key, [u8; 32]>,
    images: BTreeMap<u32, Image>,
    needs: Needs,
    compartments: Vec<Compartment>,
    uplinks: Vec<Uplink>,
    worked_out: Option<Box<WorkedOut>>,
    /// Made for the first who looks: no apply has to wait for it.
    views: OnceLock<Views>,
}

/// What is called how, and where it stands.
#[derive(Debug, Default)]
struct Views {
    tenants: Vec<Tenant>,
    /// (tenant, endpoint) to its place in `tenants`.
    by_name: HashMap<(String, String), (usize, usize)>,
    /// Where each thing stands in the spec, for what is only found out while applying.
    places: HashMap<Key, Where>,
    /// And where it names what must be there already.
    namespaces: HashMap<Key, Where>,
    interfaces: HashMap<Key, Where>,
}

/// What the next spec is worked out from.
#[derive(Debug)]
struct WorkedOut {
    spec: Spec,
    ids: Ids,
    intent: Intent,
}

impl World {
    /// What the store remembers.
    pub fn applied(&self) -> &Applied {
        &self.applied
    }

    /// Its epoch; 0 = nothing was ever applied.
    pub fn epoch(&self) -> u64 {
        self.applied.epoch
    }

    /// The same tables as an earlier epoch's: that epoch goes on.
    pub fn keep_epoch(&mut self, epoch: u64) {
        self.applied.epoch = epoch;
    }

    /// All that was stated as one text: the provider's, tenants' own.
    pub fn text(&self) -> &str {
        match self.worked_out.as_deref() {
            Some(made) => made.spec.source.text(),
            None => "",
        }
    }

    /// The provider's file name.
    pub fn source(&self) -> &str {
        &self.applied.source
    }

    /// SHA-256 of the text, hex.
    pub fn digest(&self) -> &str {
        &self.applied.digest
    }

    /// What the supervisor has to hold.
    pub fn objects(&self) -> &BTreeMap<Key, Object> {
        &self.objects
    }

    /// Digests of their bodies, as the supervisor's inventory gives them.
    pub fn digests(&self) -> &BTreeMap<Key, [u8; 32]> {
        &self.digests
    }

    /// Table images by target.
    pub fn images(&self) -> &BTreeMap<u32, Image> {
        &self.images
    }

    /// The image of a target.
    pub fn image(&self, target: u32) -> Option<&Image> {
        self.images.get(&target)
    }

    /// What it asks of the host.
    pub fn needs(&self) -> Needs {
        self.needs.clone()
    }

    /// Tenants in the spec's order; counters are 0.
    pub fn tenants(&self) -> &[Tenant] {
        &self.views().tenants
    }

    /// Compartments in order of their ids; what is live is empty.
    pub fn compartments(&self) -> &[Compartment] {
        &self.compartments
    }

    /// A compartment by its id.
    pub fn compartment(&self, id: u32) -> Option<&Compartment> {
        self.compartments
            .iter()
            .find(|compartment| compartment.id == id)
    }

    /// Uplinks.
    pub fn uplinks(&self) -> &[Uplink] {
        &self.uplinks
    }

    /// Compartments with an endpoint that has circuits.
    pub fn with_circuits(&self) -> BTreeSet<u32> {
        let all = self.tenants().iter().flat_map(|tenant| &tenant.endpoints);
        let with = all.filter(|endpoint| endpoint.circuits);
        with.map(|endpoint| endpoint.compartment).collect()
    }

    /// An endpoint by its names.
    pub fn endpoint(&self, tenant: &str, endpoint: &str) -> Option<&Endpoint> {
        let views = self.views();
        views.at(*views
            .by_name
            .get(&(tenant.to_owned(), endpoint.to_owned()))?)
    }

    /// The endpoint plugged in a slot, as `TENANT/ENDPOINT`.
    pub fn name_at(&self, compartment: u32, slot: u32) -> Option<String> {
        let intent = &self.worked_out.as_deref()?.intent;
        let port = intent.compartments.get(&compartment)?.ports.get(&slot)?;
        Some(format!("{}/{}", port.tenant, port.endpoint))
    }

    /// The spec, its numbers, and what they came to; `None` before the first apply.
    pub fn made(&self) -> Option<(&Spec, &Ids, &Intent)> {
        let made = self.worked_out.as_deref()?;
        Some((&made.spec, &made.ids, &made.intent))
    }

    /// Seconds since 1970 at which the next of its agreements ends; `None` = none does.
    pub fn expires(&self) -> Option<u64> {
        self.worked_out.as_deref()?.intent.expires
    }

    /// Answers whether one may talk to another; `None` = nothing was ever applied.
    pub fn explain(&self, question: &policy::Question<'_>) -> Option<Result<Answer, Unclear>> {
        let made = self.worked_out.as_deref()?;
        Some(policy::explain(
            &made.spec,
            &made.ids,
            &made.intent,
            question,
        ))
    }

    /// Where in the spec that stands for which a step was refused: the namespace or
    /// interface that is missing, else the thing that the step is about.
    pub fn place_of(&self, step: &Step, refusal: &Refusal) -> Option<Where> {
        let key = match step {
            Step::Create(object) => object.key(),
            Step::Destroy(key, _) | Step::Remove(key, _) => *key,
            Step::Install(image, _) => Key::Compartment(image.target),
        };
        let views = self.views();
        let named = match refusal {
            Refusal::Refused { code, .. } => match code {
                Some(ErrorCode::NoNamespace) => views.namespaces.get(&key),
                Some(ErrorCode::NoInterface) => views.interfaces.get(&key),
                _ => None,
            },
            _ => None,
        };
        named.or_else(|| views.places.get(&key)).cloned()
    }

    fn views(&self) -> &Views {
        self.views.get_or_init(|| {
            self.worked_out
                .as_deref()
                .map(|made| Views::of(made, &self.compartments, &self.uplinks, &self.applied.aside))
                .unwrap_or_default()
        })
    }
}

impl World {
    /// Works out what a spec of the provider's alone says, to follow another world.
    ///
    /// # Errors
    /// All that is wrong with the text, each with its place.
    #[cfg(test)]
    pub fn compile(source: &str, text: &[u8], old: &World) -> Result<World, Fault> {
        Ok(World::of(Stated::alone(source, text)?, old)?)
    }

    /// Works out what is to follow another world; what is the same is taken over. With a
    /// tenant goes what it stated.
    ///
    /// # Errors
    /// All that is wrong with the documents, each with its place.
    pub fn of(stated: Stated, old: &World) -> Result<World, Unfit> {
        let spec = stated.read()?;
        let mut applied = stated.applied();
        let tenants: HashMap<&str, bool> = (spec.tenants.iter())
            .map(|one| (one.name.as_str(), one.self_managed.is_some()))
            .collect();
        let own = |name: &String| tenants.get(name.as_str()) == Some(&true);
        applied.documents.retain(|tenant, _| own(tenant));
        applied.aside.retain(|tenant, _| own(tenant));
        // What is set aside comes back as it was, what its tenant revoked of it too.
        let aside = |tenant: &str| {
            let aside = applied.aside.get(tenant);
            aside.is_some_and(|aside| aside.what != spec::Aside::Reach.as_str())
        };
        let kept = applied
            .revoked
            .iter()
            .filter(|(tenant, _)| guard!("revoked-though-aside") && aside(tenant));
        applied.revoked = kept.chain(spec.revoked.keys()).cloned().collect();
        // The provider's word stands also while the tenant does not state what it is about.
        applied.barred.retain(|barred| {
            let key = (barred.tenant.clone(), barred.name.clone());
            own(&barred.tenant) || spec.revoked.contains_key(&key)
        });
        World::follow(spec, applied, old)
    }

    /// Likewise; of tenants' own documents that do not fit is set aside what does not, so
    /// that nothing is refused for their sake.
    ///
    /// # Errors
    /// All that is wrong with the provider's document, each with its place.
    pub fn fitted(stated: Stated, old: &World) -> Result<World, Fault> {
        stated.fit(|stated| World::of(stated, old))
    }

    /// Nothing at all, following another spec. What tenants state themselves is kept.
    ///
    /// # Errors
    /// A fault of ours.
    pub fn nothing(old: &World) -> Result<World, Fault> {
        let stated = Stated {
            source: String::new(),
            text: NOTHING.to_owned(),
            ..Stated::before(&old.applied)
        };
        let spec = stated.read()?;
        let applied = Applied {
            down: true,
            ..stated.applied()
        };
        Ok(World::follow(spec, applied, old)?)
    }

    /// Works out again what the store remembers. What this release takes of no tenant's own
    /// document any more is set aside.
    ///
    /// # Errors
    /// When this release no longer understands it.
    pub fn recall(applied: &Applied) -> Result<World, Fault> {
        let kept: Ids = serde_json::from_str(&applied.ids)
            .map_err(|e| ours(&format!("the numbers in the store do not read: {e}")))?;
        Stated::before(applied).fit(|stated| {
            let spec = stated.read()?;
            let ids = Ids::assign(&spec, &kept);
            let applied = Applied {
                aside: stated.aside,
                ..applied.clone()
            };
            World::build(spec, ids, applied, None)
        })
    }

    fn follow(spec: Spec, mut applied: Applied, old: &World) -> Result<World, Unfit> {
        let before = old.worked_out.as_deref();
        let ids = Ids::assign(&spec, before.map_or(&Ids::default(), |before| &before.ids));
        applied.epoch = old.epoch() + 1;
        World::build(spec, ids, applied, Some(old))
    }

    fn build(
        spec: Spec,
        ids: Ids,
        mut applied: Applied,
        old: Option<&World>,
    ) -> Result<World, Unfit> {
        applied.ids = serde_json::to_string(&ids).map_err(|e| ours(&e.to_string()))?;
        let before = old.and_then(|old| old.worked_out.as_deref());
        let before = before.map(|before| (&before.spec, &before.ids, &before.intent));
        let intent = policy::compile_after(&spec, &ids, now(), before)
            .map_err(|findings| Unfit::by(&findings))?;
        let needs = policy::needs(&intent);
        let needs = Needs {
            processes: needs.processes,
            memory_bytes: needs.memory_bytes,
            cores: needs.cores.clone(),
        };
        let mut world = World {
            applied,
            needs,
            ..World::default()
        };
        world.take(&spec, &intent);
        world.digest_bodies(old);
        world.worked_out = Some(Box::new(WorkedOut { spec, ids, intent }));
        Ok(world)
    }

    fn take(&mut self, spec: &Spec, intent: &Intent) {
        let image = |target: u32, image: &policy::Image| {
            (
                target,
                Image {
                    target,
                    digest: image.digest.0,
                    bytes: image.bytes.clone(),
                },
            )
        };
        // In the order of their keys, so that nothing is sorted below.
        let mut objects = Vec::new();
        let mut ports = Vec::new();
        let mut uplinks = Vec::new();
        for uplink in intent.uplinks.values() {
            let body = uplink.create;
            uplinks.push(Object::Uplink(body));
            self.uplinks.push(Uplink {
                name: uplink.name.clone(),
                number: body.uplink,
                interface: body.interface.as_str().into(),
                slot: body.slot,
                vlans: vlans(intent, body.uplink),
                ..Uplink::default()
            });
        }
        if !intent.fabric.is_none() {
            self.images.extend([image(FABRIC, &intent.fabric)]);
        }
        // A tenant's own compartment goes by the tenant's name.
        let alone: HashSet<&str> = spec
            .tenants
            .iter()
            .filter(|tenant| tenant.per() == Per::Tenant)
            .map(|tenant| tenant.name.as_str())
            .collect();
        for compartment in intent.compartments.values() {
            let id = compartment.create.id;
            objects.push(Object::Compartment(compartment.create));
            self.images.extend([image(id, &compartment.image)]);
            ports.extend(
                compartment
                    .ports
                    .values()
                    .map(|port| Object::Port(port.create)),
            );
            let own = compartment.tenants.last();
            let own = own.filter(|tenant| alone.contains(tenant.as_str()));
            self.compartments.push(Compartment {
                id,
                name: own.unwrap_or(&compartment.name).clone(),
                tenants: compartment.tenants.clone(),
                ..Compartment::default()
            });
        }
        self.objects = (objects.into_iter().chain(ports).chain(uplinks))
            .map(|object| (object.key(), object))
            .collect();
    }

    /// What is as it was keeps its digest: a thousand bodies are half a megabyte to hash.
    fn digest_bodies(&mut self, old: Option<&World>) {
        let digest = |(key, object): (&Key, &Object)| {
            let before = old
                .filter(|old| old.objects.get(key) == Some(object))
                .and_then(|old| old.digests.get(key));
            (*key, before.copied().unwrap_or_else(|| object.digest()))
        };
        self.digests = self.objects.iter().map(digest).collect();
    }
}

impl Views {
    fn of(
        made: &WorkedOut,
        compartments: &[Compartment],
        uplinks: &[Uplink],
        aside: &BTreeMap<String, Aside>,
    ) -> Views {
        let WorkedOut { spec, ids, intent } = made;
        let mut views = Views::default();
        let endpoints: HashMap<(&str, &str), &PortIntent> = intent
            .ports()
            .map(|(_, port)| ((port.tenant.as_str(), port.endpoint.as_str()), port))
            .collect();
        for tenant in &spec.tenants {
            let name = tenant.name.as_str();
            let Some(compartment) = compartments
                .iter()
                .find(|compartment| compartment.tenants.iter().any(|one| one == name))
            else {
                continue;
            };
            let found = tenant.endpoints.iter().filter_map(|endpoint| {
                let port = endpoints.get(&(name, endpoint.name.as_str()))?;
                Some(described(name, endpoint, port))
            });
            let found: Vec<Endpoint> = found.collect();
            let place = views.tenants.len();
            for (index, endpoint) in found.iter().enumerate() {
                views
                    .by_name
                    .insert((name.to_owned(), endpoint.name.clone()), (place, index));
            }
            views.tenants.push(Tenant {
                name: name.to_owned(),
                id: ids.tenants.get(name).map_or(0, |tenant| tenant.id),
                compartment: compartment.id,
                per: match tenant.per() {
                    Per::Host => "host",
                    Per::Zone => "zone",
                    Per::Tenant => "tenant",
                }
                .into(),
                kind: "process".into(),
                sandbox: tenant.sandbox(),
                from: limit(tenant.meter_from()),
                to: limit(tenant.meter_to()),
                aside: aside.get(name).cloned(),
                endpoints: found,
            });
        }
        views.find_places(spec, uplinks);
        views
    }

    fn at(&self, (tenant, endpoint): (usize, usize)) -> Option<&Endpoint> {
        self.tenants.get(tenant)?.endpoints.get(endpoint)
    }

    fn find_places(&mut self, spec: &Spec, uplinks: &[Uplink]) {
        let at = |span: Span| {
            let position = spec.source.position(span.start);
            Where {
                file: spec.source.name_at(span.start).into(),
                line: position.line,
                column: position.column,
            }
        };
        for tenant in &spec.tenants {
            for endpoint in &tenant.endpoints {
                let name = (
                    tenant.name.value.as_str().to_owned(),
                    endpoint.name.value.as_str().to_owned(),
                );
                let Some(known) = self.by_name.get(&name).and_then(|place| self.at(*place)) else {
                    continue;
                };
                let (compartment, slot) = (known.compartment, known.slot);
                let key = Key::Port(compartment, slot);
                self.places.insert(key, at(endpoint.span()));
                if let Some(named) = endpoint.attach().interface() {
                    if let Some(namespace) = &named.namespace {
                        self.namespaces.insert(key, at(namespace.span));
                    }
                    if let Some(interface) = &named.interface {
                        self.interfaces.insert(key, at(interface.span));
                    }
                }
                self.places
                    .entry(Key::Compartment(compartment))
                    .or_insert_with(|| at(tenant.name.span));
            }
        }
        for uplink in uplinks {
            if let Some(named) = spec
                .uplinks
                .iter()
                .find(|named| named.name.value.as_str() == uplink.name)
            {
                let key = Key::Uplink(uplink.number);
                self.places.insert(key, at(named.name.span));
                self.interfaces.insert(key, at(named.interface.span));
                if let Some(namespace) = &named.namespace {
                    self.namespaces.insert(key, at(namespace.span));
                }
            }
        }
    }
}

fn described(tenant: &str, endpoint: &spec::Endpoint, port: &PortIntent) -> Endpoint {
    let body = &port.create;
    Endpoint {
        tenant: tenant.into(),
        name: port.endpoint.clone(),
        id: body.endpoint,
        subnet: port.subnet.clone(),
        compartment: body.compartment,
        slot: body.slot,
        kind: match body.kind {
            ENDPOINT_FIFO => "fifo",
            ENDPOINT_VHOST => "vhost",
            ENDPOINT_VETH => "veth",
            ENDPOINT_CIRCUITS => "circuits",
            _ => "tap",
        }
        .into(),
        circuits: endpoint.attach().circuits().is_some(),
        namespace: body.namespace.as_str().into(),
        interface: body.interface.as_str().into(),
        mac: port.mac.map(|byte| format!("{byte:02x}")).join(":"),
        addresses: port.addresses.iter().map(ToString::to_string).collect(),
        state: match endpoint.state() {
            State::Open => "open",
            State::Unauthorised => "unauthorised",
            State::Quarantined => "quarantined",
        }
        .into(),
        port: "open".into(),
        from: limit(endpoint.meter_from()),
        to: limit(endpoint.meter_to()),
        weight: endpoint.weight(),
        guarantee_bits: endpoint.guarantee_bits(),
        counters: EndpointRates {
            uncounted: body.kind == ENDPOINT_CIRCUITS && !port.metered,
            ..EndpointRates::default()
        },
    }
}

fn limit((bytes, burst, packets): (u64, u64, u64)) -> Limit {
    Limit {
        bits: bytes * 8,
        packets,
        burst,
    }
}

fn ours(sentence: &str) -> Fault {
    Fault::new("bulkhead", Whose::Bulkhead, sentence, "please report this")
}

/// What a host without tenants applies.
const NOTHING: &str = "version: 1\n";

/// All findings as one fault; the first stands for it.
pub fn refused(findings: &[spec::Finding]) -> Fault {
    let findings: Vec<Finding> = findings.iter().map(api::Finding::from).collect();
    let first = findings.first().cloned().unwrap_or_default();
    let message = match findings.len() {
        0 | 1 => first.message.clone(),
        many => format!("{} (and {} more)", first.message, many - 1),
    };
    Fault {
        code: "spec".into(),
        message,
        place: Some(first.place),
        whose: Whose::User,
        help: first.help,
        findings: if findings.len() > 1 {
            findings
        } else {
            Vec::new()
        },
    }
}

/// An image for people.
pub fn dumped(image: &Image) -> String {
    let aligned = Aligned::copy_of(&image.bytes);
    let text = if image.target == FABRIC {
        MappedFabric::map(aligned).map(|mapped| mapped.image().to_string())
    } else {
        MappedCompartment::map(aligned).map(|mapped| mapped.image().to_string())
    };
    text.unwrap_or_else(|error| format!("not an image: {error}\n"))
}

/// Seconds since 1970: agreements that have ended by now are left out.
pub fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// The VLANs of an uplink, and whose each is.
fn vlans(intent: &Intent, uplink: u32) -> Vec<Vlan> {
    let mut all = Vec::new();
    for compartment in intent.compartments.values() {
        let outside = compartment.attachments.iter();
        let outside = outside.filter(|way| way.uplink == uplink && way.vlan != 0);
        all.extend(outside.map(|way| Vlan {
            vlan: way.vlan,
            tenant: way.tenant.clone(),
            subnet: String::new(),
        }));
        let segments = compartment.segments.iter().filter(|s| s.uplink == uplink);
        all.extend(segments.map(|segment| Vlan {
            vlan: segment.vlan,
            tenant: segment.tenant.clone(),
            subnet: segment.subnet.clone(),
        }));
    }
    all.sort_by_key(|vlan| vlan.vlan);
    all
}
