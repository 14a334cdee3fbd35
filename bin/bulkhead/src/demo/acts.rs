//! The acts, in order. Each says what is tried, by which command, what came of it,
//! and whether that is what was expected.

use super::actor::Pause;
use super::attacks::{ATTACKS, Attack, FRAMES};
use super::breach::{breach, restored};
use super::crash::crash;
use super::gateway::gateway;
use super::service::service;
use super::stage::{Stage, end, ended};
use super::{SPEC, find, say};
use crate::exit::{Exit, Trouble};
use crate::table::{bytes, grouped};
use crate::verbs::up::beside;
use api::{Applied, Endpoint, Status};
use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;

/// The page has this many bytes: 11.3 KB.
pub const PAGE: usize = 11_300;
/// And the one without an end so many, all of them zero and none on the disk.
const ENDLESS: u64 = 1 << 40;
/// Where every tenant's web server is, for its own app subnet.
const WEB: [&str; 2] = ["http://10.1.1.10/", "http://[fd00:1:1:1::10]/"];

/// All acts. `true` = everything came out as expected.
pub async fn play(place: &mut Option<Stage>) -> Result<bool, Trouble> {
    let mut score = Score { good: true };
    say("Bulkhead: two tenants with the same addresses on one host.\n");
    *place = Some(Stage::set().await?);
    let Some(stage) = place.as_ref() else {
        return Ok(false);
    };
    bring_up(stage).await?;
    let servers = pages(stage, &mut score).await?;
    attacks(stage, &mut score).await?;
    crash(stage, &mut score).await?;
    liar(stage, &mut score).await?;
    service(stage, &mut score).await?;
    let beyond = gateway(stage, &mut score).await?;
    let installed = beyond.as_ref().map(|beyond| beyond.place());
    breach(stage, &mut score, installed).await?;
    restored(stage).await?;
    drop((beyond, servers));
    say(if score.good {
        "\nEverything came out as it should."
    } else {
        "\nNOT everything came out as it should: see the lines with ✗ above."
    });
    Ok(score.good)
}

/// How it goes.
pub struct Score {
    good: bool,
}

impl Score {
    /// One result line.
    pub fn line(&mut self, good: bool, text: &str) {
        self.good &= good;
        say(&format!("     {} {text}", if good { "✓" } else { "✗" }));
    }
}

/// Begins a chapter.
pub fn title(text: &str) {
    say(&format!("\n== {text}"));
}

/// The command a person would type for this.
pub fn shown(endpoint: &str, command: &str) {
    say(&format!("   {endpoint}$ {command}"));
}

async fn bring_up(stage: &Stage) -> Result<(), Trouble> {
    title("Bring up examples/two-tenants.yaml");
    say("   $ bulkhead apply examples/two-tenants.yaml");
    let applied: Applied = stage
        .client
        .post("/v1/apply?file=examples%2Ftwo-tenants.yaml", SPEC.into())
        .await?;
    say(&format!(
        "     {} changes in {:.0} ms",
        applied.plan.changes.len(),
        applied.took_us as f64 / 1000.0
    ));
    let status = stage.status().await?;
    for tenant in &status.tenants {
        let compartment = status
            .compartments
            .iter()
            .find(|c| c.id == tenant.compartment)
            .cloned()
            .unwrap_or_default();
        say(&format!(
            "     {}: a switch of its own, process {} as {}, sandboxed: {}",
            tenant.name,
            compartment.pid,
            match compartment.uid {
                0 => "the user who started this (a user namespace of one has no other)".to_owned(),
                uid => format!("uid {uid}"),
            },
            if tenant.sandbox { "yes" } else { "no" }
        ));
        for endpoint in &tenant.endpoints {
            say(&format!(
                "       {:<5} {}  {}",
                endpoint.name,
                endpoint.mac,
                endpoint.addresses.join("  ")
            ));
        }
    }
    Ok(())
}

