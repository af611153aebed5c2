// ssm_scan in its chunked form: with c the running sum of dt·a from the start of a chunk, and S0 the state there,
//   y_t = exp(c_t)·S0ᵀC_t + Σ_{s<=t} exp(c_t − c_s)·dt_s·(C_t·B_s)·x_s + D·x_t
//   S1  = exp(c_Q)·S0 + Σ_s exp(c_Q − c_s)·dt_s·B_s ⊗ x_s at the chunk's end.
//
// A workgroup has a segment and 32 channels of a head and walks the segment's chunks, outputs eight positions at a time.
// What the slot has of the chunk before the segment is read from its rings; ssm_scan_store.wgsl fills those afterwards.
// Every sum runs in one order, over states in eight slices that are added in order: one token costs one reading of
// the state, and none writes it but the last of a chunk.
// Constants: HEADS, HEAD_DIM, STATE, GROUPS, STATE_ELEM.
#include "common.wgsl"
#include "math.wgsl"
#include "slot.wgsl"

const INNER: u32 = HEADS * HEAD_DIM;
const GROUP_STATE: u32 = GROUPS * STATE;
const LANES: u32 = 32u;
const PARTS: u32 = (HEAD_DIM + LANES - 1u) / LANES;
const SLICES: u32 = 8u;
const SLICE: u32 = (STATE + SLICES - 1u) / SLICES;
const TIMES: u32 = 8u;

// By state row: C of eight positions; then every thread's sums of eight positions.
var<workgroup> columns: array<vec4<f32>, 512>;
// x by position and lane.
var<workgroup> xs: array<f32, 1024>;
// What x_s weighs in y_t, by position of the group and s.
var<workgroup> weights: array<f32, 256>;
// B by position: sixteen states, and one that spreads positions over the banks.
var<workgroup> bs: array<f32, 544>;
var<workgroup> steps: array<f32, SSM_CHUNK>;
var<workgroup> sums: array<f32, SSM_CHUNK>;

// A chunk of a segment: positions 0 .. end of the chunk at `start` are known, from `fresh` on they are computed now.
struct Chunk {
    segment: Segment,
    part: u32,
    start: u32,
    fresh: u32,
    end: u32,
}

fn row_of(chunk: Chunk, s: u32) -> u32 {
    return chunk.segment.first_row + (chunk.start + s - chunk.segment.position);
}

fn entry_of(chunk: Chunk, s: u32) -> u32 {
    return (chunk.start + s) % p.ring_capacity;
}

fn b_of(chunk: Chunk, s: u32, group: u32, n: u32) -> f32 {
    if (s < chunk.fresh) {
        return bitcast<f32>(cache[chunk.part + p.ring_b + entry_of(chunk, s) * GROUP_STATE + group * STATE + n]);
    }
    return load(p.xbc, row_of(chunk, s), INNER + group * STATE + n);
}

fn load_chunk(chunk: Chunk, head: u32, first_channel: u32, a: f32, thread: u32) {
    for (var i = thread; i < chunk.end * LANES; i += 256u) {
        let s = i / LANES;
        let channel = first_channel + i % LANES;
        var x = 0.0;
        if (channel < HEAD_DIM) {
            if (s < chunk.fresh) {
                x = bitcast<f32>(cache[chunk.part + p.ring_x + entry_of(chunk, s) * INNER + head * HEAD_DIM + channel]);
            } else {
                x = load(p.xbc, row_of(chunk, s), head * HEAD_DIM + channel);
            }
        }
        xs[i] = x;
    }
    if (thread < chunk.end) {
        if (thread < chunk.fresh) {
            steps[thread] = bitcast<f32>(cache[chunk.part + p.ring_dt + entry_of(chunk, thread) * HEADS + head]);
        } else {
            steps[thread] = load(p.dt, row_of(chunk, thread), head);
        }
    }
    workgroupBarrier();
    if (thread == 0u) {
        var sum = 0.0;
        for (var s = 0u; s < chunk.end; s++) {
            // Compilers may not take the common factor out, in one kernel and not in another.
            sum = sum + settled(steps[s] * a);
            sums[s] = sum;
        }
    }
    workgroupBarrier();
}

