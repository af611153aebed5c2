//! Bad input: one clear sentence with the remedy, exit code 1, no panic.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

fn fixture(case: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/checkpoints").join(case)
}

/// A copy of a golden checkpoint that a test may damage.
struct Copy(PathBuf);

impl Copy {
    fn of(case: &str, name: &str) -> Copy {
        let folder = std::env::temp_dir().join(format!("mambo-bad-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for file in ["config.json", "model.safetensors"] {
            std::fs::copy(fixture(case).join(file), folder.join(file)).unwrap();
        }
        Copy(folder)
    }

    fn config(&self, change: impl Fn(&mut Value)) {
        let path = self.0.join("config.json");
        let mut config: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        change(&mut config);
        std::fs::write(path, config.to_string()).unwrap();
    }

    /// Rewrites the header of the weights; its length may not change.
    fn header(&self, from: &str, to: &str) {
        assert_eq!(from.len(), to.len());
        let path = self.0.join("model.safetensors");
        let mut bytes = std::fs::read(&path).unwrap();
        let at = bytes.windows(from.len()).position(|w| w == from.as_bytes()).expect("the header holds it");
        bytes[at..at + from.len()].copy_from_slice(to.as_bytes());
        std::fs::write(path, bytes).unwrap();
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs `mambo logits` and returns its one sentence.
fn refused(model: &Path, more: &[&str]) -> String {
    let out = std::env::temp_dir().join(format!("mambo-bad-{}.safetensors", std::process::id()));
    let mut command = Command::new(env!("CARGO_BIN_EXE_mambo"));
    command.arg("logits").arg("-m").arg(model);
    if !more.contains(&"--ids") {
        command.args(["--ids", "1,2,3"]);
    }
    if !more.contains(&"-o") {
        command.arg("-o").arg(out);
    }
    sentence(command.args(more))
}

fn sentence(command: &mut Command) -> String {
    let output = command.output().expect("the program starts");
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(output.stdout.is_empty(), "nothing on standard output");
    assert!(!text.contains("panicked") && !text.contains('\n') && text.starts_with("mambo: "), "{text}");
    text
}

fn assert_names(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
}

#[test]
fn unknown_architecture() {
    let copy = Copy::of("dense", "architecture");
    copy.config(|c| {
        c["model_type"] = json!("llama4");
        c["architectures"] = json!(["Llama4ForCausalLM"]);
    });
    assert_names(&refused(&copy.0, &[]), &["llama4", "nemotron_h"]);
}

#[test]
fn missing_tensor() {
    let copy = Copy::of("dense", "tensor");
    copy.header("backbone.layers.0.norm.weight", "backbone.layers.0.gone.weight");
    assert_names(&refused(&copy.0, &[]), &["backbone.layers.0.norm.weight"]);
}

#[test]
fn wrong_shape() {
    let copy = Copy::of("dense", "shape");
    copy.config(|c| c["intermediate_size"] = json!(161));
    assert_names(&refused(&copy.0, &[]), &["up_proj.weight", "161"]);
}

#[test]
fn a_scale_that_is_none() {
    let copy = Copy::of("../quant/modelopt-nvfp4", "scale");
    let path = copy.0.join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let name = "backbone.layers.0.mixer.in_proj.weight_scale";
    let start = header[name]["data_offsets"][0].as_u64().unwrap() as usize;
    bytes[8 + length + start + 9] = 0x7f;
    std::fs::write(&path, bytes).unwrap();
    assert_names(&refused(&copy.0, &[]), &[name, "NaN"]);
}

#[test]
fn prompt_longer_than_the_context() {
    assert_names(&refused(&fixture("dense"), &["--context", "2"]), &["3 tokens", "2", "--context"]);
}

#[test]
fn token_outside_the_vocabulary() {
    assert_names(&refused(&fixture("dense"), &["--ids", "1,99999"]), &["99999", "vocabulary"]);
}

#[test]
fn model_larger_than_memory() {
    // A context this long wants a KV cache of terabytes.
    let text = refused(&fixture("dense"), &["--context", "2000000000"]);
    assert_names(&text, &["memory", "KV cache", "--context"]);
}

#[test]
fn unwritable_output() {
    assert_names(
        &refused(&fixture("dense"), &["-o", "/nonexistent/folder/out.safetensors"]),
        &["/nonexistent/folder"],
    );
}

#[test]
fn nothing_there() {
    assert_names(&refused(Path::new("no-such-model"), &[]), &["no-such-model"]);
    assert_names(&refused(Path::new("someone/some-model"), &[]), &["someone/some-model", "hub cache"]);
}

#[test]
fn files_that_are_something_else() {
    let copy = Copy::of("dense", "garbage");
    std::fs::write(copy.0.join("model.safetensors"), b"not a tensor file").unwrap();
    assert_names(&refused(&copy.0, &[]), &["model.safetensors"]);
    let gguf = copy.0.join("broken.gguf");
    std::fs::write(&gguf, b"GGUF\x03\x00\x00\x00").unwrap();
    assert_names(&refused(&gguf, &[]), &["broken.gguf"]);
}

#[test]
fn a_request_that_would_be_half_ignored() {
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_mambo")).arg("run").args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for flag in [&["--system", "x"][..], &["--tools", "x"], &["--no-think"]] {
        assert_names(&run(&[&["--raw", "hello"], flag].concat()), &["--raw", flag[0]]);
    }
    assert_names(&run(&["--logprobs", "2", "hello"]), &["--json"]);
    let file = std::env::temp_dir().join(format!("mambo-bad-{}-think.json", std::process::id()));
    std::fs::write(&file, r#"{"messages": [], "enable_thinking": "no"}"#).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_mambo"));
    assert_names(&sentence(command.args(["run", "--messages"]).arg(&file)), &["enable_thinking", "true"]);
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn nonsense_flags() {
    let model = fixture("dense");
    assert_names(&refused(&model, &["--threads", "0"]), &["--threads"]);
    assert_names(&refused(&model, &["--chunk", "0"]), &["--chunk"]);
    assert_names(&refused(&model, &["--context", "0"]), &["--context"]);
    // Sizes that would wrap around and look small.
    for huge in ["9007199254740992", "18446744073709551615", "4294967296"] {
        assert_names(&refused(&model, &["--context", huge]), &[huge, "2147483648"]);
    }
    let huge = "18446744073709551615";
    for beside in [huge, "2000000", "100000"] {
        assert_names(&refused(&model, &["--beside", beside]), &["--beside"]);
    }
    assert_names(&refused(&model, &["--ids", "1,99999"]), &["--ids gives the tokens"]);
    for arguments in [["explain", "--tokens", huge], ["explain", "--context", huge]] {
        assert_names(&sentence(Command::new(env!("CARGO_BIN_EXE_mambo")).args(arguments)), &[huge]);
    }
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mambo"));
        sentence(command.arg("run").args(arguments))
    };
    for (flag, field) in [
        ("--temp=-1", "temperature is -1"),
        ("--top-p=7", "top_p is 7"),
        ("--min-p=7", "min_p is 7"),
        ("--repetition-penalty=0", "repetition_penalty is 0"),
        ("--tokens=0", "max_tokens is 0"),
    ] {
        let (name, _) = flag.split_once('=').unwrap();
        assert_names(&run(&[flag, "hello"]), &[field, &format!("; {name} sets it")]);
    }
    assert_names(&run(&["--logit-bias", "99999=1", "hello"]), &["99999", "--logit-bias"]);
    assert_names(&run(&["--raw", ""]), &["prompt is empty"]);
    let output = std::env::temp_dir().join(format!("mambo-bad-{}.gguf", std::process::id()));
    let mut command = Command::new(env!("CARGO_BIN_EXE_mambo"));
    let synth = command.args(["synth", "tiny", "--quant", "f8_e4m3", "-o"]).arg(&output);
    assert_names(&sentence(synth), &["f8_e4m3", "q8_0", "--quant names the type"]);
}

#[test]
fn requests_that_are_none() {
    let file = std::env::temp_dir().join(format!("mambo-bad-{}-request.json", std::process::id()));
    let refused = |flags: &[&str], text: &str| {
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_mambo"));
        sentence(command.arg("run").args(flags).arg(&file))
    };
    let name = file.display().to_string();
    for (text, words) in [
        ("", &["not JSON", "--messages takes a JSON list"][..]),
        ("[]", &["messages: expected at least one message", "\"role\""]),
        ("{}", &["messages: expected at least one message"]),
        (r#"{"messages": []}"#, &["messages: expected at least one message"]),
        (r#"{"messages": "hi"}"#, &["`messages`", "a string", "make it a list"]),
        ("\"hi\"", &["a string", "--messages takes a JSON list"]),
        (r#"{"messages": [{"role": "user", "content": "x"}], "tools": [1]}"#, &["tools[0]: "]),
    ] {
        let sentence = refused(&["--messages"], text);
        assert_names(&sentence, &[&[name.as_str()][..], words].concat());
    }
    for (text, words) in [
        ("", &["not JSON", "--tools takes a JSON list"][..]),
        ("{}", &["an object", "--tools takes a JSON list"]),
        (r#"["f"]"#, &["tools[0]: expected an object"]),
        (r#"[{"type": "function", "function": {}}]"#, &["tools[0].function.name: "]),
        (r#"[{"role": "user", "content": "x"}]"#, &["tools[0].name: "]),
        (r#"[{"name": "f", "parameters": 3}]"#, &["tools[0].parameters: "]),
    ] {
        let sentence = refused(&["hello", "--tools"], text);
        assert_names(&sentence, &[&[name.as_str()][..], words].concat());
    }
    std::fs::remove_file(&file).unwrap();
}
