//! The contract runner: every kernel row of a backend over every hard case of its op.
//!
//! A case runs several times with its sequences cut into steps in different ways. The outputs must
//! agree with the reference to the case's tolerance, and with each other to the bit.

use std::fmt;

use mambo_kernel::case::{Case, CaseWeight};
use mambo_kernel::{
    Backend, BackendError, CacheKind, Call, Digest, Elem, Op, OpKind, Operand, Output, PAGE_TOKENS, Phase,
    Place, Program, ProgramId, ROW_ALIGN, ReferenceBackend, RowBase, Rows, Segment, Site, StepInputs,
    WeightError, WeightKey, WeightPart, WeightSource, ops,
};
use mambo_tensor::DType;

/// What the runner found.
#[derive(Debug, Default)]
pub struct Report {
    /// Kernel rows that were run, with their case counts.
    pub rows: Vec<(String, usize)>,
    /// One sentence per violation.
    pub failures: Vec<String>,
}

impl Report {
    /// Panics with every violation; for tests.
    pub fn assert_ok(&self) {
        assert!(self.failures.is_empty(), "{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cases: usize = self.rows.iter().map(|r| r.1).sum();
        writeln!(f, "{} kernels, {cases} cases, {} failures", self.rows.len(), self.failures.len())?;
        self.failures.iter().try_for_each(|failure| writeln!(f, "  {failure}"))
    }
}

/// Runs every kernel row of the backends that `make` gives over every case that the row accepts.
pub fn check_all(make: &dyn Fn() -> Box<dyn Backend>) -> Report {
    let mut report = Report::default();
    let backend = make();
    for (index, row) in backend.kernels().iter().enumerate() {
        let mut ran = 0;
        for case in ops::cases(row.op) {
            let types: Vec<DType> = case.weights.iter().map(|w| w.dtype).collect();
            let phase = if row.op == OpKind::SsmStep { Phase::Decode } else { Phase::Prefill };
            let site = Site { op: &case.op, phase, weight_types: &types, input_cols: case.inputs[0].ty.cols };
            if !(row.accepts)(&site) {
                continue;
            }
            ran += 1;
            if let Err(problem) = check_case(make, index, row.input, phase, &case) {
                report.failures.push(format!("{}: {}: {problem}", row.name, case.name));
            }
        }
        if ran == 0 {
            report.failures.push(format!("{}: no case of {} is for this row", row.name, row.op.name()));
        }
        report.rows.push((row.name.clone(), ran));
    }
    report
}

/// How the runner cuts a case's sequences into steps.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cut {
    /// All rows of all sequences in one step.
    Whole,
    /// One token of every unfinished sequence per step.
    Single,
    /// Uneven pieces, sequences starting at different times.
    Ragged,
    /// Only this sequence, whole.
    Alone(usize),
    /// Only this sequence, one token per step.
    AloneSingle(usize),
}

type Outputs = Vec<Vec<Vec<f32>>>; // [output][sequence] -> rows of all its positions

fn check_case(
    make: &dyn Fn() -> Box<dyn Backend>,
    kernel: usize,
    input: Elem,
    phase: Phase,
    case: &Case,
) -> Result<(), String> {
    let single_only = phase == Phase::Decode;
    let first = if single_only { Cut::Single } else { Cut::Whole };
    let (got, slots) = run_case(make(), kernel, input, phase, case, first)?;
    let (want, want_slots) = reference_outputs(case, input)?;
    let tolerance = if case.op.kind() == OpKind::Quantize { 0.0 } else { case.tolerance };
    compare(&got, &want, tolerance, case)?;
    if case.op.cache() == Some(CacheKind::State) && case.op.kind() != OpKind::SsmStep {
        for (s, (got, want)) in slots.iter().zip(&want_slots).enumerate() {
            close(got, want, case.tolerance.max(1e-6) * 4.0)
                .map_err(|e| format!("slot of sequence {s}: {e}"))?;
        }
    }
    let cuts: &[Cut] = if single_only {
        &[Cut::Single, Cut::AloneSingle(2)]
    } else {
        &[Cut::Whole, Cut::Single, Cut::Ragged, Cut::Alone(1), Cut::Alone(2)]
    };
    for &cut in cuts {
        let (again, _) = run_case(make(), kernel, input, phase, case, cut)?;
        for (output, (a, b)) in got.iter().zip(&again).enumerate() {
            for (s, (a, b)) in a.iter().zip(b).enumerate() {
                let skipped = matches!(cut, Cut::Alone(only) | Cut::AloneSingle(only) if only != s);
                let same = a.iter().map(|v| v.to_bits()).eq(b.iter().map(|v| v.to_bits()));
                if !skipped && !same {
                    return Err(format!("output {output} of sequence {s} changes bits when cut as {cut:?}"));
                }
            }
        }
    }
    Ok(())
}

