//! Golden files of other families: every case whole, token by token, in chunks and in company.

mod golden_files;
mod loaded;

use golden_files::{expected, largest_difference, score};
use loaded::{On, Setup, family_folder as folder, load_folder};

/// Every case and how far its logits may be off.
#[rustfmt::skip]
const CASES: [(&str, f32); 35] = [
    ("llama", 1e-3), ("llama-hub", 1e-3), ("mistral", 1e-3), ("mistral-hub", 1e-3),
    ("smollm3", 1e-3), ("smollm3-hub", 1e-3),
    ("qwen2", 1e-3), ("qwen2-hub", 1e-3), ("qwen3", 1e-3), ("qwen3-hub", 1e-3),
    ("qwen3-moe", 1e-3), ("qwen3-moe-hub", 1e-3),
    ("gemma3", 5e-4), ("gemma3-hub", 5e-4), ("gemma3-nested-hub", 5e-4),
    ("gpt-oss", 1e-3), ("gpt-oss-hub", 1e-3),
    ("lfm2", 1e-3), ("lfm2-hub", 1e-3), ("lfm2-moe-hub", 1e-3),
    ("granite-h", 1e-3), ("granite-h-hub", 1e-3), ("granite-h-dense-hub", 1e-3), ("granite-dense-hub", 1e-3),
    ("falcon-h1", 1e-3), ("falcon-h1-hub", 1e-3), ("bamba", 1e-3), ("bamba-hub", 1e-3),
    ("mamba2", 1e-3), ("mamba2-hub", 1e-3),
    ("qwen3-next", 1e-3), ("qwen3-next-hub", 1e-3),
    ("qwen3-5", 1e-3), ("qwen3-5-hub", 1e-3), ("qwen3-5-moe-hub", 1e-3),
];

#[test]
fn every_family_on_every_backend() {
    let mut wrong = Vec::new();
    for (case, allowed) in CASES {
        let want = expected(&folder(case));
        for on in On::all() {
            // Expected logits have activations that are not rounded; kernels round them beside MXFP4 experts.
            let setup = Setup { widened: true, ..Setup::default() };
            let (logits, _) = score(&mut load_folder(&folder(case), on, setup), &want.ids, 64, 0);
            let off = largest_difference(&logits, &want.logits);
            if off > allowed {
                wrong.push(format!("{case} on {on:?}: logits off by {off}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn chunks_and_company_change_no_bit() {
    for (case, _) in CASES {
        let want = expected(&folder(case));
        let on = On::all()[0];
        let mut engine = load_folder(&folder(case), on, Setup::default());
        let whole = score(&mut engine, &want.ids, 64, 0);
        for (chunk, companions) in [(1, 0), (7, 0), (33, 0), (64, 2), (5, 3)] {
            let again = score(&mut engine, &want.ids, chunk, companions);
            assert!(whole == again, "{case} on {on:?}: chunks of {chunk} beside {companions} differ");
        }
    }
}
