// One instruction-set path: products with packed weights, in every format; those of I8 come from path_int8.cpp.
#include "packed.hpp"

namespace paceline {
namespace PACELINE_PATH {
namespace {

// Calls function.operator()<F>() with the struct of a format.
template <class Function>
INLINE auto with_format(int32_t format, Function function) {
    switch (format) {
        case FORMAT_F16: return function(Float<Float16>{});
        case FORMAT_BF16: return function(Float<BFloat16>{});
        case FORMAT_Q4_0: return function(Q4_0{});
        case FORMAT_Q4_1: return function(Q4_1{});
        case FORMAT_Q5_0: return function(Q5_0{});
        case FORMAT_Q5_1: return function(Q5_1{});
        case FORMAT_Q8_0: return function(Q8_0{});
        case FORMAT_Q4_K: return function(Q4_K{});
        case FORMAT_Q5_K: return function(Q5_K{});
        case FORMAT_Q6_K: return function(Q6_K{});
        default: return function(Float<float>{});
    }
}

// Every path stores I8 alike, so a processor with AVX-512 but without its VNNI takes the products of AVX2.
const PackedKernels &of_int8() {
#if defined(__AVX512F__)
    if (!__builtin_cpu_supports("avx512vnni")) return avx2::int8_kernels;
#endif
    return int8_kernels;
}

int64_t bytes(int32_t format, int64_t rows, int64_t columns) {
    if (format == FORMAT_I8) return of_int8().bytes(format, rows, columns);
    if (format < 0 || format >= FORMATS) return -1;
    return with_format(format, [&](auto f) -> int64_t {
        using F = decltype(f);
        if (columns % F::COLUMNS) return -1;
        return (rows + PANEL - 1) / PANEL * F::panel_bytes((columns + BLOCK - 1) / BLOCK);
    });
}

Status product(const PackedArgs &a) {
    if (a.format == FORMAT_I8) return of_int8().product(a);
    return with_format(a.format, [&](auto f) { return packed_product<decltype(f)>(a); });
}

void pack(const PackArgs &a) {
    if (a.format == FORMAT_I8) return of_int8().pack(a);
    with_format(a.format, [&](auto f) { pack_rows<decltype(f)>(a); });
}

void unpack(const UnpackArgs &a) {
    if (a.format == FORMAT_I8) return of_int8().unpack(a);
    with_format(a.format, [&](auto f) { unpack_rows<decltype(f)>(a); });
}

}  // namespace

extern const PackedKernels packed_kernels;
const PackedKernels packed_kernels = {bytes, product, pack, unpack};

}  // namespace PACELINE_PATH
}  // namespace paceline
