//! The contract runner: every kernel row of a backend over every hard case of its op.
//!
//! A case runs in every phase that the row accepts, with its sequences cut into steps in different ways. The outputs
//! must agree with the reference to the case's tolerance, and with each other to the bit. So must fused ops with their
//! parts, rounded outputs with what encoding gives, sequences that were rolled back with those that never ran ahead,
//! and sequences that were moved to other cells with those that were not.

mod cells;
mod cut;
mod feeding;
mod fused;
mod judge;
mod rewinds;
mod rounded;
mod sizes;
mod trial;

use std::fmt;

use mambo_kernel::case::Case;
use mambo_kernel::{Backend, CacheTypes, Elem, KernelRow, Op, OpKind, Phase, Site, ops};
use mambo_tensor::DType;

use cut::Cut;
use judge::{Wanted, judge, judge_choices, judge_rounded, same_bits};
use trial::{OutputRows, Setup, Trial, input_types};

const PHASES: [Phase; 3] = [Phase::Prefill, Phase::Decode, Phase::Verify];

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

/// Runs every kernel row of a backend over every case that the row accepts. The backend is cleared between cases and
/// afterwards.
pub fn check_all(backend: &mut dyn Backend) -> Report {
    check_rows(backend, &|_| true)
}

/// The same for some rows alone.
pub fn check_rows(backend: &mut dyn Backend, is_wanted: &dyn Fn(&KernelRow) -> bool) -> Report {
    check_amount(backend, is_wanted, Amount::ALL)
}

/// How much of the contract is checked: less where a tool watches every access, or where a device is emulated.
#[derive(Clone, Copy, Debug)]
pub struct Amount {
    /// The smallest so many cases of every row.
    pub cases_per_row: usize,
    /// Ops that are checked in steps of hundreds of rows, too.
    pub has_long_steps: fn(OpKind) -> bool,
    /// Whether steps feed each other.
    pub feeds: bool,
}

impl Amount {
    /// All of it.
    pub const ALL: Amount = Amount { cases_per_row: usize::MAX, has_long_steps: |_| true, feeds: true };
    /// Nothing but the smallest so many cases of every row.
    pub fn smallest(cases_per_row: usize) -> Amount {
        Amount { cases_per_row, has_long_steps: |_| false, feeds: false }
    }
}

/// So much of it.
pub fn check_amount(
    backend: &mut dyn Backend,
    is_wanted: &dyn Fn(&KernelRow) -> bool,
    amount: Amount,
) -> Report {
    let wanted: Vec<bool> = backend.kernels().iter().map(is_wanted).collect();
    let rows = backend.kernels().iter().map(|row| (row.name.clone(), 0)).collect();
    let mut report = Report { rows, failures: Vec::new() };
    let privates = private_elems(backend);
    let rows = backend.kernels().iter().zip(&wanted).filter(|(_, wanted)| **wanted);
    let mut kinds: Vec<OpKind> = rows.map(|(row, _)| row.op).collect();
    kinds.sort_unstable();
    kinds.dedup();
    for &kind in &kinds {
        let cases = match kind {
            OpKind::Quantize => privates.iter().flat_map(|elem| quantize_cases(*elem)).collect(),
            _ => ops::cases(kind),
        };
        for case in sizes::smallest(backend, kind, &cases, &wanted, amount.cases_per_row) {
            check_case(backend, case, &wanted, &privates, &mut report);
        }
        if (amount.has_long_steps)(kind) {
            sizes::check(backend, kind, &cases, &wanted, &mut report);
        }
    }
    if amount.feeds {
        feeding::check(backend, &mut report);
    }
    for (wanted, (name, count)) in wanted.iter().zip(&report.rows) {
        if *count == 0 && *wanted {
            report.failures.push(format!("{name}: no case of its op is for this row"));
        }
    }
    if let Err(error) = backend.clear() {
        report.failures.push(format!("{}: cannot be cleared: {error}", backend.name()));
    }
    report
}

