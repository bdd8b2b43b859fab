// Vectors of W floats on the compiler's vector extensions: 4 lanes on any processor, 8 with AVX2, 16 with AVX-512.
//
// Everything here is in an unnamed namespace of its path and forced inline (see kernels.hpp). Partial loads read
// nothing past `count`; their missing lanes are zero.
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define MEMBER inline __attribute__((always_inline))

namespace paceline {
namespace PACELINE_PATH {
namespace {

#if defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX2__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

typedef float V __attribute__((vector_size(W * 4)));
typedef int32_t VI __attribute__((vector_size(W * 4)));
typedef uint32_t VU __attribute__((vector_size(W * 4)));
typedef uint16_t VH __attribute__((vector_size(W * 2)));

struct BFloat16 { uint16_t bits; };
struct Float16 { uint16_t bits; };

template <class To, class From>
INLINE To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

INLINE V splat(float x) {
#if defined(__AVX512F__)
    return (V)_mm512_set1_ps(x);
#elif defined(__AVX2__)
    return (V)_mm256_set1_ps(x);
#else
    return V{x, x, x, x};
#endif
}

INLINE V fma(V a, V b, V c) {
#if defined(__AVX512F__)
    return (V)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (V)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__FP_FAST_FMAF)
    V r;
    for (int i = 0; i < W; ++i) r[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return r;
#else
    return a * b + c;
#endif
}

INLINE V select(VI mask, V yes, V no) { return mask ? yes : no; }
INLINE V vmax(V a, V b) { return a > b ? a : b; }  // a NaN in `a` loses, one in `b` stays

// ---- float32 memory ----
INLINE V load(const float *p) {
    V v;
    memcpy(&v, p, sizeof v);
    return v;
}
INLINE void store(float *p, V v) { memcpy(p, &v, sizeof v); }

INLINE V load_part(const float *p, int64_t count) {
    float lanes[W] = {};
    for (int64_t i = 0; i < count; ++i) lanes[i] = p[i];
    return load(lanes);
}
INLINE void store_part(float *p, V v, int64_t count) {
    for (int64_t i = 0; i < count; ++i) p[i] = v[i];
}

// ---- 16-bit memory, widened exactly ----
INLINE V widen(VH h, BFloat16) { return bits_as<V>(__builtin_convertvector(h, VU) << 16); }

INLINE V widen(VH h, Float16) {
#if defined(__AVX512F__)
    return (V)_mm512_cvtph_ps((__m256i)h);
#elif defined(__F16C__)
    return (V)_mm256_cvtph_ps((__m128i)h);
#else
    // Move exponent and mantissa into place; the product by 2^112 sets the exponent right, also of subnormals.
    const VU wide = __builtin_convertvector(h, VU);
    const VU magnitude = (wide & 0x7fffu) << 13;
    const V scaled = bits_as<V>(magnitude) * splat(0x1p112f);
    const VU special = (VU)(magnitude >= 0x0f800000u);  // infinity or NaN: exponent all ones
    return bits_as<V>((bits_as<VU>(scaled) | (special & 0x7f800000u)) | ((wide & 0x8000u) << 16));
#endif
}

template <class T>
INLINE V load(const T *p) {
    VH h;
    memcpy(&h, p, sizeof h);
    return widen(h, T{});
}
template <class T>
INLINE V load_part(const T *p, int64_t count) {
    T lanes[W] = {};
    for (int64_t i = 0; i < count; ++i) lanes[i] = p[i];
    return load(lanes);
}

// ---- narrowing, to nearest even, as torch does ----
INLINE void narrow(float x, float *to) { *to = x; }

INLINE void narrow(float x, BFloat16 *to) {
    const uint32_t bits = bits_as<uint32_t>(x);
    to->bits = x != x ? 0x7fc0 : (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

INLINE void narrow(float x, Float16 *to) {
    const uint32_t bits = bits_as<uint32_t>(x), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        to->bits = (uint16_t)(sign | 0x7e00u);
    } else if (magnitude >= 0x477ff000u) {  // rounds to 65536 or more
        to->bits = (uint16_t)(sign | 0x7c00u);
    } else if (magnitude < 0x38800000u) {  // subnormal: adding 0.5 leaves the rounded value in the low bits
        const float shifted = bits_as<float>(magnitude) + 0.5f;
        to->bits = (uint16_t)(sign | (bits_as<uint32_t>(shifted) - 0x3f000000u));
    } else {
        const uint32_t odd = (magnitude >> 13) & 1u;
        to->bits = (uint16_t)(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
    }
}

// ---- cutting ----
// How many of `left` values one vector holds: 0 to W.
INLINE int64_t part_of(int64_t left) { return left < 0 ? 0 : left < W ? left : W; }

// Where a tile begins, of tiles of rows that are as equal as can be.
INLINE int64_t tile_start(int64_t rows, int64_t tiles, int64_t tile) { return rows * tile / tiles; }

// ---- across lanes, in an order that depends on W alone ----
// Each step lays the upper half of what is left over the lower one.
template <class Join>
INLINE float join_lanes(V v, Join join) {
#if defined(__AVX512F__)
    v = join(v, __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15));
    v = join(v, __builtin_shufflevector(v, v, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7));
    v = join(v, __builtin_shufflevector(v, v, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3));
    v = join(v, __builtin_shufflevector(v, v, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1));
#elif defined(__AVX2__)
    v = join(v, __builtin_shufflevector(v, v, 4, 5, 6, 7, 4, 5, 6, 7));
    v = join(v, __builtin_shufflevector(v, v, 2, 3, 2, 3, 2, 3, 2, 3));
    v = join(v, __builtin_shufflevector(v, v, 1, 1, 1, 1, 1, 1, 1, 1));
#else
    v = join(v, __builtin_shufflevector(v, v, 2, 3, 2, 3));
    v = join(v, __builtin_shufflevector(v, v, 1, 1, 1, 1));
#endif
    return v[0];
}

INLINE float sum_lanes(V v) {
    return join_lanes(v, [](V a, V b) __attribute__((always_inline)) { return a + b; });
}

INLINE float max_lanes(V v) {
    return join_lanes(v, [](V a, V b) __attribute__((always_inline)) { return a > b ? a : b; });
}

}  // namespace
}  // namespace PACELINE_PATH
}  // namespace paceline
