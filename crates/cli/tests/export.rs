//! Files that `synth` and `quantize` write: the same every time, readable, and true to their source.

mod golden;
mod program;

use golden::{Logits, repository, score};
use program::{fixture, json, refused, scratch, works};

const TYPES: [&str; 17] = [
    "f32", "f16", "bf16", "q8_0", "q6_k", "q5_1", "q5_k", "q5_0", "q4_1", "q4_k", "iq4_nl", "q4_0", "nvfp4",
    "iq4_xs", "mxfp4", "q3_k", "q2_k",
];

/// The name of a file that goes when the test is done with it: models are large.
struct Passing(String);

impl std::ops::Deref for Passing {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        // Where a test expects a refusal there is no file.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn path(name: &str) -> Passing {
    Passing(scratch(name).to_str().unwrap().to_owned())
}

#[test]
fn a_seed_gives_the_same_file_whatever_the_threads() {
    let (one, many, other) = (path("seed-1.gguf"), path("seed-3.gguf"), path("seed-other.gguf"));
    works(&["synth", "tiny", "-o", &one, "--seed", "5", "-t", "1"]);
    works(&["synth", "tiny", "-o", &many, "--seed", "5", "-t", "3"]);
    works(&["synth", "tiny", "-o", &other, "--seed", "6"]);
    let read = |path: &str| std::fs::read(path).unwrap();
    assert!(read(&one) == read(&many), "threads change the file");
    assert!(read(&one) != read(&other), "seeds do not change the file");
}

#[test]
fn random_models_of_every_type_load_and_stay_in_range() {
    for kind in TYPES {
        let file = path(&format!("synth-{kind}.gguf"));
        let summary = json(&["synth", "tiny", "-o", &file, "--quant", kind]);
        assert_eq!(summary["bytes"], std::fs::metadata(&*file).unwrap().len());
        // Where other programs read no factor, another type stands in for nvfp4.
        let notes = usize::from(kind == "nvfp4");
        assert_eq!(summary["notes"].as_array().unwrap().len(), notes, "{summary}");
        let logits = score(&format!("synth-{kind}"), Some(&file), &["--ids", "1,468,469,290,416,43,448,325"]);
        let logits = Logits::read(&logits, "logits");
        let squares: f64 = logits.values.iter().map(|&v| f64::from(v).powi(2)).sum();
        let size = (squares / logits.values.len() as f64).sqrt();
        assert!((0.5..2.0).contains(&size), "{kind}: logits of size {size}");
        let mut choices = logits.choices();
        choices.sort_unstable();
        choices.dedup();
        assert!(choices.len() > 4, "{kind}: the answer does not depend on the input");
    }
}

#[test]
fn random_models_have_a_tokenizer_and_a_template() {
    let file = path("synth-text.gguf");
    works(&["synth", "tiny", "-o", &file]);
    let answer = json(&["run", "-m", &file, "-n", "4", "--temp", "0", "Hello there!"]);
    assert!(answer["prompt_tokens"].as_u64().unwrap() > 8, "{answer}");
}

/// Every kind of layer, written without loss, computes the same bits as its source.
#[test]
fn lossless_files_compute_the_same_bits() {
    for case in ["dense", "moe", "latent", "mtp", "odd", "router-groups", "new-style", "small-dt"] {
        let file = path(&format!("lossless-{case}.gguf"));
        works(&["quantize", "-m", &fixture(case), "-o", &file, "--type", "f32"]);
        let ids = format!("{}/expected.safetensors", fixture(case));
        let source = score(&format!("source-{case}"), Some(&fixture(case)), &["--ids-file", &ids]);
        let copy = score(&format!("copy-{case}"), Some(&file), &["--ids-file", &ids]);
        assert!(std::fs::read(source).unwrap() == std::fs::read(copy).unwrap(), "{case}");
    }
}

#[test]
fn text_survives_every_conversion() {
    let (whole, small) = (path("text-bf16.gguf"), path("text-q8_0.gguf"));
    works(&["quantize", "-m", &repository("models/tiny-hybrid"), "-o", &whole, "--type", "bf16"]);
    works(&["quantize", "-m", &whole, "-o", &small, "--type", "q8_0"]);
    for file in [&whole, &small] {
        let answer = json(&["run", "-m", file, "--temp", "0", "What is 17 + 25?"]);
        assert_eq!(answer["content"], "42", "{answer}");
        assert_eq!(answer["finish_reason"], "stop");
    }
}

