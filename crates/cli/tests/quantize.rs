//! What `quantize` makes: how good it is beside llama.cpp's quantizer, and whether folders and GGUF files of one
//! model are the same model.

mod golden;
mod program;

use golden::{Logits, repository};
use program::{fixture, json, refused, scratch, works};

/// Mean divergence in nats, on the golden text, of the files that llama.cpp's own quantizer makes of the trained
/// model, read without 8-bit activations (`bench/llama_quantize.py` prints these). Where it mixes types under
/// one name, as in `Q4_K_M`, the mix counts.
const LLAMA_CPP: [(&str, f64); 13] = [
    ("q8_0", 9.49e-5),
    ("q6_k", 8.70e-4),
    ("q5_k", 2.37e-3),
    ("q5_1", 2.82e-3),
    ("q5_0", 2.33e-3),
    ("q4_k", 7.0e-3),
    ("q4_1", 1.278e-2),
    ("q4_0", 1.645e-2),
    ("iq4_nl", 9.06e-3),
    ("iq4_xs", 9.89e-3),
    ("mxfp4", 4.56e-3),
    ("q3_k", 3.26e-2),
    ("q2_k", 0.1766),
];
/// It has no quantizer for this one; four bits with finer scales may not be worse than four bits without.
const NVFP4_MOST: f64 = 7.0e-3;

fn trained() -> String {
    repository("models/tiny-hybrid")
}

fn golden() -> String {
    repository("tests/fixtures/quant/tiny-hybrid.safetensors")
}

/// Mean divergence of a model from the golden logits, with unquantised activations.
fn divergence(model: &str) -> f64 {
    let out = scratch("logits.safetensors");
    works(&["logits", "-m", model, "--ids-file", &golden(), "-o", out.to_str().unwrap(), "--reference"]);
    let found = Logits::read(golden().as_ref(), "logits").divergence(&Logits::read(&out, "logits"));
    std::fs::remove_file(out).unwrap();
    found
}

fn quantized(kind: &str) -> f64 {
    let file = scratch(&format!("{kind}.gguf"));
    let path = file.to_str().unwrap();
    works(&["quantize", "-m", &trained(), "-o", path, "--type", kind]);
    let found = divergence(path);
    std::fs::remove_file(file).unwrap();
    found
}

#[test]
fn every_type_is_at_least_as_good_as_llama_cpps() {
    for (kind, most) in LLAMA_CPP.into_iter().chain([("nvfp4", NVFP4_MOST)]) {
        let found = quantized(kind);
        assert!(found <= most, "{kind}: {found} nats, llama.cpp {most}");
    }
}

/// A folder that goes when the test is done with it.
struct Folder(String);

