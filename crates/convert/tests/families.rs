//! The golden files of every family, written as GGUF and read back: the same logits.

#[path = "../../engine/tests/golden_files/mod.rs"]
mod golden_files;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use golden_files::{expected, largest_difference, score};
use mambo_convert::{Container, ConvertError, Output, Recipe, convert};
use mambo_kernel::ReferenceBackend;
use mambo_runtime::{LoadOptions, Model, OpenOptions};

/// How far logits may be off: as in the tests of the golden files themselves.
const MOST: f32 = 1e-3;

fn cases() -> Vec<PathBuf> {
    let families = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/families");
    let mut folders: Vec<PathBuf> =
        std::fs::read_dir(families).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    assert!(folders.len() >= 33);
    folders
}

fn written(source: &Path, target: &Path, kind: &str) -> Result<(), ConvertError> {
    let model = Model::open(source, &OpenOptions::default()).unwrap();
    let recipe = Recipe::named(kind, Container::of(target)).unwrap();
    let output = Output { path: target, replace: true, threads: 2 };
    convert(&model, &recipe, None, output, &mut |_| ControlFlow::Continue(())).map(|_| ())
}

/// Logits of the golden text on the plain reference.
fn logits(path: &Path, ids: &[u32]) -> Vec<f32> {
    let options = LoadOptions { at_least_tokens: ids.len(), ..Default::default() }.exact();
    let model = Model::open(path, &OpenOptions::default()).unwrap();
    let mut engine = model.load(Box::new(ReferenceBackend::new()), &options, &mut |_| {}).unwrap();
    score(&mut engine, ids, 64, 0).0
}

#[test]
fn every_family_survives_a_gguf_file() {
    let mut wrong = Vec::new();
    for folder in cases() {
        let (case, want) = (folder.file_name().unwrap().to_string_lossy(), expected(&folder));
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{case}.gguf"));
        written(&folder, &file, "f32").unwrap();
        // What was read from such a file is written as the same file.
        let again = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{case}-again.gguf"));
        written(&file, &again, "f32").unwrap();
        for file in [&file, &again] {
            let off = largest_difference(&logits(file, &want.ids), &want.logits);
            if off > MOST {
                wrong.push(format!("{}: logits off by {off}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Factors, norms next to one and joined tensors would be read a second time.
#[test]
fn folders_of_families_that_keep_weights_otherwise_are_refused() {
    for folder in cases() {
        let case = folder.file_name().unwrap().to_string_lossy().into_owned();
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{case}-folder"));
        let _ = std::fs::remove_dir_all(&target);
        let want = expected(&folder);
        match written(&folder, &target, "f32") {
            Ok(()) => {
                let off = largest_difference(&logits(&target, &want.ids), &want.logits);
                assert!(off < MOST, "{case}: logits off by {off}");
            }
            Err(error) => {
                let told = error.to_string();
                assert!(told.contains("cannot be written as safetensors folders yet"), "{case}: {told}");
            }
        }
    }
}
