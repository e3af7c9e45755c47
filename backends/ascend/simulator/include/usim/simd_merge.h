// The forms with an explicit mode that TileLang emits in the global namespace (end of e.2.6): inactive lanes keep the
// destination when merging and become 0 when zeroing; merging reductions write only their result lanes.
#pragma once

#include "usim/simd_arithmetic.h"
#include "usim/simd_permute.h"
#include "usim/simd_reduce.h"

namespace usim {
template <class T, class Mode> USIM_INLINE void finish(Reg<T>& dst, const Reg<T>& result, const Predicate& m, Mode mode) {
  if constexpr (mode == MODE_MERGING) merge(dst, result, m);
  else dst = result;
}
}  // namespace usim

#define USIM_MODE_BINARY(NAME, BUILTIN)                                                                                              \
  template <class T, class Other, class Mode> USIM_INLINE void NAME(::usim::Reg<T>& dst, const ::usim::Reg<T>& a, const Other& b,     \
                                                                    const vector_bool& m, Mode mode) {                               \
    ::usim::Reg<T> r;                                                                                                                \
    BUILTIN(r, a, b, m);                                                                                                             \
    ::usim::finish(dst, r, m, mode);                                                                                                 \
  }
#define USIM_MODE_UNARY(NAME, BUILTIN)                                                                                               \
  template <class T, class Mode> USIM_INLINE void NAME(::usim::Reg<T>& dst, const ::usim::Reg<T>& a, const vector_bool& m, Mode mode) { \
    ::usim::Reg<T> r;                                                                                                                \
    BUILTIN(r, a, m);                                                                                                                \
    ::usim::finish(dst, r, m, mode);                                                                                                 \
  }
USIM_MODE_BINARY(vadd, asc_add) USIM_MODE_BINARY(vsub, asc_sub) USIM_MODE_BINARY(vmul, asc_mul) USIM_MODE_BINARY(vdiv, asc_div)
USIM_MODE_BINARY(vmax, asc_max) USIM_MODE_BINARY(vmin, asc_min) USIM_MODE_BINARY(vand, asc_and) USIM_MODE_BINARY(vor, asc_or)
USIM_MODE_BINARY(vxor, asc_xor) USIM_MODE_BINARY(vshl, asc_shiftleft) USIM_MODE_BINARY(vshr, asc_shiftright)
USIM_MODE_BINARY(vabsdif, asc_abs_sub) USIM_MODE_BINARY(vadds, asc_add_scalar) USIM_MODE_BINARY(vmuls, asc_mul_scalar)
USIM_MODE_BINARY(vmaxs, asc_max_scalar) USIM_MODE_BINARY(vmins, asc_min_scalar) USIM_MODE_BINARY(vshls, asc_shiftleft_scalar)
USIM_MODE_BINARY(vshrs, asc_shiftright_scalar) USIM_MODE_BINARY(vlrelu, asc_leakyrelu) USIM_MODE_BINARY(vprelu, asc_prelu)
USIM_MODE_BINARY(vexpdif, asc_exp_sub)
USIM_MODE_UNARY(vnot, asc_not) USIM_MODE_UNARY(vabs, asc_abs) USIM_MODE_UNARY(vneg, asc_neg) USIM_MODE_UNARY(vrelu, asc_relu)
USIM_MODE_UNARY(vexp, asc_exp) USIM_MODE_UNARY(vln, asc_ln) USIM_MODE_UNARY(vsqrt, asc_sqrt)
#undef USIM_MODE_BINARY
#undef USIM_MODE_UNARY

