// Tiles of 128 outputs and -DTOKENS rows: which there are, and how their sums are stored.
#pragma once
#include "matmul.cuh"

// Units of outputs in a tile.
#define TILE_UNITS 8
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

// Output rows of a tile and the scales of their activations, in shared memory.
struct TileRows {
    u32 row[TOKENS];
    float scale[TOKENS];
};

DEVICE void find_row(const MatmulParams& p, const RowTile& rows, TileRows& known, u32 token) {
    if (token >= rows.count) return;
    u32 row = output_row(p, rows, token);
    known.row[token] = row;
    known.scale[token] = row_scale(p, input_row(p, row));
}

// Stores a warp's sums of one unit: of outputs g and g + 8, and of rows 8·j + 2·q and 8·j + 2·q + 1 for every j.
DEVICE void store_sums(const MatmulParams& p, const Tile& tile, const TileRows& known, u32 unit, const float (&sums)[TOKENS / 2]) {
    u32 lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    if (unit >= p.units) return;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 col = unit * TILE_ROWS + g + 8 * half;
        if (col >= p.out.cols) continue;
        float factor = p.factors[((u64)tile.rows.expert * p.units + unit) * TILE_ROWS + g + 8 * half];
#pragma unroll
        for (int j = 0; j < TOKENS / 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                u32 token = j * 8 + 2 * q + e;
                if (token < tile.rows.count)
                    store_output(p, known.row[token], col, sums[j * 4 + 2 * half + e], factor, known.scale[token]);
            }
    }
}
