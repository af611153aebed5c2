//! docs/models.md, made from the families and the presets. `UPDATE_EXPECT=1` rewrites it.

use std::path::Path;

use expect_test::expect_file;
use mambo_checkpoint::GgufValue;
use mambo_model::{AttentionSpec, FAMILIES, Family, Mixer, ModelSpec, PRESETS};

const HEAD: &str = "\
# Models

Every family that mambo runs, made by `UPDATE_EXPECT=1 cargo test -p mambo-model --test gallery`. Safetensors folders are \
read for all of them: plain, FP8 (also with block scales), NVFP4, MXFP4, AWQ, GPTQ and MLX groups. Any model of a family runs, whatever its size; the sizes named here are those that `mambo fit`, \
`explain` and `synth` know without a file.

| family | model types | GGUF | sizes known | made of |
|---|---|---|---|---|
";

#[test]
fn the_gallery_is_true() {
    let rows: String = FAMILIES.iter().map(|family| row(family)).collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/models.md");
    expect_file![path].assert_eq(&format!("{HEAD}{rows}"));
}

fn row(family: &Family) -> String {
    let presets = PRESETS.iter().map(|preset| (preset, preset.spec().unwrap()));
    let own: Vec<_> = presets.filter(|(_, spec)| spec.architecture == family.name).collect();
    assert!(!own.is_empty(), "{} has no preset", family.name);
    let gguf = match (family.reads_gguf(), family.writes_gguf()) {
        (true, true) => "read and written".to_owned(),
        (true, false) => "read".to_owned(),
        (false, true) => format!("written, and read as {}", reader_of(&own[0].1)),
        (false, false) => "no".to_owned(),
    };
    let sizes: Vec<String> = own.iter().map(|(preset, _)| format!("`{}`", preset.name)).collect();
    let mut parts: Vec<String> = Vec::new();
    for part in own.iter().flat_map(|(_, spec)| parts_of(spec)) {
        if !parts.contains(&part) {
            parts.push(part);
        }
    }
    let types = family.model_types.join("`, `");
    format!("| {} | `{types}` | {gguf} | {} | {} |\n", family.name, sizes.join(", "), parts.join("; "))
}

/// The family that reads what is written of a model.
fn reader_of(spec: &ModelSpec) -> &'static str {
    let keys = spec.gguf_metadata().unwrap();
    let (_, GgufValue::String(architecture)) = &keys[0] else { panic!("the architecture comes first") };
    FAMILIES.iter().find(|family| family.gguf.contains(&architecture.as_str())).unwrap().name
}

fn parts_of(spec: &ModelSpec) -> Vec<String> {
    let mut parts: Vec<String> = spec.mixers().map(part).collect();
    parts.extend(spec.mtp.map(|_| "multi-token prediction".to_owned()));
    parts
}

fn part(mixer: &Mixer) -> String {
    match mixer {
        Mixer::Mamba2(m) if m.norm_groups.is_some() => "Mamba-2".to_owned(),
        Mixer::Mamba2(_) => "Mamba-2 without a norm".to_owned(),
        Mixer::DeltaNet(_) => "gated delta net".to_owned(),
        Mixer::ShortConv { .. } => "short convolution".to_owned(),
        Mixer::Attention(a) => attention(a),
        Mixer::Mlp(m) => if m.gate.is_some() { "gated MLP" } else { "squared-ReLU MLP" }.to_owned(),
        Mixer::Moe(m) => {
            let shared = match (m.shared_width, m.shared_gate) {
                (None, _) => "",
                (Some(_), false) => " with a shared one",
                (Some(_), true) => " with a gated shared one",
            };
            let latent = if m.latent.is_some() { "latent experts" } else { "experts" };
            format!("{latent}{shared}")
        }
    }
}

fn attention(a: &AttentionSpec) -> String {
    let rope = a.rope.map(|rope| if rope.rotary < rope.head_dim { "rotary in part" } else { "rotary" });
    let mut words = vec![rope.unwrap_or("no positions")];
    let extras = [
        (a.attention.window.is_some(), "window"),
        (a.attention.sinks, "sinks"),
        (a.qk_norm, "qk norm"),
        (a.qkv_bias, "biases"),
        (a.gated, "gated"),
    ];
    words.extend(extras.iter().filter(|(is_on, _)| *is_on).map(|(_, word)| *word));
    format!("attention ({})", words.join(", "))
}
