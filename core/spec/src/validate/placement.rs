//! Whose switch a tenant has, on which cores and with how many workers.

use super::*;

impl Check<'_> {
    /// Tenants that share a switch agree on it, and cores of their own are nobody else's.
    pub(super) fn placements(&mut self) {
        let document = self.document;
        let mut compartments: HashMap<String, &Tenant> = HashMap::new();
        let mut cores: HashMap<u32, (String, Span)> = HashMap::new();
        for tenant in &document.tenants {
            self.placement(tenant);
            let name = tenant.compartment();
            let first = match compartments.entry(name.clone()) {
                Entry::Occupied(first) => *first.get(),
                Entry::Vacant(entry) => entry.insert(tenant),
            };
            if let Some(what) = disagreement(first, tenant) {
                self.findings
                    .add(
                        "placement",
                        tenant.name.span,
                        format!(
                            "tenants {} and {} share a switch but differ in `{what}`",
                            first.name.value, tenant.name.value
                        ),
                    )
                    .also(first.name.span, "shares with this one")
                    .help(format!("give both the same `{what}`, or place them apart"));
            }
            for core in tenant.isolated_cores() {
                match cores.entry(core.value) {
                    Entry::Occupied(taken) if taken.get().0 != name => {
                        self.findings
                            .add(
                                "core-taken",
                                core.span,
                                format!("core {} is isolated for two switches", core.value),
                            )
                            .label("again here")
                            .also(taken.get().1, "first here")
                            .help("isolated cores are nobody else's: choose another");
                    }
                    Entry::Occupied(_) => {}
                    Entry::Vacant(entry) => {
                        entry.insert((name.clone(), core.span));
                    }
                }
            }
        }
    }

    /// Several workers share nothing: what they would have to share is refused.
    fn workers(&mut self, tenant: &Tenant) {
        let Some(workers) = tenant.workers else {
            return;
        };
        if !(1..=MOST_WORKERS).contains(&workers.value) {
            self.findings
                .add(
                    "workers",
                    workers.span,
                    format!("a switch has 1 to {MOST_WORKERS} workers"),
                )
                .help("choose a number between");
        }
        if workers.value < 2 {
            return;
        }
        self.cores_of_workers(tenant, workers);
        // Rings between them, of half a MiB each way (bin/switch/src/peers.rs).
        let rings = u64::from(workers.value.min(MOST_WORKERS)).pow(2) << 19;
        let least = rings * 8;
        if tenant.memory_bytes() < least {
            self.findings
                .add(
                    "workers",
                    workers.span,
                    format!(
                        "{} workers need at least {} MiB of memory: the rings between them take \
                         an eighth of it",
                        workers.value,
                        least >> 20
                    ),
                )
                .help(format!("add `memory: {}MiB`, or choose fewer", least >> 20));
        }
    }

    /// Where cores are isolated, each of several workers has one of its own.
    fn cores_of_workers(&mut self, tenant: &Tenant, workers: Located<u32>) {
        let named = tenant.isolated_cores();
        let Some(cores) = tenant.cores.as_ref().filter(|_| !named.is_empty()) else {
            return;
        };
        if named.len() != workers.value as usize && guard!("spec-worker-cores") {
            let what = match named.len() {
                1 => "1 core is".to_owned(),
                several => format!("{several} cores are"),
            };
            self.findings
                .add(
                    "cores",
                    cores.span,
                    format!("{what} named for {} workers", workers.value),
                )
                .also(workers.span, "each of these has a core of its own")
                .help("name as many cores as there are workers, or write `cores: shared`");
        }
        for (at, core) in named.iter().enumerate() {
            let mut before = named.iter().take(at);
            if let Some(first) = before.find(|first| first.value == core.value) {
                self.findings
                    .add(
                        "cores",
                        core.span,
                        format!("core {} is named for two workers", core.value),
                    )
                    .label("again here")
                    .also(first.span, "first here")
                    .help("name another: each worker has a core of its own");
            }
        }
    }

    fn placement(&mut self, tenant: &Tenant) {
        let known = self
            .document
            .host
            .as_ref()
            .or(self.document.hosts.first())
            .and_then(|h| h.cores);
        if let Some(cores) = tenant
            .cores
            .as_ref()
            .filter(|c| matches!(&c.value, crate::Cores::Isolated(list) if list.is_empty()))
        {
            self.findings
                .add("cores", cores.span, "no core is named")
                .help("name at least one, or write `cores: shared`");
        }
        for core in tenant.isolated_cores() {
            let most = known.map_or(1024, |n| n.value);
            if core.value >= most {
                let count = known.map_or("at most 1024 cores are supported".into(), |n| {
                    format!("the host has {} cores, numbered from 0", n.value)
                });
                self.findings
                    .add(
                        "cores",
                        core.span,
                        format!("there is no core {}: {count}", core.value),
                    )
                    .help("choose a lower number");
            }
        }
        if let Some(wait) = tenant
            .wait
            .filter(|w| w.value == Wait::Poll(0) && tenant.isolated_cores().is_empty())
        {
            self.findings
                .add(
                    "wait",
                    wait.span,
                    "polling without a pause needs cores of its own",
                )
                .help("add `cores: {isolated: [N]}`, or give a period: `wait: {poll: 50us}`");
        }
        self.workers(tenant);
        let Some(placement) = &tenant.placement else {
            return;
        };
        match (tenant.per(), &placement.zone) {
            (Per::Zone, None) => {
                let span = placement.per.map_or(tenant.name.span, |p| p.span);
                self.findings
                    .add("zone", span, "`per: zone` lacks its zone")
                    .help("add `zone: NAME`");
            }
            (Per::Host | Per::Tenant, Some(zone)) => {
                self.findings
                    .add(
                        "zone",
                        zone.span,
                        "a zone is given, but the placement is not per zone",
                    )
                    .help("write `per: zone`, or remove the zone");
            }
            _ => {}
        }
        if let Some(kind) = placement.kind.filter(|k| k.value == Kind::Vm) {
            self.findings
                .add(
                    "not-yet",
                    kind.span,
                    "compartments that are virtual machines are not in this release",
                )
                .help("write `kind: process`");
        }
    }
}

/// What two tenants that share a switch say differently of it.
fn disagreement(a: &Tenant, b: &Tenant) -> Option<&'static str> {
    let differ = [
        (a.sandbox() != b.sandbox(), "placement.sandbox"),
        (a.program() != b.program(), "placement.program"),
        (a.isolated_cores() != b.isolated_cores(), "cores"),
        (a.wait() != b.wait(), "wait"),
        (a.workers() != b.workers(), "workers"),
        (a.channel_bytes() != b.channel_bytes(), "channel"),
        (a.memory_bytes() != b.memory_bytes(), "memory"),
    ];
    differ
        .into_iter()
        .find(|(differs, _)| *differs)
        .map(|(_, what)| what)
}
