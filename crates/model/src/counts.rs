//! How much a model is: parameters, KV bytes per token, recurrent bytes per sequence.
//!
//! Works on sizes alone; must not know element types of weights or page and slot layouts.

use mambo_kernel::{AttentionDims, SsmDims, WeightUse};

use crate::names::{Part, Place};
use crate::spec::{Mixer, ModelSpec};
use crate::weights::Weight;

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
        let mut count = Parameters { total: 0, trunk: 0, mtp: 0, active: 0 };
        for weight in self.weights().iter().filter(|weight| weight.constant.is_none()) {
            let elems: u64 = weight.shape.iter().map(|n| *n as u64).product();
            match weight.place {
                Place::MtpAttention | Place::MtpMoe => count.mtp += elems,
                _ if weight.part == Part::TiedHead => count.active += elems,
                _ => {
                    count.trunk += elems;
                    count.active += self.active(weight, elems);
                }
            }
        }
        count.total = count.trunk + count.mtp;
        count
    }

    /// Of a weight's elements, those that one token multiplies with.
    fn active(&self, weight: &Weight, elems: u64) -> u64 {
        match (weight.part, weight.place) {
            (Part::Embed, _) if self.own_head().is_some() => 0,
            (part, Place::Layer(index)) if part.usage() == WeightUse::Experts => {
                let route = self.layers[index].mixers().find_map(|mixer| match mixer {
                    Mixer::Moe(m) => Some(m.route),
                    _ => None,
                });
                route.map_or(elems, |route| elems / route.experts as u64 * route.top_k as u64)
            }
            _ => elems,
        }
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
