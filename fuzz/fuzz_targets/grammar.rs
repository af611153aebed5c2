//! Any bytes as a form and a grammar in it: compiled and drawn from, or refused as the client's mistake.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mambo_server::fuzzing::grammar;

fuzz_target!(|bytes: &[u8]| {
    grammar(bytes);
});