/// Each tenant's nginx serves its page at the same addresses.
async fn pages(stage: &Stage, score: &mut Score) -> Result<Vec<Child>, Trouble> {
    title(
        "The same address, two worlds: nginx in each tenant's web subnet, curl in its app subnet",
    );
    let mut servers = Vec::new();
    for tenant in ["red", "blue"] {
        servers.push(serve(stage, tenant, "web1")?);
    }
    for tenant in ["red", "blue"] {
        for url in WEB {
            let from = format!("{tenant}/app1");
            shown(&from, &format!("curl {url}"));
            let page = fetch(stage, &from, url).await?;
            let whose = if page.starts_with("This is red's page.") {
                "red"
            } else if page.starts_with("This is blue's page.") {
                "blue"
            } else {
                "nobody"
            };
            score.line(
                whose == tenant && page.len() == PAGE,
                &format!("{} of {whose}'s page", bytes(page.len() as u64)),
            );
        }
    }
    Ok(servers)
}

/// A tenant's nginx at one of its endpoints: its page, and one without an end.
pub fn serve(stage: &Stage, tenant: &str, at: &str) -> Result<Child, Trouble> {
    let folder = stage.folder().join(format!("{tenant}-{at}"));
    fs::create_dir_all(folder.join("html"))?;
    let mut page = format!("This is {tenant}'s page.\n");
    while page.len() < PAGE {
        page.push_str("All work and no packet loss makes a dull tenant.\n");
    }
    page.truncate(PAGE);
    fs::write(folder.join("html/index.html"), page)?;
    fs::File::create(folder.join("html/endless"))?.set_len(ENDLESS)?;
    let place = folder.display();
    let config = format!(
        "daemon off; master_process off; user root; pid {place}/pid; error_log {place}/error.log;\n\
         events {{ }}\n\
         http {{ access_log off; client_body_temp_path {place}/b; proxy_temp_path {place}/p; fastcgi_temp_path {place}/f;\n\
         uwsgi_temp_path {place}/u; scgi_temp_path {place}/s;\n\
         server {{ listen 80; listen [::]:80; root {place}/html; location /endless {{ sendfile_max_chunk 8k; limit_rate 4m; }} }} }}\n"
    );
    let file = folder.join("nginx.conf");
    fs::write(&file, config)?;
    let nginx = find("nginx")
        .unwrap_or_else(|| "nginx".into())
        .display()
        .to_string();
    let mut command = stage.at(
        &format!("{tenant}/{at}"),
        &[
            &nginx,
            "-e",
            &format!("{place}/error.log"),
            "-c",
            &file.display().to_string(),
        ],
    );
    let log = fs::File::create(folder.join("nginx.log"))?;
    Ok(command.stdout(log.try_clone()?).stderr(log).spawn()?)
}

