//! What kernels rely on, checked by a backend before they run: every operand of a program when it is compiled, every
//! step when it is run. A failed check is a bug in the caller, so it panics.
//!
//! Kernels hand disjoint parts of shared memory to threads on the strength of these checks: a `SAFETY`
//! line that says "a row belongs to one item" holds because segments, slots, pages and operands do not
//! overlap.

use std::ops::Range;

use crate::backend::KernelRow;
use crate::cache::{CacheLayout, KvGroup, PAGE_TOKENS, SSM_CHUNK};
use crate::dims::{Attention, SsmDims};
use crate::op::Op;
use crate::program::{Call, Operand, Phase, Place, Program};
use crate::step::{CHOSEN, Segment, StepInputs};
use crate::value::{Elem, Rows, ValueType};

/// What a call asks of the caches.
enum CacheNeed {
    Kv(usize, Attention),
    State(usize, SsmDims),
}

/// What a step must bring for a program, gathered when it is compiled.
pub struct StepNeeds {
    max_tokens: usize,
    max_wanted: usize,
    /// Most rows of a segment.
    max_rows: u32,
    /// Tokens that are chosen from, if the program chooses.
    choices: Option<usize>,
    /// Operands in the hidden rows.
    hidden: Vec<(usize, Operand)>,
    caches: Vec<CacheNeed>,
    /// Rows of the smallest table that is looked up by token.
    pub vocabulary: usize,
}

impl StepNeeds {
    /// Gathers the needs of a checked program; `vocabulary` rows are in its smallest table.
    pub fn of(program: &Program, vocabulary: usize) -> StepNeeds {
        let hidden = |operand: &Operand| match operand.place {
            Place::Hidden(offset) => Some((offset, *operand)),
            _ => None,
        };
        StepNeeds {
            max_tokens: program.max_tokens,
            max_wanted: program.max_wanted,
            max_rows: match program.phase {
                Phase::Decode => 1,
                Phase::Verify => SSM_CHUNK as u32,
                Phase::Prefill => u32::MAX,
            },
            choices: program.chooser().map(|call| call.inputs[0].cols),
            hidden: program.calls.iter().flat_map(|call| &call.inputs).filter_map(hidden).collect(),
            caches: program.calls.iter().filter_map(cache_need).collect(),
            vocabulary,
        }
    }

    /// Bytes of hidden rows that the largest step reads.
    pub fn most_hidden_bytes(&self) -> usize {
        self.hidden_bytes(self.max_tokens, self.max_wanted)
    }

    /// Bytes of hidden rows that a step of so many tokens and wanted rows reads.
    pub fn hidden_bytes(&self, tokens: usize, wanted: usize) -> usize {
        let ends =
            self.hidden.iter().map(|(offset, rows)| end(*offset, rows, rows.rows.count(tokens, wanted)));
        ends.max().unwrap_or(0)
    }

    /// Checks a step that brings so many bytes of hidden rows; `marks` has a bit per page and per slot, and comes back
    /// clear. Ids of tokens that an earlier step chose are not known yet.
    pub fn check(&self, step: &StepInputs, hidden_bytes: usize, layout: &CacheLayout, marks: &mut Marks) {
        let (tokens, wanted) = (step.token_ids.len(), step.wanted.len());
        assert!(tokens <= self.max_tokens, "{tokens} tokens in a step for {}", self.max_tokens);
        assert!(wanted <= self.max_wanted, "{wanted} wanted rows in a step for {}", self.max_wanted);
        assert!(step.wanted.iter().all(|&w| (w as usize) < tokens), "a wanted row does not exist");
        let is_unknown = |id: u32| id & CHOSEN == 0 && id as usize >= self.vocabulary;
        if let Some(id) = step.token_ids.iter().find(|id| is_unknown(**id)) {
            panic!("token id {id} is beyond the {} rows of the embedding", self.vocabulary);
        }
        let read = self.hidden_bytes(tokens, wanted);
        assert!(read <= hidden_bytes, "hidden rows of {hidden_bytes} bytes, of which {read} are read");
        let (mut kv, mut state) = (false, false);
        for need in &self.caches {
            match need {
                CacheNeed::Kv(layer, attention) => {
                    kv = true;
                    let has = layout.kv_layers.get(*layer) == Some(&attention.dims);
                    assert!(has, "the caches lack KV layer {layer}");
                    // A page beyond the group's window may not be there.
                    let window = layout.kv_groups[layout.kv_group(*layer)].window;
                    let is_held = window.is_none_or(|held| attention.window.is_some_and(|seen| seen <= held));
                    assert!(is_held, "KV layer {layer} sees more than its group's window");
                }
                CacheNeed::State(layer, dims) => {
                    state = true;
                    let has = layout.state_layers.get(*layer) == Some(dims);
                    assert!(has, "the caches lack state layer {layer}");
                }
            }
        }
        self.check_rows(step);
        if let Some(vocabulary) = self.choices {
            check_choices(step, vocabulary);
        }
        if state {
            check_slots(step.segments, layout.slots, &mut marks.slots);
        }
        if kv {
            for (index, group) in layout.kv_groups.iter().enumerate() {
                let pages = step.group_pages(index, layout.kv_groups.len());
                check_pages(step.segments, pages, group, &mut marks.pages);
            }
        }
    }

