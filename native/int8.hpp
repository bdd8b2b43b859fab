// Products of 8-bit activations with 8-bit weights: out[r][n] = bias[n] + row scale · channel scale · sum, in which the sum
// over k of x[r][k] · weight[n][k] is one of integers.
//
// A channel's scale is its largest magnitude ÷ 127, made when it is packed; a row's likewise, made anew in every call from
// that row alone. Integers add up to the same in any order, and what comes before and after is one rounding per operation
// in a fixed order. So a row's bits depend neither on the rows beside it nor on threads nor on the path.
//
// Sixteen channels make a panel: sixteen float scales, then [column ÷ 4][channel][column mod 4] a byte each, the code + 128.
// Codes without a sign are what the fastest instruction wants; the sums begin at -128 · (sum of the row) for it.
#pragma once

#include "kernels.hpp"
#include "packed_formats.hpp"
#include "threads.hpp"

namespace paceline {
namespace PACELINE_PATH {
namespace {

constexpr int64_t FOUR = 4;             // columns that are multiplied together
constexpr int32_t LEVELS = 127, ZERO = 128;
constexpr int64_t MOST_COLUMNS = 1 << 17;  // 127 · 127 · 2^17 is below 2^31
constexpr int64_t GROUP_BYTES = PANEL * FOUR;
constexpr int64_t SCALE_BYTES = PANEL * sizeof(float);
constexpr int64_t PARALLEL_INT8 = 800000;  // multiply-adds below which waking threads costs more than it gives

INLINE VI splat_int(int32_t x) { return VI{} + x; }

// ---- four columns of a row against four columns of W channels ----

#if defined(__AVX512VNNI__)

constexpr int INT8_ROWS = 12, INT8_PANELS = 2;  // of a tile, whose sums stay in registers

struct Four { int32_t bytes; };
struct Weights { VI codes; };

INLINE Weights weights_at(const uint8_t *at) { return {(VI)_mm512_loadu_si512(at)}; }

INLINE VI spread(Four x) { return (VI)_mm512_set1_epi32(x.bytes); }

INLINE VI multiply_add(VI sum, const Weights &w, const VI &x) {
    return (VI)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w.codes, (__m512i)x);
}

INLINE void put(VI codes, Four *to, int64_t stride, int64_t groups) {
    Four fours[W / FOUR];
    _mm_storeu_si128((__m128i *)fours, _mm512_cvtepi32_epi8((__m512i)codes));
    for (int64_t i = 0; i < groups; ++i) to[i * stride] = fours[i];
}

#elif defined(__AVX2__)

// The instruction for unsigned times signed bytes saturates. In 16 bits the products are exact: columns 0 and 2 are the even
// bytes of a 32-bit lane, 1 and 3 the odd ones, so that no weight has to be moved.
constexpr int INT8_ROWS = 4, INT8_PANELS = 1;

struct Four { int32_t even, odd; };  // two 16-bit numbers each
struct Weights { __m256i even, odd; };
struct Spread { __m256i even, odd; };

INLINE Weights weights_at(const uint8_t *at) {
    const __m256i codes = _mm256_loadu_si256((const __m256i *)at);
    return {_mm256_and_si256(codes, _mm256_set1_epi16(255)), _mm256_srli_epi16(codes, 8)};
}

INLINE Spread spread(Four x) { return {_mm256_set1_epi32(x.even), _mm256_set1_epi32(x.odd)}; }

INLINE VI multiply_add(VI sum, const Weights &w, const Spread &x) {
    return sum + (VI)_mm256_madd_epi16(w.even, x.even) + (VI)_mm256_madd_epi16(w.odd, x.odd);
}

INLINE void put(VI codes, Four *to, int64_t stride, int64_t groups) {
    const __m256i high = _mm256_slli_epi32(_mm256_shuffle_epi32((__m256i)codes, 0xee), 16);  // columns 2 and 3
    Four fours[W / 2];  // every second one is of use
    _mm256_storeu_si256((__m256i *)fours, _mm256_blend_epi16((__m256i)codes, high, 0xaa));
    for (int64_t i = 0; i < groups; ++i) to[i * stride] = fours[2 * i];
}

#else

constexpr int INT8_ROWS = 2, INT8_PANELS = 1;

struct Four { int32_t column[FOUR]; };
struct Weights { VI column[FOUR]; };

INLINE Weights weights_at(const uint8_t *at) {
    const VU codes = load_lanes(at, 0);
    return {{(VI)(codes & 255u), (VI)(codes >> 8 & 255u), (VI)(codes >> 16 & 255u), (VI)(codes >> 24)}};
}

INLINE Four spread(Four x) { return x; }

INLINE VI multiply_add(VI sum, const Weights &w, const Four &x) {
    for (int i = 0; i < FOUR; ++i) sum += w.column[i] * x.column[i];
    return sum;
}

INLINE void put(VI codes, Four *to, int64_t, int64_t) { memcpy(to, &codes, sizeof codes); }

#endif

// ---- floats to codes ----

// The largest magnitude; infinity or NaN where there is one. Magnitudes are in the order of their bits.
INLINE float largest(const float *x, int64_t count) {
    VI most = {};
    for (int64_t i = 0; i < count; i += W) {
        const V values = i + W <= count ? load(x + i) : load_part(x + i, count - i);
        const VI size = bits_as<VI>(values) & 0x7fffffff;
        most = size > most ? size : most;
    }
    int32_t found = 0;
    for (int i = 0; i < W; ++i) found = most[i] > found ? most[i] : found;
    return bits_as<float>(found);
}

// What codes are multiplied with to give values, and the factor that gives codes.
struct Scale { float scale, to_codes; };

// Values below 2^-100 are nothing beside the weights of any model, and 127 ÷ them might be infinite. What is not finite has no
// codes: its scale makes the results NaN.
INLINE Scale scale_of(float most) {
    if (!(most < __builtin_inff())) return {__builtin_nanf(""), 0.0f};
    return most < 0x1p-100f ? Scale{0.0f, 0.0f} : Scale{most / LEVELS, LEVELS / most};
}

// To nearest, ties to even: adding 1.5 · 2^23 leaves the integer in the lowest bits.
INLINE VI codes_of_values(V values, float to_codes) {
    const V magic = splat(0x1.8p23f);
    return bits_as<VI>(values * splat(to_codes) + magic) - bits_as<VI>(magic);
}

struct Int8Product {
    const PackedArgs *args;
    Four *x;  // [tile][column ÷ 4][row of tile]
    float *scales;       // [rows]
    int32_t *beginnings;  // [rows]: what a row's sums begin with
    int64_t groups, panels, tiles;
};

INLINE void quantise_row(const Int8Product &p, int64_t row, Four *to, int64_t stride) {
    const int64_t columns = p.args->columns;
    const float *x = p.args->x + row * p.args->x_stride;
    const Scale scale = scale_of(largest(x, columns));
    const bool none = !(scale.to_codes > 0);
    VI sums = {};
    for (int64_t k = 0; k < columns; k += W) {
        const int64_t left = columns - k;
        const V values = none ? V{} : left >= W ? load(x + k) : load_part(x + k, left);
        const VI codes = codes_of_values(values, scale.to_codes);
        sums += codes;
        put(codes, to + k / FOUR * stride, stride, left >= W ? W / FOUR : (left + FOUR - 1) / FOUR);
    }
    int32_t sum = 0;
    for (int i = 0; i < W; ++i) sum += sums[i];
    p.scales[row] = scale.scale;
    p.beginnings[row] = -ZERO * sum;
}

void quantise_tile(void *data, int64_t tile) {
    const Int8Product &p = *static_cast<const Int8Product *>(data);
    const int64_t row = tile_start(p.args->rows, p.tiles, tile), rows = tile_start(p.args->rows, p.tiles, tile + 1) - row;
    for (int64_t r = 0; r < rows; ++r) quantise_row(p, row + r, p.x + row * p.groups + r, rows);
}

// ---- products ----

INLINE int64_t int8_panel_bytes(int64_t columns) {
    return SCALE_BYTES + (columns + FOUR - 1) / FOUR * GROUP_BYTES;
}

template <int ROWS, int PANELS>
void int8_tile(const Int8Product &p, int64_t row, int64_t panel) {
    constexpr int NV = PANELS * VECTORS;
    const PackedArgs &a = *p.args;
    const int64_t panel_bytes = int8_panel_bytes(a.columns);
    const uint8_t *scales = static_cast<const uint8_t *>(a.weight) + panel * panel_bytes, *codes = scales + SCALE_BYTES;
    VI sums[ROWS][NV];
    for (int r = 0; r < ROWS; ++r)
        for (int i = 0; i < NV; ++i) sums[r][i] = splat_int(p.beginnings[row + r]);
    const Four *x = p.x + row * p.groups;
    for (int64_t g = 0; g < p.groups; ++g, x += ROWS, codes += GROUP_BYTES) {
        if (row == 0)  // the next panels, as in packed.hpp
            for (int i = 0; i < PANELS; ++i) __builtin_prefetch(codes + (PANELS + i) * panel_bytes);
        Weights w[NV];
#pragma GCC unroll 8
        for (int i = 0; i < NV; ++i) w[i] = weights_at(codes + i / VECTORS * panel_bytes + i % VECTORS * W * FOUR);
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; ++r) {
            const auto four = spread(x[r]);
#pragma GCC unroll 8
            for (int i = 0; i < NV; ++i) sums[r][i] = multiply_add(sums[r][i], w[i], four);
        }
    }
    const int64_t channel = panel * PANEL, count = a.outputs - channel;
#pragma GCC unroll 8
    for (int i = 0; i < NV; ++i) {
        const int64_t part = part_of(count - i * W);
        const V scale = load(reinterpret_cast<const float *>(scales + i / VECTORS * panel_bytes) + i % VECTORS * W);
        const V bias = a.bias ? load_part(a.bias + channel + i * W, part) : V{};
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; ++r) {
            const V value = __builtin_convertvector(sums[r][i], V) * (splat(p.scales[row + r]) * scale);
            float *to = a.out + (row + r) * a.out_stride + channel + i * W;
            if (part == W) store(to, a.bias ? value + bias : value);
            else store_part(to, a.bias ? value + bias : value, part);
        }
    }
}

