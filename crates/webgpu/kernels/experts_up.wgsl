// A layer of experts, first part: the choice of experts from the router's scores, as moe_route.wgsl makes it, and
// relu2(W·x) of the chosen experts and of the one that is always chosen, as matmul.wgsl computes it, to the bit.
//
// A workgroup has outputs of one expert and a row: x the chosen experts in turn and then the constant one, y and z the
// row. Each makes the choice for itself; the first of a row writes it down, where the program shows it and for
// the second part, which finds the constant expert's values first, then those of the chosen.
// Constants: CHOICES, TOP_K, NORMALIZE, and those of few_f32.wgsl with TILE_ROWS = 1.
#include "common.wgsl"
#include "math.wgsl"
#include "route_key.wgsl"
#include "weight_$WEIGHT.wgsl"
#include "fours.wgsl"
#include "few_$SUMS.wgsl"
#include "experts_hidden_$SUMS.wgsl"

const OUTPUTS: u32 = 4u * TEAMS;
const CHOICE_VECTORS: u32 = (CHOICES + 3u) / 4u;

var<workgroup> scores: array<f32, CHOICES>;
// In fours, the last of them filled up with zeros, which come last.
var<workgroup> keys: array<vec4<u32>, CHOICE_VECTORS>;
var<workgroup> ids: array<u32, TOP_K>;
var<private> own_row: u32;

fn x_word(row: u32) -> u32 {
    return word_at(p.x, own_row, 0u);
}

// Experts have whole blocks of values, the last of them zeros.
fn padded(outputs: u32) -> u32 {
    return (outputs + 31u) / 32u * 32u;
}

fn choose(row: u32, thread: u32) {
    for (var v = thread; v < CHOICE_VECTORS; v += THREADS) {
        var own = vec4<u32>(0u);
        for (var i = 0u; i < 4u; i++) {
            let e = v * 4u + i;
            if (e < CHOICES) {
                scores[e] = sigmoid(load(p.logits, row, e));
                own[i] = order_key(scores[e] + vector_at(p.bias + e));
            }
        }
        keys[v] = own;
    }
    workgroupBarrier();
    for (var e = thread; e < CHOICES; e += THREADS) {
        let key = vec4<u32>(keys[e >> 2u][e & 3u]);
        var places = vec4<u32>(0u);
        for (var v = 0u; v < CHOICE_VECTORS; v++) {
            let others = vec4<u32>(4u * v) + vec4<u32>(0u, 1u, 2u, 3u);
            let comes_first = (keys[v] > key) | ((keys[v] == key) & (others < vec4<u32>(e)));
            places += select(vec4<u32>(0u), vec4<u32>(1u), comes_first);
        }
        let place = (places.x + places.y) + (places.z + places.w);
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
    let width = padded(p.experts.outputs);
    let tiles = (width + OUTPUTS - 1u) / OUTPUTS;
    let slot = min(group.x / tiles, TOP_K);
    let first_output = (group.x - slot * tiles) * OUTPUTS;
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
        place = padded(p.shared_expert.outputs) + slot * width;
    }
    let own = first_output + thread * 4u;
    let adds = thread < TEAMS && own < padded(weights.outputs);
    var row_factors = vec4<f32>(0.0);
    if (adds) {
        row_factors = factors_of(weights, expert, own);
    }
    let rows = rows_of(weights, expert, first_output + thread / TEAM * 4u);
    let total = product(rows, parts_of(p.experts), p.experts.blocks, 1u, thread);
    var values = vec4<f32>(0.0);
    if (adds) {
        let positive = max(total * row_factors, vec4<f32>(0.0));
        let outputs = vec4<u32>(own) + vec4<u32>(0u, 1u, 2u, 3u);
        values = select(vec4<f32>(0.0), positive * positive, outputs < vec4<u32>(weights.outputs));
    }
    put_hidden(p.hidden + row * p.hidden_words, place + first_output, values, adds, thread);
}