// dst = dst + a * b, dst = dst * a + b, dst = a * scalar + dst: one rounding each.
template <class T, class Mode> USIM_INLINE void vmula(::usim::Reg<T>& dst, const ::usim::Reg<T>& a, const ::usim::Reg<T>& b, const vector_bool& m, Mode mode) {
  ::usim::Reg<T> r;
  for (int i = 0; i < ::usim::Reg<T>::lanes; ++i) r.lane[i] = ::usim::lane_fma(a.lane[i], b.lane[i], dst.lane[i]);
  ::usim::zero_inactive(r, m);
  ::usim::finish(dst, r, m, mode);
}
template <class T, class Mode> USIM_INLINE void vmadd(::usim::Reg<T>& dst, const ::usim::Reg<T>& a, const ::usim::Reg<T>& b, const vector_bool& m, Mode mode) {
  ::usim::Reg<T> r = dst;
  asc_madd(r, a, b, m);
  ::usim::finish(dst, r, m, mode);
}
template <class T, class V, class Mode> USIM_INLINE void vaxpy(::usim::Reg<T>& dst, const ::usim::Reg<T>& a, V scalar, const vector_bool& m, Mode mode) {
  ::usim::Reg<T> r = dst;
  asc_axpy(r, a, scalar, m);
  ::usim::finish(dst, r, m, mode);
}

template <class D, class T, class Mode> USIM_INLINE void vcadd(::usim::Reg<D>& dst, const ::usim::Reg<T>& src, const vector_bool& m, Mode mode) {
  ::usim::Reg<D> r;
  asc_reduce_sum(r, src, m);
  if constexpr (mode == MODE_MERGING) dst.lane[0] = r.lane[0];
  else dst = r;
}
#define USIM_MODE_EXTREME(NAME, BUILTIN)                                                                                           \
  template <class T, class Mode> USIM_INLINE void NAME(::usim::Reg<T>& dst, const ::usim::Reg<T>& src, const vector_bool& m, Mode mode) { \
    ::usim::Reg<T> r;                                                                                                              \
    BUILTIN(r, src, m);                                                                                                            \
    if constexpr (mode == MODE_MERGING) dst.lane[0] = r.lane[0], dst.lane[1] = r.lane[1];                                          \
    else dst = r;                                                                                                                  \
  }
USIM_MODE_EXTREME(vcmax, asc_reduce_max) USIM_MODE_EXTREME(vcmin, asc_reduce_min)
#undef USIM_MODE_EXTREME
// Printed by TileLang although the vendor's compiler rejects a merging mode: the eight (or half the) result lanes.
#define USIM_MODE_PARTIAL(NAME, BUILTIN, RESULTS)                                                                                  \
  template <class T, class Mode> USIM_INLINE void NAME(::usim::Reg<T>& dst, const ::usim::Reg<T>& src, const vector_bool& m, Mode mode) { \
    ::usim::Reg<T> r;                                                                                                              \
    BUILTIN(r, src, m);                                                                                                            \
    for (int i = 0; i < ::usim::Reg<T>::lanes; ++i)                                                                                \
      if (i < (RESULTS) || !(mode == MODE_MERGING)) dst.lane[i] = r.lane[i];                                                       \
  }
USIM_MODE_PARTIAL(vcgadd, asc_reduce_sum_datablock, 8) USIM_MODE_PARTIAL(vcgmax, asc_reduce_max_datablock, 8)
USIM_MODE_PARTIAL(vcgmin, asc_reduce_min_datablock, 8) USIM_MODE_PARTIAL(vcpadd, asc_pair_reduce_sum, ::usim::Reg<T>::lanes / 2)
#undef USIM_MODE_PARTIAL

template <class T, class V, class Mode> USIM_INLINE void vdup(::usim::Reg<T>& dst, V value, const vector_bool& m, Mode mode) {
  ::usim::Reg<T> r;
  asc_duplicate_scalar(r, value, m);
  ::usim::finish(dst, r, m, mode);
}
template <class T, class Position, class Mode>
USIM_INLINE void vdup(::usim::Reg<T>& dst, const ::usim::Reg<T>& src, const vector_bool& m, Position position, Mode mode) {
  ::usim::Reg<T> r;
  if constexpr (position == POS_LOWEST) asc_duplicate(r, src, m);
  else asc_duplicate_highest(r, src, m);
  ::usim::finish(dst, r, m, mode);
}
