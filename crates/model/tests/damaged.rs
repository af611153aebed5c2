//! Quantised files with one thing wrong: each gets a sentence with file, tensor and remedy.

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};

use common::stored::Stored;
use expect_test::expect;
use serde_json::json;

const IN_PROJ: &str = "backbone.layers.0.mixer.in_proj";

/// A fixture with one change, refused.
fn refused(fixture: &str, edit: impl Fn(&mut Stored)) -> String {
    let mut stored = Stored::fixture(fixture);
    edit(&mut stored);
    // Tests run at the same time, so each case has a folder of its own.
    static CASES: AtomicUsize = AtomicUsize::new(0);
    stored.refused(&format!("damaged-{fixture}-{}", CASES.fetch_add(1, Ordering::Relaxed)))
}

fn at(suffix: &str) -> String {
    format!("{IN_PROJ}.{suffix}")
}

fn set(stored: &mut Stored, suffix: &str, value: f32) {
    stored.get(&at(suffix)).bytes = value.to_le_bytes().to_vec();
}

/// The remedies, cut off where they are the same for many messages.
fn shorten(messages: &[String]) -> String {
    let remedies = [
        ("; use the bf16 release or a GGUF file of this model", "; [other release]"),
        ("; the metadata and the tensors are of different models, take both from one release", "; [both]"),
        (
            ", but scales are finite and greater than zero; the file is damaged, download it again or use \
             another release of this model",
            "; [damaged]",
        ),
        ("; download the missing file of the model again", "; [download]"),
        (
            "; use the bf16, NVFP4, FP8, AWQ (gemm), GPTQ or MLX release, or a GGUF file of this model",
            "; [any release]",
        ),
    ];
    let shorten =
        |message: &String| remedies.iter().fold(message.clone(), |m, (long, short)| m.replace(long, short));
    messages.iter().map(shorten).collect::<Vec<_>>().join("\n")
}

