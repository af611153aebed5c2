//! Draws a token from adjusted logits. Only as many candidates are put in order as are looked at: a vocabulary
//! has a hundred thousand and a draw looks at a few.

use std::cmp::Ordering;

use crate::sample::SamplingParams;

/// Draws a token; `candidates` is room for them.
pub(crate) fn draw(
    logits: &[f32],
    candidates: &mut Vec<(u32, f32)>,
    params: &SamplingParams,
    random: f64,
) -> u32 {
    candidates.clear();
    candidates.extend(logits.iter().enumerate().filter(|(_, l)| !l.is_nan()).map(|(i, &l)| (i as u32, l)));
    if params.top_k > 0 && params.top_k < candidates.len() {
        candidates.select_nth_unstable_by(params.top_k - 1, most_likely_first);
        candidates.truncate(params.top_k);
    }
    let max = candidates.iter().fold(f32::NEG_INFINITY, |max, candidate| max.max(candidate.1));
    let weight = |logit: f32| f64::from(((logit - max) / params.temperature).exp());
    let total: f64 = candidates.iter().map(|(_, logit)| weight(*logit)).sum();
    let mut candidates = InOrder { all: candidates, sorted: 0 };
    let Some((best, _)) = candidates.get(0) else { return 0 };
    if max.is_infinite() {
        // Nothing can be compared with infinity: the first of the best is taken.
        return best;
    }
    let (mut kept, mut share) = (candidates.all.len(), total);
    if params.top_p < 1.0 || params.min_p > 0.0 {
        (kept, share) = (0, 0.0);
        while let Some((_, logit)) = candidates.get(kept).filter(|c| weight(c.1) >= f64::from(params.min_p)) {
            share += weight(logit);
            kept += 1;
            if share / total >= f64::from(params.top_p) {
                break;
            }
        }
    }
    let target = random * share;
    let (mut chosen, mut sum) = (best, 0.0);
    for i in 0..kept {
        // What has no weight is never chosen, however sums are rounded.
        let Some((token, logit)) = candidates.get(i).filter(|c| weight(c.1) > 0.0) else { break };
        chosen = token;
        sum += weight(logit);
        if sum > target {
            break;
        }
    }
    chosen
}

/// Ties go to the lower id.
fn most_likely_first(a: &(u32, f32), b: &(u32, f32)) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// Candidates, the most likely first; only those that are looked at are put in order.
struct InOrder<'a> {
    all: &'a mut [(u32, f32)],
    /// How many are in order.
    sorted: usize,
}

/// Candidates that are put in order at first; later as many as are in order already.
const FIRST_SORTED: usize = 256;

impl InOrder<'_> {
    fn get(&mut self, i: usize) -> Option<(u32, f32)> {
        while i >= self.sorted && self.sorted < self.all.len() {
            let rest = &mut self.all[self.sorted..];
            let more = rest.len().min(self.sorted.max(FIRST_SORTED));
            if more < rest.len() {
                rest.select_nth_unstable_by(more, most_likely_first);
            }
            rest[..more].sort_unstable_by(most_likely_first);
            self.sorted += more;
        }
        self.all.get(i).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_looked_at_is_in_order() {
        let all: Vec<(u32, f32)> = (0..5000).map(|i| (i, (i * 7919 % 1009) as f32)).collect();
        let mut want = all.clone();
        want.sort_by(most_likely_first);
        let mut few = all.clone();
        let mut candidates = InOrder { all: &mut few, sorted: 0 };
        assert_eq!((candidates.get(3), candidates.sorted), (Some(want[3]), FIRST_SORTED));
        let found: Vec<_> = (0..).map_while(|i| candidates.get(i)).collect();
        assert_eq!(found, want);
    }

    /// A draw from many, beside the plain way to do it: everything in order, then the cuts, then the walk.
    #[test]
    fn many_candidates_are_drawn_as_from_a_sorted_list() {
        let logits: Vec<f32> = (0..5000u32).map(|i| (i * 7919 % 1009) as f32 / 90.0).collect();
        let mut sorted: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
        sorted.sort_by(most_likely_first);
        for (top_k, top_p, min_p) in
            [(0, 1.0, 0.0), (0, 0.9, 0.0), (700, 1.0, 0.0), (0, 0.99, 0.02), (40, 0.5, 0.1)]
        {
            let params = SamplingParams { temperature: 1.5, top_k, top_p, min_p, ..Default::default() };
            let cut = if top_k > 0 { top_k } else { sorted.len() };
            let weights: Vec<f64> =
                sorted[..cut].iter().map(|c| f64::from((c.1 - sorted[0].1) / 1.5).exp()).collect();
            let total: f64 = weights.iter().sum();
            let mut sum = 0.0;
            let reaches = |w: &f64| {
                sum += w / total;
                sum >= f64::from(top_p)
            };
            let kept = weights.iter().position(reaches).map_or(cut, |i| i + 1);
            let kept = weights[..kept].partition_point(|w| *w >= f64::from(min_p));
            let share: f64 = weights[..kept].iter().sum();
            for random in [0.0, 0.1, 0.37, 0.62, 0.95, 0.999] {
                let mut sum = 0.0;
                let passes = |w: &f64| {
                    sum += w;
                    sum > random * share
                };
                let want = sorted[weights.iter().position(passes).expect("some token")].0;
                assert_eq!(draw(&logits, &mut Vec::new(), &params, random), want, "{params:?}, {random}");
            }
        }
    }
}
