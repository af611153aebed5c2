//! `bench` and `doctor`: numbers that hang together, and the words of the help.

mod program;

use program::{fixture, json, refused, works};

#[test]
fn bench_measures_what_was_asked_for() {
    let report = json(&["bench", "-m", &fixture("moe"), "-p", "70,0,9", "-n", "6", "-b", "1,3", "-r", "2"]);
    let results = report["results"].as_array().unwrap();
    let kinds: Vec<_> =
        results.iter().map(|r| (r["phase"].as_str().unwrap(), r["batch"].as_u64().unwrap())).collect();
    assert_eq!(kinds, [("prefill", 1), ("prefill", 1), ("decode", 1), ("decode", 3)]);
    assert_eq!((&results[0]["tokens"], &results[1]["tokens"]), (&70.into(), &9.into()));
    for result in results {
        let rate = |name: &str| result["tokens_per_second"][name].as_f64().unwrap();
        assert!(rate("min") > 0.0 && rate("min") <= rate("median") && rate("median") <= rate("max"));
        let (bytes, moved) = (&result["bytes_per_token"], &result["bytes_per_second"]);
        let expected = bytes.as_f64().unwrap() * rate("median");
        assert!((moved.as_f64().unwrap() / expected - 1.0).abs() < 1e-9);
    }
    let bytes = |i: usize| results[i]["bytes_per_token"].as_f64().unwrap();
    assert!(bytes(3) < bytes(2), "sequences decoded together share the weights they read");
    for field in ["load_seconds", "peak_memory_bytes", "weight_bytes", "bandwidth_bytes_per_second"] {
        assert!(report["machine"][field].as_f64() > Some(0.0), "{field}");
    }
}

#[test]
fn depth_adds_the_keys_and_values_it_reads() {
    let path = fixture("moe");
    let report = json(&["bench", "-m", &path, "-p", "0", "-n", "4", "-b", "1,2", "-r", "1", "-d", "64,164"]);
    let results = report["results"].as_array().unwrap();
    let number = |i: usize, name: &str| results[i][name].as_f64().unwrap();
    let cases: Vec<_> = (0..4).map(|i| (number(i, "depth"), number(i, "batch"))).collect();
    assert_eq!(cases, [(64.0, 1.0), (64.0, 2.0), (164.0, 1.0), (164.0, 2.0)]);
    // One attention layer with 2 heads of 32 f32 keys and as many values.
    let per_token =
        json(&["inspect", "-m", &fixture("moe")])["memory"]["kv_bytes_per_token"].as_f64().unwrap();
    for (start, deep) in [(0, 2), (1, 3)] {
        let more = number(deep, "bytes_per_token") - number(start, "bytes_per_token");
        assert_eq!(more, 100.0 * per_token);
    }
}

#[test]
fn bench_prints_a_table_and_refuses_nonsense() {
    let (text, _) = works(&["bench", "-m", &fixture("dense"), "-p", "8", "-n", "2", "-b", "1", "-r", "1"]);
    assert!(text.contains("tok/s") && text.contains("prefill 8") && text.contains("decode 2 x 1"), "{text}");
    assert!(refused(&["bench", "-r", "0"]).contains("--repeats is 0"));
    assert!(refused(&["bench", "-b", "0"]).contains("--batch holds a 0"));
    assert!(refused(&["bench", "-d", "8,0,8"]).contains("--depth holds 8 twice"));
    assert!(refused(&["bench", "-p", "0", "-n", "0"]).contains("nothing to measure"));
    let sentence = refused(&["bench", "-p", "600", "--context", "4"]);
    assert!(sentence.contains("--context 4 holds fewer") && sentence.contains("--prompt 600"), "{sentence}");
    assert!(refused(&["bench", "-t", "0"]).contains("--threads is 0"));
    // What is kept of deep sequences counts, before anything is loaded.
    assert!(refused(&["bench", "-b", "500", "-d", "4000000"]).contains("snapshots"));
}

/// What does not fit is lowered by the flags that asked for it.
#[test]
fn bench_names_the_flags_that_ask_for_too_much() {
    let huge = "18446744073709551615";
    for (flags, hint) in [
        (&["-p", huge][..], "--prompt 18446744073709551615 or --batch 8"),
        (&["-d", huge], "--tokens 128 or --depth 18446744073709551615 or --batch 8"),
        (&["-n", huge, "-b", "1"], "--tokens 18446744073709551615"),
        (&["-b", huge, "-p", "0"], "--tokens 128 or --batch 18446744073709551615"),
        (&["-b", "500", "-d", "4000000"], "--tokens 128 or --depth 4000000 or --batch 500"),
        (&["-b", "1", "--context", "2000000000"], "--prompt 512 or --context 2000000000"),
    ] {
        let sentence = refused(&[&["bench"], flags].concat());
        assert!(sentence.ends_with(&format!("; lower {hint}")), "{sentence}");
    }
}

#[test]
fn doctor_looks_at_the_machine_and_the_model() {
    let report = json(&["doctor", "--quick"]);
    assert_eq!(report["ok"], true, "{report}");
    assert_eq!(report["checks"][0]["name"], "built-in model");
    let sets = report["instruction_sets"].as_array().unwrap();
    assert!(sets.contains(&report["instruction_set"]) && sets[0] == "portable");
    assert!(report["bandwidth_bytes_per_second"]["all_threads"].as_f64() > Some(1e8));
    // Machines with a GPU list it, others say why there is none.
    assert!(!report["gpus"].as_array().unwrap().is_empty() || report["gpu_problem"].is_string());
    let (text, _) = works(&["doctor", "--quick"]);
    assert!(text.contains("gpus        ") && text.contains("not checked (--quick)"), "{text}");
}

#[test]
fn help_names_every_command_in_one_line_each() {
    let (help, _) = works(&["--help"]);
    for command in
        ["run", "chat", "inspect", "explain", "fit", "bench", "doctor", "logits", "synth", "quantize"]
    {
        let line = help.lines().find(|l| l.trim_start().starts_with(&format!("{command} ")));
        let line = line.unwrap_or_else(|| panic!("{command} is missing from {help}"));
        assert!(line.len() <= 90, "{line}");
        let (own, _) = works(&[command, "--help"]);
        assert!(own.contains("Usage: mambo "), "{own}");
    }
    assert!(help.contains("Examples:"), "{help}");
}
