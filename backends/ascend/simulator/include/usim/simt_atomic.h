// Atomics of SIMT code (e.1.4) on UB and GM: read, combine, write, return the old value. Threads of a vector function
// never run at the same time here; what has to be told to the checks is that the access is atomic.
#pragma once

#include "usim/elements.h"

namespace usim {
enum class AtomicKind : int { add = 1, max = 2, min = 3 };

// Not instrumented: the access was reported as one atomic access before. Kept out of line for that reason.
template <AtomicKind kind, class T> __attribute__((noinline, no_sanitize("thread"))) T atomic_exchange(T* p, T v) {
  const T old = *p;
  if constexpr (kind == AtomicKind::add) {
    if constexpr (std::is_integral_v<T>) *p = static_cast<T>(static_cast<std::make_unsigned_t<T>>(old) + static_cast<std::make_unsigned_t<T>>(v));
    else *p = T(old + v);
  } else if constexpr (kind == AtomicKind::max) {
    *p = (v > old || old != old) ? v : old;
  } else {
    *p = (v < old || old != old) ? v : old;
  }
  return old;
}

template <AtomicKind kind, class T> __attribute__((always_inline)) inline T atomic(T* p, T v) {
#ifdef USIM_CHECK
  // Kinds and types of their own: an atomic addition of floats does not commute with one of integers.
  api->touch(p, sizeof(T), 1, 0x4000 | int(kind) << 8 | int(type_of<T>));
#endif
  return atomic_exchange<kind>(p, v);
}
template <AtomicKind kind> __attribute__((always_inline)) inline half2 atomic(half2* p, half2 v) {
  return {atomic<kind>(&p->x, v.x), atomic<kind>(&p->y, v.y)};
}
template <AtomicKind kind> __attribute__((always_inline)) inline bfloat16x2_t atomic(bfloat16x2_t* p, bfloat16x2_t v) {
  return {atomic<kind>(&p->x, v.x), atomic<kind>(&p->y, v.y)};
}
}  // namespace usim

template <class T, class V> __attribute__((always_inline)) inline T asc_atomic_add(T* p, V v) { return ::usim::atomic<::usim::AtomicKind::add>(p, T(v)); }
template <class T, class V> __attribute__((always_inline)) inline T asc_atomic_max(T* p, V v) { return ::usim::atomic<::usim::AtomicKind::max>(p, T(v)); }
template <class T, class V> __attribute__((always_inline)) inline T asc_atomic_min(T* p, V v) { return ::usim::atomic<::usim::AtomicKind::min>(p, T(v)); }
