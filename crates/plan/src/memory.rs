//! Places values in one arena so that no two that live at the same time overlap.
//!
//! Knows lifetimes and sizes only. The largest values are placed first, each in the smallest gap that
//! holds it between those already placed whose lifetimes overlap its own.

use mambo_kernel::ROW_ALIGN;

/// How long a value lives and how large it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// Call that writes it.
    pub first: usize,
    /// Last call that reads it; a value read after the program lives to the last call.
    pub last: usize,
    /// Its size.
    pub bytes: usize,
}

impl Interval {
    /// Whether both must exist during one call. A value written by the call that reads another last
    /// overlaps it: a kernel may write a row before it has read every input.
    fn meets(&self, other: &Interval) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// Where every value lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Byte offset of each value, in the order given.
    pub offsets: Vec<usize>,
    /// Size of the arena.
    pub arena_bytes: usize,
    /// Its size if no two values shared memory.
    pub unpooled_bytes: usize,
}

/// Plans the arena for these values.
pub fn plan_memory(values: &[Interval]) -> MemoryPlan {
    let size = |i: usize| values[i].bytes.next_multiple_of(ROW_ALIGN);
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by_key(|i| (std::cmp::Reverse(values[*i].bytes), values[*i].first, *i));
    let mut offsets = vec![0; values.len()];
    let mut placed: Vec<usize> = Vec::new();
    for value in order {
        let mut taken: Vec<(usize, usize)> = placed
            .iter()
            .filter(|other| values[value].meets(&values[**other]))
            .map(|other| (offsets[*other], offsets[*other] + size(*other)))
            .collect();
        taken.sort_unstable();
        offsets[value] = best_gap(&taken, size(value));
        placed.push(value);
    }
    let arena_bytes = (0..values.len()).map(|i| offsets[i] + size(i)).max().unwrap_or(0);
    MemoryPlan { offsets, arena_bytes, unpooled_bytes: (0..values.len()).map(size).sum() }
}

/// The start of the smallest gap of at least `bytes` between sorted ranges, or the end of them all.
fn best_gap(taken: &[(usize, usize)], bytes: usize) -> usize {
    let mut best: Option<(usize, usize)> = None;
    let mut end = 0;
    for (start, stop) in taken {
        let gap = start.saturating_sub(end);
        if gap >= bytes && best.is_none_or(|(smallest, _)| gap < smallest) {
            best = Some((gap, end));
        }
        end = end.max(*stop);
    }
    best.map_or(end, |(_, start)| start)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_chain_needs_two_places() {
        let chain: Vec<_> = (0..6).map(|i| Interval { first: i, last: i + 1, bytes: 100 }).collect();
        let plan = plan_memory(&chain);
        assert_eq!((plan.arena_bytes, plan.unpooled_bytes), (256, 768));
        assert_eq!(plan.offsets, [0, 128, 0, 128, 0, 128]);
    }

    #[test]
    fn the_smallest_gap_that_fits_is_taken() {
        assert_eq!(best_gap(&[(0, 64), (192, 256), (320, 384)], 64), 256);
        assert_eq!(best_gap(&[(0, 64), (192, 256), (320, 384)], 128), 64);
        assert_eq!(best_gap(&[(0, 64), (192, 256), (320, 384)], 192), 384);
    }

    proptest! {
        #[test]
        fn no_two_values_that_meet_overlap(
            values in prop::collection::vec((0usize..60, 0usize..20, 1usize..5000), 1..80)
        ) {
            let values: Vec<_> = values
                .into_iter()
                .map(|(first, length, bytes)| Interval { first, last: first + length, bytes })
                .collect();
            let plan = plan_memory(&values);
            for (i, a) in values.iter().enumerate() {
                prop_assert_eq!(plan.offsets[i] % ROW_ALIGN, 0);
                prop_assert!(plan.offsets[i] + a.bytes <= plan.arena_bytes);
                for (j, b) in values.iter().enumerate().skip(i + 1) {
                    let (x, y) = (plan.offsets[i], plan.offsets[j]);
                    prop_assert!(!a.meets(b) || x + a.bytes <= y || y + b.bytes <= x, "{i} and {j} overlap");
                }
            }
            prop_assert!(plan.arena_bytes <= plan.unpooled_bytes);
        }
    }
}
