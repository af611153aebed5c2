//! Fuses the middle of a Mamba-2 mixer into one `ssm_step` in decode programs, where the backend has a row for it.
//!
//! The pattern is the whole mixer between its projections: the splits z, xBC and dt of the input
//! projection, `ssm_conv`, `ssm_dt`, `ssm_scan` and `gated_group_norm`, each read by the next alone.

use mambo_kernel::{Op, Phase};

use super::PassContext;
use super::edit::{Uses, remove_nodes, renumber};
use crate::graph::{Graph, Node, ValueId};

pub(super) fn run(graph: &Graph, context: &PassContext) -> Graph {
    if context.phase != Phase::Decode {
        return graph.clone();
    }
    let uses = Uses::of(graph);
    let mut after = graph.clone();
    let mut removed = Vec::new();
    for i in 0..graph.nodes.len() {
        if let Some((step, parts)) =
            fused_step(graph, &uses, i).filter(|(step, _)| (context.offers)(&step.op))
        {
            after.nodes[i] = step;
            removed.extend(parts);
        }
    }
    remove_nodes(&mut after, &removed);
    renumber(after)
}

/// The fused node for the gated norm at `index`, and the nodes it replaces besides the norm.
fn fused_step(graph: &Graph, uses: &Uses, index: usize) -> Option<(Node, Vec<usize>)> {
    let norm = &graph.nodes[index];
    let Op::GatedGroupNorm { groups, eps } = norm.op else { return None };
    // The node that defines an input of `reader`, if `reader` alone reads it.
    let part = |reader: usize, port: usize| {
        let value = graph.nodes[reader].inputs[port];
        uses.sole_reader(value).and(uses.producer(value))
    };
    let scan = part(index, 0)?;
    let Op::SsmScan(dims) = graph.nodes[scan].op else { return None };
    let (conv, dt) = (part(scan, 0)?, part(scan, 1)?);
    let same_layer = graph.nodes[conv].cache == graph.nodes[scan].cache;
    let ops_fit = graph.nodes[conv].op == Op::SsmConv(dims) && graph.nodes[dt].op == Op::SsmDt;
    if !ops_fit || !same_layer || groups != dims.groups {
        return None;
    }
    let columns = |value: ValueId, start: usize, len: usize| {
        let split = uses.producer(value)?;
        (graph.nodes[split].op == Op::Split { start, len }).then(|| (split, graph.nodes[split].inputs[0]))
    };
    let (z, x) = columns(norm.inputs[1], 0, dims.inner())?;
    let (xbc, x1) = columns(graph.nodes[conv].inputs[0], dims.inner(), dims.conv_dim())?;
    let (raw_dt, x2) = columns(graph.nodes[dt].inputs[0], dims.inner() + dims.conv_dim(), dims.heads)?;
    if x != x1 || x != x2 || graph.value_type(x).cols != dims.in_proj() {
        return None;
    }
    let mut parts = vec![scan, conv, dt];
    parts.extend(
        [z, xbc, raw_dt].into_iter().filter(|s| uses.sole_reader(graph.nodes[*s].outputs[0]).is_some()),
    );
    let weights = [conv, dt, scan, index].into_iter().flat_map(|n| graph.nodes[n].weights.clone()).collect();
    let step = Node {
        op: Op::SsmStep { dims, eps },
        inputs: vec![x],
        weights,
        cache: graph.nodes[scan].cache,
        outputs: norm.outputs.clone(),
        label: graph.nodes[scan].label.clone(),
    };
    Some((step, parts))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use mambo_kernel::Phase;

    use super::super::testing::{run_offered, run_text};

    const MIXER: &str = "graph g
        weight conv [16, 4]
        weight conv_bias [16]
        weight dt_bias [2]
        weight a [2]
        weight d [2]
        weight norm [8]
        state 0 heads=2 head_dim=4 state=4 groups=1 taps=4
        %0 = input hidden : f32[T, 26]
        %1 = split start=0 len=8 %0 : f32[T, 8] ; z
        %2 = split start=8 len=16 %0 : f32[T, 16] ; xbc
        %3 = split start=24 len=2 %0 : f32[T, 2] ; raw_dt
        %4 = ssm_conv %2 $conv $conv_bias @state0 : f32[T, 16] ; layers.0.conv
        %5 = ssm_dt %3 $dt_bias : f32[T, 2] ; layers.0.dt
        %6 = ssm_scan %4 %5 $a $d @state0 : f32[T, 8] ; layers.0.scan
        %7 = gated_group_norm groups=1 eps=1e-5 %6 %1 $norm : f32[T, 8] ; layers.0.gated_norm
        output hidden %7";

    #[test]
    fn the_decode_step_is_one_node() {
        expect![[r#"
            graph g
            weight conv [16, 4]
            weight conv_bias [16]
            weight dt_bias [2]
            weight a [2]
            weight d [2]
            weight norm [8]
            state 0 heads=2 head_dim=4 state=4 groups=1 taps=4
            %0 = input hidden : f32[T, 26]
            %1 = ssm_step eps=1e-5 %0 $conv $conv_bias $dt_bias $a $d $norm @state0 : f32[T, 8] ; layers.0.scan
            output hidden %1
        "#]].assert_eq(&run_text(super::run, Phase::Decode, MIXER));
    }

    #[test]
    fn other_phases_other_readers_and_poorer_backends_keep_the_parts() {
        let same = MIXER.parse::<crate::Graph>().unwrap().to_string();
        assert_eq!(run_text(super::run, Phase::Prefill, MIXER), same);
        assert_eq!(run_offered(super::run, Phase::Decode, MIXER, false), same);
        let read = format!("{MIXER}\noutput dt %5");
        let same = read.parse::<crate::Graph>().unwrap().to_string();
        assert_eq!(run_text(super::run, Phase::Decode, &read), same);
    }
}
