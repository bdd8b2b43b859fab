// Products with packed weights: out[r][n] = bias[n] + sum over k of x[r][k] · weight[n][k], in float32.
//
// Every output is one chain of fused multiply-adds over k = 0, 1, 2 …, in each of the shapes below, so a row's bits do not
// depend on how many rows or threads there are. Few rows take weights straight from their codes; many rows share a
// panel that is expanded to floats once. Threads take different channels.
#pragma once

#include "kernels.hpp"
#include "packed_formats.hpp"
#include "threads.hpp"

namespace paceline {
namespace PACELINE_PATH {
namespace {

// Tile shapes: rows × vectors of channels whose sums stay in registers.
#if defined(__AVX512F__)
constexpr int TILE_ROWS = 12, TILE_VECTORS = 2, WIDE_VECTORS = 4;
#elif defined(__AVX2__)
constexpr int TILE_ROWS = 6, TILE_VECTORS = 2, WIDE_VECTORS = 4;
#else
constexpr int TILE_ROWS = 3, TILE_VECTORS = 4, WIDE_VECTORS = 4;
#endif
constexpr int HALF_TILE = (TILE_ROWS + 1) / 2;  // where there are several tiles, each has at least so many rows
constexpr int64_t CHUNK_BLOCKS = 8;  // of 32 columns: an expanded chunk of a panel stays in the first-level cache
constexpr int64_t PARALLEL_PRODUCT = 200000;  // multiply-adds below which waking threads costs more than it gives

template <int ROWS, int NV>
struct Sums { V at[ROWS][NV]; };

struct Product {
    const PackedArgs *args;
    const float *x;  // [tile][column][row of tile], columns padded with zeros to whole blocks
    float *laid_out;  // the same memory while it is being filled
    int64_t blocks, panels, tiles;
};

// Where the codes of NV vectors of channels come from.
template <class F, int NV>
struct FromCodes {
    const uint8_t *panel;
    int64_t panel_bytes, scale_bytes;
    MEMBER const uint8_t *scales(int i) const { return panel + i / VECTORS * panel_bytes; }
    MEMBER const uint8_t *codes(int i, int64_t block) const { return scales(i) + scale_bytes + block * F::Codes::BYTES; }
};

template <class F, int NV>
INLINE FromCodes<F, NV> codes_of(const Product &p, int64_t panel) {
    const int64_t bytes = F::panel_bytes(p.blocks);
    return {static_cast<const uint8_t *>(p.args->weight) + panel * bytes, bytes, F::scale_bytes(p.blocks)};
}

// Calls use(column of the block, w) for every column of a block, w the weights of NV vectors of channels.
template <class F, int NV, class Use>
INLINE void for_columns(const FromCodes<F, NV> &from, int64_t block, Use use) {
    Affine affine[NV];
    for (int g = 0; g < BLOCK / 8; ++g) {
        if (g * 8 % F::Scales::STEP == 0)
#pragma GCC unroll 8
            for (int i = 0; i < NV; ++i)
                affine[i] = F::Scales::affine(from.scales(i), block, g * 8 / F::Scales::STEP, i % VECTORS);
        typename F::Group groups[NV];
#pragma GCC unroll 8
        for (int i = 0; i < NV; ++i) groups[i] = F::Codes::group(from.codes(i, block), g, i % VECTORS);
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j) {
            V w[NV];
#pragma GCC unroll 8
            for (int i = 0; i < NV; ++i) w[i] = F::weight(groups[i], j, affine[i]);
            use(g * 8 + j, w);
        }
    }
}

// Asks for the same block of the next panels; past the last one that does nothing. A processor that is busy multiplying would
// notice too late what it needs from memory.
template <class F, int NV>
INLINE void fetch_ahead(const Product &p, const FromCodes<F, NV> &from, int64_t block) {
    const int64_t ahead = NV / VECTORS * from.panel_bytes;
    for (int i = 0; i < NV; i += VECTORS) {
        for (int64_t at = 0; at < F::Codes::BYTES; at += LINE) __builtin_prefetch(from.codes(i, block) + ahead + at);
        if (from.scale_bytes) __builtin_prefetch(from.scales(i) + ahead + block * from.scale_bytes / p.blocks);
    }
}

template <int ROWS, int NV>
INLINE void add_column(Sums<ROWS, NV> &sums, const float *x, const V *w) {
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
        const V value = splat(x[r]);
#pragma GCC unroll 8
        for (int i = 0; i < NV; ++i) sums.at[r][i] = fma(value, w[i], sums.at[r][i]);
    }
}

// The sums begin as the bias, or as what an earlier chunk of columns left in `out`.
template <int ROWS, int NV>
INLINE void begin(Sums<ROWS, NV> &sums, const PackedArgs &a, int64_t row, int64_t channel, bool resumes) {
    const float *from = (resumes ? a.out + row * a.out_stride : a.bias) + channel;
    const int64_t stride = resumes ? a.out_stride : 0, count = a.outputs - channel;
    if (!resumes && !a.bias) {
        sums = {};
    } else if (count >= NV * W) {
        for (int r = 0; r < ROWS; ++r, from += stride)
            for (int i = 0; i < NV; ++i) sums.at[r][i] = load(from + i * W);
    } else {
        for (int r = 0; r < ROWS; ++r, from += stride)
            for (int i = 0; i < NV; ++i) sums.at[r][i] = load_part(from + i * W, part_of(count - i * W));
    }
}

template <int ROWS, int NV>
INLINE void finish(const Sums<ROWS, NV> &sums, const PackedArgs &a, int64_t row, int64_t channel) {
    float *to = a.out + row * a.out_stride + channel;
    const int64_t count = a.outputs - channel;
    if (count >= NV * W) {
        for (int r = 0; r < ROWS; ++r, to += a.out_stride)
            for (int i = 0; i < NV; ++i) store(to + i * W, sums.at[r][i]);
    } else {
        for (int r = 0; r < ROWS; ++r, to += a.out_stride)
            for (int i = 0; i < NV; ++i) store_part(to + i * W, sums.at[r][i], part_of(count - i * W));
    }
}

// ---- a tile of rows whose weights come from their codes, and are kept as floats for the tiles after it if KEEP ----

template <class F, int ROWS, int NV, bool KEEP>
void tile_from_codes(const Product &p, int64_t row, int64_t panel, int64_t block, int64_t blocks, float *weights) {
    Sums<ROWS, NV> sums;
    begin(sums, *p.args, row, panel * PANEL, block > 0);
    const FromCodes<F, NV> from = codes_of<F, NV>(p, panel);
    const float *x = p.x + row * p.blocks * BLOCK + block * BLOCK * ROWS;
    // One or two rows of 16- or 32-bit weights compute so little that the processor's own fetching keeps up, and is faster.
    constexpr bool FETCHES = ROWS > 2 || F::Codes::BYTES <= BLOCK * PANEL;
    for (const int64_t end = block + blocks; block < end; ++block, x += BLOCK * ROWS, weights += BLOCK * NV * W) {
        if (FETCHES && row == 0) fetch_ahead<F, NV>(p, from, block);
        for_columns<F, NV>(from, block, [&](int k, const V *w) __attribute__((always_inline)) {
            if (KEEP)
                for (int i = 0; i < NV; ++i) store(weights + (k * NV + i) * W, w[i]);
            add_column(sums, x + k * ROWS, w);
        });
    }
    finish(sums, *p.args, row, panel * PANEL);
}

template <class F, int NV, bool KEEP, int ROWS = TILE_ROWS>
INLINE void any_tile_from_codes(int64_t rows, const Product &p, int64_t row, int64_t panel, int64_t block, int64_t blocks,
                                float *weights) {
    if constexpr (ROWS >= (KEEP ? HALF_TILE : 1)) {
        if (rows == ROWS) return tile_from_codes<F, ROWS, NV, KEEP>(p, row, panel, block, blocks, weights);
        any_tile_from_codes<F, NV, KEEP, ROWS - 1>(rows, p, row, panel, block, blocks, weights);
    }
}

// ---- a tile of rows whose weights an earlier tile left as floats ----

template <int ROWS, int NV>
void tile(const Product &p, int64_t row, int64_t panel, int64_t block, int64_t blocks, const float *weights) {
    Sums<ROWS, NV> sums;
    begin(sums, *p.args, row, panel * PANEL, block > 0);
    const float *x = p.x + row * p.blocks * BLOCK + block * BLOCK * ROWS;
#pragma GCC unroll 4
    for (int64_t k = 0; k < blocks * BLOCK; ++k) {
        V w[NV];
        for (int i = 0; i < NV; ++i) w[i] = load(weights + (k * NV + i) * W);
        add_column(sums, x + k * ROWS, w);
    }
    finish(sums, *p.args, row, panel * PANEL);
}

template <int NV, int ROWS = TILE_ROWS>
INLINE void any_tile(int64_t rows, const Product &p, int64_t row, int64_t panel, int64_t block, int64_t blocks,
                       const float *weights) {
    if constexpr (ROWS >= HALF_TILE) {
        if (rows == ROWS) return tile<ROWS, NV>(p, row, panel, block, blocks, weights);
        any_tile<NV, ROWS - 1>(rows, p, row, panel, block, blocks, weights);
    }
}

// ---- a task: all rows by a few panels ----

template <class F, int NV>
void panels(const Product &p, int64_t panel) {
    if (p.tiles == 1) return any_tile_from_codes<F, NV, false>(p.args->rows, p, 0, panel, 0, p.blocks, nullptr);
    alignas(64) float weights[CHUNK_BLOCKS * BLOCK * NV * W];
    for (int64_t block = 0; block < p.blocks; block += CHUNK_BLOCKS) {
        const int64_t blocks = p.blocks - block < CHUNK_BLOCKS ? p.blocks - block : CHUNK_BLOCKS;
        for (int64_t t = 0; t < p.tiles; ++t) {
            const int64_t row = tile_start(p.args->rows, p.tiles, t);
            const int64_t rows = tile_start(p.args->rows, p.tiles, t + 1) - row;
            if (F::ARE_FLOATS) any_tile_from_codes<F, NV, false>(rows, p, row, panel, block, blocks, nullptr);
            else if (t == 0) any_tile_from_codes<F, NV, true>(rows, p, row, panel, block, blocks, weights);
            else any_tile<NV>(rows, p, row, panel, block, blocks, weights);
        }
    }
}

template <class F, int NV>
void task(void *data, int64_t index) {
    const Product &p = *static_cast<const Product *>(data);
    constexpr int64_t PANELS = NV / VECTORS;
    const int64_t panel = index * PANELS;
    if (panel + PANELS <= p.panels) return panels<F, NV>(p, panel);
    for (int64_t i = panel; i < p.panels; ++i) panels<F, VECTORS>(p, i);
}

// One or two rows have few sums: more channels at a time hide the latency of a multiply-add.
template <class F, int ROWS>
void wide_task(void *data, int64_t index) {
    const Product &p = *static_cast<const Product *>(data);
    constexpr int64_t PANELS = WIDE_VECTORS / VECTORS;
    const int64_t panel = index * PANELS;
    if (panel + PANELS <= p.panels)
        return tile_from_codes<F, ROWS, WIDE_VECTORS, false>(p, 0, panel, 0, p.blocks, nullptr);
    for (int64_t i = panel; i < p.panels; ++i) tile_from_codes<F, ROWS, VECTORS, false>(p, 0, i, 0, p.blocks, nullptr);
}

// ---- one call ----

void lay_out_tile(void *data, int64_t t) {
    const Product &p = *static_cast<const Product *>(data);
    const PackedArgs &a = *p.args;
    const int64_t row = tile_start(a.rows, p.tiles, t), rows = tile_start(a.rows, p.tiles, t + 1) - row;
    const int64_t padded = p.blocks * BLOCK;
    float *tile = p.laid_out + row * padded;
    for (int64_t r = 0; r < rows; ++r) {
        const float *from = a.x + (row + r) * a.x_stride;
        for (int64_t k = 0; k < a.columns; ++k) tile[k * rows + r] = from[k];
        for (int64_t k = a.columns; k < padded; ++k) tile[k * rows + r] = 0.0f;
    }
}

template <class F>
Status packed_product(const PackedArgs &a) {
    if (a.rows == 0) return OK;
    Product p{&a, a.x, nullptr, (a.columns + BLOCK - 1) / BLOCK, (a.outputs + PANEL - 1) / PANEL,
              (a.rows + TILE_ROWS - 1) / TILE_ROWS};
    const int64_t padded = p.blocks * BLOCK;
    const int threads = a.rows * a.columns * a.outputs < PARALLEL_PRODUCT ? 1 : max_threads();
    if (a.rows > 1 || padded != a.columns) {
        p.x = p.laid_out = static_cast<float *>(thread_scratch(sizeof(float) * a.rows * padded));
        if (!p.x) return NO_MEMORY;
        parallel_for(p.tiles, threads, lay_out_tile, &p);
    }
    const int64_t per_task = (a.rows <= 2 ? WIDE_VECTORS : TILE_VECTORS) / VECTORS;
    const TaskFunction run = a.rows == 1 ? wide_task<F, 1> : a.rows == 2 ? wide_task<F, 2> : task<F, TILE_VECTORS>;
    parallel_for((p.panels + per_task - 1) / per_task, threads, run, &p);
    return OK;
}

// ---- into and out of panels ----

template <class F>
void pack_rows(const PackArgs &a) {
    const int64_t blocks = (a.columns + BLOCK - 1) / BLOCK, bytes = F::panel_bytes(blocks);
    const int64_t row_bytes = a.columns / F::COLUMNS * F::RAW;
    for (int64_t i = 0; i < a.rows; ++i) {
        const int64_t row = a.first + i;
        uint8_t *scales = static_cast<uint8_t *>(a.out) + row / PANEL * bytes, *codes = scales + F::scale_bytes(blocks);
        const uint8_t *raw = static_cast<const uint8_t *>(a.raw) + i * row_bytes;
        for (int64_t k = 0; k < a.columns; k += F::COLUMNS, raw += F::RAW) {
            if constexpr (F::COLUMNS == 1) {
                memcpy(codes + (k * PANEL + row % PANEL) * F::RAW, raw, F::RAW);
            } else {
                const int64_t block = k / BLOCK;
                F::pack(raw, scales + F::Scales::bytes(block), codes + block * F::Codes::BYTES, row % PANEL);
            }
        }
    }
}

// Row n of the matrix as floats: for embeddings. The other channels of its panel are expanded and thrown away.
template <class F>
void unpack_rows(const UnpackArgs &a) {
    const int64_t blocks = (a.columns + BLOCK - 1) / BLOCK, bytes = F::panel_bytes(blocks);
    for (int64_t i = 0; i < a.count; ++i) {
        const int64_t row = a.rows[i];
        const int v = (int)(row % PANEL / W), lane = (int)(row % W);
        const uint8_t *panel = static_cast<const uint8_t *>(a.weight) + row / PANEL * bytes;
        const FromCodes<F, VECTORS> from{panel, bytes, F::scale_bytes(blocks)};
        float *out = a.out + i * a.columns;
        for (int64_t block = 0; block < blocks; ++block)
            for_columns<F, VECTORS>(from, block, [&](int k, const V *w) __attribute__((always_inline)) {
                float lanes[VECTORS * W];
                for (int u = 0; u < VECTORS; ++u) store(lanes + u * W, w[u]);
                if (block * BLOCK + k < a.columns) out[block * BLOCK + k] = lanes[v * W + lane];
            });
    }
}

}  // namespace
}  // namespace PACELINE_PATH
}  // namespace paceline
