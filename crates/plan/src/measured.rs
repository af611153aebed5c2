//! Tables of measured times beside the work of each call. Measures nothing itself.

use std::collections::HashMap;
use std::fmt::Write;

use mambo_kernel::{Call, CallCost, CallTime, OpKind, Program};

use crate::explain::size_text;
use crate::kernels::Kernels;

/// A program with its costs and times, call by call.
#[derive(Clone, Copy)]
pub struct Measured<'a> {
    /// The program.
    pub program: &'a Program,
    /// The kernels it was lowered to.
    pub kernels: Kernels<'a>,
    /// Least work per call.
    pub costs: &'a [CallCost],
    /// Time per call.
    pub times: &'a [CallTime],
    /// Bytes per second a plain read loop reaches on the same machine.
    pub bandwidth: f64,
}

/// What a call belongs to in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum LayerKind {
    Embed,
    Mamba,
    Attention,
    Moe,
    Mlp,
    Head,
}

impl LayerKind {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            LayerKind::Embed => "embed",
            LayerKind::Mamba => "mamba",
            LayerKind::Attention => "attention",
            LayerKind::Moe => "moe",
            LayerKind::Mlp => "mlp",
            LayerKind::Head => "head",
        }
    }
}

/// The kind of each call, by the ops that share its layer: the label up to its first number.
pub fn layer_kinds(program: &Program) -> Vec<LayerKind> {
    let mut layers: HashMap<&str, LayerKind> = HashMap::new();
    for call in &program.calls {
        let kind = match call.op.kind() {
            OpKind::SsmConv | OpKind::SsmScan | OpKind::SsmStep => LayerKind::Mamba,
            OpKind::Attention => LayerKind::Attention,
            OpKind::MoeRoute | OpKind::MoeMatmul | OpKind::MoeCombine => LayerKind::Moe,
            _ => continue,
        };
        layers.extend(layer_of(&call.label).map(|layer| (layer, kind)));
    }
    let kind = |call: &Call| match layer_of(&call.label) {
        Some(layer) => layers.get(layer).copied().unwrap_or(LayerKind::Mlp),
        None if call.op.kind() == OpKind::Embed => LayerKind::Embed,
        None => LayerKind::Head,
    };
    program.calls.iter().map(kind).collect()
}

fn layer_of(label: &str) -> Option<&str> {
    let mut end = 0;
    for part in label.split('.') {
        end += part.len();
        if !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()) {
            return Some(&label[..end]);
        }
        end += 1;
    }
    None
}

/// Calls summed into one line of a table.
#[derive(Clone, Copy, Default)]
struct Sums {
    calls: usize,
    seconds: f64,
    cost: CallCost,
}

impl Measured<'_> {
    /// Seconds of one run of a call, on average.
    fn seconds(&self, call: usize) -> f64 {
        let time = self.times.get(call).copied().unwrap_or_default();
        time.total.as_secs_f64() / f64::from(time.runs.max(1))
    }

    /// What a call had to do.
    fn cost(&self, call: usize) -> CallCost {
        self.costs.get(call).copied().unwrap_or_default()
    }

    /// Sums some calls.
    fn sums(&self, calls: impl Iterator<Item = usize>) -> Sums {
        calls.fold(Sums::default(), |sums, i| {
            let (seconds, cost) = (sums.seconds + self.seconds(i), sums.cost + self.cost(i));
            Sums { calls: sums.calls + 1, seconds, cost }
        })
    }

    fn total(&self) -> Sums {
        self.sums(0..self.program.calls.len())
    }

    /// One line per call, then the total.
    pub fn table(&self) -> String {
        let calls = &self.program.calls;
        let kernel = |i: usize| self.kernels.rows.get(calls[i].kernel).map_or("?", |row| &row.name);
        let label = calls.iter().map(|c| c.label.len()).max().unwrap_or(0).max(5);
        let width = (0..calls.len()).map(|i| kernel(i).len()).max().unwrap_or(0).max(6);
        let mut text = format!("{:4} {:label$} {:width$} {}\n", "#", "label", "kernel", NUMBER_HEAD);
        let total = self.total();
        for (i, call) in calls.iter().enumerate() {
            let numbers = self.numbers(self.seconds(i), self.cost(i), total.seconds);
            let _ = writeln!(text, "{i:<4} {:label$} {:width$} {numbers}", call.label, kernel(i));
        }
        let numbers = self.numbers(total.seconds, total.cost, total.seconds);
        let _ = writeln!(text, "{:4} {:label$} {:width$} {numbers}", "", "total", "");
        text
    }

    /// One line per kind of op, slowest first.
    pub fn by_op(&self) -> String {
        let calls = &self.program.calls;
        self.summary("op", |i| calls[i].op.kind().name())
    }

    /// One line per kind of layer, slowest first.
    pub fn by_layer_kind(&self) -> String {
        let kinds = layer_kinds(self.program);
        self.summary("layers", |i| kinds[i].name())
    }

    fn summary(&self, head: &str, key: impl Fn(usize) -> &'static str) -> String {
        let mut groups: HashMap<&str, Vec<usize>> = HashMap::new();
        for i in 0..self.program.calls.len() {
            groups.entry(key(i)).or_default().push(i);
        }
        let mut lines: Vec<_> =
            groups.into_iter().map(|(name, calls)| (name, self.sums(calls.into_iter()))).collect();
        lines.sort_by(|(a, x), (b, y)| y.seconds.total_cmp(&x.seconds).then(a.cmp(b)));
        let total = self.total();
        lines.push(("total", total));
        let mut text = format!("{head:16} {:>5} {NUMBER_HEAD}\n", "calls");
        for (name, sums) in lines {
            let numbers = self.numbers(sums.seconds, sums.cost, total.seconds);
            let _ = writeln!(text, "{name:16} {:>5} {numbers}", sums.calls);
        }
        text
    }

    /// The number columns; a dash where nothing was measured.
    fn numbers(&self, seconds: f64, cost: CallCost, total: f64) -> String {
        let bytes = size_text(cost.bytes);
        if seconds <= 0.0 {
            return format!("{:>10} {:>6} {bytes:>11} {:>8} {:>8} {:>7}", "-", "-", "-", "-", "-");
        }
        let rate = cost.bytes as f64 / seconds;
        format!(
            "{:>10.1} {:>5.1}% {bytes:>11} {:>8.2} {:>8.2} {:>6.1}%",
            seconds * 1e6,
            100.0 * seconds / total,
            rate / 1e9,
            cost.flops as f64 / seconds / 1e9,
            100.0 * rate / self.bandwidth,
        )
    }
}

const NUMBER_HEAD: &str = "        us  share       bytes     GB/s  GFLOP/s  of roof";
