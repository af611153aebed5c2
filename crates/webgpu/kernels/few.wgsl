// Products of few rows: a team of threads has four outputs, a thread every TEAM-th block of theirs; rows of x lie in workgroup
// memory, ROUND blocks at a time. A block's sums are left there, too, and one thread adds those of a row and four outputs
// in order, so that neither the team nor the round decides about bits.
//
// A single row may be the input of a norm that is done here: of all columns, or of NORM_GROUPS groups of them; its sums
// of squares run in the order of rms_norm.wgsl and gated_group_norm.wgsl. Then all columns are staged in one round.
// Constants: TILE_ROWS (1, 2 or 4), TEAM (threads), ROUND (a multiple of TEAM), NORM_GROUPS (0 for none), NORM_SIZE.
// Parameters: cols, norm, eps. Who includes this gives `x_word(row)`, the word of a row's first value.
#include "rms.wgsl"

const THREADS: u32 = 128u;
const TEAMS: u32 = THREADS / TEAM;

// By row and block eight vectors, in an order that spreads neighbouring blocks over the banks.
var<workgroup> xs: array<vec4<f32>, X_VECTORS>;
// By row, team and block: sums of the team's outputs.
var<workgroup> sums: array<vec4<f32>, SUM_VECTORS>;

// By group: the threads' sums of squares, sixteen sums of those, and what values are multiplied with.
var<workgroup> squares: array<f32, SQUARES>;
var<workgroup> sixteen_squares: array<f32, SIXTEENS>;
var<workgroup> factors: array<f32, SIXTEENS>;

struct Blocks { a: Block, b: Block, c: Block, d: Block }

fn blocks_at(weights: Weights, expert: u32, output: u32, block: u32) -> Blocks {
    return Blocks(
        block_at(weights, row_of(weights, expert, output), block),
        block_at(weights, row_of(weights, expert, output + 1u), block),
        block_at(weights, row_of(weights, expert, output + 2u), block),
        block_at(weights, row_of(weights, expert, output + 3u), block),
    );
}

// Four values of x; zeros beyond its columns.
fn four_of_x(row: u32, col: u32) -> vec4<f32> {
    let at = x_word(row) + col;
    if (col + 4u <= p.cols) {
        return bitcast<vec4<f32>>(four_words(at));
    }
    return values_at(at, p.cols - min(col, p.cols));
}

fn stage(first: u32, count: u32, thread: u32) {
    for (var r = 0u; r < TILE_ROWS; r++) {
        for (var i = thread; i < ROUND * 8u; i += THREADS) {
            var values = vec4<f32>(0.0);
            if (r < count) {
                values = four_of_x(r, (first * 8u + i) * 4u);
            }
            xs[r * ROUND * 8u + (i ^ ((i >> 3u) & 7u))] = values;
        }
    }
}