fn close(got: &[f32], want: &[f32], tolerance: f32) -> Result<(), String> {
    let largest = want.iter().fold(0f32, |m, v| m.max(v.abs()));
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let off = (g - w).abs();
        if off.is_nan() || off > tolerance * largest {
            return Err(format!(
                "value {i} is {g}, expected {w} (off by {off:e}, allowed {:e})",
                tolerance * largest
            ));
        }
    }
    Ok(())
}

fn compare(got: &Outputs, want: &Outputs, tolerance: f32, case: &Case) -> Result<(), String> {
    for (output, (got, want)) in got.iter().zip(want).enumerate() {
        for (s, (got, want)) in got.iter().zip(want).enumerate() {
            let width = want.len() / case.lengths[s];
            for (row, (g, w)) in got.chunks(width).zip(want.chunks(width)).enumerate() {
                let exact = output == 0 && case.op.kind() == OpKind::MoeRoute;
                let problem = if exact {
                    (g != w).then(|| format!("ids {g:?}, expected {w:?}"))
                } else {
                    close(g, w, tolerance).err()
                };
                if let Some(problem) = problem {
                    return Err(format!("output {output}, sequence {s}, row {row}: {problem}"));
                }
            }
        }
    }
    Ok(())
}

/// What the reference computes for a case, on the values that a kernel really sees.
fn reference_outputs(case: &Case, input: Elem) -> Result<(Outputs, Vec<Vec<f32>>), String> {
    let mut case = case.clone();
    let cols = case.inputs[0].ty.cols;
    let rounded = |to: Elem| -> Vec<Vec<f32>> {
        let row = |row| ops::quantize::decode(&ops::quantize::reference(row, to), to, cols);
        case.inputs[0].sequences.iter().map(|values| values.chunks(cols).flat_map(row).collect()).collect()
    };
    if let Op::Quantize(to) = case.op {
        return Ok((vec![rounded(to)], Vec::new()));
    }
    if input.is_rounded() {
        case.inputs[0].sequences = rounded(input);
    }
    if let Op::SsmStep { dims, eps } = case.op {
        return Ok((vec![step_by_parts(&case, dims, eps)?], Vec::new()));
    }
    let reference = ReferenceBackend::new();
    let kernel = reference
        .kernels()
        .iter()
        .position(|k| k.op == case.op.kind())
        .ok_or("the reference lacks the op")?;
    run_case(Box::new(reference), kernel, Elem::F32, Phase::Prefill, &case, Cut::Whole)
}

/// `ssm_step` through the references of the four ops it stands for.
fn step_by_parts(case: &Case, dims: mambo_kernel::SsmDims, eps: f32) -> Result<Vec<Vec<f32>>, String> {
    let columns = |start: usize, len: usize| -> Vec<Vec<f32>> {
        let rows = |seq: &Vec<f32>| {
            seq.chunks(dims.in_proj()).flat_map(|r| r[start..start + len].to_vec()).collect()
        };
        case.inputs[0].sequences.iter().map(rows).collect()
    };
    let run =
        |op: Op, weights: &[usize], inputs: Vec<(usize, Vec<Vec<f32>>)>| -> Result<Vec<Vec<f32>>, String> {
            let mut part = Case::new("part", op, &case.lengths, 0.0);
            (part.rollback, part.state_elem) = (case.rollback, case.state_elem);
            part.weights = weights.iter().map(|&w| case.weights[w].clone()).collect();
            for (cols, sequences) in inputs {
                let ty = mambo_kernel::ValueType::f32(Rows::TOKENS, cols);
                part.inputs.push(mambo_kernel::case::CaseInput { ty, sequences });
            }
            Ok(reference_outputs(&part, Elem::F32)?.0.remove(0))
        };
    let (inner, channels) = (dims.inner(), dims.conv_dim());
    let xbc = run(Op::SsmConv(dims), &[0, 1], vec![(channels, columns(inner, channels))])?;
    let dt = run(Op::SsmDt, &[2], vec![(dims.heads, columns(inner + channels, dims.heads))])?;
    let y = run(Op::SsmScan(dims), &[3, 4], vec![(channels, xbc), (dims.heads, dt)])?;
    let norm = Op::GatedGroupNorm { groups: dims.groups, eps };
    run(norm, &[5], vec![(inner, y), (inner, columns(0, inner))])
}

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
        Digest::of(&self.0.bytes)
    }
}

