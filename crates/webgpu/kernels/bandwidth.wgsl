// bandwidth: reads a buffer once, and writes a word for each thread so that nothing is left out.
#include "common.wgsl"

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let first = group.x * 256u + thread;
    var all = vec4<u32>(0u);
    for (var i = first; i < p.vectors; i += p.threads) {
        all ^= matrix[i];
    }
    arena[first] = all.x ^ all.y ^ all.z ^ all.w;
}
