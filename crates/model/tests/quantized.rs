//! Formats with scales beside their codes: every spelling gives the values it stands for, and every mistake
//! has its sentence.

mod common;

use common::stored::Stored;
use common::tiny::{Kind, noise, push};
use expect_test::expect;
use mambo_checkpoint::{Checkpoint, GgufTensor, GgufWriter};
use mambo_kernel::KvScale;
use mambo_kernel::WeightSource;
use mambo_model::{bind, describe};
use mambo_tensor::{DType, Shape, decode_row};
use serde_json::json;

const IN_PROJ: &str = "backbone.layers.0.mixer.in_proj";
const OUT_PROJ: &str = "backbone.layers.0.mixer.out_proj";

#[test]
fn every_tensor_is_used_but_those_of_activations() {
    for name in ["modelopt-nvfp4", "modelopt-fp8", "modelopt-mixed", "mlx-4bit"] {
        let stored = Stored::fixture(name);
        let checkpoint = stored.open(&format!("all-{name}"));
        let table = bind(&checkpoint, &describe(&checkpoint).unwrap()).unwrap();
        let mut used: Vec<&str> = table.iter().flat_map(|w| w.tensor_names()).collect();
        used.sort_unstable();
        let is_weight = |name: &str| !["input_scale", "k_scale", "v_scale"].iter().any(|s| name.ends_with(s));
        let tensors = stored.tensors.iter().filter(|t| is_weight(&t.name));
        let bytes: usize = tensors.clone().map(|t| t.bytes.len()).sum();
        let mut names: Vec<&str> = tensors.map(|t| t.name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(used, names, "{name}");
        assert_eq!(table.stored_bytes(), bytes as u64, "{name}");
    }
}

#[test]
fn types_are_decided_for_each_module() {
    let checkpoint = Stored::fixture("modelopt-mixed").open("mixed");
    let spec = describe(&checkpoint).unwrap();
    let table = bind(&checkpoint, &spec).unwrap();
    let dtype = |name: &str| table.get(name).unwrap().dtype();
    assert_eq!(dtype("layers.0.in_proj"), DType::F8E4M3);
    assert_eq!((dtype("layers.1.experts_up"), dtype("layers.1.shared_down")), (DType::NVFP4, DType::NVFP4));
    assert_eq!((dtype("layers.2.q"), dtype("head")), (DType::BF16, DType::BF16));
    let experts = table.get("layers.1.experts_up").unwrap();
    assert_eq!((experts.part_count(), experts.part(0).unwrap().bytes.len()), (8, 64 * 36));
    let factor = |e: usize| experts.part(e).unwrap().row_scale(0);
    assert!((0..8).all(|e| factor(e) > 0.0 && factor(e) != 1.0));
    let checkpoint = Stored::fixture("mlx-4bit").open("mlx");
    let table = bind(&checkpoint, &describe(&checkpoint).unwrap()).unwrap();
    let names: Vec<_> = ["embed", "layers.1.experts_up", "layers.1.router", "head"]
        .map(|n| table.get(n).unwrap().dtype().name())
        .into();
    assert_eq!(names, ["affine4g32", "affine4g32", "bf16", "affine4g32"]);
    assert_eq!(table.get("layers.1.experts_up").unwrap().part_count(), 8);
}

#[test]
fn kv_scales_are_read_and_noted() {
    let mut stored = Stored::fixture("modelopt-mixed");
    let module = "backbone.layers.2.mixer";
    let k = stored.get(&format!("{module}.k_proj.k_scale")).scalar();
    let v = stored.get(&format!("{module}.v_proj.v_scale")).scalar();
    let read = |stored: &Stored, name: &str| {
        let checkpoint = stored.open(name);
        let spec = describe(&checkpoint).unwrap();
        (bind(&checkpoint, &spec).unwrap().kv_scales().to_vec(), spec.notes)
    };
    let (scales, notes) = read(&stored, "kv");
    assert_eq!(scales, [KvScale { k, v }]);
    expect!["the weights hold scales for a KV cache of 8-bit floats (f8); caches of other types need none"]
        .assert_eq(&notes.join("\n"));
    stored.get(&format!("{module}.k_proj.k_scale")).name = format!("{module}.k_scale");
    stored.remove(&format!("{module}.v_proj.v_scale"));
    assert_eq!(read(&stored, "kv-outer").0, [KvScale { k, v: 1.0 }]);
    let (scales, notes) = read(&Stored::fixture("mlx-4bit"), "kv-none");
    assert_eq!((scales, notes.len()), (vec![KvScale { k: 1.0, v: 1.0 }], 0));
}

#[test]
fn a_damaged_part_is_refused() {
    let mut stored = Stored::fixture("modelopt-nvfp4");
    stored.get(&format!("{IN_PROJ}.weight_scale")).bytes[9] = 0x7f;
    let checkpoint = stored.open("damaged-part");
    let table = bind(&checkpoint, &describe(&checkpoint).unwrap()).unwrap();
    let weight = table.get("layers.0.in_proj").unwrap();
    assert!(weight.part(0).unwrap_err().to_string().contains("in_proj.weight_scale"));
    assert!(weight.to_f32().unwrap_err().to_string().contains("in_proj.weight_scale"));
    assert!(table.iter().filter(|w| w.name() != "layers.0.in_proj").all(|w| w.to_f32().is_ok()));
}

#[test]
fn digests_tell_weights_apart() {
    let digests = |stored: &Stored, name: &str| -> Vec<u64> {
        let checkpoint = stored.open(name);
        let table = bind(&checkpoint, &describe(&checkpoint).unwrap()).unwrap();
        table.iter().map(WeightSource::digest).collect()
    };
    let mut stored = Stored::fixture("modelopt-nvfp4");
    let before = digests(&stored, "digest");
    assert_eq!(digests(&stored, "digest-again"), before);
    let changed = |stored: &Stored, name: &str| {
        let after = digests(stored, name);
        before.iter().zip(&after).filter(|(a, b)| a != b).count()
    };
    stored.get(&format!("{IN_PROJ}.weight")).bytes[3] ^= 1;
    assert_eq!(changed(&stored, "digest-code"), 1);
    stored.get(&format!("{IN_PROJ}.weight")).bytes[3] ^= 1;
    stored.get(&format!("{IN_PROJ}.weight_scale_2")).bytes[1] ^= 1;
    assert_eq!(changed(&stored, "digest-factor"), 1);
}

/// Renames a ModelOpt checkpoint's tensors as llm-compressor would have written them.
fn as_compressed_tensors(name: &str) -> Stored {
    let mut stored = Stored::fixture(name);
    stored.sidecar = None;
    stored.config["quantization_config"] =
        json!({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "config_groups": {}});
    for t in &mut stored.tensors {
        if t.name.ends_with(".weight_scale_2") {
            // A power of two, so that its reciprocal is exact.
            let global = t.scalar().log2().round().exp2();
            t.bytes = (1.0 / global).to_le_bytes().to_vec();
            t.name = t.name.replace("weight_scale_2", "weight_global_scale");
            t.shape = vec![1];
        } else if t.name.ends_with(".weight") && t.dtype == "U8" {
            t.name += "_packed";
        }
    }
    stored
}

#[test]
fn compressed_tensors_divide_by_their_global_scale() {
    let mut modelopt = Stored::fixture("modelopt-nvfp4");
    for t in modelopt.tensors.iter_mut().filter(|t| t.name.ends_with(".weight_scale_2")) {
        t.bytes = t.scalar().log2().round().exp2().to_le_bytes().to_vec();
    }
    let want = modelopt.values("nvfp4-powers");
    assert!(as_compressed_tensors("modelopt-nvfp4").values("compressed-nvfp4") == want);
}

#[test]
fn fp8_with_a_scale_for_each_row() {
    let mut stored = Stored::fixture("modelopt-fp8");
    let plain = stored.values("fp8");
    let scale = stored.get(&format!("{IN_PROJ}.weight_scale")).scalar();
    for shape in [vec![1], vec![1, 1]] {
        stored.get(&format!("{IN_PROJ}.weight_scale")).shape = shape;
        assert!(stored.values("fp8-one") == plain);
    }
    for (shape, dtype) in [(vec![392], "F32"), (vec![392, 1], "F32"), (vec![392, 1], "BF16")] {
        let factor = |row: usize| (row % 5 + 1) as f32 * 0.25;
        let t = stored.get(&format!("{IN_PROJ}.weight_scale"));
        (t.shape, t.dtype) = (shape, dtype.to_owned());
        t.bytes = (0..392)
            .flat_map(|row| factor(row).to_le_bytes()[if dtype == "F32" { 0 } else { 2 }..].to_vec())
            .collect();
        let checkpoint = stored.open("fp8-rows");
        let table = bind(&checkpoint, &describe(&checkpoint).unwrap()).unwrap();
        let weight = table.get("layers.0.in_proj").unwrap();
        assert_eq!(weight.dtype(), DType::F8E4M3);
        let is_borrowed = matches!(weight.part(0).unwrap().bytes, std::borrow::Cow::Borrowed(_));
        assert!(is_borrowed, "the codes stay where they are");
        let codes = stored.get(&format!("{IN_PROJ}.weight")).floats(DType::F8E4M3);
        let want: Vec<f32> = codes.iter().enumerate().map(|(i, code)| code * factor(i / 64)).collect();
        assert_eq!(weight.to_f32().unwrap(), want);
        assert_eq!(plain.iter().find(|(name, _)| name == "layers.0.in_proj").unwrap().1[0], codes[0] * scale);
    }
}

/// Experts whose types were chosen one by one are brought to a type that holds all of them.
#[test]
fn experts_of_one_layer_in_different_types() {
    let mut stored = Stored::fixture("modelopt-mixed");
    let original = stored.values("experts-original");
    let expert = |e: usize| format!("backbone.layers.1.mixer.experts.{e}.up_proj");
    let replace = |stored: &mut Stored, e: usize, kind: Kind| {
        for suffix in ["weight", "weight_scale", "weight_scale_2"] {
            stored.remove(&format!("{}.{suffix}", expert(e)));
        }
        push(stored, &expert(e), 64, 64, kind);
    };
    let up = |stored: &Stored, name: &str| {
        let checkpoint = stored.open(name);
        let table = bind(&checkpoint, &describe(&checkpoint).unwrap()).unwrap();
        let weight = table.get("layers.1.experts_up").unwrap();
        (weight.dtype(), weight.to_f32().unwrap(), table.notes())
    };
    let alone = |kind: Kind| {
        let mut stored = Stored::fixture("modelopt-mixed");
        (0..8).for_each(|e| replace(&mut stored, e, kind));
        up(&stored, "experts-alone").1
    };
    let kinds = [(3, Kind::Fp8), (4, Kind::Fp8Rows), (6, Kind::Bf16), (7, Kind::PackedMxfp4)];
    kinds.iter().for_each(|&(e, kind)| replace(&mut stored, e, kind));
    let (dtype, values, notes) = up(&stored, "experts-mixed");
    assert_eq!(dtype, DType::BF16);
    expect![
        "`layers.1.experts_up` has parts of different types (4 of nvfp4, 2 of f8_e4m3, 1 of bf16, 1 of mxfp4): all are held as bf16, which loses nothing"
    ]
    .assert_eq(&notes.join("\n"));
    let whole = &original.iter().find(|(name, _)| name == "layers.1.experts_up").unwrap().1;
    for (e, got) in values.chunks_exact(64 * 64).enumerate() {
        let want = match kinds.iter().find(|(at, _)| *at == e) {
            Some((_, kind)) => alone(*kind)[e * 4096..][..4096].to_vec(),
            None => whole[e * 4096..][..4096].to_vec(),
        };
        assert!(got == want, "expert {e}");
    }
    replace_with_f32(&mut stored, &expert(0));
    assert_eq!(up(&stored, "experts-f32").0, DType::F32);
}

fn replace_with_f32(stored: &mut Stored, module: &str) {
    for suffix in ["weight", "weight_scale", "weight_scale_2"] {
        stored.remove(&format!("{module}.{suffix}"));
    }
    stored.add(&format!("{module}.weight"), "F32", &[64, 64], 0.1f32.to_le_bytes().repeat(4096));
}

/// Row lengths that no block of 64 divides: the hidden width stays 64, so an expert's inner width changes.
#[test]
fn nvfp4_rows_of_odd_sixteens_are_widened() {
    let mut stored = Stored::fixture("modelopt-nvfp4");
    stored.config["moe_intermediate_size"] = json!(48);
    for t in stored.tensors.iter_mut().filter(|t| t.name.contains(".experts.")) {
        match t.name.rsplit_once("proj.").unwrap() {
            (m, "weight" | "weight_scale") if m.ends_with("up_") => {
                t.bytes.truncate(t.bytes.len() / 64 * 48);
                t.shape[0] = 48;
            }
            (_, "weight") => t.cut_columns(24),
            (_, "weight_scale") => t.cut_columns(3),
            _ => {}
        }
    }
    let checkpoint = stored.open("nvfp4-wide");
    let table = bind(&checkpoint, &describe(&checkpoint).unwrap()).unwrap();
    let down = table.get("layers.1.experts_down").unwrap();
    assert_eq!(
        (down.dtype(), table.get("layers.1.experts_up").unwrap().dtype()),
        (DType::BF16, DType::NVFP4)
    );
    let whole = Stored::fixture("modelopt-nvfp4").values("nvfp4-whole");
    let whole = &whole.iter().find(|(name, _)| name == "layers.1.experts_down").unwrap().1;
    let want: Vec<f32> = whole.chunks_exact(64).flat_map(|row| row[..48].to_vec()).collect();
    assert_eq!(down.to_f32().unwrap(), want);
}

/// Replaces the MLX codes of `out_proj` by random ones and returns the values they stand for.
fn random_affine(stored: &mut Stored, bits: usize, group: usize, scale: &str) -> Vec<f32> {
    let (rows, cols) = (64, 128);
    let codes = noise(rows * cols * bits / 8, 1);
    let numbers = rows * cols / group;
    let [scales, biases] = [2, 3].map(|seed| -> Vec<f32> {
        noise(numbers, seed).iter().map(|&b| f32::from(b as i8) / 1024.0).collect()
    });
    let bytes = |values: &[f32]| -> Vec<u8> {
        let mut out = vec![0; values.len() * if scale == "F32" { 4 } else { 2 }];
        let dtype = DType::from_name(&scale.to_lowercase()).unwrap();
        mambo_tensor::encode_row(dtype, values, &mut out).unwrap();
        out
    };
    for suffix in ["weight", "scales", "biases"] {
        stored.remove(&format!("{OUT_PROJ}.{suffix}"));
    }
    let code = |i: usize| {
        (0..bits).fold(0u32, |c, b| c | u32::from(codes[(i * bits + b) / 8] >> ((i * bits + b) % 8) & 1) << b)
    };
    let want = (0..rows * cols).map(|i| scales[i / group] * code(i) as f32 + biases[i / group]).collect();
    stored.add(&format!("{OUT_PROJ}.scales"), scale, &[rows, cols / group], bytes(&scales));
    stored.add(&format!("{OUT_PROJ}.biases"), scale, &[rows, cols / group], bytes(&biases));
    stored.add(&format!("{OUT_PROJ}.weight"), "U32", &[rows, cols * bits / 32], codes);
    want
}

#[test]
fn mlx_of_every_width_and_group() {
    for bits in [2, 3, 4, 5, 6, 8] {
        for (group, scale) in [(32, "F16"), (64, "BF16"), (128, "F32")] {
            for in_config in [true, false] {
                let mut stored = Stored::fixture("mlx-4bit");
                let want = random_affine(&mut stored, bits, group, scale);
                stored.config["quantization"] = match in_config {
                    true => {
                        json!({"group_size": 32, "bits": 4, OUT_PROJ: {"group_size": group, "bits": bits}})
                    }
                    false => json!({}),
                };
                let checkpoint = stored.open("mlx-widths");
                let table = bind(&checkpoint, &describe(&checkpoint).unwrap()).unwrap();
                let weight = table.get("layers.0.out_proj").unwrap();
                assert!(weight.dtype().name().starts_with(&format!("affine{bits}g{group}")));
                assert!(weight.to_f32().unwrap() == want, "{bits} bits, groups of {group}, {scale}");
            }
        }
    }
}

#[test]
fn mlx_float_codes() {
    for (group, dtype) in [(32, DType::MXFP4), (16, DType::NVFP4)] {
        let mut stored = Stored::fixture("mlx-4bit");
        stored.config["quantization"] = json!({"group_size": 32, "bits": 4, "mode": "affine",
            IN_PROJ: {"group_size": group, "bits": 4, "mode": dtype.name()}});
        stored.remove(&format!("{IN_PROJ}.biases"));
        let scales: Vec<u8> = noise(392 * 64 / group, 5).iter().map(|b| 0x30 + b % 16).collect();
        let t = stored.get(&format!("{IN_PROJ}.scales"));
        (t.dtype, t.shape, t.bytes) = ("U8".to_owned(), vec![392, 64 / group], scales.clone());
        let codes = stored.get(&format!("{IN_PROJ}.weight")).bytes.clone();
        let checkpoint = stored.open("mlx-floats");
        let table = bind(&checkpoint, &describe(&checkpoint).unwrap()).unwrap();
        let weight = table.get("layers.0.in_proj").unwrap();
        assert_eq!(weight.dtype(), dtype);
        let magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        let scale = |byte: u8| match group {
            32 => 2f32.powi(i32::from(byte) - 127),
            _ => {
                let mut value = [0.0];
                decode_row(DType::F8E4M3, &[byte], &mut value).unwrap();
                value[0]
            }
        };
        for (i, value) in weight.to_f32().unwrap().into_iter().enumerate() {
            let code = codes[i / 2] >> (i % 2 * 4) & 15;
            let magnitude = magnitudes[usize::from(code & 7)] * scale(scales[i / group]);
            assert_eq!(value, if code > 7 { -magnitude } else { magnitude }, "{dtype} {i}");
        }
    }
}

#[test]
fn gguf_factors_under_both_names() {
    for style in ["scale", "weight.scale"] {
        let mut listing = common::GgufListing::tiny_hybrid();
        let [matrix, experts] = ["blk.0.ssm_in", "blk.1.ffn_up_exps"];
        listing.tensors.push((format!("{matrix}.{style}"), "F32".to_owned(), vec![1]));
        listing.tensors.push((format!("{matrix}.input_scale"), "F32".to_owned(), vec![1]));
        listing.tensors.push((format!("{experts}.{style}"), "F32".to_owned(), vec![16]));
        let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{style}.gguf"));
        let tensors: Vec<GgufTensor> = listing
            .tensors
            .iter()
            .map(|(name, dtype, shape)| GgufTensor {
                name: name.clone(),
                dtype: if dtype == "F32" { DType::F32 } else { DType::NVFP4 },
                shape: Shape::new(shape).unwrap(),
            })
            .collect();
        let mut writer = GgufWriter::create(&path, &listing.metadata(), &tensors).unwrap();
        for t in &tensors {
            let bytes = match t.dtype {
                DType::F32 => (0..t.shape.elems()).flat_map(|i| (i as f32 + 2.0).to_le_bytes()).collect(),
                dtype => [[0x38; 4].as_slice(), &[0x22; 32]]
                    .concat()
                    .repeat(dtype.row_bytes(t.shape.elems()).unwrap() / 36),
            };
            writer.write(&t.name, &bytes).unwrap();
        }
        writer.finish().unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        let table = bind(&checkpoint, &describe(&checkpoint).unwrap()).unwrap();
        assert_eq!(table.get("layers.0.in_proj").unwrap().to_f32().unwrap()[5], 2.0);
        assert_eq!(table.get("layers.0.out_proj").unwrap().to_f32().unwrap()[5], 1.0);
        let experts = table.get("layers.1.experts_up").unwrap();
        let factors: Vec<f32> = (0..16).map(|e| experts.part(e).unwrap().row_scale(1)).collect();
        assert_eq!(factors, (0..16).map(|e| e as f32 + 2.0).collect::<Vec<_>>());
    }
}
