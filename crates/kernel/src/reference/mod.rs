//! The reference as a backend: complete, plain and slow. It defines what the others must compute.

mod compute;

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use mambo_tensor::decode_row;

use crate::backend::{
    Backend, BackendError, CallTime, KernelRow, MemoryBudget, ProgramId, Ticket, Wait, WeightSource,
};
use crate::cache::CacheLayout;
use crate::cell::Cell;
use crate::op::OpKind;
use crate::program::{Operand, Place, Program, WeightKey};
use crate::step::{CHOICES_KEPT, HiddenRows, StepInputs, StepResults};
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
    /// Tokens that the last steps chose, newest last.
    choices: VecDeque<(Ticket, Vec<u32>)>,
    /// Results of steps that have not been collected.
    done: HashMap<Ticket, StepResults>,
    /// Cells that were read and have not been collected.
    exported: HashMap<Ticket, Vec<u8>>,
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
            choices: VecDeque::new(),
            done: HashMap::new(),
            exported: HashMap::new(),
            next_ticket: 0,
        }
    }

    fn next_ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket(self.next_ticket)
    }

    /// The bytes of a cell in the contract's layout.
    fn cell_bytes(&self, cell: Cell) -> Vec<u8> {
        let mut bytes = Vec::new();
        match cell {
            Cell::Page { group, page } => {
                let layers = self.layout.kv_groups[group as usize].layers.iter();
                layers.for_each(|layer| bytes.extend(&self.pages[*layer][page as usize]));
            }
            Cell::Slot { slot, position } => {
                self.layout.export_slot(&self.slots[slot as usize], position as usize, &mut bytes);
            }
        }
        bytes
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
}

impl Backend for ReferenceBackend {
    fn name(&self) -> &str {
        "reference"
    }

    fn kernels(&self) -> &[KernelRow] {
        &self.kernels
    }

    fn load_weight(&mut self, key: &WeightKey, source: &dyn WeightSource) -> Result<(), BackendError> {
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
        let pages = |(layer, dims): (usize, &crate::AttentionDims)| {
            let count = layout.kv_groups[layout.kv_group(layer)].pages;
            vec![vec![0; layout.kv_types.page_bytes(dims)]; count]
        };
        self.pages = layout.kv_layers.iter().enumerate().map(pages).collect();
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
        let chosen = self.choices.iter().find(|(ticket, _)| Some(*ticket) == step.chosen_by);
        step.resolve_tokens(chosen.map_or(&[], |(_, tokens)| tokens), &mut token_ids);
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
        let ticket = self.next_ticket();
        self.choices.push_back((ticket, results.tokens.clone()));
        if self.choices.len() > CHOICES_KEPT {
            self.choices.pop_front();
        }
        self.done.insert(ticket, results);
        Ok(ticket)
    }

    fn collect(&mut self, ticket: Ticket, _: Wait, into: &mut StepResults) -> Result<bool, BackendError> {
        *into = self.done.remove(&ticket).expect("a step is collected once");
        Ok(true)
    }

    fn copy_cell(&mut self, from: Cell, to: Cell) -> Result<(), BackendError> {
        let bytes = self.cell_bytes(from);
        self.import_cell(to, &bytes)
    }

    fn export_cell(&mut self, cell: Cell) -> Result<Ticket, BackendError> {
        let (ticket, bytes) = (self.next_ticket(), self.cell_bytes(cell));
        self.exported.insert(ticket, bytes);
        Ok(ticket)
    }

    fn collect_cell(&mut self, ticket: Ticket, _: Wait, into: &mut Vec<u8>) -> Result<bool, BackendError> {
        into.extend(self.exported.remove(&ticket).expect("a cell is collected once"));
        Ok(true)
    }

    fn import_cell(&mut self, cell: Cell, bytes: &[u8]) -> Result<(), BackendError> {
        let (got, want) = (bytes.len(), self.layout.cell_bytes(cell));
        if got != want {
            return Err(BackendError::CellSize { cell, got, want });
        }
        match cell {
            Cell::Page { group, page } => {
                let mut rest = bytes;
                for layer in &self.layout.kv_groups[group as usize].layers {
                    let own = &mut self.pages[*layer][page as usize];
                    let bytes = rest.split_off(..own.len()).expect("the length was checked");
                    own.copy_from_slice(bytes);
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
