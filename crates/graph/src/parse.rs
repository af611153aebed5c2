//! Reads the text of `print` back. Any text gives a graph or an error with a line number, never a panic.

use std::collections::HashMap;
use std::str::FromStr;

use mambo_kernel::{Elem, RowBase, Rows, ValueType};

use crate::error::GraphError;
use crate::graph::{Graph, Input, Node, ValueId, WeightDecl, WeightId};
use crate::op_text::{Layer, Words, parse_op};

impl FromStr for Graph {
    type Err = GraphError;

    fn from_str(text: &str) -> Result<Self, GraphError> {
        let mut parser = Parser::default();
        for (i, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            parser.line(line).map_err(|problem| GraphError::Parse { line: i + 1, problem })?;
        }
        let graph = parser.finish()?;
        graph.verify()?;
        Ok(graph)
    }
}

#[derive(Default)]
struct Parser {
    graph: Option<Graph>,
    weights: HashMap<String, WeightId>,
    types: HashMap<ValueId, ValueType>,
}

impl Parser {
    fn line(&mut self, line: &str) -> Result<(), String> {
        let (head, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        if head == "graph" {
            return match self.graph.replace(Graph::new(rest)) {
                None => Ok(()),
                Some(_) => Err("a second `graph` line; keep one graph per text".to_string()),
            };
        }
        let Some(graph) = &mut self.graph else {
            return Err("the first line must be `graph NAME`".to_string());
        };
        match head {
            "weight" => {
                let (name, shape) = rest.split_once(' ').ok_or("expected `weight NAME [SIZE, ...]`")?;
                let decl = WeightDecl { name: name.to_string(), shape: parse_shape(shape)? };
                self.weights.insert(decl.name.clone(), WeightId(graph.weights.len() as u32));
                graph.weights.push(decl);
                Ok(())
            }
            "kv" => {
                let mut words = layer_words("kv", rest, graph.kv_layers.len())?;
                graph.kv_layers.push(words.attention()?);
                words.finish()
            }
            "state" => {
                let mut words = layer_words("state", rest, graph.state_layers.len())?;
                graph.state_layers.push(words.ssm()?);
                words.finish()
            }
            "output" => {
                let (name, value) = rest.split_once(' ').ok_or("expected `output NAME %VALUE`")?;
                graph.outputs.push((name.to_string(), parse_value(value.trim())?));
                Ok(())
            }
            _ if head.starts_with('%') => self.definition(line),
            _ => Err(format!(
                "`{head}` begins no line of a graph; expected graph, weight, kv, state, output or %VALUE"
            )),
        }
    }

    fn definition(&mut self, line: &str) -> Result<(), String> {
        let (line, label) = line.split_once(';').unwrap_or((line, ""));
        let (outputs, rest) = line.split_once(" = ").ok_or("expected `%VALUE = OP ... : TYPE`")?;
        let (body, types) = rest.split_once(" : ").ok_or("the type is missing; end with ` : TYPE`")?;
        let outputs = outputs.split(',').map(|v| parse_value(v.trim())).collect::<Result<Vec<_>, _>>()?;
        let types = parse_types(types.trim())?;
        if outputs.len() != types.len() {
            return Err(format!("{} values but {} types; give one type each", outputs.len(), types.len()));
        }
        for (value, value_type) in outputs.iter().zip(&types) {
            if self.types.insert(*value, *value_type).is_some() {
                return Err(format!("{value} is defined twice; give it another number"));
            }
        }
        let words: Vec<_> = body.split_whitespace().collect();
        let Some((name, words)) = words.split_first() else {
            return Err("the op is missing".to_string());
        };
        if *name == "input" {
            return self.input(&outputs, &types, words);
        }
        self.node(outputs, name, words, label.trim())
    }

    fn input(&mut self, outputs: &[ValueId], types: &[ValueType], words: &[&str]) -> Result<(), String> {
        let ([value], [value_type], [name]) = (outputs, types, words) else {
            return Err("expected `%VALUE = input NAME : TYPE`".to_string());
        };
        let input = match *name {
            "token_ids" => Input::TokenIds,
            "wanted" => Input::Wanted,
            "hidden" => Input::Hidden { cols: value_type.cols },
            _ => return Err(format!("`{name}` is not an input; expected token_ids, wanted or hidden")),
        };
        let graph = self.graph.as_mut().ok_or("the first line must be `graph NAME`")?;
        graph.inputs.push((*value, input));
        Ok(())
    }

    fn node(&mut self, outputs: Vec<ValueId>, name: &str, words: &[&str], label: &str) -> Result<(), String> {
        let graph = self.graph.as_mut().ok_or("the first line must be `graph NAME`")?;
        let (mut parameters, mut inputs, mut weights) = (Vec::new(), Vec::new(), Vec::new());
        let (mut layer, mut cache) = (Layer::None, None);
        for word in words {
            if word.starts_with('%') {
                inputs.push(parse_value(word)?);
            } else if let Some(weight) = word.strip_prefix('$') {
                let id = self.weights.get(weight);
                weights.push(*id.ok_or(format!("weight `{weight}` is not declared; add a `weight` line"))?);
            } else if let Some(index) = word.strip_prefix("@kv") {
                let index = parse_size(index)?;
                let dims = graph.kv_layers.get(index);
                layer = Layer::Kv(*dims.ok_or(format!("kv layer {index} is not declared"))?);
                cache = Some(index);
            } else if let Some(index) = word.strip_prefix("@state") {
                let index = parse_size(index)?;
                let dims = graph.state_layers.get(index);
                layer = Layer::State(*dims.ok_or(format!("state layer {index} is not declared"))?);
                cache = Some(index);
            } else {
                parameters.push(*word);
            }
        }
        let op = parse_op(name, &parameters, layer)?;
        graph.nodes.push(Node { op, inputs, weights, cache, outputs, label: label.to_string() });
        Ok(())
    }

    /// Lays the types out by number; a gap in the numbers is left to the verifier to name.
    fn finish(self) -> Result<Graph, GraphError> {
        let count = self.types.len();
        let Some(mut graph) = self.graph else {
            return Err(GraphError::Parse { line: 1, problem: "the first line must be `graph NAME`".into() });
        };
        for i in 0..count as u32 {
            match self.types.get(&ValueId(i)) {
                Some(value_type) => graph.types.push(*value_type),
                None => {
                    return Err(GraphError::Definitions { value: ValueId(i).to_string(), times: 0, count });
                }
            }
        }
        Ok(graph)
    }
}

fn layer_words<'a>(what: &str, rest: &'a str, next: usize) -> Result<Words<'a>, String> {
    let words: Vec<_> = rest.split_whitespace().collect();
    match words.split_first() {
        Some((index, words)) if parse_size(index) == Ok(next) => Words::new(words),
        _ => Err(format!("expected `{what} {next} ...`; layers are numbered from 0 without gaps")),
    }
}

