// vcvt (e.2.8): conversions between element types with rounding, saturation, part and mode controls.
#pragma once

#include "usim/fp8.h"
#include "usim/simd_registers.h"

namespace usim {

// Format of a small float: fraction bits and exponent of the smallest normal number.
template <class T> struct FloatFormat;
template <> struct FloatFormat<float> { static constexpr int fraction = 23, least = -126; };
template <> struct FloatFormat<half> { static constexpr int fraction = 10, least = -14; };
template <> struct FloatFormat<bfloat16_t> { static constexpr int fraction = 7, least = -126; };
template <> struct FloatFormat<float8_e4m3_t> { static constexpr int fraction = 3, least = -6; };
template <> struct FloatFormat<float8_e5m2_t> { static constexpr int fraction = 2, least = -14; };
template <> struct FloatFormat<float4_e2m1x2_t> { static constexpr int fraction = 1, least = 0; };
template <> struct FloatFormat<float4_e1m2x2_t> { static constexpr int fraction = 2, least = 0; };

template <class F> USIM_INLINE F round_whole(F x, int round) {
  const F down = __builtin_floor(static_cast<double>(x)), rest = x - down;
  const bool odd = __builtin_fmod(static_cast<double>(down), 2.0) != 0;
  switch (round) {
    case 'F': return down;
    case 'C': return rest > 0 ? down + 1 : down;
    case 'Z': return x < 0 && rest > 0 ? down + 1 : down;
    case 'O': return rest > 0 && !odd ? down + 1 : down;
    case 'A': case 'H': return rest > F(0.5) || (rest == F(0.5) && x > 0) ? down + 1 : down;
    default: return rest > F(0.5) || (rest == F(0.5) && odd) ? down + 1 : down;
  }
}
// x rounded to a multiple of the format's unit; overflow is left to the encoder.
template <class T> __attribute__((noinline)) double quantize(double x, int round) {
  if (!(__builtin_fabs(x) < __builtin_inf()) || x == 0) return x;
  int exponent;
  __builtin_frexp(x, &exponent);
  exponent = (exponent - 1 < FloatFormat<T>::least ? FloatFormat<T>::least : exponent - 1) - FloatFormat<T>::fraction;
  const double scaled = __builtin_ldexp(x, -exponent);
  return __builtin_copysign(__builtin_ldexp(round_whole(scaled, round), exponent), x);
}

// Two fp4 values per byte are encoded as sign, then magnitude in units of the format's smallest step.
USIM_INLINE uint8_t encode_e2m1(float x) {
  const float a = __builtin_fabsf(x) > 6 ? 6 : __builtin_fabsf(x);
  const uint8_t code = uint8_t(a >= 2 ? (a >= 4 ? (a >= 6 ? 7 : 6) : (a >= 3 ? 5 : 4)) : a * 2);
  return x != x ? 0 : uint8_t(code | (__builtin_signbit(x) ? 8 : 0));
}
USIM_INLINE uint8_t encode_e1m2(float x) {
  const float a = __builtin_fabsf(x) > 1.75f ? 1.75f : __builtin_fabsf(x);
  return x != x ? 0 : uint8_t(uint8_t(a * 4) | (__builtin_signbit(x) ? 8 : 0));
}
USIM_INLINE float decode_e2m1(uint32_t code) {
  const uint32_t m = code & 7;
  const float a = m < 2 ? 0.5f * float(m) : float(2 + (m & 1)) * (m < 4 ? 0.5f : m < 6 ? 1.0f : 2.0f);
  return code & 8 ? -a : a;
}
USIM_INLINE float decode_e1m2(uint32_t code) { return (code & 8 ? -0.25f : 0.25f) * float(code & 7); }

template <class T> inline constexpr bool is_fp8 = std::is_same_v<T, float8_e4m3_t> || std::is_same_v<T, float8_e5m2_t>;
template <class T> inline constexpr bool is_fp4 = std::is_same_v<T, float4_e2m1x2_t> || std::is_same_v<T, float4_e1m2x2_t>;

template <class T> USIM_INLINE float to_float(T v) {
  if constexpr (std::is_same_v<T, float8_e4m3_t>) return e4m3_to_float(v.bits);
  else if constexpr (std::is_same_v<T, float8_e5m2_t>) return e5m2_to_float(v.bits);
  else return float(v);
}
template <class T> USIM_INLINE T encode(float x, bool saturate) {
  if constexpr (std::is_same_v<T, float>) return x;
  else if constexpr (std::is_same_v<T, half>) return __builtin_bit_cast(half, float_to_half(x, saturate));
  else if constexpr (std::is_same_v<T, bfloat16_t>) return __builtin_bit_cast(bfloat16_t, float_to_bf16(x, saturate));
  else if constexpr (std::is_same_v<T, float8_e4m3_t>) return {float_to_e4m3(x, saturate)};
  else return {float_to_e5m2(x, saturate)};
}

template <class D> __attribute__((noinline)) D float_to_integer(float x, int round, bool saturate) {
  constexpr bool is_signed = std::is_signed_v<D>;
  constexpr int bits = 8 * sizeof(D) - is_signed;
  constexpr D high = D(~(uint64_t(is_signed) << bits)), low = is_signed ? D(uint64_t(1) << bits) : D(0);
  if (x != x) return D(0);
  const float bound = __builtin_ldexpf(1.0f, bits);
  if (__builtin_isinf(x)) return x > 0 ? high : low;
  const double r = round_whole(double(x), round);
  if (saturate) return r >= bound ? high : r < (is_signed ? -bound : 0.0f) ? low : D(r);
  if (__builtin_fabs(r) >= 0x1p87) return D(0);  // 24 significant bits, none of them among the low 64
  return D(uint64_t(static_cast<__int128>(r)));
}
// Integers have more bits than a double only in 64-bit form; the upper part decides the rounding there.
template <class S> __attribute__((noinline)) float integer_to_float(S v, int round) {
  if constexpr (sizeof(S) < 8) {
    return float(quantize<float>(double(v), round));
  } else {
    const bool negative = v < 0;
    const uint64_t magnitude = negative ? 0 - uint64_t(v) : uint64_t(v);
    const int drop = magnitude >> 24 ? 40 - __builtin_clzll(magnitude) : 0;
    const uint64_t rest = drop > 0 ? magnitude & ((uint64_t(1) << drop) - 1) : 0;
    // A sticky bit below the kept bits is all that rounding needs to know of the rest.
    const uint64_t half_unit = drop > 0 ? uint64_t(1) << (drop - 1) : 0;
    const double fraction = rest == 0 ? 0 : rest < half_unit ? 0.25 : rest == half_unit ? 0.5 : 0.75;
    const double scaled = double(magnitude >> drop) + fraction;
    return float(__builtin_ldexp(round_whole(negative ? -scaled : scaled, round), drop));
  }
}
template <class D, class S> USIM_INLINE D integer_to_integer(S v, bool saturate) {
  if constexpr (sizeof(D) > sizeof(S) && std::is_signed_v<S> && !std::is_signed_v<D>) return v < 0 ? D(0) : D(v);
  if constexpr (sizeof(D) < sizeof(S)) {
    constexpr int bits = 8 * sizeof(D) - std::is_signed_v<D>;
    constexpr S high = S((uint64_t(1) << bits) - 1), low = std::is_signed_v<D> ? S(-S(high) - 1) : S(0);
    if (saturate) {
      if (v > high) return D(high);
      if (std::is_signed_v<S> && v < low) return D(low);
    }
  }
  return D(v);
}

template <class D, class S, int round, bool saturate> USIM_INLINE D convert(S v) {
  constexpr bool from_int = std::is_integral_v<S>, to_int = std::is_integral_v<D>;
  if constexpr (from_int && to_int) {
    return integer_to_integer<D>(v, saturate);
  } else if constexpr (from_int) {
    if constexpr (sizeof(S) < 4) {  // exact in float
      const float f = float(v);
      if constexpr (round == 'R') return encode<D>(f, saturate);
      else return encode<D>(float(quantize<D>(f, round)), saturate);
    } else {
      return encode<D>(integer_to_float(v, round), saturate);
    }
  } else if constexpr (to_int) {
    return float_to_integer<D>(to_float(v), round, saturate);
  } else {
    const float f = to_float(v);
    if constexpr (round == 'R' || sizeof(D) > sizeof(S)) return encode<D>(f, saturate);
    else return encode<D>(float(quantize<D>(f, round)), saturate);
  }
}

template <int family, int fallback> constexpr int pick() { return fallback; }
template <int family, int fallback, class First, class... Rest> constexpr int pick() {
  constexpr auto value = []<int f, int v>(Token<f, v>) { return f == family ? v : -1; }(First{});
  if constexpr (value >= 0) return value;
  else return pick<family, fallback, Rest...>();
}

}  // namespace usim

