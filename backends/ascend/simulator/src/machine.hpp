// State of the simulated machine: a launch has blocks, a block has one cube and two vector cores with their memories,
// a core has pipes with queues, flags, locks and counters. Behaviour is in pipes.cpp, sync.cpp and instructions/.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "events.hpp"
#include "fiber.hpp"
#include "hazards.hpp"
#include "usim/core_api.h"

namespace usim {

inline constexpr std::uint64_t kL1Bytes = 524288, kL0aBytes = 65536, kL0bBytes = 65536, kL0cBytes = 262144,
                               kUbBytes = 262144, kSlotBytes = 4096;
inline constexpr int kPipes = 8;       // pipe_t values; PIPE_ALL names no queue
inline constexpr int kCores = 3;       // AIC, AIV0, AIV1
inline constexpr int kSlots = kPipes * kCores;

enum class Memory : std::uint8_t { gm, l1, l0a, l0b, l0c, slots_a, slots_b, ub0, ub1, count };
const char* memory_name(Memory m);
const char* op_name(Op op);
const char* pipe_name(int pipe);

// How far a byte (or unit) of on-chip memory can be trusted.
enum Validity : std::uint8_t { kNever = 0, kValid = 1, kTainted = 2 };

struct Tensor {
  std::string name;
  std::uint8_t* base = nullptr;
  std::uint64_t bytes = 0;
  bool writable = true;
  std::uint32_t index = 0;
  Shadow shadow;
  std::mutex mutex;
};

struct Options {
  bool check = true;
  bool functional = true;
  bool record = true;
  bool seeded = false;
  bool saturate = false;
  bool memories = false;  // keep the on-chip memories of block 0 as they are at its end
  std::uint64_t seed = 0;
  int threads = 1;
};

// An error of the simulated program. `kind` selects the Python class; accesses are described in words.
struct Fault {
  std::string kind, message, builtin, pipe, core;
  std::int64_t block = -1;
  std::vector<std::uint64_t> sites;  // code offsets named in the message as {0}, {1}, ...
};
struct Stop {};  // thrown on plain threads once a Fault has been stored

union Arguments {
  GmToL1 gm_to_l1;
  FillL1 fill_l1;
  L1ToL0 l1_to_l0;
  L1ToSlots l1_to_slots;
  Mmad mmad;
  Fixpipe fixpipe;
  GmToUb gm_to_ub;
  UbToGm ub_to_gm;
  UbToL1 ub_to_l1;
  Sync sync;
  VectorCall vector;
};

struct Registers {
  std::uint64_t gm2l1_nz = 0x0001000100010001ull, l0c_nz = 1, pad_value = 0;
  std::uint32_t atomic = 0;
  std::uint8_t hf32 = 0, hf32_round = 1, direction = 0;
};

struct Instruction {
  Op op{};
  int pipe = PIPE_S;
  std::uint32_t site = 0;
  std::uint32_t event = ~0u;        // index in the recording
  std::uint32_t dispatch_tick = 0;  // scalar clock tick at dispatch
  std::uint64_t ticket = 0;         // lock: unlocks of this id that must have run first
  Registers registers;
  Arguments args;
  std::vector<std::uint8_t> closure;  // owned copy of a vector function's captured arguments
  Clock scalar_clock;                 // scalar pipe at dispatch (checks only, queued instructions only)
};

// First in, first out. Costs nothing while empty, unlike std::deque: every block has hundreds of them.
template <class T>
class Fifo {
 public:
  bool empty() const { return head_ == items_.size(); }
  std::size_t size() const { return items_.size() - head_; }
  T& front() { return items_[head_]; }
  const T& front() const { return items_[head_]; }
  void push_back(T item) { items_.push_back(std::move(item)); }
  void pop_front() {
    if (++head_ < items_.size() / 2 + 16 && head_ < items_.size()) return;
    items_.erase(items_.begin(), items_.begin() + static_cast<std::ptrdiff_t>(head_));
    head_ = 0;
  }
  auto begin() const { return items_.begin() + static_cast<std::ptrdiff_t>(head_); }
  auto end() const { return items_.end(); }

