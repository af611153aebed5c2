// Products of few rows: a team of threads has four outputs, a thread every TEAM-th block of theirs; rows of x lie in workgroup
// memory, ROUND blocks at a time. A block's sums are left there, too, and one thread adds those of a row and four outputs
// in order, so that neither the team nor the round decides about bits.
// Constants: TILE_ROWS (1, 2 or 4), TEAM (threads), ROUND (a multiple of TEAM), and those of few_norm.wgsl.
#include "few_norm.wgsl"

// By row and block eight vectors, in an order that spreads neighbouring blocks over the banks.
var<workgroup> xs: array<vec4<f32>, X_VECTORS>;
// By row, team and block: sums of the team's outputs.
var<workgroup> sums: array<vec4<f32>, SUM_VECTORS>;

fn staged_four(i: u32) -> vec4<f32> {
    return xs[i ^ ((i >> 3u) & 7u)];
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
    find_factors(thread);
    for (var i = thread; i < ROUND * 8u; i += THREADS) {
        if (i * 4u < NORM_GROUPS * NORM_SIZE) {
            let at = i ^ ((i >> 3u) & 7u);
            xs[at] = settled_four(xs[at] * factors[i * 4u / NORM_SIZE]) * four_of_vector(p.norm + i * 4u);
        }
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
        stage(first, count, thread);
        if (NORM_GROUPS > 0u) {
            normalize(thread);
        }
        workgroupBarrier();
        let end = min(first + ROUND, blocks);
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
            // A vector of four outputs for each row.
            var chain0 = vec4<f32>(0.0);
            var chain1 = vec4<f32>(0.0);
            var chain2 = vec4<f32>(0.0);
            var chain3 = vec4<f32>(0.0);
#repeat i 8
            let a$i = quad(own_codes0, own_more0, own_scales0, $iu);
            let b$i = quad(own_codes1, own_more1, own_scales1, $iu);
            let c$i = quad(own_codes2, own_more2, own_scales2, $iu);
            let d$i = quad(own_codes3, own_more3, own_scales3, $iu);
            let place$i = at * 8u + ($iu ^ (at & 7u));
            chain0 = add_columns(a$i, b$i, c$i, d$i, xs[place$i], chain0);
            if (TILE_ROWS > 1u) {
                chain1 = add_columns(a$i, b$i, c$i, d$i, xs[ROUND * 8u + place$i], chain1);
            }
            if (TILE_ROWS > 2u) {
                chain2 = add_columns(a$i, b$i, c$i, d$i, xs[2u * ROUND * 8u + place$i], chain2);
                chain3 = add_columns(a$i, b$i, c$i, d$i, xs[3u * ROUND * 8u + place$i], chain3);
            }
#end
            sums[team * ROUND + at] = chain0;
            if (TILE_ROWS > 1u) {
                sums[(TEAMS + team) * ROUND + at] = chain1;
            }
            if (TILE_ROWS > 2u) {
                sums[(2u * TEAMS + team) * ROUND + at] = chain2;
                sums[(3u * TEAMS + team) * ROUND + at] = chain3;
            }
        }
        workgroupBarrier();
        if (thread < TEAMS * count) {
            total = add_sums(total, thread * ROUND, end - first);
        }
    }
    return total;
}
