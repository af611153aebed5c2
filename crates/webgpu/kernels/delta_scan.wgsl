// delta_scan in its chunked form: with c the running sum of g from the start of a chunk, and S0 the state there,
//   u_t = beta_t·(v_t − exp(c_t)·S0ᵀk_t − Σ_{s<t} exp(c_t − c_s)·(k_s·k_t)·u_s)
//   y_t = exp(c_t)·S0ᵀq_t + Σ_{s<=t} exp(c_t − c_s)·(k_s·q_t)·u_s
//   S1  = exp(c_Q)·S0 + Σ_s exp(c_Q − c_s)·k_s ⊗ u_s at the chunk's end.
//
// A workgroup has a segment and 32 channels of a head and walks the segment's chunks, eight positions at a time. Channels
// are independent of each other, so the triangular system is solved by 32 threads, a channel each.
// Constants: HEADS, HEAD_DIM, STATE, GROUPS, STATE_ELEM.
#include "common.wgsl"
#include "math.wgsl"
#include "slot.wgsl"
#include "delta.wgsl"

const LANES: u32 = 32u;
const PARTS: u32 = (HEAD_DIM + LANES - 1u) / LANES;
const THREADS: u32 = 128u;
const SLICES: u32 = 4u;
const SLICE: u32 = (STATE + SLICES - 1u) / SLICES;
const TIMES: u32 = 8u;

// By state row: k or q of eight positions; then every thread's sums of eight positions.
var<workgroup> columns: array<vec4<f32>, 256>;
// u by position and lane.
var<workgroup> us: array<f32, 1024>;
// What u_s weighs in u_t and y_t, by position of the group and s.
var<workgroup> in_u: array<f32, 256>;
var<workgroup> in_y: array<f32, 256>;
// What the state gives for k and q, by position of the group and lane.
var<workgroup> carried_k: array<f32, 256>;
var<workgroup> carried_q: array<f32, 256>;
var<workgroup> decays: array<f32, SSM_CHUNK>;
var<workgroup> sums: array<f32, SSM_CHUNK>;
var<workgroup> strengths: array<f32, SSM_CHUNK>;
var<workgroup> k_scales: array<f32, SSM_CHUNK>;
var<workgroup> q_scales: array<f32, SSM_CHUNK>;

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

fn k_of(chunk: Chunk, s: u32, group: u32, n: u32) -> f32 {
    if (s < chunk.fresh) {
        return bitcast<f32>(cache[chunk.part + p.ring_b + entry_of(chunk, s) * GROUP_STATE + group * STATE + n]);
    }
    return load(p.qkv, row_of(chunk, s), GROUP_STATE + group * STATE + n) * k_scales[s];
}

fn q_of(chunk: Chunk, t: u32, group: u32, n: u32) -> f32 {
    return load(p.qkv, row_of(chunk, t), group * STATE + n) * q_scales[t];
}

fn load_chunk(chunk: Chunk, head: u32, first_channel: u32, thread: u32) {
    let group = head / (HEADS / GROUPS);
    for (var i = thread; i < chunk.fresh * LANES; i += THREADS) {
        let channel = first_channel + i % LANES;
        if (channel < HEAD_DIM) {
            let entry = entry_of(chunk, i / LANES);
            us[i] = bitcast<f32>(cache[chunk.part + p.ring_x + entry * INNER + head * HEAD_DIM + channel]);
        }
    }
    if (thread < chunk.end) {
        if (thread < chunk.fresh) {
            decays[thread] = bitcast<f32>(cache[chunk.part + p.ring_dt + entry_of(chunk, thread) * HEADS + head]);
        } else {
            let row = row_of(chunk, thread);
            decays[thread] = decay_of(row, head);
            strengths[thread] = sigmoid(load(p.strength, row, head));
            k_scales[thread] = unit_scale(row, GROUP_STATE + group * STATE, 1.0);
            q_scales[thread] = unit_scale(row, group * STATE, f32(STATE));
        }
    }
    workgroupBarrier();
    if (thread == 0u) {
        var sum = 0.0;
        for (var s = 0u; s < chunk.end; s++) {
            sum = sum + decays[s];
            sums[s] = sum;
        }
    }
    workgroupBarrier();
}

// What the state gives for k or q of the eight positions from `first` on.
fn carry(chunk: Chunk, first: u32, head: u32, first_channel: u32, of_q: bool, thread: u32) {
    let group = head / (HEADS / GROUPS);
    for (var i = thread; i < STATE * 2u; i += THREADS) {
        var values = vec4<f32>(0.0);
        for (var j = 0u; j < 4u; j++) {
            let t = first + i % 2u * 4u + j;
            if (t < chunk.fresh || t >= chunk.end) {
                continue;
            }
            if (of_q) {
                values[j] = q_of(chunk, t, group, i / 2u);
            } else {
                values[j] = k_of(chunk, t, group, i / 2u);
            }
        }
        columns[i] = values;
    }
    workgroupBarrier();
    let lane = thread % LANES;
    let slice = thread / LANES;
    var low = vec4<f32>(0.0);
    var high = vec4<f32>(0.0);
    if (chunk.start > 0u && first_channel + lane < HEAD_DIM) {
        let words = state_words(chunk.part, chunk.start, head, HEADS);
        for (var n = slice * SLICE; n < min((slice + 1u) * SLICE, STATE); n++) {
            let value = load_state(words, n * HEAD_DIM + first_channel + lane);
            low = fma(vec4<f32>(value), columns[2u * n], low);
            high = fma(vec4<f32>(value), columns[2u * n + 1u], high);
        }
    }
    workgroupBarrier();
    columns[2u * thread] = low;
    columns[2u * thread + 1u] = high;
    workgroupBarrier();
    for (var i = thread; i < TIMES * LANES; i += THREADS) {
        let own = i / LANES;
        var sum = 0.0;
        for (var s = 0u; s < SLICES; s++) {
            sum = sum + columns[2u * (s * LANES + i % LANES) + own / 4u][own % 4u];
        }
        if (of_q) {
            carried_q[i] = sum;
        } else {
            carried_k[i] = sum;
        }
    }
    workgroupBarrier();
}

