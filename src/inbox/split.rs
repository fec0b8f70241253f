//! Who is run together again after a handler failed: the one that failed by itself, the others in as few transactions as the
//! failures allow.

/// Splits a batch of several in order.
///
/// Where it is known at which message the handler failed, that one is run alone, what stood before it together, since it went
/// well, and what stands after it in parts whose length follows from how soon the failure came. Otherwise in halves.
pub(super) fn split<T>(mut batch: Vec<T>, failed_at: Option<usize>) -> Vec<Vec<T>> {
    let Some(at) = failed_at.filter(|at| *at < batch.len()) else {
        let second = batch.split_off(batch.len().div_ceil(2));
        return vec![batch, second];
    };
    let mut after = batch.split_off(at + 1);
    let failed = batch.split_off(at);
    let mut parts = vec![batch, failed];
    // If every second one fails, no part is long.
    let length = 2 * (at + 1);
    while after.len() > length {
        let rest = after.split_off(length);
        parts.push(std::mem::replace(&mut after, rest));
    }
    parts.push(after);
    parts.retain(|part| !part.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_one_that_failed_is_run_alone() {
        let of = |length: usize, at| split((0..length).collect(), at);
        assert_eq!(of(5, Some(2)), [vec![0, 1], vec![2], vec![3, 4]]);
        assert_eq!(of(5, Some(0)), [vec![0], vec![1, 2], vec![3, 4]]);
        assert_eq!(of(2, Some(1)), [vec![0], vec![1]]);
        assert_eq!(of(5, None), [vec![0, 1, 2], vec![3, 4]]);
    }

    proptest! {
        #[test]
        fn all_are_kept_in_order_and_each_part_is_shorter(length in 2..300_usize, at in proptest::option::of(0..320_usize)) {
            let parts = split((0..length).collect::<Vec<_>>(), at);
            prop_assert!(parts.iter().all(|part| !part.is_empty() && part.len() < length));
            prop_assert_eq!(parts.concat(), (0..length).collect::<Vec<_>>());
        }
    }
}
