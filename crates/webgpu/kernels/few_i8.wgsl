// Products of few rows as sums of integers (integers.wgsl): a team of threads has four outputs, a thread every TEAM-th block of
// theirs; rows of x lie in workgroup memory, ROUND blocks at a time. Values of blocks are left there, too; threads add
// groups of them, and one thread the groups of a row and four outputs, so that neither the team nor the round decides
// about bits.
//
// Rows of x are rounded; but that of a norm is not, and is rounded here.
// Constants: TILE_ROWS, TEAM (threads), ROUND (a multiple of TEAM and of GROUP), and those of few_norm.wgsl.
#include "few_norm.wgsl"
#include "rounded.wgsl"
#include "integers.wgsl"
#include "integer_$WEIGHT.wgsl"

// By row and part of a block (even codes, odd codes, tail) and block.
var<workgroup> xs: array<vec4<u32>, X_VECTORS>;
// By row, team and block: values of the team's outputs. Before there are any: the row of a norm, by block eight vectors, in an
// order that spreads neighbouring blocks over the banks.
var<workgroup> sums: array<vec4<f32>, SUM_VECTORS>;

fn staged_four(i: u32) -> vec4<f32> {
    return sums[i ^ ((i >> 3u) & 7u)];
}

fn normed_four(i: u32) -> vec4<f32> {
    if (i * 4u >= NORM_GROUPS * NORM_SIZE) {
        return vec4<f32>(0.0);
    }
    let own = settled_four(staged_four(i) * factors[i * 4u / NORM_SIZE]);
    return settled_four(own * four_of_vector(p.norm + i * 4u));
}

fn stage_norm(blocks: u32, thread: u32) {
    for (var i = thread; i < blocks * 8u; i += THREADS) {
        sums[i ^ ((i >> 3u) & 7u)] = four_of_x(0u, i * 4u);
    }
    find_factors(thread);
    for (var block = thread; block < blocks; block += THREADS) {
#repeat i 8
        let v$i = normed_four(block * 8u + $iu);
#end
        let own = rounded_block(v0, v1, v2, v3, v4, v5, v6, v7);
        xs[block] = own.even;
        xs[ROUND + block] = own.odd;
        xs[2u * ROUND + block] = own.tail;
    }
}

// Blocks beyond the last one and rows beyond the last one keep what is there: nothing uses it.
fn stage(first: u32, end: u32, count: u32, thread: u32) {
    for (var r = 0u; r < count; r++) {
        let at = x_word(r) + first * 12u;
        for (var i = thread; i < (end - first) * 3u; i += THREADS) {
            xs[(r * 3u + i % 3u) * ROUND + i / 3u] = four_words(at + i * 4u);
        }
    }
}

// Adds the values of groups of blocks, each where its first one is.
fn add_groups(lines: u32, count: u32, thread: u32) {
    let groups = (count + GROUP - 1u) / GROUP;
    for (var i = thread; i < lines * groups; i += THREADS) {
        let at = i / groups * ROUND + i % groups * GROUP;
        let left = count - i % groups * GROUP;
        var sum = vec4<f32>(0.0);
        if (left >= GROUP) {
            let s0 = sums[at];
            let s1 = sums[at + 1u];
            let s2 = sums[at + 2u];
            let s3 = sums[at + 3u];
            let s4 = sums[at + 4u];
            let s5 = sums[at + 5u];
            let s6 = sums[at + 6u];
            let s7 = sums[at + 7u];
            sum = (((((((sum + s0) + s1) + s2) + s3) + s4) + s5) + s6) + s7;
        } else {
            for (var b = 0u; b < left; b++) {
                sum = sum + sums[at + b];
            }
        }
        sums[at] = sum;
    }
}

// The product of the tile's rows with the rows of a weight that begin at four vectors, those of the thread's team; a thread
// below TEAMS · TILE_ROWS gets the sums of row thread / TEAMS and of four outputs, those of team thread % TEAMS.
fn product(rows: vec4<u32>, parts: vec2<u32>, blocks: u32, count: u32, thread: u32) -> vec4<f32> {
    let team = thread / TEAM;
    let last = blocks - 1u;
    // A block is read while the one before it is multiplied, the first while x is on its way.
    var block = thread % TEAM;
    var ahead = min(block, last);
#repeat o 4
    var codes$o = codes_at(rows[$o], ahead);
    var more$o = more_at(rows[$o], ahead);
    var scales$o = scales_at(parts, rows[$o], ahead);
#end
    var total = vec4<f32>(0.0);
    for (var first = 0u; first < blocks; first += ROUND) {
        let end = min(first + ROUND, blocks);
        if (NORM_GROUPS > 0u) {
            stage_norm(blocks, thread);
        } else {
            stage(first, end, count, thread);
        }
        workgroupBarrier();
        while (block < end) {
            let at = block - first;
            block += TEAM;
            ahead = min(block, last);
#repeat o 4
            let own_codes$o = codes$o;
            let own_more$o = more$o;
            let own_scales$o = scales$o;
            codes$o = codes_at(rows[$o], ahead);
            more$o = more_at(rows[$o], ahead);
            scales$o = scales_at(parts, rows[$o], ahead);
#end
            for (var r = 0u; r < min(count, TILE_ROWS); r++) {
                let even = xs[r * 3u * ROUND + at];
                let odd = xs[(r * 3u + 1u) * ROUND + at];
                let tail = xs[(r * 3u + 2u) * ROUND + at];
                sums[(r * TEAMS + team) * ROUND + at] = vec4<f32>(
                    block_value(own_codes0, own_more0, own_scales0, even, odd, tail),
                    block_value(own_codes1, own_more1, own_scales1, even, odd, tail),
                    block_value(own_codes2, own_more2, own_scales2, even, odd, tail),
                    block_value(own_codes3, own_more3, own_scales3, even, odd, tail),
                );
            }
        }
        workgroupBarrier();
        add_groups(TEAMS * count, end - first, thread);
        workgroupBarrier();
        if (thread < TEAMS * count) {
            for (var b = 0u; b < end - first; b += GROUP) {
                total = total + sums[thread * ROUND + b];
            }
        }
    }
    return total;
}
