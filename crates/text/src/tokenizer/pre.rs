//! The table of pre-tokenizers a GGUF file may name in `tokenizer.ggml.pre`: how text is cut into words
//! before BPE. A row is data; this file must not know vocabularies.
//!
//! The cuts are llama.cpp's, with one exception: its expressions for `tekken` and `gpt-4o` take only A to Z for
//! capitals and know no combining marks. Models were trained with the full expressions, so those stand here.

/// How one family of vocabularies cuts text.
pub(super) struct PreTokenizer {
    /// The names GGUF files use for it.
    names: &'static [&'static str],
    /// Regular expressions, each applied to the pieces the one before left.
    pub(super) patterns: &'static [&'static str],
    /// A word that is itself a vocabulary entry is taken whole, whatever the merges say.
    pub(super) ignore_merges: bool,
    /// Whether text starts with BOS when the file does not say.
    pub(super) add_bos: bool,
}

const LLAMA3: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

const TABLE: &[PreTokenizer] = &[
    PreTokenizer {
        names: &["pixtral", "llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "lfm2"],
        patterns: &[LLAMA3],
        ignore_merges: true,
        add_bos: true,
    },
    PreTokenizer { names: &["tekken"], patterns: &[TEKKEN], ignore_merges: true, add_bos: true },
    PreTokenizer {
        names: &["qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"],
        patterns: &[QWEN2],
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer { names: &["qwen35"], patterns: &[QWEN35], ignore_merges: false, add_bos: false },
    PreTokenizer { names: &["dbrx", "smaug-bpe"], patterns: &[LLAMA3], ignore_merges: false, add_bos: false },
    PreTokenizer { names: &["gpt-4o", "llama4"], patterns: &[GPT4O], ignore_merges: false, add_bos: false },
    PreTokenizer {
        names: &["gpt-2", "mpt", "olmo", "phi-2", "exaone4"],
        patterns: &[GPT2],
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"],
        patterns: &[r"\p{N}", GPT2],
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &["default"],
        patterns: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
        ignore_merges: false,
        add_bos: false,
    },
];

/// The row for a `tokenizer.ggml.pre` value.
pub(super) fn find(name: &str) -> Option<&'static PreTokenizer> {
    TABLE.iter().find(|row| row.names.contains(&name))
}

/// Every known name, for error messages.
pub(super) fn supported() -> String {
    TABLE.iter().flat_map(|row| row.names).copied().collect::<Vec<_>>().join(", ")
}
