//! Where in a file a value stands.

use core::ops::Deref;
use std::borrow::Cow;
use std::collections::BTreeMap;

use miette::{MietteError, SourceCode, SourceSpan, SpanContents};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Serialize, Serializer};

use crate::parts::Aside;

/// A range of bytes of the spec's text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// First byte.
    pub start: u32,
    /// One past the last.
    pub end: u32,
}

/// A place for a person: line and column count from 1, the column in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1, in characters.
    pub column: u32,
}

/// A value and where it was written. Equal when the values are, wherever they
/// stand: moving a line in a spec changes nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Located<T> {
    /// The value.
    pub value: T,
    /// Where.
    pub span: Span,
}

impl<T> Located<T> {
    /// A value that stands nowhere (made by a program).
    pub const fn nowhere(value: T) -> Located<T> {
        Located {
            value,
            span: Span { start: 0, end: 0 },
        }
    }
}

impl<T> Deref for Located<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: PartialEq> PartialEq for Located<T> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}
impl<T: Eq> Eq for Located<T> {}

impl<T: Serialize> Serialize for Located<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(serializer)
    }
}

impl<T: JsonSchema> JsonSchema for Located<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }
    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }
    fn schema_id() -> Cow<'static, str> {
        T::schema_id()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

/// The text of a spec under the name its user knows it by, or several documents joined.
#[derive(Clone, Debug)]
pub struct Source {
    name: String,
    text: String,
    /// Byte offset of the start of each line.
    lines: Vec<u32>,
    /// Where each document stands; empty = the text is one.
    sections: Vec<Section>,
    /// What of them counts as not stated.
    without: Without,
}

/// What of several documents counts as not stated: see [`crate::Parts`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Without {
    /// Offers and acceptances, as (tenant, name).
    pub revoked: Vec<(String, String)>,
    /// Acceptances, as (tenant, whose service, service).
    pub barred: Vec<(String, String, String)>,
    /// How much of a tenant's own document.
    pub aside: BTreeMap<String, Aside>,
}

/// One document of several.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    /// What it is called in messages.
    pub name: String,
    /// Whose it is; `None` = the provider's.
    pub tenant: Option<String>,
    /// Where it stands in the text.
    pub span: Span,
}

impl Section {
    /// How many bytes it has.
    pub(crate) fn bytes(&self) -> usize {
        self.span.end.saturating_sub(self.span.start) as usize
    }
}

impl Source {
    pub(crate) fn new(name: &str, text: String) -> Source {
        let starts = text
            .bytes()
            .enumerate()
            .filter(|(_, b)| *b == b'\n')
            .map(|(at, _)| at as u32 + 1);
        let lines = core::iter::once(0).chain(starts).collect();
        Source {
            name: name.to_owned(),
            text,
            lines,
            sections: Vec::new(),
            without: Without::default(),
        }
    }

    pub(crate) fn joined(
        name: &str,
        text: String,
        sections: Vec<Section>,
        without: Without,
    ) -> Source {
        Source {
            sections,
            without,
            ..Source::new(name, text)
        }
    }

    /// The same with its text in other words, as long.
    pub(crate) fn retold(&self, told: impl Fn(&str) -> String) -> Source {
        Source {
            text: told(&self.text),
            ..self.clone()
        }
    }

    pub(crate) fn sections(&self) -> &[Section] {
        &self.sections
    }

    pub(crate) fn revoked(&self) -> &[(String, String)] {
        &self.without.revoked
    }

    pub(crate) fn barred(&self) -> &[(String, String, String)] {
        &self.without.barred
    }

    pub(crate) fn aside(&self, tenant: &str) -> Option<Aside> {
        self.without.aside.get(tenant).copied()
    }

    fn section(&self, byte: u32) -> Option<&Section> {
        let after = self.sections.partition_point(|one| one.span.start <= byte);
        self.sections.get(after.checked_sub(1)?)
    }

    /// The name of the document that a byte is of: of one that is a tenant's own with
    /// the tenant before it, `TENANT:FILE`.
    pub fn name_at(&self, byte: u32) -> &str {
        self.section(byte).map_or(&self.name, |one| &one.name)
    }

    /// Whose own document a byte is of; `None` = the provider's.
    pub fn tenant_at(&self, byte: u32) -> Option<&str> {
        self.section(byte)?.tenant.as_deref()
    }

    /// The file's name as the caller gave it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The whole text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Line and column of a byte in its document.
    pub fn position(&self, byte: u32) -> Position {
        let line_of = |byte: u32| self.lines.partition_point(|start| *start <= byte).max(1);
        let line = line_of(byte);
        let start = self.lines.get(line - 1).copied().unwrap_or(0);
        let before = self.text.get(start as usize..byte as usize).unwrap_or("");
        // A document of several begins with a line of its own.
        let above = self
            .section(byte)
            .map_or(0, |one| line_of(one.span.start) - 1);
        Position {
            line: line.saturating_sub(above).max(1) as u32,
            column: before.chars().count() as u32 + 1,
        }
    }
}

impl SourceCode for Source {
    fn read_span<'a>(
        &'a self,
        span: &SourceSpan,
        before: usize,
        after: usize,
    ) -> Result<Box<dyn SpanContents<'a> + 'a>, MietteError> {
        let inner = self.text.as_str().read_span(span, before, after)?;
        Ok(Box::new(miette::MietteSpanContents::new_named(
            self.name.clone(),
            inner.data(),
            *inner.span(),
            inner.line(),
            inner.column(),
            inner.line_count(),
        )))
    }
}
