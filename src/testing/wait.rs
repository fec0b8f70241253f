use std::fmt::Display;
use std::future::Future;
use std::panic::Location;
use std::time::{Duration, Instant};

/// The first pause between two looks, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));

/// What a look at a condition gave: it holds, with a value, or it does not yet, with what was seen instead.
pub trait Outcome {
    /// What is known once the condition holds.
    type Value;

    /// The value, or what was seen instead.
    ///
    /// # Errors
    /// If the condition does not hold yet.
    fn holds(self) -> Result<Self::Value, String>;
}

/// `true` holds. An `assert!` that waits; a `Result` tells more when it fails.
impl Outcome for bool {
    type Value = ();

    fn holds(self) -> Result<(), String> {
        self.then_some(()).ok_or_else(|| "false".to_owned())
    }
}

/// `Some` holds.
impl<T> Outcome for Option<T> {
    type Value = T;

    fn holds(self) -> Result<T, String> {
        self.ok_or_else(|| "nothing".to_owned())
    }
}

/// `Ok` holds; the error says what is there instead.
impl<T, E: Display> Outcome for Result<T, E> {
    type Value = T;

    fn holds(self) -> Result<T, String> {
        self.map_err(|error| error.to_string())
    }
}

/// Looks at a condition again and again until it holds, and returns its value.
///
/// `what` completes the sentence "still waiting for": "the order is in the stream". The pauses grow from 2 ms to
/// 50 ms.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use std::time::Duration;
/// use twinbox::testing::wait_until;
///
/// let mut rows = 0;
/// let seen = wait_until("three rows are there", Duration::from_secs(5), || {
///     rows += 1;
///     let rows = rows;
///     async move { if rows == 3 { Ok(rows) } else { Err(format!("{rows} rows")) } }
/// })
/// .await;
/// assert_eq!(seen, 3);
/// # });
/// ```
///
/// # Panics
/// When the deadline is over, with what was waited for, where, and what the last look gave. A look that hangs is cut
/// off there, too.
#[track_caller]
pub fn wait_until<O, F>(
    what: &str,
    deadline: Duration,
    look: impl FnMut() -> F,
) -> impl Future<Output = O::Value>
where
    O: Outcome,
    F: Future<Output = O>,
{
    // An async fn would not know its caller.
    poll(what.to_owned(), deadline, look, Location::caller())
}

async fn poll<O, F>(
    what: String,
    deadline: Duration,
    mut look: impl FnMut() -> F,
    caller: &'static Location<'static>,
) -> O::Value
where
    O: Outcome,
    F: Future<Output = O>,
{
    let end = Instant::now() + deadline;
    let (mut pause, longest) = PAUSES;
    let mut last = String::from("no look has ended");
    loop {
        match tokio::time::timeout_at(end.into(), look()).await {
            Ok(outcome) => match outcome.holds() {
                Ok(value) => return value,
                Err(seen) => last = seen,
            },
            Err(_) => last = format!("the last look did not end; before that: {last}"),
        }
        let left = end.saturating_duration_since(Instant::now());
        assert!(
            !left.is_zero(),
            "still waiting after {deadline:?} for: {what} ({caller}); last seen: {last}"
        );
        tokio::time::sleep(pause.min(left)).await;
        pause = (pause * 2).min(longest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message_of(failure: tokio::task::JoinError) -> String {
        *failure.into_panic().downcast::<String>().unwrap()
    }

    #[tokio::test]
    async fn the_value_of_the_condition_is_returned() {
        let mut looks = 0;
        let value = wait_until("the fourth look", Duration::from_secs(5), || {
            looks += 1;
            let looks = looks;
            async move { (looks == 4).then_some(looks) }
        })
        .await;
        assert_eq!(value, 4);
    }

    #[tokio::test]
    async fn a_failure_tells_what_was_waited_for_and_last_seen() {
        let wait = tokio::spawn(wait_until("five rows", Duration::from_millis(20), || async {
            Err::<(), _>("four rows")
        }));
        let message = message_of(wait.await.unwrap_err());
        assert!(
            message.contains("for: five rows (src/testing/wait.rs:"),
            "{message}"
        );
        assert!(message.ends_with("last seen: four rows"), "{message}");
    }

    #[tokio::test]
    async fn a_look_that_hangs_does_not_outlive_the_deadline() {
        let wait = tokio::spawn(wait_until(
            "an end",
            Duration::from_millis(20),
            std::future::pending::<bool>,
        ));
        let message = message_of(wait.await.unwrap_err());
        assert!(message.contains("the last look did not end"), "{message}");
    }
}
