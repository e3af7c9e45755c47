// Reductions across the lanes of a register (e.2.7). Sums use a pairwise tree over lane numbers with +0 for inactive
// lanes; every level rounds to the result type.
#pragma once

#include "usim/simd_arithmetic.h"

namespace usim {

template <class T> USIM_INLINE T smallest() {
  if constexpr (is_floating<T>) return T(-__builtin_inff());
  else return std::is_signed_v<T> ? T(Bits<T>(1) << (8 * sizeof(T) - 1)) : T(0);
}
template <class T> USIM_INLINE T largest() {
  if constexpr (is_floating<T>) return T(__builtin_inff());
  else return T(~smallest<T>());
}

template <class D, int count, class T> USIM_INLINE D tree_sum(const Reg<T>& src, const Predicate& m, int first) {
  D level[count];
  for (int i = 0; i < count; ++i) level[i] = active<T>(m, first + i) ? D(src.lane[first + i]) : D(0);
  for (int n = count / 2; n > 0; n /= 2)
    for (int i = 0; i < n; ++i) level[i] = lane_add(level[2 * i], level[2 * i + 1]);
  return level[0];
}

template <class T> struct Extreme { T value; int index; };
// The first extreme among the active lanes [first, first + count); a NaN beats everything.
template <bool maximum, class T> USIM_INLINE Extreme<T> extreme(const Reg<T>& src, const Predicate& m, int first, int count) {
  Extreme<T> e{maximum ? smallest<T>() : largest<T>(), 0};
  bool found = false;
  for (int i = 0; i < count; ++i) {
    const T v = src.lane[first + i];
    if (!active<T>(m, first + i) || (found && e.value != e.value)) continue;
    if (!found || v != v || (maximum ? v > e.value : v < e.value)) e = {v, i}, found = true;
  }
  return e;
}

}  // namespace usim

template <class D, class T> USIM_INLINE void asc_reduce_sum(::usim::Reg<D>& dst, const ::usim::Reg<T>& src, const vector_bool& m) {
  ::usim::Reg<D> r;
  for (int i = 0; i < ::usim::Reg<D>::lanes; ++i) r.lane[i] = D(0);
  r.lane[0] = ::usim::tree_sum<D, ::usim::Reg<T>::lanes>(src, m, 0);
  dst = r;
}
template <class D, class T> USIM_INLINE void asc_reduce_sum_datablock(::usim::Reg<D>& dst, const ::usim::Reg<T>& src, const vector_bool& m) {
  constexpr int n = 32 / sizeof(T);
  ::usim::Reg<D> r;
  for (int i = 0; i < ::usim::Reg<D>::lanes; ++i) r.lane[i] = D(0);
  for (int j = 0; j < 8; ++j) r.lane[j] = ::usim::tree_sum<D, n>(src, m, j * n);
  dst = r;
}
template <class T> USIM_INLINE void asc_pair_reduce_sum(::usim::Reg<T>& dst, const ::usim::Reg<T>& src, const vector_bool& m) {
  ::usim::Reg<T> r;
  for (int i = 0; i < ::usim::Reg<T>::lanes; ++i) r.lane[i] = i < ::usim::Reg<T>::lanes / 2 ? ::usim::tree_sum<T, 2>(src, m, 2 * i) : T(0);
  dst = r;
}
#define USIM_EXTREME(NAME, MAXIMUM)                                                                                          \
  template <class T> USIM_INLINE void NAME(::usim::Reg<T>& dst, const ::usim::Reg<T>& src, const vector_bool& m) {           \
    const auto e = ::usim::extreme<MAXIMUM>(src, m, 0, ::usim::Reg<T>::lanes);                                               \
    ::usim::Reg<T> r;                                                                                                        \
    for (int i = 0; i < ::usim::Reg<T>::lanes; ++i) r.lane[i] = T(0);                                                        \
    r.lane[0] = e.value;                                                                                                     \
    r.lane[1] = __builtin_bit_cast(T, ::usim::Bits<T>(e.index));                                                             \
    dst = r;                                                                                                                 \
  }                                                                                                                          \
  template <class T> USIM_INLINE void NAME##_datablock(::usim::Reg<T>& dst, const ::usim::Reg<T>& src, const vector_bool& m) { \
    constexpr int n = 32 / sizeof(T);                                                                                        \
    ::usim::Reg<T> r;                                                                                                        \
    for (int i = 0; i < ::usim::Reg<T>::lanes; ++i) r.lane[i] = T(0);                                                        \
    for (int j = 0; j < 8; ++j) r.lane[j] = ::usim::extreme<MAXIMUM>(src, m, j * n, n).value;                                \
    dst = r;                                                                                                                 \
  }
USIM_EXTREME(asc_reduce_max, true)
USIM_EXTREME(asc_reduce_min, false)
#undef USIM_EXTREME
