// attention: a softmax over the cached positions that a row sees, in splits of eight pages; attention_merge.wgsl adds the
// splits of a row in order. Every row goes through both, so that its sums are the same whoever computes beside it.
//
// A workgroup has a row, up to four query heads of a key head, and a split. Of a page every thread computes one score,
// a head and a position, then channels of the values for all four heads.
// Left for every (row, head, split): the largest score, the sum of weights, the weighted sum of values.
// Constants: those of kv.wgsl, GROUP (query heads of a key head), CAPPED, IS_WHOLE (0, 1).
#include "common.wgsl"
#include "math.wgsl"
#include "kv.wgsl"

const THREADS: u32 = 128u;
const HEADS: u32 = 4u;
const SPLIT_PAGES: u32 = 8u;
const LOWEST: f32 = -3.0e38;
const CHANNELS: u32 = (HEAD_DIM + THREADS - 1u) / THREADS;

// Keys of a page lie in workgroup memory, some words of every position at a time, where rows are whole words.
const K_BYTES: u32 = select(select(1u, 2u, K_ELEM == 1u || K_ELEM == 2u), 4u, K_ELEM == 0u);
const K_WORDS: u32 = HEAD_DIM * K_BYTES / 4u;
const IS_STAGED: bool = HEAD_DIM * K_BYTES % 4u == 0u;
const ROUND: u32 = 32u;

// By position ROUND words and one that spreads positions over the banks.
var<workgroup> key_tile: array<u32, 1056>;
var<workgroup> queries: array<f32, QUERY_WORDS>;
// By position the four heads' scores, and their weights: numbers, because threads may not share a vector that they write.
var<workgroup> scores: array<f32, THREADS>;
var<workgroup> weights: array<f32, THREADS>;

fn score_of(product: f32) -> f32 {
    let score = product * p.scale;
    if (CAPPED == 1u) {
        return p.soft_cap * tanh_of(score / p.soft_cap);
    }
    return score;
}

fn scores_at(slot: u32) -> vec4<f32> {
    return vec4<f32>(scores[4u * slot], scores[4u * slot + 1u], scores[4u * slot + 2u], scores[4u * slot + 3u]);
}

fn weights_at(slot: u32) -> vec4<f32> {
    return vec4<f32>(weights[4u * slot], weights[4u * slot + 1u], weights[4u * slot + 2u], weights[4u * slot + 3u]);
}

fn value_at(values: u32, slot: u32, channel: u32, last: u32) -> f32 {
    return select(0.0, cached(V_ELEM, p.v_scale, values, slot, channel), slot <= last);
}

