//! A tenant's prefixes and addresses, inside and outside.

use core::net::IpAddr;
use guard::guard;
use std::collections::HashMap;

use super::Check;
use crate::model::{MIN_MTU4, MIN_MTU6, Outside, Subnet, Tenant};
use crate::shapes::AddressList;
use crate::source::{Located, Span};
use crate::values::{Ip, Prefix};

impl Check<'_> {
    pub(super) fn addressing(&mut self, tenant: &Tenant) {
        for subnet in &tenant.subnets {
            self.subnet(subnet);
        }
        self.overlaps(tenant);
        let subnets: HashMap<&str, &Subnet> = tenant
            .subnets
            .iter()
            .map(|s| (s.name.as_str(), s))
            .collect();
        let mut owners: HashMap<IpAddr, Span> = HashMap::new();
        for endpoint in &tenant.endpoints {
            let Some(subnet) = subnets.get(endpoint.subnet.as_str()) else {
                continue;
            };
            for address in endpoint.addresses().unwrap_or(&[]) {
                if !self.address(subnet, address) {
                    continue;
                }
                let first = owners.insert(address.value.0, address.span);
                if let Some(first) = first.filter(|_| guard!("spec-duplicate-address")) {
                    self.findings
                        .add(
                            "duplicate-address",
                            address.span,
                            format!(
                                "{} is given twice in the tenant {}",
                                address.value, tenant.name.value
                            ),
                        )
                        .label("again here")
                        .also(first, "first here")
                        .help("choose another address, or leave it out: it is then chosen");
                }
            }
        }
    }

    fn subnet(&mut self, subnet: &Subnet) {
        if subnet.prefixes.is_empty() && self.whole {
            self.findings
                .add(
                    "prefix",
                    subnet.name.span,
                    format!("the subnet `{}` has no prefix", subnet.name.value),
                )
                .help("add one, for example `prefixes: [10.1.1.0/24]`");
        }
        for v4 in [true, false] {
            if let Some(second) = subnet.prefixes.iter().filter(|p| p.is_v4() == v4).nth(1) {
                let family = if v4 { "IPv4" } else { "IPv6" };
                self.findings
                    .add(
                        "prefix",
                        second.span,
                        format!(
                            "a second {family} prefix in the subnet `{}`",
                            subnet.name.value
                        ),
                    )
                    .help("a subnet has at most one of each family: make another subnet");
            }
        }
        for prefix in &subnet.prefixes {
            self.prefix(prefix);
        }
        let least = if subnet.prefix6().is_some() {
            MIN_MTU6
        } else {
            MIN_MTU4
        };
        if let Some(mtu) = subnet.mtu {
            let what = if least == MIN_MTU6 {
                "the mtu of a subnet with IPv6"
            } else {
                "the mtu of a subnet"
            };
            self.range(mtu, least, 65_535, what);
        }
        self.gateway(subnet);
        self.services(subnet);
    }

    fn prefix(&mut self, prefix: &Located<Prefix>) {
        let usable = match prefix.network {
            IpAddr::V4(a) => {
                !(a.is_loopback()
                    || a.is_multicast()
                    || a.is_link_local()
                    || a.octets()[0] == 0
                    || a.octets()[0] >= 240)
            }
            IpAddr::V6(a) => {
                !(a.is_loopback()
                    || a.is_multicast()
                    || a.is_unicast_link_local()
                    || a.is_unspecified())
            }
        };
        if !usable {
            self.findings
                .add(
                    "prefix",
                    prefix.span,
                    format!("{} is not for a subnet of hosts", prefix.value),
                )
                .help("use a private or a global unicast prefix");
            return;
        }
        let (least, most) = if prefix.is_v4() { (8, 30) } else { (16, 126) };
        if prefix.len < least || prefix.len > most {
            self.findings
                .add(
                    "prefix",
                    prefix.span,
                    format!(
                        "/{} is out of range for a subnet: /{least} to /{most}",
                        prefix.len
                    ),
                )
                .help("a subnet needs room for its gateway and a host");
        }
    }

    fn gateway(&mut self, subnet: &Subnet) {
        let Some(AddressList::List(list)) = &subnet.gateway else {
            return;
        };
        for (at, gateway) in list.iter().enumerate() {
            let prefix = subnet.prefixes.iter().find(|p| p.contains(gateway.value.0));
            match prefix {
                None if self.whole => {
                    self.findings
                        .add(
                            "gateway",
                            gateway.span,
                            format!(
                                "the gateway {} is in no prefix of the subnet `{}`",
                                gateway.value, subnet.name.value
                            ),
                        )
                        .help("choose one inside, or write `gateway: auto`");
                }
                None => {}
                Some(prefix) if !prefix.is_host(gateway.value.0) => {
                    self.findings
                        .add(
                            "gateway",
                            gateway.span,
                            format!(
                                "{} is the network's own or its broadcast address",
                                gateway.value
                            ),
                        )
                        .help("choose another, or write `gateway: auto`");
                }
                Some(_) => {}
            }
            if list
                .iter()
                .take(at)
                .any(|g| g.value.0.is_ipv4() == gateway.value.0.is_ipv4())
            {
                self.findings
                    .add(
                        "gateway",
                        gateway.span,
                        "a second gateway of the same family",
                    )
                    .help("a subnet has at most one of each family");
            }
        }
    }

    fn services(&mut self, subnet: &Subnet) {
        let needs = [
            (subnet.dhcp, subnet.prefix4().is_some(), "DHCP", "IPv4"),
            (
                subnet.ra,
                subnet.prefix6().is_some(),
                "router advertisements",
                "IPv6",
            ),
            (
                subnet.slaac,
                subnet.prefix6().is_some(),
                "addresses made from the MAC",
                "IPv6",
            ),
        ];
        for (toggle, has, what, family) in needs {
            if let Some(toggle) = toggle.filter(|t| t.value.0 && !has && self.whole) {
                self.findings
                    .add(
                        "service",
                        toggle.span,
                        format!("{what} without an {family} prefix"),
                    )
                    .help(format!("add an {family} prefix, or remove it"));
            }
        }
        if let (Some(slaac), Some(prefix)) = (subnet.slaac.filter(|s| s.value.0), subnet.prefix6())
        {
            if prefix.len != 64 {
                self.findings
                    .add(
                        "service",
                        slaac.span,
                        format!("`slaac` needs a /64 prefix (RFC 4862), not {prefix}"),
                    )
                    .help("use a /64, or remove it");
            }
            if !subnet.ra() {
                self.findings
                    .add(
                        "service",
                        slaac.span,
                        "`slaac` needs router advertisements, which are off",
                    )
                    .help("write `ra: on`, or remove it");
            }
        }
        if let Some(lease) = subnet.lease.filter(|l| l.value.0 < 60_000_000) {
            self.findings
                .add(
                    "range",
                    lease.span,
                    format!("a lease of {} is too short", lease.value),
                )
                .help("at least 60s");
        }
        for (at, dns) in subnet.dns.iter().enumerate() {
            if dns.value.0.is_unspecified() || dns.value.0.is_multicast() {
                self.findings
                    .add(
                        "value",
                        dns.span,
                        format!("{} is not a server's address", dns.value),
                    )
                    .help("name a DNS server");
            }
            if subnet
                .dns
                .iter()
                .take(at)
                .any(|d| d.value.0.is_ipv4() == dns.value.0.is_ipv4())
            {
                self.findings
                    .add("value", dns.span, "a second DNS server of the same family")
                    .help("at most one of each family is handed out");
            }
        }
    }

    fn overlaps(&mut self, tenant: &Tenant) {
        let mut all: Vec<(&Located<Prefix>, &Subnet)> = tenant
            .subnets
            .iter()
            .flat_map(|s| s.prefixes.iter().map(move |p| (p, s)))
            .collect();
        // Sorted by start and length, a prefix that overlaps an earlier one lies inside
        // the last one that was not itself inside another.
        all.sort_by_key(|(p, _)| (p.is_v4(), p.network, p.len));
        let mut outer: Option<(&Located<Prefix>, &Subnet)> = None;
        for (prefix, subnet) in all {
            match outer {
                Some((first, of)) if guard!("spec-overlap") && first.overlaps(prefix) => {
                    let ((early, early_of), (late, late_of)) = if first.span <= prefix.span {
                        ((first, of), (prefix, subnet))
                    } else {
                        ((prefix, subnet), (first, of))
                    };
                    self.findings
                        .add(
                            "overlap",
                            late.span,
                            format!("{} of the subnet `{}` overlaps {} of `{}` in the tenant {}", late.value, late_of.name.value, early.value, early_of.name.value, tenant.name.value),
                        )
                        .label("overlaps")
                        .also(early.span, "this one")
                        .help("inside one tenant each address has one place; only different tenants may overlap");
                }
                _ => outer = Some((prefix, subnet)),
            }
        }
    }

    /// Whether an endpoint may have the address.
    fn address(&mut self, subnet: &Subnet, address: &Located<Ip>) -> bool {
        let ip = address.value.0;
        let Some(prefix) = subnet.prefixes.iter().find(|p| p.contains(ip)) else {
            if self.whole && guard!("spec-address-subnet") {
                let prefixes: Vec<String> = subnet
                    .prefixes
                    .iter()
                    .map(|p| p.value.to_string())
                    .collect();
                self.findings
                    .add(
                        "address",
                        address.span,
                        format!("{ip} is outside its subnet `{}`", subnet.name.value),
                    )
                    .also(subnet.name.span, "the subnet")
                    .help(format!("choose one in {}", prefixes.join(" or ")));
            }
            return false;
        };
        if guard!("spec-host-address") && !prefix.is_host(ip) {
            self.findings
                .add(
                    "address",
                    address.span,
                    format!("{ip} is the network's own or its broadcast address"),
                )
                .also(prefix.span, "the prefix")
                .help("choose another address");
            return false;
        }
        if guard!("spec-gateway-address") && ip == subnet.gateway_in(prefix) {
            self.findings
                .add(
                    "address",
                    address.span,
                    format!("{ip} is the gateway of the subnet `{}`", subnet.name.value),
                )
                .also(subnet.name.span, "the subnet")
                .help("choose another address, or give the subnet another gateway");
            return false;
        }
        true
    }

    /// A block of ports for every endpoint that has IPv4, behind one address.
    fn translation(&mut self, tenant: &Tenant, outside: &Outside) {
        let on = outside.nat.filter(|n| n.value.0);
        let Some(nat) = on else {
            if let Some(ports) = outside.ports_per_endpoint {
                self.findings
                    .add("nat", ports.span, "nothing is translated here")
                    .help("add `nat: on`, or remove it");
            }
            return;
        };
        if outside.address4().is_none() && self.whole {
            self.findings
                .add("nat", nat.span, "there is no IPv4 address to translate to")
                .help("add one to `address`");
        }
        let room = 65_536 - super::FIRST_NAT_PORT;
        if let Some(ports) = outside.ports_per_endpoint {
            self.range(ports, 1, room, "ports for each endpoint");
        }
        let v4: Vec<&str> = tenant
            .subnets
            .iter()
            .filter(|s| s.prefix4().is_some())
            .map(|s| s.name.as_str())
            .collect();
        let users = tenant
            .endpoints
            .iter()
            .filter(|e| v4.contains(&e.subnet.as_str()))
            .count();
        let fit = room / outside.nat_ports().max(1);
        if users > fit as usize && guard!("spec-nat-blocks") {
            let span = outside.ports_per_endpoint.map_or(nat.span, |p| p.span);
            self.findings
                .add(
                    "nat",
                    span,
                    format!(
                        "{users} endpoints with {} ports each do not fit behind one address: {fit} do",
                        outside.nat_ports()
                    ),
                )
                .help(format!(
                    "at most {} `ports-per-endpoint`",
                    room as usize / users.max(1)
                ));
        }
    }

    /// A subnet in a VLAN: its uplink is there, and carries its packets.
    pub(super) fn segment(&mut self, subnet: &Subnet) {
        let Some(vlan) = subnet.vlan() else { return };
        let uplinks = &self.document.uplinks;
        let names: Vec<&str> = uplinks.iter().map(|u| u.name.as_str()).collect();
        let uplink = uplinks.iter().find(|u| u.name.value == vlan.uplink.value);
        match uplink.map(|uplink| uplink.effective_mtu()) {
            None => self.missing(&vlan.uplink, "uplink", &names),
            Some(carries) if carries < subnet.mtu() => {
                let what = format!(
                    "the uplink carries {carries} bytes, the subnet `{}` has packets of {}",
                    subnet.name.value,
                    subnet.mtu()
                );
                self.findings
                    .add("mtu", vlan.uplink.span, what)
                    .help("raise the uplink's mtu, or lower the subnet's");
            }
            Some(_) => {}
        }
    }

    pub(super) fn outside(&mut self, tenant: &Tenant, outside: &Outside) {
        self.translation(tenant, outside);
        let names: Vec<&str> = self
            .document
            .uplinks
            .iter()
            .map(|u| u.name.as_str())
            .collect();
        match self
            .document
            .uplinks
            .iter()
            .find(|u| u.name.value == outside.uplink.value)
        {
            None => self.missing(&outside.uplink, "uplink", &names),
            Some(uplink) if uplink.effective_mtu() < MIN_MTU6 && outside.address6().is_some() => {
                self.findings
                    .add(
                        "mtu",
                        outside.uplink.span,
                        format!(
                            "the uplink carries {} bytes, IPv6 needs {MIN_MTU6}",
                            uplink.effective_mtu()
                        ),
                    )
                    .help("raise its mtu, or give no IPv6 address there");
            }
            Some(_) => {}
        }
        if outside.address.is_empty() && self.whole {
            self.findings
                .add(
                    "address",
                    outside.uplink.span,
                    "a way outside without an address",
                )
                .help("add `address: [192.0.2.10/24]`");
        }
        for v4 in [true, false] {
            let second = outside
                .address
                .iter()
                .filter(|a| a.address.is_ipv4() == v4)
                .nth(1)
                .map(|a| a.span);
            let gateway = outside
                .gateway
                .iter()
                .filter(|g| g.value.0.is_ipv4() == v4)
                .nth(1)
                .map(|g| g.span);
            for span in second.into_iter().chain(gateway) {
                self.findings
                    .add("address", span, "a second one of the same family")
                    .help("a way outside has at most one address and one gateway of each family");
            }
        }
        for address in &outside.address {
            let prefix = address.value.prefix();
            let only = prefix.len >= if prefix.is_v4() { 31 } else { 127 };
            if !only && !prefix.is_host(address.value.address) {
                self.findings
                    .add(
                        "address",
                        address.span,
                        format!(
                            "{} is the network's own or its broadcast address",
                            address.value.address
                        ),
                    )
                    .help("choose another address");
            }
            if let Some(own) = tenant
                .subnets
                .iter()
                .flat_map(|s| &s.prefixes)
                .find(|own| own.overlaps(&prefix))
            {
                self.findings
                    .add(
                        "overlap",
                        address.span,
                        format!(
                            "the uplink's network {prefix} overlaps {} of the tenant {}",
                            own.value, tenant.name.value
                        ),
                    )
                    .also(own.span, "this one")
                    .help("an address is inside or outside: renumber one of the two");
            }
        }
        let routed = outside.routes.iter().flatten();
        for gateway in outside
            .gateway
            .iter()
            .chain(routed.filter_map(|r| r.gateway.as_ref()))
        {
            let on_link = outside
                .address
                .iter()
                .find(|a| a.value.prefix().contains(gateway.value.0));
            match on_link {
                None if self.whole => {
                    self.findings
                        .add(
                            "gateway",
                            gateway.span,
                            format!(
                                "the gateway {} is on no network that the tenant has an address on",
                                gateway.value
                            ),
                        )
                        .help("give the tenant an address in the gateway's network");
                }
                Some(address) if address.value.address == gateway.value.0 => {
                    self.findings
                        .add(
                            "gateway",
                            gateway.span,
                            format!("{} is the tenant's own address", gateway.value),
                        )
                        .help("name the router there");
                }
                _ => {}
            }
        }
        for route in outside.routes.iter().flatten() {
            self.not_own(tenant, &route.to);
            match &route.gateway {
                None => self.has_gateway(outside, &route.to),
                Some(gateway) if gateway.value.0.is_ipv4() != route.to.is_v4() => {
                    self.findings
                        .add(
                            "gateway",
                            gateway.span,
                            "the gateway is not of the route's family",
                        )
                        .help("IPv4 goes by IPv4, IPv6 by IPv6");
                }
                Some(_) => {}
            }
        }
    }

    fn not_own(&mut self, tenant: &Tenant, prefix: &Located<Prefix>) {
        let subnets = tenant.subnets.iter().flat_map(|s| &s.prefixes);
        if let Some(own) = subnets
            .into_iter()
            .find(|own| own.len <= prefix.len && own.overlaps(prefix))
        {
            self.findings
                .add(
                    "overlap",
                    prefix.span,
                    format!(
                        "{} lies in a subnet of the tenant and cannot go outside",
                        prefix.value
                    ),
                )
                .also(own.span, "the subnet's prefix")
                .help("choose a prefix outside the tenant's subnets");
        }
    }
}
