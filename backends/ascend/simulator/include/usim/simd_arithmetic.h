// Lane arithmetic, comparisons and predicate logic (e.2.6). Inactive lanes of the result are 0.
#pragma once

#include "usim/simd_registers.h"

namespace usim {

template <class T> inline constexpr bool is_float16 = std::is_same_v<T, half> || std::is_same_v<T, bfloat16_t>;
template <class T> inline constexpr bool is_floating = std::is_same_v<T, float> || is_float16<T>;
template <int bytes> struct UnsignedOf;
template <> struct UnsignedOf<1> { using type = uint8_t; };
template <> struct UnsignedOf<2> { using type = uint16_t; };
template <> struct UnsignedOf<4> { using type = uint32_t; };
template <> struct UnsignedOf<8> { using type = uint64_t; };
template <class T> using Bits = typename UnsignedOf<sizeof(T)>::type;
template <class T> USIM_INLINE Bits<T> bits_of(T v) { return __builtin_bit_cast(Bits<T>, v); }

// The special-function unit flushes subnormal numbers; sums and products keep them.
USIM_INLINE float flush(float x) { return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0.0f, x) : x; }

// Rounds a double to float so that a following rounding to 16 bits is the rounding of the double itself.
USIM_INLINE float round_to_odd(double x) {
  float f = static_cast<float>(x);
  const double back = f;
  if (back == x || x != x) return f;
  uint32_t u = float_bits(f);
  if (__builtin_fabs(back) > __builtin_fabs(x)) --u;
  return bits_float(u | 1);
}

template <class T> USIM_INLINE T lane_add(T a, T b) { if constexpr (std::is_integral_v<T>) return T(Bits<T>(a) + Bits<T>(b)); else return a + b; }
template <class T> USIM_INLINE T lane_sub(T a, T b) { if constexpr (std::is_integral_v<T>) return T(Bits<T>(a) - Bits<T>(b)); else return a - b; }
template <class T> USIM_INLINE T lane_mul(T a, T b) { if constexpr (std::is_integral_v<T>) return T(uint64_t(a) * uint64_t(b)); else return a * b; }
template <class T> USIM_INLINE T lane_div(T a, T b) {
  if constexpr (std::is_same_v<T, float>) return flush(flush(a) / flush(b));
  else if constexpr (std::is_integral_v<T>) return b == 0 ? T(-1) : (std::is_signed_v<T> && b == T(-1)) ? T(Bits<T>(0) - Bits<T>(a)) : T(a / b);
  else return a / b;
}
// NaN wins; max(-0, +0) = +0 and min(-0, +0) = -0.
template <class T> USIM_INLINE T lane_max(T a, T b) {
  if constexpr (is_floating<T>) {
    if (a != a) return a;
    if (b != b) return b;
    if (a == b) return __builtin_bit_cast(T, Bits<T>(bits_of(a) & bits_of(b)));
  }
  return a > b ? a : b;
}
template <class T> USIM_INLINE T lane_min(T a, T b) {
  if constexpr (is_floating<T>) {
    if (a != a) return a;
    if (b != b) return b;
    if (a == b) return __builtin_bit_cast(T, Bits<T>(bits_of(a) | bits_of(b)));
  }
  return a < b ? a : b;
}
template <class T> USIM_INLINE T lane_and(T a, T b) { return __builtin_bit_cast(T, Bits<T>(bits_of(a) & bits_of(b))); }
template <class T> USIM_INLINE T lane_or(T a, T b) { return __builtin_bit_cast(T, Bits<T>(bits_of(a) | bits_of(b))); }
template <class T> USIM_INLINE T lane_xor(T a, T b) { return __builtin_bit_cast(T, Bits<T>(bits_of(a) ^ bits_of(b))); }
template <class T> USIM_INLINE T lane_shl(T a, uint32_t n) { return n >= 8 * sizeof(T) ? T(0) : T(Bits<T>(a) << n); }
template <class T> USIM_INLINE T lane_shr(T a, uint32_t n) { return n >= 8 * sizeof(T) ? T(a < 0 ? -1 : 0) : T(a >> n); }
template <class T> USIM_INLINE T lane_abs(T a) {
  if constexpr (is_floating<T>) return __builtin_bit_cast(T, Bits<T>(bits_of(a) & (Bits<T>(-1) >> 1)));
  else return a < 0 ? T(Bits<T>(0) - Bits<T>(a)) : a;
}
template <class T> USIM_INLINE T lane_neg(T a) {
  if constexpr (is_floating<T>) return __builtin_bit_cast(T, Bits<T>(bits_of(a) ^ ~(Bits<T>(-1) >> 1)));
  else return T(Bits<T>(0) - Bits<T>(a));
}
template <class T> USIM_INLINE T lane_abs_sub(T a, T b) { return lane_abs(lane_sub(a, b)); }
template <class T> USIM_INLINE T lane_relu(T a) { return (a > T(0) || a != a) ? a : T(0); }
template <class T> USIM_INLINE T lane_prelu(T a, T b) { return a > T(0) ? a : lane_mul(a, b); }
template <class T> USIM_INLINE T lane_exp(T a) { if constexpr (std::is_same_v<T, float>) return flush(expf(a)); else return T(expf(float(a))); }
template <class T> USIM_INLINE T lane_ln(T a) { if constexpr (std::is_same_v<T, float>) return logf(flush(a)); else return T(logf(float(a))); }
template <class T> USIM_INLINE T lane_sqrt(T a) { if constexpr (std::is_same_v<T, float>) return __builtin_sqrtf(flush(a)); else return T(__builtin_sqrtf(float(a))); }
template <class T> USIM_INLINE T lane_exp_sub(T a, T b) { return lane_exp(lane_sub(a, b)); }
template <class T> USIM_INLINE T lane_fma(T a, T b, T c) {  // a * b + c, rounded once
  if constexpr (std::is_same_v<T, float>) return __builtin_fmaf(a, b, c);
  else if constexpr (is_float16<T>) return T(round_to_odd(__builtin_fma(double(float(a)), double(float(b)), double(float(c)))));
  else return lane_add(lane_mul(a, b), c);
}
template <class T> USIM_INLINE T lane_not(T a) { return __builtin_bit_cast(T, Bits<T>(~bits_of(a))); }

}  // namespace usim

