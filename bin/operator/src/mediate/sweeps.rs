//! Which sockets live: who closes one tells nobody, so the kernel is asked, and how many there are follows from that.

use super::*;
use worker::clock::spent;

/// Who asks for it can have a sweep so long after the last.
const PAUSE: Duration = Duration::from_secs(1);

impl Mediator {
    /// How many of these of here are not closed, of which nobody tells: nobody is cut off by their end.
    pub(super) fn count_living(&self, all: impl Iterator<Item = u64>) -> usize {
        let all: Vec<u64> = all.collect();
        let is_asked = !all.is_empty() && guard!("circuits-cut-closed");
        let Some(mut live) = is_asked.then(|| self.living()).flatten() else {
            return all.len();
        };
        // A listing may pass over some while others come and go: twice it does not.
        live.extend(self.living().into_iter().flatten());
        all.iter().filter(|it| live.contains_key(it)).count()
    }

    /// Which of these circuits across agreements are closed, of which nobody tells: nobody is cut off by their end, and
    /// nobody has them who could be looked for. Those that programs here have began are in this namespace; of the others
    /// it is asked where they are, for a while: of more it is taken that they live.
    pub(super) fn closed_of(&self, crossings: &[circuit::Socket]) -> BTreeSet<u64> {
        let is_here = |it: &&circuit::Socket| it.inode() == 0;
        let mut live = self.living_far(crossings);
        if crossings.iter().any(|it| is_here(&it)) {
            // A listing may pass over some while others come and go: twice it does not.
            for _ in 0..2 {
                match self.living() {
                    Some(all) if guard!("across-closed-here") => live.extend(all),
                    _ => live.extend(crossings.iter().filter(is_here).map(|it| (it.cookie(), 0))),
                }
            }
        }
        let all = crossings.iter().map(circuit::Socket::cookie);
        all.filter(|it| !live.contains_key(it)).collect()
    }

    /// Those are closed.
    pub(super) fn forgets(&mut self, closed: &BTreeSet<u64>) {
        let metered = |cookie| {
            let socket = self.table.socket(cookie);
            socket.is_some_and(|it| it.carrier().is_metered())
        };
        // What a meter carries goes on.
        let gone = closed.iter().copied().filter(|it| !metered(*it));
        let gone: BTreeSet<u64> = gone.collect();
        if !gone.is_empty() && guard!("across-closed-forgotten") {
            self.keeps(|cookie| !gone.contains(&cookie));
            self.count();
        }
    }

    /// Of others nothing more is known.
    pub(super) fn keeps(&mut self, lives: impl Fn(u64) -> bool) {
        self.table.retain(&lives);
        self.unheard.retain(|cookie, _| lives(*cookie));
        self.unclaimed.retain(&lives);
        self.shown.retain(|cookie, _| lives(*cookie));
        self.settle_relays();
        self.rings.retain(&lives);
        let tags = self.table.all().map(circuit::Socket::crossing);
        let tags = tags.chain(self.rings.tags()).collect();
        self.crossings.retain(&lives, &tags);
    }

    /// Forgets sockets that no program has any more.
    pub(super) fn sweep(&mut self) {
        self.sweep_of(true);
    }

    /// The same; of those that came by agreements only `if_far`, for of these it takes the kernel's
    /// time by as many sockets as the other tenants have.
    pub(super) fn sweep_of(&mut self, if_far: bool) {
        let begun = spent();
        let Some(Ok(mut live)) = self.live.as_ref().map(Live::cookies) else {
            return;
        };
        // A listing may pass over some while others come and go: twice it does not. One that lives
        // and is forgotten would lose its port, and its circuit its rules: nobody is spared this.
        if let Some(Ok(mut more)) = self.live.as_ref().map(Live::cookies) {
            live.append(&mut more);
        }
        match if_far {
            true => live.extend(self.living_crossings().into_keys()),
            false => {
                let far = self.table.all().filter(|it| it.inode() != 0);
                live.extend(far.map(circuit::Socket::cookie));
            }
        }
        self.orphans = self.carried(&live);
        live.extend(&self.orphans);
        let gone = |socket: &&circuit::Socket| {
            socket.kind() == Kind::Datagram && !live.contains(&socket.cookie())
        };
        let gone: Vec<circuit::Socket> = self.table.all().filter(gone).copied().collect();
        self.datagrams.forget(&gone);
        self.datagrams.retain(&live);
        self.keeps(|cookie| live.contains(&cookie));
        if if_far {
            self.grows_from_here();
            let took = Duration::from_nanos(spent().saturating_sub(begun));
            let pause = (10 * took).clamp(Duration::from_millis(1), PAUSE);
            self.sweeps_after = Some(Instant::now() + pause);
        }
        self.write();
        self.count();
    }

    /// The same, of those of here, for a call that would fail else: its endpoint's next ones wait for that where
    /// others call, or they had little of this process. Once a turn: who goes on by another's call, or is taken over
    /// with others, has asked before, and what was closed by then was seen. There may be thousands.
    pub(super) fn sweeps(&mut self) {
        if std::mem::replace(&mut self.has_swept, true) && guard!("circuits-swept-once") {
            return;
        }
        let begun = spent();
        self.sweep_of(false);
        let took = Duration::from_nanos(spent().saturating_sub(begun));
        self.sweeping.set(self.sweeping.get() + took);
    }

    /// How long that took since this was asked last, which ends a turn.
    pub fn swept(&mut self) -> Duration {
        self.has_swept = false;
        self.sweeping.take()
    }

    /// The same, for a tenth of the time and once a second at least: for what others may ask as
    /// often as they like. Whether it was.
    pub(super) fn sweep_at_times(&mut self) -> bool {
        let after = self.sweeps_after;
        let is_due = after.is_none_or(|after| after <= Instant::now());
        if is_due || !guard!("circuits-sweeps") {
            self.sweep();
        }
        is_due
    }

    /// There are more than lived by far. Whoever makes many and closes them has those of here
    /// asked for as often, the others at times.
    pub(super) fn sweep_grown(&mut self) {
        if !self.sweep_at_times() {
            self.sweep_of(false);
            self.grows_from_here();
        }
    }

    fn grows_from_here(&mut self) {
        let left = self.table.counts().0;
        self.sweeps_at = left + left.max(GROWTH);
    }

    /// One more of whichever endpoint has it.
    pub(super) fn counts_one(&mut self, made: &Made) {
        if let Some(socket) = self.table.socket(made.cookie) {
            let count = self.counts.entry(socket.endpoint()).or_default();
            // Where it is refused it has what it had.
            let _ = sockets::widens(&made.fd, *count);
            *count += 1;
        }
    }

    pub(super) fn count(&mut self) {
        // Once through all, however many endpoints there are.
        let mut counts: BTreeMap<u32, u32> = self.limits.keys().map(|slot| (*slot, 0)).collect();
        let has_one = |it: &&circuit::Socket| !self.orphans.contains(&it.cookie());
        for socket in self.table.all().filter(has_one) {
            if let Some(count) = counts.get_mut(&socket.endpoint()) {
                *count += 1;
            }
        }
        self.counts.append(&mut counts);
        self.counted.clone_from(&self.counts);
        self.counts_carried();
    }
}