impl Folder {
    fn new(name: &str) -> Folder {
        Folder(scratch(name).to_str().unwrap().to_owned())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn logits(model: &str, ids: &str) -> Logits {
    let out = scratch("logits.safetensors");
    works(&["logits", "-m", model, "--ids-file", ids, "-o", out.to_str().unwrap(), "--reference"]);
    Logits::read(&out, "logits")
}

/// Every kind of layer survives the way through a folder; only the decay passes a logarithm.
#[test]
fn folders_hold_the_same_model() {
    for case in ["dense", "moe", "latent", "mtp", "odd", "router-groups", "new-style"] {
        let ids = format!("{}/expected.safetensors", fixture(case));
        let want = logits(&fixture(case), &ids);
        let (folder, file) = (Folder::new(case), scratch("back.gguf"));
        works(&["quantize", "-m", &fixture(case), "-o", &folder.0, "--type", "f32"]);
        // From GGUF there is no config.json to copy: one is made.
        works(&["quantize", "-m", &folder.0, "-o", file.to_str().unwrap(), "--type", "f32"]);
        let again = Folder::new("again");
        works(&["quantize", "-m", file.to_str().unwrap(), "-o", &again.0, "--type", "f32"]);
        for model in [&folder.0, file.to_str().unwrap(), &again.0] {
            let got = logits(model, &ids);
            let most = want.values.iter().zip(&got.values).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(most < 1e-4, "{case}: {model} is off by {most}");
        }
    }
}

#[test]
fn the_trained_model_answers_from_a_folder_made_of_a_gguf_file() {
    let (file, folder) = (scratch("q8.gguf"), Folder::new("answers"));
    works(&["quantize", "-m", &trained(), "-o", file.to_str().unwrap(), "--type", "q8_0"]);
    let summary = json(&["quantize", "-m", file.to_str().unwrap(), "-o", &folder.0]);
    assert_eq!(summary["type"], "nvfp4_mix");
    let answer = json(&["run", "-m", &folder.0, "--temp", "0", "What is 17 + 25?"]);
    assert!(answer["content"].as_str().unwrap().contains("42"), "{answer}");
    assert_eq!(answer["finish_reason"], "stop");
    std::fs::remove_file(file).unwrap();
}

#[test]
fn folders_are_as_good_as_their_types() {
    for (kind, most) in [("bf16", 1e-8), ("f8_e4m3", 2e-3), ("nvfp4", 1.5e-2), ("nvfp4_mix", 7e-3)] {
        let folder = Folder::new(kind);
        let pure: &[&str] = if kind == "nvfp4" { &["--pure"] } else { &[] };
        works(&[&["quantize", "-m", &trained(), "-o", &folder.0, "--type", kind][..], pure].concat());
        let found = divergence(&folder.0);
        assert!(found <= most, "{kind}: {found} nats");
        // The same weights in the other container are the same numbers.
        if kind == "nvfp4" {
            let file = scratch("same.gguf");
            let rest = ["--tensor", "embed=f32", "--tensor", "mtp=f32"];
            let all = ["quantize", "-m", &folder.0, "-o", file.to_str().unwrap(), "--type", kind, "--pure"];
            works(&[&all[..], &rest].concat());
            let copied = divergence(file.to_str().unwrap());
            assert!((copied - found).abs() < 1e-6, "{copied} nats as a file, {found} as a folder");
        }
    }
}

/// Some pages of the held-out text.
fn text() -> String {
    let file = scratch("text.txt");
    let all = std::fs::read_to_string(repository("tests/fixtures/text/held-out.txt")).unwrap();
    std::fs::write(&file, &all[..all.floor_char_boundary(9000)]).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn calibration_helps_where_bits_are_few() {
    let (plain, calibrated, text) = (scratch("plain.gguf"), scratch("calibrated.gguf"), text());
    let quantize = |file: &std::path::Path, more: &[&str]| {
        let path = file.to_str().unwrap();
        let all = ["quantize", "-m", &trained(), "-o", path, "--type", "q2_k", "--pure", "--check", &text];
        json(&[&all[..], more].concat())
    };
    let without = quantize(&plain, &[]);
    let with = quantize(&calibrated, &["--calibrate", &text]);
    let mean = |summary: &serde_json::Value| summary["check"]["kld"]["mean"].as_f64().unwrap();
    assert!(mean(&with) < mean(&without), "{} after {}", mean(&with), mean(&without));
    let error = |summary: &serde_json::Value| {
        let errors = summary["errors"].as_array().unwrap();
        errors.iter().find(|e| e["weight"] == "experts_up").unwrap()["relative_error"].as_f64().unwrap()
    };
    assert!((0.05..0.5).contains(&error(&without)), "{without}");
    for file in [plain, calibrated] {
        std::fs::remove_file(file).unwrap();
    }
}

// Only there may any user make a link.
#[cfg(unix)]
#[test]
fn the_source_is_never_written_over() {
    let (source, link) = (scratch("source.gguf"), scratch("link.gguf"));
    let path = source.to_str().unwrap();
    works(&["synth", "tiny", "-o", path, "--quant", "q4_0"]);
    let before = std::fs::read(&source).unwrap();
    std::os::unix::fs::symlink(&source, &link).unwrap();
    for output in [path, link.to_str().unwrap()] {
        let error = refused(&["quantize", "-m", path, "-o", output, "--type", "q8_0", "--force"]);
        assert!(error.contains("being read"), "{error}");
    }
    // What is measured at the end is looked at before anything is replaced.
    let target = scratch("target.gguf");
    std::fs::write(&target, "precious").unwrap();
    let all = ["quantize", "-m", path, "-o", target.to_str().unwrap(), "--force", "--check", "no-such-text"];
    assert!(refused(&all).contains("no-such-text"));
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "precious");
    assert!(std::fs::read(&source).unwrap() == before);
    std::fs::remove_file(source).unwrap();
}

/// Scales of an f8 cache go with the weights into a folder, and are missed with a word in GGUF.
#[test]
fn kv_scales_are_kept() {
    let source = Folder::new("scaled");
    std::fs::create_dir(&source.0).unwrap();
    let original = repository("tests/fixtures/quant/modelopt-mixed");
    for name in ["config.json", "hf_quant_config.json", "model.safetensors"] {
        std::fs::copy(format!("{original}/{name}"), format!("{}/{name}", source.0)).unwrap();
    }
    let path = format!("{}/model.safetensors", source.0);
    let mut bytes = std::fs::read(&path).unwrap();
    let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..start]).unwrap();
    for (name, entry) in header.as_object().unwrap() {
        if name.ends_with(".k_scale") || name.ends_with(".v_scale") {
            let at = start + entry["data_offsets"][0].as_u64().unwrap() as usize;
            bytes[at..at + 4].copy_from_slice(&0.013f32.to_le_bytes());
        }
    }
    std::fs::write(&path, bytes).unwrap();
    let folder = Folder::new("kept");
    let types = ["--type", "f8_e4m3", "--tensor", "embed=f32", "--tensor", "head=f32", "--tensor", "*=f32"];
    works(&[&["quantize", "-m", &source.0, "-o", &folder.0][..], &types[..]].concat());
    let ids = format!("{original}/expected.safetensors");
    let score = |model: &str| {
        let out = scratch("scored.safetensors");
        works(&["logits", "-m", model, "--ids-file", &ids, "-o", out.to_str().unwrap(), "--kv-type", "f8"]);
        Logits::read(&out, "logits").values
    };
    let (want, got) = (score(&source.0), score(&folder.0));
    let most = want.iter().zip(&got).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(most < 2e-3, "off by {most}");
    let file = scratch("scaled.gguf");
    let summary = json(&["quantize", "-m", &source.0, "-o", file.to_str().unwrap(), "--type", "q8_0"]);
    assert!(summary["notes"].to_string().contains("KV cache"), "{summary}");
}

