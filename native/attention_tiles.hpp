// The two products of attention on one tile of keys, for a few query rows at a time.
//
// Both take each (row, key) or (row, dimension) result through the same operations however many rows are in hand:
// a score is W running sums over the dimensions, then a fixed tree over the lanes; an output element is one chain
// over the keys in order. That is what makes a row's bits independent of its neighbours.
#pragma once

#include "functions.hpp"

namespace paceline {
namespace PACELINE_PATH {
namespace {

constexpr int TILE = 64;  // keys; tiles start at multiples of it, whatever the block size

#if defined(__AVX512F__)
constexpr int MAX_ROWS = 6;  // 6 rows × 4 columns of accumulators in 32 registers
#else
constexpr int MAX_ROWS = 3;  // 3 × 4 in 16
#endif

// scores[r][c] = q[r] · keys[c] for R rows and four keys; q's rows are padded with zeros to a multiple of W.
template <int R, class T>
INLINE void score_four_keys(const float *q, int64_t q_stride, const T *const *keys, int64_t head_dim, float *scores) {
    V sums[R][4] = {};
    int64_t d = 0;
    for (; d + W <= head_dim; d += W) {
        V k[4];
        for (int c = 0; c < 4; ++c) k[c] = load(keys[c] + d);
        for (int r = 0; r < R; ++r) {
            const V x = load(q + r * q_stride + d);
            for (int c = 0; c < 4; ++c) sums[r][c] = fma(x, k[c], sums[r][c]);
        }
    }
    if (d < head_dim) {
        V k[4];
        for (int c = 0; c < 4; ++c) k[c] = load_part(keys[c] + d, head_dim - d);
        for (int r = 0; r < R; ++r) {
            const V x = load(q + r * q_stride + d);
            for (int c = 0; c < 4; ++c) sums[r][c] = fma(x, k[c], sums[r][c]);
        }
    }
    for (int r = 0; r < R; ++r) {
        const V4 four = sum_lanes_of_four(sums[r][0], sums[r][1], sums[r][2], sums[r][3]);
        memcpy(scores + r * TILE, &four, sizeof four);
    }
}

// Rows that will be read next. A block is about one page, where the processor's own prefetching ends: without this,
// decoding waits for memory at every block (measured: 1.4 to 2.3 times as long).
struct Prefetch {
    const void *const *rows = nullptr;  // null: nothing to fetch
    int end = 0;
    int64_t bytes = 0;  // of one row

    void fetch(int first, int count) const {
        if (!rows) return;
        for (int c = first; c < first + count && c < end; ++c)
            for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const char *>(rows[c]) + at);
    }
};

// Keys [begin, end) of the tile, begin a multiple of 4; keys[] is filled up to the next multiple of 4 after end.
template <int R, class T>
void score_rows(const float *q, int64_t q_stride, const T *const *keys, int begin, int end, int64_t head_dim,
                float *scores, const Prefetch &next) {
    for (int c = begin; c < end; c += 4) {
        next.fetch(c, 4);
        score_four_keys<R, T>(q, q_stride, keys + c, head_dim, scores + c);
    }
}

// out[r] = out[r] * keep[r] + sum over keys [begin, end) of weights[r][c] * values[c], on N vectors from dimension d.
template <int R, int N, bool Part, class T>
INLINE void mix_columns(const float *weights, const T *const *values, int begin, int end, int64_t d, int64_t count,
                        const float *keep, float *out, int64_t out_stride, const Prefetch &next) {
    V sums[R][N];
    for (int r = 0; r < R; ++r)
        for (int n = 0; n < N; ++n) sums[r][n] = load(out + r * out_stride + d + n * W) * keep[r];
    for (int c = begin; c < end; ++c) {
        if (d == 0) next.fetch(c, 1);
        V v[N];
        for (int n = 0; n < N; ++n) v[n] = Part ? load_part(values[c] + d, count) : load(values[c] + d + n * W);
        for (int r = 0; r < R; ++r) {
            const V weight = splat(weights[r * TILE + c]);
            for (int n = 0; n < N; ++n) sums[r][n] = fma(weight, v[n], sums[r][n]);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int n = 0; n < N; ++n) store(out + r * out_stride + d + n * W, sums[r][n]);
}

template <int R, class T>
void mix_rows(const float *weights, const T *const *values, int begin, int end, int64_t head_dim, const float *keep,
              float *out, int64_t out_stride, const Prefetch &next) {
    int64_t d = 0;
    for (; d + 4 * W <= head_dim; d += 4 * W)
        mix_columns<R, 4, false, T>(weights, values, begin, end, d, 0, keep, out, out_stride, next);
    for (; d + W <= head_dim; d += W)
        mix_columns<R, 1, false, T>(weights, values, begin, end, d, 0, keep, out, out_stride, next);
    if (d < head_dim)
        mix_columns<R, 1, true, T>(weights, values, begin, end, d, head_dim - d, keep, out, out_stride, next);
}

// Calls F<R>(row) for groups of at most MAX_ROWS rows, as equal as possible: 4 rows are 2 + 2, not 3 + 1.
template <class F>
INLINE void by_row_groups(int rows, F &&body) {
    const int groups = (rows + MAX_ROWS - 1) / MAX_ROWS;
    int row = 0;
    for (int g = 0; g < groups; ++g) {
        const int size = (rows - row + (groups - g) - 1) / (groups - g);
        body(row, size);
        row += size;
    }
}

#if defined(__AVX512F__)
#define DISPATCH_ROWS(size, CALL) \
    switch (size) { case 1: CALL(1); break; case 2: CALL(2); break; case 3: CALL(3); break; \
                    case 4: CALL(4); break; case 5: CALL(5); break; default: CALL(6); }
#else
#define DISPATCH_ROWS(size, CALL) \
    switch (size) { case 1: CALL(1); break; case 2: CALL(2); break; default: CALL(3); }
#endif

template <class T>
INLINE void score_tile(const float *q, int64_t padded, int rows, const T *const *keys, int begin, int end,
                       int64_t head_dim, float *scores, const Prefetch &next) {
    by_row_groups(rows, [&](int row, int size) {
#define CALL(R) score_rows<R, T>(q + row * padded, padded, keys, begin, end, head_dim, scores + row * TILE, row ? Prefetch{} : next)
        DISPATCH_ROWS(size, CALL)
#undef CALL
    });
}

template <class T>
INLINE void mix_tile(const float *weights, int rows, const T *const *values, int begin, int end, int64_t head_dim,
                     const float *keep, float *out, int64_t padded, const Prefetch &next) {
    by_row_groups(rows, [&](int row, int size) {
#define CALL(R) \
    mix_rows<R, T>(weights + row * TILE, values, begin, end, head_dim, keep + row, out + row * padded, padded, \
                   row ? Prefetch{} : next)
        DISPATCH_ROWS(size, CALL)
#undef CALL
    });
}

}  // namespace
}  // namespace PACELINE_PATH
}  // namespace paceline
