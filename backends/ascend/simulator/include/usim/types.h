// Element types of the device: storage and conversions that every part shares. Arithmetic of half and bfloat16 rounds
// after every operation; double rounding through float is harmless because float has more than twice their precision.
#pragma once

#include <stdint.h>

#include "usim/core_api.h"

namespace usim {

constexpr uint32_t float_bits(float x) { return __builtin_bit_cast(uint32_t, x); }
constexpr float bits_float(uint32_t u) { return __builtin_bit_cast(float, u); }

// Inf/NaN mode (CTRL[48] = 1) keeps special values; saturate mode clamps to the largest finite value and maps NaN to 0.
constexpr uint16_t float_to_bf16(float x, bool saturate) {
  uint32_t u = float_bits(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return saturate ? 0 : static_cast<uint16_t>((u >> 16) | 0x40);
  uint32_t rounded = ((u & 0x7f800000u) == 0x7f800000u) ? u >> 16 : (u + 0x7fffu + ((u >> 16) & 1)) >> 16;
  if (saturate && (rounded & 0x7f80u) == 0x7f80u) rounded = (rounded & 0x8000u) | 0x7f7fu;
  return static_cast<uint16_t>(rounded);
}
constexpr float bf16_to_float(uint16_t h) { return bits_float(static_cast<uint32_t>(h) << 16); }

constexpr uint16_t float_to_half(float x, bool saturate) {
  uint32_t u = float_bits(x), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return saturate ? 0 : static_cast<uint16_t>(sign | 0x7e00u | ((a >> 13) & 0x3ffu));
  if (a >= 0x477ff000u) return static_cast<uint16_t>(sign | (saturate ? 0x7bffu : 0x7c00u));  // rounds to 2^16 or more
  if (a < 0x38800000u) {  // below 2^-14: adding 0.5 lets the float adder round to multiples of 2^-24
    float magnitude = bits_float(a) + 0.5f;
    return static_cast<uint16_t>(sign | (float_bits(magnitude) - 0x3f000000u));
  }
  return static_cast<uint16_t>(sign | ((a - 0x38000000u + 0xfffu + ((a >> 13) & 1)) >> 13));
}
constexpr float half_to_float(uint16_t h) {
  uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16, a = h & 0x7fffu;
  if (a >= 0x7c00u) return bits_float(sign | 0x7f800000u | ((a & 0x3ffu) << 13));
  if (a < 0x400u) return bits_float(sign | float_bits(static_cast<float>(a) * 0x1p-24f));
  return bits_float(sign | ((a << 13) + 0x38000000u));
}

}  // namespace usim
