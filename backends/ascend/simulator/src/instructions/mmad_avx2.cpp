// Compiled with -mavx2 -mfma -mf16c; reached only after a run-time check.
#include <immintrin.h>

namespace {
// 8 rows of 8 floats to 8 columns; destination rows are 16 floats apart.
inline void transpose8(const float* in, unsigned pitch, float* out) {
  __m256 r[8], t[8];
  for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(in + static_cast<unsigned long>(i) * pitch);
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  for (int h = 0; h < 2; ++h) {
    r[4 * h] = _mm256_shuffle_ps(t[4 * h], t[4 * h + 2], 0x44);
    r[4 * h + 1] = _mm256_shuffle_ps(t[4 * h], t[4 * h + 2], 0xee);
    r[4 * h + 2] = _mm256_shuffle_ps(t[4 * h + 1], t[4 * h + 3], 0x44);
    r[4 * h + 3] = _mm256_shuffle_ps(t[4 * h + 1], t[4 * h + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(out + i * 16, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    _mm256_storeu_ps(out + (i + 4) * 16, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
}
}  // namespace

#define USIM_TRANSPOSE8 transpose8
#define USIM_ISA kAvx2Kernels
#define USIM_ISA_NAME "avx2"
#define USIM_WIDTH 8
#define USIM_ROWS 4
#define USIM_PANELS 1
#include "mmad_kernels.inl"