template <class D, class S, class... Controls>
USIM_INLINE void vcvt(::usim::Reg<D>& dst, const ::usim::Reg<S>& src, const vector_bool& m, Controls...) {
  using namespace ::usim;
  constexpr int round = pick<kRound, 'R', Controls...>(), part = pick<kPart, 0, Controls...>();
  constexpr bool saturate = pick<kSaturation, 0, Controls...>() == 1, merging = pick<kMode, 0, Controls...>() == 1;
  Reg<D> r;
  if constexpr (!merging)
    for (int i = 0; i < Reg<D>::lanes; ++i) r.lane[i] = zero<D>();
  else r = dst;
  if constexpr (is_fp4<D>) {  // two source lanes to one byte
    for (int i = 0; i < 64; ++i) {
      uint8_t codes[2] = {0, 0};
      for (int k = 0; k < 2; ++k) {
        if (!active<S>(m, 2 * i + k)) continue;
        const float x = float(quantize<D>(to_float(src.lane[2 * i + k]), round));
        codes[k] = std::is_same_v<D, float4_e2m1x2_t> ? encode_e2m1(x) : encode_e1m2(x);
      }
      r.lane[4 * i + part] = {uint8_t(codes[0] | codes[1] << 4)};
    }
  } else if constexpr (is_fp4<S>) {
    for (int i = 0; i < 64; ++i) {
      if (!active<S>(m, 4 * i + part)) continue;
      const uint32_t byte = src.lane[4 * i + part].bits;
      for (int k = 0; k < 2; ++k) {
        const uint32_t code = byte >> (4 * k) & 15;
        r.lane[2 * i + k] = D(std::is_same_v<S, float4_e2m1x2_t> ? decode_e2m1(code) : decode_e1m2(code));
      }
    }
  } else if constexpr (sizeof(D) < sizeof(S)) {
    constexpr int ratio = sizeof(S) / sizeof(D);
    static_assert(part < ratio, "vcvt: the part does not exist for this pair of types");
    for (int i = 0; i < Reg<S>::lanes; ++i)
      if (active<S>(m, i)) r.lane[i * ratio + part] = convert<D, S, round, saturate>(src.lane[i]);
  } else {
    constexpr int ratio = sizeof(D) / sizeof(S), first = ratio > 1 ? part : 0;
    static_assert(first < ratio, "vcvt: the part does not exist for this pair of types");
    for (int i = 0; i < Reg<D>::lanes; ++i)
      if (active<S>(m, i * ratio + first)) r.lane[i] = convert<D, S, round, saturate>(src.lane[i * ratio + first]);
  }
  dst = r;
}
