//! Fuses an `add` into the matmul or expert sum that feeds it, where nothing else reads the product.

use mambo_kernel::{Epilogue, Op};

use super::PassContext;
use super::edit::{Uses, remove_nodes, renumber};
use crate::graph::Graph;

pub(super) fn run(graph: &Graph, context: &PassContext) -> Graph {
    let uses = Uses::of(graph);
    let mut after = graph.clone();
    let mut removed = Vec::new();
    for (i, node) in graph.nodes.iter().enumerate().filter(|(_, n)| n.op == Op::Add) {
        // Of two candidates the later one is taken: the earlier may be the residual of the later.
        let best = [(0, 1), (1, 0)]
            .into_iter()
            .filter_map(|(product, residual)| {
                let producer = uses.producer(node.inputs[product])?;
                let fused = with_residual(&after.nodes[producer].op)?;
                let fits = uses.sole_reader(node.inputs[product]) == Some(i) && (context.offers)(&fused);
                fits.then_some((producer, fused, node.inputs[residual]))
            })
            .max_by_key(|(producer, ..)| *producer);
        if let Some((producer, fused, residual)) = best {
            // The fused node takes the position of the add: the residual may be defined after the product.
            let mut product = after.nodes[producer].clone();
            product.op = fused;
            product.inputs.push(residual);
            product.outputs = node.outputs.clone();
            after.nodes[i] = product;
            removed.push(producer);
        }
    }
    remove_nodes(&mut after, &removed);
    renumber(after)
}

fn with_residual(op: &Op) -> Option<Op> {
    match *op {
        Op::Matmul { out, epilogue: Epilogue::None } => {
            Some(Op::Matmul { out, epilogue: Epilogue::Residual })
        }
        Op::MoeCombine { top_k, residual: false } => Some(Op::MoeCombine { top_k, residual: true }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use mambo_kernel::Phase;

    use super::super::testing::{run_offered, run_text};

    const LAYERS: &str = "graph g
        weight down [4, 8]
        weight square [4, 4]
        %0 = input hidden : f32[T, 4]
        %1 = concat %0 %0 : f32[T, 8] ; concat
        %2 = matmul out=4 %1 $down : f32[T, 4] ; layers.0.down
        %3 = add %0 %2 : f32[T, 4] ; layers.0.residual
        %4 = matmul out=4 %3 $square : f32[T, 4] ; layers.1.a
        %5 = matmul out=4 %3 $square : f32[T, 4] ; layers.1.b
        %6 = add %4 %5 : f32[T, 4] ; layers.1.sum
        %7 = add %3 %6 : f32[T, 4] ; layers.1.residual
        output hidden %7";

    #[test]
    fn an_add_goes_into_the_later_product() {
        expect![[r#"
            graph g
            weight down [4, 8]
            weight square [4, 4]
            %0 = input hidden : f32[T, 4]
            %1 = concat %0 %0 : f32[T, 8]                                            ; concat
            %2 = matmul out=4 epilogue=residual %1 %0 $down : f32[T, 4]              ; layers.0.down
            %3 = matmul out=4 %2 $square : f32[T, 4]                                 ; layers.1.a
            %4 = matmul out=4 epilogue=residual %2 %3 $square : f32[T, 4]            ; layers.1.b
            %5 = add %2 %4 : f32[T, 4]                                               ; layers.1.residual
            output hidden %5
        "#]]
        .assert_eq(&run_text(super::run, Phase::Decode, LAYERS));
    }

    #[test]
    fn an_add_goes_into_the_sum_over_experts() {
        let text = "graph g
            weight bias [3]
            weight experts [3, 4, 4]
            weight gate [3, 4]
            %0 = input hidden : f32[T, 4]
            %1 = matmul out=3 %0 $gate : f32[T, 3] ; gate
            %2, %3 = moe_route experts=3 top_k=2 groups=1 top_groups=1 normalize=true scale=1.0 %1 $bias : i32[T, 2], f32[T, 2] ; route
            %4 = moe_matmul experts=3 top_k=2 out=4 %0 %2 $experts : f32[T*2, 4] ; experts
            %5 = moe_combine top_k=2 %4 %3 : f32[T, 4] ; combine
            %6 = add %0 %5 : f32[T, 4] ; residual
            output hidden %6";
        expect![[r#"
            graph g
            weight bias [3]
            weight experts [3, 4, 4]
            weight gate [3, 4]
            %0 = input hidden : f32[T, 4]
            %1 = matmul out=3 %0 $gate : f32[T, 3]                                   ; gate
            %2, %3 = moe_route experts=3 top_k=2 groups=1 top_groups=1 normalize=true scale=1.0 %1 $bias : i32[T, 2], f32[T, 2] ; route
            %4 = moe_matmul experts=3 top_k=2 out=4 %0 %2 $experts : f32[T*2, 4]     ; experts
            %5 = moe_combine top_k=2 residual=true %4 %3 %0 : f32[T, 4]              ; combine
            output hidden %5
        "#]].assert_eq(&run_text(super::run, Phase::Decode, text));
    }

    #[test]
    fn nothing_changes_where_the_backend_has_no_row() {
        let same = LAYERS.parse::<crate::Graph>().unwrap().to_string();
        assert_eq!(run_offered(super::run, Phase::Decode, LAYERS, false), same);
    }
}
