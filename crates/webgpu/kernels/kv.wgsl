// One layer's pages: for every page all heads' keys, then all heads' values; of a head codes [position][channel], then,
// for 8-bit integers, scales [position][block of 32]. Codes are of 1, 2 or 4 bytes.
// Constants: KV_HEADS, HEAD_DIM, K_ELEM, V_ELEM (0 f32, 1 f16, 2 bf16, 3 q8, 4 f8). Parameters: page_words, pages, group,
// k_scale, v_scale.
#include "numbers.wgsl"

const BLOCKS: u32 = (HEAD_DIM + 31u) / 32u;

fn code_bytes(elem: u32) -> u32 {
    return select(select(1u, 2u, elem == 1u || elem == 2u), 4u, elem == 0u);
}

// Words of one head of a page.
fn head_words(elem: u32) -> u32 {
    let row = HEAD_DIM * code_bytes(elem) + select(0u, 2u * BLOCKS, elem == 3u);
    return PAGE_TOKENS / 4u * row;
}

// The first word of a head's keys in a page.
fn key_words(page: u32, head: u32) -> u32 {
    return page * p.page_words + head * head_words(K_ELEM);
}

fn value_words(page: u32, head: u32) -> u32 {
    return page * p.page_words + KV_HEADS * head_words(K_ELEM) + head * head_words(V_ELEM);
}

// The page of a segment that holds a position.
fn page_of(segment: Segment, position: u32) -> u32 {
    let lists = step[STEP_PAGES] + p.group * step[STEP_GROUP_PAGES];
    return min(step[lists + segment.first_page + position / PAGE_TOKENS], p.pages - 1u);
}

// What the code of a channel of a position is multiplied with, in a head that starts at a word; `scale` is the layer's.
fn block_scale(elem: u32, scale: f32, head: u32, position: u32, channel: u32) -> f32 {
    if (elem < 3u) {
        return 1.0;
    }
    if (elem > 3u) {
        return scale;
    }
    let at = position * BLOCKS + channel / 32u;
    let word = cache[head + PAGE_TOKENS / 4u * HEAD_DIM + at / 2u];
    return bf16_value((word >> ((at & 1u) * 16u)) & 0xffffu);
}

// The value of the code in a word's lowest bits.
fn decoded(elem: u32, word: u32, scale: f32) -> f32 {
    switch (elem) {
        case 0u: {
            return bitcast<f32>(word);
        }
        case 1u: {
            return unpack2x16float(word).x;
        }
        case 2u: {
            return bf16_value(word & 0xffffu);
        }
        case 3u: {
            return f32(bitcast<i32>(word << 24u) >> 24u) * scale;
        }
        default: {
            return e4m3_value(word & 0xffu) * scale;
        }
    }
}

// A channel of a position in a head that starts at a word; `scale` is the layer's.
fn cached(elem: u32, scale: f32, head: u32, position: u32, channel: u32) -> f32 {
    let byte = (position * HEAD_DIM + channel) * code_bytes(elem);
    let word = cache[head + byte / 4u] >> (byte % 4u * 8u);
    return decoded(elem, word, block_scale(elem, scale, head, position, channel));
}
