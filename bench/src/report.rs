//! One self-contained HTML page a bench: at a glance what came out of what was asked, then
//! each figure with its peer beside it and a plot of the runs.

use crate::results::{Figure, Reach, Results};
use plotters::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;

/// Writes the page; `reaches` is what is asked of figures, as far as that is known.
pub fn write(
    results: &Results,
    reaches: &BTreeMap<String, Reach>,
    file: &Path,
) -> std::io::Result<()> {
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
    page += "<table><tr><th>figure<th>median<th>asked<th><th>least<th>most<th>runs<th>cores<th>unit</tr>";
    for f in &results.figures {
        let reach = reaches.get(&f.id);
        let (asked, verdict) = judged(f, reach);
        let value = match f.is_missing() {
            true => "<td class=n>-<td class=n>".to_owned() + &asked + "<td>-<td><td><td>0<td>-<td>",
            false => format!(
                "<td class=n>{:.4}<td class=n>{asked}<td>{verdict}<td class=n>{:.4}<td class=n>{:.4}<td class=n>{}<td>{}<td>{}",
                f.value,
                f.min,
                f.max,
                f.runs,
                escape(&f.cluster),
                escape(&f.unit)
            ),
        };
        page += &format!("<tr><td>{}{value}</tr>", escape(&f.id));
    }
    page += "</table>";
    let glance = glance(results, reaches).map_err(std::io::Error::other)?;
    if let Some(svg) = glance {
        page += "<figure><figcaption>At a glance: each figure as part of what was asked of it, 100 % or more where it is met.</figcaption>";
        page += &svg;
        page += "</figure>";
    }
    for f in &results.figures {
        page += &format!(
            "<figure><figcaption><b>{}</b>, {}. {}",
            escape(&f.id),
            escape(&f.unit),
            escape(&f.note)
        );
        page += &sides(f);
        page += "</figcaption>";
        if let Some(svg) = beside(f).map_err(std::io::Error::other)? {
            page += &svg;
        }
        if f.samples.len() > 1 {
            page += &plot(f).map_err(std::io::Error::other)?;
        }
        page += "</figure>";
    }
    page += &format!(
        "<p><small>Repeat it: <code>tools/setup bench</code> once for the peers, then <code>{}</code>, as root, on a machine that does nothing else.</small></p></html>\n",
        escape(&results.command)
    );
    std::fs::write(file, page)
}

type Drawn<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const OURS: RGBColor = RGBColor(20, 90, 160);
const THEIRS: RGBColor = RGBColor(190, 120, 30);

/// What is asked of a figure, and whether it is met.
fn judged(f: &Figure, reach: Option<&Reach>) -> (String, &'static str) {
    let said = |met: bool| if met { "met" } else { "short" };
    match reach {
        Some(Reach {
            at_least: Some(least),
            ..
        }) => (format!("≥ {least}"), said(f.value >= *least)),
        Some(Reach {
            at_most: Some(most),
            ..
        }) => (format!("≤ {most}"), said(f.value <= *most)),
        _ => (String::new(), ""),
    }
}

/// Each figure's part of its reach.
fn glance(results: &Results, reaches: &BTreeMap<String, Reach>) -> Drawn<Option<String>> {
    let part = |f: &Figure| match reaches.get(&f.id)? {
        Reach {
            at_least: Some(least),
            ..
        } => Some(f.value / least),
        // Nothing was asked for and nothing came.
        Reach {
            at_most: Some(most),
            ..
        } if f.value <= *most && f.value == 0.0 => Some(1.0),
        Reach {
            at_most: Some(most),
            ..
        } => Some(most / f.value),
        _ => None,
    };
    let taken = results.figures.iter().filter(|f| !f.is_missing());
    let bars: Vec<(String, f64, RGBColor)> = taken
        .filter_map(|f| Some((f.id.clone(), part(f)? * 100.0, OURS)))
        .collect();
    if bars.is_empty() {
        return Ok(None);
    }
    horizontal(&bars, "% of what was asked", Some(100.0)).map(Some)
}

