//! What each weight is called: canonically, and in GGUF files, whose names the families share. One row per weight.
//! What safetensors releases call it is up to its family.
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
    TiedHead,
    RopeFactors,
    Norm,
    PostNorm,
    MlpNorm,
    MlpPostNorm,
    InProj,
    ConvWeight,
    ConvBias,
    DtBias,
    A,
    D,
    SsmNorm,
    OutProj,
    DeltaQkv,
    DeltaZ,
    DeltaStrength,
    DeltaDecay,
    Q,
    K,
    V,
    O,
    QBias,
    KBias,
    VBias,
    OBias,
    QNorm,
    KNorm,
    QGate,
    Sinks,
    Up,
    Gate,
    Down,
    Router,
    RouterBias,
    RouterOffset,
    ExpertsUp,
    ExpertsGate,
    ExpertsDown,
    ExpertsUpBias,
    ExpertsGateBias,
    ExpertsDownBias,
    SharedUp,
    SharedGate,
    SharedDown,
    SharedRouter,
    SharedRouterBias,
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
    /// `1 + x`: a norm is stored as its distance from one.
    PlusOne,
}

/// The names of one part.
pub(crate) struct Names {
    pub part: Part,
    /// Canonical name inside the layer.
    pub canonical: &'static str,
    /// Name inside a GGUF block, or of the file for the model's own.
    pub gguf: &'static str,
    /// How a backend holds it.
    pub usage: WeightUse,
}

const fn row(part: Part, canonical: &'static str, gguf: &'static str, usage: WeightUse) -> Names {
    Names { part, canonical, gguf, usage }
}

use Part as P;
use WeightUse::{Experts, Matrix, Table, Vector};

#[rustfmt::skip]
static NAMES: &[Names] = &[
    row(P::Embed, "embed", "token_embd.weight", Table),
    row(P::FinalNorm, "final_norm", "output_norm.weight", Vector),
    row(P::Head, "head", "output.weight", Matrix),
    row(P::TiedHead, "head", "token_embd.weight", Matrix),
    row(P::RopeFactors, "rope_factors", "rope_freqs.weight", Vector),
    row(P::Norm, "norm", "attn_norm.weight", Vector),
    row(P::PostNorm, "post_norm", "post_attention_norm.weight", Vector),
    row(P::MlpNorm, "mlp_norm", "ffn_norm.weight", Vector),
    row(P::MlpPostNorm, "mlp_post_norm", "post_ffw_norm.weight", Vector),
    row(P::InProj, "in_proj", "ssm_in.weight", Matrix),
    row(P::ConvWeight, "conv_weight", "ssm_conv1d.weight", Vector),
    row(P::ConvBias, "conv_bias", "ssm_conv1d.bias", Vector),
    row(P::DtBias, "dt_bias", "ssm_dt.bias", Vector),
    row(P::A, "a", "ssm_a", Vector),
    row(P::D, "d", "ssm_d", Vector),
    row(P::SsmNorm, "ssm_norm", "ssm_norm.weight", Vector),
    row(P::OutProj, "out_proj", "ssm_out.weight", Matrix),
    row(P::DeltaQkv, "qkv", "attn_qkv.weight", Matrix),
    row(P::DeltaZ, "z", "attn_gate.weight", Matrix),
    row(P::DeltaStrength, "strength", "ssm_beta.weight", Matrix),
    row(P::DeltaDecay, "decay", "ssm_alpha.weight", Matrix),
    row(P::Q, "q", "attn_q.weight", Matrix),
    row(P::K, "k", "attn_k.weight", Matrix),
    row(P::V, "v", "attn_v.weight", Matrix),
    row(P::O, "o", "attn_output.weight", Matrix),
    row(P::QBias, "q_bias", "attn_q.bias", Vector),
    row(P::KBias, "k_bias", "attn_k.bias", Vector),
    row(P::VBias, "v_bias", "attn_v.bias", Vector),
    row(P::OBias, "o_bias", "attn_output.bias", Vector),
    row(P::QNorm, "q_norm", "attn_q_norm.weight", Vector),
    row(P::KNorm, "k_norm", "attn_k_norm.weight", Vector),
    row(P::QGate, "q_gate", "attn_gate.weight", Matrix),
    row(P::Sinks, "sinks", "attn_sinks.weight", Vector),
    row(P::Up, "up", "ffn_up.weight", Matrix),
    row(P::Gate, "gate", "ffn_gate.weight", Matrix),
    row(P::Down, "down", "ffn_down.weight", Matrix),
    row(P::Router, "router", "ffn_gate_inp.weight", Matrix),
    row(P::RouterBias, "router_bias", "exp_probs_b.bias", Vector),
    row(P::RouterOffset, "router_offset", "ffn_gate_inp.bias", Vector),
    row(P::ExpertsUp, "experts_up", "ffn_up_exps.weight", Experts),
    row(P::ExpertsGate, "experts_gate", "ffn_gate_exps.weight", Experts),
    row(P::ExpertsDown, "experts_down", "ffn_down_exps.weight", Experts),
    row(P::ExpertsUpBias, "experts_up_bias", "ffn_up_exps.bias", Vector),
    row(P::ExpertsGateBias, "experts_gate_bias", "ffn_gate_exps.bias", Vector),
    row(P::ExpertsDownBias, "experts_down_bias", "ffn_down_exps.bias", Vector),
    row(P::SharedUp, "shared_up", "ffn_up_shexp.weight", Matrix),
    row(P::SharedGate, "shared_gate", "ffn_gate_shexp.weight", Matrix),
    row(P::SharedDown, "shared_down", "ffn_down_shexp.weight", Matrix),
    row(P::SharedRouter, "shared_router", "ffn_gate_inp_shexp.weight", Matrix),
    row(P::SharedRouterBias, "shared_router_bias", "", Vector),
    row(P::LatentDown, "latent_down", "ffn_latent_down.weight", Matrix),
    row(P::LatentUp, "latent_up", "ffn_latent_up.weight", Matrix),
    row(P::MtpEmbedNorm, "enorm", "nextn.enorm.weight", Vector),
    row(P::MtpHiddenNorm, "hnorm", "nextn.hnorm.weight", Vector),
    row(P::MtpProj, "eh_proj", "nextn.eh_proj.weight", Matrix),
    row(P::MtpAttentionNorm, "attn_norm", "attn_norm.weight", Vector),
    row(P::MtpMoeNorm, "moe_norm", "post_attention_norm.weight", Vector),
    row(P::MtpFinalNorm, "final_norm", "nextn.shared_head_norm.weight", Vector),
];

impl Part {
    /// Every part.
    pub(crate) fn all() -> impl Iterator<Item = Part> {
        NAMES.iter().map(|row| row.part)
    }

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
}
