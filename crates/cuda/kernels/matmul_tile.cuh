// Tiles of TILE_UNITS units of outputs and -DTOKENS rows: which there are, and how their sums are stored.
#pragma once
#include "matmul.cuh"

// Row tiles that share weights in L2 before the next outputs are taken.
#define RASTER 16

struct Tile {
    RowTile rows;
    u32 first_unit;
};

// The tiles of a step.
struct Work {
    u32 row_tiles, unit_tiles, rows;

    DEVICE static Work of(const MatmulParams& p) {
        u32 rows = row_count(p.step, p.out);
        u32 row_tiles = EXPERTS ? *p.row_tile_count : (rows + TOKENS - 1) / TOKENS;
        return {row_tiles, (p.units + TILE_UNITS - 1) / TILE_UNITS, rows};
    }
    DEVICE u32 count() const {
        return row_tiles * unit_tiles;
    }
    DEVICE Tile at(const MatmulParams& p, u32 index) const {
        if (EXPERTS) return {p.row_tiles[index / unit_tiles], index % unit_tiles * TILE_UNITS};
        u32 strip = index / (RASTER * unit_tiles), rest = index % (RASTER * unit_tiles);
        u32 width = min(row_tiles - strip * RASTER, (u32)RASTER);
        u32 first = (strip * RASTER + rest % width) * TOKENS;
        return {{0, first, min(rows - first, (u32)TOKENS), 0}, rest / width * TILE_UNITS};
    }
};

// The output row of a tile's row.
DEVICE u32 output_row(const MatmulParams& p, const RowTile& rows, u32 token) {
    return EXPERTS ? p.order[rows.first + token] : rows.first + token;
}

// An output row of a tile and the scale of its activations, in shared memory.
struct TileRow {
    u32 row;
    float scale;
};

// What `token` of a tile is; rows beyond the tile's are its last.
DEVICE TileRow find_row(const MatmulParams& p, const RowTile& rows, u32 token) {
    u32 row = output_row(p, rows, min(token, rows.count - 1));
    return {row, row_scale(p, input_row(p, row))};
}

// An output value, as store_output() makes it.
template <int EPILOGUE>
DEVICE float finish_output(float sum, float factor, float scale, float residual) {
    float value = sum * factor * scale;
    if (EPILOGUE == EPILOGUE_RELU2) {
        value = fmaxf(value, 0.0f);
        value *= value;
    }
    if (EPILOGUE == EPILOGUE_RESIDUAL) value += residual;
    return value;
}

// Stores a warp's sums of one unit: of outputs g and g + 8, and of rows 8·j + 2·q and 8·j + 2·q + 1 for every j. Rows are
// read sixteen at a time, so that what is added to them is on its way together.
template <int EPILOGUE, int N>
DEVICE void store_sums_as(const MatmulParams& p, const Tile& tile, u32 known, u32 unit, const float (&sums)[N]) {
    const u32 group = 2;  // of j
    u32 lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3, col = unit * TILE_ROWS + g;
    bool is_there[2] = {col < p.out.cols, col + 8 < p.out.cols};
    if (!is_there[0]) return;
    const float* factors = p.factors + ((u64)tile.rows.expert * p.units + unit) * TILE_ROWS + g;
    float factor[2] = {factors[0], factors[8]};
    u8* out = p.out.data + col * 4;
    const u8* residual = p.residual.data + col * 4;
#pragma unroll
    for (int first = 0; first < N / 4; first += group) {
        if (8 * first >= tile.rows.count) return;
        u32 rows[group][4];  // two rows, each with its scale
        float added[group][2][2] = {};
#pragma unroll
        for (int j = 0; j < group; j++) {
            load_shared4(rows[j], known + ((first + j) * 8 + 2 * q) * sizeof(TileRow));
#pragma unroll
            for (int e = 0; e < 2; e++)
#pragma unroll
                for (int half = 0; half < 2; half++)
                    if (EPILOGUE == EPILOGUE_RESIDUAL && is_there[half])
                        added[j][e][half] = *(const float*)(residual + (u64)rows[j][2 * e] * p.residual.stride + 32 * half);
        }
#pragma unroll
        for (int j = 0; j < group; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                if ((first + j) * 8 + 2 * q + e >= tile.rows.count) continue;
                float* to = (float*)(out + (u64)rows[j][2 * e] * p.out.stride);
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float sum = sums[(first + j) * 4 + 2 * half + e], scale = __uint_as_float(rows[j][2 * e + 1]);
                    float value = finish_output<EPILOGUE>(sum, factor[half], scale, added[j][e][half]);
                    if (is_there[half]) to[8 * half] = value;
                }
            }
    }
}

// The same with the call's epilogue; `known` is where the tile's rows stand in shared memory.
template <int N>
DEVICE void store_sums(const MatmulParams& p, const Tile& tile, u32 known, u32 unit, const float (&sums)[N]) {
    if (unit >= p.units) return;
    if (p.epilogue == EPILOGUE_RESIDUAL) store_sums_as<EPILOGUE_RESIDUAL>(p, tile, known, unit, sums);
    else if (p.epilogue == EPILOGUE_RELU2) store_sums_as<EPILOGUE_RELU2>(p, tile, known, unit, sums);
    else store_sums_as<EPILOGUE_NONE>(p, tile, known, unit, sums);
}
