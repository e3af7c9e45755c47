// Fills and permutations of registers and predicates (e.2.5) and the byte histograms of e.2.6.
#pragma once

#include "usim/simd_registers.h"

template <class T, class V> USIM_INLINE void asc_duplicate_scalar(::usim::Reg<T>& dst, V value, const vector_bool& m) {
  const T v = ::usim::lane_from<T>(value);
  for (int i = 0; i < ::usim::Reg<T>::lanes; ++i) dst.lane[i] = v;
  ::usim::zero_inactive(dst, m);
}
template <class T, class V> USIM_INLINE void asc_duplicate_scalar(::usim::Reg<T>& dst, V value) {
  const T v = ::usim::lane_from<T>(value);
  for (int i = 0; i < ::usim::Reg<T>::lanes; ++i) dst.lane[i] = v;
}
template <class T> USIM_INLINE void asc_duplicate(::usim::Reg<T>& dst, const ::usim::Reg<T>& src, const vector_bool& m) {
  asc_duplicate_scalar(dst, T(src.lane[0]), m);
}
template <class T> USIM_INLINE void asc_duplicate_highest(::usim::Reg<T>& dst, const ::usim::Reg<T>& src, const vector_bool& m) {
  asc_duplicate_scalar(dst, T(src.lane[::usim::Reg<T>::lanes - 1]), m);
}
// Ascending from `index`; descending ends at `index` in the last lane, as documented.
template <class T, class V> USIM_INLINE void asc_arange(::usim::Reg<T>& dst, V index) {
  const T start = ::usim::lane_from<T>(index);
  for (int i = 0; i < ::usim::Reg<T>::lanes; ++i) dst.lane[i] = T(start + T(i));
}
template <class T, class V> USIM_INLINE void asc_arange_descend(::usim::Reg<T>& dst, V index) {
  const T last = ::usim::lane_from<T>(index);
  for (int i = 0; i < ::usim::Reg<T>::lanes; ++i) dst.lane[i] = T(last + T(::usim::Reg<T>::lanes - 1 - i));
}

template <class T, class I> USIM_INLINE void asc_gather(::usim::Reg<T>& dst, const ::usim::Reg<T>& src, const ::usim::Reg<I>& index) {
  static_assert(sizeof(I) == sizeof(T), "asc_gather takes one index per lane");
  ::usim::Reg<T> r;
  for (int i = 0; i < ::usim::Reg<T>::lanes; ++i) r.lane[i] = src.lane[uint32_t(index.lane[i]) % ::usim::Reg<T>::lanes];
  dst = r;
}
template <class T> USIM_INLINE void asc_intlv(::usim::Reg<T>& d0, ::usim::Reg<T>& d1, const ::usim::Reg<T>& a, const ::usim::Reg<T>& b) {
  constexpr int n = ::usim::Reg<T>::lanes / 2;
  ::usim::Reg<T> low, high;
  for (int i = 0; i < n; ++i) {
    low.lane[2 * i] = a.lane[i], low.lane[2 * i + 1] = b.lane[i];
    high.lane[2 * i] = a.lane[n + i], high.lane[2 * i + 1] = b.lane[n + i];
  }
  d0 = low, d1 = high;
}
template <class T> USIM_INLINE void asc_deintlv(::usim::Reg<T>& d0, ::usim::Reg<T>& d1, const ::usim::Reg<T>& a, const ::usim::Reg<T>& b) {
  constexpr int n = ::usim::Reg<T>::lanes / 2;
  ::usim::Reg<T> even, odd;
  for (int i = 0; i < n; ++i) {
    even.lane[i] = a.lane[2 * i], odd.lane[i] = a.lane[2 * i + 1];
    even.lane[n + i] = b.lane[2 * i], odd.lane[n + i] = b.lane[2 * i + 1];
  }
  d0 = even, d1 = odd;
}

namespace usim {
template <class D, class S> USIM_INLINE void pack(Reg<D>& dst, const Reg<S>& src, int first) {
  static_assert(sizeof(S) == 2 * sizeof(D), "packing halves the lane width");
  Reg<D> r;
  for (int i = 0; i < Reg<D>::lanes; ++i) r.lane[i] = zero<D>();
  for (int i = 0; i < Reg<S>::lanes; ++i) __builtin_memcpy(&r.lane[first + i], &src.lane[i], sizeof(D));
  dst = r;
}
template <class D, class S> USIM_INLINE void unpack(Reg<D>& dst, const Reg<S>& src, int first) {
  static_assert(sizeof(D) == 2 * sizeof(S), "unpacking doubles the lane width");
  Reg<D> r;
  for (int i = 0; i < Reg<D>::lanes; ++i) r.lane[i] = D(src.lane[first + i]);
  dst = r;
}
USIM_INLINE void pack_bits(Predicate& dst, const Predicate& src, int first) {
  Predicate r{};
  for (int b = 0; b < 128; ++b) r.set(first + b, src.bit(2 * b));
  dst = r;
}
USIM_INLINE void unpack_bits(Predicate& dst, const Predicate& src, int first) {
  Predicate r{};
  for (int b = 0; b < 128; ++b) r.set(2 * b, src.bit(first + b));
  dst = r;
}
// Groups of `width` bits: z = a0 b0 a1 b1 ..., its lower and upper half.
template <int width> USIM_INLINE void interleave_bits(Predicate& p0, Predicate& p1, const Predicate& a, const Predicate& b) {
  Predicate z[2] = {{}, {}};
  for (int bit = 0; bit < 256; ++bit) {
    const int position = bit / width * 2 * width + bit % width;
    z[position / 256].set(position % 256, a.bit(bit));
    z[(position + width) / 256].set((position + width) % 256, b.bit(bit));
  }
  p0 = z[0], p1 = z[1];
}
template <int width> USIM_INLINE void deinterleave_bits(Predicate& p0, Predicate& p1, const Predicate& a, const Predicate& b) {
  const Predicate z[2] = {a, b};
  Predicate r0{}, r1{};
  for (int bit = 0; bit < 256; ++bit) {
    const int position = bit / width * 2 * width + bit % width;
    r0.set(bit, z[position / 256].bit(position % 256));
    r1.set(bit, z[(position + width) / 256].bit((position + width) % 256));
  }
  p0 = r0, p1 = r1;
}
}  // namespace usim

