//! What weights are written into: a GGUF file, or a folder of safetensors and JSON. Each has types of its own
//! and its own way to keep what stands beside the codes.

use std::path::Path;

use mambo_kernel::WeightUse;
use mambo_model::{ExportTensor, ModelSpec, Part};
use mambo_tensor::DType;
use mambo_tensor::blocks::{Nvfp4, pairs};

use crate::ConvertError;
use crate::planned::{Content, Planned};

/// The kinds of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// One `.gguf` file.
    Gguf,
    /// A folder as releases of the family have it, quantised the way ModelOpt does.
    Safetensors,
}

/// Types a safetensors folder holds.
const SAFETENSORS_TYPES: [DType; 5] = [DType::F32, DType::F16, DType::BF16, DType::F8E4M3, DType::NVFP4];

impl Container {
    /// What a path of this name becomes: `.gguf` is a file, everything else a folder.
    pub fn of(path: &Path) -> Container {
        let name = path.as_os_str().to_string_lossy();
        let is_gguf = name.to_lowercase().ends_with(".gguf");
        if is_gguf { Container::Gguf } else { Container::Safetensors }
    }

    /// The mix to make unless another type is asked for.
    pub fn default_mix(self) -> &'static str {
        match self {
            Container::Gguf => "q4_mix",
            Container::Safetensors => "nvfp4_mix",
        }
    }

    /// The tensors of a model, in the order they are written.
    pub(super) fn tensors(self, spec: &ModelSpec) -> Vec<ExportTensor> {
        match self {
            Container::Gguf => spec.gguf_tensors(),
            Container::Safetensors => spec.hf_tensors(),
        }
    }

    /// Refuses a type that cannot be kept.
    pub(super) fn check(self, dtype: DType) -> Result<(), ConvertError> {
        if self == Container::Gguf && dtype == DType::F8E4M3 {
            return Err(ConvertError::NotInGguf { dtype });
        }
        if self == Container::Safetensors && !SAFETENSORS_TYPES.contains(&dtype) {
            let names: Vec<&str> = SAFETENSORS_TYPES.iter().map(|dtype| dtype.name()).collect();
            return Err(ConvertError::NotInFolder { dtype, known: names.join(", ") });
        }
        Ok(())
    }

    /// The type a tensor is kept in, and why it is not the one that is wanted.
    pub(super) fn choose(self, tensor: &ExportTensor, wanted: DType) -> (DType, Option<String>) {
        let columns = tensor.shape.last().copied().unwrap_or(1);
        let block = wanted.block_elems();
        // llama.cpp has no place for a factor beside these, and refuses files with tensors it does not know.
        let knows_no_factor = matches!(tensor.part, Part::Embed | Part::LatentDown | Part::LatentUp);
        if self == Container::Gguf
            && wanted == DType::NVFP4
            && (knows_no_factor || tensor.weight.starts_with("mtp."))
        {
            let reason = "other programs read no factor for them".to_owned();
            return (self.that_fits(DType::IQ4_NL, columns), Some(reason));
        }
        let dtype = self.that_fits(wanted, columns);
        (dtype, (dtype != wanted).then(|| format!("rows of {columns} are no multiple of {block}")))
    }

    /// The type itself, or the smallest one at least as good whose blocks divide rows of `columns`: widths such as
    /// 2688 are whole blocks of 32 values but not of 256.
    fn that_fits(self, dtype: DType, columns: usize) -> DType {
        if columns.is_multiple_of(dtype.block_elems()) {
            return dtype;
        }
        if self == Container::Safetensors && dtype == DType::NVFP4 {
            return DType::F8E4M3;
        }
        let small_blocks = [DType::IQ4_NL, DType::Q5_0, DType::Q8_0];
        let is_as_good = |small: &DType| {
            columns.is_multiple_of(small.block_elems()) && small.bits_per_weight() >= dtype.bits_per_weight()
        };
        small_blocks.into_iter().find(is_as_good).unwrap_or(DType::F16)
    }

    /// A tensor and what stands beside it.
    pub(super) fn planned(self, tensor: ExportTensor, dtype: DType) -> Vec<Planned> {
        let part = tensor.part;
        let main = Planned::new(tensor, dtype);
        match (self, dtype) {
            (Container::Gguf, DType::NVFP4) => {
                let experts = if part.usage() == WeightUse::Experts { main.shape[0] } else { 1 };
                let factors = beside(&main, "scale", vec![experts]);
                vec![main, factors]
            }
            (Container::Safetensors, DType::F8E4M3) => {
                let factors = beside(&main, "weight_scale", vec![]);
                vec![main, factors]
            }
            (Container::Safetensors, DType::NVFP4) => {
                let with_columns = |per: usize| {
                    let mut shape = main.shape.clone();
                    shape.iter_mut().next_back().into_iter().for_each(|columns| *columns /= per);
                    shape
                };
                let scales = Planned {
                    dtype: DType::F8E4M3,
                    content: Content::BlockScales,
                    ..beside(&main, "weight_scale", with_columns(Nvfp4::GROUP))
                };
                let factors = beside(&main, "weight_scale_2", vec![]);
                let codes = Planned {
                    shape: with_columns(pairs::CODES_PER_BYTE),
                    dtype: DType::U8,
                    content: Content::Codes,
                    ..main
                };
                vec![codes, scales, factors]
            }
            (Container::Safetensors, _) if part == Part::A => {
                vec![Planned { content: Content::Logarithms, ..main }]
            }
            _ => vec![main],
        }
    }
}

/// A tensor of factors beside another one.
fn beside(tensor: &Planned, what: &str, shape: Vec<usize>) -> Planned {
    let stem = tensor.name.strip_suffix(".weight").unwrap_or(&tensor.name);
    Planned {
        name: format!("{stem}.{what}"),
        shape,
        dtype: DType::F32,
        content: Content::FactorsOf(tensor.dtype),
        ..tensor.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_that_do_not_divide_become_their_neighbours() {
        assert_eq!(Container::Gguf.that_fits(DType::Q6K, 96), DType::Q8_0);
        assert_eq!(Container::Gguf.that_fits(DType::Q4K, 2688), DType::IQ4_NL);
        assert_eq!(Container::Gguf.that_fits(DType::NVFP4, 96), DType::IQ4_NL);
        assert_eq!(Container::Gguf.that_fits(DType::Q4_0, 60), DType::F16);
        assert_eq!(Container::Safetensors.that_fits(DType::NVFP4, 96), DType::F8E4M3);
        assert_eq!(Container::Safetensors.that_fits(DType::F8E4M3, 60), DType::F8E4M3);
    }

    #[test]
    fn the_name_of_the_output_decides() {
        assert_eq!(Container::of("a/b.gguf".as_ref()), Container::Gguf);
        assert_eq!(Container::of("a/b.GGUF".as_ref()), Container::Gguf);
        assert_eq!(Container::of("a/tiny-v1.5".as_ref()), Container::Safetensors);
    }
}
