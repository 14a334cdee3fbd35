//! The command line.

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use std::path::PathBuf;

/// Where the daemon's socket is unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/bulkhead/api.sock";

/// Secure multi-tenant networking for shared hosts.
#[derive(Debug, Parser)]
#[command(name = "bulkhead", version, max_term_width = 100, after_help = EXITS, disable_help_subcommand = true)]
pub struct Cli {
    /// The daemon's API socket
    #[arg(
        long,
        global = true,
        value_name = "PATH",
        help = "The daemon's API socket [env: BULKHEAD_SOCKET] [default: /run/bulkhead/api.sock]",
        default_value_os_t = socket_unsaid(),
        hide_default_value = true
    )]
    pub socket: PathBuf,
    /// Ask as a tenant, with the token in this file or in BULKHEAD_TOKEN: for what is its own
    #[arg(long, global = true, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Machine-readable output: the API's JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// What to do
    #[command(subcommand)]
    pub verb: Verb,
}

/// Where the daemon's socket is unless the command line says so.
pub fn socket_unsaid() -> PathBuf {
    set("BULKHEAD_SOCKET", DEFAULT_SOCKET)
}

/// What a variable says, or the default. By clap's own `env` usage lines would demand the option
/// where the variable is set, as if it had been given.
fn set(variable: &str, default: &str) -> PathBuf {
    std::env::var_os(variable)
        .unwrap_or_else(|| default.into())
        .into()
}

const EXITS: &str = "Exit codes: 0 done, 1 failed, 2 wrong usage or a spec with errors, 3 the daemon is not running, \
4 not allowed, 5 this host cannot keep Bulkhead's promises (doctor), 6 the answer is no (explain, trace, audit --check).";

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Start the daemon
    Up(Up),
    /// Show what applying a spec would change, and what it needs; with a token a tenant's own document
    Plan(SpecFile),
    /// Make the host as a spec says, with a token as a tenant's own document says; does nothing when it is already
    Apply(SpecFile),
    /// Take down all tenants; with --stop also the daemon
    Down(Down),
    /// What exists and how it is
    Status,
    /// Live rates by tenant, endpoint and drop reason
    Top(Top),
    /// Connections just now, the busiest first
    Flows(Flows),
    /// Circuits just now: by what their bytes go, how old they are, what is counted; or cut one
    ///
    /// KIND is kernel, ring (memory that both programs share), metered (a process that counts and
    /// keeps rates: only of these bytes are known) or proxied (TCP to who has packets). With --listeners
    /// it is who waits for whoever comes that is listed, as by `ss -lntu` elsewhere.
    Circuits(Circuits),
    /// What each rule of a tenant decided: connections let begin, packets denied
    Rules(Rules),
    /// What tenants and endpoints used: packets, bytes, connections, processor, memory
    ///
    /// Kept by the hour. A tenant's own row has what crossed the fabric, by the fabric's count, and
    /// the processor time and memory of its switch; its endpoints' rows are their switch's count.
    Usage(Usage),
    /// Why an endpoint does, or does not, work
    Why(Endpoint),
    /// Whether A may begin to talk to B, by which rule, at which switch; exit code 6 = it may not
    Explain(Explain),
    /// The table image that a compartment forwards by, decoded
    Dump(Dump),
    /// Prove anew that the table images in use are what was applied and keep tenants apart
    Verify(Verify),
    /// Run a command inside an endpoint: in its network namespace, or with circuits for its sockets
    ///
    /// In an endpoint of circuits the command, and all that it starts, has no packets: what it
    /// does with sockets is answered by the tenant's operator. See docs/circuits.md.
    Run(Run),
    /// Run a container whose sockets are circuits: crun or runc, on a bundle that names an endpoint
    ///
    /// What follows -- goes to the runtime. Before `create` and `run` the bundle's config.json is
    /// made to join the endpoint, and its seccomp profile to notify the operator. As `bulkhead-oci` it is
    /// a runtime for podman and others, and the annotation bulkhead.endpoint says which endpoint.
    /// See docs/circuits.md.
    Oci(Oci),
    /// Send a packet for real and tell each step of its way, and of its answer's; or follow live traffic
    ///
    /// The packet is put in at FROM's port of the running switch as if its workload had sent it, and goes
    /// the way of any other: guard, rate, route, rules and connections, translation, fabric, the other
    /// switch. Where it comes out it is held back, unless --deliver is given; what would answer it is then
    /// sent back the same way. Nothing is counted, and connections that it began are forgotten at the end.
    /// Exit code 6 = the packet or its answer was dropped. With a token from the tenant's own
    /// endpoints, and of what crosses to another tenant only whether it came out.
    Trace(Trace),
    /// Frames as pcapng, circuits as TCP: live, or drops only with their reason
    ///
    /// One capture a compartment at a time. Frames are cut to --snap bytes; the filter runs
    /// here, after that. Drops by the fabric are not in it: see `why`. It ends when the switch or
    /// the meter dies. Frames that came too fast to be written are counted (isb_ifdrop). Circuits
    /// that begin meanwhile go by the meter, and are TCP connections here; of those that were there
    /// before it is said which are not seen.
    Capture(Capture),
    /// What happens, as it happens: deaths of switches and proxies, restarts, quarantines, applies
    ///
    /// An operator of circuits that dies is none: `status` counts those that came after another.
    Events(Events),
    /// Lift the quarantine of an endpoint, of a compartment, or of what killed the fabric
    Release(Release),
    /// Revoke an offer or an acceptance at once; with --undo take that back
    ///
    /// It then counts as not stated, whatever is applied by others, until it is taken back or the
    /// tenant applies its own document anew. Live connections end.
    Revoke(Revoke),
    /// Tenants' tokens: make, list, revoke
    Token(Token),
    /// Who did what, when, and what came of it
    ///
    /// With --json one JSON object a line. With a token only what concerns its tenant.
    Audit(Audit),
    /// Two tenants, attacks, a crash: shown on this machine, then cleaned up
    Demo(Demo),
    /// What this kernel offers, what needs it, and what is lost without it
    Doctor,
    /// Measure: arguments go to bulkhead-bench
    #[command(disable_help_flag = true)]
    Bench(Bench),
    /// Sends the demo's attacks
    #[command(hide = true)]
    Attack(Attack),
    /// Listens for the demo's attacks
    #[command(hide = true)]
    Listen(Listen),
    /// Completion script for a shell
    Completion {
        /// The shell
        shell: Shell,
    },
    /// Write the man pages into a folder
    Man {
        /// The folder; made where it is missing
        folder: PathBuf,
    },
}

