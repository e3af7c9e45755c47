// Replay of a recorded launch (d.6): each pipe of each core is a queue. Everything local to a core runs as far as its
// flags allow; accesses to GM wait in one heap so that L2 and HBM see them in order of time.
#include "timing.hpp"

#include <algorithm>
#include <queue>
#include <stdexcept>
#include <tuple>

namespace usim::timing {

namespace {

struct Fifo {
  std::vector<double> times;
  std::size_t head = 0;
  bool empty() const { return head == times.size(); }
  void push(double t) { times.push_back(t); }
  double pop() {
    const double t = times[head++];
    if (empty()) times.clear(), head = 0;
    return t;
  }
};

struct Queued { std::uint32_t event; std::uint32_t ticket; double at; };

struct Core;

struct Pipe {
  Core* core = nullptr;
  int id = 0;
  std::vector<Queued> queue;
  std::size_t head = 0;
  double free = 0, done = 0;   // when the next instruction may issue; when everything issued so far has finished
  bool in_heap = false, listed = false;
  bool empty() const { return head == queue.size(); }
};

// Produced and freed times of one accumulator under the unit flag (d.5).
// First and last part of the tile each: the hardware keeps one flag per fractal.
struct UnitTile { std::vector<std::pair<double, double>> produced, freed; std::uint32_t mmads = 0, stores = 0; };

struct LockState { std::uint32_t dispatched = 0; std::vector<double> released; };  // released[n]: n + 1 unlocks are done

struct Block;

struct Core {
  Block* block = nullptr;
  const CoreEvents* program = nullptr;
  CoreResult* result = nullptr;
  std::size_t next = 0;       // next event of the scalar program
  double scalar = 0;          // its time
  std::uint64_t left = 0;     // events not yet executed
  Pipe pipes[kPipeCount];
  Fifo flags[kPipeCount][kPipeCount][8];
  Fifo counters[32];
  LockState locks[32];
  std::map<std::uint32_t, UnitTile> tiles;
  Fifo pending[3][16];        // own arrivals of modes 0 to 2
  double ub_bytes = 0;        // copied into UB since the last vector function, to estimate uncounted work
  bool traced = false;
};

struct Block {
  std::vector<Core*> cores;
  Core* kind[3] = {};
  std::uint64_t left = 0;
  int slot = -1;
};

struct Port { double load_free = 0, store_free = 0; };  // UB paths shared by the two vector cores

bool is_arrive(Op op) { return op == Op::asc_sync_inter_arrive || op == Op::asc_sync_subblock_arrive || op == Op::asc_sync_block_arrive || op == Op::asc_sync_intra_arrive; }
bool is_wait(Op op) { return op == Op::asc_sync_inter_wait || op == Op::asc_sync_subblock_wait || op == Op::asc_sync_block_wait || op == Op::asc_sync_intra_wait; }
bool is_mmad(Op op) { return op == Op::asc_mmad || op == Op::asc_mmad_mx; }
bool is_fixpipe(Op op) { return op == Op::asc_copy_l0c2gm || op == Op::asc_copy_l0c2ub; }
std::uint32_t unit_mode(const Event& e) { return is_mmad(static_cast<Op>(e.op)) ? e.a[5] & 0xff : e.a[4] & 0xff; }
std::uint32_t unit_tile(const Event& e) { return is_mmad(static_cast<Op>(e.op)) ? e.a[5] >> 8 : e.a[4] >> 8; }

class Replay {
 public:
  Replay(const Program& program, const Rates& rates, Memory& memory, std::uint32_t traced)
      : program_(program), r_(rates), memory_(memory), traced_(traced) {}
  Result run();

