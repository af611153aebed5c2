//! What can be wrong with a model's text files or with a request, and what to do about it. The messages
//! are for the person at the terminal: they name the file, field or message at fault and the remedy.

/// The result of this crate's fallible functions.
pub type Result<T> = std::result::Result<T, TextError>;

/// A model file or a chat request that cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TextError {
    /// `tokenizer.json` does not parse or contradicts itself.
    #[error("tokenizer.json: {detail}; fetch the file again or export it anew")]
    TokenizerJson {
        /// What is wrong, and where.
        detail: String,
    },
    /// `tokenizer.json` describes a kind of tokenizer that is neither byte-level BPE nor SentencePiece BPE.
    #[error("tokenizer.json: `{field}` is {found}, but only BPE, byte-level or SentencePiece, is supported")]
    UnsupportedTokenizer {
        /// The field that decides.
        field: &'static str,
        /// What it holds.
        found: String,
    },
    /// `tokenizer_config.json` does not parse or names a token that does not exist.
    #[error("tokenizer_config.json: {detail}")]
    TokenizerConfig {
        /// What is wrong, and where.
        detail: String,
    },
    /// A tokenizer key of a GGUF file has a value that cannot work.
    #[error("GGUF metadata `{key}`: {detail}; convert the model again")]
    GgufVocabulary {
        /// The metadata key.
        key: &'static str,
        /// What is wrong with it.
        detail: String,
    },
    /// A GGUF file names a tokenizer model or pre-tokenizer that is not known here.
    #[error("GGUF metadata `{key}` is '{value}', which is not supported; supported: {supported}")]
    UnsupportedGguf {
        /// The metadata key.
        key: &'static str,
        /// The value found.
        value: String,
        /// The values that would work.
        supported: String,
    },
    /// The model came without a chat template.
    #[error(
        "{origin} has no chat template: complete plain text instead, or put a chat_template.jinja beside the \
         model"
    )]
    NoTemplate {
        /// The model or file that was searched.
        origin: String,
    },
    /// The chat template is not valid Jinja.
    #[error("chat template {template}, line {line}: {detail}")]
    TemplateSyntax {
        /// The template's name.
        template: String,
        /// Line in the template, from 1.
        line: usize,
        /// What the template engine says.
        detail: String,
    },
    /// The chat template failed on this request.
    #[error(
        "chat template {template}, line {line}: {detail}; check the request's messages, tools and template \
         arguments"
    )]
    TemplateRender {
        /// The template's name.
        template: String,
        /// Line in the template, from 1.
        line: usize,
        /// What the template engine says.
        detail: String,
    },
    /// The chat template called `raise_exception`: it refuses this request on purpose.
    #[error("chat template {template}, line {line} refuses the request: {message}")]
    TemplateRefused {
        /// The template's name.
        template: String,
        /// Line in the template, from 1.
        line: usize,
        /// The template's own words.
        message: String,
    },
    /// A message of the request has the wrong form.
    #[error("{field}: {detail}")]
    Request {
        /// The path of the field, such as `messages[2].content`.
        field: String,
        /// What is wrong and what is expected.
        detail: String,
    },
}
