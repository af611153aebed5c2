//! The index of a sharded model: which file holds which tensor.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::error::one_line;
use crate::{CheckpointError, TensorInfo, parse_json};

/// The files an index names, each with the tensors it should hold.
pub(crate) struct Shards {
    index: String,
    by_file: BTreeMap<String, Vec<String>>,
}

impl Shards {
    /// Parses an index; `index` is its name in errors.
    pub fn parse(index: &str, text: &str) -> Result<Shards, CheckpointError> {
        let json =
            parse_json(text).map_err(|reason| CheckpointError::Json { file: index.to_string(), reason })?;
        let map = json.get("weight_map").and_then(Value::as_object).ok_or_else(|| {
            CheckpointError::malformed(index, "there is no `weight_map` of tensor names to shard files")
        })?;
        let mut by_file: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (tensor, shard) in map {
            let shard = shard.as_str().ok_or_else(|| {
                CheckpointError::malformed(
                    index,
                    format!("the shard of tensor `{tensor}` is not a file name"),
                )
            })?;
            // A shard lies beside its index; anything else could point at any file of the machine.
            if shard.is_empty() || shard.contains(['/', '\\']) || shard == ".." {
                let problem =
                    format!("the shard of tensor `{tensor}`, `{shard}`, is not a file in the same folder");
                return Err(CheckpointError::malformed(index, problem));
            }
            by_file.entry(shard.to_string()).or_default().push(tensor.clone());
        }
        if by_file.is_empty() {
            return Err(CheckpointError::malformed(index, "its `weight_map` is empty"));
        }
        Ok(Shards { index: index.to_string(), by_file })
    }

    /// The shard files in the order of their names.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        self.by_file.keys().map(String::as_str)
    }

    /// That a shard holds what the index says, after its header has been read.
    pub fn check(&self, shard: &str, tensors: &[TensorInfo]) -> Result<(), CheckpointError> {
        let mut present: Vec<&str> = tensors.iter().map(|t| t.name.as_str()).collect();
        present.sort_unstable();
        let wanted = self.by_file.get(shard).map(Vec::as_slice).unwrap_or_default();
        match wanted.iter().find(|name| present.binary_search(&name.as_str()).is_err()) {
            Some(absent) => {
                let problem = format!("tensor `{absent}` should be in {shard} but is not there");
                Err(CheckpointError::malformed(&self.index, problem))
            }
            None => Ok(()),
        }
    }

    /// The error for a shard that is not there.
    pub fn missing(&self, shard: &str) -> CheckpointError {
        CheckpointError::MissingShard { index: self.index.clone(), shard: one_line(shard) }
    }
}
