//! Costs against arithmetic done by hand, and the tables that join them with times.

mod fake;
#[path = "../../graph/tests/hybrid/mod.rs"]
mod hybrid;

use std::time::Duration;

use expect_test::expect;
use mambo_graph::Graph;
use mambo_graph::passes::{PassContext, run_passes};
use mambo_kernel::{CallTime, KernelRow, KvElem, KvTypes, Op, Phase, Program, StateElem, WeightKey};
use mambo_plan::{
    CallCost, CostContext, Kernels, LayerKind, LowerOptions, Measured, layer_kinds, lower, program_cost,
};
use mambo_tensor::DType;

fn kernels(rows: &[KernelRow]) -> Kernels<'_> {
    Kernels { backend: fake::NAME, rows }
}

fn decode(rows: &[KernelRow]) -> (Graph, Program) {
    let graph = hybrid::graph().unwrap();
    let context = PassContext { phase: Phase::Decode, offers: &|_| true };
    let graph = run_passes(&graph, &context, &mut |_| {}).unwrap();
    let options = LowerOptions {
        name: "trunk",
        phase: Phase::Decode,
        max_tokens: 8,
        max_wanted: 8,
        weight_type: &fake::weight_type,
    };
    let program = lower(&graph, &kernels(rows), &options).unwrap();
    (graph, program)
}

/// Stored bytes of a weight of the graph.
fn stored(graph: &Graph, name: &str) -> u64 {
    let shape = &graph.weights.iter().find(|w| w.name == name).unwrap().shape;
    let values: usize = shape.iter().product();
    match fake::weight_type(name) {
        Some(DType::Q4_0) => values as u64 / 32 * 18,
        _ => values as u64 * 4,
    }
}

fn costs(graph: &Graph, program: &Program, tokens: usize, segments: usize, depth: usize) -> Vec<CallCost> {
    costs_in(graph, program, (tokens, segments, depth), KvTypes::both(KvElem::F16), StateElem::F32)
}

fn costs_in(
    graph: &Graph,
    program: &Program,
    (tokens, segments, depth): (usize, usize, usize),
    kv_types: KvTypes,
    state_elem: StateElem,
) -> Vec<CallCost> {
    let weight_bytes = |key: &WeightKey| stored(graph, &key.name);
    let context = CostContext {
        tokens,
        wanted: segments,
        segments,
        depth,
        kv_types,
        state_elem,
        weight_bytes: &weight_bytes,
    };
    program_cost(program, &context)
}

#[test]
fn bytes_and_flops_are_what_the_shapes_say() {
    let rows = fake::rows();
    let (graph, program) = decode(&rows);
    let costs = costs(&graph, &program, 2, 2, 100);
    let cost = |label: &str| costs[program.calls.iter().position(|c| c.label == label).unwrap()];

    let in_proj = cost("layers.0.in_proj");
    assert_eq!(in_proj.bytes, 324 * 64 / 32 * 18 + 2 * 64 / 32 * 48 + 2 * 324 * 4);
    assert_eq!(in_proj.flops, 2 * 2 * 324 * 64);

    // q, k, v and y in f32, then 101 positions of k and v in f16 for each of two sequences.
    let attention = cost("layers.1.attention");
    assert_eq!(attention.bytes, 2 * (64 + 32 + 32 + 64) * 4 + 2 * 101 * 2 * 32 * 2);
    assert_eq!(attention.flops, 2 * 4 * 64 * 101);

    // Two tokens of two experts each meet 3.5 of 8 experts.
    let up = cost("layers.2.experts.up");
    let activations = 2 * 64 / 32 * 48 + 2 * 2 * 4 + 2 * 2 * 96 * 4;
    assert_eq!(up.bytes, 8 * 96 * 64 / 32 * 18 * 7 / 16 + activations);
    assert_eq!(up.flops, 2 * 2 * 2 * 96 * 64);

    // One row of the table per token, as large as what is written.
    assert_eq!(cost("embed").bytes, 2 * 4 + 2 * (2 * 64 * 4));

    // Per sequence: three columns of history read and one written; the state read, and one step in 32
    // writes it; half a ring of x, B and dt read and one row written.
    let cache = (3 + 1) * 192 * 4 + 4 * 32 * 16 * 4 * 33 / 32 + (16 + 1) * (128 + 32 + 4) * 4;
    let weights = (192 * 4 + 192 + 4 + 4 + 4 + 128) * 4;
    assert_eq!(cost("layers.0.scan").bytes, 2 * (cache + (324 + 128) * 4) + weights);
}

