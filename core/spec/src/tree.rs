//! YAML text to a tree of nodes with places, within budgets.
//!
//! An event parser rather than a deserializer into types, because a deserializer
//! stops at the first error, and a person wants them all.

use std::collections::HashMap;

use granit_parser::{Event, Options, Parser, ScalarStyle};
use guard::guard;

use crate::decode::Findings;
use crate::source::Span;

/// Most nodes a spec may have once its aliases are written out: 16 Ki endpoints
/// take about 500,000. A bomb of aliases is refused before it is expanded.
pub const MAX_NODES: usize = 1 << 20;
/// Most keys in one mapping; the schema's largest has 13.
const MAX_KEYS: usize = 256;
/// Deepest nesting, aliases written out; the schema itself needs 8.
pub const MAX_DEPTH: usize = 32;

/// A node of the tree.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub span: Span,
    pub kind: Kind,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// A scalar; `plain` = written without quotes.
    Scalar {
        text: String,
        plain: bool,
    },
    Sequence(Vec<Node>),
    Mapping(Vec<(Key, Node)>),
}

#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub text: String,
    pub span: Span,
}

impl Node {
    /// Whether it says "nothing": `null`, `~` or an empty plain scalar.
    pub fn is_null(&self) -> bool {
        matches!(&self.kind, Kind::Scalar { text, plain: true } if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }

    pub fn describe(&self) -> &'static str {
        match &self.kind {
            _ if self.is_null() => "nothing",
            Kind::Scalar { .. } => "a single value",
            Kind::Sequence(_) => "a list",
            Kind::Mapping(_) => "a mapping",
        }
    }
}

/// A node under construction.
struct Open {
    span: Span,
    anchor: usize,
    kind: Kind,
    /// Mapping: a key that waits for its value.
    key: Option<Key>,
    /// Nodes in it and the levels below it, so far.
    size: usize,
    height: usize,
}

/// A finished node that an alias may name.
struct Anchored {
    node: Node,
    size: usize,
    height: usize,
}

/// Reads one document. `None` = so broken that there is no tree; findings say why.
///
/// The text begins at byte `base` of what the findings are about; `most` nodes at most.
pub(crate) fn read(text: &str, base: u32, most: usize, findings: &mut Findings) -> Option<Node> {
    let mut options = Options::default();
    options.flow_nesting_limit = MAX_DEPTH;
    options.block_nesting_limit = MAX_DEPTH;
    let parser = Parser::new_from_str_with_options(text, options);
    let mut reader = Reader {
        open: Vec::new(),
        anchors: HashMap::new(),
        nodes: 0,
        most,
        root: None,
    };
    let mut documents = 0;
    // Bounded by the text's length: each event consumes of it, aliases by MAX_NODES.
    for next in parser {
        let (event, span) = match next {
            Ok(next) => next,
            Err(error) => {
                let at = error
                    .marker()
                    .byte_offset()
                    .map_or(text.len() as u32, |b| b as u32)
                    + base;
                findings
                    .add(
                        "yaml",
                        Span { start: at, end: at },
                        format!("this is not YAML: {}", error.info()),
                    )
                    .label("here")
                    .help("check the indentation, colons and quotes around this place");
                return None;
            }
        };
        let range = span.byte_range().unwrap_or(0..0);
        let span = Span {
            start: range.start as u32 + base,
            end: range.end as u32 + base,
        };
        if let Event::DocumentStart(..) = event {
            documents += 1;
            if documents > 1 {
                findings
                    .add(
                        "yaml-documents",
                        span,
                        "a spec is one YAML document; a second one starts here",
                    )
                    .help("put it in a file of its own");
                return None;
            }
        }
        if !reader.event(event, span, findings) {
            return None;
        }
    }
    if reader.root.as_ref().is_none_or(Node::is_null) {
        findings
            .add("empty", Span { start: base, end: base }, "the spec is empty")
            .help("start with `version: 1` and a list of `tenants`; examples/reference.yaml shows every key");
        return None;
    }
    reader.root
}

struct Reader {
    open: Vec<Open>,
    anchors: HashMap<usize, Anchored>,
    nodes: usize,
    most: usize,
    root: Option<Node>,
}

