//! The spread of repeated measurements.

use serde::{Deserialize, Serialize};

/// Smallest, middle and largest of a set of samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub(crate) min: f64,
    pub(crate) median: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// The spread of `samples`, of which there is at least one.
    pub(crate) fn of(samples: &[f64]) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        };
        Self {
            min: sorted[0],
            median,
            max: sorted[sorted.len() - 1],
        }
    }

    pub(super) fn scaled(self, factor: f64) -> Self {
        Self {
            min: self.min * factor,
            median: self.median * factor,
            max: self.max * factor,
        }
    }
}

/// Ours divided by theirs, round by round.
pub(super) fn ratios(ours: &[f64], theirs: &[f64]) -> Vec<f64> {
    ours.iter()
        .zip(theirs)
        .map(|(ours, theirs)| ours / theirs)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_between_the_two() {
        assert_eq!(
            Spread::of(&[3.0, 1.0, 2.0]),
            Spread {
                min: 1.0,
                median: 2.0,
                max: 3.0
            }
        );
        assert_eq!(Spread::of(&[4.0, 1.0, 3.0, 2.0]).median, 2.5);
        assert_eq!(
            Spread::of(&[7.0]),
            Spread {
                min: 7.0,
                median: 7.0,
                max: 7.0
            }
        );
    }

    #[test]
    fn ratios_pair_the_rounds() {
        assert_eq!(ratios(&[10.0, 30.0], &[5.0, 60.0]), [2.0, 0.5]);
    }
}