template <int PANELS, int ROWS = INT8_ROWS>
INLINE void any_int8_tile(int64_t rows, const Int8Product &p, int64_t row, int64_t panel) {
    if constexpr (ROWS >= 1) {
        if (rows == ROWS) return int8_tile<ROWS, PANELS>(p, row, panel);
        any_int8_tile<PANELS, ROWS - 1>(rows, p, row, panel);
    }
}

template <int PANELS>
INLINE void int8_panels(const Int8Product &p, int64_t panel) {
    for (int64_t t = 0; t < p.tiles; ++t) {
        const int64_t row = tile_start(p.args->rows, p.tiles, t), end = tile_start(p.args->rows, p.tiles, t + 1);
        any_int8_tile<PANELS>(end - row, p, row, panel);
    }
}

void int8_task(void *data, int64_t index) {
    const Int8Product &p = *static_cast<const Int8Product *>(data);
    const int64_t panel = index * INT8_PANELS;
    if (panel + INT8_PANELS <= p.panels) int8_panels<INT8_PANELS>(p, panel);
    else int8_panels<1>(p, panel);  // the last of an odd number
}

Status int8_product(const PackedArgs &a) {
    if (a.rows == 0) return OK;
    Int8Product p{&a, nullptr, nullptr, nullptr, (a.columns + FOUR - 1) / FOUR, (a.outputs + PANEL - 1) / PANEL,
                  (a.rows + INT8_ROWS - 1) / INT8_ROWS};
    const int64_t row_bytes = p.groups * sizeof(Four) + sizeof(float) + sizeof(int32_t);
    p.x = static_cast<Four *>(thread_scratch(a.rows * row_bytes));
    if (!p.x) return NO_MEMORY;
    p.scales = reinterpret_cast<float *>(p.x + a.rows * p.groups);
    p.beginnings = reinterpret_cast<int32_t *>(p.scales + a.rows);
    const int threads = a.rows * a.columns * a.outputs < PARALLEL_INT8 ? 1 : max_threads();
    parallel_for(p.tiles, threads, quantise_tile, &p);
    parallel_for((p.panels + INT8_PANELS - 1) / INT8_PANELS, threads, int8_task, &p);
    return OK;
}

