// What all kernels share: the bindings, rows of views, the step.
//
// Rules of every kernel:
// - `arena` has activations, hidden rows, choices and working memory; a kernel writes its outputs there and nowhere else,
//   but for `cache`, the layer's pages or slots.
// - Grids are sized for the rows of the step or more; a kernel leaves beyond them, and indexes within bounds by itself.
// - A row's arithmetic depends on the row's own data and its position alone: the same pipeline serves one row and
//   thousands, and no sum is split by the size of a grid. Products that are added are written as fma.
// - Barriers stand in uniform control flow: what decides over one comes from the parameters, the step or
//   workgroupUniformLoad.
#include "arena_$ARENA.wgsl"
struct View {
    data: u32,
    stride: u32,
    cols: u32,
    rows: u32,
}

@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<uniform> p: Params;
@group(0) @binding(4) var<storage, read> matrix: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read_write> cache: array<u32>;

// Rows of a view in this step.
fn row_count(view: View) -> u32 {
    let unit = select(step[STEP_ROWS], step[STEP_WANTED_ROWS], (view.rows >> 31u) != 0u);
    return unit * (view.rows & 0x7fffffffu);
}

fn word_at(view: View, row: u32, col: u32) -> u32 {
    return view.data + row * view.stride + col;
}

fn load(view: View, row: u32, col: u32) -> f32 {
    return bitcast<f32>(word(word_at(view, row, col)));
}

fn store(view: View, row: u32, col: u32, value: f32) {
    put(word_at(view, row, col), bitcast<u32>(value));
}

// The same value: what compilers cannot see through, so that they do not choose in which order factors are multiplied.
fn settled(value: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(value) ^ step[STEP_ZERO]);
}

fn settled_four(values: vec4<f32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(values) ^ vec4<u32>(step[STEP_ZERO]));
}

struct Segment {
    slot: u32,
    first_row: u32,
    rows: u32,
    position: u32,
    first_page: u32,
}

fn segment_at(index: u32) -> Segment {
    let at = step[STEP_SEGMENTS] + 5u * index;
    return Segment(step[at], step[at + 1u], step[at + 2u], step[at + 3u], step[at + 4u]);
}

// The segment of a token's row.
fn segment_of(row: u32) -> Segment {
    return segment_at(step[step[STEP_ROW_SEGMENT] + row]);
}

// The position in its sequence of a token's row.
fn position_of(row: u32) -> u32 {
    let segment = segment_of(row);
    return segment.position + (row - segment.first_row);
}

// The token of a row: its id, or what an earlier step chose.
fn token_of(row: u32) -> u32 {
    let id = step[step[STEP_TOKEN_IDS] + row];
    if ((id & CHOSEN) == 0u) {
        return id;
    }
    let token = word(step[STEP_CHOSEN_BEFORE] + (id & ~CHOSEN));
    return select(token, 0u, token == NO_TOKEN);
}
