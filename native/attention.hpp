// Paged attention with an online softmax, read straight from the cache's blocks.
//
// The work is cut three times, always at places that depend on positions alone, so that a row's bits are the same
// in any batch, any chunking of its prompt, and on any number of threads:
//   unit       one sequence, one key/value head, up to UNIT_ROWS of its (position, query head) rows;
//   partition  PARTITION keys: softmax state starts afresh, results are merged in order;
//   tile       TILE keys: scores, running maximum and sum, weighted values.
// A key that a row must not see gets the score -inf, so weight exactly 0 in a sum that it leaves unchanged; a tile
// without any visible key multiplies by exactly 1. Units therefore may differ in the keys that they visit in vain.
// How units and partitions are given to threads: attention_run.hpp.
#pragma once

#include "attention_tiles.hpp"
#include "kernels.hpp"

namespace paceline {
namespace PACELINE_PATH {
namespace {

constexpr int UNIT_ROWS = 32;
constexpr int FEW_ROWS = 8;  // up to here a unit waits for memory rather than for arithmetic
constexpr int PARTITION = 4 * TILE;

INLINE float minus_infinity() { return -__builtin_inff(); }
INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
INLINE float exp_one(float x) { return vexp(splat(x))[0]; }

// Softmax state of rows: maximum, sum of weights, weighted values (padded to whole vectors).
struct State {
    float *maximum, *sum, *values;
};

struct Unit {
    int64_t sequence, kv_head;
    int64_t first_row;  // index of a (position, head in group) pair among the sequence's rows
    int rows;
};

// Everything about one batch that tasks share.
struct Work {
    const AttentionArgs *args;
    int64_t group, padded;
    int64_t *unit_starts;  // [sequences + 1]: units before each sequence
    int32_t failed;        // memory ran out
};

INLINE int64_t state_floats(int64_t rows, int64_t padded) { return rows * (padded + 2); }

INLINE State state_at(float *memory, int64_t rows) { return {memory, memory + rows, memory + 2 * rows}; }

INLINE void clear(const State &state, int rows, int64_t padded) {
    for (int r = 0; r < rows; ++r) {
        state.maximum[r] = minus_infinity();
        state.sum[r] = 0;
    }
    memset(state.values, 0, sizeof(float) * rows * padded);
}

// Where a tile's keys and values lie.
struct Tile {
    int64_t first_key;   // -1: not known yet
    int begin, end;      // those from first_key + begin to first_key + end are visible to some row
    int located;         // end of the addresses below: where the last block or the tile ends
    int64_t key_stride;  // from dimension to dimension
    const void *keys[TILE], *values[TILE];
};

// One unit with what its tiles need, in the thread's scratch memory.
struct Task {
    const Work *work;
    Unit unit;
    int64_t query_start, position;  // position: of the sequence's first row in this batch
    int64_t first_key, last_key;    // the keys visible to at least one row are [first_key, last_key)
    float *q, *scores, *keep, *joined_keys, *wide_keys, *wide_values;
    Tile tiles[2];  // even and odd ones in turn, so that the next is known while one is at work

