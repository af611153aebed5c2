//! Models with random weights: real shapes without real files, to measure with. Deterministic by seed.

mod blocks;
mod random;
mod tokens;
mod values;

use std::ops::Range;

use mambo_checkpoint::{GgufMetadata, Metadata};
use mambo_model::{ModelSpec, PRESETS, Preset};
use mambo_runtime::{Model, gguf_text};

use crate::convert::given;
use crate::{Content, ConvertError, Planned, Recipe, Source, metadata};
use random::Random;

/// The preset with the donor's own shape; not a released model, so not among the library's presets.
const TINY: &str = "tiny";

/// A random model: its shape and the seed of its values.
pub struct Synth<'m> {
    /// Layers and sizes.
    pub spec: ModelSpec,
    name: String,
    seed: u64,
    /// Gives its tokenizer and chat template.
    donor: &'m Model,
}

impl<'m> Synth<'m> {
    /// The model of a preset, or of the donor's shape for `tiny`. The donor is a small GGUF model whose tokenizer
    /// and chat template the new one gets.
    pub fn new(preset: &str, seed: u64, donor: &'m Model) -> Result<Synth<'m>, ConvertError> {
        let spec = if preset == TINY {
            donor.spec.clone()
        } else if PRESETS.iter().any(|p| p.name == preset) {
            Preset::named(preset)?.spec()?
        } else {
            let known: Vec<&str> = std::iter::once(TINY).chain(PRESETS.iter().map(|p| p.name)).collect();
            return Err(ConvertError::UnknownPreset { name: preset.to_owned(), known: known.join(", ") });
        };
        Ok(Synth { spec, name: format!("{preset} with random weights"), seed, donor })
    }

    /// Everything but the tensors: sizes, a tokenizer of the right size, the donor's chat template.
    pub fn metadata(&self, recipe: &Recipe) -> Result<GgufMetadata, ConvertError> {
        let Metadata::Gguf(small) = self.donor.checkpoint.metadata() else {
            return Err(ConvertError::vocabulary(format!("{} is no GGUF file", self.donor.name())));
        };
        let mut keys = metadata::of_spec(&self.spec, &self.name, recipe)?;
        gguf_text::copy_text(&mut keys, small);
        gguf_text::set_vocabulary(&mut keys, tokens::grow(gguf_text::vocabulary(small)?, self.spec.vocab)?);
        Ok(keys)
    }
}

impl Source for Synth<'_> {
    fn rows(&self, tensor: &Planned, rows: Range<usize>, out: &mut [u8]) -> Result<(), ConvertError> {
        // A generator per piece: the bytes do not depend on which worker makes them.
        let mut random = Random::new(self.seed, &tensor.name, rows.start as u64);
        if let Content::FactorsOf(_) = tensor.content {
            values::fill(values::Values::Constant(blocks::NVFP4_FACTOR), &mut random, out);
            return Ok(());
        }
        if let Content::Given(values) = &tensor.content {
            given(values, tensor, rows, out);
            return Ok(());
        }
        match values::of(tensor, self.spec.layers.len()) {
            values::Values::Normal { std } => blocks::fill(tensor.dtype, std, &mut random, out),
            vector => values::fill(vector, &mut random, out),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Container;
    use mambo_runtime::OpenOptions;
    use mambo_tensor::{DType, decode_row};

    fn donor() -> Model {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny-hybrid-mtp-Q8_0.gguf");
        Model::open(path, &OpenOptions::default()).unwrap()
    }

    fn layout<'m>(kind: &str, donor: &'m Model) -> (Synth<'m>, Vec<Planned>) {
        let synth = Synth::new(TINY, 7, donor).unwrap();
        let tensors = Recipe::pure(kind).unwrap().layout(&synth.spec, Container::Gguf).unwrap().tensors;
        (synth, tensors)
    }

    #[test]
    fn every_type_has_the_wanted_spread_and_no_bias() {
        let donor = donor();
        // GGUF has no 8-bit floats.
        for dtype in crate::types().into_iter().filter(|dtype| *dtype != DType::F8E4M3) {
            let (synth, tensors) = layout(dtype.name(), &donor);
            let tensor = tensors.iter().find(|t| t.name == "output.weight").unwrap();
            assert_eq!(tensor.dtype, dtype);
            let mut bytes = vec![0; tensor.bytes() as usize];
            synth.rows(tensor, 0..tensor.row_count(), &mut bytes).unwrap();
            let mut values = vec![0.0; tensor.elems()];
            decode_row(dtype, &bytes, &mut values).unwrap();
            // A row's products with values of spread 1 have spread 1.
            let inputs = (tensor.row_elems() as f32).sqrt();
            let factor = if dtype == DType::NVFP4 { blocks::NVFP4_FACTOR } else { 1.0 };
            values.iter_mut().for_each(|value| *value *= factor * inputs);
            let n = values.len() as f64;
            let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
            let std = (values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / n).sqrt();
            // Two bits for a value drawn as a float make it a little smaller.
            assert!((std - 1.0).abs() < 0.05, "{dtype}: std {std}");
            assert!(mean.abs() < 0.01, "{dtype}: mean {mean}");
            assert!(values.iter().all(|v| v.abs() < 6.0), "{dtype}");
        }
    }

    #[test]
    fn vectors_lie_in_the_range_of_real_models() {
        let donor = donor();
        let (synth, tensors) = layout("q4_0", &donor);
        let values = |name: &str| {
            let tensor = tensors.iter().find(|t| t.name == name).unwrap();
            assert_eq!(tensor.dtype, DType::F32);
            let mut bytes = vec![0; tensor.bytes() as usize];
            synth.rows(tensor, 0..tensor.row_count(), &mut bytes).unwrap();
            let mut values = vec![0.0; tensor.elems()];
            decode_row(DType::F32, &bytes, &mut values).unwrap();
            values
        };
        assert!(values("blk.0.attn_norm.weight").iter().all(|&v| v == 1.0));
        assert!(values("blk.0.ssm_a").iter().all(|&v| (-16.0..=-1.0).contains(&v)));
        let steps = values("blk.0.ssm_dt.bias").into_iter().map(|b| b.exp().ln_1p());
        assert!(steps.into_iter().all(|dt| (0.9e-3..0.11).contains(&dt)));
    }

    #[test]
    fn seeds_pieces_and_tensors_differ() {
        let donor = donor();
        let (synth, tensors) = layout("q4_0", &donor);
        let other = Synth::new(TINY, 8, &donor).unwrap();
        let bytes = |synth: &Synth, name: &str, rows: Range<usize>| {
            let tensor = tensors.iter().find(|t| t.name == name).unwrap();
            let mut bytes = vec![0; rows.len() * tensor.row_bytes()];
            synth.rows(tensor, rows, &mut bytes).unwrap();
            bytes
        };
        let base = bytes(&synth, "output.weight", 0..64);
        assert_eq!(base, bytes(&synth, "output.weight", 0..64));
        assert_ne!(base, bytes(&other, "output.weight", 0..64));
        assert_ne!(base, bytes(&synth, "output.weight", 64..128));
        assert_ne!(base, bytes(&synth, "token_embd.weight", 0..64));
    }
}
