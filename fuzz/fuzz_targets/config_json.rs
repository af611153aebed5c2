//! Any text as a configuration file: parsed or refused, and what was parsed can be printed and parsed again.
#![cfg_attr(fuzzing, no_main)]

use mambo_checkpoint::{json_number, parse_json};
use mambo_fuzz::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(value) = parse_json(text) else { return };
    let _ = json_number(&value);
    parse_json(&value.to_string()).expect("what was printed parses");
});
