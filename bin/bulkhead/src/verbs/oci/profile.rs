//! A seccomp profile that notifies what the filter of circuits notifies, and forbids what it
//! forbade before.
//!
//! A runtime installs one filter, so that two cannot be put on top of each other, for the kernel
//! to take what is stricter. Here that is done by hand, for each call that circuits know: what the
//! profile permits of it is cut into parts by what circuits do, and each part is a rule. Of one
//! argument a rule says one thing, which libseccomp asks for: so the parts are those whose bits
//! under a mask have a value.

use super::bundle::{Place, Wrong};
use notify::filter::{CALLS, MEDIATED, UNSEEN, When};
use serde_json::{Map, Value, json};

const ALLOW: &str = "SCMP_ACT_ALLOW";
const NOTIFY: &str = "SCMP_ACT_NOTIFY";
const ERRNO: &str = "SCMP_ACT_ERRNO";
/// Actions by which the call is made.
const PERMIT: [&str; 3] = [ALLOW, "SCMP_ACT_LOG", "SCMP_ACT_TRACE"];
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
const NAMES: [(i64, &str); 21] = [
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
];

/// The profile (none: everything is permitted) with what circuits need, and their listener.
pub fn merged(before: Option<&Value>, place: &Place) -> Result<Value, Wrong> {
    let none = json!({ "defaultAction": ALLOW });
    let before = before.filter(|it| !it.is_null()).unwrap_or(&none);
    let Some(mut profile) = before.as_object().cloned() else {
        return Err(unlike("linux.seccomp is no object"));
    };
    if profile.contains_key("listenerPath") {
        return Err(Wrong::new(
            "its seccomp profile has a listenerPath of its own",
            "a container has one listener, and its endpoint's is the operator's: take that and all SCMP_ACT_NOTIFY out",
        ));
    }
    let by_default = text(&profile, "defaultAction")?;
    let rules = match profile.remove("syscalls") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(rules)) => rules,
        Some(_) => return Err(unlike("linux.seccomp.syscalls is no list")),
    };
    if by_default == NOTIFY
        || rules
            .iter()
            .any(|rule| rule.get("action") == Some(&json!(NOTIFY)))
    {
        return Err(Wrong::new(
            "its seccomp profile notifies calls to somebody (SCMP_ACT_NOTIFY)",
            "a container has one listener, and its endpoint's is the operator's: take these out",
        ));
    }
    let mut after = Vec::new();
    let mut of: Vec<Vec<Map<String, Value>>> = vec![Vec::new(); NAMES.len()];
    for rule in &rules {
        let rule = rule
            .as_object()
            .ok_or_else(|| unlike("a rule is no object"))?;
        let names = rule.get("names").and_then(Value::as_array);
        let names = names.ok_or_else(|| unlike("a rule has no `names`"))?;
        let mut others = Vec::new();
        for name in names {
            match NAMES
                .iter()
                .position(|(_, ours)| name.as_str() == Some(ours))
            {
                Some(at) => of[at].push(rule.clone()),
                None => others.push(name.clone()),
            }
        }
        if !others.is_empty() {
            let mut rule = rule.clone();
            rule.insert("names".into(), Value::Array(others));
            after.push(Value::Object(rule));
        }
    }
    for &(number, when) in CALLS {
        // INVARIANT: a test names every call.
        let Some(at) = NAMES.iter().position(|(ours, _)| *ours == number) else {
            return Err(unlike("a call of circuits has no name"));
        };
        let call = Call {
            name: NAMES[at].1,
            by_default: &by_default,
            parts: parts(when),
        };
        call.rules(&of[at], &mut after)?;
    }
    profile.insert("syscalls".into(), Value::Array(after));
    // What another architecture's calls are called by is not mediated: such a program is killed.
    profile.insert("architectures".into(), json!(["SCMP_ARCH_X86_64"]));
    // Nothing but death would interrupt a call then: decision 23.
    if let Some(Value::Array(flags)) = profile.get_mut("flags") {
        flags.retain(|flag| flag != "SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV");
    }
    profile.insert("listenerPath".into(), json!(place.listener));
    profile.insert("listenerMetadata".into(), json!(place.endpoint));
    Ok(Value::Object(profile))
}

/// One call: what is done by default, and what circuits do.
struct Call<'a> {
    name: &'static str,
    by_default: &'a str,
    parts: Vec<(Part, Act)>,
}

