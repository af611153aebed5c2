//! How the rows of a weight lie in a file that is written.

use mambo_kernel::RopePairs;

use super::Dialect;
use crate::export::Order;
use crate::names::{Part, Place};
use crate::spec::{Mixer, ModelSpec};
use crate::weights::Weight;

/// How a weight is stored.
pub(crate) struct Arrangement {
    /// Name inside its block, where it is not the first one the family reads.
    pub name: Option<&'static str>,
    /// Order of its rows; of its elements, where it is a vector.
    pub rows: Order,
    /// Order of its columns.
    pub columns: Order,
    /// Another weight of the layer that shares the tensor.
    pub joined: Option<Part>,
}

impl Arrangement {
    /// As it is used.
    pub const PLAIN: Arrangement =
        Arrangement { name: None, rows: Order::Same, columns: Order::Same, joined: None };
}

/// How a weight of a model is stored in this dialect; none where another tensor holds it.
pub(crate) fn arrange(spec: &ModelSpec, weight: &Weight, dialect: &Dialect) -> Option<Arrangement> {
    let Place::Layer(index) = weight.place else { return Some(Arrangement::PLAIN) };
    let attention = spec.layers[index].mixers().find_map(|mixer| match mixer {
        Mixer::Attention(a) => Some(a),
        _ => None,
    });
    let Some(a) = attention else { return Some(Arrangement::PLAIN) };
    let rotary =
        a.rope.filter(|rope| rope.pairs == RopePairs::Halves && dialect.pairs == RopePairs::Neighbours);
    match (weight.part, rotary) {
        (Part::QGate, _) if dialect.is_gated => None,
        (Part::Q, _) if a.gated && dialect.is_gated => {
            let rows = Order::InTurn { run: a.dims().head_dim };
            Some(Arrangement { rows, joined: Some(Part::QGate), ..Arrangement::PLAIN })
        }
        (Part::Q | Part::K | Part::QBias | Part::KBias, Some(rope)) => {
            let rows = Order::Neighbours { head: rope.head_dim, rotary: rope.rotary };
            Some(Arrangement { rows, ..Arrangement::PLAIN })
        }
        _ => Some(Arrangement::PLAIN),
    }
}
