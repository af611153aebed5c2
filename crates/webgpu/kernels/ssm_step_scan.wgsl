// ssm_step of segments of one row, second part: ssm_scan.wgsl for that row, to the bit, from the rings that
// ssm_step_columns.wgsl has filled. With GATED the output is opened by z, as gated_group_norm.wgsl does it.
//
// A workgroup has a segment and 32 channels of a head. ROUND states of B at a time lie in workgroup memory, where each of 32
// threads has a position of the chunk; all others are at the state meanwhile.
// Constants: HEADS, HEAD_DIM, STATE, GROUPS, STATE_ELEM, GATED, ROUND, B_WORDS (32 positions of ROUND + 1).
#include "common.wgsl"
#include "math.wgsl"
#include "slot.wgsl"

const INNER: u32 = HEADS * HEAD_DIM;
const GROUP_STATE: u32 = GROUPS * STATE;
const LANES: u32 = 32u;
const PARTS: u32 = (HEAD_DIM + LANES - 1u) / LANES;
const SLICES: u32 = 8u;
const SLICE: u32 = (STATE + SLICES - 1u) / SLICES;

// By position ROUND states and one that spreads positions over the banks.
var<workgroup> bs: array<f32, B_WORDS>;
var<workgroup> cs: array<f32, STATE>;
var<workgroup> xs: array<f32, 1024>;
var<workgroup> weights: array<f32, SSM_CHUNK>;
var<workgroup> steps: array<f32, SSM_CHUNK>;
// Sums of dt·a up to a position, the last of which decides what everything before it weighs.
var<workgroup> sums: array<f32, SSM_CHUNK>;
var<workgroup> slices: array<f32, 256>;

struct Place {
    part: u32,
    // Where the chunk starts, in the sequence and in the rings, and its position that is computed.
    start: u32,
    entry: u32,
    t: u32,
    group: u32,
    head: u32,
    first_channel: u32,
}

// Rings hold whole chunks.
fn entry_of(place: Place, s: u32) -> u32 {
    return place.entry + s;
}

fn b_of(place: Place, s: u32, n: u32) -> f32 {
    let at = place.part + p.ring_b + entry_of(place, s) * GROUP_STATE + place.group * STATE + n;
    return bitcast<f32>(cache[at]);
}

fn load_chunk(place: Place, index: u32, thread: u32) {
    let lane = thread % LANES;
    let channel = place.first_channel + lane;
    for (var s = thread / LANES; s <= place.t; s += 8u) {
        var x = 0.0;
        if (channel < HEAD_DIM) {
            x = bitcast<f32>(cache[place.part + p.ring_x + entry_of(place, s) * INNER + place.head * HEAD_DIM + channel]);
        }
        xs[s * LANES + lane] = x;
    }
    for (var n = thread; n < STATE; n += 256u) {
        cs[n] = load(p.c, index, place.group * STATE + n);
    }
    if (thread <= place.t) {
        steps[thread] = bitcast<f32>(cache[place.part + p.ring_dt + entry_of(place, thread) * HEADS + place.head]);
    }
}

// States of B from one on.
fn load_states(place: Place, first: u32, thread: u32) {
    for (var i = thread; i < (place.t + 1u) * ROUND; i += 256u) {
        var b = 0.0;
        if (first + i % ROUND < STATE) {
            b = b_of(place, i / ROUND, first + i % ROUND);
        }
        bs[i / ROUND * (ROUND + 1u) + i % ROUND] = b;
    }
}

// What x_s weighs in y_t, in `weights`; and the carried state's part of every slice, in `slices`.
fn weigh(place: Place, a: f32, thread: u32) {
    var product = 0.0;
    for (var first = 0u; first < STATE; first += ROUND) {
        load_states(place, first, thread);
        workgroupBarrier();
        if (thread <= place.t) {
            for (var i = 0u; i < min(ROUND, STATE - first); i++) {
                product = fma(cs[first + i], bs[thread * (ROUND + 1u) + i], product);
            }
        }
        if (first + ROUND < STATE) {
            workgroupBarrier();
        }
    }
    if (thread <= place.t) {
        var sum = 0.0;
        var own = 0.0;
        for (var s = 0u; s <= place.t; s++) {
            // Compilers may not take the common factor out, in one kernel and not in another.
            sum = sum + settled(steps[s] * a);
            own = select(own, sum, s == thread);
        }
        sums[thread] = own;
        weights[thread] = settled(exp_of(sum - own) * steps[thread]) * product;
    }
    let slice = thread / LANES;
    let channel = place.first_channel + thread % LANES;
    var carried = 0.0;
    if (place.start > 0u && channel < HEAD_DIM) {
        let words = state_words(place.part, place.start, place.head, HEADS);
        for (var n = slice * SLICE; n < min((slice + 1u) * SLICE, STATE); n++) {
            carried = fma(load_state(words, n * HEAD_DIM + channel), cs[n], carried);
        }
    }
    slices[thread] = carried;
    workgroupBarrier();
}

