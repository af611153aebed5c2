//! NVIDIA's Nemotron-H and Nemotron-3: Mamba-2, attention without positions, MLPs and experts, one to a layer.

mod config;
mod gguf;
mod gguf_export;
mod hf_export;
mod schedule;

use super::Family;
use super::spelling::{ORIGINAL_MAMBA, Table, names};

static TENSORS: Table = names! {
    Q: "mixer.q_proj.weight";
    K: "mixer.k_proj.weight";
    V: "mixer.v_proj.weight";
    O: "mixer.o_proj.weight";
    Up: "mixer.up_proj.weight";
    Down: "mixer.down_proj.weight";
    Router: "mixer.gate.weight";
    RouterBias: "mixer.gate.e_score_correction_bias";
    ExpertsUp: "mixer.experts.{e}.up_proj.weight" | "mixer.experts.up_proj" | "mixer.experts.up_proj.weight"
        | "mixer.switch_mlp.fc1.weight";
    ExpertsDown: "mixer.experts.{e}.down_proj.weight" | "mixer.experts.down_proj"
        | "mixer.experts.down_proj.weight" | "mixer.switch_mlp.fc2.weight";
    SharedUp: "mixer.shared_experts.up_proj.weight";
    SharedDown: "mixer.shared_experts.down_proj.weight";
    LatentDown: "mixer.fc1_latent_proj.weight";
    LatentUp: "mixer.fc2_latent_proj.weight";
    MtpEmbedNorm: "enorm.weight";
    MtpHiddenNorm: "hnorm.weight";
    MtpProj: "eh_proj.weight";
    MtpAttentionNorm: "norm.weight";
    MtpMoeNorm: "norm.weight";
    MtpFinalNorm: "final_layernorm.weight";
};

pub(super) static FAMILY: Family = Family {
    model_types: &["nemotron_h", "nemotron_h_puzzle"],
    classes: &["NemotronHForCausalLM", "NemotronHPuzzleForCausalLM"],
    wrappers: &[
        "nemotron_h_omni",
        "NemotronH_Nano_VL_V2",
        "NemotronH_Nano_Omni_Reasoning_V3",
        "NemotronH_Omni_Reasoning_V3",
    ],
    gguf: &["nemotron_h", "nemotron_h_moe"],
    stop_tokens: &[2],
    stop_names: &["<|im_end|>", "<SPECIAL_12>", "</s>"],
    tensors: &[TENSORS, ORIGINAL_MAMBA],
    config: config::config,
    read_gguf: Some(gguf::read),
    write_gguf: Some(gguf_export::write),
    write_config: Some(hf_export::write),
    ..Family::named("nemotron_h")
};
