//! `usage`: what was used.

use super::as_json;
use crate::args;
use crate::client::{Client, encoded};
use crate::exit::{Exit, Trouble};
use crate::table::{Table, bytes, grouped, unless, when};
use api::{Usage, UsageRow};
use std::fmt::Write;

/// What was used in a span of time.
pub async fn usage(wanted: &args::Usage, client: &Client, json: bool) -> Result<Exit, Trouble> {
    let mut path = format!("/v1/usage?from={}", wanted.from.unwrap_or(0));
    if let Some(to) = wanted.to {
        let _ = write!(path, "&to={to}");
    }
    if let Some(tenant) = &wanted.tenant {
        let _ = write!(path, "&tenant={}", encoded(tenant));
    }
    let usage: Usage = client.get(&path).await?;
    if json {
        return as_json(&usage);
    }
    let text = match wanted.csv {
        true => csv(&usage),
        false => rendered(&usage),
    };
    crate::print(text.as_bytes())
}

fn rendered(usage: &Usage) -> String {
    let mut table = Table::new(&[
        "WHO",
        ">SENT",
        ">BYTES",
        ">GOT",
        ">BYTES",
        ">CONNECTIONS",
        ">CPU s",
        ">MEMORY",
        ">DENIED",
        ">BYTES",
    ]);
    for row in &usage.rows {
        let by_rule = !row.rule.is_empty();
        let nothing = [
            row.sent_packets,
            row.sent_bytes,
            row.got_packets,
            row.got_bytes,
        ] == [0; 4];
        let nobody = row.uncounted && nothing;
        let held = !by_rule && row.agreement.is_empty();
        let of_switch = |text: String| if held { text } else { String::new() };
        let of_rule = |text: String| if by_rule { text } else { String::new() };
        table.row([
            match (&*row.endpoint, &*row.agreement, &*row.rule) {
                ("", "", "") => row.tenant.clone(),
                ("", "", rule) => format!("  {}: {rule}", row.tenant),
                ("", agreement, _) => format!("  by {agreement}"),
                (endpoint, ..) => format!("  {}/{endpoint}", row.tenant),
            },
            unless(nobody, || grouped(row.sent_packets)),
            unless(nobody, || bytes(row.sent_bytes)),
            unless(nobody, || grouped(row.got_packets)),
            unless(nobody, || bytes(row.got_bytes)),
            grouped(row.connections),
            of_switch(format!("{:.1}", row.cpu_ns as f64 / 1e9)),
            of_switch(format!("{} h", bytes(row.memory_byte_seconds / 3600))),
            of_rule(grouped(row.denied_packets)),
            of_rule(bytes(row.denied_bytes)),
        ]);
    }
    if table.is_empty() {
        return "nothing was used\n".to_owned();
    }
    let span = |at: u64| when(at * 1000).replace(":00.000", "");
    format!(
        "{} to {} (UTC); a tenant's own row: what crossed the fabric; a rule's: what it let pass\n\n{table}",
        span(usage.from_s),
        span(usage.to_s)
    )
}

fn csv(usage: &Usage) -> String {
    let mut out = String::from(
        "from_s,to_s,tenant,endpoint,agreement,sent_packets,sent_bytes,got_packets,got_bytes,connections,cpu_ns,memory_byte_seconds,rule,denied_packets,denied_bytes\n",
    );
    for row in &usage.rows {
        // Names hold letters, digits and hyphens, agreements and rules blanks and slashes as
        // well: nothing to quote.
        let UsageRow {
            tenant,
            endpoint,
            agreement,
            ..
        } = row;
        let figures = [
            row.sent_packets,
            row.sent_bytes,
            row.got_packets,
            row.got_bytes,
            row.connections,
            row.cpu_ns,
            row.memory_byte_seconds,
        ];
        let _ = write!(
            out,
            "{},{},{tenant},{endpoint},{agreement}",
            usage.from_s, usage.to_s
        );
        for figure in figures {
            let _ = write!(out, ",{figure}");
        }
        let _ = write!(
            out,
            ",{},{},{}",
            row.rule, row.denied_packets, row.denied_bytes
        );
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_csv_has_a_figure_for_each_title() {
        let row = UsageRow {
            tenant: "red".into(),
            endpoint: "web1".into(),
            sent_packets: 1,
            sent_bytes: 2,
            got_packets: 3,
            got_bytes: 4,
            connections: 5,
            cpu_ns: 6,
            memory_byte_seconds: 7,
            ..UsageRow::default()
        };
        let usage = Usage {
            from_s: 3600,
            to_s: 7200,
            rows: vec![row],
        };
        let text = csv(&usage);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "3600,7200,red,web1,,1,2,3,4,5,6,7,,0,0");
        assert_eq!(lines[0].split(',').count(), lines[1].split(',').count());
        let shown = rendered(&usage);
        assert!(
            shown.starts_with("1970-01-01 01:00 to 1970-01-01 02:00"),
            "{shown}"
        );
        assert!(
            shown.contains("  red/web1     1    2 B    3    4 B            5"),
            "{shown}"
        );
        // Nobody counts it any more: what was counted stays, and is no 0 where it was nothing.
        let mut usage = usage;
        let row = &mut usage.rows[0];
        (
            row.uncounted,
            row.sent_packets,
            row.got_packets,
            row.got_bytes,
        ) = (true, 0, 0, 0);
        assert!(rendered(&usage).contains("  red/web1     0    2 B    0    0 B"));
        usage.rows[0].sent_bytes = 0;
        let shown = rendered(&usage);
        let row = shown.lines().last().unwrap().split_whitespace();
        assert_eq!(row.filter(|it| *it == "-").count(), 4, "{shown}");
    }
}