 private:
  std::vector<T> items_;
  std::size_t head_ = 0;
};

struct Flag {
  bool set = false;
  Clock clock;                       // of the notify
  std::uint32_t site = 0;
  bool consumed_before = false;      // a wait has consumed an earlier notify ...
  std::uint32_t consumed_tick = 0;   // ... at this tick of the waiting pipe
};

struct Lock {
  std::uint64_t dispatched = 0, done = 0;  // unlocks
  std::uint64_t locks = 0;                 // dispatched
  Clock clock;
  std::uint32_t site = 0;                  // last lock
};

struct Counter {
  Fifo<Clock> arrivals;
};

struct Launch;
struct Block;

struct Core {
  Block* block = nullptr;
  int kind = 0;  // 0 AIC, 1 AIV0, 2 AIV1
  bool exists = false;
  CoreView view{};
  Registers registers;
  std::array<Fifo<Instruction>, kPipes> queue;
  std::array<std::array<std::array<Flag, 8>, kPipes>, kPipes> flags;
  std::array<Lock, 32> locks;
  std::array<Counter, 32> counters;                   // own counters; AIVs use 0..15
  std::array<std::array<Fifo<Clock>, 16>, 3> pending;  // arrivals of modes 0, 1, 2 waiting for their partners
  // Unit flags, one per 1024-byte fractal of L0C: set by the mmad that completes a tile (3), awaited by the fixpipe (2, 3)
  // and cleared by it (3); a new tile's mmad (2, 3) waits until they are clear.
  std::array<std::uint8_t, kL0cBytes / 1024> unit_flag{};
  std::vector<Clock> unit_clock;                      // of whoever changed the flag last (checks only)
  std::uint32_t unit_site = 0;
  std::array<Clock, kPipes> clock;
  std::array<std::uint32_t, kPipes> seen_scalar{};    // last scalar tick joined by each pipe
  std::array<std::uint32_t, kPipes> completed{};      // own tick of each pipe up to which its instructions are known to be done
  Fiber fiber;
  Stack* stack = nullptr;                             // of the program; owned by the arena
  const Instruction* blocked = nullptr;               // instruction the scalar program waits for
  std::vector<Event> events;
  std::uint32_t scalar_work = 0;
  std::string taint_origin;                           // first uninitialised read, for messages
  std::uint32_t taint_site = 0;
  std::uint32_t last_site = 0;
  std::unordered_map<std::uint64_t, Clock> cached;    // 64-byte lines of GM in the scalar data cache, since when (checks only)
  Memory ub() const { return kind == 2 ? Memory::ub1 : Memory::ub0; }
  std::uint32_t actor(int pipe) const;
};

// The on-chip memories and program stacks of one block, used by one block after the other. Allocated with guard zones so
// that a stray pointer of generated code faults.
struct Arena {
  Arena();
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  std::uint8_t* l1 = nullptr;
  std::uint8_t* l0a = nullptr;
  std::uint8_t* l0b = nullptr;
  std::uint8_t* l0c = nullptr;
  std::uint8_t* slots[2] = {};
  std::uint8_t* ub[2] = {};
  std::uint8_t* map = nullptr;
  std::uint64_t map_bytes = 0;
  // Validity per 32-byte unit of L1, L0A, L0B and slots, per element of L0C, per byte of UB.
  std::vector<std::uint8_t> valid_l1, valid_l0[2], valid_l0c, valid_slots[2], valid_ub[2];
  // How far each memory has been written since it was last reset; all of it at first.
  std::array<std::uint64_t, static_cast<std::size_t>(Memory::count)> dirty{};
  std::vector<std::uint8_t> touched[2];               // per byte of UB: what the running function did, see accesses.cpp
  std::array<std::unique_ptr<Stack>, kCores> stacks;  // of the cores' programs
  void reset();  // poisons what was written and forgets what was valid
  std::uint8_t* at(Memory m);
  static std::uint64_t bytes(Memory m);
};

struct Block {
  Launch* launch = nullptr;
  std::uint32_t index = 0;
  Arena* arena = nullptr;
  std::array<Core, kCores> cores;
  std::array<Shadow, static_cast<std::size_t>(Memory::count)> shadow;
  std::mt19937_64 random;
};

enum class KernelKind { cube, vector, mixed };

struct Launch {
  std::string kernel;
  KernelKind kind = KernelKind::cube;
  std::uint32_t grid = 1;
  void (*entry)(void**) = nullptr;
  const std::uint8_t* code_base = nullptr;  // load address of the kernel's shared object
  std::uint64_t code_bytes = 0;
  std::vector<void*> arguments;
  std::deque<Tensor> tensors;
  Options options;
  bool inter = false;       // blocks synchronise with each other: all alive, one thread
  std::mutex fault_mutex;
  std::unique_ptr<Fault> fault;
  // Lowest block with a fault. Blocks behind it stop; blocks before it finish, so that the same fault is reported
  // whatever the threads' timing.
  std::atomic<std::uint32_t> fault_block{~0u};
  bool stopped(std::uint32_t block) const { return block >= fault_block.load(std::memory_order_relaxed); }
  std::mutex recording_mutex;
  std::vector<CoreRecording> recordings;
  std::vector<Block*> blocks;  // alive ones of an inter launch
  std::mutex work_mutex;
  std::unordered_map<std::uint64_t, std::array<std::uint32_t, 8>> vector_work;  // counted once per site, functional=False
  std::vector<std::string> warnings;
  std::vector<std::pair<std::string, std::vector<std::uint8_t>>> memories;
  std::size_t clock_size() const { return inter ? static_cast<std::size_t>(grid) * kSlots : kSlots; }
};

inline std::uint32_t Core::actor(int pipe) const {
  return block->index * kSlots + static_cast<std::uint32_t>(kind * kPipes + pipe);
}
inline std::size_t clock_index(const Launch& launch, std::uint32_t actor) {
  return launch.inter ? actor : actor % kSlots;
}

// ---- launch.cpp -----------------------------------------------------------------------------------------------------
void run_launch(Launch& launch);

// ---- pipes.cpp ------------------------------------------------------------------------------------------------------
// Read on every builtin and every checked access: worth the few bytes of static thread storage this model needs.
extern constinit thread_local Core* current_core __attribute__((tls_model("initial-exec")));
// Both run all programs and pipes of the blocks to their end, or throw Stop.
void schedule_in_order(std::vector<Block*>& blocks);
void schedule_seeded(std::vector<Block*>& blocks);
std::string describe(const Core& core);
[[noreturn]] void raise(Core& core, const Instruction* instruction, const char* kind, std::string message,
                        std::vector<std::uint64_t> sites = {});
// Stores the fault without leaving: what raise() does first.
void record_fault(Core& core, const Instruction* instruction, const char* kind, std::string message, std::vector<std::uint64_t> sites);
std::uint32_t site_of(const Core& core, const void* return_address);
void warn(Core& core, std::string message);

// ---- sync.cpp -------------------------------------------------------------------------------------------------------
// What happened before `from` also happened before whatever `pipe` does next.
void join_pipe(Core& core, int pipe, const Clock& from);
bool is_sync(Op op);
bool has_unit_flag(const Instruction& i);
void before_unit_flag(Core& core, const Instruction& i);  // ordering taken over from the flags' last change
void after_unit_flag(Core& core, const Instruction& i);
bool runnable(Core& core, const Instruction& i);
void execute_sync(Core& core, const Instruction& i);
void check_end(Block& block);
std::string waiting_for(Core& core, const Instruction& i);

// ---- instructions/ --------------------------------------------------------------------------------------------------
void execute(Core& core, Instruction& i);
void copy_gm_to_l1(Core& core, const Instruction& i);
void fill_l1(Core& core, const Instruction& i);
void copy_l1_to_l0(Core& core, const Instruction& i);
void copy_l1_to_slots(Core& core, const Instruction& i);
void matrix_multiply(Core& core, const Instruction& i);
void copy_l0c(Core& core, const Instruction& i);
void copy_gm_to_ub(Core& core, const Instruction& i);
void copy_ub_to_gm(Core& core, const Instruction& i);
void copy_ub_to_l1(Core& core, const Instruction& i);
void vector_function(Core& core, Instruction& i);

// ---- memory.cpp: what every instruction does with its operands before touching bytes --------------------------------
// Range and alignment rules; raises OutOfBounds, Misaligned or Capacity faults.
void require_range(Core& core, const Instruction& i, Memory m, std::uint64_t lo, std::uint64_t bytes, const char* what);
void require_aligned(Core& core, const Instruction& i, Memory m, std::uint64_t address, std::uint64_t alignment, const char* what);
// The tensor that holds [p, p + bytes); raises OutOfBounds naming the nearest tensor otherwise.
Tensor* find_tensor(Launch& launch, const void* p, std::uint64_t bytes);
Tensor& require_tensor(Core& core, const Instruction& i, const void* p, std::uint64_t bytes, bool write);
// Happens-before: records the access and raises Race if nothing orders it after a conflicting one.
// Accesses of equal non-zero `atomic` kind commute.
void note(Core& core, const Instruction& i, Memory m, std::uint64_t lo, std::uint64_t hi, bool write, std::uint16_t atomic = 0);
void note_gm(Core& core, const Instruction& i, Tensor& t, std::uint64_t lo, std::uint64_t hi, bool write, std::uint16_t atomic = 0);
// Remembers where uninitialised data entered, to be named when it reaches an output.
void taint(Core& core, const Instruction& i, Memory m, std::uint64_t lo, std::uint64_t hi);
// How many units from `valid` on are valid without a gap, at most `units`.
std::uint64_t valid_units(const std::uint8_t* valid, std::uint64_t units);
[[noreturn]] void raise_uninitialised(Core& core, const Instruction& i, const std::string& what);
inline bool checking(const Core& core) { return core.block->launch->options.check; }
inline bool functional(const Core& core) { return core.block->launch->options.functional; }
Event* event_of(Core& core, const Instruction& i);

}  // namespace usim