#[test]
fn outputs_that_cannot_be_are_refused() {
    let folder = Folder::new("refused");
    let error = refused(&["quantize", "-o", &folder.0, "--type", "q4_k"]);
    assert!(error.contains("q4_k") && error.contains("nvfp4_mix") && error.contains(".gguf"), "{error}");
    let error = refused(&["quantize", "-o", &folder.0, "--type", "nvfp4_mix", "--pure"]);
    assert!(error.contains("nvfp4_mix is a mix"), "{error}");
    let error = refused(&["quantize", "-o", &folder.0, "--calibrate", "no-such-text"]);
    assert!(error.contains("no-such-text"), "{error}");
    for (flags, word) in [(["--tensor", "norm=q8_0"], "`norm`"), (["--threads", "0"], "--threads is 0")] {
        let error = refused(&[&["quantize", "-o", &folder.0][..], &flags].concat());
        assert!(error.contains(word), "{error}");
    }
    std::fs::create_dir(&folder.0).unwrap();
    std::fs::write(format!("{}/precious", folder.0), "mine").unwrap();
    for force in [&[][..], &["--force"]] {
        let error = refused(&[&["quantize", "-o", &folder.0][..], force].concat());
        assert!(error.contains("not empty"), "{error}");
    }
    assert_eq!(std::fs::read_to_string(format!("{}/precious", folder.0)).unwrap(), "mine");
}
