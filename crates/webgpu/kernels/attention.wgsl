// attention: a softmax over the cached positions that a row sees, in splits of eight pages; attention_merge.wgsl adds the
// splits of a row in order. Every row goes through both, so that its sums are the same whoever computes beside it.
//
// A workgroup has a row, up to four query heads of a key head, and a split. Of a page every thread computes one score,
// a head and a position, then channels of the values for all four heads.
// Left for every (row, head, split): the largest score, the sum of weights, the weighted sum of values.
// Constants: those of kv.wgsl, GROUP (query heads of a key head), CAPPED.
#include "common.wgsl"
#include "math.wgsl"
#include "kv.wgsl"

const THREADS: u32 = 128u;
const HEADS: u32 = 4u;
const SPLIT_PAGES: u32 = 8u;
const LOWEST: f32 = -3.0e38;
const CHANNELS: u32 = (HEAD_DIM + THREADS - 1u) / THREADS;

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
        if (head < heads && at <= position && at >= first_seen) {
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
            // Positions beyond the row may hold anything, and nothing of it may be a factor of zero.
            let last = min(position - page_index * PAGE_TOKENS, PAGE_TOKENS - 1u);
            for (var s = 0u; s <= last; s++) {
                sum = fma(weights_at(s), vec4<f32>(cached(V_ELEM, p.v_scale, values, s, c)), sum);
            }
            sums[i] = sum;
        }
    }
    let splits = min((step[STEP_END] + SPLIT_PAGES * PAGE_TOKENS - 1u) / (SPLIT_PAGES * PAGE_TOKENS), p.most_splits);
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