 private:
  struct Waiting {
    double start;
    std::uint64_t order;
    Pipe* pipe;
    bool operator>(const Waiting& o) const { return std::tie(start, order) > std::tie(o.start, o.order); }
  };
  void start_block(Block& block, int slot, double time);
  void dispatch(Core& core);
  void wake(Pipe& pipe) {
    if (pipe.listed || pipe.in_heap) return;
    pipe.listed = true;
    work_.push_back(&pipe);
  }
  void wake(Core& core) { for (Pipe& p : core.pipes) if (!p.empty()) wake(p); }
  void advance(Pipe& pipe);
  bool ready(Pipe& pipe, const Queued& q, const Event& e, double& at, Reason& reason);
  void execute(Pipe& pipe, const Queued& q, const Event& e, double at, Reason reason);
  void execute_sync(Pipe& pipe, const Event& e, double at);
  void execute_work(Pipe& pipe, const Event& e, double& at, double& end);
  void group_arrive(Core& core, int mode, std::uint32_t id, double time);
  void deliver(Core& core, std::uint32_t id, double time);
  void finish(Core& core, double end);

  const Program& program_;
  const Rates& r_;
  Memory& memory_;
  std::uint32_t traced_;
  Result result_;
  std::vector<Core> cores_;
  std::vector<Block> blocks_;
  std::vector<Port> ports_;
  std::vector<Pipe*> work_;
  std::size_t next_block_ = 0;
  std::priority_queue<Waiting, std::vector<Waiting>, std::greater<Waiting>> heap_;
};

void Replay::start_block(Block& block, int slot, double time) {
  block.slot = slot;
  for (Core* core : block.cores) {
    core->scalar = time;
    core->result->start = core->result->end = time;
    for (Pipe& p : core->pipes) p.free = p.done = time;
    dispatch(*core);
  }
  if (block.left == 0) finish(*block.cores.front(), time);
}

// The scalar program runs ahead until it waits itself.
void Replay::dispatch(Core& core) {
  const CoreEvents& program = *core.program;
  while (core.next < program.count) {
    const Event& e = program.events[core.next];
    const Op op = static_cast<Op>(e.op);
    core.scalar += (e.scalar + 1) * r_.scalar_statement;
    std::uint32_t ticket = 0;
    if (op == Op::asc_unlock) ++core.locks[e.a[2] & 31].dispatched;
    else if (op == Op::asc_lock) ticket = e.a[3] == 0 ? core.locks[e.a[2] & 31].dispatched : 0;
    else if (!e.skipped && (is_mmad(op) || is_fixpipe(op)) && unit_mode(e) >= 2) {
      UnitTile& tile = core.tiles[unit_tile(e)];
      ticket = is_mmad(op) ? tile.stores : tile.mmads;
      if (unit_mode(e) == 3) ++(is_mmad(op) ? tile.mmads : tile.stores);
    }
    Pipe& pipe = core.pipes[e.pipe];
    pipe.queue.push_back({static_cast<std::uint32_t>(core.next), ticket, core.scalar});
    ++core.next;
    wake(pipe);
    if (e.pipe == PIPE_S) return;
  }
}

// Whether the head of a pipe may run, and from when on.
bool Replay::ready(Pipe& pipe, const Queued& q, const Event& e, double& at, Reason& reason) {
  Core& core = *pipe.core;
  const Op op = static_cast<Op>(e.op);
  const auto later = [&](double t, Reason why) { if (t > at) at = t, reason = why; };
  if (op == Op::asc_sync_wait) {
    Fifo& flag = core.flags[e.a[0] & 7][e.a[1] & 7][e.a[2] & 7];
    if (flag.empty()) return false;
    later(flag.times[flag.head], static_cast<Reason>(kFlag + (e.a[0] & 7)));
  } else if (op == Op::asc_lock) {
    const LockState& lock = core.locks[e.a[2] & 31];
    if (lock.released.size() < q.ticket) return false;
    if (q.ticket) later(lock.released[q.ticket - 1], kLock);
  } else if (is_wait(op)) {
    Fifo& counter = core.counters[e.a[2] & 31];
    if (counter.empty()) return false;
    later(counter.times[counter.head], kCross);
  } else if (op == Op::asc_sync) {
    for (const Pipe& p : core.pipes) {
      if (&p != &pipe && !p.empty()) return false;
      later(p.done, kBarrier);
    }
  } else if (op == Op::asc_sync_pipe) {
    later(pipe.done, kBarrier);
  } else if (!e.skipped && (is_mmad(op) || is_fixpipe(op)) && q.ticket) {
    const UnitTile& tile = core.tiles[unit_tile(e)];
    if (is_mmad(op)) {
      if (tile.freed.size() < q.ticket) return false;
      later(tile.freed[q.ticket - 1].first, kUnitFlag);
    } else {
      if (tile.produced.size() < q.ticket) return false;
      later(tile.produced[q.ticket - 1].first, kUnitFlag);
    }
  }
  return true;
}

void Replay::advance(Pipe& pipe) {
  Core& core = *pipe.core;
  while (!pipe.empty()) {
    const Queued q = pipe.queue[pipe.head];
    const Event& e = core.program->events[q.event];
    double at = std::max(q.at, pipe.free);
    Reason reason = kScalar;
    if (!ready(pipe, q, e, at, reason)) return;
    if (!e.skipped && e.tensor != ~0u && cost_of(e, r_).gm != Gm::none && !pipe.in_heap) {
      pipe.in_heap = true;
      heap_.push({at, core.block->cores.front()->program->block * 32ull + core.program->core * 8ull + static_cast<std::uint64_t>(pipe.id), &pipe});
      return;
    }
    pipe.in_heap = false;
    execute(pipe, q, e, at, reason);
  }
}

void Replay::execute(Pipe& pipe, const Queued& q, const Event& e, double at, Reason reason) {
  Core& core = *pipe.core;
  CoreResult& out = *core.result;
  const Op op = static_cast<Op>(e.op);
  ++pipe.head;
  if (pipe.empty()) pipe.queue.clear(), pipe.head = 0;
  // What a pipe waits before it starts belongs to the constraint; before it was dispatched, to the scalar program.
  const double idle = at - pipe.free;
  const bool passive = op == Op::asc_sync_notify || op == Op::asc_unlock || is_arrive(op);
  double end = at;
  if (op >= Op::asc_sync_notify && op <= Op::asc_sync_intra_wait) {
    execute_sync(pipe, e, at);
    if (!passive) {
      if (idle > 0) out.stall[pipe.id][reason] += idle;
      pipe.free = at;
    }
  } else {
    if (idle > 0) out.stall[pipe.id][reason] += idle;
    execute_work(pipe, e, at, end);
    pipe.done = std::max(pipe.done, end);
  }
  if (core.traced) out.spans.push_back({q.event, passive ? 0.0 : std::max(0.0, idle), at, end});
  if (pipe.id == PIPE_S) {
    core.scalar = std::max(core.scalar, std::max(at, end));
    pipe.free = core.scalar;
  }
  --core.left;
  if (pipe.empty() && !core.pipes[PIPE_S].empty()) wake(core.pipes[PIPE_S]);
  if (pipe.id == PIPE_S) dispatch(core);
  if (--core.block->left == 0) finish(core, 0);
}

void Replay::execute_sync(Pipe& pipe, const Event& e, double at) {
  Core& core = *pipe.core;
  const Op op = static_cast<Op>(e.op);
  const double complete = std::max(at, pipe.done);
  if (op == Op::asc_sync_notify) {
    core.flags[e.a[0] & 7][e.a[1] & 7][e.a[2] & 7].push(complete);
    wake(core.pipes[e.a[1] & 7]);
  } else if (op == Op::asc_sync_wait) {
    core.flags[e.a[0] & 7][e.a[1] & 7][e.a[2] & 7].pop();
  } else if (op == Op::asc_unlock) {
    auto& released = core.locks[e.a[2] & 31].released;
    released.push_back(std::max(complete, released.empty() ? 0.0 : released.back()));
    wake(core);
  } else if (is_wait(op)) {
    core.counters[e.a[2] & 31].pop();
  } else if (op == Op::asc_sync_intra_arrive) {
    const std::uint32_t id = e.a[2];
    if (core.program->core == 0) deliver(*core.block->kind[id < 16 ? 1 : 2], id % 16, complete);
    else deliver(*core.block->kind[0], id + (core.program->core == 2 ? 16 : 0), complete);
  } else if (is_arrive(op)) {
    group_arrive(core, op == Op::asc_sync_inter_arrive ? 0 : op == Op::asc_sync_subblock_arrive ? 1 : 2, e.a[2] & 15, complete);
  }
}

void Replay::deliver(Core& core, std::uint32_t id, double time) {
  core.counters[id & 31].push(time);
  wake(core);
}

// Modes 0 to 2, as in sync.cpp: when every member has arrived, every receiver is signalled.
void Replay::group_arrive(Core& core, int mode, std::uint32_t id, double time) {
  std::vector<Core*> members, receivers;
  Block& block = *core.block;
  if (mode == 0) {
    for (Core& c : cores_)
      if ((c.program->core == 0) == (core.program->core == 0)) members.push_back(&c);
    receivers = members;
  } else if (mode == 1) {
    receivers = members = {block.kind[1], block.kind[2]};
  } else if (core.program->core == 0) {
    members = {&core};
    receivers = {block.kind[1], block.kind[2]};
  } else {
    members = {block.kind[1], block.kind[2]};
    receivers = {block.kind[0]};
  }
  core.pending[mode][id].push(time);
  for (Core* c : members)
    if (c->pending[mode][id].empty()) return;
  double joined = 0;
  for (Core* c : members) joined = std::max(joined, c->pending[mode][id].pop());
  for (Core* c : receivers) deliver(*c, id, joined);
}

void Replay::execute_work(Pipe& pipe, const Event& e, double& at, double& end) {
  Core& core = *pipe.core;
  CoreResult& out = *core.result;
  const Op op = static_cast<Op>(e.op);
  Cost cost = cost_of(e, r_);
  if ((op == Op::asc_vf_call || op == Op::simd_vf) && e.a[1] + e.a[2] + e.a[3] + e.a[4] + e.a[7] == 0) {
    // Unchecked runs do not count accesses: assume that the function reads what was copied in, and writes as much.
    result_.estimated_vector_work = true;
    cost.occupancy += core.ub_bytes / (op == Op::simd_vf ? r_.simd_ub_bytes : std::min(r_.simt_ub_read_bytes, r_.simt_ub_write_bytes));
    cost.latency = cost.occupancy;
  }
  if (op == Op::asc_vf_call || op == Op::simd_vf) core.ub_bytes = 0;
  if (op == Op::asc_copy_gm2ub_align) core.ub_bytes += double(e.a[0]) * e.a[1];
  if (op == Op::asc_copy_l0c2ub)
    for (int k = 1; k < 3; ++k)
      if (core.block->kind[k]) core.block->kind[k]->ub_bytes += double(e.a[0]) * e.a[1] * e.a[2] / (e.a[3] ? 2 : 1);
  if (cost.pair_shared) {
    Port& port = ports_[static_cast<std::size_t>(program_.vector_only ? core.block->slot / 2 : core.block->slot)];
    double& busy = cost.gm == Gm::read ? port.load_free : port.store_free;
    if (busy > at) out.stall[pipe.id][kPairPort] += busy - at, at = busy;
    busy = at + cost.occupancy;
  }
  double next = at + cost.occupancy;
  end = at + cost.latency;
  if (cost.gm != Gm::none && e.tensor != ~0u) {
    const Memory::Access a = memory_.access(program_.tensors[e.tensor], e.address, cost, at);
    out.stall[pipe.id][kHbm] += a.wait_hbm;
    out.stall[pipe.id][kL2] += a.wait_l2;
    next = a.pipe_free;
    end = a.done;
    out.busy[pipe.id] += std::max(0.0, next - at - a.wait_hbm - a.wait_l2);
  } else {
    out.busy[pipe.id] += cost.occupancy;
  }
  result_.macs += macs_of(e);
  if (!e.skipped && (is_mmad(op) || is_fixpipe(op)) && unit_mode(e) >= 2) {
    UnitTile& tile = core.tiles[unit_tile(e)];
    if (is_mmad(op)) {
      if (!tile.freed.empty()) next = std::max(next, tile.freed.back().second), end = std::max(end, next + cost.base);
      if (unit_mode(e) == 3) tile.produced.emplace_back(at + cost.base, end);
    } else {
      if (!tile.produced.empty()) next = std::max(next, tile.produced.back().second), end = std::max(end, next + cost.base);
      if (unit_mode(e) == 3) tile.freed.emplace_back(at + r_.fixpipe_interval, next);
    }
    wake(core);
  }
  pipe.free = next;
}

void Replay::finish(Core& core, double end) {
  Block& block = *core.block;
  for (Core* c : block.cores) {
    for (const Pipe& p : c->pipes) c->result->end = std::max({c->result->end, p.done, p.free});
    c->result->end = std::max(c->result->end, c->scalar);
    end = std::max(end, c->result->end);
  }
  result_.cycles = std::max(result_.cycles, end);
  if (next_block_ < blocks_.size()) start_block(blocks_[next_block_++], block.slot, end);
}

Result Replay::run() {
  memory_.new_kernel();
  cores_ = std::vector<Core>(program_.cores.size());
  result_.cores.resize(program_.cores.size());
  std::map<std::uint32_t, std::size_t> numbers;
  for (const CoreEvents& c : program_.cores) numbers.emplace(c.block, 0);
  blocks_ = std::vector<Block>(numbers.size());
  std::size_t n = 0;
  for (auto& [block, number] : numbers) number = n++;
  for (std::size_t k = 0; k < cores_.size(); ++k) {
    Core& core = cores_[k];
    core.program = &program_.cores[k];
    core.result = &result_.cores[k];
    core.result->block = core.program->block;
    core.result->core = core.program->core;
    core.block = &blocks_[numbers[core.program->block]];
    core.block->cores.push_back(&core);
    core.block->kind[core.program->core] = &core;
    core.block->left += core.left = core.program->count;
    core.traced = core.program->block < traced_;
    result_.events += core.program->count;
    for (int p = 0; p < kPipeCount; ++p) core.pipes[p].core = &core, core.pipes[p].id = p;
  }
  const auto slots = static_cast<std::size_t>(r_.ai_cores * (program_.vector_only ? 2 : 1));
  ports_.resize(slots);
  next_block_ = std::min(slots, blocks_.size());
  for (std::size_t b = 0; b < std::min(slots, blocks_.size()); ++b) start_block(blocks_[b], static_cast<int>(b), 0);
  for (;;) {
    while (!work_.empty()) {
      Pipe* pipe = work_.back();
      work_.pop_back();
      pipe->listed = false;
      advance(*pipe);
    }
    if (heap_.empty()) break;
    Pipe* pipe = heap_.top().pipe;
    heap_.pop();
    advance(*pipe);
  }
  for (const Block& block : blocks_)
    if (block.left)
      throw std::runtime_error("the timing replay cannot finish: " + std::to_string(block.left) + " instructions of block " + std::to_string(block.cores.front()->program->block) +
                               " wait for something that never happens. Blocks that wait for each other must all be on the chip: the grid has " + std::to_string(blocks_.size()) +
                               " blocks, the chip takes " + std::to_string(slots));
  return std::move(result_);
}

}  // namespace

Result replay(const Program& program, const Rates& rates, Memory& memory, std::uint32_t traced_blocks) {
  return Replay(program, rates, memory, traced_blocks).run();
}

}  // namespace usim::timing
