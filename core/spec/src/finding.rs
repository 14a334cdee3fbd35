//! What is wrong in a spec: all of it, each with its place and what to do.

use core::fmt;
use std::sync::Arc;

use guard::guard;

use miette::{Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, SourceCode};
use serde::ser::{Serialize, SerializeStruct, Serializer};

use crate::source::{Source, Span};

/// Most findings reported of one spec; a file that is not a spec at all would
/// otherwise answer with a finding a line.
pub const MAX_FINDINGS: usize = 100;

/// One thing wrong in a spec. It is always the fault of who wrote the spec.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Stable name of the kind of error, e.g. `duplicate-mac`.
    pub code: &'static str,
    /// What is wrong, one sentence.
    pub message: String,
    /// What to do about it; may be empty.
    pub help: String,
    /// Where in the file.
    pub span: Span,
    /// What is written beside the place in the snippet.
    pub label: String,
    /// Other places that belong to it, e.g. the first of two duplicates.
    pub also: Vec<(Span, String)>,
    /// The text it is about.
    pub source: Arc<Source>,
}

impl Finding {
    /// The file's name as the caller gave it.
    pub fn file(&self) -> &str {
        self.source.name_at(self.span.start)
    }
    /// Line, from 1.
    pub fn line(&self) -> u32 {
        self.source.position(self.span.start).line
    }
    /// Column, from 1, in characters.
    pub fn column(&self) -> u32 {
        self.source.position(self.span.start).column
    }
}

impl Serialize for Finding {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("Finding", 6)?;
        out.serialize_field("file", self.file())?;
        out.serialize_field("line", &self.line())?;
        out.serialize_field("column", &self.column())?;
        out.serialize_field("code", self.code)?;
        out.serialize_field("message", &self.message)?;
        out.serialize_field("help", &self.help)?;
        out.end()
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl core::error::Error for Finding {}

impl Diagnostic for Finding {
    fn code<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        Some(Box::new(self.code))
    }
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        (!self.help.is_empty()).then(|| Box::new(&self.help) as Box<dyn fmt::Display>)
    }
    fn source_code(&self) -> Option<&dyn SourceCode> {
        Some(&*self.source)
    }
    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let label = |span: &Span, text: &str| {
            let length = span.end.saturating_sub(span.start) as usize;
            LabeledSpan::new(Some(text.to_owned()), span.start as usize, length)
        };
        let first = LabeledSpan::new_primary_with_span(
            Some(self.label.clone()),
            (
                self.span.start as usize,
                self.span.end.saturating_sub(self.span.start) as usize,
            ),
        );
        Some(Box::new(core::iter::once(first).chain(
            self.also.iter().map(move |(span, text)| label(span, text)),
        )))
    }
}

/// Everything found wrong in one spec, in order of place. Never empty.
#[derive(Clone, Debug)]
pub struct SpecErrors {
    /// The findings, at most [`MAX_FINDINGS`] and one of each tenant's own document.
    pub findings: Vec<Finding>,
    /// How many more there were.
    pub more: usize,
}

impl SpecErrors {
    pub(crate) fn new(mut findings: Vec<Finding>) -> SpecErrors {
        findings.sort_by_key(|f| (f.span.start, f.code));
        // Of each tenant's own document the first in any case: whatever one says, who is at
        // fault is known at once.
        let (mut kept, mut before) = (0, None);
        let all = findings.len();
        findings.retain(|finding| {
            let whose = finding
                .source
                .tenant_at(finding.span.start)
                .map(str::to_owned);
            let is_first = whose.is_some() && whose != before && guard!("spec-each-at-fault");
            before = whose;
            kept += 1;
            kept <= MAX_FINDINGS || is_first
        });
        let more = all - findings.len();
        for one in &mut findings {
            let also = one.also.iter_mut().map(|(_, text)| text);
            for text in [&mut one.message, &mut one.help, &mut one.label]
                .into_iter()
                .chain(also)
            {
                *text = shown(text);
            }
        }
        SpecErrors { findings, more }
    }

    /// For a terminal: each finding with its snippet; in colour or not.
    pub fn render(&self, colour: bool) -> String {
        let theme = if colour {
            GraphicalTheme::unicode()
        } else {
            GraphicalTheme::unicode_nocolor()
        };
        let handler = GraphicalReportHandler::new_themed(theme)
            .with_width(100)
            .with_links(false);
        let mut out = String::new();
        let mut source = None::<(Arc<Source>, Arc<Source>)>;
        for finding in &self.findings {
            // Mostly all are about one.
            let (_, source) = match source.take() {
                Some(same) if Arc::ptr_eq(&same.0, &finding.source) => source.insert(same),
                _ => {
                    let shown = Arc::new(finding.source.retold(shown));
                    source.insert((finding.source.clone(), shown))
                }
            };
            let finding = &Finding {
                source: source.clone(),
                ..finding.clone()
            };
            if handler.render_report(&mut out, finding).is_err() {
                out.push_str(&finding.message);
            }
            out.push('\n');
        }
        if self.more > 0 {
            out.push_str(&format!("and {} more\n", self.more));
        }
        out
    }
}

/// As a terminal may be shown it: what another wrote does nothing there but stand in its place, and in
/// its order. As long as it was.
pub(crate) fn shown(text: &str) -> String {
    let acts = |c: char| {
        let orders = matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        (c.is_control() && !matches!(c, '\n' | '\t') || orders) && guard!("spec-shown")
    };
    let mut out = String::with_capacity(text.len());
    let mut left = text.chars();
    while let Some(c) = left.next() {
        let ends_line = c == '\r' && left.as_str().starts_with('\n');
        match acts(c) && !ends_line {
            true => out.extend(core::iter::repeat_n('?', c.len_utf8())),
            false => out.push(c),
        }
    }
    out
}

impl fmt::Display for SpecErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, finding) in self.findings.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            write!(
                f,
                "{}:{}:{}: {}",
                finding.file(),
                finding.line(),
                finding.column(),
                finding.message
            )?;
            if !finding.help.is_empty() {
                write!(f, " ({})", finding.help)?;
            }
        }
        if self.more > 0 {
            write!(f, "\nand {} more", self.more)?;
        }
        Ok(())
    }
}

impl core::error::Error for SpecErrors {}

impl Diagnostic for SpecErrors {
    fn related<'a>(&'a self) -> Option<Box<dyn Iterator<Item = &'a dyn Diagnostic> + 'a>> {
        Some(Box::new(self.findings.iter().map(|f| f as &dyn Diagnostic)))
    }
}
