//! PostgreSQL's snapshots: which transactions had ended at a moment.

use std::fmt;
use std::str::FromStr;

/// Which transactions had ended at a moment, in PostgreSQL's words `xmin:xmax:xip`: all below `xmax` but those that were
/// running.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Snapshot {
    xmin: u64,
    xmax: u64,
    running: Vec<u64>,
}

/// A text that is no snapshot.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no snapshot: it looks like 10:20:10,14")]
pub(crate) struct InvalidSnapshot(String);

impl Snapshot {
    /// Before every transaction there is.
    pub(crate) fn beginning() -> Self {
        Self {
            xmin: 1,
            xmax: 1,
            running: Vec::new(),
        }
    }

    /// The first transaction that had not begun to end: none from here on is seen.
    pub(crate) fn xmax(&self) -> u64 {
        self.xmax
    }

    /// Transactions that were running while one with a higher number had ended.
    pub(crate) fn running(&self) -> &[u64] {
        &self.running
    }

    /// Whether a transaction had ended.
    pub(crate) fn sees(&self, xid: u64) -> bool {
        xid < self.xmin || (xid < self.xmax && self.running.binary_search(&xid).is_err())
    }

    /// The same, but that it does not see `xid`.
    pub(crate) fn without(mut self, xid: u64) -> Self {
        if self.sees(xid) {
            let place = self.running.partition_point(|running| *running < xid);
            self.running.insert(place, xid);
            self.xmin = self.xmin.min(xid);
        }
        self
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:", self.xmin, self.xmax)?;
        for (index, xid) in self.running.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{xid}")?;
        }
        Ok(())
    }
}

impl FromStr for Snapshot {
    type Err = InvalidSnapshot;

    fn from_str(text: &str) -> Result<Self, InvalidSnapshot> {
        let invalid = || InvalidSnapshot(text.to_owned());
        let number = |part: &str| part.parse::<u64>().map_err(|_| invalid());
        let mut parts = text.splitn(3, ':');
        let mut part = || parts.next().ok_or_else(invalid);
        let (xmin, xmax) = (number(part()?)?, number(part()?)?);
        let running = part()?
            .split(',')
            .filter(|xid| !xid.is_empty())
            .map(number)
            .collect::<Result<Vec<u64>, _>>()?;
        Ok(Self { xmin, xmax, running })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Snapshot {
        text.parse().unwrap()
    }

    #[test]
    fn it_is_written_as_it_is_read() {
        for text in [
            "1:1:",
            "10:20:",
            "10:20:10,14",
            "1000000000000:1000000000003:1000000000001",
        ] {
            assert_eq!(of(text).to_string(), text);
        }
        for nonsense in ["", "1", "1:2", "a:b:", "1:2:x"] {
            assert!(nonsense.parse::<Snapshot>().is_err(), "{nonsense}");
        }
    }

    #[test]
    fn it_sees_what_had_ended() {
        let snapshot = of("10:20:10,14");
        let seen: Vec<u64> = (8..22).filter(|xid| snapshot.sees(*xid)).collect();
        assert_eq!(seen, [8, 9, 11, 12, 13, 15, 16, 17, 18, 19]);
        assert!(!Snapshot::beginning().sees(1));
    }

    #[test]
    fn one_can_be_taken_out_of_sight() {
        assert_eq!(of("10:20:14").without(12).to_string(), "10:20:12,14");
        assert_eq!(of("10:20:14").without(5).to_string(), "5:20:5,14");
        assert_eq!(of("10:20:14").without(14).to_string(), "10:20:14");
        assert_eq!(of("10:20:14").without(20).to_string(), "10:20:14");
    }
}
