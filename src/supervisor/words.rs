//! Errors and panics in words, bounded, since they are kept and shown.

use std::any::Any;
use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What is kept of an error's text, in bytes: enough for a chain of causes, and not a whole payload that some error
/// quotes.
pub(super) const LONGEST_TEXT_BYTES: usize = 2 * 1024;

/// An error with its causes, bounded.
pub(super) fn with_causes(error: &(dyn Error + 'static)) -> String {
    bounded(crate::error_text::with_causes(error))
}

/// What a panic said.
pub(super) fn of_panic(payload: Box<dyn Any + Send>) -> String {
    let text = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a payload that is no text".to_owned());
    // A payload may panic when it is dropped, and that would get past the one that caught it.
    if let Err(again) = catch_unwind(AssertUnwindSafe(move || drop(payload))) {
        std::mem::forget(again);
    }
    bounded(text)
}

/// `text`, cut to what is kept.
pub(super) fn bounded(mut text: String) -> String {
    if text.len() > LONGEST_TEXT_BYTES {
        text.truncate(text.floor_char_boundary(LONGEST_TEXT_BYTES));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the page was not read")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn causes_follow() {
        let error = Outer(std::io::Error::other("connection refused"));
        assert_eq!(with_causes(&error), "the page was not read: connection refused");
    }

    #[test]
    fn panics_of_any_kind_have_words() {
        assert_eq!(of_panic(Box::new("plain")), "plain");
        assert_eq!(of_panic(Box::new("owned".to_owned())), "owned");
        assert_eq!(of_panic(Box::new(7)), "a payload that is no text");
    }

    #[test]
    fn a_payload_that_panics_when_dropped_is_borne() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("dropped");
            }
        }
        assert_eq!(of_panic(Box::new(Bomb)), "a payload that is no text");
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let text = bounded("é".repeat(LONGEST_TEXT_BYTES));
        assert_eq!(text.len(), LONGEST_TEXT_BYTES + '…'.len_utf8());
    }
}
