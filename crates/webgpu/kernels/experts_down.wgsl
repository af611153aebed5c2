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

// The block of its expert that a block of the sequence is.
fn own_block(index: u32) -> u32 {
    let block = min(index, BLOCKS - 1u);
    return select((block - CONSTANT_BLOCKS) % EXPERT_BLOCKS, block, block < CONSTANT_BLOCKS);
}

// The vectors at which the rows of four outputs begin, of the expert that has a block of the sequence.
fn rows_at(output: u32, index: u32) -> vec4<u32> {
    let block = min(index, BLOCKS - 1u);
    let outputs = min(vec4<u32>(output) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(p.out.cols - 1u));
    if (block < CONSTANT_BLOCKS) {
        return p.shared_expert.first + outputs * p.shared_expert.stride;
    }
    let expert = ids[(block - CONSTANT_BLOCKS) / EXPERT_BLOCKS];
    return p.experts.first + (expert * p.experts.outputs + outputs) * p.experts.stride;
}

fn parts_at(index: u32) -> vec2<u32> {
    return select(parts_of(p.experts), parts_of(p.shared_expert), index < CONSTANT_BLOCKS);
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
    if (thread < TOP_K) {
        ids[thread] = word(choices + thread);
    }
    workgroupBarrier();
    var rows = rows_at(output, block);
    var parts = parts_at(block);
    var ahead = own_block(block);
#repeat o 4
    var codes$o = codes_at(rows[$o], ahead);
    var more$o = more_at(rows[$o], ahead);
    var scales$o = scales_at(parts, rows[$o], ahead);
#end
    for (var first = 0u; first < BLOCKS; first += TEAM) {
        for (var i = thread; i < TEAM * 8u; i += THREADS) {
            let at = min(first * 8u + i, BLOCKS * 8u - 1u);
            xs[i ^ ((i >> 3u) & 7u)] = bitcast<vec4<f32>>(four_words(p.hidden + row * p.hidden_words + at * 4u));
        }
        workgroupBarrier();
        let at = block - first;
        let index = block;
        block += TEAM;
        rows = rows_at(output, block);
        parts = parts_at(block);
        ahead = own_block(block);
#repeat o 4
        let own_codes$o = codes$o;
        let own_more$o = more$o;
        let own_scales$o = scales$o;
        codes$o = codes_at(rows[$o], ahead);
        more$o = more_at(rows[$o], ahead);
        scales$o = scales_at(parts, rows[$o], ahead);
#end
        var chain = vec4<f32>(0.0);
#repeat i 8
        let a$i = quad(own_codes0, own_more0, own_scales0, $iu);
        let b$i = quad(own_codes1, own_more1, own_scales1, $iu);
        let c$i = quad(own_codes2, own_more2, own_scales2, $iu);
        let d$i = quad(own_codes3, own_more3, own_scales3, $iu);
        chain = add_columns(a$i, b$i, c$i, d$i, xs[at * 8u + ($iu ^ (at & 7u))], chain);
#end
        if (index < BLOCKS) {
            sums[team * BLOCKS + index] = chain;
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
