// probe: small tasks whose results are known, from the plainest up; what `doctor` tries before real kernels.
// Constants: PROBE. The first 256 words of the arena are the input, the next 256 the output.
#include "common.wgsl"
#include "math.wgsl"
#include "numbers.wgsl"

var<workgroup> shared_words: array<u32, 256>;
var<workgroup> counts: array<atomic<u32>, 4>;

fn sum_of_nibbles(word: u32) -> u32 {
    var sum = 0u;
    for (var i = 0u; i < 8u; i++) {
        sum += (word >> (4u * i)) & 15u;
    }
    return sum;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let word = arena[thread];
    var out = 0u;
    if (PROBE == 0u) {
        out = word * 3u + 1u;
    } else if (PROBE == 1u) {
        shared_words[thread] = word;
        workgroupBarrier();
        out = shared_words[255u - thread];
    } else if (PROBE == 2u) {
        let pair = unpack2x16float(word);
        out = f16_bits(pair.x) | (f16_bits(pair.y) << 16u);
    } else if (PROBE == 3u) {
        out = sum_of_nibbles(word);
    } else if (PROBE == 4u) {
        shared_words[thread] = word;
        workgroupBarrier();
        for (var half = 128u; half > 0u; half >>= 1u) {
            if (thread < half) {
                shared_words[thread] += shared_words[thread + half];
            }
            workgroupBarrier();
        }
        out = shared_words[0];
    } else if (PROBE == 5u) {
        if (thread < 4u) {
            atomicStore(&counts[thread], 0u);
        }
        workgroupBarrier();
        atomicAdd(&counts[word % 4u], 1u);
        workgroupBarrier();
        out = atomicLoad(&counts[thread % 4u]);
    } else if (PROBE == 6u) {
        out = bitcast<u32>(exp_of(bitcast<f32>(word)));
    } else if (PROBE == 7u) {
        // A link of a chain: every dispatch goes on from what the one before it left.
        out = arena[256u + thread] * 1664525u + word;
    } else if (PROBE == 8u) {
        cache[thread] = word;
        storageBarrier();
        workgroupBarrier();
        out = cache[255u - thread];
    } else {
        // The far end of a large buffer.
        cache[p.last - thread] = word;
        storageBarrier();
        workgroupBarrier();
        out = cache[p.last - (255u - thread)];
    }
    arena[256u + thread] = out;
}
