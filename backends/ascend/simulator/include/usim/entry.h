// Last lines of every kernel library: binding to the core and, in checked builds, the landing points of the compiler's
// memory instrumentation (-fsanitize=thread emits a call per access; the sanitizer's own run-time library is not linked).
#pragma once

#include "usim/device.h"

extern "C" __attribute__((visibility("default"), no_sanitize("thread"))) uint32_t usim_bind(const ::usim::Api* table, const ::usim::AccessHooks* access_hooks) {
  ::usim::api = table;
  ::usim::hooks = access_hooks;
  return ::usim::kAbiVersion;
}

#ifdef USIM_CHECK
#define USIM_HOOK extern "C" __attribute__((noinline, visibility("hidden"), no_sanitize("thread"))) void
#define USIM_SIZED(INDEX, BYTES)                                                                                                \
  USIM_HOOK __tsan_read##BYTES(void* p) { ::usim::hooks->read[INDEX](p, __builtin_return_address(0)); }                         \
  USIM_HOOK __tsan_write##BYTES(void* p) { ::usim::hooks->write[INDEX](p, __builtin_return_address(0)); }                       \
  USIM_HOOK __tsan_unaligned_read##BYTES(void* p) { ::usim::hooks->read[INDEX](p, __builtin_return_address(0)); }               \
  USIM_HOOK __tsan_unaligned_write##BYTES(void* p) { ::usim::hooks->write[INDEX](p, __builtin_return_address(0)); }             \
  USIM_HOOK __tsan_volatile_read##BYTES(void* p) { ::usim::hooks->read[INDEX](p, __builtin_return_address(0)); }                \
  USIM_HOOK __tsan_volatile_write##BYTES(void* p) { ::usim::hooks->write[INDEX](p, __builtin_return_address(0)); }
USIM_SIZED(0, 1)
USIM_SIZED(1, 2)
USIM_SIZED(2, 4)
USIM_SIZED(3, 8)
USIM_SIZED(4, 16)
USIM_HOOK __tsan_read_range(void* p, size_t n) { ::usim::hooks->range(p, n, 0, __builtin_return_address(0)); }
USIM_HOOK __tsan_write_range(void* p, size_t n) { ::usim::hooks->range(p, n, 1, __builtin_return_address(0)); }
USIM_HOOK __tsan_vptr_update(void**, void*) {}
USIM_HOOK __tsan_init() {}
USIM_HOOK __tsan_func_entry(void*) {}
USIM_HOOK __tsan_func_exit() {}
#undef USIM_SIZED
#undef USIM_HOOK
#endif
