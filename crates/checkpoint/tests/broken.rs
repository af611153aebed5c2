//! Files that are wrong in one way each, and the message each of them gets.

mod support;

use expect_test::expect;
use mambo_checkpoint::Checkpoint;
use support::{Raw, good_gguf, good_safetensors, safetensors};

/// Name and bytes; every one must be refused.
fn gguf_cases() -> Vec<(&'static str, Vec<u8>)> {
    let one = || Raw::gguf(1, 0);
    let mut not_utf8 = Raw::gguf(0, 1).u64(2).bytes(&[0xff, 0xfe]).u32(4).u32(1).0;
    not_utf8.extend([0; 8]);
    let nested = (0..20).fold(Raw::gguf(0, 1).str("deep").u32(9), |raw, _| raw.u32(9).u64(1));
    vec![
        ("cut in magic", b"GGUF"[..].to_vec()),
        ("wrong version", Raw::default().bytes(b"GGUF").u32(1).u64(0).u64(0).0),
        ("big endian", Raw::default().bytes(b"GGUF").u32(3 << 24).u64(0).u64(0).0),
        ("huge metadata count", Raw::gguf(0, u64::MAX).data(32, 64).0),
        ("huge tensor count", Raw::gguf(1 << 60, 0).data(32, 64).0),
        ("huge string", Raw::gguf(0, 1).u64(u64::MAX).data(32, 64).0),
        ("huge array", Raw::gguf(0, 1).str("k").u32(9).u32(12).u64(1 << 61).data(32, 64).0),
        ("huge string array", Raw::gguf(0, 1).str("k").u32(9).u32(8).u64(1 << 40).data(32, 64).0),
        ("deep arrays", nested.data(32, 64).0),
        ("unknown metadata type", Raw::gguf(0, 1).str("k").u32(13).u64(0).0),
        ("unknown element type", Raw::gguf(0, 1).str("k").u32(9).u32(77).u64(0).0),
        ("bad bool", Raw::gguf(0, 1).str("k").u32(7).bytes(&[2]).0),
        ("key is not text", not_utf8),
        ("key twice", Raw::gguf(0, 2).meta_u32("k", 1).meta_u32("k", 2).0),
        ("alignment zero", Raw::gguf(0, 1).meta_u32("general.alignment", 0).0),
        ("alignment odd", Raw::gguf(0, 1).meta_u32("general.alignment", 24).0),
        ("alignment text", Raw::gguf(0, 1).str("general.alignment").u32(8).str("32").0),
        ("split", Raw::gguf(0, 2).meta_u32("split.count", 3).meta_u32("split.no", 1).0),
        ("unknown tensor type", one().tensor("blk.0.x", &[32], 99, 0).data(32, 64).0),
        ("too many dimensions", one().tensor("x", &[1; 5], 0, 0).data(32, 64).0),
        ("dimension of zero", one().tensor("x", &[4, 0], 0, 0).data(32, 64).0),
        ("dimensions overflow", one().tensor("x", &[1 << 32, 1 << 32, 4], 0, 0).data(32, 64).0),
        ("bytes overflow", one().tensor("x", &[1 << 31, 1 << 31], 0, 0).data(32, 64).0),
        ("no whole blocks", one().tensor("x", &[33], 2, 0).data(32, 64).0),
        ("offset out of range", one().tensor("x", &[8], 0, 1 << 20).data(32, 64).0),
        ("offset overflows", one().tensor("x", &[8], 0, u64::MAX - 31).data(32, 64).0),
        ("offset misaligned", one().tensor("x", &[8], 0, 4).data(32, 64).0),
        ("data cut off", one().tensor("x", &[32], 0, 0).data(32, 127).0),
        ("nameless tensor", one().tensor("", &[8], 0, 0).data(32, 64).0),
        ("same name", Raw::gguf(2, 0).tensor("x", &[8], 0, 0).tensor("x", &[8], 0, 32).data(32, 64).0),
        ("overlap", Raw::gguf(2, 0).tensor("x", &[16], 0, 0).tensor("y", &[8], 0, 32).data(32, 64).0),
    ]
}

