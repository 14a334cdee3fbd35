//! An instance that runs a spec, the namespaces of its endpoints, and who speaks in them.

use crate::talk::{Hosts, Talk, last_heard, monotonic_ns};
use crate::{Ended, Instance};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// All of it; gone when it is dropped.
pub struct Stage {
    /// The instance.
    pub instance: Instance,
    /// What speaks.
    pub talk: Talk,
    /// The namespaces.
    pub hosts: Hosts,
    _servers: Vec<(Ended, PathBuf)>,
}

impl Stage {
    /// Runs the spec, and in these namespaces what the words say ([`Talk`]).
    pub fn of(spec: &str, servers: &[&str], words: &str) -> Stage {
        let hosts = Hosts::of(spec);
        let instance = Instance::start().unwrap();
        instance.apply(&hosts.spec).unwrap();
        let talk = Talk::new(instance.folder());
        let servers = servers.iter().map(|at| talk.start(&hosts.at(at), words));
        let servers = servers.collect();
        Stage {
            instance,
            talk,
            hosts,
            _servers: servers,
        }
    }

    /// Who the one that is asked says is asking; `None` = no answer.
    pub fn asks(&self, from: &str, words: &str) -> Option<String> {
        let said = self.talk.ask(&self.hosts.at(from), words);
        said.map(|(address, _)| address)
    }

    /// The same, tried for 5 s.
    pub fn comes_to_ask(&self, from: &str, words: &str) -> Option<String> {
        let mut said = None;
        self.instance.until(Duration::from_secs(5), |_| {
            said = self.asks(from, words);
            said.is_some()
        });
        said
    }

    /// A stream to one endpoint that comes, and where what came is written.
    pub fn stream(&self, at: &str, to: &str, port: u16) -> (Ended, PathBuf) {
        let words = format!("{to} {port}");
        assert!(self.comes_to_ask(at, &format!("tcp {words}")).is_some());
        let stream = self
            .talk
            .start(&self.hosts.at(at), &format!("stream {words}"));
        assert!(self.is_live(&stream.1), "{to}");
        stream
    }

    /// Whether something of a stream comes still, or within 5 s again.
    pub fn is_live(&self, heard: &Path) -> bool {
        let fresh = |_: &Instance| monotonic_ns().saturating_sub(last_heard(heard)) < 50_000_000;
        self.instance.until(Duration::from_secs(5), fresh)
    }

    /// Applies another spec for the same namespaces.
    pub fn apply(&self, spec: &str) {
        self.instance.apply(&self.hosts.other(spec)).unwrap();
    }
}
