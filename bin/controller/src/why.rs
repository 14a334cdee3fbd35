//! The verdict of `why`: everything known of an endpoint, joined into plain sentences.

use api::{Compartment, Death, Endpoint, Happening, Recorded, Revoked, RuleName, Why};
use policy::Unaccepted;

/// What is known, before it is judged.
pub struct Known {
    /// The endpoint with its counters.
    pub endpoint: Endpoint,
    /// Its compartment.
    pub compartment: Compartment,
    /// The fabric.
    pub fabric: Compartment,
    /// Deaths of the compartment, newest first.
    pub deaths: Vec<Death>,
    /// Flight recorder, newest first.
    pub recorded: Vec<Recorded>,
    /// Happenings of it and of its compartment, newest first.
    pub happenings: Vec<Happening>,
    /// By drop reason: the rule of the last such drop that its switch recorded.
    pub last_denials: Vec<(String, RuleName)>,
    /// Rules that denied packets of its tenant's endpoints, and how many, most first.
    pub denials: Vec<(RuleName, u64)>,
    /// Whether its compartment's operator is there.
    pub has_operator: bool,
    /// What is revoked that concerns its tenant.
    pub revoked: Vec<Revoked>,
    /// What others offer its tenant, and it has not accepted.
    pub unaccepted: Vec<Unaccepted>,
}

/// Rules that are named for what was denied, at most.
const MOST_RULES: usize = 3;

/// Judges. Worst first; a healthy endpoint gets one sentence that says so.
pub fn judge(known: Known) -> Why {
    let Known {
        endpoint,
        compartment,
        fabric,
        deaths,
        recorded,
        happenings,
        last_denials,
        denials,
        has_operator,
        revoked,
        unaccepted,
    } = known;
    let services = Services {
        tenant: &endpoint.tenant,
        revoked: &revoked,
        unaccepted: &unaccepted,
    };
    let name = format!("{}/{}", endpoint.tenant, endpoint.name);
    let mut findings: Vec<(String, String)> = Vec::new();
    let mut find = |verdict: String, advice: &str| findings.push((verdict, advice.to_owned()));

    match compartment.state.as_str() {
        "up" => {}
        "quarantined" => find(
            format!(
                "{name} does not forward: its compartment {} is quarantined after repeated deaths",
                compartment.name
            ),
            &format!(
                "see the deaths below, then `bulkhead release {}`",
                compartment.name
            ),
        ),
        "backoff" => find(
            format!(
                "{name} does not forward just now: its compartment {} died {} times and waits before the next start",
                compartment.name, compartment.restarts
            ),
            "see the causes of death below",
        ),
        "unknown" => find(
            format!("the supervisor knows no compartment {}", compartment.name),
            "apply the spec again",
        ),
        state => find(
            format!("its compartment {} is {state}", compartment.name),
            "",
        ),
    }
    if endpoint.port != "open" {
        let advice = match endpoint.kind.as_str() {
            "tap" | "veth" => {
                "is the namespace still there, and the interface in it? If so apply the spec again, which makes the port anew"
            }
            _ => {
                "the process at the other end has to attach anew; `bulkhead release` lifts a quarantine"
            }
        };
        find(
            format!("{name}'s port is closed: {}", endpoint.port),
            advice,
        );
    }
    match endpoint.state.as_str() {
        "unauthorised" => find(
            format!("{name} is not admitted (state: unauthorised): all its frames are dropped"),
            "set `state: open` in the spec once it may speak",
        ),
        "quarantined" => find(
            format!("{name} is quarantined by the spec: all its frames are dropped"),
            "set `state: open` in the spec",
        ),
        _ => {}
    }
    if compartment.state == "up" && compartment.alleged_epoch != compartment.epoch {
        find(
            format!(
                "its switch says it forwards by image epoch {}, but epoch {} is installed",
                compartment.alleged_epoch, compartment.epoch
            ),
            "if this stays, the switch does not take its image: apply the spec again",
        );
    }
    if endpoint.circuits && compartment.state == "up" && !has_operator {
        find(
            format!(
                "nobody answers the calls of {name}'s programs: the operator of {} is gone, and the next is not there yet",
                compartment.name
            ),
            "they wait for it; `bulkhead events` says what became of it",
        );
    }
    if fabric.state != "up" {
        find(
            format!(
                "the fabric is {}: nothing leaves this host's compartments",
                fabric.state
            ),
            "`bulkhead status` shows why",
        );
    }
    let mut drops = endpoint.counters.drops.clone();
    drops.sort_by_key(|drop| std::cmp::Reverse(drop.frames));
    for drop in &drops {
        find(
            format!(
                "{} {}: {}{}",
                lost(&name, &endpoint, &drop.reason, drop.frames),
                drop.reason,
                sentence(&drop.explain),
                by_rules(&endpoint.tenant, &drop.reason, &last_denials, &denials)
            ),
            &match endpoint.kind.as_str() {
                "circuits" => advice_of_circuits(&drop.reason, &services),
                _ => advice_for(&drop.reason, &services),
            },
        );
    }
    if compartment.reports > 0 {
        find(
            format!(
                "the fabric reported its compartment {} {} times for speaking with what is not its own: its switch may have been taken over",
                compartment.name, compartment.reports
            ),
            "its frames were stopped and its switch replaced; `bulkhead events --last 100` has the reasons (a capture is taken by the switch, and shows none of it)",
        );
    }
    for drop in &compartment.fabric_drops {
        find(
            format!(
                "the fabric dropped {} frames of its compartment: {}: {}",
                grouped(drop.frames),
                drop.reason,
                sentence(&drop.explain)
            ),
            "",
        );
    }
    let wrong = !findings.is_empty();
    let mut verdict: Vec<String> = findings
        .iter()
        .map(|(verdict, _)| verdict.clone())
        .collect();
    let mut advice: Vec<String> = findings
        .into_iter()
        .map(|(_, advice)| advice)
        .filter(|advice| !advice.is_empty())
        .collect();
    advice.dedup();
    if !wrong {
        verdict.push(healthy(&name, &endpoint));
    }
    // The supervisor's count: what is listed here is the last of them, as far as known.
    if let Some(death) = deaths.first() {
        let connections = match (compartment.restored, compartment.not_restored) {
            (0, 0) => String::new(),
            (restored, 0) => format!("; {} connections went on", grouped(restored)),
            (restored, not) => format!(
                "; {} connections went on, {} did not: what the rules do not let begin now is over",
                grouped(restored),
                grouped(not)
            ),
        };
        verdict.push(format!(
            "its compartment was restarted {} times, and died last of {}{}{connections}",
            compartment.restarts,
            death.cause,
            match death.outage_ns {
                0 => "; its new process has forwarded nothing yet".to_owned(),
                ns => format!(
                    "; its new process says that it forwarded a frame {:.1} ms after that was seen",
                    ns as f64 / 1e6
                ),
            }
        ));
    }
    Why {
        verdict,
        advice,
        healthy: !wrong,
        endpoint,
        compartment,
        deaths,
        recorded,
        happenings,
    }
}

