// Cube and copy builtins: each packs its arguments and hands them to the core, which queues them on their pipe.
#pragma once

#include "usim/elements.h"

enum class asc_load_l2_cache_mode : int {};
enum class asc_store_l2_cache_mode : int {};
enum class asc_dual_dst_mode : int {};
enum class asc_unit_flag_mode : int {};
enum class asc_quant_mode : int {};
enum class asc_relu_pre_mode : int {};
enum class asc_hf32_round_mode : int { NEAREST_AWAY = 0, NEAREST_EVEN = 1, NEAREST_ZERO = 0 };

namespace usim {
template <class A> __attribute__((always_inline)) inline void issue(Op op, const A& args) { api->dispatch(op, &args); }
inline void set(Register r, uint64_t value) { api->set_register(r, value); }
template <class T> constexpr uint8_t size_of() {
  if constexpr (std::is_void_v<T>) return 1; else return sizeof(T);
}
constexpr uint64_t pack16(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
  return (a & 0xffff) | (b & 0xffff) << 16 | (c & 0xffff) << 32 | (d & 0xffff) << 48;
}
}  // namespace usim

// ---- GM to L1 (c.1) -------------------------------------------------------------------------------------------------
inline void asc_set_gm2l1_nz_para(uint64_t matrices, uint64_t n_stride, uint64_t c0_stride, uint64_t matrix_stride) {
  ::usim::set(::usim::Register::gm2l1_nz, ::usim::pack16(matrices, n_stride, c0_stride, matrix_stride));
}
#define USIM_GM_TO_L1(NAME, COLUMN_MAJOR)                                                                              \
  template <class D, class S>                                                                                          \
  __attribute__((always_inline)) inline void NAME(D* dst, S* src, uint64_t row_stride, asc_load_l2_cache_mode, int64_t n,  \
                                                  int64_t d, uint64_t matrix_stride, int small_c0) {                   \
    static_assert(sizeof(S) == sizeof(D));                                                                             \
    ::usim::issue(::usim::Op::NAME, ::usim::GmToL1{::usim::offset_of(dst), src, row_stride, matrix_stride,             \
                  uint32_t(uint16_t(n)), uint32_t(d), sizeof(D), COLUMN_MAJOR, uint8_t(small_c0)});                    \
  }
USIM_GM_TO_L1(asc_copy_gm2l1_nd2nz, 0)
USIM_GM_TO_L1(asc_copy_gm2l1_dn2nz, 1)
#undef USIM_GM_TO_L1

struct asc_fill_l1_config { uint64_t repeat, blk_num, dst_gap; };
template <class D> __attribute__((always_inline)) inline void asc_fill_l1(D* dst, uint32_t value, asc_fill_l1_config c) {
  ::usim::issue(::usim::Op::asc_fill_l1, ::usim::FillL1{::usim::offset_of(dst), value, sizeof(D), c.repeat, c.blk_num, c.dst_gap});
}

// ---- L1 to L0 (c.2, c.3, c.4) ---------------------------------------------------------------------------------------
#define USIM_L1_TO_L0(NAME, TO_B, TRANSPOSE)                                                                           \
  template <class D, class S>                                                                                          \
  __attribute__((always_inline)) inline void NAME(D* dst, S* src, uint32_t m_start, uint32_t k_start, uint32_t m_step,     \
                                                  uint32_t k_step, uint32_t src_stride, uint32_t dst_stride) {         \
    ::usim::issue(::usim::Op::NAME, ::usim::L1ToL0{::usim::offset_of(dst), ::usim::offset_of(src), m_start, k_start,   \
                  m_step, k_step, src_stride, dst_stride, ::usim::type_of<D>, TO_B, TRANSPOSE});                       \
  }
USIM_L1_TO_L0(asc_copy_l12l0a, 0, 0)
USIM_L1_TO_L0(asc_copy_l12l0b, 1, 0)
USIM_L1_TO_L0(asc_copy_l12l0a_transpose, 0, 1)
USIM_L1_TO_L0(asc_copy_l12l0b_transpose, 1, 1)
#undef USIM_L1_TO_L0

#define USIM_L1_TO_SLOTS(NAME, TO_B)                                                                                   \
  template <class S>                                                                                                   \
  __attribute__((always_inline)) inline void NAME(uint64_t slot, S* src, uint32_t x_start, uint32_t y_start,               \
                                                  uint32_t x_step, uint32_t y_step, uint32_t src_stride,               \
                                                  uint32_t dst_stride) {                                               \
    ::usim::issue(::usim::Op::NAME, ::usim::L1ToSlots{slot, ::usim::offset_of(src), x_start, y_start, x_step, y_step,  \
                  src_stride, dst_stride, TO_B});                                                                      \
  }
USIM_L1_TO_SLOTS(asc_copy_l12l0a_mx, 0)
USIM_L1_TO_SLOTS(asc_copy_l12l0b_mx, 1)
#undef USIM_L1_TO_SLOTS

// ---- matrix multiply (c.5) ------------------------------------------------------------------------------------------
#define USIM_MMAD(NAME, MX)                                                                                            \
  template <class C, class A, class B>                                                                                 \
  __attribute__((always_inline)) inline void NAME(C* c, A* a, B* b, uint32_t m, uint32_t k, uint32_t n, uint32_t unit_flag, \
                                                  bool disable_gemv, bool bias, bool init_zero) {                      \
    ::usim::issue(::usim::Op::NAME, ::usim::Mmad{::usim::offset_of(c), ::usim::offset_of(a), ::usim::offset_of(b), m, k, n, \
                  uint8_t(unit_flag), disable_gemv, bias, init_zero, MX, ::usim::type_of<A>, ::usim::type_of<B>,       \
                  ::usim::type_of<C>});                                                                                \
  }