#[test]
fn types_cost_what_they_promise_and_err_in_order() {
    let ids = repository("tests/fixtures/quant/tiny-hybrid.safetensors");
    let original = Logits::read(ids.as_ref(), "logits");
    let mut last = (u64::MAX, 0.0);
    for kind in ["bf16", "q8_0", "q6_k", "q5_0", "q4_k"] {
        let file = path(&format!("order-{kind}.gguf"));
        let model = repository("models/tiny-hybrid");
        let summary = json(&["quantize", "-m", &model, "-o", &file, "--type", kind]);
        let logits = score(&format!("order-{kind}"), Some(&file), &["--ids-file", &ids]);
        let found =
            (summary["bytes"].as_u64().unwrap(), original.divergence(&Logits::read(&logits, "logits")));
        assert!(found.0 < last.0 && found.1 > last.1, "{kind}: {found:?} after {last:?}");
        assert!(found.1 < 0.02, "{kind}: {} nats", found.1);
        last = found;
    }
}

#[test]
fn some_weights_may_be_stored_otherwise() {
    let file = path("rules.gguf");
    let model = repository("models/tiny-hybrid");
    let all = ["quantize", "-m", &model, "-o", &file, "--type", "q4_0", "--pure", "--tensor", "head=q8_0"];
    let summary =
        json(&[&all[..], &["--tensor", "mtp=f16", "--tensor", "layers.1*.experts_*=q5_1"]].concat());
    assert_eq!(summary["types"]["q8_0"]["tensors"], 1);
    assert_eq!(summary["types"]["f16"]["tensors"], 9);
    assert_eq!(summary["types"]["q5_1"]["tensors"], 6);
}

#[test]
fn mistakes_are_named_with_their_remedy() {
    let file = path("mistakes.gguf");
    let error = refused(&["synth", "nano-5b", "-o", &file]);
    assert!(error.contains("`nano-5b`") && error.contains("tiny") && error.contains("nano-30b"), "{error}");
    for command in [["synth", "tiny", "--quant", "q9"], ["quantize", "--force", "--type", "q9"]] {
        let error = refused(&[&command[..], &["-o", &file]].concat());
        assert!(error.contains("`q9`") && error.contains("q4_0") && error.contains("builtin"), "{error}");
    }
    let error = refused(&["quantize", "--type", "q8_0", "-o", &file, "--tensor", "wing=q4_0"]);
    assert!(error.contains("`wing`"), "{error}");
    let error = refused(&["quantize", "--type", "q8_0", "-o", &file, "--tensor", "head"]);
    assert!(error.contains("WEIGHT=TYPE"), "{error}");
    let error = refused(&["synth", "tiny", "-o", &path("no/such/folder/x.gguf")]);
    assert!(error.contains("cannot write") && error.contains("no/such/folder"), "{error}");
    let error = refused(&["synth", "tiny", "-o", std::env::temp_dir().to_str().unwrap()]);
    assert!(error.contains("folder"), "{error}");
    assert!(!scratch("mistakes.gguf").exists() && !scratch("mistakes.gguf.partial").exists());
}

#[cfg(unix)]
#[test]
fn interrupting_leaves_nothing_behind() {
    let file = path("interrupted.gguf");
    let folder = std::path::Path::new(&*file).parent().unwrap();
    let files = || std::fs::read_dir(folder).unwrap().count();
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_mambo"))
        .args(["synth", "nano-4b", "-o", &file, "-t", "1"])
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    while files() == 0 {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it was stopped");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let kill = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(kill.unwrap().success());
    let sentence = program::refusal(&child.wait_with_output().unwrap());
    assert!(sentence.contains("stopped"), "{sentence}");
    assert_eq!(files(), 0);
}

#[test]
fn a_file_is_only_replaced_when_asked() {
    let file = path("exists.gguf");
    std::fs::write(&*file, "precious").unwrap();
    for command in [&["synth", "tiny"][..], &["quantize", "--type", "q8_0"]] {
        let error = refused(&[command, &["-o", &file]].concat());
        assert!(error.contains("exists") && error.contains("--force"), "{error}");
        assert_eq!(std::fs::read_to_string(&*file).unwrap(), "precious");
    }
    works(&["synth", "tiny", "-o", &file, "--force"]);
    assert!(std::fs::metadata(&*file).unwrap().len() > 1_000_000);
}
