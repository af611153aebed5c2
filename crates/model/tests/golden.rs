//! Every known model as text: its table, its numbers, its graphs. `UPDATE_EXPECT=1` rewrites the files.

mod common;

use common::folded::folded;
use common::{FIXTURES, fixture, fixture_file, models};
use expect_test::expect_file;
use mambo_checkpoint::parse_json;
use mambo_graph::Graph;
use mambo_model::{BuildOptions, ModelSpec, PRESETS, Part, Preset};

fn graphs(spec: &ModelSpec) -> Vec<Graph> {
    let mut graphs = vec![spec.trunk_graph(BuildOptions { hidden: spec.mtp.is_some() }).unwrap()];
    graphs.extend(spec.mtp.map(|_| spec.mtp_graph().unwrap()));
    graphs
}

fn outline(spec: &ModelSpec) -> String {
    graphs(spec).iter().map(folded).fold(spec.to_string(), |text, graph| text + &graph)
}

#[test]
fn presets() {
    for preset in PRESETS {
        let text = format!("{}: {}\n{}", preset.name, preset.about, outline(&preset.spec().unwrap()));
        expect_file![models().join(format!("{}.txt", preset.name))].assert_eq(&text);
    }
}

#[test]
fn fixtures() {
    for name in FIXTURES {
        let text = outline(&fixture(name));
        expect_file![models().join(format!("fixtures/{name}.txt"))].assert_eq(&text);
    }
}

#[test]
fn small_graphs_in_full() {
    for name in ["dense", "latent", "mtp", "odd"] {
        let text: String = graphs(&fixture(name)).iter().map(Graph::to_string).collect();
        expect_file![models().join(format!("fixtures/{name}.graph.txt"))].assert_eq(&text);
    }
}

/// Parameters by the tables of the family's releases: total, trunk, active in thousandths of 1e9.
#[test]
fn published_numbers() {
    let total = |name| Preset::named(name).unwrap().spec().unwrap().parameters();
    assert_eq!(total("nano-4b").total, 3_973_556_832);
    assert_eq!(total("nano-30b").total, 31_577_940_288);
    assert_eq!(total("lightning").total, 32_913_266_240);
    assert_eq!(total("super").trunk, 120_668_707_840);
    assert_eq!(total("super").total, 123_611_033_088);
    assert_eq!(total("nano-9b-v2").total, 8_888_227_328);
    assert_eq!(total("nano-12b-v2").total, 12_310_001_152);
    let others = [
        ("smollm2-135m", 134_515_008),
        ("smollm3-3b", 3_075_098_624),
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-3.1-8b", 8_030_261_248),
        ("mistral-7b", 7_248_023_552),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("gemma-3-1b", 999_885_952),
        ("gpt-oss-20b", 20_914_757_184),
        ("lfm2-1.2b", 1_170_340_608),
    ];
    for (name, published) in others {
        assert_eq!(total(name).total, published, "{name}");
    }
    let rounded = |n: u64, unit: u64| (n + unit / 2) / unit;
    let published = [
        ("h-4b", 4_489, 1_000_000),
        ("h-8b", 8_101, 1_000_000),
        ("h-47b", 4_679, 10_000_000),
        ("h-56b", 5_632, 10_000_000),
        ("ultra", 56_052, 10_000_000),
    ];
    for (name, value, unit) in published {
        assert_eq!(rounded(total(name).total, unit), value, "{name}");
    }
    assert_eq!(rounded(total("ultra").trunk, 10_000_000), 54_931);
    let active = [
        ("nano-9b-v2", 830),
        ("nano-4b", 356),
        ("nano-30b", 323),
        ("super", 1223),
        ("ultra", 5499),
        ("nano-12b-v2", 1164),
    ];
    for (name, value) in active {
        assert_eq!(rounded(total(name).active, 10_000_000), value, "{name}");
    }
}

#[test]
fn published_memory() {
    // Bytes per token at 16 bits; tenths of a MiB per sequence.
    let published = [
        ("nano-9b-v2", 16_384, 1369),
        ("nano-4b", 16_384, 799),
        ("nano-30b", 6_144, 468),
        ("super", 8_192, 1623),
        ("ultra", 12_288, 3891),
        ("nano-12b-v2", 24_576, 1420),
    ];
    for (name, kv, state) in published {
        let spec = Preset::named(name).unwrap().spec().unwrap();
        assert_eq!(spec.kv_bytes_per_token(2), kv, "{name}");
        let tenths = spec.state_bytes_per_sequence(2) as f64 / f64::from(1 << 20) * 10.0;
        assert_eq!(tenths.round(), f64::from(state), "{name}");
    }
    assert_eq!(Preset::named("super").unwrap().spec().unwrap().mtp_kv_bytes_per_token(2), 1024);
}

#[test]
fn published_tensor_counts() {
    for (name, published) in [("nano-4b", 263), ("nano-30b", 6_243), ("lightning", 6_513), ("super", 42_683)]
    {
        let spec = Preset::named(name).unwrap().spec().unwrap();
        let stored = |w: &mambo_model::Weight| if w.shape.len() == 3 { w.shape[0] } else { 1 };
        assert_eq!(spec.weights().iter().map(stored).sum::<usize>(), published, "{name}");
    }
}

#[test]
fn weights_graphs_and_counts_agree() {
    let presets = PRESETS.iter().map(|p| p.spec().unwrap());
    for spec in presets.chain(FIXTURES.iter().map(|name| fixture(name))) {
        let weights = spec.weights();
        // A head that is the embedding with other factors is stored once.
        let is_stored = |w: &&mambo_model::Weight| w.constant.is_none() && w.part != Part::TiedHead;
        let stored = weights.iter().filter(is_stored);
        let elems: u64 = stored.map(|w| w.shape.iter().product::<usize>() as u64).sum();
        assert_eq!(elems, spec.parameters().total);
        let mut declared: Vec<_> =
            graphs(&spec).into_iter().flat_map(|g| g.weights).map(|w| (w.name, w.shape)).collect();
        declared.sort();
        declared.dedup();
        let mut wanted: Vec<_> = weights.into_iter().map(|w| (w.name, w.shape)).collect();
        wanted.sort();
        assert_eq!(declared, wanted);
    }
}

#[test]
fn one_cache_layout_serves_both_graphs() {
    let spec = fixture("tiny-hybrid");
    let layers = spec.cache_layers();
    let graphs = graphs(&spec);
    assert_eq!(graphs[1].kv_layers, layers.kv_layers);
    assert_eq!(graphs[0].kv_layers, layers.kv_layers[..2]);
    assert_eq!(graphs[0].state_layers, layers.state_layers);
    assert_eq!(layers.state_layers.len(), 6);
}

#[test]
fn printed_graphs_parse_back() {
    for name in FIXTURES {
        for graph in graphs(&fixture(name)) {
            let text = graph.to_string();
            assert_eq!(text.parse::<Graph>().unwrap().to_string(), text, "{name}");
        }
    }
}

#[test]
fn stop_tokens_are_the_union() {
    let config = common::fixture_config("tiny-hybrid");
    let generation = parse_json(&fixture_file("tiny-hybrid", "generation_config.json")).unwrap();
    let spec = ModelSpec::from_config("config.json", &config, Some(&generation)).unwrap();
    assert_eq!(spec.stop_tokens, [2, 11]);
    assert_eq!((spec.bos, spec.context), (Some(1), Some(4096)));
}
