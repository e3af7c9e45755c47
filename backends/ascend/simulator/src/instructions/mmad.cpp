// Matrix multiply-accumulate, plain and block scaled (c.5): operand checks, unpacking, dispatch to the tile kernels.
#include <algorithm>
#include <cmath>

#include "machine.hpp"
#include "mmad_kernels.hpp"
#include "usim/types.h"

namespace usim {

const TileKernels& tile_kernels() {
  static const TileKernels* const best = [] {
    for (const char* name : {"avx512", "avx2"})
      if (const TileKernels* k = tile_kernels_named(name)) return k;
    return &kBaseKernels;
  }();
  return *best;
}

const TileKernels* tile_kernels_named(const char* name) {
  const std::string wanted = name;
  if (wanted == "base") return &kBaseKernels;
#ifdef USIM_X86
  __builtin_cpu_init();
  if (wanted == "avx2" && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) return &kAvx2Kernels;
  if (wanted == "avx512" && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq"))
    return &kAvx512Kernels;
#endif
  return nullptr;
}

namespace {

struct Operand {
  Memory memory, slots;
  std::uint64_t address;
  Type type;
  std::uint32_t extent;   // m or n
  int which;              // 0: L0A, 1: L0B
};

std::uint32_t elements(Type t) {
  switch (t) {
    case Type::f32: return 8;
    case Type::f16: case Type::bf16: return 16;
    case Type::e2m1: case Type::e1m2: return 64;
    default: return 32;
  }
}

// The largest scale code that no operand value overflows with: 57344 (e5m2) * 2^112 < 2^128. Codes below never lose bits.
constexpr std::uint8_t kTopCode = 239;

// Block scales of one operand in the slots of the core.
struct Scales {
  const std::uint8_t* slots;
  std::uint32_t extent, pairs, rows;

  Scales(const Core& core, const Operand& o, std::uint32_t k)
      : slots(core.block->arena->slots[o.which] + o.address / 16), extent(o.extent), pairs((k + 63) / 64), rows((o.extent + 15) / 16 * 16) {}
  std::uint8_t code(std::uint32_t r, std::uint32_t kb) const { return slots[(std::uint64_t{r / 16} * pairs + kb / 2) * 32 + r % 16 * 2 + kb % 2]; }
  // The power of two by which the factor that factors() gives is too small.
  int excess(std::uint32_t r, std::uint32_t kb) const { return code(r, kb) > kTopCode && code(r, kb) != 255 ? code(r, kb) - kTopCode : 0; }

  // The factor of every (row, K block), at most 2^112; `above` says in which rows a scale is larger, the result whether any is.
  bool factors(bool saturate, std::vector<float>& out, std::vector<std::uint8_t>& above) const {
    out.resize(std::size_t{rows} * pairs * 2);
    above.assign(rows, 0);
    for (std::uint32_t r = 0; r < rows; ++r)
      for (std::uint32_t kb = 0; kb < pairs * 2; ++kb) {
        const std::uint8_t c = code(r, kb);
        float factor;
        if (c == 255) factor = saturate ? 0.0f : bits_float(0x7fc00000u);
        else factor = c == 0 ? 0x1p-127f : bits_float(static_cast<std::uint32_t>(std::min(c, kTopCode)) << 23);
        if (c > kTopCode && c != 255) above[r] = 1;
        out[std::size_t{r} * pairs * 2 + kb] = factor;
      }
    return std::any_of(above.begin(), above.begin() + extent, [](std::uint8_t a) { return a; });
  }
};

void round_hf32(float* rows, std::size_t count, bool away) {
  for (std::size_t e = 0; e < count; ++e) {
    std::uint32_t u = float_bits(rows[e]);
    if ((u & 0x7f800000u) == 0x7f800000u) continue;
    u += away ? 0x1000u : 0xfffu + (u >> 13 & 1);
    rows[e] = bits_float(u & ~0x1fffu);
  }
}

// Saturate mode of CTRL[48]: infinities become the largest value of their type, NaN becomes 0; block scales act after that.
void saturate_inputs(float* rows, std::size_t count, Type type, const float* scales) {
  const float top = type == Type::e5m2 ? 57344.0f : type == Type::f16 ? 65504.0f : type == Type::bf16 ? bits_float(0x7f7f0000u) : 0x1.fffffep127f;
  for (std::size_t e = 0; e < count; ++e) {
    if (rows[e] != rows[e]) rows[e] = 0;
    else if (std::fabs(rows[e]) > top) rows[e] = std::copysign(top, rows[e]);
    if (scales) rows[e] *= scales[e / 32];  // k is a multiple of 64, so rows have no padding here
  }
}

void check_operand(Core& core, const Instruction& i, const Operand& o, std::uint32_t k, bool mx, std::vector<std::uint8_t>& bad) {
  const Arena& arena = *core.block->arena;
  const std::uint32_t blocks = (o.extent + 15) / 16, groups = (k + elements(o.type) - 1) / elements(o.type);
  const std::uint64_t bytes = std::uint64_t{blocks} * groups * 512;
  note(core, i, o.memory, o.address, o.address + bytes, false);
  bad.assign(o.extent, 0);
  const std::uint8_t* valid = arena.valid_l0[o.which].data() + o.address / 32;
  for (std::uint32_t g = 0; g < groups; ++g)
    for (std::uint32_t r = 0; r < o.extent; ++r) {
      const std::uint64_t unit = (std::uint64_t{g} * blocks + r / 16) * 16 + r % 16;
      if (valid[unit] == kValid) continue;
      if (valid[unit] == kNever)
        raise(core, &i, "uninitialised", "reads row " + std::to_string(r) + ", K group " + std::to_string(g) + " of the operand at " + memory_name(o.memory) + " byte " +
              std::to_string(o.address) + ", which no load has written; the mmad covers " + std::to_string(o.extent) + " rows and k = " + std::to_string(k) +
              ", more than what was loaded");
      bad[r] = 1;
    }
  if (!mx) return;
  const std::uint64_t slot = o.address / 16, pairs = (k + 63) / 64;
  note(core, i, o.slots, slot, slot + blocks * pairs * 32, false);
  const std::uint8_t* loaded = arena.valid_slots[o.which].data() + slot / 32;
  for (std::uint64_t u = 0; u < blocks * pairs; ++u) {
    if (loaded[u] == kValid) continue;
    if (loaded[u] == kNever)
      raise(core, &i, "mx_scale", "reads the scale slot of rows " + std::to_string(u / pairs * 16) + ".." + std::to_string(u / pairs * 16 + 15) + ", K pair " +
            std::to_string(u % pairs) + " (" + memory_name(o.slots) + " byte " + std::to_string(slot + u * 32) + ") before any " +
            (o.which ? "asc_copy_l12l0b_mx" : "asc_copy_l12l0a_mx") + " has loaded it");
    for (std::uint64_t r = u / pairs * 16; r < std::min<std::uint64_t>(u / pairs * 16 + 16, o.extent); ++r) bad[r] = 1;
  }
}

void check_accumulator(Core& core, const Instruction& i, const Mmad& a, const std::vector<std::uint8_t>& bad_a, const std::vector<std::uint8_t>& bad_b) {
  const std::uint32_t mp = (a.m + 15) / 16 * 16, groups = (a.n + 15) / 16;
  note(core, i, Memory::l0c, a.c, a.c + std::uint64_t{groups} * mp * 64, true);
  std::uint8_t* valid = core.block->arena->valid_l0c.data() + a.c / 4;
  const bool clean_b = std::none_of(bad_b.begin(), bad_b.end(), [](std::uint8_t b) { return b; });
  for (std::uint32_t g = 0; g < groups; ++g) {
    const std::uint32_t columns = std::min(16u, a.n - g * 16);
    for (std::uint32_t r = 0; r < a.m; ++r) {
      std::uint8_t* row = valid + (std::uint64_t{g} * mp + r) * 16;
      for (std::uint32_t c = 0; c < columns; ++c) {
        if (!a.init_zero && row[c] == kNever)
          raise(core, &i, "uninitialised", "accumulates on element (" + std::to_string(r) + ", " + std::to_string(g * 16 + c) + ") of the tile at L0C byte " + std::to_string(a.c) +
                ", which holds nothing: the first mmad of a tile must start from zero");
        const bool bad = bad_a[r] || (!clean_b && bad_b[g * 16 + c]);
        if (bad) row[c] = kTainted;
        else if (a.init_zero) row[c] = kValid;
      }
    }
  }
}

void integer_multiply(Core& core, const Mmad& a) {
  Arena& arena = *core.block->arena;
  const std::uint32_t mb = (a.m + 15) / 16, nb = (a.n + 15) / 16;
  const auto at = [&](const std::uint8_t* base, std::uint32_t blocks, std::uint32_t x, std::uint32_t k, bool is_signed) {
    const std::uint8_t v = base[(std::uint64_t{k / 32} * blocks + x / 16) * 512 + x % 16 * 32 + k % 32];
    return is_signed ? std::int32_t{static_cast<std::int8_t>(v)} : std::int32_t{v};
  };
  for (std::uint32_t r = 0; r < a.m; ++r)
    for (std::uint32_t c = 0; c < a.n; ++c) {
      std::uint8_t* out = arena.l0c + a.c + ((std::uint64_t{c / 16} * mb * 16 + r) * 16 + c % 16) * 4;
      std::uint32_t sum = 0;
      if (!a.init_zero) std::memcpy(&sum, out, 4);
      for (std::uint32_t k = 0; k < a.k; ++k)
        sum += static_cast<std::uint32_t>(at(arena.l0a + a.a, mb, r, k, a.type_a == Type::s8) * at(arena.l0b + a.b, nb, c, k, a.type_b == Type::s8));
      std::memcpy(out, &sum, 4);
    }
}

struct Element {
  float* out;
  float value;
};

// The elements of rows and columns with a scale above 2^112, summed as the tile kernels would if scaled operands could not
// overflow: each exact product is added with one rounding. Whatever the others hold, an element gets the same bits.
std::vector<Element> elements_above(const Mmad& m, const float* rows_a, const float* rows_b, std::uint32_t pitch, const Scales& scales_a, const Scales& scales_b,
                                    const std::vector<std::uint8_t>& above_a, const std::vector<std::uint8_t>& above_b, float* c) {
  std::vector<Element> result;
  for (std::uint32_t r = 0; r < m.m; ++r)
    for (std::uint32_t n = 0; n < m.n; ++n) {
      if (!above_a[r] && !above_b[n]) continue;
      float* out = c + (std::uint64_t{n / 16} * scales_a.rows + r) * 16 + n % 16;
      float sum = m.init_zero ? 0.0f : *out;
      for (std::uint32_t t = 0; t < m.k; ++t) {
        const float x = rows_a[std::size_t{r} * pitch + t], y = rows_b[std::size_t{n} * pitch + t];
        const float missing = std::ldexp(1.0f, scales_a.excess(r, t / 32) + scales_b.excess(n, t / 32));
        // When the smaller factor overflows, so does the sum; a zero is the smaller one and stays zero.
        sum = std::fabs(x) < std::fabs(y) ? std::fma(x * missing, y, sum) : std::fma(x, y * missing, sum);
      }
      result.push_back({out, sum});
    }
  return result;
}

struct Scratch {
  std::vector<float> a, b, panel, scale_a, scale_b;
  std::vector<std::uint8_t> above_a, above_b;
};
float* grown(std::vector<float>& v, std::size_t count) {
  if (v.size() < count) v.resize(count);
  return v.data();
}

void floating_multiply(Core& core, const Instruction& i, const Mmad& m, const Operand& oa, const Operand& ob) {
  thread_local Scratch scratch;
  Arena& arena = *core.block->arena;
  const TileKernels& kernels = tile_kernels();
  const bool saturate = core.view.saturate != 0;
  const std::uint32_t mb = (m.m + 15) / 16, nb = (m.n + 15) / 16;
  // Operands of one mmad may differ in type only within 8 or 4 bits, so both have the same group size.
  const std::uint32_t c0 = elements(m.type_a), groups = (m.k + c0 - 1) / c0, pitch = groups * c0;
  const Scales scales_a(core, oa, m.k), scales_b(core, ob, m.k);
  bool any_above = false;
  if (m.mx) {
    any_above = scales_a.factors(saturate, scratch.scale_a, scratch.above_a);
    any_above = scales_b.factors(saturate, scratch.scale_b, scratch.above_b) || any_above;
  }
  const std::uint32_t scale_pitch = scales_a.pairs * 2;
  float* rows_a = grown(scratch.a, std::size_t{mb} * 16 * pitch);
  float* rows_b = grown(scratch.b, std::size_t{nb} * 16 * pitch);
  kernels.unpack(m.type_a, arena.l0a + m.a, mb, groups, rows_a, pitch, m.mx && !saturate ? scratch.scale_a.data() : nullptr, scale_pitch);
  kernels.unpack(m.type_b, arena.l0b + m.b, nb, groups, rows_b, pitch, m.mx && !saturate ? scratch.scale_b.data() : nullptr, scale_pitch);
  if (m.type_a == Type::f32 && i.registers.hf32) {
    round_hf32(rows_a, std::size_t{mb} * 16 * pitch, i.registers.hf32_round == 0);
    round_hf32(rows_b, std::size_t{nb} * 16 * pitch, i.registers.hf32_round == 0);
  }
  if (saturate) {
    saturate_inputs(rows_a, std::size_t{mb} * 16 * pitch, m.type_a, m.mx ? scratch.scale_a.data() : nullptr);
    saturate_inputs(rows_b, std::size_t{nb} * 16 * pitch, m.type_b, m.mx ? scratch.scale_b.data() : nullptr);
  }
  auto* c = reinterpret_cast<float*>(arena.l0c + m.c);
  std::vector<Element> above;
  if (any_above) above = elements_above(m, rows_a, rows_b, pitch, scales_a, scales_b, scratch.above_a, scratch.above_b, c);
  // A few panels at a time, so that they stay in the first-level cache while all rows pass.
  constexpr std::uint32_t kTogether = 2;
  float* panels = grown(scratch.panel, std::size_t{m.k} * 16 * kTogether);
  for (std::uint32_t g = 0; g < nb; g += kTogether) {
    const std::uint32_t count = std::min(kTogether, nb - g);
    for (std::uint32_t p = 0; p < count; ++p) kernels.panel(rows_b + std::size_t{g + p} * 16 * pitch, pitch, m.k, panels + std::size_t{p} * m.k * 16);
    kernels.multiply(rows_a, pitch, panels, m.k, c + std::size_t{g} * mb * 256, std::uint64_t{mb} * 256, (m.m + 3) / 4 * 4, count, m.init_zero);
  }
  for (const Element& e : above) *e.out = e.value;
  if (saturate)
    for (std::size_t e = 0; e < std::size_t{nb} * mb * 256; ++e)
      if (std::isinf(c[e])) c[e] = std::copysign(0x1.fffffep127f, c[e]);
}

bool is_fp8(Type t) { return t == Type::e4m3 || t == Type::e5m2; }
bool is_fp4(Type t) { return t == Type::e2m1 || t == Type::e1m2; }
bool is_int8(Type t) { return t == Type::s8 || t == Type::u8; }

void require_types(Core& core, const Instruction& i, const Mmad& a) {
  const bool plain = (a.type_a == a.type_b && (a.type_a == Type::f16 || a.type_a == Type::bf16 || a.type_a == Type::f32)) || (is_fp8(a.type_a) && is_fp8(a.type_b));
  const bool scaled = (is_fp8(a.type_a) && is_fp8(a.type_b)) || (is_fp4(a.type_a) && is_fp4(a.type_b));
  const bool integer = is_int8(a.type_a) && is_int8(a.type_b) && a.type_c == Type::s32;
  if (a.mx ? !(scaled && a.type_c == Type::f32) : !((plain && a.type_c == Type::f32) || integer))
    raise(core, &i, "unimplemented", "this combination of operand types has no simulated multiply; plain: half, bf16, float or fp8 pairs into float, int8 pairs into int32; block scaled: fp8 or fp4 pairs into float");
  if (a.bias) raise(core, &i, "unimplemented", "starting from the bias table (c_source = 1) is not simulated");
  if (!a.disable_gemv && a.m == 1) raise(core, &i, "unimplemented", "the row-vector form (m = 1 with disable_gemv = 0) is not simulated");
  if (a.m > 4095 || a.n > 4095 || a.k > 4095) raise(core, &i, "out_of_bounds", "m, k, n = " + std::to_string(a.m) + ", " + std::to_string(a.k) + ", " + std::to_string(a.n) + " exceed the 12-bit fields (4095)");
  if (a.mx && a.k % 64) raise(core, &i, "misaligned", "k = " + std::to_string(a.k) + " of a block-scaled multiply is not a multiple of 64");
}

}  // namespace

void matrix_multiply(Core& core, const Instruction& i) {
  const Mmad& a = i.args.mmad;
  Event* event = event_of(core, i);
  if (a.m == 0 || a.n == 0 || a.k == 0) {
    if (event) event->skipped = 1;
    return;
  }
  require_types(core, i, a);
  if (event) {
    const std::uint32_t values[8] = {a.m, a.k, a.n, static_cast<std::uint32_t>(a.type_a), static_cast<std::uint32_t>(a.type_b), a.unit_flag | static_cast<std::uint32_t>(a.c / 1024) << 8, i.registers.hf32, i.registers.direction};
    std::copy(values, values + 8, event->a);
  }
  const Operand oa{Memory::l0a, Memory::slots_a, a.a, a.type_a, a.m, 0}, ob{Memory::l0b, Memory::slots_b, a.b, a.type_b, a.n, 1};
  for (const Operand* o : {&oa, &ob}) {
    const std::uint32_t blocks = (o->extent + 15) / 16, groups = (a.k + elements(o->type) - 1) / elements(o->type);
    require_aligned(core, i, o->memory, o->address, a.mx && is_fp8(o->type) ? 1024 : 512, "operand");
    require_range(core, i, o->memory, o->address, std::uint64_t{blocks} * groups * 512, "operand");
    if (a.mx) require_range(core, i, o->slots, o->address / 16, std::uint64_t{blocks} * ((a.k + 63) / 64) * 32, "scales");
  }
  require_aligned(core, i, Memory::l0c, a.c, 1024, "accumulator");
  require_range(core, i, Memory::l0c, a.c, std::uint64_t{(a.n + 15) / 16} * ((a.m + 15) / 16) * 1024, "accumulator");
  if (checking(core)) {
    std::vector<std::uint8_t> bad_a, bad_b;
    check_operand(core, i, oa, a.k, a.mx, bad_a);
    check_operand(core, i, ob, a.k, a.mx, bad_b);
    check_accumulator(core, i, a, bad_a, bad_b);
  }
  if (!functional(core)) return;
  if (a.type_c == Type::s32) integer_multiply(core, a);
  else floating_multiply(core, i, a, oa, ob);
}

}  // namespace usim
