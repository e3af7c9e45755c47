// Synchronisation builtins (d) and scalar accesses that bypass the data cache (f.4).
#pragma once

#include "usim/copies.h"

enum event_t : int { EVENT_ID0, EVENT_ID1, EVENT_ID2, EVENT_ID3, EVENT_ID4, EVENT_ID5, EVENT_ID6, EVENT_ID7 };
inline constexpr int ASC_LOCK_BLOCK = 0, ASC_LOCK_NON_BLOCK = 1;

inline void asc_init() { ::usim::set(::usim::Register::atomic, 0); }
inline int32_t asc_get_sub_block_id() { return ::usim::core().sub_block; }

__attribute__((always_inline)) inline void asc_sync_notify(pipe_t src, pipe_t dst, event_t id) {
  ::usim::issue(::usim::Op::asc_sync_notify, ::usim::Sync{src, dst, id, 0});
}
__attribute__((always_inline)) inline void asc_sync_wait(pipe_t src, pipe_t dst, event_t id) {
  ::usim::issue(::usim::Op::asc_sync_wait, ::usim::Sync{src, dst, id, 0});
}
__attribute__((always_inline)) inline void asc_lock(pipe_t pipe, int64_t id, int mode) {
  ::usim::issue(::usim::Op::asc_lock, ::usim::Sync{pipe, pipe, id, mode});
}
__attribute__((always_inline)) inline void asc_unlock(pipe_t pipe, int64_t id, int mode) {
  ::usim::issue(::usim::Op::asc_unlock, ::usim::Sync{pipe, pipe, id, mode});
}
__attribute__((always_inline)) inline void asc_sync_pipe(pipe_t pipe) { ::usim::issue(::usim::Op::asc_sync_pipe, ::usim::Sync{pipe, pipe, 0, 0}); }
__attribute__((always_inline)) inline void asc_sync() { ::usim::issue(::usim::Op::asc_sync, ::usim::Sync{PIPE_S, PIPE_S, 0, 0}); }

#define USIM_CROSS(SCOPE, MODE)                                                                             \
  __attribute__((always_inline)) inline void asc_sync_##SCOPE##_arrive(pipe_t pipe, int64_t id) {               \
    ::usim::issue(::usim::Op::asc_sync_##SCOPE##_arrive, ::usim::Sync{pipe, pipe, id, MODE});               \
  }                                                                                                         \
  __attribute__((always_inline)) inline void asc_sync_##SCOPE##_wait(pipe_t pipe, int64_t id) {                 \
    ::usim::issue(::usim::Op::asc_sync_##SCOPE##_wait, ::usim::Sync{pipe, pipe, id, MODE});                 \
  }
USIM_CROSS(inter, 0)
USIM_CROSS(subblock, 1)
USIM_CROSS(block, 2)
USIM_CROSS(intra, 4)
#undef USIM_CROSS

namespace usim {
// Not instrumented: reported before, as accesses that bypass the scalar data cache.
template <class T> __attribute__((noinline, no_sanitize("thread"))) T uncached_load(const T* p) { return *static_cast<const volatile T*>(p); }
template <class T> __attribute__((noinline, no_sanitize("thread"))) void uncached_store(T* p, T v) { *static_cast<volatile T*>(p) = v; }
}  // namespace usim
template <class T> inline T asc_load_dev(T* address) {
  ::usim::api->touch(address, sizeof(T), 0, 0);
  return ::usim::uncached_load(address);
}
template <class T> inline void asc_store_dev(T* address, T value) {
  ::usim::api->touch(address, sizeof(T), 1, 0);
  ::usim::uncached_store(address, value);
}
