//! The act in which red offers blue a service, and blue gives it up again.

use super::acts::{PAGE, Score, fetch, serve, shown, title};
use super::stage::{Stage, end};
use super::{SPEC, say};
use crate::client::encoded;
use crate::exit::Trouble;
use crate::table::{bytes, nanoseconds};
use api::{Applied, Explanation};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt;
use tokio::process::Child;

/// What red adds: a shop behind a narrower link, and what of it blue may use.
const SUBNET: &str =
    "      - {name: shop, mtu: 1400, prefixes: [10.1.3.0/24, \"fd00:1:1:3::/64\"]}\n";
const ENDPOINT: &str =
    "      - {name: shop1, subnet: shop, addresses: [10.1.3.10, \"fd00:1:1:3::10\"]}\n";
const OFFERS: [&str; 2] = [
    "      - {name: page, endpoint: shop1, protocol: tcp, ports: [80], to: [blue], pool: [10.1.250.0/28, \"fd00:1:250::/64\"]}\n",
    "      - {name: log, endpoint: shop1, protocol: udp, ports: [514], to: [blue], pool: [10.1.251.0/28, \"fd00:1:251::/64\"]}\n",
];
/// What blue adds: where it wants to have them.
const ACCEPTS: [&str; 2] = [
    "      - {name: reds-page, from: red, service: page, as: [10.1.200.10, \"fd00:1:200::10\"], endpoints: {endpoint: app1}}\n",
    "      - {name: reds-log, from: red, service: log, as: [10.1.200.11, \"fd00:1:200::11\"]}\n",
];
const URLS: [&str; 2] = ["http://10.1.200.10/", "http://[fd00:1:200::10]/"];
/// The longest that anything may come through once blue's apply has returned.
const CUT: Duration = Duration::from_millis(100);

/// Both tenants, and what each of them adds.
fn spec(accepts: &[&str]) -> String {
    let (red, blue) = SPEC.split_once("\n  - name: blue\n").unwrap_or_default();
    let red = red.replacen("    endpoints:\n", &format!("{SUBNET}    endpoints:\n"), 1);
    let accepts = match accepts {
        [] => String::new(),
        some => format!("    accepts:\n{}", some.concat()),
    };
    format!(
        "{}\n{ENDPOINT}    offers:\n{}\n  - name: blue\n{}\n{accepts}",
        red.trim_end(),
        OFFERS.concat(),
        blue.trim_end()
    )
}

/// All of it.
pub async fn service(stage: &Stage, score: &mut Score) -> Result<(), Trouble> {
    title("red offers blue two services; blue accepts them at addresses of its own");
    for (whose, lines) in [("red    offers: ", OFFERS), ("blue   accepts:", ACCEPTS)] {
        for line in lines {
            say(&format!(
                "   {whose} [{}]",
                line.trim().trim_start_matches("- ")
            ));
        }
    }
    let applied = apply(stage, &ACCEPTS).await?;
    let proof = applied.plan.proof.unwrap_or_default();
    say(&format!(
        "   $ bulkhead apply with-agreements.yaml\n     {} changes in {:.0} ms; proved before: {} compartments, {} fabric entries",
        applied.plan.changes.len(),
        applied.took_us as f64 / 1000.0,
        proof.compartments,
        proof.entries
    ));
    let server = serve(stage, "red", "shop1")?;
    works(stage, score).await?;
    nothing_else(stage, score).await?;
    narrower(stage, score).await?;
    revoked(stage, score).await?;
    drop(server);
    Ok(())
}

async fn apply(stage: &Stage, accepts: &[&str]) -> Result<Applied, Trouble> {
    let path = "/v1/apply?file=with-agreements.yaml";
    stage.client.post(path, spec(accepts).into()).await
}

/// Blue gets red's page, and is told by which rules.
async fn works(stage: &Stage, score: &mut Score) -> Result<(), Trouble> {
    for url in URLS {
        shown("blue/app1", &format!("curl {url}"));
        let page = fetch(stage, "blue/app1", url).await?;
        score.line(
            page.starts_with("This is red's page.") && page.len() == PAGE,
            &format!("{} of red's page", bytes(page.len() as u64)),
        );
    }
    say("   $ bulkhead explain blue/app1 red/shop1 tcp 80");
    let path = format!(
        "/v1/explain?from={}&to={}&protocol=tcp&port=80",
        encoded("blue/app1"),
        encoded("red/shop1")
    );
    let answer: Explanation = stage.client.get(&path).await?;
    let way = answer.there.first().cloned().unwrap_or_default();
    let said: Vec<String> = way
        .verdicts
        .iter()
        .map(|v| {
            let line = v.place.as_ref().map_or(0, |place| place.line);
            format!(
                "{}'s switch by {} {} (line {line})",
                v.compartment, v.by, v.name
            )
        })
        .collect();
    let seen = way.service.unwrap_or_default();
    score.line(
        answer.allowed && answer.back.is_empty(),
        &format!(
            "allowed: {}; red sees {} come to {}; the other way round: nothing",
            said.join(", "),
            seen.source,
            seen.destination
        ),
    );
    Ok(())
}

