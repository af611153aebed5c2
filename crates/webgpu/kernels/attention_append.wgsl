// attention_append: rounds keys and values of the step's rows to the cache's types and puts them into the pages.
//
// A workgroup has the positions of one page in one segment, of one head: the row that is the first of them stands for
// all. It writes whole words, and keeps what others have in the words at the ends.
// Constants: those of kv.wgsl.
#include "common.wgsl"
#include "kv.wgsl"

const THREADS: u32 = 128u;

// Scales of 8-bit blocks, as bf16 bits.
var<workgroup> scales: array<u32, SCALES>;

fn input(is_value: bool, row: u32, col: u32) -> f32 {
    if (is_value) {
        return load(p.v, row, col);
    }
    return load(p.k, row, col);
}

fn block_scale_bits(is_value: bool, row: u32, first: u32, len: u32) -> u32 {
    var largest = 0.0;
    var poison = 0u;
    for (var i = 0u; i < len; i++) {
        let bits = bitcast<u32>(input(is_value, row, first + i)) & 0x7fffffffu;
        largest = max(largest, select(bitcast<f32>(bits), 0.0, bits >= 0x7f800000u));
        poison = select(poison, 1u, bits >= 0x7f800000u);
    }
    return select(bf16_bits(largest / 127.0), 0x7fc0u, poison == 1u);
}

fn q8_code(value: f32, scale_bits: u32) -> u32 {
    let scale = bf16_value(scale_bits);
    var inverse = 0.0;
    if (scale_bits < 0x7f80u && scale > 1.17549435e-38) {
        inverse = 1.0 / scale;
    }
    let exact = value * inverse;
    var low = -127.0;
    if (exact > -127.0) {
        low = exact;
    }
    return u32(i32(round(min(low, 127.0)))) & 0xffu;
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.z * GRID_ROWS + group.y;
    if (row >= step[STEP_ROWS]) {
        return;
    }
    let segment = segment_of(row);
    let position = segment.position + (row - segment.first_row);
    let slot = position % PAGE_TOKENS;
    if (slot != 0u && row != segment.first_row) {
        return;
    }
    let count = min(PAGE_TOKENS - slot, segment.first_row + segment.rows - row);
    let head = group.x / 2u;
    let is_value = (group.x & 1u) == 1u;
    let elem = select(K_ELEM, V_ELEM, is_value);
    let page = page_of(segment, position);
    let words = select(key_words(page, head), value_words(page, head), is_value);
    let layer_scale = select(p.k_scale, p.v_scale, is_value);
    let first_col = head * HEAD_DIM;
    if (elem == 3u) {
        for (var i = thread; i < count * BLOCKS; i += THREADS) {
            let block = i % BLOCKS * 32u;
            scales[i] = block_scale_bits(is_value, row + i / BLOCKS, first_col + block, min(32u, HEAD_DIM - block));
        }
    }
    workgroupBarrier();
    let bytes = code_bytes(elem);
    let begin = slot * HEAD_DIM;
    let end = begin + count * HEAD_DIM;
    let per_word = 4u / bytes;
    for (var w = begin / per_word + thread; w * per_word < end; w += THREADS) {
        var word = 0u;
        if (w * per_word < begin || (w + 1u) * per_word > end) {
            word = cache[words + w];
        }
        for (var i = 0u; i < per_word; i++) {
            let index = w * per_word + i;
            if (index < begin || index >= end) {
                continue;
            }
            let own = index / HEAD_DIM - slot;
            let channel = index % HEAD_DIM;
            let value = input(is_value, row + own, first_col + channel);
            let shift = i * bytes * 8u;
            switch (elem) {
                case 0u: {
                    word = bitcast<u32>(value);
                }
                case 1u: {
                    word = (word & ~(0xffffu << shift)) | (f16_bits(value) << shift);
                }
                case 2u: {
                    word = (word & ~(0xffffu << shift)) | (bf16_bits(value) << shift);
                }
                case 3u: {
                    let code = q8_code(value, scales[own * BLOCKS + channel / 32u]);
                    word = (word & ~(0xffu << shift)) | (code << shift);
                }
                default: {
                    word = (word & ~(0xffu << shift)) | (e4m3_code(value / layer_scale) << shift);
                }
            }
        }
        cache[words + w] = word;
    }
    if (elem != 3u) {
        return;
    }
    let scale_words = words + PAGE_TOKENS / 4u * HEAD_DIM;
    let first = slot * BLOCKS;
    let last = first + count * BLOCKS;
    for (var w = first / 2u + thread; w * 2u < last; w += THREADS) {
        var word = cache[scale_words + w];
        for (var i = 0u; i < 2u; i++) {
            let index = w * 2u + i;
            if (index >= first && index < last) {
                word = (word & ~(0xffffu << (i * 16u))) | (scales[index - first] << (i * 16u));
            }
        }
        cache[scale_words + w] = word;
    }
}