/// Which rules were at it: the last one as its switch recorded it, and those of the tenant
/// that denied most, for any of its endpoints.
fn by_rules(
    tenant: &str,
    reason: &str,
    last: &[(String, RuleName)],
    all: &[(RuleName, u64)],
) -> String {
    if !matches!(reason, "egress-rule" | "ingress-rule") {
        return String::new();
    }
    let mut text = String::new();
    if let Some((_, rule)) = last.iter().find(|(of, _)| of == reason) {
        text += &format!("; the last by {}", called(rule));
    }
    let denied = all.iter().take(MOST_RULES);
    let denied: Vec<String> = denied
        .map(|(rule, packets)| format!("{} {}", called(rule), grouped(*packets)))
        .collect();
    if !denied.is_empty() {
        text += &format!(
            "; what {tenant}'s rules denied, at any endpoint: {}",
            denied.join(", ")
        );
    }
    text
}

/// What it says before the reason: frames, or what its programs asked for.
fn lost(name: &str, endpoint: &Endpoint, reason: &str, times: u64) -> String {
    let (count, only) = (grouped(times), times == 1);
    match (endpoint.kind.as_str(), endpoint.circuits) {
        // Nobody is told: as with UDP it is gone.
        ("circuits", _) if reason == "queue-full" => format!(
            "{name}'s programs lost {count} {} to",
            if only { "datagram" } else { "datagrams" }
        ),
        ("circuits", _) => format!(
            "{name}'s programs were refused {count} {} by",
            if only { "call" } else { "calls" }
        ),
        (_, true) => format!(
            "{name} lost {count} {} to",
            if only {
                "frame, or call of a program,"
            } else {
                "frames, or calls of programs,"
            }
        ),
        _ => format!(
            "{name} lost {count} {} to",
            if only { "frame" } else { "frames" }
        ),
    }
}