#define USIM_BINARY(NAME, LANE)                                                                                                         \
  template <class T> USIM_INLINE void NAME(::usim::Reg<T>& dst, const ::usim::Reg<T>& a, const ::usim::Reg<T>& b, const vector_bool& m) { \
    ::usim::Reg<T> r;                                                                                                                   \
    for (int i = 0; i < ::usim::Reg<T>::lanes; ++i) r.lane[i] = ::usim::LANE(a.lane[i], b.lane[i]);                                     \
    ::usim::zero_inactive(r, m);                                                                                                        \
    dst = r;                                                                                                                            \
  }
#define USIM_SCALAR(NAME, LANE)                                                                                                         \
  template <class T, class V> USIM_INLINE void NAME(::usim::Reg<T>& dst, const ::usim::Reg<T>& a, V scalar, const vector_bool& m) {      \
    const T s = ::usim::lane_from<T>(scalar);                                                                                           \
    ::usim::Reg<T> r;                                                                                                                   \
    for (int i = 0; i < ::usim::Reg<T>::lanes; ++i) r.lane[i] = ::usim::LANE(a.lane[i], s);                                             \
    ::usim::zero_inactive(r, m);                                                                                                        \
    dst = r;                                                                                                                            \
  }
#define USIM_UNARY(NAME, LANE)                                                                                                          \
  template <class T> USIM_INLINE void NAME(::usim::Reg<T>& dst, const ::usim::Reg<T>& a, const vector_bool& m) {                         \
    ::usim::Reg<T> r;                                                                                                                   \
    for (int i = 0; i < ::usim::Reg<T>::lanes; ++i) r.lane[i] = ::usim::LANE(a.lane[i]);                                                \
    ::usim::zero_inactive(r, m);                                                                                                        \
    dst = r;                                                                                                                            \
  }
USIM_BINARY(asc_add, lane_add) USIM_BINARY(asc_sub, lane_sub) USIM_BINARY(asc_mul, lane_mul) USIM_BINARY(asc_div, lane_div)
USIM_BINARY(asc_max, lane_max) USIM_BINARY(asc_min, lane_min) USIM_BINARY(asc_and, lane_and) USIM_BINARY(asc_or, lane_or)
USIM_BINARY(asc_xor, lane_xor) USIM_BINARY(asc_abs_sub, lane_abs_sub) USIM_BINARY(asc_exp_sub, lane_exp_sub) USIM_BINARY(asc_prelu, lane_prelu)
USIM_SCALAR(asc_add_scalar, lane_add) USIM_SCALAR(asc_mul_scalar, lane_mul) USIM_SCALAR(asc_max_scalar, lane_max)
USIM_SCALAR(asc_min_scalar, lane_min) USIM_SCALAR(asc_leakyrelu, lane_prelu)
USIM_UNARY(asc_exp, lane_exp) USIM_UNARY(asc_ln, lane_ln) USIM_UNARY(asc_sqrt, lane_sqrt) USIM_UNARY(asc_abs, lane_abs)
USIM_UNARY(asc_neg, lane_neg) USIM_UNARY(asc_relu, lane_relu) USIM_UNARY(asc_not, lane_not)
#undef USIM_BINARY
#undef USIM_SCALAR
#undef USIM_UNARY

