//! From a path to a checkpoint: which files belong to it and in which format. Knows no file's inside.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::config::read_text;
use crate::mapping::Bytes;
use crate::{Checkpoint, CheckpointError, ConfigFiles, Format, Metadata, gguf, safetensors};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

impl Checkpoint {
    /// Opens a model: a folder with `config.json` and safetensors weights (one file or shards with an index),
    /// a folder with one GGUF file, a `.gguf` file, or a `.safetensors` file beside its `config.json`.
    pub fn open(path: &Path) -> Result<Checkpoint, CheckpointError> {
        open(path, true)
    }

    /// Like [`Checkpoint::open`], but the weights may be missing: `config.json` alone is enough, under any name
    /// that ends in `.json`. The tensor list is empty unless all weights are there.
    pub fn open_metadata(path: &Path) -> Result<Checkpoint, CheckpointError> {
        open(path, false)
    }

    /// Opens a model that is part of the program; `name` stands for the path in messages.
    pub fn from_bytes(name: &str, bytes: &'static [u8]) -> Result<Checkpoint, CheckpointError> {
        from_memory(name, Bytes::Static(bytes))
    }

    /// Opens a GGUF or safetensors file that was read into memory. Safetensors come without metadata.
    pub fn from_vec(name: &str, bytes: Vec<u8>) -> Result<Checkpoint, CheckpointError> {
        from_memory(name, Bytes::Owned(bytes))
    }

    /// Opens a safetensors file and the files beside it, all read into memory.
    pub fn from_folder(
        name: &str,
        beside: ConfigFiles,
        weights: Vec<u8>,
    ) -> Result<Checkpoint, CheckpointError> {
        folder_in_memory(name, beside, Bytes::Owned(weights))
    }
}

fn from_memory(name: &str, bytes: Bytes) -> Result<Checkpoint, CheckpointError> {
    if bytes.as_slice().starts_with(gguf::MAGIC) {
        let (metadata, tensors) = gguf::read(name, bytes.as_slice(), 0)?;
        gguf::split::check_part(name, &metadata, 0, 1)?;
        return Checkpoint::new(
            name.to_string(),
            Format::Gguf,
            Metadata::Gguf(metadata),
            tensors,
            vec![bytes],
        );
    }
    folder_in_memory(name, ConfigFiles::default(), bytes)
}

fn folder_in_memory(name: &str, beside: ConfigFiles, bytes: Bytes) -> Result<Checkpoint, CheckpointError> {
    let tensors = safetensors::read(name, bytes.as_slice(), 0)?;
    Checkpoint::new(name.to_string(), Format::Safetensors, Metadata::Config(beside), tensors, vec![bytes])
}

fn open(path: &Path, need_weights: bool) -> Result<Checkpoint, CheckpointError> {
    let metadata = fs::metadata(path).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => {
            not_a_checkpoint(path, "there is no such file or folder", "check the path")
        }
        _ => CheckpointError::io("open", path)(e),
    })?;
    if metadata.is_dir() {
        return open_folder(path, path, need_weights);
    }
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if name == "config.json" || name == INDEX {
        return open_folder(path, folder, need_weights);
    }
    if name.ends_with(".json") && !need_weights {
        return without_weights(path, ConfigFiles::read_alone(path)?);
    }
    let bytes = Bytes::map(path)?;
    if name.ends_with(".gguf") || bytes.as_slice().starts_with(gguf::MAGIC) {
        return open_gguf(path, bytes);
    }
    if name.ends_with(".safetensors") {
        if is_shard(&name) {
            let remedy = format!("open the folder {} instead", folder.display());
            return Err(not_a_checkpoint(path, "this is one shard of several", remedy));
        }
        let config = ConfigFiles::read(folder)?;
        return single_file(path, config, path);
    }
    let remedy = "give a folder, a .gguf file or a .safetensors file";
    Err(not_a_checkpoint(path, "this is not a model file", remedy))
}

/// `model-00001-of-00003.safetensors`
fn is_shard(name: &str) -> bool {
    let Some(stem) = name.strip_suffix(".safetensors") else { return false };
    let Some((rest, total)) = stem.rsplit_once("-of-") else { return false };
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    digits(total) && rest.rsplit_once('-').is_some_and(|(_, part)| digits(part))
}

