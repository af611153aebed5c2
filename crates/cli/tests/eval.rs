//! `mambo eval` through the program: numbers that must hold, files that must be refused.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn eval(arguments: &[&str]) -> Output {
    let text = root().join("tests/fixtures/text/held-out.txt");
    let mut command = Command::new(env!("CARGO_BIN_EXE_mambo"));
    command.arg("eval").args(arguments).arg("--text").arg(text).args([
        "--window",
        "128",
        "--windows",
        "2",
        "--json",
    ]);
    command.output().expect("the program starts")
}

fn numbers(arguments: &[&str]) -> Value {
    let output = eval(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

#[test]
fn the_builtin_model_is_close_to_its_source() {
    let base = root().join("models/tiny-hybrid");
    let svg = std::env::temp_dir().join(format!("mambo-eval-{}.svg", std::process::id()));
    let report = numbers(&["kld", "--base", base.to_str().unwrap(), "--svg", svg.to_str().unwrap()]);
    let mean = report["kld"]["mean"].as_f64().unwrap();
    assert!(mean > 0.0 && mean < 0.01, "{report}");
    assert!(report["kld"]["median"].as_f64() <= report["kld"]["p99"].as_f64());
    assert!(report["top1_agreement"].as_f64().unwrap() > 0.95);
    assert_eq!(report["tokens"], 254);
    let picture = std::fs::read_to_string(&svg).unwrap();
    assert!(picture.starts_with("<svg"));
    std::fs::remove_file(svg).unwrap();
}

#[test]
fn a_model_is_no_distance_from_itself_but_its_caches_round() {
    let model = root().join("models/tiny-hybrid");
    let with = |kv_type: &str, state_type: &str| {
        let report = numbers(&[
            "kld",
            "-m",
            model.to_str().unwrap(),
            "--kv-type",
            kv_type,
            "--state-type",
            state_type,
        ]);
        assert_eq!((&report["kv_type"], &report["state_type"]), (&kv_type.into(), &state_type.into()));
        report["kld"]["mean"].as_f64().unwrap()
    };
    assert_eq!(with("f32", "f32"), 0.0);
    // Each is measured alone, and is as far off as its digits say.
    let limits =
        [("f16", 1e-6), ("bf16", 1e-4), ("q8", 1e-4), ("q8/f16", 1e-4), ("f16/q8", 1e-4), ("f8", 1e-2)];
    for (kv_type, limit) in limits {
        let mean = with(kv_type, "f32");
        assert!(mean > 0.0 && mean < limit, "{kv_type}: {mean}");
    }
    for (state_type, limit) in [("f16", 1e-5), ("bf16", 1e-4)] {
        let mean = with("f32", state_type);
        assert!(mean > 0.0 && mean < limit, "{state_type}: {mean}");
    }
}

#[test]
fn perplexity_is_that_of_a_trained_model() {
    let report = numbers(&["ppl"]);
    let perplexity = report["perplexity"].as_f64().unwrap();
    assert!(perplexity > 1.0 && perplexity < 6.0, "{report}");
}

#[test]
fn other_vocabularies_are_refused() {
    let other = root().join("tests/fixtures/checkpoints/dense");
    let output = eval(&["kld", "--base", other.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("one tokenizer") || text.contains("tokenizer.json"), "{text}");
}
