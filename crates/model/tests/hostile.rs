//! Configs that nobody should write: each gives one clear sentence, none a panic.

mod common;

use std::fmt::Write;

use common::{FIXTURES, fixture_config, models};
use expect_test::{expect, expect_file};
use mambo_checkpoint::parse_json;
use mambo_model::{BuildOptions, ModelSpec, PRESETS, Preset};
use serde_json::{Value, json};

/// The `odd` fixture, which has all four kinds of layer, with some fields set; null removes one.
fn with(patch: &Value) -> Result<ModelSpec, String> {
    let mut config = fixture_config("odd");
    let fields = config.as_object_mut().unwrap();
    for (key, value) in patch.as_object().unwrap() {
        fields.insert(key.clone(), value.clone());
    }
    ModelSpec::from_config("config.json", &config, None).map_err(|e| e.to_string())
}

#[test]
fn every_mistake_has_its_sentence() {
    let cases = [
        json!({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}),
        json!({"model_type": null, "architectures": null}),
        json!({"model_type": 3}),
        json!({"hybrid_override_pattern": ""}),
        json!({"hybrid_override_pattern": "MMX-"}),
        json!({"hybrid_override_pattern": null}),
        json!({"hybrid_override_pattern": 4}),
        json!({"hybrid_override_pattern": "M".repeat(2000)}),
        json!({"layers_block_type": []}),
        json!({"layers_block_type": ["mamba", "rwkv"]}),
        json!({"layers_block_type": "mamba"}),
        json!({"block_configs": [{"block_type": "mamba"}, {"block_type": "no_op"}]}),
        json!({"block_configs": [7]}),
        json!({"block_configs": [{"block_type": "moe", "num_experts_per_tok": 9}]}),
        json!({"hidden_size": null}),
        json!({"hidden_size": "60"}),
        json!({"hidden_size": -60}),
        json!({"hidden_size": 0}),
        json!({"hidden_size": 60.5}),
        json!({"hidden_size": 1e18}),
        json!({"vocab_size": 4_000_000_000u64}),
        json!({"max_position_embeddings": 9_007_199_254_740_992u64}),
        json!({"max_position_embeddings": 0}),
        json!({"num_attention_heads": 0}),
        json!({"num_attention_heads": 7}),
        json!({"num_key_value_heads": 0}),
        json!({"head_dim": 0}),
        json!({"head_dim": 1_000_000_000}),
        json!({"mamba_num_heads": 0}),
        json!({"mamba_num_heads": 7}),
        json!({"mamba_num_heads": 4_000_000, "n_groups": 1}),
        json!({"mamba_head_dim": null}),
        json!({"n_groups": 0}),
        json!({"ssm_state_size": 0}),
        json!({"conv_kernel": 0}),
        json!({"conv_kernel": 100}),
        json!({"intermediate_size": 0}),
        json!({"intermediate_size": [1, 2, 3]}),
        json!({"intermediate_size": {}}),
        json!({"n_routed_experts": 2}),
        json!({"n_routed_experts": 0}),
        json!({"n_routed_experts": 1_000_000}),
        json!({"num_experts_per_tok": 0}),
        json!({"n_group": 3}),
        json!({"n_group": 8, "topk_group": 8}),
        json!({"n_group": 4, "topk_group": 1}),
        json!({"n_group": 2, "topk_group": 3}),
        json!({"moe_latent_size": 0}),
        json!({"moe_shared_expert_intermediate_size": null}),
        json!({"routed_scaling_factor": {"__float__": "NaN"}}),
        json!({"routed_scaling_factor": "2.5"}),
        json!({"norm_topk_prob": "yes"}),
        json!({"layer_norm_epsilon": 0}),
        json!({"layer_norm_epsilon": -1e-5}),
        json!({"time_step_limit": [0.001, 0.1]}),
        json!({"time_step_limit": [0.0, 100.0]}),
        json!({"time_step_limit": 0.1}),
        json!({"mlp_hidden_act": "gelu"}),
        json!({"mamba_hidden_act": "relu"}),
        json!({"use_conv_bias": false}),
        json!({"attention_bias": true}),
        json!({"use_bias": true}),
        json!({"sliding_window": 4096}),
        json!({"eos_token_id": "end"}),
        json!({"eos_token_id": -2}),
        json!({"num_nextn_predict_layers": 2}),
        json!({"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "ME"}),
        json!({"num_nextn_predict_layers": 1, "mtp_layers_block_type": ["attention"]}),
        json!({"hidden_size": 4_000_000, "n_routed_experts": 16_000, "moe_intermediate_size": 4_000_000}),
    ];
    let mut table = String::new();
    for case in cases {
        let error = with(&case).expect_err(&case.to_string());
        let mut shown = case.to_string();
        shown.truncate(90);
        writeln!(table, "{shown}\n    {error}").unwrap();
        assert!(!error.contains('\n') && error.contains("; "), "{error}");
    }
    expect_file![models().join("hostile.txt")].assert_eq(&table);
}

#[test]
fn a_file_that_is_no_object() {
    for value in [json!(null), json!([]), json!("x"), json!(3)] {
        let error = ModelSpec::from_config("config.json", &value, None).unwrap_err();
        expect![
            "config.json: `config.json` is not a JSON object; take the file from the model's original release"
        ]
        .assert_eq(&error.to_string());
    }
    let error = Preset::named("nano-3b").unwrap_err().to_string();
    assert!(error.starts_with("there is no preset `nano-3b`; choose one of h-4b, "), "{error}");
}

#[test]
fn spellings_give_the_same_model() {
    let plain = with(&json!({})).unwrap();
    let same = [
        json!({"layers_block_type": ["mamba", "mamba", "attention", "moe", "mamba", "mlp", "attention", "moe"], "hybrid_override_pattern": "M"}),
        json!({"layer_types": ["linear_attention", "linear_attention", "full_attention", "moe", "linear_attention", "mlp", "full_attention", "moe"]}),
        json!({"head_dim": null, "attention_head_dim": 20}),
        json!({"ssm_state_size": null, "mamba_state_dim": 12, "n_groups": null, "mamba_num_groups": 3}),
        json!({"n_groups": null, "mamba_n_groups": 3, "conv_kernel": null, "mamba_d_conv": 4}),
        json!({"intermediate_size": [52]}),
        json!({"intermediate_size": [0, 0, 0, 0, 0, 52, 0, 0]}),
        json!({"hidden_size": 60.0, "expand": 77, "rope_theta": 1e6, "chunk_size": 3}),
        json!({"time_step_limit": [0.0, {"__float__": "Infinity"}], "mamba_dt_limit": [0, null]}),
        json!({"layer_norm_epsilon": null, "rms_norm_eps": 1e-5}),
        json!({"conv_kernel": null, "n_group": null, "mamba_hidden_act": "swish"}),
        json!({"eos_token_id": [2]}),
    ];
    for case in same {
        assert_eq!(with(&case).unwrap(), plain, "{case}");
    }
}

#[test]
fn older_spelling_wins_and_says_so() {
    let spec = with(&json!({"mamba_n_groups": 2, "num_hidden_layers": 9})).unwrap();
    assert_eq!(spec.cache_layers().state_layers[0].groups, 2);
    expect![[r#"
        num_hidden_layers is 9, but the schedule has 8 layers: the schedule counts
        mamba_n_groups is 2 and n_groups is 3: mamba_n_groups counts"#]]
    .assert_eq(&spec.notes.join("\n"));
}

#[test]
fn head_size_is_a_share_only_where_nothing_is_said() {
    let spec = with(&json!({"head_dim": null})).unwrap();
    assert_eq!(spec.cache_layers().kv_layers[0].head_dim, 10);
}

/// Every place in a value, as a path.
fn places(value: &Value, path: &str, into: &mut Vec<String>) {
    if !path.is_empty() {
        into.push(path.to_owned());
    }
    match value {
        Value::Object(map) => map.iter().for_each(|(k, v)| places(v, &format!("{path}/{k}"), into)),
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(i, v)| places(v, &format!("{path}/{i}"), into))
        }
        _ => {}
    }
}

#[test]
fn no_change_makes_it_panic() {
    let values = [
        json!(null),
        json!(true),
        json!(0),
        json!(1),
        json!(-1),
        json!(3.5),
        json!(1e300),
        json!(u64::MAX),
        json!(1u64 << 21),
        json!("M"),
        json!([]),
        json!([1, 2]),
        json!({}),
        json!({"__float__": "-Infinity"}),
    ];
    // Some of Nemotron, which has many alike, and all of the others.
    let is_taken = |preset: &&Preset| {
        let is_nemotron = preset.spec().unwrap().architecture == "nemotron_h";
        !is_nemotron || ["lightning", "puzzle-75b", "nano-9b-v2"].contains(&preset.name)
    };
    let presets = PRESETS.iter().filter(is_taken);
    let mut configs: Vec<Value> = presets.map(|preset| parse_json(preset.config).unwrap()).collect();
    configs.extend(FIXTURES.iter().map(|name| fixture_config(name)));
    let mut accepted = 0;
    for config in &configs {
        let mut paths = Vec::new();
        places(config, "", &mut paths);
        for (path, value) in paths.iter().flat_map(|path| values.iter().map(move |value| (path, value))) {
            let mut changed = config.clone();
            *changed.pointer_mut(path).unwrap() = value.clone();
            let Ok(spec) = ModelSpec::from_config("config.json", &changed, None) else { continue };
            accepted += 1;
            let _ = (spec.to_string(), spec.weights().len(), spec.gguf_metadata());
            if accepted % 5 == 0 {
                spec.trunk_graph(BuildOptions { hidden: true }).unwrap();
            }
        }
    }
    assert!(accepted > 4000, "{accepted}");
}
