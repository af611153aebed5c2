//! AWQ, GPTQ, FP8 with block scales and MLX folders of plain transformers: known integers and scales are packed by the
//! formats' definitions, and what is read is compared with them bit by bit.

mod common;

use common::stored::Stored;
use common::tiny::{self, Kind, noise};
use expect_test::expect;
use mambo_kernel::WeightSource;
use mambo_model::{ModelSpec, Place, bind, describe};
use mambo_tensor::{DType, decode_row, encode_row};
use serde_json::{Value, json};

/// Widths that are no multiples of one another; groups of 128 and 64 divide them.
fn config(quantization: Value) -> Value {
    json!({"model_type": "llama", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 8, "rms_norm_eps": 1e-5,
        "quantization_config": quantization})
}

/// A matrix of integers with a zero and a scale for each group of each row.
struct Grouped {
    rows: usize,
    cols: usize,
    bits: usize,
    group: usize,
    codes: Vec<u32>,
    zeros: Vec<u32>,
    scales: Vec<f32>,
    /// The group of every column.
    order: Vec<usize>,
}

fn narrow(dtype: DType, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; values.len() * dtype.block_bytes()];
    encode_row(dtype, values, &mut bytes).unwrap();
    bytes
}

fn widen(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; bytes.len() / dtype.block_bytes()];
    decode_row(dtype, bytes, &mut values).unwrap();
    values
}

impl Grouped {
    /// Zeros are 1 and more: the first version of GPTQ's format cannot say 0.
    fn drawn(name: &str, rows: usize, cols: usize, bits: usize, group: usize) -> Grouped {
        let seed = name.bytes().fold(7u64, |sum, byte| (sum * 31 + u64::from(byte)) % 10_007);
        let mask = (1u32 << bits) - 1;
        let groups = cols / group;
        let codes = noise(rows * cols, seed).into_iter().map(|byte| u32::from(byte) & mask).collect();
        let zeros = noise(rows * groups, seed + 1).into_iter().map(|byte| (u32::from(byte) & mask).max(1));
        let scales: Vec<f32> =
            noise(rows * groups, seed + 2).into_iter().map(|byte| 0.001 * (1.0 + f32::from(byte))).collect();
        let scales = widen(DType::F16, &narrow(DType::F16, &scales));
        let order = (0..cols).map(|column| column / group).collect();
        Grouped { rows, cols, bits, group, codes, zeros: zeros.collect(), scales, order }
    }

    fn groups(&self) -> usize {
        self.cols / self.group
    }

    fn code(&self, row: usize, column: usize) -> u32 {
        self.codes[row * self.cols + column]
    }

    /// `scale · (code - zero)`, which f32 holds exactly.
    fn values(&self) -> Vec<f32> {
        let mut values = Vec::new();
        for row in 0..self.rows {
            for column in 0..self.cols {
                let at = row * self.groups() + self.order[column];
                values.push((self.code(row, column) as f32 - self.zeros[at] as f32) * self.scales[at]);
            }
        }
        values
    }

    fn push_scales(&self, stored: &mut Stored, module: &str) {
        let of = |group: usize| (0..self.rows).map(move |row| self.scales[row * self.groups() + group]);
        let scales: Vec<f32> = (0..self.groups()).flat_map(of).collect();
        let bytes = narrow(DType::F16, &scales);
        stored.add(&format!("{module}.scales"), "F16", &[self.groups(), self.rows], bytes);
    }

    /// Eight outputs to a word, in this order.
    fn push_awq(&self, stored: &mut Stored, module: &str) {
        let pack = |value: &dyn Fn(usize) -> u32| -> Vec<u8> {
            let word = |first: usize| {
                let shuffled = [0, 2, 4, 6, 1, 3, 5, 7].into_iter().enumerate();
                shuffled.fold(0u32, |word, (place, row)| word | value(first + row) << (4 * place))
            };
            (0..self.rows).step_by(8).flat_map(|first| word(first).to_le_bytes()).collect()
        };
        let codes = (0..self.cols).flat_map(|column| pack(&|row| self.code(row, column))).collect();
        stored.add(&format!("{module}.qweight"), "I32", &[self.cols, self.rows / 8], codes);
        let zero = |group: usize| move |row: usize| self.zeros[row * self.groups() + group];
        let zeros = (0..self.groups()).flat_map(|group| pack(&zero(group))).collect();
        stored.add(&format!("{module}.qzeros"), "I32", &[self.groups(), self.rows / 8], zeros);
        self.push_scales(stored, module);
    }

