//! How each tensor of a file is stored: a default type, rules for some weights, and what happens where a
//! type does not divide a row. Must not know values.

use mambo_model::{ModelSpec, Part, Weight};
use mambo_runtime::TypeTable;
use mambo_tensor::DType;

use crate::mixes::{self, MIXES, Raised};
use crate::pattern::matches;
use crate::{Container, ConvertError, Layout};

/// Types a file can be made of, smallest last.
pub fn types() -> Vec<DType> {
    let mut types: Vec<DType> = DType::all().filter(|dtype| dtype.is_encodable()).collect();
    types.sort_by(|a, b| b.bits_per_weight().total_cmp(&a.bits_per_weight()));
    types
}

/// Which type each weight gets.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// What the user called it.
    pub name: String,
    default: DType,
    rules: Vec<(String, DType)>,
    /// How many of the rules come with a named mix, and need not match anything in other models.
    own_rules: usize,
    raised: Option<Raised>,
}

impl Recipe {
    /// The recipe of that name: a named mix, or a type for most weights and more bits for those that err most.
    pub fn named(name: &str, container: Container) -> Result<Recipe, ConvertError> {
        let name = name.to_lowercase();
        let (default, rules) = match (mixes::named(&name), type_named(&name)) {
            (Some(mix), _) => (mix.default, mix.rules),
            (None, Some(dtype)) => (dtype, mixes::rules_beside(dtype, container)),
            (None, None) => {
                let mixes: Vec<&str> = MIXES.iter().map(|mix| mix.name).collect();
                let known = format!("{}, or a mix: {}", type_names(), mixes.join(", "));
                return Err(ConvertError::UnknownType { name, known });
            }
        };
        let each = |&(patterns, dtype): &(&[&str], DType)| -> Vec<(String, DType)> {
            patterns.iter().map(|&pattern| (pattern.to_owned(), dtype)).collect()
        };
        let rules: Vec<_> = rules.iter().flat_map(each).collect();
        let own_rules = rules.len();
        let raised = mixes::named(&name).and_then(|mix| mix.raised);
        Ok(Recipe { name, default, rules, own_rules, raised })
    }

    /// The same without exceptions for single weights.
    pub fn pure(name: &str) -> Result<Recipe, ConvertError> {
        let recipe = Recipe::named(name, Container::Gguf)?;
        match mixes::named(&recipe.name) {
            None => Ok(Recipe { rules: Vec::new(), own_rules: 0, ..recipe }),
            Some(mix) => Err(ConvertError::NotOneType { mix: mix.name, dtype: mix.default }),
        }
    }

    /// Adds a rule such as `experts_down=q6_k`, which goes before all earlier ones.
    pub fn with_rule(mut self, rule: &str) -> Result<Recipe, ConvertError> {
        let Some((pattern, name)) = rule.split_once('=') else {
            return Err(ConvertError::BadRule { rule: rule.to_owned() });
        };
        let Some(dtype) = type_named(name) else {
            return Err(ConvertError::UnknownType { name: name.to_owned(), known: type_names() });
        };
        self.rules.push((pattern.to_owned(), dtype));
        Ok(self)
    }

    /// The number GGUF files give for the mix of types they hold.
    pub fn file_type(&self) -> u32 {
        self.default.gguf_file_type().unwrap_or_default()
    }

    /// The type that a weight is to have; `raised` are those that the mix gives more bits by their layers.
    fn wanted(&self, weight: &str, raised: &[String]) -> DType {
        let (own, added) = self.rules.split_at(self.own_rules);
        let of = |rules: &[(String, DType)]| {
            rules.iter().rev().find(|(pattern, _)| matches(pattern, weight)).map(|(_, dtype)| *dtype)
        };
        let is_raised = raised.iter().any(|raised| raised == weight);
        let by_layer = || self.raised.filter(|_| is_raised).map(|raised| raised.dtype);
        of(added).or_else(by_layer).or_else(|| of(own)).unwrap_or(self.default)
    }

