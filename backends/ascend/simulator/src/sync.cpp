// Flags, locks, barriers and cross-core counters (d): when an instruction may run, and what running it publishes.
#include <algorithm>

#include "machine.hpp"

namespace usim {

namespace {

std::size_t at(int pipe) { return static_cast<std::size_t>(pipe); }

int cross_mode(Op op) {
  switch (op) {
    case Op::asc_sync_inter_arrive: case Op::asc_sync_inter_wait: return 0;
    case Op::asc_sync_subblock_arrive: case Op::asc_sync_subblock_wait: return 1;
    case Op::asc_sync_block_arrive: case Op::asc_sync_block_wait: return 2;
    default: return 4;
  }
}
bool is_cross_wait(Op op) {
  return op == Op::asc_sync_inter_wait || op == Op::asc_sync_subblock_wait || op == Op::asc_sync_block_wait || op == Op::asc_sync_intra_wait;
}
bool is_cross_arrive(Op op) {
  return op == Op::asc_sync_inter_arrive || op == Op::asc_sync_subblock_arrive || op == Op::asc_sync_block_arrive || op == Op::asc_sync_intra_arrive;
}

void arrive(Core& core, const Instruction& i, Core& target, std::int64_t id, const Clock& clock) {
  if (!target.exists)
    raise(core, &i, "flag", "signals a core that this kernel does not have (a " +
          std::string(target.kind == 0 ? "cube" : "vector") + " core); cross-core signals need a mixed kernel");
  Counter& counter = target.counters[static_cast<std::size_t>(id)];
  if (counter.arrivals.size() >= 15)
    raise(core, &i, "flag", "counter " + std::to_string(id) + " of " + describe(target) +
          " would exceed 15, the most a cross-core counter holds; let the waiting side catch up");
  counter.arrivals.push_back(clock);
}

// Modes 0 to 2: once every member has arrived, one arrival of each is taken and every receiver is signalled.
void group_arrive(Core& core, const Instruction& i, int mode, std::int64_t id, const Clock& clock) {
  Block& block = *core.block;
  Launch& launch = *block.launch;
  std::vector<Core*> members, receivers;
  if (mode == 0) {
    for (Block* b : launch.blocks)
      for (Core& c : b->cores)
        if (c.exists && (c.kind == 0) == (core.kind == 0)) members.push_back(&c);
    receivers = members;
  } else if (mode == 1) {
    members = {&block.cores[1], &block.cores[2]};
    receivers = members;
  } else if (core.kind == 0) {
    members = {&core};
    receivers = {&block.cores[1], &block.cores[2]};
  } else {
    members = {&block.cores[1], &block.cores[2]};
    receivers = {&block.cores[0]};
  }
  const auto m = static_cast<std::size_t>(mode), n = static_cast<std::size_t>(id);
  core.pending[m][n].push_back(clock);
  for (Core* c : members)
    if (c->pending[m][n].empty()) return;
  Clock joined = clock;
  for (Core* c : members) {
    join(joined, c->pending[m][n].front());
    c->pending[m][n].pop_front();
  }
  for (Core* c : receivers) arrive(core, i, *c, id, joined);
}

void check_cross(Core& core, const Instruction& i) {
  const Sync& s = i.args.sync;
  const bool cube = core.kind == 0;
  const std::int64_t limit = cube && cross_mode(i.op) == 4 ? 32 : 16;
  if (s.id < 0 || s.id >= limit)
    raise(core, &i, "flag", "cross-core id " + std::to_string(s.id) + " is outside 0.." + std::to_string(limit - 1));
  const int p = s.src;
  const bool legal = cube ? (p == PIPE_S || p == PIPE_M || p == PIPE_MTE1 || p == PIPE_MTE2 || p == PIPE_FIX)
                          : (p == PIPE_S || p == PIPE_V || p == PIPE_MTE2 || p == PIPE_MTE3);
  if (!legal) raise(core, &i, "flag", std::string("pipe ") + pipe_name(p) + " does not exist on " + describe(core));
}

void execute_cross(Core& core, const Instruction& i) {
  const Sync& s = i.args.sync;
  if (is_cross_arrive(i.op)) {
    const Clock& clock = core.clock[at(i.pipe)];
    Block& block = *core.block;
    if (i.op == Op::asc_sync_intra_arrive) {
      if (core.kind == 0) arrive(core, i, block.cores[s.id < 16 ? 1 : 2], s.id % 16, clock);
      else arrive(core, i, block.cores[0], s.id + (core.kind == 2 ? 16 : 0), clock);
    } else {
      group_arrive(core, i, cross_mode(i.op), s.id, clock);
    }
    return;
  }
  Counter& counter = core.counters[static_cast<std::size_t>(s.id)];
  if (checking(core)) join_pipe(core, i.pipe, counter.arrivals.front());
  counter.arrivals.pop_front();
}

void check_flag_arguments(Core& core, const Instruction& i) {
  const Sync& s = i.args.sync;
  const auto exists = [&](int p) {
    if (p < 0 || p >= kPipes || p == PIPE_ALL) return false;
    return core.kind == 0 ? p != PIPE_V && p != PIPE_MTE3 : p != PIPE_M && p != PIPE_MTE1 && p != PIPE_FIX;
  };
  if (!exists(s.src) || !exists(s.dst))
    raise(core, &i, "flag", std::string("pipe pair (") + pipe_name(s.src) + ", " + pipe_name(s.dst) + ") does not exist on " + describe(core));
  if (s.src == s.dst)
    raise(core, &i, "flag", std::string("source and destination are both pipe ") + pipe_name(s.src) + "; order inside one pipe with asc_sync_pipe");
  if (s.id < 0 || s.id > 7) raise(core, &i, "flag", "event id " + std::to_string(s.id) + " is outside 0..7");
}

void notify(Core& core, const Instruction& i) {
  const Sync& s = i.args.sync;
  Flag& flag = core.flags[at(s.src)][at(s.dst)][static_cast<std::size_t>(s.id)];
  const std::string name = std::string("flag (") + pipe_name(s.src) + ", " + pipe_name(s.dst) + ", " + std::to_string(s.id) + ")";
  if (flag.set) raise(core, &i, "flag", name + " is set twice without a wait in between; it was set before at {0}", {flag.site});
  if (checking(core) && flag.consumed_before) {
    const auto waiter = clock_index(*core.block->launch, core.actor(s.dst));
    if (core.clock[at(s.src)][waiter] < flag.consumed_tick)
      raise(core, &i, "flag", name + " may be set again before pipe " + pipe_name(s.dst) +
            " has consumed its previous setting ({0}): nothing orders this notify after that wait; return a flag from " +
            pipe_name(s.dst) + " to " + pipe_name(s.src) + " or alternate ids", {flag.site});
  }
  flag.set = true;
  flag.site = i.site;
  if (checking(core)) flag.clock = core.clock[at(s.src)];
}

enum : int { kUnitOff = 0, kUnitKeep = 2, kUnitUpdate = 3 };

int unit_mode(const Instruction& i) {
  if (i.op == Op::asc_mmad || i.op == Op::asc_mmad_mx) return i.args.mmad.unit_flag;
  if (i.op == Op::asc_copy_l0c2gm || i.op == Op::asc_copy_l0c2ub) return i.args.fixpipe.unit_flag;
  return kUnitOff;
}
bool multiplies(Op op) { return op == Op::asc_mmad || op == Op::asc_mmad_mx; }

// Calls `visit(fractal)` for every fractal of L0C that the instruction's tile covers; places outside L0C are skipped,
// the instruction itself reports them.
template <class Visit>
void each_fractal(const Instruction& i, Visit&& visit) {
  const bool mmad = multiplies(i.op);
  const std::uint64_t base = mmad ? i.args.mmad.c : i.args.fixpipe.src;
  const std::uint64_t rows = mmad ? (i.args.mmad.m + 15) / 16 * 16 : i.args.fixpipe.src_stride;
  const std::uint64_t m = mmad ? i.args.mmad.m : i.args.fixpipe.m, n = mmad ? i.args.mmad.n : i.args.fixpipe.n;
  for (std::uint64_t g = 0; g * 16 < n; ++g)
    for (std::uint64_t r = 0; r < m; r += 16) {
      const std::uint64_t fractal = (base + (g * rows + r) * 64) / 1024;
      if (fractal < kL0cBytes / 1024) visit(static_cast<std::size_t>(fractal));
    }
}

bool unit_flags_allow(const Core& core, const Instruction& i) {
  const std::uint8_t wanted = multiplies(i.op) ? 0 : 1;
  bool allowed = true;
  each_fractal(i, [&](std::size_t f) { allowed = allowed && core.unit_flag[f] == wanted; });
  return allowed;
}

}  // namespace

bool has_unit_flag(const Instruction& i) {
  const int mode = unit_mode(i);
  return mode == kUnitKeep || mode == kUnitUpdate;
}

void before_unit_flag(Core& core, const Instruction& i) {
  if (!checking(core) || core.unit_clock.empty()) return;
  each_fractal(i, [&](std::size_t f) { join_pipe(core, i.pipe, core.unit_clock[f]); });
}

void after_unit_flag(Core& core, const Instruction& i) {
  if (unit_mode(i) != kUnitUpdate) return;
  const std::uint8_t now = multiplies(i.op) ? 1 : 0;
  core.unit_site = i.site;
  if (checking(core) && core.unit_clock.empty()) core.unit_clock.resize(core.unit_flag.size());
  each_fractal(i, [&](std::size_t f) {
    core.unit_flag[f] = now;
    if (checking(core)) core.unit_clock[f] = core.clock[at(i.pipe)];
  });
}

// A pipe issues in order, but only what others tell it (or asc_sync_pipe does) says that its own instructions are done:
// in every clock but the pipe's own, its component is the tick of a notify, unlock or arrive.
void join_pipe(Core& core, int pipe, const Clock& from) {
  if (!from.empty()) {
    std::uint32_t& done = core.completed[at(pipe)];
    done = std::max(done, from[clock_index(*core.block->launch, core.actor(pipe))]);
  }
  join(core.clock[at(pipe)], from);
}

bool is_sync(Op op) { return op >= Op::asc_sync_notify && op <= Op::asc_sync_intra_wait; }

bool runnable(Core& core, const Instruction& i) {
  const Sync& s = i.args.sync;
  switch (i.op) {
    case Op::asc_sync_wait:
      check_flag_arguments(core, i);
      return core.flags[at(s.src)][at(s.dst)][static_cast<std::size_t>(s.id)].set;
    case Op::asc_lock: return core.locks[static_cast<std::size_t>(s.id & 31)].done >= i.ticket;
    case Op::asc_sync:
      for (const auto& q : core.queue)
        if (!q.empty()) return false;
      return true;
    default:
      if (has_unit_flag(i)) return unit_flags_allow(core, i);
      if (!is_cross_wait(i.op)) return true;
      check_cross(core, i);
      return !core.counters[static_cast<std::size_t>(s.id)].arrivals.empty();
  }
}

void execute_sync(Core& core, const Instruction& i) {
  const Sync& s = i.args.sync;
  if (is_cross_wait(i.op) || is_cross_arrive(i.op)) {
    check_cross(core, i);
    execute_cross(core, i);
    return;
  }
  switch (i.op) {
    case Op::asc_sync_notify:
      check_flag_arguments(core, i);
      notify(core, i);
      break;
    case Op::asc_sync_wait: {
      Flag& flag = core.flags[at(s.src)][at(s.dst)][static_cast<std::size_t>(s.id)];
      flag.set = false;
      if (checking(core)) {
        join_pipe(core, s.dst, flag.clock);
        flag.consumed_before = true;
        flag.consumed_tick = core.clock[at(s.dst)][clock_index(*core.block->launch, core.actor(s.dst))];
        flag.site = i.site;
      }
      break;
    }
    case Op::asc_lock:
      if (checking(core) && !core.locks[static_cast<std::size_t>(s.id)].clock.empty())
        join_pipe(core, i.pipe, core.locks[static_cast<std::size_t>(s.id)].clock);
      break;
    case Op::asc_unlock: {
      Lock& lock = core.locks[static_cast<std::size_t>(s.id)];
      ++lock.done;
      if (checking(core)) {
        if (lock.clock.empty()) lock.clock = core.clock[at(i.pipe)];
        else join(lock.clock, core.clock[at(i.pipe)]);
      }
      break;
    }
    case Op::asc_sync:
      if (checking(core))
        for (const Clock& c : core.clock) join(core.clock[PIPE_S], c);
      break;
    case Op::asc_sync_pipe:
      if (checking(core)) core.completed[at(i.pipe)] = core.clock[at(i.pipe)][clock_index(*core.block->launch, core.actor(i.pipe))];
      break;
    default: break;
  }
}

std::string waiting_for(Core& core, const Instruction& i) {
  const Sync& s = i.args.sync;
  std::string text = describe(core) + " pipe " + pipe_name(i.pipe) + " waits in " + op_name(i.op) + " ({0}) for ";
  if (i.op == Op::asc_sync_wait)
    return text + "flag (" + pipe_name(s.src) + ", " + pipe_name(s.dst) + ", " + std::to_string(s.id) + ") from pipe " + pipe_name(s.src);
  if (i.op == Op::asc_lock) return text + "the unlock of id " + std::to_string(s.id);
  if (has_unit_flag(i))
    return text + (multiplies(i.op) ? "the unit flags of its tile to be cleared by a fixpipe copy with unit flag 3" : "the unit flags of its tile to be set by an mmad with unit flag 3");
  if (i.op == Op::asc_sync) return text + "its other pipes to finish";
  const char* from = cross_mode(i.op) == 0 ? "all blocks" : core.kind == 0 ? (s.id >= 16 ? "AIV1" : "the vector cores") : cross_mode(i.op) == 1 ? "the other vector core" : "AIC";
  return text + "counter " + std::to_string(s.id) + ", signalled by " + from;
}

// A kernel must leave no flag set and no arrival unconsumed: the next kernel would inherit them.
void check_end(Block& block) {
  for (Core& core : block.cores) {
    if (!core.exists) continue;
    for (int src = 0; src < kPipes; ++src)
      for (int dst = 0; dst < kPipes; ++dst)
        for (int id = 0; id < 8; ++id) {
          const Flag& flag = core.flags[at(src)][at(dst)][static_cast<std::size_t>(id)];
          if (flag.set)
            raise(core, nullptr, "flag", std::string("flag (") + pipe_name(src) + ", " + pipe_name(dst) + ", " + std::to_string(id) +
                  ") is still set at the end of the kernel; it was set at {0}. Add the missing asc_sync_wait", {flag.site});
        }
    for (const std::uint8_t flag : core.unit_flag)
      if (flag)
        raise(core, nullptr, "flag", "unit flags of L0C are still set at the end of the kernel ({0}); the last fixpipe copy of a tile must use unit flag 3", {core.unit_site});
    for (std::size_t id = 0; id < core.counters.size(); ++id)
      if (!core.counters[id].arrivals.empty())
        raise(core, nullptr, "flag", "cross-core counter " + std::to_string(id) + " still holds " +
              std::to_string(core.counters[id].arrivals.size()) + " arrival(s) at the end of the kernel; a wait is missing");
    for (std::size_t id = 0; id < core.locks.size(); ++id)
      if (core.locks[id].locks > core.locks[id].dispatched)
        raise(core, nullptr, "flag", "lock " + std::to_string(id) + " is still held at the end of the kernel; it was last taken at {0}. Add the missing asc_unlock",
              {core.locks[id].site});
  }
}

}  // namespace usim
