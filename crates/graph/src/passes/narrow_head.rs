//! Moves `gather_rows` above row-wise ops, so that the final norm and the head run on wanted rows only.
//!
//! It stops where the full value is needed anyway: at an output, or at a value with another reader.

use mambo_kernel::{Epilogue, Op, Rows, ValueType};

use super::PassContext;
use super::edit::{Uses, define, renumber};
use crate::graph::Graph;

pub(super) fn run(graph: &Graph, _: &PassContext) -> Graph {
    let mut after = graph.clone();
    while let Some((producer, gather)) = find(&after) {
        swap(&mut after, producer, gather);
    }
    renumber(after)
}

/// Whether an output row depends on nothing but the same row of the one input.
fn is_row_wise(op: &Op) -> bool {
    match op {
        Op::RmsNorm { .. } | Op::Relu2 | Op::Split { .. } => true,
        Op::Matmul { epilogue, .. } => *epilogue != Epilogue::Residual,
        _ => false,
    }
}

fn find(graph: &Graph) -> Option<(usize, usize)> {
    let uses = Uses::of(graph);
    graph.nodes.iter().enumerate().filter(|(_, n)| n.op == Op::GatherRows).find_map(|(gather, node)| {
        let producer = uses.producer(node.inputs[0])?;
        uses.sole_reader(node.inputs[0])?;
        is_row_wise(&graph.nodes[producer].op).then_some((producer, gather))
    })
}

/// `gather(f(x))` becomes `f(gather(x))`.
fn swap(graph: &mut Graph, producer: usize, gather: usize) {
    let x = graph.nodes[producer].inputs[0];
    let narrow = ValueType { rows: Rows::WANTED, ..graph.value_type(x) };
    let narrow = define(graph, narrow);
    let mut gathered = graph.nodes[gather].clone();
    let mut applied = graph.nodes[producer].clone();
    applied.outputs = std::mem::replace(&mut gathered.outputs, vec![narrow]);
    applied.inputs = vec![narrow];
    gathered.inputs[0] = x;
    // Both take the position of the gather: the wanted rows need not be defined any earlier.
    graph.nodes[gather] = applied;
    graph.nodes.insert(gather, gathered);
    graph.nodes.remove(producer);
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use mambo_kernel::Phase;

    use super::super::testing::run_text;

    const HEAD: &str = "graph g
        weight embed [10, 4]
        weight norm [4]
        weight lm_head [10, 4]
        %0 = input token_ids : i32[T, 1]
        %1 = input wanted : i32[W, 1]
        %2 = embed %0 $embed : f32[T, 4] ; embed
        %3 = rms_norm eps=1e-5 %2 $norm : f32[T, 4] ; norm
        %4 = matmul out=10 %3 $lm_head : f32[T, 10] ; lm_head
        %5 = gather_rows %4 %1 : f32[W, 10] ; wanted
        output logits %5";

    #[test]
    fn norm_and_head_run_on_wanted_rows() {
        expect![[r#"
            graph g
            weight embed [10, 4]
            weight norm [4]
            weight lm_head [10, 4]
            %0 = input token_ids : i32[T, 1]
            %1 = input wanted : i32[W, 1]
            %2 = embed %0 $embed : f32[T, 4]                                         ; embed
            %3 = gather_rows %2 %1 : f32[W, 4]                                       ; wanted
            %4 = rms_norm eps=1e-5 %3 $norm : f32[W, 4]                              ; norm
            %5 = matmul out=10 %4 $lm_head : f32[W, 10]                              ; lm_head
            output logits %5
        "#]]
        .assert_eq(&run_text(super::run, Phase::Prefill, HEAD));
    }

    #[test]
    fn a_norm_that_is_an_output_stays_whole() {
        let text = format!("{HEAD}\noutput hidden %3");
        expect![[r#"
            graph g
            weight embed [10, 4]
            weight norm [4]
            weight lm_head [10, 4]
            %0 = input token_ids : i32[T, 1]
            %1 = input wanted : i32[W, 1]
            %2 = embed %0 $embed : f32[T, 4]                                         ; embed
            %3 = rms_norm eps=1e-5 %2 $norm : f32[T, 4]                              ; norm
            %4 = gather_rows %3 %1 : f32[W, 4]                                       ; wanted
            %5 = matmul out=10 %4 $lm_head : f32[W, 10]                              ; lm_head
            output logits %5
            output hidden %3
        "#]]
        .assert_eq(&run_text(super::run, Phase::Prefill, &text));
    }
}
