//! The fuzz targets' first inputs are the small files of these tests; this keeps them so.

mod support;

use std::fs;
use std::path::Path;

const CONFIG: &str =
    r#"{"a": [1, -2.5e3, Infinity, {"__float__": "NaN"}], "b": "x \" \\ \u00e9 é", "c": {"d": null}}"#;

fn seeds() -> [(&'static str, Vec<u8>); 3] {
    [
        ("gguf/small.gguf", support::good_gguf()),
        ("safetensors/small.safetensors", support::good_safetensors()),
        ("config_json/small.json", CONFIG.as_bytes().to_vec()),
    ]
}

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds"))
}

#[test]
fn seeds_are_current() {
    for (name, bytes) in seeds() {
        let path = folder().join(name);
        if !path.exists() {
            fs::write(&path, &bytes).unwrap();
        }
        let stored = fs::read(&path).unwrap();
        assert!(stored == bytes, "{name} is stale: delete it and run this test again");
    }
}
