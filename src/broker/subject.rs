//! Matching subjects against patterns, as NATS does: `*` stands for one token, a final `>` for one or more.

/// Whether `pattern` takes `subject`.
///
/// ```
/// use twinbox::broker::subject_matches;
///
/// assert!(subject_matches("orders.*.placed", "orders.eu.placed"));
/// assert!(subject_matches("orders.>", "orders.eu.placed"));
/// assert!(!subject_matches("orders.>", "orders"));
/// ```
pub fn subject_matches(pattern: &str, subject: &str) -> bool {
    let mut tokens = subject.split('.');
    for wanted in pattern.split('.') {
        match (wanted, tokens.next()) {
            (_, None) => return false,
            (">", Some(_)) => return true,
            ("*", Some(_)) => {}
            (wanted, Some(token)) if wanted == token => {}
            _ => return false,
        }
    }
    tokens.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::subject_matches;

    #[test]
    fn wildcards_stand_for_whole_tokens() {
        for (pattern, subject, matches) in [
            (">", "a", true),
            (">", "a.b", true),
            ("a.*", "a.b", true),
            ("a.*", "a", false),
            ("a.*", "a.b.c", false),
            ("a.b", "a.b", true),
            ("a.b", "a.c", false),
            ("*.b", "a.b", true),
            ("a*", "ab", false),
        ] {
            assert_eq!(subject_matches(pattern, subject), matches, "{pattern} {subject}");
        }
    }
}