impl Call<'_> {
    /// Adds its rules.
    fn rules(&self, before: &[Map<String, Value>], after: &mut Vec<Value>) -> Result<(), Wrong> {
        let mut always: Option<&Map<String, Value>> = None;
        let mut partly = Vec::new();
        for rule in before {
            let args = rule.get("args").and_then(Value::as_array);
            match args.filter(|args| !args.is_empty()) {
                Some(args) => partly.push((rule, args)),
                None => match always {
                    Some(other) if other.get("action") != rule.get("action") => {
                        return Err(self.unclear("is permitted and denied by two rules"));
                    }
                    _ => always = Some(rule),
                },
            }
        }
        let permits = |action: &str| PERMIT.contains(&action);
        match (always, &partly[..]) {
            (Some(_), [_, ..]) => {
                Err(self.unclear("has a rule without arguments, and one with them"))
            }
            (Some(rule), []) => {
                let action = text(rule, "action")?;
                match permits(&action) {
                    true => self.cut(&[], &action, after),
                    false => self.keep(rule, after),
                }
            }
            (None, []) if permits(self.by_default) => self.cut(&[], self.by_default, after),
            (None, []) => Ok(()),
            (None, _) if permits(self.by_default) => {
                Err(self.unclear("is permitted by default, and its arguments have rules"))
            }
            (None, partly) => {
                for (rule, args) in partly {
                    let action = text(rule, "action")?;
                    match permits(&action) {
                        true => self.cut(args, &action, after)?,
                        false => self.keep(rule, after)?,
                    }
                }
                Ok(())
            }
        }
    }

    /// A rule that denies stays, of this call alone.
    fn keep(&self, rule: &Map<String, Value>, after: &mut Vec<Value>) -> Result<(), Wrong> {
        let mut rule = rule.clone();
        rule.insert("names".into(), json!([self.name]));
        after.push(Value::Object(rule));
        Ok(())
    }

    /// What is permitted where these arguments are so, by parts.
    fn cut(&self, given: &[Value], action: &str, after: &mut Vec<Value>) -> Result<(), Wrong> {
        for (part, act) in &self.parts {
            let (action, errno) = match act {
                Act::Permit => (action, None),
                Act::Notify => (NOTIFY, None),
                Act::Answer(errno) => (ERRNO, Some(errno)),
            };
            if *act == Act::Permit && action == self.by_default {
                continue;
            }
            for args in self.both(given, part)? {
                let mut rule = json!({ "names": [self.name], "action": action, "args": args });
                if let (Some(errno), Some(rule)) = (errno, rule.as_object_mut()) {
                    rule.insert("errnoRet".into(), json!(errno));
                }
                after.push(rule);
            }
        }
        Ok(())
    }

    /// Where both hold: as many lists of arguments as that takes, and none where that is nowhere.
    fn both(&self, given: &[Value], part: &Part) -> Result<Vec<Vec<Value>>, Wrong> {
        let mut all: Vec<Vec<Value>> = vec![Vec::new()];
        let mut left: Vec<&Value> = given.iter().collect();
        for &(index, is) in part {
            let here = |arg: &&Value| arg.get("index").and_then(Value::as_u64) == Some(index);
            let about: Vec<&Value> = left.iter().copied().filter(here).collect();
            left.retain(|arg| !here(arg));
            let choices = match about[..] {
                [] => vec![is],
                [arg] => self.intersection(arg, is)?,
                _ => return Err(self.unclear("has a rule that says two things of one argument")),
            };
            let choices = &choices;
            let with = |args: Vec<Value>| {
                choices.iter().map(move |is| {
                    let mut args = args.clone();
                    args.push(is.shown(index));
                    args
                })
            };
            all = all.into_iter().flat_map(with).collect();
        }
        for args in &mut all {
            args.extend(left.iter().copied().cloned());
        }
        Ok(all)
    }

    /// What an argument may be where a rule of the profile's says something of it too.
    fn intersection(&self, arg: &Value, is: Is) -> Result<Vec<Is>, Wrong> {
        let number = |name: &str| arg.get(name).and_then(Value::as_u64);
        let op = arg.get("op").and_then(Value::as_str).unwrap_or_default();
        let value = number("value").unwrap_or(0);
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
                let theirs = number("valueTwo").unwrap_or(0) & value;
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
    fn shown(self, index: u64) -> Value {
        match self {
            Is::Masked(mask, value) => {
                json!({ "index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ" })
            }
            Is::NotZero => json!({ "index": index, "value": 0, "op": "SCMP_CMP_NE" }),
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

fn text(of: &Map<String, Value>, name: &str) -> Result<String, Wrong> {
    let found = of.get(name).and_then(Value::as_str).map(str::to_owned);
    found.ok_or_else(|| unlike(&format!("its seccomp profile lacks {name}")))
}

fn unlike(what: &str) -> Wrong {
    Wrong::new(
        what,
        "a seccomp profile is as the OCI runtime specification has it",
    )
}
