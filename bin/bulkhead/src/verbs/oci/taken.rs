//! A seccomp profile as its maker wrote it, taken apart. Runtimes skip names that they do not know, take a number
//! that is left out for zero, end a text at a NUL, and put what a rule says twice another way. So what
//! is not understood here is refused, and what they are given is written anew of what was.

use super::bundle::Wrong;
use guard::guard;
use serde_json::{Map, Value, json};

pub const ALLOW: &str = "SCMP_ACT_ALLOW";
pub const NOTIFY: &str = "SCMP_ACT_NOTIFY";
pub const ERRNO: &str = "SCMP_ACT_ERRNO";
const TRACE: &str = "SCMP_ACT_TRACE";
/// Actions by which the call is made.
pub const PERMIT: [&str; 3] = [ALLOW, "SCMP_ACT_LOG", TRACE];
/// And all that the specification has.
const ACTIONS: [&str; 9] = [
    ALLOW,
    NOTIFY,
    ERRNO,
    TRACE,
    "SCMP_ACT_LOG",
    "SCMP_ACT_KILL",
    "SCMP_ACT_KILL_PROCESS",
    "SCMP_ACT_KILL_THREAD",
    "SCMP_ACT_TRAP",
];
const OPERATORS: [&str; 7] = [
    "SCMP_CMP_EQ",
    "SCMP_CMP_NE",
    "SCMP_CMP_LT",
    "SCMP_CMP_LE",
    "SCMP_CMP_GE",
    "SCMP_CMP_GT",
    "SCMP_CMP_MASKED_EQ",
];
/// Nothing but death would interrupt a call of circuits by it: decision 23.
const UNINTERRUPTED: &str = "SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV";
const FLAGS: [&str; 4] = [
    "SECCOMP_FILTER_FLAG_TSYNC",
    "SECCOMP_FILTER_FLAG_LOG",
    "SECCOMP_FILTER_FLAG_SPEC_ALLOW",
    UNINTERRUPTED,
];

/// What is done with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// One of those above.
    pub action: &'static str,
    /// What the call answers, or a tracer is told; none: what the runtime takes.
    pub errno: Option<u32>,
}

/// What an argument is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// Which argument.
    pub index: u64,
    /// How.
    pub operator: &'static str,
    /// With what; the mask where there is one.
    pub value: u64,
    /// What is to be under a mask.
    pub second: u64,
}

/// What is done with some calls, where all of this is so of their arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The calls.
    pub names: Vec<String>,
    /// What.
    pub verdict: Verdict,
    /// Of each argument one at most.
    pub args: Vec<Comparison>,
}

/// A profile.
#[derive(Debug, PartialEq, Eq)]
pub struct Profile {
    /// Of calls that no rule is about.
    pub by_default: Verdict,
    /// Flags of the filter, if it has a word about them.
    pub flags: Option<Vec<&'static str>>,
    /// The rules.
    pub rules: Vec<Rule>,
}

impl Verdict {
    /// Without a number of its own.
    pub const fn plain(action: &'static str) -> Verdict {
        Verdict {
            action,
            errno: None,
        }
    }

    fn of(action: &str, errno: Option<&Value>, place: &str) -> Result<Verdict, Wrong> {
        let action = known(action, &ACTIONS, place)?;
        let Some(errno) = errno else {
            return Ok(Verdict::plain(action));
        };
        if ![ERRNO, TRACE].contains(&action) {
            return Err(unlike(format!("{place}: {action} has no errno")));
        }
        // A filter has no more room for it.
        let errno = number(errno, u64::from(u16::MAX), place)?;
        let errno = errno.try_into().ok();
        Ok(Verdict { action, errno })
    }
}

impl Comparison {
    fn of(given: &Value, place: &str) -> Result<Comparison, Wrong> {
        let all = fields(given, &["index", "value", "valueTwo", "op"], place)?;
        let whole = |name: &str, most| number(needed(all, name, place)?, most, place);
        let second = given_of(all, "valueTwo").map(|it| number(it, u64::MAX, place));
        Ok(Comparison {
            index: whole("index", 5)?,
            operator: known(&text(all, "op", place)?, &OPERATORS, place)?,
            value: whole("value", u64::MAX)?,
            second: second.transpose()?.unwrap_or(0),
        })
    }

    /// As the specification has it.
    pub fn shown(&self) -> Value {
        json!({ "index": self.index, "value": self.value, "valueTwo": self.second, "op": self.operator })
    }
}

