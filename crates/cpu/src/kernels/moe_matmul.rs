//! `moe_matmul`: `y[t,j] = W[ids[t,j]]·x` for every token and chosen expert, then the epilogue.
//!
//! Pairs (t, j) are sorted by expert, so that each chosen expert's panels are read once per call. An item is a group of
//! panels of one expert with all its pairs, and a thread may take a run of items. Every thread does the sorting itself,
//! which is cheaper than a barrier.

use mambo_kernel::{Epilogue, Op, OpKind, Operand};

use super::declaration::{Binding, Declaration};
use super::matmul::{Products, RowCounts, Task, TaskRows, TaskScratch, declare_products};
use super::{Cx, Kernel, Scratch, ScratchNeed};
use crate::isa::Isa;
use crate::shared::View;

/// A call's parts.
struct MoeMatmulCall {
    pub x: Operand,
    pub ids: Operand,
    pub out: Operand,
    /// Where the quantised output goes.
    pub rounded: Option<Operand>,
    pub top_k: usize,
    pub epilogue: Epilogue,
}

struct MoeMatmul {
    call: MoeMatmulCall,
    products: Products,
}

/// Sorts pairs by expert. `starts[e]..starts[e + 1]` are the pairs of expert `e` in `pairs`.
fn sort_pairs(ids: &View, top_k: usize, starts: &mut [i32], pairs: &mut [i32]) {
    starts.fill(0);
    let experts = starts.len() - 1;
    for t in 0..ids.rows() {
        for &id in ids.index_row(t) {
            starts[id as usize % experts + 1] += 1;
        }
    }
    for e in 0..experts {
        starts[e + 1] += starts[e];
    }
    for t in 0..ids.rows() {
        for (j, &id) in ids.index_row(t).iter().enumerate() {
            let at = &mut starts[id as usize % experts];
            pairs[*at as usize] = (t * top_k + j) as i32;
            *at += 1;
        }
    }
    // Each start has moved to its expert's end, which is the next expert's start.
    starts.copy_within(0..experts, 1);
    starts[0] = 0;
}

impl Kernel for MoeMatmul {
    fn run(&self, cx: &Cx, scratch: &mut Scratch) {
        let call = &self.call;
        let (weight, multiplier, top_k) = (&*self.products.weight, &self.products.multiplier, call.top_k);
        let (x, ids, out) = (cx.view(&call.x), cx.view(&call.ids), cx.view(&call.out));
        let rounded = call.rounded.as_ref().map(|r| cx.view(r));
        let experts = weight.experts();
        let Scratch { floats, words, bytes } = scratch;
        let (starts, rest) = words.split_at_mut(experts + 1);
        let (pairs, words) = rest.split_at_mut(ids.rows() * top_k);
        sort_pairs(&ids, top_k, starts, pairs);
        let (starts, pairs) = (&*starts, &*pairs);

        let row_block = multiplier.row_block(weight.cols());
        let panels = weight.panels();
        let chosen = starts.windows(2).filter(|w| w[1] > w[0]).count();
        let most = starts.windows(2).map(|w| (w[1] - w[0]) as usize).max().unwrap_or(0);
        let rows = RowCounts { usual: pairs.len() / chosen.max(1), most };
        let cut = multiplier.cut(weight, rows, cx.threads.div_ceil(chosen.max(1)));
        let cut = cut.for_rounding(rounded.is_some());
        let groups = panels.div_ceil(cut.panels);
        let per_input = if x.rows() == ids.rows() { top_k } else { 1 };
        let (mut expert, mut first_item) = (0, 0);
        while let Some(mut items) = cut.next(cx, chosen * groups) {
            while !items.is_empty() {
                // Items come in ascending order: advance to the expert of this one.
                while starts[expert] == starts[expert + 1] || items.start >= first_item + groups {
                    first_item += if starts[expert] == starts[expert + 1] { 0 } else { groups };
                    expert += 1;
                }
                let own = &pairs[starts[expert] as usize..starts[expert + 1] as usize];
                let end = items.end.min(first_item + groups);
                let (first, last) = (items.start - first_item, end - first_item);
                for pairs in own.chunks(row_block) {
                    let task = Task {
                        weight,
                        expert,
                        panels: first * cut.panels..panels.min(last * cut.panels),
                        rows: TaskRows::Pairs { pairs, per_input },
                        x,
                        residual: None,
                        out,
                        rounded,
                        epilogue: call.epilogue,
                    };
                    let scratch =
                        TaskScratch { words: &mut *words, floats: &mut *floats, bytes: &mut *bytes };
                    self.products.multiply(&task, scratch);
                }
                items.start = end;
            }
        }
    }

    fn scratch(&self, max_tokens: usize) -> ScratchNeed {
        let pairs = max_tokens * self.call.top_k;
        let Products { weight, multiplier, .. } = &self.products;
        let need = multiplier.scratch_need(weight.cols(), pairs);
        ScratchNeed { words: weight.experts() + 1 + pairs + need.words, ..need }
    }
}

pub(super) fn declare(isa: Isa) -> Vec<Declaration> {
    let bind = |b: &Binding| match b.call.op {
        Op::MoeMatmul { experts, top_k, out: rows, epilogue } => {
            let products = Products::bind(b, [experts, rows, b.x().cols])?;
            let (ids, rounded) = (b.input(1), b.call.rounded);
            let call = MoeMatmulCall { x: b.x(), ids, out: b.out(), rounded, top_k, epilogue };
            Ok(Box::new(MoeMatmul { call, products }) as Box<dyn Kernel>)
        }
        _ => b.wrong_op(),
    };
    declare_products(isa, OpKind::MoeMatmul, bind)
}
