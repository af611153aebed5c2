//! The text form: it reads well, it parses back to an equal graph, and no text makes the parser panic.

mod hybrid;

use expect_test::expect;
use mambo_graph::passes::{PassContext, run_passes};
use mambo_graph::{Graph, GraphBuilder, Input};
use mambo_kernel::{Epilogue, Op, Phase};
use proptest::prelude::*;

fn assert_round_trip(graph: &Graph) {
    let text = graph.to_string();
    let parsed: Graph = text.parse().expect("printed graphs parse");
    assert_eq!(&parsed, graph);
    assert_eq!(parsed.to_string(), text);
}

#[test]
fn the_hybrid_reads_like_this() {
    let graph = hybrid::graph().unwrap();
    assert_round_trip(&graph);
    expect![[r#"
        graph hybrid
        weight embed [96, 64]
        weight layers.0.norm [64]
        weight layers.0.in_proj [324, 64]
        weight layers.0.conv [192, 4]
        weight layers.0.conv_bias [192]
        weight layers.0.dt_bias [4]
        weight layers.0.a [4]
        weight layers.0.d [4]
        weight layers.0.gated_norm [128]
        weight layers.0.out_proj [64, 128]
        weight layers.1.norm [64]
        weight layers.1.q_proj [64, 64]
        weight layers.1.k_proj [32, 64]
        weight layers.1.v_proj [32, 64]
        weight layers.1.o_proj [64, 64]
        weight layers.2.norm [64]
        weight layers.2.router [8, 64]
        weight layers.2.router_bias [8]
        weight layers.2.experts.up [8, 96, 64]
        weight layers.2.experts.down [8, 64, 96]
        weight layers.2.shared.up [128, 64]
        weight layers.2.shared.down [64, 128]
        weight layers.3.norm [64]
        weight layers.3.up [128, 64]
        weight layers.3.down [64, 128]
        weight norm [64]
        weight lm_head [96, 64]
        kv 0 q_heads=4 kv_heads=2 head_dim=16
        state 0 heads=4 head_dim=32 state=16 groups=2 taps=4
        %0 = input token_ids : i32[T, 1]
        %1 = input wanted : i32[W, 1]
        %2 = embed %0 $embed : f32[T, 64]                                        ; embed
        %3 = rms_norm eps=1e-5 %2 $layers.0.norm : f32[T, 64]                    ; layers.0.norm
        %4 = matmul out=324 %3 $layers.0.in_proj : f32[T, 324]                   ; layers.0.in_proj
        %5 = split start=0 len=128 %4 : f32[T, 128]                              ; layers.0.z
        %6 = split start=128 len=192 %4 : f32[T, 192]                            ; layers.0.xbc
        %7 = split start=320 len=4 %4 : f32[T, 4]                                ; layers.0.dt
        %8 = ssm_conv %6 $layers.0.conv $layers.0.conv_bias @state0 : f32[T, 192] ; layers.0.conv
        %9 = ssm_dt %7 $layers.0.dt_bias : f32[T, 4]                             ; layers.0.dt_bias
        %10 = ssm_scan %8 %9 $layers.0.a $layers.0.d @state0 : f32[T, 128]       ; layers.0.scan
        %11 = gated_group_norm groups=2 eps=1e-5 %10 %5 $layers.0.gated_norm : f32[T, 128] ; layers.0.gated_norm
        %12 = matmul out=64 %11 $layers.0.out_proj : f32[T, 64]                  ; layers.0.out_proj
        %13 = add %2 %12 : f32[T, 64]                                            ; layers.0.residual
        %14 = rms_norm eps=1e-5 %13 $layers.1.norm : f32[T, 64]                  ; layers.1.norm
        %15 = matmul out=64 %14 $layers.1.q_proj : f32[T, 64]                    ; layers.1.q_proj
        %16 = matmul out=32 %14 $layers.1.k_proj : f32[T, 32]                    ; layers.1.k_proj
        %17 = matmul out=32 %14 $layers.1.v_proj : f32[T, 32]                    ; layers.1.v_proj
        %18 = attention %15 %16 %17 @kv0 : f32[T, 64]                            ; layers.1.attention
        %19 = matmul out=64 %18 $layers.1.o_proj : f32[T, 64]                    ; layers.1.o_proj
        %20 = add %13 %19 : f32[T, 64]                                           ; layers.1.residual
        %21 = rms_norm eps=1e-5 %20 $layers.2.norm : f32[T, 64]                  ; layers.2.norm
        %22 = matmul out=8 %21 $layers.2.router : f32[T, 8]                      ; layers.2.router
        %23, %24 = moe_route experts=8 top_k=2 groups=1 top_groups=1 normalize=true scale=2.5 %22 $layers.2.router_bias : i32[T, 2], f32[T, 2] ; layers.2.route
        %25 = moe_matmul experts=8 top_k=2 out=96 %21 %23 $layers.2.experts.up : f32[T*2, 96] ; layers.2.experts.up
        %26 = relu2 %25 : f32[T*2, 96]                                           ; layers.2.experts.act
        %27 = moe_matmul experts=8 top_k=2 out=64 %26 %23 $layers.2.experts.down : f32[T*2, 64] ; layers.2.experts.down
        %28 = moe_combine top_k=2 %27 %24 : f32[T, 64]                           ; layers.2.experts.sum
        %29 = add %20 %28 : f32[T, 64]                                           ; layers.2.residual
        %30 = matmul out=128 %21 $layers.2.shared.up : f32[T, 128]               ; layers.2.shared.up
        %31 = relu2 %30 : f32[T, 128]                                            ; layers.2.shared.act
        %32 = matmul out=64 %31 $layers.2.shared.down : f32[T, 64]               ; layers.2.shared.down
        %33 = add %29 %32 : f32[T, 64]                                           ; layers.2.residual
        %34 = rms_norm eps=1e-5 %33 $layers.3.norm : f32[T, 64]                  ; layers.3.norm
        %35 = matmul out=128 %34 $layers.3.up : f32[T, 128]                      ; layers.3.up
        %36 = relu2 %35 : f32[T, 128]                                            ; layers.3.act
        %37 = matmul out=64 %36 $layers.3.down : f32[T, 64]                      ; layers.3.down
        %38 = add %33 %37 : f32[T, 64]                                           ; layers.3.residual
        %39 = rms_norm eps=1e-5 %38 $norm : f32[T, 64]                           ; norm
        %40 = matmul out=96 %39 $lm_head : f32[T, 96]                            ; lm_head
        %41 = gather_rows %40 %1 : f32[W, 96]                                    ; wanted
        output logits %41
    "#]].assert_eq(&graph.to_string());
}

#[test]
fn every_pass_leaves_text_that_parses_back() {
    let graph = hybrid::graph().unwrap();
    for phase in [Phase::Prefill, Phase::Decode, Phase::Verify] {
        let context = PassContext { phase, offers: &|_| true };
        run_passes(&graph, &context, &mut |report| assert_round_trip(report.graph)).unwrap();
    }
}

#[test]
fn the_passes_together_make_this_of_it() {
    let graph = hybrid::graph().unwrap();
    let context = PassContext { phase: Phase::Decode, offers: &|_| true };
    let mut idle = Vec::new();
    let after = run_passes(&graph, &context, &mut |report| {
        if !report.changed {
            idle.push(report.to_string());
        }
    });
    assert_eq!(idle, ["== drop_dead: SAME\n", "== fuse_glu: SAME\n"]);
    let text = after.unwrap().to_string();
    let nodes: String =
        text.lines().filter(|l| !l.starts_with("weight ")).map(|l| format!("{l}\n")).collect();
    expect![[r#"
        graph hybrid
        kv 0 q_heads=4 kv_heads=2 head_dim=16
        state 0 heads=4 head_dim=32 state=16 groups=2 taps=4
        %0 = input token_ids : i32[T, 1]
        %1 = input wanted : i32[W, 1]
        %2 = embed %0 $embed : f32[T, 64]                                        ; embed
        %3 = rms_norm eps=1e-5 %2 $layers.0.norm : f32[T, 64]                    ; layers.0.norm
        %4 = matmul out=324 %3 $layers.0.in_proj : f32[T, 324]                   ; layers.0.in_proj
        %5 = ssm_step eps=1e-5 %4 $layers.0.conv $layers.0.conv_bias $layers.0.dt_bias $layers.0.a $layers.0.d $layers.0.gated_norm @state0 : f32[T, 128] ; layers.0.scan
        %6 = matmul out=64 epilogue=residual %5 %2 $layers.0.out_proj : f32[T, 64] ; layers.0.out_proj
        %7 = rms_norm eps=1e-5 %6 $layers.1.norm : f32[T, 64]                    ; layers.1.norm
        %8 = matmul out=64 %7 $layers.1.q_proj : f32[T, 64]                      ; layers.1.q_proj
        %9 = matmul out=32 %7 $layers.1.k_proj : f32[T, 32]                      ; layers.1.k_proj
        %10 = matmul out=32 %7 $layers.1.v_proj : f32[T, 32]                     ; layers.1.v_proj
        %11 = attention %8 %9 %10 @kv0 : f32[T, 64]                              ; layers.1.attention
        %12 = matmul out=64 epilogue=residual %11 %6 $layers.1.o_proj : f32[T, 64] ; layers.1.o_proj
        %13 = rms_norm eps=1e-5 %12 $layers.2.norm : f32[T, 64]                  ; layers.2.norm
        %14 = matmul out=8 %13 $layers.2.router : f32[T, 8]                      ; layers.2.router
        %15, %16 = moe_route experts=8 top_k=2 groups=1 top_groups=1 normalize=true scale=2.5 %14 $layers.2.router_bias : i32[T, 2], f32[T, 2] ; layers.2.route
        %17 = moe_matmul experts=8 top_k=2 out=96 epilogue=relu2 %13 %15 $layers.2.experts.up : f32[T*2, 96] ; layers.2.experts.up
        %18 = moe_matmul experts=8 top_k=2 out=64 %17 %15 $layers.2.experts.down : f32[T*2, 64] ; layers.2.experts.down
        %19 = moe_combine top_k=2 residual=true %18 %16 %12 : f32[T, 64]         ; layers.2.experts.sum
        %20 = matmul out=128 epilogue=relu2 %13 $layers.2.shared.up : f32[T, 128] ; layers.2.shared.up
        %21 = matmul out=64 epilogue=residual %20 %19 $layers.2.shared.down : f32[T, 64] ; layers.2.shared.down
        %22 = rms_norm eps=1e-5 %21 $layers.3.norm : f32[T, 64]                  ; layers.3.norm
        %23 = matmul out=128 epilogue=relu2 %22 $layers.3.up : f32[T, 128]       ; layers.3.up
        %24 = matmul out=64 epilogue=residual %23 %21 $layers.3.down : f32[T, 64] ; layers.3.down
        %25 = gather_rows %24 %1 : f32[W, 64]                                    ; wanted
        %26 = rms_norm eps=1e-5 %25 $norm : f32[W, 64]                           ; norm
        %27 = matmul out=96 %26 $lm_head : f32[W, 96]                            ; lm_head
        output logits %27
    "#]].assert_eq(&nodes);
}

#[test]
fn errors_carry_the_line() {
    let check = |text: &str| text.parse::<Graph>().unwrap_err().to_string();
    let errors = [
        check(""),
        check("weight a [1]"),
        check("graph g\nweight a [1, x]"),
        check("graph g\n%0 = input pixels : f32[T, 4]"),
        check("graph g\n%0 = input hidden : f32[T, 4]\n%1 = convolve %0 : f32[T, 4]"),
        check("graph g\n%0 = input hidden : f32[T, 4]\n%1 = rms_norm %0 : f32[T, 4]"),
        check("graph g\n%0 = input hidden : f32[T, 4]\n%1 = relu2 slope=2 %0 : f32[T, 4]"),
        check("graph g\n%0 = input hidden : f32[T, 4]\n%1 = matmul out=4 %0 $w : f32[T, 4]"),
        check("graph g\n%0 = input hidden : f32[T; 4]"),
        check("graph g\nkv 1 q_heads=1 kv_heads=1 head_dim=4"),
        check("graph g\n%0 = input hidden : f32[T, 4]\n%7 = relu2 %0 : f32[T, 4] ; act\noutput y %7"),
    ];
    expect![[r#"
        line 1: the first line must be `graph NAME`
        line 1: the first line must be `graph NAME`
        line 2: `x` is not a whole number
        line 2: `pixels` is not an input; expected token_ids, wanted or hidden
        line 3: `convolve` is not an op
        line 3: `eps=` is missing
        line 3: `slope=2` is not a parameter here
        line 3: weight `w` is not declared; add a `weight` line
        line 2: `f32[T` is not a type; expected f32[T, COLS]
        line 2: expected `kv 0 ...`; layers are numbered from 0 without gaps
        %1 is defined 0 times; every value number below 2 needs one definition
    "#]]
    .assert_eq(&(errors.join("\n") + "\n"));
}

/// Random chains of single-input ops with random sizes, labels and branches.
fn random_graph() -> impl Strategy<Value = Graph> {
    let node = (0usize..6, 1usize..40, any::<u32>(), "[a-z]{1,6}(\\.[a-z0-9]{1,4}){0,3}( [a-z(]{1,3})?");
    (1usize..50, prop::collection::vec(node, 1..30)).prop_map(|(cols, nodes)| {
        let mut b = GraphBuilder::new("random");
        let mut values = vec![b.input(Input::Hidden { cols })];
        for (i, (kind, size, pick, label)) in nodes.into_iter().enumerate() {
            let x = values[pick as usize % values.len()];
            let cols = b.value_type(x).cols;
            let op = match kind {
                0 => Op::RmsNorm { eps: f32::from_bits(pick % 0x7f80_0000) },
                1 => Op::Matmul { out: size, epilogue: Epilogue::None },
                2 => Op::Matmul { out: cols, epilogue: Epilogue::Residual },
                3 => Op::Split { start: size % cols, len: cols - size % cols },
                4 => Op::Concat,
                _ => Op::Relu2,
            };
            let inputs = vec![x; op.input_count()];
            let types: Vec<_> = inputs.iter().map(|v| b.value_type(*v)).collect();
            let ports = op.weight_ports(&types);
            let weights: Vec<_> = ports.into_iter().map(|p| b.weight(format!("w{i}"), p.shape)).collect();
            match b.op1(op, label, &inputs, &weights, None) {
                Ok(value) => values.push(value),
                Err(e) => panic!("{e}"),
            }
        }
        b.output("last", values[values.len() - 1]);
        b.finish().unwrap()
    })
}

proptest! {
    #[test]
    fn random_graphs_survive_the_round_trip(graph in random_graph()) {
        assert_round_trip(&graph);
    }

    #[test]
    fn any_text_parses_or_fails_without_panic(text in "\\PC{0,200}") {
        let _ = text.parse::<Graph>();
        let _ = format!("graph g\n{text}").parse::<Graph>();
        let _ = format!("graph g\n%0 = {text}").parse::<Graph>();
    }

    #[test]
    fn damaged_graphs_parse_or_fail_without_panic(
        edits in prop::collection::vec((any::<usize>(), 0usize..6, "[%$@=;:,\\[\\]*0-9a-z \\n]{0,4}"), 1..6)
    ) {
        let mut text: Vec<char> = hybrid::graph().unwrap().to_string().chars().collect();
        for (at, cut, new) in edits {
            let at = at % text.len();
            let end = (at + cut).min(text.len());
            text.splice(at..end, new.chars());
        }
        let text: String = text.into_iter().collect();
        if let Ok(graph) = text.parse::<Graph>() {
            assert_round_trip(&graph);
        }
    }

    #[test]
    fn huge_numbers_are_refused_not_multiplied(size in any::<usize>(), line in 0usize..400) {
        let text = hybrid::graph().unwrap().to_string();
        let mut lines: Vec<String> = text.lines().map(str::to_string).collect();
        let line = line % lines.len();
        let changed = lines[line].replace("64", &size.to_string()).replace("=4", &format!("={size}"));
        lines[line] = changed;
        let _ = lines.join("\n").parse::<Graph>();
    }
}
