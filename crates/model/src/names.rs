//! What each weight is called: canonically, in safetensors releases and in GGUF files. One row per weight.
//!
//! Must not know sizes or which layers a model has.

use mambo_kernel::WeightUse;

/// A weight's role in its layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the canonical names in the table are the documentation")]
pub enum Part {
    Embed,
    FinalNorm,
    Head,
    Norm,
    InProj,
    ConvWeight,
    ConvBias,
    DtBias,
    A,
    D,
    SsmNorm,
    OutProj,
    Q,
    K,
    V,
    O,
    Up,
    Down,
    Router,
    RouterBias,
    ExpertsUp,
    ExpertsDown,
    SharedUp,
    SharedDown,
    LatentDown,
    LatentUp,
    MtpEmbedNorm,
    MtpHiddenNorm,
    MtpProj,
    MtpAttentionNorm,
    MtpMoeNorm,
    MtpFinalNorm,
}

/// How stored values become the weight's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transform {
    /// They are the weight's.
    None,
    /// `-exp(x)`: the decay is stored as the logarithm of its magnitude.
    NegExp,
}

/// The names of one part.
pub(crate) struct Names {
    pub part: Part,
    /// Canonical name inside the layer.
    pub canonical: &'static str,
    /// Names inside a safetensors layer, best first; `{e}` runs over the experts, which are stacked.
    pub hf: &'static [&'static str],
    /// Name inside a GGUF block, or of the file for the model's own.
    pub gguf: &'static str,
    /// How a backend holds it.
    pub usage: WeightUse,
}

const fn row(
    part: Part,
    canonical: &'static str,
    hf: &'static [&'static str],
    gguf: &'static str,
    usage: WeightUse,
) -> Names {
    Names { part, canonical, hf, gguf, usage }
}

use Part as P;
use WeightUse::{Experts, Matrix, Table, Vector};

#[rustfmt::skip]
static NAMES: &[Names] = &[
    row(P::Embed, "embed", &["embeddings.weight"], "token_embd.weight", Table),
    row(P::FinalNorm, "final_norm", &["norm_f.weight"], "output_norm.weight", Vector),
    row(P::Head, "head", &["lm_head.weight"], "output.weight", Matrix),
    row(P::Norm, "norm", &["norm.weight"], "attn_norm.weight", Vector),
    row(P::InProj, "in_proj", &["mixer.in_proj.weight"], "ssm_in.weight", Matrix),
    row(P::ConvWeight, "conv_weight", &["mixer.conv1d.weight"], "ssm_conv1d.weight", Vector),
    row(P::ConvBias, "conv_bias", &["mixer.conv1d.bias"], "ssm_conv1d.bias", Vector),
    row(P::DtBias, "dt_bias", &["mixer.dt_bias"], "ssm_dt.bias", Vector),
    row(P::A, "a", &["mixer.A_log"], "ssm_a", Vector),
    row(P::D, "d", &["mixer.D"], "ssm_d", Vector),
    row(P::SsmNorm, "ssm_norm", &["mixer.norm.weight"], "ssm_norm.weight", Vector),
    row(P::OutProj, "out_proj", &["mixer.out_proj.weight"], "ssm_out.weight", Matrix),
    row(P::Q, "q", &["mixer.q_proj.weight"], "attn_q.weight", Matrix),
    row(P::K, "k", &["mixer.k_proj.weight"], "attn_k.weight", Matrix),
    row(P::V, "v", &["mixer.v_proj.weight"], "attn_v.weight", Matrix),
    row(P::O, "o", &["mixer.o_proj.weight"], "attn_output.weight", Matrix),
    row(P::Up, "up", &["mixer.up_proj.weight"], "ffn_up.weight", Matrix),
    row(P::Down, "down", &["mixer.down_proj.weight"], "ffn_down.weight", Matrix),
    row(P::Router, "router", &["mixer.gate.weight"], "ffn_gate_inp.weight", Matrix),
    row(P::RouterBias, "router_bias", &["mixer.gate.e_score_correction_bias"], "exp_probs_b.bias", Vector),
    row(P::ExpertsUp, "experts_up", &["mixer.experts.{e}.up_proj.weight", "mixer.experts.up_proj",
        "mixer.experts.up_proj.weight", "mixer.switch_mlp.fc1.weight"], "ffn_up_exps.weight", Experts),
    row(P::ExpertsDown, "experts_down", &["mixer.experts.{e}.down_proj.weight", "mixer.experts.down_proj",
        "mixer.experts.down_proj.weight", "mixer.switch_mlp.fc2.weight"], "ffn_down_exps.weight", Experts),
    row(P::SharedUp, "shared_up", &["mixer.shared_experts.up_proj.weight"], "ffn_up_shexp.weight", Matrix),
    row(P::SharedDown, "shared_down", &["mixer.shared_experts.down_proj.weight"], "ffn_down_shexp.weight", Matrix),
    row(P::LatentDown, "latent_down", &["mixer.fc1_latent_proj.weight"], "ffn_latent_down.weight", Matrix),
    row(P::LatentUp, "latent_up", &["mixer.fc2_latent_proj.weight"], "ffn_latent_up.weight", Matrix),
    row(P::MtpEmbedNorm, "enorm", &["enorm.weight"], "nextn.enorm.weight", Vector),
    row(P::MtpHiddenNorm, "hnorm", &["hnorm.weight"], "nextn.hnorm.weight", Vector),
    row(P::MtpProj, "eh_proj", &["eh_proj.weight"], "nextn.eh_proj.weight", Matrix),
    row(P::MtpAttentionNorm, "attn_norm", &["norm.weight"], "attn_norm.weight", Vector),
    row(P::MtpMoeNorm, "moe_norm", &["norm.weight"], "post_attention_norm.weight", Vector),
    row(P::MtpFinalNorm, "final_norm", &["final_layernorm.weight"], "nextn.shared_head_norm.weight", Vector),
];

