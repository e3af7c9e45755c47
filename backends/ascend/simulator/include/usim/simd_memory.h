// Loads, stores, gathers and scatters between UB and registers (e.2.3 to e.2.5).
#pragma once

#include "usim/simd_registers.h"

namespace usim {

// What an address register holds; TileLang uses it as an element offset.
struct AddressRegister {
  int64_t elements;
  constexpr operator int64_t() const { return elements; }
};

// In checked builds these stand out of line and uninstrumented: their own reads of the tables are nobody's business.
#ifdef USIM_CHECK
__attribute__((noinline, no_sanitize("thread"))) inline void report(const void* p, uint32_t bytes, int write) {
  hooks->transfer(p, bytes, write, __builtin_return_address(0));
}
__attribute__((noinline, no_sanitize("thread"))) inline bool is_aligned(const void* p, uint32_t alignment) {
  return (reinterpret_cast<uint64_t>(p) - reinterpret_cast<uint64_t>(api->core()->ub)) % alignment == 0;
}
#else
USIM_INLINE void report(const void*, uint32_t, int) {}
USIM_INLINE bool is_aligned(const void*, uint32_t) { return true; }
#endif
USIM_INLINE void require_aligned(const void* p, uint32_t alignment, const char* message) {
  if (!is_aligned(p, alignment)) fail("misaligned", message);
}
// Bulk transfers are reported once by `report`, so the copies themselves stay out of the instrumentation.
template <class T> __attribute__((noinline, no_sanitize("thread"))) Reg<T> copy_in(const void* p, uint32_t bytes) {
  Reg<T> r;
  __builtin_memcpy(&r, p, bytes);
  if (bytes < 256) __builtin_memset(reinterpret_cast<char*>(&r) + bytes, 0, 256 - bytes);
  return r;
}
template <class T> __attribute__((noinline, no_sanitize("thread"))) void copy_out(void* p, Reg<T> r, uint32_t from, uint32_t bytes) {
  __builtin_memcpy(p, reinterpret_cast<const char*>(&r) + from, bytes);
}
template <class T> USIM_INLINE Reg<T> load(const T* p, uint32_t bytes, uint32_t alignment, const char* message) {
  require_aligned(p, alignment, message);
  report(p, bytes, 0);
#ifdef USIM_CHECK
  return copy_in<T>(p, bytes);
#else
  Reg<T> r;
  __builtin_memcpy(&r, p, bytes);
  return r;
#endif
}
// Stores `bytes` of the register from byte `from` on.
template <class T> USIM_INLINE void store(void* p, const Reg<T>& r, uint32_t from, uint32_t bytes) {
  report(p, bytes, 1);
#ifdef USIM_CHECK
  copy_out<T>(p, r, from, bytes);
#else
  __builtin_memcpy(p, reinterpret_cast<const char*>(&r) + from, bytes);
#endif
}
// Active lanes of lanes [first, last) to consecutive elements at p, in runs.
template <class T> USIM_INLINE void store_lanes(T* p, const Reg<T>& r, const Predicate& m, int first, int last) {
  for (int i = first; i < last;) {
    if (!active<T>(m, i)) { ++i; continue; }
    int end = i + 1;
    while (end < last && active<T>(m, end)) ++end;
    store(p + (i - first), r, uint32_t(i) * sizeof(T), uint32_t(end - i) * sizeof(T));
    i = end;
  }
}

template <class T> USIM_INLINE Reg<T> load_brc_elem(const T* p) {
  require_aligned(p, sizeof(T), "asc_loadalign_brc_elem reads an address that is not a multiple of the element size");
  const T v = *p;
  Reg<T> r;
  for (int i = 0; i < Reg<T>::lanes; ++i) r.lane[i] = v;
  return r;
}
template <class T> USIM_INLINE Reg<T> load_upsample(const T* p) {
  const Reg<T> s = load(p, 128, 32, "asc_loadalign_upsample reads a UB address that is not a multiple of 32 bytes");
  Reg<T> r;
  for (int i = 0; i < Reg<T>::lanes; ++i) r.lane[i] = s.lane[i / 2];
  return r;
}
template <class T> USIM_INLINE void deinterleave(Reg<T>& even, Reg<T>& odd, const Reg<T>& a, const Reg<T>& b) {
  constexpr int n = Reg<T>::lanes / 2;
  Reg<T> e, o;
  for (int i = 0; i < n; ++i) {
    e.lane[i] = a.lane[2 * i], o.lane[i] = a.lane[2 * i + 1];
    e.lane[n + i] = b.lane[2 * i], o.lane[n + i] = b.lane[2 * i + 1];
  }
  even = e, odd = o;
}
template <class T> USIM_INLINE Reg<T> load_downsample(const T* p) {
  const char* message = "asc_loadalign_downsample reads a UB address that is not a multiple of 32 bytes";
  Reg<T> even, odd;
  deinterleave(even, odd, load(p, 256, 32, message), load(p + Reg<T>::lanes, 256, 32, message));
  return even;
}
template <class T> USIM_INLINE Reg<T> load_unpack(const T* p, int factor) {
  const Reg<T> s = load(p, 256 / uint32_t(factor), 32, "asc_loadalign_unpack reads a UB address that is not a multiple of 32 bytes");
  Reg<T> r;
  for (int i = 0; i < Reg<T>::lanes; ++i) r.lane[i] = i % factor == 0 ? s.lane[i / factor] : zero<T>();
  return r;
}
template <class T> USIM_INLINE Reg<T> load_brc_datablock(const T* p) {
  const Reg<T> s = load(p, 32, 32, "asc_loadalign_brc_datablock reads a UB address that is not a multiple of 32 bytes");
  constexpr int n = 32 / sizeof(T);
  Reg<T> r;
  for (int i = 0; i < Reg<T>::lanes; ++i) r.lane[i] = s.lane[i % n];
  return r;
}
template <class T> USIM_INLINE Reg<T> load_elem2datablock(const T* p) {
  const Reg<T> s = load(p, 8 * sizeof(T), sizeof(T) * 8 < 32 ? sizeof(T) * 8 : 32,
                        "asc_loadalign_brc_elem2datablock reads a UB address that is not aligned to its 8 elements");
  constexpr int n = 32 / sizeof(T);
  Reg<T> r;
  for (int i = 0; i < Reg<T>::lanes; ++i) r.lane[i] = s.lane[i / n];
  return r;
}

}  // namespace usim

