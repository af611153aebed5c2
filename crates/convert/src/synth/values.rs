//! What random values each kind of weight gets, so that a forward pass neither explodes nor dies out: the
//! usual initialisation of such models. Must not know how values are stored.

use mambo_kernel::WeightUse;
use mambo_model::Part;

use super::random::Random;
use crate::Planned;

/// The values of one weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Values {
    /// Mean 0 and this deviation.
    Normal {
        /// Standard deviation.
        std: f32,
    },
    /// The same everywhere.
    Constant(f32),
    /// Decays: evenly between -16 and -1.
    Decay,
    /// Biases whose softplus lies between 0.001 and 0.1, evenly on a logarithmic scale.
    TimeStep,
}

/// The values for a tensor of a model with so many layers.
pub fn of(tensor: &Planned, layers: usize) -> Values {
    let inputs = tensor.row_elems() as f32;
    match tensor.part {
        Part::Embed => Values::Normal { std: 1.0 },
        Part::ConvWeight => Values::Normal { std: 0.3 },
        Part::A => Values::Decay,
        Part::DtBias => Values::TimeStep,
        Part::ConvBias | Part::RouterBias | Part::RouterOffset | Part::SharedRouterBias => {
            Values::Constant(0.0)
        }
        Part::QBias | Part::KBias | Part::VBias | Part::OBias | Part::Sinks => Values::Constant(0.0),
        Part::ExpertsUpBias | Part::ExpertsGateBias | Part::ExpertsDownBias => Values::Constant(0.0),
        Part::OutProj | Part::O | Part::Down | Part::ExpertsDown | Part::SharedDown | Part::LatentUp => {
            // What is added to the residual stream: all layers together about double it.
            Values::Normal { std: 1.0 / (inputs * layers as f32).sqrt() }
        }
        Part::D | Part::RopeFactors => Values::Constant(1.0),
        part if part.usage() == WeightUse::Vector => Values::Constant(1.0),
        _ => Values::Normal { std: 1.0 / inputs.sqrt() },
    }
}

/// Draws f32 values.
pub fn fill(values: Values, random: &mut Random, out: &mut [u8]) {
    let (words, _) = out.as_chunks_mut::<4>();
    for word in words {
        let value = match values {
            Values::Normal { std } => std * random.normal(),
            Values::Constant(value) => value,
            Values::Decay => -1.0 - 15.0 * random.unit(),
            Values::TimeStep => {
                let dt = 1e-3 * 100f32.powf(random.unit());
                // The inverse of softplus.
                dt.exp_m1().ln()
            }
        };
        *word = value.to_le_bytes();
    }
}
