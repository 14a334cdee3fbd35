//! From nodes to typed values, collecting what is wrong on the way.

use core::str::FromStr;
use std::sync::Arc;

use crate::finding::Finding;
use crate::source::{Located, Source, Span};
use crate::tree::{Kind, Node};

/// Findings kept; of a bomb there would be millions.
const KEPT: usize = 4096;

/// Collects findings about one text.
pub(crate) struct Findings {
    pub source: Arc<Source>,
    pub list: Vec<Finding>,
}

/// Adds to the finding just made.
pub(crate) struct Last<'a>(&'a mut Finding);

impl Findings {
    pub fn new(source: Arc<Source>) -> Findings {
        Findings {
            source,
            list: Vec::new(),
        }
    }

    pub fn add(&mut self, code: &'static str, span: Span, message: impl Into<String>) -> Last<'_> {
        let finding = Finding {
            code,
            message: message.into(),
            help: String::new(),
            span,
            label: "here".into(),
            also: Vec::new(),
            source: self.source.clone(),
        };
        if self.list.len() >= KEPT {
            self.list.pop();
        }
        self.list.push(finding);
        let last = self.list.len() - 1;
        Last(&mut self.list[last])
    }
}

impl Last<'_> {
    pub fn help(self, text: impl Into<String>) -> Self {
        self.0.help = text.into();
        self
    }
    pub fn label(self, text: impl Into<String>) -> Self {
        self.0.label = text.into();
        self
    }
    pub fn also(self, span: Span, text: impl Into<String>) -> Self {
        // What stands nowhere cannot be shown.
        if span != Span::default() {
            self.0.also.push((span, text.into()));
        }
        self
    }
}

/// A type that a node can be read as. `None` = it cannot; findings say why.
pub(crate) trait Decode: Sized {
    fn decode(node: &Node, findings: &mut Findings) -> Option<Self>;
}

/// A type written as one word; its error is the sentence's end: "`x` is not ...".
pub(crate) trait Scalar: FromStr<Err = String> {
    /// What it is, with its article, e.g. "a MAC address".
    const WHAT: &'static str;
    /// How it is written.
    const EXAMPLE: &'static str;
}

pub(crate) fn scalar<T: Scalar>(node: &Node, findings: &mut Findings) -> Option<T> {
    let Kind::Scalar { text, .. } = &node.kind else {
        findings
            .add(
                "type",
                node.span,
                format!("expected {}, found {}", T::WHAT, node.describe()),
            )
            .help(format!("for example: {}", T::EXAMPLE));
        return None;
    };
    match T::from_str(text) {
        Ok(value) => Some(value),
        Err(why) => {
            let shown: String = text.chars().take(60).collect();
            findings
                .add(
                    "value",
                    node.span,
                    format!("`{shown}` is not {}: {why}", T::WHAT),
                )
                .help(format!("for example: {}", T::EXAMPLE));
            None
        }
    }
}

impl<T: Decode> Decode for Located<T> {
    fn decode(node: &Node, findings: &mut Findings) -> Option<Self> {
        T::decode(node, findings).map(|value| Located {
            value,
            span: node.span,
        })
    }
}

impl<T: Decode> Decode for Vec<T> {
    fn decode(node: &Node, findings: &mut Findings) -> Option<Self> {
        let Kind::Sequence(items) = &node.kind else {
            if node.is_null() {
                return Some(Vec::new());
            }
            findings
                .add(
                    "type",
                    node.span,
                    format!("expected a list, found {}", node.describe()),
                )
                .help("write `[a, b]`, or each item on a line of its own after `- `");
            return None;
        };
        Some(
            items
                .iter()
                .filter_map(|item| T::decode(item, findings))
                .collect(),
        )
    }
}

impl<T: Decode> Decode for Box<T> {
    fn decode(node: &Node, findings: &mut Findings) -> Option<Self> {
        T::decode(node, findings).map(Box::new)
    }
}

