//! A kernel row set up for one case: a one-call program whose inputs lie in the step's hidden rows, and the steps that
//! feed a case's sequences through it.

use mambo_kernel::case::{Case, CaseWeight};
use mambo_kernel::{
    Backend, BackendError, CacheLayout, Call, Cell, ChooseInputs, ChooseRow, Elem, Fetch, HiddenRows, Masks,
    NO_PAGE, Op, Operand, Output, PAGE_TOKENS, Phase, Place, Program, ProgramId, ROW_ALIGN, RowBase, Rows,
    Segment, StepInputs, StepResults, ValueType, Wait, WeightError, WeightKey, WeightPart, WeightSource,
};
use mambo_tensor::DType;

/// What is set up.
#[derive(Clone, Copy)]
pub(super) struct Setup<'c> {
    pub case: &'c Case,
    /// Index of the kernel row.
    pub kernel: usize,
    pub phase: Phase,
    /// Private type that the first output is written in a second time.
    pub rounded: Option<Elem>,
    /// Whether hidden rows stand one after the other, as the rows of an earlier step do.
    pub dense: bool,
}

/// Rows of one sequence that a step runs in a seat: a slot with its list of pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub sequence: usize,
    pub seat: usize,
    pub position: usize,
    pub rows: usize,
}

/// The rows that each output has for one piece or sequence.
pub(super) type OutputRows = Vec<Vec<f32>>;

/// A weight of a case as a source.
struct Source<'a>(&'a CaseWeight);

impl WeightSource for Source<'_> {
    fn dtype(&self) -> DType {
        self.0.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.0.shape
    }

    fn part_count(&self) -> usize {
        // Experts come in one part each, as checkpoints store them.
        if self.0.shape.len() == 3 { self.0.shape[0] } else { 1 }
    }

    fn part(&self, index: usize) -> Result<WeightPart<'_>, WeightError> {
        let size = self.0.bytes.len() / self.part_count();
        Ok(WeightPart::plain(&self.0.bytes[index * size..][..size]))
    }

    fn release(&self, _index: usize) {}

    fn digest(&self) -> u64 {
        mambo_kernel::Digest::of(&self.0.bytes)
    }
}

/// A compiled case.
pub(super) struct Compiled {
    pub id: ProgramId,
    pub inputs: Vec<Operand>,
    pub hidden_bytes: usize,
    /// The op's outputs, then the rounded one.
    pub outputs: Vec<Operand>,
    /// Outputs of the program that no kernel may touch.
    guards: usize,
}

/// Types of a case's inputs as a graph has them.
pub(super) fn input_types(case: &Case) -> Vec<ValueType> {
    let mut types: Vec<ValueType> = case.inputs.iter().map(|input| input.ty).collect();
    if case.op == Op::GatherRows {
        types.push(ValueType::i32(Rows::WANTED, 1));
    }
    types
}

/// Operands of the inputs in the step's hidden rows, and the bytes of those.
fn place_inputs(setup: &Setup, elems: &[Elem], total: usize) -> (Vec<Operand>, usize) {
    let (mut hidden_bytes, mut inputs) = (0, Vec::new());
    for (ty, &elem) in input_types(setup.case).into_iter().zip(elems) {
        let (place, stride_bytes) = match setup.case.op {
            Op::Embed => (Place::TokenIds, 4),
            Op::GatherRows if ty.rows.base == RowBase::Wanted => (Place::Wanted, 4),
            // What stands between rows is NaN, so that a kernel which reads it shows.
            _ if setup.dense => (Place::Hidden(hidden_bytes), ty.cols * 4),
            _ => (Place::Hidden(hidden_bytes), elem.row_bytes(ty.cols) + ROW_ALIGN),
        };
        if matches!(place, Place::Hidden(_)) {
            hidden_bytes += stride_bytes * total * ty.rows.times;
        }
        inputs.push(Operand { place, elem, rows: ty.rows, cols: ty.cols, stride_bytes });
    }
    (inputs, hidden_bytes)
}

/// Operands of the outputs in the arena with a guard before each and behind the last, and the arena's size.
fn place_outputs(types: &[ValueType], total: usize) -> (Vec<Operand>, Vec<Operand>, usize) {
    let guard = |offset: usize| Operand {
        place: Place::Arena(offset),
        elem: Elem::F32,
        rows: Rows::TOKENS,
        cols: ROW_ALIGN / 4,
        stride_bytes: ROW_ALIGN,
    };
    let (mut outputs, mut guards, mut offset) = (Vec::new(), vec![guard(0)], ROW_ALIGN);
    for ty in types {
        let stride_bytes = ty.elem.row_bytes(ty.cols);
        let place = Place::Arena(offset);
        outputs.push(Operand { place, elem: ty.elem, rows: ty.rows, cols: ty.cols, stride_bytes });
        offset += stride_bytes * ty.rows.count(total, total);
        guards.push(guard(offset));
        offset += ROW_ALIGN;
    }
    // A guard counts as having a row per token, though only the first is one.
    (outputs, guards, offset + total * ROW_ALIGN)
}