impl Rule {
    fn of(given: &Value, place: &str) -> Result<Rule, Wrong> {
        let all = fields(given, &["names", "action", "errnoRet", "args"], place)?;
        let names = list(all, "names", place)?.unwrap_or_default().iter();
        let names = names.map(|name| {
            let name = name.as_str().unwrap_or_default();
            let is_one = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
            match !name.is_empty() && name.bytes().all(is_one) {
                true => Ok(name.to_owned()),
                false => Err(unlike(format!("{place}: {name:?} is no call's name"))),
            }
        });
        let names: Vec<String> = names.collect::<Result<_, _>>()?;
        if names.is_empty() {
            return Err(unlike(format!("{place} names no call")));
        }
        let errno = given_of(all, "errnoRet");
        let verdict = Verdict::of(&text(all, "action", place)?, errno, place)?;
        let mut args: Vec<Comparison> = Vec::new();
        for arg in list(all, "args", place)?.unwrap_or_default() {
            let arg = Comparison::of(arg, place)?;
            let is_here = args.iter().any(|other| other.index == arg.index);
            // All of it is to be so, one would think. Runtimes make a rule of each of them then, also of those about
            // other arguments.
            if is_here && guard!("oci-argument-twice") {
                let what = format!(
                    "{place}: {} has a rule that says two things of argument {}",
                    names.join(", "),
                    arg.index
                );
                return Err(Wrong::new(what, "write a rule for each of them"));
            }
            args.push(arg);
        }
        Ok(Rule {
            names,
            verdict,
            args,
        })
    }

    /// As the specification has it.
    pub fn shown(&self) -> Value {
        let args: Vec<Value> = self.args.iter().map(Comparison::shown).collect();
        let mut rule = json!({ "names": self.names, "action": self.verdict.action, "args": args });
        if let (Some(errno), Some(rule)) = (self.verdict.errno, rule.as_object_mut()) {
            rule.insert("errnoRet".into(), json!(errno));
        }
        rule
    }
}

impl Profile {
    /// None: everything is permitted.
    pub fn of(given: Option<&Value>) -> Result<Profile, Wrong> {
        const PLACE: &str = "linux.seccomp";
        let Some(given) = given.filter(|it| !it.is_null()) else {
            return Ok(Profile {
                by_default: Verdict::plain(ALLOW),
                flags: None,
                rules: Vec::new(),
            });
        };
        let listener = ["listenerPath", "listenerMetadata"];
        if let Some(own) = listener.iter().find(|name| given.get(name).is_some()) {
            return Err(Wrong::new(
                format!("its seccomp profile has a {own} of its own"),
                "a container has one listener, and its endpoint's is the operator's: take that and all SCMP_ACT_NOTIFY out",
            ));
        }
        let all = fields(
            given,
            &[
                "defaultAction",
                "defaultErrnoRet",
                // Those that a container of circuits has are ours.
                "architectures",
                "flags",
                "syscalls",
            ],
            PLACE,
        )?;
        let errno = given_of(all, "defaultErrnoRet");
        let by_default = Verdict::of(&text(all, "defaultAction", PLACE)?, errno, PLACE)?;
        let flags = list(all, "flags", PLACE)?.map(|flags| {
            let flags = flags.iter().map(|flag| {
                let flag = flag.as_str().unwrap_or_default();
                known(flag, &FLAGS, PLACE)
            });
            let left = flags.filter(|flag| *flag != Ok(UNINTERRUPTED));
            left.collect::<Result<Vec<_>, _>>()
        });
        let rules = list(all, "syscalls", PLACE)?.unwrap_or_default().iter();
        let rules = rules
            .enumerate()
            .map(|(at, rule)| Rule::of(rule, &format!("{PLACE}.syscalls[{at}]")));
        let profile = Profile {
            by_default,
            flags: flags.transpose()?,
            rules: rules.collect::<Result<_, _>>()?,
        };
        let rules = profile.rules.iter().map(|rule| rule.verdict);
        if rules.chain([by_default]).any(|it| it.action == NOTIFY) {
            return Err(Wrong::new(
                "its seccomp profile notifies calls to somebody (SCMP_ACT_NOTIFY)",
                "a container has one listener, and its endpoint's is the operator's: take these out",
            ));
        }
        Ok(profile)
    }
}

