// Vector registers, predicates and the tokens that select modes (e.2.1, e.2.2).
#pragma once

#include "usim/elements.h"

#define USIM_INLINE __attribute__((always_inline)) inline

namespace usim {

template <class T> struct Reg {
  static constexpr int lanes = 256 / sizeof(T);
  T lane[lanes];
};

// One bit per register byte; a lane is active if the bit of its lowest byte is set (e.2.1).
struct Predicate {
  uint64_t word[4];
  USIM_INLINE bool bit(int b) const { return word[b >> 6] >> (b & 63) & 1; }
  USIM_INLINE void set(int b, bool on) { word[b >> 6] |= uint64_t(on) << (b & 63); }
};

template <int width> constexpr uint64_t lane_bits() {  // the lowest bit of every lane of `width` bytes
  uint64_t bits = 0;
  for (int b = 0; b < 64; b += width) bits |= uint64_t(1) << b;
  return bits;
}
template <int width> USIM_INLINE bool all_lanes(const Predicate& m) {
  constexpr uint64_t bits = lane_bits<width>();
  return ((m.word[0] & m.word[1] & m.word[2] & m.word[3]) & bits) == bits;
}
template <class T> USIM_INLINE bool active(const Predicate& m, int lane) { return m.bit(lane * int(sizeof(T))); }

template <class T> USIM_INLINE T zero() {
  T v;
  __builtin_memset(&v, 0, sizeof(T));
  return v;
}
// Inactive lanes become 0 ...
template <class T> USIM_INLINE void zero_inactive(Reg<T>& r, const Predicate& m) {
  if (all_lanes<sizeof(T)>(m)) return;
  for (int i = 0; i < Reg<T>::lanes; ++i)
    if (!active<T>(m, i)) r.lane[i] = zero<T>();
}
// ... or keep what the destination held.
template <class T> USIM_INLINE void merge(Reg<T>& dst, const Reg<T>& result, const Predicate& m) {
  for (int i = 0; i < Reg<T>::lanes; ++i)
    if (active<T>(m, i)) dst.lane[i] = result.lane[i];
}
// A lane value from whatever scalar type the kernel passes.
template <class T, class V> USIM_INLINE T lane_from(V v) {
  if constexpr (std::is_convertible_v<V, T>) {
    return static_cast<T>(v);
  } else if constexpr (std::is_convertible_v<V, float> && std::is_constructible_v<T, float>) {
    return T(static_cast<float>(v));
  } else {
    static_assert(sizeof(V) >= sizeof(T), "the scalar does not fit the register's element type");
    T r;
    __builtin_memcpy(&r, &v, sizeof(T));
    return r;
  }
}

template <int family, int value> struct Token {};
template <int family, int a, int b> constexpr bool operator==(Token<family, a>, Token<family, b>) { return a == b; }
template <int family, int a, int b> constexpr bool operator!=(Token<family, a>, Token<family, b>) { return a != b; }
enum Family { kMode, kPart, kRound, kSaturation, kPattern, kHalf, kOrder, kPosition, kBin, kPost, kDistribution, kBarrier };

}  // namespace usim

