//! Whether a specification is possible: no zero, no size beyond reason, everything divides what it must.
//!
//! Later stages multiply these sizes without looking; this file is why that cannot overflow. It must not
//! know how the sizes were read.

use mambo_kernel::{Activation, AttentionDims, Op, RouteDims, SsmDims};

use crate::error::ModelError;
use crate::spec::{Factor, LayerSpec, Mamba2Spec, Mixer, ModelSpec, MoeSpec};

/// Most layers a schedule may have.
pub const MAX_LAYERS: usize = 1024;
/// Most columns of any activation or projection; far above every known model, far below overflow.
pub const MAX_WIDTH: usize = 1 << 22;
const MAX_VOCAB: usize = 1 << 24;
const MAX_EXPERTS: usize = 1 << 14;
const MAX_TAPS: usize = 16;
const MAX_PARAMETERS: u128 = 1 << 46;

type Check = Result<(), String>;

impl ModelSpec {
    /// Longest context a file may name and an engine may be asked for: positions are 32-bit numbers in
    /// kernels, and sizes of caches must not wrap.
    pub const MAX_CONTEXT: usize = 1 << 31;

    /// Checks every size; `file` is where they come from.
    pub fn check(&self, file: &str) -> Result<(), ModelError> {
        let fail = |place: String, problem| ModelError::BadSize { file: file.to_owned(), place, problem };
        let model = |problem| fail("model".to_owned(), problem);
        within("hidden size", self.hidden, MAX_WIDTH).map_err(model)?;
        within("vocabulary", self.vocab, MAX_VOCAB).map_err(model)?;
        within("number of layers", self.layers.len(), MAX_LAYERS).map_err(model)?;
        epsilon(self.norm_eps).map_err(model)?;
        self.logit_cap.map_or(Ok(()), |cap| Op::SoftCap { cap }.check()).map_err(model)?;
        self.factors.iter().try_for_each(factor).map_err(model)?;
        within("trained context", self.context.unwrap_or(1), Self::MAX_CONTEXT).map_err(model)?;
        for (index, layer) in self.layers.iter().enumerate() {
            let place = format!("layer {index} ({})", layer.name());
            check_layer(layer, self.hidden).map_err(|problem| fail(place, problem))?;
        }
        if let Some(mtp) = &self.mtp {
            let checked = epsilon(mtp.norm_eps).and(attention(&mtp.attention)).and(moe(&mtp.moe));
            checked.map_err(|problem| fail("MTP head".to_owned(), problem))?;
        }
        self.check_total().map_err(model)
    }

    fn check_total(&self) -> Check {
        let (h, mut total) = (self.hidden as u128, 2 * self.vocab as u128 * self.hidden as u128);
        for mixer in self.mixers() {
            total += match mixer {
                Mixer::Mamba2(Mamba2Spec { dims: d, .. }) | Mixer::DeltaNet(d) => {
                    h * (d.in_proj() + d.inner()) as u128
                }
                Mixer::Attention(a) => {
                    let a = a.dims();
                    3 * h * ((a.q_heads + a.kv_heads) * a.head_dim) as u128
                }
                Mixer::ShortConv { .. } => 4 * h * h,
                Mixer::Mlp(m) => 3 * h * m.width as u128,
                Mixer::Moe(m) => moe_total(h, m),
            };
        }
        total += self.mtp.as_ref().map_or(0, |m| 2 * h * h + moe_total(h, &m.moe));
        match total <= MAX_PARAMETERS {
            true => Ok(()),
            false => Err(format!("the sizes multiply to {total} parameters, beyond any real model")),
        }
    }
}

fn moe_total(h: u128, m: &MoeSpec) -> u128 {
    let io = m.io_width(h as usize) as u128;
    3 * m.route.experts as u128 * io * m.expert_width as u128 + 3 * h * m.shared_width.unwrap_or(0) as u128
}

fn check_layer(layer: &LayerSpec, hidden: usize) -> Check {
    epsilon(layer.norm_eps)?;
    layer.mixers().try_for_each(|mixer| check_mixer(mixer, hidden))
}

fn check_mixer(mixer: &Mixer, hidden: usize) -> Check {
    match mixer {
        Mixer::Mamba2(m) => {
            mamba2(&m.dims)?;
            match m.norm_groups {
                Some(groups) => divides("norm groups", groups, "channels", m.dims.inner()),
                None => Ok(()),
            }
        }
        Mixer::Attention(a) => {
            attention(&a.dims())?;
            let of_op = Op::Attention(a.attention).check();
            of_op.and_then(|()| a.rope.map_or(Ok(()), |rope| Op::Rope(rope).check()))
        }
        Mixer::DeltaNet(d) => mamba2(d),
        Mixer::ShortConv { taps, .. } => {
            within("number of taps", *taps, MAX_TAPS)?;
            product("three times the hidden size", 3, hidden)
        }
        Mixer::Mlp(m) => within("width", m.width, MAX_WIDTH).and(gate(m.gate)),
        Mixer::Moe(m) => moe(m),
    }
}

