//! GGUF headers: a real file is understood, damaged ones too where that is possible, and what is exported
//! equals what llama.cpp's converter wrote.

mod common;

use std::collections::HashMap;

use common::{FIXTURES, GgufListing, fixture};
use expect_test::expect;
use mambo_checkpoint::{GgufMetadata, GgufValue};
use mambo_model::{ModelSpec, PRESETS};

const ARCH: &str = "nemotron_h_moe.";

/// What a specification is besides the facts that formats give differently.
fn shape_of_model(mut spec: ModelSpec) -> ModelSpec {
    spec.context = None;
    spec.stop_tokens.clear();
    spec.notes.clear();
    spec.bos = None;
    spec
}

#[test]
fn a_real_file_is_the_model_of_its_config() {
    let spec = GgufListing::tiny_hybrid().spec().unwrap();
    assert_eq!((spec.bos, spec.context, &spec.stop_tokens[..]), (Some(1), None, &[2, 11][..]));
    assert_eq!(shape_of_model(spec), shape_of_model(fixture("tiny-hybrid")));
}

#[test]
fn export_equals_the_converter() {
    let file = GgufListing::tiny_hybrid();
    let mut spec = fixture("tiny-hybrid");
    spec.context = None;
    let prefix = |key: &str| key.starts_with(ARCH) || key == "general.architecture";
    let written: Vec<_> = file.keys.iter().filter(|(key, _)| prefix(key)).cloned().collect();
    assert_eq!(spec.gguf_metadata().unwrap(), written);
    let exported: Vec<_> =
        spec.gguf_tensors().into_iter().map(|t| (t.name, t.quantizable, t.shape)).collect();
    let written: Vec<_> =
        file.tensors.into_iter().map(|(name, dtype, shape)| (name, dtype != "F32", shape)).collect();
    assert_eq!(exported, written);
}

#[test]
fn what_is_exported_reads_back() {
    let presets = PRESETS.iter().map(|p| (p.name, p.spec().unwrap()));
    for (name, spec) in presets.chain(FIXTURES.iter().map(|name| (*name, fixture(name)))) {
        let mut metadata = GgufMetadata::new(name);
        // Writing fails where a reader would take the model for another one.
        let keys = spec.gguf_metadata().unwrap();
        keys.into_iter().for_each(|(key, value)| metadata.set(key, value));
        let tensors: HashMap<_, _> = spec.gguf_tensors().into_iter().map(|t| (t.name, t.shape)).collect();
        let read = ModelSpec::from_gguf(name, &metadata, &|tensor| tensors.get(tensor).cloned()).unwrap();
        assert_eq!(read.layers.len(), spec.layers.len(), "{name}");
        assert!(read.gguf_metadata().is_ok(), "{name}");
        if spec.architecture == "nemotron_h" {
            assert_eq!(shape_of_model(read), shape_of_model(spec), "{name}");
        }
    }
}

#[test]
fn lost_and_wrong_keys_are_made_good() {
    let whole = GgufListing::tiny_hybrid().spec().unwrap();
    let lost = [
        "attention.layer_norm_rms_epsilon",
        "attention.head_count_kv",
        "feed_forward_length",
        "embedding_length",
        "ssm.group_count",
        "ssm.inner_size",
        "ssm.time_step_rank",
        "vocab_size",
        "expert_count",
        "nextn_predict_layers",
        "attention.key_length",
    ];
    let mut file = GgufListing::tiny_hybrid();
    file.keys.retain(|(key, _)| !lost.iter().any(|lost| key == &format!("{ARCH}{lost}")));
    file.keys.push((format!("{ARCH}attention.head_count_kv"), vec![0i32; 15].into()));
    assert_eq!(file.spec().unwrap(), whole);
}

#[test]
fn latent_width_comes_from_the_tensors() {
    let spec = fixture("latent");
    let mut metadata = GgufMetadata::new("m.gguf");
    for (key, value) in
        spec.gguf_metadata().unwrap().into_iter().filter(|(key, _)| !key.ends_with("moe_latent_size"))
    {
        metadata.set(key, value);
    }
    let tensors: HashMap<_, _> = spec.gguf_tensors().into_iter().map(|t| (t.name, t.shape)).collect();
    let read = ModelSpec::from_gguf("m.gguf", &metadata, &|name| tensors.get(name).cloned()).unwrap();
    assert_eq!(shape_of_model(read), shape_of_model(spec));
}