/// A one-call program whose inputs lie in the step's hidden rows, one region per input port.
struct Setup {
    backend: Box<dyn Backend>,
    id: ProgramId,
    inputs: Vec<Operand>,
    hidden_bytes: usize,
}

/// Operands of the inputs in the step's hidden rows, and the bytes of those.
fn place_inputs(case: &Case, input: Elem, total: usize) -> (Vec<Operand>, usize) {
    let mut hidden_bytes = 0;
    let mut inputs: Vec<Operand> = Vec::new();
    for (port, given) in case.inputs.iter().enumerate() {
        let mut ty = given.ty;
        if port == 0 && ty.elem == Elem::F32 {
            ty.elem = input;
        }
        let stride_bytes = ty.elem.row_bytes(ty.cols) + ROW_ALIGN;
        let place = if case.op == Op::Embed { Place::TokenIds } else { Place::Hidden(hidden_bytes) };
        inputs.push(Operand { place, elem: ty.elem, rows: ty.rows, cols: ty.cols, stride_bytes });
        hidden_bytes += stride_bytes * total * ty.rows.times;
    }
    let wanted = case.op == Op::GatherRows;
    if wanted {
        let rows = Rows::WANTED;
        inputs.push(Operand { place: Place::Wanted, elem: Elem::I32, rows, cols: 1, stride_bytes: 4 });
    }
    (inputs, hidden_bytes)
}

fn set_up(
    mut backend: Box<dyn Backend>,
    kernel: usize,
    input: Elem,
    phase: Phase,
    case: &Case,
) -> Result<Setup, BackendError> {
    let total: usize = case.lengths.iter().sum();
    let (inputs, hidden_bytes) = place_inputs(case, input, total);
    let types: Vec<_> =
        inputs.iter().map(|o| mambo_kernel::ValueType { elem: o.elem, rows: o.rows, cols: o.cols }).collect();
    let table_cols = case.weights.first().map_or(0, |w| *w.shape.last().unwrap_or(&0));
    let results = case.op.infer(&types, table_cols).expect("a case fits its op");
    let mut offset = ROW_ALIGN;
    let mut outputs = Vec::new();
    for ty in results {
        let stride_bytes = ty.elem.row_bytes(ty.cols);
        outputs.push(Operand {
            place: Place::Arena(offset),
            elem: ty.elem,
            rows: ty.rows,
            cols: ty.cols,
            stride_bytes,
        });
        offset += stride_bytes * ty.rows.count(total, total) + ROW_ALIGN;
    }
    let ports = case.op.weight_ports(&types);
    let weights: Vec<WeightKey> =
        ports.iter().map(|p| WeightKey { name: format!("case.{}", p.name), usage: p.usage }).collect();
    for (key, weight) in weights.iter().zip(&case.weights) {
        backend.load_weight(key, kernel, &Source(weight))?;
    }
    backend.create_caches(&case.caches())?;
    let named = |(i, operand): (usize, &Operand)| Output { name: format!("output{i}"), operand: *operand };
    let program = Program {
        name: "case".into(),
        phase,
        max_tokens: total,
        max_wanted: total,
        outputs: outputs.iter().enumerate().map(named).collect(),
        calls: vec![Call {
            op: case.op,
            kernel,
            label: case.name.clone(),
            inputs: inputs.clone(),
            outputs,
            weights: (0..weights.len()).collect(),
            cache: case.op.cache().map(|_| 0),
        }],
        weights,
        arena_bytes: offset,
        unpooled_bytes: offset,
    };
    let id = backend.compile(program)?;
    Ok(Setup { backend, id, inputs, hidden_bytes })
}

