//! Fuses `relu2` into the matmul before it, where nothing else reads the product.

use mambo_kernel::{Epilogue, Op};

use super::PassContext;
use super::edit::{Uses, remove_nodes, renumber};
use crate::graph::Graph;

pub(super) fn run(graph: &Graph, context: &PassContext) -> Graph {
    let uses = Uses::of(graph);
    let mut after = graph.clone();
    let mut removed = Vec::new();
    for (i, node) in graph.nodes.iter().enumerate().filter(|(_, n)| n.op == Op::Relu2) {
        let Some(producer) = uses.producer(node.inputs[0]) else { continue };
        let Some(fused) = with_relu2(&graph.nodes[producer].op) else { continue };
        if uses.sole_reader(node.inputs[0]) == Some(i) && (context.offers)(&fused) {
            after.nodes[producer].op = fused;
            after.nodes[producer].outputs = node.outputs.clone();
            removed.push(i);
        }
    }
    remove_nodes(&mut after, &removed);
    renumber(after)
}

fn with_relu2(op: &Op) -> Option<Op> {
    match *op {
        Op::Matmul { out, epilogue: Epilogue::None } => Some(Op::Matmul { out, epilogue: Epilogue::Relu2 }),
        Op::MoeMatmul { experts, top_k, out, epilogue: Epilogue::None } => {
            Some(Op::MoeMatmul { experts, top_k, out, epilogue: Epilogue::Relu2 })
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
        weight up [8, 4]
        weight experts [3, 8, 4]
        weight bias [4]
        weight gate [3, 4]
        weight route_bias [3]
        %0 = input hidden : f32[T, 4]
        %1 = matmul out=8 %0 $up : f32[T, 8] ; up
        %2 = relu2 %1 : f32[T, 8] ; act
        %3 = matmul out=3 %0 $gate : f32[T, 3] ; gate
        %4, %5 = moe_route experts=3 top_k=2 groups=1 top_groups=1 normalize=true scale=2.5 %3 $route_bias : i32[T, 2], f32[T, 2] ; route
        %6 = moe_matmul experts=3 top_k=2 out=8 %0 %4 $experts : f32[T*2, 8] ; experts.up
        %7 = relu2 %6 : f32[T*2, 8] ; experts.act
        %8 = moe_combine top_k=2 %7 %5 : f32[T, 8] ; combine
        output a %2
        output b %8";

    #[test]
    fn relu2_goes_into_dense_and_expert_products() {
        expect![[r#"
            graph g
            weight up [8, 4]
            weight experts [3, 8, 4]
            weight bias [4]
            weight gate [3, 4]
            weight route_bias [3]
            %0 = input hidden : f32[T, 4]
            %1 = matmul out=8 epilogue=relu2 %0 $up : f32[T, 8]                      ; up
            %2 = matmul out=3 %0 $gate : f32[T, 3]                                   ; gate
            %3, %4 = moe_route experts=3 top_k=2 groups=1 top_groups=1 normalize=true scale=2.5 %2 $route_bias : i32[T, 2], f32[T, 2] ; route
            %5 = moe_matmul experts=3 top_k=2 out=8 epilogue=relu2 %0 %3 $experts : f32[T*2, 8] ; experts.up
            %6 = moe_combine top_k=2 %5 %4 : f32[T, 8]                               ; combine
            output a %1
            output b %6
        "#]].assert_eq(&run_text(super::run, Phase::Decode, MLP));
    }

    #[test]
    fn a_product_read_elsewhere_or_not_offered_stays() {
        let read = format!("{MLP}\noutput c %1\noutput d %6");
        let same = read.parse::<crate::Graph>().unwrap().to_string();
        assert_eq!(run_text(super::run, Phase::Decode, &read), same);
        let same = MLP.parse::<crate::Graph>().unwrap().to_string();
        assert_eq!(run_offered(super::run, Phase::Decode, MLP, false), same);
    }
}
