// What products of few rows share that begin with a norm of a single row: of all columns, or of NORM_GROUPS groups of them. Its
// sums of squares run in the order of rms_norm.wgsl and gated_group_norm.wgsl. All columns are staged in one round.
// Constants: NORM_GROUPS (0 for none), NORM_SIZE. Parameters: cols, norm, eps. Who includes this gives `staged_four(i)`, four
// staged values, and `x_word(row)`, the word of a row's first value.
#include "rms.wgsl"

const THREADS: u32 = 128u;
const TEAMS: u32 = THREADS / TEAM;

// By group: the threads' sums of squares, sixteen sums of those, and what values are multiplied with.
var<workgroup> squares: array<f32, SQUARES>;
var<workgroup> sixteen_squares: array<f32, SIXTEENS>;
var<workgroup> factors: array<f32, SIXTEENS>;

// Four values of x; zeros beyond its columns.
fn four_of_x(row: u32, col: u32) -> vec4<f32> {
    let at = x_word(row) + col;
    if (col + 4u <= p.cols) {
        return bitcast<vec4<f32>>(four_words(at));
    }
    return values_at(at, p.cols - min(col, p.cols));
}

// Leaves what groups of columns are multiplied with in `factors`.
fn find_factors(thread: u32) {
    workgroupBarrier();
    for (var g = 0u; g < NORM_GROUPS; g++) {
        var sum = 0.0;
        for (var four = thread; four * 4u < NORM_SIZE; four += THREADS) {
            let i = g * (NORM_SIZE / 4u) + four;
            sum = add_squares(sum, staged_four(i));
        }
        squares[g * THREADS + thread] = sum;
    }
    workgroupBarrier();
    for (var i = thread; i < NORM_GROUPS * 16u; i += THREADS) {
        let first = i / 16u * THREADS + i % 16u;
        var sum = squares[first];
        for (var k = 16u; k < THREADS; k += 16u) {
            sum = sum + squares[first + k];
        }
        sixteen_squares[i] = sum;
    }
    workgroupBarrier();
    for (var g = thread; g < NORM_GROUPS; g += THREADS) {
        var sum = sixteen_squares[g * 16u];
        for (var k = 1u; k < 16u; k++) {
            sum = sum + sixteen_squares[g * 16u + k];
        }
        factors[g] = rms_factor(sum, NORM_SIZE, p.eps);
    }
    workgroupBarrier();
}
