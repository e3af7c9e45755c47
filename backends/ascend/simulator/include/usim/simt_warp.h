// Barriers, warp functions and atomics of SIMT code (e.1.2 to e.1.4).
#pragma once

#include "usim/elements.h"

inline void asc_syncthreads() { ::usim::api->sync_threads(); }
inline void asc_threadfence() {}
inline int32_t laneid() { return int32_t(::usim::api->thread()->linear % 32); }

namespace usim {
template <class T> inline T lane_value(const WarpValues& w, uint32_t lane) {
  T v;
  memcpy(&v, w.value[lane], sizeof(T));
  return v;
}
}  // namespace usim

template <class T> inline T asc_shfl_xor(T v, int32_t mask, int32_t width = 32) {
  const uint32_t lane = uint32_t(laneid()), source = lane ^ uint32_t(mask);
  const ::usim::WarpValues& w = *::usim::api->warp_exchange(&v, sizeof(T));
  const uint32_t end = (lane / uint32_t(width) + 1) * uint32_t(width);
  return source < end ? ::usim::lane_value<T>(w, source) : v;
}

namespace usim {
// Pairwise tree over lane numbers; inactive lanes contribute the identity.
template <class T, class F> inline T warp_reduce(T v, T identity, F combine) {
  const WarpValues& w = *api->warp_exchange(&v, sizeof(T));
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

template <class T> inline T asc_reduce_add(T v) {
  return ::usim::warp_reduce(v, T(0), [](T a, T b) { return T(a + b); });
}
template <class T> inline T asc_reduce_max(T v) {
  return ::usim::warp_reduce(v, ::usim::lowest<T>(), [](T a, T b) { return a > b ? a : b; });
}
template <class T> inline T asc_reduce_min(T v) {
  return ::usim::warp_reduce(v, ::usim::highest<T>(), [](T a, T b) { return a < b ? a : b; });
}
