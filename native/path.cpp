// One instruction-set path: the kernels compiled with the flags of PACELINE_PATH.
#include "attention.hpp"
#include "rows.hpp"

#include <stdlib.h>

namespace paceline {
namespace PACELINE_PATH {
namespace {

constexpr int64_t STARTS_ON_STACK = 1025;

template <class T>
int32_t attend(const AttentionArgs &a) {
    Work work{&a, a.heads / a.kv_heads, (a.head_dim + W - 1) / W * W, nullptr, 0};
    int64_t on_stack[STARTS_ON_STACK];
    int64_t *starts = on_stack;
    if (a.sequences >= STARTS_ON_STACK) starts = static_cast<int64_t *>(malloc(sizeof(int64_t) * (a.sequences + 1)));
    if (!starts) return 1;
    work.unit_starts = starts;
    starts[0] = 0;
    int64_t multiplications = 0;
    for (int64_t s = 0; s < a.sequences; ++s) {
        const int64_t rows = (a.query_starts[s + 1] - a.query_starts[s]) * work.group;
        starts[s + 1] = starts[s] + (rows + UNIT_ROWS - 1) / UNIT_ROWS * a.kv_heads;
        multiplications += rows * a.kv_heads * a.context_lens[s] * a.head_dim;
    }
    const int threads = multiplications < PARALLEL_FROM ? 1 : max_threads();
    parallel_for(starts[a.sequences], threads, run_unit<T>, &work);
    if (starts != on_stack) free(starts);
    return work.failed;
}

int32_t attention(const AttentionArgs &a) {
    if (a.kv_type == KV_BFLOAT16) return attend<BFloat16>(a);
    if (a.kv_type == KV_FLOAT16) return attend<Float16>(a);
    return attend<float>(a);
}

}  // namespace

extern const Kernels kernels;
const Kernels kernels = {norm, silu_mul, rotate_and_store, attention};

}  // namespace PACELINE_PATH
}  // namespace paceline