USIM_MMAD(asc_mmad, 0)
USIM_MMAD(asc_mmad_mx, 1)
#undef USIM_MMAD

inline void asc_enable_hf32() { ::usim::set(::usim::Register::hf32, 1); }
inline void asc_disable_hf32() { ::usim::set(::usim::Register::hf32, 0); }
inline void asc_set_hf32_round_mode(asc_hf32_round_mode mode) { ::usim::set(::usim::Register::hf32_round, uint64_t(mode)); }
inline void asc_set_mmad_direction_m() { ::usim::set(::usim::Register::mmad_direction, 0); }
inline void asc_set_mmad_direction_n() { ::usim::set(::usim::Register::mmad_direction, 1); }

// ---- fixpipe (c.6) --------------------------------------------------------------------------------------------------
inline void asc_set_l0c_copy_nz_para(uint64_t matrices, uint64_t src_stride, uint64_t dst_stride) {
  ::usim::set(::usim::Register::l0c_nz, ::usim::pack16(matrices, src_stride, dst_stride, 0));
}
template <class D, class S>
__attribute__((always_inline)) inline void asc_copy_l0c2gm(D* dst, S* src, uint32_t n, uint32_t m, uint32_t dst_stride,
    uint32_t src_stride, asc_store_l2_cache_mode, asc_unit_flag_mode unit_flag, asc_quant_mode quant, asc_relu_pre_mode relu,
    bool channel_split, bool nz2nd, bool nz2dn, bool clip) {
  ::usim::issue(::usim::Op::asc_copy_l0c2gm, ::usim::Fixpipe{::usim::offset_of(src), ::usim::offset_of(dst), n, m, dst_stride,
      src_stride, 0, 0, int(unit_flag), int(quant), int(relu), channel_split, nz2nd, nz2dn, clip, 0, ::usim::type_of<S>, ::usim::type_of<D>});
}
template <class D, class S>
__attribute__((always_inline)) inline void asc_copy_l0c2ub(D* dst, S* src, uint32_t n, uint32_t m, uint32_t dst_stride,
    uint32_t src_stride, uint32_t sub_block, asc_dual_dst_mode dual, asc_unit_flag_mode unit_flag, asc_quant_mode quant,
    asc_relu_pre_mode relu, bool channel_split, bool nz2nd, bool nz2dn, bool clip) {
  ::usim::issue(::usim::Op::asc_copy_l0c2ub, ::usim::Fixpipe{::usim::offset_of(src), ::usim::ub_offset(dst), n, m, dst_stride,
      src_stride, uint8_t(sub_block), uint8_t(dual), int(unit_flag), int(quant), int(relu), channel_split, nz2nd, nz2dn, clip, 1,
      ::usim::type_of<S>, ::usim::type_of<D>});
}

// ---- UB (c.7) -------------------------------------------------------------------------------------------------------
template <class D, class S>
__attribute__((always_inline)) inline void asc_copy_gm2ub_align(D* dst, S* src, uint32_t bursts, uint32_t length, uint32_t left,
    uint32_t right, bool const_pad, asc_load_l2_cache_mode, uint64_t src_stride, uint32_t dst_stride) {
  ::usim::issue(::usim::Op::asc_copy_gm2ub_align, ::usim::GmToUb{::usim::ub_offset(dst), src, bursts, length, left, right,
      const_pad, ::usim::size_of<D>(), src_stride, dst_stride});
}
inline void asc_set_copy_pad_val(uint64_t bits) { ::usim::set(::usim::Register::pad_value, bits); }
template <class D, class S>
__attribute__((always_inline)) inline void asc_copy_ub2gm_align(D* dst, S* src, uint32_t bursts, uint32_t length,
    asc_store_l2_cache_mode, uint64_t dst_stride, uint32_t src_stride) {
  ::usim::issue(::usim::Op::asc_copy_ub2gm_align, ::usim::UbToGm{dst, ::usim::ub_offset(src), bursts, length, dst_stride, src_stride});
}
__attribute__((always_inline)) inline void asc_copy_ub2l1(void* dst, void* src, uint32_t bursts, uint32_t blocks, uint32_t src_gap,
    uint32_t dst_gap) {
  ::usim::issue(::usim::Op::asc_copy_ub2l1, ::usim::UbToL1{::usim::offset_of(dst), ::usim::ub_offset(src), bursts, blocks, src_gap, dst_gap});
}

// ---- atomics on stores (c.9): value = dtype code of CTRL[8:6] | operation << 8 (0 add, 1 max, 2 min) -----------------
#define USIM_ATOMIC(DTYPE, CODE)                                                                  \
  inline void asc_set_atomic_add_##DTYPE() { ::usim::set(::usim::Register::atomic, CODE); }       \
  inline void asc_set_atomic_max_##DTYPE() { ::usim::set(::usim::Register::atomic, CODE | 1 << 8); } \
  inline void asc_set_atomic_min_##DTYPE() { ::usim::set(::usim::Register::atomic, CODE | 2 << 8); }
USIM_ATOMIC(float, 1)
USIM_ATOMIC(float16, 2)
USIM_ATOMIC(int16, 3)
USIM_ATOMIC(int32, 4)
USIM_ATOMIC(int8, 5)
USIM_ATOMIC(bfloat, 6)
#undef USIM_ATOMIC
inline void asc_set_atomic_none() { ::usim::set(::usim::Register::atomic, 0); }
