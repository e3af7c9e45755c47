// Qualifiers, builtin variables and the call boundary every kernel translation unit sees. No instruction lives here.
#pragma once

#include "usim/core_api.h"

// Address spaces are plain byte offsets (L1, L0, L0C) or host pointers (UB, GM): the qualifiers say nothing to g++.
// Inlined always, so that a call inside a TileLang template resolves to the line of the kernel that used it.
#define __aicore__ __attribute__((always_inline))
#define __gm__
#define __cbuf__
#define __ca__
#define __cb__
#define __cc__
#define __ubuf__
#define __biasbuf__
#define __fbuf__
#define __global__
#define __cube__
#define __vector__
#define __mix__(cubes, vectors)
#define __simd_vf__
#define __simd_callee__
#define __simt_vf__
#define __simt_callee__
#define __launch_bounds__(threads)
#define __SIMT_DEVICE_FUNCTIONS_DECL__
#define __grid_constant__
#define __NPU_ARCH__ 3510

namespace AscendC {}

namespace usim {
// Bound once by usim_bind() right after the kernel is loaded.
__attribute__((visibility("hidden"))) inline const Api* api = nullptr;
__attribute__((visibility("hidden"))) inline const AccessHooks* hooks = nullptr;
inline const CoreView& core() { return *api->core(); }
inline uint8_t* ub_base() { return core().ub; }
template <class P> inline uint64_t offset_of(P* pointer) { return reinterpret_cast<uint64_t>(pointer); }
template <class P> inline uint64_t ub_offset(P* pointer) {
  return static_cast<uint64_t>(reinterpret_cast<const uint8_t*>(pointer) - core().ub);
}
[[noreturn]] __attribute__((always_inline)) inline void fail(const char* kind, const char* message) { api->fail(kind, message); }
struct BlockIndex { int32_t x, y = 0, z = 0; };
inline BlockIndex block_index() { return {core().block}; }
inline BlockIndex grid_dim() { return {core().grid, 1, 1}; }
}  // namespace usim

#define ASC_IS_AIC (::usim::core().is_cube != 0)
#define ASC_IS_AIV (::usim::core().is_cube == 0)
#define block_idx (::usim::core().block)
#define blockIdx (::usim::block_index())
#define gridDim (::usim::grid_dim())
#define threadIdx (::usim::api->thread()->index)
#define blockDim (::usim::api->thread()->dim)
#define warpSize 32

#undef assert
#define assert(condition) \
  (static_cast<bool>(condition) ? void(0) : ::usim::fail("assert", "device assertion failed: " #condition))
