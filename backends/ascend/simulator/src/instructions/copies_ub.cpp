// UB to and from GM with padding, and UB to L1 (c.7); atomic stores (c.9).
#include <algorithm>

#include "atomics.hpp"
#include "machine.hpp"

namespace usim {

namespace {

void mark_ub(Core& core, Memory ub, std::uint64_t lo, std::uint64_t bytes) {
  auto& valid = core.block->arena->valid_ub[ub == Memory::ub1];
  std::fill_n(valid.begin() + static_cast<std::ptrdiff_t>(lo), bytes, std::uint8_t{kValid});
}

// Strides and start addresses count in 32 bytes, except for bursts packed back to back.
void require_burst_layout(Core& core, const Instruction& i, std::uint64_t address, std::uint64_t stride, std::uint32_t bursts, std::uint32_t length, const char* what) {
  require_aligned(core, i, core.ub(), address, 32, what);
  if (bursts > 1 && stride != length && stride % 32 != 0)
    raise(core, &i, "misaligned", std::string(what) + " stride " + std::to_string(stride) + " is neither a multiple of 32 bytes nor equal to the burst length " + std::to_string(length));
}

// Only defined bytes may reach GM. A compact NZ tile has one padding block of 32 bytes behind the rows of each column
// group, which programs store along with the tile: such a block alone, behind defined bytes, is only worth a warning.
void require_defined(Core& core, const Instruction& i, const Tensor& tensor, std::uint64_t src, std::uint64_t dst, std::uint64_t bytes) {
  const std::uint8_t* const states = core.block->arena->valid_ub[core.kind == 2].data() + src;
  for (std::uint64_t bad = valid_units(states, bytes); bad < bytes;) {
    const std::uint8_t* const next = std::find(states + bad, states + bytes, std::uint8_t{kValid});
    const bool padding = (src + bad) % 32 == 0 && bad > 0 && next - states == static_cast<std::ptrdiff_t>(bad) + 32 &&
                         std::all_of(states + bad, next, [](std::uint8_t v) { return v == kNever; });
    if (!padding) {
      const bool never = states[bad] == kNever;
      if (never) taint(core, i, core.ub(), src + bad, src + bad + 1);
      raise_uninitialised(core, i, "stores UB byte " + std::to_string(src + bad) + " to byte " + std::to_string(dst + bad) + " of tensor '" + tensor.name +
                          "', but " + (never ? "nothing has written it" : "its value depends on uninitialised data"));
    }
    warn(core, std::string(op_name(i.op)) + " stores padding blocks that nothing has written to tensor '" + tensor.name + "'");
    bad += 32 + valid_units(next, bytes - bad - 32);
  }
}

}  // namespace

void copy_gm_to_ub(Core& core, const Instruction& i) {
  const GmToUb& a = i.args.gm_to_ub;
  Event* event = event_of(core, i);
  if (a.bursts == 0 || a.length == 0) {
    if (event) event->skipped = 1;
    return;
  }
  const std::uint64_t left = std::uint64_t{a.left} * a.esize, right = std::uint64_t{a.right} * a.esize, filled = left + a.length + right;
  require_burst_layout(core, i, a.dst, a.dst_stride, a.bursts, a.length, "destination");
  if (left > 32 || right > 32) raise(core, &i, "out_of_bounds", "pads of " + std::to_string(left) + " and " + std::to_string(right) + " bytes exceed 32");
  if ((left || right) && !a.const_pad) raise(core, &i, "unimplemented", "padding that repeats the first element (const_pad = 0) is not simulated");
  if ((left || right) && a.bursts > 1 && a.dst_stride == a.length)
    raise(core, &i, "unimplemented", "padding together with bursts packed back to back has no agreed meaning");
  Tensor* tensor = nullptr;
  for (std::uint32_t b = 0; b < a.bursts; ++b) {
    const auto* src = static_cast<const std::uint8_t*>(a.src) + b * a.src_stride;
    const std::uint64_t dst = a.dst + std::uint64_t{b} * a.dst_stride;
    tensor = &require_tensor(core, i, src, a.length, false);
    const auto lo = static_cast<std::uint64_t>(src - tensor->base);
    require_range(core, i, core.ub(), dst, filled, "destination");
    if (event && b == 0) event->address = lo, event->tensor = tensor->index;
    if (checking(core)) {
      note_gm(core, i, *tensor, lo, lo + a.length, false);
      note(core, i, core.ub(), dst, dst + filled, true);
      mark_ub(core, core.ub(), dst, filled);
    }
    if (!functional(core)) continue;
    std::uint8_t* out = core.view.ub + dst;
    for (std::uint64_t p = 0; p < left; p += a.esize) std::memcpy(out + p, &i.registers.pad_value, a.esize);
    std::memcpy(out + left, src, a.length);
    for (std::uint64_t p = 0; p < right; p += a.esize) std::memcpy(out + left + a.length + p, &i.registers.pad_value, a.esize);
  }
  if (event) event->a[0] = a.bursts, event->a[1] = a.length, event->a[2] = static_cast<std::uint32_t>(a.src_stride);
}

void copy_ub_to_gm(Core& core, const Instruction& i) {
  const UbToGm& a = i.args.ub_to_gm;
  Event* event = event_of(core, i);
  if (a.bursts == 0 || a.length == 0) {
    if (event) event->skipped = 1;
    return;
  }
  require_burst_layout(core, i, a.src, a.src_stride, a.bursts, a.length, "source");
  const std::uint16_t atomic = static_cast<std::uint16_t>(i.registers.atomic);
  if (atomic && a.length % atomic_bytes(atomic) != 0)
    raise(core, &i, "misaligned", "a burst of " + std::to_string(a.length) + " bytes is not a whole number of " + std::to_string(atomic_bytes(atomic)) + "-byte elements of the armed atomic type");
  for (std::uint32_t b = 0; b < a.bursts; ++b) {
    auto* dst = static_cast<std::uint8_t*>(a.dst) + b * a.dst_stride;
    const std::uint64_t src = a.src + std::uint64_t{b} * a.src_stride;
    require_range(core, i, core.ub(), src, a.length, "source");
    Tensor& tensor = require_tensor(core, i, dst, a.length, true);
    const auto lo = static_cast<std::uint64_t>(dst - tensor.base);
    if (event && b == 0) event->address = lo, event->tensor = tensor.index;
    if (checking(core)) {
      note(core, i, core.ub(), src, src + a.length, false);
      note_gm(core, i, tensor, lo, lo + a.length, true, atomic);
      require_defined(core, i, tensor, src, lo, a.length);
    }
    if (!functional(core)) continue;
    if (atomic) apply_atomic(atomic, dst, core.view.ub + src, a.length);
    else std::memcpy(dst, core.view.ub + src, a.length);
  }
  if (event) event->a[0] = a.bursts, event->a[1] = a.length, event->a[2] = static_cast<std::uint32_t>(a.dst_stride), event->a[3] = atomic;
}

void copy_ub_to_l1(Core& core, const Instruction& i) {
  const UbToL1& a = i.args.ub_to_l1;
  Event* event = event_of(core, i);
  if (a.bursts == 0 || a.blocks == 0) {
    if (event) event->skipped = 1;
    return;
  }
  if (event) event->a[0] = a.bursts, event->a[1] = a.blocks;
  require_aligned(core, i, core.ub(), a.src, 32, "source");
  require_aligned(core, i, Memory::l1, a.dst, 32, "destination");
  Arena& arena = *core.block->arena;
  for (std::uint32_t b = 0; b < a.bursts; ++b) {
    const std::uint64_t bytes = std::uint64_t{a.blocks} * 32, src = a.src + b * (std::uint64_t{a.blocks} + a.src_gap) * 32,
                        dst = a.dst + b * (std::uint64_t{a.blocks} + a.dst_gap) * 32;
    require_range(core, i, core.ub(), src, bytes, "source");
    require_range(core, i, Memory::l1, dst, bytes, "destination");
    if (checking(core)) {
      note(core, i, core.ub(), src, src + bytes, false);
      note(core, i, Memory::l1, dst, dst + bytes, true);
      const std::uint8_t* valid = arena.valid_ub[core.kind == 2].data() + src;
      for (std::uint32_t u = 0; u < a.blocks; ++u) {
        const bool good = valid_units(valid + u * 32, 32) == 32;
        if (!good) taint(core, i, core.ub(), src + u * 32, src + u * 32 + 32);
        arena.valid_l1[dst / 32 + u] = good ? kValid : kTainted;
      }
    }
    if (functional(core)) std::memcpy(arena.l1 + dst, core.view.ub + src, bytes);
  }
}

}  // namespace usim