    /// Neighbouring inputs to a word; `less` is what zeros are stored less.
    fn push_gptq(&self, stored: &mut Stored, module: &str, less: u32) {
        let per_word = 32 / self.bits;
        let pack = |value: &dyn Fn(usize) -> u32| {
            (0..per_word).fold(0u32, |word, place| word | value(place) << (self.bits * place))
        };
        let word = |first: usize, row: usize| pack(&|place| self.code(row, first + place)).to_le_bytes();
        let firsts = (0..self.cols).step_by(per_word);
        let codes = firsts.flat_map(|first| (0..self.rows).flat_map(move |row| word(first, row))).collect();
        stored.add(&format!("{module}.qweight"), "I32", &[self.cols / per_word, self.rows], codes);
        let zero = |group: usize, row: usize| self.zeros[row * self.groups() + group] - less;
        let mut zeros = Vec::new();
        for group in 0..self.groups() {
            for first in (0..self.rows).step_by(per_word) {
                zeros.extend(pack(&|place| zero(group, first + place)).to_le_bytes());
            }
        }
        stored.add(&format!("{module}.qzeros"), "I32", &[self.groups(), self.rows / per_word], zeros);
        let order: Vec<u8> = self.order.iter().flat_map(|group| (*group as i32).to_le_bytes()).collect();
        stored.add(&format!("{module}.g_idx"), "I32", &[self.cols], order);
        self.push_scales(stored, module);
    }
}

type Wanted = Vec<(String, Vec<f32>)>;

/// A folder whose matrices `push` writes, and the values that it must be read as.
fn folder(config: Value, push: impl Fn(&mut Stored, &str, usize, usize) -> Vec<f32>) -> (Stored, Wanted) {
    let spec = ModelSpec::from_config("config.json", &config, None).unwrap();
    let plain = tiny::folder(config, |_| Kind::Bf16);
    let mut stored = Stored { tensors: Vec::new(), ..plain.clone() };
    let mut wanted = Vec::new();
    for weight in spec.weights() {
        let name = mambo_model::Family::of(&spec).tensor_name(weight.place, weight.part);
        match (weight.place, &weight.shape[..]) {
            (Place::Layer(_), &[rows, cols]) => {
                let module = name.strip_suffix(".weight").unwrap();
                wanted.push((weight.name, push(&mut stored, module, rows, cols)));
            }
            _ => stored.tensors.push(plain.clone().get(&name).clone()),
        }
    }
    (stored, wanted)
}

/// Reads the folder; every weight must have these bits and be held as this type.
fn check(name: &str, (stored, wanted): &(Stored, Wanted), held: &str) -> Vec<String> {
    let checkpoint = stored.open(name);
    let table = bind(&checkpoint, &describe(&checkpoint).unwrap()).unwrap();
    assert!(wanted.len() >= 7);
    for (weight, values) in wanted {
        let bound = table.get(weight).unwrap();
        assert_eq!(bound.dtype().name(), held, "{name}: {weight}");
        let read = bound.to_f32().unwrap();
        let same = read.len() == values.len() && read.iter().zip(values).all(|(a, b)| a == b);
        assert!(same, "{name}: {weight} has other values");
    }
    table.notes()
}

fn awq(group: i64) -> Value {
    json!({"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": true})
}

fn gptq(bits: usize, group: i64, format: &str) -> Value {
    json!({"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": false, "sym": false,
        "checkpoint_format": format})
}

#[test]
fn awq_is_read_without_loss() {
    for (group, held) in [(128, "affine4g128_f32"), (64, "affine4g64_f32"), (32, "affine4g32_f32")] {
        let made = folder(config(awq(group as i64)), |stored, module, rows, cols| {
            let grouped = Grouped::drawn(module, rows, cols, 4, group);
            grouped.push_awq(stored, module);
            grouped.values()
        });
        assert!(check(&format!("awq-{group}"), &made, held).is_empty());
    }
}