using vector_bool = ::usim::Predicate;
using vector_f32 = ::usim::Reg<float>;
using vector_float = vector_f32;
using vector_s32 = ::usim::Reg<int32_t>;
using vector_int32_t = vector_s32;
using vector_u32 = ::usim::Reg<uint32_t>;
using vector_uint32_t = vector_u32;
using vector_f16 = ::usim::Reg<half>;
using vector_half = vector_f16;
using vector_bf16 = ::usim::Reg<bfloat16_t>;
using vector_bfloat16_t = vector_bf16;
using vector_s16 = ::usim::Reg<int16_t>;
using vector_int16_t = vector_s16;
using vector_u16 = ::usim::Reg<uint16_t>;
using vector_uint16_t = vector_u16;
using vector_s8 = ::usim::Reg<int8_t>;
using vector_int8_t = vector_s8;
using vector_u8 = ::usim::Reg<uint8_t>;
using vector_uint8_t = vector_u8;
using vector_s64 = ::usim::Reg<int64_t>;
using vector_int64_t = vector_s64;
using vector_u64 = ::usim::Reg<uint64_t>;
using vector_uint64_t = vector_u64;
using vector_f8e4m3 = ::usim::Reg<float8_e4m3_t>;
using vector_f8e5m2 = ::usim::Reg<float8_e5m2_t>;
using vector_f8e8m0 = ::usim::Reg<float8_e8m0_t>;
using vector_f4e2m1x2 = ::usim::Reg<float4_e2m1x2_t>;
using vector_f4e1m2x2 = ::usim::Reg<float4_e1m2x2_t>;

#define USIM_TOKEN(FAMILY, NAME, VALUE) inline constexpr ::usim::Token<::usim::FAMILY, VALUE> NAME{};
USIM_TOKEN(kMode, MODE_ZEROING, 0) USIM_TOKEN(kMode, MODE_MERGING, 1) USIM_TOKEN(kMode, MODE_STORED, 2) USIM_TOKEN(kMode, MODE_UNKNOWN, 3)
USIM_TOKEN(kMode, MODE_NO_STORED, 4)
USIM_TOKEN(kPart, PART_EVEN, 0) USIM_TOKEN(kPart, PART_ODD, 1)
USIM_TOKEN(kPart, PART_P0, 0) USIM_TOKEN(kPart, PART_P1, 1) USIM_TOKEN(kPart, PART_P2, 2) USIM_TOKEN(kPart, PART_P3, 3)
USIM_TOKEN(kRound, ROUND_R, 'R') USIM_TOKEN(kRound, ROUND_A, 'A') USIM_TOKEN(kRound, ROUND_F, 'F') USIM_TOKEN(kRound, ROUND_C, 'C')
USIM_TOKEN(kRound, ROUND_Z, 'Z') USIM_TOKEN(kRound, ROUND_O, 'O') USIM_TOKEN(kRound, ROUND_H, 'H')
USIM_TOKEN(kSaturation, RS_DISABLE, 0) USIM_TOKEN(kSaturation, RS_ENABLE, 1)
USIM_TOKEN(kPattern, PAT_ALL, 1000) USIM_TOKEN(kPattern, PAT_ALLF, 0) USIM_TOKEN(kPattern, PAT_VL1, 1) USIM_TOKEN(kPattern, PAT_VL2, 2)
USIM_TOKEN(kPattern, PAT_VL3, 3) USIM_TOKEN(kPattern, PAT_VL4, 4) USIM_TOKEN(kPattern, PAT_VL8, 8) USIM_TOKEN(kPattern, PAT_VL16, 16)
USIM_TOKEN(kPattern, PAT_VL32, 32) USIM_TOKEN(kPattern, PAT_VL64, 64) USIM_TOKEN(kPattern, PAT_VL128, 128)
USIM_TOKEN(kPattern, PAT_M3, 2003) USIM_TOKEN(kPattern, PAT_M4, 2004) USIM_TOKEN(kPattern, PAT_H, 3002) USIM_TOKEN(kPattern, PAT_Q, 3004)
USIM_TOKEN(kHalf, LOWER, 0) USIM_TOKEN(kHalf, HIGHER, 1)
USIM_TOKEN(kOrder, INC_ORDER, 0) USIM_TOKEN(kOrder, DEC_ORDER, 1)
USIM_TOKEN(kPosition, POS_LOWEST, 0) USIM_TOKEN(kPosition, POS_HIGHEST, 1)
USIM_TOKEN(kBin, Bin_N0, 0) USIM_TOKEN(kBin, Bin_N1, 1)
USIM_TOKEN(kPost, POST_UPDATE, 1) USIM_TOKEN(kPost, NO_POST_UPDATE, 0)
USIM_TOKEN(kDistribution, NORM, 0) USIM_TOKEN(kDistribution, DINTLV_B8, 1) USIM_TOKEN(kDistribution, DINTLV_B16, 2)
USIM_TOKEN(kDistribution, DINTLV_B32, 4)
USIM_TOKEN(kBarrier, VV_ALL, 0) USIM_TOKEN(kBarrier, VST_VLD, 1) USIM_TOKEN(kBarrier, VLD_VST, 2) USIM_TOKEN(kBarrier, VST_VST, 3)
USIM_TOKEN(kBarrier, VS_ALL, 4) USIM_TOKEN(kBarrier, VST_LD, 5) USIM_TOKEN(kBarrier, VLD_ST, 6) USIM_TOKEN(kBarrier, VST_ST, 7)
USIM_TOKEN(kBarrier, SV_ALL, 8) USIM_TOKEN(kBarrier, ST_VLD, 9) USIM_TOKEN(kBarrier, LD_VST, 10) USIM_TOKEN(kBarrier, ST_VST, 11)
USIM_TOKEN(kBarrier, SS_ALL, 12) USIM_TOKEN(kBarrier, ST_LD, 13) USIM_TOKEN(kBarrier, LD_ST, 14) USIM_TOKEN(kBarrier, ST_ST, 15)
#undef USIM_TOKEN

