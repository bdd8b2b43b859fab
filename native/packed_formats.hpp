// How weights lie in memory, per format: what packs them and what gets them out again.
//
// Sixteen output channels side by side make a panel, so that a vector holds the same column of several channels. A
// panel is cut into blocks of 32 columns. All scales of a panel come first, then all codes, both in order of blocks:
//
//   4 bits   eight columns of a channel in one 32-bit lane, lowest bits first; sixteen lanes; four of these
//   5 bits   the low four bits so, then one lane per channel with the high bit of all 32 columns
//   6 bits   the low four bits so, then two lanes per channel with the high two bits of 16 columns each
//   8 bits   a byte per channel, column after column; 16- and 32-bit floats likewise
//
// A weight is code · scale + offset, in one rounding. For every GGUF format here that is bitwise what dequantising gives,
// because scale and offset are exact in float32. GGUF's blocks are described in ggml's documentation and the gguf package.
#pragma once

#include "simd.hpp"

namespace paceline {
namespace PACELINE_PATH {
namespace {

constexpr int PANEL = 16;                // channels
constexpr int BLOCK = 32;                // columns
constexpr int VECTORS = PANEL / W;       // of a panel
constexpr int SUPER_BLOCKS = 8;          // blocks that share the 16-bit factors of a K-quant
constexpr int64_t LINE = 64;

INLINE V to_float(VU codes) { return __builtin_convertvector((VI)codes, V); }

INLINE V widen_halves(const uint8_t *at, int v) { return load(reinterpret_cast<const Float16 *>(at) + v * W); }

INLINE V widen_bytes(const uint8_t *at) {  // unsigned
#if defined(__AVX512F__)
    return (V)_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)at)));
#elif defined(__AVX2__)
    return (V)_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)at)));
#else
    V r;
    for (int i = 0; i < W; ++i) r[i] = at[i];
    return r;
#endif
}

INLINE V widen_signed_bytes(const uint8_t *at) {
#if defined(__AVX512F__)
    return (V)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)at)));
#elif defined(__AVX2__)
    return (V)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)at)));
#else
    V r;
    for (int i = 0; i < W; ++i) r[i] = (int8_t)at[i];
    return r;
#endif
}

INLINE VU load_lanes(const uint8_t *at, int v) {
    VU lanes;
    memcpy(&lanes, at + v * W * 4, sizeof lanes);
    return lanes;
}

INLINE uint32_t lane(const uint8_t *at, int channel) {
    uint32_t value;
    memcpy(&value, at + channel * 4, 4);
    return value;
}
INLINE void or_lane(uint8_t *at, int channel, uint32_t bits) {
    const uint32_t value = lane(at, channel) | bits;
    memcpy(at + channel * 4, &value, 4);
}

// ---------------------------------------------------------------- codes
// `group(block, g, v)` holds columns 8g to 8g + 7 for one vector of channels; `value(group, j)` is the j-th of them.

struct FourBits {
    static constexpr int64_t BYTES = 256;
    struct Group { VU low; };
    INLINE Group group(const uint8_t *block, int g, int v) { return {load_lanes(block + g * 64, v)}; }
    INLINE V value(const Group &group, int j) {
#if defined(__AVX512F__)
        const __m512 table = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        return (V)_mm512_permutexvar_ps((__m512i)(group.low >> (4 * j)), table);  // looks at four bits of a lane
#else
        return to_float((group.low >> (4 * j)) & 15u);
#endif
    }
    INLINE void put(uint8_t *block, int channel, int column, uint32_t code) {
        or_lane(block + column / 8 * 64, channel, (code & 15u) << (4 * (column % 8)));
    }
};

struct FiveBits {
    static constexpr int64_t BYTES = 256 + 64;
    struct Group { VU low, high; };
    INLINE Group group(const uint8_t *block, int g, int v) {
        return {load_lanes(block + g * 64, v), load_lanes(block + 256, v) >> (8 * g)};
    }
    INLINE V value(const Group &group, int j) {
        return to_float(((group.low >> (4 * j)) & 15u) | (((group.high >> j) & 1u) << 4));
    }
    INLINE void put(uint8_t *block, int channel, int column, uint32_t code) {
        FourBits::put(block, channel, column, code);
        or_lane(block + 256, channel, (code >> 4) << column);
    }
};

