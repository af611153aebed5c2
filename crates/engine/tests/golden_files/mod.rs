//! What golden files hold, and how an engine is compared with them.
#![allow(dead_code, reason = "each test program uses its part")]

use std::path::Path;

use mambo_checkpoint::Checkpoint;
use mambo_engine::{Engine, ScoreOptions};

/// A golden file.
pub struct Expected {
    pub ids: Vec<u32>,
    pub logits: Vec<f32>,
    pub mtp_logits: Vec<f32>,
}

/// What a folder's golden file holds.
pub fn expected(folder: &Path) -> Expected {
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

/// Logits of every position, of the trunk and of an MTP head.
pub fn score(engine: &mut Engine, ids: &[u32], chunk: usize, companions: usize) -> (Vec<f32>, Vec<f32>) {
    let (mut logits, mut mtp) = (Vec::new(), Vec::new());
    let options = ScoreOptions { chunk, companions, ..Default::default() };
    let mut keep = |rows: mambo_engine::ScoredRows| {
        logits.extend_from_slice(rows.logits);
        mtp.extend_from_slice(rows.mtp_logits);
    };
    engine.score(ids, options, &mut keep).expect("golden texts fit");
    (logits, mtp)
}

/// The largest difference; infinite where there is no number.
pub fn largest_difference(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    got.iter()
        .zip(want)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |m, d| if d.is_nan() { f32::INFINITY } else { m.max(d) })
}