    /// Decides on every tensor of a model.
    pub fn layout(&self, spec: &ModelSpec, container: Container) -> Result<Layout, ConvertError> {
        container.check(self.default)?;
        let exported = container.tensors(spec);
        let matrices = exported.iter().filter(|tensor| tensor.quantizable);
        let matrices: Vec<&str> = matrices.map(|tensor| tensor.weight.as_str()).collect();
        for (pattern, _) in &self.rules[self.own_rules..] {
            if !matrices.iter().any(|weight| matches(pattern, weight)) {
                let known = names(&matrices, spec.layers.len());
                return Err(ConvertError::NoSuchMatrix { pattern: pattern.clone(), known });
            }
        }
        let raised = self.raised.map_or(Vec::new(), |raised| raised.weights(&matrices));
        let raised: Vec<String> = raised.into_iter().map(str::to_owned).collect();
        let mut replaced: Vec<(DType, DType, String, usize)> = Vec::new();
        let mut tensors = Vec::new();
        for tensor in exported {
            let wanted = if tensor.quantizable { self.wanted(&tensor.weight, &raised) } else { DType::F32 };
            container.check(wanted)?;
            let (dtype, reason) = container.choose(&tensor, wanted);
            if let Some(reason) = reason {
                match replaced.iter_mut().find(|r| (r.0, r.1, &r.2) == (wanted, dtype, &reason)) {
                    Some(row) => row.3 += 1,
                    None => replaced.push((wanted, dtype, reason, 1)),
                }
            }
            tensors.extend(container.planned(tensor, dtype));
        }
        let note = |(wanted, dtype, reason, count): (DType, DType, String, usize)| {
            let tensors = if count == 1 { "tensor is" } else { "tensors are" };
            format!("{count} {tensors} {dtype} instead of {wanted}: {reason}")
        };
        Ok(Layout { tensors, notes: replaced.into_iter().map(note).collect() })
    }
}

impl Recipe {
    /// The types a file or folder of a model would have, without writing it.
    pub fn types(&self, spec: &ModelSpec, container: Container) -> Result<TypeTable, ConvertError> {
        let layout = self.layout(spec, container)?;
        let place = if container == Container::Safetensors { " in a safetensors folder" } else { "" };
        let mut assumption = format!("as if quantised to {}{place}", self.name);
        layout.notes.iter().for_each(|note| assumption += &format!("; {note}"));
        let mut rows: Vec<(String, DType, u64)> = Vec::new();
        for tensor in &layout.tensors {
            rows.push((tensor.weight.clone(), tensor.encoding(), tensor.bytes()));
            // The bytes of both are the first one's.
            rows.extend(tensor.second.clone().map(|second| (second, tensor.encoding(), 0)));
        }
        let weights = spec.weights();
        rows.extend(weights.iter().filter_map(|weight| unwritten(weight, &layout)));
        Ok(TypeTable::new(rows, Some(assumption)))
    }
}

/// Type and bytes of a weight that a model has and a file leaves out: a constant, or the embedding once more as head.
fn unwritten(weight: &Weight, layout: &Layout) -> Option<(String, DType, u64)> {
    let row = |dtype, bytes| Some((weight.name.clone(), dtype, bytes));
    if weight.constant.is_some() {
        return row(DType::F32, 4 * weight.shape.iter().product::<usize>() as u64);
    }
    let embed = layout.tensors.iter().find(|tensor| tensor.part == Part::Embed)?;
    if weight.part == Part::TiedHead { row(embed.encoding(), embed.bytes()) } else { None }
}

/// The type of that name.
fn type_named(name: &str) -> Option<DType> {
    let name = match name.to_lowercase().as_str() {
        "f8" | "fp8" => DType::F8E4M3.name().to_owned(),
        name => name.to_owned(),
    };
    types().into_iter().find(|dtype| dtype.name() == name)
}

/// Names of all types, for messages.
fn type_names() -> String {
    types().iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(", ")
}

