//! What is seen at once: a table that is box by box what its lines say. What is not is asked
//! of the boxes' engine.

use crate::lines::{Book, Piece, Side};
use crate::ranges::Range;
use image::rules::{Region, Rule, RuleTable};

/// Whether a table's rules and default are just these boxes, one by one.
pub(crate) fn same(
    book: &Book<'_>,
    at: usize,
    side: Side,
    own: &[Range],
    table: &RuleTable,
) -> bool {
    let mut rules = table.rules.iter();
    let mut alike = true;
    let mut whole = false;
    book.walk(at, side, own, |piece, action, _| {
        let found = rules.next();
        alike = found.is_some_and(|rule| rule.action == action && is(rule, &piece));
        // Nothing gets past a box of everything.
        whole = alike && found.is_some_and(|rule| rule.region == Region::ALL);
        alike && !whole
    });
    alike && (whole || rules.next().is_none() && table.default == book.default(side))
}

/// Whether a table begins with just the guardrails' boxes, one by one: then they hold,
/// whatever comes behind them.
pub(crate) fn begins_with_guardrails(
    book: &Book<'_>,
    at: usize,
    side: Side,
    own: &[Range],
    table: &RuleTable,
) -> bool {
    let mut rules = table.rules.iter();
    (book.lines.iter().filter(|line| line.is_guardrail)).all(|line| {
        line.pieces(at, side, own, |piece| {
            let found = rules.next();
            found.is_some_and(|rule| rule.action == line.action && is(rule, &piece))
        })
    })
}

fn is(rule: &Rule, piece: &Piece<'_>) -> bool {
    let (source, destination, source_port, port, protocol) = piece;
    let r = &rule.region;
    *r.destination_port.start() == port.0
        && *r.destination_port.end() == port.1
        && *r.source.start() == source.0
        && *r.source.end() == source.1
        && *r.destination.start() == destination.0
        && *r.destination.end() == destination.1
        && *r.source_port.start() == source_port.0
        && *r.source_port.end() == source_port.1
        && *r.protocol.start() == protocol.0
        && *r.protocol.end() == protocol.1
}