#define USIM_SHIFT(NAME, LANE)                                                                                                                 \
  template <class T, class N> USIM_INLINE void NAME(::usim::Reg<T>& dst, const ::usim::Reg<T>& a, const ::usim::Reg<N>& n, const vector_bool& m) { \
    ::usim::Reg<T> r;                                                                                                                          \
    for (int i = 0; i < ::usim::Reg<T>::lanes; ++i) r.lane[i] = ::usim::LANE(a.lane[i], uint32_t(n.lane[i]));                                  \
    ::usim::zero_inactive(r, m);                                                                                                               \
    dst = r;                                                                                                                                   \
  }                                                                                                                                            \
  template <class T> USIM_INLINE void NAME##_scalar(::usim::Reg<T>& dst, const ::usim::Reg<T>& a, int64_t n, const vector_bool& m) {            \
    ::usim::Reg<T> r;                                                                                                                          \
    for (int i = 0; i < ::usim::Reg<T>::lanes; ++i) r.lane[i] = ::usim::LANE(a.lane[i], uint32_t(n));                                          \
    ::usim::zero_inactive(r, m);                                                                                                               \
    dst = r;                                                                                                                                   \
  }
USIM_SHIFT(asc_shiftleft, lane_shl)
USIM_SHIFT(asc_shiftright, lane_shr)
#undef USIM_SHIFT

// dst = dst * a + b and dst = a * scalar + dst, fused.
template <class T> USIM_INLINE void asc_madd(::usim::Reg<T>& dst, const ::usim::Reg<T>& a, const ::usim::Reg<T>& b, const vector_bool& m) {
  for (int i = 0; i < ::usim::Reg<T>::lanes; ++i) dst.lane[i] = ::usim::lane_fma(dst.lane[i], a.lane[i], b.lane[i]);
  ::usim::zero_inactive(dst, m);
}
template <class T, class V> USIM_INLINE void asc_axpy(::usim::Reg<T>& dst, const ::usim::Reg<T>& a, V scalar, const vector_bool& m) {
  const T s = ::usim::lane_from<T>(scalar);
  for (int i = 0; i < ::usim::Reg<T>::lanes; ++i) dst.lane[i] = ::usim::lane_fma(a.lane[i], s, dst.lane[i]);
  ::usim::zero_inactive(dst, m);
}

// ---- carries: one predicate bit per 32-bit lane; for subtraction 1 means no borrow -----------------------------------
namespace usim {
template <class F> USIM_INLINE void with_carry(Predicate& carry, vector_u32& dst, const vector_u32& a, const vector_u32& b, const Predicate& m, F sum) {
  Predicate out{};
  vector_u32 r;
  for (int i = 0; i < 64; ++i) {
    const uint64_t wide = sum(uint64_t(a.lane[i]), uint64_t(b.lane[i]), i);
    r.lane[i] = uint32_t(wide);
    out.set(4 * i, (wide >> 32 & 1) && m.bit(4 * i));
  }
  zero_inactive(r, m);
  dst = r, carry = out;
}
}  // namespace usim
USIM_INLINE void asc_add(vector_bool& carry, vector_u32& dst, const vector_u32& a, const vector_u32& b, const vector_bool& m) {
  ::usim::with_carry(carry, dst, a, b, m, [](uint64_t x, uint64_t y, int) { return x + y; });
}
USIM_INLINE void asc_sub(vector_bool& carry, vector_u32& dst, const vector_u32& a, const vector_u32& b, const vector_bool& m) {
  ::usim::with_carry(carry, dst, a, b, m, [](uint64_t x, uint64_t y, int) { return x + (y ^ 0xffffffffu) + 1; });
}
USIM_INLINE void asc_addc(vector_bool& carry, vector_u32& dst, const vector_u32& a, const vector_u32& b, const vector_bool& in, const vector_bool& m) {
  const vector_bool c = in;
  ::usim::with_carry(carry, dst, a, b, m, [&](uint64_t x, uint64_t y, int i) { return x + y + c.bit(4 * i); });
}
USIM_INLINE void asc_subc(vector_bool& carry, vector_u32& dst, const vector_u32& a, const vector_u32& b, const vector_bool& in, const vector_bool& m) {
  const vector_bool c = in;
  ::usim::with_carry(carry, dst, a, b, m, [&](uint64_t x, uint64_t y, int i) { return x + (y ^ 0xffffffffu) + c.bit(4 * i); });
}
template <class T> USIM_INLINE void asc_mull(::usim::Reg<T>& low, ::usim::Reg<T>& high, const ::usim::Reg<T>& a, const ::usim::Reg<T>& b, const vector_bool& m) {
  static_assert(sizeof(T) == 4, "asc_mull takes 32-bit integers");
  ::usim::Reg<T> l, h;
  for (int i = 0; i < 64; ++i) {
    const auto product = std::is_signed_v<T> ? uint64_t(int64_t(a.lane[i]) * int64_t(b.lane[i])) : uint64_t(a.lane[i]) * uint64_t(b.lane[i]);
    l.lane[i] = T(uint32_t(product)), h.lane[i] = T(uint32_t(product >> 32));
  }
  ::usim::zero_inactive(l, m), ::usim::zero_inactive(h, m);
  low = l, high = h;
}

