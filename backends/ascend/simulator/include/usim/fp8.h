// 8-bit floats (b.7): exact widening and round-to-nearest-even narrowing.
#pragma once

#include "usim/types.h"

namespace usim {

constexpr float e4m3_to_float(uint32_t code) {
  const uint32_t sign = (code & 0x80u) << 24, a = code & 0x7fu;
  if (a == 0x7f) return bits_float(sign | 0x7fc00000u);
  if (a < 8) return bits_float(sign | float_bits(static_cast<float>(a) * 0x1p-9f));
  return bits_float(sign | ((a << 20) + (120u << 23)));
}
constexpr float e5m2_to_float(uint32_t code) { return half_to_float(static_cast<uint16_t>(code << 8)); }

// Round to nearest even; saturating: magnitudes above the maximum and Inf clamp, NaN becomes 0.
constexpr uint8_t float_to_e4m3(float x, bool saturate) {
  const uint32_t u = float_bits(x), sign = (u >> 24) & 0x80u, a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return static_cast<uint8_t>(saturate ? 0 : sign | 0x7f);
  if (a > 0x43e80000u) return static_cast<uint8_t>(sign | (saturate ? 0x7e : 0x7f));  // above 464, the tie to 448
  if (a < 0x3c800000u) {  // below 2^-6: multiples of 2^-9
    const float shifted = bits_float(a) + 0x1p14f;  // unit in the last place of 2^14 is 2^-9
    return static_cast<uint8_t>(sign | (float_bits(shifted) - float_bits(0x1p14f)));
  }
  return static_cast<uint8_t>(sign | ((a - (120u << 23) + 0x7ffffu + ((a >> 20) & 1)) >> 20));
}
constexpr uint8_t float_to_e5m2(float x, bool saturate) {
  const uint32_t u = float_bits(x), sign = (u >> 24) & 0x80u, a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return static_cast<uint8_t>(saturate ? 0 : sign | 0x7f);
  if (a >= 0x47700000u) return static_cast<uint8_t>(sign | (saturate ? 0x7b : 0x7c));  // 61440 and more
  if (a < 0x38800000u) {  // below 2^-14: multiples of 2^-16
    const float shifted = bits_float(a) + 0x1p7f;
    return static_cast<uint8_t>(sign | (float_bits(shifted) - float_bits(0x1p7f)));
  }
  return static_cast<uint8_t>(sign | ((a - (112u << 23) + 0xfffffu + ((a >> 21) & 1)) >> 21));
}

}  // namespace usim