impl Part {
    /// The part's row; every part has one.
    pub(crate) fn names(self) -> &'static Names {
        let row = NAMES.iter().find(|row| row.part == self);
        row.expect("every part has a row in the table of names")
    }

    /// How a backend holds the part.
    pub fn usage(self) -> WeightUse {
        self.names().usage
    }
}

/// Which part of the model a weight belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// The model itself: embedding, final norm, head.
    Model,
    /// A layer of the trunk.
    Layer(usize),
    /// The attention half of the MTP head.
    MtpAttention,
    /// The expert half of the MTP head.
    MtpMoe,
}

/// Prefixes that releases put before the trunk's names.
const TRUNK_PREFIXES: [&str; 5] =
    ["backbone.", "model.", "language_model.backbone.", "language_model.model.", "model.language_model."];
/// Prefixes before the names beside the trunk: head and MTP.
const OUTER_PREFIXES: [&str; 6] =
    ["", "language_model.", "model.language_model.", "backbone.", "model.", "language_model.model."];

impl Place {
    /// The canonical name of a part here.
    pub fn canonical(self, part: Part) -> String {
        let name = part.names().canonical;
        match self {
            Place::Model => name.to_owned(),
            Place::Layer(index) => format!("layers.{index}.{name}"),
            Place::MtpAttention | Place::MtpMoe => format!("mtp.{name}"),
        }
    }

    /// The GGUF name of a part here, in a model whose trunk has `depth` layers.
    pub fn gguf(self, part: Part, depth: usize) -> String {
        let name = part.names().gguf;
        match self {
            Place::Model => name.to_owned(),
            Place::Layer(index) => format!("blk.{index}.{name}"),
            Place::MtpAttention | Place::MtpMoe => format!("blk.{depth}.{name}"),
        }
    }

    /// Every safetensors name a part may have here, most usual first; `{e}` stands for the number of an expert.
    pub fn hf(self, part: Part) -> impl Iterator<Item = String> {
        let prefixes: &[&str] = match (self, part) {
            (Place::Model, Part::Head) | (Place::MtpAttention | Place::MtpMoe, _) => &OUTER_PREFIXES,
            _ => &TRUNK_PREFIXES,
        };
        let layer = match self {
            Place::Model => String::new(),
            Place::Layer(index) => format!("layers.{index}."),
            Place::MtpAttention => "mtp.layers.0.".to_owned(),
            Place::MtpMoe => "mtp.layers.1.".to_owned(),
        };
        prefixes.iter().flat_map(move |prefix| {
            let layer = layer.clone();
            part.names().hf.iter().map(move |name| format!("{prefix}{layer}{name}"))
        })
    }
}
