//! Counters pages and flight recorders of other processes: read by copying, never
//! mapped, so that nothing their writers do reaches further than the numbers.
//! Every number is an allegation.

use api::{DropCount, EndpointRates, Recorded};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::UNIX_EPOCH;
use telemetry::counters::{
    COUNTERS, Counter, MAGIC, MOST_WORKERS, PROCESS_WORDS, ProcessWord, SLOT_WORDS, bytes_for,
    counter_word, drop_word, worker_word,
};
use telemetry::drops::DropReason;
use telemetry::operator::{self, DECIDED_AT, RECORDER_AT};
use telemetry::recorder::{BYTES, EVENTS, Event, EventKind};
use telemetry::rules;
use zerocopy::FromBytes;

/// Most slots looked at, whatever a page says: its bytes are bounded by it (64 MiB).
const MOST_SLOTS: usize = 65_536;

/// The two pages of one process; of a compartment with circuits its operator's beside the
/// switch's.
pub struct Pages {
    counters: File,
    recorder: File,
    operator: Option<File>,
}

impl Pages {
    /// From the descriptors that an Inspect answer carries.
    pub fn new(fds: Vec<OwnedFd>) -> Option<Pages> {
        let mut fds = fds.into_iter();
        Some(Pages {
            counters: File::from(fds.next()?),
            recorder: File::from(fds.next()?),
            operator: fds.next().map(File::from),
        })
    }

    /// Which counters page this is: a page made later is another one, also after a
    /// restart of the host.
    pub fn identity(&self) -> String {
        match self.counters.metadata() {
            Ok(file) => {
                // Where the kernel does not say when: a counter that went back says so too.
                let made = file.created().ok();
                let made = made.and_then(|made| made.duration_since(UNIX_EPOCH).ok());
                let made = made.unwrap_or_default().as_nanos();
                format!("{:x}-{:x}-{made:x}", file.dev(), file.ino())
            }
            Err(_) => String::new(),
        }
    }

    /// The events of these kinds that were recorded after `since` (CLOCK_MONOTONIC, ns) and
    /// from numbers `next` on, oldest first; and the numbers of the next ones: the switch's and
    /// the operator's.
    pub fn recorded_since(
        &self,
        kinds: &[EventKind],
        mut next: [u64; 2],
        since: u64,
    ) -> (Vec<Event>, [u64; 2]) {
        let mut all = Vec::new();
        for ((file, base), next) in self.recorders().zip(&mut next) {
            let mut head = [0; 8];
            if file.read_exact_at(&mut head, base).is_err() {
                continue;
            }
            let end = word(&head);
            // A number that went back is another recorder's.
            let first = if *next <= end { *next } else { 0 };
            let first = first.max(end.saturating_sub(EVENTS as u64));
            all.extend((first..end).filter_map(|number| {
                let mut bytes = [0; size_of::<Event>()];
                let at = 4096 + (number % EVENTS as u64) * size_of::<Event>() as u64;
                file.read_exact_at(&mut bytes, base + at).ok()?;
                let (event, _) = Event::read_from_prefix(&bytes).ok()?;
                let is_one = kinds.iter().any(|kind| *kind as u32 == event.kind);
                (is_one && event.time_ns >= since).then_some(event)
            }));
            *next = end;
        }
        all.sort_by_key(|event| event.time_ns);
        (all, next)
    }

    /// The flight recorders, and where they begin.
    fn recorders(&self) -> impl Iterator<Item = (&File, u64)> {
        let operator = self.operator.iter().map(|file| (file, RECORDER_AT as u64));
        std::iter::once((&self.recorder, 0)).chain(operator)
    }

    /// A copy of the counters of at most so many slots; `None` where the page is not one.
    pub fn counters(&self, slots: u32) -> Option<Counters> {
        let slots = (slots as usize).min(MOST_SLOTS);
        let mut bytes = vec![0; bytes_for(slots)];
        let mut filled = 0;
        while filled < bytes.len() {
            match self.counters.read_at(&mut bytes[filled..], filled as u64) {
                Ok(0) | Err(_) => break,
                Ok(read) => filled += read,
            }
        }
        bytes.truncate(filled);
        let counters = Counters {
            words: bytes.chunks_exact(8).map(word).collect(),
            slots,
            circuits: self.decided_of_circuits(slots),
        };
        (counters.process(ProcessWord::Magic) == MAGIC).then_some(counters)
    }