template <class D, class S> USIM_INLINE void asc_pack_to_low(::usim::Reg<D>& dst, const ::usim::Reg<S>& src) { ::usim::pack(dst, src, 0); }
template <class D, class S> USIM_INLINE void asc_pack_to_high(::usim::Reg<D>& dst, const ::usim::Reg<S>& src) { ::usim::pack(dst, src, ::usim::Reg<S>::lanes); }
template <class D, class S> USIM_INLINE void asc_unpack_lower(::usim::Reg<D>& dst, const ::usim::Reg<S>& src) { ::usim::unpack(dst, src, 0); }
template <class D, class S> USIM_INLINE void asc_unpack_upper(::usim::Reg<D>& dst, const ::usim::Reg<S>& src) { ::usim::unpack(dst, src, ::usim::Reg<D>::lanes); }
USIM_INLINE void asc_pack_to_low(vector_bool& dst, const vector_bool& src) { ::usim::pack_bits(dst, src, 0); }
USIM_INLINE void asc_pack_to_high(vector_bool& dst, const vector_bool& src) { ::usim::pack_bits(dst, src, 128); }
USIM_INLINE void asc_unpack_lower(vector_bool& dst, const vector_bool& src) { ::usim::unpack_bits(dst, src, 0); }
USIM_INLINE void asc_unpack_upper(vector_bool& dst, const vector_bool& src) { ::usim::unpack_bits(dst, src, 128); }
#define USIM_INTERLEAVE(WIDTH, BITS)                                                                                                     \
  USIM_INLINE void asc_intlv_##WIDTH(vector_bool& p0, vector_bool& p1, const vector_bool& a, const vector_bool& b) {                      \
    ::usim::interleave_bits<BITS>(p0, p1, a, b);                                                                                         \
  }                                                                                                                                      \
  USIM_INLINE void asc_deintlv_##WIDTH(vector_bool& p0, vector_bool& p1, const vector_bool& a, const vector_bool& b) {                    \
    ::usim::deinterleave_bits<BITS>(p0, p1, a, b);                                                                                       \
  }
USIM_INTERLEAVE(b8, 1) USIM_INTERLEAVE(b16, 2) USIM_INTERLEAVE(b32, 4)
#undef USIM_INTERLEAVE

// Active lanes move to the lowest lanes; unsqueeze counts the active lanes before each lane.
template <class T> USIM_INLINE void asc_squeeze(::usim::Reg<T>& dst, const ::usim::Reg<T>& src, const vector_bool& m) {
  ::usim::Reg<T> r;
  int n = 0;
  for (int i = 0; i < ::usim::Reg<T>::lanes; ++i)
    if (::usim::active<T>(m, i)) r.lane[n++] = src.lane[i];
  for (; n < ::usim::Reg<T>::lanes; ++n) r.lane[n] = ::usim::zero<T>();
  dst = r;
}
template <class T> USIM_INLINE void asc_unsqueeze(::usim::Reg<T>& dst, const vector_bool& m) {
  int n = 0;
  for (int i = 0; i < ::usim::Reg<T>::lanes; ++i) {
    dst.lane[i] = T(n);
    n += ::usim::active<T>(m, i);
  }
}

// dst[i] += number of active bytes equal to first + i, or at most first + i in the cumulative form.
namespace usim {
USIM_INLINE void histogram(vector_u16& dst, const vector_u8& src, const Predicate& m, int first, bool cumulative) {
  uint16_t counts[256] = {};
  for (int i = 0; i < 256; ++i) counts[src.lane[i]] = uint16_t(counts[src.lane[i]] + m.bit(i));
  if (cumulative)
    for (int i = 1; i < 256; ++i) counts[i] = uint16_t(counts[i] + counts[i - 1]);
  for (int i = 0; i < 128; ++i) dst.lane[i] = uint16_t(dst.lane[i] + counts[first + i]);
}
}  // namespace usim
USIM_INLINE void asc_frequency_histogram_bin0(vector_u16& dst, const vector_u8& src, const vector_bool& m) { ::usim::histogram(dst, src, m, 0, false); }
USIM_INLINE void asc_frequency_histogram_bin1(vector_u16& dst, const vector_u8& src, const vector_bool& m) { ::usim::histogram(dst, src, m, 128, false); }
USIM_INLINE void asc_cumulative_histogram_bin0(vector_u16& dst, const vector_u8& src, const vector_bool& m) { ::usim::histogram(dst, src, m, 0, true); }
USIM_INLINE void asc_cumulative_histogram_bin1(vector_u16& dst, const vector_u8& src, const vector_bool& m) { ::usim::histogram(dst, src, m, 128, true); }
