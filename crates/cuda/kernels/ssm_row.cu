// ssm_step of one token per sequence, in one launch: the arithmetic of ssm_step.cu, and its bits, for one row of a chunk.
//
// A block has a row and 32 channels of a head, in the warps and pieces of the state that ssm_chunk.cuh describes. All that
// earlier steps left is read before the input is there: the state, and the chunk's B, x and dt, which go into fragments
// at once. Nothing of the step but this kernel touches them. Then a thread convolves a channel of B or C; every warp
// multiplies C with its piece of the state and of the chunk's B, and the first two make the outputs of 16 channels each.
// Whoever is the last of a row to do so normalises it, unless another kernel does: for one row the product that follows
// (gated_matmul.cu), for many `ssm_row_finish`, because blocks wait for their arrivals. The block whose row ends a chunk
// advances its part of the state.
// Defines: those of ssm_chunk.cuh, of which STATE is a multiple of 32 and HEAD_DIM of 16; TAPS, MOST_ROWS, ROW_SHARED_BYTES.
#include "ssm_row.cuh"

static_assert(STATE % 32 == 0 && HEAD_DIM % NORM_PIECE == 0 && INNER % 64 == 0, "sizes of ssm_row");
static_assert(CHUNK_THREADS == 2 * STATE, "a thread for each channel of B and C");

// Pieces of each row that have been written. Zero between launches: the last arrival makes it so.
__device__ u32 arrivals[MOST_ROWS];

// What the end of a chunk takes beside; see ChunkShared.
struct BoundaryShared {
    Split<N_PITCH> b;
    Split<PITCH> stepped;
    float decays[SSM_CHUNK], steps[SSM_CHUNK];
};
static_assert(sizeof(BoundaryShared) <= ROW_SHARED_BYTES, "shared memory of a chunk's end");

struct RowShared {
    // B and C of the row.
    float bc[2 * STATE];
    float x[PART_CHANNELS];
    // C·B_s and S0·C, by the 32 rows of the state that were summed.
    float products[N_BLOCKS][SSM_CHUNK];
    float carried[N_BLOCKS][PART_CHANNELS];
    u32 parked_x[2][16][32];
    float scales[GROUPS], scratch[CHUNK_WARPS];
    bool is_last;
};

extern __shared__ __align__(16) unsigned char shared_bytes[];

// Products of the row's C with the chunk's B and with the state, in pieces.
DEVICE void multiply_c(RowShared& shared, const ChunkPlace& place, const ChunkB& b, const StateFactor& state,
                       bool has_state) {
    float2 values[4];
#pragma unroll
    for (u32 j = 0; j < 4; j++)
        values[j] = *(const float2*)(shared.bc + STATE + 32 * place.block + 8 * j + 2 * place.q);
    Pairs c;
    c.split(values);
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        SplitSums sums;
#pragma unroll
        for (u32 k = 0; k < 2; k++) {
            // Every row of the left factor is C, so that every lane has sums.
            u32 high[4] = {c.high[2 * k], c.high[2 * k], c.high[2 * k + 1], c.high[2 * k + 1]};
            u32 low[4] = {c.low[2 * k], c.low[2 * k], c.low[2 * k + 1], c.low[2 * k + 1]};
            sums.add(high, low, b.rows[i].high + 2 * k, b.rows[i].low + 2 * k);
        }
        float2 pair = make_float2(sums[0], sums[1]);
        if (place.g == 0) *(float2*)&shared.products[place.block][place.channel + 8 * i + 2 * place.q] = pair;
    }
    if (!has_state) return;
    SplitSums sums;
    state.multiply(sums, c.high, c.low);
    float2 pair = make_float2(sums[0], sums[2]);
    if (place.q == 0) *(float2*)&shared.carried[place.block][place.channel + 2 * place.g] = pair;
}

