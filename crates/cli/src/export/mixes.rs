//! Which weights deserve more bits than the rest, as data. Must not know shapes.
//!
//! Experts and feed-forward layers hold most of the weights and err least for their size; a wrong bit in the
//! head, the embedding, attention, or a Mamba projection, whose state carries it on, costs several times as
//! much. Routers, norms and the other small weights are f32 in every file. `docs/quality.md` has the numbers.

use mambo_tensor::DType;

use super::Container;

/// Weights with another type than the rest, by pattern; later rules win.
pub type Rules = &'static [(&'static str, DType)];

/// A named mix.
pub struct Mix {
    /// What users call it.
    pub name: &'static str,
    /// Type of everything no rule names.
    pub default: DType,
    /// The exceptions.
    pub rules: Rules,
}

/// All mixes: the default of GGUF files, that of safetensors folders, that of the binary.
pub static MIXES: &[Mix] = &[
    Mix { name: "q4_mix", default: DType::Q4K, rules: BESIDE_FOUR_BITS },
    Mix { name: "nvfp4_mix", default: DType::NVFP4, rules: BESIDE_NVFP4 },
    // Measured on that model: all layers' experts are equally sensitive within the noise; the four that go
    // first are those with which every golden conversation keeps its answer. The MTP head's go too: their
    // errors cost a draft, never an answer.
    Mix {
        name: "builtin",
        default: DType::Q6K,
        rules: &[
            ("out_proj", DType::Q8_0),
            ("experts_up", DType::Q5_0),
            ("experts_down", DType::Q5_0),
            ("layers.6.experts_up", DType::Q4K),
            ("layers.8.experts_up", DType::Q4K),
            ("layers.11.experts_up", DType::Q4K),
            ("layers.13.experts_up", DType::Q4K),
            ("mtp.experts_up", DType::Q4K),
            ("mtp.experts_down", DType::Q4K),
        ],
    },
];

/// Beside four bits or fewer. The head has six bits whatever its width, which `q6_k` would not.
const BESIDE_FOUR_BITS: Rules = &[
    ("embed", DType::Q5K),
    ("head", DType::Q5_1),
    ("in_proj", DType::Q5K),
    ("out_proj", DType::Q6K),
    ("q", DType::Q5K),
    ("k", DType::Q8_0),
    ("v", DType::Q8_0),
    ("o", DType::Q5K),
    ("shared_up", DType::Q5K),
    ("shared_down", DType::Q5K),
    ("latent_down", DType::Q8_0),
    ("latent_up", DType::Q8_0),
    ("eh_proj", DType::Q5K),
];

/// Beside five bits.
const BESIDE_FIVE_BITS: Rules = &[
    ("embed", DType::Q6K),
    ("head", DType::Q6K),
    ("in_proj", DType::Q6K),
    ("out_proj", DType::Q6K),
    ("q", DType::Q6K),
    ("k", DType::Q8_0),
    ("v", DType::Q8_0),
    ("o", DType::Q6K),
    ("shared_up", DType::Q6K),
    ("shared_down", DType::Q6K),
    ("latent_down", DType::Q8_0),
    ("latent_up", DType::Q8_0),
    ("eh_proj", DType::Q6K),
];

/// Beside `nvfp4` in a folder, which has nothing between it and 8-bit floats; nobody quantises embeddings there.
const BESIDE_NVFP4: Rules = &[
    ("embed", DType::BF16),
    ("head", DType::F8E4M3),
    ("in_proj", DType::F8E4M3),
    ("out_proj", DType::F8E4M3),
    ("q", DType::F8E4M3),
    ("k", DType::F8E4M3),
    ("v", DType::F8E4M3),
    ("o", DType::F8E4M3),
    ("shared_up", DType::F8E4M3),
    ("shared_down", DType::F8E4M3),
    ("latent_down", DType::F8E4M3),
    ("latent_up", DType::F8E4M3),
    ("eh_proj", DType::F8E4M3),
];

/// Beside `mxfp4`, whose scales are powers of two: it is made for experts alone.
const BESIDE_MXFP4: Rules = &[
    ("embed", DType::Q8_0),
    ("head", DType::Q8_0),
    ("in_proj", DType::Q8_0),
    ("out_proj", DType::Q8_0),
    ("q", DType::Q8_0),
    ("k", DType::Q8_0),
    ("v", DType::Q8_0),
    ("o", DType::Q8_0),
    ("shared_up", DType::Q8_0),
    ("shared_down", DType::Q8_0),
    ("latent_down", DType::Q8_0),
    ("latent_up", DType::Q8_0),
    ("eh_proj", DType::Q8_0),
];

/// The mix of that name.
pub fn named(name: &str) -> Option<&'static Mix> {
    MIXES.iter().find(|mix| mix.name == name)
}

/// What stands beside a type that most weights have; nothing where it loses little.
pub fn rules_beside(dtype: DType, container: Container) -> Rules {
    match dtype {
        DType::NVFP4 if container == Container::Safetensors => BESIDE_NVFP4,
        DType::F8E4M3 => &[("embed", DType::BF16)],
        DType::Q2K | DType::Q3K | DType::Q4_0 | DType::Q4_1 | DType::Q4K => BESIDE_FOUR_BITS,
        DType::IQ4_NL | DType::IQ4_XS | DType::NVFP4 => BESIDE_FOUR_BITS,
        DType::Q5_0 | DType::Q5_1 | DType::Q5K => BESIDE_FIVE_BITS,
        DType::MXFP4 => BESIDE_MXFP4,
        _ => &[],
    }
}
