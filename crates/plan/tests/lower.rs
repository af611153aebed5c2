//! Lowering: the plan of a small hybrid as text, what it computes, and why a graph may not become one.

mod fake;
#[path = "../../graph/tests/hybrid/mod.rs"]
mod hybrid;
mod symbolic;

use expect_test::expect;
use mambo_graph::passes::{PassContext, run_passes};
use mambo_graph::{Graph, GraphBuilder, Input};
use mambo_kernel::{
    Activation, CacheLayout, CacheTypes, Epilogue, KernelRow, KvElem, KvGroup, KvTypes, Op, OpKind, Phase,
    Rollback, StateElem,
};
use mambo_plan::{Kernels, LowerOptions, lower, plan_text};
use mambo_tensor::DType;
use proptest::prelude::*;

fn options(phase: Phase) -> LowerOptions<'static> {
    let (caches, weight_type) = (CacheTypes::default(), &fake::weight_type);
    LowerOptions { name: "trunk", phase, max_tokens: 8, max_wanted: 4, caches, weight_type }
}

fn passed(graph: &Graph, kernels: &Kernels, phase: Phase) -> Graph {
    let offers = |op: &Op| kernels.offers(op, phase, CacheTypes::default(), graph, &fake::weight_type);
    run_passes(graph, &PassContext { phase, offers: &offers }, &mut |_| {}).unwrap()
}

