// The product into a state-space layer and the first part of its step (ssm_step_columns.wgsl), for the only row of a step: the
// bits are those of both. A workgroup's first threads have an output each, whose columns before they read ahead.
// Constants: those of few_f32.wgsl with TILE_ROWS = 1, and of ssm_columns.wgsl with STATE_ELEM.
#include "common.wgsl"
#include "math.wgsl"
#include "slot.wgsl"
#include "ssm_columns.wgsl"
#include "weight_$WEIGHT.wgsl"
#include "fours.wgsl"
#include "few_$SUMS.wgsl"

var<workgroup> results: array<vec4<f32>, TEAMS>;

fn x_word(row: u32) -> u32 {
    return p.x.data;
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let first_output = group.x * 4u * TEAMS;
    let segment = segment_at(0u);
    let column = first_output + thread - INNER;
    let has_column = thread < 4u * TEAMS && first_output + thread >= INNER;
    var before = 0.0;
    if (has_column && column < CHANNELS) {
        before = sum_before(segment, column);
    }
    let own = first_output + thread * 4u;
    let adds = thread < TEAMS && own < p.weights.outputs;
    var row_factors = vec4<f32>(0.0);
    if (adds) {
        row_factors = factors_of(p.weights, 0u, own);
    }
    let rows = rows_of(p.weights, 0u, first_output + thread / TEAM * 4u);
    let total = product(rows, parts_of(p.weights), p.weights.blocks, 1u, thread);
    if (adds) {
        let values = total * row_factors;
        put_values(p.out.data + own, values, p.weights.outputs - own);
        results[thread] = values;
    }
    workgroupBarrier();
    if (!has_column || column >= CHANNELS + HEADS) {
        return;
    }
    let value = settled(results[thread >> 2u][thread & 3u]);
    if (column >= CHANNELS) {
        step_of_head(segment, column - CHANNELS, value);
    } else {
        end_column(segment, 0u, column, before, value);
    }
}
