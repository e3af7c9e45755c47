// Checks on every load and store of kernel code: whose memory it is, which thread touched it before, what is defined.
#include <pthread.h>

#include <algorithm>
#include <utility>

#include "thread_history.hpp"
#include "vector.hpp"

namespace usim {

namespace {

thread_local std::unique_ptr<ThreadHistory, void (*)(void*)> thread_histories[2] = {{nullptr, std::free}, {nullptr, std::free}};  // of both UBs
thread_local std::uint32_t latest_interval = 0;

template <std::uint32_t N> struct Word;
template <> struct Word<1> { using type = std::uint8_t; };
template <> struct Word<2> { using type = std::uint16_t; };
template <> struct Word<4> { using type = std::uint32_t; };
template <> struct Word<8> { using type = std::uint64_t; };

// What the running function did with a byte. The last three are kept for SIMD functions only: which bytes one store
// wrote, since the last asc_mem_bar.
enum Touch : std::uint8_t { kRead = 1, kWritten = 2, kStored = 4, kFirst = 8, kLast = 16 };
constexpr std::uint64_t kEveryByte = 0x0101010101010101ull;

// Marks bytes as touched, a word at a time; false if a read needs a closer look because something may be undefined, or
// was stored by the same SIMD function.
template <std::uint32_t N, bool write>
__attribute__((always_inline)) inline bool mark(std::uint8_t* touched, const std::uint8_t* valid, std::uint64_t set, std::uint64_t keep) {
  constexpr std::uint32_t step = N < 8 ? N : 8;
  using W = typename Word<step>::type;
  constexpr W ones = static_cast<W>(0x0101010101010101ull);
  static_assert(kValid == 1 && kWritten == 2);
  bool defined = true;
  W stored = 0;
  for (std::uint32_t b = 0; b < N; b += step) {
    W t, v;
    std::memcpy(&t, touched + b, step);
    std::memcpy(&v, valid + b, step);
    if (!write) {
      defined &= (v == ones) | ((static_cast<W>(t >> 1) & ones) == ones);
      stored |= t & static_cast<W>(kEveryByte * kStored);
    }
    t = write ? static_cast<W>((t & static_cast<W>(keep)) | static_cast<W>(set)) : static_cast<W>(t | ones);
    std::memcpy(touched + b, &t, step);
  }
  return defined && stored == 0;
}

}  // namespace

VectorRun::VectorRun(Core& core, const Instruction& instruction)
    : core_(core), instruction_(instruction), call_(instruction.args.vector) {
  view_.dim = {call_.dx, call_.dy, call_.dz};
  view_.count = call_.dx * call_.dy * call_.dz;
  work.threads = view_.count;
  if (!checking(core)) return;
  const auto which = static_cast<std::size_t>(core.kind == 2);
  if (!thread_histories[which]) thread_histories[which] = ThreadHistory::create();
  history_ = thread_histories[which].get();
  touched_ = core.block->arena->touched[which].data();
  valid_ = core.block->arena->valid_ub[which].data();
  ub_ = core.view.ub;
  watched_ = true;
  threads_unordered_ = call_.simt && view_.count > 1;
  write_mark_ = kEveryByte * (call_.simt ? kWritten : kWritten | kStored);
  if (!call_.simt) write_keep_ = ~(kEveryByte * (kFirst | kLast));
}

void VectorRun::next_interval() {
  if (++latest_interval > 0xfffff) {
    // The numbers start again: nothing recorded under the old ones may be taken for new.
    for (auto& history : thread_histories)
      if (history) std::memset(static_cast<void*>(history.get()), 0, sizeof(ThreadHistory));
    latest_interval = 1;
  }
  interval_ = latest_interval << 12;
}

void VectorRun::settle_suspect() {
  if (suspect_.bytes == 0) return;
  const Suspect s = suspect_;
  suspect_.bytes = 0;
  watched_ = log_;
  if (std::memcmp(core_.view.ub + s.offset, s.old, s.bytes) == 0) return;  // both threads stored the same value
  raise_at("race", "writes UB byte " + std::to_string(s.offset) + ", which thread " + std::to_string(s.other) +
           " also writes with another value and no asc_syncthreads between them", s.from);
}

void VectorRun::check_threads(std::uint64_t offset, std::uint32_t bytes, bool write, const void* from) {
  const std::uint32_t me = interval_ | (view_.linear + 1);
  for (std::uint64_t b = offset; b < offset + bytes; ++b) {
    ThreadHistory::Last& last = history_->byte(b, interval_);
    if (ThreadHistory::foreign(last.writer, me)) {
      const std::uint32_t other = (last.writer & 0xfff) - 1;
      if (ThreadHistory::is_atomic(last, me))
        raise_at("race", std::string(write ? "writes" : "reads") + " UB byte " + std::to_string(b) + " in a plain access, while " +
                 ((last.writer & 0xfff) == ThreadHistory::kAtomics ? "several threads update" : "thread " + std::to_string(other) + " updates") +
                 " it atomically with no asc_syncthreads between them", from);
      if (!write) raise_at("race", "reads UB byte " + std::to_string(b) + ", which thread " + std::to_string(other) + " writes with no asc_syncthreads between them", from);
      if (suspect_.bytes == 0) {
        suspect_.offset = offset;
        suspect_.bytes = std::min<std::uint32_t>(bytes, 16);
        suspect_.from = from;
        suspect_.other = other;
        std::memcpy(suspect_.old, core_.view.ub + offset, suspect_.bytes);
        watched_ = false;  // the next access takes the long way and looks at what this one stored
      }
    }
    if (write && ThreadHistory::foreign(last.reader, me) && !ThreadHistory::is_atomic(last, me)) {
      const std::uint32_t other = last.reader & 0xfff;
      raise_at("race", "writes UB byte " + std::to_string(b) + ", which " +
               (other == ThreadHistory::kMany ? "several threads read" : "thread " + std::to_string(other - 1) + " reads") +
               " with no asc_syncthreads between them", from);
    }
    if (ThreadHistory::is_atomic(last, me)) last.reader = 0;  // its own atomic access; now there is a plain one
    ThreadHistory::record(last, me, write);
  }
}

// Atomic accesses commute with each other and with nothing else.
void VectorRun::check_atomic(std::uint64_t offset, std::uint32_t bytes, const void* from) {
  const std::uint32_t me = interval_ | (view_.linear + 1);
  for (std::uint64_t b = offset; b < offset + bytes; ++b) {
    ThreadHistory::Last& last = history_->byte(b, interval_);
    const bool others_atomic = ThreadHistory::is_atomic(last, me);
    if (!others_atomic && (ThreadHistory::foreign(last.writer, me) || ThreadHistory::foreign(last.reader, me))) {
      const bool wrote = ThreadHistory::foreign(last.writer, me);
      const std::uint32_t other = (wrote ? last.writer : last.reader) & 0xfff;
      raise_at("race", "atomically updates UB byte " + std::to_string(b) + ", which " +
               (other == ThreadHistory::kMany ? "several threads use" : "thread " + std::to_string(other - 1) + " uses") +
               " in a plain access with no asc_syncthreads between them", from);
    }
    // Plain accesses of the same thread count for more than its atomic ones: they still conflict with other threads.
    if (ThreadHistory::untouched(last, me)) last = {me, interval_ | ThreadHistory::kAtomic};
    else if (!others_atomic) last.writer = me;
    else if (last.writer != me) last.writer = interval_ | ThreadHistory::kAtomics;
  }
}

// A load of a SIMD function may overtake a store before it (e.2.9). A load of exactly what one store wrote is let pass
// with a warning: TileLang 0.1.15 generates that without a barrier, in kernels that are known to work.
void VectorRun::check_overtaking(std::uint64_t offset, std::uint32_t bytes, const void* from) {
  const std::uint8_t* const t = touched_ + offset;
  if (std::none_of(t, t + bytes, [](std::uint8_t v) { return v & kStored; })) return;
  bool same = (t[0] & (kStored | kFirst)) == (kStored | kFirst) && (t[bytes - 1] & (kStored | kLast)) == (kStored | kLast);
  for (std::uint32_t b = 0; b < bytes; ++b) same = same && (t[b] & kStored) && (b == 0 || !(t[b] & kFirst)) && (b + 1 == bytes || !(t[b] & kLast));
  const std::string what = "loads UB bytes " + std::to_string(offset) + " to " + std::to_string(offset + bytes) +
                           ", which it has stored to with no asc_mem_bar(VST_VLD) in between";
  if (!same) raise_at("race", what + ": the load may overtake the store", from);
  if (!std::exchange(warned_, true)) warn(core_, std::string(call_.name) + " loads again what it has stored, with no asc_mem_bar(VST_VLD) in between");
}

void VectorRun::mark_written(std::uint64_t offset, std::uint32_t bytes) {
  std::uint8_t* const t = touched_ + offset;
  for (std::uint32_t b = 0; b < bytes; ++b) t[b] = static_cast<std::uint8_t>((t[b] & write_keep_) | (write_mark_ & 0xff));
  if (!call_.simt) t[0] |= kFirst, t[bytes - 1] |= kLast;
}

void VectorRun::memory_barrier() {
  if (call_.simt || !touched_) return;
  for (std::uint64_t b = low_; b < high_; ++b) touched_[b] &= kRead | kWritten;
}

// The usual access: aligned, no other thread in the way, everything defined. Anything else takes the long way.
template <std::uint32_t N, bool write>
__attribute__((always_inline)) inline bool VectorRun::usual(std::uint64_t offset) {
  if (!watched_ || offset % std::min(N, 32u) != 0 || offset > kUbBytes - N) return false;
  if (threads_unordered_) {
    if constexpr (N > 16) return false;
    else if (!history_->undisturbed<N, write>(offset, interval_ | (view_.linear + 1))) return false;
  }
  if (!mark<N, write>(touched_ + offset, valid_ + offset, write_mark_, write_keep_)) return false;
  if (write && !call_.simt) touched_[offset] |= kFirst, touched_[offset + N - 1] |= kLast;
  (write ? work.ub_written : work.ub_read) += N;
  if (offset < low_) low_ = offset;
  if (offset + N > high_) high_ = offset + N;
  return true;
}

void VectorRun::touch_ub(std::uint64_t offset, std::uint32_t bytes, bool write, std::uint16_t atomic, const void* from) {
  if (offset + bytes > kUbBytes)
    raise_at("capacity", "accesses UB bytes " + std::to_string(offset) + " to " + std::to_string(offset + bytes) + ", beyond its " +
             std::to_string(kUbBytes), from);
  (write ? work.ub_written : work.ub_read) += bytes;
  if (!log_) return;
  if (call_.simt) {
    if (bytes <= 16 && (bytes & (bytes - 1)) == 0 && (offset & (bytes - 1)) != 0)
      raise_at("misaligned", "accesses " + std::to_string(bytes) + " bytes at UB offset " + std::to_string(offset) +
               ", which is not a multiple of the access size", from);
    settle_suspect();
    if (view_.count > 1 && atomic) check_atomic(offset, bytes, from);
    if (view_.count > 1 && !atomic) check_threads(offset, bytes, write, from);
  } else if (!write) {
    check_overtaking(offset, bytes, from);
  }
  low_ = std::min(low_, offset);
  high_ = std::max(high_, offset + bytes);
  std::uint8_t* touched = touched_ + offset;
  const std::uint8_t* valid = valid_ + offset;
  if (write && !atomic) {
    mark_written(offset, bytes);
    return;
  }
  bool defined = true;
  for (std::uint32_t b = 0; b < bytes; ++b) defined &= ((touched[b] & 2) != 0) | (valid[b] == kValid);
  if (!defined && !read_uninitialised_) {
    Instruction here = instruction_;
    if (from) here.site = site_of(core_, from);
    taint(core_, here, core_.ub(), offset, offset + bytes);
    read_uninitialised_ = true;
  }
  for (std::uint32_t b = 0; b < bytes; ++b) touched[b] |= atomic ? 3 : 1;
}

void VectorRun::touch_gm(Tensor& tensor, std::uint64_t lo, std::uint32_t bytes, bool write, std::uint16_t atomic) {
  (write ? work.gm_written : work.gm_read) += bytes;
  if (write && bytes <= 16) {
    Undo u{tensor.base + lo, bytes, {}};
    std::memcpy(u.old, u.address, bytes);
    undo_.push_back(u);
  }
  if (!log_ || !tensor.writable) return;
  // Extend one of the latest ranges where possible: threads walk memory in order.
  for (auto it = gm_.rbegin(); it != gm_.rend() && it - gm_.rbegin() < 4; ++it)
    if (it->tensor == &tensor && it->write == write && it->atomic == atomic && lo <= it->hi && lo + bytes >= it->lo) {
      it->lo = std::min(it->lo, lo);
      it->hi = std::max(it->hi, lo + bytes);
      return;
    }
  gm_.push_back({&tensor, lo, lo + bytes, write, atomic});
}

void VectorRun::touch(const void* address, std::uint32_t bytes, bool write, std::uint16_t atomic, const void* from) {
  const auto* at = static_cast<const std::uint8_t*>(address);
  const auto offset = static_cast<std::uint64_t>(at - core_.view.ub);
  if (offset < kUbBytes) {
    touch_ub(offset, bytes, write, atomic, from);
    return;
  }
  const Arena& arena = *core_.block->arena;
  if (at >= arena.map && at < arena.map + arena.map_bytes)
    raise_at("capacity", "accesses " + std::to_string(bytes) + " bytes at UB offset " + std::to_string(static_cast<std::int64_t>(offset)) +
             ", outside the " + std::to_string(kUbBytes) + " bytes of UB", from);
  Tensor* t = find_tensor(*core_.block->launch, address, bytes);
  if (!t || (write && !t->writable)) {
    Instruction here = instruction_;
    if (from) here.site = site_of(core_, from);
    t = &require_tensor(core_, here, address, bytes, write);
  }
  touch_gm(*t, static_cast<std::uint64_t>(at - t->base), bytes, write, atomic);
}

// ---- reports of the instrumentation ---------------------------------------------------------------------------------

namespace {

struct Range {
  const std::uint8_t* low = nullptr;
  const std::uint8_t* high = nullptr;
  bool holds(const void* p) const { return p >= low && p < high; }
};

Range native_stack() {
  thread_local Range range;
  if (range.low == nullptr) {
    pthread_attr_t attributes;
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
      void* low = nullptr;
      std::size_t bytes = 0;
      pthread_attr_getstack(&attributes, &low, &bytes);
      range = {static_cast<std::uint8_t*>(low), static_cast<std::uint8_t*>(low) + bytes};
      pthread_attr_destroy(&attributes);
    }
  }
  return range;
}

bool on_a_stack(const void* p) {
  const Fiber* fiber = Fiber::running();
  if (fiber && p >= fiber->stack()->low() && p < fiber->stack()->high()) return true;
  return native_stack().holds(p) || (current_core && current_core->stack && p >= current_core->stack->low() && p < current_core->stack->high());
}

// Memory that kernel code reaches without being judged: locals, constants, the run itself, the simulator's tables.
bool is_private(const Core& core, const void* address, std::uint64_t bytes) {
  const auto* at = static_cast<const std::uint8_t*>(address);
  if (on_a_stack(address)) return true;
  const Launch& launch = *core.block->launch;
  if (at >= launch.code_base && at < launch.code_base + launch.code_bytes) return true;
  if (current_vector && current_vector->owns(at)) return true;
  if (at >= reinterpret_cast<const std::uint8_t*>(&core.view) && at < reinterpret_cast<const std::uint8_t*>(&core.view + 1)) return true;
  for (const Tensor& t : launch.tensors)
    if (at + bytes > t.base - (1 << 16) && at < t.base + t.bytes + (1 << 16)) return false;
  const Arena& arena = *core.block->arena;
  return at < arena.map || at >= arena.map + arena.map_bytes;
}

// Bytes of GM that the scalar program loaded through its data cache stay there: what others write to their line later is
// not seen by loads through the cache (f.4).
void check_cache(Core& core, const Instruction& scalar, Tensor& tensor, std::uint64_t lo, std::uint64_t hi) {
  if (!checking(core) || !tensor.writable) return;
  const Launch& launch = *core.block->launch;
  const Clock& now = core.clock[PIPE_S];
  const auto base = reinterpret_cast<std::uintptr_t>(tensor.base);
  for (std::uint64_t line = (base + lo) / 64; line <= (base + hi - 1) / 64; ++line) {
    const auto [it, fresh] = core.cached.try_emplace(line, now);
    if (fresh) continue;
    Access stale;
    const std::lock_guard<std::mutex> lock(tensor.mutex);
    tensor.shadow.last_writes(lo, hi, [&](const Access& w) {
      const bool own = w.actor == core.actor(PIPE_S) || (!launch.inter && w.actor / kSlots != core.block->index);
      if (!own && w.tick > it->second[clock_index(launch, w.actor)]) stale = w;
    });
    if (stale.tick == 0) continue;
    raise(core, &scalar, "race", "loads bytes " + std::to_string(lo) + " to " + std::to_string(hi) + " of tensor '" + tensor.name +
          "' through the scalar data cache, which has held their line since before pipe " + pipe_name(static_cast<int>(stale.actor % kPipes)) + " (" +
          op_name(static_cast<Op>(stale.op)) + ", {0}) wrote them; load with asc_load_dev (tl::read_gm_bypass_dcache)", {stale.site});
  }
}

// A load or store of the scalar program: pipe S.
void scalar_access(Core& core, const void* address, std::uint64_t bytes, bool write, bool through_cache, const void* from) {
  const auto* at = static_cast<const std::uint8_t*>(address);
  Instruction scalar;
  scalar.op = Op::scalar_access;
  scalar.pipe = PIPE_S;
  scalar.site = site_of(core, from);
  ++core.scalar_work;
  if (checking(core)) ++core.clock[PIPE_S][clock_index(*core.block->launch, core.actor(PIPE_S))];
  if (const auto lo = static_cast<std::uint64_t>(at - core.view.ub); lo < kUbBytes) {
    if (core.kind == 0) raise(core, &scalar, "out_of_bounds", "the cube core dereferences a UB pointer; only vector cores reach UB");
    require_range(core, scalar, core.ub(), lo, bytes, "scalar access");
    note(core, scalar, core.ub(), lo, lo + bytes, write);
    auto& valid = core.block->arena->valid_ub[core.kind == 2];
    for (std::uint64_t b = lo; b < lo + bytes && checking(core); ++b) {
      if (write) valid[b] = kValid;
      else if (valid[b] != kValid) raise_uninitialised(core, scalar, "the scalar program reads UB byte " + std::to_string(b) + ", which holds no defined value");
    }
    return;
  }
  Tensor& t = require_tensor(core, scalar, address, bytes, write);
  const auto lo = static_cast<std::uint64_t>(at - t.base);
  note_gm(core, scalar, t, lo, lo + bytes, write);
  if (!write && through_cache) check_cache(core, scalar, t, lo, lo + bytes);
}

template <std::uint32_t N, bool write>
void sized_access(const void* address, const void* from) {
  VectorRun* const run = current_vector;
  if (run && run->usual<N, write>(run->ub_offset(address))) return;
  kernel_access(address, N, write, from);
}

void range_access(const void* address, std::uint64_t bytes, int write, const void* from) { kernel_access(address, bytes, write != 0, from); }

void transfer_access(const void* address, std::uint32_t bytes, int write, const void* from) {
  VectorRun* const run = current_vector;
  if (!run) {
    kernel_access(address, bytes, write != 0, from);
    return;
  }
  if (bytes == 256) {  // a whole register
    const std::uint64_t offset = run->ub_offset(address);
    if (write ? run->usual<256, true>(offset) : run->usual<256, false>(offset)) return;
  }
  run->touch(address, bytes, write != 0, 0, from);
}

}  // namespace

void kernel_access(const void* address, std::uint64_t bytes, bool write, const void* from) {
  Core* const core = current_core;
  if (!core) return;
  const bool in_ub = static_cast<std::uint64_t>(static_cast<const std::uint8_t*>(address) - core->view.ub) < kUbBytes;
  if (!in_ub && is_private(*core, address, bytes)) return;
  if (current_vector) current_vector->touch(address, static_cast<std::uint32_t>(bytes), write, 0, from);
  else scalar_access(*core, address, bytes, write, true, from);
}

void uncached_access(const void* address, std::uint64_t bytes, bool write, const void* from) {
  if (current_core) scalar_access(*current_core, address, bytes, write, false, from);
}

const AccessHooks& access_hooks() {
  static const AccessHooks hooks = {
      {sized_access<1, false>, sized_access<2, false>, sized_access<4, false>, sized_access<8, false>, sized_access<16, false>},
      {sized_access<1, true>, sized_access<2, true>, sized_access<4, true>, sized_access<8, true>, sized_access<16, true>},
      range_access,
      transfer_access};
  return hooks;
}

}  // namespace usim