    /// What an operator says that it decided of so many slots; nothing where there is none.
    fn decided_of_circuits(&self, slots: usize) -> Vec<u64> {
        let Some(file) = &self.operator else {
            return Vec::new();
        };
        let mut bytes = vec![0; operator::decided_bytes(slots)];
        match file.read_exact_at(&mut bytes, DECIDED_AT as u64) {
            Ok(()) => bytes.chunks_exact(8).map(word).collect(),
            Err(_) => Vec::new(),
        }
    }

    /// The last events of these slots (`None` = of all), newest first, at most `most`.
    pub fn recorded(&self, slot: Option<u32>, now_ns: u64, most: usize) -> Vec<Recorded> {
        let recorders = self.recorders();
        let mut found: Vec<Event> = recorders
            .flat_map(|(file, base)| last(file, base, slot, most))
            .collect();
        found.sort_by_key(|event| Reverse(event.time_ns));
        found.truncate(most);
        found.iter().map(|event| recorded(event, now_ns)).collect()
    }
}

/// The last events of one recorder, newest first.
fn last(file: &File, base: u64, slot: Option<u32>, most: usize) -> Vec<Event> {
    let mut bytes = vec![0; BYTES];
    if file.read_exact_at(&mut bytes, base).is_err() {
        return Vec::new();
    }
    let next = word(&bytes[..8]);
    let mut found = Vec::new();
    for back in 1..=(EVENTS as u64).min(next) {
        let at = 4096 + ((next - back) % EVENTS as u64) as usize * size_of::<Event>();
        let Some((event, _)) = bytes
            .get(at..)
            .and_then(|rest| Event::read_from_prefix(rest).ok())
        else {
            break;
        };
        if slot.is_none_or(|slot| event.slot == slot || concerns_all(event.kind)) && event.kind != 0
        {
            found.push(event);
        }
        if found.len() >= most {
            break;
        }
    }
    found
}

/// A copy of a counters page.
pub struct Counters {
    words: Vec<u64>,
    slots: usize,
    /// What an operator decided: [`telemetry::operator`].
    circuits: Vec<u64>,
}

impl Counters {
    /// A word of the process.
    pub fn process(&self, which: ProcessWord) -> u64 {
        self.words.get(which as usize).copied().unwrap_or(0)
    }

    /// A counter of a slot, of packets.
    pub fn counter(&self, slot: u32, which: Counter) -> u64 {
        let slot = slot as usize;
        let packets = self.words.get(counter_word(slot, which)).copied();
        packets.unwrap_or(0)
    }

    /// Connections of a slot's programs that an operator let begin.
    pub fn begun(&self, slot: u32) -> u64 {
        let begun = self.circuits.get(operator::begun_word(slot as usize));
        begun.copied().unwrap_or(0)
    }

    /// Decisions of rules that log and that were not recorded, being too many.
    pub fn unlogged(&self) -> u64 {
        let circuits = self.circuits.get(operator::UNLOGGED).copied();
        let packets = self.process(ProcessWord::Unlogged);
        packets.wrapping_add(circuits.unwrap_or(0))
    }

    /// Frames that were dropped for a reason, and what of its programs was refused.
    fn dropped(&self, slot: u32, reason: DropReason) -> u64 {
        let slot = slot as usize;
        let frames = self.words.get(drop_word(slot, reason)).copied();
        let refused = operator::refused_word(slot, reason);
        let refused = self.circuits.get(refused).copied();
        frames.unwrap_or(0).wrapping_add(refused.unwrap_or(0))
    }

    /// The drops of a slot that are not 0.
    pub fn drops(&self, slot: u32) -> Vec<DropCount> {
        DropReason::ALL
            .iter()
            .filter_map(|reason| {
                let frames = self.dropped(slot, *reason);
                (frames > 0).then(|| DropCount {
                    reason: reason.slug().into(),
                    frames,
                    per_second: 0.0,
                    explain: reason.explain().trim().into(),
                })
            })
            .collect()
    }

    /// What each rule decided, of packets and of circuits.
    pub fn rules(&self) -> HashMap<u32, [u64; 6]> {
        let mut all = self.rules_of_packets();
        for (rule, counts) in self.rules_of_circuits() {
            let sums = all.entry(rule).or_default();
            for (sum, count) in sums.iter_mut().zip(counts) {
                *sum = sum.wrapping_add(count);
            }
        }
        all
    }