/// `source` is the path the user gave: the folder, or a file in it.
fn open_folder(source: &Path, folder: &Path, need_weights: bool) -> Result<Checkpoint, CheckpointError> {
    let has_config = folder.join("config.json").exists();
    let ggufs = files_ending(folder, ".gguf")?;
    if let Some(file) = one_gguf(&ggufs)
        && !has_config
    {
        return open_gguf(file, Bytes::map(file)?);
    }
    if folder.join(INDEX).exists() {
        return sharded(source, folder, ConfigFiles::read(folder)?, need_weights);
    }
    let single = folder.join(SINGLE);
    if single.exists() {
        return single_file(source, ConfigFiles::read(folder)?, &single);
    }
    let others = files_ending(folder, ".safetensors")?;
    if let [file] = others.as_slice() {
        return single_file(source, ConfigFiles::read(folder)?, file);
    }
    if !need_weights && (has_config || ggufs.is_empty()) {
        return without_weights(source, ConfigFiles::read(folder)?);
    }
    if !others.is_empty() {
        let problem = format!("there are {} safetensors files but no {INDEX}", others.len());
        return Err(not_a_checkpoint(folder, problem, "download the index into the same folder"));
    }
    if let Some(file) = one_gguf(&ggufs) {
        return open_gguf(file, Bytes::map(file)?);
    }
    match ggufs.as_slice() {
        [] => {
            let problem = "there are no weights (.safetensors or .gguf) in the folder";
            Err(not_a_checkpoint(
                folder,
                problem,
                "download the model's weights into it or give another path",
            ))
        }
        several => {
            let names: Vec<_> = several.iter().filter_map(|p| p.file_name()?.to_str()).collect();
            let problem = format!("there are {} GGUF files: {}", several.len(), names.join(", "));
            Err(not_a_checkpoint(folder, problem, "give the path of one of them"))
        }
    }
}

fn files_ending(folder: &Path, suffix: &str) -> Result<Vec<PathBuf>, CheckpointError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(CheckpointError::io("list", folder))? {
        let entry = entry.map_err(CheckpointError::io("list", folder))?;
        if entry.file_name().to_string_lossy().ends_with(suffix) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

fn not_a_checkpoint(path: &Path, problem: impl Into<String>, remedy: impl Into<String>) -> CheckpointError {
    CheckpointError::NotACheckpoint {
        path: path.to_path_buf(),
        problem: problem.into(),
        remedy: remedy.into(),
    }
}

/// The GGUF file to open in a folder: the only one, or the first part of the only split model.
fn one_gguf(files: &[PathBuf]) -> Option<&PathBuf> {
    let stem = |path: &PathBuf| {
        let name = path.file_name()?.to_str()?.to_owned();
        gguf::split::part_stem(&name).map(|(stem, total)| (stem.to_owned(), total))
    };
    let first = files.first()?;
    let same =
        files.len() == 1 || stem(first).is_some_and(|s| files.iter().all(|f| stem(f).as_ref() == Some(&s)));
    same.then_some(first)
}

/// Opens a GGUF file and, where the model is split, the other parts beside it.
fn open_gguf(path: &Path, bytes: Bytes) -> Result<Checkpoint, CheckpointError> {
    let source = path.display().to_string();
    let (metadata, tensors) = gguf::read(&source, bytes.as_slice(), 0)?;
    let count = gguf::split::part_count(&source, &metadata)?;
    if count == 1 {
        return Checkpoint::new(source, Format::Gguf, Metadata::Gguf(metadata), tensors, vec![bytes]);
    }
    let (mut first, mut tensors, mut files) = (None, Vec::new(), Vec::new());
    for (index, part) in gguf::split::part_paths(path, count)?.iter().enumerate() {
        let name = part.display().to_string();
        let bytes = Bytes::map(part)?;
        let (metadata, found) = gguf::read(&name, bytes.as_slice(), index)?;
        gguf::split::check_part(&name, &metadata, index, count)?;
        // The first part holds the model's metadata, the others only their own number.
        first.get_or_insert(metadata);
        tensors.extend(found);
        files.push(bytes);
    }
    let metadata = first.unwrap_or(metadata);
    Checkpoint::new(source, Format::Gguf, Metadata::Gguf(metadata), tensors, files)
}

fn without_weights(source: &Path, config: ConfigFiles) -> Result<Checkpoint, CheckpointError> {
    let source = source.display().to_string();
    Checkpoint::new(source, Format::Safetensors, Metadata::Config(config), Vec::new(), Vec::new())
}

fn single_file(source: &Path, config: ConfigFiles, weights: &Path) -> Result<Checkpoint, CheckpointError> {
    let bytes = Bytes::map(weights)?;
    let tensors = safetensors::read(&weights.display().to_string(), bytes.as_slice(), 0)?;
    let source = source.display().to_string();
    Checkpoint::new(source, Format::Safetensors, Metadata::Config(config), tensors, vec![bytes])
}

fn sharded(
    source: &Path,
    folder: &Path,
    config: ConfigFiles,
    need_weights: bool,
) -> Result<Checkpoint, CheckpointError> {
    let index = folder.join(INDEX);
    let text = read_text(&index)?.unwrap_or_default();
    let shards = safetensors::Shards::parse(&index.display().to_string(), &text)?;
    if let Some(absent) = shards.files().find(|shard| !folder.join(shard).exists()) {
        if need_weights {
            return Err(shards.missing(absent));
        }
        return without_weights(source, config);
    }
    let (mut tensors, mut files) = (Vec::new(), Vec::new());
    for shard in shards.files() {
        let path = folder.join(shard);
        let bytes = Bytes::map(&path)?;
        let found = safetensors::read(&path.display().to_string(), bytes.as_slice(), files.len())?;
        shards.check(shard, &found)?;
        tensors.extend(found);
        files.push(bytes);
    }
    Checkpoint::new(
        source.display().to_string(),
        Format::Safetensors,
        Metadata::Config(config),
        tensors,
        files,
    )
}
