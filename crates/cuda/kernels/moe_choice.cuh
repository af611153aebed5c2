// How a token's experts are chosen, by a warp: s = sigmoid(logits) or softmax(logits); experts are chosen by s + bias, ties
// to the lower index, within the best groups where there are several; weights are s, divided by their sum if normalised,
// times a factor.
//
// Choices are compared as integers in the order of floats, with the index below.
// Defines: EXPERTS, TOP_K, GROUPS, TOP_GROUPS, SOFTMAX, NORMALIZE.
#pragma once
#include "common.cuh"

#define SLOTS ((EXPERTS + 31) / 32)
#define GROUP_SIZE (EXPERTS / GROUPS)
#define GROUP_SLOTS ((GROUPS + 31) / 32)

// Floats in their total order, as integers; what is no number comes last.
DEVICE u32 order_key(float value) {
    if (value != value) return 0;
    u32 bits = __float_as_uint(value);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

DEVICE float key_value(u32 key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// A candidate: larger keys first, then lower indices. Zero is none.
DEVICE u64 candidate(u32 key, u32 index) {
    return (u64)key << 32 | (0xffffffffu - index);
}

DEVICE u64 warp_best(u64 value) {
    u32 key = __reduce_max_sync(ALL_LANES, (u32)(value >> 32));
    return (u64)key << 32 | __reduce_max_sync(ALL_LANES, (u32)(value >> 32) == key ? (u32)value : 0u);
}

// Takes the best of the candidates in all lanes away and returns its index.
template <int COUNT>
DEVICE u32 take_best(u64* candidates) {
    u64 own = 0;
#pragma unroll
    for (int i = 0; i < COUNT; i++) own = candidates[i] > own ? candidates[i] : own;
    u64 best = warp_best(own);
#pragma unroll
    for (int i = 0; i < COUNT; i++) candidates[i] = candidates[i] == best ? 0 : candidates[i];
    return 0xffffffffu - (u32)best;
}

// The experts of all but the best groups become the last choices.
DEVICE void limit_groups(u32* keys, u32 lane) {
    u64 groups[GROUP_SLOTS];
#pragma unroll
    for (int i = 0; i < GROUP_SLOTS; i++) {
        u32 group = lane + 32 * i;
        groups[i] = 0;
        if (group >= GROUPS) continue;
        u32 first = 0, second = 0;
        for (u32 at = group * GROUP_SIZE; at < (group + 1) * GROUP_SIZE; at++) {
            u32 key = keys[at];
            second = max(second, min(first, key));
            first = max(first, key);
        }
        float sum = GROUP_SIZE > 1 ? __fadd_rn(key_value(first), key_value(second)) : key_value(first);
        groups[i] = candidate(order_key(sum), group);
    }
    u32 kept[GROUP_SLOTS] = {};
    for (u32 count = 0; count < TOP_GROUPS; count++) {
        u32 group = take_best<GROUP_SLOTS>(groups);
#pragma unroll
        for (int i = 0; i < GROUP_SLOTS; i++)
            if (group == lane + 32 * i) kept[i] = 1;
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < GROUP_SLOTS; i++) {
        u32 group = lane + 32 * i;
        if (group >= GROUPS || kept[i]) continue;
        for (u32 at = group * GROUP_SIZE; at < (group + 1) * GROUP_SIZE; at++)
            keys[at] = order_key(__uint_as_float(0xff800000u));
    }
    __syncwarp();
}

// What a warp needs to choose, in shared memory, and what it chose.
struct Choice {
    float scores[EXPERTS];
    u32 keys[GROUPS > 1 ? EXPERTS : 1];
    u32 ids[TOP_K];

    // The weight of choice k, of which `divisor` is the sum.
    DEVICE float weight(u32 k, float divisor, float scale) const {
        return __fmul_rn(__fdiv_rn(scores[ids[k]], divisor), scale);
    }
};

// The values of a warp's lanes: that of expert lane + 32·i, where there is one.
DEVICE void load_experts(float (&values)[SLOTS], const float* from, float otherwise) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < SLOTS; i++) values[i] = lane + 32 * i < EXPERTS ? from[lane + 32 * i] : otherwise;
}

// Chooses by score[i], the logit of expert lane + 32·i, minus infinity where there is none; returns what the weights are
// divided by.
DEVICE float choose_experts(float (&score)[SLOTS], const float (&bias)[SLOTS], Choice& choice, u32 lane) {
    float largest = __uint_as_float(0xff800000u), sum = 0.0f;
#pragma unroll
    for (int i = 0; i < SLOTS; i++) largest = fmaxf(largest, score[i]);
    largest = warp_max(largest);
#pragma unroll
    for (int i = 0; i < SLOTS; i++) {
        score[i] = SOFTMAX ? expf(__fsub_rn(score[i], largest))
                           : __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-score[i])));
        if (lane + 32 * i < EXPERTS) sum = __fadd_rn(sum, score[i]);
    }
    sum = warp_sum(sum);
    u64 candidates[SLOTS];
#pragma unroll
    for (int i = 0; i < SLOTS; i++) {
        u32 expert = lane + 32 * i;
        candidates[i] = 0;
        if (expert >= EXPERTS) continue;
        if (SOFTMAX) score[i] = __fdiv_rn(score[i], sum);
        choice.scores[expert] = score[i];
        u32 key = order_key(__fadd_rn(score[i], bias[i]));
        candidates[i] = candidate(key, expert);
        if (GROUPS > 1) choice.keys[expert] = key;
    }
    __syncwarp();
    if (GROUPS > 1) {
        limit_groups(choice.keys, lane);
#pragma unroll
        for (int i = 0; i < SLOTS; i++) {
            u32 expert = lane + 32 * i;
            if (expert < EXPERTS) candidates[i] = candidate(choice.keys[expert], expert);
        }
    }
    float total = 0.0f;
    for (u32 k = 0; k < TOP_K; k++) {
        u32 expert = take_best<SLOTS>(candidates);
        total = __fadd_rn(total, choice.scores[expert]);
        if (lane == 0) choice.ids[k] = expert;
    }
    __syncwarp();
    return NORMALIZE ? __fadd_rn(total, 1e-20f) : 1.0f;
}