impl Reader {
    /// Takes one event; `false` = stop here.
    fn event(&mut self, event: Event<'_>, span: Span, findings: &mut Findings) -> bool {
        let custom = event.tag().is_some_and(|tag| !tag.is_yaml_core_schema());
        if custom {
            findings
                .add("yaml-tag", span, "a spec has no use for YAML tags")
                .help("remove the word that starts with an exclamation mark");
        }
        match event {
            Event::Scalar(text, style, anchor, _) => {
                if !self.count(1, span, findings) {
                    return false;
                }
                let plain = style == ScalarStyle::Plain;
                let node = Node {
                    span,
                    kind: Kind::Scalar {
                        text: text.into_owned(),
                        plain,
                    },
                };
                self.finish(node, anchor, 1, 0, findings)
            }
            Event::SequenceStart(_, anchor, _) => {
                self.begin(Kind::Sequence(Vec::new()), anchor, span, findings)
            }
            Event::MappingStart(_, anchor, _) => {
                self.begin(Kind::Mapping(Vec::new()), anchor, span, findings)
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(mut open) = self.open.pop() else {
                    return true;
                };
                open.span.end = span.end.max(open.span.start);
                if !self.count(1, open.span, findings) {
                    return false;
                }
                if let Kind::Mapping(entries) = &mut open.kind {
                    merge(entries);
                }
                let node = Node {
                    span: open.span,
                    kind: open.kind,
                };
                self.finish(node, open.anchor, open.size + 1, open.height + 1, findings)
            }
            Event::Alias(anchor) => {
                let Some(target) = self.anchors.get(&anchor) else {
                    findings
                        .add(
                            "yaml-alias",
                            span,
                            "this alias names a node that it stands in itself",
                        )
                        .help("an alias can only repeat what ends before it");
                    return false;
                };
                let (size, height) = (target.size, target.height);
                let deep = guard!("spec-alias-depth") && self.open.len() + height > MAX_DEPTH;
                if self.nodes + size > self.most || deep {
                    findings
                        .add("yaml-bomb", span, format!("with its aliases written out the spec would have more than {} values or {MAX_DEPTH} levels", self.most))
                        .label("this alias goes beyond")
                        .help("use fewer aliases of aliases");
                    return false;
                }
                let mut node = target.node.clone();
                node.span = span;
                self.nodes += size;
                self.finish(node, 0, size, height, findings)
            }
            _ => true,
        }
    }

    fn begin(&mut self, kind: Kind, anchor: usize, span: Span, findings: &mut Findings) -> bool {
        if self.open.len() >= MAX_DEPTH {
            findings
                .add(
                    "yaml-depth",
                    span,
                    format!("nested more than {MAX_DEPTH} levels deep"),
                )
                .help("a spec needs no more than 8");
            return false;
        }
        self.open.push(Open {
            span,
            anchor,
            kind,
            key: None,
            size: 0,
            height: 0,
        });
        true
    }

    /// Counts nodes held in memory; `false` = over the budget.
    fn count(&mut self, nodes: usize, span: Span, findings: &mut Findings) -> bool {
        self.nodes += nodes;
        if self.nodes > self.most {
            findings
                .add(
                    "yaml-size",
                    span,
                    format!("the spec has more than {} values", self.most),
                )
                .help("1,000 endpoints take about 30,000: is this the right file?");
        }
        self.nodes <= self.most
    }

    /// Puts a finished node where it belongs. `size` and `height`: its nodes and levels.
    fn finish(
        &mut self,
        node: Node,
        anchor: usize,
        size: usize,
        height: usize,
        findings: &mut Findings,
    ) -> bool {
        if anchor != 0 {
            if !self.count(size, node.span, findings) {
                return false;
            }
            self.anchors.insert(
                anchor,
                Anchored {
                    node: node.clone(),
                    size,
                    height,
                },
            );
        }
        let Some(parent) = self.open.last_mut() else {
            self.root = Some(node);
            return true;
        };
        parent.size += size;
        parent.height = parent.height.max(height);
        match &mut parent.kind {
            Kind::Sequence(items) => items.push(node),
            Kind::Mapping(entries) => match parent.key.take() {
                Some(key) if entries.len() >= MAX_KEYS => {
                    findings
                        .add(
                            "yaml-size",
                            key.span,
                            format!("a mapping with more than {MAX_KEYS} keys"),
                        )
                        .help("is a list meant? Its items start with `- `");
                    return false;
                }
                Some(key) => {
                    if let Some((first, _)) = entries.iter().find(|(k, _)| k.text == key.text) {
                        findings
                            .add(
                                "duplicate-key",
                                key.span,
                                format!("`{}` is given twice", key.text),
                            )
                            .label("again here")
                            .also(first.span, "first here")
                            .help("remove one of the two");
                    } else {
                        entries.push((key, node));
                    }
                }
                None => match node.kind {
                    Kind::Scalar { text, .. } => {
                        parent.key = Some(Key {
                            text,
                            span: node.span,
                        })
                    }
                    _ => {
                        findings
                            .add("yaml-key", node.span, "a key must be a single word")
                            .help("write `key: value`");
                        parent.key = Some(Key {
                            text: String::new(),
                            span: node.span,
                        });
                    }
                },
            },
            Kind::Scalar { .. } => {}
        }
        true
    }
}

/// `<<: *defaults` puts in what the mapping does not say itself.
fn merge(entries: &mut Vec<(Key, Node)>) {
    let Some(at) = entries.iter().position(|(key, node)| {
        key.text == "<<" && matches!(node.kind, Kind::Mapping(_) | Kind::Sequence(_))
    }) else {
        return;
    };
    let (_, node) = entries.remove(at);
    let sources = match node.kind {
        Kind::Sequence(items) => items,
        _ => vec![node],
    };
    for source in sources {
        if let Kind::Mapping(more) = source.kind {
            for (key, value) in more {
                // Bounded by MAX_KEYS a mapping, as no mapping has more.
                if entries.len() < MAX_KEYS && !entries.iter().any(|(k, _)| k.text == key.text) {
                    entries.push((key, value));
                }
            }
        }
    }
}
