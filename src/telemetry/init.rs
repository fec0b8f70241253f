//! Where the daemon's logs and traces go.

use crate::config::{LogFormat, TelemetrySettings};
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::WithExportConfig as _;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use std::io::IsTerminal as _;
use std::time::Duration;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _};

/// How long the last spans may take to get out at the end: a collector that is away must not hold up a shutdown.
const FLUSH_DEADLINE: Duration = Duration::from_secs(2);

/// Why logs and traces could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The log directives.
    #[error("telemetry.log {0:?}: write a level (info) or directives (info,twinbox::outbox=debug)")]
    Directives(String, #[source] tracing_subscriber::filter::ParseError),
    /// The exporter.
    #[error("telemetry.otlp_endpoint {0:?}: it looks like http://localhost:4318")]
    Exporter(String, #[source] opentelemetry_otlp::ExporterBuildError),
    /// Somebody else has set a subscriber.
    #[error("logging is set up already")]
    Again(#[from] tracing_subscriber::util::TryInitError),
}

/// Logs and traces, until [`Telemetry::shutdown`].
#[derive(Debug)]
pub struct Telemetry {
    provider: Option<SdkTracerProvider>,
}

impl Telemetry {
    /// Logs to standard error, panics too, and exports traces by OTLP over HTTP where an endpoint is set.
    ///
    /// # Errors
    /// [`TelemetryError`] names the setting at fault.
    pub fn init(settings: &TelemetrySettings) -> Result<Self, TelemetryError> {
        let filter = EnvFilter::try_new(&settings.log)
            .map_err(|error| TelemetryError::Directives(settings.log.clone(), error))?;
        let provider = settings
            .otlp_endpoint
            .as_deref()
            .map(|url| provider(url, settings))
            .transpose()?;
        let traces = provider
            .as_ref()
            .map(|provider| tracing_opentelemetry::layer().with_tracer(provider.tracer("twinbox")))
            // Its spans last as long as the process: they are for the log lines, and no part of a trace.
            .with_filter(filter_fn(|span| {
                !span.target().starts_with("twinbox::supervisor")
            }));
        let colours =
            std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|no| no.is_empty());
        let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
        let lines = match settings.format {
            LogFormat::Pretty => lines.with_ansi(colours).compact().boxed(),
            LogFormat::Json => lines.json().flatten_event(true).boxed(),
        };
        tracing_subscriber::registry()
            .with(filter)
            .with(traces)
            .with(lines)
            .try_init()?;
        super::panic_hook::install();
        Ok(Self { provider })
    }

    /// Sends the last spans, for at most two seconds.
    pub fn shutdown(self) {
        if let Some(provider) = self.provider
            && let Err(error) = provider.shutdown_with_timeout(FLUSH_DEADLINE)
        {
            tracing::warn!(%error, "the last spans did not get out");
        }
    }
}

fn provider(endpoint: &str, settings: &TelemetrySettings) -> Result<SdkTracerProvider, TelemetryError> {
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_http()
        .with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
        .build()
        .map_err(|error| TelemetryError::Exporter(endpoint.to_owned(), error))?;
    let resource = Resource::builder()
        .with_service_name(settings.service_name.clone())
        .build();
    Ok(SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(resource)
        .build())
}