/// Another endpoint, another port, another protocol, red's own addresses.
async fn nothing_else(stage: &Stage, score: &mut Score) -> Result<(), Trouble> {
    let curl = ["curl", "--silent", "--globoff", "--max-time", "1"];
    for (from, url) in [
        ("blue/app2", URLS[0]),
        ("blue/app2", URLS[1]),
        ("blue/app1", "http://10.1.200.10:8080/"),
        ("blue/app1", "http://10.1.3.10/"),
    ] {
        let output = stage.ask(from, &[&curl[..], &[url]].concat()).await?;
        let got = output.stdout.len();
        let text = format!("{from}$ curl {url:<25}  {got} bytes");
        score.line(!output.status.success() && got == 0, &text);
    }
    let ping = ["ping", "-n", "-c", "1", "-W", "1", "10.1.200.10"];
    let output = stage.ask("blue/app1", &ping).await?;
    let text = "blue/app1$ ping 10.1.200.10                no answer";
    score.line(!output.status.success(), text);
    Ok(())
}

/// A packet that red's link does not take: its sender is told so, across.
async fn narrower(stage: &Stage, score: &mut Score) -> Result<(), Trouble> {
    for (to, payload) in [("10.1.200.11", 1472), ("fd00:1:200::11", 1452)] {
        let send = format!("head -c {payload} /dev/zero > /dev/udp/{to}/514");
        shown("blue/app1", &format!("{send}; ip route get {to}"));
        // Its socket stays open until the error has come.
        let line = format!(
            "exec 3<>/dev/udp/{to}/514; for i in 1 2 3 4; do head -c {payload} /dev/zero >&3; sleep 0.1; done 2>/dev/null; ip route get {to}"
        );
        let output = stage.ask("blue/app1", &["bash", "-c", &line]).await?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let mtu = said.split_once(" mtu ").map_or("", |(_, rest)| {
            rest.split_whitespace().next().unwrap_or_default()
        });
        score.line(
            mtu == "1400",
            &format!(
                "blue was told: packets of {} bytes at most; red's link takes no more",
                if mtu.is_empty() { "?" } else { mtu }
            ),
        );
    }
    Ok(())
}

/// Blue takes its part out in the middle of a download.
async fn revoked(stage: &Stage, score: &mut Score) -> Result<(), Trouble> {
    title("blue takes its acceptance out in the middle of a download");
    for url in URLS {
        apply(stage, &ACCEPTS).await?;
        fetch(stage, "blue/app1", url).await?;
        let url = format!("{url}endless");
        shown("blue/app1", &format!("curl {url}"));
        let mut child = stage
            .at("blue/app1", &["curl", "--silent", "--globoff", &url])
            .stdout(Stdio::piped())
            .spawn()?;
        let revoking = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            let asked = Instant::now();
            apply(stage, &ACCEPTS[1..]).await?;
            let done = Instant::now();
            // What is on its way would come now.
            tokio::time::sleep(Duration::from_millis(500)).await;
            Ok::<_, Trouble>((asked, done))
        };
        let mut heard = Heard::default();
        let (asked, done) = tokio::select! {
            times = revoking => times?,
            // It ends only if the connection does, and then the rest fails.
            () = heard.listen(&mut child) => (Instant::now(), Instant::now()),
        };
        end(&mut child).await;
        let last = heard.last.unwrap_or(asked);
        let live = heard.bytes > 0 && last > asked - CUT;
        let after = match nanos(last, done) {
            0 => "none after it was told that it is done".to_owned(),
            some => format!("{} after it was told that it is done", nanoseconds(some)),
        };
        score.line(
            live && last <= done + CUT,
            &format!(
                "{} had come; the last byte came {} after blue asked, {after}",
                bytes(heard.bytes),
                nanoseconds(nanos(last, asked)),
            ),
        );
    }
    let output = stage
        .ask(
            "blue/app1",
            &["curl", "--silent", "--max-time", "1", URLS[0]],
        )
        .await?;
    score.line(
        !output.status.success(),
        "and a new connection gets no answer",
    );
    Ok(())
}

fn nanos(to: Instant, from: Instant) -> u64 {
    u64::try_from(to.saturating_duration_since(from).as_nanos()).unwrap_or(u64::MAX)
}

/// What came of a download.
#[derive(Default)]
struct Heard {
    bytes: u64,
    last: Option<Instant>,
}

impl Heard {
    async fn listen(&mut self, child: &mut Child) {
        let Some(mut out) = child.stdout.take() else {
            return;
        };
        let mut buffer = vec![0; 1 << 20];
        while let Ok(more @ 1..) = out.read(&mut buffer).await {
            self.bytes += more as u64;
            self.last = Some(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_each_tenant_adds_is_in_its_own_part() {
        let text = spec(&ACCEPTS);
        let (red, blue) = text.split_once("- name: blue\n").unwrap();
        for line in [SUBNET, ENDPOINT, OFFERS[0], OFFERS[1]] {
            assert_eq!(
                (red.matches(line).count(), blue.matches(line).count()),
                (1, 0)
            );
        }
        for line in ACCEPTS {
            assert_eq!(
                (red.matches(line).count(), blue.matches(line).count()),
                (0, 1)
            );
        }
        assert!(!spec(&[]).contains("accepts"));
    }
}