fn run_case(
    backend: Box<dyn Backend>,
    kernel: usize,
    input: Elem,
    phase: Phase,
    case: &Case,
    cut: Cut,
) -> Result<(Outputs, Vec<Vec<f32>>), String> {
    let mut setup = set_up(backend, kernel, input, phase, case).map_err(|e| e.to_string())?;
    let outputs = setup.backend.program(setup.id).outputs.clone();
    let mut collected: Outputs = vec![vec![Vec::new(); case.lengths.len()]; outputs.len()];
    let pages_per_sequence = case.lengths.iter().map(|n| n.div_ceil(PAGE_TOKENS)).max().unwrap_or(0) as u32;
    // Pages in reverse, so that a kernel which ignores the table is caught.
    let page_count = pages_per_sequence * case.lengths.len() as u32;
    let pages: Vec<u32> = (0..page_count).rev().collect();
    let mut done = vec![0usize; case.lengths.len()];
    for round in 0.. {
        let mut segments = Vec::new();
        let mut first_row = 0;
        for (s, (&length, &done)) in case.lengths.iter().zip(&done).enumerate() {
            let rows = take(cut, round, s, length - done) as u32;
            if rows > 0 {
                let position = done as u32;
                segments.push(Segment {
                    slot: s as u32,
                    first_row,
                    rows,
                    position,
                    first_page: s as u32 * pages_per_sequence,
                });
                first_row += rows;
            }
        }
        if segments.is_empty() {
            let finished = |s: usize| {
                done[s] == case.lengths[s]
                    || matches!(cut, Cut::Alone(only) | Cut::AloneSingle(only) if only != s)
            };
            if (0..case.lengths.len()).all(finished) {
                break;
            }
            continue;
        }
        let (hidden, token_ids) = gather_inputs(&setup, case, &segments);
        let wanted: Vec<u32> = (0..first_row).collect();
        let step = StepInputs {
            token_ids: &token_ids,
            segments: &segments,
            pages: &pages,
            wanted: &wanted,
            hidden: &hidden,
        };
        setup.backend.poison_arena();
        setup.backend.run(setup.id, &step).map_err(|e| e.to_string())?;
        for segment in &segments {
            let s = segment.slot as usize;
            for (o, output) in outputs.iter().enumerate() {
                collect(&mut *setup.backend, setup.id, o, output, segment, &mut collected[o][s]);
            }
            done[s] += segment.rows as usize;
        }
    }
    let slots = if case.op.cache() == Some(CacheKind::State) {
        (0..case.lengths.len()).map(|s| case.caches().slot_values(&setup.backend.snapshot_slot(s))).collect()
    } else {
        Vec::new()
    };
    Ok((collected, slots))
}

/// Rows of sequence `s` in this round.
fn take(cut: Cut, round: usize, s: usize, left: usize) -> usize {
    match cut {
        Cut::Whole => left,
        Cut::Single => left.min(1),
        Cut::Ragged => left.min([0, 1, 3, 7, 30][(round + s) % 5]),
        Cut::Alone(only) if only == s => left,
        Cut::AloneSingle(only) if only == s => left.min(1),
        Cut::Alone(_) | Cut::AloneSingle(_) => 0,
    }
}

fn gather_inputs(setup: &Setup, case: &Case, segments: &[Segment]) -> (Vec<f32>, Vec<u32>) {
    let mut hidden = vec![f32::NAN; setup.hidden_bytes / 4];
    let mut token_ids = Vec::new();
    for (operand, given) in setup.inputs.iter().zip(&case.inputs) {
        let times = operand.rows.times;
        for segment in segments {
            let rows = &given.sequences[segment.slot as usize];
            for i in 0..segment.rows as usize * times {
                let row = &rows[(segment.position as usize * times + i) * operand.cols..][..operand.cols];
                match operand.place {
                    Place::Hidden(offset) => {
                        let at =
                            (offset + (segment.first_row as usize * times + i) * operand.stride_bytes) / 4;
                        let packed: Vec<f32> = match operand.elem {
                            to if to.is_rounded() => ops::quantize::reference(row, to)
                                .chunks_exact(4)
                                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                                .collect(),
                            _ => row.to_vec(),
                        };
                        hidden[at..at + packed.len()].copy_from_slice(&packed);
                    }
                    _ => token_ids.push(row[0].to_bits()),
                }
            }
        }
    }
    if token_ids.is_empty() {
        token_ids = vec![0; segments.iter().map(|s| s.rows as usize).sum()];
    }
    (hidden, token_ids)
}

fn collect(
    backend: &mut dyn Backend,
    id: ProgramId,
    index: usize,
    output: &Output,
    segment: &Segment,
    into: &mut Vec<f32>,
) {
    let times = output.operand.rows.times;
    let range = segment.row_range();
    debug_assert!(output.operand.rows.base == RowBase::Tokens || times == 1);
    let mut rows = Vec::new();
    backend.read_output(id, index, range.start * times..range.end * times, &mut rows);
    into.extend(rows);
}