#[test]
fn nvfp4() {
    let case = |edit: &dyn Fn(&mut Stored)| refused("modelopt-nvfp4", edit);
    let messages = [
        case(&|s| s.remove(&at("weight_scale"))),
        case(&|s| s.remove(&at("weight_scale_2"))),
        case(&|s| s.get(&at("weight")).cut_columns(31)),
        case(&|s| s.get(&at("weight_scale")).cut_columns(3)),
        case(&|s| s.get(&at("weight_scale")).shape = vec![4, 392]),
        case(&|s| s.get(&at("weight_scale")).dtype = "I8".to_owned()),
        case(&|s| {
            s.get(&at("weight_scale_2")).shape = vec![2];
            s.get(&at("weight_scale_2")).bytes = vec![0; 8];
        }),
        case(&|s| set(s, "weight_scale_2", f32::NAN)),
        case(&|s| set(s, "weight_scale_2", f32::INFINITY)),
        case(&|s| set(s, "weight_scale_2", 0.0)),
        case(&|s| set(s, "weight_scale_2", -0.5)),
        case(&|s| s.get(&at("weight_scale")).bytes[9] = 0x7f),
        case(&|s| s.get(&at("weight_scale")).bytes[9] = 0xb8),
        case(&|s| s.add(&at("pre_quant_scale"), "F32", &[1], vec![0; 4])),
        case(&|s| {
            s.config["moe_shared_expert_intermediate_size"] = json!(120);
            for t in
                s.tensors.iter_mut().filter(|t| t.name.contains("shared_experts.up") && t.shape.len() == 2)
            {
                t.bytes.truncate(t.bytes.len() / 128 * 120);
                t.shape[0] = 120;
            }
        }),
    ];
    expect![[r#"
        FOLDER: tensor `backbone.layers.0.mixer.in_proj.weight_scale` is missing, and `backbone.layers.0.mixer.in_proj.weight` cannot be read without it; [download]
        FOLDER: tensor `backbone.layers.0.mixer.in_proj.weight_scale_2` is missing, and `backbone.layers.0.mixer.in_proj.weight` cannot be read without it; [download]
        FOLDER: tensor `backbone.layers.0.mixer.in_proj.weight` has shape [392, 31], but `layers.0.in_proj` needs [392, 32]; [both]
        FOLDER: tensor `backbone.layers.0.mixer.in_proj.weight_scale` has shape [392, 3], but `layers.0.in_proj` needs [392, 4]; [both]
        FOLDER: tensor `backbone.layers.0.mixer.in_proj.weight_scale` has shape [4, 392], but `layers.0.in_proj` needs [392, 4]; [both]
        FOLDER: tensor `backbone.layers.0.mixer.in_proj.weight_scale` is i8, but f8_e4m3 or u8 is expected; [other release]
        FOLDER: tensor `backbone.layers.0.mixer.in_proj.weight_scale_2` has shape [2], but `layers.0.in_proj` needs [] or [1]; [both]
        FOLDER: tensor `backbone.layers.0.mixer.in_proj.weight_scale_2` holds the scale NaN; [damaged]
        FOLDER: tensor `backbone.layers.0.mixer.in_proj.weight_scale_2` holds the scale inf; [damaged]
        FOLDER: tensor `backbone.layers.0.mixer.in_proj.weight_scale_2` holds the scale 0; [damaged]
        FOLDER: tensor `backbone.layers.0.mixer.in_proj.weight_scale_2` holds the scale -0.5; [damaged]
        FOLDER: tensor `backbone.layers.0.mixer.in_proj.weight_scale` holds NaN or a negative scale at position 9; [damaged]
        FOLDER: tensor `backbone.layers.0.mixer.in_proj.weight_scale` holds NaN or a negative scale at position 9; [damaged]
        FOLDER: tensor `backbone.layers.0.mixer.in_proj.weight` has scales on the activations before the product (`backbone.layers.0.mixer.in_proj.pre_quant_scale`), which is not supported; [other release]
        FOLDER: tensor `backbone.layers.1.mixer.shared_experts.down_proj.weight` has rows of 120 values, which groups of 16 do not divide; [other release]"#]].assert_eq(&shorten(&messages));
}

#[test]
fn compressed_tensors() {
    let case = |edit: &dyn Fn(&mut Stored)| {
        refused("modelopt-nvfp4", |s| {
            s.get(&at("weight")).name = at("weight_packed");
            s.get(&at("weight_scale_2")).name = at("weight_global_scale");
            edit(s);
        })
    };
    let messages = [
        case(&|s| s.remove(&at("weight_scale"))),
        case(&|s| s.remove(&at("weight_global_scale"))),
        case(&|s| set(s, "weight_global_scale", 0.0)),
        case(&|s| set(s, "weight_global_scale", 1e-45)),
        case(&|s| s.get(&at("weight_packed")).cut_columns(16)),
        case(&|s| {
            s.get(&at("weight_packed")).dtype = "I32".to_owned();
            s.get(&at("weight_packed")).shape = vec![392, 8];
        }),
    ];
    expect![[r#"
        FOLDER: tensor `backbone.layers.0.mixer.in_proj.weight_scale` is missing, and `backbone.layers.0.mixer.in_proj.weight_packed` cannot be read without it; [download]
        FOLDER: tensor `backbone.layers.0.mixer.in_proj.weight_global_scale` is missing, and `backbone.layers.0.mixer.in_proj.weight_packed` cannot be read without it; [download]
        FOLDER: tensor `backbone.layers.0.mixer.in_proj.weight_global_scale` holds the scale 0; [damaged]
        FOLDER: tensor `backbone.layers.0.mixer.in_proj.weight_global_scale` holds the reciprocal 1e-45 of a scale; [damaged]
        FOLDER: tensor `backbone.layers.0.mixer.in_proj.weight_packed` has shape [392, 16], but `layers.0.in_proj` needs [392, 32]; [both]
        FOLDER: tensor `backbone.layers.0.mixer.in_proj.weight_packed` packs integers into i32, which is not supported; [other release]"#]].assert_eq(&shorten(&messages));
}

#[test]
fn fp8() {
    let case = |edit: &dyn Fn(&mut Stored)| refused("modelopt-fp8", edit);
    let messages = [
        case(&|s| s.remove(&at("weight_scale"))),
        case(&|s| set(s, "weight_scale", f32::NEG_INFINITY)),
        case(&|s| s.get(&at("weight_scale")).dtype = "I32".to_owned()),
        case(&|s| {
            s.get(&at("weight_scale")).shape = vec![4, 1];
            s.get(&at("weight_scale")).bytes = [0, 0, 0, 0x3f].repeat(4);
        }),
        case(&|s| {
            s.get(&at("weight_scale")).shape = vec![392, 1];
            s.get(&at("weight_scale")).bytes = vec![0; 392 * 4];
        }),
        case(&|s| s.get(&at("weight")).cut_columns(63)),
        case(&|s| s.get(&at("weight_scale")).name = at("weight_scale_inv")),
        case(&|s| s.get(&at("weight")).dtype = "I8".to_owned()),
        case(&|s| s.add("lm_head.weight_scale", "F32", &[], vec![0, 0, 0, 0x3f])),
        refused("modelopt-mixed", |s| {
            s.get("backbone.layers.2.mixer.k_proj.k_scale").bytes = f32::NAN.to_le_bytes().to_vec();
        }),
    ];
    expect![[r#"
        FOLDER: tensor `backbone.layers.0.mixer.in_proj.weight_scale` is missing, and `backbone.layers.0.mixer.in_proj.weight` cannot be read without it; [download]
        FOLDER: tensor `backbone.layers.0.mixer.in_proj.weight_scale` holds the scale -inf; [damaged]
        FOLDER: tensor `backbone.layers.0.mixer.in_proj.weight_scale` is i32, but a scale is f32, bf16 or f16; [other release]
        FOLDER: tensor `backbone.layers.0.mixer.in_proj.weight_scale` has shape [4, 1], but `layers.0.in_proj` needs [], [1] or [392, 1]; [both]
        FOLDER: tensor `backbone.layers.0.mixer.in_proj.weight_scale` holds the scale 0; [damaged]
        FOLDER: tensor `backbone.layers.0.mixer.in_proj.weight` has shape [392, 63], but `layers.0.in_proj` needs [392, 64]; [both]
        FOLDER: tensor `backbone.layers.0.mixer.in_proj.weight_scale_inv` has shape [], but `layers.0.in_proj` needs [4, 1]; [both]
        FOLDER: tensor `backbone.layers.0.mixer.in_proj.weight` is i8 and has a scale (`backbone.layers.0.mixer.in_proj.weight_scale`), which is not supported; [other release]
        FOLDER: tensor `lm_head.weight` is bf16 and has a scale (`lm_head.weight_scale`), which is not supported; [other release]
        FOLDER: tensor `backbone.layers.2.mixer.k_proj.k_scale` holds the scale NaN; [damaged]"#]].assert_eq(&shorten(&messages));
}

#[test]
fn mlx() {
    let case = |edit: &dyn Fn(&mut Stored)| refused("mlx-4bit", edit);
    let messages = [
        case(&|s| s.remove(&at("scales"))),
        case(&|s| s.remove(&at("biases"))),
        case(&|s| s.get(&at("weight")).cut_columns(7)),
        case(&|s| {
            s.config["quantization"] = json!({});
            s.get(&at("weight")).cut_columns(7);
        }),
        case(&|s| {
            s.config["quantization"] = json!({});
            s.get(&at("weight")).cut_columns(2);
        }),
        case(&|s| s.get(&at("scales")).cut_columns(1)),
        case(&|s| s.get(&at("biases")).dtype = "BF16".to_owned()),
        case(&|s| s.get(&at("weight")).dtype = "I32".to_owned()),
        case(&|s| s.config["quantization"]["group_size"] = json!(48)),
        case(&|s| s.config["quantization"]["bits"] = json!(7)),
        case(&|s| s.config["quantization"]["bits"] = json!("four")),
        case(&|s| s.config["quantization"]["mode"] = json!("mxfp8")),
        case(&|s| s.config["quantization"] = json!(4)),
    ];
    expect![[r#"
        FOLDER: tensor `backbone.layers.0.mixer.in_proj.scales` is missing, and `backbone.layers.0.mixer.in_proj.weight` cannot be read without it; [download]
        FOLDER: tensor `backbone.layers.0.mixer.in_proj.biases` is missing, and `backbone.layers.0.mixer.in_proj.weight` cannot be read without it; [download]
        FOLDER: tensor `backbone.layers.0.mixer.in_proj.weight` has shape [392, 7], but `layers.0.in_proj` needs [392, 8]; [both]
        FOLDER: tensor `backbone.layers.0.mixer.in_proj.weight` has shape [392, 7], but `layers.0.in_proj` needs 64 columns of codes with a whole number of bits; [both]
        FOLDER: tensor `backbone.layers.0.mixer.in_proj.weight` has codes of 1 bits in groups of 32, but [2, 3, 4, 5, 6, 8] bits in groups of [32, 64, 128] are supported; [other release]
        FOLDER: tensor `backbone.layers.0.mixer.in_proj.scales` has shape [392, 1], but `layers.0.in_proj` needs [392, 2]; [both]
        FOLDER: tensor `backbone.layers.0.mixer.in_proj.biases` is bf16, but f16 is expected; [other release]
        FOLDER: tensor `backbone.layers.0.mixer.in_proj.weight` is i32 with scales (`backbone.layers.0.mixer.in_proj.scales`), but codes are packed in u32; [other release]
        FOLDER: tensor `backbone.embeddings.weight` has codes of 4 bits in groups of 48, but [2, 3, 4, 5, 6, 8] bits in groups of [32, 64, 128] are supported; [other release]
        FOLDER/config.json: `quantization.bits` is 7, but [2, 3, 4, 5, 6, 8] bits are supported; [any release]
        FOLDER/config.json: `quantization.bits` is "four", expected a whole number that is not negative; correct the file
        FOLDER/config.json: `quantization.mode` is `mxfp8`, but affine, mxfp4, nvfp4 are supported; [any release]
        FOLDER/config.json: `quantization` is 4, expected an object; correct the file"#]].assert_eq(&shorten(&messages));
}

#[test]
fn methods_that_are_not_read_are_named() {
    let method = |name: &str| {
        refused("modelopt-fp8", |s| s.config["quantization_config"] = json!({"quant_method": name}))
    };
    let mut messages: Vec<String> = ["hqq", "aqlm", "bitsandbytes"].map(method).into();
    messages.push(refused("modelopt-fp8", |s| {
        s.sidecar = Some(json!({"quantization": {"quant_algo": "W4A16_AWQ"}}));
    }));
    messages.push(refused("modelopt-mixed", |s| {
        let layers = json!({"lm_head": {"quant_algo": "INT8_SQ"}});
        s.sidecar =
            Some(json!({"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}}));
    }));
    expect![[r#"
        FOLDER/config.json: `quantization_config.quant_method` is `hqq`, which is not supported; [any release]
        FOLDER/config.json: `quantization_config.quant_method` is `aqlm`, which is not supported; [any release]
        FOLDER/config.json: `quantization_config.quant_method` is `bitsandbytes`, which is not supported; [any release]
        FOLDER/hf_quant_config.json: `quantization.quant_algo` is `W4A16_AWQ`, which is not supported; [any release]
        FOLDER/hf_quant_config.json: `quantized_layers.lm_head.quant_algo` is `INT8_SQ`, which is not supported; [any release]"#]].assert_eq(&shorten(&messages));
}
