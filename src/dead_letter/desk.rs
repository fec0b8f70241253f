//! What a person does with dead letters: list, show, requeue, discard.

use super::table::{COLUMNS, dead_letter_of};
use super::{DeadLetter, Origin};
use crate::store::Store;
use sqlx::QueryBuilder;
use sqlx::postgres::Postgres;

/// Which letters to look at.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Of one box.
    pub from: Option<Origin>,
    /// Of one relay or consumer.
    pub owner: Option<String>,
    /// Of one key.
    pub key: Option<String>,
    /// Of one subject.
    pub subject: Option<String>,
}

/// Which letters to act on.
#[derive(Clone, Debug)]
pub enum Selection {
    /// One.
    Id(i64),
    /// All that a filter lets through.
    Matching(Filter),
}

/// Why nothing was done.
#[derive(Debug, thiserror::Error)]
pub enum DeadLetterError {
    /// No such letter.
    #[error("there is no dead letter {0}: see `twinbox dead list`")]
    Unknown(i64),
    /// It would overtake an earlier one.
    #[error(
        "dead letter {id} comes after {earlier} of the same key {key:?}: requeue the key whole (--key), \
         or deal with {earlier} first"
    )]
    OutOfOrder {
        /// The letter.
        id: i64,
        /// The first letter of its key.
        earlier: i64,
        /// The key.
        key: String,
    },
    /// The database.
    #[error("the database: {0}")]
    Database(#[from] sqlx::Error),
}

/// The dead letters of all relays and consumers.
#[derive(Clone, Debug)]
pub struct Desk {
    store: Store,
}

impl Desk {
    /// Over a database.
    pub fn new(store: Store) -> Self {
        Self { store }
    }

    /// Letters by number, from `after` on.
    ///
    /// # Errors
    /// What the database said.
    pub async fn list(
        &self,
        filter: &Filter,
        after: i64,
        limit: i64,
    ) -> Result<Vec<DeadLetter>, DeadLetterError> {
        let mut query = self.statement(&format!("SELECT {COLUMNS} FROM {{s}}.dead_letter WHERE id > "));
        query.push_bind(after);
        push_filter(&mut query, filter);
        query.push(" ORDER BY id LIMIT ").push_bind(limit);
        let rows = query
            .build()
            .persistent(false)
            .fetch_all(self.store.pool())
            .await?;
        Ok(rows.iter().map(dead_letter_of).collect::<Result<_, _>>()?)
    }

    /// How many there are.
    ///
    /// # Errors
    /// What the database said.
    pub async fn count(&self, filter: &Filter) -> Result<i64, DeadLetterError> {
        let mut query = self.statement("SELECT count(*) FROM {s}.dead_letter WHERE true");
        push_filter(&mut query, filter);
        Ok(query
            .build_query_scalar()
            .persistent(false)
            .fetch_one(self.store.pool())
            .await?)
    }

    /// One letter.
    ///
    /// # Errors
    /// [`DeadLetterError::Unknown`], or what the database said.
    pub async fn show(&self, id: i64) -> Result<DeadLetter, DeadLetterError> {
        let found = self.list(&Filter::default(), id - 1, 1).await?;
        found
            .into_iter()
            .find(|letter| letter.id == id)
            .ok_or(DeadLetterError::Unknown(id))
    }

    /// Marks letters to be taken up again: published, or handled. Returns how many.
    ///
    /// # Errors
    /// [`DeadLetterError::OutOfOrder`] where one letter would overtake an earlier one of its key.
    pub async fn requeue(&self, selection: &Selection) -> Result<u64, DeadLetterError> {
        if let Selection::Id(id) = selection {
            self.refuse_out_of_order(*id).await?;
        }
        self.act(
            "UPDATE {s}.dead_letter SET state = 'requeued' WHERE state = 'dead'",
            selection,
        )
        .await
    }

    /// Gives letters up for good. Returns how many.
    ///
    /// # Errors
    /// [`DeadLetterError::Unknown`], or what the database said.
    pub async fn discard(&self, selection: &Selection) -> Result<u64, DeadLetterError> {
        if let Selection::Id(id) = selection {
            self.show(*id).await?;
        }
        self.act("DELETE FROM {s}.dead_letter WHERE true", selection)
            .await
    }

    async fn refuse_out_of_order(&self, id: i64) -> Result<(), DeadLetterError> {
        let letter = self.show(id).await?;
        let Some(key) = letter.key else { return Ok(()) };
        let earlier: Option<i64> = sqlx::query_scalar(self.store.sql(
            "SELECT min(id) FROM {s}.dead_letter
             WHERE box = $1 AND owner = $2 AND key = $3 AND id < $4 AND state = 'dead'",
        ))
        .persistent(false)
        .bind(letter.from.name())
        .bind(&letter.owner)
        .bind(&key)
        .bind(id)
        .fetch_one(self.store.pool())
        .await?;
        earlier.map_or(Ok(()), |earlier| {
            Err(DeadLetterError::OutOfOrder { id, earlier, key })
        })
    }

    async fn act(&self, statement: &str, selection: &Selection) -> Result<u64, DeadLetterError> {
        let mut query = self.statement(statement);
        match selection {
            Selection::Id(id) => {
                query.push(" AND id = ").push_bind(*id);
            }
            Selection::Matching(filter) => push_filter(&mut query, filter),
        }
        let mut transaction = self.store.begin().await.map_err(|error| match error {
            crate::store::StoreError::Database(error) => error,
            other => sqlx::Error::Configuration(Box::new(other)),
        })?;
        let done = query.build().persistent(false).execute(&mut *transaction).await?;
        transaction.commit().await?;
        Ok(done.rows_affected())
    }

    fn statement(&self, template: &str) -> QueryBuilder<Postgres> {
        QueryBuilder::new(self.store.sql(template).as_str())
    }
}

fn push_filter(query: &mut QueryBuilder<Postgres>, filter: &Filter) {
    if let Some(from) = filter.from {
        query.push(" AND box = ").push_bind(from.name());
    }
    for (column, value) in [
        ("owner", &filter.owner),
        ("key", &filter.key),
        ("subject", &filter.subject),
    ] {
        if let Some(value) = value {
            query
                .push(format_args!(" AND {column} = "))
                .push_bind(value.clone());
        }
    }
}
