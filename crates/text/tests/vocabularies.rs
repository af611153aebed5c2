//! Small vocabularies of every kind against the ids of llama.cpp (GGUF) and of the tokenizers library
//! (tokenizer.json), and their texts through the detokenizer.

use mambo_text::{Detokenizer, GgufVocabulary, Specials, Tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::LazyLock;

const BYTE_LEVEL: &str = include_str!("../../../tests/fixtures/text/vocabularies/byte-level.json");
const SENTENCEPIECE: &str = include_str!("../../../tests/fixtures/text/vocabularies/sentencepiece.json");

struct File {
    vocabulary: GgufVocabulary,
    texts: Vec<String>,
    all: Value,
}

fn read(text: &str) -> File {
    let all: Value = serde_json::from_str(text).unwrap();
    let vocabulary = serde_json::from_value(all["vocabulary"].clone()).unwrap();
    File { vocabulary, texts: serde_json::from_value(all["texts"].clone()).unwrap(), all }
}

fn streamed(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let mut detokenizer = Detokenizer::new(tokenizer, Specials::Show).beginning();
    let mut text: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
    text.push_str(&detokenizer.finish());
    text
}

/// Ids and decoded text of every case; a text that was decoded whole comes out of a stream the same.
#[track_caller]
fn check(name: &str, tokenizer: &Tokenizer, texts: &[String], golden: &Value) {
    assert_eq!(golden["ids"].as_array().unwrap().len(), texts.len());
    for (index, text) in texts.iter().enumerate() {
        let ids = tokenizer.encode(text, false);
        assert_eq!(json!(ids), golden["ids"][index], "{name}: {text:?}");
        let decoded = tokenizer.decode(&ids, false);
        if let Some(expected) = golden["decoded"][index].as_str() {
            assert_eq!(decoded, expected, "{name}: {text:?}");
        }
        assert_eq!(streamed(tokenizer, &ids), decoded, "{name}: {text:?}");
        // Cut anywhere, the halves are the whole.
        for at in 0..=ids.len() {
            let mut detokenizer = Detokenizer::new(tokenizer, Specials::Show).beginning();
            let mut halves: String = ids[..at].iter().map(|&id| detokenizer.push(id)).collect();
            halves.extend(ids[at..].iter().map(|&id| detokenizer.push(id)));
            halves.push_str(&detokenizer.finish());
            assert_eq!(halves, decoded, "{name}: {text:?} cut at {at}");
        }
    }
}

#[test]
fn every_pre_tokenizer_as_llama_cpp_has_it() {
    let File { vocabulary, texts, all } = read(BYTE_LEVEL);
    let rows = all["gguf"].as_object().unwrap();
    for (pre, golden) in rows {
        let golden = golden.as_str().map_or(golden, |same| &rows[same]);
        let source = GgufVocabulary { pre: pre.clone(), ..vocabulary.clone() };
        let tokenizer = Tokenizer::from_gguf(&source).unwrap_or_else(|error| panic!("{pre}: {error}"));
        assert_eq!(json!(tokenizer.adds_bos()), golden["adds_bos"], "{pre}");
        check(pre, &tokenizer, &texts, golden);
        for text in &texts {
            assert_eq!(tokenizer.decode(&tokenizer.encode(text, false), false), *text, "{pre}");
        }
    }
}

/// A tokenizer.json of the vocabulary and the parts that make a form.
fn assembled(vocabulary: &GgufVocabulary, merges: &[Value], form: &Value) -> String {
    let rows = vocabulary.tokens.iter().zip(&vocabulary.token_types).enumerate();
    let added = rows.filter(|(_, (_, kind))| matches!(kind, 2..=4)).map(|(id, (token, kind))| {
        json!({"id": id, "content": token, "special": *kind != 4, "normalized": false,
            "single_word": false, "lstrip": false, "rstrip": false})
    });
    let vocab: serde_json::Map<String, Value> =
        vocabulary.tokens.iter().enumerate().map(|(id, token)| (token.clone(), json!(id))).collect();
    let mut model = json!({"type": "BPE", "vocab": vocab, "merges": merges});
    model.as_object_mut().unwrap().extend(form["model"].as_object().unwrap().clone());
    json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": form["normalizer"], "pre_tokenizer": form["pre_tokenizer"], "post_processor": null,
        "decoder": form["decoder"], "model": model})
    .to_string()
}

#[test]
fn byte_level_files_with_normalisers() {
    let File { vocabulary, texts, all } = read(BYTE_LEVEL);
    let merges: Vec<Value> = vocabulary.merges.iter().map(|merge| json!(merge)).collect();
    for (name, form) in all["json"].as_object().unwrap() {
        let tokenizer = Tokenizer::from_json(&assembled(&vocabulary, &merges, form), None).unwrap();
        check(name, &tokenizer, &texts, form);
    }
}