// The row's outputs before the gate, of channels 2g and 2g + 1 of a warp's 16.
DEVICE float2 row_outputs(const RowShared& shared, const ChunkPlace& place, const ChunkX& x, const ChunkSteps& steps,
                          const RowPlace& at, float sum, bool has_state, float d) {
    u32 lane = place.lane;
    float product = shared.products[0][lane];
#pragma unroll
    for (int block = 1; block < N_BLOCKS; block++) product = __fadd_rn(product, shared.products[block][lane]);
    float step = __fmul_rn(expf(__fsub_rn(sum, steps.sum)), steps.dt);
    float weight = lane <= at.t ? __fmul_rn(step, product) : 0.0f;
    u32 high, low;
    split_bf16(weight, 0.0f, high, low);
    u32 both = __byte_perm(high, low, 0x5410);
    u32 wh[4], wl[4];
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u32 first = __shfl_sync(ALL_LANES, both, 8 * i + 2 * place.q);
        u32 second = __shfl_sync(ALL_LANES, both, 8 * i + 2 * place.q + 1);
        wh[i] = __byte_perm(first, second, 0x5410);
        wl[i] = __byte_perm(first, second, 0x7632);
    }
    SplitSums sums;
    sums.add(x.high[0], x.low[0], wh, wl);
    sums.add(x.high[1], x.low[1], wh + 2, wl + 2);
    float y[2] = {sums[0], sums[2]};
    float decay = expf(sum);
    float2 own_x = *(const float2*)(shared.x + place.channel + 2 * place.g);
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        if (has_state) {
            u32 channel = place.channel + 2 * place.g + r;
            float carried = shared.carried[0][channel];
#pragma unroll
            for (int block = 1; block < N_BLOCKS; block++) carried = __fadd_rn(carried, shared.carried[block][channel]);
            y[r] = __fmaf_rn(decay, carried, y[r]);
        }
        y[r] = __fmaf_rn(d, r == 0 ? own_x.x : own_x.y, y[r]);
    }
    return make_float2(y[0], y[1]);
}

// Writes gated outputs of 16 channels and the sum of their squares for who normalises the row. Whether that is this warp's
// block, because the row's other pieces are there; in every lane.
DEVICE bool leave_piece(const SsmStepParams& p, const ChunkPlace& place, const RowPlace& at, float2 y, float2 gate) {
    float first = __fmul_rn(y.x, gate.x), second = __fmul_rn(y.y, gate.y);
    // The tree of `piece_squares`, whose last step adds neighbours.
    float sums[2] = {__fmul_rn(first, first), __fmul_rn(second, second)};
#pragma unroll
    for (u32 r = 0; r < 2; r++)
        for (int distance = 16; distance > 2; distance >>= 1)
            sums[r] = __fadd_rn(sums[r], __shfl_xor_sync(ALL_LANES, sums[r], distance));
    u32 channel = at.head * HEAD_DIM + at.part * PART_CHANNELS + place.channel;
    if (place.q == 0)
        *(float2*)(f32_row(p.out, at.row) + channel + 2 * place.g) = make_float2(first, second);
    if (place.lane == 0) p.sums[at.row * ROW_PIECES + channel / NORM_PIECE] = __fadd_rn(sums[0], sums[1]);
    if (p.is_normed_apart) return false;
    __syncwarp();
    u32 arrived = 0;
    if (place.lane == 0) arrived = arrive(&arrivals[at.row], ROW_PIECES - 1);
    return __shfl_sync(ALL_LANES, arrived, 0) == ROW_PIECES - 1;
}

#define ROW_VECTORS_HELD ((INNER / 4 + CHUNK_THREADS - 1) / CHUNK_THREADS)

