//! What each op computes, row by row, through the references of the contracts.

use std::ops::Range;
use std::sync::Arc;

use super::ReferenceBackend;
use crate::RowBase;
use crate::cache::PAGE_TOKENS;
use crate::cache_elem::KvElem;
use crate::op::{CacheKind, Epilogue, Op};
use crate::ops;
use crate::program::{Call, Program};
use crate::step::{Segment, StepInputs, mask_words};

impl ReferenceBackend {
    /// The element type and scale of a layer's keys (half 0) or values (half 1), and a head's place in a page.
    fn kv_place(&self, layer: usize, half: usize, head: usize) -> (KvElem, f32, Range<usize>) {
        let (dims, types) = (self.layout.kv_layers[layer], self.layout.kv_types);
        let scale = self.layout.kv_scale(layer);
        let keys = types.k.head_bytes(dims.head_dim);
        let (elem, scale, base) = match half {
            0 => (types.k, scale.k, 0),
            _ => (types.v, scale.v, dims.kv_heads * keys),
        };
        let size = elem.head_bytes(dims.head_dim);
        (elem, scale, base + head * size..base + (head + 1) * size)
    }

    /// The page of a layer that holds a position.
    fn page(&self, layer: usize, segment: &Segment, position: usize, step: &StepInputs) -> usize {
        let pages = step.group_pages(self.layout.kv_group(layer), self.layout.kv_groups.len());
        pages[segment.first_page as usize + position / PAGE_TOKENS] as usize
    }

    fn append_kv(
        &mut self,
        layer: usize,
        segment: &Segment,
        position: usize,
        step: &StepInputs,
        kv: [&[f32]; 2],
    ) {
        let n = self.layout.kv_layers[layer].head_dim;
        let page = self.page(layer, segment, position, step);
        for (half, row) in kv.into_iter().enumerate() {
            for (head, values) in row.chunks(n).enumerate() {
                let (elem, scale, place) = self.kv_place(layer, half, head);
                elem.store(scale, values, position % PAGE_TOKENS, &mut self.pages[layer][page][place]);
            }
        }
    }

    fn cached(
        &self,
        layer: usize,
        segment: &Segment,
        positions: Range<usize>,
        step: &StepInputs,
        half: usize,
    ) -> Vec<Vec<f32>> {
        let dims = self.layout.kv_layers[layer];
        let row = |position: usize| {
            let page = self.page(layer, segment, position, step);
            let part = |head: usize| {
                let (elem, scale, place) = self.kv_place(layer, half, head);
                elem.load(scale, dims.head_dim, position % PAGE_TOKENS, &self.pages[layer][page][place])
            };
            (0..dims.kv_heads).flat_map(part).collect()
        };
        positions.map(row).collect()
    }

    /// The part of a slot that belongs to one state layer.
    fn slot_range(&self, layer: usize) -> Range<usize> {
        let start = (0..layer).map(|l| self.layout.slot_layout(l).len).sum();
        start..start + self.layout.slot_layout(layer).len
    }

    /// Puts a column into a layer's convolution ring; the last columns up to it, oldest first.
    fn columns(&mut self, layer: usize, segment: &Segment, position: usize, own: &[f32]) -> Vec<Vec<f32>> {
        let layout = self.layout.slot_layout(layer);
        let range = self.slot_range(layer);
        let slot = &mut self.slots[segment.slot as usize][range];
        let width = layout.dims.conv_dim();
        let column =
            |slot: &[f32], p: usize| slot[layout.conv + p % layout.conv_capacity * width..][..width].to_vec();
        let before = layout.dims.taps - 1;
        let mut columns: Vec<Vec<f32>> = (0..before)
            .map(|k| match (position + k).checked_sub(before) {
                Some(p) => column(slot, p),
                None => vec![0.0; width],
            })
            .collect();
        columns.push(own.to_vec());
        slot[layout.conv + position % layout.conv_capacity * width..][..width].copy_from_slice(own);
        columns
    }

    pub(super) fn call(&mut self, program: &Program, call: &Call, step: &StepInputs) {
        let weights = call.weights.iter().map(|&w| Arc::clone(&self.weights[&program.weights[w]]));
        let weights: Vec<Arc<[f32]>> = weights.collect();
        for segment in step.segments {
            for row in segment.row_range() {
                let position = segment.position as usize + row - segment.first_row as usize;
                self.call_row(call, &weights, step, segment, row, position);
            }
        }
        if call.outputs[0].rows.base == RowBase::Wanted {
            for row in 0..step.wanted.len() {
                self.wanted_row(call, &weights, step, row);
            }
        }
    }