fn weigh(chunk: Chunk, first: u32, group: u32, thread: u32) {
    for (var i = thread; i < TIMES * SSM_CHUNK; i += THREADS) {
        let t = first + i / SSM_CHUNK;
        let s = i % SSM_CHUNK;
        if (t < chunk.fresh || t >= chunk.end || s > t) {
            continue;
        }
        var of_k = 0.0;
        var of_q = 0.0;
        for (var n = 0u; n < STATE; n++) {
            let k = k_of(chunk, s, group, n);
            of_k = fma(k_of(chunk, t, group, n), k, of_k);
            of_q = fma(q_of(chunk, t, group, n), k, of_q);
        }
        let decay = exp_of(sums[t] - sums[s]);
        in_u[i] = -(decay * of_k);
        in_y[i] = decay * of_q;
    }
    workgroupBarrier();
}

fn solve(chunk: Chunk, first: u32, head: u32, first_channel: u32, lane: u32) {
    if (first_channel + lane >= HEAD_DIM) {
        return;
    }
    let column = head * HEAD_DIM + first_channel + lane;
    for (var t = max(first, chunk.fresh); t < min(first + TIMES, chunk.end); t++) {
        let row = row_of(chunk, t);
        let own = (t - first) * LANES;
        let decay = exp_of(sums[t]);
        var u = fma(-decay, carried_k[own + lane], load(p.qkv, row, 2u * GROUP_STATE + column));
        var y = decay * carried_q[own + lane];
        for (var s = 0u; s < t; s++) {
            let earlier = us[s * LANES + lane];
            u = fma(in_u[own + s], earlier, u);
            y = fma(in_y[own + s], earlier, y);
        }
        u = strengths[t] * u;
        us[t * LANES + lane] = u;
        store(p.out, row, column, fma(in_y[own + t], u, y));
        // Nobody else reads these channels of the ring, and what stood there has been read.
        cache[chunk.part + p.ring_x + entry_of(chunk, t) * INNER + column] = bitcast<u32>(u);
    }
}

// An element of the state at the end of a full chunk; `in_u` has what k_s weighs.
fn next_state(chunk: Chunk, words: u32, group: u32, keep: f32, n: u32, channel: u32, lane: u32) -> f32 {
    var value = 0.0;
    if (chunk.start > 0u) {
        value = keep * load_state(words, n * HEAD_DIM + channel);
    }
    for (var s = 0u; s < SSM_CHUNK; s++) {
        value = fma(in_u[s] * k_of(chunk, s, group, n), us[s * LANES + lane], value);
    }
    return value;
}

fn advance(chunk: Chunk, head: u32, first_channel: u32, thread: u32) {
    let group = head / (HEADS / GROUPS);
    let last = sums[SSM_CHUNK - 1u];
    if (thread < SSM_CHUNK) {
        in_u[thread] = exp_of(last - sums[thread]);
    }
    workgroupBarrier();
    let next = chunk.start + SSM_CHUNK;
    let origin = state_words(chunk.part, chunk.start, head, HEADS);
    let to = state_words(chunk.part, next, head, HEADS);
    let keep = exp_of(last);
    if (STATE_ELEM == 0u) {
        for (var i = thread; i < STATE * LANES; i += THREADS) {
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
    for (var i = thread; i < (count + 1u) / 2u; i += THREADS) {
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

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let index = workgroup.z * GRID_ROWS + workgroup.y;
    if (index >= step[STEP_SEGMENT_COUNT]) {
        return;
    }
    let head = workgroup.x / PARTS;
    let first_channel = workgroup.x % PARTS * LANES;
    let segment = segment_at(index);
    var position = segment.position;
    let stop = segment.position + segment.rows;
    while (position < stop) {
        let start = position / SSM_CHUNK * SSM_CHUNK;
        let chunk = Chunk(segment, slot_part(segment), start, position - start, min(stop - start, SSM_CHUNK));
        load_chunk(chunk, head, first_channel, thread);
        for (var first = chunk.fresh / TIMES * TIMES; first < chunk.end; first += TIMES) {
            carry(chunk, first, head, first_channel, false, thread);
            carry(chunk, first, head, first_channel, true, thread);
            weigh(chunk, first, head / (HEADS / GROUPS), thread);
            if (thread < LANES) {
                solve(chunk, first, head, first_channel, thread);
            }
            workgroupBarrier();
        }
        if (chunk.end == SSM_CHUNK) {
            advance(chunk, head, first_channel, thread);
        }
        storageBarrier();
        workgroupBarrier();
        position = start + chunk.end;
    }
}
