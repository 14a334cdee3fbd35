//! The act in which both tenants, from the same address inside, reach a server outside,
//! each by an address of its own.

use super::acts::{Score, shown, title};
use super::stage::{Stage, ended, finished};
use super::{SPEC, say};
use crate::client::encoded;
use crate::exit::{Exit, Trouble};
use api::{Applied, Traces};
use netlink::namespace;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

/// What the spec of this act is called in messages.
pub const FILE: &str = "with-gateway.yaml";
/// What red adds. That it has rules makes its connections tracked.
const POLICY: &str = "    policy:\n      rules:\n        - {name: no-ssh, action: deny, to: {endpoint: web1}, protocol: tcp, ports: [22]}\n";
/// Each tenant, and the address that it has outside.
const OUTSIDE: [(&str, &str); 2] = [("red", "192.0.2.10"), ("blue", "192.0.2.11")];
/// The server outside, beyond the router 192.0.2.1.
const SERVER: &str = "198.51.100.2";
const URL: &str = "http://198.51.100.2/";

/// Both tenants, red's policy, and the way outside by the interface `up0` in the network
/// namespace at `place`.
pub fn spec(place: &str) -> String {
    let (red, blue) = SPEC.split_once("\n  - name: blue\n").unwrap_or_default();
    let uplink =
        format!("uplinks:\n  - {{name: wan, interface: up0, namespace: {place}}}\n\ntenants:\n");
    let red = red.replacen("tenants:\n", &uplink, 1);
    let [ours, theirs] = OUTSIDE.map(|(_, address)| attachment(address));
    format!(
        "{}\n{POLICY}    outside:\n{ours}\n  - name: blue\n{}\n    outside:\n{theirs}",
        red.trim_end(),
        blue.trim_end()
    )
}

fn attachment(address: &str) -> String {
    format!("      - {{uplink: wan, address: [{address}/24], gateway: [192.0.2.1], nat: on}}\n")
}

/// All of it. The network outside, and that its spec is the one installed; none where this
/// host cannot show it.
pub async fn gateway(stage: &Stage, score: &mut Score) -> Result<Option<Beyond>, Trouble> {
    title("a gateway with NAT: both tenants' app1 is 10.1.2.10; outside each is somebody else");
    let beyond = match Beyond::make().await {
        Ok(beyond) => beyond,
        Err(trouble) => {
            say(&format!(
                "     skipped: this host makes no network for it: {}",
                trouble.fault.message
            ));
            return Ok(None);
        }
    };
    for (tenant, address) in OUTSIDE {
        say(&format!(
            "   {tenant:<5}  outside: [{}]",
            attachment(address).trim().trim_start_matches("- ")
        ));
    }
    let path = format!("/v1/apply?file={FILE}");
    let applied: Applied = stage
        .client
        .post(&path, spec(&beyond.place()).into())
        .await?;
    say(&format!(
        "   $ bulkhead apply {FILE}\n     {} changes in {:.0} ms",
        applied.plan.changes.len(),
        applied.took_us as f64 / 1000.0
    ));
    for (tenant, address) in OUTSIDE {
        for endpoint in ["app1", "app2"] {
            let from = format!("{tenant}/{endpoint}");
            shown(&from, &format!("curl {URL}"));
            let seen = asked(stage, &from).await?;
            score.line(
                seen.is_some_and(|seen| seen.ip().to_string() == address),
                &match seen {
                    Some(seen) => format!(
                        "the server was asked by {}, port {}",
                        seen.ip(),
                        seen.port()
                    ),
                    None => "the server was not asked".to_owned(),
                },
            );
        }
    }
    traced(stage, score).await?;
    for (tenant, address) in OUTSIDE {
        let url = format!("http://{address}/");
        shown("outside", &format!("curl {url}"));
        let output = beyond
            .ask(&["curl", "--silent", "--max-time", "1", &url])
            .await?;
        score.line(
            !output.status.success() && output.stdout.is_empty(),
            &format!("no answer: what nobody of {tenant} asked for does not come in"),
        );
    }
    Ok(Some(beyond))
}

