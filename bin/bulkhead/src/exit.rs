//! How a verb ends: exit codes that scripts can rely on.

use api::Fault;
use std::process::ExitCode;

/// How a verb ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Done = 0,
    /// Failed.
    Failed = 1,
    /// Wrong usage, or a spec with errors.
    Usage = 2,
    /// The daemon is not running.
    NotRunning = 3,
    /// Not allowed.
    Denied = 4,
    /// This host cannot keep Bulkhead's promises.
    Refused = 5,
    /// What was asked has the answer no.
    No = 6,
    /// `run`: the program is there and cannot be executed, as a shell says it.
    NotExecutable = 126,
    /// `run`: there is no such program.
    NoProgram = 127,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

impl Exit {
    /// Of a program that was not executed for this.
    pub fn of_program(error: &std::io::Error) -> Exit {
        match error.kind() {
            std::io::ErrorKind::NotFound => Exit::NoProgram,
            _ => Exit::NotExecutable,
        }
    }
}

/// What is said of who may have too few.
pub const DESCRIPTORS: &str =
    "this process may have too few descriptors open: raise `ulimit -n` where it is started";

/// Why a verb ended badly, before it is shown.
#[derive(Debug)]
pub struct Trouble {
    /// What to exit with.
    pub exit: Exit,
    /// What to say.
    pub fault: Fault,
    /// Rendered with its snippet already, for people; empty = render the fault.
    pub rendered: String,
}

impl Trouble {
    /// A failure with a sentence and advice.
    pub fn new(exit: Exit, message: impl Into<String>, help: impl Into<String>) -> Trouble {
        let whose = match exit {
            Exit::Usage
            | Exit::NotRunning
            | Exit::Denied
            | Exit::NotExecutable
            | Exit::NoProgram => api::Whose::User,
            Exit::Refused => api::Whose::Host,
            Exit::Done | Exit::Failed | Exit::No => api::Whose::Bulkhead,
        };
        let code = match exit {
            Exit::Usage => "usage",
            Exit::NotRunning => "not-running",
            Exit::Denied => "denied",
            Exit::Refused => "host",
            Exit::NotExecutable | Exit::NoProgram => "program",
            Exit::Done | Exit::Failed | Exit::No => "failed",
        };
        Trouble {
            exit,
            fault: Fault::new(code, whose, message, help),
            rendered: String::new(),
        }
    }

    /// What is wrong with the words that a verb was given, as it is said to people: a sentence, and what may be meant.
    pub fn of_words(error: &clap::Error) -> Trouble {
        let text = error.render().to_string();
        let mut parts = text
            .split("\n\n")
            .map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "));
        let first = parts.next().unwrap_or_default();
        // Without it there is the whole help, where nothing is said but a verb that needs more.
        let message = first
            .strip_prefix("error: ")
            .unwrap_or("what to do is not said");
        let help: Vec<String> = parts
            .filter(|part| part.starts_with("Usage: ") || part.starts_with("tip: "))
            .chain(["see `--help` behind the verb".to_owned()])
            .collect();
        Trouble::new(Exit::Usage, message, help.join("\n"))
    }

    /// What this host, or what the caller may have of it, does not let be done now.
    pub fn of_host(message: impl Into<String>, help: impl Into<String>) -> Trouble {
        Trouble {
            exit: Exit::Failed,
            fault: Fault::new("host", api::Whose::Host, message, help),
            rendered: String::new(),
        }
    }

    /// What this process tried for itself, and the kernel refused. `what`: on what, or nothing.
    pub fn of_own(what: &str, error: &std::io::Error) -> Trouble {
        let sentence = match what {
            "" => error.to_string(),
            what => format!("{what}: {error}"),
        };
        match error.raw_os_error() {
            Some(libc::EMFILE) => Trouble::of_host(sentence, DESCRIPTORS),
            _ => Trouble::new(Exit::Failed, sentence, ""),
        }
    }

    /// Shows it on standard error, or as JSON on standard output.
    pub fn show(&self, json: bool) {
        if json {
            println!(
                "{}",
                serde_json::to_string_pretty(&self.fault).unwrap_or_default()
            );
        } else if self.rendered.is_empty() {
            eprintln!("bulkhead: {}", self.fault);
            for finding in &self.fault.findings {
                let place = &finding.place;
                match place.line {
                    // It has no place in the spec: a breach of the tables.
                    0 => eprintln!("  {}", finding.message),
                    _ => eprintln!(
                        "  {}:{}:{}: {}",
                        place.file, place.line, place.column, finding.message
                    ),
                }
                if !finding.help.is_empty() {
                    eprintln!("    help: {}", finding.help);
                }
            }
        } else {
            eprint!("{}", self.rendered);
        }
    }
}

impl From<Fault> for Trouble {
    fn from(fault: Fault) -> Trouble {
        let exit = match fault.code.as_str() {
            "spec" | "request" | "too-large" => Exit::Usage,
            "denied" | "unauthenticated" => Exit::Denied,
            // A namespace that is not there, say, is the user's to make.
            "host" if fault.whose == api::Whose::Host => Exit::Refused,
            _ => Exit::Failed,
        };
        Trouble {
            exit,
            fault,
            rendered: String::new(),
        }
    }
}

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Trouble {
        Trouble::of_own("", &error)
    }
}