#[test]
fn narrow_caches_cost_what_they_hold() {
    let rows = fake::rows();
    let (graph, program) = decode(&rows);
    let of = |kv_types: KvTypes, state: StateElem, label: &str| {
        let costs = costs_in(&graph, &program, (1, 1, 99), kv_types, state);
        costs[program.calls.iter().position(|c| c.label == label).unwrap()].bytes
    };
    let attention = |k, v| of(KvTypes { k, v }, StateElem::F32, "layers.1.attention");
    let full = attention(KvElem::F32, KvElem::F32);
    // A hundred positions of 32 channels of keys, with a scale for every head of them.
    let head_dim = graph.kv_layers[0].head_dim;
    assert_eq!(full - attention(KvElem::Q8, KvElem::F32), 100 * (32 * 3 - 2 * 32 / head_dim as u64));
    assert_eq!(full - attention(KvElem::F8, KvElem::BF16), 100 * 32 * (3 + 2));
    let scan = |state| of(KvTypes::default(), state, "layers.0.scan");
    assert_eq!(scan(StateElem::F32) - scan(StateElem::F16), 4 * 32 * 16 * 2 * 33 / 32);
}

#[test]
fn deeper_contexts_cost_attention_alone() {
    let rows = fake::rows();
    let (graph, program) = decode(&rows);
    let (shallow, deep) = (costs(&graph, &program, 1, 1, 0), costs(&graph, &program, 1, 1, 1000));
    for ((call, a), b) in program.calls.iter().zip(&shallow).zip(&deep) {
        assert_eq!(a != b, matches!(call.op, Op::Attention(_)), "{}", call.label);
    }
    let total = |costs: &[CallCost]| costs.iter().copied().sum::<CallCost>().bytes;
    assert_eq!(total(&deep) - total(&shallow), 1000 * 2 * 32 * 2);
}

#[test]
fn calls_belong_to_layers_by_what_stands_in_them() {
    let rows = fake::rows();
    let (_, program) = decode(&rows);
    let kinds = layer_kinds(&program);
    let kind = |label: &str| kinds[program.calls.iter().position(|c| c.label == label).unwrap()];
    assert_eq!(kind("embed"), LayerKind::Embed);
    assert_eq!(kind("layers.0.norm.q8"), LayerKind::Mamba);
    assert_eq!(kind("layers.1.o_proj"), LayerKind::Attention);
    assert_eq!(kind("layers.2.shared.up"), LayerKind::Moe);
    assert_eq!(kind("layers.3.up"), LayerKind::Mlp);
    assert_eq!(kind("lm_head"), LayerKind::Head);
}

