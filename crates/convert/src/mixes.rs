//! Which weights deserve more bits than the rest, as data. Must not know shapes.
//!
//! Experts and feed-forward layers hold most of the weights and err least for their size; a wrong bit in the
//! head, the embedding, attention, or a Mamba projection, whose state carries it on, costs several times as
//! much. Routers, norms and the other small weights are f32 in every file. `docs/quality.md` has the numbers.

use mambo_tensor::DType;

use crate::Container;

/// Weights with another type than the rest, by patterns; later rules win.
pub type Rules = &'static [(&'static [&'static str], DType)];

/// The weights that deserve more: everything but experts and feed-forward layers.
const SENSITIVE: &[&str] = &[
    "embed",
    "head",
    "in_proj",
    "out_proj",
    "q",
    "k",
    "v",
    "o",
    "shared_up",
    "shared_down",
    "latent_down",
    "latent_up",
    "eh_proj",
];
/// The small ones among them.
const SMALL: &[&str] = &["k", "v", "latent_down", "latent_up"];

/// A named mix.
pub struct Mix {
    /// What users call it.
    pub name: &'static str,
    /// Type of everything no rule names.
    pub default: DType,
    /// The exceptions.
    pub rules: Rules,
    /// Exceptions that depend on the model's layers.
    pub raised: Option<Raised>,
}

/// More bits for the output projection, also where it is the embedding, and for some weights of some layers.
#[derive(Clone, Copy, Debug)]
pub struct Raised {
    /// The type they get.
    pub dtype: DType,
    /// The last words of the weights that get it in some layers ([`is_raised`]).
    pub parts: &'static [&'static str],
}

/// Whether the layer of this index has more bits, of `count` layers: the first and the last eighth of them, and every
/// third in between. This is how llama.cpp spreads what it adds.
pub fn is_raised(index: usize, count: usize) -> bool {
    let eighth = count / 8;
    index < eighth || index >= 7 * count / 8 || (index - eighth) % 3 == 2
}

/// All mixes: the default of GGUF files, that of safetensors folders, llama.cpp's, that of the binary.
pub static MIXES: &[Mix] = &[
    Mix { name: "q4_mix", default: DType::Q4K, rules: BESIDE_FOUR_BITS, raised: None },
    Mix { name: "nvfp4_mix", default: DType::NVFP4, rules: BESIDE_NVFP4, raised: None },
    // What most files of plain transformers have: `Q4_K_M` as llama.cpp makes it of them.
    Mix {
        name: "q4_k_m",
        default: DType::Q4K,
        rules: &[],
        raised: Some(Raised { dtype: DType::Q6K, parts: &["v", "down", "experts_down"] }),
    },
    // Measured on that model: all layers' experts are equally sensitive within the noise; the four that go
    // first are those with which every golden conversation keeps its answer. The MTP head's go too: their
    // errors cost a draft, never an answer.
    Mix {
        name: "builtin",
        default: DType::Q6K,
        rules: &[
            (&["out_proj"], DType::Q8_0),
            (&["experts_up", "experts_down"], DType::Q5_0),
            (&["layers.6.experts_up", "layers.8.experts_up"], DType::Q4K),
            (&["layers.11.experts_up", "layers.13.experts_up"], DType::Q4K),
            (&["mtp.experts_up", "mtp.experts_down"], DType::Q4K),
        ],
        raised: None,
    },
];

/// Beside four bits or fewer. The head has six bits whatever its width, which `q6_k` would not.
const BESIDE_FOUR_BITS: Rules =
    &[(SENSITIVE, DType::Q5K), (&["head"], DType::Q5_1), (&["out_proj"], DType::Q6K), (SMALL, DType::Q8_0)];

/// Beside five bits.
const BESIDE_FIVE_BITS: Rules = &[(SENSITIVE, DType::Q6K), (SMALL, DType::Q8_0)];

/// Beside `mxfp4`, whose scales are powers of two: it is made for experts alone.
const BESIDE_MXFP4: Rules = &[(SENSITIVE, DType::Q8_0)];

/// Beside `nvfp4` in a folder, which has nothing between it and 8-bit floats.
const BESIDE_NVFP4: Rules = &[(SENSITIVE, DType::F8E4M3), EMBEDDING_WHOLE];

/// Readers of folders expect embeddings that are not quantised.
const EMBEDDING_WHOLE: (&[&str], DType) = (&["embed"], DType::BF16);

impl Raised {
    /// The weights among these, in the order of layers, that get the type.
    pub fn weights<'w>(self, weights: &[&'w str]) -> Vec<&'w str> {
        let head = if weights.contains(&"head") { "head" } else { "embed" };
        let mut raised: Vec<&str> = weights.iter().copied().filter(|weight| *weight == head).collect();
        for part in self.parts {
            let of_layers: Vec<&str> =
                weights.iter().copied().filter(|weight| weight.rsplit('.').next() == Some(part)).collect();
            let chosen = of_layers.iter().enumerate().filter(|(i, _)| is_raised(*i, of_layers.len()));
            raised.extend(chosen.map(|(_, weight)| *weight));
        }
        raised
    }
}

/// The mix of that name.
pub fn named(name: &str) -> Option<&'static Mix> {
    MIXES.iter().find(|mix| mix.name == name)
}

/// What stands beside a type that most weights have; nothing where it loses little.
pub fn rules_beside(dtype: DType, container: Container) -> Rules {
    match dtype {
        DType::NVFP4 if container == Container::Safetensors => BESIDE_NVFP4,
        DType::F8E4M3 => &[EMBEDDING_WHOLE],
        DType::MXFP4 => BESIDE_MXFP4,
        // Scales and offsets take up to a bit of each value.
        _ if dtype.bits_per_weight() <= 5.0 => BESIDE_FOUR_BITS,
        _ if dtype.bits_per_weight() <= 6.0 => BESIDE_FIVE_BITS,
        _ => &[],
    }
}