/// The page, tried for three seconds while its server starts.
pub async fn fetch(stage: &Stage, from: &str, url: &str) -> Result<String, Trouble> {
    let end = Instant::now() + Duration::from_secs(3);
    loop {
        let output = stage
            .ask(
                from,
                &["curl", "--silent", "--globoff", "--max-time", "2", url],
            )
            .await?;
        if output.status.success() || Instant::now() > end {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Blue tries to reach red; listeners at all of red's endpoints say what arrives.
async fn attacks(stage: &Stage, score: &mut Score) -> Result<(), Trouble> {
    title(&format!(
        "blue/app2 attacks red: {FRAMES} frames of each kind"
    ));
    let status = stage.status().await?;
    let mut ears = Vec::new();
    for endpoint in
        endpoints(&status, "red").chain(endpoints(&status, "blue").filter(|e| e.name == "app1"))
    {
        ears.push(
            Ear::open(
                stage,
                &format!("{}/{}", endpoint.tenant, endpoint.name),
                &endpoint.interface,
            )
            .await?,
        );
    }
    let attacker = named(&status, "blue", "app2")?;
    let victim = named(&status, "red", "web1")?;
    for attack in ATTACKS {
        one(stage, score, attack, &attacker, &victim).await?;
    }
    // What is on its way has arrived after this.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut red = 0;
    let mut blue = 0;
    for ear in ears {
        let (endpoint, heard) = ear.close().await;
        if endpoint.starts_with("red/") {
            red += heard
        } else {
            blue += heard
        }
    }
    let sent = FRAMES * ATTACKS.len() as u64;
    score.line(
        red == 0,
        &format!("red's three endpoints heard {red} of {sent} frames"),
    );
    score.line(blue >= FRAMES, &format!("(the listeners do hear: blue/app1, in blue/app2's own subnet, heard {blue}, the broadcasts)"));
    Ok(())
}

async fn one(
    stage: &Stage,
    score: &mut Score,
    attack: &Attack,
    attacker: &Endpoint,
    victim: &Endpoint,
) -> Result<(), Trouble> {
    let name = format!("{}/{}", attacker.tenant, attacker.name);
    let before = caught(
        &named(&stage.status().await?, &attacker.tenant, &attacker.name)?,
        attack,
    );
    let address = |endpoint: &Endpoint, six: bool| {
        endpoint
            .addresses
            .iter()
            .find(|a| a.contains(':') == six)
            .cloned()
            .unwrap_or_default()
    };
    let command = stage.self_at(
        &name,
        &[
            "attack",
            attack.name,
            "--interface",
            &attacker.interface,
            "--own-mac",
            &attacker.mac,
            "--own4",
            &address(attacker, false),
            "--own6",
            &address(attacker, true),
            "--victim-mac",
            &victim.mac,
            "--victim4",
            &address(victim, false),
            "--victim6",
            &address(victim, true),
        ],
    );
    let output = ended(command, attack.name).await?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        score.line(
            false,
            &format!(
                "{}: the attack could not be sent: {}",
                attack.tried,
                said.trim()
            ),
        );
        return Ok(());
    }
    if attack.caught_by.is_empty() {
        score.line(
            true,
            &format!("{:<62} stays inside blue's own subnet", attack.tried),
        );
        return Ok(());
    }
    let mut now = before;
    let end = Instant::now() + Duration::from_secs(2);
    // Bound: two seconds.
    while now < before + FRAMES && Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(10)).await;
        now = caught(
            &named(&stage.status().await?, &attacker.tenant, &attacker.name)?,
            attack,
        );
    }
    score.line(
        now >= before + FRAMES,
        &format!(
            "{:<62} {} dropped: {}",
            attack.tried,
            now - before,
            attack.caught_by.join(" or ")
        ),
    );
    Ok(())
}

fn caught(endpoint: &Endpoint, attack: &Attack) -> u64 {
    endpoint
        .counters
        .drops
        .iter()
        .filter(|drop| attack.caught_by.contains(&drop.reason.as_str()))
        .map(|drop| drop.frames)
        .sum()
}

/// A listener at an endpoint.
pub struct Ear {
    endpoint: String,
    child: Child,
    lines: tokio::io::Lines<BufReader<tokio::process::ChildStdout>>,
}

impl Ear {
    async fn open(stage: &Stage, endpoint: &str, interface: &str) -> Result<Ear, Trouble> {
        Ear::with(stage, endpoint, &["listen", "--interface", interface]).await
    }

    /// One that is started with these words.
    pub async fn with(stage: &Stage, endpoint: &str, listen: &[&str]) -> Result<Ear, Trouble> {
        let mut child = stage
            .self_at(endpoint, listen)
            .stdout(Stdio::piped())
            .spawn()?;
        let out = child
            .stdout
            .take()
            .ok_or_else(|| Trouble::new(Exit::Failed, "a listener without an output", ""))?;
        let mut lines = BufReader::new(out).lines();
        // Its first line says that it listens.
        match tokio::time::timeout(Duration::from_secs(5), lines.next_line()).await {
            Ok(Ok(Some(_))) => Ok(Ear {
                endpoint: endpoint.to_owned(),
                child,
                lines,
            }),
            _ => Err(Trouble::new(
                Exit::Failed,
                format!("no listener at {endpoint}"),
                "",
            )),
        }
    }

    /// The endpoint and how many marked frames it heard.
    async fn close(mut self) -> (String, u64) {
        end(&mut self.child).await;
        let mut heard = 0;
        while let Ok(Some(line)) = self.lines.next_line().await {
            heard += u64::from(line == "heard");
        }
        (self.endpoint, heard)
    }