/// Loads a case's weights and compiles its call.
pub(super) fn compile(backend: &mut dyn Backend, setup: &Setup) -> Result<Compiled, BackendError> {
    let Setup { case, kernel, phase, .. } = *setup;
    let total: usize = case.lengths.iter().sum();
    let elems = backend.kernels()[kernel].inputs.clone();
    let (inputs, hidden_bytes) = place_inputs(setup, &elems, total);
    let types = input_types(case);
    let table_cols = case.weights.first().map_or(0, |weight| *weight.shape.last().unwrap_or(&0));
    let mut results = case.op.infer(&types, table_cols).expect("a case fits its op");
    results.extend(setup.rounded.map(|elem| ValueType { elem, ..results[0] }));
    let (outputs, guards, arena_bytes) = place_outputs(&results, total);
    let ports = case.op.weight_ports(&types);
    let form = backend.kernels()[kernel].weight_form;
    let key = |name: &str, usage| WeightKey { name: format!("{}.{name}", case.name), usage, form };
    let weights: Vec<WeightKey> = ports.iter().map(|port| key(port.name, port.usage)).collect();
    for (key, weight) in weights.iter().zip(&case.weights) {
        backend.load_weight(key, &Source(weight))?;
    }
    let named = |(index, operand): (usize, &Operand)| Output { name: format!("{index}"), operand: *operand };
    let own = outputs.len() - usize::from(setup.rounded.is_some());
    let program = Program {
        name: "case".into(),
        phase,
        max_tokens: total,
        max_wanted: total,
        outputs: outputs.iter().chain(&guards).enumerate().map(named).collect(),
        calls: vec![Call {
            op: case.op,
            kernel,
            label: case.name.clone(),
            inputs: inputs.clone(),
            outputs: outputs[..own].to_vec(),
            rounded: outputs.get(own).copied(),
            weights: (0..weights.len()).collect(),
            cache: case.op.cache().map(|_| case.layer()),
            after: Vec::new(),
        }],
        weights,
        arena_bytes,
        unpooled_bytes: arena_bytes,
    };
    let id = backend.compile(program)?;
    Ok(Compiled { id, inputs, hidden_bytes, outputs, guards: guards.len() })
}

/// The bytes of a row in an element type, as f32 words.
fn packed(elem: Elem, row: &[f32]) -> Vec<f32> {
    let Elem::Private(private) = elem else { return row.to_vec() };
    let mut bytes = (private.encode)(row);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// A compiled case with the caches it runs on.
pub(super) struct Trial<'a> {
    pub backend: &'a mut dyn Backend,
    case: &'a Case,
    compiled: Compiled,
    pub layout: CacheLayout,
    seat_pages: usize,
    /// Every so many rows one is wanted.
    pub wanted_stride: usize,
}

impl<'a> Trial<'a> {
    /// Clears the backend and sets a case up, with one seat for each of its sequences.
    pub fn new(backend: &'a mut dyn Backend, setup: &Setup<'a>) -> Result<Self, BackendError> {
        Self::with_seats(backend, setup, setup.case.lengths.len())
    }

    /// The same with so many seats.
    pub fn with_seats(
        backend: &'a mut dyn Backend,
        setup: &Setup<'a>,
        seats: usize,
    ) -> Result<Self, BackendError> {
        backend.clear()?;
        let longest = setup.case.lengths.iter().max().copied().unwrap_or(0);
        let seat_pages = longest.div_ceil(PAGE_TOKENS);
        let layout = CacheLayout { slots: seats, ..setup.case.caches(seats * seat_pages) };
        let compiled = compile(backend, setup)?;
        backend.create_caches(&layout)?;
        Ok(Trial { backend, case: setup.case, compiled, layout, seat_pages, wanted_stride: 1 })
    }

    /// The pages of a seat in any group, in position order; in reverse, so that a kernel which ignores the list is caught.
    pub fn pages(&self, seat: usize) -> Vec<u32> {
        let last = (self.layout.slots - seat) * self.seat_pages;
        (last - self.seat_pages..last).rev().map(|page| page as u32).collect()
    }

    /// The page lists of a step, group by group. A group that no call of the step reads has the pages of other seats, and
    /// entries before a window are no pages at all.
    fn page_lists(&self, pieces: &[Piece]) -> Vec<u32> {
        let mut lists = Vec::new();
        for group in &self.layout.kv_groups {
            let is_read = group.layers.contains(&self.case.layer());
            for seat in 0..self.layout.slots {
                let of = if is_read { seat } else { self.layout.slots - 1 - seat };
                let position =
                    pieces.iter().find(|piece| piece.seat == seat).map_or(0, |piece| piece.position);
                let mut list = self.pages(of);
                list[..group.first_page(position)].fill(NO_PAGE);
                lists.append(&mut list);
            }
        }
        lists
    }

    /// Columns of an output.
    pub fn output_cols(&self, output: usize) -> usize {
        self.compiled.outputs[output].cols
    }

