// choose: the token that follows each wanted row, from its logits, as the step says.
//
// `choose_best` finds the most likely token of every slice of a row; `choose` has a block for a row: it takes the best of
// the slices, and where a token is drawn it cuts and draws. Which tokens are kept is decided on integers (order of
// logits, then of ids; weights in units of 2^-40), so neither the order of threads nor their number matters.
#include "common.cuh"

#define THREADS 1024
#define SLICES 32
#define BINS 256
#define AHEAD 8
#define BAND 21.0f
#define SPREAD 0x9e3779b9u
#define MINUS_INFINITY __uint_as_float(0xff800000u)

DEVICE u32 mix(u32 x) {
    x = (x ^ (x >> 16)) * 0x85ebca6bu;
    x = (x ^ (x >> 13)) * 0xc2b2ae35u;
    return x ^ (x >> 16);
}

// The part of the noise that a row shares.
struct NoiseKey {
    u32 words[2];

    DEVICE NoiseKey(u64 seed, u32 position) {
        for (int i = 0; i < 2; i++) {
            u32 key = i == 0 ? SPREAD : ~SPREAD;
            key = mix(key ^ (u32)seed) + SPREAD;
            key = mix(key ^ (u32)(seed >> 32)) + SPREAD;
            words[i] = mix(key ^ position) + SPREAD;
        }
    }

    DEVICE u32 bits(u32 token) const { return mix(mix(token * SPREAD + words[0]) ^ words[1]); }
};

// -ln(-ln u) with u from the upper 24 bits; near 1, where winners are drawn, from the distance to 1.
DEVICE float gumbel(u32 bits) {
    float below_one = ((float)(~bits >> 8) + 0.5f) * 5.9604644775390625e-8f;
    float exponential;
    if (below_one < 0.00390625f)
        exponential = below_one + below_one * below_one * (0.5f + below_one * 0.333333333f);
    else
        exponential = -logf(((float)(bits >> 8) + 0.5f) * 5.9604644775390625e-8f);
    return -logf(exponential);
}

// A row of logits with its changes.
struct Row {
    const float* logits;
    const u32* mask;
    const AdjustmentEntry* changes;
    u32 change_count, tokens;

    DEVICE Row(const ChooseParams& p, u32 row) {
        ChooseEntry how = p.step->choose[row];
        logits = f32_row(p.logits, row);
        mask = how.mask == NO_MASK ? 0 : p.step->masks + (u64)how.mask * p.step->mask_words;
        changes = p.step->adjustments + how.first_adjustment;
        change_count = how.adjustments;
        tokens = p.logits.cols;
    }

    // The logit after its change; minus infinity where the token is not allowed or has none. Zeros have one sign.
    DEVICE float at(u32 token) const {
        float logit = logits[token];
        if (change_count > 0) {
            u32 low = 0, high = change_count;
            while (low < high) {
                u32 middle = (low + high) / 2;
                if (changes[middle].token < token)
                    low = middle + 1;
                else
                    high = middle;
            }
            if (low < change_count && changes[low].token == token) {
                AdjustmentEntry change = changes[low];
                float biased = __fadd_rn(logit, change.bias);
                float scaled = biased > 0.0f ? __fdiv_rn(biased, change.factor) : __fmul_rn(biased, change.factor);
                logit = __fsub_rn(scaled, change.penalty);
            }
        }
        if (mask && !(mask[token / 32] >> (token % 32) & 1)) return MINUS_INFINITY;
        return logit != logit ? MINUS_INFINITY : __fadd_rn(logit, 0.0f);
    }
};