    /// What each rule decided, by its number: connections, packets, packets denied; and of
    /// what passed and did not bytes let pass, packets of connections, bytes denied.
    pub fn rules_of_packets(&self) -> HashMap<u32, [u64; 6]> {
        let slots = self.slots;
        let word = |at: usize| self.words.get(at).copied().unwrap_or(0);
        let used = usize::try_from(word(rules::used_word(slots))).unwrap_or(usize::MAX);
        let mut all: HashMap<u32, [u64; 6]> = HashMap::new();
        for entry in 0..used.min(rules::MOST) {
            let at = rules::entry_word(slots, entry);
            let passed = rules::passed_word(slots, entry);
            let passed = |which: rules::Passed| word(passed + which as usize);
            let counts = [
                word(at + 1),
                word(at + 2),
                word(at + 3),
                passed(rules::Passed::Bytes),
                passed(rules::Passed::Packets),
                passed(rules::Passed::Denied),
            ];
            // Two workers of a switch may have an entry each for one rule.
            let sums = all.entry(word(at) as u32).or_default();
            for (sum, count) in sums.iter_mut().zip(counts) {
                *sum = sum.wrapping_add(count);
            }
        }
        all
    }

    /// The same, as an operator says it of circuits.
    pub fn rules_of_circuits(&self) -> HashMap<u32, [u64; 6]> {
        let mut all: HashMap<u32, [u64; 6]> = HashMap::new();
        let word = |at: usize| self.circuits.get(at).copied().unwrap_or(0);
        let used = usize::try_from(word(operator::RULES_USED)).unwrap_or(usize::MAX);
        for entry in 0..used.min(rules::MOST) {
            let at = operator::entry_word(entry);
            let sums = all.entry(word(at) as u32).or_default();
            for (n, sum) in sums.iter_mut().take(rules::ENTRY_WORDS - 1).enumerate() {
                *sum = sum.wrapping_add(word(at + 1 + n));
            }
        }
        all
    }

    /// How often a process has looked for work, and whether it sleeps: of a switch with
    /// several workers all together.
    pub fn liveliness(&self) -> (u64, bool) {
        let several = usize::try_from(self.process(ProcessWord::Workers)).unwrap_or(usize::MAX);
        if several == 0 {
            let asleep = self.process(ProcessWord::Asleep) == 1;
            return (self.process(ProcessWord::Heartbeat), asleep);
        }
        let words = |word: ProcessWord| {
            let at = move |worker| worker_word(worker, word as usize);
            let of = move |worker| self.words.get(at(worker)).copied().unwrap_or(0);
            (0..several.min(MOST_WORKERS)).map(of)
        };
        let beats = words(ProcessWord::Heartbeat).fold(0, u64::wrapping_add);
        (beats, words(ProcessWord::Asleep).all(|word| word == 1))
    }

    /// All of a slot, as totals.
    pub fn totals(&self, slot: u32) -> EndpointRates {
        EndpointRates {
            rx_frames: self.counter(slot, Counter::RxFrames),
            rx_segments: self.counter(slot, Counter::RxSegments),
            rx_bytes: self.counter(slot, Counter::RxBytes),
            tx_frames: self.counter(slot, Counter::TxFrames),
            tx_segments: self.counter(slot, Counter::TxSegments),
            tx_bytes: self.counter(slot, Counter::TxBytes),
            rx_gso_bytes: self.counter(slot, Counter::RxGsoBytes),
            tx_gso_bytes: self.counter(slot, Counter::TxGsoBytes),
            waiting_bytes: self
                .counter(slot, Counter::Held)
                .saturating_sub(self.counter(slot, Counter::Released)),
            paused: self.counter(slot, Counter::Paused),
            drops: self.drops(slot),
            ..EndpointRates::default()
        }
    }

    /// All of a slot with its rates since an earlier copy of the same page.
    pub fn rates(&self, earlier: Option<&Counters>, slot: u32, seconds: f64) -> EndpointRates {
        let mut rates = self.totals(slot);
        let Some(earlier) = earlier.filter(|_| seconds > 0.0) else {
            return rates;
        };
        // A page that began anew (restart of its writer) counts from 0 again.
        let per_second = |now: u64, before: u64| {
            now.saturating_sub(if before <= now { before } else { 0 }) as f64 / seconds
        };
        let rate = |which| per_second(self.counter(slot, which), earlier.counter(slot, which));
        rates.rx_pps = rate(Counter::RxSegments);
        rates.rx_bps = rate(Counter::RxBytes) * 8.0;
        rates.tx_pps = rate(Counter::TxSegments);
        rates.tx_bps = rate(Counter::TxBytes) * 8.0;
        rates.paused_ps = rate(Counter::Paused);
        for (drop, reason) in rates.drops.iter_mut().filter_map(|drop| {
            let reason = DropReason::ALL
                .iter()
                .find(|reason| reason.slug() == drop.reason)?;
            Some((drop, *reason))
        }) {
            let before = earlier.dropped(slot, reason);
            drop.per_second = per_second(drop.frames, before);
            rates.drops_ps += drop.per_second;
        }
        rates
    }
}

