//! The reference as a backend: complete, plain and slow. It defines what the others must compute.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use mambo_tensor::decode_row;

use crate::backend::{
    Backend, BackendError, CallTime, KernelRow, MemoryBudget, ProgramId, Ticket, Wait, WeightSource,
};
use crate::cache::{CacheLayout, PAGE_TOKENS};
use crate::cache_elem::KvElem;
use crate::cell::Cell;
use crate::op::{Op, OpKind};
use crate::ops;
use crate::program::{Call, Operand, Place, Program, WeightKey};
use crate::step::{CHOICES_KEPT, HiddenRows, Segment, StepInputs, StepResults, mask_words};
use crate::value::Elem;

/// The plain backend.
pub struct ReferenceBackend {
    kernels: Vec<KernelRow>,
    weights: HashMap<WeightKey, Arc<[f32]>>,
    layout: CacheLayout,
    /// Per layer and page: every head's keys, then every head's values.
    pages: Vec<Vec<Vec<u8>>>,
    slots: Vec<Vec<f32>>,
    arena: Vec<u8>,
    programs: Vec<Arc<Program>>,
    /// The program that ran last, which the next step may take rows from.
    last: Option<ProgramId>,
    /// Tokens that the last steps chose.
    choices: HashMap<Ticket, Vec<u32>>,
    /// Results of steps that have not been collected.
    done: HashMap<Ticket, StepResults>,
    next_ticket: u64,
}

impl Default for ReferenceBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl ReferenceBackend {
    /// A backend with no weights yet.
    pub fn new() -> Self {
        // Neither views nor what lowering inserts for faster backends.
        let skip = [OpKind::Split, OpKind::Quantize, OpKind::SsmStep];
        let row = |op: OpKind| KernelRow::new(format!("reference:{}.plain.f32", op.name()), op);
        let kernels = OpKind::ALL.into_iter().filter(|op| !skip.contains(op)).map(row);
        ReferenceBackend {
            kernels: kernels.collect(),
            weights: HashMap::new(),
            layout: CacheLayout::default(),
            pages: Vec::new(),
            slots: Vec::new(),
            arena: Vec::new(),
            programs: Vec::new(),
            last: None,
            choices: HashMap::new(),
            done: HashMap::new(),
            next_ticket: 0,
        }
    }

    /// Rows of an output of the program that ran last.
    fn output_rows(&self, id: ProgramId, output: usize, rows: impl Iterator<Item = usize>) -> Vec<f32> {
        let operand = self.programs[id.0].outputs[output].operand;
        let row = |row| self.read_row(&operand, row, &StepInputs::default());
        match operand.elem {
            Elem::I32 => rows.flat_map(row).map(|v| v.to_bits().cast_signed() as f32).collect(),
            _ => rows.flat_map(row).collect(),
        }
    }

    /// The tokens that the program chose for its first wanted rows.
    fn chosen(&self, id: ProgramId, wanted: usize) -> Vec<u32> {
        let Some(chooser) = self.programs[id.0].chooser() else { return Vec::new() };
        let row = |row| self.read_row(&chooser.outputs[0], row, &StepInputs::default())[0].to_bits();
        (0..wanted).map(row).collect()
    }

    fn read_row(&self, operand: &Operand, row: usize, step: &StepInputs) -> Vec<f32> {
        let bytes: Vec<u8> = match operand.place {
            Place::Arena(offset) => {
                self.arena[offset + row * operand.stride_bytes..][..operand.cols * 4].to_vec()
            }
            Place::TokenIds => step.token_ids[row].to_le_bytes().to_vec(),
            Place::Wanted => step.wanted[row].to_le_bytes().to_vec(),
            Place::Hidden(offset) => {
                let HiddenRows::Given(hidden) = step.hidden else { unreachable!("rows were resolved") };
                let at = (offset + row * operand.stride_bytes) / 4;
                hidden[at..at + operand.cols].iter().flat_map(|v| v.to_le_bytes()).collect()
            }
        };
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }

    fn write_row(&mut self, operand: &Operand, row: usize, values: &[f32]) {
        let Place::Arena(offset) = operand.place else { unreachable!("outputs are in the arena") };
        let at = offset + row * operand.stride_bytes;
        for (out, value) in self.arena[at..].chunks_exact_mut(4).zip(values) {
            out.copy_from_slice(&value.to_le_bytes());
        }
    }

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

    fn append_kv(
        &mut self,
        layer: usize,
        segment: &Segment,
        position: usize,
        step: &StepInputs,
        kv: [&[f32]; 2],
    ) {
        let n = self.layout.kv_layers[layer].head_dim;
        let page = step.pages[segment.first_page as usize + position / PAGE_TOKENS] as usize;
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
        positions: usize,
        step: &StepInputs,
        half: usize,
    ) -> Vec<Vec<f32>> {
        let dims = self.layout.kv_layers[layer];
        let row = |position: usize| {
            let page = step.pages[segment.first_page as usize + position / PAGE_TOKENS] as usize;
            let part = |head: usize| {
                let (elem, scale, place) = self.kv_place(layer, half, head);
                elem.load(scale, dims.head_dim, position % PAGE_TOKENS, &self.pages[layer][page][place])
            };
            (0..dims.kv_heads).flat_map(part).collect()
        };
        (0..positions).map(row).collect()
    }

