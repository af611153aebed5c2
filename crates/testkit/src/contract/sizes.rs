//! Steps of more than 300 rows: one long sequence, and more sequences than any test model runs.

use mambo_kernel::case::{Case, CaseInput};
use mambo_kernel::{Backend, Op, OpKind, Phase, ops};

use super::cut::{Cut, Pace};
use super::judge::same_bits;
use super::trial::{OutputRows, Trial};
use super::{Report, RowCase, judge_first, offers};

/// One token beside a prompt of more rows than kernels block at once.
const LONG: [usize; 2] = [1, 310];
/// Sequences of two tokens each.
const WIDE: usize = 305;

/// The same case with sequences of other lengths, whose rows are those of the case over and over.
pub(super) fn resized(case: &Case, lengths: &[usize]) -> Case {
    let resize = |input: &CaseInput| {
        let width = input.ty.rows.times * input.ty.cols;
        let pool: Vec<&[f32]> = input.sequences.iter().flat_map(|rows| rows.chunks(width)).collect();
        let mut next = pool.iter().cycle();
        let mut take = |length: &usize| next.by_ref().take(*length).copied().collect::<Vec<_>>().concat();
        CaseInput { ty: input.ty, sequences: lengths.iter().map(&mut take).collect() }
    };
    let mut resized = Case { lengths: lengths.to_vec(), ..case.clone() };
    resized.inputs = case.inputs.iter().map(resize).collect();
    let pool: Vec<_> = case.choose.rows.iter().flatten().collect();
    if !pool.is_empty() {
        let mut next = pool.iter().cycle();
        let mut take = |length: &usize| next.by_ref().take(*length).map(|row| (*row).clone()).collect();
        resized.choose.rows = lengths.iter().map(&mut take).collect();
    }
    resized
}

/// How much work a case is, roughly.
fn size(case: &Case) -> usize {
    let weights: usize = case.weights.iter().map(|weight| weight.shape.iter().product::<usize>()).sum();
    let inputs: usize = case.inputs.iter().map(|input| input.ty.rows.times * input.ty.cols).sum();
    let caches = case.caches(0);
    weights + inputs + caches.slot_bytes() + caches.kv_bytes_per_token()
}

/// The cases that are the smallest few of some row of an op.
pub(super) fn smallest<'c>(
    backend: &dyn Backend,
    kind: OpKind,
    cases: &'c [Case],
    wanted: &[bool],
    per_row: usize,
) -> Vec<&'c Case> {
    let mut cases: Vec<&Case> = cases.iter().collect();
    if per_row == usize::MAX {
        return cases;
    }
    cases.sort_by_key(|case| size(case) * case.lengths.iter().sum::<usize>());
    let is_row = |kernel: &usize| backend.kernels()[*kernel].op == kind && wanted[*kernel];
    let rows: Vec<usize> = (0..wanted.len()).filter(is_row).collect();
    let mut taken = vec![0; wanted.len()];
    cases.retain(|case| {
        let offered = offers(backend, case);
        let is_new =
            |kernel: &&usize| taken[**kernel] < per_row && offered.iter().any(|(own, _)| own == *kernel);
        let new: Vec<usize> = rows.iter().filter(is_new).copied().collect();
        new.iter().for_each(|kernel| taken[*kernel] += 1);
        !new.is_empty()
    });
    cases
}

/// Runs every row of an op on its cheapest case with more than 300 rows.
pub(super) fn check(
    backend: &mut dyn Backend,
    kind: OpKind,
    cases: &[Case],
    wanted: &[bool],
    report: &mut Report,
) {
    let mut cases: Vec<&Case> = cases.iter().collect();
    cases.sort_by_key(|case| size(case));
    for (kernel, wanted) in wanted.iter().enumerate() {
        if backend.kernels()[kernel].op != kind || !wanted {
            continue;
        }
        let offer = cases.iter().find_map(|case| {
            let phases = offers(backend, case).into_iter().find(|(other, _)| *other == kernel)?.1;
            Some((*case, phases))
        });
        let Some((case, phases)) = offer else { continue };
        for lengths in [LONG.to_vec(), vec![2; WIDE]] {
            let case = resized(case, &lengths);
            let row = RowCase { case: &case, kernel, phases: &phases };
            if let Err(problem) = check_row(backend, &row) {
                let (name, rows) = (&report.rows[kernel].0, lengths.iter().sum::<usize>());
                report.failures.push(format!("{name}: {} with {rows} rows: {problem}", case.name));
            }
        }
    }
}

fn check_row(backend: &mut dyn Backend, row: &RowCase) -> Result<(), String> {
    let kernel = &backend.kernels()[row.kernel];
    let (elems, factor) = (kernel.inputs.clone(), kernel.arithmetic.tolerance_factor());
    let mut references = Vec::new();
    let mut first: Option<Vec<OutputRows>> = None;
    for &phase in row.phases {
        let paces: &[Pace] = match phase {
            Phase::Prefill => &[Pace::Whole, Pace::Ragged],
            // Hundreds of steps of two rows would test nothing new.
            Phase::Decode if row.case.lengths.len() == LONG.len() => continue,
            Phase::Decode => &[Pace::Single],
            Phase::Verify => &[Pace::Drafts],
        };
        let setup = row.setup(phase);
        let mut trial = Trial::new(backend, &setup).map_err(|error| error.to_string())?;
        for &pace in paces {
            let rows = trial.run(&row.case.lengths, Cut::all(pace))?;
            match &first {
                Some(first) => {
                    let how = format!("in {}, cut as {pace:?}", phase.name());
                    same_bits(first, &rows, Cut::all(pace), &how)?;
                }
                None => {
                    judge_first(row.case, &elems, factor, &rows, &[], &mut references)?;
                    first = Some(rows);
                }
            }
        }
    }
    Ok(())
}

/// The cheapest case of an op that has a row which reads its inputs as they are, with that row.
pub(super) fn plain_case(backend: &dyn Backend, op: Op) -> Option<(Case, usize, Phase)> {
    let mut cases = ops::cases(op.kind());
    cases.sort_by_key(size);
    cases.into_iter().find_map(|case| {
        let offers = offers(backend, &case);
        let (kernel, phases) = offers.first()?;
        let is_plain = backend.kernels()[*kernel].inputs == op.kind().input_elems();
        is_plain.then(|| (case, *kernel, phases[0]))
    })
}
