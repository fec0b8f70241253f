use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// How much of a log's end is looked at.
const TAIL_BYTES: u64 = 64 * 1024;

/// The last `lines` lines of a log, or a word on why there are none: a tail is for a person who reads an error,
/// and must not itself become one.
pub(super) fn tail(path: &Path, lines: usize) -> String {
    since(path, 0, lines)
}

/// The same, of what was logged after the first `skipped` bytes.
pub(super) fn since(path: &Path, skipped: u64, lines: usize) -> String {
    let mut text = Vec::new();
    let read = File::open(path).and_then(|mut file| {
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES).max(skipped)))?;
        file.read_to_end(&mut text)
    });
    if let Err(error) = read {
        return format!("(no log: {error})");
    }
    let text = String::from_utf8_lossy(&text);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::{since, tail};

    #[test]
    fn the_tail_is_the_end_of_the_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "one\ntwo\nthree\n").unwrap();
        assert_eq!(tail(file.path(), 2), "two\nthree");
        assert_eq!(tail(file.path(), 9), "one\ntwo\nthree");
        assert_eq!(since(file.path(), 4, 9), "two\nthree");
        assert!(tail(std::path::Path::new("/nonexistent/log"), 1).starts_with("(no log: "));
    }
}
