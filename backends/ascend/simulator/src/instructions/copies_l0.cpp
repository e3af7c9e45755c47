// L1 to L0A and L0B, straight (c.2) and transposing (c.3), and L1 to the MX scale slots (c.4).
#include <algorithm>

#include "machine.hpp"

namespace usim {

namespace {

std::uint32_t bits_of(Type t) {
  switch (t) {
    case Type::f32: case Type::s32: case Type::u32: return 32;
    case Type::f16: case Type::bf16: case Type::s16: case Type::u16: return 16;
    case Type::e2m1: case Type::e1m2: return 4;
    default: return 8;
  }
}

// Copies validity of 32-byte rows; data that nothing wrote stays suspect wherever it is moved.
void move_validity(Core& core, const Instruction& i, Memory from, std::uint64_t unit_from, std::uint8_t* to, std::uint64_t units, const std::uint8_t* valid) {
  std::uint64_t u = valid_units(valid + unit_from, units);
  std::fill_n(to, u, std::uint8_t{kValid});
  for (; u < units; ++u) {
    const std::uint8_t v = valid[unit_from + u];
    if (v != kValid) taint(core, i, from, (unit_from + u) * 32, (unit_from + u + 1) * 32);
    to[u] = v == kValid ? kValid : kTainted;
  }
}

std::uint32_t load(const std::uint8_t* base, std::uint64_t byte, std::uint32_t element, std::uint32_t bits) {
  if (bits == 4) return base[byte + element / 2] >> (element % 2 * 4) & 0xf;
  std::uint32_t v = 0;
  std::memcpy(&v, base + byte + element * (bits / 8), bits / 8);
  return v;
}
void store(std::uint8_t* base, std::uint64_t byte, std::uint32_t element, std::uint32_t bits, std::uint32_t v) {
  if (bits == 4) {
    std::uint8_t& b = base[byte + element / 2];
    b = static_cast<std::uint8_t>(element % 2 ? (b & 0x0f) | v << 4 : (b & 0xf0) | v);
    return;
  }
  std::memcpy(base + byte + element * (bits / 8), &v, bits / 8);
}

void straight(Core& core, const Instruction& i, const L1ToL0& a, Memory to, std::uint8_t* out, std::uint8_t* valid_out) {
  Arena& arena = *core.block->arena;
  for (std::uint32_t k = 0; k < a.k_step; ++k) {
    const std::uint64_t src = a.src + (std::uint64_t{a.k_start + k} * a.src_stride + a.m_start) * 512;
    const std::uint64_t dst = a.dst + std::uint64_t{k} * a.dst_stride * 512, bytes = std::uint64_t{a.m_step} * 512;
    require_range(core, i, Memory::l1, src, bytes, "source");
    require_range(core, i, to, dst, bytes, "destination");
    if (checking(core)) {
      note(core, i, Memory::l1, src, src + bytes, false);
      note(core, i, to, dst, dst + bytes, true);
      move_validity(core, i, Memory::l1, src / 32, valid_out + dst / 32, bytes / 32, arena.valid_l1.data());
    }
    if (functional(core)) std::memcpy(out + dst, arena.l1 + src, bytes);
  }
}

// Section c.3: source rows run along K, its 32-byte columns along M or N; the result has K innermost.
void transposing(Core& core, const Instruction& i, const L1ToL0& a, Memory to, std::uint8_t* out, std::uint8_t* valid_out) {
  Arena& arena = *core.block->arena;
  const std::uint32_t bits = bits_of(a.type), c0 = 256 / bits, rows = 16 * a.m_step, columns = c0 * a.k_step;
  if ((bits == 8 && a.m_step % 2) || (bits == 4 && a.m_step % 4) || (bits == 32 && a.k_step % 2))
    raise(core, &i, "misaligned", "a transposing load of " + std::to_string(bits) + "-bit elements moves squares of " +
          (bits == 32 ? std::string("2 column groups") : std::to_string(16 / (bits == 8 ? 8 : 4)) + " row blocks") + ", but m_step is " +
          std::to_string(a.m_step) + " and k_step " + std::to_string(a.k_step));
  const std::uint64_t k_groups = (rows + c0 - 1) / c0, x_blocks = columns / 16;
  const auto source = [&](std::uint32_t x) { return a.src + ((std::uint64_t{a.k_start} + x / c0) * a.src_stride + a.m_start) * 512; };
  for (std::uint32_t g = 0; g < a.k_step; ++g) {
    require_range(core, i, Memory::l1, source(g * c0), std::uint64_t{a.m_step} * 512, "source");
    note(core, i, Memory::l1, source(g * c0), source(g * c0) + std::uint64_t{a.m_step} * 512, false);
  }
  bool clean = true;
  for (std::uint64_t g = 0; g < k_groups; ++g) {
    const std::uint64_t dst = a.dst + g * a.dst_stride * 512;
    require_range(core, i, to, dst, x_blocks * 512, "destination");
    note(core, i, to, dst, dst + x_blocks * 512, true);
    if (checking(core)) std::fill_n(valid_out + dst / 32, x_blocks * 16, std::uint8_t{kValid});
  }
  if (checking(core))
    for (std::uint32_t x = 0; x < columns; x += c0)
      for (std::uint32_t r = 0; r < rows; ++r) {
        const std::uint64_t unit = source(x) / 32 + r;
        if (arena.valid_l1[unit] == kValid) continue;
        clean = false;
        taint(core, i, Memory::l1, unit * 32, unit * 32 + 32);
        for (std::uint32_t e = 0; e < c0; ++e) valid_out[(a.dst + (std::uint64_t{r / c0} * a.dst_stride + (x + e) / 16) * 512) / 32 + (x + e) % 16] = kTainted;
      }
  (void)clean;
  if (!functional(core)) return;
  for (std::uint32_t x = 0; x < columns; ++x)
    for (std::uint32_t r = 0; r < rows; ++r) {
      const std::uint32_t v = load(arena.l1, source(x) + std::uint64_t{r} * 32, x % c0, bits);
      store(out, a.dst + (std::uint64_t{r / c0} * a.dst_stride + x / 16) * 512 + x % 16 * 32, r % c0, bits, v);
    }
}

}  // namespace

void copy_l1_to_l0(Core& core, const Instruction& i) {
  const L1ToL0& a = i.args.l1_to_l0;
  Arena& arena = *core.block->arena;
  const Memory to = a.to_b ? Memory::l0b : Memory::l0a;
  Event* event = event_of(core, i);
  if (a.m_step == 0 || a.k_step == 0) {
    if (event) event->skipped = 1;
    return;
  }
  if (event) event->a[0] = a.m_step * a.k_step, event->a[1] = a.transpose, event->a[2] = bits_of(a.type);
  require_aligned(core, i, Memory::l1, a.src, 32, "source");
  require_aligned(core, i, to, a.dst, 512, "destination");
  std::uint8_t* out = a.to_b ? arena.l0b : arena.l0a;
  std::uint8_t* valid = arena.valid_l0[a.to_b].data();
  if (a.transpose) transposing(core, i, a, to, out, valid);
  else straight(core, i, a, to, out, valid);
}

void copy_l1_to_slots(Core& core, const Instruction& i) {
  const L1ToSlots& a = i.args.l1_to_slots;
  Arena& arena = *core.block->arena;
  const Memory to = a.to_b ? Memory::slots_b : Memory::slots_a;
  Event* event = event_of(core, i);
  if (a.x_step == 0 || a.y_step == 0) {
    if (event) event->skipped = 1;
    return;
  }
  if (event) event->a[0] = a.x_step * a.y_step;
  require_aligned(core, i, to, a.slot, 32, "destination slot");
  require_aligned(core, i, Memory::l1, a.src, 32, "source");
  for (std::uint32_t x = 0; x < a.x_step; ++x) {
    const std::uint64_t src = a.src + (std::uint64_t{a.x_start + x} * a.src_stride + a.y_start) * 32;
    const std::uint64_t dst = a.slot + std::uint64_t{x} * a.dst_stride * 32, bytes = std::uint64_t{a.y_step} * 32;
    require_range(core, i, Memory::l1, src, bytes, "source");
    require_range(core, i, to, dst, bytes, "destination");
    if (checking(core)) {
      note(core, i, Memory::l1, src, src + bytes, false);
      note(core, i, to, dst, dst + bytes, true);
      move_validity(core, i, Memory::l1, src / 32, arena.valid_slots[a.to_b].data() + dst / 32, bytes / 32, arena.valid_l1.data());
    }
    if (functional(core)) std::memcpy(arena.slots[a.to_b] + dst, arena.l1 + src, bytes);
  }
}

}  // namespace usim