struct SixBits {
    static constexpr int64_t BYTES = 256 + 128;
    struct Group { VU low, high; };
    INLINE Group group(const uint8_t *block, int g, int v) {
        return {load_lanes(block + g * 64, v), load_lanes(block + 256 + g / 2 * 64, v) >> (16 * (g % 2))};
    }
    INLINE V value(const Group &group, int j) {
        return to_float(((group.low >> (4 * j)) & 15u) | (((group.high >> (2 * j)) & 3u) << 4));
    }
    INLINE void put(uint8_t *block, int channel, int column, uint32_t code) {
        FourBits::put(block, channel, column, code);
        or_lane(block + 256 + column / 16 * 64, channel, (code >> 4) << (2 * (column % 16)));
    }
};

struct SignedBytes {
    static constexpr int64_t BYTES = BLOCK * PANEL;
    struct Group { const uint8_t *at; };
    INLINE Group group(const uint8_t *block, int g, int v) { return {block + g * 8 * PANEL + v * W}; }
    INLINE V value(const Group &group, int j) { return widen_signed_bytes(group.at + j * PANEL); }
    INLINE void put(uint8_t *block, int channel, int column, uint32_t code) {
        block[column * PANEL + channel] = (uint8_t)code;
    }
};

template <class T>
struct Floats {
    static constexpr int64_t BYTES = BLOCK * PANEL * sizeof(T);
    struct Group { const T *at; };
    INLINE Group group(const uint8_t *block, int g, int v) {
        return {reinterpret_cast<const T *>(block) + g * 8 * PANEL + v * W};
    }
    INLINE V value(const Group &group, int j) { return load(group.at + j * PANEL); }
};

// ---------------------------------------------------------------- scales
// `affine(scales, block, half, v)` are the factors of a block, or of a half of it where STEP is 16.

struct Affine { V scale, offset; };

template <int ZERO>
struct OneScale {  // GGUF's _0 formats: d · (code - ZERO)
    static constexpr int64_t BYTES = 32;
    static constexpr int STEP = BLOCK;
    INLINE Affine affine(const uint8_t *scales, int64_t block, int, int v) {
        const V scale = widen_halves(scales + block * BYTES, v);
        return {scale, scale * splat(-ZERO)};
    }
    INLINE int64_t bytes(int64_t blocks) { return blocks * BYTES; }
};

struct ScaleAndMinimum {  // GGUF's _1 formats: d · code + m
    static constexpr int64_t BYTES = 64;
    static constexpr int STEP = BLOCK;
    INLINE Affine affine(const uint8_t *scales, int64_t block, int, int v) {
        const uint8_t *at = scales + block * BYTES;
        return {widen_halves(at, v), widen_halves(at + 32, v)};
    }
    INLINE int64_t bytes(int64_t blocks) { return blocks * BYTES; }
};

struct SuperMinimum {  // Q4_K, Q5_K: d · s · code - dmin · m, with d and dmin for 256 columns, s and m in a byte each
    static constexpr int64_t BYTES = 32, HEAD = 64, SUPER = HEAD + SUPER_BLOCKS * BYTES;
    static constexpr int STEP = BLOCK;
    INLINE Affine affine(const uint8_t *scales, int64_t block, int, int v) {
        const uint8_t *super = scales + block / SUPER_BLOCKS * SUPER;
        const uint8_t *own = super + HEAD + block % SUPER_BLOCKS * BYTES;
        return {widen_halves(super, v) * widen_bytes(own + v * W),
                -(widen_halves(super + 32, v) * widen_bytes(own + PANEL + v * W))};
    }
    INLINE int64_t bytes(int64_t blocks) { return blocks / SUPER_BLOCKS * SUPER; }
};