fn write_output(place: Place, row: u32, d: f32, lane: u32) {
    var carried = 0.0;
    for (var slice = 0u; slice < SLICES; slice++) {
        carried = carried + slices[slice * LANES + lane];
    }
    var y = exp_of(sums[place.t]) * carried;
    for (var s = 0u; s <= place.t; s++) {
        y = fma(weights[s], xs[s * LANES + lane], y);
    }
    y = fma(d, xs[place.t * LANES + lane], y);
    let column = place.head * HEAD_DIM + place.first_channel + lane;
    if (GATED == 1u) {
        y = y * silu(load(p.x, row, column));
    }
    store(p.out, row, column, y);
}

// An element of the state at the end of a full chunk; `weights` has what B_s weighs.
fn next_state(place: Place, words: u32, keep: f32, n: u32, channel: u32, lane: u32) -> f32 {
    var value = 0.0;
    if (place.start > 0u) {
        value = keep * load_state(words, n * HEAD_DIM + channel);
    }
    for (var s = 0u; s < SSM_CHUNK; s++) {
        value = fma(weights[s] * b_of(place, s, n), xs[s * LANES + lane], value);
    }
    return value;
}

fn advance(place: Place, thread: u32) {
    let first_channel = place.first_channel;
    let last = sums[SSM_CHUNK - 1u];
    workgroupBarrier();
    if (thread < SSM_CHUNK) {
        weights[thread] = exp_of(last - sums[thread]) * steps[thread];
    }
    workgroupBarrier();
    let next = place.start + SSM_CHUNK;
    let origin = state_words(place.part, place.start, place.head, HEADS);
    let to = state_words(place.part, next, place.head, HEADS);
    let keep = exp_of(last);
    if (STATE_ELEM == 0u) {
        for (var i = thread; i < STATE * LANES; i += 256u) {
            let channel = first_channel + i % LANES;
            if (channel < HEAD_DIM) {
                let value = next_state(place, origin, keep, i / LANES, channel, i % LANES);
                cache[to + i / LANES * HEAD_DIM + channel] = bitcast<u32>(value);
            }
        }
        return;
    }
    // Two elements a word: neighbouring channels, or, of an odd number of them, of which there is one part, any.
    let seed = state_seed(place.head, next / SSM_CHUNK);
    let channels = min(LANES, HEAD_DIM - first_channel);
    let count = STATE * channels;
    for (var i = thread; i < (count + 1u) / 2u; i += 256u) {
        var word = 0u;
        let n = 2u * i / channels;
        let element = n * HEAD_DIM + first_channel + 2u * i % channels;
        for (var half = 0u; half < 2u; half++) {
            var value = 0.0;
            let index = element + half;
            if (2u * i + half < count) {
                let channel = index % HEAD_DIM;
                value = next_state(place, origin, keep, index / HEAD_DIM, channel, channel - first_channel);
            }
            word |= narrow_state(value, seed, index) << (half * 16u);
        }
        cache[to + element / 2u] = word;
    }
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let index = workgroup.z * GRID_ROWS + workgroup.y;
    if (index >= step[STEP_SEGMENT_COUNT]) {
        return;
    }
    let head = workgroup.x / PARTS;
    let first_channel = workgroup.x % PARTS * LANES;
    let segment = segment_at(index);
    let start = segment.position / SSM_CHUNK * SSM_CHUNK;
    let place = Place(
        slot_part(segment), start, start % p.ring_capacity, segment.position - start, head / (HEADS / GROUPS), head,
        first_channel,
    );
    load_chunk(place, index, thread);
    weigh(place, vector_at(p.a + head), thread);
    if (thread < LANES && first_channel + thread < HEAD_DIM) {
        write_output(place, segment.first_row, vector_at(p.d + head), thread);
    }
    if (place.t == SSM_CHUNK - 1u) {
        advance(place, thread);
    }
}
