// Four values of a row, or what is left of it.

// Fewer than four values that stand in memory, then zeros.
fn values_at(at: u32, count: u32) -> vec4<f32> {
    var values = vec4<f32>(0.0);
    if (count > 0u) {
        values.x = bitcast<f32>(word(at));
    }
    if (count > 1u) {
        values.y = bitcast<f32>(word(at + 1u));
    }
    if (count > 2u) {
        values.z = bitcast<f32>(word(at + 2u));
    }
    return values;
}

// Adds four columns of four outputs, in order.
fn add_columns(a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>, x: vec4<f32>, chain: vec4<f32>) -> vec4<f32> {
    var sum = fma(vec4<f32>(a.x, b.x, c.x, d.x), vec4<f32>(x.x), chain);
    sum = fma(vec4<f32>(a.y, b.y, c.y, d.y), vec4<f32>(x.y), sum);
    sum = fma(vec4<f32>(a.z, b.z, c.z, d.z), vec4<f32>(x.z), sum);
    return fma(vec4<f32>(a.w, b.w, c.w, d.w), vec4<f32>(x.w), sum);
}

// Stores four values, or as many as are left.
fn put_values(at: u32, values: vec4<f32>, left: u32) {
    if (left >= 4u) {
        put_four(at, bitcast<vec4<u32>>(values));
        return;
    }
    put(at, bitcast<u32>(values.x));
    if (left > 1u) {
        put(at + 1u, bitcast<u32>(values.y));
    }
    if (left > 2u) {
        put(at + 2u, bitcast<u32>(values.z));
    }
}