// A function runs its accesses in program order here (e.2.9); only the check that loads come after stores has to know of
// barriers, and of those that order loads after stores.
template <int kind> USIM_INLINE void asc_mem_bar(::usim::Token<::usim::kBarrier, kind>) {
#ifdef USIM_CHECK
  if constexpr (kind % 4 <= 1) ::usim::api->memory_barrier();
#endif
}

namespace usim {
template <int width> USIM_INLINE Predicate lowest_lanes(uint32_t n) {
  Predicate p{};
  for (int i = 0; i < 256 / width; ++i) p.set(i * width, uint32_t(i) < n);
  return p;
}
template <int width, int pattern> USIM_INLINE Predicate pattern_mask(Token<kPattern, pattern>) {
  constexpr uint32_t lanes = 256 / width;
  if constexpr (pattern == 1000) return {lane_bits<width>(), lane_bits<width>(), lane_bits<width>(), lane_bits<width>()};
  else if constexpr (pattern == 3002 || pattern == 3004) return lowest_lanes<width>(lanes / (pattern - 3000));
  else if constexpr (pattern < 1000) return lowest_lanes<width>(pattern);
  Predicate p{};
  for (uint32_t i = 0; i < lanes && pattern > 2000 && pattern < 3000; ++i) p.set(int(i) * width, i % (pattern - 2000 + (pattern == 2000)) == 0);
  return p;
}
template <int width> USIM_INLINE Predicate next_mask(uint32_t& n) {
  constexpr uint32_t lanes = 256 / width;
  const Predicate p = lowest_lanes<width>(n);
  n = n > lanes ? n - lanes : 0;
  return p;
}
}  // namespace usim

template <class P> USIM_INLINE vector_bool asc_create_mask_b8(P p) { return ::usim::pattern_mask<1>(p); }
template <class P> USIM_INLINE vector_bool asc_create_mask_b16(P p) { return ::usim::pattern_mask<2>(p); }
template <class P> USIM_INLINE vector_bool asc_create_mask_b32(P p) { return ::usim::pattern_mask<4>(p); }
USIM_INLINE vector_bool asc_update_mask_b8(uint32_t& n) { return ::usim::next_mask<1>(n); }
USIM_INLINE vector_bool asc_update_mask_b16(uint32_t& n) { return ::usim::next_mask<2>(n); }
USIM_INLINE vector_bool asc_update_mask_b32(uint32_t& n) { return ::usim::next_mask<4>(n); }
