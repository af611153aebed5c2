//! The list of weights a specification needs: canonical name, place and shape of each.
//!
//! Binding, building and exporting all read this one list. It must not know files.

use mambo_kernel::{Rope, SsmDims, WeightUse};

use crate::names::{Part, Place};
use crate::spec::{AttentionSpec, Half, Mamba2Spec, Mixer, ModelSpec, MoeSpec};

/// A weight the model needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Weight {
    /// Canonical name, such as `layers.3.in_proj`.
    pub name: String,
    /// Where it belongs.
    pub place: Place,
    /// What it is there.
    pub part: Part,
    /// Shape, outermost first.
    pub shape: Vec<usize>,
    /// The value of all its elements, where the model has the weight but files do not.
    pub constant: Option<f32>,
}

impl Weight {
    /// Whether it may be stored in a smaller type; the others are f32 in every file.
    pub fn is_quantizable(&self) -> bool {
        self.part.usage() != WeightUse::Vector && self.part != Part::Router && self.part != Part::SharedRouter
    }
}

impl ModelSpec {
    /// Every weight, in the order a forward pass meets them.
    pub fn weights(&self) -> Vec<Weight> {
        let (h, v) = (self.hidden, self.vocab);
        let mut list = List(Vec::new());
        list.add(Place::Model, Part::Embed, &[v, h]);
        if let Some(rope) = self.rope_factors() {
            list.add(Place::Model, Part::RopeFactors, &[rope.rotary / 2]);
        }
        for (index, layer) in self.layers.iter().enumerate() {
            for (half, number) in layer.halves.iter().zip(0..) {
                let [before, after] = Half::norms(number);
                list.add(Place::Layer(index), before, &[h]);
                half.mixers.iter().for_each(|mixer| list.mixer(Place::Layer(index), h, mixer));
                if half.post_norm {
                    list.add(Place::Layer(index), after, &[h]);
                }
            }
        }
        list.add(Place::Model, Part::FinalNorm, &[h]);
        if let Some(part) = self.own_head() {
            list.add(Place::Model, part, &[v, h]);
        }
        if let Some(mtp) = &self.mtp {
            list.add(Place::MtpAttention, Part::MtpEmbedNorm, &[h]);
            list.add(Place::MtpAttention, Part::MtpHiddenNorm, &[h]);
            list.add(Place::MtpAttention, Part::MtpProj, &[h, 2 * h]);
            list.add(Place::MtpAttention, Part::MtpAttentionNorm, &[h]);
            list.attention(Place::MtpAttention, h, &AttentionSpec::plain(mtp.attention));
            list.add(Place::MtpMoe, Part::MtpMoeNorm, &[h]);
            list.moe(Place::MtpMoe, h, &mtp.moe);
            list.add(Place::MtpMoe, Part::MtpFinalNorm, &[h]);
        }
        list.0
    }

    /// The output projection's part, unless it is the embedding: of its own, or the embedding with other factors.
    pub(crate) fn own_head(&self) -> Option<Part> {
        let factors = [Part::Embed, Part::Head].map(|part| self.factor(part).map(|factor| &factor.rows));
        match (self.tied_embeddings, factors[0] == factors[1]) {
            (false, _) => Some(Part::Head),
            (true, false) => Some(Part::TiedHead),
            (true, true) => None,
        }
    }

    /// The rotary positions that a stored weight divides, where there are any.
    pub(crate) fn rope_factors(&self) -> Option<Rope> {
        self.mixers().find_map(|mixer| match mixer {
            Mixer::Attention(a) => a.rope.filter(|rope| rope.has_factors),
            _ => None,
        })
    }
}

impl Half {
    /// The norms before and after the first or the second half of a layer.
    pub(crate) fn norms(number: usize) -> [Part; 2] {
        match number {
            0 => [Part::Norm, Part::PostNorm],
            _ => [Part::MlpNorm, Part::MlpPostNorm],
        }
    }
}

struct List(Vec<Weight>);

impl List {
    fn add(&mut self, place: Place, part: Part, shape: &[usize]) {
        self.0.push(Weight {
            name: place.canonical(part),
            place,
            part,
            shape: shape.to_vec(),
            constant: None,
        });
    }

    /// A weight that may be a constant.
    fn add_or(&mut self, stored: bool, value: f32, place: Place, part: Part, shape: &[usize]) {
        self.add(place, part, shape);
        let last = self.0.last_mut().expect("one was added");
        last.constant = (!stored).then_some(value);
    }

