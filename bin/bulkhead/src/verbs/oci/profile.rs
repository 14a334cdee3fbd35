//! A seccomp profile that notifies what the filter of circuits notifies, and forbids what it
//! forbade before.
//!
//! A runtime installs one filter, so that two cannot be put on top of each other, for the kernel
//! to take what is stricter. Here that is done by hand, for each call that circuits know: what the
//! profile permits of it is cut into parts by what circuits do, and each part is a rule. Of one
//! argument a rule says one thing, which libseccomp asks for: so the parts are those whose bits
//! under a mask have a value.

use super::bundle::{Place, Wrong};
use super::taken::{Comparison, ERRNO, NOTIFY, PERMIT, Profile, Rule, Verdict};
use notify::filter::{CALLS, MEDIATED, UNSEEN, When};
use serde_json::{Value, json};

/// The low half of an argument: what the kernel takes for an `int`.
const INT: u64 = 0xffff_ffff;

/// What circuits do with a part of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Permit,
    Notify,
    Answer(i32),
}

/// What an argument is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Is {
    /// Under the mask, the value.
    Masked(u64, u64),
    /// Anything but zero.
    NotZero,
}

/// A part of a call: what these arguments are.
type Part = Vec<(u64, Is)>;

/// The calls' names, as libseccomp has them.
const NAMES: [(i64, &str); 25] = [
    (libc::SYS_sendto, "sendto"),
    (libc::SYS_recvfrom, "recvfrom"),
    (libc::SYS_sendmsg, "sendmsg"),
    (libc::SYS_recvmsg, "recvmsg"),
    (libc::SYS_sendmmsg, "sendmmsg"),
    (libc::SYS_recvmmsg, "recvmmsg"),
    (libc::SYS_socket, "socket"),
    (libc::SYS_socketpair, "socketpair"),
    (libc::SYS_accept4, "accept4"),
    (libc::SYS_accept, "accept"),
    (libc::SYS_connect, "connect"),
    (libc::SYS_bind, "bind"),
    (libc::SYS_listen, "listen"),
    (libc::SYS_shutdown, "shutdown"),
    (libc::SYS_getsockname, "getsockname"),
    (libc::SYS_getpeername, "getpeername"),
    (libc::SYS_setsockopt, "setsockopt"),
    (libc::SYS_getsockopt, "getsockopt"),
    (libc::SYS_io_uring_setup, "io_uring_setup"),
    (libc::SYS_io_uring_enter, "io_uring_enter"),
    (libc::SYS_io_uring_register, "io_uring_register"),
    (libc::SYS_fallocate, "fallocate"),
    (libc::SYS_madvise, "madvise"),
    (libc::SYS_process_madvise, "process_madvise"),
    (libc::SYS_ioctl, "ioctl"),
];

/// The profile (none: everything is permitted) with what circuits need, and their listener.
pub fn merged(before: Option<&Value>, place: &Place) -> Result<Value, Wrong> {
    let Profile {
        by_default,
        flags,
        rules,
    } = Profile::of(before)?;
    let mut after = vec![unlike_any_other(by_default, place)];
    let mut of: Vec<Vec<&Rule>> = vec![Vec::new(); NAMES.len()];
    for rule in &rules {
        let mut others = Vec::new();
        for name in &rule.names {
            match NAMES.iter().position(|(_, ours)| name == ours) {
                Some(at) => of[at].push(rule),
                None => others.push(name.clone()),
            }
        }
        if !others.is_empty() {
            after.push(Rule {
                names: others,
                ..rule.clone()
            });
        }
    }
    for &(number, when) in CALLS {
        // INVARIANT: a test names every call.
        let Some(at) = NAMES.iter().position(|(ours, _)| *ours == number) else {
            return Err(Wrong::new("a call of circuits has no name", ""));
        };
        let call = Call {
            name: NAMES[at].1,
            by_default,
            parts: parts(when),
        };
        call.rules(&of[at], &mut after)?;
    }
    let after: Vec<Value> = after.iter().map(Rule::shown).collect();
    let mut profile = json!({
        "defaultAction": by_default.action,
        // What another architecture's calls are called by is not mediated: such a program is killed.
        "architectures": ["SCMP_ARCH_X86_64"],
        "listenerPath": place.listener,
        "listenerMetadata": place.endpoint,
        "syscalls": after,
    });
    if let Some(errno) = by_default.errno {
        profile["defaultErrnoRet"] = json!(errno);
    }
    if let Some(flags) = flags {
        profile["flags"] = json!(flags);
    }
    Ok(profile)
}

/// A rule that runtimes skip: it does what is done anyhow, to a call that there is not. crun keeps the filters that it made,
/// by a sum of their profiles' words joined together: of names that are cut in two it is the same, and a filter that
/// was made of such is one of nothing. Whoever writes another profile does not know this name.
fn unlike_any_other(by_default: Verdict, place: &Place) -> Rule {
    Rule {
        names: vec![format!("bulkhead_{:032x}", place.chance)],
        verdict: by_default,
        args: Vec::new(),
    }
}