    /// Ops whose rows belong to tokens.
    fn call_row(
        &mut self,
        call: &Call,
        w: &[Arc<[f32]>],
        step: &StepInputs,
        segment: &Segment,
        row: usize,
        position: usize,
    ) {
        if call.outputs[0].rows.base == RowBase::Wanted {
            return;
        }
        let layer = call.cache.unwrap_or(0);
        let input = |this: &Self, i: usize| this.read_row(&call.inputs[i], row, step);
        match call.op {
            op if op.cache() == Some(CacheKind::State) => {
                self.recurrent_row(call, w, step, segment, row, position);
            }
            Op::Embed => {
                let id = input(self, 0)[0].to_bits();
                let y = ops::embed::reference(&w[0], call.outputs[0].cols, id);
                self.write_row(&call.outputs[0], row, &y);
            }
            Op::Rope(rope) => {
                let factors = w.first().map(|factors| &factors[..]);
                let y = ops::rope::reference(&rope, &input(self, 0), position, factors);
                self.write_row(&call.outputs[0], row, &y);
            }
            Op::Attention(attention) => {
                let (q, k, v) = (input(self, 0), input(self, 1), input(self, 2));
                self.append_kv(layer, segment, position, step, [&k, &v]);
                let seen = attention.first_seen(position)..position + 1;
                let keys = self.cached(layer, segment, seen.clone(), step, 0);
                let values = self.cached(layer, segment, seen, step, 1);
                let sinks = w.first().map_or(&[][..], |sinks| &sinks[..]);
                let y = ops::attention::reference(&attention, &q, &keys, &values, sinks);
                self.write_row(&call.outputs[0], row, &y);
            }
            Op::MoeRoute(route) => {
                let (ids, weights) = ops::moe_route::reference(&input(self, 0), &w[0], &route);
                let ids: Vec<f32> = ids.into_iter().map(f32::from_bits).collect();
                self.write_row(&call.outputs[0], row, &ids);
                self.write_row(&call.outputs[1], row, &weights);
            }
            Op::MoeMatmul { top_k, out, epilogue, .. } => {
                let ids = input(self, 1);
                for (j, id) in ids.iter().enumerate() {
                    let source = if call.inputs[0].rows.times == 1 { row } else { row * top_k + j };
                    let x = self.read_row(&call.inputs[0], source, step);
                    let weights: Vec<&[f32]> = w.iter().map(|weight| &weight[..]).collect();
                    let y = ops::moe_matmul::reference(&weights, out, &x, id.to_bits() as usize, epilogue);
                    self.write_row(&call.outputs[0], row * top_k + j, &y);
                }
            }
            Op::MoeBias { top_k, .. } => {
                for (j, id) in input(self, 1).iter().enumerate() {
                    let x = self.read_row(&call.inputs[0], row * top_k + j, step);
                    let y = ops::moe_bias::reference(&x, &w[0], id.to_bits() as usize);
                    self.write_row(&call.outputs[0], row * top_k + j, &y);
                }
            }
            Op::MoeCombine { top_k, residual } => {
                let rows = (0..top_k).flat_map(|j| self.read_row(&call.inputs[0], row * top_k + j, step));
                let rows: Vec<f32> = rows.collect();
                let residual = residual.then(|| input(self, 2));
                let y = ops::moe_combine::reference(&rows, &input(self, 1), residual.as_deref());
                self.write_row(&call.outputs[0], row, &y);
            }
            // An expert of a token has a row of its own.
            _ => {
                let times = call.outputs[0].rows.times;
                (row * times..(row + 1) * times).for_each(|row| self.row_op(call, w, step, row));
            }
        }
    }

