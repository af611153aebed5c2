// choose: the token that follows each wanted row, from its logits, as the step says. A workgroup has a row.
//
// The best of the slices is taken, or a token is drawn after cuts. Which tokens are kept is decided on integers (order of
// logits, then of ids; weights in units of 2^-39 in three parts of 13 bits), so that no order of threads matters.
#include "common.wgsl"
#include "math.wgsl"
#include "choice.wgsl"

const BAND: f32 = 21.0;
const SPREAD: u32 = 0x9e3779b9u;
const PART: f32 = 8192.0;

// Sums of weights by digit: low, middle and high parts.
var<workgroup> bins: array<atomic<u32>, 768>;
// The digit found, what lies before it, and what it has: sums of two words, low first.
var<workgroup> found: array<u32, 5>;

struct Draw {
    row: u32,
    choice: Choice,
    top: f32,
    // Tokens ranked below this are not kept.
    lowest: vec2<u32>,
}

fn scramble(x: u32) -> u32 {
    let a = (x ^ (x >> 16u)) * 0x85ebca6bu;
    let b = (a ^ (a >> 13u)) * 0xc2b2ae35u;
    return b ^ (b >> 16u);
}

// The part of the noise that a row shares.
fn noise_key(choice: Choice) -> vec2<u32> {
    var key = vec2<u32>(SPREAD, ~SPREAD);
    for (var i = 0u; i < 2u; i++) {
        var word = scramble(key[i] ^ choice.seed.x) + SPREAD;
        word = scramble(word ^ choice.seed.y) + SPREAD;
        key[i] = scramble(word ^ choice.position) + SPREAD;
    }
    return key;
}

// -ln(-ln u) with u from the upper 24 bits; near 1, where winners are drawn, from the distance to 1.
fn gumbel(bits: u32) -> f32 {
    let below_one = (f32(~bits >> 8u) + 0.5) * 5.9604644775390625e-8;
    var exponential = 0.0;
    if (below_one < 0.00390625) {
        exponential = fma(below_one * below_one, fma(below_one, 0.333333333, 0.5), below_one);
    } else {
        exponential = -log_of((f32(bits >> 8u) + 0.5) * 5.9604644775390625e-8);
    }
    return -log_of(exponential);
}

fn scaled(draw: Draw, key: u32) -> f32 {
    return (key_value(key) - draw.top) / draw.choice.temperature;
}

fn is_kept(draw: Draw, rank: vec2<u32>) -> bool {
    return rank.x != 0u && !is_above(draw.lowest, rank) && scaled(draw, rank.x) >= -BAND;
}

// A token's weight in three parts of 13 bits, low first: of one, or of the exponential.
fn measure(draw: Draw, key: u32, counts: bool) -> vec3<u32> {
    if (counts) {
        return vec3<u32>(1u, 0u, 0u);
    }
    let weight = exp_of(min(scaled(draw, key), 0.0)) * PART;
    let high = floor(weight);
    let rest = (weight - high) * PART;
    let middle = floor(rest);
    return vec3<u32>(u32((rest - middle) * PART), u32(middle), u32(high));
}

