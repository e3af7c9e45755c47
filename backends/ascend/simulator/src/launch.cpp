// A launch: its blocks are handed to host threads, each with the memories and stacks to run one block at a time.
#include <algorithm>
#include <thread>

#include "signals.hpp"
#include "vector.hpp"

namespace usim {

namespace {

constexpr std::size_t kProgramStack = 1 << 20;
constexpr std::size_t kSpareArenas = 8;

// Arenas of clean checked launches, poisoned and mapped: making one costs more than a small kernel.
std::mutex spare_mutex;
std::vector<std::unique_ptr<Arena>> spare_arenas;

// The on-chip memories for the blocks of one host thread. Unchecked launches start from zeros and take fresh ones.
class ArenaLease {
 public:
  explicit ArenaLease(const Launch& launch) : launch_(launch) {
    const std::lock_guard<std::mutex> lock(spare_mutex);
    if (launch.options.check && !spare_arenas.empty()) {
      arena_ = std::move(spare_arenas.back());
      spare_arenas.pop_back();
    }
  }
  ~ArenaLease() {
    // After a fault nobody knows what was written.
    if (!arena_ || !launch_.options.check || launch_.fault_block.load() != ~0u) return;
    const std::lock_guard<std::mutex> lock(spare_mutex);
    if (spare_arenas.size() < kSpareArenas) spare_arenas.push_back(std::move(arena_));
  }
  ArenaLease(const ArenaLease&) = delete;
  ArenaLease& operator=(const ArenaLease&) = delete;
  Arena& get() {
    if (!arena_) arena_ = std::make_unique<Arena>();
    return *arena_;
  }

 private:
  const Launch& launch_;
  std::unique_ptr<Arena> arena_;
};

void prepare_block(Block& block, Launch& launch, std::uint32_t index, Arena& arena) {
  block.launch = &launch;
  block.index = index;
  block.arena = &arena;
  block.random.seed(launch.options.seed * 0x9e3779b97f4a7c15ull + index);
  for (int k = 0; k < kCores; ++k) {
    Core& core = block.cores[static_cast<std::size_t>(k)];
    core.block = &block;
    core.kind = k;
    core.exists = launch.kind == KernelKind::mixed || (launch.kind == KernelKind::cube && k == 0) ||
                  (launch.kind == KernelKind::vector && k == 1);
    core.view = CoreView{arena.ub[k == 2 ? 1 : 0], static_cast<std::int32_t>(index), static_cast<std::int32_t>(launch.grid),
                         k == 2 ? 1 : 0, k == 0 ? 1 : 0, launch.options.saturate ? 1 : 0};
    if (!core.exists) continue;
    if (launch.options.check)
      for (Clock& c : core.clock) c.assign(launch.clock_size(), 0);
    std::unique_ptr<Stack>& stack = arena.stacks[static_cast<std::size_t>(k)];
    if (!stack) stack = std::make_unique<Stack>(kProgramStack);
    core.stack = stack.get();
    core.fiber.start(*stack, [](void* p) {
      Launch& l = *current_core->block->launch;
      (void)p;
      l.entry(l.arguments.data());
    }, nullptr);
  }
  if (launch.options.check) arena.reset();
}

void finish_block(Block& block) {
  Launch& launch = *block.launch;
  if (launch.options.check) check_end(block);
  if (launch.options.memories && block.index == 0)
    for (int m = 1; m < static_cast<int>(Memory::count); ++m) {
      const auto memory = static_cast<Memory>(m);
      const std::uint8_t* bytes = block.arena->at(memory);
      launch.memories.emplace_back(memory_name(memory), std::vector<std::uint8_t>(bytes, bytes + Arena::bytes(memory)));
    }
  if (!launch.options.record) return;
  const std::lock_guard<std::mutex> lock(launch.recording_mutex);
  for (Core& core : block.cores)
    if (core.exists)
      launch.recordings.push_back({block.index, static_cast<std::uint32_t>(core.kind), std::move(core.events)});
}

void run_blocks(Launch& launch, std::vector<Block*>& blocks) {
  FaultGuard guard;
  try {
    if (sigsetjmp(guard.landing, 0) != 0) throw Stop{};  // kernel code on this stack has faulted
    if (launch.options.seeded) schedule_seeded(blocks);
    else schedule_in_order(blocks);
    for (Block* b : blocks) finish_block(*b);
  } catch (const Stop&) {
    // The fault is stored in the launch. Stacks left where they stood may have been inside a vector function.
    current_core = nullptr;
    current_vector = nullptr;
  }
}

}  // namespace

void run_launch(Launch& launch) {
  if (launch.inter) {
    std::deque<ArenaLease> arenas;
    std::vector<std::unique_ptr<Block>> blocks;
    for (std::uint32_t b = 0; b < launch.grid; ++b) {
      blocks.push_back(std::make_unique<Block>());
      prepare_block(*blocks.back(), launch, b, arenas.emplace_back(launch).get());
      launch.blocks.push_back(blocks.back().get());
    }
    run_blocks(launch, launch.blocks);
    return;
  }
  std::atomic<std::uint32_t> next{0};
  const auto worker = [&] {
    ArenaLease arena(launch);
    for (;;) {
      const std::uint32_t b = next.fetch_add(1);
      if (b >= launch.grid || launch.stopped(b)) return;
      Block block;
      prepare_block(block, launch, b, arena.get());
      std::vector<Block*> one{&block};
      run_blocks(launch, one);
    }
  };
  const int extra = std::min<int>(launch.options.threads, static_cast<int>(launch.grid)) - 1;
  std::vector<std::thread> threads;
  for (int t = 0; t < extra; ++t) threads.emplace_back(worker);
  worker();
  for (std::thread& t : threads) t.join();
}

}  // namespace usim
