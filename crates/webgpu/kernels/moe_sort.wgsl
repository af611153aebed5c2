// moe_sort: puts the (token, expert) pairs of a step in the order of their experts, cut into tiles of up to TILE_ROWS
// rows of one expert. One workgroup. The order within an expert is any: no arithmetic depends on it.
//
// Leaves at `tiles`: the number of tiles, three words, then for every tile expert, first pair in `order`, count, 0.
#include "common.wgsl"

const THREADS: u32 = 256u;

var<workgroup> counts: array<atomic<u32>, MAX_EXPERTS>;
var<workgroup> starts: array<u32, MAX_EXPERTS>;
var<workgroup> first_tiles: array<u32, MAX_EXPERTS>;

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) thread: u32) {
    for (var e = thread; e < p.experts; e += THREADS) {
        atomicStore(&counts[e], 0u);
    }
    workgroupBarrier();
    let pairs = step[STEP_ROWS] * p.top_k;
    for (var pair = thread; pair < pairs; pair += THREADS) {
        let expert = arena[word_at(p.ids, pair / p.top_k, pair % p.top_k)];
        if (expert < p.experts) {
            atomicAdd(&counts[expert], 1u);
        }
    }
    workgroupBarrier();
    if (thread == 0u) {
        var start = 0u;
        var tiles = 0u;
        for (var e = 0u; e < p.experts; e++) {
            let count = atomicLoad(&counts[e]);
            starts[e] = start;
            first_tiles[e] = tiles;
            start += count;
            tiles += (count + TILE_ROWS - 1u) / TILE_ROWS;
        }
        arena[p.tiles] = tiles;
    }
    workgroupBarrier();
    for (var e = thread; e < p.experts; e += THREADS) {
        let count = atomicLoad(&counts[e]);
        for (var first = 0u; first < count; first += TILE_ROWS) {
            let at = p.tiles + 4u + (first_tiles[e] + first / TILE_ROWS) * 4u;
            arena[at] = e;
            arena[at + 1u] = starts[e] + first;
            arena[at + 2u] = min(count - first, TILE_ROWS);
            arena[at + 3u] = 0u;
        }
        atomicStore(&counts[e], 0u);
    }
    workgroupBarrier();
    for (var pair = thread; pair < pairs; pair += THREADS) {
        let expert = arena[word_at(p.ids, pair / p.top_k, pair % p.top_k)];
        if (expert < p.experts) {
            arena[p.order + starts[expert] + atomicAdd(&counts[expert], 1u)] = pair;
        }
    }
}