// Logits in their order, as integers.
DEVICE u32 order_key(float value) {
    u32 bits = __float_as_uint(value);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

DEVICE float key_value(u32 key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// A token with its rank: larger logits first, then lower ids. Zero is none.
DEVICE u64 rank_of(float value, u32 token) {
    return value == MINUS_INFINITY ? 0 : (u64)order_key(value) << 32 | (0xffffffffu - token);
}

DEVICE u64 block_best(u64 value, u64* scratch) {
    for (int distance = 16; distance > 0; distance >>= 1) {
        u64 other = __shfl_xor_sync(ALL_LANES, value, distance);
        value = other > value ? other : value;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
    __syncthreads();
    u64 best = 0;
    for (u32 i = 0; i < blockDim.x / 32; i++) best = scratch[i] > best ? scratch[i] : best;
    return best;
}

KERNEL __launch_bounds__(256) choose_best(const __grid_constant__ ChooseParams p) {
    __shared__ u64 scratch[8];
    start_dependents();
    wait_for_inputs();
    u32 row = blockIdx.y;
    if (row >= p.step->wanted_rows) return;
    Row logits(p, row);
    u64 best = 0;
#pragma unroll 8
    for (u32 token = blockIdx.x * 256 + threadIdx.x; token < logits.tokens; token += 256 * SLICES) {
        u64 rank = rank_of(logits.at(token), token);
        best = rank > best ? rank : best;
    }
    best = block_best(best, scratch);
    if (threadIdx.x == 0) p.slices[row * SLICES + blockIdx.x] = best;
}

struct ChooseShared {
    u64 bins[BINS];
    u64 scratch[THREADS / 32];
    // The digit found, and what lies before it.
    u32 digit;
    u64 before;
};

// A row whose token is drawn.
struct Draw {
    const Row& row;
    ChooseShared& shared;
    float top, temperature;
    // Tokens ranked below this are not kept.
    u64 lowest;

    DEVICE float scaled(float value) const { return __fdiv_rn(__fsub_rn(value, top), temperature); }

    // The weight of a token in units of 2^-40, below 2^40.
    static DEVICE u64 weight(float scaled) { return (u64)(expf(fminf(scaled, 0.0f)) * 1099511626752.0f); }

    // Calls `visit(is_kept, rank, scaled)` for every token, all lanes together; kept are those within the band that no
    // cut has taken away. Logits are read some at a time: each takes long to come.
    template <class Visit>
    DEVICE void each(Visit visit) const {
        for (u32 first = threadIdx.x; first < (row.tokens + THREADS - 1) / THREADS * THREADS; first += AHEAD * THREADS) {
            float values[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                u32 token = first + i * THREADS;
                values[i] = token < row.tokens ? row.at(token) : MINUS_INFINITY;
            }
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                float s = scaled(values[i]);
                u64 rank = rank_of(values[i], first + i * THREADS);
                visit(rank != 0 && rank >= lowest && s >= -BAND, rank, s);
            }
        }
    }

    // The sum of `measure` over all kept tokens.
    template <class Measure>
    DEVICE u64 total(Measure measure) {
        u64 sum = 0;
        each([&](bool is_kept, u64, float s) { sum += is_kept ? measure(s) : 0; });
        for (int distance = 16; distance > 0; distance >>= 1) sum += __shfl_xor_sync(ALL_LANES, sum, distance);
        __syncthreads();
        if (threadIdx.x % 32 == 0) shared.scratch[threadIdx.x / 32] = sum;
        __syncthreads();
        sum = 0;
        for (u32 i = 0; i < THREADS / 32; i++) sum += shared.scratch[i];
        __syncthreads();
        return sum;
    }

    // Adds to a bin what the lanes have for it, of less than 2^40 each.
    DEVICE void add_to_bin(bool is_kept, u32 digit, u64 measure) {
        u32 lanes = __match_any_sync(ALL_LANES, is_kept ? digit : BINS);
        if (!is_kept) return;
        u64 low = __reduce_add_sync(lanes, (u32)measure & 0xfffff), high = __reduce_add_sync(lanes, (u32)(measure >> 20));
        if (__ffs(lanes) - 1 == threadIdx.x % 32) atomicAdd(&shared.bins[digit], (high << 20) + low);
    }

    // Keeps tokens, most likely first, as long as those before them measure less than `limit` together. The rank of
    // the last one is found digit by digit; where no two tokens with its logit have to be told apart, the ids are left.
    template <class Measure>
    DEVICE void cut(u64 limit, Measure measure) {
        u64 prefix = 0, before = 0;
        for (int shift = 56; shift >= 0; shift -= 8) {
            for (u32 i = threadIdx.x; i < BINS; i += THREADS) shared.bins[i] = 0;
            __syncthreads();
            u64 above = shift == 56 ? 0 : ~0ull << (shift + 8);
            each([&](bool is_kept, u64 rank, float s) {
                add_to_bin(is_kept && (rank & above) == prefix, (u32)(rank >> shift) & 255, measure(s));
            });
            __syncthreads();
            if (threadIdx.x == 0) {
                u64 sum = before;
                int digit = BINS - 1;
                // The last digit whose tokens begin below the limit.
                while (digit > 0 && sum + shared.bins[digit] < limit) sum += shared.bins[digit--];
                shared.digit = digit;
                shared.before = sum;
            }
            __syncthreads();
            prefix |= (u64)shared.digit << shift;
            before = shared.before;
            u64 last = shared.bins[shared.digit];
            bool is_one = shift == 32 && last <= measure(scaled(key_value((u32)(prefix >> 32))));
            __syncthreads();
            if (shift == 32 && (is_one || before + last <= limit)) break;
        }
        lowest = prefix > lowest ? prefix : lowest;
    }

    // The kept token with the largest score, among those whose weight is a share of the best one's.
    DEVICE u32 pick(const ChooseEntry& how, u32 best) {
        NoiseKey key(how.seed, how.position);
        u64 winner = 0;
        each([&](bool is_kept, u64 rank, float s) {
            u32 token = 0xffffffffu - (u32)rank;
            if (!is_kept || (how.min_p > 0.0f && expf(s) < how.min_p)) return;
            u64 candidate = rank_of(__fadd_rn(s, gumbel(key.bits(token))), token);
            winner = candidate > winner ? candidate : winner;
        });
        winner = block_best(winner, shared.scratch);
        return winner == 0 ? best : 0xffffffffu - (u32)winner;
    }
};

DEVICE u32 draw(const Row& row, const ChooseEntry& how, float top, u32 best, ChooseShared& shared) {
    Draw draw{row, shared, top, how.temperature, 0};
    auto weight = [](float s) { return Draw::weight(s); };
    auto one = [](float) { return (u64)1; };
    if (how.top_k > 0 && how.top_k < row.tokens) draw.cut(how.top_k, one);
    if (how.top_p < 1.0f) {
        u64 total = draw.total(weight);
        draw.cut(max((u64)((double)how.top_p * (double)total), (u64)1), weight);
    }
    return draw.pick(how, best);
}

KERNEL __launch_bounds__(THREADS, 1) choose(const __grid_constant__ ChooseParams p) {
    __shared__ ChooseShared shared;
    start_dependents();
    wait_for_inputs();
    u32 index = blockIdx.x;
    if (index >= p.step->wanted_rows) return;
    u64 best = 0;
    for (u32 i = 0; i < SLICES; i++) best = max(best, p.slices[index * SLICES + i]);
    ChooseEntry how = p.step->choose[index];
    float top = key_value((u32)(best >> 32));
    u32 token = best == 0 ? NO_TOKEN : 0xffffffffu - (u32)best;
    if (best != 0 && how.temperature != 0.0f && top != __uint_as_float(0x7f800000u)) {
        Row row(p, index);
        token = draw(row, how, top, token, shared);
    }
    if (threadIdx.x == 0) i32_row(p.out, index)[0] = (int)token;
}
