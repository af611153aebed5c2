// The arena and small weights as vectors of four words: see arena_words.wgsl. What is read or written four at a time
// stands on multiples of four, and no two threads write words of one vector.
@group(0) @binding(0) var<storage, read_write> arena: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> vectors: array<vec4<u32>>;

fn word(at: u32) -> u32 {
    return arena[at >> 2u][at & 3u];
}

fn put(at: u32, value: u32) {
    arena[at >> 2u][at & 3u] = value;
}

fn four_words(at: u32) -> vec4<u32> {
    return arena[at >> 2u];
}

fn put_four(at: u32, values: vec4<u32>) {
    arena[at >> 2u] = values;
}

fn vector_at(index: u32) -> f32 {
    return bitcast<f32>(vectors[index >> 2u][index & 3u]);
}

fn four_of_vector(index: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(vectors[index >> 2u]);
}
