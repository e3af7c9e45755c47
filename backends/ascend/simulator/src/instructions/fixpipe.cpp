// Fixpipe: L0C to GM or UB with conversion (c.6).
#include <algorithm>

#include "atomics.hpp"
#include "machine.hpp"

namespace usim {

namespace {

enum : int { kNoQuant = 0, kF32ToF16 = 1, kF32ToBf16 = 16 };

std::uint32_t bytes_of(Type t) {
  switch (t) {
    case Type::f32: case Type::s32: case Type::u32: return 4;
    case Type::f16: case Type::bf16: case Type::s16: case Type::u16: return 2;
    default: return 1;
  }
}

void require_mode(Core& core, const Instruction& i, const Fixpipe& a) {
  if (a.quant != kNoQuant && a.quant != kF32ToF16 && a.quant != kF32ToBf16)
    raise(core, &i, "unimplemented", "conversion mode " + std::to_string(a.quant) + " of the fixpipe is not simulated; modes 0 (none), 1 (f32 to f16) and 16 (f32 to bf16) are");
  if (a.quant == kNoQuant && bytes_of(a.dst_type) != 4)
    raise(core, &i, "unimplemented", "copies 4-byte accumulators to a " + std::to_string(bytes_of(a.dst_type)) +
          "-byte type without a conversion mode, which the hardware does not define (TileLang 0.1.15 emits this for fp8 outputs); convert in a vector function instead");
  if (a.quant != kNoQuant && bytes_of(a.dst_type) != 2)
    raise(core, &i, "unimplemented", "conversion mode " + std::to_string(a.quant) + " needs a 2-byte destination type");
  if (a.quant != kNoQuant && a.src_type == Type::s32) raise(core, &i, "unimplemented", "conversion of int32 accumulators is not simulated");
  if (a.relu > 1 || a.clip || a.channel_split) raise(core, &i, "unimplemented", "relu mode " + std::to_string(a.relu) + ", clip or channel split is not simulated");
  if (i.registers.l0c_nz % 65536 > 1) raise(core, &i, "unimplemented", "copies of several matrices at once (asc_set_l0c_copy_nz_para) are not simulated");
  if (a.dual && (a.quant != kNoQuant || a.relu)) raise(core, &i, "unimplemented", "a dual-destination copy can neither convert nor apply relu");
  if (!a.nz2nd && !a.nz2dn) raise(core, &i, "unimplemented", "NZ output of the fixpipe (nz2nd = nz2dn = 0) is not simulated");
  if (a.dual == 1 && a.m % 2) raise(core, &i, "out_of_bounds", "splits " + std::to_string(a.m) + " rows over two vector cores; the number of rows must be even");
  if (a.dual == 2 && a.n % 32) raise(core, &i, "out_of_bounds", "splits " + std::to_string(a.n) + " columns over two vector cores; they must be a multiple of 32");
  if (a.dual > 2 || a.sub_block > 1) raise(core, &i, "out_of_bounds", "destination mode " + std::to_string(a.dual) + ", vector core " + std::to_string(a.sub_block) + " do not exist");
}

// One row of `count` accumulators starting at column `first`, converted, to contiguous memory.
void convert_row(const Core& core, const Fixpipe& a, const std::uint8_t* l0c, std::uint32_t row, std::uint32_t first, std::uint32_t count, std::uint8_t* out) {
  const bool saturate = core.view.saturate != 0;
  for (std::uint32_t c = 0; c < count;) {
    const std::uint32_t column = first + c, run = std::min(16 - column % 16, count - c);
    const std::uint8_t* from = l0c + a.src + ((std::uint64_t{column / 16} * a.src_stride + row) * 16 + column % 16) * 4;
    float v[16];
    std::memcpy(v, from, run * 4);
    if (a.relu) {
      if (a.src_type == Type::s32) {
        for (std::uint32_t k = 0; k < run; ++k) v[k] = (float_bits(v[k]) >> 31) ? 0.0f : v[k];
      } else {
        for (std::uint32_t k = 0; k < run; ++k) v[k] = v[k] > 0 || v[k] != v[k] ? v[k] : 0.0f;
      }
    }
    if (a.quant == kNoQuant) {
      std::memcpy(out + c * 4, v, run * 4);
    } else {
      std::uint16_t h[16];
      if (a.quant == kF32ToF16) for (std::uint32_t k = 0; k < run; ++k) h[k] = float_to_half(v[k], saturate);
      else for (std::uint32_t k = 0; k < run; ++k) h[k] = float_to_bf16(v[k], saturate);
      std::memcpy(out + c * 2, h, run * 2);
    }
    c += run;
  }
}

void note_source(Core& core, const Instruction& i, const Fixpipe& a) {
  const std::uint64_t groups = (a.n + 15) / 16;
  for (std::uint64_t g = 0; g < groups; ++g) {
    const std::uint64_t lo = a.src + g * a.src_stride * 64;
    require_range(core, i, Memory::l0c, lo, std::uint64_t{a.m} * 64, "source");
    note(core, i, Memory::l0c, lo, lo + std::uint64_t{a.m} * 64, false);
  }
}

// State of one accumulator: never written, valid, or computed from uninitialised operands.
std::uint8_t state(const Core& core, const Fixpipe& a, std::uint32_t row, std::uint32_t column) {
  return core.block->arena->valid_l0c[(a.src + ((std::uint64_t{column / 16} * a.src_stride + row) * 16 + column % 16) * 4) / 4];
}

void to_gm(Core& core, const Instruction& i, const Fixpipe& a) {
  const std::uint32_t esize = bytes_of(a.dst_type);
  const auto atomic = static_cast<std::uint16_t>(i.registers.atomic);
  auto* base = reinterpret_cast<std::uint8_t*>(a.dst);
  const std::uint32_t rows = a.nz2dn ? a.n : a.m, length = a.nz2dn ? a.m : a.n;
  std::vector<std::uint8_t> line(std::size_t{length} * esize + 64);
  Event* event = event_of(core, i);
  for (std::uint32_t r = 0; r < rows; ++r) {
    std::uint8_t* dst = base + std::uint64_t{r} * a.dst_stride * esize;
    Tensor& tensor = require_tensor(core, i, dst, std::uint64_t{length} * esize, true);
    const auto lo = static_cast<std::uint64_t>(dst - tensor.base);
    if (event && r == 0) event->address = lo, event->tensor = tensor.index;
    note_gm(core, i, tensor, lo, lo + std::uint64_t{length} * esize, true, atomic);
    if (checking(core))
      for (std::uint32_t c = 0; c < length; ++c) {
        const std::uint8_t v = a.nz2dn ? state(core, a, c, r) : state(core, a, r, c);
        if (v == kValid) continue;
        raise_uninitialised(core, i, "stores accumulator (" + std::to_string(a.nz2dn ? c : r) + ", " + std::to_string(a.nz2dn ? r : c) + ") of the tile at L0C byte " +
                            std::to_string(a.src) + " to tensor '" + tensor.name + "', but " + (v == kNever ? "no mmad has written it" : "its value depends on uninitialised data"));
      }
    if (!functional(core)) continue;
    if (a.nz2dn)
      for (std::uint32_t c = 0; c < length; ++c) convert_row(core, a, core.block->arena->l0c, c, r, 1, line.data() + std::size_t{c} * esize);
    else
      convert_row(core, a, core.block->arena->l0c, r, 0, length, line.data());
    if (atomic) apply_atomic(atomic, dst, line.data(), std::uint64_t{length} * esize);
    else std::memcpy(dst, line.data(), std::size_t{length} * esize);
  }
}

void to_ub(Core& core, const Instruction& i, const Fixpipe& a) {
  const std::uint32_t esize = bytes_of(a.dst_type);
  const std::uint32_t targets = a.dual ? 2 : 1;
  const std::uint32_t rows = a.dual == 1 ? a.m / 2 : a.m, columns = a.dual == 2 ? a.n / 2 : a.n;
  if (a.nz2dn) raise(core, &i, "unimplemented", "column-major output to UB (nz2dn) is not simulated");
  require_aligned(core, i, Memory::ub0, a.dst, 32, "destination");
  if (rows > 1) require_aligned(core, i, Memory::ub0, std::uint64_t{a.dst_stride} * esize, 32, "destination row pitch as");
  for (std::uint32_t t = 0; t < targets; ++t) {
    const std::uint32_t sub = a.dual ? t : a.sub_block;
    const Memory ub = sub ? Memory::ub1 : Memory::ub0;
    if (!core.block->cores[1 + sub].exists) raise(core, &i, "out_of_bounds", "copies to a vector core, but this kernel runs on cube cores only");
    std::uint8_t* out = core.block->arena->ub[sub];
    std::uint8_t* valid = core.block->arena->valid_ub[sub].data();
    const std::uint32_t first_row = a.dual == 1 ? t * rows : 0, first_column = a.dual == 2 ? t * columns : 0;
    const bool dense = a.dst_stride == columns;
    for (std::uint32_t r = 0; r < rows; ++r) {
      const std::uint64_t lo = a.dst + std::uint64_t{r} * a.dst_stride * esize, bytes = std::uint64_t{columns} * esize;
      require_range(core, i, ub, lo, bytes, "destination");
      if (checking(core)) {
        if (!dense) note(core, i, ub, lo, lo + bytes, true);
        else if (r == 0) note(core, i, ub, lo, lo + bytes * rows, true);
        for (std::uint32_t c = 0; c < columns; ++c) {
          const std::uint8_t v = state(core, a, first_row + r, first_column + c);
          if (v != kValid) taint(core, i, Memory::l0c, a.src, a.src + 4);
          std::fill_n(valid + lo + std::uint64_t{c} * esize, esize, v == kValid ? std::uint8_t{kValid} : std::uint8_t{kTainted});
        }
      }
      if (functional(core)) convert_row(core, a, core.block->arena->l0c, first_row + r, first_column, columns, out + lo);
    }
  }
}

}  // namespace

void copy_l0c(Core& core, const Instruction& i) {
  const Fixpipe& a = i.args.fixpipe;
  Event* event = event_of(core, i);
  if (a.n == 0 || a.m == 0) {
    if (event) event->skipped = 1;
    return;
  }
  require_mode(core, i, a);
  require_aligned(core, i, Memory::l0c, a.src, 64, "source");
  note_source(core, i, a);
  if (event) {
    const std::uint32_t esize = bytes_of(a.dst_type);
    const std::uint32_t values[8] = {a.m, a.n, esize, a.dual, static_cast<std::uint32_t>(a.unit_flag) | static_cast<std::uint32_t>(a.src / 1024) << 8, a.nz2dn, a.dst_stride * esize, i.registers.atomic};
    std::copy(values, values + 8, event->a);
  }
  if (a.to_ub) to_ub(core, i, a);
  else to_gm(core, i, a);
}

}  // namespace usim
