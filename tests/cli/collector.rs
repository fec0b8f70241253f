//! A collector of traces, as far as an exporter notices.

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Takes in what is posted to `/v1/traces`, until it is dropped.
pub(crate) struct Collector {
    pub(crate) endpoint: String,
    received: Arc<Mutex<Vec<ExportTraceServiceRequest>>>,
    accepting: JoinHandle<()>,
}

impl Collector {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let received = Arc::<Mutex<Vec<_>>>::default();
        let store = received.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, store.clone()));
            }
        });
        Self {
            endpoint,
            received,
            accepting,
        }
    }

    /// The spans so far, with the name of the service that they came from.
    pub(crate) fn spans(&self) -> Vec<(String, Span)> {
        let mut spans = Vec::new();
        for request in self.received.lock().unwrap().iter() {
            for resource_spans in &request.resource_spans {
                let service = service_name(resource_spans);
                let scopes = resource_spans.scope_spans.iter();
                spans.extend(
                    scopes.flat_map(|scope| scope.spans.iter().map(|span| (service.clone(), span.clone()))),
                );
            }
        }
        spans
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

fn service_name(spans: &opentelemetry_proto::tonic::trace::v1::ResourceSpans) -> String {
    use opentelemetry_proto::tonic::common::v1::any_value::Value;
    let attributes = &spans.resource.as_ref().unwrap().attributes;
    let name = attributes.iter().find(|pair| pair.key == "service.name").unwrap();
    match name.value.as_ref().unwrap().value.as_ref().unwrap() {
        Value::StringValue(name) => name.clone(),
        other => panic!("{other:?}"),
    }
}

/// The requests of one connection.
async fn serve(stream: TcpStream, store: Arc<Mutex<Vec<ExportTraceServiceRequest>>>) {
    let mut stream = BufReader::new(stream);
    while let Some((line, body)) = request(&mut stream).await {
        assert!(line.starts_with("POST /v1/traces "), "{line}");
        let decoded = ExportTraceServiceRequest::decode(body.as_slice()).unwrap();
        store.lock().unwrap().push(decoded);
        let answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n";
        stream.write_all(answer).await.unwrap();
    }
}

/// The first line and the body of a request.
async fn request(stream: &mut BufReader<TcpStream>) -> Option<(String, Vec<u8>)> {
    let mut first = String::new();
    let mut length = 0;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if first.is_empty() {
            first = line;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some((first, body))
}
