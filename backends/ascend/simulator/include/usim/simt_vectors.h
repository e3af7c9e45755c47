// float2, int4 and relatives: plain structs, make_ functions and element-wise operators (e.1.5).
#pragma once

#include <stdint.h>

// Conversions between vectors go lane by lane: TileLang prints a cast of a whole vector as a C cast.
#define USIM_VECTOR(SCALAR, NAME, SUFFIX, ALIGN)                                                                      \
  struct NAME##1 { SCALAR x; };                                                                                        \
  struct alignas(2 * sizeof(SCALAR)) NAME##2 {                                                                         \
    SCALAR x, y;                                                                                                       \
    template <class V, class S = decltype(V{}.y), class = decltype(V{S{}, S{}}), class = std::enable_if_t<sizeof(V) == 2 * sizeof(S)>> \
    explicit constexpr operator V() const { return V{static_cast<S>(x), static_cast<S>(y)}; }                          \
  };                                                                                                                   \
  struct NAME##3 { SCALAR x, y, z; };                                                                                  \
  struct alignas(4 * sizeof(SCALAR) > 16 ? 16 : 4 * sizeof(SCALAR)) NAME##4 {                                          \
    SCALAR x, y, z, w;                                                                                                 \
    template <class V, class S = decltype(V{}.w)> explicit constexpr operator V() const {                              \
      return V{static_cast<S>(x), static_cast<S>(y), static_cast<S>(z), static_cast<S>(w)};                            \
    }                                                                                                                  \
  };                                                                                                                   \
  constexpr NAME##1 make_##NAME##1(SCALAR x) { return {x}; }                                                           \
  constexpr NAME##2 make_##NAME##2(SCALAR x, SCALAR y) { return {x, y}; }                                              \
  constexpr NAME##3 make_##NAME##3(SCALAR x, SCALAR y, SCALAR z) { return {x, y, z}; }                                 \
  constexpr NAME##4 make_##NAME##4(SCALAR x, SCALAR y, SCALAR z, SCALAR w) { return {x, y, z, w}; }

USIM_VECTOR(float, float, f, 0)
USIM_VECTOR(double, double, d, 0)
USIM_VECTOR(int32_t, int, i, 0)
USIM_VECTOR(uint32_t, uint, u, 0)
USIM_VECTOR(int16_t, short, s, 0)
USIM_VECTOR(uint16_t, ushort, us, 0)
USIM_VECTOR(int8_t, char, c, 0)
USIM_VECTOR(uint8_t, uchar, uc, 0)
USIM_VECTOR(long long, longlong, l, 0)
USIM_VECTOR(unsigned long long, ulonglong, ul, 0)
#undef USIM_VECTOR

#define USIM_VECTOR_OPERATOR(OP)                                                                                       \
  constexpr float2 operator OP(float2 a, float2 b) { return {a.x OP b.x, a.y OP b.y}; }                                \
  constexpr float4 operator OP(float4 a, float4 b) { return {a.x OP b.x, a.y OP b.y, a.z OP b.z, a.w OP b.w}; }        \
  constexpr int2 operator OP(int2 a, int2 b) { return {a.x OP b.x, a.y OP b.y}; }                                      \
  constexpr int4 operator OP(int4 a, int4 b) { return {a.x OP b.x, a.y OP b.y, a.z OP b.z, a.w OP b.w}; }              \
  constexpr uint2 operator OP(uint2 a, uint2 b) { return {a.x OP b.x, a.y OP b.y}; }                                   \
  constexpr uint4 operator OP(uint4 a, uint4 b) { return {a.x OP b.x, a.y OP b.y, a.z OP b.z, a.w OP b.w}; }
USIM_VECTOR_OPERATOR(+)
USIM_VECTOR_OPERATOR(-)
USIM_VECTOR_OPERATOR(*)
USIM_VECTOR_OPERATOR(/)
#undef USIM_VECTOR_OPERATOR

#define USIM_INTEGER_OPERATOR(OP)                                                                                      \
  constexpr int2 operator OP(int2 a, int2 b) { return {a.x OP b.x, a.y OP b.y}; }                                      \
  constexpr int4 operator OP(int4 a, int4 b) { return {a.x OP b.x, a.y OP b.y, a.z OP b.z, a.w OP b.w}; }              \
  constexpr uint2 operator OP(uint2 a, uint2 b) { return {a.x OP b.x, a.y OP b.y}; }                                   \
  constexpr uint4 operator OP(uint4 a, uint4 b) { return {a.x OP b.x, a.y OP b.y, a.z OP b.z, a.w OP b.w}; }
USIM_INTEGER_OPERATOR(%)
USIM_INTEGER_OPERATOR(&)
USIM_INTEGER_OPERATOR(|)
USIM_INTEGER_OPERATOR(^)
USIM_INTEGER_OPERATOR(<<)
USIM_INTEGER_OPERATOR(>>)
#undef USIM_INTEGER_OPERATOR
constexpr float2 operator-(float2 a) { return {-a.x, -a.y}; }
constexpr float4 operator-(float4 a) { return {-a.x, -a.y, -a.z, -a.w}; }
constexpr int2 operator~(int2 a) { return {~a.x, ~a.y}; }
constexpr int4 operator~(int4 a) { return {~a.x, ~a.y, ~a.z, ~a.w}; }
constexpr uint2 operator~(uint2 a) { return {~a.x, ~a.y}; }
constexpr uint4 operator~(uint4 a) { return {~a.x, ~a.y, ~a.z, ~a.w}; }