struct SuperScale {  // Q6_K: d · s · (code - 32), with d for 256 columns, s a signed byte for 16
    static constexpr int64_t BYTES = 32, HEAD = 32, SUPER = HEAD + SUPER_BLOCKS * BYTES;
    static constexpr int STEP = BLOCK / 2;
    INLINE Affine affine(const uint8_t *scales, int64_t block, int half, int v) {
        const uint8_t *super = scales + block / SUPER_BLOCKS * SUPER;
        const uint8_t *own = super + HEAD + block % SUPER_BLOCKS * BYTES + half * PANEL;
        const V scale = widen_halves(super, v) * widen_signed_bytes(own + v * W);
        return {scale, scale * splat(-32)};
    }
    INLINE int64_t bytes(int64_t blocks) { return blocks / SUPER_BLOCKS * SUPER; }
};

struct NoScale {
    static constexpr int STEP = BLOCK;
    INLINE Affine affine(const uint8_t *, int64_t, int, int) { return {V{}, V{}}; }
    INLINE int64_t bytes(int64_t) { return 0; }
};

// ---------------------------------------------------------------- formats

// `COLUMNS` of a channel take `RAW` bytes in a GGUF file; `pack` puts the block that starts at column 32 · block there.
template <class CodesOf, class ScalesOf, int64_t COLUMNS_, int64_t RAW_>
struct Packed {
    using Codes = CodesOf;
    using Scales = ScalesOf;
    using Group = typename Codes::Group;
    static constexpr int64_t COLUMNS = COLUMNS_, RAW = RAW_;
    static constexpr bool ARE_FLOATS = false;  // codes that are float32 already need no expanding

    INLINE int64_t scale_bytes(int64_t blocks) { return (Scales::bytes(blocks) + LINE - 1) / LINE * LINE; }
    INLINE int64_t panel_bytes(int64_t blocks) { return scale_bytes(blocks) + blocks * Codes::BYTES; }
    INLINE V weight(const Group &group, int j, const Affine &affine) {
        return fma(Codes::value(group, j), affine.scale, affine.offset);
    }
};

INLINE void put_half(uint8_t *halves, int channel, const uint8_t *raw) { memcpy(halves + 2 * channel, raw, 2); }

// The nibbles of a GGUF block of 32: the low ones are columns 0 to 15, the high ones 16 to 31.
INLINE uint32_t nibble(const uint8_t *nibbles, int column) {
    return column < 16 ? nibbles[column] & 15u : nibbles[column - 16] >> 4;
}

struct Q4_0 : Packed<FourBits, OneScale<8>, 32, 18> {
    static void pack(const uint8_t *raw, uint8_t *scales, uint8_t *codes, int channel) {
        put_half(scales, channel, raw);
        for (int k = 0; k < 32; ++k) Codes::put(codes, channel, k, nibble(raw + 2, k));
    }
};

struct Q4_1 : Packed<FourBits, ScaleAndMinimum, 32, 20> {
    static void pack(const uint8_t *raw, uint8_t *scales, uint8_t *codes, int channel) {
        put_half(scales, channel, raw);
        put_half(scales + 32, channel, raw + 2);
        for (int k = 0; k < 32; ++k) Codes::put(codes, channel, k, nibble(raw + 4, k));
    }
};

INLINE void put_five(uint8_t *codes, int channel, const uint8_t *high_bits, const uint8_t *nibbles) {
    uint32_t high;
    memcpy(&high, high_bits, 4);
    for (int k = 0; k < 32; ++k) FiveBits::put(codes, channel, k, nibble(nibbles, k) | ((high >> k & 1u) << 4));
}

struct Q5_0 : Packed<FiveBits, OneScale<16>, 32, 22> {
    static void pack(const uint8_t *raw, uint8_t *scales, uint8_t *codes, int channel) {
        put_half(scales, channel, raw);
        put_five(codes, channel, raw + 2, raw + 6);
    }
};

struct Q5_1 : Packed<FiveBits, ScaleAndMinimum, 32, 24> {
    static void pack(const uint8_t *raw, uint8_t *scales, uint8_t *codes, int channel) {
        put_half(scales, channel, raw);
        put_half(scales + 32, channel, raw + 2);
        put_five(codes, channel, raw + 4, raw + 8);
    }
};

