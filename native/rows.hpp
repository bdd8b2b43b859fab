// The kernels that take each row of a batch by itself: norms, SiLU · mul, rotation and the write to the cache.
#pragma once

#include "functions.hpp"
#include "kernels.hpp"
#include "threads.hpp"

namespace paceline {
namespace PACELINE_PATH {
namespace {

// Waking a second thread costs a few microseconds; a task smaller than this many floats is not worth it.
constexpr int64_t FLOATS_PER_TASK = 8192;

// Cuts rows into tasks of equal length and runs Row(args, row) on each row.
template <class Args, void (*Row)(const Args &, int64_t)>
INLINE void for_rows(const Args &args, int64_t floats_per_row) {
    struct Context {
        const Args *args;
        int64_t rows_per_task;
    };
    int64_t rows_per_task = FLOATS_PER_TASK / (floats_per_row + 1) + 1;
    Context context{&args, rows_per_task};
    const int64_t tasks = (args.rows + rows_per_task - 1) / rows_per_task;
    parallel_for(
        tasks, tasks > 1 ? max_threads() : 1,
        [](void *data, int64_t task) {
            const Context &c = *static_cast<const Context *>(data);
            const int64_t end = (task + 1) * c.rows_per_task;
            for (int64_t row = task * c.rows_per_task; row < end && row < c.args->rows; ++row) Row(*c.args, row);
        },
        &context);
}

// Adds x to residual where there is one; returns the sum of squares. Four running sums hide the adder's latency.
INLINE float add_and_square(const float *x, float *residual, int64_t width) {
    V sums[4] = {};
    int64_t i = 0;
    for (; i + 4 * W <= width; i += 4 * W)
        for (int u = 0; u < 4; ++u) {
            V v = load(x + i + u * W);
            if (residual) store(residual + i + u * W, v = v + load(residual + i + u * W));
            sums[u] = fma(v, v, sums[u]);
        }
    for (; i < width; i += W) {
        const int64_t count = width - i < W ? width - i : W;
        V v = load_part(x + i, count);
        if (residual) store_part(residual + i, v = v + load_part(residual + i, count), count);
        sums[0] = fma(v, v, sums[0]);
    }
    return sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

void norm_row(const NormArgs &a, int64_t row) {
    const float *x = a.x + row * a.x_stride;
    float *residual = a.residual ? a.residual + row * a.residual_stride : nullptr;
    float *out = a.out + row * a.out_stride;
    const float mean = (residual ? add_and_square(x, residual, a.width) : add_and_square(x, nullptr, a.width)) / a.width;
    const V factor = splat(1.0f / __builtin_sqrtf(mean + a.eps));
    const float *source = residual ? residual : x;
    int64_t i = 0;
    for (; i + W <= a.width; i += W) store(out + i, load(source + i) * factor * load(a.weight + i));
    if (i < a.width) {
        const int64_t count = a.width - i;
        store_part(out + i, load_part(source + i, count) * factor * load_part(a.weight + i, count), count);
    }
}

INLINE V silu(V x) { return x / (1.0f + vexp(-x)); }

void silu_row(const SiluArgs &a, int64_t row) {
    const float *gate = a.gate_up + row * a.in_stride, *up = gate + a.width;
    float *out = a.out + row * a.out_stride;
    int64_t i = 0;
    for (; i + W <= a.width; i += W) store(out + i, silu(load(gate + i)) * load(up + i));
    if (i < a.width) {
        const int64_t count = a.width - i;
        store_part(out + i, silu(load_part(gate + i, count)) * load_part(up + i, count), count);
    }
}

INLINE void rotate_head(float *x, const float *cos, const float *sin, int64_t half) {
    int64_t i = 0;
    for (; i + W <= half; i += W) {
        const V first = load(x + i), second = load(x + half + i), c = load(cos + i), s = load(sin + i);
        store(x + i, fma(first, c, -(second * s)));
        store(x + half + i, fma(second, c, first * s));
    }
    if (i < half) {
        const int64_t n = half - i;
        const V first = load_part(x + i, n), second = load_part(x + half + i, n);
        const V c = load_part(cos + i, n), s = load_part(sin + i, n);
        store_part(x + i, fma(first, c, -(second * s)), n);
        store_part(x + half + i, fma(second, c, first * s), n);
    }
}

template <class T>
void rotate_row(const RotateArgs &a, int64_t row) {
    const int64_t position = a.positions[row], slot = a.slots[row];
    const float *cos = a.cos + position * a.half, *sin = a.sin + position * a.half;
    for (int64_t h = 0; h < a.heads; ++h) rotate_head(a.q + row * a.q_row + h * a.q_head, cos, sin, a.half);
    const int64_t block = slot / a.block_size, offset = slot % a.block_size;
    for (int64_t h = 0; h < a.kv_heads; ++h) {
        float *k = a.k + row * a.k_row + h * a.k_head;
        const float *v = a.v + row * a.v_row + h * a.v_head;
        rotate_head(k, cos, sin, a.half);
        const int64_t at = (block * a.kv_heads + h) * a.block_size * a.head_dim;
        T *k_to = static_cast<T *>(a.k_cache) + at + offset;
        T *v_to = static_cast<T *>(a.v_cache) + at + offset * a.head_dim;
        for (int64_t i = 0; i < a.head_dim; ++i) narrow(k[i], k_to + i * a.block_size);
        for (int64_t i = 0; i < a.head_dim; ++i) narrow(v[i], v_to + i);
    }
}

void norm(const NormArgs &a) { for_rows<NormArgs, norm_row>(a, a.width); }

void silu_mul(const SiluArgs &a) { for_rows<SiluArgs, silu_row>(a, 2 * a.width); }

void rotate_and_store(const RotateArgs &a) {
    const int64_t floats = (a.heads + 2 * a.kv_heads) * a.head_dim;
    if (a.kv_type == KV_BFLOAT16) return for_rows<RotateArgs, rotate_row<BFloat16>>(a, floats);
    if (a.kv_type == KV_FLOAT16) return for_rows<RotateArgs, rotate_row<Float16>>(a, floats);
    for_rows<RotateArgs, rotate_row<float>>(a, floats);
}

}  // namespace
}  // namespace PACELINE_PATH
}  // namespace paceline
