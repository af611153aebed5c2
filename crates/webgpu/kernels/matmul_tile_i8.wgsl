// matmul and moe_matmul for many rows as sums of integers: the same as matmul.wgsl with few_i8.wgsl, to the bit.
//
// A workgroup has 128 outputs and TILE_ROWS rows, a thread four outputs of an eighth of the rows. A block of 32 columns at a
// time lies in workgroup memory; what the next one needs is read while it is multiplied.
// Constants: those of product.wgsl; TILE_ROWS is 32 or 64, X_VECTORS 8 of them for four rows.
#include "product.wgsl"
#include "integers.wgsl"
#include "integer_$WEIGHT.wgsl"

const THREADS: u32 = 256u;
const OUTPUTS: u32 = 128u;
const ROW_VECTORS: u32 = TILE_ROWS / 4u;
const HAS_FAR_ROWS: bool = TILE_ROWS > 32u;

// Words of codes, first of even columns: by word, outputs or rows.
var<workgroup> ws: array<vec4<u32>, 256>;
var<workgroup> xs: array<vec4<u32>, X_VECTORS>;
var<workgroup> output_scales: array<vec2<f32>, 128>;
var<workgroup> tails: array<vec4<u32>, TILE_ROWS>;

fn dots(w: vec4<u32>, x: u32) -> vec4<i32> {
    return vec4<i32>(dot4I8Packed(w.x, x), dot4I8Packed(w.y, x), dot4I8Packed(w.z, x), dot4I8Packed(w.w, x));
}

// A part of a row's block; zeros beyond the rows.
fn part_of_x(row: u32, part: u32, block: u32, count: u32) -> vec4<u32> {
    if (row >= count) {
        return vec4<u32>(0u);
    }
    return four_words(row_words[row] + block * 12u + part * 4u);
}

