// What a step of one row does with the columns of the input projection: the convolution of a channel, with what the slot keeps
// of it, and dt of a head; both go into the slot's rings. The same as ssm_conv.wgsl, ssm_dt.wgsl and what stores their
// results, to the bit. A thread has a channel: it reads of the slot what it writes there itself, and nobody else does.
// Constants: HEADS, HEAD_DIM, STATE, GROUPS, TAPS. Parameters: weight, bias, dt_bias, c, slots.
const INNER: u32 = HEADS * HEAD_DIM;
const GROUP_STATE: u32 = GROUPS * STATE;
const CHANNELS: u32 = INNER + 2u * GROUP_STATE;

// The convolution but for the row's own column.
fn sum_before(segment: Segment, channel: u32) -> f32 {
    let part = slot_part(segment);
    var sum = vector_at(p.bias + channel);
    for (var k = 0u; k < TAPS - 1u; k++) {
        let back = TAPS - 1u - k;
        if (back <= segment.position) {
            let value = bitcast<f32>(cache[conv_column(part, segment.position - back, CHANNELS) + channel]);
            sum = fma(vector_at(p.weight + channel * TAPS + k), value, sum);
        }
    }
    return sum;
}

// Ends the convolution with the row's own column; `index` is the segment's.
fn end_column(segment: Segment, index: u32, channel: u32, before: f32, own: f32) {
    let part = slot_part(segment);
    let value = silu(fma(vector_at(p.weight + channel * TAPS + TAPS - 1u), own, before));
    cache[conv_column(part, segment.position, CHANNELS) + channel] = bitcast<u32>(own);
    let entry = segment.position % p.ring_capacity;
    if (channel < INNER) {
        cache[part + p.ring_x + entry * INNER + channel] = bitcast<u32>(value);
    } else if (channel < INNER + GROUP_STATE) {
        cache[part + p.ring_b + entry * GROUP_STATE + channel - INNER] = bitcast<u32>(value);
    } else {
        store(p.c, index, channel - INNER - GROUP_STATE, value);
    }
}

fn step_of_head(segment: Segment, head: u32, own: f32) {
    let dt = softplus(own + vector_at(p.dt_bias + head));
    let entry = segment.position % p.ring_capacity;
    cache[slot_part(segment) + p.ring_dt + entry * HEADS + head] = bitcast<u32>(dt);
}
