// All layers of a stage in one call: the same kernels in the same order as models/decoder.py calls them one by one.
#include "kernels.hpp"
#include "threads.hpp"

#include <string.h>
#include <time.h>

namespace paceline {
namespace {

int64_t now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return int64_t{t.tv_sec} * 1000000000 + t.tv_nsec;
}

// Counts the time since the last lap under an operation, when asked to.
struct Laps {
    int64_t *nanoseconds, last;
    explicit Laps(int64_t *to) : nanoseconds(to), last(to ? now() : 0) {}
    void lap(Operation operation) {
        if (!nanoseconds) return;
        const int64_t time = now();
        nanoseconds[operation] += time - last;
        last = time;
    }
};

int64_t outputs(const LinearParts &linear) {
    int64_t sum = 0;
    for (int32_t i = 0; i < linear.parts; ++i) sum += linear.outputs[i];
    return sum;
}

Status multiply(const Kernels &k, const LinearParts &linear, const float *x, int64_t rows, int64_t columns, float *out) {
    const int64_t stride = outputs(linear);
    int64_t first = 0;
    for (int32_t i = 0; i < linear.parts; first += linear.outputs[i], ++i) {
        const float *bias = linear.bias ? linear.bias + first : nullptr;
        const PackedArgs args{x, linear.weight[i], bias, out + first, rows, columns, linear.outputs[i],
                              columns, stride, linear.format[i]};
        if (const Status status = k.packed->product(args)) return status;
    }
    return OK;
}

void keep_rows(float *matrix, int64_t width, const int64_t *keep, int64_t kept) {
    for (int64_t i = 0; i < kept; ++i)
        if (keep[i] != i) memmove(matrix + i * width, matrix + keep[i] * width, sizeof(float) * width);
}

Status run_all(const Kernels &k, const LayersArgs &a) {
    RotateArgs rotate = a.rotate;
    AttentionArgs attention = a.attention;
    int64_t rows = rotate.rows;
    const int64_t q_size = rotate.heads * rotate.head_dim, kv_size = rotate.kv_heads * rotate.head_dim;
    const int64_t qkv_size = q_size + 2 * kv_size;
    rotate.q = a.qkv, rotate.k = a.qkv + q_size, rotate.v = a.qkv + q_size + kv_size;
    rotate.q_row = rotate.k_row = rotate.v_row = attention.q_row = qkv_size;
    rotate.q_head = rotate.k_head = rotate.v_head = attention.q_head = attention.out_head = rotate.head_dim;
    attention.q = a.qkv, attention.out = a.mixed, attention.out_row = q_size;
    if (const Status status = check(rotate)) return status;
    if (const Status status = check(attention)) return status;
    for (int64_t i = 0; i < a.kept; ++i)
        if (a.keep[i] < (i ? a.keep[i - 1] + 1 : 0) || a.keep[i] >= rows) return BAD_KEEP;
    Laps time(a.nanoseconds);
    for (int64_t l = 0; l < a.num_layers; ++l) {
        const LayerWeights &w = a.layers[l];
        const NormArgs input_norm{l ? a.delta : a.residual, l ? a.residual : nullptr, w.input_norm, a.x, rows, a.hidden,
                                  a.hidden, a.hidden, a.hidden, a.eps};
        k.norm(input_norm);
        time.lap(TIME_NORM);
        if (const Status status = multiply(k, w.qkv, a.x, rows, a.hidden, a.qkv)) return status;
        time.lap(TIME_QKV);
        rotate.k_cache = w.k_cache, rotate.v_cache = w.v_cache;
        k.rotate_and_store(rotate);
        time.lap(TIME_ROTATE);
        attention.k_cache = w.k_cache, attention.v_cache = w.v_cache;
        if (const Status status = k.attention(attention)) return status;
        time.lap(TIME_ATTENTION);
        if (a.keep && l == a.num_layers - 1) {  // nothing after the last attention looks at other rows
            keep_rows(a.mixed, q_size, a.keep, a.kept);
            keep_rows(a.residual, a.hidden, a.keep, a.kept);
            rows = a.kept;
        }
        if (const Status status = multiply(k, w.output, a.mixed, rows, q_size, a.delta)) return status;
        time.lap(TIME_OUTPUT);
        const NormArgs mlp_norm{a.delta, a.residual, w.mlp_norm, a.x, rows, a.hidden, a.hidden, a.hidden, a.hidden, a.eps};
        k.norm(mlp_norm);
        time.lap(TIME_NORM);
        if (const Status status = multiply(k, w.gate_up, a.x, rows, a.hidden, a.gate_up)) return status;
        time.lap(TIME_GATE_UP);
        k.silu_mul({a.gate_up, a.activated, rows, a.intermediate, 2 * a.intermediate, a.intermediate});
        time.lap(TIME_ACTIVATION);
        if (const Status status = multiply(k, w.down, a.activated, rows, a.intermediate, a.delta)) return status;
        time.lap(TIME_DOWN);
    }
    return OK;
}

struct Call {
    const Kernels &kernels;
    const LayersArgs &args;
    Status status;
};

}  // namespace

// Five times per layer the threads part and meet again, so they stay together for the whole call.
Status run_layers(const Kernels &kernels, const LayersArgs &args) {
    Call call{kernels, args, OK};
    with_team(
        max_threads(), [](void *data) { Call &c = *static_cast<Call *>(data); c.status = run_all(c.kernels, c.args); }, &call);
    return call.status;
}

}  // namespace paceline
