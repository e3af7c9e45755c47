// The element types of generated code: half, bfloat16_t, the 8-bit and 4-bit storage types, and their Type numbers.
#pragma once

#include "usim/device.h"
#include "usim/types.h"

namespace usim {
#ifdef USIM_SATURATE
inline constexpr bool kSaturate = true;
#else
inline constexpr bool kSaturate = false;
#endif
}  // namespace usim

#define USIM_FLOAT16(NAME, TO_BITS, TO_FLOAT)                                                          \
  struct NAME {                                                                                        \
    uint16_t bits;                                                                                     \
    NAME() = default;                                                                                  \
    template <class N, class = std::enable_if_t<std::is_arithmetic_v<N>>>                              \
    constexpr NAME(N x) : bits(TO_BITS(static_cast<float>(x))) {}                                      \
    template <class N, class = void, class = std::enable_if_t<std::is_class_v<N> && !std::is_same_v<N, NAME> && std::is_convertible_v<N, float>>> \
    explicit constexpr NAME(N x) : bits(TO_BITS(static_cast<float>(x))) {}                             \
    constexpr operator float() const { return TO_FLOAT(bits); }                                        \
    NAME& operator+=(NAME o) { return *this = NAME(float(*this) + float(o)); }                         \
    NAME& operator-=(NAME o) { return *this = NAME(float(*this) - float(o)); }                         \
    NAME& operator*=(NAME o) { return *this = NAME(float(*this) * float(o)); }                         \
    NAME& operator/=(NAME o) { return *this = NAME(float(*this) / float(o)); }                         \
  };                                                                                                   \
  constexpr NAME operator+(NAME a, NAME b) { return NAME(float(a) + float(b)); }                       \
  constexpr NAME operator-(NAME a, NAME b) { return NAME(float(a) - float(b)); }                       \
  constexpr NAME operator*(NAME a, NAME b) { return NAME(float(a) * float(b)); }                       \
  constexpr NAME operator/(NAME a, NAME b) { return NAME(float(a) / float(b)); }                       \
  constexpr NAME operator-(NAME a) { return __builtin_bit_cast(NAME, uint16_t(a.bits ^ 0x8000u)); }    \
  constexpr bool operator==(NAME a, NAME b) { return float(a) == float(b); }                           \
  constexpr bool operator!=(NAME a, NAME b) { return float(a) != float(b); }                           \
  constexpr bool operator<(NAME a, NAME b) { return float(a) < float(b); }                             \
  constexpr bool operator<=(NAME a, NAME b) { return float(a) <= float(b); }                           \
  constexpr bool operator>(NAME a, NAME b) { return float(a) > float(b); }                             \
  constexpr bool operator>=(NAME a, NAME b) { return float(a) >= float(b); }

namespace usim {
constexpr uint16_t half_from(float x) { return float_to_half(x, kSaturate); }
constexpr uint16_t bf16_from(float x) { return float_to_bf16(x, kSaturate); }
}  // namespace usim

USIM_FLOAT16(half, ::usim::half_from, ::usim::half_to_float)
USIM_FLOAT16(bfloat16_t, ::usim::bf16_from, ::usim::bf16_to_float)
#undef USIM_FLOAT16

// With an integer the result keeps the 16-bit type, with a wider float it becomes that float.
#define USIM_MIXED(NAME, OP)                                                                                          \
  template <class N, class = std::enable_if_t<std::is_arithmetic_v<N>>> constexpr auto operator OP(NAME a, N b) {     \
    if constexpr (std::is_floating_point_v<N>) return N(float(a)) OP b;                                               \
    else return a OP NAME(b);                                                                                         \
  }                                                                                                                   \
  template <class N, class = std::enable_if_t<std::is_arithmetic_v<N>>> constexpr auto operator OP(N a, NAME b) {     \
    if constexpr (std::is_floating_point_v<N>) return a OP N(float(b));                                               \
    else return NAME(a) OP b;                                                                                         \
  }
#define USIM_MIXED_ALL(NAME) \
  USIM_MIXED(NAME, +) USIM_MIXED(NAME, -) USIM_MIXED(NAME, *) USIM_MIXED(NAME, /) USIM_MIXED(NAME, ==) USIM_MIXED(NAME, !=) \
  USIM_MIXED(NAME, <) USIM_MIXED(NAME, <=) USIM_MIXED(NAME, >) USIM_MIXED(NAME, >=)
USIM_MIXED_ALL(half)
USIM_MIXED_ALL(bfloat16_t)
#undef USIM_MIXED_ALL
#undef USIM_MIXED

struct half2 { half x, y; };
struct bfloat16x2_t { bfloat16_t x, y; };

// Storage types: one byte each, told apart by templates and overloads only.
struct float8_e4m3_t { uint8_t bits; };
struct float8_e5m2_t { uint8_t bits; };
struct float8_e8m0_t { uint8_t bits; };
struct hifloat8_t { uint8_t bits; };
struct float4_e2m1x2_t { uint8_t bits; };
struct float4_e1m2x2_t { uint8_t bits; };
using fp8_e8m0_t = float8_e8m0_t;
struct float8_e4m3x2_t { uint16_t bits; };
struct float8_e5m2x2_t { uint16_t bits; };
namespace tl { struct float_e4m3_t; struct float_e5m2_t; }

namespace usim {
template <class T> inline constexpr Type type_of = Type::none;
template <> inline constexpr Type type_of<float> = Type::f32;
template <> inline constexpr Type type_of<half> = Type::f16;
template <> inline constexpr Type type_of<bfloat16_t> = Type::bf16;
template <> inline constexpr Type type_of<float8_e4m3_t> = Type::e4m3;
template <> inline constexpr Type type_of<float8_e5m2_t> = Type::e5m2;
template <> inline constexpr Type type_of<tl::float_e4m3_t> = Type::e4m3;
template <> inline constexpr Type type_of<tl::float_e5m2_t> = Type::e5m2;
template <> inline constexpr Type type_of<float8_e8m0_t> = Type::e8m0;
template <> inline constexpr Type type_of<hifloat8_t> = Type::hif8;
template <> inline constexpr Type type_of<float4_e2m1x2_t> = Type::e2m1;
template <> inline constexpr Type type_of<float4_e1m2x2_t> = Type::e1m2;
template <> inline constexpr Type type_of<int8_t> = Type::s8;
template <> inline constexpr Type type_of<uint8_t> = Type::u8;
template <> inline constexpr Type type_of<int16_t> = Type::s16;
template <> inline constexpr Type type_of<uint16_t> = Type::u16;
template <> inline constexpr Type type_of<int32_t> = Type::s32;
template <> inline constexpr Type type_of<uint32_t> = Type::u32;
template <> inline constexpr Type type_of<int64_t> = Type::s64;
template <> inline constexpr Type type_of<uint64_t> = Type::u64;
}  // namespace usim
