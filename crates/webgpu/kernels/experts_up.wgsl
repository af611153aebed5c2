// A layer of experts, first part: the choice of experts from the router's scores, as moe_route.wgsl makes it, and
// relu2(W·x) of the chosen experts and of the one that is always chosen, as matmul.wgsl computes it, to the bit.
//
// A workgroup has outputs of one expert and a row: x the chosen experts in turn and then the constant one, y and z the
// row. Each makes the choice for itself; the first of a row writes it down, where the program shows it and for
// experts_down.wgsl, which finds the constant expert's values first, then those of the chosen.
// Constants: CHOICES, TOP_K, NORMALIZE, and those of few.wgsl with TILE_ROWS = 1.
#include "common.wgsl"
#include "math.wgsl"
#include "route_key.wgsl"
#include "weight_$WEIGHT.wgsl"
#include "fours.wgsl"
#include "few.wgsl"

var<workgroup> scores: array<f32, CHOICES>;
var<workgroup> keys: array<u32, CHOICES>;
var<workgroup> ids: array<u32, TOP_K>;
var<private> own_row: u32;

fn x_word(row: u32) -> u32 {
    return word_at(p.x, own_row, 0u);
}

fn choose(row: u32, thread: u32) {
    for (var e = thread; e < CHOICES; e += THREADS) {
        scores[e] = sigmoid(load(p.logits, row, e));
        keys[e] = order_key(scores[e] + vector_at(p.bias + e));
    }
    workgroupBarrier();
    for (var e = thread; e < CHOICES; e += THREADS) {
        let key = keys[e];
        var place = 0u;
        for (var other = 0u; other < CHOICES; other++) {
            let comes_first = keys[other] > key || (keys[other] == key && other < e);
            place += select(0u, 1u, comes_first);
        }
        if (place < TOP_K) {
            ids[place] = e;
        }
    }
    workgroupBarrier();
}

fn write_choice(row: u32, thread: u32) {
    var factor = p.scale;
    if (NORMALIZE == 1u) {
        var sum = 0.0;
        for (var i = 0u; i < TOP_K; i++) {
            sum = sum + scores[ids[i]];
        }
        factor = p.scale / (sum + 1e-20);
    }
    for (var i = thread; i < TOP_K; i += THREADS) {
        let weight = bitcast<u32>(scores[ids[i]] * factor);
        put(word_at(p.ids, row, i), ids[i]);
        put(word_at(p.weights, row, i), weight);
        let at = p.choices + row * 2u * TOP_K + i;
        put(at, ids[i]);
        put(at + TOP_K, weight);
    }
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.z * GRID_ROWS + group.y;
    if (row >= row_count(p.ids)) {
        return;
    }
    let of_expert = 4u * TEAMS;
    let tiles = (p.experts.outputs + of_expert - 1u) / of_expert;
    let slot = min(group.x / tiles, TOP_K);
    let first_output = (group.x - slot * tiles) * of_expert;
    own_row = row;
    var weights = p.shared_expert;
    var expert = 0u;
    // Where the values of the expert are in the row.
    var place = 0u;
    if (slot < TOP_K) {
        choose(row, thread);
        if (group.x == 0u) {
            write_choice(row, thread);
        }
        weights = p.experts;
        expert = ids[slot];
        place = p.shared_expert.outputs + slot * p.experts.outputs;
    }
    let own = first_output + thread * 4u;
    let adds = thread < TEAMS && own < weights.outputs;
    var factors = vec4<f32>(0.0);
    if (adds) {
        factors = factors_of(weights, expert, own);
    }
    let total = product(weights, p.experts.blocks, expert, first_output, 1u, thread);
    if (adds) {
        let positive = max(total * factors, vec4<f32>(0.0));
        let at = p.hidden + row * p.hidden_words + place + own;
        put_values(at, positive * positive, weights.outputs - own);
    }
}