fn gate(activation: Option<Activation>) -> Check {
    activation.map_or(Ok(()), |activation| Op::Glu(activation).check())
}

fn mamba2(d: &SsmDims) -> Check {
    within("number of heads", d.heads, MAX_WIDTH)?;
    within("head size", d.head_dim, MAX_WIDTH)?;
    within("state size", d.state, MAX_WIDTH)?;
    within("number of groups", d.groups, MAX_WIDTH)?;
    product("heads times head size", d.heads, d.head_dim)?;
    product("groups times state size", d.groups, d.state)?;
    divides("groups", d.groups, "heads", d.heads)?;
    if d.taps < 2 || d.taps > MAX_TAPS {
        return Err(format!("a convolution of {} taps, expected 2 to {MAX_TAPS}", d.taps));
    }
    Ok(())
}

fn attention(a: &AttentionDims) -> Check {
    within("number of query heads", a.q_heads, MAX_WIDTH)?;
    within("number of key heads", a.kv_heads, MAX_WIDTH)?;
    within("head size", a.head_dim, MAX_WIDTH)?;
    product("query heads times head size", a.q_heads, a.head_dim)?;
    divides("key heads", a.kv_heads, "query heads", a.q_heads)
}

fn moe(m: &MoeSpec) -> Check {
    route(&m.route)?;
    gate(m.gate)?;
    within("expert width", m.expert_width, MAX_WIDTH)?;
    within("latent width", m.latent.unwrap_or(1), MAX_WIDTH)?;
    within("shared expert width", m.shared_width.unwrap_or(1), MAX_WIDTH)
}

fn route(r: &RouteDims) -> Check {
    within("number of experts", r.experts, MAX_EXPERTS)?;
    within("number of experts per token", r.top_k, MAX_EXPERTS)?;
    within("number of router groups", r.groups, MAX_EXPERTS)?;
    within("router groups kept", r.top_groups, MAX_EXPERTS)?;
    if r.top_k > r.experts {
        return Err(format!("{} experts per token, but only {} experts", r.top_k, r.experts));
    }
    divides("router groups", r.groups, "experts", r.experts)?;
    if r.top_groups > r.groups {
        return Err(format!("{} router groups kept, but only {} groups", r.top_groups, r.groups));
    }
    // A group's score is the sum of its two best experts.
    if r.groups > 1 && r.experts / r.groups < 2 {
        return Err(format!("{} router groups of one expert each", r.groups));
    }
    let reachable = r.top_groups * (r.experts / r.groups);
    if r.top_k > reachable {
        return Err(format!("{} experts per token, but the kept router groups hold {reachable}", r.top_k));
    }
    match r.scale.is_finite() {
        true => Ok(()),
        false => Err(format!("a routed scaling factor of {}", r.scale)),
    }
}

fn factor(factor: &Factor) -> Check {
    match factor.rows.iter().find(|(_, value)| !value.is_finite()) {
        Some((_, value)) => Err(format!("a multiplier of {value} on `{}`", factor.part.names().canonical)),
        None => Ok(()),
    }
}

fn within(what: &str, value: usize, max: usize) -> Check {
    match value {
        0 => Err(format!("the {what} is 0")),
        v if v > max => Err(format!("the {what} is {v}, more than the {max} this engine allows")),
        _ => Ok(()),
    }
}

fn product(what: &str, a: usize, b: usize) -> Check {
    match a.checked_mul(b) {
        Some(n) if n <= MAX_WIDTH => Ok(()),
        _ => Err(format!("{what} ({a} x {b}) is more than the {MAX_WIDTH} this engine allows")),
    }
}

fn divides(what: &str, divisor: usize, of: &str, value: usize) -> Check {
    match divisor != 0 && value.is_multiple_of(divisor) {
        true => Ok(()),
        false => Err(format!("{value} {of} cannot be shared among {divisor} {what}")),
    }
}

fn epsilon(eps: f32) -> Check {
    match eps.is_finite() && eps > 0.0 && eps < 1.0 {
        true => Ok(()),
        false => Err(format!("a norm epsilon of {eps}")),
    }
}
