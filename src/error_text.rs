//! Errors in words.

use std::error::Error;

/// An error with its causes, on one line.
///
/// ```
/// use twinbox::with_causes;
///
/// let error = twinbox::store::StoreError::Url(sqlx::Error::RowNotFound);
/// assert!(with_causes(&error).contains(": no rows returned"));
/// ```
pub fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Many errors repeat their cause in their own text.
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text.replace('\n', " ")
}
