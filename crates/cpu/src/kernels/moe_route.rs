//! `moe_route`: `s = sigmoid(logits)` or `softmax(logits)`, experts chosen by `s + bias` within the best groups, weights from
//! `s` alone. An item is a row.
#![allow(unsafe_code)]

use std::sync::Arc;

use mambo_kernel::{Op, OpKind, Operand, RouteDims, Scoring, Site};

use super::declaration::{Binding, Declaration};
use super::{Cx, Scratch, ScratchNeed, Work};
use crate::isa::Isa;
use crate::simd::{Math, Simd, part, part_mut, vectors};

pub(crate) struct MoeRoute {
    pub logits: Operand,
    pub ids: Operand,
    pub weights: Operand,
    pub bias: Arc<Vec<f32>>,
    pub route: RouteDims,
}

/// Writes the indices of the largest scores in descending order, ties to the lower index. There are at
/// least as many scores as entries in `top`.
fn best(scores: &[f32], top: &mut [u32]) {
    let mut filled = 0;
    for (index, &score) in scores.iter().enumerate() {
        if filled == top.len() {
            // On ties the earlier index wins.
            if !filled.checked_sub(1).is_some_and(|last| score > scores[top[last] as usize]) {
                continue;
            }
            filled -= 1;
        }
        let mut at = filled;
        while at > 0 && score > scores[top[at - 1] as usize] {
            top[at] = top[at - 1];
            at -= 1;
        }
        top[at] = index as u32;
        filled += 1;
    }
}

/// Sum of the two largest scores.
fn two_best(group: &[f32]) -> f32 {
    let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
    for &score in group {
        if score > first {
            (first, second) = (score, first);
        } else if score > second {
            second = score;
        }
    }
    if group.len() > 1 { first + second } else { first }
}

/// Sets the scores of all but the best groups to minus infinity.
fn limit_groups(route: &RouteDims, choice: &mut [f32], group_scores: &mut [f32], kept: &mut [u32]) {
    let size = route.experts / route.groups;
    for (score, group) in group_scores.iter_mut().zip(choice.chunks(size)) {
        *score = two_best(group);
    }
    best(group_scores, kept);
    for (group, scores) in choice.chunks_mut(size).enumerate() {
        if !kept.contains(&(group as u32)) {
            scores.fill(f32::NEG_INFINITY);
        }
    }
}

/// `exp(l)` of every logit divided by the sum of all.
#[inline(always)]
fn softmax<S: Simd>(logits: &[f32], scores: &mut [f32]) {
    let mut largest = S::splat(f32::NEG_INFINITY);
    for i in 0..vectors(logits.len()) {
        let logits = part(logits, i);
        largest = S::max(S::first(logits.len(), S::load_part(logits), largest), largest);
    }
    let largest = S::splat(S::max_lane(largest));
    for i in 0..vectors(logits.len()) {
        let power = S::exp(S::sub(S::load_part(part(logits, i)), largest));
        S::store_part(power, part_mut(scores, i));
    }
    let sum = S::splat(S::total(scores));
    for i in 0..vectors(logits.len()) {
        S::store_part(S::div(S::load_part(part(scores, i)), sum), part_mut(scores, i));
    }
}

impl Work for MoeRoute {
    #[inline(always)]
    fn work<S: Simd>(&self, cx: &Cx, scratch: &mut Scratch) {
        let (logits, ids) = (cx.view(&self.logits), cx.view(&self.ids));
        let (weights, route) = (cx.view(&self.weights), &self.route);
        let (scores, rest) = scratch.floats.split_at_mut(route.experts);
        let (choice, rest) = rest.split_at_mut(route.experts);
        let group_scores = &mut rest[..route.groups];
        let mut kept = [0u32; MAX_GROUPS];
        for row in cx.own(logits.rows()) {
            let logits = logits.row(row);
            match route.scoring {
                Scoring::Sigmoid => {
                    for i in 0..vectors(route.experts) {
                        S::store_part(S::sigmoid(S::load_part(part(logits, i))), part_mut(scores, i));
                    }
                }
                Scoring::Softmax => softmax::<S>(logits, scores),
            }
            for ((choice, score), bias) in choice.iter_mut().zip(&*scores).zip(&*self.bias) {
                // NaN does not compare: it is chosen last.
                let sum = score + bias;
                *choice = if sum.is_nan() { f32::NEG_INFINITY } else { sum };
            }
            if route.groups > 1 {
                limit_groups(route, choice, group_scores, &mut kept[..route.top_groups]);
            }
            // SAFETY: a row of either output belongs to one item.
            let (ids, weights) = unsafe { (ids.index_row_mut(row), weights.cols_mut(row, 0..route.top_k)) };
            best(choice, ids);
            for (weight, &id) in weights.iter_mut().zip(&*ids) {
                *weight = scores[id as usize];
            }
            let sum = if route.normalize { weights.iter().sum::<f32>() + 1e-20 } else { 1.0 };
            weights.iter_mut().for_each(|w| *w = *w / sum * route.scale);
        }
    }

    fn scratch(&self, _: usize) -> ScratchNeed {
        ScratchNeed { floats: 2 * self.route.experts + self.route.groups, ..ScratchNeed::default() }
    }
}

/// Maximum groups a router may keep.
pub(crate) const MAX_GROUPS: usize = 256;

pub(super) fn declare(isa: Isa) -> Vec<Declaration> {
    let bind = |b: &Binding| match b.call.op {
        Op::MoeRoute(route) => {
            let (bias, weights) = (b.vector(0, route.experts)?, b.call.outputs[1]);
            b.kernel(MoeRoute { logits: b.x(), ids: b.out(), weights, bias, route })
        }
        _ => b.wrong_op(),
    };
    let accepts = |site: &Site| match site.op {
        Op::MoeRoute(route) => route.top_groups <= MAX_GROUPS && route.top_k <= route.experts,
        _ => false,
    };
    vec![Declaration::new(isa, OpKind::MoeRoute, "f32", bind).offering(|row| row.accepting(accepts))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_go_to_the_lower_index() {
        let mut top = [9; 3];
        best(&[1.0, 3.0, 1.0, 3.0, 2.0, 1.0], &mut top);
        assert_eq!(top, [1, 3, 4]);
        best(&[f32::NEG_INFINITY; 4], &mut top);
        assert_eq!(top, [0, 1, 2]);
        assert_eq!(two_best(&[1.0, 5.0, 3.0, 5.0]), 10.0);
    }
}
