//! Every form of every kernel passes naga's validation, without any device, and keeps WebGPU's smallest limits.

use mambo_webgpu::specialisations;
use naga::valid::{Capabilities, ValidationFlags, Validator};

/// Bytes of workgroup memory that every device has.
const MOST_WORKGROUP_BYTES: u32 = 16 << 10;
/// Invocations of a workgroup that every device has.
const MOST_INVOCATIONS: u32 = 256;

#[test]
fn every_kernel_is_valid_within_the_smallest_limits() {
    let all = specialisations();
    // Unpacking two 16-bit floats of a word is part of the language itself.
    for kernel in &all {
        let text = kernel.text();
        let module = naga::front::wgsl::parse_str(&text)
            .unwrap_or_else(|error| panic!("{kernel}: {}", error.emit_to_string(&text)));
        let mut validator = Validator::new(ValidationFlags::all(), Capabilities::SHADER_FLOAT16_IN_FLOAT32);
        let checked = validator.validate(&module);
        checked.unwrap_or_else(|error| panic!("{kernel}: {}", error.emit_to_string(&text)));
        let invocations: u32 = module.entry_points[0].workgroup_size.iter().product();
        assert!(invocations <= MOST_INVOCATIONS, "{kernel} has {invocations} invocations");
        let mut layouter = naga::proc::Layouter::default();
        layouter.update(module.to_ctx()).expect("the module is valid");
        let workgroup =
            module.global_variables.iter().filter(|(_, v)| v.space == naga::AddressSpace::WorkGroup);
        let bytes: u32 = workgroup.map(|(_, v)| layouter[v.ty].size.next_multiple_of(16)).sum();
        assert!(bytes <= MOST_WORKGROUP_BYTES, "{kernel} has {bytes} bytes of workgroup memory");
    }
    println!("{} kernels", all.len());
}
