//! Handlers in SQL: a statement run in the claim's transaction, with the message bound to its parameters.

use super::actor::BusinessActor;
use super::envelope::{Envelope, Event};
use super::handler_error::HandlerError;
use super::transaction::InboxTransaction;
use serde::de::IgnoredAny;
use sqlx::postgres::PgArguments;
use sqlx::{Arguments as _, AssertSqlSafe, SqlSafeStr as _, SqlStr};
use std::sync::Arc;

/// What is wrong with the text of a handler.
#[derive(Debug, thiserror::Error)]
pub enum SqlHandlerError {
    /// A parameter that there is not.
    #[error(
        "unknown parameter :{0}: there are :id, :subject, :key, :kind, :headers, :payload and :payload_bytes"
    )]
    UnknownParameter(String),
    /// More than one statement.
    #[error(
        "more than one statement: PostgreSQL runs one with parameters. Put them into a function and call it, or make one of them \
         with WITH … AS (…)"
    )]
    SeveralStatements,
    /// A quote or comment that does not end.
    #[error("a quote or comment does not end")]
    Unterminated,
}

/// A part of a message that a statement may use.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Parameter {
    Id,
    Subject,
    Key,
    Kind,
    Headers,
    Payload,
    PayloadBytes,
}

impl Parameter {
    fn of_name(name: &str) -> Option<Self> {
        Some(match name {
            "id" => Self::Id,
            "subject" => Self::Subject,
            "key" => Self::Key,
            "kind" => Self::Kind,
            "headers" => Self::Headers,
            "payload" => Self::Payload,
            "payload_bytes" => Self::PayloadBytes,
            _ => return None,
        })
    }

    fn sql_type(self) -> &'static str {
        match self {
            Self::Id => "uuid",
            Self::Subject | Self::Key | Self::Kind => "text",
            Self::Headers | Self::Payload => "jsonb",
            Self::PayloadBytes => "bytea",
        }
    }
}

/// A handler in SQL.
#[derive(Clone, Debug)]
pub(super) struct SqlHandler {
    statement: SqlStr,
    parameters: Arc<[Parameter]>,
}

impl SqlHandler {
    pub(super) fn new(sql: &str) -> Result<Self, SqlHandlerError> {
        let (text, parameters) = parse(sql)?;
        let text: Arc<str> = text.into();
        // The operator's own text: he who writes the settings may run anything.
        Ok(Self {
            statement: AssertSqlSafe(text).into_sql_str(),
            parameters: parameters.into(),
        })
    }

    fn arguments(&self, envelope: &Envelope) -> Result<PgArguments, HandlerError> {
        let mut arguments = PgArguments::default();
        for parameter in self.parameters.iter() {
            let added = match parameter {
                Parameter::Id => arguments.add(envelope.id),
                Parameter::Subject => arguments.add(&envelope.subject),
                Parameter::Key => arguments.add(&envelope.key),
                Parameter::Kind => arguments.add(&envelope.kind),
                Parameter::Headers => arguments.add(serde_json::to_string(&envelope.headers)?),
                Parameter::Payload => {
                    let text = std::str::from_utf8(&envelope.payload).map_err(HandlerError::reject)?;
                    arguments.add(text.to_owned())
                }
                Parameter::PayloadBytes => arguments.add(envelope.payload.to_vec()),
            };
            added.map_err(HandlerError::Reject)?;
        }
        Ok(arguments)
    }
}

impl BusinessActor for SqlHandler {
    type Event = IgnoredAny;

    async fn handle(
        &mut self,
        event: Event<IgnoredAny>,
        transaction: &mut InboxTransaction<'_>,
    ) -> Result<(), HandlerError> {
        let arguments = self.arguments(&event.envelope)?;
        sqlx::query_with(self.statement.clone(), arguments)
            .persistent(false)
            .execute(&mut **transaction)
            .await?;
        Ok(())
    }

    /// PostgreSQL reads the payload, and only if the statement asks for it.
    fn decode(_: &Envelope) -> Result<IgnoredAny, HandlerError> {
        Ok(IgnoredAny)
    }
}

/// Replaces `:name` by `$n::type`, but not inside quotes and comments, nor the casts `::type`.
fn parse(sql: &str) -> Result<(String, Vec<Parameter>), SqlHandlerError> {
    let mut text = String::with_capacity(sql.len() + 32);
    let mut parameters: Vec<Parameter> = Vec::new();
    let mut ended = false;
    let mut rest = sql;
    while let Some(next) = rest.chars().next() {
        let length = token_length(rest)?;
        let (token, after) = rest.split_at(length);
        rest = after;
        let comment = token.starts_with("--") || token.starts_with("/*");
        if ended && !comment && !next.is_whitespace() && next != ';' {
            return Err(SqlHandlerError::SeveralStatements);
        }
        if next == ';' {
            ended = true;
        } else if let Some(name) = token
            .strip_prefix(':')
            .filter(|name| !name.is_empty() && !name.starts_with(':'))
        {
            let parameter =
                Parameter::of_name(name).ok_or_else(|| SqlHandlerError::UnknownParameter(name.to_owned()))?;
            let place = parameters
                .iter()
                .position(|known| *known == parameter)
                .unwrap_or_else(|| {
                    parameters.push(parameter);
                    parameters.len() - 1
                });
            text.push_str(&placeholder(place + 1, parameter));
        } else {
            text.push_str(token);
        }
    }
    Ok((text, parameters))
}

