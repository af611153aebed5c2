//! Weights find their tensors: in every naming of the family, with every mistake named.

mod common;

use std::path::Path;

use common::{GgufListing, Listed, fixture, fixture_config, folder, listing};
use expect_test::expect;
use mambo_checkpoint::{Checkpoint, GgufTensor, GgufWriter};
use mambo_kernel::{WeightSource, WeightUse};
use mambo_model::{ModelError, Transform, bind, describe};
use mambo_tensor::{DType, Shape};
use serde_json::Value;

fn open(name: &str, config: &Value, tensors: &[Listed]) -> Checkpoint {
    Checkpoint::open(&folder(name, config, tensors)).unwrap()
}

/// Binds and returns the error without the folder's path.
fn refused(name: &str, config: &str, edit: impl Fn(&mut Vec<Listed>)) -> String {
    let mut tensors = listing(name);
    edit(&mut tensors);
    let checkpoint = open(&format!("refused-{name}-{}", tensors.len()), &fixture_config(config), &tensors);
    let result: Result<_, ModelError> =
        describe(&checkpoint).and_then(|spec| bind(&checkpoint, &spec).map(|_| ()));
    result.unwrap_err().to_string().replace(checkpoint.source(), "FOLDER")
}

#[test]
fn every_tensor_of_a_real_file_is_used_once() {
    for name in ["mtp", "latent", "new-style", "odd"] {
        let tensors = listing(name);
        let checkpoint = open(&format!("all-{name}"), &fixture_config(name), &tensors);
        let spec = describe(&checkpoint).unwrap();
        assert_eq!(spec, fixture(name));
        let table = bind(&checkpoint, &spec).unwrap();
        let mut used: Vec<&str> = table.iter().flat_map(|w| w.tensor_names()).collect();
        used.sort_unstable();
        let mut stored: Vec<&str> = tensors.iter().map(|(name, ..)| name.as_str()).collect();
        stored.sort_unstable();
        assert_eq!(used, stored, "{name}");
        assert_eq!(table.stored_bytes(), checkpoint.total_bytes());
    }
}

#[test]
fn parts_are_the_mapped_bytes() {
    let checkpoint = open("parts", &fixture_config("mtp"), &listing("mtp"));
    let table = bind(&checkpoint, &describe(&checkpoint).unwrap()).unwrap();
    let experts = table.get("layers.1.experts_up").unwrap();
    assert_eq!((experts.dtype(), experts.shape(), experts.part_count()), (DType::F32, &[8, 48, 64][..], 8));
    assert_eq!(experts.usage(), WeightUse::Experts);
    assert_eq!(experts.part(7).unwrap().bytes.len(), 48 * 64 * 4);
    assert_eq!(experts.to_f32().unwrap(), vec![0.5; 8 * 48 * 64]);
    let taps = table.get("layers.0.conv_weight").unwrap();
    assert_eq!(taps.shape(), [256, 4]);
    let decay = table.get("layers.0.a").unwrap();
    assert_eq!(decay.transform(), Transform::NegExp);
    assert_eq!(decay.to_f32().unwrap(), vec![-(0.5f32.exp()); 8]);
    assert!(table.get("mtp.moe_norm").is_some());
    assert!(table.get("layers.0.nothing").is_none());
    experts.release(0);
}

#[test]
fn decay_in_bf16_becomes_f32() {
    let mut tensors = listing("odd");
    tensors.iter_mut().for_each(|t| t.1 = "BF16".to_owned());
    let checkpoint = open("bf16", &fixture_config("odd"), &tensors);
    let table = bind(&checkpoint, &describe(&checkpoint).unwrap()).unwrap();
    assert_eq!(table.get("layers.0.a").unwrap().dtype(), DType::F32);
    assert_eq!(table.get("layers.0.a").unwrap().to_f32().unwrap(), vec![-(0.5f32.exp()); 6]);
    assert_eq!(table.get("layers.0.d").unwrap().dtype(), DType::BF16);
    assert_eq!(table.get("layers.0.d").unwrap().to_f32().unwrap(), vec![0.5; 6]);
}

#[test]
fn wrappers_and_stacked_experts_are_found() {
    let mut tensors = listing("mtp");
    tensors.retain(|(name, ..)| !name.contains(".experts."));
    for layer in ["backbone.layers.1", "backbone.layers.3", "mtp.layers.1"] {
        let stacked = |name: &str, shape: [usize; 3]| {
            (format!("{layer}.mixer.{name}"), "F32".to_owned(), shape.to_vec())
        };
        tensors.push(stacked("experts.up_proj", [8, 48, 64]));
        tensors.push(stacked("switch_mlp.fc2.weight", [8, 64, 48]));
    }
    tensors.iter_mut().for_each(|t| t.0 = format!("language_model.{}", t.0));
    let inner = fixture_config("mtp");
    let config =
        serde_json::json!({"model_type": "nemotron_h_omni", "llm_config": inner, "vision_config": {}});
    let checkpoint = open("wrapped", &config, &tensors);
    let spec = describe(&checkpoint).unwrap();
    let table = bind(&checkpoint, &spec).unwrap();
    let experts = table.get("mtp.experts_down").unwrap();
    assert_eq!((experts.part_count(), experts.part(3).unwrap().bytes.len()), (8, 64 * 48 * 4));
    assert_eq!(experts.tensor_names(), ["language_model.mtp.layers.1.mixer.switch_mlp.fc2.weight"]);
}

