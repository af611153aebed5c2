//! Which paths open, which files belong to them, and what is said when something is missing.

mod support;

use std::fs;
use std::path::Path;
#[cfg(unix)]
use std::process::Command;

use expect_test::expect;
use mambo_checkpoint::{
    Checkpoint, CheckpointError, ConfigFiles, Format, Metadata, json_number, write_safetensors,
};
use mambo_tensor::Shape;

/// A folder of small files, given as names and contents.
fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

fn weights(folder: &Path, file: &str, tensors: &[&str]) {
    let tensors: Vec<_> = tensors.iter().map(|name| (*name, Shape::from([2]), &[1.0f32, 2.0][..])).collect();
    write_safetensors(&folder.join(file), &tensors).unwrap();
}

fn sharded(index: &str) -> tempfile::TempDir {
    let folder = folder(&[("config.json", "{}"), ("model.safetensors.index.json", index)]);
    weights(folder.path(), "model-00001-of-00002.safetensors", &["a", "b"]);
    weights(folder.path(), "model-00002-of-00002.safetensors", &["c"]);
    folder
}

const INDEX: &str = r#"{"metadata": {"total_size": 24}, "weight_map": {
    "a": "model-00001-of-00002.safetensors", "b": "model-00001-of-00002.safetensors",
    "c": "model-00002-of-00002.safetensors"}}"#;

fn config(checkpoint: &Checkpoint) -> &ConfigFiles {
    match checkpoint.metadata() {
        Metadata::Config(config) => config,
        Metadata::Gguf(_) => panic!("a folder has configuration files"),
    }
}

/// Collects the messages of errors, with the temporary folder's name replaced.
#[derive(Default)]
struct Messages(String);

impl Messages {
    fn record<T>(&mut self, folder: &Path, result: Result<T, CheckpointError>) {
        let text = result.map(|_| ()).unwrap_err().to_string();
        self.0 += &text.replace(&folder.display().to_string(), "DIR");
        self.0.push('\n');
    }
}

