//! A bundle's config.json: whose namespaces it joins, and by which filter it runs.

use super::profile;
use confine::cgroup::{LEAF, PARENT};
use guard::guard;
use notify::Ids;
use serde_json::{Map, Value, json};
use std::path::PathBuf;

/// What is wrong with a bundle, and what to do.
#[derive(Debug, PartialEq, Eq)]
pub struct Wrong {
    /// What.
    pub what: String,
    /// What to do.
    pub advice: &'static str,
}

impl Wrong {
    /// Both.
    pub fn new(what: impl Into<String>, advice: &'static str) -> Wrong {
        let what = what.into();
        Wrong { what, advice }
    }
}

/// Where a container is to be.
pub struct Place {
    /// Its endpoint.
    pub endpoint: String,
    /// Where its operator hears of it.
    pub listener: PathBuf,
    /// The user namespace, as a path.
    pub user: String,
    /// The network namespace.
    pub network: String,
    /// The ids that there are in the user namespace.
    pub users: Value,
    /// The group ids.
    pub groups: Value,
    /// What nobody can know before.
    pub chance: u128,
}

/// Under this name a bundle keeps what was replaced in it. Runtimes ignore names that they do
/// not know.
const KEPT: &str = "bulkhead";
/// And under this one there, by what.
const OURS: &str = "by";
/// What is replaced, of `linux`.
const REPLACED: [&str; 4] = ["namespaces", "uidMappings", "gidMappings", "seccomp"];

/// The bundle as its maker wrote it: what an earlier run has replaced is put back, unless somebody
/// changed it since.
pub fn original(mut config: Value) -> Value {
    let kept = config.as_object_mut().and_then(|all| all.remove(KEPT));
    if let (Some(Value::Object(mut kept)), Some(linux)) = (kept, linux(&mut config)) {
        let ours = kept.remove(OURS).unwrap_or_default();
        for name in REPLACED {
            if linux.get(name) != ours.get(name) {
                continue;
            }
            match kept.remove(name) {
                Some(was) => linux.insert(name.into(), was),
                None => linux.remove(name),
            };
        }
    }
    config
}

/// Annotations by which crun does something else than the bundle says begin so.
const OF_CRUN: &str = "run.oci.";
/// Those of them that leave filter, namespaces and descriptors alone.
const HARMLESS: [&str; 6] = [
    "run.oci.delegate-cgroup",
    "run.oci.keep_original_groups",
    "run.oci.mount_context_type",
    "run.oci.systemd.force_cgroup_v1",
    "run.oci.systemd.subgroup",
    "run.oci.timens_offset",
];

/// Nothing in it has the runtime take another filter than the bundle's, or hand descriptors elsewhere.
pub fn asks_nothing_more(config: &Value) -> Result<(), Wrong> {
    let all = config.pointer("/annotations").and_then(Value::as_object);
    let mut names = all.into_iter().flat_map(Map::keys);
    let asks = |name: &&String| name.starts_with(OF_CRUN) && !HARMLESS.contains(&name.as_str());
    match names.find(asks) {
        None => Ok(()),
        Some(name) => Err(Wrong::new(
            format!("the annotation {name} has the runtime do something else than the bundle says"),
            "take it out: a container of circuits runs under the bundle's filter alone",
        )),
    }
}

/// Where its control group is said to be: beside `linux.cgroupsPath`, by annotations, below that.
const OF_GROUPS: [&str; 2] = ["run.oci.systemd.subgroup", "run.oci.delegate-cgroup"];

/// Its control group is none of Bulkhead's, nor below one: its limits would be those of a tenant's switch or operators, and what
/// it uses on their account. All of them have one of two names above them, wherever Bulkhead was started, and no path
/// comes there that has neither of them nor `..`. Of the form for systemd (`slice:prefix:name`) each step is a slice's
/// or a scope's name, which these are not.
pub fn has_a_group_of_its_own(config: &Value) -> Result<(), Wrong> {
    let annotation = |name: &&str| config.pointer("/annotations")?.get(*name);
    let paths = config.pointer("/linux/cgroupsPath").into_iter();
    let paths = paths.chain(OF_GROUPS.iter().filter_map(annotation));
    let paths: Vec<&str> = paths.filter_map(Value::as_str).collect();
    let is_bad = |step: &str| [PARENT, LEAF, ".."].contains(&step);
    match paths.iter().find(|path| path.split('/').any(is_bad)) {
        Some(path) if guard!("oci-group") => Err(Wrong::new(
            format!("its control group {path:?} is one of Bulkhead's, or may be"),
            "give it one elsewhere, by a path without `..`, `bulkhead` and `bulkhead-control`, or none (linux.cgroupsPath)",
        )),
        _ => Ok(()),
    }
}

