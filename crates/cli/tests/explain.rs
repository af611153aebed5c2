//! Graphs, passes and plans as text, from weights and from a config alone; measured tables.

mod program;

use program::{config_alone, fixture, json, refused, works};

#[test]
fn the_printed_graph_reads_back() {
    for phase in ["decode", "prefill", "verify"] {
        let report = json(&["explain", "-m", &fixture("moe"), "--phase", phase]);
        for stage in ["built", "graph"] {
            let text = report[stage].as_str().unwrap();
            let graph: mambo_graph::Graph = text.parse().expect("the text is a graph");
            assert_eq!(graph.to_string(), text);
        }
        let plan = report["plan"].as_str().unwrap();
        assert!(plan.starts_with(&format!("plan trunk {phase} ")), "{plan}");
        let fused = report["calls"].as_array().unwrap().iter().any(|c| c["op"] == "ssm_step");
        assert_eq!(fused, phase == "decode", "the fused step is for one token at a time");
    }
}

#[test]
fn passes_say_what_they_changed() {
    let (text, _) = works(&["explain", "-m", &fixture("dense"), "--phase", "prefill", "--passes"]);
    assert!(text.starts_with("== built\ngraph trunk\n"), "{text}");
    let passes: Vec<&str> = text.lines().filter(|l| l.starts_with("== ")).collect();
    assert_eq!(passes.len(), 1 + mambo_graph::passes::PASSES.len());
    assert!(passes.contains(&"== fuse_ssm_step: SAME"), "{passes:?}");
    assert!(passes.contains(&"== fuse_residual: add the residual inside the down projection"), "{passes:?}");
    assert!(!text.contains("plan trunk"), "only what was asked for");
}

#[test]
fn a_config_alone_is_enough_and_says_what_it_assumes() {
    for preset in ["h-4b", "lightning", "super"] {
        let config = config_alone(preset);
        let (text, error) = works(&["explain", "-m", &config, "--plan", "--tokens", "4"]);
        assert!(text.contains("tokens<=4") && text.contains(".bf16"), "{text}");
        assert!(error.contains("bf16 is assumed"), "{error}");
    }
    let config = config_alone("lightning");
    let (text, _) = works(&["explain", "-m", &config, "--mtp", "--phase", "verify", "--plan"]);
    assert!(text.starts_with("plan mtp verify") && text.contains("hidden"), "{text}");
}

#[test]
fn analysis_times_every_call() {
    for (phase, tokens, runs) in [("decode", "2", 32), ("prefill", "40", 3)] {
        let arguments = ["explain", "-m", &fixture("moe"), "--analyze", "--phase", phase, "--tokens", tokens];
        let report = json(&arguments);
        assert_eq!(
            (&report["phase"], &report["tokens"]),
            (&phase.into(), &tokens.parse::<u64>().unwrap().into())
        );
        assert_eq!((&report["depth"], &report["runs"]), (&0.into(), &runs.into()));
        let calls = report["calls"].as_array().unwrap();
        let planned = json(&["explain", "-m", &fixture("moe"), "--phase", phase, "--tokens", tokens]);
        assert_eq!(calls.len(), planned["calls"].as_array().unwrap().len());
        for call in calls {
            assert!(call["seconds"].as_f64() > Some(0.0) && call["bytes"].as_u64() > Some(0), "{call}");
        }
        let sum: f64 = calls.iter().map(|c| c["seconds"].as_f64().unwrap()).sum();
        assert!((sum / report["step_seconds"].as_f64().unwrap() - 1.0).abs() < 1e-6);
    }
    let (text, _) = works(&["explain", "-m", &fixture("moe"), "--analyze"]);
    assert!(text.contains("GB/s") && text.contains("of roof") && text.contains("\nmamba "), "{text}");
}

#[test]
fn analysis_looks_at_a_depth() {
    let attention = |depth: &str| {
        let report = json(&["explain", "-m", &fixture("moe"), "--analyze", "--depth", depth]);
        assert_eq!((&report["depth"], &report["runs"]), (&depth.parse::<u64>().unwrap().into(), &32.into()));
        let calls = report["calls"].as_array().unwrap();
        let of_attention = calls.iter().filter(|c| c["op"] == "attention");
        of_attention.map(|c| c["bytes"].as_u64().unwrap()).sum::<u64>()
    };
    let (near, far) = (attention("0"), attention("600"));
    assert_eq!(attention("1200") - far, far - near, "as many bytes for each token of the past");
    assert!(far > near);
    let prompt = ["explain", "-m", &fixture("moe"), "--analyze", "--phase", "prefill", "--tokens", "40"];
    let report = json(&[&prompt[..], &["--depth", "50"]].concat());
    assert_eq!((&report["depth"], &report["tokens"], &report["runs"]), (&80.into(), &40.into(), &1.into()));
    let (text, _) = works(&[&prompt[..], &["-d", "80"]].concat());
    assert!(text.contains("prefill of 40 tokens after 80 on"), "{text}");
}

#[test]
fn analysis_keeps_to_the_context() {
    let analyze = ["explain", "-m", &fixture("moe"), "--analyze", "--depth", "30", "--context"];
    let sentence = refused(&[&analyze[..], &["40"]].concat());
    let expected = "--context 40 holds fewer than the 68 tokens that --tokens 1 and --depth 30 need";
    assert!(sentence.starts_with(expected) && sentence.contains("leave it out"), "{sentence}");
    assert_eq!(json(&[&analyze[..], &["68"]].concat())["depth"], 30);
    // A long one is made room for, as it would be in use.
    let sentence = refused(&[&analyze[..], &["2000000000"]].concat());
    assert!(sentence.contains("KV cache") && sentence.contains("--context 2000000000"), "{sentence}");
}

#[test]
fn what_cannot_be_explained_is_refused() {
    let sentence = refused(&["explain", "-m", &fixture("moe"), "--mtp"]);
    assert!(sentence.contains("has no MTP head; leave --mtp out"), "{sentence}");
    assert!(refused(&["explain", "--tokens", "0"]).contains("--tokens is 0"));
    assert!(refused(&["explain", "--analyze", "--phase", "verify"]).contains("decode and prefill"));
    let sentence = refused(&["explain", "--analyze", "--phase", "prefill", "--tokens", "1"]);
    assert!(sentence.contains("one token is a decode step"), "{sentence}");
    let sentence = refused(&["explain", "--analyze", "--depth", "99999999999999"]);
    assert!(sentence.contains("--depth 99999999999999 is more than"), "{sentence}");
    assert!(refused(&["explain", "--depth", "5"]).contains("add --analyze"));
    let sentence = refused(&["explain", "--analyze", "--tokens", "2000000"]);
    assert!(sentence.ends_with("; lower --tokens 2000000"), "{sentence}");
    let sentence = refused(&["explain", "--analyze", "--depth", "2000000000"]);
    assert!(sentence.ends_with("; lower --tokens 1 or --depth 2000000000"), "{sentence}");
    let sentence = refused(&["explain", "nano-30b", "--analyze"]);
    assert!(sentence.starts_with("nano-30b is a preset, a model's shape without weights"), "{sentence}");
    assert!(sentence.contains("mambo synth nano-30b -o nano-30b.gguf"), "{sentence}");
    let sentence = refused(&["explain", "-m", &config_alone("h-4b"), "--analyze"]);
    assert!(sentence.contains("no weights"), "{sentence}");
}
