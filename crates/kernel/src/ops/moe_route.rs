//! `moe_route`: `s = sigmoid(logits)` or `softmax(logits)`; experts are chosen by `s + bias`, ties to the lower index.
//! With groups, a group's score is the sum of its two best `s + bias`, and only the experts of the
//! `top_groups` best groups take part. Ids stand in descending order of `s + bias`. Weights are the
//! *unbiased* `s`, divided by `Σ + 1e-20` if normalised, times `scale`.
//!
//! Tolerance: one exponential; ids must be equal.

use crate::case::{Case, CaseWeight, RAGGED, Rng};
use crate::dims::{RouteDims, Scoring};
use crate::op::Op;

/// Indices of the `count` largest scores, in descending order, ties to the lower index.
fn best(scores: &[f32], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
    order.truncate(count);
    order
}

/// Expert ids and weights of one row.
pub fn reference(logits: &[f32], bias: &[f32], route: &RouteDims) -> (Vec<u32>, Vec<f32>) {
    let score: Vec<f32> = match route.scoring {
        Scoring::Sigmoid => logits.iter().map(|&l| (1.0 / (1.0 + (-f64::from(l)).exp())) as f32).collect(),
        Scoring::Softmax => {
            let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let powers: Vec<f64> = logits.iter().map(|&l| (f64::from(l) - f64::from(max)).exp()).collect();
            let sum: f64 = powers.iter().sum();
            powers.iter().map(|power| (power / sum) as f32).collect()
        }
    };
    let mut choice: Vec<f32> = score.iter().zip(bias).map(|(s, b)| s + b).collect();
    if route.groups > 1 {
        let size = route.experts / route.groups;
        let two_best = |group: &[f32]| best(group, 2).iter().map(|&i| group[i]).sum::<f32>();
        let group_scores: Vec<f32> = choice.chunks(size).map(two_best).collect();
        let kept = best(&group_scores, route.top_groups);
        for (index, value) in choice.iter_mut().enumerate() {
            if !kept.contains(&(index / size)) {
                *value = f32::NEG_INFINITY;
            }
        }
    }
    let ids = best(&choice, route.top_k);
    let sum: f64 = ids.iter().map(|&i| f64::from(score[i])).sum();
    let factor = f64::from(route.scale) / if route.normalize { sum + 1e-20 } else { 1.0 };
    let weights = ids.iter().map(|&i| (f64::from(score[i]) * factor) as f32).collect();
    (ids.iter().map(|&i| i as u32).collect(), weights)
}

/// Released sizes, group limits, and no normalisation.
pub fn cases() -> Vec<Case> {
    let mut rng = Rng(13);
    let case = |&(scoring, experts, top_k, groups, top_groups, normalize): &(_, usize, _, _, _, _)| {
        let route = RouteDims { scoring, experts, top_k, groups, top_groups, normalize, scale: 2.5 };
        let bias = CaseWeight::f32(&[experts], &rng.normals(experts, 0.2));
        let name = format!("{scoring:?}, {top_k} of {experts}, {top_groups} of {groups} groups");
        Case::new(name, Op::MoeRoute(route), &RAGGED, 3e-6).weight(bias).input(experts, || rng.normal() * 2.0)
    };
    let sizes = [
        (Scoring::Sigmoid, 8, 3, 1, 1, true),
        (Scoring::Sigmoid, 128, 6, 1, 1, true),
        (Scoring::Sigmoid, 16, 4, 4, 2, true),
        (Scoring::Sigmoid, 20, 5, 1, 1, false),
        (Scoring::Sigmoid, 512, 22, 1, 1, true),
        (Scoring::Sigmoid, 1, 1, 1, 1, false),
        (Scoring::Softmax, 6, 2, 1, 1, true),
        (Scoring::Softmax, 128, 8, 1, 1, false),
        (Scoring::Softmax, 512, 10, 1, 1, true),
    ];
    sizes.iter().map(case).collect()
}
