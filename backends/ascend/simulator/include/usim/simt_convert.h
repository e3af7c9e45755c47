// Conversions named in SIMT code (e.1.5): bf16, half and fp8 in pairs.
#pragma once

#include "usim/elements.h"
#include "usim/fp8.h"
#include "usim/simt_vectors.h"

using __asc_fp8x2_storage_t = uint16_t;
enum __asc_saturation_t { __ASC_NOSAT, __ASC_SATFINITE };
enum __asc_fp8_kind_t { __ASC_E4M3, __ASC_E5M2 };

inline bfloat16x2_t __float22bfloat162_rn(float2 v) { return {bfloat16_t(v.x), bfloat16_t(v.y)}; }
inline float2 __bfloat1622float2(bfloat16x2_t v) { return {float(v.x), float(v.y)}; }
inline bfloat16_t __float2bfloat16_rn(float v) { return bfloat16_t(v); }
inline float __bfloat162float(bfloat16_t v) { return float(v); }
inline half2 __float22half2_rn(float2 v) { return {half(v.x), half(v.y)}; }
inline float2 __half22float2(half2 v) { return {float(v.x), float(v.y)}; }
inline half __float2half_rn(float v) { return half(v); }
inline float __half2float(half v) { return float(v); }
inline __asc_fp8x2_storage_t __asc_cvt_float2_to_fp8x2(float2 v, __asc_saturation_t saturation, __asc_fp8_kind_t kind) {
  const bool s = saturation == __ASC_SATFINITE;
  const uint8_t x = kind == __ASC_E4M3 ? ::usim::float_to_e4m3(v.x, s) : ::usim::float_to_e5m2(v.x, s);
  const uint8_t y = kind == __ASC_E4M3 ? ::usim::float_to_e4m3(v.y, s) : ::usim::float_to_e5m2(v.y, s);
  return uint16_t(x | y << 8);
}
inline float2 __e4m3x22float2(float8_e4m3x2_t v) { return {::usim::e4m3_to_float(v.bits & 0xff), ::usim::e4m3_to_float(v.bits >> 8)}; }
inline float2 __e5m2x22float2(float8_e5m2x2_t v) { return {::usim::e5m2_to_float(v.bits & 0xff), ::usim::e5m2_to_float(v.bits >> 8)}; }