/// One call: what is done by default, and what circuits do.
struct Call {
    name: &'static str,
    by_default: Verdict,
    parts: Vec<(Part, Act)>,
}

impl Call {
    /// Adds its rules.
    fn rules(&self, before: &[&Rule], after: &mut Vec<Rule>) -> Result<(), Wrong> {
        let mut always: Option<&Rule> = None;
        let mut partly = Vec::new();
        for &rule in before {
            match always {
                _ if !rule.args.is_empty() => partly.push(rule),
                Some(other) if other.verdict.action != rule.verdict.action => {
                    return Err(self.unclear("is permitted and denied by two rules"));
                }
                _ => always = Some(rule),
            }
        }
        let permits = |verdict: Verdict| PERMIT.contains(&verdict.action);
        match (always, &partly[..]) {
            (Some(_), [_, ..]) => {
                Err(self.unclear("has a rule without arguments, and one with them"))
            }
            (None, []) if permits(self.by_default) => self.cut(&[], self.by_default, after),
            (None, []) => Ok(()),
            (None, _) if permits(self.by_default) => {
                Err(self.unclear("is permitted by default, and its arguments have rules"))
            }
            (always, partly) => {
                for rule in always.iter().chain(partly) {
                    match permits(rule.verdict) {
                        true => self.cut(&rule.args, rule.verdict, after)?,
                        // What denies stays, of this call alone.
                        false => after.push(self.rule(rule.verdict, rule.args.clone())),
                    }
                }
                Ok(())
            }
        }
    }

    fn rule(&self, verdict: Verdict, args: Vec<Comparison>) -> Rule {
        let names = vec![self.name.to_owned()];
        Rule {
            names,
            verdict,
            args,
        }
    }

    /// What is permitted where these arguments are so, by parts.
    fn cut(
        &self,
        given: &[Comparison],
        permitted: Verdict,
        after: &mut Vec<Rule>,
    ) -> Result<(), Wrong> {
        for (part, act) in &self.parts {
            let verdict = match act {
                Act::Permit => permitted,
                Act::Notify => Verdict::plain(NOTIFY),
                Act::Answer(errno) => Verdict {
                    action: ERRNO,
                    errno: Some(errno.cast_unsigned()),
                },
            };
            if verdict == self.by_default {
                continue;
            }
            for args in self.both(given, part)? {
                after.push(self.rule(verdict, args));
            }
        }
        Ok(())
    }

    /// Where both hold: as many lists of arguments as that takes, and none where that is nowhere.
    fn both(&self, given: &[Comparison], part: &Part) -> Result<Vec<Vec<Comparison>>, Wrong> {
        let mut all: Vec<Vec<Comparison>> = vec![Vec::new()];
        let mut left = given.to_vec();
        for &(index, is) in part {
            let here = left.iter().position(|arg| arg.index == index);
            let choices = match here.map(|here| left.remove(here)) {
                None => vec![is],
                Some(arg) => self.intersection(arg, is)?,
            };
            let choices = &choices;
            let with = |args: Vec<Comparison>| {
                choices.iter().map(move |is| {
                    let mut args = args.clone();
                    args.push(is.of(index));
                    args
                })
            };
            all = all.into_iter().flat_map(with).collect();
        }
        for args in &mut all {
            args.extend_from_slice(&left);
        }
        Ok(all)
    }

    /// What an argument may be where a rule of the profile's says something of it too.
    fn intersection(&self, arg: Comparison, is: Is) -> Result<Vec<Is>, Wrong> {
        let (op, value) = (arg.operator, arg.value);
        let (mask, ours) = match (is, op, value) {
            (Is::Masked(mask, ours), ..) => (mask, ours),
            (Is::NotZero, "SCMP_CMP_EQ", 0) => return Ok(Vec::new()),
            (Is::NotZero, "SCMP_CMP_EQ", value) => return Ok(vec![Is::Masked(u64::MAX, value)]),
            (Is::NotZero, "SCMP_CMP_NE", 0) => return Ok(vec![is]),
            (Is::NotZero, ..) => return Err(self.unclear("has a rule about an address")),
        };
        match op {
            "SCMP_CMP_EQ" if value & mask == ours => Ok(vec![Is::Masked(u64::MAX, value)]),
            "SCMP_CMP_EQ" => Ok(Vec::new()),
            "SCMP_CMP_NE" if value & mask != ours => Ok(vec![is]),
            "SCMP_CMP_NE" => {
                // All but this one: some bit that is free differs. Of the upper half none does, which
                // the kernel does not look at.
                let free = (0..32)
                    .map(|bit| 1_u64 << bit)
                    .filter(|bit| mask & bit == 0);
                Ok(free
                    .map(|bit| Is::Masked(mask | bit, ours | (!value & bit)))
                    .collect())
            }
            "SCMP_CMP_MASKED_EQ" => {
                let theirs = arg.second & value;
                match (theirs ^ ours) & mask & value {
                    0 => Ok(vec![Is::Masked(mask | value, ours | theirs)]),
                    _ => Ok(Vec::new()),
                }
            }
            _ => Err(self.unclear("has a rule that compares an argument by more or less")),
        }
    }