/// What is looked at and replaced, by its names.
const NAMES: [&str; 28] = [
    "annotations",
    "linux",
    "cgroupsPath",
    "namespaces",
    "type",
    "path",
    "uidMappings",
    "gidMappings",
    "containerID",
    "hostID",
    "size",
    "seccomp",
    "defaultAction",
    "defaultErrnoRet",
    "architectures",
    "flags",
    "listenerPath",
    "listenerMetadata",
    "syscalls",
    "names",
    "name",
    "action",
    "errnoRet",
    "args",
    "index",
    "op",
    "value",
    "valueTwo",
];

/// Every runtime finds in it what is found here. Those in C end a name and a text at a NUL; those in Go take a name of other
/// letters for the same (`Seccomp`, and with U+017F `ſeccomp`).
pub fn is_read_alike(config: &Value) -> Result<(), Wrong> {
    match with_nul(config) {
        Some(text) if guard!("oci-nul") => Err(Wrong::new(
            format!("runtimes read {text:?}, in which there is a NUL, in different ways"),
            "write it without, or take it out",
        )),
        _ => has_names_alike(config),
    }
}

/// A name or a text with a NUL, wherever it is.
fn with_nul(config: &Value) -> Option<&str> {
    let is_one = |text: &&String| text.contains('\0');
    match config {
        Value::String(text) => Some(text).filter(is_one).map(String::as_str),
        Value::Array(all) => all.iter().find_map(with_nul),
        Value::Object(all) => {
            let name = all.keys().find(is_one).map(String::as_str);
            name.or_else(|| all.values().find_map(with_nul))
        }
        _ => None,
    }
}

fn has_names_alike(config: &Value) -> Result<(), Wrong> {
    let is_one = |name: &str| {
        let other = |of: &str| of.eq_ignore_ascii_case(name) && of != name;
        !name.is_ascii() || NAMES.iter().any(|of| other(of))
    };
    match config {
        Value::Object(all) => {
            if let Some(name) = all.keys().find(|name| is_one(name)) {
                return Err(Wrong::new(
                    format!("runtimes read the name {name:?} in different ways"),
                    "write it as the runtime specification does, or take it out",
                ));
            }
            // What these are called is their maker's matter.
            let free = ["annotations", "sysctl", "unified"];
            let mut parts = all
                .iter()
                .filter(|(name, _)| !free.contains(&name.as_str()));
            parts.try_for_each(|(_, part)| has_names_alike(part))
        }
        Value::Array(all) => all.iter().try_for_each(has_names_alike),
        _ => Ok(()),
    }
}

fn linux(config: &mut Value) -> Option<&mut Map<String, Value>> {
    config.get_mut("linux")?.as_object_mut()
}

/// The user and group ids that its maker wants inside; none: all that there are.
pub fn ids(config: &Value) -> Result<(Vec<Ids>, Vec<Ids>), Wrong> {
    let of = |name: &str| {
        let rows = config.pointer("/linux").and_then(|linux| linux.get(name));
        let rows = rows
            .and_then(Value::as_array)
            .map_or(&[][..], Vec::as_slice);
        let number = |row: &Value, name: &str| row.get(name)?.as_u64()?.try_into().ok();
        let ids = rows.iter().map(|row| {
            Some(Ids {
                first: number(row, "containerID")?,
                outside: number(row, "hostID")?,
                count: number(row, "size")?,
            })
        });
        ids.collect::<Option<Vec<Ids>>>().ok_or_else(|| {
            Wrong::new(
                format!("linux.{name} has what is no mapping"),
                "a mapping has the numbers containerID, hostID and size",
            )
        })
    };
    let (users, groups) = (of("uidMappings")?, of("gidMappings")?);
    let is_own = |ids: &Ids| {
        let end = u64::from(ids.outside) + u64::from(ids.count);
        ids.outside < notify::OWN.end && end > u64::from(notify::OWN.start)
    };
    if users.iter().chain(&groups).any(is_own) {
        return Err(Wrong::new(
            "it maps ids of Bulkhead's own processes",
            "hostID from 1879048192 to 2147352575 is nobody else's: map others",
        ));
    }
    if users.is_empty() != groups.is_empty() {
        return Err(Wrong::new(
            "users are mapped and groups are not, or the other way round",
            "map both, by linux.uidMappings and linux.gidMappings, or neither",
        ));
    }
    Ok((users, groups))
}

