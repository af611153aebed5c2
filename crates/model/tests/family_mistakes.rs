//! Configs and tensors of every family with one mistake: each is refused with the file, the field or tensor, its value
//! and a remedy. `tests/models/family-mistakes.txt` shows the sentences.

#[path = "../../../fuzz/src/stored_model.rs"]
mod stored_model;

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use expect_test::expect_file;
use mambo_checkpoint::Checkpoint;
use mambo_model::{bind, describe, nearest, problems};
use serde_json::{Value, json};

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A seed of the fuzzer with some fields set and tensors added; null removes one.
fn changed(seed: &str, fields: &Value, tensors: &Value) -> Checkpoint {
    let path = project().join(format!("fuzz/seeds/families/{seed}.json"));
    let mut document: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let about = if document.get("config").is_some() { "config" } else { "metadata" };
    for (object, changes) in [(about, fields), ("tensors", tensors)] {
        let map = document[object].as_object_mut().unwrap();
        for (key, value) in changes.as_object().unwrap() {
            match value {
                Value::Null => _ = map.remove(key),
                value => _ = map.insert(key.clone(), value.clone()),
            }
        }
    }
    stored_model::open(&document).unwrap()
}

fn refusal(checkpoint: &Checkpoint) -> String {
    let bound = describe(checkpoint).and_then(|spec| bind(checkpoint, &spec).map(drop));
    bound.expect_err("there is a mistake").to_string()
}

#[test]
fn every_mistake_has_its_sentence() {
    let none = json!({});
    let yarn = |key: &str, value: Value| {
        let mut scaling = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64});
        scaling[key] = value;
        json!({"rope_parameters": null, "rope_scaling": scaling})
    };
    let fields = [
        ("llama", json!({"num_attention_heads": 0})),
        ("llama", json!({"num_attention_heads": 7})),
        ("llama", json!({"num_attention_heads": 7, "head_dim": null, "num_key_value_heads": 7})),
        ("llama", json!({"num_key_value_heads": 0})),
        ("llama", json!({"num_key_value_heads": 4})),
        ("llama", json!({"head_dim": 7})),
        ("llama", json!({"partial_rotary_factor": 0.25})),
        ("llama", json!({"partial_rotary_factor": {"__float__": "NaN"}})),
        ("llama", json!({"hidden_act": "gelu"})),
        ("llama", json!({"mlp_bias": true})),
        ("llama", json!({"vocab_size": 98})),
        ("llama", json!({"num_hidden_layers": 0})),
        ("llama", json!({"num_hidden_layers": 2})),
        ("llama", json!({"num_hidden_layers": 4})),
        ("llama", json!({"rope_parameters": null, "rope_scaling": "yarn"})),
        ("llama", json!({"rope_parameters": [1.0, 2.0]})),
        ("llama", yarn("rope_type", json!("longrope"))),
        ("llama", yarn("rope_type", json!(3))),
        ("llama", yarn("factor", json!(-2.0))),
        ("llama", yarn("factor", Value::Null)),
        ("llama", yarn("beta_fast", json!({"__float__": "Infinity"}))),
        ("llama", yarn("rope_theta", json!(1))),
        ("llama", json!({"quantization_config": {"quant_method": "bitsandbytes"}})),
        ("mistral", json!({"sliding_window": 0})),
        ("mistral", json!({"sliding_window": -5})),
        ("qwen3-moe", json!({"mlp_only_layers": ["x"]})),
        ("qwen3-moe", json!({"mlp_only_layers": [99]})),
        ("qwen3-moe", json!({"num_experts_per_tok": 99})),
        ("gemma3", json!({"layer_types": ["full_attention"]})),
        ("gemma3", json!({"query_pre_attn_scalar": 0})),
        ("gemma3", json!({"attn_logit_softcapping": -1.0})),
        ("gemma3", json!({"num_key_value_heads": 3})),
        ("gemma3-nested-hub", json!({"text_config": {"hidden_size": 64, "num_attention_heads": 0}})),
        ("gpt-oss-hub", json!({"sliding_window": 0})),
        ("gpt-oss-hub", json!({"num_local_experts": 3})),
        ("granite-h-hub", json!({"position_embedding_type": "alibi"})),
        ("granite-h-hub", json!({"logits_scaling": 0})),
        ("granite-h-hub", json!({"layer_types": null, "layers_block_type": null})),
        ("granite-h-hub", json!({"mamba_n_heads": 5})),
        ("bamba", json!({"layer_types": null, "layers_block_type": null, "attn_layer_indices": [99]})),
        ("falcon-h1", json!({"ssm_multipliers": [1, 2]})),
        ("mamba2", json!({"num_heads": 3})),
        ("lfm2-moe-hub", json!({"conv_L_cache": 0})),
        ("qwen3-next-hub", json!({"linear_num_key_heads": 3})),
        ("qwen3-gguf", json!({"qwen3.rope.scaling.type": "longrope"})),
        ("qwen3-gguf", json!({"qwen3.attention.head_count": 3, "qwen3.attention.head_count_kv": 5})),
        ("qwen3-gguf", json!({"qwen3.block_count": 2})),
        ("qwen3-gguf", json!({"qwen3.block_count": 0})),
        ("qwen3-moe-gguf", json!({"qwen3moe.expert_used_count": 99})),
    ];
    let bias = json!(["F32", [60]]);
    let tensors = [
        ("llama", json!({"model.layers.0.self_attn.q_proj.bias": bias})),
        ("llama", json!({"model.layers.1.input_layernorm.bias": bias})),
        ("llama", json!({"model.layers.1.mlp.down_proj.weight": null})),
        ("llama", json!({"model.layers.1.mlp.up_proj.weight": ["F32", [60, 144]]})),
        ("llama", json!({"model.layers.1.mlp.up_proj.weight": ["I8", [144, 60]]})),
        ("qwen3-gguf", json!({"blk.0.ffn_up.bias": ["f32", [9]]})),
        ("qwen3-gguf", json!({"blk.0.attn_q.weight": null})),
        ("qwen3-gguf", json!({"blk.0.attn_k.weight": ["f32", [7, 7]]})),
    ];
    let mut table = String::new();
    let cases = fields.iter().map(|(seed, case)| (seed, case, &none));
    for (seed, fields, tensors) in cases.chain(tensors.iter().map(|(seed, case)| (seed, &none, case))) {
        let sentence = refusal(&changed(seed, fields, tensors));
        let case = if fields == &none { tensors } else { fields };
        writeln!(table, "{seed} with {case}\n    {sentence}").unwrap();
        assert!(!sentence.contains('\n') && sentence.contains("; "), "{sentence}");
    }
    expect_file![project().join("tests/models/family-mistakes.txt")].assert_eq(&table);
}