struct Q8_0 : Packed<SignedBytes, OneScale<0>, 32, 34> {
    static void pack(const uint8_t *raw, uint8_t *scales, uint8_t *codes, int channel) {
        put_half(scales, channel, raw);
        for (int k = 0; k < 32; ++k) Codes::put(codes, channel, k, raw[2 + k]);
    }
    INLINE V weight(const Group &group, int j, const Affine &affine) { return Codes::value(group, j) * affine.scale; }
};

// The six-bit scale and minimum of sub-block s, out of twelve bytes.
INLINE void six_bit_pair(const uint8_t *twelve, int s, uint8_t *scale, uint8_t *minimum) {
    if (s < 4) {
        *scale = twelve[s] & 63;
        *minimum = twelve[s + 4] & 63;
    } else {
        *scale = (uint8_t)((twelve[s + 4] & 15) | (twelve[s - 4] >> 6 << 4));
        *minimum = (uint8_t)((twelve[s + 4] >> 4) | (twelve[s] >> 6 << 4));
    }
}

// Q4_K and Q5_K keep sub-blocks in pairs: 32 bytes whose low nibbles are one and whose high nibbles the next.
INLINE uint32_t paired_nibble(const uint8_t *nibbles, int s, int column) {
    const uint8_t both = nibbles[s / 2 * 32 + column];
    return s % 2 ? both >> 4 : both & 15u;
}

INLINE void put_super_head(const uint8_t *raw, uint8_t *scales, int channel) {
    put_half(scales, channel, raw);
    put_half(scales + 32, channel, raw + 2);
    for (int s = 0; s < SUPER_BLOCKS; ++s) {
        uint8_t *own = scales + SuperMinimum::HEAD + s * SuperMinimum::BYTES;
        six_bit_pair(raw + 4, s, own + channel, own + PANEL + channel);
    }
}

struct Q4_K : Packed<FourBits, SuperMinimum, 256, 144> {
    static void pack(const uint8_t *raw, uint8_t *scales, uint8_t *codes, int channel) {
        put_super_head(raw, scales, channel);
        for (int k = 0; k < 256; ++k)
            Codes::put(codes + k / 32 * Codes::BYTES, channel, k % 32, paired_nibble(raw + 16, k / 32, k % 32));
    }
};

struct Q5_K : Packed<FiveBits, SuperMinimum, 256, 176> {
    static void pack(const uint8_t *raw, uint8_t *scales, uint8_t *codes, int channel) {
        put_super_head(raw, scales, channel);
        for (int k = 0; k < 256; ++k) {
            const uint32_t high = raw[16 + k % 32] >> (k / 32) & 1u;
            const uint32_t code = paired_nibble(raw + 48, k / 32, k % 32) | high << 4;
            Codes::put(codes + k / 32 * Codes::BYTES, channel, k % 32, code);
        }
    }
};

struct Q6_K : Packed<SixBits, SuperScale, 256, 210> {
    static void pack(const uint8_t *raw, uint8_t *scales, uint8_t *codes, int channel) {
        const uint8_t *low = raw, *high = raw + 128, *sub_scales = raw + 192;
        put_half(scales, channel, raw + 208);
        for (int s = 0; s < 16; ++s)
            scales[Scales::HEAD + s / 2 * Scales::BYTES + s % 2 * PANEL + channel] = sub_scales[s];
        // Halves of 128 columns; in each, four runs of 32 share bytes: nibbles in pairs of runs, two high bits in all.
        for (int k = 0; k < 256; ++k) {
            const int half = k / 128, run = k % 128 / 32, i = k % 32;
            const uint8_t both = low[half * 64 + run % 2 * 32 + i];
            const uint32_t code = (run < 2 ? both & 15u : both >> 4) | (high[half * 32 + i] >> (2 * run) & 3u) << 4;
            Codes::put(codes + k / 32 * Codes::BYTES, channel, k % 32, code);
        }
    }
};

template <class T>
struct Float : Packed<Floats<T>, NoScale, 1, sizeof(T)> {
    using Base = Packed<Floats<T>, NoScale, 1, sizeof(T)>;
    static constexpr bool ARE_FLOATS = sizeof(T) == 4;
    INLINE V weight(const typename Base::Group &group, int j, const Affine &) { return Base::Codes::value(group, j); }
};

}  // namespace
}  // namespace PACELINE_PATH
}  // namespace paceline