/// A spec.
#[derive(Debug, Args)]
pub struct SpecFile {
    /// The spec (YAML); `-` = standard input
    pub file: PathBuf,
}

/// Starting the daemon.
#[derive(Debug, Args)]
pub struct Up {
    /// Sockets and locks go here
    #[arg(long, default_value = "/run/bulkhead")]
    pub run_dir: PathBuf,
    /// What must survive a reboot goes here
    #[arg(long, default_value = "/var/lib/bulkhead")]
    pub state_dir: PathBuf,
    /// In a user namespace, without root; says what is weaker
    #[arg(long)]
    pub rootless: bool,
    /// The z3 that is asked what the proof's own engine does not settle; default: /usr/bin/z3
    #[arg(long, value_name = "FILE")]
    pub solver: Option<PathBuf>,
    /// What is installed is proved anew so often; default: 60
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub prove_every: Option<u32>,
    /// This user may change things too, beside root
    #[arg(long, value_name = "UID", value_parser = numbered)]
    pub owner: Option<u32>,
    /// Who has this group as its primary one may look
    #[arg(long, value_name = "GID", value_parser = numbered)]
    pub readers: Option<u32>,
    /// How long the audit log is kept; default: 400
    #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..))]
    pub audit_days: Option<u32>,
    /// How many entries of it, at most; default: 100000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(16..))]
    pub audit_entries: Option<u32>,
    /// Return once the API answers, leave the daemon running; it prints to `log` in the run directory
    #[arg(long)]
    pub detach: bool,
}

/// Taking down.
#[derive(Debug, Args)]
pub struct Down {
    /// End the daemon too
    #[arg(long)]
    pub stop: bool,
}

/// Rates.
#[derive(Debug, Args)]
pub struct Top {
    /// Two samples an interval apart, then end
    #[arg(long)]
    pub once: bool,
    /// Seconds between samples
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS", value_parser = interval)]
    pub interval: f64,
    /// Only this tenant
    #[arg(long)]
    pub tenant: Option<String>,
}

/// Connections.
#[derive(Debug, Args)]
pub struct Flows {
    /// TENANT/ENDPOINT: only those that it has a side of
    pub endpoint: Option<EndpointName>,
    /// So many at most
    #[arg(long, short = 'n', default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub most: u32,
}

