//! Fuses `glu` and the two products of one input that it multiplies, where nothing else reads them.

use mambo_kernel::{Epilogue, Op};

use super::PassContext;
use super::edit::{Uses, remove_nodes, renumber};
use crate::graph::Graph;

pub(super) fn run(graph: &Graph, context: &PassContext) -> Graph {
    let uses = Uses::of(graph);
    let mut after = graph.clone();
    let mut removed = Vec::new();
    for (i, node) in graph.nodes.iter().enumerate() {
        let Op::Glu(activation) = node.op else { continue };
        let [Some(gate), Some(up)] = [0, 1].map(|port| uses.producer(node.inputs[port])) else { continue };
        let [gate_node, up_node] = [gate, up].map(|producer| &graph.nodes[producer]);
        let Some(fused) = with_gate(&up_node.op, Epilogue::Glu(activation)) else { continue };
        let fits = gate != up && gate_node.op == up_node.op && gate_node.inputs == up_node.inputs;
        let read_here = node.inputs.iter().all(|product| uses.sole_reader(*product) == Some(i));
        if fits && read_here && (context.offers)(&fused) {
            // The fused node takes the position of the glu: both products stand before it.
            let product = &mut after.nodes[i];
            product.op = fused;
            product.inputs = up_node.inputs.clone();
            product.weights = [&up_node.weights[..], &gate_node.weights].concat();
            removed.extend([gate, up]);
        }
    }
    remove_nodes(&mut after, &removed);
    renumber(after)
}

fn with_gate(op: &Op, epilogue: Epilogue) -> Option<Op> {
    match *op {
        Op::Matmul { out, epilogue: Epilogue::None } => Some(Op::Matmul { out, epilogue }),
        Op::MoeMatmul { experts, top_k, out, epilogue: Epilogue::None } => {
            Some(Op::MoeMatmul { experts, top_k, out, epilogue })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use mambo_kernel::Phase;

    use super::super::testing::{run_offered, run_text};

    const MLP: &str = "graph g
        weight bias [3]
        weight experts_gate [3, 8, 4]
        weight experts_up [3, 8, 4]
        weight gate [8, 4]
        weight router [3, 4]
        weight up [8, 4]
        %0 = input hidden : f32[T, 4]
        %1 = matmul out=8 %0 $gate : f32[T, 8] ; gate
        %2 = matmul out=8 %0 $up : f32[T, 8] ; up
        %3 = glu activation=silu %1 %2 : f32[T, 8] ; glu
        %4 = matmul out=3 %0 $router : f32[T, 3] ; router
        %5, %6 = moe_route experts=3 top_k=2 groups=1 top_groups=1 normalize=true scale=1.0 %4 $bias : i32[T, 2], f32[T, 2] ; route
        %7 = moe_matmul experts=3 top_k=2 out=8 %0 %5 $experts_gate : f32[T*2, 8] ; experts_gate
        %8 = moe_matmul experts=3 top_k=2 out=8 %0 %5 $experts_up : f32[T*2, 8] ; experts_up
        %9 = glu activation=clamped_silu alpha=1.5 limit=7.0 %7 %8 : f32[T*2, 8] ; experts_glu
        %10 = moe_combine top_k=2 %9 %6 : f32[T, 8] ; combine
        output a %3
        output b %10";

    #[test]
    fn a_gate_goes_into_dense_and_expert_products() {
        expect![[r#"
            graph g
            weight bias [3]
            weight experts_gate [3, 8, 4]
            weight experts_up [3, 8, 4]
            weight gate [8, 4]
            weight router [3, 4]
            weight up [8, 4]
            %0 = input hidden : f32[T, 4]
            %1 = matmul out=8 epilogue=glu activation=silu %0 $up $gate : f32[T, 8]  ; glu
            %2 = matmul out=3 %0 $router : f32[T, 3]                                 ; router
            %3, %4 = moe_route experts=3 top_k=2 groups=1 top_groups=1 normalize=true scale=1.0 %2 $bias : i32[T, 2], f32[T, 2] ; route
            %5 = moe_matmul experts=3 top_k=2 out=8 epilogue=glu activation=clamped_silu alpha=1.5 limit=7.0 %0 %3 $experts_up $experts_gate : f32[T*2, 8] ; experts_glu
            %6 = moe_combine top_k=2 %5 %4 : f32[T, 8]                               ; combine
            output a %1
            output b %6
        "#]].assert_eq(&run_text(super::run, Phase::Decode, MLP));
    }

    /// The gate reads another value than the product, and a product has another reader.
    #[test]
    fn what_is_no_pair_of_products_stays() {
        let text = "graph g
            weight gate [4, 4]
            weight up [4, 4]
            %0 = input hidden : f32[T, 4]
            %1 = matmul out=4 %0 $up : f32[T, 4] ; a.up
            %2 = matmul out=4 %1 $gate : f32[T, 4] ; a.gate
            %3 = glu activation=silu %2 %1 : f32[T, 4] ; a.glu
            %4 = matmul out=4 %3 $gate : f32[T, 4] ; b.gate
            %5 = matmul out=4 %3 $up : f32[T, 4] ; b.up
            %6 = glu activation=silu %4 %5 : f32[T, 4] ; b.glu
            %7 = glu activation=silu %5 %5 : f32[T, 4] ; c.glu
            output a %6
            output b %7";
        let same = text.parse::<crate::Graph>().unwrap().to_string();
        assert_eq!(run_text(super::run, Phase::Decode, text), same);
    }

    #[test]
    fn nothing_changes_where_the_backend_has_no_row() {
        let same = MLP.parse::<crate::Graph>().unwrap().to_string();
        assert_eq!(run_offered(super::run, Phase::Decode, MLP, false), same);
    }
}
