//! The tokenizer against golden ids, from both kinds of files, and on text nobody would write.

use mambo_text::{Detokenizer, GgufVocabulary, Specials, TextError, Tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::LazyLock;

const JSON: &str = include_str!("../../../models/tiny-hybrid/tokenizer.json");
const CONFIG: &str = include_str!("../../../models/tiny-hybrid/tokenizer_config.json");
const GGUF: &str = include_str!("../../../tests/fixtures/text/tiny-hybrid.gguf-vocabulary.json");
const CASES: &str = include_str!("../../../tests/fixtures/text/tokenizer-cases.json");
const STORIES: &str = include_str!("../../../tests/fixtures/text/held-out.txt");

static FROM_JSON: LazyLock<Tokenizer> =
    LazyLock::new(|| Tokenizer::from_json(JSON, Some(CONFIG)).expect("the fixture loads"));
static FROM_GGUF: LazyLock<Tokenizer> =
    LazyLock::new(|| Tokenizer::from_gguf(&vocabulary()).expect("the fixture loads"));

fn vocabulary() -> GgufVocabulary {
    serde_json::from_str(GGUF).expect("the fixture parses")
}

fn both() -> [(&'static str, &'static Tokenizer); 2] {
    [("tokenizer.json", &FROM_JSON), ("GGUF", &FROM_GGUF)]
}

#[test]
fn golden_ids_from_either_file() {
    let cases: Vec<Value> = serde_json::from_str(CASES).unwrap();
    assert!(cases.len() > 20);
    for case in &cases {
        let text = case["text"].as_str().unwrap();
        let ids: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
        for (name, tokenizer) in both() {
            assert_eq!(tokenizer.encode(text, false), ids, "{name}: {text:?}");
            assert_eq!(tokenizer.decode(&ids, false), case["decoded"], "{name}: {text:?}");
        }
    }
}

#[test]
fn stories_have_the_same_ids_from_either_file() {
    let ids = FROM_JSON.encode(STORIES, true);
    assert!(ids.len() > 4000);
    assert_eq!(ids, FROM_GGUF.encode(STORIES, true));
    assert_eq!(FROM_JSON.decode(&ids, false), STORIES);
}

#[test]
fn facts_about_tokens() {
    for (name, tokenizer) in both() {
        assert_eq!(tokenizer.vocab_size(), 4096, "{name}");
        assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(1), Some(11)), "{name}");
        assert_eq!(tokenizer.id_of("<|im_end|>"), Some(11));
        assert_eq!(tokenizer.id_of("no such token"), None);
        assert!(tokenizer.is_special(12) && !tokenizer.is_special(468) && !tokenizer.is_special(u32::MAX));
        assert_eq!(tokenizer.token_bytes(469), b" upon");
        assert_eq!(tokenizer.token_bytes(230), b"\n");
        assert_eq!(tokenizer.token_bytes(204), b"\xF0");
        assert_eq!(tokenizer.token_bytes(12), b"<think>");
        assert_eq!(tokenizer.token_bytes(u32::MAX), b"");
        assert_eq!(tokenizer.decode(&[12, 468, 13], true), "Once");
    }
}

#[test]
fn bos_once_and_only_when_asked_for() {
    for (name, tokenizer) in both() {
        assert!(!tokenizer.adds_bos(), "{name}: the files say add_bos_token false");
        assert_eq!(tokenizer.encode("Once", true), [468]);
        let with_bos = tokenizer.clone().with_add_bos(true);
        assert_eq!(with_bos.encode("Once", true), [1, 468], "{name}");
        assert_eq!(with_bos.encode("<s>Once", true), [1, 468], "{name}");
        assert_eq!(with_bos.encode("Once", false), [468], "{name}");
        assert_eq!(with_bos.encode("", true), [1], "{name}");
        assert_eq!(with_bos.with_add_bos(false).encode("Once", true), [468], "{name}");
    }
    let unsaid = GgufVocabulary { add_bos: None, ..vocabulary() };
    assert!(Tokenizer::from_gguf(&unsaid).unwrap().adds_bos(), "files with this pre mean BOS by default");
}

#[test]
fn a_post_processor_adds_bos() {
    let mut file: Value = serde_json::from_str(JSON).unwrap();
    file["post_processor"] = json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}
    });
    file["truncation"] =
        json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
    let tokenizer = Tokenizer::from_json(&file.to_string(), Some(CONFIG)).unwrap();
    assert_eq!(tokenizer.encode("Once upon a time", true), [1, 468, 469, 290, 416]);
    assert_eq!(tokenizer.encode("<s>Once", true), [1, 468]);
    assert_eq!(tokenizer.encode("Once", false), [468]);
    let without_config = Tokenizer::from_json(&file.to_string(), None).unwrap();
    assert_eq!(without_config.bos(), Some(1));
}