/// `rule red/no-ssh (spec.yaml:12)`.
fn called(rule: &RuleName) -> String {
    let place = rule.place.as_ref();
    let place = place.map_or_else(String::new, |at| format!(" ({}:{})", at.file, at.line));
    match rule.name.as_str() {
        "" => format!("{}{place}", rule.kind),
        name => format!("{} {name}{place}", rule.kind),
    }
}

fn healthy(name: &str, endpoint: &Endpoint) -> String {
    let counters = &endpoint.counters;
    if endpoint.kind == "circuits" {
        return format!(
            "nothing is wrong with {name}: its programs were refused nothing; `bulkhead circuits {name}` lists what they have"
        );
    }
    match (counters.rx_frames, counters.tx_frames) {
        (0, 0) => format!(
            "{name} is plugged in and nothing is wrong with it, but no frame has passed in either direction"
        ),
        (0, to) => format!(
            "{name} has sent nothing yet ({} frames were delivered to it): is its interface up and addressed?",
            grouped(to)
        ),
        (from, 0) => format!(
            "{name} sends ({} frames) and none was dropped, but nothing has been delivered to it",
            grouped(from)
        ),
        (from, to) => format!(
            "{name} works: {} frames from it, {} to it, none dropped",
            grouped(from),
            grouped(to)
        ),
    }
}

fn sentence(explain: &str) -> &str {
    explain.trim().trim_end_matches('.')
}

fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// What a person does where nothing is a packet, and nothing of it can be traced or captured.
fn advice_of_circuits(reason: &str, services: &Services<'_>) -> String {
    let advice = match reason {
        "no-neighbour" => {
            "is the address right, and applied? An endpoint of packets is reached from circuits beside an interface (`attach: {veth: {circuits: {}}}`) alone, and another tenant's service by UDP too: `bulkhead explain` says which of both"
        }
        "egress-rule" | "ingress-rule" => {
            "`bulkhead explain A B PROTOCOL PORT` says which rule decides, `bulkhead events` what rules with `log: on` deny"
        }
        "proxy-gone" => {
            "its proxy died just then (`bulkhead events`): the next call finds another; where it goes on dying the daemon's log says why"
        }
        "unmetered" => {
            "datagrams are not metered: take `rate` or `metered` from that endpoint, or use TCP"
        }
        other => return advice_for(other, services),
    };
    services.or(reason, advice)
}

/// Services of others to which no way leads.
struct Services<'a> {
    tenant: &'a str,
    revoked: &'a [Revoked],
    unaccepted: &'a [Unaccepted],
}

impl Services<'_> {
    /// No way leads to a service that is revoked, or was never accepted: then that may be why.
    fn or(&self, reason: &str, advice: &str) -> String {
        let of_ways = ["no-route", "no-neighbour", "unknown-mac", "martian"].contains(&reason);
        if !of_ways {
            return advice.to_owned();
        }
        let mut text = advice.to_owned();
        for one in self.revoked.iter().take(MOST_RULES) {
            text += &format!("; or it went to a service that is no more: {one}");
        }
        for one in self.unaccepted.iter().take(MOST_RULES) {
            text += &format!("; or it went to what {}", self.offered(one));
        }
        text
    }

    fn offered(&self, one: &Unaccepted) -> String {
        let (by, offer, to) = (&one.offerer, &one.offer, self.tenant);
        let (what, at) = match one.is_routed {
            false => ("an address that is nobody's there", "as: [ADDRESS]"),
            true => (
                "prefixes, the other's and its own",
                "route: [PREFIX], users: [PREFIX]",
            ),
        };
        format!(
            "{by} offers {to} ({by}/{offer}), which {to} does not accept: that takes, in {to}'s part of the spec, {what}: `accepts: [{{name: {by}-{offer}, from: {by}, service: {offer}, {at}}}]`"
        )
    }
}