    /// The longest pause between two datagrams that ended before `then`, and the longest
    /// that ended later, nanoseconds; 0 = none that was worth telling.
    pub async fn longest(mut self, then: u64) -> (u64, u64) {
        end(&mut self.child).await;
        let (mut before, mut after) = (0, 0);
        while let Ok(Some(line)) = self.lines.next_line().await {
            match Pause::read(&line) {
                Some(pause) if pause.end < then => before = pause.length.max(before),
                Some(pause) => after = pause.length.max(after),
                None => {}
            }
        }
        (before, after)
    }
}

/// Blue's switch is replaced by one that lies to the fabric in every way it can.
async fn liar(stage: &Stage, score: &mut Score) -> Result<(), Trouble> {
    title("blue's switch has been taken over: it sends every kind of lie it can to the fabric");
    let Ok(program) = beside("bulkhead-liar") else {
        say("     skipped: bulkhead-liar, a test program, is not installed; `make demo` has it");
        return Ok(());
    };
    let before = stage.status().await?;
    let mut ears = Vec::new();
    for endpoint in endpoints(&before, "red") {
        ears.push(
            Ear::open(
                stage,
                &format!("{}/{}", endpoint.tenant, endpoint.name),
                &endpoint.interface,
            )
            .await?,
        );
    }
    // Blue as before, but for the program that its compartment runs.
    let spec = SPEC.replacen(
        "  - name: blue\n",
        &format!(
            "  - name: blue\n    placement: {{ program: \"{}\" }}\n",
            program.display()
        ),
        1,
    );
    let pinging = ended(
        stage.at(
            "red/app1",
            &[
                "ping",
                "-q",
                "-n",
                "-c",
                "200",
                "-i",
                "0.01",
                "-W",
                "1",
                "10.1.1.10",
            ],
        ),
        "ping",
    );
    let lying = async {
        let _: Applied = stage
            .client
            .post(
                "/v1/apply?file=examples%2Ftwo-tenants.yaml",
                spec.clone().into(),
            )
            .await?;
        tokio::time::sleep(Duration::from_millis(2000)).await;
        stage.status().await
    };
    let (pinged, after) = tokio::join!(pinging, lying);
    let after = after?;
    let blue = compartment(&after, "blue");
    for drop in &blue.fabric_drops {
        score.line(
            true,
            &format!(
                "{:>12} frames dropped by the fabric: {}",
                grouped(drop.frames),
                drop.reason
            ),
        );
    }
    let stopped = blue.reports > 0 || !blue.fabric_drops.is_empty() || blue.restarts > 0;
    score.line(
        stopped,
        &format!(
            "its process was ended and replaced by a clean start {} times{}",
            blue.restarts,
            match blue.last_cause.as_str() {
                "" => String::new(),
                cause => format!(", last because of: {cause}"),
            }
        ),
    );
    let mut heard = 0;
    for ear in ears {
        heard += ear.close().await.1;
    }
    score.line(
        heard == 0,
        &format!("red's endpoints heard {heard} of its frames"),
    );
    let said = String::from_utf8_lossy(&pinged?.stdout).into_owned();
    let line = said
        .lines()
        .find(|line| line.contains("packet loss"))
        .unwrap_or("no ping")
        .to_owned();
    score.line(
        line.contains(" 0% packet loss"),
        &format!("red's own traffic meanwhile: {line}"),
    );
    Ok(())
}

fn endpoints<'a>(status: &'a Status, tenant: &'a str) -> impl Iterator<Item = &'a Endpoint> {
    status
        .tenants
        .iter()
        .filter(move |t| t.name == tenant)
        .flat_map(|tenant| &tenant.endpoints)
}

/// An endpoint by its tenant's name and its own.
pub fn named(status: &Status, tenant: &str, name: &str) -> Result<Endpoint, Trouble> {
    endpoints(status, tenant)
        .find(|endpoint| endpoint.name == name)
        .cloned()
        .ok_or_else(|| {
            Trouble::new(
                Exit::Failed,
                format!("the daemon names no endpoint {tenant}/{name}"),
                "",
            )
        })
}

/// A compartment by its name.
pub fn compartment(status: &Status, name: &str) -> api::Compartment {
    status
        .compartments
        .iter()
        .find(|compartment| compartment.name == name)
        .cloned()
        .unwrap_or_default()
}