#[test]
fn a_head_that_was_left_out_is_noted() {
    let mut tensors = listing("mtp");
    tensors.retain(|(name, ..)| !name.starts_with("mtp."));
    let checkpoint = open("no-mtp", &fixture_config("mtp"), &tensors);
    let spec = describe(&checkpoint).unwrap();
    assert!(spec.mtp.is_none());
    assert_eq!(spec.notes.len(), 1);
    bind(&checkpoint, &spec).unwrap();
}

#[test]
fn tied_embeddings_need_no_head() {
    let mut tensors = listing("odd");
    tensors.retain(|(name, ..)| name != "lm_head.weight");
    let mut config = fixture_config("odd");
    config["tie_word_embeddings"] = Value::Bool(true);
    let checkpoint = open("tied", &config, &tensors);
    let spec = describe(&checkpoint).unwrap();
    let table = bind(&checkpoint, &spec).unwrap();
    assert!(table.get("head").is_none());
    let graph = spec.trunk_graph(Default::default()).unwrap();
    let head = graph.nodes.iter().find(|node| node.label == "head").unwrap();
    assert_eq!(graph.weight(head.weights[0]).name, "embed");
    assert!(graph.weights.iter().all(|w| table.get(&w.name).is_some()));
}

#[test]
fn mistakes_are_named() {
    let find = |tensors: &mut Vec<Listed>, name: &str| tensors.iter().position(|t| t.0 == name).unwrap();
    let remove = |tensors: &mut Vec<Listed>, name: &str| {
        let at = find(tensors, name);
        tensors.remove(at);
    };
    let expert = "backbone.layers.1.mixer.experts.5.up_proj.weight";
    let messages = [
        refused("mtp", "mtp", |t| remove(t, "backbone.layers.0.mixer.A_log")),
        refused("mtp", "mtp", |t| remove(t, expert)),
        refused("mtp", "mtp", |t| remove(t, "mtp.layers.0.eh_proj.weight")),
        refused("mtp", "mtp", |t| t.truncate(1)),
        refused("latent", "mtp", |t| t.truncate(100)),
        refused("mtp", "mtp", |t| {
            let at = find(t, "backbone.layers.0.mixer.conv1d.weight");
            t[at].2 = vec![4, 1, 256];
            t.extend(["y1", "y2"].map(|n| (n.to_owned(), "F32".to_owned(), vec![1])));
        }),
    ];
    expect![[r#"
        FOLDER: tensor `backbone.layers.0.mixer.A_log` is missing (it holds `layers.0.a`); download the missing file of the model again
        FOLDER: tensor `backbone.layers.1.mixer.experts.5.up_proj.weight` is missing (it holds `layers.1.experts_up`); download the missing file of the model again
        FOLDER: tensor `mtp.layers.0.eh_proj.weight` is missing (it holds `mtp.eh_proj`); download the missing file of the model again
        FOLDER: tensor `backbone.layers.0.norm.weight` is missing (it holds `layers.0.norm`); download the missing file of the model again
        FOLDER: tensor `backbone.layers.1.mixer.gate.weight` has shape [16, 64], but `layers.1.router` needs [8, 64]; the metadata and the tensors are of different models, take both from one release
        FOLDER: tensor `backbone.layers.0.mixer.conv1d.weight` has shape [4, 1, 256], but `layers.0.conv_weight` needs [256, 4]; the metadata and the tensors are of different models, take both from one release"#]].assert_eq(&messages.join("\n"));
}

/// Writes a GGUF file of zeros with the header of a real one.
fn gguf(path: &Path, listing: &GgufListing) {
    let dtype = |name: &str| if name == "F32" { DType::F32 } else { DType::Q8_0 };
    let tensors: Vec<GgufTensor> = listing
        .tensors
        .iter()
        .map(|(name, t, shape)| GgufTensor {
            name: name.clone(),
            dtype: dtype(t),
            shape: Shape::new(shape).unwrap(),
        })
        .collect();
    let mut writer = GgufWriter::create(path, &listing.metadata(), &tensors).unwrap();
    for t in &tensors {
        let bytes = t.dtype.row_bytes(t.shape.elems()).unwrap();
        writer.write(&t.name, &vec![0; bytes]).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn a_real_gguf_header_binds() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tiny.gguf");
    let mut file = GgufListing::tiny_hybrid();
    gguf(&path, &file);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let spec = describe(&checkpoint).unwrap();
    let table = bind(&checkpoint, &spec).unwrap();
    assert_eq!(table.stored_bytes(), checkpoint.total_bytes());
    let decay = table.get("layers.0.a").unwrap();
    assert_eq!((decay.transform(), decay.to_f32().unwrap()), (Transform::None, vec![0.0; 8]));
    let experts = table.get("mtp.experts_up").unwrap();
    assert_eq!((experts.dtype(), experts.part_count()), (DType::Q8_0, 16));
    assert_eq!(experts.part(15).unwrap().bytes.len(), 256 * 256 / 32 * 34);
    assert_eq!(table.get("layers.0.ssm_norm").unwrap().shape(), [512]);

    file.tensors.retain(|(name, ..)| name != "blk.2.ssm_d");
    gguf(&path, &file);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let error = bind(&checkpoint, &describe(&checkpoint).unwrap()).err().unwrap();
    expect!["FILE: tensor `blk.2.ssm_d` is missing (it holds `layers.2.d`); convert the model again with a current converter"].assert_eq(&error.to_string().replace(checkpoint.source(), "FILE"));
}
