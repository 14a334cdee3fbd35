//! The published JSON Schema.

use schemars::generate::SchemaSettings;

use crate::model::Document;

/// JSON Schema (2020-12) of the spec, pretty-printed, the same text every time:
/// for editors, committed as docs/spec.schema.json.
pub fn json_schema() -> String {
    let mut schema = SchemaSettings::draft2020_12()
        .into_generator()
        .into_root_schema_for::<Document>();
    schema.insert("title".into(), "Bulkhead spec".into());
    let mut text = serde_json::to_string_pretty(&schema).unwrap_or_default();
    text.push('\n');
    text
}