/// The entries of a mapping that is to become a `what`.
pub(crate) fn mapping<'a>(
    node: &'a Node,
    what: &str,
    known: &[&str],
    findings: &mut Findings,
) -> Option<&'a [(crate::tree::Key, Node)]> {
    let Kind::Mapping(entries) = &node.kind else {
        findings
            .add(
                "type",
                node.span,
                format!("expected {what} (a mapping), found {}", node.describe()),
            )
            .help(format!("its keys are: {}", known.join(", ")));
        return None;
    };
    for (key, _) in entries {
        if !known.contains(&key.text.as_str()) {
            let shown: String = key.text.chars().take(60).collect();
            let help = match nearest(&key.text, known) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("the keys of {what} are: {}", known.join(", ")),
            };
            findings
                .add(
                    "unknown-key",
                    key.span,
                    format!("`{shown}` is not a key of {what}"),
                )
                .label("unknown key")
                .help(help);
        }
    }
    Some(entries)
}

/// The known word that a mistyped one is nearest to, if it is near.
pub(crate) fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let word: Vec<char> = word.to_lowercase().chars().take(40).collect();
    let near = |k: &&'a str| (distance(&word, &k.chars().collect::<Vec<_>>()), *k);
    let (distance, best) = known.iter().map(near).min()?;
    (distance <= (best.len() / 3).max(1)).then_some(best)
}

/// Edits (insert, remove, replace, swap neighbours) from one word to the other.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let same = usize::from(a[i - 1] != b[j - 1]);
                let mut best = (rows[i - 1][j] + 1)
                    .min(rows[i][j - 1] + 1)
                    .min(rows[i - 1][j - 1] + same);
                if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                    best = best.min(rows[i - 2][j - 2] + 1);
                }
                best
            };
        }
    }
    rows[a.len()][b.len()]
}

/// A mapping with one known key that chooses what it is: `{tap: {...}}`.
pub(crate) fn choice<'a>(
    node: &'a Node,
    what: &str,
    known: &[&str],
    findings: &mut Findings,
) -> Option<(&'a str, &'a Node)> {
    let entries = mapping(node, what, known, findings)?;
    match entries {
        [(key, value)] if known.contains(&key.text.as_str()) => Some((key.text.as_str(), value)),
        [(_, _)] => None,
        _ => {
            findings
                .add(
                    "type",
                    node.span,
                    format!("{what} is one of: {}", known.join(", ")),
                )
                .help(format!(
                    "write exactly one of them{}",
                    // The one mixture that there is is written within the other.
                    match known.contains(&"circuits") {
                        true => "; both an interface and circuits: `veth: { circuits: {} }`, or `tap:` so",
                        false => "",
                    }
                ));
            None
        }
    }
}

/// A field's key: its name, or what is written where that is no identifier.
macro_rules! key {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $key:literal) => {
        $key
    };
}
pub(crate) use key;

