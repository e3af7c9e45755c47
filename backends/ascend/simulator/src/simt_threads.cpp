// Threads of a SIMT function that meet in barriers and warp functions (e.1): one stack each, run in turn.
#include <algorithm>

#include "vector.hpp"

namespace usim {

namespace {

constexpr std::size_t kThreadStack = 64 << 10;

thread_local std::vector<std::unique_ptr<Stack>> thread_stacks;

[[noreturn]] void leave() {
  while (Fiber::running()) Fiber::yield();
  throw Stop{};
}

}  // namespace

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
  next_interval();
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
  next_interval();
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
  next_interval();
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
  if (orders_memory) next_interval();
  return &values_;
}

}  // namespace usim