#[test]
fn gptq_is_read_without_loss() {
    for (bits, format, less) in [(4, "gptq", 1), (8, "gptq", 1), (4, "gptq_v2", 0), (2, "gptq", 1)] {
        let made = folder(config(gptq(bits, 128, format)), |stored, module, rows, cols| {
            let grouped = Grouped::drawn(module, rows, cols, bits, 128);
            grouped.push_gptq(stored, module, less);
            grouped.values()
        });
        let held = format!("affine{bits}g128_f32");
        assert!(check(&format!("gptq-{bits}-{format}"), &made, &held).is_empty());
    }
}

/// One group for a whole row, and groups that no type has.
#[test]
fn other_groups_are_read_too() {
    let made = folder(config(gptq(4, -1, "gptq")), |stored, module, rows, cols| {
        let grouped = Grouped::drawn(module, rows, cols, 4, cols);
        grouped.push_gptq(stored, module, 1);
        grouped.values()
    });
    assert!(check("gptq-whole", &made, "affine4g128_f32").is_empty());
    let made = folder(config(gptq(4, 16, "gptq")), |stored, module, rows, cols| {
        let grouped = Grouped::drawn(module, rows, cols, 4, 16);
        grouped.push_gptq(stored, module, 1);
        widen(DType::F16, &narrow(DType::F16, &grouped.values()))
    });
    assert_eq!(check("gptq-16", &made, "f16").len(), 1);
}

#[test]
fn an_order_by_activations_is_decoded_and_said() {
    let made = folder(config(gptq(4, 64, "gptq")), |stored, module, rows, cols| {
        let mut grouped = Grouped::drawn(module, rows, cols, 4, 64);
        grouped.order.rotate_left(5);
        grouped.push_gptq(stored, module, 1);
        widen(DType::F16, &narrow(DType::F16, &grouped.values()))
    });
    expect!["7 weights in groups that do not follow one another (`desc_act`) or fit no type are decoded to f16, which takes more memory"]
        .assert_eq(&check("gptq-order", &made, "f16").join("\n"));
}