    /// Segments cover the rows in order, each once.
    fn check_rows(&self, step: &StepInputs) {
        let mut rows = 0;
        for segment in step.segments {
            assert!(segment.first_row as usize == rows && segment.rows > 0, "segments must cover the rows");
            assert!(segment.rows <= self.max_rows, "a segment has more than {} rows", self.max_rows);
            let end = segment.position.checked_add(segment.rows);
            assert!(end.is_some(), "position {} is beyond counting", segment.position);
            rows += segment.rows as usize;
        }
        assert_eq!(rows, step.token_ids.len(), "segments must cover the rows");
    }
}

fn cache_need(call: &Call) -> Option<CacheNeed> {
    let layer = call.cache.unwrap_or(0);
    match call.op {
        Op::Attention(a) => Some(CacheNeed::Kv(layer, a)),
        Op::SsmConv(dims)
        | Op::SsmScan(dims)
        | Op::SsmStep { dims, .. }
        | Op::ShortConv(dims)
        | Op::DeltaScan(dims) => Some(CacheNeed::State(layer, dims)),
        _ => None,
    }
}

/// Bits for pages and slots that a check has met, made once with the caches.
pub struct Marks {
    pages: Vec<u64>,
    slots: Vec<u64>,
}

impl Marks {
    /// Clear marks for the pages and slots of these caches.
    pub fn new(layout: &CacheLayout) -> Marks {
        let pages = layout.kv_groups.iter().map(|group| group.pages).max().unwrap_or(0);
        Marks { pages: vec![0; pages.div_ceil(64)], slots: vec![0; layout.slots.div_ceil(64)] }
    }
}

/// Sets a bit and says whether it was clear.
fn set(marks: &mut [u64], index: usize) -> bool {
    let (word, bit) = (&mut marks[index / 64], 1 << (index % 64));
    let clear = *word & bit == 0;
    *word |= bit;
    clear
}

/// Every wanted row says how its token is chosen, within the arrays it refers to.
fn check_choices(step: &StepInputs, vocabulary: usize) {
    let choose = &step.choose;
    assert_eq!(choose.rows.len(), step.wanted.len(), "every wanted row says how its token is chosen");
    for row in choose.rows {
        let (start, end) = (row.adjustments.start, row.adjustments.end as usize);
        assert!(start as usize <= end && end <= choose.adjustments.len(), "adjustments outside their array");
        let own = &choose.adjustments[start as usize..end];
        let is_known = own.iter().all(|change| (change.token as usize) < vocabulary);
        assert!(is_known, "an adjusted token is outside the vocabulary");
        assert!(own.is_sorted_by(|a, b| a.token < b.token), "adjustments are not sorted by token");
    }
}

fn check_slots(segments: &[Segment], slots: usize, marks: &mut [u64]) {
    marks.fill(0);
    for segment in segments {
        let slot = segment.slot as usize;
        assert!(slot < slots, "slot {slot} does not exist");
        assert!(set(marks, slot), "slot {slot} belongs to two segments");
    }
}

/// Every list covers its segment, and no page that a segment writes stands in another's list. What lies before a window
/// is not looked at.
fn check_pages(segments: &[Segment], pages: &[u32], group: &KvGroup, marks: &mut [u64]) {
    marks.fill(0);
    let list = |segment: &Segment| -> (&[u32], usize) {
        let position = segment.position as usize;
        let last = (position + segment.rows as usize - 1) / PAGE_TOKENS;
        let rest = pages.get(segment.first_page as usize..).unwrap_or_default();
        assert!(last < rest.len(), "a page list does not cover its segment");
        let first = group.first_page(position);
        (&rest[first..=last], position / PAGE_TOKENS - first)
    };
    for segment in segments {
        let (own, first_written) = list(segment);
        if let Some(page) = own.iter().find(|&&page| page as usize >= group.pages) {
            panic!("page {page} does not exist");
        }
        for &page in &own[first_written..] {
            assert!(set(marks, page as usize), "page {page} is written twice");
        }
    }
    for segment in segments {
        let (own, first_written) = list(segment);
        for &page in &own[..first_written] {
            let page = page as usize;
            assert!(marks[page / 64] >> (page % 64) & 1 == 0, "page {page} is read and written");
        }
    }
}

