//! Which files of a repository belong to one model: a safetensors folder, or one GGUF file with all its parts. Goes by
//! names alone, so that the same choice is found in a listing of the hub and in a folder of the cache.

use std::collections::{BTreeMap, BTreeSet};

use mambo_checkpoint::{ConfigFiles, parse_json};
use serde_json::Value;

use crate::HubError;

/// The index of sharded weights.
pub(crate) const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";
/// What a choice of safetensors is called.
const SAFETENSORS: &str = "safetensors";

/// Quantisations by how sensible they are for somebody who named none: small enough and close to the original first.
const USUAL: [&str; 22] = [
    "Q4_K_M", "Q4_K_XL", "Q4_K_L", "Q4_K_S", "MXFP4", "IQ4_XS", "IQ4_NL", "Q4_0", "Q4_1", "Q5_K_M", "Q5_K_S",
    "Q5_0", "Q5_1", "Q6_K", "Q8_0", "Q3_K_L", "Q3_K_M", "BF16", "F16", "F32", "Q3_K_S", "Q2_K",
];

/// How weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weights {
    /// A folder of safetensors.
    Safetensors,
    /// A GGUF file.
    Gguf,
}

/// The files of one model in a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// `safetensors`, a quantisation such as `Q4_K_M`, or else the file's name.
    pub label: String,
    /// How the weights are stored.
    pub weights: Weights,
    /// The files, those to read first in front.
    pub files: Vec<String>,
    /// Their bytes, as far as they are known.
    pub bytes: u64,
    /// Files that should be there and are not.
    pub missing: Vec<String>,
}

impl Choice {
    /// The file a GGUF model is opened with.
    pub(crate) fn first_gguf(&self) -> Option<&str> {
        self.files.first().map(String::as_str).filter(|_| self.weights == Weights::Gguf)
    }

    /// Whether a name on the command line may mean this.
    pub(crate) fn answers(&self, asked: &str) -> bool {
        self.is_named(asked)
            || (self.weights == Weights::Gguf && starts_with_ignoring_case(&self.label, asked))
    }

    /// Whether a name on the command line means exactly this.
    fn is_named(&self, asked: &str) -> bool {
        let is_file = |file: &String| {
            let base = file.rsplit('/').next().unwrap_or(file);
            let stem = base.strip_suffix(".gguf").unwrap_or(base);
            [file.as_str(), base, stem, split_part(stem).map_or(stem, |part| part.0)].contains(&asked)
        };
        self.label.eq_ignore_ascii_case(asked)
            || (self.weights == Weights::Gguf && self.files.iter().any(is_file))
    }

    /// Label and size, for a list.
    pub(crate) fn described(&self) -> String {
        match self.bytes {
            0 => self.label.clone(),
            bytes => format!("{} ({})", self.label, size_text(bytes)),
        }
    }

    /// Keeps the shards that an index names and no others.
    pub(crate) fn follow_index(&mut self, text: &str, sizes: &BTreeMap<&str, u64>) -> Result<(), String> {
        let index = parse_json(text)?;
        let map = index.get("weight_map").and_then(Value::as_object).ok_or("it has no `weight_map`")?;
        let shards: BTreeSet<&str> = map.values().filter_map(Value::as_str).collect();
        self.files.retain(|file| !file.ends_with(".safetensors"));
        for shard in shards {
            match sizes.contains_key(shard) {
                true => self.files.push(shard.to_owned()),
                false => self.missing.push(shard.to_owned()),
            }
        }
        self.bytes = self.files.iter().filter_map(|file| sizes.get(file.as_str())).sum();
        Ok(())
    }
}

/// The models among files given by path and size.
pub fn choices<'f>(files: impl IntoIterator<Item = (&'f str, u64)>) -> Vec<Choice> {
    let sizes: BTreeMap<&str, u64> = files.into_iter().collect();
    let mut found: Vec<Choice> = folder(&sizes).into_iter().collect();
    found.extend(ggufs(&sizes));
    found
}

