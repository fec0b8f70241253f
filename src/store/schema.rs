//! The schema's name: the one identifier that is written into statements, so it is validated once, here.

use serde::{Deserialize, Serialize};
use sqlx::{AssertSqlSafe, SqlSafeStr as _, SqlStr};
use std::sync::Arc;

/// The longest name: channels and constraints add to it, and PostgreSQL cuts identifiers after 63 bytes.
const MAX_BYTES: usize = 48;

/// The name of a PostgreSQL schema: `[a-z_][a-z0-9_]*`, at most 48 bytes.
///
/// ```
/// use twinbox::store::Schema;
///
/// assert_eq!(Schema::new("twinbox")?.quoted(), "\"twinbox\"");
/// assert!(Schema::new("drop table; --").is_err());
/// # Ok::<(), twinbox::store::InvalidSchema>(())
/// ```
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Schema {
    quoted: String,
}

/// A name that is no schema's.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0:?} can't be the schema: use lower-case letters, digits and _, not a digit first, not pg_, at most 48"
)]
pub struct InvalidSchema(String);

impl Schema {
    /// Checks the name.
    ///
    /// # Errors
    /// [`InvalidSchema`] says what a name may be.
    pub fn new(name: impl Into<String>) -> Result<Self, InvalidSchema> {
        let name = name.into();
        let legal = !name.is_empty()
            && name.len() <= MAX_BYTES
            && !name.starts_with("pg_")
            && !name.as_bytes()[0].is_ascii_digit()
            && name
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        if legal {
            Ok(Self {
                quoted: format!("\"{name}\""),
            })
        } else {
            Err(InvalidSchema(name))
        }
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.quoted.trim_matches('"')
    }

    /// The name as it stands in a statement.
    pub fn quoted(&self) -> &str {
        &self.quoted
    }

    /// A statement with `{s}` replaced by the schema's quoted name. Values are bound, never written in.
    pub fn sql(&self, template: &str) -> SqlStr {
        let text: Arc<str> = template.replace("{s}", &self.quoted).into();
        AssertSqlSafe(text).into_sql_str()
    }

    /// The channel on which an enqueue wakes a sleeping relay.
    pub fn wake_channel(&self) -> String {
        format!("{}_outbox", self.name())
    }
}

impl Default for Schema {
    fn default() -> Self {
        Self {
            quoted: "\"twinbox\"".to_owned(),
        }
    }
}

impl TryFrom<String> for Schema {
    type Error = InvalidSchema;

    fn try_from(name: String) -> Result<Self, InvalidSchema> {
        Self::new(name)
    }
}

impl From<Schema> for String {
    fn from(schema: Schema) -> Self {
        schema.name().to_owned()
    }
}