    int64_t row_end(int r) const { return position + (unit.first_row + r) / work->group + 1; }
    int64_t row_begin(int r) const {
        const int64_t window = work->args->window;
        return window ? larger(row_end(r) - window, 0) : 0;
    }
};

INLINE size_t scratch_floats(int64_t padded) {
    return UNIT_ROWS * (padded + TILE + 1) + 3 * TILE * padded + 2 * state_floats(UNIT_ROWS, padded) + 8 * 16;
}

INLINE float *take(float *&memory, int64_t floats) {
    float *taken = memory;
    memory += (floats + 15) / 16 * 16;
    return taken;
}

INLINE Unit find_unit(const Work &work, int64_t index) {
    int64_t low = 0, high = work.args->sequences;  // the last sequence whose first unit is not after index
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        (work.unit_starts[middle] <= index ? low : high) = middle;
    }
    const AttentionArgs &a = *work.args;
    const int64_t rows = (a.query_starts[low + 1] - a.query_starts[low]) * work.group;
    const int64_t within = index - work.unit_starts[low];
    const int64_t first = within / a.kv_heads * UNIT_ROWS;
    return {low, within % a.kv_heads, first, (int)smaller(rows - first, UNIT_ROWS)};
}

// Gathers the unit's queries, scaled, and lays out scratch; returns what is left of scratch.
float *prepare(Task &task, const Work &work, const Unit &unit, float *memory) {
    const AttentionArgs &a = *work.args;
    task.work = &work;
    task.unit = unit;
    task.query_start = a.query_starts[unit.sequence];
    task.position = a.context_lens[unit.sequence] - (a.query_starts[unit.sequence + 1] - task.query_start);
    task.first_key = task.row_begin(0);
    task.tiles[0].first_key = task.tiles[1].first_key = -1;
    task.last_key = task.row_end(unit.rows - 1);
    task.q = take(memory, UNIT_ROWS * a.head_dim);
    task.scores = take(memory, UNIT_ROWS * TILE);
    task.keep = take(memory, UNIT_ROWS);
    task.joined_keys = take(memory, TILE * a.head_dim);
    task.wide_keys = take(memory, TILE * a.head_dim);
    task.wide_values = take(memory, TILE * work.padded);
    for (int r = 0; r < unit.rows; ++r) {
        const int64_t row = unit.first_row + r;
        const int64_t head = unit.kv_head * work.group + row % work.group;
        const float *from = a.q + (task.query_start + row / work.group) * a.q_row + head * a.q_head;
        for (int64_t d = 0; d < a.head_dim; ++d) task.q[r * a.head_dim + d] = from[d] * a.scale;
    }
    return memory;
}

// The tile that starts at first_key. Keys and values are known from the first vector with a visible key on.
template <class T>
INLINE Tile &locate(Task &task, int64_t first_key) {
    Tile &tile = task.tiles[first_key / TILE % 2];
    if (tile.first_key == first_key) return tile;
    const AttentionArgs &a = *task.work->args;
    tile.first_key = first_key;
    tile.begin = (int)larger(task.first_key - first_key, 0);
    tile.end = (int)smaller(task.last_key - first_key, TILE);
    const int32_t *table = a.block_tables + task.unit.sequence * a.table_stride;
    tile.key_stride = a.block_size;
    int c = whole_vectors(tile.begin);
    int64_t block = (first_key + c) / a.block_size, offset = (first_key + c) % a.block_size;
    for (int count; c < tile.end; c += count, ++block, offset = 0) {
        const int64_t at = (table[block] * a.kv_heads + task.unit.kv_head) * a.block_size * a.head_dim;
        const T *keys = static_cast<const T *>(a.k_cache) + at, *values = static_cast<const T *>(a.v_cache) + at;
        count = (int)smaller(a.block_size - offset, TILE - c);
        for (int i = 0; i < count; ++i) {
            tile.keys[c + i] = keys + offset + i;
            tile.values[c + i] = values + (offset + i) * a.head_dim;
        }
    }
    tile.located = c;
    return tile;
}

// Copies keys into scratch, [head_dim, TILE], where blocks cut vectors.
template <class T>
INLINE void join_keys(Tile &tile, int64_t head_dim, T *scratch) {
    const int64_t block_size = tile.key_stride;
    for (int c = tile.begin, count; c < tile.end; c += count) {
        count = (int)smaller(block_size - (tile.first_key + c) % block_size, tile.end - c);
        const T *from = static_cast<const T *>(tile.keys[c]);
        for (int64_t d = 0; d < head_dim; ++d)
            for (int i = 0; i < count; ++i) scratch[d * TILE + c + i] = from[d * block_size + i];
    }
    for (int c = 0; c < TILE; c += W) tile.keys[c] = scratch + c;
    tile.key_stride = TILE;
}

// Leaves a row's scores as softmax sees them; returns the largest. [begin, end): visible keys.
INLINE float see_scores(float *scores, int begin, int end, float soft_cap) {
    VI lane;
    for (int i = 0; i < W; ++i) lane[i] = i;
    V top = splat(minus_infinity());
    if (begin == 0 && end == TILE && soft_cap == 0) {
        for (int c = 0; c < TILE; c += W) top = vmax(load(scores + c), top);
        return max_lanes(top);
    }
    for (int c = 0; c < TILE; c += W) {
        V x = load(scores + c);
        if (soft_cap != 0) x = soft_cap * vtanh(x / soft_cap);
        const VI key = lane + c;
        x = select((key >= begin) & (key < end), x, splat(minus_infinity()));
        store(scores + c, x);
        top = vmax(x, top);
    }
    return max_lanes(top);
}

// Turns the scores of a tile into weights and carries the rows' maxima and sums along. W rows at a time, since each number
// of a row is waited for several times.
INLINE void softmax_rows(Task &task, const Tile &tile, const State &state) {
    for (int first = 0; first < task.unit.rows; first += W) {
        const int rows = (int)smaller(task.unit.rows - first, W);
        V top = splat(minus_infinity());
        for (int r = 0; r < rows; ++r) {
            const int64_t from = larger(task.row_begin(first + r) - tile.first_key, 0);
            const int64_t to = smaller(task.row_end(first + r) - tile.first_key, TILE);
            top[r] = see_scores(task.scores + (first + r) * TILE, (int)from, (int)to, task.work->args->soft_cap);
        }
        float *maximum = state.maximum + first, *sum = state.sum + first;
        const V old = load_part(maximum, rows), joined = select(top > old, top, old);
        const V base = select(joined == minus_infinity(), V{}, joined);  // nothing seen yet: every weight is e^-inf
        const V keep = vexp(old - base);
        store_part(task.keep + first, keep, rows);
        store_part(maximum, joined, rows);
        for (int r = 0; r < rows; ++r) {
            float *scores = task.scores + (first + r) * TILE;
            V sums = {};
            for (int c = 0; c < TILE; c += W) {
                const V weight = vexp_down(load(scores + c) - base[r]);
                store(scores + c, weight);
                sums = sums + weight;
            }
            sum[r] = sum[r] * keep[r] + sum_lanes(sums);
        }
    }
}

template <class T>
INLINE void multiply_tile(Task &task, const Tile &tile, const State &state, const Prefetch &values,
                          const Prefetch &next_keys) {
    const AttentionArgs &a = *task.work->args;
    const int rows = task.unit.rows;
    const int64_t padded = task.work->padded;
    score_tile(task.q, rows, (const T *const *)tile.keys, tile.key_stride, whole_vectors(tile.begin), tile.end,
               a.head_dim, task.scores, values);
    softmax_rows(task, tile, state);
    mix_tile(task.scores, rows, (const T *const *)tile.values, tile.begin, tile.end, a.head_dim, task.keep,
             state.values, padded, next_keys);
}

// Few rows take keys and values where they lie, many use each often enough to pay for widening it first.
template <class T>
void attend_tile(Task &task, int64_t first_key, const State &state) {
    const AttentionArgs &a = *task.work->args;
    Tile &tile = locate<T>(task, first_key);
    const Prefetch nothing;
    const bool few = task.unit.rows <= FEW_ROWS, wide = sizeof(T) == sizeof(float);
    if (a.block_size % W) join_keys<T>(tile, a.head_dim, reinterpret_cast<T *>(task.joined_keys));
    if (!few && !wide) {
        widen_keys<T>(tile.keys, tile.key_stride, tile.begin, tile.end, a.head_dim, task.wide_keys);
        tile.key_stride = TILE;
        widen_rows<T>(tile.values, tile.begin, tile.end, a.head_dim, task.work->padded, task.wide_values);
        return multiply_tile<float>(task, tile, state, nothing, nothing);
    }
    if (!few) return multiply_tile<T>(task, tile, state, nothing, nothing);
    const int64_t row_bytes = a.head_dim * (int64_t)sizeof(T);
    Prefetch values{tile.values, tile.end, row_bytes, 0}, next_keys;
    if (first_key + TILE < task.last_key) {
        const Tile &next = locate<T>(task, first_key + TILE);
        // A block's keys take as many bytes as its values, at the same place in their cache: fetched like rows of values.
        next_keys = {next.values, next.located, row_bytes,
                     reinterpret_cast<intptr_t>(a.k_cache) - reinterpret_cast<intptr_t>(a.v_cache)};
    }
    multiply_tile<T>(task, tile, state, values, next_keys);
}

template <class T>
void attend_partition(Task &task, int64_t partition, const State &state) {
    clear(state, task.unit.rows, task.work->padded);
    const int64_t first = larger(partition * PARTITION, task.first_key / TILE * TILE);
    const int64_t last = smaller((partition + 1) * PARTITION, task.last_key);
    for (int64_t key = first; key < last; key += TILE) attend_tile<T>(task, key, state);
}

// total := total ⊕ part; with an empty total the result is exactly the part, and the other way round.
void merge(const State &total, const State &part, int rows, int64_t padded) {
    for (int r = 0; r < rows; ++r) {
        const float top = part.maximum[r] > total.maximum[r] ? part.maximum[r] : total.maximum[r];
        const float base = top == minus_infinity() ? 0.0f : top;
        const float keep = exp_one(total.maximum[r] - base), add = exp_one(part.maximum[r] - base);
        total.maximum[r] = top;
        total.sum[r] = total.sum[r] * keep + part.sum[r] * add;
        float *to = total.values + r * padded;
        const float *from = part.values + r * padded;
        for (int64_t d = 0; d < padded; d += W)
            store(to + d, fma(load(from + d), splat(add), load(to + d) * keep));
    }
}

void write_out(const Work &work, const Unit &unit, const State &state) {
    const AttentionArgs &a = *work.args;
    for (int r = 0; r < unit.rows; ++r) {
        const int64_t row = unit.first_row + r;
        const int64_t head = unit.kv_head * work.group + row % work.group;
        float *to = a.out + (a.query_starts[unit.sequence] + row / work.group) * a.out_row + head * a.out_head;
        const float *from = state.values + r * work.padded, sum = state.sum[r];
        for (int64_t d = 0; d < a.head_dim; ++d) to[d] = from[d] / sum;
    }
}

}  // namespace
}  // namespace PACELINE_PATH
}  // namespace paceline
