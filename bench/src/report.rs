//! One self-contained HTML page a bench: figures, their reach, a plot of the runs.

use crate::results::{Figure, Results};
use plotters::prelude::*;
use std::path::Path;

/// Writes the page.
pub fn write(results: &Results, file: &Path) -> std::io::Result<()> {
    let mut page = String::from(concat!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        "<style>body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a}",
        "table{border-collapse:collapse}td,th{padding:.3rem .8rem;border-bottom:1px solid #ddd;text-align:left}",
        "td.n{text-align:right;font-variant-numeric:tabular-nums}figure{margin:1.5rem 0}small{color:#555}</style>"
    ));
    page += &format!(
        "<title>Bulkhead: {0}</title><h1>{0}</h1><p>{1}, commit {2}<br>{3}, {4} cores, Linux {5}</p>",
        escape(&results.bench),
        escape(&results.date),
        escape(&results.commit),
        escape(&results.machine.cpu),
        results.machine.cores,
        escape(&results.machine.kernel)
    );
    page += "<table><tr><th>figure<th>median<th>least<th>most<th>runs<th>cores<th>unit</tr>";
    for f in &results.figures {
        page += &format!(
            "<tr><td>{}<td class=n>{:.4}<td class=n>{:.4}<td class=n>{:.4}<td class=n>{}<td>{}<td>{}</tr>",
            escape(&f.id),
            f.value,
            f.min,
            f.max,
            f.runs,
            escape(&f.cluster),
            escape(&f.unit)
        );
    }
    page += "</table>";
    for f in &results.figures {
        page += &format!(
            "<figure><figcaption><b>{}</b>, {}. {}",
            escape(&f.id),
            escape(&f.unit),
            escape(&f.note)
        );
        page += &sides(f);
        page += "</figcaption>";
        if f.samples.len() > 1 {
            page += &plot(f).map_err(std::io::Error::other)?;
        }
        page += "</figure>";
    }
    page += &format!(
        "<p><small>Repeat it: <code>{}</code></small></p></html>\n",
        escape(&results.command)
    );
    std::fs::write(file, page)
}

fn sides(f: &Figure) -> String {
    let line = |name: &str, side: &std::collections::BTreeMap<String, serde_json::Value>| {
        if side.is_empty() {
            return String::new();
        }
        let words: Vec<String> = side.iter().map(|(k, v)| format!("{k} {v}")).collect();
        format!("<br><small>{name}: {}</small>", escape(&words.join(", ")))
    };
    line("ours", &f.ours) + &line("peer", &f.peer)
}

/// The runs in order, with the unit on the axis.
fn plot(f: &Figure) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (840, 260)).into_drawing_area();
        let top = f
            .samples
            .iter()
            .copied()
            .filter(|v| v.is_finite())
            .fold(0.0, f64::max)
            .max(1e-9)
            * 1.1;
        let mut chart = ChartBuilder::on(&area)
            .margin(8)
            .x_label_area_size(36)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..f.samples.len() as f64, 0.0..top)
            .map_err(|e| e.to_string())?;
        chart
            .configure_mesh()
            .x_desc("run")
            .y_desc(f.unit.as_str())
            .draw()
            .map_err(|e| e.to_string())?;
        chart
            .draw_series(
                f.samples.iter().enumerate().map(|(i, v)| {
                    Circle::new((i as f64 + 0.5, *v), 3, RGBColor(20, 90, 160).filled())
                }),
            )
            .map_err(|e| e.to_string())?;
        area.present().map_err(|e| e.to_string())?;
    }
    Ok(svg)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
