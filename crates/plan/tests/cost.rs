//! Costs against arithmetic done by hand, and the tables that join them with times.

mod fake;
#[path = "../../graph/tests/hybrid/mod.rs"]
mod hybrid;

use std::time::Duration;

use expect_test::expect;
use mambo_graph::Graph;
use mambo_graph::passes::{PassContext, run_passes};
use mambo_kernel::{
    CacheTypes, CallCost, CallTime, KernelRow, KvElem, KvTypes, Op, Phase, Program, StateElem, StepShape,
    WeightKey, program_cost,
};
use mambo_plan::{Kernels, LayerKind, LowerOptions, Measured, layer_kinds, lower};
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
        caches: CacheTypes::default(),
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
    let shape = StepShape { tokens, wanted: segments, segments, depth };
    program_cost(program, &shape, CacheTypes { kv: kv_types, state: state_elem }, &weight_bytes)
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

    // Two tokens of two experts each use 3.5 of 8 experts on average.
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
fn calls_belong_to_the_kind_of_their_layer() {
    let rows = fake::rows();
    let (_, program) = decode(&rows);
    let kinds = layer_kinds(&program);
    let kind = |label: &str| kinds[program.calls.iter().position(|c| c.label == label).unwrap()];
    assert_eq!(kind("embed"), LayerKind::Embed);
    assert_eq!(kind("layers.0.scan.q8"), LayerKind::Mamba);
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
        0    embed                  fake:embed.table.f32              -      -       516 B        -        -       -
        1    layers.0.norm          fake:rms_norm.row.f32           2.0   1.8%       864 B     0.43     0.13    4.3%
        2    layers.0.in_proj       fake:matmul.vec.q4_0            3.0   2.6%    12.8 KiB     4.35    13.82   43.5%
        3    layers.0.scan          fake:ssm_step.step.f32          4.0   3.5%    28.2 KiB     7.22     4.10   72.2%
        4    layers.0.scan.q8       fake:quantize.row.f32           5.0   4.4%       704 B     0.14     0.05    1.4%
        5    layers.0.out_proj      fake:matmul.vec.q4_0            6.0   5.3%     5.2 KiB     0.89     2.73    8.9%
        6    layers.1.norm          fake:rms_norm.row.f32           7.0   6.1%       864 B     0.12     0.04    1.2%
        7    layers.1.q_proj        fake:matmul.vec.q4_0            1.0   0.9%     2.6 KiB     2.66     8.19   26.6%
        8    layers.1.k_proj        fake:matmul.vec.q4_0            2.0   1.8%     1.3 KiB     0.69     2.05    6.9%
        9    layers.1.v_proj        fake:matmul.vec.q4_0            3.0   2.6%     1.3 KiB     0.46     1.37    4.6%
        10   layers.1.attention     fake:attention.row.f32          4.0   3.5%    13.4 KiB     3.42     6.46   34.2%
        11   layers.1.attention.q8  fake:quantize.row.f32           5.0   4.4%       352 B     0.07     0.03    0.7%
        12   layers.1.o_proj        fake:matmul.vec.q4_0            6.0   5.3%     2.8 KiB     0.49     1.37    4.9%
        13   layers.2.norm          fake:rms_norm.row.f32           7.0   6.1%       864 B     0.12     0.04    1.2%
        14   layers.2.router        fake:matmul.any.f32             1.0   0.9%     2.3 KiB     2.34     1.02   23.4%
        15   layers.2.route         fake:moe_route.row.f32          2.0   1.8%        80 B     0.04     0.02    0.4%
        16   layers.2.experts.up    fake:moe_matmul.vec.q4_0        3.0   2.6%     7.6 KiB     2.59     8.19   25.9%
        17   layers.2.experts.up.q8 fake:quantize.row.f32           4.0   3.5%     1.0 KiB     0.26     0.10    2.6%
        18   layers.2.experts.down  fake:moe_matmul.vec.q4_0        5.0   4.4%     7.5 KiB     1.54     4.92   15.4%
        19   layers.2.experts.sum   fake:moe_combine.row.f32        6.0   5.3%     1.0 KiB     0.17     0.04    1.7%
        20   layers.2.shared.up     fake:matmul.vec.q4_0            7.0   6.1%     5.1 KiB     0.75     2.34    7.5%
        21   layers.2.shared.up.q8  fake:quantize.row.f32           1.0   0.9%       704 B     0.70     0.26    7.0%
        22   layers.2.shared.down   fake:matmul.vec.q4_0            2.0   1.8%     5.2 KiB     2.66     8.19   26.6%
        23   layers.3.norm          fake:rms_norm.row.f32           3.0   2.6%       864 B     0.29     0.09    2.9%
        24   layers.3.up            fake:matmul.vec.q4_0            4.0   3.5%     5.1 KiB     1.30     4.10   13.0%
        25   layers.3.up.q8         fake:quantize.row.f32           5.0   4.4%       704 B     0.14     0.05    1.4%
        26   layers.3.down          fake:matmul.vec.q4_0            6.0   5.3%     5.2 KiB     0.89     2.73    8.9%
        27   wanted                 fake:gather_rows.row.f32        7.0   6.1%       516 B     0.07     0.00    0.7%
        28   norm                   fake:rms_norm.row.f32           1.0   0.9%       864 B     0.86     0.26    8.6%
        29   lm_head                fake:matmul.vec.q4_0            2.0   1.8%     3.8 KiB     1.97     6.14   19.7%
             total                                                114.0 100.0%   119.2 KiB     1.07     2.24   10.7%
    "#]].assert_eq(&measured.table());
    expect![[r#"
        op               calls         us  share       bytes     GB/s  GFLOP/s  of roof
        matmul              12       43.0  37.7%    52.8 KiB     1.26     3.75   12.6%
        quantize             5       20.0  17.5%     3.4 KiB     0.18     0.06    1.8%
        rms_norm             5       20.0  17.5%     4.2 KiB     0.22     0.06    2.2%
        moe_matmul           2        8.0   7.0%    15.1 KiB     1.94     6.14   19.4%
        gather_rows          1        7.0   6.1%       516 B     0.07     0.00    0.7%
        moe_combine          1        6.0   5.3%     1.0 KiB     0.17     0.04    1.7%
        attention            1        4.0   3.5%    13.4 KiB     3.42     6.46   34.2%
        ssm_step             1        4.0   3.5%    28.2 KiB     7.22     4.10   72.2%
        moe_route            1        2.0   1.8%        80 B     0.04     0.02    0.4%
        embed                1          -      -       516 B        -        -       -
        total               30      114.0 100.0%   119.2 KiB     1.07     2.24   10.7%
    "#]]
    .assert_eq(&measured.by_op());
    expect![[r#"
        layers           calls         us  share       bytes     GB/s  GFLOP/s  of roof
        moe                 10       38.0  33.3%    31.4 KiB     0.84     2.21    8.4%
        attention            7       28.0  24.6%    22.7 KiB     0.83     1.81    8.3%
        mamba                5       20.0  17.5%    47.7 KiB     2.44     3.74   24.4%
        mlp                  4       18.0  15.8%    11.8 KiB     0.67     1.85    6.7%
        head                 3       10.0   8.8%     5.2 KiB     0.53     1.25    5.3%
        embed                1          -      -       516 B        -        -       -
        total               30      114.0 100.0%   119.2 KiB     1.07     2.24   10.7%
    "#]]
    .assert_eq(&measured.by_layer_kind());
}
