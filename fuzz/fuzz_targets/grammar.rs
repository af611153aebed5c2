//! Any bytes as a form and a grammar in it: compiled and drawn from, or refused as the client's mistake.
#![cfg_attr(fuzzing, no_main)]

use mambo_fuzz::fuzz_target;
use mambo_server::fuzzing::grammar;

fuzz_target!(|bytes: &[u8]| {
    grammar(bytes);
});