    /// Ops that keep a recurrent state.
    fn recurrent_row(
        &mut self,
        call: &Call,
        w: &[Arc<[f32]>],
        step: &StepInputs,
        segment: &Segment,
        row: usize,
        position: usize,
    ) {
        let layer = call.cache.unwrap_or(0);
        let input = |this: &Self, i: usize| this.read_row(&call.inputs[i], row, step);
        let y = match call.op {
            Op::SsmConv(_) => {
                let xbc = input(self, 0);
                let columns = self.columns(layer, segment, position, &xbc);
                ops::ssm_conv::reference(&columns, &w[0], &w[1])
            }
            Op::ShortConv(_) => {
                let bcx = input(self, 0);
                let columns = self.columns(layer, segment, position, &ops::short_conv::column(&bcx));
                ops::short_conv::reference(&columns, &bcx, &w[0], &w[1])
            }
            Op::DeltaScan(_) => {
                let (qkv, strength, decay) = (input(self, 0), input(self, 1), input(self, 2));
                let token = ops::delta_scan::Token { qkv: &qkv, strength: &strength, decay: &decay };
                let layout = self.layout.slot_layout(layer);
                let range = self.slot_range(layer);
                let slot = &mut self.slots[segment.slot as usize][range];
                ops::delta_scan::reference(&layout, slot, position, &token, &w[0], &w[1])
            }
            Op::SsmScan(_) => {
                let (xbc, dt) = (input(self, 0), input(self, 1));
                let layout = self.layout.slot_layout(layer);
                let range = self.slot_range(layer);
                let slot = &mut self.slots[segment.slot as usize][range];
                ops::ssm_scan::reference(&layout, slot, position, &xbc, &dt, &w[0], &w[1])
            }
            op => unreachable!("{} keeps no state", op.kind().name()),
        };
        self.write_row(&call.outputs[0], row, &y);
    }

    fn wanted_row(&mut self, call: &Call, w: &[Arc<[f32]>], step: &StepInputs, row: usize) {
        match call.op {
            Op::GatherRows => {
                let x = self.read_row(&call.inputs[0], step.wanted[row] as usize, step);
                self.write_row(&call.outputs[0], row, &ops::gather_rows::reference(&x));
            }
            Op::Choose => {
                let logits = self.read_row(&call.inputs[0], row, step);
                let (choose, words) = (step.choose, mask_words(logits.len()));
                let how = &choose.rows[row];
                let changes =
                    &choose.adjustments[how.adjustments.start as usize..how.adjustments.end as usize];
                let mask = how.mask.map(|number| {
                    let mut mask = vec![0; words];
                    choose.masks.fill(number, &mut mask);
                    mask
                });
                let token = ops::choose::reference(&logits, how, changes, mask.as_deref());
                self.write_row(&call.outputs[0], row, &[f32::from_bits(token)]);
            }
            _ => self.row_op(call, w, step, row),
        }
    }

    /// Ops that read and write one row and know nothing else.
    fn row_op(&mut self, call: &Call, w: &[Arc<[f32]>], step: &StepInputs, row: usize) {
        let inputs: Vec<Vec<f32>> = call.inputs.iter().map(|i| self.read_row(i, row, step)).collect();
        let y = match call.op {
            Op::RmsNorm { eps } => ops::rms_norm::reference(&inputs[0], &w[0], eps),
            Op::Matmul { epilogue, .. } => {
                let gate = w.get(1).map(|gate| ops::matmul::reference(gate, &inputs[0], Epilogue::None, &[]));
                let beside = gate.as_ref().or(inputs.get(1)).map_or(&[][..], Vec::as_slice);
                ops::matmul::reference(&w[0], &inputs[0], epilogue, beside)
            }
            Op::Add => ops::add::reference(&inputs[0], &inputs[1]),
            Op::LayerNorm { eps } => ops::layer_norm::reference(&inputs[0], &w[0], &w[1], eps),
            Op::HeadNorm { eps, .. } => ops::head_norm::reference(&inputs[0], &w[0], eps),
            Op::Glu(activation) => ops::glu::reference(activation, &inputs[0], &inputs[1]),
            Op::Bias => ops::bias::reference(&inputs[0], &w[0]),
            Op::SoftCap { cap } => ops::soft_cap::reference(cap, &inputs[0]),
            Op::Relu2 => ops::relu2::reference(&inputs[0]),
            Op::Concat => ops::concat::reference(&inputs[0], &inputs[1]),
            Op::SsmDt => ops::ssm_dt::reference(&inputs[0], &w[0]),
            Op::GatedGroupNorm { groups, eps } => {
                ops::gated_group_norm::reference(&inputs[0], &inputs[1], &w[0], groups, eps)
            }
            op => unreachable!("{} is not in the reference's kernel rows", op.kind().name()),
        };
        self.write_row(&call.outputs[0], row, &y);
    }
}
