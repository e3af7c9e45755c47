// asc_vf_call (e.1.1): one call of a SIMT function for every thread. The rewriter gives each SIMT function a leading
// ThreadIndex parameter and names, per call, whether threads need stacks of their own (barriers, warp functions).
#pragma once

#include "usim/device.h"

namespace cce {
struct dim3 {
  uint32_t x = 1, y = 1, z = 1;
  constexpr dim3(uint32_t x_ = 1, uint32_t y_ = 1, uint32_t z_ = 1) : x(x_), y(y_), z(z_) {}
};
}  // namespace cce

namespace usim {
#ifdef USIM_CHECK
// Uninstrumented, so that reading the table is not reported once per thread.
__attribute__((noinline, no_sanitize("thread"))) inline void enter_thread(uint32_t x, uint32_t y, uint32_t z) { api->next_thread(x, y, z); }
#endif

template <class F> struct SimtClosure {
  F function;
  uint32_t dx, dy, dz;
  // In the plain form one call runs every thread, so that the compiler can inline and vectorise the loop.
  static void run_all(const void* self, uint32_t, uint32_t, uint32_t) {
    const SimtClosure c = *static_cast<const SimtClosure*>(self);
    for (uint32_t z = 0; z < c.dz; ++z)
      for (uint32_t y = 0; y < c.dy; ++y)
        for (uint32_t x = 0; x < c.dx; ++x) {
#ifdef USIM_CHECK
          enter_thread(x, y, z);
#endif
          c.function(ThreadIndex{x, y, z});
        }
  }
  static void run_one(const void* self, uint32_t x, uint32_t y, uint32_t z) {
    const SimtClosure c = *static_cast<const SimtClosure*>(self);
    c.function(ThreadIndex{x, y, z});
  }
};

// `lockstep` is 1 when the text of the function, or of a template it calls, contains a barrier or warp function.
template <auto Function, int lockstep, class... A>
__attribute__((always_inline)) inline void vf_call(const char* name, cce::dim3 d, A... args) {
  auto bound = [=](ThreadIndex t) { Function(t, args...); };
  SimtClosure<decltype(bound)> closure{bound, d.x, d.y, d.z};
  using C = decltype(closure);
  VectorCall call{lockstep ? &C::run_one : &C::run_all, &closure, sizeof(closure), d.x, d.y, d.z, 1, lockstep, name};
  api->vector_call(&call);
}

// A SIMD function runs as one instruction of the vector pipe.
template <class F> __attribute__((always_inline)) inline void simd_call(const char* name, F function) {
  struct Run {
    static void once(const void* self, uint32_t, uint32_t, uint32_t) {
      const F f = *static_cast<const F*>(self);
      f();
    }
  };
  VectorCall call{&Run::once, &function, sizeof(F), 1, 1, 1, 0, 0, name};
  api->vector_call(&call);
}
}  // namespace usim