/// Ours and the peer's of what both have.
fn beside(f: &Figure) -> Drawn<Option<String>> {
    const DRAWN: &[(&str, &str)] = &[
        ("mpps", "million packets a second"),
        ("gbit_s", "Gbit/s"),
        ("kpps", "thousand packets a second"),
        ("p50_us", "us, p50"),
        ("per_s", "a second"),
        ("mrec_s", "million records a second"),
    ];
    let both = |key: &str| Some((f.ours.get(key)?.as_f64()?, f.peer.get(key)?.as_f64()?));
    let Some((unit, (ours, peer))) = DRAWN
        .iter()
        .find_map(|(key, unit)| Some((unit, both(key)?)))
    else {
        return Ok(None);
    };
    let name = f
        .peer
        .get("name")
        .and_then(|n| n.as_str())
        .unwrap_or("peer");
    // What is before the first comma names it.
    let name = name.split(',').next().unwrap_or(name);
    let bars = [
        ("bulkhead".to_owned(), ours, OURS),
        (name.to_owned(), peer, THEIRS),
    ];
    horizontal(&bars, unit, None).map(Some)
}

/// Bars from the left, named, with their values at the end.
fn horizontal(bars: &[(String, f64, RGBColor)], unit: &str, mark: Option<f64>) -> Drawn<String> {
    let mut svg = String::new();
    let rows = bars.len();
    {
        let height = 60 + 26 * rows as u32;
        let area = SVGBackend::with_string(&mut svg, (840, height)).into_drawing_area();
        let values = bars.iter().map(|(_, value, _)| *value).chain(mark);
        let most = values.filter(|v| v.is_finite()).fold(1e-9, f64::max);
        // A figure far beyond what was asked leaves room for the others.
        let top = mark.map_or(most, |mark| most.min(mark * 3.0)) * 1.15;
        let mut chart = ChartBuilder::on(&area)
            .margin(8)
            .x_label_area_size(36)
            .y_label_area_size(270)
            .build_cartesian_2d(0.0..top, 0.0..rows as f64)
            .map_err(|e| e.to_string())?;
        chart
            .configure_mesh()
            .disable_mesh()
            .disable_y_axis()
            .y_labels(0)
            .x_desc(unit)
            .draw()
            .map_err(|e| e.to_string())?;
        for (row, (name, value, colour)) in bars.iter().enumerate() {
            let low = (rows - row) as f64 - 0.8;
            let bar = Rectangle::new([(0.0, low), (value.min(top), low + 0.6)], colour.filled());
            let at = (value.min(top * 0.9), low + 0.5);
            let text = Text::new(format!(" {value:.3}"), at, ("sans-serif", 13).into_font());
            chart.draw_series([bar]).map_err(|e| e.to_string())?;
            chart.draw_series([text]).map_err(|e| e.to_string())?;
            let high = (height - 52) as f64 / rows as f64;
            let place = (16, (8.0 + (row as f64 + 0.5) * high) as i32 - 6);
            let named = Text::new(name.clone(), place, ("sans-serif", 13).into_font());
            area.draw(&named).map_err(|e| e.to_string())?;
        }
        if let Some(mark) = mark {
            let line = PathElement::new([(mark, 0.0), (mark, rows as f64)], BLACK.stroke_width(1));
            chart.draw_series([line]).map_err(|e| e.to_string())?;
        }
        area.present().map_err(|e| e.to_string())?;
    }
    Ok(svg)
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
fn plot(f: &Figure) -> Drawn<String> {
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
                f.samples
                    .iter()
                    .enumerate()
                    .map(|(i, v)| Circle::new((i as f64 + 0.5, *v), 3, OURS.filled())),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_all_that_a_reader_needs_and_fetches_nothing() {
        let figures = vec![
            Figure::of("forward.x", "ratio", &[1.0, 1.4, 1.2])
                .ours("mpps", 12.0)
                .peer("mpps", 10.0)
                .peer("name", "testpmd <22>, memif"),
            Figure::missing("forward.y", "peer missing: gcc"),
        ];
        let results = Results::now("forward", "bulkhead bench forward", figures);
        let reach = |least| Reach {
            at_least: Some(least),
            at_most: None,
        };
        let reaches = BTreeMap::from([
            ("forward.x".to_owned(), reach(1.5)),
            ("forward.y".to_owned(), reach(1.0)),
        ]);
        let folder = e2e::private_folder("bulkhead-report-").unwrap();
        let file = folder.join("page.html");
        write(&results, &reaches, &file).unwrap();
        let page = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        for text in [
            "≥ 1.5<td>short",
            "testpmd &lt;22&gt;",
            "million packets a second",
            "% of what was asked",
            "peer missing: gcc",
            "bulkhead bench forward",
        ] {
            assert!(page.contains(text), "{text}");
        }
        // Three plots; names of XML's own and nothing from elsewhere.
        assert_eq!(page.matches("<svg").count(), 3);
        let elsewhere = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!elsewhere.contains("http") && !elsewhere.contains("src="));
    }
}