const _: () = assert!(COUNTERS <= SLOT_WORDS && PROCESS_WORDS > ProcessWord::NotRestored as usize);

/// The word that these bytes begin with.
pub fn word(bytes: &[u8]) -> u64 {
    bytes
        .first_chunk()
        .map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Events that are about the process and so about each of its slots.
fn concerns_all(kind: u32) -> bool {
    [
        EventKind::Ready,
        EventKind::Attached,
        EventKind::ImageSwapped,
        EventKind::ImageRefused,
        EventKind::ConnectionsRestored,
    ]
    .iter()
    .any(|k| *k as u32 == kind)
}

fn recorded(event: &Event, now_ns: u64) -> Recorded {
    let kind = kind_of(event.kind);
    let reason = || u8::try_from(event.a).ok().and_then(DropReason::from_number);
    let message = match kind {
        Some(EventKind::Ready) => "confined and ready".to_owned(),
        Some(EventKind::Attached) => format!("took up its work for compartment {}", event.a),
        Some(EventKind::PortAdded) => format!("port {} plugged in", event.slot),
        Some(EventKind::PortClosed) => {
            format!("closed port {}: {}", event.slot, port_closed(event.a))
        }
        Some(EventKind::ImageSwapped) => format!("forwards by image epoch {}", event.a),
        Some(EventKind::ImageRefused) => {
            format!("refused image epoch {} (reason {})", event.a, event.b)
        }
        Some(EventKind::Resynced) => format!(
            "channel {} in step again, generation {}, after {} us",
            event.slot,
            event.a,
            event.b / 1000
        ),
        Some(EventKind::Drop) => match reason() {
            Some(reason) => format!(
                "dropped a frame of port {}: {}: {}",
                event.slot,
                reason.slug(),
                reason.explain().trim()
            ),
            None => format!("dropped a frame of port {}", event.slot),
        },
        Some(EventKind::Report) => format!(
            "channel {} spoke with what is not its own ({})",
            event.slot,
            reason().map_or("?", DropReason::slug)
        ),
        Some(EventKind::Quarantine) => format!("quarantined slot {}", event.slot),
        Some(EventKind::Died) => format!(
            "compartment {} died ({})",
            event.a,
            cause(u32::try_from(event.b).unwrap_or(0))
        ),
        Some(EventKind::Rule) => {
            let logged = rules::Logged::of([event.a, event.b]);
            format!("rule {}: {}", logged.rule, logged_packet(&logged))
        }
        Some(EventKind::Refused) => {
            let refused = rules::Logged::of([event.a, event.b]);
            format!("{}: {}", refused_call(&refused), reason_of(&refused))
        }
        Some(EventKind::Restarted) => format!(
            "compartment {} says it forwards again after {} us",
            event.a,
            event.b / 1000
        ),
        Some(EventKind::ConnectionsRestored) => format!(
            "{} connections of its predecessor go on, {} do not",
            event.a, event.b
        ),
        Some(EventKind::OperatorReplaced) => format!(
            "the operator of compartment {} stood still over a call of program {} (0: of none) and is replaced",
            event.a, event.b
        ),
        Some(EventKind::MeterLost) => {
            format!(
                "the meter of compartment {} is gone, with what it carried",
                event.a
            )
        }
        Some(EventKind::ProxyLost) => format!(
            "the proxy of slot {} of compartment {} is gone, with what it carried",
            event.slot, event.a
        ),
        Some(EventKind::ProgramGivenUp) => format!(
            "program {} of slot {} of compartment {} is given up: operators stood still over its calls",
            event.b, event.slot, event.a
        ),
        Some(EventKind::ContainerRefused) => format!(
            "a container of slot {} of compartment {} is refused: {}",
            event.slot,
            event.a,
            crate::circuits::why_refused(event.b)
        ),
        Some(EventKind::ProgramsLeft) => format!(
            "{} programs of slot {} of compartment {} are left behind",
            event.b, event.slot, event.a
        ),
        None => format!("event {} of a newer release", event.kind),
    };
    Recorded {
        age_ns: now_ns.saturating_sub(event.time_ns),
        kind: kind_name(event.kind).into(),
        slot: event.slot,
        message,
    }
}

/// A packet, or a circuit, that a rule logged, for people; the rule is named by the caller.
pub fn logged_packet(logged: &rules::Logged) -> String {
    let of = match (logged.circuit, logged.protocol) {
        (false, _) => "packet",
        (true, 17) => "datagram",
        (true, _) => "connection",
    };
    let what = match rules::Outcome::from_number(logged.outcome) {
        Some(rules::Outcome::Connection) => "let a connection begin".to_owned(),
        Some(rules::Outcome::Packet) => format!("let a {of} pass"),
        Some(rules::Outcome::Denied) => format!("denied a {of}"),
        None => "decided".to_owned(),
    };
    let direction = if logged.inbound { "from" } else { "to" };
    let peer = peer_of(logged);
    let (from, to) = (logged.source_port, logged.destination_port);
    let ports = match logged.protocol {
        6 | 17 | 132 => format!(", port {from} to {to}"),
        1 | 58 => format!(", type {} code {}", to >> 8, to & 0xff),
        _ => String::new(),
    };
    let protocol = crate::flows::protocol(logged.protocol);
    format!("{what} {direction} {peer} ({protocol}{ports})")
}

fn peer_of(logged: &rules::Logged) -> String {
    let [a, b, c, d] = logged.peer;
    match logged.six {
        true => format!("an IPv6 address that ends with {a:02x}{b:02x}:{c:02x}{d:02x}"),
        false => format!("{a}.{b}.{c}.{d}"),
    }
}

/// What an operator refused, for people: `a connection to 10.1.1.11, port 5432`.
pub fn refused_call(refused: &rules::Logged) -> String {
    let what = match (refused.protocol, refused.inbound) {
        (17, _) => "a datagram to",
        (_, true) => "a connection from",
        (_, false) => "a connection to",
    };
    let (peer, port) = (peer_of(refused), refused.destination_port);
    match refused.inbound {
        true => format!("refused {what} {peer} to port {port}"),
        false => format!("refused {what} {peer}, port {port}"),
    }
}

fn reason_of(refused: &rules::Logged) -> String {
    DropReason::from_number(refused.reason).map_or_else(
        || "for a reason of a newer release".to_owned(),
        |reason| format!("{}: {}", reason.slug(), reason.explain().trim()),
    )
}

/// The kind with that number.
pub fn kind_of(number: u32) -> Option<EventKind> {
    use EventKind::{
        Attached, ConnectionsRestored, ContainerRefused, Died, Drop, ImageRefused, ImageSwapped,
        MeterLost, OperatorReplaced, PortAdded, PortClosed, ProgramGivenUp, ProgramsLeft,
        ProxyLost, Quarantine, Ready, Refused, Report, Restarted, Resynced, Rule,
    };
    [
        Ready,
        Attached,
        PortAdded,
        PortClosed,
        ImageSwapped,
        ImageRefused,
        Resynced,
        Drop,
        Report,
        Quarantine,
        Died,
        Restarted,
        Rule,
        ConnectionsRestored,
        OperatorReplaced,
        ProgramGivenUp,
        ContainerRefused,
        MeterLost,
        Refused,
        ProgramsLeft,
        ProxyLost,
    ]
    .into_iter()
    .find(|kind| *kind as u32 == number)
}

/// Its name in the API.
pub fn kind_name(number: u32) -> &'static str {
    match kind_of(number) {
        Some(EventKind::Ready) => "ready",
        Some(EventKind::Attached) => "attached",
        Some(EventKind::PortAdded) => "port-added",
        Some(EventKind::PortClosed) => "port-closed",
        Some(EventKind::ImageSwapped) => "image-swapped",
        Some(EventKind::ImageRefused) => "image-refused",
        Some(EventKind::Resynced) => "resynced",
        Some(EventKind::Drop) => "drop",
        Some(EventKind::Report) => "report",
        Some(EventKind::Quarantine) => "quarantine",
        Some(EventKind::Died) => "died",
        Some(EventKind::Restarted) => "restarted",
        Some(EventKind::Rule) => "rule",
        Some(EventKind::ConnectionsRestored) => "connections-restored",
        Some(EventKind::OperatorReplaced) => "operator-replaced",
        Some(EventKind::ProgramGivenUp) => "program-given-up",
        Some(EventKind::ContainerRefused) => "container-refused",
        Some(EventKind::MeterLost) => "meter-lost",
        Some(EventKind::Refused) => "refused",
        Some(EventKind::ProgramsLeft) => "programs-left",
        Some(EventKind::ProxyLost) => "proxy-lost",
        None => "unknown",
    }
}