#[test]
fn measured_tables_read_like_this() {
    let rows = fake::rows();
    let (graph, program) = decode(&rows);
    let costs = costs(&graph, &program, 1, 1, 100);
    let micros = |i: usize| if i == 0 { 0 } else { (i as u64 % 7 + 1) * 2 };
    let times: Vec<_> = (0..program.calls.len())
        .map(|i| CallTime { total: Duration::from_micros(micros(i)), runs: 2 * u32::from(i > 0) })
        .collect();
    let measured = Measured {
        program: &program,
        kernels: kernels(&rows),
        costs: &costs,
        times: &times,
        bandwidth: 10e9,
    };
    expect![[r#"
        #    label                  kernel                           us  share       bytes     GB/s  GFLOP/s  of roof
        0    embed                  fake:embed.table.f32              -      -         0 B        -        -       -
        1    layers.0.norm          fake:rms_norm.row.f32           2.0   1.4%       768 B     0.38     0.13    3.8%
        2    layers.0.norm.q8       fake:quantize.row.f32           3.0   2.2%       352 B     0.12     0.04    1.2%
        3    layers.0.in_proj       fake:matmul.vec.q4_0            4.0   2.9%    12.8 KiB     3.26    10.37   32.6%
        4    layers.0.scan          fake:ssm_step.step.f32          5.0   3.6%    28.2 KiB     5.78     3.28   57.8%
        5    layers.0.scan.q8       fake:quantize.row.f32           6.0   4.3%       704 B     0.12     0.04    1.2%
        6    layers.0.out_proj      fake:matmul.vec.q4_0            7.0   5.0%     5.2 KiB     0.76     2.34    7.6%
        7    layers.1.norm          fake:rms_norm.row.f32           1.0   0.7%       768 B     0.77     0.26    7.7%
        8    layers.1.norm.q8       fake:quantize.row.f32           2.0   1.4%       352 B     0.18     0.06    1.8%
        9    layers.1.q_proj        fake:matmul.vec.q4_0            3.0   2.2%     2.6 KiB     0.89     2.73    8.9%
        10   layers.1.k_proj        fake:matmul.vec.q4_0            4.0   2.9%     1.3 KiB     0.34     1.02    3.4%
        11   layers.1.v_proj        fake:matmul.vec.q4_0            5.0   3.6%     1.3 KiB     0.28     0.82    2.8%
        12   layers.1.attention     fake:attention.row.f32          6.0   4.3%    13.4 KiB     2.28     4.31   22.8%
        13   layers.1.attention.q8  fake:quantize.row.f32           7.0   5.0%       352 B     0.05     0.02    0.5%
        14   layers.1.o_proj        fake:matmul.vec.q4_0            1.0   0.7%     2.8 KiB     2.91     8.19   29.1%
        15   layers.2.norm          fake:rms_norm.row.f32           2.0   1.4%       768 B     0.38     0.13    3.8%
        16   layers.2.router        fake:matmul.any.f32             3.0   2.2%     2.3 KiB     0.78     0.34    7.8%
        17   layers.2.route         fake:moe_route.row.f32          4.0   2.9%        80 B     0.02     0.01    0.2%
        18   layers.2.norm.q8       fake:quantize.row.f32           5.0   3.6%       352 B     0.07     0.03    0.7%
        19   layers.2.experts.up    fake:moe_matmul.vec.q4_0        6.0   4.3%     7.6 KiB     1.30     4.10   13.0%
        20   layers.2.experts.up.q8 fake:quantize.row.f32           7.0   5.0%     1.0 KiB     0.15     0.05    1.5%
        21   layers.2.experts.down  fake:moe_matmul.vec.q4_0        1.0   0.7%     7.5 KiB     7.72    24.58   77.2%
        22   layers.2.experts.sum   fake:moe_combine.row.f32        2.0   1.4%     1.0 KiB     0.52     0.13    5.2%
        23   layers.2.shared.up     fake:matmul.vec.q4_0            3.0   2.2%     5.1 KiB     1.74     5.46   17.4%
        24   layers.2.shared.up.q8  fake:quantize.row.f32           4.0   2.9%       704 B     0.18     0.06    1.8%
        25   layers.2.shared.down   fake:matmul.vec.q4_0            5.0   3.6%     5.2 KiB     1.06     3.28   10.6%
        26   layers.3.norm          fake:rms_norm.row.f32           6.0   4.3%       768 B     0.13     0.04    1.3%
        27   layers.3.norm.q8       fake:quantize.row.f32           7.0   5.0%       352 B     0.05     0.02    0.5%
        28   layers.3.up            fake:matmul.vec.q4_0            1.0   0.7%     5.1 KiB     5.22    16.38   52.2%
        29   layers.3.up.q8         fake:quantize.row.f32           2.0   1.4%       704 B     0.35     0.13    3.5%
        30   layers.3.down          fake:matmul.vec.q4_0            3.0   2.2%     5.2 KiB     1.77     5.46   17.7%
        31   wanted                 fake:gather_rows.row.f32        4.0   2.9%       516 B     0.13     0.00    1.3%
        32   norm                   fake:rms_norm.row.f32           5.0   3.6%       768 B     0.15     0.05    1.5%
        33   norm.q8                fake:quantize.row.f32           6.0   4.3%       352 B     0.06     0.02    0.6%
        34   lm_head                fake:matmul.vec.q4_0            7.0   5.0%     3.8 KiB     0.56     1.76    5.6%
             total                                                139.0 100.0%   120.0 KiB     0.88     1.84    8.8%
    "#]].assert_eq(&measured.table());
    expect![[r#"
        op               calls         us  share       bytes     GB/s  GFLOP/s  of roof
        quantize            10       49.0  35.3%     5.2 KiB     0.11     0.04    1.1%
        matmul              12       46.0  33.1%    52.8 KiB     1.17     3.51   11.7%
        rms_norm             5       16.0  11.5%     3.8 KiB     0.24     0.08    2.4%
        moe_matmul           2        7.0   5.0%    15.1 KiB     2.21     7.02   22.1%
        attention            1        6.0   4.3%    13.4 KiB     2.28     4.31   22.8%
        ssm_step             1        5.0   3.6%    28.2 KiB     5.78     3.28   57.8%
        gather_rows          1        4.0   2.9%       516 B     0.13     0.00    1.3%
        moe_route            1        4.0   2.9%        80 B     0.02     0.01    0.2%
        moe_combine          1        2.0   1.4%     1.0 KiB     0.52     0.13    5.2%
        embed                1          -      -         0 B        -        -       -
        total               35      139.0 100.0%   120.0 KiB     0.88     1.84    8.8%
    "#]]
    .assert_eq(&measured.by_op());
    expect![[r#"
        layers           calls         us  share       bytes     GB/s  GFLOP/s  of roof
        moe                 11       42.0  30.2%    31.6 KiB     0.77     2.01    7.7%
        attention            8       29.0  20.9%    22.9 KiB     0.81     1.76    8.1%
        mamba                6       27.0  19.4%    47.9 KiB     1.82     2.77   18.2%
        head                 4       22.0  15.8%     5.4 KiB     0.25     0.58    2.5%
        mlp                  5       19.0  13.7%    12.1 KiB     0.65     1.76    6.5%
        embed                1          -      -         0 B        -        -       -
        total               35      139.0 100.0%   120.0 KiB     0.88     1.84    8.8%
    "#]]
    .assert_eq(&measured.by_layer_kind());
}
