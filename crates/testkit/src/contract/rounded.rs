//! Rounded second outputs: exactly what encoding the first output gives, and the first as without.

use mambo_kernel::{Backend, Elem};

use super::cut::{Cut, Pace};
use super::judge::{judge_rounded, same_bits};
use super::trial::{OutputRows, Trial};
use super::{RowCase, at_site};

/// Runs a row with every rounded output that it can write; `plain` is what it gives without.
pub(super) fn check(
    backend: &mut dyn Backend,
    row: &RowCase,
    privates: &[Elem],
    plain: &[OutputRows],
) -> Result<(), String> {
    for &phase in row.phases {
        for &elem in privates {
            let rounds = &backend.kernels()[row.kernel].rounds;
            if !at_site(row.case, phase, |site| rounds(site, elem)) {
                continue;
            }
            let how = format!("rounded to {} in {}", elem.name(), phase.name());
            let setup = super::Setup { rounded: Some(elem), ..row.setup(phase) };
            let mut trial = Trial::new(backend, &setup).map_err(|error| error.to_string())?;
            let cols = trial.output_cols(0);
            for pace in [Pace::largest(phase), Pace::Single] {
                let mut rows = trial.run(&row.case.lengths, Cut::all(pace))?;
                let second: Vec<_> =
                    rows.iter_mut().map(|outputs| outputs.pop().unwrap_or_default()).collect();
                same_bits(plain, &rows, Cut::all(pace), &format!("when it is {how}"))?;
                for (s, (rows, second)) in rows.iter().zip(&second).enumerate() {
                    judge_rounded(second, &rows[0], cols, elem)
                        .map_err(|problem| format!("{how}, sequence {s}, {problem}"))?;
                }
            }
        }
    }
    Ok(())
}
