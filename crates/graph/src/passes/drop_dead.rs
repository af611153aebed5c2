//! Drops nodes whose values are never read, then weights that no node uses. A node that writes a cache stays:
//! the next step reads it.

use super::PassContext;
use super::edit::{Uses, remove_nodes, renumber};
use crate::graph::{Graph, WeightId};

pub(super) fn run(graph: &Graph, _: &PassContext) -> Graph {
    let uses = Uses::of(graph);
    let mut live = vec![false; graph.nodes.len()];
    let mut work: Vec<usize> = graph.outputs.iter().filter_map(|(_, v)| uses.producer(*v)).collect();
    work.extend((0..graph.nodes.len()).filter(|i| graph.nodes[*i].op.cache().is_some()));
    while let Some(i) = work.pop() {
        if !std::mem::replace(&mut live[i], true) {
            work.extend(graph.nodes[i].inputs.iter().filter_map(|v| uses.producer(*v)));
        }
    }
    let dead: Vec<usize> = (0..live.len()).filter(|i| !live[*i]).collect();
    let mut after = graph.clone();
    remove_nodes(&mut after, &dead);
    drop_weights(&mut after);
    renumber(after)
}

fn drop_weights(graph: &mut Graph) {
    let mut numbers = vec![None; graph.weights.len()];
    for weight in graph.nodes.iter().flat_map(|n| &n.weights) {
        numbers[weight.index()] = Some(WeightId(0));
    }
    for (i, number) in numbers.iter_mut().flatten().enumerate() {
        *number = WeightId(i as u32);
    }
    let mut used = numbers.iter().map(Option::is_some);
    graph.weights.retain(|_| used.next() == Some(true));
    for weight in graph.nodes.iter_mut().flat_map(|n| &mut n.weights) {
        *weight = numbers[weight.index()].unwrap_or(*weight);
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use mambo_kernel::Phase;

    use super::super::testing::run_text;

    #[test]
    fn dead_nodes_and_their_weights_go_but_cache_writers_stay() {
        let text = "graph g
            weight embed [10, 4]
            weight spare [4]
            kv 0 q_heads=2 kv_heads=1 head_dim=2
            %0 = input token_ids : i32[T, 1]
            %1 = embed %0 $embed : f32[T, 4] ; embed
            %2 = rms_norm eps=1e-5 %1 $spare : f32[T, 4] ; spare
            %3 = split start=0 len=2 %1 : f32[T, 2] ; k
            %4 = attention %1 %3 %3 @kv0 : f32[T, 4] ; attention
            %5 = relu2 %1 : f32[T, 4] ; relu2
            output hidden %5";
        expect![[r#"
            graph g
            weight embed [10, 4]
            kv 0 q_heads=2 kv_heads=1 head_dim=2
            %0 = input token_ids : i32[T, 1]
            %1 = embed %0 $embed : f32[T, 4]                                         ; embed
            %2 = split start=0 len=2 %1 : f32[T, 2]                                  ; k
            %3 = attention %1 %2 %2 @kv0 : f32[T, 4]                                 ; attention
            %4 = relu2 %1 : f32[T, 4]                                                ; relu2
            output hidden %4
        "#]]
        .assert_eq(&run_text(super::run, Phase::Prefill, text));
    }
}
