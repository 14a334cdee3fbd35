//! `trace`: a packet sent for real, told step by step; or live traffic as text.

use super::as_json;
use super::live;
use crate::args::Trace;
use crate::client::{Client, encoded};
use crate::exit::{Exit, Trouble};
use crate::table::Table;
use api::{Passage, Step, Traced, Traces};
use std::fmt::Write;

/// Sends a packet, or follows live ones; done = the packet and its answer came through.
pub async fn trace(trace: &Trace, client: &Client, json: bool) -> Result<Exit, Trouble> {
    if trace.live {
        return live::follow(trace.endpoint.as_deref(), trace.drops, client, json).await;
    }
    let Some(from) = &trace.from else {
        return Err(Trouble::new(
            Exit::Usage,
            "from whom?",
            "e.g. bulkhead trace red/app1 red/web1 tcp 443; --live follows what others send",
        ));
    };
    let traces: Traces = client.post(&path(from, trace), Vec::new()).await?;
    if json {
        as_json(&traces)?;
    } else {
        crate::print(rendered(&traces).as_bytes())?;
    }
    Ok(if traces.passed { Exit::Done } else { Exit::No })
}

fn path(from: &str, trace: &Trace) -> String {
    let mut path = format!(
        "/v1/trace?from={}&answer={}&deliver={}",
        encoded(from),
        trace.answer == crate::args::YesNo::Yes,
        trace.deliver
    );
    for (key, word) in [
        ("to", &trace.to),
        ("protocol", &trace.protocol),
        ("port", &trace.port),
        ("packet", &trace.packet),
    ] {
        if let Some(word) = word {
            path += &format!("&{key}={}", encoded(word));
        }
    }
    if let Some(port) = trace.source_port {
        path += &format!("&source_port={port}");
    }
    if let Some(size) = trace.size {
        path += &format!("&size={size}");
    }
    path
}

fn rendered(traces: &Traces) -> String {
    let mut out = String::new();
    for (at, traced) in traces.traces.iter().enumerate() {
        if at > 0 {
            out.push('\n');
        }
        one(&mut out, traced);
    }
    out
}

fn one(out: &mut String, traced: &Traced) {
    passage(out, "", &traced.packet);
    if let Some(answer) = &traced.answer {
        passage(out, "the answer, ", answer);
    }
    if !traced.unanswered.is_empty() {
        let _ = writeln!(out, "no answer: {}", traced.unanswered);
    }
}

fn passage(out: &mut String, what: &str, way: &Passage) {
    let Passage {
        packet,
        from,
        to,
        bytes,
        ..
    } = way;
    let end = match way.outcome.as_str() {
        "held" => format!("comes out at {to}, and is held back there"),
        "delivered" => format!("delivered to {to}"),
        "answered" => "answered by the switch itself".into(),
        "absorbed" => "for the switch itself, which stays silent".into(),
        "flooded" => "goes to many".into(),
        _ if way.reason.is_empty() => format!("DROPPED: {}", way.explain),
        _ => format!("DROPPED: {}", way.reason),
    };
    let _ = writeln!(out, "{what}{packet}, {bytes} bytes, from {from}: {end}");
    let mut table = Table::new(&["AT", "STEP", "SAYS", "BY", "WRITTEN AT"]);
    for step in &way.steps {
        table.row(row(step));
    }
    for line in table.to_string().lines() {
        let _ = writeln!(out, "  {line}");
    }
}

fn row(step: &Step) -> [String; 5] {
    [
        step.at.clone(),
        step.step.clone(),
        step.says.clone(),
        match step.by.as_str() {
            "" => "-".into(),
            by => format!("{by} {}", step.name),
        },
        match &step.place {
            Some(at) => format!("{}:{}:{}", at.file, at.line, at.column),
            None => "-".into(),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::Where;

    #[test]
    fn it_reads_as_a_way() {
        let step = |at: &str, step: &str, says: &str| Step {
            at: at.into(),
            step: step.into(),
            says: says.into(),
            ..Step::default()
        };
        let denied = Step {
            by: "rule".into(),
            name: "no-web".into(),
            place: Some(Where {
                file: "a.yaml".into(),
                line: 7,
                column: 3,
            }),
            ..step("red", "rule", "to red/web1: deny")
        };
        let packet = Passage {
            from: "red/app1".into(),
            packet: "tcp 10.1.2.11:61000 to 10.1.1.10:443 syn".into(),
            bytes: 54,
            to: "red/web1".into(),
            outcome: "held".into(),
            steps: vec![step("red", "parse", "well-formed")],
            ..Passage::default()
        };
        let answer = Passage {
            outcome: "dropped".into(),
            reason: "ingress-rule".into(),
            steps: vec![denied],
            ..packet.clone()
        };
        let shown = rendered(&Traces {
            passed: false,
            traces: vec![Traced {
                packet,
                answer: Some(answer),
                unanswered: String::new(),
            }],
        });
        for part in [
            "tcp 10.1.2.11:61000 to 10.1.1.10:443 syn, 54 bytes, from red/app1: comes out at red/web1, and is held back there\n",
            "  red  parse  well-formed  -   -\n",
            "the answer, tcp",
            "DROPPED: ingress-rule\n",
            "to red/web1: deny  rule no-web  a.yaml:7:3\n",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
    }
}
