// Dispatch and scheduling. The scalar program of a core is a fiber that dispatches instructions to in-order pipe queues.
// By default an instruction whose pipe is idle runs at once, so blocks run in program order without queueing; with a
// seed everything is queued and a random runnable pipe or program advances next.
#include "vector.hpp"

namespace usim {

constinit thread_local Core* current_core = nullptr;

namespace {

constexpr std::size_t kQueueLimit = 1 << 14;  // a program further ahead than this waits for its pipes

std::size_t at(int pipe) { return static_cast<std::size_t>(pipe); }

// Which pipe an instruction queues on.
int pipe_of(Op op, const Arguments& a) {
  switch (op) {
    case Op::asc_copy_gm2l1_nd2nz: case Op::asc_copy_gm2l1_dn2nz: case Op::asc_fill_l1: case Op::asc_copy_gm2ub_align: return PIPE_MTE2;
    case Op::asc_copy_l12l0a: case Op::asc_copy_l12l0b: case Op::asc_copy_l12l0a_transpose: case Op::asc_copy_l12l0b_transpose:
    case Op::asc_copy_l12l0a_mx: case Op::asc_copy_l12l0b_mx: return PIPE_MTE1;
    case Op::asc_mmad: case Op::asc_mmad_mx: return PIPE_M;
    case Op::asc_copy_l0c2gm: case Op::asc_copy_l0c2ub: return PIPE_FIX;
    case Op::asc_copy_ub2gm_align: case Op::asc_copy_ub2l1: return PIPE_MTE3;
    case Op::asc_vf_call: case Op::simd_vf: return PIPE_V;
    case Op::asc_sync_notify: return a.sync.src;
    case Op::asc_sync_wait: return a.sync.dst;
    case Op::asc_sync: case Op::scalar_access: case Op::count: return PIPE_S;
    default: return a.sync.src;
  }
}

std::size_t argument_bytes(Op op) {
  switch (op) {
    case Op::asc_copy_gm2l1_nd2nz: case Op::asc_copy_gm2l1_dn2nz: return sizeof(GmToL1);
    case Op::asc_fill_l1: return sizeof(FillL1);
    case Op::asc_copy_l12l0a: case Op::asc_copy_l12l0b: case Op::asc_copy_l12l0a_transpose: case Op::asc_copy_l12l0b_transpose: return sizeof(L1ToL0);
    case Op::asc_copy_l12l0a_mx: case Op::asc_copy_l12l0b_mx: return sizeof(L1ToSlots);
    case Op::asc_mmad: case Op::asc_mmad_mx: return sizeof(Mmad);
    case Op::asc_copy_l0c2gm: case Op::asc_copy_l0c2ub: return sizeof(Fixpipe);
    case Op::asc_copy_gm2ub_align: return sizeof(GmToUb);
    case Op::asc_copy_ub2gm_align: return sizeof(UbToGm);
    case Op::asc_copy_ub2l1: return sizeof(UbToL1);
    case Op::asc_vf_call: case Op::simd_vf: return sizeof(VectorCall);
    default: return sizeof(Sync);
  }
}

// Runs one instruction whose turn it is on its pipe.
void run(Core& core, Instruction& i, const Clock* scalar) {
  Core* const outer = current_core;
  current_core = &core;
  if (checking(core)) {
    Clock& clock = core.clock[at(i.pipe)];
    if (i.pipe != PIPE_S && core.seen_scalar[at(i.pipe)] != i.dispatch_tick) {
      join_pipe(core, i.pipe, *scalar);
      core.seen_scalar[at(i.pipe)] = i.dispatch_tick;
    }
    ++clock[clock_index(*core.block->launch, core.actor(i.pipe))];
  }
  if (is_sync(i.op)) {
    execute_sync(core, i);
  } else if (has_unit_flag(i)) {
    before_unit_flag(core, i);
    execute(core, i);
    after_unit_flag(core, i);
  } else {
    execute(core, i);
  }
  current_core = outer;
}

bool head_runnable(Core& core, int pipe) {
  auto& q = core.queue[at(pipe)];
  return !q.empty() && runnable(core, q.front());
}

void run_head(Core& core, int pipe) {
  auto& q = core.queue[at(pipe)];
  Instruction i = std::move(q.front());
  q.pop_front();
  run(core, i, &i.scalar_clock);
}

bool program_ready(Core& core) {
  if (core.fiber.finished()) return false;
  if (core.blocked == nullptr) return true;
  if (core.blocked->pipe == PIPE_S) return runnable(core, *core.blocked);
  return core.queue[at(core.blocked->pipe)].size() < kQueueLimit / 2;
}

void resume_program(Core& core) {
  Core* const outer = current_core;
  current_core = &core;
  core.fiber.resume();
  current_core = outer;
  if (core.block->launch->stopped(core.block->index)) throw Stop{};
}

[[noreturn]] void raise_deadlock(std::vector<Block*>& blocks) {
  std::string message = "no core can advance:";
  std::vector<std::uint64_t> sites;
  Core* first = nullptr;
  const Instruction* where = nullptr;
  int listed = 0;
  for (Block* b : blocks)
    for (Core& core : b->cores) {
      if (!core.exists) continue;
      const auto add = [&](const Instruction& i) {
        if (listed++ >= 12) return;
        std::string text = waiting_for(core, i);
        const auto brace = text.find("{0}");
        if (brace != std::string::npos) text.replace(brace, 3, "{" + std::to_string(sites.size()) + "}");
        sites.push_back(i.site);
        message += "\n  " + text;
        if (!first) first = &core, where = &i;
      };
      if (core.blocked && core.blocked->pipe == PIPE_S) add(*core.blocked);
      for (int p = 0; p < kPipes; ++p)
        if (!core.queue[at(p)].empty()) add(core.queue[at(p)].front());
    }
  if (listed > 12) message += "\n  and " + std::to_string(listed - 12) + " more";
  message += "\nEvery wait needs a notify, arrive or unlock that can still happen";
  if (!first) first = &blocks.front()->cores[0];
  raise(*first, where, "deadlock", message, sites);
}

}  // namespace

void schedule_in_order(std::vector<Block*>& blocks) {
  for (;;) {
    bool progress = false, alive = false;
    for (Block* b : blocks)
      for (Core& core : b->cores) {
        if (!core.exists) continue;
        for (int p = 0; p < kPipes; ++p)
          while (head_runnable(core, p)) {
            run_head(core, p);
            progress = true;
          }
        if (program_ready(core)) {
          resume_program(core);
          progress = true;
        }
        for (const auto& q : core.queue) alive = alive || !q.empty();
        alive = alive || !core.fiber.finished();
      }
    if (!alive) return;
    if (!progress) raise_deadlock(blocks);
  }
}

void schedule_seeded(std::vector<Block*>& blocks) {
  std::mt19937_64& random = blocks.front()->random;
  std::vector<std::pair<Core*, int>> ready;
  for (;;) {
    ready.clear();
    bool alive = false;
    for (Block* b : blocks)
      for (Core& core : b->cores) {
        if (!core.exists) continue;
        for (int p = 0; p < kPipes; ++p)
          if (!core.queue[at(p)].empty()) {
            alive = true;
            if (runnable(core, core.queue[at(p)].front())) ready.emplace_back(&core, p);
          }
        if (!core.fiber.finished()) {
          alive = true;
          if (program_ready(core)) ready.emplace_back(&core, -1);
        }
      }
    if (!alive) return;
    if (ready.empty()) raise_deadlock(blocks);
    const auto [core, pipe] = ready[random() % ready.size()];
    if (pipe < 0) {
      resume_program(*core);
      continue;
    }
    for (std::uint64_t n = random() % 4 + 1; n > 0 && head_runnable(*core, pipe); --n) run_head(*core, pipe);
  }
}

std::string describe(const Core& core) {
  constexpr const char* kinds[] = {"AIC", "AIV0", "AIV1"};
  return "block " + std::to_string(core.block->index) + " " + kinds[core.kind];
}

std::uint32_t site_of(const Core& core, const void* return_address) {
  return static_cast<std::uint32_t>(static_cast<const std::uint8_t*>(return_address) - core.block->launch->code_base);
}

void warn(Core& core, std::string message) {
  Launch& launch = *core.block->launch;
  const std::lock_guard<std::mutex> lock(launch.fault_mutex);
  for (const std::string& w : launch.warnings)
    if (w == message) return;
  if (launch.warnings.size() < 20) launch.warnings.push_back(std::move(message));
}

void record_fault(Core& core, const Instruction* instruction, const char* kind, std::string message, std::vector<std::uint64_t> sites) {
  Launch& launch = *core.block->launch;
  const std::lock_guard<std::mutex> lock(launch.fault_mutex);
  if (core.block->index >= launch.fault_block.load()) return;
  launch.fault_block.store(core.block->index);
  launch.fault = std::make_unique<Fault>();
  Fault& f = *launch.fault;
  f.kind = kind;
  f.message = std::move(message);
  f.core = core.kind == 0 ? "AIC" : core.kind == 1 ? "AIV0" : "AIV1";
  f.block = core.block->index;
  f.sites = std::move(sites);
  if (instruction) {
    f.builtin = op_name(instruction->op);
    f.pipe = pipe_name(instruction->pipe);
    f.sites.push_back(instruction->site);
  } else {
    f.sites.push_back(0);
  }
}

void raise(Core& core, const Instruction* instruction, const char* kind, std::string message, std::vector<std::uint64_t> sites) {
  record_fault(core, instruction, kind, std::move(message), std::move(sites));
  // A program on its own stack is left where it stands; its stack is freed with the block.
  while (Fiber::running()) Fiber::yield();
  throw Stop{};
}

// Called by the kernel for every builtin.
void dispatch(Op op, const void* args, const void* return_address) {
  Core& core = *current_core;
  Launch& launch = *core.block->launch;
  Instruction i;
  i.op = op;
  std::memcpy(&i.args, args, argument_bytes(op));
  i.pipe = pipe_of(op, i.args);
  i.site = site_of(core, return_address);
  i.registers = core.registers;
  core.last_site = i.site;
  if (i.pipe < 0 || i.pipe >= kPipes || i.pipe == PIPE_ALL)
    raise(core, &i, "flag", "pipe number " + std::to_string(i.pipe) + " cannot hold instructions");
  if (op == Op::asc_lock || op == Op::asc_unlock) {
    if (i.args.sync.id < 0 || i.args.sync.id > 31) raise(core, &i, "flag", "lock id " + std::to_string(i.args.sync.id) + " is outside 0..31");
    Lock& lock = core.locks[static_cast<std::size_t>(i.args.sync.id)];
    if (op == Op::asc_unlock) {
      ++lock.dispatched;
    } else {
      i.ticket = i.args.sync.mode == 0 ? lock.dispatched : 0;
      ++lock.locks;
      lock.site = i.site;
    }
  }
  if (op == Op::asc_vf_call || op == Op::simd_vf) {
    const auto* bytes = static_cast<const std::uint8_t*>(i.args.vector.closure);
    i.closure.assign(bytes, bytes + i.args.vector.closure_bytes);
  }
  if (launch.options.record) {
    Event e;
    e.op = static_cast<std::uint16_t>(op);
    e.pipe = static_cast<std::uint8_t>(i.pipe);
    e.site = i.site;
    e.scalar = core.scalar_work;
    core.scalar_work = 0;
    if (is_sync(op)) {
      e.a[0] = static_cast<std::uint32_t>(i.args.sync.src);
      e.a[1] = static_cast<std::uint32_t>(i.args.sync.dst);
      e.a[2] = static_cast<std::uint32_t>(i.args.sync.id);
      e.a[3] = static_cast<std::uint32_t>(i.args.sync.mode);
    }
    i.event = static_cast<std::uint32_t>(core.events.size());
    core.events.push_back(e);
  }
  Clock& scalar = core.clock[PIPE_S];
  if (launch.options.check) {
    // Every dispatch is a point in the scalar program's time that its instruction comes after.
    i.dispatch_tick = ++scalar[clock_index(launch, core.actor(PIPE_S))];
  }
  auto& queue = core.queue[at(i.pipe)];
  const bool at_once = (!launch.options.seeded || i.pipe == PIPE_S) && queue.empty();
  if (at_once && runnable(core, i)) {
    run(core, i, &scalar);
  } else if (i.pipe == PIPE_S) {
    core.blocked = &i;
    Fiber::yield();
    core.blocked = nullptr;
    run(core, i, &scalar);
  } else {
    if (launch.options.check) i.scalar_clock = scalar;
    const int pipe = i.pipe;
    queue.push_back(std::move(i));
    if (queue.size() > kQueueLimit) {
      Instruction full;
      full.pipe = pipe;
      core.blocked = &full;
      Fiber::yield();
      core.blocked = nullptr;
    } else if (launch.options.seeded && core.block->random() % 4 == 0) {
      Fiber::yield();
    }
  }
}

}  // namespace usim
