//! Weights that are not numbers: whoever would measure, convert or answer with them says which file is damaged.

mod golden;
mod program;

use std::path::PathBuf;

use golden::repository;
use program::{refused, scratch};
use serde_json::Value;

/// A copy of the trained model in which the first value of a tensor is NaN; gone with the test.
struct Damaged(PathBuf);

impl Damaged {
    fn new(tensor: &str) -> Damaged {
        let folder = scratch("damaged");
        std::fs::create_dir(&folder).unwrap();
        for entry in std::fs::read_dir(repository("models/tiny-hybrid")).unwrap() {
            let path = entry.unwrap().path();
            std::fs::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
        }
        let index = std::fs::read(folder.join("model.safetensors.index.json")).unwrap();
        let index: Value = serde_json::from_slice(&index).unwrap();
        let shard = folder.join(index["weight_map"][tensor].as_str().unwrap());
        let mut bytes = std::fs::read(&shard).unwrap();
        let data = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header: Value = serde_json::from_slice(&bytes[8..data]).unwrap();
        assert_eq!(header[tensor]["dtype"], "BF16");
        let at = data + header[tensor]["data_offsets"][0].as_u64().unwrap() as usize;
        bytes[at..at + 2].copy_from_slice(&[0xc0, 0x7f]);
        std::fs::write(&shard, bytes).unwrap();
        Damaged(folder)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Damaged {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[track_caller]
fn assert_names(sentence: &str, words: &[&str]) {
    for word in words {
        assert!(sentence.contains(word), "`{word}` is not in: {sentence}");
    }
}

#[test]
fn logits_that_are_not_numbers_are_not_measured() {
    let model = Damaged::new("lm_head.weight");
    let (path, text) = (model.path(), repository("tests/fixtures/text/held-out.txt"));
    let out = scratch("logits.safetensors");
    let logits = ["logits", "-m", path, "--ids", "1,2,3", "-o", out.to_str().unwrap()];
    let text = ["--text", &text, "--window", "16", "--windows", "2"];
    let base = repository("models/tiny-hybrid");
    let commands = [
        logits.to_vec(),
        [&["eval", "ppl", "-m", path][..], &text].concat(),
        [&["eval", "kld", "-m", path, "--base", &base][..], &text].concat(),
        [&["eval", "kld", "-m", &base, "--base", path][..], &text].concat(),
    ];
    for command in commands {
        assert_names(&refused(&command), &[path, "position 0", "NaN", "download it again"]);
    }
    assert!(!out.exists(), "no file of logits that are not numbers");
}

#[test]
fn quantize_copies_nothing_that_is_not_a_number() {
    let model = Damaged::new("lm_head.weight");
    let out = scratch("out.gguf");
    // The same type as stored, and another one.
    for kind in ["bf16", "q8_0"] {
        let all = ["quantize", "-m", model.path(), "-o", out.to_str().unwrap(), "--type", kind];
        let words = [model.path(), "`lm_head.weight`", "NaN", "row 0, column 0", "download it again"];
        assert_names(&refused(&all), &words);
    }
    assert!(!out.exists());
}

#[test]
fn an_answer_that_cannot_go_on_names_the_model() {
    let model = Damaged::new("backbone.layers.0.mixer.in_proj.weight");
    for command in [&["run", "Hello!"][..], &["bench", "-p", "4", "-n", "2", "-b", "1", "-r", "1"]] {
        let sentence = refused(&[command, &["-m", model.path()]].concat());
        assert_names(&sentence, &[model.path(), "no token can follow position", "damaged"]);
    }
}

/// Rounded activations and chosen experts would hide these.
#[test]
fn small_weights_are_looked_at_before_they_are_loaded() {
    for tensor in ["backbone.norm_f.weight", "backbone.layers.1.mixer.gate.weight"] {
        let model = Damaged::new(tensor);
        let text = repository("tests/fixtures/text/held-out.txt");
        for command in [&["run", "Hello!"][..], &["eval", "ppl", "--windows", "1", "--text", &text]] {
            let sentence = refused(&[command, &["-m", model.path()]].concat());
            assert_names(&sentence, &[model.path(), &format!("`{tensor}` holds NaN"), "download it again"]);
        }
    }
}
