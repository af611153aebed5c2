//! How each tensor of a file is stored: a default type, rules for some weights, and what happens where a
//! type does not divide a row. Must not know values.

use std::collections::HashMap;

use anyhow::{Result, bail};
use mambo_model::{ModelSpec, Part};
use mambo_tensor::DType;

/// Types a file can be made of, smallest last.
pub const TYPES: [DType; 8] =
    [DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q6K, DType::Q5_0, DType::Q4K, DType::Q4_0];

/// The name of the recipe of the model inside the binary.
pub const BUILTIN: &str = "builtin";

/// The built-in model's types beside its default. Experts hold two thirds of the weights and err least for
/// their size; a wrong bit in the head, the embedding or a Mamba projection costs several times as much. All
/// layers' experts are equally sensitive within the noise; the four that go first are those with which every
/// golden conversation keeps its answer. The MTP head's go too: their errors cost a draft, never an answer.
const BUILTIN_RULES: [(&str, DType); 9] = [
    ("out_proj", DType::Q8_0),
    ("experts_up", DType::Q5_0),
    ("experts_down", DType::Q5_0),
    ("layers.6.experts_up", DType::Q4K),
    ("layers.8.experts_up", DType::Q4K),
    ("layers.11.experts_up", DType::Q4K),
    ("layers.13.experts_up", DType::Q4K),
    ("mtp.experts_up", DType::Q4K),
    ("mtp.experts_down", DType::Q4K),
];
const BUILTIN_DEFAULT: DType = DType::Q6K;

/// Which type each weight gets.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// What the user called it.
    pub name: String,
    default: DType,
    rules: Vec<(String, DType)>,
    /// How many of the rules come with a named mix, and need not match anything in other models.
    own_rules: usize,
}

/// One tensor of the file.
#[derive(Clone, Debug)]
pub struct Planned {
    /// Name in the file.
    pub name: String,
    /// Canonical name of the weight.
    pub weight: String,
    /// What it is there.
    pub part: Part,
    /// Shape in the file, outermost first.
    pub shape: Vec<usize>,
    /// How it is stored.
    pub dtype: DType,
}

/// All tensors of a file, in file order.
pub struct Layout {
    /// The tensors.
    pub tensors: Vec<Planned>,
    /// Where the recipe could not be followed, as sentences.
    pub notes: Vec<String>,
}

impl Recipe {
    /// The recipe of that name: one type for all, or a named mix.
    pub fn named(name: &str) -> Result<Recipe> {
        let name = name.to_lowercase();
        if name == BUILTIN {
            let rules =
                BUILTIN_RULES.iter().map(|(pattern, dtype)| ((*pattern).to_owned(), *dtype)).collect();
            let own_rules = BUILTIN_RULES.len();
            return Ok(Recipe { name, default: BUILTIN_DEFAULT, rules, own_rules });
        }
        match TYPES.iter().find(|dtype| dtype.name() == name) {
            Some(&default) => Ok(Recipe { name, default, rules: Vec::new(), own_rules: 0 }),
            None => bail!("there is no type `{name}`; use one of {}, or the mix {BUILTIN}", type_names()),
        }
    }

    /// Adds a rule such as `experts_down=q6_k`, which goes before all earlier ones.
    pub fn with_rule(mut self, rule: &str) -> Result<Recipe> {
        let Some((pattern, name)) = rule.split_once('=') else {
            bail!("`{rule}` is not WEIGHT=TYPE, such as experts_down=q6_k or layers.3=q8_0");
        };
        let Some(&dtype) = TYPES.iter().find(|dtype| dtype.name().eq_ignore_ascii_case(name)) else {
            bail!("there is no type `{name}`; use one of {}", type_names());
        };
        self.rules.push((pattern.to_owned(), dtype));
        Ok(self)
    }