fn normalize(thread: u32) {
    workgroupBarrier();
    for (var g = 0u; g < NORM_GROUPS; g++) {
        var sum = 0.0;
        for (var four = thread; four * 4u < NORM_SIZE; four += THREADS) {
            let i = g * (NORM_SIZE / 4u) + four;
            sum = add_squares(sum, xs[i ^ ((i >> 3u) & 7u)]);
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
    for (var i = thread; i < ROUND * 8u; i += THREADS) {
        if (i * 4u < NORM_GROUPS * NORM_SIZE) {
            let at = i ^ ((i >> 3u) & 7u);
            xs[at] = settled_four(xs[at] * factors[i * 4u / NORM_SIZE]) * four_of_vector(p.norm + i * 4u);
        }
    }
}

// Sums of four outputs for up to four rows: fields, because arrays might not be kept in registers.
struct Chains { a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32> }
struct Quads { a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32> }

fn add_columns(w: Quads, x: vec4<f32>, chain: vec4<f32>) -> vec4<f32> {
    var sum = fma(vec4<f32>(w.a.x, w.b.x, w.c.x, w.d.x), vec4<f32>(x.x), chain);
    sum = fma(vec4<f32>(w.a.y, w.b.y, w.c.y, w.d.y), vec4<f32>(x.y), sum);
    sum = fma(vec4<f32>(w.a.z, w.b.z, w.c.z, w.d.z), vec4<f32>(x.z), sum);
    return fma(vec4<f32>(w.a.w, w.b.w, w.c.w, w.d.w), vec4<f32>(x.w), sum);
}

// Adds four columns of a block; `at` is the block's place in the round.
fn add_quad(blocks: Blocks, at: u32, i: u32, chains: Chains) -> Chains {
    let w = Quads(quad(blocks.a, i), quad(blocks.b, i), quad(blocks.c, i), quad(blocks.d, i));
    let place = at * 8u + (i ^ (at & 7u));
    var sums = chains;
    sums.a = add_columns(w, xs[place], sums.a);
    if (TILE_ROWS > 1u) {
        sums.b = add_columns(w, xs[ROUND * 8u + place], sums.b);
    }
    if (TILE_ROWS > 2u) {
        sums.c = add_columns(w, xs[2u * ROUND * 8u + place], sums.c);
        sums.d = add_columns(w, xs[3u * ROUND * 8u + place], sums.d);
    }
    return sums;
}

fn multiply(blocks: Blocks, at: u32, team: u32) {
    let zero = vec4<f32>(0.0);
    var chains = add_quad(blocks, at, 0u, Chains(zero, zero, zero, zero));
    chains = add_quad(blocks, at, 1u, chains);
    chains = add_quad(blocks, at, 2u, chains);
    chains = add_quad(blocks, at, 3u, chains);
    chains = add_quad(blocks, at, 4u, chains);
    chains = add_quad(blocks, at, 5u, chains);
    chains = add_quad(blocks, at, 6u, chains);
    chains = add_quad(blocks, at, 7u, chains);
    sums[team * ROUND + at] = chains.a;
    if (TILE_ROWS > 1u) {
        sums[(TEAMS + team) * ROUND + at] = chains.b;
    }
    if (TILE_ROWS > 2u) {
        sums[(2u * TEAMS + team) * ROUND + at] = chains.c;
        sums[(3u * TEAMS + team) * ROUND + at] = chains.d;
    }
}

// Adds the sums of blocks in order; eight are on their way at once.
fn add_sums(total: vec4<f32>, first: u32, count: u32) -> vec4<f32> {
    var sum = total;
    var b = 0u;
    for (; b + 8u <= count; b += 8u) {
        let at = first + b;
        let s0 = sums[at];
        let s1 = sums[at + 1u];
        let s2 = sums[at + 2u];
        let s3 = sums[at + 3u];
        let s4 = sums[at + 4u];
        let s5 = sums[at + 5u];
        let s6 = sums[at + 6u];
        let s7 = sums[at + 7u];
        sum = (((((((sum + s0) + s1) + s2) + s3) + s4) + s5) + s6) + s7;
    }
    for (; b < count; b++) {
        sum = sum + sums[first + b];
    }
    return sum;
}

// The product of the tile's rows with the outputs of all teams from one on; a thread below TEAMS · TILE_ROWS gets the sums
// of row thread / TEAMS and of four outputs, those of team thread % TEAMS. `blocks` is as many as the weights have.
fn product(weights: Weights, blocks: u32, expert: u32, first_output: u32, count: u32, thread: u32) -> vec4<f32> {
    let team = thread / TEAM;
    let output = first_output + team * 4u;
    // A block is read while the two before it are multiplied, the first ones while x is on its way.
    var block = thread % TEAM;
    var next = blocks_at(weights, expert, output, min(block, blocks - 1u));
    var second = blocks_at(weights, expert, output, min(block + TEAM, blocks - 1u));
    var total = vec4<f32>(0.0);
    for (var first = 0u; first < blocks; first += ROUND) {
        stage(first, count, thread);
        if (NORM_GROUPS > 0u) {
            normalize(thread);
        }
        workgroupBarrier();
        let end = min(first + ROUND, blocks);
        while (block < end) {
            let own = next;
            let at = block - first;
            block += TEAM;
            next = second;
            second = blocks_at(weights, expert, output, min(block + TEAM, blocks - 1u));
            multiply(own, at, team);
        }
        workgroupBarrier();
        if (thread < TEAMS * count) {
            total = add_sums(total, thread * ROUND, end - first);
        }
    }
    return total;
}
