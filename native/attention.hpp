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
    int64_t first_key;  // -1: not known yet
    int begin, end;     // those from first_key + begin to first_key + end are visible to some row
    const void *keys[TILE], *values[TILE];
};

// One unit with what its tiles need, in the thread's scratch memory.
struct Task {
    const Work *work;
    Unit unit;
    int64_t query_start, position;  // position: of the sequence's first row in this batch
    int64_t first_key, last_key;    // the keys visible to at least one row are [first_key, last_key)
    float *q, *scores, *keep, *wide_keys, *wide_values;
    Tile tiles[2];  // even and odd ones in turn, so that the next is known while one is at work

    int64_t row_end(int r) const { return position + (unit.first_row + r) / work->group + 1; }
    int64_t row_begin(int r) const {
        const int64_t window = work->args->window;
        return window ? larger(row_end(r) - window, 0) : 0;
    }
};

INLINE size_t scratch_floats(int64_t padded) {
    return UNIT_ROWS * (padded + TILE + 1) + 2 * TILE * padded + 2 * state_floats(UNIT_ROWS, padded) + 7 * 16;
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

// Gathers the unit's queries, scaled and padded, and lays out scratch; returns what is left of scratch.
float *prepare(Task &task, const Work &work, const Unit &unit, float *memory) {
    const AttentionArgs &a = *work.args;
    task.work = &work;
    task.unit = unit;
    task.query_start = a.query_starts[unit.sequence];
    task.position = a.context_lens[unit.sequence] - (a.query_starts[unit.sequence + 1] - task.query_start);
    task.first_key = task.row_begin(0);
    task.tiles[0].first_key = task.tiles[1].first_key = -1;
    task.last_key = task.row_end(unit.rows - 1);
    task.q = take(memory, UNIT_ROWS * work.padded);
    task.scores = take(memory, UNIT_ROWS * TILE);
    task.keep = take(memory, UNIT_ROWS);
    task.wide_keys = take(memory, TILE * work.padded);
    task.wide_values = take(memory, TILE * work.padded);
    for (int r = 0; r < unit.rows; ++r) {
        const int64_t row = unit.first_row + r;
        const int64_t head = unit.kv_head * work.group + row % work.group;
        const float *from = a.q + (task.query_start + row / work.group) * a.q_row + head * a.q_head;
        float *to = task.q + r * work.padded;
        for (int64_t d = 0; d < a.head_dim; ++d) to[d] = from[d] * a.scale;
        for (int64_t d = a.head_dim; d < work.padded; ++d) to[d] = 0;
    }
    return memory;
}

// Scores are computed four at a time: fills pointers up to multiples of four with rows that may be read.
INLINE void fill_up(Tile &tile) {
    for (int c = tile.end; c % 4; ++c) tile.keys[c] = tile.keys[tile.end - 1];
    for (int c = tile.begin / 4 * 4; c < tile.begin; ++c) {
        tile.keys[c] = tile.keys[tile.begin];
        tile.values[c] = tile.values[tile.begin];
    }
}

// The tile that starts at first_key.
template <class T>
INLINE Tile &locate(Task &task, int64_t first_key) {
    Tile &tile = task.tiles[first_key / TILE % 2];
    if (tile.first_key == first_key) return tile;
    const AttentionArgs &a = *task.work->args;
    tile.first_key = first_key;
    tile.begin = (int)larger(task.first_key - first_key, 0);
    tile.end = (int)smaller(task.last_key - first_key, TILE);
    const int32_t *table = a.block_tables + task.unit.sequence * a.table_stride;
    const int64_t first = first_key + tile.begin;
    int64_t block = first / a.block_size, offset = first % a.block_size;
    for (int c = tile.begin; c < tile.end; ++block, offset = 0) {
        const int64_t at = ((table[block] * a.kv_heads + task.unit.kv_head) * a.block_size + offset) * a.head_dim;
        const T *key = static_cast<const T *>(a.k_cache) + at, *value = static_cast<const T *>(a.v_cache) + at;
        for (; offset < a.block_size && c < tile.end; ++offset, ++c, key += a.head_dim, value += a.head_dim) {
            tile.keys[c] = key;
            tile.values[c] = value;
        }
    }
    fill_up(tile);
    return tile;
}

// Copies 16-bit rows into float32 scratch, for units with enough rows to use each one several times.
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

// Leaves a row's scores as softmax sees them; returns the largest. [begin, end): visible keys.
INLINE float see_scores(float *scores, int begin, int end, float soft_cap) {
    VI lane;
    for (int i = 0; i < W; ++i) lane[i] = i;
    V top = splat(minus_infinity());
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
                const V weight = vexp(load(scores + c) - base[r]);
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
    const int rows = task.unit.rows, aligned = tile.begin / 4 * 4;
    const int64_t padded = task.work->padded;
    score_tile(task.q, padded, rows, (const T *const *)tile.keys, aligned, tile.end, a.head_dim, task.scores, values);
    softmax_rows(task, tile, state);
    mix_tile(task.scores, rows, (const T *const *)tile.values, tile.begin, tile.end, a.head_dim, task.keep,
             state.values, padded, next_keys);
}

template <class T>
void attend_tile(Task &task, int64_t first_key, const State &state) {
    Tile &tile = locate<T>(task, first_key);
    const int64_t head_dim = task.work->args->head_dim, padded = task.work->padded;
    const int64_t row_bytes = head_dim * (int64_t)sizeof(T);
    if (task.unit.rows <= FEW_ROWS) {
        Prefetch values{tile.values, tile.end, row_bytes}, next_keys;
        if (first_key + TILE < task.last_key) {
            const Tile &next = locate<T>(task, first_key + TILE);
            next_keys = {next.keys, next.end, row_bytes};
        }
        return multiply_tile<T>(task, tile, state, values, next_keys);
    }
    const Prefetch nothing;
    if (sizeof(T) == sizeof(float)) return multiply_tile<T>(task, tile, state, nothing, nothing);
    widen_rows<T>(tile.keys, tile.begin, tile.end, head_dim, padded, task.wide_keys);
    widen_rows<T>(tile.values, tile.begin, tile.end, head_dim, padded, task.wide_values);
    fill_up(tile);
    multiply_tile<float>(task, tile, state, nothing, nothing);
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