#[test]
fn what_is_not_read_is_said_and_runs() {
    let extra = json!({"model.layers.0.adapter.weight": ["F32", [2]], "model.layers.2.adapter.weight": ["F32", [2]],
        "vision_tower.blocks.3.weight": ["F32", [2]], "model.layers.0.self_attn.rotary_emb.inv_freq": ["F32", [5]]});
    let checkpoint = changed("llama", &json!({}), &extra);
    let spec = describe(&checkpoint).unwrap();
    let notes = bind(&checkpoint, &spec).unwrap().notes();
    let note = "3 tensors are not read: `model.layers.N.adapter.weight` (2), `vision_tower.blocks.N.weight`";
    assert_eq!(notes, [note]);
    let plain = changed("llama", &json!({}), &json!({}));
    assert_eq!(bind(&plain, &spec).unwrap().notes(), [""; 0]);
}

#[test]
fn every_problem_is_found_not_only_the_first() {
    let missing =
        json!({"model.layers.0.mlp.down_proj.weight": null, "model.layers.2.mlp.down_proj.weight": null});
    let checkpoint = changed("llama", &json!({"vocab_size": 98}), &missing);
    let spec = describe(&checkpoint).unwrap();
    // The embedding, the head and two layers.
    assert_eq!(problems(&checkpoint, &spec).len(), 4);
}

#[test]
fn an_unknown_model_is_compared_with_the_nearest_family() {
    let foreign = json!({"model_type": "strange", "architectures": ["StrangeForCausalLM"]});
    let extra = json!({"model.layers.0.self_attn.q_norm.weight": ["F32", [10]]});
    let found = nearest(&changed("qwen2", &foreign, &json!({}))).unwrap();
    assert_eq!((found.family, found.unknown, found.problems.len()), ("qwen2", None, 0));
    assert_eq!(nearest(&changed("qwen3", &foreign, &json!({}))).unwrap().family, "qwen3");
    let found = nearest(&changed("lfm2-moe-hub", &foreign, &extra)).unwrap();
    assert_eq!(found.family, "lfm2");
    assert_eq!(found.unknown.as_deref(), Some("`model.layers.N.self_attn.q_norm.weight`"));
    let act = json!({"model_type": "strange", "architectures": [], "hidden_activation": "gelu"});
    let found = nearest(&changed("gemma3", &act, &json!({}))).unwrap();
    assert!(found.problems[0].contains("`hidden_activation` is `gelu`"), "{found:?}");
    let gguf = json!({"general.architecture": "strange"});
    let found = nearest(&changed("qwen3-gguf", &gguf, &json!({"blk.0.odd.weight": ["f32", [1]]}))).unwrap();
    assert_eq!(found.unknown.as_deref(), Some("`blk.N.odd.weight`"));
}
