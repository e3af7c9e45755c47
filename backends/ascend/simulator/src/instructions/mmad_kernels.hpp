// The arithmetic of one mmad, compiled once per instruction set from mmad_kernels.inl and chosen at run time.
#pragma once

#include <cstdint>

#include "usim/core_api.h"

namespace usim {

struct TileKernels {
  const char* name;
  // Widens `blocks` 16-row fractal columns of `groups` K groups (layout b.3) to float rows of pitch `pitch`. `scales`,
  // when given, holds one factor per (row, 32-element K block): row pitch `scale_pitch`.
  void (*unpack)(Type type, const std::uint8_t* tile, std::uint32_t blocks, std::uint32_t groups, float* rows, std::uint32_t pitch,
                 const float* scales, std::uint32_t scale_pitch);
  // Turns 16 float rows into a panel [k][16].
  void (*panel)(const float* rows, std::uint32_t pitch, std::uint32_t k, float* panel);
  // For every panel g of `groups`: c[g * c_stride + row * 16 ..] (+)= rows[row][0..k) * panel g, for `count` rows (a
  // multiple of 4). Panels follow each other in memory. Sums run over k in order, whatever the instruction set.
  void (*multiply)(const float* rows, std::uint32_t pitch, const float* panels, std::uint32_t k, float* c, std::uint64_t c_stride,
                   std::uint32_t count, std::uint32_t groups, bool init_zero);
};

const TileKernels& tile_kernels();          // best for this CPU
const TileKernels* tile_kernels_named(const char* name);  // for tests: "base", "avx2", "avx512"; nullptr if the CPU lacks it
extern const TileKernels kBaseKernels;
#ifdef USIM_X86
extern const TileKernels kAvx2Kernels, kAvx512Kernels;
#endif

}  // namespace usim
