// glu: y = activation(gate) · x.
// A thread has a value; the grid's x covers a row's columns, y and z its rows.
#include "common.wgsl"
#include "activation.wgsl"
@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let col = group.x * 64u + thread;
    let row = group.z * GRID_ROWS + group.y;
    if (row >= row_count(p.out) || col >= p.out.cols) {
        return;
    }
    store(p.out, row, col, activate(load(p.gate, row, col), load(p.x, row, col)));
}