/// The private types that the backend's rows read.
fn private_elems(backend: &dyn Backend) -> Vec<Elem> {
    let mut elems = Vec::new();
    for elem in backend.kernels().iter().flat_map(|row| &row.inputs).filter(|elem| elem.is_private()) {
        if !elems.contains(elem) {
            elems.push(*elem);
        }
    }
    elems
}

fn quantize_cases(elem: Elem) -> Vec<Case> {
    match elem {
        Elem::Private(private) => ops::quantize::cases(private),
        _ => Vec::new(),
    }
}

/// Asks about the place in a graph that a case is.
fn at_site<T>(case: &Case, phase: Phase, ask: impl FnOnce(&Site) -> T) -> T {
    let weight_types: Vec<DType> = case.weights.iter().map(|weight| weight.dtype).collect();
    let inputs = input_types(case);
    let caches = CacheTypes { kv: case.kv_types, state: case.state_elem };
    ask(&Site { op: &case.op, phase, inputs: &inputs, weight_types: &weight_types, caches })
}

/// The rows that accept a case, best first, each with the phases it accepts it in.
fn offers(backend: &dyn Backend, case: &Case) -> Vec<(usize, Vec<Phase>)> {
    let rows = backend.kernels().iter().enumerate().filter(|(_, row)| row.op == case.op.kind());
    let phases = rows.map(|(kernel, row)| {
        let accepts = |phase: &Phase| at_site(case, *phase, |site| (row.accepts)(site));
        (kernel, PHASES.into_iter().filter(accepts).collect::<Vec<_>>())
    });
    phases.filter(|(_, phases)| !phases.is_empty()).collect()
}

/// One row on one case.
#[derive(Clone, Copy)]
struct RowCase<'c> {
    case: &'c Case,
    kernel: usize,
    phases: &'c [Phase],
}

impl<'c> RowCase<'c> {
    fn setup(&self, phase: Phase) -> Setup<'c> {
        Setup { case: self.case, kernel: self.kernel, phase, rounded: None, dense: false }
    }
}

fn check_case(
    backend: &mut dyn Backend,
    case: &Case,
    wanted: &[bool],
    privates: &[Elem],
    report: &mut Report,
) {
    let offers = offers(backend, case);
    let is_chosen = |kernel: usize| {
        let first = |phase: &Phase| offers.iter().find(|(_, phases)| phases.contains(phase));
        PHASES.iter().filter_map(first).any(|(chosen, _)| *chosen == kernel)
    };
    let mut references: Vec<(Vec<Elem>, Wanted)> = Vec::new();
    let mut chosen: Option<(usize, Vec<OutputRows>)> = None;
    for (kernel, phases) in offers.iter().filter(|(kernel, _)| wanted[*kernel]) {
        report.rows[*kernel].1 += 1;
        let row = RowCase { case, kernel: *kernel, phases };
        let checked = check_row(backend, &row, &mut references).and_then(|(rows, slots)| {
            rounded::check(backend, &row, privates, &rows)?;
            if is_chosen(*kernel) {
                fused::check(backend, case, &rows, &slots)?;
            }
            if case.op.cache().is_some() {
                rewinds::check(backend, &row)?;
                cells::check(backend, &row)?;
            }
            Ok(rows)
        });
        let compared = checked.and_then(|rows| match &chosen {
            _ if !is_chosen(*kernel) => Ok(()),
            None => {
                chosen = Some((*kernel, rows));
                Ok(())
            }
            // Phases may take different rows, and a sequence passes through all phases.
            Some((other, first)) => {
                let how = format!("against {}, which other phases take", report.rows[*other].0);
                same_bits(first, &rows, Cut::all(cut::Pace::Whole), &how)
            }
        });
        if let Err(problem) = compared {
            report.failures.push(format!("{}: {}: {problem}", report.rows[*kernel].0, case.name));
        }
    }
}