#[test]
fn the_decode_plan_reads_like_this() {
    let graph = hybrid::graph().unwrap();
    let rows = fake::rows();
    let kernels = Kernels { backend: fake::NAME, rows: &rows };
    let graph = passed(&graph, &kernels, Phase::Decode);
    let program = lower(&graph, &kernels, &options(Phase::Decode)).unwrap();
    symbolic::assert_computes(&program, &graph);
    let caches = CacheLayout {
        kv_layers: graph.kv_layers.clone(),
        kv_types: KvTypes { k: KvElem::Q8, v: KvElem::F16 },
        kv_scales: Vec::new(),
        kv_groups: vec![KvGroup { window: None, layers: vec![0], pages: 64 }],
        state_layers: graph.state_layers.clone(),
        state_elem: StateElem::BF16,
        slots: 4,
        rollback: Rollback::OneChunk,
    };
    expect![[r#"
        plan trunk decode tokens<=8 wanted<=4 fake/x1  arena 16.5 KiB (unpooled 76.5 KiB)
          kv 1 layers q8/f16 x 64 pages, 100 B per token, 200.0 KiB
          state 1 layers bf16 x 4 slots, 75.2 KiB per slot
           0  %0       embed       fake:embed.table.f32     f32[T, 64]            @0x03a00           <- token_ids $embed ; embed
           1  %1, %2   rms_norm    fake:rms_norm.row.f32    f32[T, 64], q8[T, 64] @0x00000, @0x02a00 <- %0 $layers.0.norm ; layers.0.norm
           2  %3       matmul      fake:matmul.vec.q4_0     f32[T, 324]           @0x00000           <- %2 $layers.0.in_proj ; layers.0.in_proj
           3  %4       ssm_step    fake:ssm_step.step.f32   f32[T, 128]           @0x02a00           <- %3 $layers.0.conv $layers.0.conv_bias $layers.0.dt_bias $layers.0.a $layers.0.d $layers.0.gated_norm state[0] ; layers.0.scan
           4  %5       quantize    fake:quantize.row.f32    q8[T, 128]            @0x00800           <- %4 ; layers.0.scan.q8
           5  %6       matmul      fake:matmul.vec.q4_0     f32[T, 64]            @0x00000           <- %5 %0 $layers.0.out_proj ; layers.0.out_proj
           6  %7, %8   rms_norm    fake:rms_norm.row.f32    f32[T, 64], q8[T, 64] @0x00800, @0x01000 <- %6 $layers.1.norm ; layers.1.norm
           7  %9       matmul      fake:matmul.vec.q4_0     f32[T, 64]            @0x00800           <- %8 $layers.1.q_proj ; layers.1.q_proj
           8| %10      matmul      fake:matmul.vec.q4_0     f32[T, 32]            @0x01800           <- %8 $layers.1.k_proj ; layers.1.k_proj
           9| %11      matmul      fake:matmul.vec.q4_0     f32[T, 32]            @0x01c00           <- %8 $layers.1.v_proj ; layers.1.v_proj
          10  %12      attention   fake:attention.row.f32   f32[T, 64]            @0x01000           <- %9 %10 %11 kv[0] ; layers.1.attention
          11  %13      quantize    fake:quantize.row.f32    q8[T, 64]             @0x00800           <- %12 ; layers.1.attention.q8
          12  %14      matmul      fake:matmul.vec.q4_0     f32[T, 64]            @0x02400           <- %13 %6 $layers.1.o_proj ; layers.1.o_proj
          13  %15, %16 rms_norm    fake:rms_norm.row.f32    f32[T, 64], q8[T, 64] @0x00000, @0x02c00 <- %14 $layers.2.norm ; layers.2.norm
          14  %17      matmul      fake:matmul.any.f32      f32[T, 8]             @0x00800           <- %15 $layers.2.router ; layers.2.router
          15  %18, %19 moe_route   fake:moe_route.row.f32   i32[T, 2], f32[T, 2]  @0x03000, @0x03200 <- %17 $layers.2.router_bias ; layers.2.route
          16  %20      moe_matmul  fake:moe_matmul.vec.q4_0 f32[T*2, 96]          @0x00000           <- %16 %18 $layers.2.experts.up ; layers.2.experts.up
          17  %21      quantize    fake:quantize.row.f32    q8[T*2, 96]           @0x01800           <- %20 ; layers.2.experts.up.q8
          18  %22      moe_matmul  fake:moe_matmul.vec.q4_0 f32[T*2, 64]          @0x00000           <- %21 %18 $layers.2.experts.down ; layers.2.experts.down
          19  %23      moe_combine fake:moe_combine.row.f32 f32[T, 64]            @0x01000           <- %22 %19 %14 ; layers.2.experts.sum
          20  %24      matmul      fake:matmul.vec.q4_0     f32[T, 128]           @0x00000           <- %16 $layers.2.shared.up ; layers.2.shared.up
          21  %25      quantize    fake:quantize.row.f32    q8[T, 128]            @0x02000           <- %24 ; layers.2.shared.up.q8
          22  %26      matmul      fake:matmul.vec.q4_0     f32[T, 64]            @0x01800           <- %25 %23 $layers.2.shared.down ; layers.2.shared.down
          23  %27, %28 rms_norm    fake:rms_norm.row.f32    f32[T, 64], q8[T, 64] @0x00000, @0x01000 <- %26 $layers.3.norm ; layers.3.norm
          24  %29      matmul      fake:matmul.vec.q4_0     f32[T, 128]           @0x00000           <- %28 $layers.3.up ; layers.3.up
          25  %30      quantize    fake:quantize.row.f32    q8[T, 128]            @0x01000           <- %29 ; layers.3.up.q8
          26  %31      matmul      fake:matmul.vec.q4_0     f32[T, 64]            @0x00000           <- %30 %26 $layers.3.down ; layers.3.down
          27  %32      gather_rows fake:gather_rows.row.f32 f32[W, 64]            @0x00800           <- %31 wanted ; wanted
          28  %33, %34 rms_norm    fake:rms_norm.row.f32    f32[W, 64], q8[W, 64] @0x00000, @0x00600 <- %32 $norm ; norm
          29  %35      matmul      fake:matmul.vec.q4_0     f32[W, 96]            @0x00000           <- %34 $lm_head ; lm_head
        output logits %35
    "#]].assert_eq(&plan_text(&program, &kernels, Some(&caches)));
}

#[test]
fn the_prefill_plan_of_the_plain_graph_splits_without_copies() {
    let graph = hybrid::graph().unwrap();
    let rows = fake::rows();
    let kernels = Kernels { backend: fake::NAME, rows: &rows };
    let program = lower(&graph, &kernels, &options(Phase::Prefill)).unwrap();
    symbolic::assert_computes(&program, &graph);
    assert!(program.calls.iter().all(|c| c.op.kind() != OpKind::Split));
    assert!(program.arena_bytes < program.unpooled_bytes / 2);
    let text = plan_text(&program, &kernels, None);
    let mamba: String =
        text.lines().filter(|l| l.contains("layers.0")).map(|l| l.trim_start().to_string() + "\n").collect();
    expect![[r#"
        1  %1       rms_norm         fake:rms_norm.row.f32         f32[T, 64]           @0x00000           <- %0 $layers.0.norm ; layers.0.norm
        2  %2       quantize         fake:quantize.row.f32         q8[T, 64]            @0x02a00           <- %1 ; layers.0.norm.q8
        3  %3       matmul           fake:matmul.tile.q4_0         f32[T, 324]          @0x00000           <- %2 $layers.0.in_proj ; layers.0.in_proj
        4  %4       ssm_conv         fake:ssm_conv.row.f32         f32[T, 192]          @0x02a00           <- %3[128..320] $layers.0.conv $layers.0.conv_bias state[0] ; layers.0.conv
        5| %5       ssm_dt           fake:ssm_dt.row.f32           f32[T, 4]            @0x05a00           <- %3[320..324] $layers.0.dt_bias ; layers.0.dt_bias
        6  %6       ssm_scan         fake:ssm_scan.row.f32         f32[T, 128]          @0x04200           <- %4 %5 $layers.0.a $layers.0.d state[0] ; layers.0.scan
        7  %7       gated_group_norm fake:gated_group_norm.row.f32 f32[T, 128]          @0x02a00           <- %6 %3[0..128] $layers.0.gated_norm ; layers.0.gated_norm
        8  %8       quantize         fake:quantize.row.f32         q8[T, 128]           @0x03a00           <- %7 ; layers.0.gated_norm.q8
        9  %9       matmul           fake:matmul.tile.q4_0         f32[T, 64]           @0x00000           <- %8 $layers.0.out_proj ; layers.0.out_proj
        10  %10      add              fake:add.row.f32              f32[T, 64]           @0x00800           <- %0 %9 ; layers.0.residual
    "#]].assert_eq(&mamba);
}

#[test]
fn one_quantize_serves_all_readers_of_a_value() {
    let graph = hybrid::graph().unwrap();
    let rows = fake::rows();
    let kernels = Kernels { backend: fake::NAME, rows: &rows };
    let program = lower(&graph, &kernels, &options(Phase::Prefill)).unwrap();
    let q8: Vec<_> =
        program.calls.iter().filter(|c| c.op == Op::Quantize(fake::Q8)).map(|c| c.label.as_str()).collect();
    assert_eq!(q8.iter().filter(|label| **label == "layers.1.norm.q8").count(), 1);
    let at = program.calls.iter().position(|c| c.label == "layers.1.norm.q8").unwrap();
    assert_eq!(program.calls[at + 1].label, "layers.1.q_proj");
}

#[test]
fn a_value_is_rounded_where_it_is_written_if_the_kernel_can() {
    let graph = hybrid::graph().unwrap();
    let rows = fake::rows();
    let kernels = Kernels { backend: fake::NAME, rows: &rows };
    let program = lower(&graph, &kernels, &options(Phase::Decode)).unwrap();
    symbolic::assert_computes(&program, &graph);
    let call = |label: &str| program.calls.iter().find(|c| c.label == label).unwrap();
    let rounded = call("layers.1.norm").rounded.unwrap();
    assert_eq!(rounded.elem, fake::Q8);
    for reader in ["layers.1.q_proj", "layers.1.k_proj", "layers.1.v_proj"] {
        assert_eq!(call(reader).inputs[0], rounded);
    }
    // The router reads the norm as it is, the experts read it rounded.
    assert_eq!(call("layers.2.router").inputs[0], call("layers.2.norm").outputs[0]);
    assert_eq!(Some(call("layers.2.experts.up").inputs[0]), call("layers.2.norm").rounded);
    assert!(program.calls.iter().all(|c| c.rounded.is_none() || c.op.kind() == OpKind::RmsNorm));
}

#[test]
fn a_fusion_is_offered_only_if_every_place_has_a_row() {
    let graph = hybrid::graph().unwrap();
    let mut rows = fake::rows();
    let kernels = Kernels { backend: fake::NAME, rows: &rows };
    let step = Op::SsmStep { dims: graph.state_layers[0], eps: 1e-5 };
    let caches = CacheTypes::default();
    assert!(kernels.offers(&step, Phase::Decode, caches, &graph, &fake::weight_type));
    assert!(!kernels.offers(&step, Phase::Prefill, caches, &graph, &fake::weight_type));
    assert!(!kernels.offers(&step, Phase::Decode, caches, &graph, &|_| Some(DType::BF16)));
    let relu2 = Op::Matmul { out: 128, epilogue: Epilogue::Relu2 };
    assert!(kernels.offers(&relu2, Phase::Decode, caches, &graph, &fake::weight_type));
    rows.retain(|row| !row.name.contains("q4_0"));
    let kernels = Kernels { backend: fake::NAME, rows: &rows };
    assert!(!kernels.offers(&relu2, Phase::Decode, caches, &graph, &fake::weight_type));
}

#[test]
fn a_gate_is_offered_where_every_pair_has_a_row() {
    let mut b = GraphBuilder::new("gated");
    let mut x = b.input(Input::Hidden { cols: 64 });
    let product = Op::Matmul { out: 64, epilogue: Epilogue::None };
    for layer in ["a", "b"] {
        let [gate, up] = ["gate", "up"].map(|part| b.weight(format!("{layer}.{part}"), [64, 64]));
        let gate = b.op1(product, "gate", &[x], &[gate], None).unwrap();
        let up = b.op1(product, "up", &[x], &[up], None).unwrap();
        x = b.op1(Op::Glu(Activation::Silu), "glu", &[gate, up], &[], None).unwrap();
    }
    b.output("y", x);
    let graph = b.finish().unwrap();
    let takes_pairs = |site: &mambo_kernel::Site| site.weight_types == [DType::Q4_0; 2];
    let rows = [KernelRow::new("fake:matmul.pair.q4_0".to_owned(), OpKind::Matmul).accepting(takes_pairs)];
    let kernels = Kernels { backend: fake::NAME, rows: &rows };
    let gated = Op::Matmul { out: 64, epilogue: Epilogue::Glu(Activation::Silu) };
    let offers = |type_of: &dyn Fn(&str) -> Option<DType>| {
        kernels.offers(&gated, Phase::Decode, CacheTypes::default(), &graph, type_of)
    };
    assert!(offers(&|_| Some(DType::Q4_0)));
    assert!(!offers(&|name| Some(if name == "b.gate" { DType::Q8_0 } else { DType::Q4_0 })));
}

#[test]
fn a_tied_table_is_one_weight_in_two_forms() {
    let mut b = GraphBuilder::new("tied");
    let (ids, table) = (b.input(Input::TokenIds), b.weight("embed", [32, 64]));
    let x = b.op1(Op::Embed, "embed", &[ids], &[table], None).unwrap();
    let y = b.op1(Op::Matmul { out: 32, epilogue: Epilogue::None }, "head", &[x], &[table], None).unwrap();
    b.output("logits", y);
    let (graph, rows) = (b.finish().unwrap(), fake::rows());
    let kernels = Kernels { backend: fake::NAME, rows: &rows };
    let program = lower(&graph, &kernels, &options(Phase::Decode)).unwrap();
    let keys: Vec<_> = program.weights.iter().map(|k| format!("{} {:?}", k.name, k.usage)).collect();
    assert_eq!(keys, ["embed Table", "embed Matrix"]);
}

#[test]
fn columns_of_the_hidden_input_need_no_copy() {
    let text = "graph g
        weight norm [4]
        %0 = input hidden : f32[T, 8]
        %1 = split start=4 len=4 %0 : f32[T, 4] ; half
        %2 = rms_norm eps=1e-5 %1 $norm : f32[T, 4] ; norm
        output hidden %2";
    let (graph, rows): (Graph, _) = (text.parse().unwrap(), fake::rows());
    let kernels = Kernels { backend: fake::NAME, rows: &rows };
    let program = lower(&graph, &kernels, &options(Phase::Decode)).unwrap();
    symbolic::assert_computes(&program, &graph);
    expect![[r#"
        plan trunk decode tokens<=8 wanted<=4 fake/x1  arena 512 B (unpooled 512 B)
           0  %0 rms_norm fake:rms_norm.row.f32 f32[T, 4] @0x00000 <- hidden[4..8] $norm ; norm
        output hidden %0
    "#]]
    .assert_eq(&plan_text(&program, &kernels, None));
}

#[test]
fn errors_name_the_node_and_the_remedy() {
    let graph = hybrid::graph().unwrap();
    let fail = |rows: Vec<KernelRow>, options: LowerOptions, graph: &Graph| {
        let kernels = Kernels { backend: fake::NAME, rows: &rows };
        lower(graph, &kernels, &options).unwrap_err().to_string()
    };
    let without = |name: &str| {
        let mut rows = fake::rows();
        rows.retain(|row| !row.name.contains(name));
        rows
    };
    let mut reads_q8 = fake::rows();
    reads_q8[0].inputs[0] = fake::Q8;
    let decode = options(Phase::Decode);
    let mut invalid = graph.clone();
    invalid.outputs.clear();
    let columns =
        "graph g\n%0 = input hidden : f32[T, 8]\n%1 = split start=4 len=4 %0 : f32[T, 4] ; half\noutput y %1";
    let errors = [
        fail(without("q4_0"), decode, &graph),
        fail(without("attention"), decode, &graph),
        fail(without("quantize"), decode, &graph),
        fail(reads_q8, decode, &graph),
        fail(fake::rows(), LowerOptions { weight_type: &|_| None, ..decode }, &graph),
        fail(fake::rows(), LowerOptions { max_tokens: 0, ..decode }, &graph),
        fail(fake::rows(), decode, &invalid),
        fail(fake::rows(), decode, &columns.parse().unwrap()),
    ];
    expect![[r#"
        fake/x1 has no kernel for matmul at `layers.0.in_proj` (f32[T, 64], weights q4_0 -> f32[T, 324]) in decode programs; it has fake:matmul.any.f32; convert the weights to a type one of them takes
        fake/x1 has no kernel for attention at `layers.1.attention` (f32[T, 64], f32[T, 32], f32[T, 32], f32 keys and values -> f32[T, 64]) in decode programs; it has no row for this op at all; use another backend
        fake/x1 has no kernel for quantize at `layers.0.gated_norm.q8` (f32[T, 128] -> q8[T, 128]) in decode programs; it has no row for this op at all; use another backend
        kernel fake:embed.table.f32 at `embed` reads q8 elements, the value is i32[T, 1]; only f32 is converted
        node `embed` needs weight `embed`, which the checkpoint does not have; check that the file is complete and of this architecture
        program `trunk` is for at most 0 tokens and 4 wanted rows; both must be at least 1
        cannot plan an invalid graph: graph `hybrid` has no output; name at least one value as output
        output `y` is columns of a step input, which the caller has already; name a computed value
    "#]].assert_eq(&(errors.join("\n") + "\n"));
}

/// Random graphs with branches, splits of splits, residuals and several outputs.
fn random_graph() -> impl Strategy<Value = Graph> {
    let node = (0usize..7, 1usize..70, any::<u32>());
    prop::collection::vec(node, 1..40).prop_map(|nodes| {
        let mut b = GraphBuilder::new("random");
        let wanted = b.input(Input::Wanted);
        let mut values = vec![b.input(Input::Hidden { cols: 64 })];
        for (i, (kind, size, pick)) in nodes.into_iter().enumerate() {
            let x = values[pick as usize % values.len()];
            let cols = b.value_type(x).cols;
            let op = match kind {
                0 => Op::RmsNorm { eps: 1e-5 },
                1 => Op::Matmul { out: size, epilogue: Epilogue::None },
                2 => Op::Matmul { out: 64, epilogue: Epilogue::Relu2 },
                3 => Op::Split { start: size % cols, len: cols - size % cols },
                4 if cols < 500 => Op::Concat,
                5 => Op::Add,
                _ => Op::Relu2,
            };
            let inputs = vec![x; op.input_count()];
            let types: Vec<_> = inputs.iter().map(|v| b.value_type(*v)).collect();
            // The suffix picks a quantised weight for every second product.
            let suffix = if i % 2 == 0 { "w" } else { "f" };
            let ports = op.weight_ports(&types);
            let weights: Vec<_> =
                ports.into_iter().map(|p| b.weight(format!("{i}.{suffix}"), p.shape)).collect();
            let weights = if matches!(op, Op::Matmul { .. }) && !cols.is_multiple_of(32) {
                vec![b.weight(format!("{i}.f"), [if kind == 1 { size } else { 64 }, cols])]
            } else {
                weights
            };
            values.push(b.op1(op, format!("layers.{i}"), &inputs, &weights, None).unwrap());
        }
        let norm = b.value_type(values[values.len() - 1]).cols;
        let norm = b.weight("norm", [norm]);
        let last =
            b.op1(Op::RmsNorm { eps: 1e-5 }, "norm", &values[values.len() - 1..], &[norm], None).unwrap();
        let last = b.op1(Op::GatherRows, "wanted", &[last, wanted], &[], None).unwrap();
        b.output("last", last);
        let first = b.op1(Op::Relu2, "first", &values[..1], &[], None).unwrap();
        b.output("first", first);
        b.finish().unwrap()
    })
}

proptest! {
    #[test]
    fn programs_compute_what_their_graphs_say(graph in random_graph(), tokens in 1usize..6, wanted in 1usize..4) {
        let rows = fake::rows();
        let kernels = Kernels { backend: fake::NAME, rows: &rows };
        let options = LowerOptions { max_tokens: tokens, max_wanted: wanted, ..options(Phase::Prefill) };
        let program = lower(&graph, &kernels, &options).unwrap();
        symbolic::assert_computes(&program, &graph);
        prop_assert!(program.arena_bytes <= program.unpooled_bytes);
        let rewritten = passed(&graph, &kernels, Phase::Prefill);
        let program = lower(&rewritten, &kernels, &options).unwrap();
        symbolic::assert_computes(&program, &rewritten);
    }
}

#[test]
fn a_program_larger_than_memory_is_refused() {
    let (graph, rows) = (hybrid::graph().unwrap(), fake::rows());
    let kernels = Kernels { backend: fake::NAME, rows: &rows };
    for max_tokens in [usize::MAX, usize::MAX / 512, usize::MAX / 4096] {
        let error =
            lower(&graph, &kernels, &LowerOptions { max_tokens, ..options(Phase::Prefill) }).unwrap_err();
        assert!(error.to_string().contains("fewer tokens"), "{error}");
    }
}