#[test]
fn sentencepiece_by_score_as_llama_cpp_has_it() {
    let File { vocabulary, texts, all } = read(SENTENCEPIECE);
    for (name, golden) in all["gguf"].as_object().unwrap() {
        let add_space_prefix = golden["add_space_prefix"].as_bool();
        let add_eos = golden["add_eos"].as_bool();
        let source = GgufVocabulary { add_space_prefix, add_eos, ..vocabulary.clone() };
        let tokenizer = Tokenizer::from_gguf(&source).unwrap();
        check(name, &tokenizer, &texts, golden);
        assert_eq!(json!(tokenizer.encode("Hello", true)), golden["around"], "{name}");
        assert!(tokenizer.adds_bos() && tokenizer.is_special(0) && !tokenizer.is_special(300));
        let again = Tokenizer::from_json(&tokenizer.to_json().unwrap(), None).unwrap();
        assert_eq!(again.prefixes_space(), tokenizer.prefixes_space());
        for text in &texts {
            let ids = tokenizer.encode(text, false);
            assert_eq!(again.encode(text, false), ids, "{name}, written and read: {text:?}");
            assert_eq!(again.decode(&ids, false), tokenizer.decode(&ids, false), "{name}: {text:?}");
        }
    }
}

#[test]
fn sentencepiece_files() {
    let File { vocabulary, texts, all } = read(SENTENCEPIECE);
    let written = Tokenizer::from_gguf(&vocabulary).unwrap().to_json().unwrap();
    let written: Value = serde_json::from_str(&written).unwrap();
    let merges = written["model"]["merges"].as_array().unwrap();
    for (name, form) in all["json"].as_object().unwrap() {
        let tokenizer = Tokenizer::from_json(&assembled(&vocabulary, merges, form), None).unwrap();
        assert_eq!(tokenizer.prefixes_space(), name != "no-prefix");
        check(name, &tokenizer, &texts, form);
    }
}

#[test]
fn the_first_space_stays_where_text_goes_on() {
    let tokenizer = Tokenizer::from_gguf(&read(SENTENCEPIECE).vocabulary).unwrap();
    let ids = tokenizer.encode("He was", false);
    let go_on =
        |mut detokenizer: Detokenizer| -> String { ids.iter().map(|&id| detokenizer.push(id)).collect() };
    assert_eq!(go_on(Detokenizer::new(&tokenizer, Specials::Hide)), " He was");
    assert_eq!(go_on(Detokenizer::new(&tokenizer, Specials::Hide).beginning()), "He was");
}

#[test]
fn broken_sentencepiece_vocabularies_are_errors() {
    let good = read(SENTENCEPIECE).vocabulary;
    type Break = fn(&mut GgufVocabulary);
    let broken: [(&str, Break); 3] = [
        ("tokenizer.ggml.scores", |v| v.scores.truncate(9)),
        ("tokenizer.ggml.scores", |v| v.scores[3] = f32::NAN),
        ("tokenizer.ggml.token_type", |v| v.token_types.truncate(9)),
    ];
    for (key, breaks) in broken {
        let mut vocabulary = good.clone();
        breaks(&mut vocabulary);
        let error = Tokenizer::from_gguf(&vocabulary).unwrap_err().to_string();
        assert!(error.contains(key), "{error}");
    }
    // Without byte tokens what is unknown is the unknown token; without that it is nothing.
    let small = GgufVocabulary {
        model: "llama".into(),
        tokens: ["<unk>", "<s>", "</s>", "\u{2581}a"].map(String::from).to_vec(),
        scores: vec![0.0; 4],
        ..GgufVocabulary::default()
    };
    let tokenizer = Tokenizer::from_gguf(&small).unwrap();
    assert_eq!(tokenizer.encode("a日", true), [1, 3, 0, 0, 0]);
}

static PREFIXED: LazyLock<Tokenizer> =
    LazyLock::new(|| Tokenizer::from_gguf(&read(SENTENCEPIECE).vocabulary).unwrap());
static UNPREFIXED: LazyLock<Tokenizer> = LazyLock::new(|| {
    let vocabulary = read(SENTENCEPIECE).vocabulary;
    Tokenizer::from_gguf(&GgufVocabulary { add_space_prefix: Some(false), ..vocabulary }).unwrap()
});

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn any_string_survives(text in any::<String>(), words in "[ a-z<|>é日\\n]{0,40}") {
        for text in [text, words] {
            // The mark of the space is a space when it comes back, and every special token is followed by one.
            let text = text.replace('\u{2581}', "");
            let ids = UNPREFIXED.encode(&text, false);
            prop_assert_eq!(UNPREFIXED.decode(&ids, false), text.as_str());
            prop_assert_eq!(streamed(&UNPREFIXED, &ids), text.as_str());
            let ids = PREFIXED.encode(&text, false);
            if ids.iter().all(|&id| !PREFIXED.is_special(id) && id < 480 && id != 3 && id != 4) {
                prop_assert_eq!(PREFIXED.decode(&ids, false), text.as_str());
            }
        }
    }

    #[test]
    fn streamed_pieces_are_the_decoded_text(ids in prop::collection::vec(0u32..500, 0..40)) {
        prop_assert_eq!(streamed(&PREFIXED, &ids), PREFIXED.decode(&ids, false));
        prop_assert_eq!(streamed(&UNPREFIXED, &ids), UNPREFIXED.decode(&ids, false));
    }
}
