// choose_best: the most likely token of every slice of a row. A workgroup has a slice: x the slice, y and z the row.
#include "common.wgsl"
#include "choice.wgsl"

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.z * GRID_ROWS + group.y;
    if (row >= step[STEP_WANTED_ROWS]) {
        return;
    }
    let choice = choice_of(row);
    var best = vec2<u32>(0u);
    for (var token = group.x * 256u + thread; token < p.logits.cols; token += 256u * SLICES) {
        let rank = rank_of(key_at(row, token, choice), token);
        if (is_above(rank, best)) {
            best = rank;
        }
    }
    best = best_of(best, thread);
    if (thread == 0u) {
        let at = p.slices + 2u * (row * SLICES + group.x);
        arena[at] = best.x;
        arena[at + 1u] = best.y;
    }
}
