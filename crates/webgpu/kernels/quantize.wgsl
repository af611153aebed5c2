// quantize: rows of f32 as blocks of 32 codes of eight bits with a scale (rounded.wgsl). A thread has a block.
#include "common.wgsl"
#include "fours.wgsl"
#include "rounded.wgsl"

fn four_at(row: u32, col: u32) -> vec4<f32> {
    let at = word_at(p.x, row, col);
    if (col + 4u <= p.x.cols) {
        return bitcast<vec4<f32>>(four_words(at));
    }
    return values_at(at, p.x.cols - min(col, p.x.cols));
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let block = group.x * 64u + thread;
    let row = group.z * GRID_ROWS + group.y;
    if (row >= row_count(p.out) || block * 32u >= p.x.cols) {
        return;
    }
#repeat i 8
    let v$i = four_at(row, block * 32u + 4u * $iu);
#end
    let own = rounded_block(v0, v1, v2, v3, v4, v5, v6, v7);
    let at = word_at(p.out, row, block * 12u);
    put_four(at, own.even);
    put_four(at + 4u, own.odd);
    put_four(at + 8u, own.tail);
}
