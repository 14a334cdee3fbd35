//! `top`: live rates.

use super::as_json;
use crate::args::Top;
use crate::client::Client;
use crate::exit::{Exit, Trouble};
use crate::table::{Table, bytes, rate, unless};
use api::Sample;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::IsTerminal;
use std::time::Duration;

/// Shows rates until interrupted; on a pipe, with --once or --json one sample.
pub async fn top(top: &Top, client: &Client, json: bool) -> Result<Exit, Trouble> {
    let live = !top.once && !json && std::io::stdout().is_terminal();
    let pause = Duration::from_secs_f64(top.interval);
    let path = format!("/v1/top?over_ms={}", pause.as_millis());
    loop {
        // The daemon takes both samples, so that the rates are over one interval
        // whoever else is asking.
        let mut sample: Sample = client.get(&path).await?;
        if let Some(tenant) = &top.tenant {
            sample
                .endpoints
                .retain(|endpoint| endpoint.tenant == *tenant);
            if sample.endpoints.is_empty() {
                return Err(Trouble::new(
                    Exit::Usage,
                    format!("there is no endpoint of a tenant {tenant}"),
                    "`bulkhead status` lists them",
                ));
            }
        }
        if json {
            return as_json(&sample);
        }
        let (rows, columns) = screen();
        let circuits = super::flows::busiest(top.tenant.as_deref(), client).await?;
        let shown = rendered(
            &sample,
            &circuits,
            if live { rows } else { usize::MAX },
            if live { columns } else { usize::MAX },
        );
        if !live {
            return crate::print(shown.as_bytes());
        }
        crate::print(format!("\x1b[H\x1b[2J{shown}").as_bytes())?;
    }
}

fn screen() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(std::io::stdout()) {
        Ok(size) if size.ws_row > 4 => (size.ws_row.into(), size.ws_col.into()),
        _ => (40, 200),
    }
}

/// Tenants first, then endpoints, then drops, then circuits: busiest on top, cut to the screen.
fn rendered(sample: &Sample, circuits: &str, rows: usize, columns: usize) -> String {
    let mut endpoints: Vec<_> = sample.endpoints.iter().collect();
    endpoints.sort_by(|a, b| {
        (b.rx_pps + b.tx_pps)
            .total_cmp(&(a.rx_pps + a.tx_pps))
            .then_with(|| (&a.tenant, &a.endpoint).cmp(&(&b.tenant, &b.endpoint)))
    });

    let mut tenants: BTreeMap<&str, [f64; 5]> = BTreeMap::new();
    let mut drops: BTreeMap<(&str, &str), (f64, u64)> = BTreeMap::new();
    for endpoint in &endpoints {
        let sum = tenants
            .entry(if endpoint.tenant.is_empty() {
                "(uplink)"
            } else {
                &endpoint.tenant
            })
            .or_default();
        for (sum, value) in sum.iter_mut().zip([
            endpoint.rx_pps,
            endpoint.rx_bps,
            endpoint.tx_pps,
            endpoint.tx_bps,
            endpoint.drops_ps,
        ]) {
            *sum += value;
        }
        for drop in &endpoint.drops {
            let sum = drops.entry((&endpoint.tenant, &drop.reason)).or_default();
            sum.0 += drop.per_second;
            sum.1 += drop.frames;
        }
    }
    let mut out = String::new();
    let _ = writeln!(
        out,
        "over {:.1} s; from = sent by the workload, to = delivered to it; pauses: of its sender, \
         over its rate; waits: for the rate toward it",
        sample.seconds
    );
    let mut table = Table::new(&[
        "TENANT",
        ">FROM pps",
        ">FROM bit/s",
        ">TO pps",
        ">TO bit/s",
        ">DROPS/s",
    ]);
    for (tenant, sum) in &tenants {
        table
            .row(std::iter::once((*tenant).to_owned()).chain(sum.iter().map(|value| rate(*value))));
    }
    let _ = write!(out, "\n{table}");
    let mut table = Table::new(&[
        "ENDPOINT",
        ">FROM pps",
        ">FROM bit/s",
        ">TO pps",
        ">TO bit/s",
        ">DROPS/s",
        ">PAUSES/s",
        ">WAITS",
    ]);
    for endpoint in &endpoints {
        let name = if endpoint.tenant.is_empty() {
            endpoint.endpoint.clone()
        } else {
            format!("{}/{}", endpoint.tenant, endpoint.endpoint)
        };
        table.row(
            std::iter::once(name).chain(
                [
                    endpoint.rx_pps,
                    endpoint.rx_bps,
                    endpoint.tx_pps,
                    endpoint.tx_bps,
                ]
                .map(|figure| unless(endpoint.uncounted, || rate(figure)))
                .into_iter()
                .chain([
                    rate(endpoint.drops_ps),
                    rate(endpoint.paused_ps),
                    bytes(endpoint.waiting_bytes),
                ]),
            ),
        );
    }
    let _ = write!(out, "\n{table}");
    let mut dropped: Vec<_> = drops.into_iter().collect();
    dropped.sort_by(|a, b| b.1.0.total_cmp(&a.1.0).then(a.0.cmp(&b.0)));
    let mut table = Table::new(&["DROPPED", "REASON", ">/s", ">IN ALL"]);
    for ((tenant, reason), (per_second, all)) in dropped {
        table.row([
            tenant.to_owned(),
            reason.to_owned(),
            rate(per_second),
            all.to_string(),
        ]);
    }
    if !table.is_empty() {
        let _ = write!(out, "\n{table}");
    }
    if !circuits.is_empty() {
        let _ = write!(out, "\n{circuits}");
    }
    let mut cut = String::new();
    for line in out.lines().take(rows.saturating_sub(1)) {
        cut.extend(line.chars().take(columns));
        cut.push('\n');
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::{DropCount, EndpointRates};

    #[test]
    fn the_busiest_is_on_top_and_nothing_leaves_the_screen() {
        let endpoint = |name: &str, pps: f64| EndpointRates {
            tenant: "red".into(),
            endpoint: name.into(),
            rx_pps: pps,
            ..EndpointRates::default()
        };
        let mut sample = Sample {
            seconds: 1.0,
            endpoints: vec![endpoint("quiet", 1.0), endpoint("busy", 1e6)],
            ..Sample::default()
        };
        sample.endpoints[0].drops.push(DropCount {
            reason: "source-ip".into(),
            frames: 1204,
            ..DropCount::default()
        });
        let all = rendered(&sample, "7-9 red/busy\n", usize::MAX, usize::MAX);
        assert!(all.find("1204") < all.find("7-9 red/busy"), "{all}");
        assert!(all.find("red/busy") < all.find("red/quiet"), "{all}");
        assert!(all.contains("source-ip") && all.contains("1204"), "{all}");
        assert!(rendered(&sample, "", 5, 20).lines().count() <= 4);
        assert!(
            rendered(&sample, "", 9, 20)
                .lines()
                .all(|line| line.chars().count() <= 20)
        );
    }
}
