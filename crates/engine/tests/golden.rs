//! Golden files decide: every checkpoint on every backend, whole, chunked and in company.

mod loaded;

use std::path::Path;

use loaded::{CASES, On, QUANTIZED, Setup, folder, load, load_folder, quantized_folder};
use mambo_checkpoint::Checkpoint;
use mambo_engine::{Engine, ScoreOptions};

struct Expected {
    ids: Vec<u32>,
    logits: Vec<f32>,
    mtp_logits: Vec<f32>,
}

fn expected(folder: &Path) -> Expected {
    let file = Checkpoint::open(&folder.join("expected.safetensors")).expect("golden files open");
    let floats = |name: &str| -> Vec<f32> {
        let bytes =
            file.tensor(name).map(|t| file.read(t).expect("golden files are whole")).unwrap_or_default();
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes"))).collect()
    };
    let ids = file.tensor("input_ids").expect("golden files have ids");
    let ids = file.read(ids).expect("golden files are whole");
    let ids =
        ids.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().expect("eight bytes")) as u32).collect();
    Expected { ids, logits: floats("logits"), mtp_logits: floats("mtp_logits") }
}

fn score(engine: &mut Engine, ids: &[u32], chunk: usize, companions: usize) -> (Vec<f32>, Vec<f32>) {
    let (mut logits, mut mtp) = (Vec::new(), Vec::new());
    let options = ScoreOptions { chunk, companions, ..Default::default() };
    let mut keep = |rows: mambo_engine::ScoredRows| {
        logits.extend_from_slice(rows.logits);
        mtp.extend_from_slice(rows.mtp_logits);
    };
    engine.score(ids, options, &mut keep).expect("golden texts fit");
    (logits, mtp)
}

fn largest_difference(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    got.iter()
        .zip(want)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |m, d| if d.is_nan() { f32::INFINITY } else { m.max(d) })
}

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
            assert!(off <= 2e-3, "{case} on {on:?}: logits off by {off}");
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
