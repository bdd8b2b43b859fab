// The plain C interface. Arguments come as structs whose layout kernels/native.py mirrors. The caller has checked types,
// shapes and strides; numbers inside tensors that lead into memory are checked here.
#include "kernels.hpp"
#include "threads.hpp"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

const paceline::Kernels *chosen = &paceline::scalar::kernels;

}  // namespace

// Changes with the layout of the argument structs or of the caches, so that an older build beside newer Python code is
// noticed.
EXPORT int32_t paceline_interface() { return 6; }

// 0 scalar, 1 AVX2 + FMA + F16C, 2 AVX-512: the best that this processor and build can run.
EXPORT int32_t paceline_best_path() {
#if PACELINE_X86
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    if (!avx2) return 0;
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return avx512 ? 2 : 1;
#else
    return 0;
#endif
}

// Chooses a path for all later calls; returns 0, or 1 when it cannot run here.
EXPORT int32_t paceline_use_path(int32_t path) {
    if (path < 0 || path > paceline_best_path()) return 1;
#if PACELINE_X86
    if (path == 1) chosen = &paceline::avx2::kernels;
    if (path == 2) chosen = &paceline::avx512::kernels;
#endif
    if (path == 0) chosen = &paceline::scalar::kernels;
    return 0;
}

EXPORT void paceline_use_openmp(void *gomp_parallel, void *omp_get_max_threads) {
    paceline::use_openmp(gomp_parallel, omp_get_max_threads);
}

EXPORT void paceline_norm(const paceline::NormArgs *args) { chosen->norm(*args); }

EXPORT void paceline_silu_mul(const paceline::SiluArgs *args) { chosen->silu_mul(*args); }

EXPORT int32_t paceline_rotate_and_store(const paceline::RotateArgs *args) {
    const paceline::Status status = paceline::check(*args);
    if (status == paceline::OK) chosen->rotate_and_store(*args);
    return status;
}

EXPORT int32_t paceline_attention(const paceline::AttentionArgs *args) {
    const paceline::Status status = paceline::check(*args);
    return status == paceline::OK ? chosen->attention(*args) : status;
}

// How many bytes a packed matrix takes; -1 when the format is unknown or its blocks do not fit the columns.
EXPORT int64_t paceline_packed_bytes(int32_t format, int64_t rows, int64_t columns) {
    return chosen->packed->bytes(format, rows, columns);
}

EXPORT void paceline_pack(const paceline::PackArgs *args) { chosen->packed->pack(*args); }

EXPORT int32_t paceline_packed_product(const paceline::PackedArgs *args) { return chosen->packed->product(*args); }

EXPORT int32_t paceline_unpack(const paceline::UnpackArgs *args) {
    const paceline::Status status = paceline::check(*args);
    if (status == paceline::OK) chosen->packed->unpack(*args);
    return status;
}

EXPORT int32_t paceline_layers(const paceline::LayersArgs *args) { return paceline::run_layers(*chosen, *args); }
