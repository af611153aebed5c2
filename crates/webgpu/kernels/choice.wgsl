// What choose_best.wgsl and choose.wgsl share: rows of logits with their changes, in their order as integers.
const SLICES: u32 = 32u;
const MINUS_INFINITY_KEY: u32 = 0x007fffffu;
const PLUS_INFINITY_KEY: u32 = 0xff800000u;

struct Choice {
    temperature: f32,
    top_k: u32,
    top_p: f32,
    min_p: f32,
    seed: vec2<u32>,
    position: u32,
    changes: u32,
    change_count: u32,
    mask: u32,
}

fn choice_of(row: u32) -> Choice {
    let at = step[STEP_CHOOSE] + 10u * row;
    return Choice(
        bitcast<f32>(step[at]),
        step[at + 1u],
        bitcast<f32>(step[at + 2u]),
        bitcast<f32>(step[at + 3u]),
        vec2<u32>(step[at + 4u], step[at + 5u]),
        step[at + 6u],
        step[STEP_ADJUSTMENTS] + 4u * step[at + 7u],
        step[at + 8u],
        step[at + 9u],
    );
}

// A logit's place in the order of floats: of minus infinity where the token is not allowed or has none. Bits are looked
// at, because compilers may take every number for a number. Zeros have one sign.
fn key_of(bits: u32) -> u32 {
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return MINUS_INFINITY_KEY;
    }
    if ((bits & 0x7fffffffu) == 0u) {
        return 0x80000000u;
    }
    return select(bits | 0x80000000u, ~bits, (bits & 0x80000000u) != 0u);
}

fn key_value(key: u32) -> f32 {
    return bitcast<f32>(select(~key, key & 0x7fffffffu, (key & 0x80000000u) != 0u));
}

// The logit after its change.
fn key_at(row: u32, token: u32, choice: Choice) -> u32 {
    var bits = arena[word_at(p.logits, row, token)];
    if (choice.change_count > 0u) {
        var low = 0u;
        var high = choice.change_count;
        while (low < high) {
            let middle = (low + high) / 2u;
            if (step[choice.changes + 4u * middle] < token) {
                low = middle + 1u;
            } else {
                high = middle;
            }
        }
        let at = choice.changes + 4u * low;
        if (low < choice.change_count && step[at] == token) {
            let is_banned = step[at + 1u] == 0xff800000u;
            let biased = bitcast<f32>(bits) + bitcast<f32>(step[at + 1u]);
            let factor = bitcast<f32>(step[at + 2u]);
            let scaled = select(biased * factor, biased / factor, biased > 0.0);
            let is_infinite = (bits & 0x7fffffffu) >= 0x7f800000u;
            bits = select(bitcast<u32>(scaled - bitcast<f32>(step[at + 3u])), bits, is_infinite);
            if (is_banned) {
                return MINUS_INFINITY_KEY;
            }
        }
    }
    if (choice.mask != NO_MASK) {
        let word = step[step[STEP_MASKS] + choice.mask * step[STEP_MASK_WORDS] + token / 32u];
        if (((word >> (token % 32u)) & 1u) == 0u) {
            return MINUS_INFINITY_KEY;
        }
    }
    return key_of(bits);
}

// A token with its rank: larger logits first, then lower ids. Zeros are none.
fn rank_of(key: u32, token: u32) -> vec2<u32> {
    return select(vec2<u32>(key, ~token), vec2<u32>(0u), key <= MINUS_INFINITY_KEY);
}

fn is_above(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.x > b.x || (a.x == b.x && a.y > b.y);
}

var<workgroup> best_ranks: array<vec2<u32>, 256>;

// The best of all threads' ranks, the same in all; called by all threads.
fn best_of(rank: vec2<u32>, thread: u32) -> vec2<u32> {
    workgroupBarrier();
    best_ranks[thread] = rank;
    workgroupBarrier();
    for (var half = 128u; half > 0u; half >>= 1u) {
        if (thread < half && is_above(best_ranks[thread + half], best_ranks[thread])) {
            best_ranks[thread] = best_ranks[thread + half];
        }
        workgroupBarrier();
    }
    return workgroupUniformLoad(&best_ranks[0]);
}