    /// The part of a slot that belongs to one state layer.
    fn slot_range(&self, layer: usize) -> Range<usize> {
        let start = (0..layer).map(|l| self.layout.slot_layout(l).len).sum();
        start..start + self.layout.slot_layout(layer).len
    }

    fn convolve(
        &mut self,
        layer: usize,
        segment: &Segment,
        position: usize,
        xbc: &[f32],
        w: [&[f32]; 2],
    ) -> Vec<f32> {
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
        columns.push(xbc.to_vec());
        slot[layout.conv + position % layout.conv_capacity * width..][..width].copy_from_slice(xbc);
        ops::ssm_conv::reference(&columns, w[0], w[1])
    }

    fn call(&mut self, program: &Program, call: &Call, step: &StepInputs) {
        let weights = call.weights.iter().map(|&w| Arc::clone(&self.weights[&program.weights[w]]));
        let weights: Vec<Arc<[f32]>> = weights.collect();
        for segment in step.segments {
            for row in segment.row_range() {
                let position = segment.position as usize + row - segment.first_row as usize;
                self.call_row(call, &weights, step, segment, row, position);
            }
        }
        if call.outputs[0].rows.base == crate::RowBase::Wanted {
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
        if call.outputs[0].rows.base == crate::RowBase::Wanted {
            return;
        }
        let layer = call.cache.unwrap_or(0);
        let input = |this: &Self, i: usize| this.read_row(&call.inputs[i], row, step);
        match call.op {
            Op::Embed => {
                let id = input(self, 0)[0].to_bits();
                let y = ops::embed::reference(&w[0], call.outputs[0].cols, id);
                self.write_row(&call.outputs[0], row, &y);
            }
            Op::SsmConv(_) => {
                let xbc = input(self, 0);
                let y = self.convolve(layer, segment, position, &xbc, [&w[0], &w[1]]);
                self.write_row(&call.outputs[0], row, &y);
            }
            Op::SsmScan(_) => {
                let (xbc, dt) = (input(self, 0), input(self, 1));
                let layout = self.layout.slot_layout(layer);
                let range = self.slot_range(layer);
                let slot = &mut self.slots[segment.slot as usize][range];
                let y = ops::ssm_scan::reference(&layout, slot, position, &xbc, &dt, &w[0], &w[1]);
                self.write_row(&call.outputs[0], row, &y);
            }
            Op::Attention(dims) => {
                let (q, k, v) = (input(self, 0), input(self, 1), input(self, 2));
                self.append_kv(layer, segment, position, step, [&k, &v]);
                let keys = self.cached(layer, segment, position + 1, step, 0);
                let values = self.cached(layer, segment, position + 1, step, 1);
                let y = ops::attention::reference(&dims, &q, &keys, &values);
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
                    let y = ops::moe_matmul::reference(&w[0], out, &x, id.to_bits() as usize, epilogue);
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
                let mask = how.mask.map(|index| &choose.masks[index as usize * words..][..words]);
                let token = ops::choose::reference(&logits, how, changes, mask);
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
                ops::matmul::reference(&w[0], &inputs[0], epilogue, inputs.get(1).map_or(&[], Vec::as_slice))
            }
            Op::Add => ops::add::reference(&inputs[0], &inputs[1]),
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

impl Backend for ReferenceBackend {
    fn name(&self) -> &str {
        "reference"
    }

    fn kernels(&self) -> &[KernelRow] {
        &self.kernels
    }

    fn load_weight(
        &mut self,
        key: &WeightKey,
        _kernel: usize,
        source: &dyn WeightSource,
    ) -> Result<(), BackendError> {
        let shape = source.shape().to_vec();
        let bad = |problem: &str| BackendError::WeightShape {
            name: key.name.clone(),
            shape: format!("{shape:?}"),
            problem: problem.into(),
        };
        let cols = *shape.last().ok_or_else(|| bad("which has no dimensions"))?;
        let row_bytes = source.dtype().row_bytes(cols).ok_or_else(|| bad("which is not whole blocks"))?;
        let mut values = Vec::new();
        for part in 0..source.part_count() {
            let read = |source| BackendError::ReadWeight { name: key.name.clone(), source };
            let stored = source.part(part).map_err(read)?;
            for (row, bytes) in stored.bytes.chunks_exact(row_bytes.max(1)).enumerate() {
                let start = values.len();
                values.resize(start + cols, 0.0);
                decode_row(source.dtype(), bytes, &mut values[start..]).map_err(|e| bad(&e.to_string()))?;
                let scale = stored.row_scale(row);
                values[start..].iter_mut().for_each(|v| *v *= scale);
            }
            drop(stored);
            source.release(part);
        }
        self.weights.insert(key.clone(), values.into());
        Ok(())
    }

    fn memory(&self) -> Result<MemoryBudget, BackendError> {
        Ok(MemoryBudget::default())
    }

    fn weight_bytes(&self) -> u64 {
        self.weights.values().map(|values| values.len() as u64 * 4).sum()
    }

    fn create_caches(&mut self, layout: &CacheLayout) -> Result<(), BackendError> {
        self.layout = layout.clone();
        let page =
            |dims: &crate::AttentionDims| vec![vec![0; layout.kv_types.page_bytes(dims)]; layout.pages];
        self.pages = layout.kv_layers.iter().map(page).collect();
        self.slots = vec![vec![0.0; layout.slot_bytes() / 4]; layout.slots];
        Ok(())
    }

    fn compile(&mut self, program: Program) -> Result<ProgramId, BackendError> {
        for key in &program.weights {
            if !self.weights.contains_key(key) {
                return Err(BackendError::MissingWeight {
                    program: program.name.clone(),
                    name: key.name.clone(),
                });
            }
        }
        self.arena.resize(self.arena.len().max(program.arena_bytes), 0);
        self.programs.push(Arc::new(program));
        Ok(ProgramId(self.programs.len() - 1))
    }

    fn program(&self, id: ProgramId) -> &Program {
        &self.programs[id.0]
    }

    fn clear(&mut self) -> Result<(), BackendError> {
        *self = ReferenceBackend::new();
        Ok(())
    }

    fn submit(&mut self, id: ProgramId, step: &StepInputs) -> Result<Ticket, BackendError> {
        let mut token_ids = Vec::new();
        let chosen = step.chosen_by.and_then(|ticket| self.choices.get(&ticket));
        step.resolve_tokens(chosen.map_or(&[], Vec::as_slice), &mut token_ids);
        let hidden = match (step.hidden, self.last) {
            (HiddenRows::None, _) => Vec::new(),
            (HiddenRows::Given(rows), _) => rows.to_vec(),
            (HiddenRows::Previous { output, rows }, Some(last)) => {
                self.output_rows(last, output, rows.iter().map(|row| *row as usize))
            }
            (HiddenRows::Previous { .. }, None) => unreachable!("no step was submitted before"),
        };
        let step = StepInputs {
            token_ids: if token_ids.is_empty() { step.token_ids } else { &token_ids },
            hidden: HiddenRows::Given(&hidden),
            ..*step
        };
        let program = Arc::clone(&self.programs[id.0]);
        for call in &program.calls {
            self.call(&program, call, &step);
        }
        self.last = Some(id);
        let range = |rows: &Range<u32>| rows.start as usize..rows.end as usize;
        let rows = step.fetch.iter().map(|fetch| self.output_rows(id, fetch.output, range(&fetch.rows)));
        let results = StepResults { tokens: self.chosen(id, step.wanted.len()), rows: rows.collect() };
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.choices.retain(|old, _| old.0 + CHOICES_KEPT as u64 > ticket.0);
        self.choices.insert(ticket, results.tokens.clone());
        self.done.insert(ticket, results);
        Ok(ticket)
    }

    fn collect(&mut self, ticket: Ticket, _: Wait, into: &mut StepResults) -> Result<bool, BackendError> {
        *into = self.done.remove(&ticket).expect("a step is collected once");
        Ok(true)
    }

    fn copy_cell(&mut self, from: Cell, to: Cell) -> Result<(), BackendError> {
        let mut bytes = Vec::new();
        self.export_cell(from, &mut bytes)?;
        self.import_cell(to, &bytes)
    }

    fn export_cell(&mut self, cell: Cell, into: &mut Vec<u8>) -> Result<(), BackendError> {
        match cell {
            Cell::Page(page) => self.pages.iter().for_each(|layer| into.extend(&layer[page as usize])),
            Cell::Slot { slot, position } => {
                self.layout.export_slot(&self.slots[slot as usize], position as usize, into);
            }
        }
        Ok(())
    }

    fn import_cell(&mut self, cell: Cell, bytes: &[u8]) -> Result<(), BackendError> {
        let (got, want) = (bytes.len(), self.layout.cell_bytes(cell));
        if got != want {
            return Err(BackendError::CellSize { cell, got, want });
        }
        match cell {
            Cell::Page(page) => {
                let mut rest = bytes;
                for layer in &mut self.pages {
                    let (own, after) = rest.split_at(layer[page as usize].len());
                    layer[page as usize].copy_from_slice(own);
                    rest = after;
                }
            }
            Cell::Slot { slot, position } => {
                self.layout.import_slot(&mut self.slots[slot as usize], position as usize, bytes);
            }
        }
        Ok(())
    }

    fn poison_arena(&mut self) -> Result<(), BackendError> {
        self.arena.fill(0xff);
        Ok(())
    }

    fn set_profiling(&mut self, _on: bool) -> Result<(), BackendError> {
        Ok(())
    }

    fn call_times(&self, id: ProgramId) -> Result<Vec<CallTime>, BackendError> {
        Ok(vec![CallTime::default(); self.programs[id.0].calls.len()])
    }
}