fn safetensors_cases() -> Vec<(&'static str, Vec<u8>)> {
    let entry = |e: &str| safetensors(&format!("{{\"x\":{e}}}"), 16);
    vec![
        ("empty", Vec::new()),
        ("cut in length", vec![1, 2, 3]),
        ("huge header", Raw::default().u64(u64::MAX).data(1, 64).0),
        ("header cut off", Raw::default().u64(1000).data(1, 64).0),
        ("header is not text", Raw::default().u64(2).bytes(&[0xff, 0xfe]).0),
        ("header is not JSON", safetensors("{\"x\":", 0)),
        ("header is a list", safetensors("[]", 0)),
        ("header with a tail", safetensors("{} {}", 0)),
        ("deep header", safetensors(&"{\"x\":".repeat(5000), 0)),
        ("entry is a number", entry("3")),
        ("no type", entry(r#"{"shape":[4],"data_offsets":[0,16]}"#)),
        ("unknown type", entry(r#"{"dtype":"F4","shape":[4],"data_offsets":[0,16]}"#)),
        ("negative dimension", entry(r#"{"dtype":"F32","shape":[-4],"data_offsets":[0,16]}"#)),
        ("shape is text", entry(r#"{"dtype":"F32","shape":"4","data_offsets":[0,16]}"#)),
        (
            "too many dimensions",
            entry(r#"{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,4],"data_offsets":[0,16]}"#),
        ),
        (
            "dimensions overflow",
            entry(r#"{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,16]}"#),
        ),
        ("bytes overflow", entry(r#"{"dtype":"F64","shape":[9007199254740992,1024],"data_offsets":[0,16]}"#)),
        ("no offsets", entry(r#"{"dtype":"F32","shape":[4]}"#)),
        ("three offsets", entry(r#"{"dtype":"F32","shape":[4],"data_offsets":[0,16,16]}"#)),
        ("offsets reversed", entry(r#"{"dtype":"F32","shape":[4],"data_offsets":[16,0]}"#)),
        ("offsets and shape differ", entry(r#"{"dtype":"F32","shape":[3],"data_offsets":[0,16]}"#)),
        ("out of range", entry(r#"{"dtype":"F32","shape":[4],"data_offsets":[8,24]}"#)),
        (
            "offset overflows",
            entry(r#"{"dtype":"U8","shape":[4],"data_offsets":[18446744073709551610,18446744073709551614]}"#),
        ),
        (
            "same name",
            safetensors(
                r#"{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"x":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#,
                2,
            ),
        ),
        (
            "overlap",
            safetensors(
                r#"{"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"y":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}"#,
                3,
            ),
        ),
    ]
}

/// One line per case: its name and its message.
fn messages(file: &str, cases: Vec<(&'static str, Vec<u8>)>) -> String {
    let line = |(name, bytes): (&str, Vec<u8>)| match Checkpoint::from_vec(file, bytes) {
        Ok(_) => format!("{name} => ACCEPTED\n"),
        Err(e) => format!("{name} => {e}\n"),
    };
    cases.into_iter().map(line).collect()
}

#[test]
fn gguf_messages() {
    expect![[r#"
        cut in magic => m.gguf: the header needs 4 bytes at offset 4, but only 0 are left; the file is cut off or damaged, download it again
        wrong version => m.gguf: GGUF version 1 is not known; convert the model to little-endian GGUF version 3
        big endian => m.gguf: it is big-endian; convert the model to little-endian GGUF version 3
        huge metadata count => m.gguf: the header announces 18446744073709551615 metadata entries, more than the file has room for; the file is damaged, download or convert it again
        huge tensor count => m.gguf: the header announces 1152921504606846976 tensors, more than the file has room for; the file is damaged, download or convert it again
        huge string => m.gguf: metadata entry 0 needs 18446744073709551615 bytes at offset 32, but only 64 are left; the file is cut off or damaged, download it again
        huge array => m.gguf: metadata key `k` needs 18446744073709551615 bytes at offset 49, but only 79 are left; the file is cut off or damaged, download it again
        huge string array => m.gguf: metadata key `k` needs 8796093022208 bytes at offset 49, but only 79 are left; the file is cut off or damaged, download it again
        deep arrays => m.gguf: metadata key `deep` nests arrays more than 8 deep; the file is damaged, download or convert it again
        unknown metadata type => m.gguf: metadata key `k` has unknown type 13; the file is damaged, download or convert it again
        unknown element type => m.gguf: metadata key `k` is an array of unknown type 77; the file is damaged, download or convert it again
        bad bool => m.gguf: metadata key `k` holds 2 where a bool is 0 or 1; the file is damaged, download or convert it again
        key is not text => m.gguf: metadata entry 0 holds a string that is not UTF-8; the file is damaged, download or convert it again
        key twice => m.gguf: metadata key `k` occurs twice; the file is damaged, download or convert it again
        alignment zero => m.gguf: metadata key `general.alignment` is 0, not a power of two up to 1048576; the file is damaged, download or convert it again
        alignment odd => m.gguf: metadata key `general.alignment` is 24, not a power of two up to 1048576; the file is damaged, download or convert it again
        alignment text => m.gguf: metadata key `general.alignment` is "32" of type string, but should be a whole number; convert the file again
        split => m.gguf: by its metadata this is not part 1 of 1; download all parts of one release again, under their own names
        unknown tensor type => m.gguf: tensor `blk.0.x` has type number 99, which is not supported; use a file with f32, f16, bf16, f64, i8, i16, i32, i64, q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k, iq1_s, iq1_m, iq2_xxs, iq2_xs, iq2_s, iq3_xxs, iq3_s, iq4_nl, iq4_xs, tq1_0, tq2_0, mxfp4, nvfp4
        too many dimensions => m.gguf: tensor `x` has 5 dimensions, more than 4; the file is damaged, download or convert it again
        dimension of zero => m.gguf: tensor `x` has a dimension of size 0; the file is damaged, download or convert it again
        dimensions overflow => m.gguf: tensor `x`: the dimensions [4, 4294967296, 4294967296] multiply to more values than can be counted; the file is damaged, download or convert it again
        bytes overflow => m.gguf: tensor `x` with shape [2147483648, 2147483648] is too large; the file is damaged, download or convert it again
        no whole blocks => m.gguf: tensor `x` of type q4_0 has rows of 33 values, not a multiple of 32; the file is damaged, download or convert it again
        offset out of range => m.gguf: tensor `x` needs 32 bytes at offset 1048640, but only 0 are left; the file is cut off or damaged, download it again
        offset overflows => m.gguf: tensor `x` needs 32 bytes at offset 18446744073709551615, but only 0 are left; the file is cut off or damaged, download it again
        offset misaligned => m.gguf: the data of tensor `x` starts at 4, not a multiple of 32; the file is damaged, download or convert it again
        data cut off => m.gguf: tensor `x` needs 128 bytes at offset 64, but only 127 are left; the file is cut off or damaged, download it again
        nameless tensor => m.gguf: entry 0 of the tensor list has no name; the file is damaged, download or convert it again
        same name => m.gguf: there are two tensors named `x`; the file is damaged, download or convert it again
        overlap => m.gguf: tensors `x` and `y` overlap; the file is damaged, download or convert it again
    "#]].assert_eq(&messages("m.gguf", gguf_cases()));
}

#[test]
fn safetensors_messages() {
    expect![[r#"
        empty => m.safetensors: the header needs 8 bytes at offset 0, but only 0 are left; the file is cut off or damaged, download it again
        cut in length => m.safetensors: the header needs 8 bytes at offset 0, but only 3 are left; the file is cut off or damaged, download it again
        huge header => m.safetensors: it announces a header of 18446744073709551615 bytes, so it is no safetensors file; the file is damaged, download or convert it again
        header cut off => m.safetensors: the header needs 1000 bytes at offset 8, but only 64 are left; the file is cut off or damaged, download it again
        header is not text => m.safetensors: the header is not UTF-8 text; the file is damaged, download or convert it again
        header is not JSON => m.safetensors: the header is not valid: EOF while parsing a value at line 1 column 5; the file is damaged, download or convert it again
        header is a list => m.safetensors: the header is not valid: invalid type: sequence, expected an object of tensors at line 1 column 0; the file is damaged, download or convert it again
        header with a tail => m.safetensors: the header is not valid: trailing characters at line 1 column 4; the file is damaged, download or convert it again
        deep header => m.safetensors: the header is not valid: recursion limit exceeded at line 1 column 636; the file is damaged, download or convert it again
        entry is a number => m.safetensors: tensor `x` has no valid `dtype`; the file is damaged, download or convert it again
        no type => m.safetensors: tensor `x` has no valid `dtype`; the file is damaged, download or convert it again
        unknown type => m.safetensors: tensor `x` has type F4, which is not supported; use a file with F32, F16, BF16, F64, F8_E4M3, F8_E5M2, I8, I16, I32, I64, U8, U16, U32, U64, BOOL
        negative dimension => m.safetensors: tensor `x` has no valid `shape`; the file is damaged, download or convert it again
        shape is text => m.safetensors: tensor `x` has no valid `shape`; the file is damaged, download or convert it again
        too many dimensions => m.safetensors: tensor `x`: 9 dimensions are more than the 8 a shape can hold; the file is damaged, download or convert it again
        dimensions overflow => m.safetensors: tensor `x`: the dimensions [4294967296, 4294967296] multiply to more values than can be counted; the file is damaged, download or convert it again
        bytes overflow => m.safetensors: tensor `x` with shape [9007199254740992, 1024] is too large; the file is damaged, download or convert it again
        no offsets => m.safetensors: tensor `x` has no valid `data_offsets`; the file is damaged, download or convert it again
        three offsets => m.safetensors: tensor `x` has no valid `data_offsets`; the file is damaged, download or convert it again
        offsets reversed => m.safetensors: tensor `x` of type f32 and shape [4] takes 16 bytes, but its offsets are 16 to 0; the file is damaged, download or convert it again
        offsets and shape differ => m.safetensors: tensor `x` of type f32 and shape [3] takes 12 bytes, but its offsets are 0 to 16; the file is damaged, download or convert it again
        out of range => m.safetensors: tensor `x` needs 16 bytes at offset 71, but only 8 are left; the file is cut off or damaged, download it again
        offset overflows => m.safetensors: tensor `x` needs 4 bytes at offset 18446744073709551615, but only 0 are left; the file is cut off or damaged, download it again
        same name => m.safetensors: there are two tensors named `x`; the file is damaged, download or convert it again
        overlap => m.safetensors: tensors `x` and `y` overlap; the file is damaged, download or convert it again
    "#]].assert_eq(&messages("m.safetensors", safetensors_cases()));
}

#[test]
fn every_truncation_is_refused() {
    for bytes in [good_gguf(), good_safetensors()] {
        Checkpoint::from_vec("whole", bytes.clone()).unwrap();
        for length in 0..bytes.len() {
            let error = Checkpoint::from_vec("cut", bytes[..length].to_vec())
                .map(|_| length)
                .unwrap_err()
                .to_string();
            assert!(error.starts_with("cut: ") && !error.contains('\n'), "{error}");
        }
    }
}

#[test]
fn a_growing_file_is_accepted() {
    for mut bytes in [good_gguf(), good_safetensors()] {
        bytes.extend([0; 100]);
        Checkpoint::from_vec("padded", bytes).unwrap();
    }
}