#[test]
fn user_defined_tokens_are_matched_but_not_hidden() {
    let mut changed = vocabulary();
    changed.token_types[12] = 4;
    let tokenizer = Tokenizer::from_gguf(&changed).unwrap();
    assert_eq!(tokenizer.encode("<think>", false), [12]);
    assert!(!tokenizer.is_special(12));
    assert_eq!(tokenizer.decode(&[12, 468], true), "<think>Once");
}

#[test]
fn unused_tokens_are_never_produced() {
    let mut padded = vocabulary();
    padded.pre = "gpt-2".into();
    padded.tokens.push("[PAD4096]".into());
    padded.token_types.push(5);
    let tokenizer = Tokenizer::from_gguf(&padded).unwrap();
    assert!(!tokenizer.encode("[PAD4096]", false).contains(&4096));
}

/// `pre` decides where words end: the pieces of one vocabulary under different names.
#[test]
fn pre_tokenizers_cut_differently() {
    let pieces = |pre: &str, text: &str| -> Vec<String> {
        // A vocabulary of whole bytes and a few long tokens shows the cuts.
        let mut small = vocabulary();
        small.pre = pre.into();
        small.add_bos = Some(false);
        for token in ["12", "123", "aB", "!!", "!!/"] {
            small.tokens.push(token.into());
            small.token_types.push(1);
        }
        small.merges =
            ["1 2", "12 3", "a B", "! !", "!! /"].iter().map(|merge| (*merge).to_owned()).collect();
        let tokenizer = Tokenizer::from_gguf(&small).expect(pre);
        let ids = tokenizer.encode(text, false);
        ids.iter().map(|&id| String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned()).collect()
    };
    assert_eq!(pieces("pixtral", "1234aB!!/"), ["123", "4", "aB", "!!/"]);
    assert_eq!(pieces("llama-bpe", "1234aB!!/"), ["123", "4", "aB", "!!/"]);
    assert_eq!(pieces("qwen2", "1234aB"), ["1", "2", "3", "4", "aB"]);
    assert_eq!(pieces("tekken", "123aB!!/"), ["1", "2", "3", "a", "B", "!!/"]);
    assert_eq!(pieces("gpt-4o", "1234aB"), ["123", "4", "a", "B"]);
    assert_eq!(pieces("gpt-2", "1234aB"), ["123", "4", "aB"]);
    assert_eq!(pieces("smollm", "12aB"), ["1", "2", "aB"]);
    assert_eq!(pieces("default", "1234aB!!"), ["123", "4", "aB", "!!"]);
}

#[test]
fn unknown_kinds_are_named_with_what_works() {
    let error = Tokenizer::from_gguf(&GgufVocabulary { pre: "klingon".into(), ..vocabulary() }).unwrap_err();
    let message = error.to_string();
    assert!(message.contains("tokenizer.ggml.pre") && message.contains("'klingon'"), "{message}");
    assert!(message.contains("pixtral") && message.contains("qwen2"), "{message}");
    let error = Tokenizer::from_gguf(&GgufVocabulary { model: "t5".into(), ..vocabulary() }).unwrap_err();
    assert!(error.to_string().contains("tokenizer.ggml.model"), "{error}");
}

#[test]
fn broken_vocabularies_are_errors() {
    type Break = fn(&mut GgufVocabulary);
    let broken: [(&str, Break); 6] = [
        ("tokenizer.ggml.tokens", |v| v.tokens.clear()),
        ("tokenizer.ggml.token_type", |v| v.token_types.truncate(7)),
        ("tokenizer.ggml.merges", |v| v.merges.push("onlyone".into())),
        ("tokenizer.ggml.merges", |v| v.merges.push("Once upon".into())),
        ("tokenizer.ggml.merges", |v| v.merges.push(String::new())),
        ("tokenizer.ggml.bos_token_id", |v| v.bos = Some(4096)),
    ];
    for (key, breaks) in broken {
        let mut vocabulary = vocabulary();
        breaks(&mut vocabulary);
        let error = Tokenizer::from_gguf(&vocabulary).unwrap_err();
        assert!(error.to_string().contains(key), "{key}: {error}");
    }
}