fn parse_size(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("`{text}` is not a whole number"))
}

fn parse_value(text: &str) -> Result<ValueId, String> {
    let number = text.strip_prefix('%').and_then(|n| n.parse().ok());
    number.map(ValueId).ok_or(format!("`{text}` is not a value; expected %NUMBER"))
}

fn parse_shape(text: &str) -> Result<Vec<usize>, String> {
    let inner = text.trim().strip_prefix('[').and_then(|t| t.strip_suffix(']'));
    let inner = inner.ok_or(format!("`{text}` is not a shape; expected [SIZE, ...]"))?;
    inner.split(',').map(|size| parse_size(size.trim())).collect()
}

fn parse_types(text: &str) -> Result<Vec<ValueType>, String> {
    let body = text.strip_suffix(']').ok_or(format!("`{text}` is not a type; expected f32[T, COLS]"))?;
    body.split(']').map(|t| parse_type(t.trim_start_matches(',').trim())).collect()
}

fn parse_type(text: &str) -> Result<ValueType, String> {
    let fail = || format!("`{text}]` is not a type; expected f32[T, COLS]");
    let (elem, shape) = text.split_once('[').ok_or_else(fail)?;
    let (rows, cols) = shape.split_once(',').ok_or_else(fail)?;
    let elem = [Elem::F32, Elem::I32].into_iter().find(|e| e.name() == elem).ok_or_else(fail)?;
    let (base, times) = rows.split_once('*').unwrap_or((rows, "1"));
    let base = match base {
        "T" => RowBase::Tokens,
        "W" => RowBase::Wanted,
        _ => return Err(fail()),
    };
    Ok(ValueType { elem, rows: Rows { base, times: parse_size(times)? }, cols: parse_size(cols.trim())? })
}
