//! placeholder
/// x
pub struct Answer;
/// x
pub struct Event;
/// x
pub struct OutputParser;
/// x
pub struct OutputStyle;
/// x
pub struct ParseOptions;