// ---- comparisons ----------------------------------------------------------------------------------------------------
#define USIM_COMPARE(NAME, OP)                                                                                                                \
  template <class T> USIM_INLINE void NAME(vector_bool& dst, const ::usim::Reg<T>& a, const ::usim::Reg<T>& b, const vector_bool& m) {         \
    vector_bool r{};                                                                                                                          \
    for (int i = 0; i < ::usim::Reg<T>::lanes; ++i) r.set(i * int(sizeof(T)), (a.lane[i] OP b.lane[i]) && ::usim::active<T>(m, i));           \
    dst = r;                                                                                                                                  \
  }                                                                                                                                           \
  template <class T, class V> USIM_INLINE void NAME##_scalar(vector_bool& dst, const ::usim::Reg<T>& a, V scalar, const vector_bool& m) {      \
    const T s = ::usim::lane_from<T>(scalar);                                                                                                 \
    vector_bool r{};                                                                                                                          \
    for (int i = 0; i < ::usim::Reg<T>::lanes; ++i) r.set(i * int(sizeof(T)), (a.lane[i] OP s) && ::usim::active<T>(m, i));                   \
    dst = r;                                                                                                                                  \
  }
USIM_COMPARE(asc_eq, ==) USIM_COMPARE(asc_ne, !=) USIM_COMPARE(asc_gt, >) USIM_COMPARE(asc_ge, >=) USIM_COMPARE(asc_lt, <) USIM_COMPARE(asc_le, <=)
#undef USIM_COMPARE

// ---- selection and predicate logic ----------------------------------------------------------------------------------
template <class T> USIM_INLINE void asc_select(::usim::Reg<T>& dst, const ::usim::Reg<T>& a, const ::usim::Reg<T>& b, const vector_bool& m) {
  ::usim::Reg<T> r;
  for (int i = 0; i < ::usim::Reg<T>::lanes; ++i) r.lane[i] = ::usim::active<T>(m, i) ? a.lane[i] : b.lane[i];
  dst = r;
}
#define USIM_PREDICATE(NAME, EXPRESSION)                                                                                        \
  USIM_INLINE void NAME(vector_bool& dst, const vector_bool& a, const vector_bool& b, const vector_bool& m) {                   \
    for (int i = 0; i < 4; ++i) dst.word[i] = EXPRESSION;                                                                       \
  }
USIM_PREDICATE(asc_and, (a.word[i] & b.word[i]) & m.word[i])
USIM_PREDICATE(asc_or, (a.word[i] | b.word[i]) & m.word[i])
USIM_PREDICATE(asc_xor, (a.word[i] ^ b.word[i]) & m.word[i])
USIM_PREDICATE(asc_select, (a.word[i] & m.word[i]) | (b.word[i] & ~m.word[i]))
#undef USIM_PREDICATE
USIM_INLINE void asc_not(vector_bool& dst, const vector_bool& a, const vector_bool& m) {
  for (int i = 0; i < 4; ++i) dst.word[i] = ~a.word[i] & m.word[i];
}
