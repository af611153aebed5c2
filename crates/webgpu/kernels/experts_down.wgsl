// A layer of experts, second part: y = residual + Σ_j w_j·W_j·h_j + W·h of the chosen experts j and of the one that is always
// chosen, as the products, moe_combine.wgsl and the residual of matmul.wgsl compute it, to the bit.
//
// A workgroup has four outputs for each team, and a row. The blocks of all experts form one sequence, in which the
// constant expert's come first: they are read before the choice is known. A thread has every TEAM-th; sums of
// blocks are left in workgroup memory, where one thread adds those of an expert and an output in order.
// Constants: TOP_K, THREADS, TEAM (a divisor of it), EXPERT_BLOCKS and CONSTANT_BLOCKS (of their columns).
#include "common.wgsl"
#include "weight_$WEIGHT.wgsl"
#include "fours.wgsl"

const TEAMS: u32 = THREADS / TEAM;
const BLOCKS: u32 = CONSTANT_BLOCKS + TOP_K * EXPERT_BLOCKS;
const PARTS: u32 = TOP_K + 1u;
const OUTPUTS: u32 = 4u * TEAMS;

// By block of the round eight vectors, in an order that spreads neighbouring blocks over the banks.
var<workgroup> xs: array<vec4<f32>, X_VECTORS>;
// By team and block.
var<workgroup> sums: array<vec4<f32>, SUM_VECTORS>;
// By expert and output.
var<workgroup> results: array<f32, RESULTS>;
var<workgroup> ids: array<u32, TOP_K>;

struct Blocks { a: Block, b: Block, c: Block, d: Block }

fn blocks_of(weights: Weights, expert: u32, output: u32, block: u32) -> Blocks {
    return Blocks(
        block_at(weights, row_of(weights, expert, output), block),
        block_at(weights, row_of(weights, expert, output + 1u), block),
        block_at(weights, row_of(weights, expert, output + 2u), block),
        block_at(weights, row_of(weights, expert, output + 3u), block),
    );
}

fn blocks_at(output: u32, index: u32) -> Blocks {
    let block = min(index, BLOCKS - 1u);
    var weights = p.shared_expert;
    var expert = 0u;
    var own = block;
    if (block >= CONSTANT_BLOCKS) {
        let slot = (block - CONSTANT_BLOCKS) / EXPERT_BLOCKS;
        weights = p.experts;
        expert = ids[slot];
        own = block - CONSTANT_BLOCKS - slot * EXPERT_BLOCKS;
    }
    return blocks_of(weights, expert, output, own);
}

fn add_quad(blocks: Blocks, at: u32, i: u32, chain: vec4<f32>) -> vec4<f32> {
    let a = quad(blocks.a, i);
    let b = quad(blocks.b, i);
    let c = quad(blocks.c, i);
    let d = quad(blocks.d, i);
    let x = xs[at * 8u + (i ^ (at & 7u))];
    var sum = fma(vec4<f32>(a.x, b.x, c.x, d.x), vec4<f32>(x.x), chain);
    sum = fma(vec4<f32>(a.y, b.y, c.y, d.y), vec4<f32>(x.y), sum);
    sum = fma(vec4<f32>(a.z, b.z, c.z, d.z), vec4<f32>(x.z), sum);
    return fma(vec4<f32>(a.w, b.w, c.w, d.w), vec4<f32>(x.w), sum);
}

fn multiply(blocks: Blocks, at: u32) -> vec4<f32> {
    var chain = add_quad(blocks, at, 0u, vec4<f32>(0.0));
    chain = add_quad(blocks, at, 1u, chain);
    chain = add_quad(blocks, at, 2u, chain);
    chain = add_quad(blocks, at, 3u, chain);
    chain = add_quad(blocks, at, 4u, chain);
    chain = add_quad(blocks, at, 5u, chain);
    chain = add_quad(blocks, at, 6u, chain);
    return add_quad(blocks, at, 7u, chain);
}

// Adds the sums of an output's blocks in order; eight are on their way at once.
fn add_sums(first: u32, count: u32, c: u32) -> f32 {
    var sum = 0.0;
    var b = 0u;
    for (; b + 8u <= count; b += 8u) {
        let at = first + b;
        let s0 = sums[at][c];
        let s1 = sums[at + 1u][c];
        let s2 = sums[at + 2u][c];
        let s3 = sums[at + 3u][c];
        let s4 = sums[at + 4u][c];
        let s5 = sums[at + 5u][c];
        let s6 = sums[at + 6u][c];
        let s7 = sums[at + 7u][c];
        sum = (((((((sum + s0) + s1) + s2) + s3) + s4) + s5) + s6) + s7;
    }
    for (; b < count; b++) {
        sum = sum + sums[first + b][c];
    }
    return sum;
}

// The sum of an expert's blocks for an output, times the row's factor but for the constant expert's, which is part of the
// last sum.
fn result_of(part: u32, output: u32, team: u32, c: u32) -> f32 {
    if (part == 0u) {
        return add_sums(team * BLOCKS, CONSTANT_BLOCKS, c);
    }
    let first = CONSTANT_BLOCKS + (part - 1u) * EXPERT_BLOCKS;
    let row = row_of(p.experts, ids[part - 1u], output);
    return add_sums(team * BLOCKS + first, EXPERT_BLOCKS, c) * row_factor(p.experts, row);
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.z * GRID_ROWS + group.y;
    if (row >= row_count(p.out)) {
        return;
    }
    let team = thread / TEAM;
    let output = group.x * OUTPUTS + team * 4u;
    let choices = p.choices + row * 2u * TOP_K;
    var block = thread % TEAM;
    var next = blocks_of(p.shared_expert, 0u, output, min(block, CONSTANT_BLOCKS - 1u));
    if (thread < TOP_K) {
        ids[thread] = word(choices + thread);
    }
    workgroupBarrier();
    if (block >= CONSTANT_BLOCKS) {
        next = blocks_at(output, block);
    }
    for (var first = 0u; first < BLOCKS; first += TEAM) {
        for (var i = thread; i < TEAM * 8u; i += THREADS) {
            let at = min(first * 8u + i, BLOCKS * 8u - 1u);
            xs[i ^ ((i >> 3u) & 7u)] = bitcast<vec4<f32>>(four_words(p.hidden + row * p.hidden_words + at * 4u));
        }
        workgroupBarrier();
        let own = next;
        let index = block;
        block += TEAM;
        if (first + TEAM < BLOCKS) {
            next = blocks_at(output, block);
        }
        if (index < BLOCKS) {
            sums[team * BLOCKS + index] = multiply(own, index - first);
        }
        workgroupBarrier();
    }
    for (var i = thread; i < PARTS * OUTPUTS; i += THREADS) {
        let own = i % OUTPUTS;
        results[i] = result_of(i / OUTPUTS, group.x * OUTPUTS + own, own / 4u, own % 4u);
    }
    workgroupBarrier();
    let own_output = group.x * OUTPUTS + thread;
    if (thread >= OUTPUTS || own_output >= p.out.cols) {
        return;
    }
    var sum = 0.0;
    for (var j = 0u; j < TOP_K; j++) {
        let weight = bitcast<f32>(word(choices + TOP_K + j));
        sum = fma(weight, results[(j + 1u) * OUTPUTS + thread], sum);
    }
    sum = settled(sum + load(p.residual, row, own_output));
    let factor = row_factor(p.shared_expert, row_of(p.shared_expert, 0u, own_output));
    store(p.out, row, own_output, fma(results[thread], factor, sum));
}