#define USIM_LOAD(NAME, EXPRESSION)                                                                                    \
  template <class T, class P, class O> USIM_INLINE void NAME(::usim::Reg<T>& dst, P* src, O offset) {                  \
    const T* p = reinterpret_cast<const T*>(src) + int64_t(offset);                                                    \
    dst = ::usim::EXPRESSION;                                                                                          \
  }                                                                                                                    \
  template <class T, class P> USIM_INLINE void NAME##_postupdate(::usim::Reg<T>& dst, P*& src, int32_t offset) {       \
    const T* p = reinterpret_cast<const T*>(src);                                                                      \
    dst = ::usim::EXPRESSION;                                                                                          \
    src += offset;                                                                                                     \
  }
USIM_LOAD(asc_loadalign, load(p, 256, 32, "asc_loadalign reads a UB address that is not a multiple of 32 bytes"))
USIM_LOAD(asc_loadalign_brc_elem, load_brc_elem(p))
USIM_LOAD(asc_loadalign_upsample, load_upsample(p))
USIM_LOAD(asc_loadalign_downsample, load_downsample(p))
USIM_LOAD(asc_loadalign_unpack, load_unpack(p, 2))
USIM_LOAD(asc_loadalign_unpack4, load_unpack(p, 4))
USIM_LOAD(asc_loadalign_brc_datablock, load_brc_datablock(p))
USIM_LOAD(asc_loadalign_brc_elem2datablock, load_elem2datablock(p))
#undef USIM_LOAD

// The value is the sum of loop index times stride over the hardware loops around it, which only the vendor's compiler knows.
#define USIM_ADDRESS_REGISTER(width)                                                                                       \
  USIM_INLINE ::usim::AddressRegister asc_update_addr_reg_##width(int64_t) {                                               \
    ::usim::fail("unimplemented", "asc_update_addr_reg_" #width ": address registers are not simulated; put the offset into the address of S.vld2 instead of off="); \
    return {0};                                                                                                            \
  }
USIM_ADDRESS_REGISTER(b8)
USIM_ADDRESS_REGISTER(b16)
USIM_ADDRESS_REGISTER(b32)
#undef USIM_ADDRESS_REGISTER

template <class T, class P, class O> USIM_INLINE void asc_loadalign_deintlv(::usim::Reg<T>& d0, ::usim::Reg<T>& d1, P* src, O offset) {
  const T* p = reinterpret_cast<const T*>(src) + int64_t(offset);
  const char* message = "asc_loadalign_deintlv reads a UB address that is not a multiple of 32 bytes";
  ::usim::deinterleave(d0, d1, ::usim::load(p, 256, 32, message), ::usim::load(p + ::usim::Reg<T>::lanes, 256, 32, message));
}
template <class T, class P> USIM_INLINE void asc_loadalign_deintlv(::usim::Reg<T>& d0, ::usim::Reg<T>& d1, P* src) {
  asc_loadalign_deintlv(d0, d1, src, 0);
}