/// Circuits.
#[derive(Debug, Args)]
#[command(
    override_usage = "bulkhead circuits [OPTIONS] [ENDPOINT]\n       bulkhead circuits cut <ID>"
)]
pub struct Circuits {
    /// TENANT/ENDPOINT: only those that it has a side of
    pub endpoint: Option<EndpointName>,
    /// So many at most
    #[arg(long, short = 'n', default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub most: u32,
    /// Sockets that listen, and those of UDP that are bound and not connected
    #[arg(long, short)]
    pub listeners: bool,
    /// What to do instead of listing them
    #[command(subcommand)]
    pub verb: Option<CircuitVerb>,
}

/// What is done to a circuit.
#[derive(Debug, Subcommand)]
pub enum CircuitVerb {
    /// End a circuit: both its programs find it over
    Cut {
        /// Its id, as the list has it
        #[arg(value_parser = circuit)]
        id: String,
    },
}

/// A tenant's rules.
#[derive(Debug, Args)]
pub struct Rules {
    /// The tenant
    pub tenant: String,
}

/// What was used.
#[derive(Debug, Args)]
pub struct Usage {
    /// Hours that begin from here on: 2026-11-21, 2026-11-21T14, or seconds since 1970 (UTC); default: all that is kept
    #[arg(long, value_name = "TIME", value_parser = crate::table::moment)]
    pub from: Option<u64>,
    /// Hours that begin before this; default: up to now
    #[arg(long, value_name = "TIME", value_parser = crate::table::moment)]
    pub to: Option<u64>,
    /// Only this tenant
    #[arg(long)]
    pub tenant: Option<String>,
    /// As CSV, figures in full
    #[arg(long)]
    pub csv: bool,
}

/// An endpoint.
#[derive(Debug, Args)]
pub struct Endpoint {
    /// TENANT/ENDPOINT
    pub endpoint: EndpointName,
}

/// A question about two.
#[derive(Debug, Args)]
pub struct Explain {
    /// Who begins: TENANT/ENDPOINT, an address, or `outside`
    pub from: String,
    /// With whom, in the same words, or TENANT/ACCEPTANCE
    pub to: String,
    /// tcp, udp, icmp, icmp6, sctp or a number; without it a ping
    pub protocol: Option<String>,
    /// The destination port; of icmp a name, a type, or type/code
    pub port: Option<String>,
    /// The source port of tcp or udp
    #[arg(long, value_name = "PORT", default_value_t = 49_152)]
    pub source_port: u16,
}

/// Decoding an image.
#[derive(Debug, Args)]
pub struct Dump {
    /// A compartment's name or id; `fabric` for the fabric
    #[arg(default_value = "fabric")]
    pub compartment: String,
}

/// A proof.
#[derive(Debug, Args)]
pub struct Verify {
    /// Prove that tenants are kept apart whatever the switch of this compartment (its name,
    /// or a tenant's in it) does
    #[arg(long, value_name = "COMPARTMENT")]
    pub compromised: Option<String>,
}

/// A command in a namespace.
#[derive(Debug, Args)]
pub struct Run {
    /// TENANT/ENDPOINT
    #[arg(long, short)]
    pub endpoint: EndpointName,
    /// With circuits: the user that the command is to run as: one of /etc/passwd by name or number, or UID:GID
    #[arg(long, short)]
    pub user: Option<String>,
    /// With circuits: load the library that has connections to others who do so go by memory that
    /// both share (a static program goes on without it)
    #[arg(long)]
    pub rings: bool,
    /// The command and its arguments
    #[arg(last = true, required = true)]
    pub command: Vec<std::ffi::OsString>,
}

/// A container.
#[derive(Debug, Args)]
pub struct Oci {
    /// TENANT/ENDPOINT; without it the bundle's annotation bulkhead.endpoint says it
    #[arg(long, short)]
    pub endpoint: Option<EndpointName>,
    /// The runtime that does the work
    #[arg(
        long,
        value_name = "PROGRAM",
        help = "The runtime that does the work [env: BULKHEAD_OCI_RUNTIME] [default: crun]",
        default_value_os_t = set("BULKHEAD_OCI_RUNTIME", "crun"),
        hide_default_value = true
    )]
    pub runtime: PathBuf,
    /// The runtime's own arguments
    #[arg(last = true, required = true)]
    pub arguments: Vec<std::ffi::OsString>,
}