// Outputs of the eight positions from `first` on.
fn write_outputs(chunk: Chunk, first: u32, head: u32, first_channel: u32, d: f32, thread: u32) {
    let group = head / (HEADS / GROUPS);
    let has_state = chunk.start > 0u;
    for (var i = thread; i < STATE * 2u; i += 256u) {
        var c = vec4<f32>(0.0);
        for (var j = 0u; j < 4u; j++) {
            let t = first + i % 2u * 4u + j;
            if (t >= chunk.fresh && t < chunk.end) {
                c[j] = load(p.xbc, row_of(chunk, t), INNER + GROUP_STATE + group * STATE + i / 2u);
            }
        }
        columns[i] = c;
    }
    let own = thread / LANES;
    let lane = thread % LANES;
    let t = first + own;
    let is_fresh = t >= chunk.fresh && t < chunk.end;
    workgroupBarrier();
    var product = 0.0;
    for (var first_state = 0u; first_state < STATE; first_state += 16u) {
        for (var i = thread; i < 16u * SSM_CHUNK; i += 256u) {
            var b = 0.0;
            if (i / 16u < chunk.end && first_state + i % 16u < STATE) {
                b = b_of(chunk, i / 16u, group, first_state + i % 16u);
            }
            bs[i / 16u * 17u + i % 16u] = b;
        }
        workgroupBarrier();
        for (var n = 0u; n < min(16u, STATE - first_state); n++) {
            product = fma(columns[2u * (first_state + n) + own / 4u][own % 4u], bs[lane * 17u + n], product);
        }
        workgroupBarrier();
    }
    if (is_fresh && lane <= t) {
        weights[thread] = settled(exp_of(sums[t] - sums[lane]) * steps[lane]) * product;
    }
    var low = vec4<f32>(0.0);
    var high = vec4<f32>(0.0);
    if (has_state && first_channel + lane < HEAD_DIM) {
        let words = state_words(chunk.part, chunk.start, head, HEADS);
        for (var n = own * SLICE; n < min((own + 1u) * SLICE, STATE); n++) {
            let value = load_state(words, n * HEAD_DIM + first_channel + lane);
            low = fma(vec4<f32>(value), columns[2u * n], low);
            high = fma(vec4<f32>(value), columns[2u * n + 1u], high);
        }
    }
    workgroupBarrier();
    columns[2u * thread] = low;
    columns[2u * thread + 1u] = high;
    workgroupBarrier();
    if (is_fresh && first_channel + lane < HEAD_DIM) {
        var carried = 0.0;
        for (var slice = 0u; slice < SLICES; slice++) {
            carried = carried + columns[2u * (slice * LANES + lane) + own / 4u][own % 4u];
        }
        var y = exp_of(sums[t]) * carried;
        for (var s = 0u; s <= t; s++) {
            y = fma(weights[own * LANES + s], xs[s * LANES + lane], y);
        }
        y = fma(d, xs[t * LANES + lane], y);
        store(p.out, row_of(chunk, t), head * HEAD_DIM + first_channel + lane, y);
    }
    workgroupBarrier();
}

// An element of the state at the end of a full chunk; `weights` has what B_s weighs.
fn next_state(chunk: Chunk, words: u32, group: u32, keep: f32, n: u32, channel: u32, lane: u32) -> f32 {
    var value = 0.0;
    if (chunk.start > 0u) {
        value = keep * load_state(words, n * HEAD_DIM + channel);
    }
    for (var s = 0u; s < SSM_CHUNK; s++) {
        value = fma(weights[s] * b_of(chunk, s, group, n), xs[s * LANES + lane], value);
    }
    return value;
}

fn advance(chunk: Chunk, head: u32, first_channel: u32, thread: u32) {
    let group = head / (HEADS / GROUPS);
    let last = sums[SSM_CHUNK - 1u];
    if (thread < SSM_CHUNK) {
        weights[thread] = exp_of(last - sums[thread]) * steps[thread];
    }
    workgroupBarrier();
    let next = chunk.start + SSM_CHUNK;
    let origin = state_words(chunk.part, chunk.start, head, HEADS);
    let to = state_words(chunk.part, next, head, HEADS);
    let keep = exp_of(last);
    if (STATE_ELEM == 0u) {
        for (var i = thread; i < STATE * LANES; i += 256u) {
            let channel = first_channel + i % LANES;
            if (channel < HEAD_DIM) {
                let value = next_state(chunk, origin, group, keep, i / LANES, channel, i % LANES);
                cache[to + i / LANES * HEAD_DIM + channel] = bitcast<u32>(value);
            }
        }
        return;
    }
    // Two elements a word: neighbouring channels, or, of an odd number of them, of which there is one part, any.
    let seed = state_seed(head, next / SSM_CHUNK);
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
                value = next_state(chunk, origin, group, keep, index / HEAD_DIM, channel, channel - first_channel);
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
    let a = vector_at(p.a + head);
    let d = vector_at(p.d + head);
    var position = segment.position;
    let stop = segment.position + segment.rows;
    while (position < stop) {
        let start = position / SSM_CHUNK * SSM_CHUNK;
        let chunk = Chunk(segment, slot_part(segment), start, position - start, min(stop - start, SSM_CHUNK));
        load_chunk(chunk, head, first_channel, a, thread);
        for (var first = chunk.fresh / TIMES * TIMES; first < chunk.end; first += TIMES) {
            write_outputs(chunk, first, head, first_channel, d, thread);
        }
        if (chunk.end == SSM_CHUNK) {
            advance(chunk, head, first_channel, thread);
        }
        storageBarrier();
        workgroupBarrier();
        position = start + chunk.end;
    }
}
