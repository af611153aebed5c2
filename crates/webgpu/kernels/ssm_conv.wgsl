// ssm_conv: y[t,c] = SiLU(bias[c] + Σ_k w[c,k]·x[t−K+1+k, c]); short_conv: y[t,c] = c[t]·(bias[c] + Σ_k w[c,k]·(b·x)[..]).
// Columns before the segment come from the slot, columns before the sequence are zero. A thread has a channel of a row.
// Constants: TAPS, GATED (short_conv), STATE_ELEM.
#include "common.wgsl"
#include "math.wgsl"
#include "slot.wgsl"

// The column of a row that is convolved.
fn column(row: u32, channel: u32, channels: u32) -> f32 {
    if (GATED == 1u) {
        return load(p.x, row, channel) * load(p.x, row, 2u * channels + channel);
    }
    return load(p.x, row, channel);
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let channel = group.x * 64u + thread;
    let row = group.z * GRID_ROWS + group.y;
    let channels = p.channels;
    if (row >= step[STEP_ROWS] || channel >= channels) {
        return;
    }
    let segment = segment_of(row);
    let position = segment.position + (row - segment.first_row);
    let part = slot_part(segment);
    var sum = vector_at(p.bias + channel);
    for (var k = 0u; k < TAPS; k++) {
        let back = TAPS - 1u - k;
        if (back > position) {
            continue;
        }
        let at = position - back;
        var value = 0.0;
        if (at >= segment.position) {
            value = column(row - back, channel, channels);
        } else {
            value = bitcast<f32>(cache[conv_column(part, at, channels) + channel]);
        }
        sum = fma(vector_at(p.weight + channel * TAPS + k), value, sum);
    }
    if (GATED == 1u) {
        store(p.out, row, channel, load(p.x, row, channels + channel) * sum);
    } else {
        store(p.out, row, channel, silu(sum));
    }
}
