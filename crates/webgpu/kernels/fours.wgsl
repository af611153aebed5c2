// Four values of a row, or what is left of it, and the factors of four rows of a weight.

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

fn factors_of(weights: Weights, expert: u32, output: u32) -> vec4<f32> {
    return vec4<f32>(
        row_factor(weights, row_of(weights, expert, output)),
        row_factor(weights, row_of(weights, expert, output + 1u)),
        row_factor(weights, row_of(weights, expert, output + 2u)),
        row_factor(weights, row_of(weights, expert, output + 3u)),
    );
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