fn values_of(first: vec4<i32>, second: vec4<i32>, output: u32, row: u32) -> vec4<f32> {
    let tail = tails[row];
    return settled_four(vec4<f32>(
        value_of(first.x, second.x, output_scales[output], tail),
        value_of(first.y, second.y, output_scales[output + 1u], tail),
        value_of(first.z, second.z, output_scales[output + 2u], tail),
        value_of(first.w, second.w, output_scales[output + 3u], tail),
    ));
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    pick(group.z * GRID_ROWS + group.y, thread);
    let chosen = workgroupUniformLoad(&picked);
    let count = chosen.y;
    let expert = chosen.x - p.first_expert;
    if (count == 0u || expert >= p.weights.experts) {
        return;
    }
    let first_output = group.x * OUTPUTS;
    let own_output = thread % 32u;
    // Four rows, and four half a tile beyond; fields of their own, because arrays might not be kept in registers.
    let own_row = thread / 32u;
    let zero = vec4<f32>(0.0);
    let none = vec4<i32>(0);
#repeat r 8
    var sum$r = zero;
    var group_sum$r = zero;
#end
    // What the thread stages of a block: even or odd codes of four outputs or of four rows; or a row's tail, and the scales of
    // an output.
    let stages_w = thread < 64u;
    let stages_x = thread >= 64u && thread < 64u + 2u * ROW_VECTORS;
    let stages_tail = thread >= 128u && thread < 128u + TILE_ROWS;
    let stages_scales = thread >= 128u;
    let is_odd = thread >= 32u;
    let rows = rows_of(p.weights, expert, first_output + thread % 32u * 4u);
    let row = row_of(p.weights, expert, first_output + thread % 128u);
    let parts = parts_of(p.weights);
    let x_part = (thread - 64u) / ROW_VECTORS;
    let x_row = thread % ROW_VECTORS * 4u;
    let w_place = thread / 32u * 128u + thread % 32u;
    let x_place = x_part * 4u * ROW_VECTORS + thread % ROW_VECTORS;
#repeat o 4
    var staged$o = vec4<u32>(0u);
    var more$o = vec4<u32>(0u);
#end
    var scales = vec2<f32>(0.0);
    // One round more than there are blocks: a block is read in the round before its own.
    for (var next = 0u; next <= p.weights.blocks; next++) {
        if (next > 0u) {
            if (stages_w) {
#repeat o 4
                let own$o = select(even_codes(staged$o, more$o), odd_codes(staged$o, more$o), vec4<bool>(is_odd));
#end
                ws[w_place] = vec4<u32>(own0.x, own1.x, own2.x, own3.x);
                ws[w_place + 32u] = vec4<u32>(own0.y, own1.y, own2.y, own3.y);
                ws[w_place + 64u] = vec4<u32>(own0.z, own1.z, own2.z, own3.z);
                ws[w_place + 96u] = vec4<u32>(own0.w, own1.w, own2.w, own3.w);
            } else if (stages_x) {
                xs[x_place] = vec4<u32>(staged0.x, staged1.x, staged2.x, staged3.x);
                xs[x_place + ROW_VECTORS] = vec4<u32>(staged0.y, staged1.y, staged2.y, staged3.y);
                xs[x_place + 2u * ROW_VECTORS] = vec4<u32>(staged0.z, staged1.z, staged2.z, staged3.z);
                xs[x_place + 3u * ROW_VECTORS] = vec4<u32>(staged0.w, staged1.w, staged2.w, staged3.w);
            } else if (stages_tail) {
                tails[thread - 128u] = staged0;
            }
            if (stages_scales) {
                output_scales[thread - 128u] = scales;
            }
        }
        workgroupBarrier();
        if (next < p.weights.blocks) {
            if (stages_w) {
#repeat o 4
                staged$o = codes_at(rows[$o], next);
                more$o = more_at(rows[$o], next);
#end
            } else if (stages_x) {
#repeat o 4
                staged$o = part_of_x(x_row + $ou, x_part, next, count);
#end
            } else if (stages_tail) {
                staged0 = part_of_x(thread - 128u, 2u, next, count);
            }
            if (stages_scales) {
                scales = scales_at(parts, row, next);
            }
        }
        if (next == 0u) {
            continue;
        }
        let block = next - 1u;
#repeat r 8
        var first$r = none;
        var second$r = none;
#end
        // Of even and of odd columns each two words of the first half, then two of the second.
        for (var k = 0u; k < 8u; k += 4u) {
#repeat i 2
            let w$i = ws[(k + $iu) * 32u + own_output];
            let x$i = xs[(k + $iu) * ROW_VECTORS + own_row];
            first0 += dots(w$i, x$i.x);
            first1 += dots(w$i, x$i.y);
            first2 += dots(w$i, x$i.z);
            first3 += dots(w$i, x$i.w);
            if (HAS_FAR_ROWS) {
                let far_x$i = xs[(k + $iu) * ROW_VECTORS + ROW_VECTORS / 2u + own_row];
                first4 += dots(w$i, far_x$i.x);
                first5 += dots(w$i, far_x$i.y);
                first6 += dots(w$i, far_x$i.z);
                first7 += dots(w$i, far_x$i.w);
            }
#end
#repeat i 2
            let v$i = ws[(k + 2u + $iu) * 32u + own_output];
            let y$i = xs[(k + 2u + $iu) * ROW_VECTORS + own_row];
            if (HALVES) {
                second0 += dots(v$i, y$i.x);
                second1 += dots(v$i, y$i.y);
                second2 += dots(v$i, y$i.z);
                second3 += dots(v$i, y$i.w);
            } else {
                first0 += dots(v$i, y$i.x);
                first1 += dots(v$i, y$i.y);
                first2 += dots(v$i, y$i.z);
                first3 += dots(v$i, y$i.w);
            }
            if (HAS_FAR_ROWS) {
                let far_y$i = xs[(k + 2u + $iu) * ROW_VECTORS + ROW_VECTORS / 2u + own_row];
                if (HALVES) {
                    second4 += dots(v$i, far_y$i.x);
                    second5 += dots(v$i, far_y$i.y);
                    second6 += dots(v$i, far_y$i.z);
                    second7 += dots(v$i, far_y$i.w);
                } else {
                    first4 += dots(v$i, far_y$i.x);
                    first5 += dots(v$i, far_y$i.y);
                    first6 += dots(v$i, far_y$i.z);
                    first7 += dots(v$i, far_y$i.w);
                }
            }
#end
        }
        let is_last = block % GROUP == GROUP - 1u || block == p.weights.blocks - 1u;
#repeat r 4
        group_sum$r = group_sum$r + values_of(first$r, second$r, own_output * 4u, own_row * 4u + $ru);
#end
        if (HAS_FAR_ROWS) {
            let far = own_row * 4u + TILE_ROWS / 2u;
            group_sum4 = group_sum4 + values_of(first4, second4, own_output * 4u, far);
            group_sum5 = group_sum5 + values_of(first5, second5, own_output * 4u, far + 1u);
            group_sum6 = group_sum6 + values_of(first6, second6, own_output * 4u, far + 2u);
            group_sum7 = group_sum7 + values_of(first7, second7, own_output * 4u, far + 3u);
        }
        if (is_last) {
#repeat r 8
            sum$r = sum$r + group_sum$r;
            group_sum$r = zero;
#end
        }
        workgroupBarrier();
    }
    let output = first_output + own_output * 4u;
    if (output >= p.weights.outputs) {
        return;
    }
#repeat r 8
    let row$r = own_row * 4u + ($ru & 3u) + select(0u, TILE_ROWS / 2u, $ru > 3u);
    if (row$r < count && (HAS_FAR_ROWS || $ru < 4u)) {
        finish(out_rows[row$r], output, sum$r, ends_of(out_rows[row$r], expert, output));
    }
#end
}
