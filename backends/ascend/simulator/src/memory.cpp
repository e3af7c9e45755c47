#include <sys/mman.h>

#include <new>

#include "machine.hpp"

namespace usim {

namespace {

constexpr std::uint64_t kGuard = 1 << 20;

std::string hex(std::uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}
std::string range(const std::string& memory, std::uint64_t lo, std::uint64_t hi) {
  return memory + "[" + hex(lo) + ":" + hex(hi) + "]";
}

}  // namespace

const char* memory_name(Memory m) {
  constexpr const char* names[] = {"GM", "L1", "L0A", "L0B", "L0C", "L0A_MX", "L0B_MX", "UB of AIV0", "UB of AIV1"};
  return names[static_cast<int>(m)];
}
const char* op_name(Op op) {
  constexpr const char* names[] = {
#define USIM_INSTRUCTION(name, pipe, group, section) #name,
#include "usim/instructions.def"
#undef USIM_INSTRUCTION
      "?"};
  return names[static_cast<int>(op)];
}
const char* pipe_name(int pipe) {
  constexpr const char* names[] = {"S", "V", "M", "MTE1", "MTE2", "MTE3", "ALL", "FIX"};
  return pipe >= 0 && pipe < kPipes ? names[pipe] : "?";
}

std::uint64_t Arena::bytes(Memory m) {
  constexpr std::uint64_t sizes[] = {0, kL1Bytes, kL0aBytes, kL0bBytes, kL0cBytes, kSlotBytes, kSlotBytes, kUbBytes, kUbBytes};
  return sizes[static_cast<int>(m)];
}

std::uint8_t* Arena::at(Memory m) {
  switch (m) {
    case Memory::l1: return l1;
    case Memory::l0a: return l0a;
    case Memory::l0b: return l0b;
    case Memory::l0c: return l0c;
    case Memory::slots_a: return slots[0];
    case Memory::slots_b: return slots[1];
    case Memory::ub0: return ub[0];
    case Memory::ub1: return ub[1];
    default: return nullptr;
  }
}

Arena::Arena() {
  const std::uint64_t inside = kL1Bytes + kL0aBytes + kL0bBytes + kL0cBytes + 2 * kSlotBytes;
  map_bytes = inside + 2 * kUbBytes + 4 * kGuard;
  void* p = mmap(nullptr, map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  map = static_cast<std::uint8_t*>(p);
  std::uint8_t* at = map + kGuard;
  mprotect(at, inside, PROT_READ | PROT_WRITE);
  l1 = at;
  l0a = l1 + kL1Bytes;
  l0b = l0a + kL0aBytes;
  l0c = l0b + kL0bBytes;
  slots[0] = l0c + kL0cBytes;
  slots[1] = slots[0] + kSlotBytes;
  ub[0] = at + inside + kGuard;
  ub[1] = ub[0] + kUbBytes + kGuard;
  mprotect(ub[0], kUbBytes, PROT_READ | PROT_WRITE);
  mprotect(ub[1], kUbBytes, PROT_READ | PROT_WRITE);
}

void Arena::reset() {
  const auto size = [&](Memory m) {
    std::uint64_t& written = dirty[static_cast<std::size_t>(m)];
    if (valid_l1.empty()) written = bytes(m);
    const std::uint64_t n = written;
    std::memset(at(m), 0xff, n);
    written = 0;
    return static_cast<std::ptrdiff_t>(n);
  };
  const auto forget = [](std::vector<std::uint8_t>& valid, std::ptrdiff_t units, std::uint64_t all) {
    if (valid.empty()) valid.assign(all, kNever);
    else std::fill_n(valid.begin(), units, std::uint8_t{kNever});
  };
  const std::ptrdiff_t l0[2] = {size(Memory::l0a), size(Memory::l0b)}, slot[2] = {size(Memory::slots_a), size(Memory::slots_b)},
                       ubs[2] = {size(Memory::ub0), size(Memory::ub1)}, accumulators = size(Memory::l0c), l1_bytes = size(Memory::l1);
  for (int s = 0; s < 2; ++s) {
    forget(valid_l0[s], l0[s] / 32, kL0aBytes / 32);
    forget(valid_slots[s], slot[s] / 32, kSlotBytes / 32);
    forget(valid_ub[s], ubs[s], kUbBytes);
    if (touched[s].empty()) touched[s].assign(kUbBytes, 0);
  }
  forget(valid_l0c, accumulators / 4, kL0cBytes / 4);
  forget(valid_l1, l1_bytes / 32, kL1Bytes / 32);  // last: an empty valid_l1 marks the first reset
}

Arena::~Arena() { munmap(map, map_bytes); }

Event* event_of(Core& core, const Instruction& i) {
  return i.event == ~0u ? nullptr : &core.events[i.event];
}

void require_range(Core& core, const Instruction& i, Memory m, std::uint64_t lo, std::uint64_t bytes, const char* what) {
  const std::uint64_t size = Arena::bytes(m);
  if (lo <= size && bytes <= size - lo) return;
  raise(core, &i, "capacity",
        std::string(what) + " " + range(memory_name(m), lo, lo + bytes) + " exceeds the " + std::to_string(size) + " bytes of " +
            memory_name(m) + "; use smaller tiles or fewer buffer versions");
}

void require_aligned(Core& core, const Instruction& i, Memory m, std::uint64_t address, std::uint64_t alignment, const char* what) {
  if (address % alignment == 0) return;
  raise(core, &i, "misaligned",
        std::string(what) + " address " + hex(address) + " in " + memory_name(m) + " is not a multiple of " +
            std::to_string(alignment) + " bytes, which this instruction needs");
}

Tensor* find_tensor(Launch& launch, const void* p, std::uint64_t bytes) {
  const auto* at = static_cast<const std::uint8_t*>(p);
  for (Tensor& t : launch.tensors)
    if (at >= t.base && bytes <= t.bytes && static_cast<std::uint64_t>(at - t.base) <= t.bytes - bytes) return &t;
  return nullptr;
}

Tensor& require_tensor(Core& core, const Instruction& i, const void* p, std::uint64_t bytes, bool write) {
  Launch& launch = *core.block->launch;
  const auto* at = static_cast<const std::uint8_t*>(p);
  Tensor* nearest = nullptr;
  std::uint64_t distance = ~0ull;
  for (Tensor& t : launch.tensors) {
    const std::uint8_t* end = t.base + t.bytes;
    if (at >= t.base && at <= end && bytes <= static_cast<std::uint64_t>(end - at)) {
      if (write && !t.writable && checking(core))
        raise(core, &i, "out_of_bounds", "writes tensor '" + t.name + "', which the kernel's signature declares read-only");
      return t;
    }
    const std::uint64_t d = at < t.base ? static_cast<std::uint64_t>(t.base - at) : at > end ? static_cast<std::uint64_t>(at - end) : 0;
    if (d < distance) distance = d, nearest = &t;
  }
  std::string message = std::string(write ? "writes " : "reads ") + std::to_string(bytes) + " bytes of GM outside every tensor passed";
  if (nearest) {
    const auto offset = static_cast<long long>(at - nearest->base);
    message += "; nearest is '" + nearest->name + "' (" + std::to_string(nearest->bytes) + " bytes): the access covers bytes " +
               std::to_string(offset) + " to " + std::to_string(offset + static_cast<long long>(bytes)) +
               " of it. Clamp the copy to the tensor or pass a larger tensor";
  }
  raise(core, &i, "out_of_bounds", message);
}

namespace {

// The pipes that move data may complete two writes in another order than they were issued; the others do not (a.3, d.3).
bool completes_in_order(int pipe) { return pipe == PIPE_S || pipe == PIPE_V || pipe == PIPE_M; }

// Earlier access -> this one: an earlier one of the same pipe that is known to be done, or one whose tick the clock has seen.
auto order(Core& core, const Instruction& i) {
  const Clock& own = core.clock[static_cast<std::size_t>(i.pipe)];
  const std::uint32_t now = own[clock_index(*core.block->launch, core.actor(i.pipe))];
  const std::uint32_t done = completes_in_order(i.pipe) ? now : core.completed[static_cast<std::size_t>(i.pipe)];
  return [&launch = *core.block->launch, &clock = own, block = core.block->index, self = core.actor(i.pipe), now, done](const Access& previous) {
    if (previous.actor == self) return previous.tick <= done || previous.tick == now;
    if (!launch.inter && previous.actor / kSlots != block) return false;
    return previous.tick <= clock[clock_index(launch, previous.actor)];
  };
}

Access now(Core& core, const Instruction& i, std::uint64_t lo, std::uint64_t hi, std::uint16_t atomic) {
  Access a;
  a.actor = core.actor(i.pipe);
  a.tick = core.clock[static_cast<std::size_t>(i.pipe)][clock_index(*core.block->launch, a.actor)];
  a.op = static_cast<std::uint16_t>(i.op);
  a.atomic = atomic;
  a.site = i.site;
  a.lo = lo;
  a.hi = hi;
  return a;
}

[[noreturn]] void raise_race(Core& core, const Instruction& i, const std::string& memory, std::uint64_t lo, std::uint64_t hi,
                             bool write, const Conflict& c) {
  const Access& p = c.previous;
  const std::uint32_t block = p.actor / kSlots, kind = p.actor % kSlots / kPipes, pipe = p.actor % kPipes;
  constexpr const char* kinds[] = {"AIC", "AIV0", "AIV1"};
  const std::string here = pipe_name(i.pipe), there = pipe_name(static_cast<int>(pipe));
  std::string fix;
  if (p.actor == core.actor(i.pipe))
    fix = "both are instructions of one pipe, which may complete them in another order: add asc_sync_pipe(PIPE_" + here + ") between them";
  else if (block != core.block->index)
    fix = "two blocks touch the same bytes: give each block its own range, use atomic stores, or meet in asc_sync_inter_arrive/wait between them";
  else if (static_cast<int>(kind) != core.kind)
    fix = "signal from " + std::string(kinds[kind]) + " pipe " + there + " to " + kinds[core.kind] + " pipe " + here +
          " with asc_sync_intra_arrive/wait between the two accesses";
  else
    fix = "add asc_sync_notify(PIPE_" + there + ", PIPE_" + here + ", id) after the earlier access and the matching asc_sync_wait before this one";
  raise(core, &i, "race",
        std::string(write ? "writes " : "reads ") + range(memory, lo, hi) + " while nothing orders it after the earlier " +
            (c.previous_writes ? "write of " : "read of ") + range(memory, p.lo, p.hi) + " by block " + std::to_string(block) + " " +
            kinds[kind] + " pipe " + there + " (" + op_name(static_cast<Op>(p.op)) + ", {0}); " + fix,
        {p.site});
}

}  // namespace

void note(Core& core, const Instruction& i, Memory m, std::uint64_t lo, std::uint64_t hi, bool write, std::uint16_t atomic) {
  if (!checking(core) || lo >= hi) return;
  std::uint64_t& written = core.block->arena->dirty[static_cast<std::size_t>(m)];
  if (write && hi > written) written = hi;
  const Conflict c = core.block->shadow[static_cast<std::size_t>(m)].access(now(core, i, lo, hi, atomic), write, order(core, i));
  if (c.found) raise_race(core, i, memory_name(m), lo, hi, write, c);
}

void note_gm(Core& core, const Instruction& i, Tensor& t, std::uint64_t lo, std::uint64_t hi, bool write, std::uint16_t atomic) {
  if (!checking(core) || !t.writable || lo >= hi) return;
  Conflict c;
  {
    const std::lock_guard<std::mutex> lock(t.mutex);
    c = t.shadow.access(now(core, i, lo, hi, atomic), write, order(core, i));
  }
  if (c.found) raise_race(core, i, "GM tensor '" + t.name + "' ", lo, hi, write, c);
}

void taint(Core& core, const Instruction& i, Memory m, std::uint64_t lo, std::uint64_t hi) {
  // Kept per block, on the AIC entry, so that a vector core can name what the cube core read.
  Core& keeper = core.block->cores[0];
  if (!keeper.taint_origin.empty()) return;
  keeper.taint_origin = describe(core) + " pipe " + pipe_name(i.pipe) + " (" + op_name(i.op) + ", {0}) read " +
                        range(memory_name(m), lo, hi) + ", which nothing had written";
  keeper.taint_site = i.site;
}

std::uint64_t valid_units(const std::uint8_t* valid, std::uint64_t units) {
  std::uint64_t u = 0;
  for (std::uint64_t word; u + 8 <= units; u += 8) {
    std::memcpy(&word, valid + u, 8);
    if (word != 0x0101010101010101ull * kValid) break;
  }
  while (u < units && valid[u] == kValid) ++u;
  return u;
}

void raise_uninitialised(Core& core, const Instruction& i, const std::string& what) {
  Core& keeper = core.block->cores[0];
  std::string message = what;
  if (!keeper.taint_origin.empty()) message += "; first seen when " + keeper.taint_origin;
  message += ". Load or fill the whole tile, or clamp the extent that is used";
  raise(core, &i, "uninitialised", message, {keeper.taint_site});
}

}  // namespace usim
