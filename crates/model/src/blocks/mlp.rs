//! The dense feed-forward layer.

use mambo_graph::{GraphError, ValueId};

use super::Layer;

/// `x + down(relu(up(u))²)`.
pub(crate) fn add(layer: &mut Layer, width: usize, x: ValueId, u: ValueId) -> Result<ValueId, GraphError> {
    let out = layer.relu2_mlp(["up", "relu2", "down"], u, width)?;
    layer.add("add", x, out)
}
