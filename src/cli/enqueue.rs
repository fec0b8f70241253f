//! `twinbox enqueue`

use super::{CommandError, Output, SettingsArgs};
use clap::Args;
use serde::Serialize;
use std::io::Read as _;
use std::process::ExitCode;
use twinbox::{Message, Outbox};
use uuid::Uuid;
const ENQUEUE_EXAMPLES: &str = "\
Examples:
  twinbox enqueue orders.placed '{\"id\": 7}' --key customer-7 --header Event-Type=OrderPlaced
  twinbox enqueue images.added - < image.png";

/// Enqueue one message, in a transaction of its own.
///
/// For trying things out and for scripts. A service enqueues in the transaction of its own change: in Rust with
/// `Outbox::enqueue`, in any language with `SELECT twinbox.enqueue(subject, payload, key, headers, message_id)`.
#[derive(Args, Debug)]
#[command(after_long_help = ENQUEUE_EXAMPLES)]
pub(super) struct Enqueue {
    /// The subject, such as orders.placed.
    subject: String,

    /// The payload; - reads standard input.
    payload: String,

    /// The ordering key: messages of one key keep their order.
    #[arg(long)]
    key: Option<String>,

    /// A header, such as Event-Type=OrderPlaced. May stand more than once.
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = name_and_value)]
    headers: Vec<(String, String)>,

    /// The message's id [default: a new UUIDv7].
    #[arg(long, value_name = "UUID")]
    id: Option<Uuid>,

    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct Enqueued {
    message_id: Uuid,
}

fn name_and_value(text: &str) -> Result<(String, String), String> {
    text.split_once('=')
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .ok_or_else(|| "write NAME=VALUE".to_owned())
}

impl Enqueue {
    pub(super) async fn run(&self, args: &SettingsArgs) -> Result<ExitCode, CommandError> {
        let mut payload = self.payload.clone().into_bytes();
        if self.payload == "-" {
            payload.clear();
            std::io::stdin().read_to_end(&mut payload)?;
        }
        let mut message = Message::new(self.subject.clone(), payload);
        message.key.clone_from(&self.key);
        message.id = self.id;
        message.headers = self.headers.iter().cloned().collect();
        message.validate()?;

        let (settings, store) = args.store().await?;
        let outbox = Outbox::new(settings.database.schema);
        let mut transaction = store.begin().await?;
        let message_id = outbox.enqueue(&mut transaction, message).await?;
        transaction.commit().await?;
        self.output
            .write(&Enqueued { message_id }, || message_id.to_string())?;
        Ok(ExitCode::SUCCESS)
    }
}
