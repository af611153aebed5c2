//! Any bytes as a body for Anthropic's paths: taken, or refused as the client's mistake.
#![cfg_attr(fuzzing, no_main)]

use mambo_fuzz::fuzz_target;
use mambo_server::fuzzing::anthropic;

fuzz_target!(|bytes: &[u8]| {
    anthropic(bytes);
});
