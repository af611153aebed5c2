//! A program as text: one line per call, deterministic, so that plans can be read and compared.

use std::collections::BTreeMap;
use std::fmt::Write;

use mambo_kernel::{CacheKind, CacheLayout, Call, Operand, PAGE_TOKENS, Place, Program};

use crate::kernels::Kernels;

/// The text of a program: header with memory, one line per call, outputs.
///
/// With a cache layout the header also shows the memory of keys, values and recurrent state.
pub fn plan_text(program: &Program, kernels: &Kernels, caches: Option<&CacheLayout>) -> String {
    let mut text = format!(
        "plan {} {} tokens<={} wanted<={} {}  arena {} (unpooled {})\n",
        program.name,
        program.phase.name(),
        program.max_tokens,
        program.max_wanted,
        kernels.backend,
        size_text(program.arena_bytes as u64),
        size_text(program.unpooled_bytes as u64),
    );
    if let Some(caches) = caches {
        text += &cache_text(caches);
    }
    let lines = call_lines(program, kernels);
    let widths: Vec<usize> =
        (0..5).map(|c| lines.iter().map(|l| l.columns[c].len()).max().unwrap_or(0)).collect();
    for (i, line) in lines.iter().enumerate() {
        let [value, op, kernel, shape, place] = &line.columns;
        let [w0, w1, w2, w3, w4] = widths[..] else { break };
        let _ = writeln!(
            text,
            "{i:>4}{} {value:w0$} {op:w1$} {kernel:w2$} {shape:w3$} {place:w4$} <- {} ; {}",
            overlap_mark(program, i),
            line.reads,
            program.calls[i].label
        );
    }
    let names = ValueNames::after(program);
    for output in &program.outputs {
        let _ = writeln!(text, "output {} {}", output.name, names.name(&output.operand));
    }
    text
}

/// `|` beside a call that may run at the same time as the one printed before it.
fn overlap_mark(program: &Program, index: usize) -> char {
    let waits = index == 0 || program.calls[index].after.contains(&(index - 1));
    if waits { ' ' } else { '|' }
}

/// Bytes in a readable unit, always with one digit after the point from KiB on.
pub(crate) fn size_text(bytes: u64) -> String {
    let mut size = bytes as f64;
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    for unit in ["KiB", "MiB", "GiB"] {
        size /= 1024.0;
        if size < 1024.0 {
            return format!("{size:.1} {unit}");
        }
    }
    format!("{:.1} TiB", size / 1024.0)
}

/// A line for the pages of every group of attention layers, and one for the slots.
fn cache_text(caches: &CacheLayout) -> String {
    let mut text = String::new();
    for (index, group) in caches.kv_groups.iter().enumerate() {
        let (layers, bytes) = (group.layers.len(), caches.page_bytes(index));
        let window = group.window.map_or(String::new(), |window| format!(", window {window}"));
        text += &format!(
            "  kv {layers} layers {} x {} pages{window}, {} per token, {}\n",
            caches.kv_types,
            group.pages,
            size_text((bytes / PAGE_TOKENS) as u64),
            size_text((bytes as u64).saturating_mul(group.pages as u64)),
        );
    }
    let state = caches.state_layers.len();
    text + &format!(
        "  state {state} layers {} x {} slots, {} per slot\n",
        caches.state_elem.name(),
        caches.slots,
        size_text(caches.slot_bytes() as u64),
    )
}

struct Line {
    columns: [String; 5],
    reads: String,
}

fn call_lines(program: &Program, kernels: &Kernels) -> Vec<Line> {
    let mut names = ValueNames::default();
    let mut lines = Vec::new();
    for call in &program.calls {
        let mut reads: Vec<String> = call.inputs.iter().map(|i| names.name(i)).collect();
        reads.extend(call.weights.iter().map(|w| format!("${}", program.weights[*w].name)));
        reads.extend(cache_word(call));
        let written: Vec<Operand> = call.outputs.iter().chain(&call.rounded).copied().collect();
        let values: Vec<_> = written.iter().map(|o| names.define(o)).collect();
        let kernel = kernels.rows.get(call.kernel).map_or("?", |row| &row.name);
        let columns = [
            values.join(", "),
            call.op.kind().name().to_string(),
            kernel.to_string(),
            join(&written, shape_text),
            join(&written, place_text),
        ];
        lines.push(Line { columns, reads: reads.join(" ") });
    }
    lines
}

fn cache_word(call: &Call) -> Option<String> {
    let layer = call.cache?;
    Some(match call.op.cache()? {
        CacheKind::Kv => format!("kv[{layer}]"),
        CacheKind::State => format!("state[{layer}]"),
    })
}

fn join(operands: &[Operand], text: fn(&Operand) -> String) -> String {
    operands.iter().map(text).collect::<Vec<_>>().join(", ")
}

fn shape_text(operand: &Operand) -> String {
    format!("{}[{}, {}]", operand.elem.name(), operand.rows, operand.cols)
}

fn place_text(operand: &Operand) -> String {
    match operand.place {
        Place::Arena(offset) => format!("@{offset:#07x}"),
        Place::TokenIds => "token_ids".to_string(),
        Place::Wanted => "wanted".to_string(),
        Place::Hidden(0) => "hidden".to_string(),
        Place::Hidden(offset) => format!("hidden[{}..{}]", offset / 4, offset / 4 + operand.cols),
    }
}

/// A value whose first row is intact.
struct Named {
    number: usize,
    row_bytes: usize,
    cols: usize,
}

/// Numbers the values of a program by the last write to their memory.
#[derive(Default)]
struct ValueNames {
    count: usize,
    /// By offset of the first row.
    at: BTreeMap<usize, Named>,
}

impl ValueNames {
    /// The names that hold when the program has run.
    fn after(program: &Program) -> Self {
        let mut names = ValueNames::default();
        for output in program.calls.iter().flat_map(|c| c.outputs.iter().chain(&c.rounded)) {
            names.define(output);
        }
        names
    }

    fn define(&mut self, operand: &Operand) -> String {
        let number = self.count;
        self.count += 1;
        if let Place::Arena(offset) = operand.place {
            let row_bytes = operand.stride_bytes;
            // What lies under the first row is gone; a later lookup must not find it.
            self.at.retain(|start, old| start + old.row_bytes <= offset || *start >= offset + row_bytes);
            self.at.insert(offset, Named { number, row_bytes, cols: operand.cols });
        }
        format!("%{number}")
    }

    /// The name of what an operand reads; a part of a row is written with its columns.
    fn name(&self, operand: &Operand) -> String {
        let Place::Arena(offset) = operand.place else { return place_text(operand) };
        let found = self.at.range(..=offset).next_back().filter(|(start, v)| offset < **start + v.row_bytes);
        let Some((start, value)) = found else { return place_text(operand) };
        let first = (offset - start) / 4;
        match operand.cols == value.cols {
            true => format!("%{}", value.number),
            false => format!("%{}[{first}..{}]", value.number, first + operand.cols),
        }
    }
}