/// A packet to trace, or live traffic.
#[derive(Debug, Args)]
pub struct Trace {
    /// Who sends it: TENANT/ENDPOINT
    #[arg(required_unless_present = "live", conflicts_with = "live")]
    pub from: Option<String>,
    /// To whom: TENANT/ENDPOINT, TENANT/ACCEPTANCE, an address, or `outside`
    #[arg(required_unless_present_any = ["live", "packet"], conflicts_with_all = ["live", "packet"])]
    pub to: Option<String>,
    /// tcp, udp, icmp, icmp6, sctp or a number; without it a ping
    #[arg(conflicts_with_all = ["live", "packet"])]
    pub protocol: Option<String>,
    /// The destination port; of icmp a name, a type, or type/code
    #[arg(conflicts_with_all = ["live", "packet"])]
    pub port: Option<String>,
    /// The source port of tcp or udp; default: one that no workload has
    #[arg(long, value_name = "PORT", conflicts_with_all = ["live", "packet"])]
    pub source_port: Option<u16>,
    /// Bytes of the IP packet; default: the least
    #[arg(long, value_name = "BYTES", conflicts_with_all = ["live", "packet"])]
    pub size: Option<u32>,
    /// Send this whole Ethernet frame instead, in hexadecimal digits
    #[arg(long, value_name = "HEX", conflicts_with = "live")]
    pub packet: Option<String>,
    /// Whether what would answer it is sent too
    #[arg(
        long,
        value_name = "YES|NO",
        default_value = "yes",
        hide_possible_values = true,
        conflicts_with = "live"
    )]
    pub answer: YesNo,
    /// Deliver the packet, and the answer, where they come out
    #[arg(long, conflicts_with = "live")]
    pub deliver: bool,
    /// Follow live traffic instead, one line a frame, until interrupted; --json: one object a line
    #[arg(long)]
    pub live: bool,
    /// Live: only of this TENANT/ENDPOINT, or TENANT for all of its compartment
    #[arg(long, short, requires = "live")]
    pub endpoint: Option<String>,
    /// Live: only what is dropped, with the rule that denied it
    #[arg(long, requires = "live")]
    pub drops: bool,
}

/// A word for yes or no.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum YesNo {
    /// Yes.
    Yes,
    /// No.
    No,
}

/// A capture.
#[derive(Debug, Args)]
pub struct Capture {
    /// TENANT/ENDPOINT, or TENANT for all of its compartment (its other tenants too); needed where
    /// there are several compartments
    #[arg(long, short)]
    pub endpoint: Option<String>,
    /// Only frames that were dropped, each with the reason as its comment
    #[arg(long)]
    pub drops: bool,
    /// Packets alone: no circuit is metered for it
    #[arg(long)]
    pub no_circuits: bool,
    /// Only frames that match: `tcp`, `udp`, `icmp`, `arp`, `ip`, `ip6`, `host ADDRESS`, `port NUMBER`, joined by `and`
    #[arg(long, short, value_name = "EXPRESSION")]
    pub filter: Option<String>,
    /// Bytes of each frame to keep, 64 to 65535
    #[arg(long, default_value_t = 256, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(64..=65_535))]
    pub snap: u32,
    /// End after so many frames
    #[arg(long, short = 'c', value_name = "FRAMES", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Write to a file instead of standard output
    #[arg(long, short, value_name = "FILE")]
    pub write: Option<PathBuf>,
}

/// Happenings.
#[derive(Debug, Args)]
pub struct Events {
    /// Begin with so many of the last that are kept (4,096 at most)
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub last: u32,
}

/// Lifting a quarantine.
#[derive(Debug, Args)]
pub struct Release {
    /// TENANT/ENDPOINT, a compartment's name, or `fabric`
    pub what: String,
}

/// Ending an agreement.
#[derive(Debug, Args)]
pub struct Revoke {
    /// TENANT/OFFER or TENANT/ACCEPTANCE
    pub what: EndpointName,
    /// Take the revocation back
    #[arg(long)]
    pub undo: bool,
}

/// Tokens.
#[derive(Debug, Args)]
pub struct Token {
    /// What to do
    #[command(subcommand)]
    pub verb: TokenVerb,
}

/// What is done with tokens.
#[derive(Debug, Subcommand)]
pub enum TokenVerb {
    /// Make a token of a tenant and print it, this once
    Create(NewToken),
    /// The tokens that there are
    List,
    /// Revoke a token: what it has under way ends
    Revoke {
        /// Its id, see `token list`
        id: String,
    },
}

/// A new token.
#[derive(Debug, Args)]
pub struct NewToken {
    /// Whose it is to be
    pub tenant: String,
    /// What it is called, for people
    #[arg(long)]
    pub name: Option<String>,
    /// When it ends: 2026-11-21, 2026-11-21T14, or seconds since 1970 (UTC); default: never
    #[arg(long, value_name = "TIME", value_parser = crate::table::moment)]
    pub until: Option<u64>,
    /// It may only look
    #[arg(long)]
    pub read_only: bool,
}