#[test]
fn one_file_and_its_configuration() {
    let dir = folder(&[
        ("config.json", r#"{"time_step_limit": [0.0, Infinity]}"#),
        ("generation_config.json", r#"{"eos_token_id": [2, 11]}"#),
        ("tokenizer_config.json", r#"{"chat_template": "from config"}"#),
        ("tokenizer.json", "{\"model\": {}}"),
        ("chat_template.jinja", "from file"),
        ("hf_quant_config.json", r#"{"quantization": {"quant_algo": "FP8"}}"#),
    ]);
    weights(dir.path(), "model.safetensors", &["a"]);
    weights(dir.path(), "expected.safetensors", &["not a weight"]);
    for path in
        [dir.path().to_path_buf(), dir.path().join("config.json"), dir.path().join("model.safetensors")]
    {
        let checkpoint = Checkpoint::open(&path).unwrap();
        assert_eq!(checkpoint.source(), path.display().to_string());
        assert_eq!(checkpoint.format(), Format::Safetensors);
        assert_eq!(checkpoint.tensors().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["a"]);
        let config = config(&checkpoint);
        assert_eq!(json_number(&config.config["time_step_limit"][1]), Some(f64::INFINITY));
        assert_eq!(config.generation_config.as_ref().unwrap()["eos_token_id"][1], 11);
        assert_eq!(config.chat_template.as_deref(), Some("from file"));
        assert_eq!(config.tokenizer_json.as_deref(), Some("{\"model\": {}}"));
        assert_eq!(config.quant_config.as_ref().unwrap()["quantization"]["quant_algo"], "FP8");
    }
    fs::remove_file(dir.path().join("chat_template.jinja")).unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(config(&checkpoint).chat_template.as_deref(), Some("from config"));
}

#[test]
fn shards() {
    let mut messages = Messages::default();
    let dir = sharded(INDEX);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(checkpoint.tensors().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(checkpoint.total_bytes(), 24);
    for tensor in checkpoint.tensors() {
        assert_eq!(checkpoint.read(tensor).unwrap()[4..], 2f32.to_le_bytes());
    }

    let shard = dir.path().join("model-00002-of-00002.safetensors");
    messages.record(dir.path(), Checkpoint::open(&shard));
    fs::remove_file(shard).unwrap();
    messages.record(dir.path(), Checkpoint::open(dir.path()));
    assert_eq!(Checkpoint::open_metadata(dir.path()).unwrap().tensors().count(), 0);
    expect![[r#"
        DIR/model-00002-of-00002.safetensors: this is one shard of several; open the folder DIR instead
        DIR/model.safetensors.index.json: shard model-00002-of-00002.safetensors is missing; download it into the same folder
    "#]].assert_eq(&messages.0);
}

#[test]
fn wrong_indices() {
    let indices = [
        &INDEX.replace("\"c\"", "\"z\""),
        &INDEX.replace("weight_map", "weights"),
        r#"{"weight_map": {}}"#,
        r#"{"weight_map": {"a": 3}}"#,
        r#"{"weight_map": {"a": "../a.safetensors"}}"#,
        "{",
    ];
    let mut messages = Messages::default();
    for index in indices {
        let dir = sharded(index);
        messages.record(dir.path(), Checkpoint::open(dir.path()));
    }
    let dir = sharded(INDEX);
    weights(dir.path(), "model-00002-of-00002.safetensors", &["a", "c"]);
    messages.record(dir.path(), Checkpoint::open(dir.path()));
    expect![[r#"
        DIR/model.safetensors.index.json: tensor `z` should be in model-00002-of-00002.safetensors but is not there; the file is damaged, download or convert it again
        DIR/model.safetensors.index.json: there is no `weight_map` of tensor names to shard files; the file is damaged, download or convert it again
        DIR/model.safetensors.index.json: its `weight_map` is empty; the file is damaged, download or convert it again
        DIR/model.safetensors.index.json: the shard of tensor `a` is not a file name; the file is damaged, download or convert it again
        DIR/model.safetensors.index.json: the shard of tensor `a`, `../a.safetensors`, is not a file in the same folder; the file is damaged, download or convert it again
        DIR/model.safetensors.index.json: not valid JSON: EOF while parsing an object at line 1 column 1; correct the file or download it again
        DIR: there are two tensors named `a`; the file is damaged, download or convert it again
    "#]].assert_eq(&messages.0);
}

#[test]
fn gguf_files_and_folders() {
    let mut messages = Messages::default();
    let dir = folder(&[]);
    fs::write(dir.path().join("m.gguf"), support::good_gguf()).unwrap();
    fs::write(dir.path().join("renamed.bin"), support::good_gguf()).unwrap();
    for path in [dir.path().to_path_buf(), dir.path().join("m.gguf"), dir.path().join("renamed.bin")] {
        for checkpoint in [Checkpoint::open(&path).unwrap(), Checkpoint::open_metadata(&path).unwrap()] {
            assert_eq!(checkpoint.format(), Format::Gguf);
            assert_eq!(checkpoint.tensors().count(), 3);
        }
    }
    fs::write(dir.path().join("n.gguf"), "").unwrap();
    messages.record(dir.path(), Checkpoint::open(dir.path()));
    messages.record(dir.path(), Checkpoint::open(&dir.path().join("n.gguf")));
    expect![[r#"
        DIR: there are 2 GGUF files: m.gguf, n.gguf; give the path of one of them
        DIR/n.gguf: the header needs 4 bytes at offset 0, but only 0 are left; the file is cut off or damaged, download it again
    "#]].assert_eq(&messages.0);
}

#[test]
fn static_bytes() {
    let bytes: &'static [u8] = Vec::leak(support::good_gguf());
    let checkpoint = Checkpoint::from_bytes("built-in", bytes).unwrap();
    let tensor = checkpoint.tensor("a.weight").unwrap();
    checkpoint.release(tensor, 0..u64::MAX);
    let data = checkpoint.read(tensor).unwrap();
    assert!(bytes.as_ptr_range().contains(&data.as_ptr()), "not copied");
    assert!(format!("{checkpoint:?}").contains("built-in"));
}

#[test]
fn configuration_alone() {
    let mut messages = Messages::default();
    let dir = folder(&[("config.json", "{\"a\": 1}")]);
    for path in [dir.path().to_path_buf(), dir.path().join("config.json")] {
        let checkpoint = Checkpoint::open_metadata(&path).unwrap();
        assert_eq!(config(&checkpoint).config["a"], 1);
        assert_eq!((checkpoint.tensors().count(), checkpoint.total_bytes()), (0, 0));
    }
    messages.record(dir.path(), Checkpoint::open(dir.path()));
    expect![[r#"
        DIR: there are no weights (.safetensors or .gguf) in the folder; download the model's weights into it or give another path
    "#]].assert_eq(&messages.0);
}

#[test]
fn paths_that_hold_no_model() {
    let mut messages = Messages::default();
    let dir = folder(&[("notes.txt", "hello")]);
    messages.record(dir.path(), Checkpoint::open(&dir.path().join("absent")));
    messages.record(dir.path(), Checkpoint::open(dir.path()));
    messages.record(dir.path(), Checkpoint::open_metadata(dir.path()));
    messages.record(dir.path(), Checkpoint::open(&dir.path().join("notes.txt")));
    weights(dir.path(), "model.safetensors", &["a"]);
    messages.record(dir.path(), Checkpoint::open(dir.path()));
    fs::write(dir.path().join("config.json"), "{\"a\": 1,}").unwrap();
    messages.record(dir.path(), Checkpoint::open(dir.path()));
    fs::write(dir.path().join("config.json"), [0xff, 0xfe]).unwrap();
    messages.record(dir.path(), Checkpoint::open(dir.path()));
    fs::write(dir.path().join("config.json"), "{}").unwrap();
    fs::rename(dir.path().join("model.safetensors"), dir.path().join("x.safetensors")).unwrap();
    assert_eq!(Checkpoint::open(dir.path()).unwrap().tensors().count(), 1);
    weights(dir.path(), "y.safetensors", &["a"]);
    messages.record(dir.path(), Checkpoint::open(dir.path()));
    assert_eq!(Checkpoint::open_metadata(dir.path()).unwrap().tensors().count(), 0);
    expect![[r#"
        DIR/absent: there is no such file or folder; check the path
        DIR: there are no weights (.safetensors or .gguf) in the folder; download the model's weights into it or give another path
        DIR: there is no config.json; download the model's JSON files into the same folder as its weights
        DIR/notes.txt: this is not a model file; give a folder, a .gguf file or a .safetensors file
        DIR: there is no config.json; download the model's JSON files into the same folder as its weights
        DIR/config.json: not valid JSON: trailing comma at line 1 column 9; correct the file or download it again
        cannot read DIR/config.json: stream did not contain valid UTF-8; the file is damaged, download it again
        DIR: there are 2 safetensors files but no model.safetensors.index.json; download the index into the same folder
    "#]].assert_eq(&messages.0);
}

#[test]
fn a_split_gguf_opens_from_any_part_and_from_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let part = |index: u32, count: u32, name: &str| {
        let raw = support::Raw::gguf(1, 2).meta_u32("split.count", count).meta_u32("split.no", index);
        raw.tensor(name, &[4], 0, 0).data(32, 16).0
    };
    let path = |index: u32| folder.path().join(format!("big-{:05}-of-00003.gguf", index + 1));
    for index in 0..3 {
        fs::write(path(index), part(index, 3, &format!("tensor.{index}"))).unwrap();
    }
    for from in [path(0), path(2), folder.path().to_path_buf()] {
        let model = Checkpoint::open(&from).unwrap();
        let names: Vec<_> = model.tensors().map(|t| t.name.clone()).collect();
        assert_eq!(names, ["tensor.0", "tensor.1", "tensor.2"]);
        assert!(model.tensors().all(|t| model.read(t).unwrap().len() == 16));
    }
    fs::write(path(1), part(0, 3, "tensor.1")).unwrap();
    let error = Checkpoint::open(&path(0)).unwrap_err().to_string();
    assert!(error.contains("big-00002-of-00003.gguf") && error.contains("not part 2 of 3"), "{error}");
    fs::remove_file(path(1)).unwrap();
    let error = Checkpoint::open(&path(0)).unwrap_err().to_string();
    assert!(error.contains("big-00002-of-00003.gguf") && error.contains("missing"), "{error}");
    let renamed = folder.path().join("renamed.gguf");
    fs::write(&renamed, part(0, 3, "tensor.0")).unwrap();
    let error = Checkpoint::open(&renamed).unwrap_err().to_string();
    assert!(error.contains("which part"), "{error}");
}

#[test]
fn a_configuration_opens_alone_under_any_name() {
    let folder = folder(&[("nano.json", "{\"a\": 1}")]);
    let path = folder.path().join("nano.json");
    assert_eq!(config(&Checkpoint::open_metadata(&path).unwrap()).config["a"], 1);
    let error = Checkpoint::open(&path).unwrap_err().to_string();
    assert!(error.contains("nano.json"), "{error}");
}

/// Opens in a thread of its own, because opening a pipe may wait for ever.
#[cfg(unix)]
fn open_within_seconds(path: &Path) -> Result<Checkpoint, CheckpointError> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let owned = path.to_path_buf();
    std::thread::spawn(move || sender.send(Checkpoint::open(&owned)));
    let waited = receiver.recv_timeout(std::time::Duration::from_secs(20));
    waited.unwrap_or_else(|_| panic!("opening {} waits for ever", path.display()))
}

#[cfg(unix)]
#[test]
fn pipes_devices_and_sockets_are_refused() {
    let dir = folder(&[]);
    let at = |name: &str| dir.path().join(name);
    let pipe = |path: &Path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    let mut messages = Messages::default();
    pipe(&at("pipe.gguf"));
    messages.record(dir.path(), open_within_seconds(&at("pipe.gguf")));
    messages.record(dir.path(), open_within_seconds(dir.path()));
    fs::remove_file(at("pipe.gguf")).unwrap();
    pipe(&at("config.json"));
    weights(dir.path(), "model.safetensors", &["a"]);
    messages.record(dir.path(), open_within_seconds(dir.path()));
    let _listening = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    messages.record(dir.path(), open_within_seconds(&at("socket")));
    messages.record(dir.path(), open_within_seconds(Path::new("/dev/null")));
    fs::create_dir(at("folder.gguf")).unwrap();
    fs::remove_file(at("config.json")).unwrap();
    messages.record(dir.path(), open_within_seconds(dir.path()));
    expect![[r#"
        DIR/pipe.gguf: this is a named pipe, not a regular file; give a model file or the folder that holds it
        DIR/pipe.gguf: this is a named pipe, not a regular file; give a model file or the folder that holds it
        DIR/config.json: this is a named pipe, not a regular file; give a model file or the folder that holds it
        DIR/socket: this is a socket, not a regular file; give a model file or the folder that holds it
        /dev/null: this is a device, not a regular file; give a model file or the folder that holds it
        DIR/folder.gguf: this is a folder, not a regular file; give a model file or the folder that holds it
    "#]]
    .assert_eq(&messages.0);
}

/// What a folder lists may be gone when it is opened; a link to nothing is listed and gone at any time.
#[cfg(unix)]
#[test]
fn a_file_that_is_gone_when_it_is_opened_has_a_remedy() {
    let dir = folder(&[]);
    std::os::unix::fs::symlink(dir.path().join("moved"), dir.path().join("m.gguf")).unwrap();
    let mut messages = Messages::default();
    messages.record(dir.path(), Checkpoint::open(dir.path()));
    expect![[r#"
        cannot open DIR/m.gguf: No such file or directory (os error 2); it is a link to nothing or was moved meanwhile, open the model again once its files are complete
    "#]].assert_eq(&messages.0);
}
