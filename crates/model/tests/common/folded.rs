//! A graph as text in which equal layers stand once, so that a reviewer can read the graph of any depth.
//!
//! Nothing is left out: values are called by the label of their node instead of by number, a layer's input is
//! `%x`, and a layer that differs in one number is printed apart from the others.

use std::collections::HashMap;
use std::fmt::Write;

use mambo_graph::Graph;

/// Equal blocks of lines, with the layers that have them.
struct Kind {
    lines: Vec<String>,
    layers: Vec<usize>,
    /// The cache layer of each, where it has one.
    caches: Vec<usize>,
}

pub fn folded(graph: &Graph) -> String {
    let printed = graph.to_string();
    let mut parts = Parts::default();
    for line in printed.lines().skip(1) {
        parts.add(line);
    }
    let (nodes, weights) = (graph.nodes.len(), graph.weights.len());
    let mut text = format!("\ngraph {}: {nodes} nodes, {weights} weights\n", graph.name);
    runs(&parts.caches).iter().chain(&parts.start).for_each(|line| writeln!(text, "{line}").unwrap());
    for kind in kinds(parts.layers) {
        write!(text, "layers {}", ranges(&kind.layers)).unwrap();
        if !kind.caches.is_empty() {
            write!(text, " with cache {}", ranges(&kind.caches)).unwrap();
        }
        text.push('\n');
        kind.lines.iter().for_each(|line| writeln!(text, "  {line}").unwrap());
    }
    parts.end.iter().for_each(|line| writeln!(text, "{line}").unwrap());
    text
}

/// The lines of a printed graph by where they belong.
#[derive(Default)]
struct Parts {
    start: Vec<String>,
    caches: Vec<(String, String)>,
    layers: Vec<(Vec<String>, Option<usize>)>,
    end: Vec<String>,
    /// Labels by printed value.
    names: HashMap<String, String>,
    /// The layer whose nodes are being read.
    current: Option<usize>,
    /// The value that the node before defined, as printed.
    last: String,
    /// What the current layer calls `%x`.
    input: String,
}

impl Parts {
    fn add(&mut self, line: &str) {
        let (first, rest) = line.split_once(' ').unwrap();
        match (first, line.split_once(" ; ")) {
            ("weight", _) => match layer(rest) {
                Some((index, rest)) => self.layer(index).0.push(format!("${rest}")),
                None if self.layers.is_empty() => self.start.push(format!("${rest}")),
                None => self.end.push(format!("${rest}")),
            },
            ("kv" | "state", _) => {
                let (_, sizes) = rest.split_once(' ').unwrap();
                self.caches.push((first.to_owned(), sizes.to_owned()));
            }
            ("output", _) => self.end.push(self.renamed(line, "")),
            (_, Some((text, label))) => self.node(text.trim_end(), label),
            (_, None) => {
                let (name, kind) = rest.strip_prefix("= input ").unwrap().split_once(' ').unwrap();
                self.name(first, format!("input.{name}"));
                self.start.push(format!("%input.{name} {kind}"));
            }
        }
    }

    fn layer(&mut self, index: usize) -> &mut (Vec<String>, Option<usize>) {
        if index == self.layers.len() {
            self.layers.push(Default::default());
        }
        &mut self.layers[index]
    }

    fn name(&mut self, value: &str, name: String) {
        assert!(self.names.values().all(|known| *known != name), "{name} names two values");
        self.names.insert(value.to_owned(), name);
    }

    fn node(&mut self, text: &str, label: &str) {
        let (outputs, _) = text.split_once(" = ").unwrap();
        let outputs: Vec<&str> = outputs.split(", ").collect();
        let of_layer = layer(label).map(|(index, _)| index);
        if of_layer.is_some() && of_layer != self.current {
            (self.current, self.input) = (of_layer, self.last.clone());
        }
        for (i, output) in outputs.iter().enumerate() {
            let name = if outputs.len() == 1 { label.to_owned() } else { format!("{label}.{i}") };
            self.name(output, name);
        }
        (*outputs.last().unwrap()).clone_into(&mut self.last);
        let Some(index) = of_layer else {
            let line = self.renamed(text, "");
            return if self.current.is_none() { self.start.push(line) } else { self.end.push(line) };
        };
        let (line, cache) = without_cache(&self.renamed(text, &format!("layers.{index}.")));
        let (lines, known) = self.layer(index);
        lines.push(line);
        if let Some(cache) = cache {
            assert_eq!(*known.get_or_insert(cache), cache, "layer {index} uses one cache");
        }
    }

    /// A line with its values and weights called by name, those of its own layer without the prefix.
    fn renamed(&self, line: &str, prefix: &str) -> String {
        let own = |name: &str| name.strip_prefix(prefix).unwrap_or(name).to_owned();
        let word = |word: &str| match word.split_at_checked(1) {
            Some(("%", _)) => {
                let value = word.trim_end_matches(',');
                let comma = &word[value.len()..];
                match !prefix.is_empty() && value == self.input {
                    true => format!("%x{comma}"),
                    false => format!("%{}{comma}", own(&self.names[value])),
                }
            }
            Some(("$", name)) => format!("${}", own(name)),
            _ => word.to_owned(),
        };
        line.split(' ').map(word).collect::<Vec<_>>().join(" ")
    }
}

/// A node's line without the number of its cache, and that number.
fn without_cache(line: &str) -> (String, Option<usize>) {
    let Some(at) = line.find(" @") else { return (line.to_owned(), None) };
    let start = at + line[at..].find(|c: char| c.is_ascii_digit()).unwrap();
    let end = start + line[start..].find(' ').unwrap();
    (format!("{}{}", &line[..start], &line[end..]), Some(line[start..end].parse().unwrap()))
}

/// `layers.N.rest` taken apart.
fn layer(name: &str) -> Option<(usize, &str)> {
    let (index, rest) = name.strip_prefix("layers.")?.split_once('.')?;
    Some((index.parse().ok()?, rest))
}

fn kinds(layers: Vec<(Vec<String>, Option<usize>)>) -> Vec<Kind> {
    let mut kinds: Vec<Kind> = Vec::new();
    for (index, (lines, cache)) in layers.into_iter().enumerate() {
        let at = kinds.iter().position(|kind| kind.lines == lines).unwrap_or_else(|| {
            kinds.push(Kind { lines, layers: Vec::new(), caches: Vec::new() });
            kinds.len() - 1
        });
        kinds[at].layers.push(index);
        kinds[at].caches.extend(cache);
    }
    kinds
}

/// Declarations of caches, equal neighbours as one line.
fn runs(caches: &[(String, String)]) -> Vec<String> {
    let mut runs: Vec<(&(String, String), Vec<usize>)> = Vec::new();
    for cache in caches {
        let same_kind = runs.iter().filter(|(known, _)| known.0 == cache.0);
        let index = same_kind.map(|(_, indices)| indices.len()).sum();
        match runs.last_mut() {
            Some((known, indices)) if *known == cache => indices.push(index),
            _ => runs.push((cache, vec![index])),
        }
    }
    runs.iter().map(|((kind, sizes), indices)| format!("{kind} {} {sizes}", ranges(indices))).collect()
}

/// `0 2-4 7` for ascending numbers.
fn ranges(indices: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &index in indices {
        match parts.last_mut() {
            Some((_, end)) if *end + 1 == index => *end = index,
            _ => parts.push((index, index)),
        }
    }
    let text = |&(a, b): &(usize, usize)| if a == b { a.to_string() } else { format!("{a}-{b}") };
    parts.iter().map(text).collect::<Vec<_>>().join(" ")
}