// ---- predicates in memory; offsets in bytes -------------------------------------------------------------------------
namespace usim {
template <int bytes> USIM_INLINE void load_bits(uint64_t* words, const uint32_t* src, int32_t offset) {
  const auto* p = reinterpret_cast<const uint32_t*>(reinterpret_cast<const uint8_t*>(src) + offset);
  for (int i = 0; i < bytes / 8; ++i) words[i] = p[2 * i] | uint64_t(p[2 * i + 1]) << 32;
}
}  // namespace usim
USIM_INLINE void asc_loadalign(vector_bool& dst, const uint32_t* src, int32_t offset) { ::usim::load_bits<32>(dst.word, src, offset); }
USIM_INLINE void asc_loadalign_upsample(vector_bool& dst, const uint32_t* src, int32_t offset) {
  uint64_t words[2];
  ::usim::load_bits<16>(words, src, offset);
  dst = {};
  for (int b = 0; b < 256; ++b) dst.set(b, words[b / 128] >> (b / 2 % 64) & 1);
}
USIM_INLINE void asc_loadalign_downsample(vector_bool& dst, const uint32_t* src, int32_t offset) {
  uint64_t words[8];
  ::usim::load_bits<64>(words, src, offset);
  dst = {};
  for (int b = 0; b < 256; ++b) dst.set(b, words[b / 32] >> (2 * b % 64) & 1);
}
USIM_INLINE void asc_storealign(uint32_t* base, const vector_bool& src, int32_t offset) {
  auto* p = reinterpret_cast<uint32_t*>(reinterpret_cast<uint8_t*>(base) + offset);
  for (int i = 0; i < 8; ++i) p[i] = uint32_t(src.word[i / 2] >> (32 * (i % 2)));
}
USIM_INLINE void asc_storealign_pack(uint32_t* base, const vector_bool& src, int32_t offset) {
  auto* p = reinterpret_cast<uint32_t*>(reinterpret_cast<uint8_t*>(base) + offset);
  for (int i = 0; i < 4; ++i) {
    uint32_t bits = 0;
    for (int b = 0; b < 32; ++b) bits |= uint32_t(src.bit(2 * (32 * i + b))) << b;
    p[i] = bits;
  }
}

// ---- stores ---------------------------------------------------------------------------------------------------------
template <class P, class T> USIM_INLINE void asc_storealign(P* base, const ::usim::Reg<T>& src, int32_t offset, const vector_bool& mask) {
  T* p = reinterpret_cast<T*>(base) + offset;
  ::usim::require_aligned(p, 32, "asc_storealign writes a UB address that is not a multiple of 32 bytes");
  if (::usim::all_lanes<sizeof(T)>(mask)) ::usim::store(p, src, 0, 256);
  else ::usim::store_lanes(p, src, mask, 0, ::usim::Reg<T>::lanes);
}
template <class P, class T> USIM_INLINE void asc_storealign_1st(P* base, const ::usim::Reg<T>& src, int32_t offset) {
  T* p = reinterpret_cast<T*>(base) + offset;
  ::usim::require_aligned(p, sizeof(T), "asc_storealign_1st writes a UB address that is not a multiple of the element size");
  ::usim::store(p, src, 0, sizeof(T));
}
namespace usim {
// Stores the low sizeof(D) bytes of every active lane of S next to each other.
template <class D, class S> USIM_INLINE void store_packed(void* base, const Reg<S>& src, int32_t offset, const Predicate& mask, const char* message) {
  D* p = static_cast<D*>(base) + offset;
  require_aligned(p, 32, message);
  Reg<D> packed;
  Predicate m{};
  for (int i = 0; i < Reg<S>::lanes; ++i) {
    __builtin_memcpy(&packed.lane[i], &src.lane[i], sizeof(D));
    m.set(i * int(sizeof(D)), active<S>(mask, i));
  }
  store_lanes(p, packed, m, 0, Reg<S>::lanes);
}
}  // namespace usim
USIM_INLINE void asc_storealign_pack(uint16_t* base, const vector_u16& src, int32_t offset, const vector_bool& mask) {
  ::usim::store_packed<uint8_t>(base, src, offset, mask, "asc_storealign_pack writes a UB address that is not a multiple of 32 bytes");
}
USIM_INLINE void asc_storealign_pack(uint32_t* base, const vector_u32& src, int32_t offset, const vector_bool& mask) {
  ::usim::store_packed<uint16_t>(base, src, offset, mask, "asc_storealign_pack writes a UB address that is not a multiple of 32 bytes");
}
template <class P, class T> USIM_INLINE void asc_storealign_pack_quarter(P* base, const ::usim::Reg<T>& src, int32_t offset, const vector_bool& mask) {
  static_assert(sizeof(T) == 4, "asc_storealign_pack_quarter takes 32-bit lanes");
  ::usim::store_packed<uint8_t>(base, src, offset, mask, "asc_storealign_pack_quarter writes a UB address that is not a multiple of 32 bytes");
}
template <class P, class T> USIM_INLINE void asc_storealign_intlv(P*, const ::usim::Reg<T>&, int32_t, const vector_bool&) {
  ::usim::fail("unimplemented", "asc_storealign_intlv: TileLang passes one register and a mask, which matches no documented form of the builtin");
}
// 32-byte block j goes to base + j * block_stride blocks.
template <class P, class T> USIM_INLINE void asc_storealign(P* base, const ::usim::Reg<T>& src, uint16_t block_stride, uint16_t, const vector_bool& mask) {
  ::usim::require_aligned(base, 32, "asc_storealign (strided) writes a UB address that is not a multiple of 32 bytes");
  constexpr int n = 32 / sizeof(T);
  for (int j = 0; j < 8; ++j)
    ::usim::store_lanes(reinterpret_cast<T*>(reinterpret_cast<uint8_t*>(base) + j * block_stride * 32), src, mask, j * n, (j + 1) * n);
}
template <class P, class T> USIM_INLINE void asc_storealign_postupdate(P*& base, const ::usim::Reg<T>& src, uint16_t block_stride, uint16_t repeat_stride, const vector_bool& mask) {
  asc_storealign(base, src, block_stride, repeat_stride, mask);
  base = reinterpret_cast<P*>(reinterpret_cast<uint8_t*>(base) + repeat_stride * 32);
}