/// The safetensors folder at the root of a repository.
fn folder(sizes: &BTreeMap<&str, u64>) -> Option<Choice> {
    if !sizes.contains_key("config.json") {
        return None;
    }
    let at_root = |file: &&&str| file.ends_with(".safetensors") && !file.contains('/');
    let all: Vec<&str> = sizes.keys().filter(at_root).copied().collect();
    let weights: Vec<&str> = if sizes.contains_key(INDEX) {
        let is_shard = |file: &str| split_part(file.trim_end_matches(".safetensors")).is_some();
        [INDEX].into_iter().chain(all.into_iter().filter(|file| is_shard(file))).collect()
    } else if sizes.contains_key(SINGLE) {
        vec![SINGLE]
    } else if let [only] = all.as_slice() {
        vec![only]
    } else {
        return None;
    };
    let beside = ConfigFiles::NAMES.into_iter().filter(|name| sizes.contains_key(name));
    let files: Vec<String> = beside.chain(weights).map(str::to_owned).collect();
    let bytes = files.iter().filter_map(|file| sizes.get(file.as_str())).sum();
    let (label, weights) = (SAFETENSORS.to_owned(), Weights::Safetensors);
    Some(Choice { label, weights, files, bytes, missing: Vec::new() })
}

/// Every GGUF model, in any folder of a repository.
fn ggufs(sizes: &BTreeMap<&str, u64>) -> Vec<Choice> {
    let mut models: BTreeMap<(String, usize), Vec<(&str, u64)>> = BTreeMap::new();
    for (&file, &size) in sizes {
        let Some(stem) = file.strip_suffix(".gguf").filter(|stem| is_language_model(stem)) else { continue };
        let key = split_part(stem).map_or((stem.to_owned(), 1), |(stem, count)| (stem.to_owned(), count));
        models.entry(key).or_default().push((file, size));
    }
    let mut found: Vec<Choice> = models
        .into_iter()
        .map(|((stem, count), parts)| {
            let expected: Vec<String> = match count {
                1 if parts.iter().any(|(file, _)| *file == format!("{stem}.gguf")) => {
                    vec![format!("{stem}.gguf")]
                }
                _ => (1..=count).map(|part| format!("{stem}-{part:05}-of-{count:05}.gguf")).collect(),
            };
            let is_here = |file: &String| parts.iter().any(|(here, _)| here == file);
            let (files, missing) = expected.into_iter().partition(is_here);
            Choice {
                label: label(&stem),
                weights: Weights::Gguf,
                files,
                bytes: parts.iter().map(|(_, size)| size).sum(),
                missing,
            }
        })
        .collect();
    name_twins_by_file(&mut found);
    found
}

/// Two models of one quantisation are told apart by their files.
fn name_twins_by_file(choices: &mut [Choice]) {
    let labels: Vec<String> = choices.iter().map(|choice| choice.label.clone()).collect();
    for choice in choices {
        if labels.iter().filter(|label| **label == choice.label).count() > 1
            && let Some(file) = choice.files.first()
        {
            let stem = file.strip_suffix(".gguf").unwrap_or(file);
            choice.label = split_part(stem).map_or(stem, |part| part.0).to_owned();
        }
    }
}

/// The encoders of images that lie beside a language model, and the statistics of its quantisation, are no models.
fn is_language_model(stem: &str) -> bool {
    let name = stem.rsplit('/').next().unwrap_or(stem).to_ascii_lowercase();
    !name.contains("mmproj") && !name.contains("imatrix")
}

/// The common name of a part and the number of parts, from `STEM-00002-of-00005`.
fn split_part(stem: &str) -> Option<(&str, usize)> {
    let (rest, total) = stem.rsplit_once("-of-")?;
    let (stem, part) = rest.rsplit_once('-')?;
    let digits = |s: &str| s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit());
    // Nobody splits a model into more files; a listing that says so would make names without end.
    let total = total.parse().ok().filter(|total| (1..=1000).contains(total) && digits(part))?;
    Some((stem, total))
}

/// The quantisation that a file's name tells, else the name.
fn label(stem: &str) -> String {
    let name = stem.rsplit('/').next().unwrap_or(stem);
    let upper = name.to_ascii_uppercase();
    let starts = upper.char_indices().filter(|(i, _)| *i == 0 || b"-._".contains(&upper.as_bytes()[i - 1]));
    let found = starts.map(|(i, _)| &upper[i..]).find(|rest| is_quantisation(rest));
    match found {
        Some(found) => {
            let before = upper.strip_suffix(found).unwrap_or_default();
            if before.ends_with("UD-") { format!("UD-{found}") } else { found.to_owned() }
        }
        None => name.to_owned(),
    }
}