/// JSON travels as text and is cast by the server, which then says what is wrong with it.
fn placeholder(place: usize, parameter: Parameter) -> String {
    match parameter {
        Parameter::Headers | Parameter::Payload => format!("(${place}::text)::jsonb"),
        other => format!("${place}::{}", other.sql_type()),
    }
}

/// How many bytes the token at the beginning has: a quote or comment whole, a cast, a name with its colon, or one character.
fn token_length(sql: &str) -> Result<usize, SqlHandlerError> {
    let ends = |at: usize, end: &str| sql[at..].find(end).map(|found| at + found + end.len());
    let name_length = |at: usize| {
        sql[at..]
            .find(|c: char| !c.is_alphanumeric() && c != '_')
            .unwrap_or(sql.len() - at)
    };
    let first = sql.chars().next().unwrap_or(' ');
    let length = match first {
        '\'' | '"' => ends(1, first.encode_utf8(&mut [0; 4])),
        '-' if sql.starts_with("--") => ends(2, "\n").or(Some(sql.len())),
        '/' if sql.starts_with("/*") => block_comment_length(sql),
        '$' => {
            let tag = 1 + name_length(1);
            match sql[tag..].starts_with('$') {
                true => ends(tag + 1, &sql[..=tag]),
                false => Some(tag),
            }
        }
        ':' if sql.starts_with("::") => Some(2),
        // A number is the bound of an array's slice.
        ':' if sql[1..].starts_with(|c: char| c.is_ascii_digit()) => Some(1),
        ':' => Some(1 + name_length(1)),
        // E'…' has backslashes, which may stand before a quote.
        'E' | 'e' if sql[1..].starts_with('\'') => escape_string_length(sql),
        c if c.is_alphanumeric() || c == '_' => Some(name_length(0)),
        c => Some(c.len_utf8()),
    };
    length.ok_or(SqlHandlerError::Unterminated)
}

fn block_comment_length(sql: &str) -> Option<usize> {
    // They nest.
    let mut depth = 0;
    let mut at = 0;
    loop {
        if sql[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if sql[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return Some(at);
            }
        } else {
            at += sql[at..].chars().next()?.len_utf8();
        }
    }
}

fn escape_string_length(sql: &str) -> Option<usize> {
    let mut characters = sql.char_indices().skip(2);
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => drop(characters.next()),
            '\'' => return Some(at + 1),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_replaced_outside_of_quotes_and_comments() {
        for (sql, wanted) in [
            ("SELECT f(:id, :key)", "SELECT f($1::uuid, $2::text)"),
            ("SELECT :id, :subject, :id", "SELECT $1::uuid, $2::text, $1::uuid"),
            (
                "SELECT ':id', \":id\", x::text, :payload->>'a'",
                "SELECT ':id', \":id\", x::text, ($1::text)::jsonb->>'a'",
            ),
            (
                "SELECT 'it''s :id'::text, :key::text",
                "SELECT 'it''s :id'::text, $1::text::text",
            ),
            ("SELECT 1 -- :id\n, :id", "SELECT 1 -- :id\n, $1::uuid"),
            (
                "SELECT /* :id /* nested :id */ */ :id;",
                "SELECT /* :id /* nested :id */ */ $1::uuid",
            ),
            (
                "SELECT $$:id$$, $a$ :id $a$, :id",
                "SELECT $$:id$$, $a$ :id $a$, $1::uuid",
            ),
            (r"SELECT E'\':id', :id", r"SELECT E'\':id', $1::uuid"),
            (
                "SELECT a[1:2], :payload_bytes ; -- done",
                "SELECT a[1:2], $1::bytea  -- done",
            ),
            ("SELECT 'é', :kind", "SELECT 'é', $1::text"),
        ] {
            assert_eq!(parse(sql).unwrap().0, wanted);
        }
    }

    #[test]
    fn what_can_not_work_is_named() {
        assert!(
            matches!(parse("SELECT :ids"), Err(SqlHandlerError::UnknownParameter(name)) if name == "ids")
        );
        assert!(matches!(
            parse("SELECT 1; SELECT :id"),
            Err(SqlHandlerError::SeveralStatements)
        ));
        assert!(matches!(parse("SELECT 'a"), Err(SqlHandlerError::Unterminated)));
        assert!(matches!(
            parse("SELECT $a$ b"),
            Err(SqlHandlerError::Unterminated)
        ));
    }
}