/// Its parts, all of which are called so.
fn fields<'a>(
    given: &'a Value,
    names: &[&str],
    place: &str,
) -> Result<&'a Map<String, Value>, Wrong> {
    let all = given.as_object();
    let all = all.ok_or_else(|| unlike(format!("{place} is no object")))?;
    match all.keys().find(|name| !names.contains(&name.as_str())) {
        None => Ok(all),
        Some(name) => Err(unlike(format!("{place} has a {name:?}"))),
    }
}

/// A part that may be left out.
fn given_of<'a>(all: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    all.get(name).filter(|it| !it.is_null())
}

fn needed<'a>(all: &'a Map<String, Value>, name: &str, place: &str) -> Result<&'a Value, Wrong> {
    given_of(all, name).ok_or_else(|| unlike(format!("{place} lacks {name}")))
}

fn text(all: &Map<String, Value>, name: &str, place: &str) -> Result<String, Wrong> {
    let text = needed(all, name, place)?.as_str();
    let text = text.ok_or_else(|| unlike(format!("{place}: {name} is no string")))?;
    Ok(text.to_owned())
}

fn list<'a>(
    all: &'a Map<String, Value>,
    name: &str,
    place: &str,
) -> Result<Option<&'a [Value]>, Wrong> {
    let list = given_of(all, name).map(|it| {
        let list = it.as_array().map(Vec::as_slice);
        list.ok_or_else(|| unlike(format!("{place}: {name} is no list")))
    });
    list.transpose()
}

fn number(given: &Value, most: u64, place: &str) -> Result<u64, Wrong> {
    let number = given.as_u64().filter(|number| *number <= most);
    number.ok_or_else(|| unlike(format!("{place}: {given} is no whole number up to {most}")))
}