/// What a person does about drops for a reason; empty where there is nothing to do.
fn advice_for(reason: &str, services: &Services<'_>) -> String {
    let advice = match reason {
        "socket-kind" => {
            "by circuits there are TCP and UDP; anything else takes an interface (`attach: {tap: {circuits: {}}}` for both), and a program that is started in its namespace, not by `bulkhead run`"
        }
        "socket-limit" => {
            "raise the endpoint's `sockets`, or look which program does not close its own, or has hundreds of calls wait at once"
        }
        "io-uring" => "the program may use other calls in its place: most do by themselves",
        "source-ip" | "arp-spoof" | "nd-spoof" => {
            "give the workload the addresses its spec lists, or list the address it uses (a router needs `roles: [router]` and its prefixes)"
        }
        "source-mac" | "group-source" => {
            "the workload sends from another MAC than the spec's: a bridge or a container inside? Set `mac:` or attach each by itself"
        }
        "router-advert" => "give it `roles: [router]` if it is meant to be one",
        "dhcp-server" => "give it `roles: [dhcp-server]` if it is meant to be one",
        "unknown-mac" | "no-neighbour" => {
            "the destination is not an endpoint of its subnet: is its address right, and applied?"
        }
        "no-route" | "martian" => {
            "the tenant's routes do not cover the destination: see `routes:` and `outside:`"
        }
        "too-big" => {
            "the path's MTU is smaller than the sender believes: does it ignore ICMP errors?"
        }
        "ingress-rate" => "it is over its `rate:`",
        "queue-full" => "the receiver does not keep up",
        "bad-offload" => {
            "a driver with offload faults: try `ethtool -K IF gso off tx off` in the workload, and report it"
        }
        "vlan-tag" | "ethertype" => "only untagged IPv4, IPv6 and ARP are carried",
        "port-refused" | "port-closed" => {
            "the receiving interface is down or gone, or the receiver has circuits alone: `bulkhead explain` says whether it has"
        }
        "egress-rule" | "ingress-rule" => {
            "`bulkhead explain A B PROTOCOL PORT` says which rule decides, `bulkhead trace --live --drops` which packets are denied just now"
        }
        _ => "",
    };
    services.or(reason, advice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::DropCount;

    fn known() -> Known {
        Known {
            endpoint: Endpoint {
                tenant: "red".into(),
                name: "web1".into(),
                kind: "tap".into(),
                state: "open".into(),
                port: "open".into(),
                ..Endpoint::default()
            },
            compartment: Compartment {
                name: "red".into(),
                state: "up".into(),
                epoch: 4,
                alleged_epoch: 4,
                ..Compartment::default()
            },
            fabric: Compartment {
                state: "up".into(),
                ..Compartment::default()
            },
            deaths: Vec::new(),
            recorded: Vec::new(),
            happenings: Vec::new(),
            last_denials: Vec::new(),
            denials: Vec::new(),
            has_operator: true,
            revoked: Vec::new(),
            unaccepted: Vec::new(),
        }
    }

    #[test]
    fn a_healthy_endpoint_gets_one_sentence_and_no_advice() {
        let mut known = known();
        known.endpoint.counters.rx_frames = 1204;
        known.endpoint.counters.tx_frames = 7;
        let why = judge(known);
        assert!(why.healthy && why.advice.is_empty());
        assert_eq!(
            why.verdict,
            ["red/web1 works: 1,204 frames from it, 7 to it, none dropped"]
        );
    }

    #[test]
    fn drops_come_with_their_reason_and_what_to_do() {
        let mut known = known();
        known.endpoint.counters.drops = vec![DropCount {
            reason: "source-ip".into(),
            frames: 1204,
            explain: "The source IP address is not this endpoint's.".into(),
            ..DropCount::default()
        }];
        let why = judge(known);
        assert!(!why.healthy);
        assert_eq!(
            why.verdict,
            [
                "red/web1 lost 1,204 frames to source-ip: The source IP address is not this endpoint's"
            ]
        );
        assert!(why.advice[0].contains("addresses its spec lists"));
    }

    #[test]
    fn what_a_rule_denied_comes_with_the_rule_and_its_line() {
        let rule = |kind: &str, name: &str, line| RuleName {
            kind: kind.into(),
            name: name.into(),
            place: Some(api::Where {
                file: "a.yaml".into(),
                line,
                column: 3,
            }),
        };
        let mut known = known();
        known.endpoint.counters.drops = ["egress-rule", "queue-full"]
            .map(|reason| DropCount {
                reason: reason.into(),
                frames: 5,
                explain: "Denied.".into(),
                ..DropCount::default()
            })
            .into();
        known.last_denials = vec![
            ("ingress-rule".into(), rule("rule", "red/other", 1)),
            ("egress-rule".into(), rule("rule", "red/no-ssh", 12)),
        ];
        known.denials = vec![(rule("default", "", 4), 1200)];
        let why = judge(known);
        assert_eq!(
            why.verdict[0],
            "red/web1 lost 5 frames to egress-rule: Denied; the last by rule red/no-ssh (a.yaml:12); what red's rules denied, at any endpoint: default (a.yaml:4) 1,200"
        );
        assert!(!why.verdict[1].contains("rule"), "{:?}", why.verdict);
        assert!(why.advice[0].contains("bulkhead explain"));
    }

    #[test]
    fn of_circuits_it_tells_of_calls_and_whether_somebody_answers_them() {
        let mut known = known();
        known.endpoint.kind = "circuits".into();
        known.endpoint.circuits = true;
        known.endpoint.counters.drops = vec![DropCount {
            reason: "egress-rule".into(),
            frames: 1,
            explain: "Denied.".into(),
            ..DropCount::default()
        }];
        // Of what a tenant is shown the operator has no number.
        known.compartment.operator.pid = 0;
        let why = judge(known);
        assert_eq!(
            why.verdict,
            ["red/web1's programs were refused 1 call by egress-rule: Denied"]
        );
        assert!(!why.advice[0].contains("trace"), "{:?}", why.advice);
        let mut known = self::known();
        known.endpoint.circuits = true;
        known.has_operator = false;
        let why = judge(known);
        assert!(
            why.verdict[0].contains("nobody answers"),
            "{:?}",
            why.verdict
        );
    }

    #[test]
    fn where_no_way_leads_to_what_is_revoked_it_says_so() {
        let mut known = known();
        known.revoked = vec![Revoked {
            tenant: "shop".into(),
            name: "db".into(),
            by: "provider".into(),
        }];
        known.endpoint.counters.drops = ["no-route", "queue-full"]
            .map(|reason| DropCount {
                reason: reason.into(),
                frames: 5,
                ..DropCount::default()
            })
            .into();
        let advice = judge(known).advice;
        let undo =
            "shop/db is revoked by the provider of this host: `bulkhead revoke --undo shop/db`";
        assert!(
            advice[0].contains("routes") && advice[0].contains(undo),
            "{advice:?}"
        );
        assert!(!advice[1].contains("revoked"), "{advice:?}");
    }

    #[test]
    fn where_no_way_leads_to_what_is_offered_it_says_how_to_accept_it() {
        for kind in ["tap", "circuits"] {
            let mut known = known();
            known.endpoint.kind = kind.into();
            known.unaccepted = [("db", false), ("lan", true)]
                .map(|(offer, is_routed)| Unaccepted {
                    offerer: "shop".into(),
                    offer: offer.into(),
                    is_routed,
                })
                .into();
            known.endpoint.counters.drops = ["no-route", "queue-full"]
                .map(|reason| DropCount {
                    reason: reason.into(),
                    frames: 5,
                    ..DropCount::default()
                })
                .into();
            let advice = judge(known).advice;
            for part in [
                "shop offers red (shop/db), which red does not accept",
                "`accepts: [{name: shop-db, from: shop, service: db, as: [ADDRESS]}]`",
                "service: lan, route: [PREFIX], users: [PREFIX]}]`",
            ] {
                assert!(advice[0].contains(part), "{part}: {advice:?}");
            }
            assert!(!advice[1].contains("offers"), "{advice:?}");
        }
    }

    #[test]
    fn what_the_fabric_stopped_is_not_looked_for_in_a_capture() {
        let mut known = known();
        known.compartment.reports = 2;
        let why = judge(known);
        assert!(why.verdict[0].contains("2 times"), "{:?}", why.verdict);
        assert!(why.advice[0].contains("bulkhead events"));
        assert!(!why.advice[0].contains("bulkhead capture"));
    }

    #[test]
    fn restarts_are_the_supervisors_count_and_not_what_is_listed() {
        let mut known = known();
        known.compartment.restarts = 40;
        known.deaths = vec![
            Death {
                cause: "trip".into(),
                outage_ns: 2_000_000,
                ..Death::default()
            };
            16
        ];
        assert_eq!(
            judge(known).verdict[1],
            "its compartment was restarted 40 times, and died last of trip; its new process says that it forwarded a frame 2.0 ms after that was seen"
        );
    }

    #[test]
    fn what_stops_everything_comes_first() {
        let mut known = known();
        known.compartment.state = "quarantined".into();
        known.endpoint.counters.drops = vec![DropCount {
            reason: "queue-full".into(),
            frames: 1,
            ..DropCount::default()
        }];
        let why = judge(known);
        assert!(why.verdict[0].contains("quarantined"));
        assert!(why.advice[0].contains("bulkhead release red"));
    }

    #[test]
    fn a_switch_that_does_not_take_its_image_is_seen() {
        let mut known = known();
        known.compartment.alleged_epoch = 3;
        assert!(judge(known).verdict[0].contains("epoch 3, but epoch 4 is installed"));
    }
}
