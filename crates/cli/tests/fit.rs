//! The arithmetic of `fit`, on a machine of given size and speed.

mod program;

use program::{config_alone, fixture, json, piped, refused, works};
use serde_json::Value;

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// What one sequence of so many tokens takes.
fn need(report: &Value, tokens: u64) -> u64 {
    number(&report["weight_bytes"])
        + number(&report["state_bytes_per_sequence"])
        + number(&report["arena_bytes"])
        + number(&report["kv_bytes_per_token"]) * tokens.next_multiple_of(32)
}

const MACHINE: [&str; 4] = ["--memory", "20", "--bandwidth", "50"];

#[test]
fn the_longest_context_is_the_last_that_fits() {
    let report = json(&[&["fit", "nano-30b", "--quant", "q4_0"], &MACHINE[..]].concat());
    let memory = 20 << 30;
    let longest = number(&report["longest_context"]);
    assert!(need(&report, longest) <= memory && need(&report, longest + 1) > memory, "{longest}");
    for row in report["contexts"].as_array().unwrap() {
        let tokens = number(&row["tokens"]);
        assert_eq!(number(&row["total_bytes"]), need(&report, tokens));
        assert_eq!(row["fits"], need(&report, tokens) <= memory);
    }
    let (most, context) = (number(&report["sequences"]["most"]), number(&report["sequences"]["context"]));
    let extra = number(&report["state_bytes_per_sequence"]) + number(&report["kv_bytes_per_token"]) * context;
    let of = |sequences: u64| {
        need(&report, 0) + number(&report["kv_bytes_per_token"]) * context + (sequences - 1) * extra
    };
    assert!(of(most) <= memory && of(most + 1) > memory, "{most}");
}

#[test]
fn layers_with_windows_take_no_more_than_those() {
    let report = json(&[&["fit", "gemma-3-4b"], &MACHINE[..]].concat());
    let [local] = &report["kv_windows"].as_array().unwrap()[..] else { panic!("{}", report["kv_windows"]) };
    assert_eq!((number(&local["window"]), number(&local["layers"])), (1024, 29));
    let (all, within) = (number(&report["kv_bytes_per_token"]), number(&local["bytes_per_token"]));
    assert_eq!(within * 34, all * 29);
    // A prompt is read in steps of 512 tokens, which lie anywhere in their pages.
    let most = (1024_u64 + 512).next_multiple_of(32) + 32;
    for row in report["contexts"].as_array().unwrap() {
        let tokens = number(&row["tokens"]);
        let kv = (all - within) * tokens.next_multiple_of(32) + within * most.min(tokens);
        assert_eq!(number(&row["kv_bytes"]), kv, "{tokens} tokens");
        assert!(tokens < 32 << 10 || kv * 5 < all * tokens);
    }
    let (text, _) = works(&[&["fit", "gemma-3-4b"], &MACHINE[..]].concat());
    assert!(text.contains("of it in windows of 1024"), "{text}");
    let inspected = json(&["inspect", "-m", "gemma-3-4b"]);
    assert_eq!(inspected["memory"]["kv_windows"], report["kv_windows"]);
    assert_eq!(json(&["inspect", "-m", "nano-4b"])["memory"]["kv_windows"], serde_json::json!([]));
}

#[test]
fn speed_is_bandwidth_over_bytes() {
    let report = json(&[&["fit", "nano-30b", "--quant", "q4_0"], &MACHINE[..]].concat());
    let bytes = &report["token_bytes"];
    let total = number(&bytes["weights"]) + number(&bytes["kv"]) + number(&bytes["state_and_activations"]);
    let rate = report["decode_tokens_per_second"].as_f64().unwrap();
    assert!((rate * total as f64 / 50e9 - 1.0).abs() < 1e-9);
    // 3.2 B of 31.6 B parameters are active: only their share of the weights is read.
    let share = number(&bytes["weights"]) as f64 / number(&report["weight_bytes"]) as f64;
    assert!((0.08..0.13).contains(&share), "{share}");
    let wider = json(&[&["fit", "nano-30b", "--quant", "q8_0"], &MACHINE[..]].concat());
    assert!(wider["decode_tokens_per_second"].as_f64().unwrap() < 0.7 * rate);
    assert_eq!(wider["fits"], false);
}