// ---- gathers: every element is an access of its own -----------------------------------------------------------------
template <class D, class P, class I> USIM_INLINE void asc_gather(::usim::Reg<D>& dst, P* base, const ::usim::Reg<I>& index, const vector_bool& mask) {
  static_assert(sizeof(I) == sizeof(D), "asc_gather takes one index per result lane");
  ::usim::Reg<D> r;
  for (int i = 0; i < ::usim::Reg<D>::lanes; ++i) {
    r.lane[i] = ::usim::zero<D>();
    if (!::usim::active<D>(mask, i)) continue;
    const P* p = base + std::make_unsigned_t<I>(index.lane[i]);
    if constexpr (sizeof(P) < sizeof(D)) r.lane[i] = D(*reinterpret_cast<const uint8_t*>(p));  // zero-extended, also int8
    else r.lane[i] = *reinterpret_cast<const D*>(p);
  }
  dst = r;
}
template <class T, class P> USIM_INLINE void asc_gather_datablock(::usim::Reg<T>& dst, P* base, const vector_u32& index, const vector_bool& mask) {
  constexpr int n = 32 / sizeof(T);
  ::usim::Reg<T> r;
  for (int j = 0; j < 8; ++j) {
    bool any = false;
    for (int i = j * n; i < (j + 1) * n; ++i) r.lane[i] = ::usim::zero<T>(), any = any || ::usim::active<T>(mask, i);
    if (!any) continue;
    const auto* p = reinterpret_cast<const T*>(reinterpret_cast<const uint8_t*>(base) + index.lane[j]);
    const ::usim::Reg<T> block = ::usim::load(p, 32, 32, "asc_gather_datablock reads a UB address that is not a multiple of 32 bytes");
    for (int i = 0; i < n; ++i)
      if (::usim::active<T>(mask, j * n + i)) r.lane[j * n + i] = block.lane[i];
  }
  dst = r;
}
template <class T, class P> USIM_INLINE void asc_gather_datablock(::usim::Reg<T>& dst, P* base, const vector_u32& index) {
  asc_gather_datablock(dst, base, index, ::usim::pattern_mask<1>(PAT_ALL));
}
template <class P, class T, class I> USIM_INLINE void asc_scatter(P* base, const ::usim::Reg<T>& src, const ::usim::Reg<I>& index, const vector_bool& mask) {
  constexpr int step = sizeof(T) == 1 ? 2 : 1;  // of 8-bit data only the even lanes are stored
  static_assert(sizeof(I) == sizeof(T) * step, "asc_scatter takes one index per stored lane");
  for (int i = 0; i < ::usim::Reg<I>::lanes; ++i)
    if (::usim::active<T>(mask, i * step)) reinterpret_cast<T*>(base)[std::make_unsigned_t<I>(index.lane[i])] = src.lane[i * step];
}