// The product of a head's query and the key of a position; called by all threads.
fn staged_product(keys: u32, head: u32, slot: u32, is_seen: bool, thread: u32) -> f32 {
    var product = 0.0;
    for (var first = 0u; first < K_WORDS; first += ROUND) {
        let count = min(ROUND, K_WORDS - first);
        for (var i = thread; i < PAGE_TOKENS * ROUND; i += THREADS) {
            if (i % ROUND < count) {
                key_tile[i / ROUND * (ROUND + 1u) + i % ROUND] = cache[keys + i / ROUND * K_WORDS + first + i % ROUND];
            }
        }
        workgroupBarrier();
        for (var w = 0u; is_seen && w < count; w++) {
            let word = key_tile[slot * (ROUND + 1u) + w];
            let channel = (first + w) * (4u / K_BYTES);
            let block = block_scale(K_ELEM, p.k_scale, keys, slot, channel);
            for (var i = 0u; i < 4u / K_BYTES; i++) {
                let key = decoded(K_ELEM, word >> (i * K_BYTES * 8u % 32u), block);
                product = fma(queries[head * HEAD_DIM + channel + i], key, product);
            }
        }
        workgroupBarrier();
    }
    return product;
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = p.first_row + group.y;
    if (row >= step[STEP_ROWS]) {
        return;
    }
    let segment = segment_of(row);
    let position = segment.position + (row - segment.first_row);
    let head_tiles = (GROUP + HEADS - 1u) / HEADS;
    let kv_head = group.x / head_tiles;
    let first_in_group = group.x % head_tiles * HEADS;
    let heads = min(HEADS, GROUP - first_in_group);
    let first_head = kv_head * GROUP + first_in_group;
    let first_seen = select(0u, position + 1u - min(p.window, position + 1u), p.window > 0u);
    let split = first_seen / (SPLIT_PAGES * PAGE_TOKENS) + group.z;
    let begin = max(split * SPLIT_PAGES, first_seen / PAGE_TOKENS);
    let end = min((split + 1u) * SPLIT_PAGES, position / PAGE_TOKENS + 1u);
    if (split * SPLIT_PAGES * PAGE_TOKENS > position) {
        return;
    }
    for (var i = thread; i < heads * HEAD_DIM; i += THREADS) {
        queries[i] = load(p.q, row, first_head * HEAD_DIM + i);
    }
    // Every thread has these for itself, and all have the same.
    var largest = vec4<f32>(LOWEST);
    var totals = vec4<f32>(0.0);
    var sums: array<vec4<f32>, CHANNELS>;
    for (var i = 0u; i < CHANNELS; i++) {
        sums[i] = vec4<f32>(0.0);
    }
    workgroupBarrier();
    for (var page_index = begin; page_index < end; page_index++) {
        let page = page_of(segment, page_index * PAGE_TOKENS);
        let keys = key_words(page, kv_head);
        let values = value_words(page, kv_head);
        let head = thread / PAGE_TOKENS;
        let slot = thread % PAGE_TOKENS;
        let at = page_index * PAGE_TOKENS + slot;
        var score = LOWEST;
        let is_seen = head < heads && at <= position && at >= first_seen;
        if (IS_STAGED) {
            let product = staged_product(keys, head, slot, is_seen, thread);
            score = select(LOWEST, score_of(product), is_seen);
        } else if (is_seen) {
            var product = 0.0;
            for (var c = 0u; c < HEAD_DIM; c++) {
                product = fma(queries[head * HEAD_DIM + c], cached(K_ELEM, p.k_scale, keys, slot, c), product);
            }
            score = score_of(product);
        }
        scores[4u * slot + head] = score;
        workgroupBarrier();
        var most = largest;
        for (var i = 0u; i < PAGE_TOKENS; i++) {
            most = max(most, scores_at(i));
        }
        let fall = largest - most;
        let factor = vec4<f32>(exp_of(fall.x), exp_of(fall.y), exp_of(fall.z), exp_of(fall.w));
        largest = most;
        weights[4u * slot + head] = select(exp_of(score - most[head]), 0.0, score == LOWEST);
        workgroupBarrier();
        totals = totals * factor;
        for (var i = 0u; i < PAGE_TOKENS; i++) {
            totals = totals + weights_at(i);
        }
        for (var i = 0u; i < CHANNELS; i++) {
            let c = thread + i * THREADS;
            if (c >= HEAD_DIM) {
                break;
            }
            var sum = sums[i] * factor;
            // Positions beyond the row may hold anything, and nothing of it may be a factor of zero. Eight are on their way
            // at once.
            let last = min(position - page_index * PAGE_TOKENS, PAGE_TOKENS - 1u);
            for (var s = 0u; s < PAGE_TOKENS; s += 8u) {
                let v0 = value_at(values, s, c, last);
                let v1 = value_at(values, s + 1u, c, last);
                let v2 = value_at(values, s + 2u, c, last);
                let v3 = value_at(values, s + 3u, c, last);
                let v4 = value_at(values, s + 4u, c, last);
                let v5 = value_at(values, s + 5u, c, last);
                let v6 = value_at(values, s + 6u, c, last);
                let v7 = value_at(values, s + 7u, c, last);
                sum = fma(weights_at(s), vec4<f32>(v0), sum);
                sum = fma(weights_at(s + 1u), vec4<f32>(v1), sum);
                sum = fma(weights_at(s + 2u), vec4<f32>(v2), sum);
                sum = fma(weights_at(s + 3u), vec4<f32>(v3), sum);
                sum = fma(weights_at(s + 4u), vec4<f32>(v4), sum);
                sum = fma(weights_at(s + 5u), vec4<f32>(v5), sum);
                sum = fma(weights_at(s + 6u), vec4<f32>(v6), sum);
                sum = fma(weights_at(s + 7u), vec4<f32>(v7), sum);
            }
            sums[i] = sum;
        }
    }
    let splits = min((step[STEP_END] + SPLIT_PAGES * PAGE_TOKENS - 1u) / (SPLIT_PAGES * PAGE_TOKENS), p.most_splits);
    // A row of a single split has nothing to be merged with: the host leaves attention_merge.wgsl out.
    if (IS_WHOLE == 1u) {
        for (var i = 0u; i < CHANNELS; i++) {
            let c = thread + i * THREADS;
            for (var h = 0u; c < HEAD_DIM && h < heads; h++) {
                store(p.out, row, (first_head + h) * HEAD_DIM + c, sums[i][h] / totals[h]);
            }
        }
        return;
    }
    let result = p.results + ((group.y * KV_HEADS * GROUP + first_head) * splits + group.z) * (HEAD_DIM + 2u);
    let next_head = splits * (HEAD_DIM + 2u);
    if (thread < heads) {
        arena[result + thread * next_head] = bitcast<u32>(largest[thread]);
        arena[result + thread * next_head + 1u] = bitcast<u32>(totals[thread]);
    }
    for (var i = 0u; i < CHANNELS; i++) {
        let c = thread + i * THREADS;
        if (c >= HEAD_DIM) {
            break;
        }
        for (var h = 0u; h < heads; h++) {
            arena[result + h * next_head + 2u + c] = bitcast<u32>(sums[i][h]);
        }
    }
}
