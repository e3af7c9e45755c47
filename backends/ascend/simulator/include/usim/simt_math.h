// Scalar math names of generated code (e.1.5): <op>f for float, h<op> for half and bfloat16_t, the host's for double.
#pragma once

#include <math.h>

#include "usim/elements.h"

inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
#ifndef __USE_GNU
inline float exp10f(float x) { return powf(10.0f, x); }
inline double exp10(double x) { return pow(10.0, x); }
inline void sincosf(float x, float* s, float* c) { *s = sinf(x), *c = cosf(x); }
#endif

// Half functions compute in float and round once.
#define USIM_HALF_FUNCTION(NAME, CALL)                              \
  inline half h##NAME(half x) { return half(CALL(float(x))); }      \
  inline bfloat16_t h##NAME(bfloat16_t x) { return bfloat16_t(CALL(float(x))); }
USIM_HALF_FUNCTION(sqrt, sqrtf)
USIM_HALF_FUNCTION(rsqrt, rsqrtf)
USIM_HALF_FUNCTION(rcp, 1.0f /)
USIM_HALF_FUNCTION(exp, expf)
USIM_HALF_FUNCTION(exp2, exp2f)
USIM_HALF_FUNCTION(exp10, exp10f)
USIM_HALF_FUNCTION(log, logf)
USIM_HALF_FUNCTION(log2, log2f)
USIM_HALF_FUNCTION(log10, log10f)
USIM_HALF_FUNCTION(log1p, log1pf)
USIM_HALF_FUNCTION(tanh, tanhf)
USIM_HALF_FUNCTION(tan, tanf)
USIM_HALF_FUNCTION(sin, sinf)
USIM_HALF_FUNCTION(cos, cosf)
USIM_HALF_FUNCTION(atan, atanf)
USIM_HALF_FUNCTION(erf, erff)
USIM_HALF_FUNCTION(floor, floorf)
USIM_HALF_FUNCTION(ceil, ceilf)
USIM_HALF_FUNCTION(fabs, fabsf)
USIM_HALF_FUNCTION(round, roundf)
USIM_HALF_FUNCTION(rint, rintf)
USIM_HALF_FUNCTION(trunc, truncf)
#undef USIM_HALF_FUNCTION
inline half hatan2(half y, half x) { return half(atan2f(float(y), float(x))); }
inline half hpow(half x, half y) { return half(powf(float(x), float(y))); }
inline bfloat16_t hatan2(bfloat16_t y, bfloat16_t x) { return bfloat16_t(atan2f(float(y), float(x))); }

// Unqualified min and max appear on equal types and on int32/int64 pairs; floats follow fmin/fmax (NaN loses).
template <class T> constexpr T max(T a, T b) {
  if constexpr (T(0.5f) != T(0)) return (b != b) ? a : (a > b) ? a : b;
  else return a > b ? a : b;
}
template <class T> constexpr T min(T a, T b) {
  if constexpr (T(0.5f) != T(0)) return (b != b) ? a : (a < b) ? a : b;
  else return a < b ? a : b;
}
constexpr int64_t max(int64_t a, int32_t b) { return a > b ? a : b; }
constexpr int64_t max(int32_t a, int64_t b) { return a > b ? a : b; }
constexpr int64_t min(int64_t a, int32_t b) { return a < b ? a : b; }
constexpr int64_t min(int32_t a, int64_t b) { return a < b ? a : b; }
