//! Kernel sources, and the specialisations that are compiled of them: a file with the parameters that the host passes,
//! constants in front, and includes.
//!
//! `#include "name.wgsl"` on a line of its own stands for that file, once; `$NAME` in it is replaced by what the
//! specialisation chose, which is how a product includes the unpacking of its weights. Lines between `#repeat` and `#end`
//! stand for several copies of them.

use std::fmt;

use crate::step_table;

/// A file with one kernel, whose entry is `main`.
pub(crate) struct Source {
    /// The file's stem, which is the op's.
    pub stem: &'static str,
    pub text: &'static str,
    /// WGSL text of `Params`.
    pub params: fn() -> String,
}

macro_rules! headers {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../kernels/", $name)))),*]
    };
}

/// Files that kernels may include.
const HEADERS: &[(&str, &str)] = headers![
    "activation.wgsl",
    "arena_vectors.wgsl",
    "arena_words.wgsl",
    "choice.wgsl",
    "common.wgsl",
    "delta.wgsl",
    "experts_blocks.wgsl",
    "experts_hidden_f32.wgsl",
    "experts_hidden_i8.wgsl",
    "few_f32.wgsl",
    "few_i8.wgsl",
    "few_norm.wgsl",
    "fours.wgsl",
    "integer_q4_0.wgsl",
    "integer_q4_k.wgsl",
    "integer_q6_k.wgsl",
    "integer_q8_0.wgsl",
    "integers.wgsl",
    "kv.wgsl",
    "math.wgsl",
    "numbers.wgsl",
    "product.wgsl",
    "rms.wgsl",
    "rounded.wgsl",
    "route_key.wgsl",
    "slot.wgsl",
    "ssm_columns.wgsl",
    "sums.wgsl",
    "weight_bf16.wgsl",
    "weight_f16.wgsl",
    "weight_f32.wgsl",
    "weight_iq4_nl.wgsl",
    "weight_mxfp4.wgsl",
    "weight_nvfp4.wgsl",
    "weight_q4_0.wgsl",
    "weight_q4_k.wgsl",
    "weight_q6_k.wgsl",
    "weight_q8_0.wgsl",
    "weights.wgsl",
];

/// A kernel: a file with constants in front.
#[derive(Clone)]
pub struct Specialisation {
    source: &'static Source,
    constants: Vec<(&'static str, u32)>,
    choices: Vec<(&'static str, &'static str)>,
}

impl Specialisation {
    pub(crate) fn new(source: &'static Source) -> Specialisation {
        Specialisation { source, constants: Vec::new(), choices: Vec::new() }
    }

    /// The same with `const name: u32 = value;` in front.
    pub(crate) fn define(mut self, name: &'static str, value: usize) -> Specialisation {
        self.constants.push((name, u32::try_from(value).expect("constants of kernels fit 32 bits")));
        self
    }

    /// The same with `$name` in includes replaced.
    pub(crate) fn choose(mut self, name: &'static str, value: &'static str) -> Specialisation {
        self.choices.push((name, value));
        self
    }

    /// The whole text that is compiled.
    pub fn text(&self) -> String {
        let mut text = step_table::wgsl();
        text.push_str(&(self.source.params)());
        for (name, value) in &self.constants {
            text.push_str(&format!("const {name}: u32 = {value}u;\n"));
        }
        let mut included = Vec::new();
        self.expand(self.source.stem, self.source.text, &mut text, &mut included);
        text
    }

    fn expand(&self, from: &str, file: &str, text: &mut String, included: &mut Vec<String>) {
        for line in repeated(file).lines() {
            let name = line.strip_prefix("#include \"").and_then(|rest| rest.strip_suffix('"'));
            let Some(name) = name else {
                text.push_str(line);
                text.push('\n');
                continue;
            };
            let name = self
                .choices
                .iter()
                .fold(name.to_owned(), |name, (choice, value)| name.replace(&format!("${choice}"), value));
            let name = name.replace("$ARENA", "words");
            if included.contains(&name) {
                continue;
            }
            let header = HEADERS.iter().find(|(header, _)| *header == name);
            let (_, header) = header.unwrap_or_else(|| panic!("{from} includes {name}, which is not there"));
            included.push(name.clone());
            self.expand(&name, header, text, included);
        }
    }
}

/// A file with the lines between `#repeat NAME COUNT` and `#end` so many times, `$NAME` counted up: without functions, whose
/// calls a driver may leave standing.
fn repeated(file: &str) -> String {
    let mut text = String::with_capacity(file.len());
    let mut lines = file.lines();
    while let Some(line) = lines.next() {
        let Some((name, count)) = line.strip_prefix("#repeat ").and_then(|rest| rest.split_once(' ')) else {
            text.push_str(line);
            text.push('\n');
            continue;
        };
        let body: String =
            lines.by_ref().take_while(|line| *line != "#end").map(|line| format!("{line}\n")).collect();
        let count: usize = count.parse().expect("a count of repetitions");
        (0..count).for_each(|i| text.push_str(&body.replace(&format!("${name}"), &i.to_string())));
    }
    text
}

impl fmt::Display for Specialisation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.source.stem)?;
        self.choices.iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))?;
        self.constants.iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}
