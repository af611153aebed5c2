//! What a kernel's rows are judged against: the reference to a tolerance, other runs to the bit.

use mambo_kernel::case::Case;
use mambo_kernel::{
    Backend, CacheKind, Cell, Elem, Op, OpKind, Phase, ReferenceBackend, SSM_CHUNK, mask_words, ops,
};

use super::cut::{Cut, Pace};
use super::fused;
use super::trial::{OutputRows, Setup, Trial};

/// What a case must give: rows by sequence, and the values of each sequence's slot that the op writes.
pub(super) struct Wanted {
    pub rows: Vec<OutputRows>,
    pub slots: Vec<Vec<f32>>,
}

/// What the reference computes for a case on the values that a kernel sees which reads these types.
pub(super) fn reference(case: &Case, elems: &[Elem]) -> Result<Wanted, String> {
    let mut case = case.clone();
    for (input, elem) in case.inputs.iter_mut().zip(elems) {
        let Elem::Private(private) = elem else { continue };
        let cols = input.ty.cols;
        let rounded = |rows: &Vec<f32>| {
            rows.chunks(cols).flat_map(|row| ops::quantize::reference(row, private)).collect()
        };
        input.sequences = input.sequences.iter().map(rounded).collect();
    }
    let mut backend = ReferenceBackend::new();
    if let Op::SsmStep { .. } = case.op {
        let parts = fused::run_parts(&mut backend, &case)?.expect("ssm_step has parts");
        return Ok(Wanted {
            rows: parts.rows.into_iter().map(|rows| vec![rows]).collect(),
            slots: Vec::new(),
        });
    }
    let kernel = backend.kernels().iter().position(|row| row.op == case.op.kind());
    let kernel = kernel.ok_or("the reference lacks the op")?;
    let setup = Setup { case: &case, kernel, phase: Phase::Prefill, rounded: None, dense: false };
    let mut trial = Trial::new(&mut backend, &setup).map_err(|error| error.to_string())?;
    let rows = trial.run(&case.lengths, Cut::all(Pace::Whole))?;
    let slots = slots(&mut trial, &case)?;
    Ok(Wanted { rows, slots })
}

/// The values of every sequence's slot that the case's op writes, once all have run to their ends.
pub(super) fn slots(trial: &mut Trial, case: &Case) -> Result<Vec<Vec<f32>>, String> {
    if case.op.cache() != Some(CacheKind::State) {
        return Ok(Vec::new());
    }
    let mut slots = Vec::new();
    for (s, &length) in case.lengths.iter().enumerate() {
        let bytes = trial.export(Cell::Slot { slot: s as u32, position: length as u32 })?;
        let values = trial.layout.slot_values(length, &bytes);
        let part = trial.layout.slot_layout(0);
        let states = if length < SSM_CHUNK { 0 } else { part.dims.heads * part.head_elems() };
        let columns = states + length.min(part.dims.taps - 1) * part.dims.conv_dim();
        slots.push(match case.op {
            Op::SsmConv(_) | Op::ShortConv(_) => values[states..columns].to_vec(),
            Op::SsmScan(_) | Op::DeltaScan(_) => [&values[..states], &values[columns..]].concat(),
            _ => values,
        });
    }
    Ok(slots)
}

/// Judges rows of all sequences against what the reference gives.
pub(super) fn judge(got: &[OutputRows], want: &Wanted, tolerance: f32, case: &Case) -> Result<(), String> {
    for (s, (got, want)) in got.iter().zip(&want.rows).enumerate() {
        for (output, (got, want)) in got.iter().zip(want).enumerate() {
            let width = want.len() / case.lengths[s];
            if got.len() != want.len() {
                return Err(format!("sequence {s} has {} values, expected {}", got.len(), want.len()));
            }
            for (row, (got, want)) in got.chunks(width).zip(want.chunks(width)).enumerate() {
                let is_exact = output == 0 && case.op.kind() == OpKind::MoeRoute;
                let tolerance = if is_exact { 0.0 } else { tolerance };
                close(got, want, tolerance)
                    .map_err(|problem| format!("output {output}, sequence {s}, row {row}: {problem}"))?;
            }
        }
    }
    Ok(())
}

/// Judges chosen tokens: several may be as good as the reference's.
pub(super) fn judge_choices(got: &[OutputRows], case: &Case) -> Result<(), String> {
    let logits = &case.inputs[0];
    let words = mask_words(logits.ty.cols);
    for (s, rows) in logits.sequences.iter().enumerate() {
        for (row, (logits, how)) in rows.chunks(logits.ty.cols).zip(&case.choose.rows[s]).enumerate() {
            let changes = how.adjustments.start as usize..how.adjustments.end as usize;
            let changes = &case.choose.adjustments[changes];
            let mask = how.mask.map(|index| &case.choose.masks[index as usize * words..][..words]);
            let token = got[s][0][row].to_bits();
            if !ops::choose::accepts(token, logits, how, changes, mask) {
                let want = ops::choose::reference(logits, how, changes, mask);
                return Err(format!("sequence {s}, row {row}: chose {token}, expected {want} ({how:?})"));
            }
        }
    }
    Ok(())
}

/// Judges rounded rows: they must stand for exactly the values that encoded rows stand for, and be near `x`.
pub(super) fn judge_rounded(got: &[f32], x: &[f32], cols: usize, to: Elem) -> Result<(), String> {
    let Elem::Private(private) = to else { return Err(format!("{} is not a private type", to.name())) };
    for (row, (got, x)) in got.chunks(cols).zip(x.chunks(cols)).enumerate() {
        let want = ops::quantize::reference(x, private);
        if let Some(at) = difference(got, &want) {
            return Err(format!("row {row}: value {at} is {}, expected {}", got[at], want[at]));
        }
        let is_finite = x.iter().all(|value| value.is_finite());
        close(got, x, private.error).or_else(|problem| match is_finite {
            true => Err(format!("row {row}: {problem}, the error that {} states", private.name)),
            false => Ok(()),
        })?;
    }
    Ok(())
}

/// Whether every value is near enough, as a share of the largest.
pub(super) fn close(got: &[f32], want: &[f32], tolerance: f32) -> Result<(), String> {
    let largest = want.iter().fold(0f32, |most, value| most.max(value.abs()));
    let allowed = tolerance * largest;
    let is_off = |(got, want): (&f32, &f32)| {
        let off = (got - want).abs();
        off.is_nan() || off > allowed
    };
    match got.iter().zip(want).position(is_off) {
        None => Ok(()),
        Some(i) => Err(format!(
            "value {i} is {}, expected {} (off by {:e}, allowed {allowed:e})",
            got[i],
            want[i],
            (got[i] - want[i]).abs()
        )),
    }
}

/// The first value whose bits differ.
pub(super) fn difference(a: &[f32], b: &[f32]) -> Option<usize> {
    if a.len() != b.len() {
        return Some(a.len().min(b.len()).saturating_sub(1));
    }
    a.iter().zip(b).position(|(a, b)| a.to_bits() != b.to_bits())
}

/// Whether two runs agree to the bit in all outputs of the sequences that both ran.
pub(super) fn same_bits(a: &[OutputRows], b: &[OutputRows], cut: Cut, how: &str) -> Result<(), String> {
    for (s, (a, b)) in a.iter().zip(b).enumerate().filter(|(s, _)| !cut.skips(*s)) {
        for (output, (a, b)) in a.iter().zip(b).enumerate() {
            if let Some(at) = difference(a, b) {
                return Err(format!("value {at} of output {output} of sequence {s} changes bits {how}"));
            }
        }
    }
    Ok(())
}
