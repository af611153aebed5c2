//! What `inspect` says about files, about a config alone and about the built-in model.

mod program;

use std::fs;
use std::path::Path;

use mambo_checkpoint::{GgufMetadata, GgufTensor, GgufValue, GgufWriter};
use mambo_tensor::{DType, Shape};
use program::{config_alone, fixture, json, refused, scratch, works};
use serde_json::Value;

fn sum(rows: &Value, field: &str) -> u64 {
    rows.as_array().unwrap().iter().map(|row| row[field].as_u64().unwrap()).sum()
}

#[test]
fn parameters_types_and_tensors_agree_with_each_other() {
    for case in ["dense", "moe", "latent", "mtp"] {
        let report = json(&["inspect", "-m", &fixture(case), "--tensors"]);
        // Every parameter is stored once, so two ways of counting must meet.
        assert_eq!(report["parameters"]["total"].as_u64(), Some(sum(&report["types"], "values")), "{case}");
        assert_eq!(report["memory"]["weight_bytes"].as_u64(), Some(sum(&report["types"], "bytes")), "{case}");
        let tensors = report["tensors"].as_array().unwrap();
        assert_eq!(tensors.len() as u64, sum(&report["types"], "tensors"), "{case}");
        let layers: u64 =
            report["layers"].as_array().unwrap().iter().map(|l| l["count"].as_u64().unwrap()).sum();
        assert_eq!(layers as usize, report["schedule"].as_str().unwrap().len(), "{case}");
        assert_eq!(report["parameters"]["mtp"].as_u64() > Some(0), case == "mtp");
    }
}

#[test]
fn a_config_alone_is_enough() {
    let config = config_alone("nano-30b");
    let report = json(&["inspect", "-m", &config]);
    assert_eq!(report["parameters"]["total"], 31_577_940_288_u64);
    assert_eq!(report["has_weights"], false);
    assert_eq!(report["memory"]["kv_bytes_per_token"], 6 * 2 * 2 * 128 * 2);
    let (text, _) = works(&["inspect", "-m", &config]);
    assert!(text.contains("no weights") && text.contains("31.6 B total"), "{text}");
    let preset = json(&["inspect", "-m", "nano-30b"]);
    assert_eq!(preset["layers"], report["layers"]);
}

#[test]
fn the_built_in_model_has_all_it_needs() {
    let (text, error) = works(&["inspect"]);
    assert_eq!(error, "");
    assert!(text.contains("with a chat template") && text.contains("`<|im_end|>`"), "{text}");
    assert!(!text.contains("embed.weight"), "tensors are listed only when asked for");
    let (text, _) = works(&["inspect", "--tensors"]);
    assert!(text.contains("token_embd.weight"), "{text}");
}

#[test]
fn the_model_may_stand_with_or_without_its_flag() {
    for command in ["inspect", "fit", "explain"] {
        let more: &[&str] = if command == "fit" { &["--memory", "20", "--bandwidth", "50"] } else { &[] };
        let (with, _) = works(&[&[command, "-m", "nano-30b"], more].concat());
        let (without, _) = works(&[&[command, "nano-30b"], more].concat());
        assert_eq!(with, without, "{command}");
    }
}

#[test]
fn a_wrong_name_lists_what_there_is() {
    let sentence = refused(&["inspect", "-m", "nano-31b"]);
    assert!(sentence.contains("no file, folder or preset `nano-31b`") && sentence.contains("nano-30b"));
    let sentence = refused(&["inspect", "-m", "./nowhere/model.gguf"]);
    assert!(sentence.contains("nowhere"), "{sentence}");
}

