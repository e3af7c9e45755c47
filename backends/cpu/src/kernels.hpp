// The kernels that exist once per instruction set, as a table of function pointers; the bodies are in kernels_body.hpp.
#pragma once

#include "matrix.hpp"

namespace unikernels_cpu {

// Rows of the float32 activation block that the fused kernel takes at once.
constexpr int kMaxFusedRows = 4;
// Activation rows are padded with zeros to a multiple of this many elements.
constexpr int64_t kStep = 32;

struct Kernels {
    const char* name;
    bool (*can_run)();
    // out[0:n] = scale * elements offset..offset+n of a contiguous run (bf16, fp8, fp4 or fp32).
    void (*decode_run)(const uint8_t* run, Kind kind, int64_t offset, int64_t n, float scale, float* out);
    // out[i] = sum_k a[i][k] * b[row][k], i < num_rows <= kMaxFusedRows; b K-major fp8 or fp4, decoded in registers.
    // gran_k must be a multiple of kStep. `block_scales` holds the row's scales, one per K block.
    void (*dot_fused)(const Matrix& b, int64_t row, const float* block_scales, const float* a, int64_t lda,
                      int num_rows, float* out);
    // acc[i * ldacc + j] += sum_k a[i * lda + k] * b[j * ldb + k] for i < m, j < n.
    void (*multiply_tile)(const float* a, int64_t lda, int64_t m, const float* b, int64_t ldb, int64_t n, int64_t k,
                          float* acc, int64_t ldacc);
};

extern const Kernels kPortable;
#ifdef UNIKERNELS_X86
extern const Kernels kAvx2;
extern const Kernels kAvx512;
#endif

}  // namespace unikernels_cpu
