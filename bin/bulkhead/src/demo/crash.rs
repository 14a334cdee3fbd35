//! The act in which red's switch is killed in the middle of red's traffic, and blue's.

use super::actor::{PAUSE, monotonic};
use super::acts::{Ear, Score, compartment, named, shown, title};
use super::say;
use super::stage::{Stage, end, ended};
use crate::exit::{Exit, Trouble};
use crate::table::{grouped, nanoseconds};
use serde_json::Value;
use std::process::Stdio;
use std::time::Duration;

/// Datagrams that may be lost besides those due in the outage: what is in the rings and in
/// the switch when it dies.
const IN_FLIGHT: u64 = 64;
/// The longest outage that is as it should be, beside the pauses that a busy machine gives
/// everybody, nanoseconds.
const OUTAGE: u64 = 100_000_000;

/// Whether so many lost fit into a silence of so many nanoseconds at this rate.
fn is_an_outage(lost: u64, silence_ns: u64, sent: u64, seconds: f64) -> bool {
    let due = sent as f64 / seconds * silence_ns as f64 / 1e9;
    sent > 0 && lost as f64 <= due + IN_FLIGHT as f64
}

/// Red's switch is killed while both tenants send numbered datagrams.
pub async fn crash(stage: &Stage, score: &mut Score) -> Result<(), Trouble> {
    title("kill -9 of red's switch in the middle of iperf3; blue runs the same");
    let mut servers = Vec::new();
    for tenant in ["red", "blue"] {
        servers.push(
            stage
                .at(&format!("{tenant}/web1"), &["iperf3", "--server"])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()?,
        );
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut ears = Vec::new();
    for tenant in ["red", "blue"] {
        let web = named(&stage.status().await?, tenant, "web1")?;
        let listen = ["listen", "--interface", &web.interface, "--gaps", "5201"];
        ears.push(Ear::with(stage, &format!("{tenant}/web1"), &listen).await?);
    }
    let client = [
        "iperf3",
        "--client",
        "10.1.1.10",
        "--udp",
        "--bitrate",
        "8M",
        "--length",
        "200",
        "--window",
        "2M",
        "--time",
        "3",
        "--json",
    ];
    shown("red/app1", &client[..client.len() - 1].join(" "));
    let red = ended(stage.at("red/app1", &client), "iperf3");
    let blue = ended(stage.at("blue/app1", &client), "iperf3");
    let killing = async {
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let status = stage.status().await?;
        let before = ["red", "blue"].map(|name| compartment(&status, name));
        let [red, _] = &before;
        let pid = rustix::process::Pid::from_raw(red.pid.cast_signed())
            .ok_or_else(|| Trouble::new(Exit::Failed, "red has no switch", ""))?;
        let then = monotonic();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL)
            .map_err(std::io::Error::from)?;
        say(&format!("   $ kill -9 {}        (red's switch)", red.pid));
        tokio::time::sleep(Duration::from_millis(500)).await;
        let status = stage.status().await?;
        let after = ["red", "blue"].map(|name| compartment(&status, name));
        Ok::<_, Trouble>((then, before, after))
    };
    let (red, blue, killed) = tokio::join!(red, blue, killing);
    let (then, [before, blue_before], [after, blue_after]) = killed?;
    for server in &mut servers {
        end(server).await;
    }
    let mut pauses = Vec::new();
    for ear in ears {
        pauses.push(ear.longest(then).await);
    }
    let [(reds, silence), (blues, others)] = pauses[..] else {
        return Ok(());
    };
    let is_back = after.pid != before.pid && after.last_outage_ns > 0;
    score.line(
        after.restarts > before.restarts && after.state == "up" && is_back,
        &format!(
            "red's switch is back as process {}; it says its first frame went {} after the death was seen",
            after.pid,
            nanoseconds(after.last_outage_ns),
        ),
    );
    let (lost, sent, seconds) = loss(&red?)?;
    score.line(
        silence <= OUTAGE + others && is_an_outage(lost, silence, sent, seconds),
        &format!(
            "red's server heard nothing for {} at most from then on ({} before); red lost {} of {} datagrams (red's tap keeps what is sent meanwhile)",
            pause(silence),
            pause(reds),
            grouped(lost),
            grouped(sent)
        ),
    );
    let (lost, sent, _) = loss(&blue?)?;
    let same = |c: &api::Compartment| (c.pid, c.restarts);
    score.line(
        sent > 0 && lost == 0 && same(&blue_before) == same(&blue_after),
        &format!(
            "no outage for blue: its switch goes on as process {}, and blue lost {} of {} datagrams",
            blue_after.pid,
            grouped(lost),
            grouped(sent)
        ),
    );
    say(&format!(
        "       (blue's server heard nothing for {} at most from then on, {} before: such pauses this machine gives everybody)",
        pause(others),
        pause(blues),
    ));
    Ok(())
}

/// Lost, sent, seconds.
fn loss(output: &std::process::Output) -> Result<(u64, u64, f64), Trouble> {
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    if let Some(error) = report["error"].as_str() {
        return Err(Trouble::new(Exit::Failed, format!("iperf3: {error}"), ""));
    }
    let sum = &report["end"]["sum"];
    Ok((
        sum["lost_packets"].as_u64().unwrap_or(0),
        sum["packets"].as_u64().unwrap_or(0),
        sum["seconds"].as_f64().unwrap_or(0.0),
    ))
}

/// For people.
fn pause(length: u64) -> String {
    match length {
        0 => format!("less than {}", nanoseconds(PAUSE)),
        some => nanoseconds(some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_without_a_silence_is_no_outage() {
        // 5,000 a second for three seconds.
        let judged = |lost: u64, ms: u64| is_an_outage(lost, ms * 1_000_000, 15_000, 3.0);
        assert!(judged(0, 2) && judged(50, 10) && judged(60, 1));
        assert!(!judged(1_000, 2), "hidden by a tenth of the traffic");
        assert!(!is_an_outage(0, 1_000_000, 0, 3.0));
    }
}
