// ssm_step of segments of one row, first part: the convolution of every channel, with what the slot keeps of it, and dt.
// The same as ssm_conv.wgsl, ssm_dt.wgsl and what stores their results, to the bit. A thread has a channel, or a head,
// of a segment: it reads of the slot what it writes there itself, and nobody else does.
// Constants: HEADS, HEAD_DIM, STATE, GROUPS, STATE_ELEM, TAPS.
#include "common.wgsl"
#include "math.wgsl"
#include "slot.wgsl"

const INNER: u32 = HEADS * HEAD_DIM;
const GROUP_STATE: u32 = GROUPS * STATE;
const CHANNELS: u32 = INNER + 2u * GROUP_STATE;

fn step_of_head(segment: Segment, part: u32, head: u32) {
    let row = segment.first_row;
    let dt = softplus(load(p.x, row, INNER + CHANNELS + head) + vector_at(p.dt_bias + head));
    let entry = segment.position % p.ring_capacity;
    cache[part + p.ring_dt + entry * HEADS + head] = bitcast<u32>(dt);
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let channel = group.x * 64u + thread;
    let index = group.z * GRID_ROWS + group.y;
    if (index >= step[STEP_SEGMENT_COUNT] || channel >= CHANNELS + HEADS) {
        return;
    }
    let segment = segment_at(index);
    let part = slot_part(segment);
    if (channel >= CHANNELS) {
        step_of_head(segment, part, channel - CHANNELS);
        return;
    }
    let row = segment.first_row;
    let position = segment.position;
    let own = load(p.x, row, INNER + channel);
    var sum = vector_at(p.bias + channel);
    for (var k = 0u; k < TAPS; k++) {
        let back = TAPS - 1u - k;
        if (back > position) {
            continue;
        }
        var value = own;
        if (back > 0u) {
            value = bitcast<f32>(cache[conv_column(part, position - back, CHANNELS) + channel]);
        }
        sum = fma(vector_at(p.weight + channel * TAPS + k), value, sum);
    }
    cache[conv_column(part, position, CHANNELS) + channel] = bitcast<u32>(own);
    let value = silu(sum);
    let entry = position % p.ring_capacity;
    if (channel < INNER) {
        cache[part + p.ring_x + entry * INNER + channel] = bitcast<u32>(value);
    } else if (channel < INNER + GROUP_STATE) {
        cache[part + p.ring_b + entry * GROUP_STATE + channel - INNER] = bitcast<u32>(value);
    } else {
        store(p.c, index, channel - INNER - GROUP_STATE, value);
    }
}
