// Barriers and warp functions of SIMT code (e.1.2, e.1.3). Lanes meet at a call: two lanes are at the same call when
// they name the same source line, so a call that the host compiler duplicated is still one.
#pragma once

#include "usim/elements.h"

#define USIM_CALL_SITE uint32_t usim_line = __builtin_LINE(), const char* usim_file = __builtin_FILE()
#define USIM_SITE usim_line, usim_file

inline void asc_syncthreads() { ::usim::api->sync_threads(); }
inline void asc_threadfence() {}
inline int32_t laneid() { return int32_t(::usim::api->thread()->linear % 32); }

namespace usim {
// The key of a call travels in the upper 24 bits of the size.
__attribute__((always_inline)) inline const WarpValues& meet(const void* value, uint32_t bytes, uint32_t line, const char* file) {
  const uint32_t key = ((line & 0xffffu) << 8 | (uint32_t(__builtin_strlen(file)) & 0xffu)) << 8;
  return *api->warp_exchange(value, bytes | key);
}
template <class T> inline T lane_value(const WarpValues& w, uint32_t lane) {
  T v;
  __builtin_memcpy(&v, w.value[lane], sizeof(T));
  return v;
}
__attribute__((always_inline)) inline uint32_t ballot(int32_t predicate, uint32_t line, const char* file) {
  const WarpValues& w = meet(&predicate, sizeof(predicate), line, file);
  uint32_t result = 0;
  for (uint32_t i = 0; i < 32; ++i) result |= uint32_t((w.active >> i & 1) && lane_value<int32_t>(w, i) != 0) << i;
  return result;
}
}  // namespace usim

template <class T> inline T asc_shfl(T v, int32_t source, int32_t width = 32, USIM_CALL_SITE) {
  const uint32_t base = uint32_t(laneid()) & ~uint32_t(width - 1);
  return ::usim::lane_value<T>(::usim::meet(&v, sizeof(T), USIM_SITE), base + (uint32_t(source) & uint32_t(width - 1)));
}
template <class T> inline T asc_shfl_up(T v, uint32_t delta, int32_t width = 32, USIM_CALL_SITE) {
  const uint32_t lane = uint32_t(laneid()), base = lane & ~uint32_t(width - 1);
  const ::usim::WarpValues& w = ::usim::meet(&v, sizeof(T), USIM_SITE);
  return lane - base >= delta ? ::usim::lane_value<T>(w, lane - delta) : v;
}
template <class T> inline T asc_shfl_down(T v, uint32_t delta, int32_t width = 32, USIM_CALL_SITE) {
  const uint32_t lane = uint32_t(laneid()), base = lane & ~uint32_t(width - 1);
  const ::usim::WarpValues& w = ::usim::meet(&v, sizeof(T), USIM_SITE);
  return lane - base + delta < uint32_t(width) ? ::usim::lane_value<T>(w, lane + delta) : v;
}
template <class T> inline T asc_shfl_xor(T v, int32_t mask, int32_t width = 32, USIM_CALL_SITE) {
  const uint32_t lane = uint32_t(laneid()), source = lane ^ uint32_t(mask);
  const ::usim::WarpValues& w = ::usim::meet(&v, sizeof(T), USIM_SITE);
  const uint32_t end = (lane / uint32_t(width) + 1) * uint32_t(width);
  return source < end ? ::usim::lane_value<T>(w, source) : v;
}

inline uint32_t asc_ballot(int32_t predicate, USIM_CALL_SITE) { return ::usim::ballot(predicate, USIM_SITE); }
inline uint32_t asc_activemask(USIM_CALL_SITE) { return ::usim::meet(nullptr, 0, USIM_SITE).active; }
inline int32_t asc_any(int32_t predicate, USIM_CALL_SITE) { return ::usim::ballot(predicate, USIM_SITE) != 0; }
inline int32_t asc_all(int32_t predicate, USIM_CALL_SITE) { return ::usim::ballot(predicate == 0, USIM_SITE) == 0; }

namespace cooperative_groups {
struct coalesced_group {
  void sync(USIM_CALL_SITE) const { ::usim::meet(nullptr, 0xffu, USIM_SITE); }  // 0xff: orders memory as well
};
inline coalesced_group coalesced_threads() { return {}; }
}  // namespace cooperative_groups

namespace usim {
// Pairwise tree over lane numbers; inactive lanes contribute the identity.
template <class T, class F> inline T warp_reduce(T v, T identity, F combine, uint32_t line, const char* file) {
  const WarpValues& w = meet(&v, sizeof(T), line, file);
  T lanes[32];
  for (uint32_t i = 0; i < 32; ++i) lanes[i] = (w.active >> i & 1) ? lane_value<T>(w, i) : identity;
  for (uint32_t n = 16; n > 0; n /= 2)
    for (uint32_t i = 0; i < n; ++i) lanes[i] = combine(lanes[2 * i], lanes[2 * i + 1]);
  return lanes[0];
}
template <class T> inline T lowest() {
  if constexpr (T(0.5f) != T(0)) return T(-__builtin_huge_valf());
  else return std::is_signed_v<T> ? T(T(1) << (8 * sizeof(T) - 1)) : T(0);
}
template <class T> inline T highest() {
  if constexpr (T(0.5f) != T(0)) return T(__builtin_huge_valf());
  else return T(~lowest<T>());
}
}  // namespace usim

template <class T> inline T asc_reduce_add(T v, USIM_CALL_SITE) {
  return ::usim::warp_reduce(v, T(0), [](T a, T b) { return T(a + b); }, USIM_SITE);
}
template <class T> inline T asc_reduce_max(T v, USIM_CALL_SITE) {
  return ::usim::warp_reduce(v, ::usim::lowest<T>(), [](T a, T b) { return a > b ? a : b; }, USIM_SITE);
}
template <class T> inline T asc_reduce_min(T v, USIM_CALL_SITE) {
  return ::usim::warp_reduce(v, ::usim::highest<T>(), [](T a, T b) { return a < b ? a : b; }, USIM_SITE);
}
#undef USIM_CALL_SITE
#undef USIM_SITE