/// `Q4_K_M`, `IQ2_XXS`, `TQ1_0`, `BF16`, `MXFP4` and so on.
fn is_quantisation(text: &str) -> bool {
    if matches!(text, "F16" | "BF16" | "F32" | "FP16" | "FP32" | "MXFP4" | "NVFP4" | "MXFP4_MOE") {
        return true;
    }
    let rest = text.strip_prefix("IQ").or(text.strip_prefix("TQ")).or(text.strip_prefix('Q'));
    let Some(rest) = rest.filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit())) else { return false };
    let known = |part: &str| {
        matches!(part, "K" | "XXS" | "XS" | "S" | "M" | "L" | "XL" | "NL" | "MIX")
            || part.bytes().all(|b| b.is_ascii_digit())
    };
    rest.split('_').all(|part| !part.is_empty() && known(part))
}

/// The one choice that a name means.
pub fn pick<'c>(repo: &str, choices: &'c [Choice], asked: &str) -> Result<&'c Choice, HubError> {
    let exact: Vec<&Choice> = choices.iter().filter(|choice| choice.is_named(asked)).collect();
    if let [only] = exact.as_slice() {
        return Ok(only);
    }
    let near: Vec<&Choice> = choices.iter().filter(|choice| choice.answers(asked)).collect();
    if let [only] = near.as_slice() {
        return Ok(only);
    }
    let shown = if near.is_empty() { choices.to_vec() } else { near.into_iter().cloned().collect() };
    Err(HubError::NotOneChoice { repo: repo.to_owned(), asked: Some(asked.to_owned()), choices: shown })
}

/// The usual choice where nobody named one: a folder of safetensors if there is one that `runs`, else the GGUF file
/// nearest to `Q4_K_M`.
pub fn usual<'c>(
    repo: &str,
    choices: &'c [Choice],
    runs: impl FnOnce() -> bool,
) -> Result<&'c Choice, HubError> {
    let folder = choices.iter().find(|choice| choice.weights == Weights::Safetensors);
    let ggufs: Vec<&Choice> = choices.iter().filter(|choice| choice.weights == Weights::Gguf).collect();
    match (folder, ggufs.as_slice()) {
        (Some(folder), []) => return Ok(folder),
        (Some(folder), _) if runs() => return Ok(folder),
        (_, [only]) => return Ok(only),
        _ => {}
    }
    let plain = |choice: &Choice| choice.label.trim_start_matches("UD-").to_owned();
    for wanted in USUAL {
        let mut of_it = ggufs.iter().filter(|choice| plain(choice) == wanted);
        if let Some(choice) = of_it.next() {
            return Ok(choice);
        }
    }
    Err(HubError::NotOneChoice { repo: repo.to_owned(), asked: None, choices: choices.to_vec() })
}

/// Bytes as a user compares them.
pub(crate) fn size_text(bytes: u64) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    if mib < 1024.0 { format!("{mib:.1} MiB") } else { format!("{:.1} GiB", mib / 1024.0) }
}

