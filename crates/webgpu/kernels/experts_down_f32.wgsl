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

#include "experts_blocks.wgsl"

// By block of the round eight vectors, in an order that spreads neighbouring blocks over the banks.
var<workgroup> xs: array<vec4<f32>, X_VECTORS>;
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
    add_up(row, group.x * OUTPUTS, choices, thread);
}
