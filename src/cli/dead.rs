//! `twinbox dead`

use super::output::Column::{Figures, Words};
use super::output::{print, table, time_text};
use super::{CommandError, Output, SettingsArgs};
use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use serde::Serialize;
use std::fmt::Write as _;
use std::process::ExitCode;
use twinbox::dead_letter::{DeadLetter, Desk, Filter, Origin, Selection};

/// Look at dead letters and deal with them.
///
/// A message that can't be published or handled is kept here with its reason. Later messages of its key follow it, so
/// that a key is never reordered; requeueing the key releases them in order.
#[derive(Args, Debug)]
pub(super) struct Dead {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List dead letters, oldest first.
    List(List),
    /// Show one with its headers, payload and error.
    Show(Show),
    /// Take dead letters up again: publish, or handle them, in order.
    ///
    /// Name one by its number, or several by what they have in common; flags together narrow the choice. The relay or the
    /// consumer takes them up by itself; until it has, they are listed as requeued.
    #[command(after_long_help = REQUEUE_EXAMPLES)]
    Requeue(Act),
    /// Give dead letters up for good.
    ///
    /// Name one by its number, or several by what they have in common; flags together narrow the choice. Their payload is
    /// deleted with them.
    #[command(after_long_help = DISCARD_EXAMPLES)]
    Discard(Act),
}
const REQUEUE_EXAMPLES: &str = "\
Examples:
  twinbox dead requeue 7
  twinbox dead requeue --owner billing --key customer-7     a key's letters, in order";

const DISCARD_EXAMPLES: &str = "\
Examples:
  twinbox dead discard 7
  twinbox dead discard --subject orders.test --json";

const LIST_EXAMPLES: &str = "\
Examples:
  twinbox dead list --box inbox --owner billing
  twinbox dead list --json | jq '.[].reason'";

#[derive(Args, Debug)]
#[command(after_long_help = LIST_EXAMPLES)]
struct List {
    #[command(flatten)]
    filter: FilterArgs,

    /// Begin after this number.
    #[arg(long, default_value_t = 0, value_name = "ID")]
    after: i64,

    /// At most so many.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(i64).range(1..=10_000))]
    limit: i64,

    #[command(flatten)]
    output: Output,
}
const SHOW_EXAMPLES: &str = "\
Examples:
  twinbox dead show 7
  twinbox dead show 7 --json | jq -r .payload";

#[derive(Args, Debug)]
#[command(after_long_help = SHOW_EXAMPLES)]
struct Show {
    /// The dead letter's number.
    id: i64,

    #[command(flatten)]
    output: Output,
}

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("which").args(["id", "box_name", "owner", "key", "subject", "all"]).required(true).multiple(true))]
struct Act {
    /// The dead letter's number.
    #[arg(conflicts_with_all = ["box_name", "owner", "key", "subject", "all"])]
    id: Option<i64>,

    #[command(flatten)]
    filter: FilterArgs,

    /// All of them.
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    output: Output,
}

#[derive(Args, Clone, Debug)]
struct FilterArgs {
    /// Of one box.
    #[arg(id = "box_name", long = "box", value_name = "BOX")]
    from: Option<BoxName>,

    /// Of one relay or consumer.
    #[arg(long, value_name = "NAME")]
    owner: Option<String>,

    /// Of one ordering key.
    #[arg(long)]
    key: Option<String>,

