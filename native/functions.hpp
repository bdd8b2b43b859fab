// exp and tanh on vectors, good to about 1.5 units in the last place. A NaN stays a NaN.
#pragma once

#include "simd.hpp"

namespace paceline {
namespace PACELINE_PATH {
namespace {

// e^x = 2^n · e^r with n = round(x / ln 2) and |r| ≤ ln 2 / 2; ln 2 is split in two so that r is exact, e^r is the
// polynomial of Cephes' expf. Below LOWEST the result is 0 (never subnormal), above 88.7 it is infinite.
constexpr float LOWEST = -87.33654f;
constexpr float MAGIC = 0x1.8p23f;  // adding it rounds to an integer

// e^r; n is left in the low bits of `shifted`.
INLINE V exp_of_rest(V x, V &shifted) {
    shifted = fma(x, splat(1.44269504088896341f), splat(MAGIC));
    const V n = shifted - MAGIC;
    V r = fma(n, splat(-0.693359375f), x);
    r = fma(n, splat(2.12194440e-4f), r);
    V p = splat(1.9875691500e-4f);
    p = fma(p, r, splat(1.3981999507e-3f));
    p = fma(p, r, splat(8.3334519073e-3f));
    p = fma(p, r, splat(4.1665795894e-2f));
    p = fma(p, r, splat(1.6666665459e-1f));
    p = fma(p, r, splat(5.0000001201e-1f));
    return fma(p, r * r, r) + 1.0f;
}

INLINE V vexp(V x) {
    const V low = splat(LOWEST), high = splat(88.8f);
    V y = x < low ? low : x;
    y = y > high ? high : y;
    V shifted;
    V p = exp_of_rest(y, shifted);
    // 2^n in two halves, since n reaches 128.
    const VI whole = bits_as<VI>(shifted) - bits_as<VI>(splat(MAGIC));
    const VI half = whole >> 1;
    p = p * bits_as<V>((half + 127) << 23) * bits_as<V>((whole - half + 127) << 23);
    p = select(x != x, x, p);
    return select(x < low, V{}, p);
}

// The same bits as vexp for x up to 0 or not a number, in fewer steps since n lies between -126 and 0.
INLINE V vexp_down(V x) {
    V shifted;
    const V p = exp_of_rest(vmax(splat(LOWEST), x), shifted);
    return select(x < LOWEST, V{}, p * bits_as<V>((bits_as<VI>(shifted) << 23) + (127 << 23)));
}

// Near zero the odd polynomial of Cephes' tanhf, elsewhere 1 - 2 / (e^2|x| + 1).
INLINE V vtanh(V x) {
    const VI sign = bits_as<VI>(x) & (int32_t)0x80000000;
    const V size = bits_as<V>(bits_as<VI>(x) ^ sign);
    const V z = x * x;
    V p = splat(-5.70498872745e-3f);
    p = fma(p, z, splat(2.06390887954e-2f));
    p = fma(p, z, splat(-5.37397155531e-2f));
    p = fma(p, z, splat(1.33314422036e-1f));
    p = fma(p, z, splat(-3.33332819422e-1f));
    const V near = fma(p * z, x, x);
    const V far = 1.0f - 2.0f / (vexp(size + size) + 1.0f);
    return select(size < 0.625f, near, bits_as<V>(bits_as<VI>(far) | sign));
}

}  // namespace
}  // namespace PACELINE_PATH
}  // namespace paceline