// ---- into and out of panels ----

int64_t int8_bytes(int32_t, int64_t rows, int64_t columns) {
    return columns > MOST_COLUMNS ? -1 : (rows + PANEL - 1) / PANEL * int8_panel_bytes(columns);
}

// From floats.
void int8_pack(const PackArgs &a) {
    const int64_t panel_bytes = int8_panel_bytes(a.columns);
    for (int64_t i = 0; i < a.rows; ++i) {
        const int64_t row = a.first + i, lane = row % PANEL;
        const float *from = static_cast<const float *>(a.raw) + i * a.columns;
        uint8_t *panel = static_cast<uint8_t *>(a.out) + row / PANEL * panel_bytes, *codes = panel + SCALE_BYTES;
        const Scale scale = scale_of(largest(from, a.columns));
        memcpy(panel + lane * sizeof(float), &scale.scale, sizeof(float));
        for (int64_t k = 0; k < a.columns; k += W) {
            const int64_t count = part_of(a.columns - k);
            const V values = scale.to_codes > 0 ? load_part(from + k, count) : V{};
            const VI found = codes_of_values(values, scale.to_codes);
            for (int64_t j = 0; j < count; ++j)
                codes[(k + j) / FOUR * GROUP_BYTES + lane * FOUR + (k + j) % FOUR] = (uint8_t)(found[j] + ZERO);
        }
    }
}

void int8_unpack(const UnpackArgs &a) {
    const int64_t panel_bytes = int8_panel_bytes(a.columns);
    for (int64_t i = 0; i < a.count; ++i) {
        const uint8_t *panel = static_cast<const uint8_t *>(a.weight) + a.rows[i] / PANEL * panel_bytes;
        const int64_t lane = a.rows[i] % PANEL;
        float scale;
        memcpy(&scale, panel + lane * sizeof(float), sizeof scale);
        const uint8_t *codes = panel + SCALE_BYTES + lane * FOUR;
        for (int64_t k = 0; k < a.columns; ++k)
            a.out[i * a.columns + k] = scale * (float)(codes[k / FOUR * GROUP_BYTES + k % FOUR] - ZERO);
    }
}

}  // namespace
}  // namespace PACELINE_PATH
}  // namespace paceline
