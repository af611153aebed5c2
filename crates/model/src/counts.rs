//! How much a model is: parameters, KV bytes per token, recurrent bytes per sequence.
//!
//! Works on sizes alone; must not know element types of weights or page and slot layouts.

use mambo_kernel::{AttentionDims, SsmDims};

use crate::spec::{LayerSpec, Mixer, ModelSpec, MoeSpec, MtpSpec};

/// Parameter counts of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Everything in the checkpoint.
    pub total: u64,
    /// Everything but the MTP head.
    pub trunk: u64,
    /// The MTP head; embedding and output projection are the trunk's.
    pub mtp: u64,
    /// What one token of the trunk multiplies with: chosen experts only, no embedding.
    pub active: u64,
}

impl ModelSpec {
    /// Counts parameters.
    pub fn parameters(&self) -> Parameters {
        let (h, v) = (self.hidden as u64, self.vocab as u64);
        let tables = if self.tied_embeddings { 1 } else { 2 };
        let layers: u64 = self.layers.iter().map(|l| layer(h, l, false)).sum();
        let active: u64 = self.layers.iter().map(|l| layer(h, l, true)).sum();
        let trunk = tables * v * h + h + layers;
        let mtp = self.mtp.map_or(0, |m| mtp(h, &m));
        Parameters { total: trunk + mtp, trunk, mtp, active: v * h + h + active }
    }

    /// Bytes that the trunk's attention keeps per position.
    pub fn kv_bytes_per_token(&self, bytes_per_elem: usize) -> usize {
        self.trunk_kv_layers().iter().map(|a| kv_elems(a) * bytes_per_elem).sum()
    }

    /// Bytes that the MTP head's attention keeps per position.
    pub fn mtp_kv_bytes_per_token(&self, bytes_per_elem: usize) -> usize {
        self.mtp.map_or(0, |m| kv_elems(&m.attention) * bytes_per_elem)
    }

    /// Bytes of recurrent state per sequence: an f32 scan state and `taps - 1` columns of `conv_bytes` each.
    pub fn state_bytes_per_sequence(&self, conv_bytes: usize) -> usize {
        let layer = |d: &SsmDims| 4 * d.inner() * d.state + (d.taps - 1) * d.conv_dim() * conv_bytes;
        self.cache_layers().state_layers.iter().map(layer).sum()
    }
}

fn kv_elems(a: &AttentionDims) -> usize {
    2 * a.kv_heads * a.head_dim
}

fn layer(h: u64, layer: &LayerSpec, active: bool) -> u64 {
    h + match &layer.mixer {
        Mixer::Mamba2(d) => mamba2(h, d),
        Mixer::Attention(a) => attention(h, a),
        Mixer::Mlp { width } => 2 * h * *width as u64,
        Mixer::Moe(m) => moe(h, m, active),
    }
}

fn mamba2(h: u64, d: &SsmDims) -> u64 {
    let (inner, conv, heads) = (d.inner() as u64, d.conv_dim() as u64, d.heads as u64);
    let small = (d.taps as u64 + 1) * conv + 3 * heads + inner;
    d.in_proj() as u64 * h + small + inner * h
}

fn attention(h: u64, a: &AttentionDims) -> u64 {
    2 * h * ((a.q_heads + a.kv_heads) * a.head_dim) as u64
}

fn moe(h: u64, m: &MoeSpec, active: bool) -> u64 {
    let experts = m.route.experts as u64;
    let used = if active { m.route.top_k as u64 } else { experts };
    let io = m.io_width(h as usize) as u64;
    let latent = m.latent.map_or(0, |l| 2 * h * l as u64);
    let shared = m.shared_width.map_or(0, |w| 2 * h * w as u64);
    experts * h + experts + 2 * used * io * m.expert_width as u64 + latent + shared
}

fn mtp(h: u64, m: &MtpSpec) -> u64 {
    // Norms: e, h and final, and one before each of the two layers.
    2 * h * h + 5 * h + attention(h, &m.attention) + moe(h, &m.moe, false)
}