    /// Of one subject.
    #[arg(long)]
    subject: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum BoxName {
    /// What could not be published.
    Outbox,
    /// What could not be handled.
    Inbox,
}

impl FilterArgs {
    fn filter(&self) -> Filter {
        Filter {
            from: self.from.map(|name| match name {
                BoxName::Outbox => Origin::Outbox,
                BoxName::Inbox => Origin::Inbox,
            }),
            owner: self.owner.clone(),
            key: self.key.clone(),
            subject: self.subject.clone(),
        }
    }
}

impl Dead {
    pub(super) async fn run(&self, args: &SettingsArgs) -> Result<ExitCode, CommandError> {
        let (_, store) = args.store().await?;
        let desk = Desk::new(store);
        match &self.command {
            Command::List(list) => list.run(&desk).await?,
            Command::Show(show) => show.run(&desk).await?,
            Command::Requeue(act) => {
                let requeued = desk.requeue(&act.selection()).await?;
                act.report("requeued", requeued)?;
            }
            Command::Discard(act) => {
                let discarded = desk.discard(&act.selection()).await?;
                act.report("discarded", discarded)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl List {
    async fn run(&self, desk: &Desk) -> Result<(), CommandError> {
        let filter = self.filter.filter();
        let letters = desk.list(&filter, self.after, self.limit).await?;
        if self.output.json {
            return Ok(print(&serde_json::to_string_pretty(&letters)?)?);
        }
        let all = desk.count(&filter).await?;
        if letters.is_empty() {
            return Ok(print(if all == 0 {
                "no dead letters"
            } else {
                "no dead letters after that one"
            })?);
        }
        let columns = [
            Figures("id"),
            Words("box"),
            Words("owner"),
            Words("subject"),
            Words("key"),
            Words("reason"),
            Figures("runs"),
            Words("since"),
            Words("error"),
        ];
        let rows = letters.iter().map(|letter| {
            let state = if letter.requeued { " (requeued)" } else { "" };
            [
                letter.id.to_string(),
                letter.from.name().to_owned(),
                letter.owner.clone(),
                letter.subject.clone(),
                letter.key.clone().unwrap_or_default(),
                format!("{}{state}", letter.reason),
                letter.runs.to_string(),
                time_text(letter.dead_at),
                letter.error.chars().take(120).collect(),
            ]
        });
        let rows = table(&columns, rows);
        print(&format!(
            "{rows}\n{} of {all}; `twinbox dead show ID` shows one whole",
            letters.len()
        ))?;
        Ok(())
    }
}

#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    letter: &'a DeadLetter,
    /// The payload as text where it is UTF-8.
    payload: Option<&'a str>,
    /// The payload in hexadecimal where it is not.
    payload_hex: Option<String>,
    remedy: &'static str,
}

impl Show {
    async fn run(&self, desk: &Desk) -> Result<(), CommandError> {
        let letter = desk.show(self.id).await?;
        let payload = std::str::from_utf8(&letter.payload).ok();
        let payload_hex = payload.is_none().then(|| hex(&letter.payload));
        let shown = Shown {
            letter: &letter,
            payload,
            payload_hex,
            remedy: letter.reason.remedy(),
        };
        self.output.write(&shown, || words(&shown))?;
        Ok(())
    }
}

fn words(shown: &Shown<'_>) -> String {
    let letter = shown.letter;
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        // Writing to a string can't fail.
        let _ = writeln!(text, "{name:<12}{value}");
    };
    line(
        "dead letter",
        &format!(
            "{}{}",
            letter.id,
            if letter.requeued { " (requeued)" } else { "" }
        ),
    );
    line("reason", letter.reason.name());
    line("error", &letter.error);
    line("what to do", shown.remedy);
    line(letter.from.name(), &letter.owner);
    line("message id", &letter.message_id.to_string());
    line("subject", &letter.subject);
    line("key", letter.key.as_deref().unwrap_or("-"));
    if let (Some(stream), Some(sequence)) = (&letter.stream, letter.sequence) {
        line("stream", &format!("{stream}, sequence {sequence}"));
    }
    line("runs", &letter.runs.to_string());
    line(
        "enqueued",
        &letter.enqueued_at.map_or("unknown".to_owned(), time_text),
    );
    line("since", &time_text(letter.dead_at));
    for (name, value) in letter.headers.iter() {
        line("header", &format!("{name}: {value}"));
    }
    match (shown.payload, &shown.payload_hex) {
        (Some(payload), _) => line("payload", payload),
        (None, Some(hex)) => line(
            "payload",
            &format!("{} bytes, not UTF-8, in hexadecimal: {hex}", letter.payload.len()),
        ),
        (None, None) => {}
    }
    text
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}

impl Act {
    fn selection(&self) -> Selection {
        self.id
            .map_or_else(|| Selection::Matching(self.filter.filter()), Selection::Id)
    }

    fn report(&self, what: &str, count: u64) -> std::io::Result<()> {
        self.output
            .write(&serde_json::json!({ what: count }), || format!("{what} {count}"))
    }
}
