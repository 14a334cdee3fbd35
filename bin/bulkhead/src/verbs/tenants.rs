//! `token`, `revoke`, `audit`: what tenants may, and who did what.

use super::as_json;
use super::change::done;
use crate::args;
use crate::client::{Client, encoded};
use crate::exit::{Exit, Trouble};
use crate::table::{Table, when};
use api::{Applied, Audit, AuditCheck, AuditEntry, NewToken, Token, Tokens};
use std::fmt::Write;

/// Makes, lists and revokes tokens.
pub async fn token(token: &args::Token, client: &Client, json: bool) -> Result<Exit, Trouble> {
    match &token.verb {
        args::TokenVerb::Create(new) => {
            let mut path = format!("/v1/tokens?tenant={}", encoded(&new.tenant));
            if let Some(name) = &new.name {
                let _ = write!(path, "&name={}", encoded(name));
            }
            if let Some(until) = new.until {
                let _ = write!(path, "&until={until}");
            }
            if new.read_only {
                path.push_str("&read_only=true");
            }
            let made: NewToken = client.post(&path, Vec::new()).await?;
            if json {
                return as_json(&made);
            }
            eprintln!(
                "token {} of {}, told only this once:",
                made.token.id, made.token.tenant
            );
            crate::print(format!("{}\n", made.text).as_bytes())
        }
        args::TokenVerb::List => {
            let tokens: Tokens = client.get("/v1/tokens").await?;
            if json {
                return as_json(&tokens);
            }
            crate::print(listed(&tokens).as_bytes())
        }
        args::TokenVerb::Revoke { id } => {
            let path = format!("/v1/tokens/{}/revoke", encoded(id));
            let token: Token = client.post(&path, Vec::new()).await?;
            if json {
                return as_json(&token);
            }
            crate::print(format!("{} of {} is revoked\n", token.id, token.tenant).as_bytes())
        }
    }
}

fn listed(tokens: &Tokens) -> String {
    let mut table = Table::new(&["ID", "TENANT", "NAME", "MAY", "MADE", "ENDS"]);
    for token in &tokens.tokens {
        let time = |seconds: u64| {
            when(seconds.saturating_mul(1000))
                .chars()
                .take(16)
                .collect()
        };
        table.row([
            token.id.clone(),
            token.tenant.clone(),
            token.name.clone(),
            if token.read_only { "look" } else { "change" }.to_owned(),
            time(token.created_s),
            match token.until_s {
                0 => "never".to_owned(),
                until => time(until),
            },
        ]);
    }
    if table.is_empty() {
        return "there are no tokens\n".to_owned();
    }
    table.to_string()
}

/// Revokes an offer or an acceptance, or takes that back.
pub async fn revoke(revoke: &args::Revoke, client: &Client, json: bool) -> Result<Exit, Trouble> {
    let args::EndpointName { tenant, endpoint } = &revoke.what;
    let undo = if revoke.undo { "?undo=true" } else { "" };
    let path = format!("/v1/revoke/{}/{}{undo}", encoded(tenant), encoded(endpoint));
    let applied: Applied = client.post(&path, Vec::new()).await?;
    if json {
        return as_json(&applied);
    }
    let state = match (revoke.undo, applied.already) {
        (true, _) => "is revoked no more",
        (false, false) => "is revoked",
        (false, true) => "was revoked already",
    };
    let mut out = format!("{tenant}/{endpoint} {state}\n");
    if !applied.plan.changes.is_empty() {
        out.push_str(&done(&applied));
    }
    crate::print(out.as_bytes())
}

/// The audit log: JSON lines with `--json`.
pub async fn audit(wanted: &args::Audit, client: &Client, json: bool) -> Result<Exit, Trouble> {
    if wanted.check {
        let check: AuditCheck = client.get("/v1/audit/check").await?;
        let exit = if check.whole { Exit::Done } else { Exit::No };
        if json {
            as_json(&check)?;
        } else {
            crate::print(checked(&check).as_bytes())?;
        }
        return Ok(exit);
    }
    let mut path = format!("/v1/audit?most={}", wanted.most);
    for (word, value) in [("since", wanted.since), ("until", wanted.until)] {
        if let Some(value) = value {
            let _ = write!(path, "&{word}={value}");
        }
    }
    if let Some(tenant) = &wanted.tenant {
        let _ = write!(path, "&tenant={}", encoded(tenant));
    }
    let audit: Audit = client.get(&path).await?;
    let mut out = String::new();
    for entry in &audit.entries {
        match json {
            true => out.push_str(&serde_json::to_string(entry).unwrap_or_default()),
            false => out.push_str(&told(entry)),
        }
        out.push('\n');
    }
    crate::print(out.as_bytes())
}

fn checked(check: &AuditCheck) -> String {
    if check.whole {
        return match check.entries {
            0 => "the audit log is empty\n".to_owned(),
            _ => format!(
                "whole: {} entries, {} to {}; the newest has the digest {}\n",
                check.entries, check.first, check.last, check.head
            ),
        };
    }
    let at: Vec<String> = check.broken.iter().map(u64::to_string).collect();
    format!("NOT whole: broken at entry {}\n", at.join(", "))
}

fn told(entry: &AuditEntry) -> String {
    let mut who = match (entry.uid, entry.pid) {
        (Some(uid), Some(pid)) => format!("uid {uid} pid {pid}"),
        (Some(uid), None) => format!("uid {uid}"),
        (None, _) => "-".to_owned(),
    };
    if !entry.token.is_empty() {
        let _ = write!(who, " token {}", entry.token);
    }
    let mut out = format!(
        "{}  {:<14} {:<14} {} [{}] {}",
        when(entry.time_ms),
        who,
        entry.kind,
        entry.object,
        entry.tenants.join(", "),
        entry.outcome
    );
    for line in &entry.details {
        let _ = write!(out, "\n    {line}");
    }
    out
}
