//! Sorted runs that are merged by size, so that there are few and each entry is written seldom.

/// Runs of about one size that are merged.
const ALIKE: usize = 4;

/// Returns the first of the youngest runs that are to be merged: each is at most as large as those after it together, and
/// there are [`ALIKE`] of them. So of n entries there are about log n runs, and an entry is written again log n times.
/// `sizes`: the oldest first.
pub(in crate::log) fn first_alike(sizes: &[u64]) -> Option<usize> {
    let (mut first, mut sum) = (sizes.len(), 0);
    for (at, size) in sizes.iter().enumerate().rev() {
        if sum > 0 && *size > sum {
            break;
        }
        (first, sum) = (at, sum + size);
    }
    (sizes.len() - first >= ALIKE).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_runs_are_left_and_no_entry_is_written_often() {
        let (mut runs, mut written) = (Vec::new(), 0);
        for added in 1..=10_000_u64 {
            runs.push(1);
            while let Some(first) = first_alike(&runs) {
                let merged = runs.drain(first..).sum();
                written += merged;
                runs.push(merged);
            }
            assert_eq!(runs.iter().sum::<u64>(), added);
            assert!(runs.len() <= 24, "{runs:?}");
        }
        assert!(written < 10_000 * 14, "{written}");
    }
}