fn squares(block: Value) -> (Stored, Wanted) {
    let quantization =
        json!({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": block});
    folder(config(quantization), |stored, module, rows, cols| {
        // Neither NaN nor sizes that the squares divide.
        let codes: Vec<u8> = noise(rows * cols, rows as u64).iter().map(|byte| byte & 0xbf).collect();
        let (down, across) = (rows.div_ceil(96), cols.div_ceil(48));
        let scales: Vec<f32> =
            noise(down * across, 5).iter().map(|byte| 0.01 * (1.0 + f32::from(*byte))).collect();
        let bytes = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        stored.add(&format!("{module}.weight"), "F8_E4M3", &[rows, cols], codes.clone());
        stored.add(&format!("{module}.weight_scale_inv"), "F32", &[down, across], bytes);
        let values = widen(DType::F8E4M3, &codes).into_iter().enumerate();
        let scaled = values.map(|(at, value)| value * scales[at / cols / 96 * across + at % cols / 48]);
        widen(DType::BF16, &narrow(DType::BF16, &scaled.collect::<Vec<f32>>()))
    })
}

#[test]
fn fp8_with_scales_for_squares_becomes_bf16() {
    let notes = check("squares", &squares(json!([96, 48])), "bf16");
    expect!["7 weights of FP8 with a scale for each square are decoded to bf16, which takes more memory"]
        .assert_eq(&notes.join("\n"));
}

#[test]
fn mlx_folders_of_transformers_are_read() {
    for family in ["llama", "qwen2", "qwen3", "gemma3_text", "lfm2"] {
        let mut config = config(Value::Null);
        config["model_type"] = json!(family);
        config["quantization"] = json!({"group_size": 64, "bits": 4});
        let checkpoint = tiny::folder(config, |_| Kind::Affine(4, 64, "BF16")).open(&format!("mlx-{family}"));
        let table = bind(&checkpoint, &describe(&checkpoint).unwrap()).unwrap();
        let matrices: Vec<_> = table
            .iter()
            .filter(|weight| weight.shape().len() == 2 && !weight.name().contains("conv"))
            .collect();
        assert!(matrices.iter().all(|weight| weight.dtype().name() == "affine4g64_bf16"), "{family}");
        assert!(matrices.len() >= 8 && table.iter().all(|weight| weight.to_f32().is_ok()), "{family}");
    }
}

#[test]
fn what_contradicts_itself_is_refused() {
    const Q: &str = "backbone.layers.0.self_attn.q_proj";
    let at = |suffix: &str| format!("{Q}.{suffix}");
    let packed = || {
        folder(config(gptq(4, 64, "gptq")), |stored, module, rows, cols| {
            Grouped::drawn(module, rows, cols, 4, 64).push_gptq(stored, module, 1);
            Vec::new()
        })
        .0
    };
    let case = |edit: &dyn Fn(&mut Stored)| {
        let mut stored = packed();
        edit(&mut stored);
        stored.refused("contradiction")
    };
    let square = |edit: &dyn Fn(&mut Stored)| {
        let mut stored = squares(json!([96, 48])).0;
        edit(&mut stored);
        stored.refused("contradiction")
    };
    let messages = [
        case(&|s| s.config["quantization_config"]["bits"] = json!(8)),
        case(&|s| s.config["quantization_config"]["bits"] = json!(3)),
        case(&|s| s.config["quantization_config"]["group_size"] = json!(32)),
        case(&|s| s.config["quantization_config"]["quant_method"] = json!("awq")),
        case(&|s| s.config["quantization_config"]["checkpoint_format"] = json!("marlin")),
        case(&|s| s.config["quantization_config"] = json!({"quant_method": "awq", "version": "gemv"})),
        case(&|s| s.remove(&at("qzeros"))),
        case(&|s| s.get(&at("qzeros")).cut_columns(3)),
        case(&|s| s.get(&at("scales")).cut_columns(100)),
        case(&|s| s.get(&at("qweight")).dtype = "F32".to_owned()),
        case(&|s| s.get(&at("g_idx")).bytes[5] = 1),
        square(&|s| s.config["quantization_config"]["weight_block_size"] = json!([128, 128])),
        square(&|s| s.config["quantization_config"]["weight_block_size"] = json!([128])),
        square(&|s| s.get(&at("weight_scale_inv")).bytes[3] = 0xff),
    ];
    let told = messages.map(|message| message.split("; ").next().unwrap().to_owned()).join("\n");
    expect![[r#"
        FOLDER: tensor `backbone.layers.0.self_attn.q_proj.qweight` has codes of 4 bits, but quantization_config.bits is 8
        FOLDER/config.json: `quantization_config.bits` is 3, but 2, 4 and 8 bits are supported
        FOLDER: tensor `backbone.layers.0.self_attn.q_proj.qweight` has groups of 64, but quantization_config.group_size is 32
        FOLDER: tensor `backbone.layers.0.self_attn.q_proj.qweight` has shape [16, 128], but `layers.0.q` needs awq codes of 2, 4 or 8 bits for [128, 128]
        FOLDER/config.json: `quantization_config.checkpoint_format` is `marlin`, but only `gptq` and `gptq_v2` can be read
        FOLDER/config.json: `quantization_config.version` is `gemv`, but only `gemm` can be read
        FOLDER: tensor `backbone.layers.0.self_attn.q_proj.qzeros` is missing, and `backbone.layers.0.self_attn.q_proj.qweight` cannot be read without it
        FOLDER: tensor `backbone.layers.0.self_attn.q_proj.qzeros` has shape [2, 3], but `layers.0.q` needs [2, 16]
        FOLDER: tensor `backbone.layers.0.self_attn.q_proj.scales` has shape [2, 100], but `layers.0.q` needs [2, 128]
        FOLDER: tensor `backbone.layers.0.self_attn.q_proj.qweight` is f32, but i32 or u32 is expected
        FOLDER: tensor `backbone.layers.0.self_attn.q_proj.g_idx` puts column 1 into group 256, but there are 2
        FOLDER: tensor `backbone.layers.0.self_attn.q_proj.weight_scale_inv` has shape [2, 3], but `layers.0.q` needs [1, 1]
        FOLDER/config.json: `quantization_config.weight_block_size` is not two sizes above zero
        FOLDER: tensor `backbone.layers.0.self_attn.q_proj.weight_scale_inv` holds the scale -175245410000000000000000000000000000000, but scales are finite and greater than zero"#]].assert_eq(&told);
}