    /// The bytes of a cell.
    pub fn export(&mut self, cell: Cell) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        self.backend.read_cell(cell, &mut bytes).map_err(|error| error.to_string())?;
        Ok(bytes)
    }

    /// Runs one step over pieces of different seats and returns their rows; an unwritten or overwritten guard shows.
    pub fn step(&mut self, pieces: &[Piece]) -> Result<Vec<OutputRows>, String> {
        let mut segments = Vec::with_capacity(pieces.len());
        let mut rows = 0;
        for piece in pieces {
            segments.push(Segment {
                slot: piece.seat as u32,
                first_row: rows,
                rows: piece.rows as u32,
                position: piece.position as u32,
                first_page: (piece.seat * self.seat_pages) as u32,
            });
            rows += piece.rows as u32;
        }
        let pages = self.page_lists(pieces);
        let wanted: Vec<u32> = (0..rows).step_by(self.wanted_stride).collect();
        let (hidden, token_ids) = self.gather(pieces, rows as usize);
        let choose_rows = self.choose_rows(pieces);
        let counts = [rows, wanted.len() as u32];
        let fetch: Vec<Fetch> = self.fetches(counts).collect();
        let step = StepInputs {
            token_ids: &token_ids,
            segments: &segments,
            pages: &pages,
            wanted: &wanted,
            hidden: HiddenRows::Given(&hidden),
            choose: ChooseInputs {
                rows: &choose_rows,
                adjustments: &self.case.choose.adjustments,
                masks: Masks::of(&self.case.choose),
            },
            fetch: &fetch,
            ..StepInputs::default()
        };
        let results = self.submit(&step).map_err(|error| error.to_string())?;
        self.sort(pieces, &wanted, results)
    }

    fn submit(&mut self, step: &StepInputs) -> Result<StepResults, BackendError> {
        self.backend.poison_arena()?;
        let ticket = self.backend.submit(self.compiled.id, step)?;
        let mut results = StepResults::default();
        while !self.backend.collect(ticket, Wait::Block, &mut results)? {}
        Ok(results)
    }

    /// All rows of every output, and the guards.
    fn fetches(&self, [tokens, wanted]: [u32; 2]) -> impl Iterator<Item = Fetch> {
        let compiled = &self.compiled;
        let count = move |operand: &Operand| operand.rows.count(tokens as usize, wanted as usize) as u32;
        let own = compiled.outputs.iter().map(count);
        let guards = std::iter::repeat_n(1, compiled.guards);
        own.chain(guards).enumerate().map(|(output, rows)| Fetch { output, rows: 0..rows })
    }

    /// Every piece's rows of every output.
    fn sort(
        &self,
        pieces: &[Piece],
        wanted: &[u32],
        mut results: StepResults,
    ) -> Result<Vec<OutputRows>, String> {
        let guards = results.rows.split_off(self.compiled.outputs.len());
        if let Some(index) = guards.iter().position(|guard| guard.iter().any(|value| !value.is_nan())) {
            return Err(format!("wrote outside its outputs, in guard {index}"));
        }
        if self.case.op == Op::Choose {
            results.rows[0] = results.tokens.iter().map(|token| f32::from_bits(*token)).collect();
        }
        let mut first_row = 0;
        let mut sorted = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let end = first_row + piece.rows;
            let is_before = |row: usize| wanted.partition_point(|wanted| (*wanted as usize) < row);
            let range = |operand: &Operand| match operand.rows.base {
                RowBase::Tokens => first_row..end,
                RowBase::Wanted => is_before(first_row)..is_before(end),
            };
            let part = |(operand, rows): (&Operand, &Vec<f32>)| {
                let (range, width) = (range(operand), operand.rows.times * operand.cols);
                rows[range.start * width..range.end * width].to_vec()
            };
            sorted.push(self.compiled.outputs.iter().zip(&results.rows).map(part).collect());
            first_row = end;
        }
        Ok(sorted)
    }

    /// How the rows of the pieces that are wanted are chosen.
    fn choose_rows(&self, pieces: &[Piece]) -> Vec<ChooseRow> {
        if self.case.op != Op::Choose {
            return Vec::new();
        }
        let rows = |piece: &Piece| {
            self.case.choose.rows[piece.sequence][piece.position..piece.position + piece.rows].to_vec()
        };
        pieces.iter().flat_map(rows).collect()
    }

    /// The hidden rows and token ids of a step of so many rows.
    fn gather(&self, pieces: &[Piece], total: usize) -> (Vec<f32>, Vec<u32>) {
        let mut hidden = vec![f32::NAN; self.compiled.hidden_bytes / 4];
        let mut token_ids = vec![0; total];
        for (operand, given) in self.compiled.inputs.iter().zip(&self.case.inputs) {
            let times = operand.rows.times;
            let mut row = 0;
            for piece in pieces {
                let values = &given.sequences[piece.sequence][piece.position * times * operand.cols..];
                for values in values.chunks(operand.cols).take(piece.rows * times) {
                    if let Place::Hidden(offset) = operand.place {
                        let words = packed(operand.elem, values);
                        let at = (offset + row * operand.stride_bytes) / 4;
                        hidden[at..at + words.len()].copy_from_slice(&words);
                    } else {
                        token_ids[row] = values[0].to_bits();
                    }
                    row += 1;
                }
            }
        }
        (hidden, token_ids)
    }
}
