// The two products of attention on one tile of keys, for a few query rows at a time.
//
// Both take each (row, key) or (row, dimension) result through the same operations however many rows are in hand:
// a score is one chain over the dimensions in order, an output element one over the keys. That is what makes a row's
// bits independent of its neighbours. Lanes are keys in the first product, where keys lie transposed so that neither
// has anything to add up across lanes, and dimensions in the second.
#pragma once

#include "functions.hpp"

namespace paceline {
namespace PACELINE_PATH {
namespace {

constexpr int TILE = 64;       // keys; tiles start at multiples of it, whatever the block size
constexpr int DIMENSIONS = 8;  // of a score at once; between them, memory is fetched ahead

#if defined(__AVX512F__)
constexpr int MAX_ROWS = 6;  // 6 rows × 4 columns of accumulators in 32 registers
#else
constexpr int MAX_ROWS = 3;  // 3 × 4 in 16
#endif

INLINE int whole_vectors(int keys) { return keys / W * W; }

// Copies keys into float32 scratch, [head_dim, TILE].
template <class T>
INLINE void widen_keys(const void **keys, int64_t stride, int begin, int end, int64_t head_dim, float *scratch) {
    for (int c = whole_vectors(begin); c < end; c += W) {
        const T *from = static_cast<const T *>(keys[c]);
        for (int64_t d = 0; d < head_dim; ++d) store(scratch + d * TILE + c, load(from + d * stride));
        keys[c] = scratch + c;
    }
}

// Copies values into float32 scratch.
template <class T>
INLINE void widen_rows(const void **rows, int begin, int end, int64_t head_dim, int64_t padded, float *scratch) {
    for (int c = begin; c < end; ++c) {
        const T *from = static_cast<const T *>(rows[c]);
        float *to = scratch + c * padded;
        int64_t d = 0;
        for (; d + W <= head_dim; d += W) store(to + d, load(from + d));
        if (d < head_dim) store(to + d, load_part(from + d, head_dim - d));
        rows[c] = to;
    }
}

// Memory that will be read next, as one row per key. A block is about one page, where the processor's own prefetching
// ends: without this, decoding waits for memory at every block (measured: 1.4 to 2.3 times as long).
struct Prefetch {
    const void *const *rows = nullptr;  // null: nothing to fetch
    int end = 0;
    int64_t bytes = 0;   // of one row
    intptr_t shift = 0;  // from the rows to what is fetched

    void fetch(int first, int last) const {
        if (!rows) return;
        for (int c = first; c < last && c < end; ++c)
            for (int64_t at = 0; at < bytes; at += 64)
                __builtin_prefetch(reinterpret_cast<const char *>(reinterpret_cast<intptr_t>(rows[c]) + shift + at));
    }
};

// scores[r][c] = q[r] · key c for R rows and the keys of N vectors from `first` on. keys[c], of each vector's first key c,
// is its dimension 0; the next dimension is `stride` further.
template <int R, int N, class T>
INLINE void score_vectors(const float *q, const T *const *keys, int64_t stride, int first, int64_t head_dim,
                          float *scores, const Prefetch &next) {
    const T *from[N];
    for (int n = 0; n < N; ++n) from[n] = keys[first + n * W];
    const int ahead = (int)((N * W * DIMENSIONS + head_dim - 1) / head_dim);  // rows fetched meanwhile
    int row = 0;
    V sums[R][N] = {};
    for (int64_t d = 0; d < head_dim; row += ahead) {
        const int64_t pause = d + DIMENSIONS < head_dim ? d + DIMENSIONS : head_dim;
        next.fetch(first + row, first + (row + ahead < N * W ? row + ahead : N * W));
        for (; d < pause; ++d) {
            V x[R];
            for (int r = 0; r < R; ++r) x[r] = splat(q[r * head_dim + d]);
            for (int n = 0; n < N; ++n) {
                const V k = load(from[n] + d * stride);
                for (int r = 0; r < R; ++r) sums[r][n] = fma(x[r], k, sums[r][n]);
            }
        }
    }
    for (int r = 0; r < R; ++r)
        for (int n = 0; n < N; ++n) store(scores + r * TILE + first + n * W, sums[r][n]);
}

// Keys [begin, end) of the tile and those that share a vector with them; begin is a multiple of W.
template <int R, class T>
void score_rows(const float *q, const T *const *keys, int64_t stride, int begin, int end, int64_t head_dim,
                float *scores, const Prefetch &next) {
    int c = begin;
    for (; c + 3 * W < end; c += 4 * W) score_vectors<R, 4>(q, keys, stride, c, head_dim, scores, next);
    for (; c + W < end; c += 2 * W) score_vectors<R, 2>(q, keys, stride, c, head_dim, scores, next);
    if (c < end) score_vectors<R, 1>(q, keys, stride, c, head_dim, scores, next);
}

// out[r] = out[r] * keep[r] + sum over keys [begin, end) of weights[r][c] * values[c], on N vectors from dimension d.
template <int R, int N, bool Part, class T>
INLINE void mix_columns(const float *weights, const T *const *values, int begin, int end, int64_t d, int64_t count,
                        const float *keep, float *out, int64_t out_stride, const Prefetch &next) {
    V sums[R][N];
    for (int r = 0; r < R; ++r)
        for (int n = 0; n < N; ++n) sums[r][n] = load(out + r * out_stride + d + n * W) * keep[r];
    for (int c = begin; c < end; ++c) {
        if (d == 0) next.fetch(c, c + 1);
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
INLINE void score_tile(const float *q, int rows, const T *const *keys, int64_t stride, int begin, int end,
                       int64_t head_dim, float *scores, const Prefetch &next) {
    by_row_groups(rows, [&](int row, int size) {
#define CALL(R) \
    score_rows<R, T>(q + row * head_dim, keys, stride, begin, end, head_dim, scores + row * TILE, \
                     row ? Prefetch{} : next)
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
