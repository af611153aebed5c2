// What passes between the two parts of a layer of experts: f32.

// Stores a thread's four values of a row that begins at a word; those of the workgroup begin at a value.
fn put_hidden(at: u32, first: u32, values: vec4<f32>, adds: bool, thread: u32) {
    if (adds) {
        put_four(at + first + thread * 4u, bitcast<vec4<u32>>(values));
    }
}