// Normalises a row whose pieces are all there, and keeps its raw columns of B and C, which all blocks have read.
DEVICE void finish_row(const SsmStepParams& p, RowShared& shared, const RowPlace& at) {
    float* out = f32_row(p.out, at.row);
    float4 value[ROW_VECTORS_HELD], weight[ROW_VECTORS_HELD];
#pragma unroll
    for (u32 i = 0; i < ROW_VECTORS_HELD; i++) {
        u32 vector = i * CHUNK_THREADS + threadIdx.x;
        bool is_there = vector < INNER / 4;
        value[i] = is_there ? ((const float4*)out)[vector] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        weight[i] = is_there ? ((const float4*)p.norm)[vector] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    for (u32 group = threadIdx.x / 32; group < GROUPS; group += CHUNK_WARPS) {
        float scale = group_scale(p.sums + at.row * ROW_PIECES + group * pieces_of(GROUP_SIZE), GROUP_SIZE, p.eps);
        if (threadIdx.x % 32 == 0) shared.scales[group] = scale;
    }
    for (u32 i = threadIdx.x; i < GROUP_STATE / 2; i += CHUNK_THREADS)
        ((float4*)(at.raw(p, 0) + INNER))[i] = ((const float4*)(at.xbc(p) + INNER))[i];
    __syncthreads();
    normalize_held<CHUNK_THREADS>(value, weight, shared.scales, GROUP_SIZE, INNER, out, byte_row(p.rounded, at.row),
                                  p.rounded_kind, shared.scratch);
}

// Advances the block's part of the state at the end of a chunk.
DEVICE void end_chunk(const SsmStepParams& p, const RowShared& shared, BoundaryShared& boundary, const RowPlace& at,
                      const ChunkPlace& place, const ScanHead& own, bool has_state) {
    StatePiece piece = {};
    if (has_state) load_piece(piece, place, own.part, at.state(p));
#pragma unroll
    for (u32 i = threadIdx.x; i < SSM_CHUNK * PART_CHANNELS; i += CHUNK_THREADS) {
        u32 s = i / PART_CHANNELS, channel = i % PART_CHANNELS;
        bool is_there = own.part * PART_CHANNELS + channel < HEAD_DIM;
        float x = !is_there ? 0.0f : s == at.t ? shared.x[channel] : at.ring_x(p, s)[channel];
        put(boundary.stepped, s, fragment_column(channel), __fmul_rn(boundary.steps[s], x));
    }
    __syncthreads();
    advance(boundary, boundary.decays[SSM_CHUNK - 1], place, piece, has_state);
    u32 next = at.position + 1;
    round_piece(piece, place, own, p.slots.layer, next);
    store_piece(piece, place, own.part, state_words(p.slots, at.slot, next, own.head, HEADS));
}

// Keeps what the end of a chunk takes of the row's work.
DEVICE void prepare_end(BoundaryShared& boundary, const ChunkPlace& place, const ChunkB& b, const ChunkSteps& steps,
                        float sum) {
    b.put_into(boundary.b, place);
    if (place.warp != 0) return;
    boundary.decays[place.lane] = expf(steps.sum);
    boundary.steps[place.lane] = __fmul_rn(expf(__fsub_rn(sum, steps.sum)), steps.dt);
}

// Takes a channel of x of the row in.
DEVICE void take_x(const SsmStepParams& p, RowShared& shared, const RowPlace& at, const ChunkPlace& place, u32 channel,
                   float raw, float x) {
    shared.x[place.lane] = x;
    at.ring_x(p, at.t)[place.lane] = x;
    at.raw(p, 0)[channel] = raw;
}

// Three blocks hide each other's waits, where registers suffice for all.
#define BLOCKS_AT_ONCE (N_BLOCKS == 4 && STATE_ELEM == STATE_F32 && __CUDA_ARCH__ == 900 ? 3 : 2)

KERNEL __launch_bounds__(CHUNK_THREADS, BLOCKS_AT_ONCE) ssm_row(const __grid_constant__ SsmStepParams p) {
    __shared__ RowShared shared;
    BoundaryShared& boundary = *(BoundaryShared*)shared_bytes;
    start_dependents();
    // Both loads at once.
    u32 rows = p.step->rows;
    const SegmentEntry* segments = p.step->segments;
    if (blockIdx.y >= rows) {
        wait_for_inputs();
        return;
    }
    RowPlace at(p, segments, blockIdx.y);
    ChunkPlace place;
    ScanHead own = {at.head, at.part, p.a[at.head], p.d[at.head], at.slot};
    bool has_state = at.position >= SSM_CHUNK, ends_chunk = at.t == SSM_CHUNK - 1;
    bool is_first_of_group = at.head % (HEADS / GROUPS) == 0 && at.part == 0;
    // The warp has a tile of the head's channels; the first two make its outputs.
    bool makes_outputs = place.warp < 2 && at.part * PART_CHANNELS + place.channel < HEAD_DIM;
    // The last warp convolves x beside.
    u32 x_channel = at.head * HEAD_DIM + at.part * PART_CHANNELS + place.lane;
    bool has_x = place.warp == CHUNK_WARPS - 1 && at.part * PART_CHANNELS + place.lane < HEAD_DIM;
    u32 column = threadIdx.x, channel = INNER + column / STATE * GROUP_STATE + at.group * STATE + column % STATE;
    StatePiece piece = {};
    if (has_state) load_piece(piece, place, own.part, at.state(p));
    ChunkB b;
    ChunkB::Values b_values;
    b.fetch(b_values, p, at, place);
    ChunkX x;
    ChunkX::Values x_values;
    ChunkSteps steps = {};
    float dt_bias = 0.0f;
    if (makes_outputs) {
        x.fetch(x_values, p, at, place);
        steps.fetch(p, at);
        dt_bias = p.dt_bias[at.head];
    }
    Convolution convolution, x_convolution;
    convolution.fetch(p, at, channel, true);
    if (place.warp == CHUNK_WARPS - 1) x_convolution.fetch(p, at, x_channel, has_x);
    // From here on values are waited for.
    b.take(b_values);
    convolution.add_up();
    if (place.warp == CHUNK_WARPS - 1) x_convolution.add_up();
    if (makes_outputs) {
        x.take(x_values);
        x.park(shared.parked_x[place.warp], place);
        steps.add_up(own.a);
    }
    StateFactor state(piece);
    wait_for_inputs();
    const float* xbc = at.xbc(p);
    float raw = xbc[channel], raw_x = has_x ? xbc[x_channel] : 0.0f, raw_dt = 0.0f;
    float2 z = make_float2(0.0f, 0.0f);
    if (makes_outputs) {
        raw_dt = xbc[CONV_DIM + at.head];
        z = *(const float2*)(f32_row(p.x, at.row) + at.head * HEAD_DIM + at.part * PART_CHANNELS + place.channel + 2 * place.g);
    }
    float value = convolution.of(raw);
    shared.bc[column] = value;
    if (is_first_of_group && column < STATE) at.ring_b(p, at.t)[column] = value;
    // The next kernel keeps the raw columns, when all blocks have read those that they replace.
    if (p.raw != nullptr && is_first_of_group) {
        p.raw[channel - INNER] = raw;
        if (blockIdx.x == 0 && threadIdx.x == 0) *p.raw_at = (u64)(at.raw(p, 0) + INNER);
    }
    if (has_x) take_x(p, shared, at, place, x_channel, raw_x, x_convolution.of(raw_x));
    float sum = 0.0f;
    if (makes_outputs) {
        float dt = softplus(__fadd_rn(raw_dt, dt_bias));
        sum = steps.insert(dt, at, own.a);
        z = make_float2(silu(z.x), silu(z.y));
        if (at.part == 0 && threadIdx.x == 0) *at.ring_dt(p, at.t) = dt;
    }
    __syncthreads();
    b.insert(shared.bc, at, place);
    multiply_c(shared, place, b, state, has_state);
    if (ends_chunk) prepare_end(boundary, place, b, steps, sum);
    if (threadIdx.x == 0) shared.is_last = false;
    __syncthreads();
    if (makes_outputs) {
        x.fetch_parked(shared.parked_x[place.warp], place);
        x.insert(*(const float2*)(shared.x + place.channel + 2 * place.g), at, place);
        float2 y = row_outputs(shared, place, x, steps, at, sum, has_state, own.d);
        if (leave_piece(p, place, at, y, z) && place.lane == 0) shared.is_last = true;
    }
    if (ends_chunk) end_chunk(p, shared, boundary, at, place, own, has_state);
    __syncthreads();
    if (shared.is_last) finish_row(p, shared, at);
}

// Normalises the rows whose blocks left that to it, a block a row.
KERNEL __launch_bounds__(CHUNK_THREADS) ssm_row_finish(const __grid_constant__ SsmStepParams p) {
    __shared__ RowShared shared;
    start_dependents();
    wait_for_inputs();
    if (blockIdx.x >= p.step->rows) return;
    finish_row(p, shared, RowPlace(p, p.step->segments, blockIdx.x));
}