fn starts_with_ignoring_case(text: &str, start: &str) -> bool {
    text.get(..start.len()).is_some_and(|head| head.eq_ignore_ascii_case(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[&str]) -> Vec<Choice> {
        choices(files.iter().map(|file| (*file, 10)))
    }

    fn labels(choices: &[Choice]) -> Vec<&str> {
        choices.iter().map(|choice| choice.label.as_str()).collect()
    }

    #[test]
    fn names_tell_quantisations() {
        let names = [
            ("Llama-3.2-1B-Instruct-Q4_K_M", "Q4_K_M"),
            ("model.q8_0", "Q8_0"),
            ("sub/Qwen3-8B-UD-Q4_K_XL", "UD-Q4_K_XL"),
            ("gpt-oss-20b-mxfp4", "MXFP4"),
            ("ggml_model_iq2_xxs", "IQ2_XXS"),
            ("x-BF16", "BF16"),
            ("qwen3-8b", "qwen3-8b"),
            ("Q", "Q"),
        ];
        for (name, want) in names {
            assert_eq!(label(name), want);
        }
    }

    #[test]
    fn a_folder_is_what_the_loader_reads_and_nothing_else() {
        let files = [
            "README.md",
            "config.json",
            "tokenizer.json",
            "vocab.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "consolidated.safetensors",
            "original/model.safetensors",
            "pytorch_model.bin",
            "onnx/model.onnx",
            "logo.png",
        ];
        let found = of(&files);
        assert_eq!(labels(&found), ["safetensors"]);
        let want = [
            "config.json",
            "tokenizer.json",
            "model.safetensors.index.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
        ];
        assert_eq!(found[0].files, want);
        assert_eq!(of(&["model.safetensors"]), []);
        assert_eq!(of(&["config.json", "a.safetensors", "b.safetensors"]), []);
        assert_eq!(of(&["config.json", "a.safetensors"])[0].files, ["config.json", "a.safetensors"]);
    }

    #[test]
    fn an_index_decides_which_shards_are_needed() {
        let files =
            ["config.json", INDEX, "model-00001-of-00002.safetensors", "other-00001-of-00001.safetensors"];
        let sizes: BTreeMap<&str, u64> = files.iter().map(|file| (*file, 10)).collect();
        let mut folder = of(&files).remove(0);
        let index = r#"{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "gone.safetensors"}}"#;
        folder.follow_index(index, &sizes).unwrap();
        assert_eq!(folder.files, ["config.json", INDEX, "model-00001-of-00002.safetensors"]);
        assert_eq!((folder.bytes, folder.missing), (30, vec!["gone.safetensors".to_owned()]));
    }

    #[test]
    fn a_split_model_is_all_its_parts() {
        let found = of(&[
            "m-Q8_0.gguf",
            "big/m-F16-00001-of-00003.gguf",
            "big/m-F16-00003-of-00003.gguf",
            "mmproj-m-F16.gguf",
            "x-99999-of-99999.gguf",
        ]);
        assert_eq!(labels(&found), ["F16", "Q8_0", "x-99999-of-99999"]);
        assert_eq!(found[0].files, ["big/m-F16-00001-of-00003.gguf", "big/m-F16-00003-of-00003.gguf"]);
        assert_eq!(found[0].missing, ["big/m-F16-00002-of-00003.gguf"]);
        for asked in ["f16", "F16", "m-F16", "big/m-F16-00003-of-00003.gguf", "m-F16-00001-of-00003.gguf"] {
            assert_eq!(pick("a/b", &found, asked).unwrap().label, "F16", "{asked}");
        }
    }

    #[test]
    fn what_could_be_several_is_asked_back_with_sizes() {
        let found = of(&["m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-Q8_0.gguf"]);
        assert_eq!(pick("a/b", &found, "q8").unwrap().label, "Q8_0");
        let several = pick("a/b", &found, "Q4_K").unwrap_err().to_string();
        let want = "a/b:Q4_K could be several; name one of Q4_K_M (0.0 MiB), Q4_K_S (0.0 MiB)";
        assert_eq!(several, want);
        let none = pick("a/b", &found, "Q2_K").unwrap_err().to_string();
        assert!(none.starts_with("a/b has no Q2_K; it has Q4_K_M (0.0 MiB), "), "{none}");
        let twins = of(&["a-Q4_0.gguf", "b-Q4_0.gguf"]);
        assert_eq!(labels(&twins), ["a-Q4_0", "b-Q4_0"]);
    }

    #[test]
    fn the_usual_choice_is_a_folder_that_runs_else_near_q4_k_m() {
        let both = of(&["config.json", "model.safetensors", "m-Q8_0.gguf", "m-Q5_K_M.gguf", "m-Q2_K.gguf"]);
        assert_eq!(usual("a/b", &both, || true).unwrap().label, "safetensors");
        assert_eq!(usual("a/b", &both, || false).unwrap().label, "Q5_K_M");
        let only = of(&["strange.gguf"]);
        assert_eq!(usual("a/b", &only, || false).unwrap().label, "strange");
        let two = of(&["strange.gguf", "other.gguf"]);
        assert!(usual("a/b", &two, || false).unwrap_err().to_string().contains("name one of"));
    }
}