/// A cause of death by name.
pub fn cause(number: u32) -> &'static str {
    use command::verbs::{CAUSE_EXIT, CAUSE_REPORT, CAUSE_STALL, CAUSE_TRIP};
    match number {
        CAUSE_EXIT => "exit",
        CAUSE_TRIP => "trip",
        CAUSE_STALL => "stall",
        CAUSE_REPORT => "report",
        _ => "",
    }
}

/// Why a port was closed: a breach of docs/fifo.md, or an errno.
pub fn port_closed(reason: u64) -> String {
    match reason.checked_sub(u64::from(command::verbs::CLOSED_BY_SYSTEM)) {
        Some(errno) if errno <= 4095 => format!(
            "the operating system refused it ({})",
            std::io::Error::from_raw_os_error(errno as i32)
        ),
        _ => format!("its peer broke the FIFO's protocol (breach {reason}, see docs/fifo.md)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use zerocopy::IntoBytes;

    fn page(words: &[(usize, u64)], slots: usize) -> File {
        let mut bytes = vec![0; bytes_for(slots)];
        for (at, value) in words {
            bytes[at * 8..at * 8 + 8].copy_from_slice(&value.to_le_bytes());
        }
        file(&bytes)
    }

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn pages(counters: File, recorder: File) -> Pages {
        Pages {
            counters,
            recorder,
            operator: None,
        }
    }

    #[test]
    fn totals_and_rates() {
        let words = |frames| {
            [
                (0, MAGIC),
                (counter_word(1, Counter::RxSegments), frames),
                (drop_word(1, DropReason::SourceIp), frames / 2),
            ]
        };
        let now = pages(page(&words(100), 2), file(&[])).counters(2).unwrap();
        let before = pages(page(&words(20), 2), file(&[])).counters(2).unwrap();
        let rates = now.rates(Some(&before), 1, 2.0);
        assert_eq!(rates.rx_pps, 40.0);
        assert_eq!(
            (
                rates.drops[0].reason.as_str(),
                rates.drops[0].frames,
                rates.drops[0].per_second
            ),
            ("source-ip", 50, 20.0)
        );
        assert_eq!(rates.drops_ps, 20.0);
        // The other way round: the writer began anew.
        assert_eq!(before.rates(Some(&now), 1, 1.0).rx_pps, 20.0);
    }

    #[test]
    fn a_page_that_is_short_or_not_one_harms_nothing() {
        assert!(pages(file(b"nonsense"), file(&[])).counters(1000).is_none());
        let short = pages(page(&[(0, MAGIC)], 1), file(&[]))
            .counters(u32::MAX)
            .unwrap();
        assert_eq!(short.counter(9, Counter::RxFrames), 0);
        assert!(short.drops(u32::MAX).is_empty());
    }

    #[test]
    fn the_recorder_is_read_newest_first_and_by_slot() {
        let mut bytes = vec![0; BYTES];
        let next = EVENTS as u64 + 2;
        bytes[..8].copy_from_slice(&next.to_le_bytes());
        for number in 2..next {
            let event = Event {
                time_ns: number,
                kind: EventKind::PortAdded as u32,
                slot: (number % 2) as u32,
                ..Event::default()
            };
            let at = 4096 + (number as usize % EVENTS) * 32;
            bytes[at..at + 32].copy_from_slice(event.as_bytes());
        }
        let pages = pages(file(&[]), file(&bytes));
        let found = pages.recorded(Some(1), next, 3);
        assert_eq!(
            found.iter().map(|event| event.age_ns).collect::<Vec<_>>(),
            [1, 3, 5]
        );
        assert_eq!(pages.recorded(None, next, usize::MAX).len(), EVENTS);
    }

    #[test]
    fn any_bytes_are_read_without_harm() {
        let pages = pages(file(&[]), file(&vec![0xff; BYTES]));
        assert!(pages.recorded(None, 0, usize::MAX).len() <= EVENTS);
    }
}
