//! Logs and traces.

use serde::{Deserialize, Serialize};

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Pretty,
    /// One JSON object a line.
    Json,
}

/// Logs and traces.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct TelemetrySettings {
    /// What is logged: a level, or directives such as `info,twinbox::outbox=debug`.
    pub log: String,
    /// How log lines look.
    pub format: LogFormat,
    /// Where traces go by OTLP over HTTP, such as `http://localhost:4318`. Default: nowhere.
    pub otlp_endpoint: Option<String>,
    /// The name under which they go.
    pub service_name: String,
}

impl Default for TelemetrySettings {
    fn default() -> Self {
        Self {
            log: "info".to_owned(),
            format: LogFormat::Pretty,
            otlp_endpoint: None,
            service_name: "twinbox".to_owned(),
        }
    }
}