/// Has a container be at its place.
pub fn merge(config: &mut Value, place: &Place) -> Result<(), Wrong> {
    let Some(linux) = linux(config) else {
        return Err(Wrong::new(
            "there is no `linux` in it",
            "it is to be a Linux container's: `crun spec` writes one",
        ));
    };
    let kept = REPLACED.iter().filter_map(|name| {
        let was = linux.get(*name)?.clone();
        Some(((*name).to_owned(), was))
    });
    let mut kept: Map<String, Value> = kept.collect();
    let namespaces = namespaces(linux.get("namespaces"), place)?;
    let seccomp = profile::merged(linux.get("seccomp"), place)?;
    linux.insert("namespaces".into(), namespaces);
    linux.insert("uidMappings".into(), place.users.clone());
    linux.insert("gidMappings".into(), place.groups.clone());
    linux.insert("seccomp".into(), seccomp);
    let ours = REPLACED
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), linux.get(*name)?.clone())));
    kept.insert(OURS.into(), Value::Object(ours.collect()));
    if let Some(all) = config.as_object_mut() {
        all.insert(KEPT.into(), Value::Object(kept));
    }
    Ok(())
}

/// Kinds of namespaces that circuits leave alone.
const OTHERS: [&str; 6] = ["pid", "mount", "ipc", "uts", "cgroup", "time"];

