// attention_merge: the splits of a row and head, added in order, then the sink. A workgroup has a row and a head.
// Constants: HEAD_DIM.
#include "common.wgsl"
#include "math.wgsl"

const THREADS: u32 = 64u;
const SPLIT_TOKENS: u32 = 8u * PAGE_TOKENS;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = p.first_row + group.y;
    if (row >= step[STEP_ROWS]) {
        return;
    }
    let head = group.x;
    let position = position_of(row);
    let first_seen = select(0u, position + 1u - min(p.window, position + 1u), p.window > 0u);
    let end = position / SPLIT_TOKENS + 1u - first_seen / SPLIT_TOKENS;
    let words = HEAD_DIM + 2u;
    let splits = min((step[STEP_END] + SPLIT_TOKENS - 1u) / SPLIT_TOKENS, p.most_splits);
    let first = p.results + (group.y * p.q_heads + head) * splits * words;
    var largest = bitcast<f32>(arena[first]);
    for (var s = 1u; s < end; s++) {
        largest = max(largest, bitcast<f32>(arena[first + s * words]));
    }
    var sink = 0.0;
    if (p.has_sinks == 1u) {
        sink = vector_at(p.sinks + head);
        largest = max(largest, sink);
    }
    var total = 0.0;
    for (var s = 0u; s < end; s++) {
        let at = first + s * words;
        total = fma(bitcast<f32>(arena[at + 1u]), exp_of(bitcast<f32>(arena[at]) - largest), total);
    }
    if (p.has_sinks == 1u) {
        total = total + exp_of(sink - largest);
    }
    for (var c = thread; c < HEAD_DIM; c += THREADS) {
        var sum = 0.0;
        for (var s = 0u; s < end; s++) {
            let at = first + s * words;
            sum = fma(bitcast<f32>(arena[at + 2u + c]), exp_of(bitcast<f32>(arena[at]) - largest), sum);
        }
        store(p.out, row, head * HEAD_DIM + c, sum / total);
    }
}
