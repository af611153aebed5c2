//! The list of weights a specification needs: canonical name, place and shape of each.
//!
//! Binding, building and exporting all read this one list. It must not know files.

use mambo_kernel::{AttentionDims, SsmDims};

use crate::names::{Part, Place};
use crate::spec::{Mixer, ModelSpec, MoeSpec};

/// A weight the model needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weight {
    /// Canonical name, such as `layers.3.in_proj`.
    pub name: String,
    /// Where it belongs.
    pub place: Place,
    /// What it is there.
    pub part: Part,
    /// Shape, outermost first.
    pub shape: Vec<usize>,
}

impl ModelSpec {
    /// Every weight, in the order a forward pass meets them.
    pub fn weights(&self) -> Vec<Weight> {
        let (h, v) = (self.hidden, self.vocab);
        let mut list = List(Vec::new());
        list.add(Place::Model, Part::Embed, &[v, h]);
        for (index, layer) in self.layers.iter().enumerate() {
            let place = Place::Layer(index);
            list.add(place, Part::Norm, &[h]);
            match &layer.mixer {
                Mixer::Mamba2(d) => list.mamba2(place, h, d),
                Mixer::Attention(a) => list.attention(place, h, a),
                Mixer::Mlp { width } => {
                    list.add(place, Part::Up, &[*width, h]);
                    list.add(place, Part::Down, &[h, *width]);
                }
                Mixer::Moe(m) => list.moe(place, h, m),
            }
        }
        list.add(Place::Model, Part::FinalNorm, &[h]);
        if !self.tied_embeddings {
            list.add(Place::Model, Part::Head, &[v, h]);
        }
        if let Some(mtp) = &self.mtp {
            list.add(Place::MtpAttention, Part::MtpEmbedNorm, &[h]);
            list.add(Place::MtpAttention, Part::MtpHiddenNorm, &[h]);
            list.add(Place::MtpAttention, Part::MtpProj, &[h, 2 * h]);
            list.add(Place::MtpAttention, Part::MtpAttentionNorm, &[h]);
            list.attention(Place::MtpAttention, h, &mtp.attention);
            list.add(Place::MtpMoe, Part::MtpMoeNorm, &[h]);
            list.moe(Place::MtpMoe, h, &mtp.moe);
            list.add(Place::MtpMoe, Part::MtpFinalNorm, &[h]);
        }
        list.0
    }
}

struct List(Vec<Weight>);

impl List {
    fn add(&mut self, place: Place, part: Part, shape: &[usize]) {
        self.0.push(Weight { name: place.canonical(part), place, part, shape: shape.to_vec() });
    }

    fn mamba2(&mut self, place: Place, h: usize, d: &SsmDims) {
        self.add(place, Part::InProj, &[d.in_proj(), h]);
        self.add(place, Part::ConvWeight, &[d.conv_dim(), d.taps]);
        self.add(place, Part::ConvBias, &[d.conv_dim()]);
        self.add(place, Part::DtBias, &[d.heads]);
        self.add(place, Part::A, &[d.heads]);
        self.add(place, Part::D, &[d.heads]);
        self.add(place, Part::SsmNorm, &[d.inner()]);
        self.add(place, Part::OutProj, &[h, d.inner()]);
    }

    fn attention(&mut self, place: Place, h: usize, a: &AttentionDims) {
        let (q, kv) = (a.q_heads * a.head_dim, a.kv_heads * a.head_dim);
        self.add(place, Part::Q, &[q, h]);
        self.add(place, Part::K, &[kv, h]);
        self.add(place, Part::V, &[kv, h]);
        self.add(place, Part::O, &[h, q]);
    }

    fn moe(&mut self, place: Place, h: usize, m: &MoeSpec) {
        let (experts, io) = (m.route.experts, m.io_width(h));
        self.add(place, Part::Router, &[experts, h]);
        self.add(place, Part::RouterBias, &[experts]);
        if m.latent.is_some() {
            self.add(place, Part::LatentDown, &[io, h]);
        }
        self.add(place, Part::ExpertsUp, &[experts, m.expert_width, io]);
        self.add(place, Part::ExpertsDown, &[experts, io, m.expert_width]);
        if m.latent.is_some() {
            self.add(place, Part::LatentUp, &[h, io]);
        }
        if let Some(width) = m.shared_width {
            self.add(place, Part::SharedUp, &[width, h]);
            self.add(place, Part::SharedDown, &[h, width]);
        }
    }
}
