//! Any bytes as a body for Ollama's paths: taken, or refused as the client's mistake.
#![cfg_attr(fuzzing, no_main)]

use mambo_fuzz::fuzz_target;
use mambo_server::fuzzing::ollama;

fuzz_target!(|bytes: &[u8]| {
    ollama(bytes);
});