    /// The number GGUF files give for the mix of types they hold.
    pub fn file_type(&self) -> u32 {
        match self.default {
            DType::F16 => 1,
            DType::Q4_0 => 2,
            DType::Q8_0 => 7,
            DType::Q5_0 => 8,
            DType::Q4K => 15,
            DType::Q6K => 18,
            DType::BF16 => 32,
            _ => 0,
        }
    }

    fn wanted(&self, weight: &str) -> DType {
        let rule = self.rules.iter().rev().find(|(pattern, _)| matches(pattern, weight));
        rule.map_or(self.default, |(_, dtype)| *dtype)
    }

    /// Decides on every tensor of a model.
    pub fn layout(&self, spec: &ModelSpec) -> Result<Layout> {
        for (pattern, _) in &self.rules[self.own_rules..] {
            if !spec.weights().iter().any(|w| matches(pattern, &w.name)) {
                bail!("the model has no weight `{pattern}`; it has {}", weight_names(spec));
            }
        }
        let parts: HashMap<String, Part> = spec.weights().into_iter().map(|w| (w.name, w.part)).collect();
        let mut replaced: Vec<(DType, DType, usize, usize)> = Vec::new();
        let mut tensors = Vec::new();
        for tensor in spec.gguf_tensors() {
            let part = parts[&tensor.weight];
            let columns = tensor.shape.last().copied().unwrap_or(1);
            let wanted = if tensor.quantizable { self.wanted(&tensor.weight) } else { DType::F32 };
            let dtype = that_divides(wanted, columns);
            if dtype != wanted {
                match replaced.iter_mut().find(|r| (r.0, r.1, r.2) == (wanted, dtype, columns)) {
                    Some(row) => row.3 += 1,
                    None => replaced.push((wanted, dtype, columns, 1)),
                }
            }
            let (name, weight, shape) = (tensor.name, tensor.weight, tensor.shape);
            tensors.push(Planned { name, weight, part, shape, dtype });
        }
        let note = |(wanted, dtype, columns, count): &(DType, DType, usize, usize)| {
            let block = wanted.block_elems();
            format!(
                "{count} tensors are {dtype} instead of {wanted}: rows of {columns} are no multiple of {block}"
            )
        };
        Ok(Layout { tensors, notes: replaced.iter().map(note).collect() })
    }
}

/// Names of all types, for messages.
pub fn type_names() -> String {
    TYPES.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(", ")
}

/// The last words of a model's weights, which patterns may name, and its number of layers.
fn weight_names(spec: &ModelSpec) -> String {
    let mut names: Vec<String> = Vec::new();
    for weight in spec.weights() {
        let last = weight.name.rsplit('.').next().unwrap_or_default().to_owned();
        if !names.contains(&last) {
            names.push(last);
        }
    }
    format!("{}, and layers.0 to layers.{}", names.join(", "), spec.layers.len().saturating_sub(1))
}

/// Whether a pattern means this weight: its whole name, the end of it (`experts_down`) or its start
/// (`layers.3`, `mtp`), at a dot.
fn matches(pattern: &str, weight: &str) -> bool {
    let rest = |rest: Option<&str>, dot: fn(&str) -> bool| rest.is_some_and(|r| r.is_empty() || dot(r));
    rest(weight.strip_prefix(pattern), |r| r.starts_with('.'))
        || rest(weight.strip_suffix(pattern), |r| r.ends_with('.'))
}

/// The type itself, or the next finer one whose blocks divide a row of `columns`, as llama.cpp chooses it.
fn that_divides(dtype: DType, columns: usize) -> DType {
    if columns.is_multiple_of(dtype.block_elems()) {
        return dtype;
    }
    match dtype {
        DType::Q4K => that_divides(DType::Q5_0, columns),
        DType::Q6K => that_divides(DType::Q8_0, columns),
        _ => DType::F16,
    }
}

