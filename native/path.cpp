// One instruction-set path: the kernels compiled with the flags of PACELINE_PATH.
#include "attention_run.hpp"
#include "rows.hpp"

namespace paceline {
namespace PACELINE_PATH {
namespace {

Status attention(const AttentionArgs &a) {
    if (a.kv_type == KV_BFLOAT16) return attend<BFloat16>(a);
    if (a.kv_type == KV_FLOAT16) return attend<Float16>(a);
    return attend<float>(a);
}

}  // namespace

extern const Kernels kernels;
const Kernels kernels = {norm, silu_mul, rotate_and_store, attention, &packed_kernels};

}  // namespace PACELINE_PATH
}  // namespace paceline
