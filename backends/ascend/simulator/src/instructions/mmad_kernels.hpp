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
  // c[row][16] (+)= rows[row][0..k) * panel, for `count` rows; c rows are 16 floats apart, count is a multiple of 4.
  void (*multiply)(const float* rows, std::uint32_t pitch, const float* panel, std::uint32_t k, float* c, std::uint32_t count, bool init_zero);
};

const TileKernels& tile_kernels();          // best for this CPU
const TileKernels* tile_kernels_named(const char* name);  // for tests: "base", "avx2", "avx512"; nullptr if the CPU lacks it
extern const TileKernels kBaseKernels;
#ifdef USIM_X86
extern const TileKernels kAvx2Kernels, kAvx512Kernels;
#endif

}  // namespace usim
