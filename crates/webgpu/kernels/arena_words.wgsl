// The arena and small weights as words; kernels whose operands stand on multiples of four words see them as vectors
// (arena_vectors.wgsl), which are read four at a time.
@group(0) @binding(0) var<storage, read_write> arena: array<u32>;
@group(0) @binding(3) var<storage, read> vectors: array<u32>;

fn word(at: u32) -> u32 {
    return arena[at];
}

fn put(at: u32, value: u32) {
    arena[at] = value;
}

fn four_words(at: u32) -> vec4<u32> {
    return vec4<u32>(arena[at], arena[at + 1u], arena[at + 2u], arena[at + 3u]);
}

fn put_four(at: u32, values: vec4<u32>) {
    arena[at] = values.x;
    arena[at + 1u] = values.y;
    arena[at + 2u] = values.z;
    arena[at + 3u] = values.w;
}

fn vector_at(index: u32) -> f32 {
    return bitcast<f32>(vectors[index]);
}

fn four_of_vector(index: u32) -> vec4<f32> {
    return vec4<f32>(vector_at(index), vector_at(index + 1u), vector_at(index + 2u), vector_at(index + 3u));
}