#[test]
fn notes_say_what_was_settled() {
    let mut file = GgufListing::tiny_hybrid();
    file.keys.retain(|(key, _)| !key.contains("epsilon"));
    file.tensors.retain(|(name, ..)| !name.starts_with("blk.14."));
    let spec = file.spec().unwrap();
    assert!(spec.mtp.is_none());
    assert_eq!(spec.layers.len(), 14);
    expect![[r#"
        the file gives no norm epsilon: taken as 1e-5
        the metadata describes an MTP head, but the file holds none"#]]
    .assert_eq(&spec.notes.join("\n"));
}

fn edited(edit: impl Fn(&mut GgufListing)) -> String {
    let mut file = GgufListing::tiny_hybrid();
    edit(&mut file);
    file.spec().unwrap_err().to_string()
}

fn set(file: &mut GgufListing, name: &str, value: impl Into<GgufValue>) {
    file.keys.retain(|(key, _)| key != name);
    file.keys.push((name.to_owned(), value.into()));
}

fn reshape(file: &mut GgufListing, name: &str, shape: &[usize]) {
    file.tensors.iter_mut().find(|(n, ..)| n == name).unwrap().2 = shape.to_vec();
}

#[test]
fn impossible_files_are_refused_in_a_sentence() {
    let drop =
        |file: &mut GgufListing, start: &str| file.tensors.retain(|(name, ..)| !name.starts_with(start));
    let messages = [
        edited(|f| set(f, "general.architecture", "gpt2")),
        edited(|f| f.keys.clear()),
        edited(|f| set(f, "nemotron_h_moe.block_count", 9_000_000u32)),
        edited(|f| set(f, "nemotron_h_moe.block_count", 17u32)),
        edited(|f| set(f, "nemotron_h_moe.block_count", "many")),
        edited(|f| set(f, "nemotron_h_moe.nextn_predict_layers", 3u32)),
        edited(|f| set(f, "nemotron_h_moe.expert_used_count", 99u32)),
        edited(|f| set(f, "nemotron_h_moe.expert_used_count", vec![4i32, 4])),
        edited(|f| set(f, "nemotron_h_moe.attention.key_length", 7u32)),
        edited(|f| set(f, "nemotron_h_moe.attention.key_length", 32u32)),
        edited(|f| set(f, "nemotron_h_moe.attention.key_length", 128u32)),
        edited(|f| set(f, "nemotron_h_moe.block_count", 14u32)),
        edited(|f| {
            set(f, "nemotron_h_moe.block_count", 9u32);
            set(f, "nemotron_h_moe.nextn_predict_layers", 0u32);
        }),
        edited(|f| {
            drop(f, "blk.14.");
            set(f, "nemotron_h_moe.block_count", 14u32);
        }),
        edited(|f| drop(f, "token_embd")),
        edited(|f| (0..14).for_each(|i| drop(f, &format!("blk.{i}.")))),
        edited(|f| {
            (0..14).for_each(|i| drop(f, &format!("blk.{i}.")));
            ["token_embd", "output"].iter().for_each(|name| drop(f, name));
        }),
        edited(|f| drop(f, "blk.")),
        edited(|f| drop(f, "blk.3.")),
        edited(|f| drop(f, "blk.5.attn_k")),
        edited(|f| reshape(f, "blk.0.ssm_dt.bias", &[0])),
        edited(|f| reshape(f, "blk.0.ssm_norm.weight", &[3, 171])),
        edited(|f| reshape(f, "blk.1.ffn_up_exps.weight", &[16, 256, 128])),
        edited(|f| reshape(f, "blk.5.attn_q.weight", &[usize::MAX, 256])),
        edited(|f| reshape(f, "token_embd.weight", &[0, 256])),
    ];
    expect![[r#"
        m.gguf: architecture `gpt2` is not supported; use a checkpoint of one of these: nemotron_h, nemotron_h_puzzle, nemotron_h_moe, llama, mistral, smollm3, qwen2, qwen3, qwen3_moe, qwen3moe, gemma3_text, gemma3, gpt_oss, gpt-oss, granitemoehybrid, granitehybrid, granite, granitemoe, falcon_h1, falcon-h1, bamba, mamba2, lfm2, lfm2_moe, lfm2moe, qwen3_next, qwen3_5_text, qwen3_5_moe_text, qwen3next, qwen35, qwen35moe
        m.gguf: metadata key `general.architecture` is missing; convert the file again with a current converter
        m.gguf: `nemotron_h_moe.block_count` is 9000000, more than 1024; convert the model again with a current converter
        m.gguf: `blk.15` has none of ssm_in, attn_q, ffn_gate_inp and ffn_up, so what it computes is unknown; convert the model again with a current converter
        m.gguf: metadata key `nemotron_h_moe.block_count` is "many" of type string, but should be a whole number; convert the file again
        m.gguf: `nemotron_h_moe.nextn_predict_layers` is 3, but one MTP head is supported; convert the model again with a current converter
        m.gguf: layer 1 (moe): 99 experts per token, but only 16 experts; correct the metadata or take it from the model's original release
        m.gguf: `nemotron_h_moe.expert_used_count` has 2 values, none for block 3; convert the model again with a current converter
        m.gguf: `blk.5` has 256 query and 128 key channels, no multiples of the head size 7; convert the model again with a current converter
        m.gguf: `nemotron_h_moe.attention.key_length` is 32, which gives `blk.5` 8 query heads where `nemotron_h_moe.attention.head_count` is 4 and 4 key heads where `nemotron_h_moe.attention.head_count_kv` is 2; convert the model again with a current converter
        m.gguf: `nemotron_h_moe.attention.key_length` is 128, which gives `blk.5` 2 query heads where `nemotron_h_moe.attention.head_count` is 4 and 1 key heads where `nemotron_h_moe.attention.head_count_kv` is 2; convert the model again with a current converter
        m.gguf: `nemotron_h_moe.block_count` is 14 and `nemotron_h_moe.nextn_predict_layers` is 1, which leaves out `blk.13` that the file holds; convert the model again with a current converter
        m.gguf: `nemotron_h_moe.block_count` is 9 and `nemotron_h_moe.nextn_predict_layers` is 0, which leaves out `blk.9` that the file holds; convert the model again with a current converter
        m.gguf: `nemotron_h_moe.block_count` is 14 and `nemotron_h_moe.nextn_predict_layers` is 1, which leaves out `blk.13` that the file holds; convert the model again with a current converter
        m.gguf: tensor `token_embd.weight` is missing (it holds `embed`); open the file of the whole model, or convert it again
        m.gguf: `blk.0` is missing: this file holds the model's MTP head alone; open the GGUF file of the trunk instead, which runs without the head
        m.gguf: `blk.0` is missing: this file holds the model's MTP head alone; open the GGUF file of the trunk instead, which runs without the head
        m.gguf: `blk.0` is missing: this file holds no layers; open the file of the whole model
        m.gguf: `blk.3` has none of ssm_in, attn_q, ffn_gate_inp and ffn_up, so what it computes is unknown; convert the model again with a current converter
        m.gguf: tensor `blk.5.attn_k.weight` is missing (it holds `layers.5.k`); open the file of the whole model, or convert it again
        m.gguf: `blk.0` has sizes that do not divide: 512 channels, 0 heads, 768 convolved, 2 groups; convert the model again with a current converter
        m.gguf: `blk.0` has sizes that do not divide: 512 channels, 8 heads, 768 convolved, 3 groups; convert the model again with a current converter
        m.gguf: `blk.1.ffn_up_exps.weight` reads 128 channels of 256, but there is no `blk.1.ffn_latent_down.weight`; convert the model again with a current converter
        m.gguf: `blk.5` has 18446744073709551615 query and 128 key channels, no multiples of the head size 64; convert the model again with a current converter
        m.gguf: model: the vocabulary is 0; correct the metadata or take it from the model's original release"#]].assert_eq(&messages.join("\n"));
}

#[test]
fn no_header_makes_it_panic() {
    let whole = GgufListing::tiny_hybrid();
    let values: [GgufValue; 8] = [
        0u32.into(),
        u64::MAX.into(),
        (-1i32).into(),
        1u32.into(),
        "x".into(),
        f32::NAN.into(),
        Vec::<i32>::new().into(),
        vec![-5i32; 3].into(),
    ];
    let shapes: [&[usize]; 8] =
        [&[], &[0], &[1], &[0, 0], &[usize::MAX, usize::MAX], &[3, 5], &[1, 1, 1], &[usize::MAX / 2, 2, 7]];
    let mut tried = 0;
    let mut survive = |file: &GgufListing| {
        if let Ok(spec) = file.spec() {
            let _ = (spec.to_string(), spec.gguf_metadata(), spec.gguf_tensors());
        }
        tried += 1;
    };
    for at in 0..whole.keys.len() {
        for value in &values {
            let mut file = whole.clone();
            file.keys[at].1 = value.clone();
            survive(&file);
        }
        let mut file = whole.clone();
        file.keys.remove(at);
        survive(&file);
    }
    for at in 0..whole.tensors.len() {
        for shape in shapes {
            let mut file = whole.clone();
            file.tensors[at].2 = shape.to_vec();
            survive(&file);
        }
        let mut file = whole.clone();
        file.tensors.remove(at);
        survive(&file);
    }
    assert!(tried > 1000);
}
