//! A specification as one readable table, the same text every time.

use std::fmt;

use mambo_kernel::Activation;

use crate::spec::{AttentionSpec, LayerSpec, Mamba2Spec, Mixer, ModelSpec, MoeSpec};

impl fmt::Display for ModelSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = if self.tied_embeddings { "tied" } else { "own" };
        writeln!(f, "{}  hidden {}  vocab {}  head {head}", self.architecture, self.hidden, self.vocab)?;
        writeln!(f, "schedule    {}", self.pattern())?;
        for (layer, indices) in self.distinct_layers() {
            let (count, eps) = (indices.len(), layer.norm_eps);
            let mut lead = format!("{count:>4} x");
            for mixer in layer.mixers() {
                writeln!(f, "{lead} {:<10} {}  eps {eps:e}", mixer.name(), mixer_sizes(mixer))?;
                lead = "      ".to_owned();
            }
            if count < self.layers.len() {
                writeln!(f, "       at {}", ranges(&indices))?;
            }
        }
        if let Some(m) = &self.mtp {
            let attention = mixer_sizes(&Mixer::Attention(AttentionSpec::plain(m.attention)));
            writeln!(f, "     mtp {:<10} {attention}  eps {:e}", "attention", m.norm_eps)?;
            writeln!(f, "     mtp {:<10} {}", "moe", moe_sizes(&m.moe))?;
        }
        self.write_amounts(f)?;
        for note in &self.notes {
            writeln!(f, "note        {note}")?;
        }
        Ok(())
    }
}

impl ModelSpec {
    fn write_amounts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let p = self.parameters();
        writeln!(f, "parameters  {} total", grouped(p.total))?;
        writeln!(
            f,
            "            {} trunk, {} mtp, {} active",
            grouped(p.trunk),
            grouped(p.mtp),
            grouped(p.active)
        )?;
        let (kv, mtp_kv) = (self.kv_bytes_per_token(2), self.mtp_kv_bytes_per_token(2));
        writeln!(
            f,
            "kv          {} bytes per token at 16 bits, mtp {}",
            grouped(kv as u64),
            grouped(mtp_kv as u64)
        )?;
        let state = self.state_bytes_per_sequence(2);
        let mib = state as f64 / f64::from(1 << 20);
        writeln!(f, "state       {} bytes per sequence ({mib:.1} MiB)", grouped(state as u64))?;
        let context = self.context.map_or("unknown".to_owned(), |c| grouped(c as u64));
        let bos = self.bos.map_or("none".to_owned(), |b| b.to_string());
        let stop: Vec<String> = self.stop_tokens.iter().map(u32::to_string).collect();
        writeln!(f, "tokens      context {context}  bos {bos}  stop {}", stop.join(" "))
    }

    /// Equal layers together, in order of first appearance.
    pub fn distinct_layers(&self) -> Vec<(&LayerSpec, Vec<usize>)> {
        let mut kinds: Vec<(&LayerSpec, Vec<usize>)> = Vec::new();
        for (index, layer) in self.layers.iter().enumerate() {
            match kinds.iter_mut().find(|(known, _)| *known == layer) {
                Some((_, indices)) => indices.push(index),
                None => kinds.push((layer, vec![index])),
            }
        }
        kinds
    }
}

fn mixer_sizes(mixer: &Mixer) -> String {
    match mixer {
        Mixer::Mamba2(Mamba2Spec { dims: d, .. }) | Mixer::DeltaNet(d) => format!(
            "heads {}x{}  state {}  groups {}  taps {}  inner {}",
            d.heads,
            d.head_dim,
            d.state,
            d.groups,
            d.taps,
            d.inner()
        ),
        Mixer::Attention(a) => attention_sizes(a),
        Mixer::ShortConv { taps, .. } => format!("taps {taps}"),
        Mixer::Mlp(m) => format!("width {}{}", m.width, gate(m.gate)),
        Mixer::Moe(m) => moe_sizes(m),
    }
}

fn gate(activation: Option<Activation>) -> &'static str {
    match activation {
        None => "",
        Some(Activation::Silu) => "  silu gate",
        Some(Activation::GeluTanh | Activation::Gelu) => "  gelu gate",
        Some(Activation::Sigmoid) => "  sigmoid gate",
        Some(Activation::ClampedSilu { .. }) => "  clamped silu gate",
    }
}

fn attention_sizes(spec: &AttentionSpec) -> String {
    let a = spec.dims();
    let mut text = format!("heads {}x{}  kv heads {}", a.q_heads, a.head_dim, a.kv_heads);
    if let Some(rope) = spec.rope {
        text += &format!("  rope {} of base {}", rope.rotary, rope.base);
    }
    if let Some(window) = spec.attention.window {
        text += &format!("  window {window}");
    }
    let extras = [
        (spec.attention.sinks, "sinks"),
        (spec.qk_norm, "qk norm"),
        (spec.qkv_bias, "biases"),
        (spec.gated, "gated"),
    ];
    extras.iter().filter(|(is_on, _)| *is_on).fold(text, |text, (_, word)| text + "  " + word)
}

fn moe_sizes(m: &MoeSpec) -> String {
    let r = &m.route;
    let mut text = format!("experts {} of {}  width {}{}", r.top_k, r.experts, m.expert_width, gate(m.gate));
    if let Some(latent) = m.latent {
        text += &format!("  latent {latent}");
    }
    if let Some(shared) = m.shared_width {
        text += &format!("  shared {shared}");
    }
    if r.groups > 1 {
        text += &format!("  groups {} of {}", r.top_groups, r.groups);
    }
    let normalized = if r.normalize { "" } else { "  not normalized" };
    text + &format!("  scale {}{normalized}", r.scale)
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

/// A number with commas between its thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
