// moe_route: s = sigmoid(logits) or softmax(logits); experts are chosen by s + bias, ties to the lower index, within the
// best groups where there are several; weights are s, divided by their sum if normalised, times a factor.
//
// A workgroup has a row. An expert's place is the number of experts that come before it, which needs no sorting.
// Constants: EXPERTS, TOP_K, GROUPS, TOP_GROUPS, SOFTMAX, NORMALIZE.
#include "common.wgsl"
#include "math.wgsl"
#include "route_key.wgsl"
#include "sums.wgsl"

const GROUP_SIZE: u32 = EXPERTS / GROUPS;

var<workgroup> scores: array<f32, EXPERTS>;
var<workgroup> keys: array<u32, EXPERTS>;
var<workgroup> group_keys: array<u32, GROUPS>;
var<workgroup> ids: array<u32, TOP_K>;

fn key_value(key: u32) -> f32 {
    return bitcast<f32>(select(~key, key & 0x7fffffffu, (key & 0x80000000u) != 0u));
}

fn score_all(row: u32, thread: u32) {
    if (SOFTMAX == 0u) {
        for (var e = thread; e < EXPERTS; e += SUM_THREADS) {
            scores[e] = sigmoid(load(p.logits, row, e));
        }
        return;
    }
    var largest = load(p.logits, row, 0u);
    for (var e = 1u; e < EXPERTS; e++) {
        largest = max(largest, load(p.logits, row, e));
    }
    var sum = 0.0;
    for (var e = thread; e < EXPERTS; e += SUM_THREADS) {
        let power = exp_of(load(p.logits, row, e) - largest);
        scores[e] = power;
        sum = sum + power;
    }
    let total = sum_of(sum, thread);
    for (var e = thread; e < EXPERTS; e += SUM_THREADS) {
        scores[e] = scores[e] / total;
    }
}

// The experts of all but the best groups become the last choices.
fn limit_groups(thread: u32) {
    for (var g = thread; g < GROUPS; g += SUM_THREADS) {
        var first = 0u;
        var second = 0u;
        for (var e = g * GROUP_SIZE; e < (g + 1u) * GROUP_SIZE; e++) {
            second = max(second, min(first, keys[e]));
            first = max(first, keys[e]);
        }
        var sum = key_value(first);
        if (GROUP_SIZE > 1u) {
            sum = sum + key_value(second);
        }
        group_keys[g] = order_key(sum);
    }
    workgroupBarrier();
    for (var e = thread; e < EXPERTS; e += SUM_THREADS) {
        let own = e / GROUP_SIZE;
        var before = 0u;
        for (var g = 0u; g < GROUPS; g++) {
            let comes_first = group_keys[g] > group_keys[own] || (group_keys[g] == group_keys[own] && g < own);
            before += select(0u, 1u, comes_first);
        }
        if (before >= TOP_GROUPS) {
            keys[e] = 0x007fffffu;
        }
    }
    workgroupBarrier();
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.z * GRID_ROWS + group.y;
    if (row >= row_count(p.ids)) {
        return;
    }
    score_all(row, thread);
    for (var e = thread; e < EXPERTS; e += SUM_THREADS) {
        keys[e] = order_key(scores[e] + vector_at(p.bias + e));
    }
    workgroupBarrier();
    if (GROUPS > 1u) {
        limit_groups(thread);
    }
    for (var e = thread; e < EXPERTS; e += SUM_THREADS) {
        let key = keys[e];
        var place = 0u;
        for (var other = 0u; other < EXPERTS; other++) {
            let comes_first = keys[other] > key || (keys[other] == key && other < e);
            place += select(0u, 1u, comes_first);
        }
        if (place < TOP_K) {
            ids[place] = e;
        }
    }
    workgroupBarrier();
    var factor = p.scale;
    if (NORMALIZE == 1u) {
        var sum = 0.0;
        for (var i = 0u; i < TOP_K; i++) {
            sum = sum + scores[ids[i]];
        }
        factor = p.scale / (sum + 1e-20);
    }
    for (var i = thread; i < TOP_K; i += SUM_THREADS) {
        arena[word_at(p.ids, row, i)] = ids[i];
        store(p.weights, row, i, scores[ids[i]] * factor);
    }
}