/// Declares a mapping of the spec once: the struct, its reader and its JSON Schema.
/// `field as "other-word"` where the key is no identifier; `several` are one or more, or
/// left out.
macro_rules! model {
    (
        $(#[$meta:meta])*
        pub struct $name:ident as $what:literal {
            $(required { $($(#[$rm:meta])* $r:ident $(as $rk:literal)?: $rt:ty,)* })?
            $(optional { $($(#[$om:meta])* $o:ident $(as $ok:literal)?: $ot:ty,)* })?
            $(several { $($(#[$sm:meta])* $s:ident $(as $sk:literal)?: $st:ty,)* })?
            $(lists { $($(#[$lm:meta])* $l:ident: $lt:ty,)* })?
        }
    ) => {
        #[derive(Clone, Debug, PartialEq, serde::Serialize, schemars::JsonSchema)]
        #[schemars(deny_unknown_fields)]
        $(#[$meta])*
        pub struct $name {
            $($($(#[$rm])* $(#[serde(rename = $rk)])? pub $r: $rt,)*)?
            $($($(#[$om])* $(#[serde(rename = $ok)])? #[serde(skip_serializing_if = "Option::is_none")] #[schemars(default)] pub $o: Option<$ot>,)*)?
            $($($(#[$sm])* $(#[serde(rename = $sk)])? #[serde(skip_serializing_if = "crate::OneOrMore::is_none")] #[schemars(default)] pub $s: crate::OneOrMore<$st>,)*)?
            $($($(#[$lm])* #[serde(skip_serializing_if = "Vec::is_empty")] #[schemars(default)] pub $l: Vec<$lt>,)*)?
        }
        impl $name {
            /// Its keys, in order.
            pub(crate) const KEYS: &[&str] = &[
                $($(crate::decode::key!($r $($rk)?),)*)? $($(crate::decode::key!($o $($ok)?),)*)? $($(crate::decode::key!($s $($sk)?),)*)? $($(stringify!($l),)*)?
            ];
        }
        impl crate::decode::Decode for $name {
            fn decode(node: &crate::tree::Node, findings: &mut crate::decode::Findings) -> Option<Self> {
                let entries = crate::decode::mapping(node, $what, Self::KEYS, findings)?;
                let find = |key: &str| entries.iter().find(|(k, _)| k.text == key).map(|(_, node)| node);
                #[allow(unused_mut)]
                let mut whole = true;
                $($(
                    let $r: Option<$rt> = match find(crate::decode::key!($r $($rk)?)).filter(|n| !n.is_null()) {
                        Some(value) => crate::decode::Decode::decode(value, findings),
                        None => {
                            findings
                                .add("missing-key", node.span, format!("{} lacks its `{}`", $what, crate::decode::key!($r $($rk)?)))
                                .help(format!("add `{}: ...`", crate::decode::key!($r $($rk)?)));
                            None
                        }
                    };
                    whole &= $r.is_some();
                )*)?
                $($(
                    let $o: Option<$ot> = match find(crate::decode::key!($o $($ok)?)).filter(|n| !n.is_null()) {
                        Some(value) => crate::decode::Decode::decode(value, findings),
                        None => None,
                    };
                )*)?
                $($(
                    let $s: crate::OneOrMore<$st> = match find(crate::decode::key!($s $($sk)?)).filter(|n| !n.is_null()) {
                        Some(value) => crate::decode::Decode::decode(value, findings).unwrap_or_default(),
                        None => Default::default(),
                    };
                )*)?
                $($(
                    let $l: Vec<$lt> = match find(stringify!($l)) {
                        Some(value) => crate::decode::Decode::decode(value, findings).unwrap_or_default(),
                        None => Vec::new(),
                    };
                )*)?
                if !whole {
                    return None;
                }
                Some($name {
                    $($($r: $r?,)*)?
                    $($($o,)*)?
                    $($($s,)*)?
                    $($($l,)*)?
                })
            }
        }
    };
}
pub(crate) use model;

/// Declares a word out of a few: the enum, its reader, its text and its JSON Schema.
macro_rules! words {
    (
        $(#[$meta:meta])*
        pub enum $name:ident as $what:literal { $($(#[doc = $doc:literal])+ $variant:ident = $word:literal $(| $more:literal)*,)+ }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, schemars::JsonSchema)]
        pub enum $name { $($(#[doc = $doc])+ #[schemars(rename = $word)] $variant,)+ }
        impl $name {
            /// As it is written.
            pub const fn as_str(self) -> &'static str { match self { $($name::$variant => $word,)+ } }
        }
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> { s.serialize_str(self.as_str()) }
        }
        impl crate::decode::Decode for $name {
            fn decode(node: &crate::tree::Node, findings: &mut crate::decode::Findings) -> Option<Self> {
                const KNOWN: &[&str] = &[$($word,)+];
                if let crate::tree::Kind::Scalar { text, .. } = &node.kind {
                    match text.as_str() {
                        $($word $(| $more)* => return Some($name::$variant),)+
                        other => {
                            let shown: String = other.chars().take(60).collect();
                            let help = match crate::decode::nearest(other, KNOWN) {
                                Some(near) => format!("did you mean `{near}`?"),
                                None => format!("it is one of: {}", KNOWN.join(", ")),
                            };
                            findings.add("value", node.span, format!("`{shown}` is not {}", $what)).help(help);
                            return None;
                        }
                    }
                }
                findings
                    .add("type", node.span, format!("expected {}, found {}", $what, node.describe()))
                    .help(format!("it is one of: {}", KNOWN.join(", ")));
                None
            }
        }
    };
}
pub(crate) use words;