/// Runs a row in all its phases and cuts; the rows that all of them gave, and the slots they left.
fn check_row(
    backend: &mut dyn Backend,
    row: &RowCase,
    references: &mut Vec<(Vec<Elem>, Wanted)>,
) -> Result<(Vec<OutputRows>, Vec<Vec<f32>>), String> {
    let case = row.case;
    let mut baseline: Option<(Vec<OutputRows>, Vec<Vec<f32>>)> = None;
    for &phase in row.phases {
        let factor = backend.kernels()[row.kernel].arithmetic.tolerance_factor();
        let elems = backend.kernels()[row.kernel].inputs.clone();
        let setup = row.setup(phase);
        let mut trial = Trial::new(backend, &setup).map_err(|error| error.to_string())?;
        for cut in Cut::of_phase(phase, phase == row.phases[0], case.lengths.len()) {
            let rows = trial.run(&case.lengths, cut)?;
            let Some((first, _)) = &baseline else {
                let slots = judge::slots(&mut trial, case)?;
                judge_first(case, &elems, factor, &rows, &slots, references)?;
                baseline = Some((rows, slots));
                continue;
            };
            same_bits(first, &rows, cut, &format!("in {}, cut as {cut:?}", phase.name()))?;
        }
        if case.op == Op::GatherRows {
            check_wanted(&mut trial, case, phase, &baseline.as_ref().expect("a cut ran").0)?;
        }
    }
    baseline.ok_or_else(|| "accepts no phase".into())
}

/// Judges the first run of a row.
fn judge_first(
    case: &Case,
    elems: &[Elem],
    factor: f32,
    rows: &[OutputRows],
    slots: &[Vec<f32>],
    references: &mut Vec<(Vec<Elem>, Wanted)>,
) -> Result<(), String> {
    match case.op {
        Op::Choose => return judge_choices(rows, case),
        Op::Quantize(to) => {
            let (input, sequences) = (&case.inputs[0], rows.iter().zip(&case.inputs[0].sequences));
            for (s, (rows, x)) in sequences.enumerate() {
                judge_rounded(&rows[0], x, input.ty.cols, to).map_err(|e| format!("sequence {s}, {e}"))?;
            }
            return Ok(());
        }
        _ => {}
    }
    let known = references.iter().position(|(types, _)| types == elems);
    let index = match known {
        Some(index) => index,
        None => {
            references.push((elems.to_vec(), judge::reference(case, elems)?));
            references.len() - 1
        }
    };
    let want = &references[index].1;
    judge(rows, want, case.tolerance * factor, case)?;
    // What a state sums up is a few times as far off as what is read from it.
    let tolerance = case.tolerance.max(1e-6) * 4.0 * factor;
    for (s, (got, want)) in slots.iter().zip(&want.slots).enumerate() {
        judge::close(got, want, tolerance).map_err(|e| format!("slot of sequence {s}: {e}"))?;
    }
    Ok(())
}

/// Wants every third row only.
fn check_wanted(trial: &mut Trial, case: &Case, phase: Phase, all: &[OutputRows]) -> Result<(), String> {
    let pace = cut::Pace::largest(phase);
    if pace != cut::Pace::Whole {
        return Ok(());
    }
    trial.wanted_stride = 3;
    let some = trial.run(&case.lengths, Cut::all(pace))?;
    trial.wanted_stride = 1;
    let flat = |rows: &[OutputRows]| -> Vec<f32> { rows.iter().flat_map(|rows| rows[0].clone()).collect() };
    let cols = case.inputs[0].ty.cols;
    let want: Vec<f32> = flat(all).chunks(cols).step_by(3).flatten().copied().collect();
    match judge::difference(&flat(&some), &want) {
        None => Ok(()),
        Some(at) => Err(format!("value {at} differs where every third row is wanted")),
    }
}
