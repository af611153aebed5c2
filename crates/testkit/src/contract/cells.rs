//! Cells: a sequence whose pages and slot are exported, imported or copied elsewhere continues as if it had not moved:
//! on the same backend to the bit, and between a backend and the reference to the tolerance.

use mambo_kernel::case::Case;
use mambo_kernel::{Backend, BackendError, CacheKind, Cell, Op, PAGE_TOKENS, Phase, ReferenceBackend};

use super::RowCase;
use super::cut::Pace;
use super::judge::{close, difference};
use super::sizes::resized;
use super::trial::{OutputRows, Setup, Trial};

/// Where sequences are moved: around the edges of chunks and pages.
const POSITIONS: [usize; 4] = [1, 31, 40, 64];
/// Tokens that follow.
const MORE: usize = 3;

/// The exported cells of one sequence.
struct Exported {
    pages: Vec<Vec<u8>>,
    slot: Option<Vec<u8>>,
}

/// Moves a row's sequence at several positions, in the first phase that the row accepts.
pub(super) fn check(backend: &mut dyn Backend, row: &RowCase) -> Result<(), String> {
    let phase = row.phases[0];
    for position in POSITIONS {
        let case = resized(row.case, &[position + MORE]);
        let row = RowCase { case: &case, ..*row };
        check_at(backend, &row, phase, position).map_err(|e| format!("moved at token {position}: {e}"))?;
    }
    Ok(())
}

fn check_at(backend: &mut dyn Backend, row: &RowCase, phase: Phase, position: usize) -> Result<(), String> {
    let (pace, end) = (Pace::largest(phase), position + MORE);
    let factor = backend.kernels()[row.kernel].arithmetic.tolerance_factor();
    let tolerance = row.case.tolerance.max(1e-6) * 4.0 * factor;
    let setup = row.setup(phase);
    let mut trial = Trial::with_seats(backend, &setup, 3).map_err(|error| error.to_string())?;
    trial.span(0, 0, 0..position, pace)?;
    let moved = export(&mut trial, row.case, 0, position)?;
    check_sizes(&mut trial, row.case, position)?;
    import(&mut trial, row.case, 1, position, &moved)?;
    copy(&mut trial, row.case, [0, 2], position)?;
    let again = export(&mut trial, row.case, 1, position)?;
    if again.pages != moved.pages || again.slot != moved.slot {
        return Err("what was imported is exported with other bytes".into());
    }
    let stayed = trial.span(0, 0, position..end, pace)?;
    for (seat, how) in [(1, "exported and imported"), (2, "copied")] {
        let rows = trial.span(0, seat, position..end, pace)?;
        if let Some(at) = stayed.iter().zip(&rows).find_map(|(a, b)| difference(a, b)) {
            return Err(format!("value {at} differs when it is {how}"));
        }
    }
    if matches!(row.case.op, Op::SsmStep { .. }) {
        // The reference has the parts alone, each with slots of its own.
        return Ok(());
    }
    let (there, exported) = on_reference(row.case, position, Some(&moved))?;
    near(&there, &stayed, tolerance).map_err(|e| format!("on the reference: {e}"))?;
    let (straight, _) = on_reference(row.case, position, None)?;
    import(&mut trial, row.case, 1, position, &exported)?;
    let here = trial.span(0, 1, position..end, pace)?;
    near(&here, &straight, tolerance).map_err(|e| format!("from the reference: {e}"))
}

/// The rows that the reference gives after a position, from these cells or its own; and its own cells.
fn on_reference(
    case: &Case,
    position: usize,
    from: Option<&Exported>,
) -> Result<(OutputRows, Exported), String> {
    let mut reference = ReferenceBackend::new();
    let kernel = reference.kernels().iter().position(|row| row.op == case.op.kind());
    let kernel = kernel.ok_or("the reference lacks the op")?;
    let setup = Setup { case, kernel, phase: Phase::Prefill, rounded: None, dense: false };
    let mut trial = Trial::with_seats(&mut reference, &setup, 2).map_err(|error| error.to_string())?;
    trial.span(0, 0, 0..position, Pace::Whole)?;
    let own = export(&mut trial, case, 0, position)?;
    import(&mut trial, case, 1, position, from.unwrap_or(&own))?;
    Ok((trial.span(0, 1, position..position + MORE, Pace::Whole)?, own))
}

fn near(got: &OutputRows, want: &OutputRows, tolerance: f32) -> Result<(), String> {
    let width = want[0].len() / MORE;
    let mut rows = got[0].chunks(width).zip(want[0].chunks(width)).enumerate();
    rows.try_for_each(|(row, (got, want))| close(got, want, tolerance).map_err(|e| format!("row {row}: {e}")))
}

/// The cells of a seat at a position.
fn cells(trial: &Trial, case: &Case, seat: usize, position: usize) -> (Vec<Cell>, Option<Cell>) {
    let group = trial.layout.kv_groups.len().saturating_sub(1) as u32;
    let pages = trial.pages(seat).into_iter().take(position.div_ceil(PAGE_TOKENS));
    let pages = pages.map(|page| Cell::Page { group, page });
    match case.op.cache() {
        Some(CacheKind::Kv) => (pages.collect(), None),
        _ => (Vec::new(), Some(Cell::Slot { slot: seat as u32, position: position as u32 })),
    }
}

fn export(trial: &mut Trial, case: &Case, seat: usize, position: usize) -> Result<Exported, String> {
    let (pages, slot) = cells(trial, case, seat, position);
    let pages = pages.into_iter().map(|page| trial.export(page)).collect::<Result<_, _>>()?;
    let slot = slot.map(|slot| trial.export(slot)).transpose()?;
    Ok(Exported { pages, slot })
}

fn import(
    trial: &mut Trial,
    case: &Case,
    seat: usize,
    position: usize,
    from: &Exported,
) -> Result<(), String> {
    let (pages, slot) = cells(trial, case, seat, position);
    for (cell, bytes) in pages.into_iter().chain(slot).zip(from.pages.iter().chain(&from.slot)) {
        trial.backend.import_cell(cell, bytes).map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn copy(trial: &mut Trial, case: &Case, seats: [usize; 2], position: usize) -> Result<(), String> {
    let [from, to] = seats.map(|seat| cells(trial, case, seat, position));
    for (from, to) in from.0.into_iter().chain(from.1).zip(to.0.into_iter().chain(to.1)) {
        trial.backend.copy_cell(from, to).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Every cell has the size that the layout gives, appended to what was there, and no other size is taken.
fn check_sizes(trial: &mut Trial, case: &Case, position: usize) -> Result<(), String> {
    let (pages, slot) = cells(trial, case, 0, position);
    for cell in pages.into_iter().chain(slot) {
        let want = trial.layout.cell_bytes(cell);
        let mut bytes = vec![7; 3];
        trial.backend.read_cell(cell, &mut bytes).map_err(|error| error.to_string())?;
        if bytes.len() != want + 3 || bytes[..3] != [7; 3] {
            return Err(format!("{cell} is exported as {} bytes, not {want}", bytes.len() - 3));
        }
        for wrong in [want - 1, want + 1] {
            bytes.resize(wrong, 0);
            match trial.backend.import_cell(cell, &bytes) {
                Err(BackendError::CellSize { .. }) => {}
                Err(error) => return Err(format!("{wrong} bytes for {cell} are refused with \"{error}\"")),
                Ok(()) => return Err(format!("{wrong} bytes are taken for {cell}, which has {want}")),
            }
        }
    }
    Ok(())
}
