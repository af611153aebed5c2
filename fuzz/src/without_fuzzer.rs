//! What stands in for libFuzzer where it is not built: targets are compiled, so that they cannot fall behind what they
//! test, and say how to run them.

/// Takes a target's body and leaves it unused.
#[macro_export]
macro_rules! fuzz_target {
    (|$input:ident: $type:ty| $body:block) => {
        const _: fn($type) = |$input: $type| $body;

        fn main() {
            eprintln!("this was built without libFuzzer: fuzz/Cargo.toml says how to build it");
            std::process::exit(2);
        }
    };
}

/// Takes a target's mutator and leaves it unused.
#[macro_export]
macro_rules! fuzz_mutator {
    (|$data:ident: $data_type:ty, $size:ident: usize, $most:ident: usize, $seed:ident: u32| $body:block) => {
        const _: fn($data_type, usize, usize, u32) -> usize =
            |$data: $data_type, $size: usize, $most: usize, $seed: u32| $body;
    };
}

/// Leaves an input as it is.
pub fn fuzzer_mutate(_data: &mut [u8], size: usize, _max_size: usize) -> usize {
    size
}
