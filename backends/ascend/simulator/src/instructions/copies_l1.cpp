// GM to L1 with layout change, and L1 fill (c.1).
#include <algorithm>

#include "machine.hpp"

namespace usim {

namespace {

// Section c.1: source rows become columns of 32-byte units; the tail of the last unit is zero.
void place_rows(const GmToL1& a, const std::uint8_t* src, std::uint8_t* dst, std::uint64_t n_stride, std::uint64_t c0_stride) {
  const std::uint64_t row_bytes = std::uint64_t{a.d} * a.esize, whole = row_bytes / 32, rest = row_bytes % 32;
  for (std::uint32_t n = 0; n < a.n; ++n) {
    const std::uint8_t* row = src + n * a.row_stride;
    std::uint8_t* out = dst + n * n_stride * 32;
    for (std::uint64_t g = 0; g < whole; ++g) std::memcpy(out + g * c0_stride * 32, row + g * 32, 32);
    if (rest) {
      std::memset(out + whole * c0_stride * 32, 0, 32);
      std::memcpy(out + whole * c0_stride * 32, row + whole * 32, rest);
    }
  }
}

template <class T>
void place_columns(const GmToL1& a, const std::uint8_t* src, std::uint8_t* dst, std::uint64_t n_stride, std::uint64_t c0_stride) {
  constexpr std::uint32_t c0 = 32 / sizeof(T);
  for (std::uint32_t group = 0; group * c0 < a.d; ++group)
    for (std::uint32_t n = 0; n < a.n; ++n) {
      T unit[c0] = {};
      for (std::uint32_t e = 0; e < c0 && group * c0 + e < a.d; ++e)
        std::memcpy(&unit[e], src + (group * c0 + e) * a.row_stride + n * sizeof(T), sizeof(T));
      std::memcpy(dst + (n * n_stride + group * c0_stride) * 32, unit, 32);
    }
}

}  // namespace

void copy_gm_to_l1(Core& core, const Instruction& i) {
  const GmToL1& a = i.args.gm_to_l1;
  const std::uint64_t nz = i.registers.gm2l1_nz;
  const std::uint64_t matrices = nz & 0xffff, n_stride = nz >> 16 & 0xffff, c0_stride = nz >> 32 & 0xffff, matrix_stride = nz >> 48;
  Event* event = event_of(core, i);
  if (a.small_c0) raise(core, &i, "unimplemented", "small-channel mode (smallc0 = 1) has no agreed meaning and is not simulated");
  if (a.n == 0 || a.d == 0 || matrices == 0) {
    if (event) event->skipped = 1;
    return;
  }
  require_aligned(core, i, Memory::l1, a.dst, 32, "destination");
  const std::uint64_t groups = (std::uint64_t{a.d} * a.esize + 31) / 32;
  const std::uint64_t extent = ((a.n - 1) * n_stride + (groups - 1) * c0_stride + 1) * 32;
  const std::uint64_t rows = a.column_major ? a.d : a.n, row_bytes = std::uint64_t{a.column_major ? a.n : a.d} * a.esize;
  const std::uint64_t source_bytes = (rows - 1) * a.row_stride + row_bytes;
  for (std::uint64_t h = 0; h < matrices; ++h) {
    const std::uint64_t dst = a.dst + h * matrix_stride * 32;
    const auto* src = static_cast<const std::uint8_t*>(a.src) + h * a.matrix_stride;
    require_range(core, i, Memory::l1, dst, extent, "destination");
    Tensor& tensor = require_tensor(core, i, src, source_bytes, false);
    const auto lo = static_cast<std::uint64_t>(src - tensor.base);
    if (event && h == 0) {
      event->address = lo;
      event->tensor = tensor.index;
      const std::uint64_t values[5] = {rows * matrices, row_bytes, a.row_stride, std::uint64_t{a.n} * groups * 32 * matrices, a.column_major};
      for (int k = 0; k < 5; ++k) event->a[k] = static_cast<std::uint32_t>(values[k]);
    }
    if (checking(core)) {
      if (tensor.writable)
        for (std::uint64_t r = 0; r < rows; ++r) note_gm(core, i, tensor, lo + r * a.row_stride, lo + r * a.row_stride + row_bytes, false);
      std::uint8_t* valid = core.block->arena->valid_l1.data();
      for (std::uint64_t g = 0; g < groups; ++g) {
        const std::uint64_t first = dst / 32 + g * c0_stride;
        if (n_stride == 1) {
          if (c0_stride != a.n || g == 0) note(core, i, Memory::l1, first * 32, (first + (c0_stride == a.n ? groups * a.n : a.n)) * 32, true);
          std::fill_n(valid + first, a.n, std::uint8_t{kValid});
        } else {
          for (std::uint64_t n = 0; n < a.n; ++n) {
            note(core, i, Memory::l1, (first + n * n_stride) * 32, (first + n * n_stride + 1) * 32, true);
            valid[first + n * n_stride] = kValid;
          }
        }
      }
    }
    if (!functional(core)) continue;
    std::uint8_t* out = core.block->arena->l1 + dst;
    if (!a.column_major) place_rows(a, src, out, n_stride, c0_stride);
    else if (a.esize == 1) place_columns<std::uint8_t>(a, src, out, n_stride, c0_stride);
    else if (a.esize == 2) place_columns<std::uint16_t>(a, src, out, n_stride, c0_stride);
    else place_columns<std::uint32_t>(a, src, out, n_stride, c0_stride);
  }
}

void fill_l1(Core& core, const Instruction& i) {
  const FillL1& a = i.args.fill_l1;
  Event* event = event_of(core, i);
  // The three counts are 15-bit fields: what does not fit is a program error, most often a negative difference.
  if (a.repeat > 0x7fff || a.blocks > 0x7fff || (a.gap > 0x7fff && a.repeat > 1))
    raise(core, &i, "out_of_bounds", "repeat " + std::to_string(static_cast<std::int64_t>(a.repeat)) + ", blk_num " +
          std::to_string(static_cast<std::int64_t>(a.blocks)) + ", dst_gap " + std::to_string(static_cast<std::int64_t>(a.gap)) +
          " do not fit their 15-bit fields; an extent is probably negative");
  if (a.repeat == 0 || a.blocks == 0) {
    if (event) event->skipped = 1;
    return;
  }
  if (event) event->a[0] = static_cast<std::uint32_t>(a.repeat * a.blocks * 32);
  require_aligned(core, i, Memory::l1, a.dst, 32, "destination");
  for (std::uint64_t r = 0; r < a.repeat; ++r) {
    const std::uint64_t lo = a.dst + r * (a.blocks + a.gap) * 32, bytes = a.blocks * 32;
    require_range(core, i, Memory::l1, lo, bytes, "destination");
    note(core, i, Memory::l1, lo, lo + bytes, true, static_cast<std::uint16_t>(0x8000 | (a.value & 0x7fff)));  // equal fills commute
    if (checking(core)) std::fill_n(core.block->arena->valid_l1.begin() + static_cast<std::ptrdiff_t>(lo / 32), a.blocks, std::uint8_t{kValid});
    if (!functional(core)) continue;
    std::uint8_t* out = core.block->arena->l1 + lo;
    for (std::uint64_t b = 0; b < bytes; b += a.esize) std::memcpy(out + b, &a.value, a.esize);
  }
}

}  // namespace usim
