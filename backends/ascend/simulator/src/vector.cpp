// Vector functions (e): SIMT threads with barriers and warp exchange, and the checks on what they read and write.
#include "vector.hpp"

#include <pthread.h>

#include <algorithm>

namespace usim {

thread_local VectorRun* current_vector = nullptr;

namespace {

constexpr std::size_t kThreadStack = 64 << 10;
constexpr std::uint8_t kSecondPoison = 0x7e;  // unlike 0xff: a huge finite float, half, bf16, fp8 and integer
constexpr std::uint32_t kManyReaders = 0xfff;

thread_local std::vector<std::unique_ptr<Stack>> thread_stacks;
// Last writer and last reader of every UB byte: barrier interval << 12 | thread + 1.
thread_local std::vector<std::uint32_t> last_writer[2], last_reader[2];
thread_local std::uint32_t next_epoch = 1;

// Records an access of thread `me` if no other thread has touched the bytes in this barrier interval.
template <std::uint32_t N>
bool undisturbed(std::uint32_t* writers, std::uint32_t* readers, std::uint32_t me, std::uint32_t interval, bool write) {
  std::uint32_t foreign = 0;
  for (std::uint32_t b = 0; b < N; ++b) foreign |= static_cast<std::uint32_t>((writers[b] >= interval) & (writers[b] != me));
  if (write)
    for (std::uint32_t b = 0; b < N; ++b) foreign |= static_cast<std::uint32_t>((readers[b] >= interval) & (readers[b] != me));
  if (foreign) return false;
  if (write)
    for (std::uint32_t b = 0; b < N; ++b) writers[b] = me;
  else
    for (std::uint32_t b = 0; b < N; ++b) readers[b] = readers[b] >= interval && readers[b] != me ? interval | kManyReaders : me;
  return true;
}

// Marks bytes as touched; false if a read needs a closer look because something may be undefined.
template <std::uint32_t N>
bool mark(std::uint8_t* touched, const std::uint8_t* valid, bool write) {
  if (write) {
    for (std::uint32_t b = 0; b < N; ++b) touched[b] |= 2;
    return true;
  }
  std::uint32_t defined = 1;
  for (std::uint32_t b = 0; b < N; ++b) defined &= static_cast<std::uint32_t>((touched[b] & 2) != 0) | static_cast<std::uint32_t>(valid[b] == kValid);
  for (std::uint32_t b = 0; b < N; ++b) touched[b] |= 1;
  return defined != 0;
}

[[noreturn]] void leave() {
  while (Fiber::running()) Fiber::yield();
  throw Stop{};
}

}  // namespace

VectorRun::VectorRun(Core& core, const Instruction& instruction)
    : core_(core), instruction_(instruction), call_(instruction.args.vector) {
  view_.dim = {call_.dx, call_.dy, call_.dz};
  view_.count = call_.dx * call_.dy * call_.dz;
  work.threads = view_.count;
  if (!checking(core)) return;
  const auto which = static_cast<std::size_t>(core.kind == 2);
  if (last_writer[which].empty()) last_writer[which].assign(kUbBytes, 0), last_reader[which].assign(kUbBytes, 0);
  writers_ = last_writer[which].data();
  readers_ = last_reader[which].data();
  touched_ = core.block->arena->touched[which].data();
  valid_ = core.block->arena->valid_ub[which].data();
}

void VectorRun::raise_at(const char* kind, std::string message, const void* from, std::vector<std::uint64_t> sites) {
  Instruction here = instruction_;
  if (from) here.site = site_of(core_, from);
  if (call_.simt) message = "thread " + std::to_string(view_.linear) + " of " + call_.name + " " + message;
  else message = std::string(call_.name) + " " + message;
  raise(core_, &here, kind, std::move(message), std::move(sites));
}

void VectorRun::run_threads() {
  VectorRun* const outer = current_vector;
  current_vector = this;
  if (call_.simt && call_.lockstep) {
    run_lockstep();
  } else {
    const std::vector<std::uint8_t>& c = instruction_.closure;
    call_.run(c.data(), 0, 0, 0);
  }
  current_vector = outer;
}

void VectorRun::execute() { run_threads(); }

// ---- threads --------------------------------------------------------------------------------------------------------

void VectorRun::run_lockstep() {
  threads_ = std::vector<Thread>(view_.count);
  while (thread_stacks.size() < view_.count) thread_stacks.push_back(std::make_unique<Stack>(kThreadStack));
  for (std::uint32_t t = 0; t < view_.count; ++t) {
    Thread& thread = threads_[t];
    thread.linear = t;
    thread.index = {t % call_.dx, t / call_.dx % call_.dy, t / (call_.dx * call_.dy)};
    thread.run = this;
    thread.fiber.start(*thread_stacks[t], [](void* p) {
      Thread& self = *static_cast<Thread*>(p);
      self.run->call_.run(self.run->instruction_.closure.data(), self.index.x, self.index.y, self.index.z);
      self.wait = Wait::done;
    }, &thread);
  }
  epoch_ = next_epoch++;
  for (;;) {
    for (std::uint32_t first = 0; first < view_.count; first += 32) run_warp(first, std::min(first + 32, view_.count));
    const auto done = std::count_if(threads_.begin(), threads_.end(), [](const Thread& t) { return t.wait == Wait::done; });
    if (done == static_cast<std::ptrdiff_t>(view_.count)) break;
    finish_barrier();
  }
  threads_.clear();
}

void VectorRun::run_warp(std::uint32_t first, std::uint32_t last) {
  const Launch& launch = *core_.block->launch;
  for (;;) {
    bool at_warp = false;
    for (std::uint32_t t = first; t < last; ++t) {
      Thread& thread = threads_[t];
      if (thread.wait == Wait::none) {
        current_ = &thread;
        view_.index = thread.index;
        view_.linear = t;
        thread.fiber.resume();
        current_vector = this;
        if (launch.stopped(core_.block->index)) leave();
      }
      at_warp = at_warp || thread.wait == Wait::warp;
    }
    current_ = nullptr;
    if (!at_warp) return;
    finish_warp_operation(first, last);
  }
}

// The lanes that wait at the lowest waiting lane's call form the active set; lanes elsewhere are inactive for it.
void VectorRun::finish_warp_operation(std::uint32_t first, std::uint32_t last) {
  const Thread* leader = nullptr;
  values_ = {};
  for (std::uint32_t t = first; t < last; ++t) {
    Thread& thread = threads_[t];
    if (thread.wait != Wait::warp) continue;
    if (!leader) leader = &thread;
    if (thread.call != leader->call || (thread.call == 0 && thread.from != leader->from)) continue;
    if (thread.bytes) std::memcpy(values_.value[t - first], thread.value, thread.bytes);
    values_.active |= 1u << (t - first);
  }
  for (std::uint32_t lane = 0; lane < last - first; ++lane)
    if (values_.active >> lane & 1) threads_[first + lane].wait = Wait::none;
  // Every released lane reads the exchange before it can reach another warp operation: run_warp resumes them in turn,
  // and each copies what it needs before yielding again.
}

void VectorRun::finish_barrier() {
  const Thread* finished = nullptr;
  const Thread* waiting = nullptr;
  for (const Thread& t : threads_) (t.wait == Wait::done ? finished : waiting) = &t;
  if (finished) {
    view_.linear = waiting->linear;
    raise_at("barrier", "waits in asc_syncthreads, but thread " + std::to_string(finished->linear) +
             " has returned: every thread of the function must reach the barrier", waiting->from);
  }
  for (Thread& t : threads_) t.wait = Wait::none;
  settle_suspect();
  epoch_ = next_epoch++;
  ++work.barriers;
}

void VectorRun::next_thread(std::uint32_t x, std::uint32_t y, std::uint32_t z) {
  view_.index = {x, y, z};
  view_.linear = x + call_.dx * (y + call_.dy * z);
}

void VectorRun::sync_threads(const void* from) {
  if (!current_) raise_at("barrier", "calls asc_syncthreads outside a SIMT function", from);
  current_->wait = Wait::barrier;
  current_->from = from;
  Fiber::yield();
}

void VectorRun::sync_warp(const void* from) {
  warp_exchange(nullptr, 0, from);
  epoch_ = next_epoch++;
}

const WarpValues* VectorRun::warp_exchange(const void* value, std::uint32_t bytes, const void* from) {
  if (!current_) raise_at("barrier", "calls a warp function outside a SIMT function", from);
  current_->wait = Wait::warp;
  current_->from = from;
  current_->value = value;
  current_->call = bytes >> 8;
  const bool orders_memory = (bytes & 0xff) == 0xff;
  current_->bytes = orders_memory ? 0 : bytes & 0xff;
  ++work.warp_ops;
  Fiber::yield();
  if (orders_memory) epoch_ = next_epoch++;
  return &values_;
}

// ---- checks ---------------------------------------------------------------------------------------------------------

void VectorRun::settle_suspect() {
  if (suspect_.bytes == 0) return;
  const Suspect s = suspect_;
  suspect_.bytes = 0;
  if (std::memcmp(core_.view.ub + s.offset, s.old, s.bytes) == 0) return;  // both threads stored the same value
  raise_at("race", "writes UB byte " + std::to_string(s.offset) + ", which thread " + std::to_string(s.other) +
           " also writes with another value and no asc_syncthreads between them", s.from);
}

void VectorRun::check_threads(std::uint64_t offset, std::uint32_t bytes, bool write, const void* from) {
  std::uint32_t* const writers = writers_;
  std::uint32_t* const readers = readers_;
  const std::uint32_t me = epoch_ << 12 | (view_.linear + 1);
  for (std::uint32_t b = 0; b < bytes; ++b) {
    std::uint32_t& w = writers[offset + b];
    std::uint32_t& r = readers[offset + b];
    if (w >> 12 == epoch_ && w != me) {
      if (!write)
        raise_at("race", "reads UB byte " + std::to_string(offset + b) + ", which thread " + std::to_string((w & 0xfff) - 1) +
                 " writes with no asc_syncthreads between them", from);
      if (suspect_.bytes == 0) {
        suspect_.offset = offset;
        suspect_.bytes = std::min<std::uint32_t>(bytes, 16);
        suspect_.from = from;
        suspect_.other = (w & 0xfff) - 1;
        std::memcpy(suspect_.old, core_.view.ub + offset, suspect_.bytes);
      }
    }
    if (write) {
      if (r >> 12 == epoch_ && r != me)
        raise_at("race", "writes UB byte " + std::to_string(offset + b) + ", which " +
                 ((r & 0xfff) == kManyReaders ? "several threads read" : "thread " + std::to_string((r & 0xfff) - 1) + " reads") +
                 " with no asc_syncthreads between them", from);
      w = me;
    } else {
      r = (r >> 12 == epoch_ && r != me) ? (epoch_ << 12 | kManyReaders) : me;
    }
  }
}

// The usual access: aligned, no other thread in the way, everything defined. Anything else takes the long way.
template <std::uint32_t N>
bool VectorRun::usual(std::uint64_t offset, bool write) {
  if (!log_ || suspect_.bytes != 0 || offset + N > kUbBytes) return false;
  if (call_.simt) {
    if (offset % N != 0) return false;
    if (view_.count > 1 && !undisturbed<N>(writers_ + offset, readers_ + offset, epoch_ << 12 | (view_.linear + 1), epoch_ << 12, write)) return false;
  }
  if (!mark<N>(touched_ + offset, valid_ + offset, write)) return false;
  (write ? work.ub_written : work.ub_read) += N;
  low_ = std::min(low_, offset);
  high_ = std::max(high_, offset + N);
  return true;
}

void VectorRun::touch_ub(std::uint64_t offset, std::uint32_t bytes, bool write, std::uint16_t atomic, const void* from) {
  if (!atomic) {
    switch (bytes) {
      case 1: if (usual<1>(offset, write)) return; break;
      case 2: if (usual<2>(offset, write)) return; break;
      case 4: if (usual<4>(offset, write)) return; break;
      case 8: if (usual<8>(offset, write)) return; break;
      case 16: if (usual<16>(offset, write)) return; break;
      default: break;
    }
  }
  touch_ub_closely(offset, bytes, write, atomic, from);
}

void VectorRun::touch_ub_closely(std::uint64_t offset, std::uint32_t bytes, bool write, std::uint16_t atomic, const void* from) {
  Arena& arena = *core_.block->arena;
  const auto which = static_cast<std::size_t>(core_.kind == 2);
  if (offset + bytes > kUbBytes)
    raise_at("capacity", "accesses UB bytes " + std::to_string(offset) + " to " + std::to_string(offset + bytes) + ", beyond its " +
             std::to_string(kUbBytes), from);
  (write ? work.ub_written : work.ub_read) += bytes;
  if (!log_) return;
  if (call_.simt) {
    if (bytes <= 16 && (bytes & (bytes - 1)) == 0 && (offset & (bytes - 1)) != 0)
      raise_at("misaligned", "accesses " + std::to_string(bytes) + " bytes at UB offset " + std::to_string(offset) +
               ", which is not a multiple of the access size", from);
    if (suspect_.bytes) settle_suspect();
    if (view_.count > 1 && !atomic) check_threads(offset, bytes, write, from);
  }
  low_ = std::min(low_, offset);
  high_ = std::max(high_, offset + bytes);
  std::uint8_t* touched = arena.touched[which].data() + offset;
  const std::uint8_t* valid = arena.valid_ub[which].data() + offset;
  if (write && !atomic) {
    for (std::uint32_t b = 0; b < bytes; ++b) touched[b] |= 2;
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

bool VectorRun::touch_if_ub(const std::uint8_t* at, std::uint32_t bytes, bool write, const void* from) {
  const auto offset = static_cast<std::uint64_t>(at - core_.view.ub);
  if (offset >= kUbBytes) return false;
  touch_ub(offset, bytes, write, 0, from);
  return true;
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

// One vector function is one instruction: its reads, then its writes, enter the happens-before order as whole ranges.
void VectorRun::note_ranges() {
  const auto which = static_cast<std::size_t>(core_.kind == 2);
  Arena& arena = *core_.block->arena;
  std::uint8_t* touched = arena.touched[which].data();
  for (const std::uint8_t bit : {std::uint8_t{1}, std::uint8_t{2}}) {
    const std::uint64_t every = 0x0101010101010101ull * bit;
    std::uint64_t start = low_;
    bool inside = false;
    for (std::uint64_t b = low_; b <= high_ && low_ < high_; ++b) {
      // Whole words of one kind, which is nearly all of them, pass at once.
      for (std::uint64_t word; b + 8 <= high_; b += 8) {
        std::memcpy(&word, touched + b, 8);
        if ((word & every) != (inside ? every : 0)) break;
      }
      const bool hit = b < high_ && (touched[b] & bit);
      if (hit && !inside) start = b, inside = true;
      if (!hit && inside) {
        inside = false;
        note(core_, instruction_, core_.ub(), start, b, bit == 2);
      }
    }
  }
  std::sort(gm_.begin(), gm_.end(), [](const GmRange& a, const GmRange& b) {
    return std::tie(a.write, a.tensor, a.atomic, a.lo) < std::tie(b.write, b.tensor, b.atomic, b.lo);
  });
  for (std::size_t k = 0; k < gm_.size();) {
    GmRange r = gm_[k++];
    while (k < gm_.size() && gm_[k].tensor == r.tensor && gm_[k].write == r.write && gm_[k].atomic == r.atomic && gm_[k].lo <= r.hi)
      r.hi = std::max(r.hi, gm_[k++].hi);
    note_gm(core_, instruction_, *r.tensor, r.lo, r.hi, r.write, r.atomic);
  }
}

void VectorRun::restore_gm() {
  for (auto u = undo_.rbegin(); u != undo_.rend(); ++u) std::memcpy(u->address, u->old, u->bytes);
}

// The function read bytes nothing had written. Whether its results depend on them is found by running it again with
// other bytes there: results that change are tainted, the rest (tails computed and never used) are as good as any.
void VectorRun::find_tainted(const std::vector<std::uint8_t>& before) {
  const auto which = static_cast<std::size_t>(core_.kind == 2);
  Arena& arena = *core_.block->arena;
  std::uint8_t* ub = core_.view.ub;
  std::vector<std::uint8_t>& valid = arena.valid_ub[which];
  const std::vector<std::uint8_t> first(ub, ub + kUbBytes);
  std::vector<std::pair<std::uint8_t*, std::vector<std::uint8_t>>> gm_first;
  for (const Undo& u : undo_) gm_first.emplace_back(u.address, std::vector<std::uint8_t>(u.address, u.address + u.bytes));
  restore_gm();
  undo_.clear();
  for (std::uint64_t b = 0; b < kUbBytes; ++b) ub[b] = b < before.size() && valid[b] == kValid ? before[b] : kSecondPoison;
  log_ = false;
  const VectorWork counted = work;
  run_threads();
  work = counted;
  log_ = true;
  for (std::uint64_t b = low_; b < high_; ++b)
    if (arena.touched[which][b] & 2) valid[b] = ub[b] == first[b] ? kValid : kTainted;
  for (const auto& [address, bytes] : gm_first)
    if (std::memcmp(address, bytes.data(), bytes.size()) != 0)
      raise_uninitialised(core_, instruction_, std::string(call_.name) + " stores a value to GM that depends on uninitialised UB bytes");
  std::memcpy(ub, first.data(), kUbBytes);
}

void VectorRun::execute_checked() {
  const auto which = static_cast<std::size_t>(core_.kind == 2);
  Arena& arena = *core_.block->arena;
  // What the function may find: nothing behind the last byte ever written.
  const std::vector<std::uint8_t> before(core_.view.ub, core_.view.ub + arena.dirty[static_cast<std::size_t>(core_.ub())]);
  epoch_ = next_epoch++;
  run_threads();
  settle_suspect();
  note_ranges();
  if (read_uninitialised_ && !(call_.lockstep & 2)) {
    find_tainted(before);
  } else {
    const std::uint8_t* touched = arena.touched[which].data();
    std::uint8_t* valid = arena.valid_ub[which].data();
    for (std::uint64_t b = low_; b < high_; ++b) valid[b] = touched[b] & 2 ? std::uint8_t{kValid} : valid[b];
  }
  if (low_ < high_) std::fill(arena.touched[which].begin() + static_cast<std::ptrdiff_t>(low_), arena.touched[which].begin() + static_cast<std::ptrdiff_t>(high_), std::uint8_t{0});
}

void vector_function(Core& core, Instruction& i) {
  Launch& launch = *core.block->launch;
  if (i.args.vector.simt && i.args.vector.dx * i.args.vector.dy * i.args.vector.dz > 2048)
    raise(core, &i, "capacity", "launches " + std::to_string(i.args.vector.dx * i.args.vector.dy * i.args.vector.dz) + " threads; a vector core runs at most 2048");
  std::array<std::uint32_t, 8> counted{};
  const bool known = [&] {
    if (functional(core)) return false;
    const std::lock_guard<std::mutex> lock(launch.work_mutex);
    const auto it = launch.vector_work.find(i.site);
    if (it == launch.vector_work.end()) return false;
    counted = it->second;
    return true;
  }();
  if (!known) {
    VectorRun run(core, i);
    if (launch.options.check) run.execute_checked();
    else run.execute();
    const VectorWork& w = run.work;
    const std::uint64_t all[8] = {w.threads, w.ub_read, w.ub_written, w.gm_read, w.gm_written, w.barriers, w.warp_ops, w.arithmetic};
    for (std::size_t k = 0; k < 8; ++k) counted[k] = static_cast<std::uint32_t>(std::min<std::uint64_t>(all[k], 0xffffffffu));
    if (!functional(core)) {
      const std::lock_guard<std::mutex> lock(launch.work_mutex);
      launch.vector_work.emplace(i.site, counted);
    }
  }
  if (Event* e = event_of(core, i)) std::copy(counted.begin(), counted.end(), e->a);
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

}  // namespace

void kernel_access(const void* address, std::uint64_t bytes, bool write, const void* from) {
  Core* const core = current_core;
  if (!core) return;
  const auto* at = static_cast<const std::uint8_t*>(address);
  if (current_vector && current_vector->touch_if_ub(at, static_cast<std::uint32_t>(bytes), write, from)) return;
  const bool in_ub = static_cast<std::uint64_t>(at - core->view.ub) < kUbBytes;
  if (!in_ub) {
    if (on_a_stack(address)) return;
    const Launch& launch = *core->block->launch;
    if (at >= launch.code_base && at < launch.code_base + launch.code_bytes) return;  // constants and the api pointer
    if (current_vector && current_vector->owns(at)) return;
    if (at >= reinterpret_cast<const std::uint8_t*>(&core->view) && at < reinterpret_cast<const std::uint8_t*>(&core->view + 1)) return;
    bool known = false;
    for (const Tensor& t : launch.tensors) known = known || (at + bytes > t.base - (1 << 16) && at < t.base + t.bytes + (1 << 16));
    const Arena& arena = *core->block->arena;
    known = known || (at >= arena.map && at < arena.map + arena.map_bytes);
    if (!known) return;  // memory of the simulator itself, such as the function table
  }
  if (current_vector) {
    current_vector->touch(address, static_cast<std::uint32_t>(bytes), write, 0, from);
    return;
  }
  // The scalar program: pipe S.
  Instruction scalar;
  scalar.op = Op::scalar_access;
  scalar.pipe = PIPE_S;
  scalar.site = site_of(*core, from);
  ++core->scalar_work;
  if (core->block->launch->options.check) ++core->clock[PIPE_S][clock_index(*core->block->launch, core->actor(PIPE_S))];
  if (in_ub) {
    const auto lo = static_cast<std::uint64_t>(at - core->view.ub);
    if (core->kind == 0) raise(*core, &scalar, "out_of_bounds", "the cube core dereferences a UB pointer; only vector cores reach UB");
    require_range(*core, scalar, core->ub(), lo, bytes, "scalar access");
    note(*core, scalar, core->ub(), lo, lo + bytes, write);
    auto& valid = core->block->arena->valid_ub[core->kind == 2];
    for (std::uint64_t b = lo; b < lo + bytes && checking(*core); ++b) {
      if (write) valid[b] = kValid;
      else if (valid[b] != kValid) raise_uninitialised(*core, scalar, "the scalar program reads UB byte " + std::to_string(b) + ", which holds no defined value");
    }
    return;
  }
  Tensor& t = require_tensor(*core, scalar, address, bytes, write);
  const auto lo = static_cast<std::uint64_t>(at - t.base);
  note_gm(*core, scalar, t, lo, lo + bytes, write);
}

}  // namespace usim
