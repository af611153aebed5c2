//! Any bytes as a body for the paths that only this server has: taken, or refused as the client's mistake.
#![cfg_attr(fuzzing, no_main)]

use mambo_fuzz::fuzz_target;
use mambo_server::fuzzing::own;

fuzz_target!(|bytes: &[u8]| {
    own(bytes);
});
