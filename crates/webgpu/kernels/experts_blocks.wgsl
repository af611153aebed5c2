// What the second parts of a layer of experts share: the sequence of all experts' blocks, and what is done to an expert's sum.
// Constants: TOP_K, THREADS, TEAM, EXPERT_BLOCKS, CONSTANT_BLOCKS, SUM_VECTORS, RESULTS. Who includes this gives
// `add_sums(first, count, c)`: the sum of so many blocks' values that are left from a place on, for one of four outputs.
const TEAMS: u32 = THREADS / TEAM;
const BLOCKS: u32 = CONSTANT_BLOCKS + TOP_K * EXPERT_BLOCKS;
const PARTS: u32 = TOP_K + 1u;
const OUTPUTS: u32 = 4u * TEAMS;

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

// Ends the product of the workgroup's outputs and a row.
fn add_up(row: u32, first_output: u32, choices: u32, thread: u32) {
    for (var i = thread; i < PARTS * OUTPUTS; i += THREADS) {
        let own = i % OUTPUTS;
        results[i] = result_of(i / OUTPUTS, first_output + own, own / 4u, own % 4u);
    }
    workgroupBarrier();
    let own_output = first_output + thread;
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
