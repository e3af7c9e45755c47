// The vector function that is running on this thread, and what the kernel's own memory accesses report to it.
#pragma once

#include "machine.hpp"

namespace usim {

struct GmRange {
  Tensor* tensor = nullptr;
  std::uint64_t lo = 0, hi = 0;
  bool write = false;
  std::uint16_t atomic = 0;
};

class ThreadHistory;

// Work counters of one vector call, in the order of Event::a.
struct VectorWork {
  std::uint64_t threads = 0, ub_read = 0, ub_written = 0, gm_read = 0, gm_written = 0, barriers = 0, warp_ops = 0, arithmetic = 0;
};

class VectorRun {
 public:
  VectorRun(Core& core, const Instruction& instruction);
  void execute();                          // all threads, without checks
  void execute_checked();                  // all threads, then range, order and initialisation checks
  void touch(const void* address, std::uint32_t bytes, bool write, std::uint16_t atomic, const void* from);
  // The usual access at a UB offset, recorded with few instructions; false if it has to be looked at by touch().
  template <std::uint32_t N, bool write> bool usual(std::uint64_t offset);
  std::uint64_t ub_offset(const void* p) const { return static_cast<std::uint64_t>(static_cast<const std::uint8_t*>(p) - ub_); }
  void next_thread(std::uint32_t x, std::uint32_t y, std::uint32_t z);
  void sync_threads(const void* from);
  void sync_warp(const void* from);
  void memory_barrier();
  const WarpValues* warp_exchange(const void* value, std::uint32_t bytes, const void* from);
  const ThreadView* thread() const { return &view_; }
  // Memory of the run itself that kernel code reads: captured arguments, thread index, exchanged values.
  bool owns(const std::uint8_t* p) const {
    const std::vector<std::uint8_t>& c = instruction_.closure;
    const auto* self = reinterpret_cast<const std::uint8_t*>(this);
    return (p >= c.data() && p < c.data() + c.size()) || (p >= self && p < self + sizeof(*this));
  }
  Op operation() const { return instruction_.op; }
  VectorWork work;

 private:
  enum class Wait : std::uint8_t { none, barrier, warp, done };
  struct Thread {
    Fiber fiber;
    Wait wait = Wait::none;
    const void* from = nullptr;
    const void* value = nullptr;
    std::uint32_t bytes = 0;
    std::uint32_t call = 0;  // source line (and file) of the warp function it waits in
    ThreadIndex index{};
    std::uint32_t linear = 0;
    VectorRun* run = nullptr;
  };
  struct Undo {
    std::uint8_t* address;
    std::uint32_t bytes;
    std::uint8_t old[16];
  };
  void run_threads();
  void run_lockstep();
  void run_warp(std::uint32_t first, std::uint32_t last);
  void finish_warp_operation(std::uint32_t first, std::uint32_t last);
  void finish_barrier();
  void next_interval();
  void settle_suspect();
  void touch_ub(std::uint64_t offset, std::uint32_t bytes, bool write, std::uint16_t atomic, const void* from);
  void check_threads(std::uint64_t offset, std::uint32_t bytes, bool write, const void* from);
  void check_atomic(std::uint64_t offset, std::uint32_t bytes, const void* from);
  void check_overtaking(std::uint64_t offset, std::uint32_t bytes, const void* from);
  void mark_written(std::uint64_t offset, std::uint32_t bytes);
  void touch_gm(Tensor& tensor, std::uint64_t lo, std::uint32_t bytes, bool write, std::uint16_t atomic);
  std::uint64_t range_end(std::uint64_t at, std::uint64_t end, std::uint8_t bit, bool set) const;
  void note_ranges();
  void define_written();
  void find_tainted(const std::vector<std::uint8_t>& before);
  void restore_gm();
  [[noreturn]] void raise_at(const char* kind, std::string message, const void* from, std::vector<std::uint64_t> sites = {});

  Core& core_;
  const Instruction& instruction_;
  const VectorCall& call_;
  ThreadView view_{};
  std::vector<Thread> threads_;
  Thread* current_ = nullptr;
  WarpValues values_{};
  // Of checked runs: the UB, who touched it since the last barrier, what this run touched, what is defined.
  const std::uint8_t* ub_ = nullptr;
  ThreadHistory* history_ = nullptr;
  std::uint8_t* touched_ = nullptr;         // bits of enum Touch per byte
  std::uint64_t write_mark_ = 0, write_keep_ = ~0ull;  // what a write sets and keeps, for eight bytes
  std::uint8_t* valid_ = nullptr;
  std::uint64_t low_ = ~0ull, high_ = 0;    // touched bytes of UB
  std::uint32_t interval_ = 0;              // between barriers, << 12; threads of one interval are unordered
  bool threads_unordered_ = false;          // several threads without an order of their own
  bool watched_ = false;                    // usual accesses may be recorded: logged, and no suspect to settle first
  bool log_ = true;                         // false while the function is repeated to find tainted results
  bool read_uninitialised_ = false;
  bool warned_ = false;
  std::vector<GmRange> gm_;
  std::vector<Undo> undo_;
  struct Suspect { std::uint64_t offset = 0; std::uint32_t bytes = 0; std::uint8_t old[16] = {}; const void* from = nullptr; std::uint32_t other = 0; } suspect_;
};

extern constinit thread_local VectorRun* current_vector __attribute__((tls_model("initial-exec")));
// Reports of the compiler's instrumentation: every load and store of kernel code compiled for checking.
void kernel_access(const void* address, std::uint64_t bytes, bool write, const void* from);
// The same of the scalar program, past its data cache.
void uncached_access(const void* address, std::uint64_t bytes, bool write, const void* from);
const AccessHooks& access_hooks();

}  // namespace usim
