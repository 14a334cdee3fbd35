//! A bundle's config.json: whose namespaces it joins, and by which filter it runs.

use super::profile;
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
            _ => after.push(row.clone()),
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
        }
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