// The sum of two numbers of two words, low first.
fn add(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn is_less(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.y < b.y || (a.y == b.y && a.x < b.x);
}

// low + middle · 2^13 + high · 2^26.
fn joined(parts: vec3<u32>) -> vec2<u32> {
    let middle = vec2<u32>(parts.y << 13u, parts.y >> 19u);
    let high = vec2<u32>(parts.z << 26u, parts.z >> 6u);
    return add(add(vec2<u32>(parts.x, 0u), middle), high);
}

fn bin_of(digit: u32) -> vec2<u32> {
    let at = 3u * digit;
    return joined(vec3<u32>(atomicLoad(&bins[at]), atomicLoad(&bins[at + 1u]), atomicLoad(&bins[at + 2u])));
}

fn add_to_bin(digit: u32, parts: vec3<u32>) {
    atomicAdd(&bins[3u * digit], parts.x);
    if (parts.y > 0u) {
        atomicAdd(&bins[3u * digit + 1u], parts.y);
    }
    if (parts.z > 0u) {
        atomicAdd(&bins[3u * digit + 2u], parts.z);
    }
}

fn clear_bins(thread: u32) {
    workgroupBarrier();
    for (var i = thread; i < 768u; i += 256u) {
        atomicStore(&bins[i], 0u);
    }
    workgroupBarrier();
}

// The weight of all kept tokens.
fn total_of(draw: Draw, thread: u32) -> vec2<u32> {
    clear_bins(thread);
    for (var token = thread; token < p.logits.cols; token += 256u) {
        let rank = rank_of(key_at(draw.row, token, draw.choice), token);
        if (is_kept(draw, rank)) {
            add_to_bin(thread, measure(draw, rank.x, false));
        }
    }
    workgroupBarrier();
    if (thread == 0u) {
        var total = vec2<u32>(0u);
        for (var i = 0u; i < 256u; i++) {
            total = add(total, bin_of(i));
        }
        found[0] = total.x;
        found[1] = total.y;
    }
    workgroupBarrier();
    let total = vec2<u32>(workgroupUniformLoad(&found[0]), workgroupUniformLoad(&found[1]));
    return total;
}

fn digit_of(rank: vec2<u32>, place: u32) -> u32 {
    let word = select(rank.y, rank.x, place < 4u);
    return (word >> (24u - (place & 3u) * 8u)) & 255u;
}

// Whether the digits before a place are those of a prefix.
fn has_prefix(rank: vec2<u32>, prefix: vec2<u32>, place: u32) -> bool {
    var above = vec2<u32>(0u);
    if (place >= 4u) {
        above = vec2<u32>(0xffffffffu, select(0xffffffffu << (32u - (place - 4u) * 8u), 0u, place == 4u));
    } else if (place > 0u) {
        above.x = 0xffffffffu << (32u - place * 8u);
    }
    return all((rank & above) == prefix);
}

// Keeps tokens, most likely first, as long as those before them measure less than `limit` together: the rank of the last
// one is found digit by digit.
fn cut(draw: Draw, limit: vec2<u32>, counts: bool, thread: u32) -> vec2<u32> {
    var prefix = vec2<u32>(0u);
    var before = vec2<u32>(0u);
    for (var place = 0u; place < 8u; place++) {
        clear_bins(thread);
        for (var token = thread; token < p.logits.cols; token += 256u) {
            let rank = rank_of(key_at(draw.row, token, draw.choice), token);
            if (is_kept(draw, rank) && has_prefix(rank, prefix, place)) {
                add_to_bin(digit_of(rank, place), measure(draw, rank.x, counts));
            }
        }
        workgroupBarrier();
        if (thread == 0u) {
            var sum = before;
            var digit = 255u;
            // The last digit whose tokens begin below the limit.
            while (digit > 0u && is_less(add(sum, bin_of(digit)), limit)) {
                sum = add(sum, bin_of(digit));
                digit--;
            }
            found[0] = digit;
            found[1] = sum.x;
            found[2] = sum.y;
            let after = add(sum, bin_of(digit));
            found[3] = select(1u, 0u, is_less(limit, after));
        }
        workgroupBarrier();
        let digit = workgroupUniformLoad(&found[0]) << (24u - (place & 3u) * 8u);
        if (place < 4u) {
            prefix.x |= digit;
        } else {
            prefix.y |= digit;
        }
        before = vec2<u32>(workgroupUniformLoad(&found[1]), workgroupUniformLoad(&found[2]));
        // All tokens with this logit are kept.
        if (place == 3u && workgroupUniformLoad(&found[3]) == 1u) {
            break;
        }
    }
    if (is_above(draw.lowest, prefix)) {
        return draw.lowest;
    }
    return prefix;
}

// A share of a number of two words, rounded down, at least one.
fn share(part: f32, whole: vec2<u32>) -> vec2<u32> {
    let value = part * fma(f32(whole.y), 4294967296.0, f32(whole.x));
    let high = floor(value * 2.3283064365386963e-10);
    let low = value - high * 4294967296.0;
    return vec2<u32>(max(u32(min(low, 4294967040.0)), select(0u, 1u, high < 1.0)), u32(high));
}

// The kept token with the largest score, among those whose weight is a share of the best one's.
fn pick(draw: Draw, best: u32, thread: u32) -> u32 {
    let key = noise_key(draw.choice);
    var winner = vec2<u32>(0u);
    for (var token = thread; token < p.logits.cols; token += 256u) {
        let rank = rank_of(key_at(draw.row, token, draw.choice), token);
        if (!is_kept(draw, rank)) {
            continue;
        }
        let s = scaled(draw, rank.x);
        if (draw.choice.min_p > 0.0 && exp_of(s) < draw.choice.min_p) {
            continue;
        }
        let noise = gumbel(scramble(scramble(token * SPREAD + key.x) ^ key.y));
        let candidate = rank_of(key_of(bitcast<u32>(s + noise)), token);
        if (is_above(candidate, winner)) {
            winner = candidate;
        }
    }
    winner = best_of(winner, thread);
    return select(~winner.y, best, winner.x == 0u);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.z * GRID_ROWS + group.y;
    if (row >= step[STEP_WANTED_ROWS]) {
        return;
    }
    var own = vec2<u32>(0u);
    if (thread < SLICES) {
        let at = p.slices + 2u * (row * SLICES + thread);
        own = vec2<u32>(arena[at], arena[at + 1u]);
    }
    let best = best_of(own, thread);
    let choice = choice_of(row);
    var token = select(~best.y, NO_TOKEN, best.x == 0u);
    if (best.x != 0u && choice.temperature != 0.0 && best.x != PLUS_INFINITY_KEY) {
        var draw = Draw(row, choice, key_value(best.x), vec2<u32>(0u));
        if (choice.top_k > 0u && choice.top_k < p.logits.cols) {
            draw.lowest = cut(draw, vec2<u32>(choice.top_k, 0u), true, thread);
        }
        if (choice.top_p < 1.0) {
            let total = total_of(draw, thread);
            draw.lowest = cut(draw, share(choice.top_p, total), false, thread);
        }
        token = pick(draw, token, thread);
    }
    if (thread == 0u) {
        arena[word_at(p.out, row, 0u)] = token;
    }
}
