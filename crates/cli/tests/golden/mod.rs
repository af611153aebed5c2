//! Logits as files, and how far two sets of them are apart.
#![allow(dead_code, reason = "every test file uses its own part")]

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;

use crate::program::{scratch, works};

/// A path in the repository.
pub fn repository(path: &str) -> String {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path).to_str().unwrap().to_owned()
}

/// Rows of logits.
pub struct Logits {
    pub vocab: usize,
    pub values: Vec<f32>,
}

impl Logits {
    /// A tensor of a safetensors file.
    pub fn read(path: &Path, name: &str) -> Logits {
        let bytes = std::fs::read(path).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let tensor = file.tensor(name).unwrap();
        let values = tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
        Logits { vocab: tensor.shape()[1], values: values.collect() }
    }

    /// The rows.
    pub fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.values.chunks_exact(self.vocab)
    }

    /// The likeliest token of every row.
    pub fn choices(&self) -> Vec<usize> {
        let best = |row: &[f32]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
        self.rows().map(best).collect()
    }

    /// Mean over the rows of the KL divergence of `other` from these, in nats.
    pub fn divergence(&self, other: &Logits) -> f64 {
        assert_eq!(self.values.len(), other.values.len());
        let log_softmax = |row: &[f32]| -> Vec<f64> {
            let most = row.iter().copied().fold(f32::MIN, f32::max);
            let sum: f64 = row.iter().map(|v| f64::from(v - most).exp()).sum();
            row.iter().map(|v| f64::from(v - most) - sum.ln()).collect()
        };
        let row = |(p, q): (&[f32], &[f32])| -> f64 {
            log_softmax(p).iter().zip(log_softmax(q)).map(|(p, q)| p.exp() * (p - q)).sum()
        };
        let rows = self.values.len() / self.vocab;
        self.rows().zip(other.rows()).map(row).sum::<f64>() / rows as f64
    }
}

/// The file of logits the program writes for a model (the built-in one if none) and the given flags.
pub fn score(name: &str, model: Option<&str>, ids: &[&str]) -> PathBuf {
    let out = scratch(&format!("{name}.safetensors"));
    let mut arguments = vec!["logits", "-o", out.to_str().unwrap()];
    arguments.extend_from_slice(ids);
    arguments.extend(model.iter().flat_map(|model| ["-m", model]));
    works(&arguments);
    out
}
