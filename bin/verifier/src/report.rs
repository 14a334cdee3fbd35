//! Breaches as JSON: `[{"slot": 3, "what": "...", "asked": ["FILE", LINE]}]`; `asked` where it
//! is what somebody asks for by `reach` that does not hold, or cannot be proved.

use proof::Breach;
use serde_json::json;

/// Bytes of a report, at most; the confined process may write no longer file.
const MOST: usize = 1 << 19;
/// Bytes of one breach's sentences, at most.
const LONGEST: usize = 8192;

/// The first breaches, as many as a report holds: at least one.
pub fn json(breaches: &[Breach]) -> Vec<u8> {
    let mut out = vec![b'['];
    for breach in breaches {
        let said = breach.to_string();
        let mut end = said.len().min(LONGEST);
        while !said.is_char_boundary(end) {
            end -= 1;
        }
        let what = said.get(..end).unwrap_or("");
        let mut one = json!({ "slot": breach.slot, "what": what });
        if let Some(asked) = &breach.asked {
            one["asked"] = json!([asked.file, asked.line]);
        }
        let one = one.to_string();
        if out.len() + one.len() + 2 > MOST {
            break;
        }
        if out.len() > 1 {
            out.push(b',');
        }
        out.extend_from_slice(one.as_bytes());
    }
    out.push(b']');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proof::Class;

    #[test]
    fn a_report_is_json_whatever_is_said_and_has_its_end() {
        let breach = |slot, what: &str| Breach::new(Class::Unreadable, slot, what);
        let long = "ü\0\"".repeat(10_000);
        let many: Vec<Breach> = (0..1000).map(|slot| breach(slot, &long)).collect();
        let bytes = json(&many);
        assert!(bytes.len() <= MOST);
        let read: Vec<serde_json::Value> = serde_json::from_slice(&bytes).unwrap();
        assert!(read.len() > 1);
        assert_eq!(read[1]["slot"], 1);
        let short = json(&[breach(3, "so")]);
        let said = br#"[{"slot":3,"what":"unreadable: the switch in slot 3: so"}]"#;
        assert_eq!(short, said);
        let mut asked = breach(3, "so");
        asked.asked = Some(proof::Written {
            name: "reach".into(),
            file: "blue:own.yaml".into(),
            line: 7,
        });
        let read: Vec<serde_json::Value> = serde_json::from_slice(&json(&[asked])).unwrap();
        assert_eq!(read[0]["asked"], json!(["blue:own.yaml", 7]));
    }
}