/// Those that it has, with ours. One of another's has another owner, or packets.
fn namespaces(before: Option<&Value>, place: &Place) -> Result<Value, Wrong> {
    let before = before
        .and_then(Value::as_array)
        .map_or(&[][..], Vec::as_slice);
    let kind = |row: &Value| {
        row.get("type")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let mut after = Vec::new();
    for row in before {
        let joins = row.get("path").and_then(Value::as_str).unwrap_or_default();
        match (kind(row).as_str(), joins) {
            ("user" | "network", "") => {}
            ("network", path) => {
                return Err(Wrong::new(
                    format!("it joins the network namespace {path}"),
                    "its only network is its endpoint's circuits (podman: --network none; no pod)",
                ));
            }
            ("user", path) => {
                return Err(Wrong::new(
                    format!("it joins the user namespace {path}"),
                    "its user namespace is its operator's: say which ids it has by linux.uidMappings and \
                     linux.gidMappings (podman: --uidmap, --gidmap)",
                ));
            }
            (kind, _) if OTHERS.contains(&kind) => after.push(row.clone()),
            (kind, _) => {
                return Err(Wrong::new(
                    format!("{kind:?} is no kind of namespace"),
                    "write it as the runtime specification does, or take it out",
                ));
            }
        }
    }
    after.push(json!({ "type": "user", "path": place.user }));
    after.push(json!({ "type": "network", "path": place.network }));
    Ok(Value::Array(after))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Place {
        Place {
            endpoint: "red/app".into(),
            listener: PathBuf::from("/l"),
            user: "/u".into(),
            network: "/n".into(),
            users: json!([{ "containerID": 0, "hostID": 0, "size": 1 }]),
            groups: json!([{ "containerID": 0, "hostID": 0, "size": 1 }]),
            chance: 7,
        }
    }

    #[test]
    fn ids_of_ours_are_no_containers() {
        let of = |outside: u32, size: u32| {
            let rows = json!([{ "containerID": 0, "hostID": outside, "size": size }]);
            ids(&json!({ "linux": { "uidMappings": rows, "gidMappings": rows } }))
        };
        assert!(of(100_000, 65_536).is_ok() && of(0x6fff_0000, 65_536).is_ok());
        for (outside, size) in [(0x7000_0000, 1), (0, u32::MAX), (0x7ffd_ffff, 9)] {
            assert!(of(outside, size).is_err(), "{outside}");
        }
    }

    #[test]
    fn what_a_runtime_might_read_otherwise_is_refused() {
        let good = json!({
            "annotations": { "Seccomp": "ſ", "run.oci.systemd.subgroup": "x" },
            "linux": { "sysctl": { "Net.x": "1" }, "seccomp": { "syscalls": [{ "names": ["x"] }] } },
            "process": { "args": ["ſ"] },
        });
        assert_eq!(is_read_alike(&good), Ok(()));
        assert_eq!(asks_nothing_more(&good), Ok(()));
        for bad in [
            json!({ "Linux": {} }),
            json!({ "linux": { "nameſpaces": [] } }),
            json!({ "linux": { "Seccomp": {} } }),
            json!({ "linux": { "seccomp": { "syscalls": [{ "NAMES": ["x"] }] } } }),
            json!({ "linux": { "namespaces": [{ "Path": "/x" }] } }),
            json!({ "linux": { "cgroupspath": "/x" } }),
        ] {
            assert!(is_read_alike(&bad).is_err(), "{bad}");
        }
        for name in [
            "run.oci.seccomp_bpf_data",
            "run.oci.seccomp.receiver",
            "run.oci.handler",
        ] {
            let bad = json!({ "annotations": { name: "x" } });
            assert!(asks_nothing_more(&bad).is_err(), "{name}");
        }
    }

    #[test]
    fn a_text_that_ends_early_for_some_is_refused_wherever_it_is() {
        for bad in [
            json!({ "linux": { "seccomp": { "defaultAction": "SCMP_ACT_ALLOW\0" } } }),
            json!({ "linux": { "namespaces": [{ "type": "network\0", "path": "/x" }] } }),
            json!({ "linux": { "cgroupsPath\0": "/x" } }),
            json!({ "linux": { "sysctl": { "net.x\0": "1" } } }),
            json!({ "annotations": { "run.oci.systemd.subgroup\0": "x" } }),
            json!({ "annotations": { "x": { "y": ["z\0"] } } }),
            json!({ "process": { "env": ["A=b", "C=\0"] } }),
        ] {
            let wrong = is_read_alike(&bad).unwrap_err();
            assert!(wrong.what.contains("there is a NUL"), "{bad}: {wrong:?}");
        }
    }

    #[test]
    fn a_group_of_ours_is_no_containers() {
        let of = |path: &str| has_a_group_of_its_own(&json!({ "linux": { "cgroupsPath": path } }));
        for good in [
            "",
            "/web",
            "/libpod_parent/libpod-a..b",
            "/bulkheads/x/compartment-1-2",
            "machine.slice:libpod:web",
            "system.slice:bulkhead:web",
        ] {
            assert_eq!(of(good), Ok(()), "{good}");
        }
        for bad in [
            "/bulkhead/compartment-2099937280-2",
            "bulkhead/operators-2099937280",
            "/system.slice/bulkhead.service//./bulkhead/x",
            "/x/bulkhead-control",
            "/bulkhead",
            "/x/../bulkhead.service",
            "..",
        ] {
            assert!(of(bad).is_err(), "{bad}");
            for name in OF_GROUPS {
                let config = json!({ "annotations": { name: bad } });
                assert!(has_a_group_of_its_own(&config).is_err(), "{name}: {bad}");
            }
        }
        // As the supervisor makes them.
        assert_eq!([PARENT, LEAF], ["bulkhead", "bulkhead-control"]);
    }

    #[test]
    fn namespaces_of_kinds_that_are_not_known_are_refused() {
        let merged = |row: Value| {
            let mut config = json!({ "linux": { "namespaces": [row] } });
            merge(&mut config, &place())
        };
        for kind in OTHERS.iter().chain(&["user", "network"]) {
            assert_eq!(merged(json!({ "type": kind })), Ok(()), "{kind}");
        }
        for row in [
            json!({ "type": "net", "path": "/x" }),
            json!({ "path": "/x" }),
            json!("network"),
        ] {
            let wrong = merged(row.clone()).unwrap_err();
            assert!(wrong.what.contains("no kind of namespace"), "{row}");
        }
    }

    #[test]
    fn no_two_runs_have_the_same_profile() {
        let profile = |chance| {
            let mut config = json!({ "linux": {} });
            let place = Place { chance, ..place() };
            merge(&mut config, &place).unwrap();
            config["linux"]["seccomp"]["syscalls"].to_string()
        };
        assert_ne!(profile(1), profile(2));
        let rule = json!({ "names": ["bulkhead_000000000000000000000000000000ff"], "action": "SCMP_ACT_ALLOW", "args": [] });
        assert!(profile(255).contains(&rule.to_string()));
    }

    #[test]
    fn what_was_replaced_is_put_back_and_what_its_owner_changed_since_holds() {
        let maker = json!({ "linux": {
            "namespaces": [{ "type": "pid" }],
            "seccomp": { "defaultAction": "SCMP_ACT_ALLOW" },
        } });
        let mut config = maker.clone();
        merge(&mut config, &place()).unwrap();
        assert_eq!(original(config.clone()), maker);
        // Mapped, and with a stricter profile: both hold, and the rest is put back.
        let ids = json!([{ "containerID": 0, "hostID": 100_000, "size": 1000 }]);
        config["linux"]["uidMappings"] = ids.clone();
        config["linux"]["gidMappings"] = ids.clone();
        config["linux"]["seccomp"] = json!({ "defaultAction": "SCMP_ACT_ERRNO" });
        let before = original(config);
        assert_eq!(before["linux"]["uidMappings"], ids);
        assert_eq!(before["linux"]["gidMappings"], ids);
        assert_eq!(
            before["linux"]["seccomp"]["defaultAction"],
            "SCMP_ACT_ERRNO"
        );
        assert_eq!(before["linux"]["namespaces"], maker["linux"]["namespaces"]);
        assert_eq!(before.get(KEPT), None);
    }
}
