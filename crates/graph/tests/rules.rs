//! The verifier and the builder: each broken rule is refused with a message that says where and what to do.

mod hybrid;

use expect_test::expect;
use mambo_graph::{Graph, GraphBuilder, Input, ValueId};
use mambo_kernel::{Attention, AttentionDims, Elem, Epilogue, Op};

/// The verifier's message after one edit of a valid graph.
fn broken(edit: impl FnOnce(&mut Graph)) -> String {
    let mut graph = hybrid::graph().unwrap();
    edit(&mut graph);
    graph.verify().unwrap_err().to_string()
}

fn node(graph: &Graph, label: &str) -> usize {
    graph.nodes.iter().position(|n| n.label == label).unwrap()
}

#[test]
fn every_broken_rule_has_its_message() {
    let errors = [
        broken(|g| g.nodes.swap(1, 2)),
        broken(|g| g.nodes[3].outputs = g.nodes[2].outputs.clone()),
        broken(|g| g.types[3].cols = 65),
        broken(|g| g.weights[1].shape = vec![63]),
        broken(|g| g.nodes[1].weights.clear()),
        broken(|g| g.nodes[1].weights[0].0 = 999),
        broken(|g| g.nodes[1].cache = Some(0)),
        broken(|g| {
            let i = node(g, "layers.1.attention");
            g.nodes[i].cache = None;
        }),
        broken(|g| {
            let i = node(g, "layers.1.attention");
            g.nodes[i].cache = Some(4);
        }),
        broken(|g| g.kv_layers[0].head_dim = 8),
        broken(|g| {
            let i = node(g, "layers.1.attention");
            let mut second = g.nodes[i].clone();
            second.label = "again".into();
            second.outputs = vec![ValueId(g.types.len() as u32)];
            g.types.push(g.value_type(second.inputs[0]));
            g.nodes.insert(i + 1, second);
        }),
        broken(|g| {
            let i = node(g, "layers.0.conv");
            g.nodes[i].cache = Some(1);
            g.state_layers.push(g.state_layers[0]);
        }),
        broken(|g| g.outputs[0].1 = ValueId(0)),
        broken(|g| g.outputs[0].1 = ValueId(999)),
        broken(|g| g.outputs.clear()),
        broken(|g| g.weights[1].name = "embed".into()),
        broken(|g| g.weights[1].name = "a b".into()),
        broken(|g| g.nodes[1].label = "two\nlines".into()),
    ];
    expect![[r#"
        node `layers.0.in_proj` reads %3, which nothing defines before it; define it first or correct the number
        %4 is defined 2 times; every value number below 42 needs one definition
        node `layers.0.norm`: %3 is declared f32[T, 65] but the op gives f32[T, 64]; correct the declaration
        node `layers.0.norm`: weight `layers.0.norm` has shape [63], port `weight` needs [64] (0 is free); correct the size in the model's description or the declared shape
        node `layers.0.norm`: rms_norm takes 1 weights, got 0; pass them in port order
        node `layers.0.norm` reads weight 999, which nothing defines before it; define it first or correct the number
        node `layers.0.norm`: rms_norm has no cache; pass none
        node `layers.1.attention`: attention needs a kv layer; declare one
        node `layers.1.attention`: attention uses cache layer 4, but 1 are declared; declare it
        node `layers.1.attention`: attention and cache layer 0 have different sizes; use the op's own layer
        node `again`: kv layer 0 already has an attention; give each its own
        node `layers.0.scan`: state layer 0 is used by ssm_scan; it takes ssm_conv then ssm_scan or delta_scan, or ssm_step, or short_conv
        output `logits` is the input %0 itself; name a computed value
        output `logits` reads %999, which nothing defines before it; define it first or correct the number
        graph `hybrid` has no output; name at least one value as output
        weight `embed` is declared twice; declare it once with its one shape
        weight name `a b` is not a word; use letters, digits, dots and underscores
        label `two\nlines` is not a line of text; give the node's place in the model
    "#]].assert_eq(&(errors.join("\n") + "\n"));
}

#[test]
fn the_builder_refuses_where_the_mistake_is_made() {
    let mut b = GraphBuilder::new("g");
    let x = b.input(Input::Hidden { cols: 8 });
    let ids = b.input(Input::TokenIds);
    let w = b.weight("w", [4, 8]);
    let attention = AttentionDims { q_heads: 2, kv_heads: 1, head_dim: 4 };
    let layer = b.kv_layer(attention);
    let matmul = |out| Op::Matmul { out, epilogue: Epilogue::None };
    let mut fail = |op, inputs: &[_], weights: &[_], cache| {
        b.node(op, "here", inputs, weights, cache).unwrap_err().to_string()
    };
    let errors = [
        fail(matmul(5), &[x], &[w], None),
        fail(matmul(4), &[x], &[], None),
        fail(matmul(4), &[x, x], &[w], None),
        fail(matmul(0), &[x], &[w], None),
        fail(matmul(4), &[ids], &[w], None),
        fail(matmul(4), &[ValueId(7)], &[w], None),
        fail(Op::Embed, &[x], &[w], None),
        fail(Op::Attention(Attention::plain(attention)), &[x, x, x], &[], Some(layer)),
        fail(Op::GatherRows, &[x, ids], &[], None),
        fail(Op::RmsNorm { eps: f32::NAN }, &[x], &[w], None),
        fail(Op::Quantize(Elem::F32), &[x], &[], None),
    ];
    expect![[r#"
        node `here`: weight `w` has shape [4, 8], port `weight` needs [5, 8] (0 is free); correct the size in the model's description or the declared shape
        node `here`: matmul takes 1 weights, got 0; pass them in port order
        node `here`: matmul takes 1 inputs, got 2; correct the op's parameters or what feeds it
        node `here`: size 0 is outside 1 to 268435456; correct the op's parameters or what feeds it
        node `here`: input 0 of matmul is i32[T, 1], expected f32 elements; correct the op's parameters or what feeds it
        node `here` reads %7, which nothing defines before it; define it first or correct the number
        node `here`: input 0 of embed is f32[T, 8], expected i32 elements; correct the op's parameters or what feeds it
        node `here`: input 1 of attention has 8 columns, expected 4; correct the op's parameters or what feeds it
        node `here`: gather_rows takes the wanted rows as input 1, got i32[T, 1]; correct the op's parameters or what feeds it
        node `here`: epsilon NaN is not a finite number of at least zero; correct the op's parameters or what feeds it
        node `here`: quantize is inserted by lowering and never stands in a graph; correct the op's parameters or what feeds it
    "#]].assert_eq(&(errors.join("\n") + "\n"));
    assert_eq!(b.input(Input::TokenIds), ids, "an input is one value");
    assert_eq!(b.weight("w", [4, 8]), w, "a weight is declared once");
}
