//! From a path to a checkpoint: which files belong to it and in which format. Knows nothing of their contents
//! but the first bytes of a GGUF file; compiled where the system can map files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::config::parse_file;
use crate::from_source::{from_gguf, from_safetensors};
use crate::mapping::map;
use crate::special_file::refuse_special;
use crate::{Checkpoint, CheckpointError, ConfigFiles, Format, Metadata, SourceFile, gguf, safetensors};

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
        return without_weights(path, read_config(path)?);
    }
    let file = map(path)?;
    if name.ends_with(".gguf") || gguf::is_gguf(&file)? {
        return open_gguf(path, file);
    }
    if name.ends_with(".safetensors") {
        if is_shard(&name) {
            let remedy = format!("open the folder {} instead", folder.display());
            return Err(not_a_checkpoint(path, "this is one shard of several", remedy));
        }
        let config = read_configs(folder)?;
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
        return open_gguf(file, map(file)?);
    }
    if folder.join(INDEX).exists() {
        return sharded(source, folder, read_configs(folder)?, need_weights);
    }
    let single = folder.join(SINGLE);
    if single.exists() {
        return single_file(source, read_configs(folder)?, &single);
    }
    let others = files_ending(folder, ".safetensors")?;
    if let [file] = others.as_slice() {
        return single_file(source, read_configs(folder)?, file);
    }
    if !need_weights && (has_config || ggufs.is_empty()) {
        return without_weights(source, read_configs(folder)?);
    }
    if !others.is_empty() {
        let problem = format!("there are {} safetensors files but no {INDEX}", others.len());
        return Err(not_a_checkpoint(folder, problem, "download the index into the same folder"));
    }
    if let Some(file) = one_gguf(&ggufs) {
        return open_gguf(file, map(file)?);
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
        part_stem(&name).map(|(stem, total)| (stem.to_owned(), total))
    };
    let first = files.first()?;
    let same =
        files.len() == 1 || stem(first).is_some_and(|s| files.iter().all(|f| stem(f).as_ref() == Some(&s)));
    same.then_some(first)
}

/// Opens a GGUF file and, where the model is split, the other parts beside it.
fn open_gguf(path: &Path, file: SourceFile) -> Result<Checkpoint, CheckpointError> {
    let source = path.display().to_string();
    let (metadata, tensors) = gguf::read(&file, 0)?;
    let count = gguf::split::part_count(&source, &metadata)?;
    if count == 1 {
        return Checkpoint::new(source, Format::Gguf, Metadata::Gguf(metadata), tensors, vec![file]);
    }
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let parts = part_names(&source, &name, count)?;
    let parts: Vec<PathBuf> = parts.iter().map(|name| path.with_file_name(name)).collect();
    if let Some(missing) = parts.iter().find(|part| !part.exists()) {
        let problem = format!("this part of a model split into {count} files is missing");
        return Err(not_a_checkpoint(missing, problem, "download it into the same folder"));
    }
    from_gguf(source, parts.iter().map(|part| map(part)).collect::<Result<_, _>>()?)
}

/// The file names of all parts, from the name of any of them; `file` stands for it in messages.
fn part_names(file: &str, name: &str, count: usize) -> Result<Vec<String>, CheckpointError> {
    let stem = part_stem(name).filter(|(_, total)| *total == count).map(|(stem, _)| stem);
    let Some(stem) = stem else {
        return Err(CheckpointError::Unsupported {
            file: file.to_string(),
            problem: format!(
                "the model is split into {count} files, but the name does not say which part this is"
            ),
            remedy: format!("give the files their names back: NAME-00001-of-{count:05}.gguf and so on"),
        });
    };
    Ok((1..=count).map(|part| format!("{stem}-{part:05}-of-{count:05}.gguf")).collect())
}

/// The common name of a part and the number of parts, from `STEM-00002-of-00005.gguf`.
fn part_stem(name: &str) -> Option<(&str, usize)> {
    let (rest, total) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, part) = rest.rsplit_once('-')?;
    let digits = |s: &str| s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit());
    (digits(part) && digits(total)).then(|| Some((stem, total.parse().ok()?)))?
}

fn without_weights(source: &Path, config: ConfigFiles) -> Result<Checkpoint, CheckpointError> {
    let source = source.display().to_string();
    Checkpoint::new(source, Format::Safetensors, Metadata::Config(config), Vec::new(), Vec::new())
}

fn single_file(source: &Path, config: ConfigFiles, weights: &Path) -> Result<Checkpoint, CheckpointError> {
    from_safetensors(source.display().to_string(), config, vec![map(weights)?])
}

fn sharded(
    source: &Path,
    folder: &Path,
    config: ConfigFiles,
    need_weights: bool,
) -> Result<Checkpoint, CheckpointError> {
    let index = folder.join(INDEX);
    // It was there a moment ago.
    let gone = || CheckpointError::io("read", &index)(io::ErrorKind::NotFound.into());
    let text = read_text(&index)?.ok_or_else(gone)?;
    let shards = safetensors::Shards::parse(&index.display().to_string(), &text)?;
    if let Some(absent) = shards.files().find(|shard| !folder.join(shard).exists()) {
        if need_weights {
            return Err(shards.missing(absent));
        }
        return without_weights(source, config);
    }
    let (mut tensors, mut files) = (Vec::new(), Vec::new());
    for shard in shards.files() {
        let file = map(&folder.join(shard))?;
        let found = safetensors::read(&file, files.len())?;
        shards.check(shard, &found)?;
        tensors.extend(found);
        files.push(file);
    }
    Checkpoint::new(
        source.display().to_string(),
        Format::Safetensors,
        Metadata::Config(config),
        tensors,
        files,
    )
}

/// A configuration alone, whatever its file is called.
fn read_config(file: &Path) -> Result<ConfigFiles, CheckpointError> {
    let config = match read_text(file)? {
        Some(text) => parse_file(file, &text)?,
        None => Default::default(),
    };
    Ok(ConfigFiles { config, ..Default::default() })
}

/// The JSON and text files of a folder.
fn read_configs(folder: &Path) -> Result<ConfigFiles, CheckpointError> {
    ConfigFiles::from_texts(folder, |name| read_text(&folder.join(name)))
}

/// The file's text, or `None` when there is no such file.
fn read_text(path: &Path) -> Result<Option<String>, CheckpointError> {
    refuse_special(path)?;
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(CheckpointError::io("read", path)(e)),
    }
}
