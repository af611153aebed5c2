// A layer of experts, second part, as sums of integers: y = residual + Σ_j w_j·W_j·h_j + W·h of the chosen experts j and of the
// one that is always chosen, as the products with few_i8.wgsl, moe_combine.wgsl and the residual of matmul.wgsl compute it,
// to the bit.
//
// A workgroup has four outputs for each team, and a row. The blocks of all experts form one sequence, in which the
// constant expert's come first: they are read before the choice is known. A thread has every TEAM-th; their values
// are left in workgroup memory, where groups of an expert's are added and then those.
// Constants: TOP_K, THREADS, TEAM (a divisor of it), EXPERT_BLOCKS and CONSTANT_BLOCKS (of their columns).
#include "common.wgsl"
#include "weight_$WEIGHT.wgsl"
#include "fours.wgsl"
#include "integers.wgsl"
#include "integer_$WEIGHT.wgsl"
#include "experts_blocks.wgsl"

const EXPERT_GROUPS: u32 = (EXPERT_BLOCKS + GROUP - 1u) / GROUP;
const CONSTANT_GROUPS: u32 = (CONSTANT_BLOCKS + GROUP - 1u) / GROUP;
const GROUPS: u32 = CONSTANT_GROUPS + TOP_K * EXPERT_GROUPS;

// The word at which a block of a row of the sequence begins.
fn x_at(row: u32, index: u32) -> u32 {
    return p.hidden + row * p.hidden_words + min(index, BLOCKS - 1u) * 12u;
}

// The first block of the sequence in a group of them, and the one after its expert's last.
fn blocks_of_group(index: u32) -> vec2<u32> {
    if (index < CONSTANT_GROUPS) {
        return vec2<u32>(index * GROUP, CONSTANT_BLOCKS);
    }
    let j = (index - CONSTANT_GROUPS) / EXPERT_GROUPS;
    let first = CONSTANT_BLOCKS + j * EXPERT_BLOCKS;
    return vec2<u32>(first + (index - CONSTANT_GROUPS) % EXPERT_GROUPS * GROUP, first + EXPERT_BLOCKS);
}

// Adds the values of groups of blocks, each where its first one is.
fn add_groups(thread: u32) {
    for (var i = thread; i < TEAMS * GROUPS; i += THREADS) {
        let own = blocks_of_group(i % GROUPS);
        let at = i / GROUPS * BLOCKS + own.x;
        let count = min(GROUP, own.y - own.x);
        var sum = vec4<f32>(0.0);
        for (var b = 0u; b < count; b++) {
            sum = sum + sums[at + b];
        }
        sums[at] = sum;
    }
}

fn add_sums(first: u32, count: u32, c: u32) -> f32 {
    var sum = 0.0;
    for (var b = 0u; b < count; b += GROUP) {
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
    if (thread < TOP_K) {
        ids[thread] = word(choices + thread);
    }
    workgroupBarrier();
    // A block is read while the one before it is multiplied.
    var block = thread % TEAM;
    var rows = rows_at(output, block);
    var parts = parts_at(block);
    var ahead = own_block(block);
    var x = x_at(row, block);
    var even = four_words(x);
    var odd = four_words(x + 4u);
    var tail = four_words(x + 8u);
#repeat o 4
    var codes$o = codes_at(rows[$o], ahead);
    var more$o = more_at(rows[$o], ahead);
    var scales$o = scales_at(parts, rows[$o], ahead);
#end
    while (block < BLOCKS) {
        let index = team * BLOCKS + block;
        block += TEAM;
        rows = rows_at(output, block);
        parts = parts_at(block);
        ahead = own_block(block);
        x = x_at(row, block);
        let own_even = even;
        let own_odd = odd;
        let own_tail = tail;
        even = four_words(x);
        odd = four_words(x + 4u);
        tail = four_words(x + 8u);
#repeat o 4
        let own_codes$o = codes$o;
        let own_more$o = more$o;
        let own_scales$o = scales$o;
        codes$o = codes_at(rows[$o], ahead);
        more$o = more_at(rows[$o], ahead);
        scales$o = scales_at(parts, rows[$o], ahead);
#end
        sums[index] = vec4<f32>(
            block_value(own_codes0, own_more0, own_scales0, own_even, own_odd, own_tail),
            block_value(own_codes1, own_more1, own_scales1, own_even, own_odd, own_tail),
            block_value(own_codes2, own_more2, own_scales2, own_even, own_odd, own_tail),
            block_value(own_codes3, own_more3, own_scales3, own_even, own_odd, own_tail),
        );
    }
    workgroupBarrier();
    add_groups(thread);
    workgroupBarrier();
    add_up(row, group.x * OUTPUTS, choices, thread);
}
