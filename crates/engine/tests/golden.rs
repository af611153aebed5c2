//! Golden files decide: every checkpoint on every backend, whole, chunked and in company.

mod golden_files;
mod loaded;

use golden_files::{expected, largest_difference, score};
use loaded::{CASES, On, QUANTIZED, Setup, folder, load, load_folder, quantized_folder};

#[test]
fn every_checkpoint_on_every_backend() {
    for case in CASES {
        let want = expected(&folder(case));
        let allowed = if case == "long" { 5e-3 } else { 1e-3 };
        for on in On::all() {
            let (logits, mtp) = score(&mut load(case, on, Setup::default()), &want.ids, 64, 0);
            let off = largest_difference(&logits, &want.logits);
            assert!(off <= allowed, "{case} on {on:?}: logits off by {off}");
            let off = largest_difference(&mtp, &want.mtp_logits);
            assert!(off <= allowed, "{case} on {on:?}: MTP logits off by {off}");
        }
    }
}

/// What was expected is computed from exactly dequantised weights and activations that stay floats.
#[test]
fn quantised_checkpoints_as_they_are() {
    for case in QUANTIZED {
        let folder = quantized_folder(case);
        let want = expected(&folder);
        for on in On::all() {
            let (logits, _) = score(&mut load_folder(&folder, on, Setup::default()), &want.ids, 64, 0);
            let off = largest_difference(&logits, &want.logits);
            assert!(off <= on.allowed(2e-3), "{case} on {on:?}: logits off by {off}");
        }
    }
}

#[test]
fn chunks_and_company_change_no_bit() {
    let bits = |(a, b): (Vec<f32>, Vec<f32>)| a.into_iter().chain(b).map(f32::to_bits).collect::<Vec<_>>();
    for case in CASES {
        let ids = expected(&folder(case)).ids;
        for on in On::all().into_iter().filter(|on| !matches!(on, On::Reference)) {
            let mut engine = load(case, on, Setup::default());
            let whole = bits(score(&mut engine, &ids, 64, 0));
            for (chunk, companions) in [(1, 0), (3, 0), (7, 0), (64, 3), (7, 2), (1, 3)] {
                let again = bits(score(&mut engine, &ids, chunk, companions));
                assert!(
                    again == whole,
                    "{case} on {on:?}: bits change with chunk {chunk}, {companions} companions"
                );
            }
        }
    }
}