fn known(word: &str, all: &[&'static str], place: &str) -> Result<&'static str, Wrong> {
    let one = all.iter().copied().find(|one| *one == word);
    one.ok_or_else(|| unlike(format!("{place}: {word:?} is not known")))
}

fn unlike(what: String) -> Wrong {
    Wrong::new(
        what,
        "a seccomp profile is as the OCI runtime specification has it, and nothing else is in it",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(rule: Value) -> Result<Profile, Wrong> {
        let rules = json!([{ "names": ["read"], "action": ALLOW }, rule]);
        Profile::of(Some(&json!({ "defaultAction": ERRNO, "syscalls": rules })))
    }

    fn of_args(args: Value) -> Result<Profile, Wrong> {
        with(json!({ "names": ["socket"], "action": ALLOW, "args": args }))
    }

    #[test]
    fn profiles_of_engines_are_understood() {
        // As Podman and Docker write theirs into a bundle.
        let given = json!({
            "defaultAction": ERRNO, "defaultErrnoRet": 38,
            "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
            "flags": ["SECCOMP_FILTER_FLAG_LOG", UNINTERRUPTED],
            "syscalls": [
                { "names": ["bdflush", "_llseek"], "action": ERRNO, "errnoRet": 1 },
                { "names": ["personality"], "action": ALLOW, "args": [{ "index": 0, "value": 131_080, "op": "SCMP_CMP_EQ" }] },
                { "names": ["clone"], "action": ALLOW, "args": [
                    { "index": 0, "value": 2_114_060_288, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ" }] },
                { "names": ["socket"], "action": ERRNO, "errnoRet": 22, "args": [
                    { "index": 0, "value": 16, "op": "SCMP_CMP_EQ" }, { "index": 2, "value": 9, "op": "SCMP_CMP_EQ" }] },
                { "names": ["mkdir"], "action": ALLOW, "args": null },
            ],
        });
        let profile = Profile::of(Some(&given)).unwrap();
        assert_eq!(profile.flags, Some(vec!["SECCOMP_FILTER_FLAG_LOG"]));
        let errno = Some(38);
        let action = ERRNO;
        assert_eq!(profile.by_default, Verdict { action, errno });
        let socket = json!({ "names": ["socket"], "action": ERRNO, "errnoRet": 22, "args": [
            { "index": 0, "value": 16, "valueTwo": 0, "op": "SCMP_CMP_EQ" },
            { "index": 2, "value": 9, "valueTwo": 0, "op": "SCMP_CMP_EQ" }] });
        assert_eq!(profile.rules[3].shown(), socket);
        let again: Vec<Value> = profile.rules.iter().map(Rule::shown).collect();
        let again = json!({ "defaultAction": ERRNO, "syscalls": again });
        assert_eq!(Profile::of(Some(&again)).unwrap().rules, profile.rules);
    }

    #[test]
    fn a_rule_says_one_thing_of_an_argument() {
        let is =
            |index: u64, value: u64| json!({ "index": index, "value": value, "op": "SCMP_CMP_EQ" });
        assert!(of_args(json!([is(0, 1), is(5, 0)])).is_ok());
        // Either of them would do for a runtime, whatever the first one says.
        let wrong = of_args(json!([is(0, 1), is(5, 0), is(5, 1)])).unwrap_err();
        assert!(wrong.what.contains("syscalls[1]: socket has a rule"));
        assert!(wrong.what.contains("two things of argument 5"));
    }

    #[test]
    fn what_is_not_understood_of_a_profile_is_refused() {
        for arg in [
            // Which is argument 0 to runtimes.
            json!({ "value": 2, "op": "SCMP_CMP_EQ" }),
            json!({ "index": null, "value": 2, "op": "SCMP_CMP_EQ" }),
            json!({ "index": 6, "value": 2, "op": "SCMP_CMP_EQ" }),
            json!({ "index": -1, "value": 2, "op": "SCMP_CMP_EQ" }),
            json!({ "index": 0.0, "value": 2, "op": "SCMP_CMP_EQ" }),
            json!({ "index": "0", "value": 2, "op": "SCMP_CMP_EQ" }),
            json!({ "index": 0, "value": 1e30, "op": "SCMP_CMP_EQ" }),
            json!({ "index": 0, "op": "SCMP_CMP_EQ" }),
            json!({ "index": 0, "value": 2 }),
            json!({ "index": 0, "value": 2, "op": "EQ" }),
            json!({ "index": 0, "value": 2, "op": "SCMP_CMP_EQ\0" }),
            // The same name to one that is written in Go.
            json!({ "index": 0, "value": 2, "valuetwo": 3, "op": "SCMP_CMP_MASKED_EQ" }),
            json!(2),
        ] {
            assert!(of_args(json!([arg])).is_err(), "{arg}");
        }
        assert!(of_args(json!({})).is_err() && of_args(json!("")).is_err());
        for rule in [
            json!({ "names": ["socket"], "action": "SCMP_ACT_ALLOW\0" }),
            json!({ "names": ["socket"], "action": "ALLOW" }),
            json!({ "names": ["socket"], "action": "" }),
            json!({ "names": ["socket"] }),
            json!({ "names": ["socket\0"], "action": ALLOW }),
            json!({ "names": ["Socket"], "action": ALLOW }),
            json!({ "names": [2], "action": ALLOW }),
            json!({ "names": [], "action": ALLOW }),
            json!({ "names": "socket", "action": ALLOW }),
            json!({ "name": "socket", "action": ALLOW }),
            json!({ "names": ["socket"], "action": ALLOW, "excludes": { "caps": ["CAP_CHOWN"] } }),
            json!({ "names": ["socket"], "action": ALLOW, "errnoRet": 1 }),
            json!({ "names": ["socket"], "action": ERRNO, "errnoRet": 65_536 }),
            json!(["socket"]),
        ] {
            assert!(with(rule.clone()).is_err(), "{rule}");
        }
        for profile in [
            // Which is no filter at all to runc.
            json!({ "defaultAction": "" }),
            json!({ "defaultAction": "SCMP_ACT_ALLOW\0" }),
            json!({ "defaultAction": "SCMP_ACT_NOTIFY" }),
            json!({}),
            json!([]),
            json!({ "defaultAction": ALLOW, "flags": ["SECCOMP_FILTER_FLAG_NEW_LISTENER"] }),
            json!({ "defaultAction": ALLOW, "flags": UNINTERRUPTED }),
            json!({ "defaultAction": ALLOW, "listenerMetadata": "" }),
            json!({ "defaultAction": ALLOW, "archMap": [] }),
            json!({ "defaultAction": ALLOW, "syscalls": {} }),
        ] {
            assert!(Profile::of(Some(&profile)).is_err(), "{profile}");
        }
        let unknown = with(json!({ "names": ["socket"], "action": "SCMP_ACT_ALOW" })).unwrap_err();
        assert!(
            unknown.what.contains("\"SCMP_ACT_ALOW\" is not known"),
            "{unknown:?}"
        );
    }
}