impl Planned {
    fn columns(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Values of all rows.
    pub fn elems(&self) -> usize {
        self.shape.iter().product()
    }

    /// Rows, over all outer dimensions.
    pub fn row_count(&self) -> usize {
        self.elems() / self.columns()
    }

    /// Values of one row.
    pub fn row_elems(&self) -> usize {
        self.columns()
    }

    /// Bytes of one stored row.
    pub fn row_bytes(&self) -> usize {
        self.dtype.row_bytes(self.columns()).expect("the type was chosen to divide the row")
    }

    /// Bytes of the stored tensor.
    pub fn bytes(&self) -> u64 {
        self.row_count() as u64 * self.row_bytes() as u64
    }
}

impl Layout {
    /// Bytes of all tensors, without padding.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(Planned::bytes).sum()
    }

    /// Tensors and bytes of each type, most bytes first.
    pub fn types(&self) -> Vec<(DType, usize, u64)> {
        let mut rows: Vec<(DType, usize, u64)> = Vec::new();
        for tensor in &self.tensors {
            match rows.iter_mut().find(|row| row.0 == tensor.dtype) {
                Some(row) => {
                    row.1 += 1;
                    row.2 += tensor.bytes();
                }
                None => rows.push((tensor.dtype, 1, tensor.bytes())),
            }
        }
        rows.sort_by_key(|row| std::cmp::Reverse(row.2));
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_at_dots() {
        assert!(matches("experts_down", "layers.3.experts_down"));
        assert!(matches("layers.3", "layers.3.experts_down"));
        assert!(matches("mtp", "mtp.q") && matches("head", "head"));
        assert!(!matches("down", "layers.3.experts_down"));
        assert!(!matches("layers.1", "layers.13.q"));
    }

    #[test]
    fn types_that_do_not_divide_are_replaced_and_reported() {
        let spec = mambo_model::Preset::named("nano-4b").and_then(|p| p.spec()).unwrap();
        let layout = Recipe::named("q4_k").unwrap().layout(&spec).unwrap();
        let head = layout.tensors.iter().find(|t| t.name == "output.weight").unwrap();
        assert_eq!(head.dtype, DType::Q5_0, "3136 is no multiple of 256");
        assert!(layout.notes.iter().any(|n| n.contains("q5_0 instead of q4_k")), "{:?}", layout.notes);
        assert_eq!(that_divides(DType::Q6K, 96), DType::Q8_0);
        assert_eq!(that_divides(DType::Q4_0, 60), DType::F16);
    }

    #[test]
    fn later_rules_win_and_unknown_ones_are_refused() {
        let spec = mambo_model::Preset::named("nano-30b").and_then(|p| p.spec()).unwrap();
        let recipe = Recipe::named("Q4_0").unwrap().with_rule("layers.1=q8_0").unwrap();
        let layout = recipe.with_rule("experts_up=f16").unwrap().layout(&spec).unwrap();
        let dtype = |name: &str| layout.tensors.iter().find(|t| t.name == name).unwrap().dtype;
        assert_eq!(dtype("blk.1.ffn_up_exps.weight"), DType::F16);
        assert_eq!(dtype("blk.1.ffn_down_exps.weight"), DType::Q8_0);
        assert_eq!(dtype("blk.1.ffn_gate_inp.weight"), DType::F32, "routers are never quantised");
        assert_eq!(dtype("blk.0.ssm_in.weight"), DType::Q4_0);
        let nothing = Recipe::named("q4_0").unwrap().with_rule("wing=q8_0").unwrap();
        let told = |e: anyhow::Error| e.to_string().contains("`wing`; it has embed, ");
        assert!(nothing.layout(&spec).is_err_and(told));
        let mixed = Recipe::named(BUILTIN).unwrap();
        assert!(mixed.layout(&spec).is_ok(), "its own rules may go past other models");
        assert!(mixed.with_rule("wing=q8_0").unwrap().layout(&spec).is_err_and(told));
        assert!(Recipe::named("q9").is_err_and(|e| e.to_string().contains("q4_0, or the mix builtin")));
    }
}
