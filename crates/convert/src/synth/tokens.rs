//! A tokenizer of any size: a small model's, followed by filler tokens that no text produces.

use mambo_text::GgufVocabulary;

use crate::ConvertError;

const NORMAL: i32 = 1;

/// Extends a vocabulary to `size` tokens.
pub fn grow(mut vocabulary: GgufVocabulary, size: usize) -> Result<GgufVocabulary, ConvertError> {
    let count = vocabulary.tokens.len();
    if size < count || vocabulary.token_types.len() != count {
        let problem = format!("a vocabulary of {count} tokens does not fit a model with {size}");
        return Err(ConvertError::vocabulary(problem));
    }
    // Ordinary tokens, so that a random answer prints; the brackets keep text from producing them.
    vocabulary.tokens.extend((count..size).map(|id| format!("<filler_{id}>")));
    vocabulary.token_types.resize(size, NORMAL);
    Ok(vocabulary)
}
