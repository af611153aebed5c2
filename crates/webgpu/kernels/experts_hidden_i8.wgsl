// What passes between the two parts of a layer of experts: rounded blocks, of which every workgroup has one.
var<workgroup> hidden: array<vec4<f32>, TEAMS>;

// Stores a thread's four values of a row that begins at a word; those of the workgroup begin at a value.
fn put_hidden(at: u32, first: u32, values: vec4<f32>, adds: bool, thread: u32) {
    if (thread < TEAMS) {
        hidden[thread] = values;
    }
    workgroupBarrier();
    if (!adds || thread > 0u) {
        return;
    }
    let block = rounded_block(
        hidden[0], hidden[1], hidden[2], hidden[3], hidden[4], hidden[5], hidden[6], hidden[7],
    );
    let to = at + first / 32u * 12u;
    put_four(to, block.even);
    put_four(to + 4u, block.odd);
    put_four(to + 8u, block.tail);
}
