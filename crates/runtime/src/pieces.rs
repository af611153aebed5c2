//! The tokens of one answer to thought, content and tool calls, as they come.

use mambo_text::{Detokenizer, Event as Piece, OutputParser, OutputStyle, ParseOptions};
use serde_json::Value;

use crate::ModelText;

/// Turns tokens into the text that is certain with them: a tag or a tool call is held back until it is whole.
pub struct TokenPieces {
    detokenizer: Detokenizer,
    parser: OutputParser,
    stop_tokens: Vec<u32>,
}

impl TokenPieces {
    /// For an answer in this style; the tools' schemas give arguments their types.
    pub fn new(text: &ModelText, style: OutputStyle, tools: &[Value]) -> TokenPieces {
        let detokenizer = Detokenizer::keeping(text.tokenizer(), &style.markers());
        TokenPieces {
            detokenizer: if style.is_turn { detokenizer.beginning() } else { detokenizer },
            parser: OutputParser::new(style, tools, ParseOptions::default()),
            stop_tokens: text.stop_tokens().to_vec(),
        }
    }

    /// Takes a token; one that ends the answer has no text.
    pub fn push(&mut self, token: u32) -> Vec<Piece> {
        let is_stop = self.stop_tokens.contains(&token);
        let text = if is_stop { String::new() } else { self.detokenizer.push(token) };
        self.parser.push(&text)
    }

    /// What was held back, at the end of the answer.
    pub fn finish(&mut self) -> Vec<Piece> {
        let rest = self.detokenizer.finish();
        let mut pieces = self.parser.push(&rest);
        pieces.extend(self.parser.finish());
        pieces
    }
}