#[test]
fn stored_types_count_where_there_are_weights() {
    let path = fixture("moe");
    let report = json(&[&["fit", &path], &MACHINE[..]].concat());
    let inspected = json(&["inspect", "-m", &path]);
    assert_eq!(report["weight_bytes"], inspected["memory"]["weight_bytes"]);
    assert_eq!(report["assumption"], Value::Null);
    let alone = json(&[&["fit", &config_alone("nano-30b")], &MACHINE[..]].concat());
    assert!(alone["assumption"].as_str().unwrap().contains("bf16"), "{alone}");
}

#[test]
fn narrow_caches_take_what_they_hold() {
    let with =
        |flags: &[&str]| json(&[&["fit", "nano-30b", "--quant", "q4_0"], &MACHINE[..], flags].concat());
    let (usual, narrow) = (with(&[]), with(&["--kv-type", "q8/f16", "--state-type", "bf16"]));
    // Six layers of two heads of 128 channels, for which q8 has four scales.
    assert_eq!(number(&usual["kv_bytes_per_token"]), 6 * 2 * (256 + 256));
    assert_eq!(number(&narrow["kv_bytes_per_token"]), 6 * 2 * (128 + 4 * 2 + 256));
    assert_eq!((&narrow["kv_type"], &narrow["state_type"]), (&"q8/f16".into(), &"bf16".into()));
    let state = |report: &Value| number(&report["state_bytes_per_sequence"]);
    let inspected = json(&["inspect", "nano-30b", "--kv-type", "q8/f16", "--state-type", "bf16"]);
    let memory = &inspected["memory"];
    assert_eq!(memory["kv_bytes_per_token"], narrow["kv_bytes_per_token"]);
    let both = number(&memory["state_bytes_per_sequence"]) + number(&memory["ring_bytes_per_sequence"]);
    assert_eq!(both, state(&narrow));
    // Twenty-three layers of 64 heads of 64 by 128.
    assert_eq!(state(&usual) - state(&narrow), 23 * 64 * 64 * 128 * 2);
    let moved = |report: &Value| number(&report["token_bytes"]["state_and_activations"]);
    assert!(moved(&usual) - moved(&narrow) > state(&usual) - state(&narrow), "states are read and written");
}

/// Types that GGUF has no number for are those of a folder.
#[test]
fn folders_have_types_of_their_own() {
    for kind in ["f8_e4m3", "nvfp4_mix"] {
        let report = json(&[&["fit", "nano-30b", "--quant", kind], &MACHINE[..]].concat());
        let assumption = report["assumption"].as_str().unwrap();
        assert!(assumption.contains(&format!("quantised to {kind} in a safetensors folder")), "{assumption}");
        // A byte or half of one for each of 31.6 B parameters; the embedding stays bf16.
        let bytes = number(&report["weight_bytes"]) as f64 / 31.6e9;
        let (least, most) = if kind == "f8_e4m3" { (1.0, 1.05) } else { (0.55, 0.7) };
        assert!((least..most).contains(&bytes), "{kind}: {bytes} bytes per parameter");
    }
}

#[test]
fn the_verdict_is_in_words() {
    let (text, _) = works(&[&["fit", "nano-30b", "--quant", "q4_0"], &MACHINE[..]].concat());
    assert!(text.contains("\nfits: one sequence with the whole trained context of 256K, or "), "{text}");
    assert!(text.contains("50.0 GB/s (given) / "), "{text}");
    let (text, _) = works(&["fit", "ultra", "--memory", "64", "--bandwidth", "50"]);
    assert!(text.contains("\ndoes not fit: ") && text.contains("--quant q4_0"), "{text}");
}

#[test]
fn wrong_flags_are_refused() {
    let sentence = refused(&["fit", "nano-30b", "--quant", "q9"]);
    assert!(
        sentence.contains("no type `q9`") && sentence.ends_with("; --quant names the type"),
        "{sentence}"
    );
    assert!(refused(&["fit", "nano-30b", "--memory", "0"]).contains("--memory"));
    assert!(refused(&["fit", "nano-30b", "--bandwidth", "0"]).contains("--bandwidth"));
    assert!(refused(&["fit", "no-such-model"]).contains("nano-30b"));
    for (flag, names) in [("--kv-type", "f32, f16, bf16, q8 or f8"), ("--state-type", "f32, f16 or bf16")] {
        let output = piped(&["run", "x", flag, "q3"], "");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(2) && error.contains("`q3`") && error.contains(names),
            "{error}"
        );
    }
}