#[test]
fn broken_json_files_are_errors() {
    let with = |change: fn(&mut Value)| {
        let mut file: Value = serde_json::from_str(JSON).unwrap();
        change(&mut file);
        Tokenizer::from_json(&file.to_string(), None).unwrap_err().to_string()
    };
    assert!(Tokenizer::from_json("{", None).unwrap_err().to_string().contains("tokenizer.json"));
    assert!(with(|f| f["model"]["type"] = "Unigram".into()).contains("model.type"));
    assert!(with(|f| f["model"]["merges"][5] = json!(["Once", "Once"])).contains("merge 5"));
    assert!(with(|f| f["model"]["vocab"]["Once"] = json!(4_000_000_000u32)).contains("4000000000"));
    assert!(with(|f| f["model"]["vocab"] = json!([1])).contains("model.vocab"));
    let around = |piece: Value| json!({"type": "TemplateProcessing", "single": [piece], "pair": [], "special_tokens": {}});
    let refused = |piece: Value| {
        let mut file: Value = serde_json::from_str(JSON).unwrap();
        file["post_processor"] = around(piece);
        Tokenizer::from_json(&file.to_string(), None).unwrap_err().to_string()
    };
    assert!(refused(json!({"SpecialToken": {"id": "<x>", "type_id": 0}})).contains("'<x>'"));
    assert!(refused(json!({"Sequence": {"id": "B", "type_id": 0}})).contains("text 'B'"));
    assert!(with(|f| f["model"]["dropout"] = json!(0.1)).contains("`model.dropout` is 0.1"));
    assert!(
        with(|f| {
            f["decoder"] = json!({"type": "WordPiece"});
            f["pre_tokenizer"] = Value::Null;
        })
        .contains("WordPiece")
    );
    let config = r#"{"eos_token": {"content": "<nowhere>"}}"#;
    let error = Tokenizer::from_json(JSON, Some(config)).unwrap_err();
    assert!(matches!(error, TextError::TokenizerConfig { .. }), "{error}");
}

#[test]
fn shared_between_threads() {
    fn check<T: Send + Sync>() {}
    check::<Tokenizer>();
    check::<Detokenizer>();
    check::<mambo_text::ChatTemplate>();
    check::<mambo_text::OutputParser>();
}

#[test]
fn very_long_words_are_encoded() {
    for text in [" ".repeat(100_000), "x".repeat(100_000), "\n \t".repeat(30_000), "é".repeat(50_000)] {
        for (name, tokenizer) in both() {
            let ids = tokenizer.encode(&text, true);
            assert_eq!(tokenizer.decode(&ids, false), text, "{name}");
        }
    }
}

fn stream(tokenizer: &Tokenizer, ids: &[u32], specials: Specials) -> String {
    let mut detokenizer = Detokenizer::new(tokenizer, specials);
    let mut text: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
    text.push_str(&detokenizer.finish());
    text
}

#[test]
fn characters_come_whole() {
    let ids = FROM_JSON.encode("a🚀é", false);
    let mut detokenizer = Detokenizer::new(&FROM_JSON, Specials::Hide);
    let pieces: Vec<String> = ids.iter().map(|&id| detokenizer.push(id)).collect();
    assert_eq!(pieces.iter().filter(|piece| !piece.is_empty()).collect::<Vec<_>>(), ["a", "🚀", "é"]);
    assert_eq!(detokenizer.finish(), "");
    detokenizer.push(204);
    assert_eq!(detokenizer.finish(), "\u{FFFD}");
    assert_eq!(detokenizer.finish(), "");
}

#[test]
fn tags_stay_while_other_special_tokens_go() {
    let ids = FROM_JSON.encode("<s><think>Once</think><|im_end|>", false);
    let mut detokenizer = Detokenizer::keeping(&FROM_JSON, &["<think>", "</think>", "<TOOLCALL>"]);
    let text: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
    assert_eq!(text, "<think>Once</think>");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_string_survives(text in any::<String>()) {
        for (name, tokenizer) in both() {
            let ids = tokenizer.encode(&text, false);
            prop_assert_eq!(tokenizer.decode(&ids, false), text.as_str(), "{}", name);
        }
    }

    #[test]
    fn tag_like_strings_have_the_same_ids_from_either_file(
        text in "(<\\|im_end\\|>|<think>|<s|>|'ll|[ \\n\\t]{0,4}|[a-zA-Zé日]{1,4}|[0-9]{1,5}|[!-/]){0,12}"
    ) {
        prop_assert_eq!(FROM_JSON.encode(&text, true), FROM_GGUF.encode(&text, true));
    }

    #[test]
    fn streamed_text_is_the_decoded_text(ids in prop::collection::vec(0u32..4200, 0..40)) {
        prop_assert_eq!(stream(&FROM_JSON, &ids, Specials::Hide), FROM_JSON.decode(&ids, true));
        prop_assert_eq!(stream(&FROM_JSON, &ids, Specials::Show), FROM_JSON.decode(&ids, false));
    }

    /// Bytes of characters in random order: nearly every sequence is broken somewhere.
    #[test]
    fn streamed_bytes_are_the_decoded_bytes(ids in prop::collection::vec(32u32..288, 0..40)) {
        prop_assert_eq!(stream(&FROM_JSON, &ids, Specials::Show), FROM_JSON.decode(&ids, false));
    }
}