/// The audit log.
#[derive(Debug, Args)]
pub struct Audit {
    /// From then on: 2026-11-21, 2026-11-21T14, or seconds since 1970 (UTC); default: all that is kept
    #[arg(long, value_name = "TIME", value_parser = crate::table::moment)]
    pub since: Option<u64>,
    /// Before then; default: up to now
    #[arg(long, value_name = "TIME", value_parser = crate::table::moment)]
    pub until: Option<u64>,
    /// Only what concerns this tenant
    #[arg(long)]
    pub tenant: Option<String>,
    /// The last so many
    #[arg(long, short = 'n', default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub most: u32,
    /// Say whether the log is whole instead; exit code 6 = it is not
    #[arg(long, conflicts_with_all = ["since", "until", "tenant", "most"])]
    pub check: bool,
}

/// The demonstration.
#[derive(Debug, Args)]
pub struct Demo {
    /// In a user namespace even when started by root
    #[arg(long)]
    pub rootless: bool,
    /// Leave everything running at the end, for looking around
    #[arg(long)]
    pub keep: bool,
}

/// A bench.
#[derive(Debug, Args)]
pub struct Bench {
    /// For bulkhead-bench
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub arguments: Vec<std::ffi::OsString>,
}

/// One attack, sent from inside a namespace.
#[derive(Debug, Args)]
pub struct Attack {
    /// Its name
    pub name: String,
    /// Where to send
    #[arg(long)]
    pub interface: String,
    /// The attacker's MAC
    #[arg(long)]
    pub own_mac: Mac,
    /// The attacker's IPv4 address
    #[arg(long)]
    pub own4: std::net::Ipv4Addr,
    /// The attacker's IPv6 address
    #[arg(long)]
    pub own6: std::net::Ipv6Addr,
    /// The victim's MAC
    #[arg(long)]
    pub victim_mac: Mac,
    /// The victim's IPv4 address
    #[arg(long)]
    pub victim4: std::net::Ipv4Addr,
    /// The victim's IPv6 address
    #[arg(long)]
    pub victim6: std::net::Ipv6Addr,
}

/// A listener inside a namespace.
#[derive(Debug, Args)]
pub struct Listen {
    /// Where to listen
    #[arg(long)]
    pub interface: String,
    /// Instead: the time between neighbours of iperf3's datagrams to this port
    #[arg(long)]
    pub gaps: Option<u16>,
}

/// A MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mac(pub [u8; 6]);

impl std::str::FromStr for Mac {
    type Err = String;
    fn from_str(text: &str) -> Result<Mac, String> {
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().unwrap_or_default();
            *byte = u8::from_str_radix(part, 16).map_err(|_| format!("`{text}` is not a MAC"))?;
        }
        parts
            .next()
            .map_or(Ok(Mac(bytes)), |_| Err(format!("`{text}` is not a MAC")))
    }
}

/// `TENANT/ENDPOINT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointName {
    /// Tenant's name.
    pub tenant: String,
    /// Endpoint's name.
    pub endpoint: String,
}

impl std::str::FromStr for EndpointName {
    type Err = String;
    fn from_str(text: &str) -> Result<EndpointName, String> {
        match text.split_once('/') {
            Some((tenant, endpoint))
                if !tenant.is_empty() && !endpoint.is_empty() && !endpoint.contains('/') =>
            {
                Ok(EndpointName {
                    tenant: tenant.into(),
                    endpoint: endpoint.into(),
                })
            }
            _ => Err(format!("`{text}` is not TENANT/NAME, e.g. red/web1")),
        }
    }
}

impl std::fmt::Display for EndpointName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.tenant, self.endpoint)
    }
}

/// The number of a user or group that can be told from others.
fn numbered(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(65_534) => Err(
            "65534 (nobody, nogroup) stands for everybody who has no number here: it is never let in"
                .into(),
        ),
        Ok(number) => Ok(number),
        Err(error) => Err(error.to_string()),
    }
}

/// The id of a circuit: its compartment's number and its own.
fn circuit(text: &str) -> Result<String, String> {
    let numbers = text.split_once('-');
    match numbers.map(|(at, id)| (at.parse::<u32>(), id.parse::<u64>())) {
        Some((Ok(_), Ok(_))) => Ok(text.to_owned()),
        _ => Err(format!(
            "`{text}` is no id of a circuit, e.g. 1-7: see `bulkhead circuits`"
        )),
    }
}

fn interval(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("from 0.1 to 3600 seconds".into()),
    }
}
