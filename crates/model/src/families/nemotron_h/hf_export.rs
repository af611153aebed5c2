//! The config.json of the family's safetensors folders, as its releases write it.

use mambo_checkpoint::json_f32;
use serde_json::{Map, Value, json};

use crate::spec::{AttentionSpec, Mamba2Spec, Mixer, ModelSpec};

/// The keys of one layer.
type Keys = Map<String, Value>;

/// A config.json that describes this model.
pub(super) fn write(spec: &ModelSpec) -> Value {
    let mut config = json!({
        "architectures": [super::FAMILY.classes[0]],
        "model_type": super::FAMILY.model_types[0],
        "hidden_size": spec.hidden,
        "vocab_size": spec.vocab,
        "num_hidden_layers": spec.layers.len(),
        "hybrid_override_pattern": spec.pattern(),
        "tie_word_embeddings": spec.tied_embeddings,
        "eos_token_id": spec.stop_tokens,
        "torch_dtype": "bfloat16",
        "use_conv_bias": true,
        "mlp_hidden_act": "relu2",
        "mamba_hidden_act": "silu",
    });
    for bias in ["use_bias", "mamba_proj_bias", "mlp_bias", "attention_bias"] {
        config[bias] = json!(false);
    }
    if let Some(context) = spec.context {
        config["max_position_embeddings"] = json!(context);
    }
    if let Some(bos) = spec.bos {
        config["bos_token_id"] = json!(bos);
    }
    let layers: Vec<Keys> =
        spec.layers.iter().flat_map(|l| l.mixers().map(|mixer| layer_keys(mixer, l.norm_eps))).collect();
    let mtp: Vec<Keys> = spec
        .mtp
        .iter()
        .flat_map(|m| {
            [Mixer::Attention(AttentionSpec::plain(m.attention)), Mixer::Moe(m.moe)]
                .map(|mixer| layer_keys(&mixer, m.norm_eps))
        })
        .collect();
    // What layers agree on stands once; where one differs, every layer has its own object.
    for keys in layers.iter().chain(&mtp) {
        for (key, value) in keys.iter().filter(|(key, _)| *key != "block_type") {
            if config.get(key).is_none() {
                config[key] = value.clone();
            }
        }
    }
    config["layer_norm_epsilon"] = json_f32(spec.norm_eps);
    let differs = |keys: &Keys| keys.iter().any(|(k, v)| k != "block_type" && config[k] != *v);
    let (layers_differ, mtp_differs) = (layers.iter().any(differs), mtp.iter().any(differs));
    if layers_differ {
        config["block_configs"] = json!(layers);
    }
    if spec.mtp.is_some() {
        config["num_nextn_predict_layers"] = json!(1);
        config["mtp_hybrid_override_pattern"] = json!("*E");
        if mtp_differs {
            config["mtp_block_configs"] = json!(mtp);
        }
    }
    config
}

fn layer_keys(mixer: &Mixer, norm_eps: f32) -> Keys {
    let own = match mixer {
        Mixer::Mamba2(Mamba2Spec { dims: d, .. }) => json!({
            "block_type": "mamba",
            "mamba_num_heads": d.heads,
            "mamba_head_dim": d.head_dim,
            "ssm_state_size": d.state,
            "n_groups": d.groups,
            "conv_kernel": d.taps,
        }),
        Mixer::Attention(a) => json!({
            "block_type": "attention",
            "num_attention_heads": a.dims().q_heads,
            "num_key_value_heads": a.dims().kv_heads,
            "head_dim": a.dims().head_dim,
        }),
        Mixer::Mlp(m) => json!({ "block_type": "mlp", "intermediate_size": m.width }),
        Mixer::DeltaNet(_) | Mixer::ShortConv { .. } => json!({}),
        Mixer::Moe(m) => {
            let mut keys = json!({
                "block_type": "moe",
                "n_routed_experts": m.route.experts,
                "num_experts_per_tok": m.route.top_k,
                "n_group": m.route.groups,
                "topk_group": m.route.top_groups,
                "norm_topk_prob": m.route.normalize,
                "routed_scaling_factor": json_f32(m.route.scale),
                "moe_intermediate_size": m.expert_width,
                "n_shared_experts": usize::from(m.shared_width.is_some()),
            });
            if let Some(width) = m.shared_width {
                keys["moe_shared_expert_intermediate_size"] = json!(width);
            }
            if let Some(latent) = m.latent {
                keys["moe_latent_size"] = json!(latent);
            }
            keys
        }
    };
    let Value::Object(mut keys) = own else { return Keys::new() };
    keys.insert("layer_norm_epsilon".to_owned(), json_f32(norm_eps));
    keys
}

#[cfg(test)]
mod tests {
    use crate::{ModelSpec, PRESETS};

    #[test]
    fn configs_describe_the_same_model_again() {
        for preset in PRESETS {
            let mut spec = preset.spec().unwrap();
            let Ok(config) = spec.hf_config() else { continue };
            let again = ModelSpec::from_config("config.json", &config, None).unwrap();
            spec.notes = again.notes.clone();
            assert_eq!(again, spec, "{}", preset.name);
        }
    }
}