/// How the server sees this endpoint; tried for three seconds.
async fn asked(stage: &Stage, from: &str) -> Result<Option<SocketAddr>, Trouble> {
    let end = Instant::now() + Duration::from_secs(3);
    // Bound: three seconds, and two for the last try.
    loop {
        let curl = ["curl", "--silent", "--max-time", "2", URL];
        let output = ended(stage.at(from, &curl), "curl").await?;
        let seen = String::from_utf8_lossy(&output.stdout).trim().parse().ok();
        if seen.is_some() || Instant::now() > end {
            return Ok(seen);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The same, told step by step: what is translated on the way out, and home again.
async fn traced(stage: &Stage, score: &mut Score) -> Result<(), Trouble> {
    say(&format!(
        "   $ bulkhead trace red/app1 {SERVER} tcp 80        (its translations)"
    ));
    let path = format!(
        "/v1/trace?from={}&to={SERVER}&protocol=tcp&port=80&answer=true&deliver=false",
        encoded("red/app1")
    );
    let traces: Traces = stage.client.post(&path, Vec::new()).await?;
    let Some(traced) = traces.traces.first() else {
        score.line(false, "nothing was traced");
        return Ok(());
    };
    let answer = traced.answer.iter();
    let mut told = 0;
    for way in std::iter::once(&traced.packet).chain(answer) {
        for step in way.steps.iter().filter(|step| step.step == "translation") {
            told += 1;
            let text = format!("{} to {}: {}", way.from, way.to, step.says);
            score.line(way.passed(), &text);
        }
    }
    if told < 2 {
        score.line(false, "it was not translated out and home again");
    }
    Ok(())
}

/// A network outside: a router with the uplink's other end, and a server beyond it. It is a
/// namespace without a name, which goes when the last descriptor of it does.
pub struct Beyond {
    namespace: OwnedFd,
    server: JoinHandle<()>,
}

impl Beyond {
    async fn make() -> Result<Beyond, Trouble> {
        let name = format!("bulkhead-demo-{}", std::process::id());
        let namespace = namespace::create_named(&name).map_err(std::io::Error::from)?;
        namespace::delete_named(&name).map_err(std::io::Error::from)?;
        // There is no address to listen at yet.
        let mut beyond = Beyond {
            namespace,
            server: tokio::spawn(async {}),
        };
        for line in [
            "ip link set lo up",
            "ip link add up0 type veth peer name r0",
            "ip link set up0 up",
            "ip link set r0 up",
            "ip address add 192.0.2.1/24 dev r0",
            "ip address add 198.51.100.2/32 dev lo",
        ] {
            let words: Vec<&str> = line.split(' ').collect();
            let output = beyond.ask(&words).await?;
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr);
                let what = format!("{line}: {}", said.trim());
                return Err(Trouble::new(Exit::Failed, what, ""));
            }
        }
        let bind = || std::net::TcpListener::bind((SERVER, 80));
        let listener = beyond.within(bind)??;
        listener.set_nonblocking(true)?;
        beyond.server = tokio::spawn(serve(TcpListener::from_std(listener)?));
        Ok(beyond)
    }

    /// Where its namespace is while this process has it.
    pub fn place(&self) -> String {
        format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            self.namespace.as_raw_fd()
        )
    }

    fn within<T>(&self, work: impl FnOnce() -> T) -> Result<T, Trouble> {
        Ok(namespace::within(self.namespace.as_fd(), work).map_err(std::io::Error::from)?)
    }

    /// Runs a command there to its end, at most ten seconds.
    async fn ask(&self, words: &[&str]) -> Result<std::process::Output, Trouble> {
        let (program, arguments) = words.split_first().unwrap_or((&"true", &[]));
        let mut command = Command::new(program);
        command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        // A process is born where the thread is that starts it.
        let child: Child = self.within(|| command.spawn())??;
        finished(child.wait_with_output(), &words.join(" ")).await
    }
}

impl Drop for Beyond {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Tells everybody who asks how it looks from here.
async fn serve(listener: TcpListener) {
    while let Ok((stream, who)) = listener.accept().await {
        let answer = answer(stream, who);
        let _ = tokio::time::timeout(Duration::from_secs(1), answer).await;
    }
}

async fn answer(mut stream: TcpStream, who: SocketAddr) -> std::io::Result<()> {
    let mut question = [0; 1024];
    let _ = stream.read(&mut question).await?;
    let page = format!("HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n{who}\n");
    stream.write_all(page.as_bytes()).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_tenants_are_outside_by_addresses_of_their_own() {
        let spec = spec::parse(FILE, spec("/proc/7/fd/9").as_bytes()).unwrap();
        assert_eq!(spec.uplinks.len(), 1);
        let outside: Vec<String> = (spec.tenants.iter())
            .flat_map(|tenant| &tenant.outside)
            .flat_map(|outside| &outside.address)
            .map(|located| located.value.to_string())
            .collect();
        assert_eq!(outside, ["192.0.2.10/24", "192.0.2.11/24"]);
        assert_eq!(spec.tenants[0].policy.iter().count(), 1);
        assert!(spec.tenants[1].policy.is_none());
    }
}