    fn unclear(&self, how: &str) -> Wrong {
        Wrong::new(
            format!("its seccomp profile: {} {how}", self.name),
            "say of this call that it is permitted, or that it is not: what may be done with sockets the \
             tenant's rules decide",
        )
    }
}

impl Is {
    fn of(self, index: u64) -> Comparison {
        let (operator, value, second) = match self {
            Is::Masked(mask, value) => ("SCMP_CMP_MASKED_EQ", mask, value),
            Is::NotZero => ("SCMP_CMP_NE", 0, 0),
        };
        Comparison {
            index,
            operator,
            value,
            second,
        }
    }
}

/// A call, cut into all its parts by what circuits do with it.
fn parts(when: When) -> Vec<(Part, Act)> {
    let one = |value: i32| (INT, u64::from(value.cast_unsigned()));
    let all = |values: &[i32]| -> Vec<(u64, u64)> { values.iter().copied().map(one).collect() };
    let at = |index: u64, (mask, value): (u64, u64)| (index, Is::Masked(mask, value));
    // A length that is a power of two, and begins at a multiple of it.
    let mediated = (
        INT & !u64::from(MEDIATED.end - MEDIATED.start - 1),
        u64::from(MEDIATED.start),
    );
    let elsewhere = || {
        let others = others(&[mediated]).into_iter();
        others.map(|other| (vec![at(0, other)], Act::Permit))
    };
    let options = |names: &[i32]| {
        let level = at(1, one(libc::SOL_SOCKET));
        let plain = all(names).into_iter().map(|name| (name, Act::Permit));
        let plain: Vec<_> = plain
            .chain(
                others(&all(names))
                    .into_iter()
                    .map(|name| (name, Act::Notify)),
            )
            .map(|(name, act)| (vec![level, at(2, name)], act))
            .collect();
        plain
    };
    let notified = |index: u64, values: Vec<(u64, u64)>| {
        let parts = values.into_iter();
        parts.map(move |value| (vec![at(index, value)], Act::Notify))
    };
    match when {
        When::Always => vec![(Vec::new(), Act::Notify)],
        When::Refused => vec![(Vec::new(), Act::Answer(libc::ENOSYS))],
        When::RefusedWhere {
            argument,
            mask,
            values,
            errno,
        } => {
            let refused = values.iter().map(|it| (u64::from(mask), u64::from(*it)));
            let refused: Vec<_> = refused.collect();
            let part = |it, act| (vec![at(argument.into(), it)], act);
            let allowed = others(&refused).into_iter();
            let allowed = allowed.map(|it| part(it, Act::Permit));
            let refused = refused.iter().map(|it| part(*it, Act::Answer(errno)));
            allowed.chain(refused).collect()
        }
        When::DomainOtherThan(domains) => {
            let known = all(domains).into_iter();
            let known = known.map(|domain| (vec![at(0, domain)], Act::Permit));
            known.chain(notified(0, others(&all(domains)))).collect()
        }
        When::OptionOtherThan(names) => {
            let levels = others(&all(&[libc::SOL_SOCKET]));
            options(names)
                .into_iter()
                .chain(notified(1, levels))
                .collect()
        }
        When::OptionToSet(names) => {
            let level = at(1, one(libc::SOL_TCP));
            let unseen = all(&UNSEEN).into_iter().map(|name| (name, Act::Answer(0)));
            let seen = others(&all(&UNSEEN))
                .into_iter()
                .map(|name| (name, Act::Notify));
            let of_tcp = unseen
                .chain(seen)
                .map(|(name, act)| (vec![level, at(2, name)], act));
            let levels = others(&all(&[libc::SOL_SOCKET, libc::SOL_TCP]));
            let rest = notified(1, levels);
            options(names)
                .into_iter()
                .chain(of_tcp)
                .chain(rest)
                .collect()
        }
        When::Mediated => {
            let here = (vec![at(0, mediated)], Act::Notify);
            elsewhere().chain([here]).collect()
        }
        When::MediatedWithName => {
            let without = (
                vec![at(0, mediated), (4, Is::Masked(u64::MAX, 0))],
                Act::Permit,
            );
            let named = (vec![at(0, mediated), (4, Is::NotZero)], Act::Notify);
            elsewhere().chain([without, named]).collect()
        }
    }
}

/// All ints but these, whose masks begin at the top bit: as masks and values that are apart from
/// each other.
fn others(these: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let mut open = vec![(0_u64, 0_u64)];
    // Bound: a part is cut at most 32 times for each of these.
    while let Some((mask, value)) = open.pop() {
        let touches = |(other, is): &&(u64, u64)| (is ^ value) & other & mask == 0;
        let Some((other, _)) = these.iter().find(touches) else {
            found.push((mask, value));
            continue;
        };
        let left = other & !mask;
        if left != 0 {
            let bit = 1 << left.ilog2();
            open.push((mask | bit, value));
            open.push((mask | bit, value | bit));
        }
    }
    found
}