/// Where an operand of so many rows ends, in bytes from the start of its memory.
fn end(offset: usize, operand: &Operand, rows: usize) -> usize {
    let Some(between) = rows.checked_sub(1) else { return offset };
    let end = between.checked_mul(operand.stride_bytes).and_then(|b| b.checked_add(row_bytes(operand)));
    end.and_then(|b| b.checked_add(offset)).expect("an operand is larger than memory")
}

/// Bytes of a row without what separates it from the next.
fn row_bytes(operand: &Operand) -> usize {
    match operand.elem {
        Elem::Private(_) => operand.elem.packed_bytes(operand.cols),
        Elem::F32 | Elem::I32 => operand.cols.checked_mul(4).expect("a row is larger than memory"),
    }
}

/// Checks every operand of every call: types as the op has them, inside the arena, and outputs apart from
/// all else that the call touches.
pub fn check_program(program: &Program, kernels: &[KernelRow]) {
    for call in &program.calls {
        let row = &kernels[call.kernel];
        let label = &call.label;
        assert!(row.op == call.op.kind(), "`{label}` is bound to kernel {}", row.name);
        assert_eq!(call.inputs.len(), call.op.input_count(), "inputs of `{label}`");
        let types: Vec<ValueType> = call.inputs.iter().map(value_type).collect();
        let results = call.op.infer(&types, call.outputs.first().map_or(0, |o| o.cols));
        let results = results.unwrap_or_else(|problem| panic!("`{label}`: {problem}"));
        assert!(results.iter().copied().eq(call.outputs.iter().map(value_type)), "outputs of `{label}`");
        assert_eq!(call.weights.len(), call.op.weight_ports(&types).len(), "weights of `{label}`");
        for (port, input) in call.inputs.iter().enumerate() {
            assert!(input.elem == row.inputs[port], "input {port} of `{label}` is {}", input.elem.name());
        }
        if let (Some(rounded), Some(plain)) = (&call.rounded, call.outputs.first()) {
            let fits = (rounded.rows, rounded.cols) == (plain.rows, plain.cols) && rounded.elem.is_private();
            assert!(fits, "the rounded output of `{label}`");
        }
        check_overlap(program, call);
    }
    if let Some((earlier, later)) = program.unordered_calls() {
        let label = |index: usize| &program.calls[index].label;
        panic!("`{}` and `{}` touch the same memory and are not ordered", label(earlier), label(later));
    }
    for output in &program.outputs {
        assert!(arena_range(program, &output.operand).is_some(), "`{}` is not in the arena", output.name);
    }
}

fn check_overlap(program: &Program, call: &Call) {
    let label = &call.label;
    let outputs = call.outputs.iter().chain(&call.rounded).map(|output| {
        assert!(output.stride_bytes >= row_bytes(output), "rows that `{label}` writes overlap");
        arena_range(program, output).unwrap_or_else(|| panic!("an output of `{label}` is not in the arena"))
    });
    let outputs: Vec<Range<usize>> = outputs.collect();
    let inputs = call.inputs.iter().filter_map(|input| arena_range(program, input));
    let ranges: Vec<Range<usize>> = outputs.iter().cloned().chain(inputs).collect();
    for (i, output) in outputs.iter().enumerate() {
        for other in &ranges[i + 1..] {
            let apart = output.end <= other.start || other.end <= output.start;
            assert!(apart, "`{label}` writes {output:?} and touches {other:?}");
        }
    }
}

/// The bytes of the arena that an operand spans at most, if it is there.
fn arena_range(program: &Program, operand: &Operand) -> Option<Range<usize>> {
    let rows = operand.rows.count(program.max_tokens, program.max_wanted);
    let aligned = |offset: usize| offset.is_multiple_of(4) && operand.stride_bytes.is_multiple_of(4);
    match operand.place {
        Place::Arena(offset) => {
            let range = offset..end(offset, operand, rows);
            assert!(range.end <= program.arena_bytes, "an operand ends beyond the arena, at {}", range.end);
            assert!(aligned(offset), "an operand is not aligned");
            Some(range)
        }
        Place::Hidden(offset) => {
            assert!(aligned(offset), "an operand is not aligned");
            None
        }
        Place::TokenIds | Place::Wanted => {
            let rows = if operand.place == Place::Wanted { Rows::WANTED } else { Rows::TOKENS };
            let fits = operand.elem == Elem::I32 && operand.cols == 1 && operand.rows == rows;
            assert!(fits, "an operand is no column of indices");
            None
        }
    }
}

fn value_type(operand: &Operand) -> ValueType {
    ValueType { elem: operand.elem, rows: operand.rows, cols: operand.cols }
}