/// Files of other families hold the same blocks: they are listed, and refused where they would have to run.
#[test]
fn other_architectures_are_shown_but_not_run() {
    for (architecture, first) in
        [("gpt2", DType::Q4K), ("deepseek2", DType::IQ2_XXS), ("phi3", DType::Q6K), ("rwkv7", DType::MXFP4)]
    {
        let path = scratch("other.gguf");
        let mut metadata = GgufMetadata::new("other.gguf");
        metadata.set("general.architecture", GgufValue::from(architecture));
        let tensor = |name: &str, dtype, shape: &[usize]| GgufTensor {
            name: name.to_owned(),
            dtype,
            shape: Shape::new(shape).unwrap(),
        };
        let tensors = [
            tensor("token_embd.weight", first, &[8, 256]),
            tensor("blk.0.attn_qkv.weight", DType::IQ3_S, &[2, 512]),
            tensor("blk.0.ffn_gate_exps.weight", DType::TQ1_0, &[2, 3, 256]),
            tensor("blk.0.attn_norm.weight", DType::F32, &[256]),
        ];
        let mut writer = GgufWriter::create(&path, &metadata, &tensors).unwrap();
        for t in &tensors {
            writer.write(&t.name, &vec![0; t.dtype.row_bytes(t.shape.elems()).unwrap()]).unwrap();
        }
        writer.finish().unwrap();
        let path = path.to_str().unwrap();
        let report = json(&["inspect", "-m", path, "--tensors"]);
        assert_eq!(report["architecture"], architecture);
        let names: Vec<&str> =
            report["tensors"].as_array().unwrap().iter().map(|t| t["name"].as_str().unwrap()).collect();
        assert_eq!(names, tensors.each_ref().map(|t| t.name.as_str()));
        assert_eq!(sum(&report["types"], "tensors"), 4);
        let (text, _) = works(&["inspect", "-m", path, "--tensors"]);
        assert!(
            text.contains("which mambo does not run") && text.contains("blk.0.attn_qkv.weight"),
            "{text}"
        );
        let problem = refused(&["run", "-m", path, "Hello"]);
        let want = format!(
            "architecture `{architecture}` is not supported; use a checkpoint of one of these: nemotron_h"
        );
        assert!(problem.contains(&want) && problem.contains("nemotron_h_moe"), "{problem}");
    }
}

/// A fixture of another family, its config with some fields set.
fn family(name: &str, fields: &[(&str, Value)]) -> String {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/families").join(name);
    let folder = scratch(&format!("inspect-{name}"));
    fs::create_dir_all(&folder).unwrap();
    let mut config: Value = serde_json::from_slice(&fs::read(from.join("config.json")).unwrap()).unwrap();
    fields.iter().for_each(|(field, value)| config[*field] = value.clone());
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    fs::copy(from.join("model.safetensors"), folder.join("model.safetensors")).unwrap();
    folder.to_str().unwrap().to_owned()
}

#[test]
fn tensors_that_hold_two_weights_are_counted_once() {
    for name in ["gpt-oss-hub", "qwen3-next-hub", "llama"] {
        let report = json(&["inspect", "-m", &family(name, &[])]);
        assert_eq!(report["memory"]["weight_bytes"].as_u64(), Some(sum(&report["types"], "bytes")), "{name}");
        assert_eq!(report["problems"], Value::Array(vec![]), "{name}");
    }
    let (text, _) = works(&["inspect", "-m", &family("gemma3", &[])]);
    assert!(text.contains("heads 4, ") && text.contains("window ") && text.contains(" + width "), "{text}");
}

#[test]
fn what_keeps_a_model_from_running_is_listed() {
    let folder = family("llama", &[("vocab_size", 98.into()), ("intermediate_size", 7.into())]);
    let report = json(&["inspect", "-m", &folder]);
    // Embedding, head, and three tensors in each of three layers.
    assert_eq!(report["problems"].as_array().unwrap().len(), 2 + 9);
    let (text, _) = works(&["inspect", "-m", &folder]);
    assert!(text.contains("problem     ") && text.contains("`embed` needs [98, 60]"), "{text}");
    assert!(text.contains("and 5 more (`--json` lists all)"), "{text}");
}

#[test]
fn an_unknown_model_hears_what_it_lacks() {
    let folder = family("qwen3", &[("model_type", "odd".into()), ("architectures", Value::Array(vec![]))]);
    let (text, _) = works(&["inspect", "-m", &folder]);
    assert!(text.contains("nearest     the family qwen3, which knows the names of all "), "{text}");
    let fields =
        [("model_type", "odd".into()), ("hidden_act", "relu".into()), ("architectures", Value::Null)];
    let (text, _) = works(&["inspect", "-m", &family("llama", &fields)]);
    assert!(text.contains("problem     ") && text.contains("`hidden_act` is `relu`"), "{text}");
}