    fn mixer(&mut self, place: Place, h: usize, mixer: &Mixer) {
        match mixer {
            Mixer::Mamba2(m) => self.mamba2(place, h, m),
            Mixer::Attention(a) => self.attention(place, h, a),
            Mixer::DeltaNet(d) => self.delta_net(place, h, d),
            Mixer::ShortConv { taps, has_bias } => {
                self.add(place, Part::InProj, &[3 * h, h]);
                self.add(place, Part::ConvWeight, &[h, *taps]);
                self.add_or(*has_bias, 0.0, place, Part::ConvBias, &[h]);
                self.add(place, Part::OutProj, &[h, h]);
            }
            Mixer::Mlp(m) => {
                self.add(place, Part::Up, &[m.width, h]);
                if m.gate.is_some() {
                    self.add(place, Part::Gate, &[m.width, h]);
                }
                self.add(place, Part::Down, &[h, m.width]);
            }
            Mixer::Moe(m) => self.moe(place, h, m),
        }
    }

    fn mamba2(&mut self, place: Place, h: usize, m: &Mamba2Spec) {
        let d = m.dims;
        self.add(place, Part::InProj, &[d.in_proj(), h]);
        self.add(place, Part::ConvWeight, &[d.conv_dim(), d.taps]);
        self.add_or(m.conv_bias, 0.0, place, Part::ConvBias, &[d.conv_dim()]);
        self.add(place, Part::DtBias, &[d.heads]);
        self.add(place, Part::A, &[d.heads]);
        self.add(place, Part::D, &[d.heads]);
        if m.norm_groups.is_some() {
            self.add(place, Part::SsmNorm, &[d.inner()]);
        }
        self.add(place, Part::OutProj, &[h, d.inner()]);
    }

    fn delta_net(&mut self, place: Place, h: usize, d: &SsmDims) {
        self.add(place, Part::DeltaQkv, &[d.conv_dim(), h]);
        self.add(place, Part::DeltaZ, &[d.inner(), h]);
        self.add(place, Part::DeltaStrength, &[d.heads, h]);
        self.add(place, Part::DeltaDecay, &[d.heads, h]);
        self.add(place, Part::ConvWeight, &[d.conv_dim(), d.taps]);
        self.add_or(false, 0.0, place, Part::ConvBias, &[d.conv_dim()]);
        self.add(place, Part::A, &[d.heads]);
        self.add(place, Part::DtBias, &[d.heads]);
        self.add(place, Part::SsmNorm, &[d.head_dim]);
        self.add(place, Part::OutProj, &[h, d.inner()]);
    }

    fn attention(&mut self, place: Place, h: usize, spec: &AttentionSpec) {
        let a = spec.dims();
        let (q, kv) = (a.q_heads * a.head_dim, a.kv_heads * a.head_dim);
        let parts = [(Part::Q, Part::QBias, q), (Part::K, Part::KBias, kv), (Part::V, Part::VBias, kv)];
        for (weight, bias, rows) in parts {
            self.add(place, weight, &[rows, h]);
            if spec.qkv_bias {
                self.add(place, bias, &[rows]);
            }
        }
        if spec.qk_norm {
            self.add(place, Part::QNorm, &[a.head_dim]);
            self.add(place, Part::KNorm, &[a.head_dim]);
        }
        if spec.attention.sinks {
            self.add(place, Part::Sinks, &[a.q_heads]);
        }
        if spec.gated {
            self.add(place, Part::QGate, &[q, h]);
        }
        self.add(place, Part::O, &[h, q]);
        if spec.o_bias {
            self.add(place, Part::OBias, &[h]);
        }
    }

    fn moe(&mut self, place: Place, h: usize, m: &MoeSpec) {
        let (experts, width, io) = (m.route.experts, m.expert_width, m.io_width(h));
        self.add(place, Part::Router, &[experts, h]);
        if m.biases {
            self.add(place, Part::RouterOffset, &[experts]);
        }
        self.add_or(m.choice_bias, 0.0, place, Part::RouterBias, &[experts]);
        if m.latent.is_some() {
            self.add(place, Part::LatentDown, &[io, h]);
        }
        let mut up = vec![(Part::ExpertsUp, Part::ExpertsUpBias)];
        up.extend(m.gate.map(|_| (Part::ExpertsGate, Part::ExpertsGateBias)));
        for (weight, bias) in up {
            self.add(place, weight, &[experts, width, io]);
            if m.biases {
                self.add(place, bias, &[experts, width]);
            }
        }
        self.add(place, Part::ExpertsDown, &[experts, io, width]);
        if m.biases {
            self.add(place, Part::ExpertsDownBias, &[experts, io]);
        }
        if m.latent.is_some() {
            self.add(place, Part::LatentUp, &[h, io]);
        }
        if let Some(width) = m.shared_width {
            self.add(place, Part::SharedUp, &[width, h]);
            if m.gate.is_some() {
                self.add(place, Part::SharedGate, &[width, h]);
            }
            self.add(place, Part::SharedDown, &[h, width]);
            if m.shared_gate {
                self.add(place, Part::SharedRouter, &[1, h]);
                self.add_or(false, 0.0, place, Part::SharedRouterBias, &[1]);
            }
        }
    }
}
