// One layer's parts of the recurrent slots in `cache`, as the contract lays them out; offsets count words.
// Parameters: slot_words, state, head_stride, chunks, conv, conv_capacity, ring_x, ring_b, ring_dt, ring_capacity, layer.
#include "numbers.wgsl"

fn slot_part(segment: Segment) -> u32 {
    return segment.slot * p.slot_words;
}

fn conv_column(part: u32, position: u32, channels: u32) -> u32 {
    return part + p.conv + position % p.conv_capacity * channels;
}

// The first word of a head's state at the start of the chunk that holds a position.
fn state_words(part: u32, position: u32, head: u32, heads: u32) -> u32 {
    return part + p.state + (position / SSM_CHUNK % p.chunks * heads + head) * p.head_stride;
}

fn scramble(x: u32) -> u32 {
    let a = (x ^ (x >> 16u)) * 0x85ebca6bu;
    let b = (a ^ (a >> 13u)) * 0xc2b2ae35u;
    return b ^ (b >> 16u);
}

const SPREAD: u32 = 0x9e3779b9u;

// Where the random bits of a head's state at the start of a chunk begin.
fn state_seed(head: u32, chunk: u32) -> u32 {
    let of_layer = scramble(SPREAD ^ p.layer) + SPREAD;
    let of_head = scramble(of_layer ^ head) + SPREAD;
    return scramble(of_head ^ chunk) + SPREAD;
}

// One of the two f16 next to a value, by the top thirteen random bits.
fn f16_stochastic(value: f32, random: u32) -> u32 {
    if (value != value) {
        return 0x7e00u;
    }
    let size = min(abs(value), 65504.0);
    let offset = select(0.0, 6.103515625e-5, size < 6.103515625e-5);
    let bits = bitcast<u32>(size + offset) + (random >> 19u);
    let kept = bitcast<f32>(bits & ~0x1fffu) - offset;
    return f16_bits(kept) | ((bitcast<u32>(value) >> 16u) & 0x8000u);
}

// An element of a state that starts at a word. Constants: STATE_ELEM (0 f32, 1 f16, 2 bf16).
fn load_state(words: u32, index: u32) -> f32 {
    if (STATE_ELEM == 0u) {
        return bitcast<f32>(cache[words + index]);
    }
    let bits = (cache[words + index / 2u] >> ((index & 1u) * 16u)) & 0xffffu;
    if (STATE_ELEM == 1u) {
        return f16_value(bits);
    }
    return bf16_value(bits);
}

// The stored bits of an element of a narrow state.
fn narrow_state(value: f32, seed: u32, index: u32) -> u32 {
    if (STATE_ELEM == 1u) {
        return f16_stochastic(value, scramble(index * SPREAD + seed));
    }
    return bf16_bits(value);
}