/// The last words of weights, which patterns may name, and the number of layers.
fn names(weights: &[&str], layers: usize) -> String {
    let mut names: Vec<&str> = Vec::new();
    for weight in weights {
        let last = weight.rsplit('.').next().unwrap_or_default();
        if !names.contains(&last) {
            names.push(last);
        }
    }
    format!("{}, and layers.0 to layers.{}", names.join(", "), layers.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mambo_model::Place;

    #[test]
    fn types_that_do_not_divide_are_replaced_and_reported() {
        let spec = mambo_model::Preset::named("nano-4b").and_then(|p| p.spec()).unwrap();
        let layout = Recipe::pure("q4_k").unwrap().layout(&spec, Container::Gguf).unwrap();
        let head = layout.tensors.iter().find(|t| t.name == "output.weight").unwrap();
        assert_eq!(head.dtype, DType::IQ4_NL, "3136 is no multiple of 256");
        assert!(layout.notes.iter().any(|n| n.contains("iq4_nl instead of q4_k")), "{:?}", layout.notes);
    }

    #[test]
    fn every_weight_of_a_trunk_has_a_type() {
        for preset in mambo_model::PRESETS {
            let spec = preset.spec().unwrap();
            let types =
                Recipe::named("q4_k_m", Container::Gguf).unwrap().types(&spec, Container::Gguf).unwrap();
            for weight in spec.weights() {
                let is_trunk = matches!(weight.place, Place::Model | Place::Layer(_));
                assert!(!is_trunk || types.dtype(&weight.name).is_some(), "{}: {}", preset.name, weight.name);
            }
        }
    }

    #[test]
    fn later_rules_win_and_unknown_ones_are_refused() {
        let spec = mambo_model::Preset::named("nano-30b").and_then(|p| p.spec()).unwrap();
        let recipe = Recipe::pure("Q4_0").unwrap().with_rule("layers.1=q8_0").unwrap();
        let layout = recipe.with_rule("experts_up=f16").unwrap().layout(&spec, Container::Gguf).unwrap();
        let dtype = |name: &str| layout.tensors.iter().find(|t| t.name == name).unwrap().dtype;
        assert_eq!(dtype("blk.1.ffn_up_exps.weight"), DType::F16);
        assert_eq!(dtype("blk.1.ffn_down_exps.weight"), DType::Q8_0);
        assert_eq!(dtype("blk.1.ffn_gate_inp.weight"), DType::F32, "routers are never quantised");
        assert_eq!(dtype("blk.0.ssm_in.weight"), DType::Q4_0);
        let nothing = Recipe::named("q4_0", Container::Gguf).unwrap().with_rule("wing=q8_0").unwrap();
        let told = |e: ConvertError| e.to_string().contains("`wing`; it has ");
        assert!(nothing.layout(&spec, Container::Gguf).is_err_and(told));
        let mixed = Recipe::named("builtin", Container::Gguf).unwrap();
        assert!(mixed.layout(&spec, Container::Gguf).is_ok(), "its own rules need not match other models");
        assert!(mixed.with_rule("wing=q8_0").unwrap().layout(&spec, Container::Gguf).is_err_and(told));
        assert!(
            Recipe::named("q9", Container::Gguf)
                .is_err_and(|e| e.to_string().contains("q2_k, or a mix: q4_mix, nvfp4_mix, q4_k_m, builtin"))
        );
    }

    /// Which tensors llama.cpp's quantizer raises, as the headers of its files of these shapes show them.
    #[test]
    fn q4_k_m_is_mixed_as_llama_cpp_does() {
        let layout = |preset: &str| {
            let spec = mambo_model::Preset::named(preset).and_then(|p| p.spec()).unwrap();
            Recipe::named("q4_k_m", Container::Gguf).unwrap().layout(&spec, Container::Gguf).unwrap()
        };
        let raised = |layout: &Layout, name: &str| -> Vec<usize> {
            let of = |i: &usize| layout.tensors.iter().find(|t| t.name == format!("blk.{i}.{name}.weight"));
            (0..99).filter(|i| of(i).is_some_and(|tensor| tensor.dtype == DType::Q6K)).collect()
        };
        let dtype =
            |layout: &Layout, name: &str| layout.tensors.iter().find(|t| t.name == name).unwrap().dtype;
        let eight = layout("llama-3.1-8b");
        let half = [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31];
        assert_eq!(raised(&eight, "ffn_down"), half);
        assert_eq!(raised(&eight, "attn_v"), half);
        assert!(raised(&eight, "attn_q").is_empty());
        assert_eq!(dtype(&eight, "output.weight"), DType::Q6K);
        assert_eq!(dtype(&eight, "token_embd.weight"), DType::Q4K);
        let tied = layout("qwen3-0.6b");
        assert_eq!(dtype(&tied, "token_embd.weight"), DType::Q6K);
        let other = Recipe::named("q4_k_m", Container::Gguf).unwrap().with_rule("layers.0=q8_0").unwrap();
        let spec = mambo_model::Preset::named("llama-3.1-8b").and_then(|p| p.spec()).unwrap();
        let other = other.layout(&spec, Container::Gguf).unwrap();
        assert_eq!(dtype(&other, "blk.0.ffn_down.weight"), DType::Q8_0, "what is asked for goes before");
    }

    /// The promise of the default mix: widths that are no multiple of 256 make nothing fatter.
    #[test]
    fn the_default_mix_stays_small_on_real_shapes() {
        for (preset, most) in [("nano-30b", 4.6), ("nano-4b", 5.4), ("super", 4.7)] {
            let spec = mambo_model::Preset::named(preset).and_then(|p| p.spec()).unwrap();
            let layout = Recipe::named(Container::Gguf.default_mix(), Container::Gguf)
                .unwrap()
                .layout(&spec, Container::Gguf)
                .unwrap();
            let bits = layout.bits_per_weight();
            assert!(bits <= most, "{preset}: {bits} bits per weight");
        }
    }
}
