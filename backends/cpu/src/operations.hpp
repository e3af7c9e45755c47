// Threaded operations over whole operands, on the kernels of the instruction set in force.
#pragma once

#include <string>
#include <vector>

#include "kernels.hpp"

namespace unikernels_cpu {

// Names of the variants this CPU can run, best first; the first one is in force until `use_isa`.
std::vector<std::string> isa_variants();
void use_isa(const std::string& name);  // throws std::invalid_argument
std::string isa_in_force();

// out[r - row0, k - k0] = values of rows [row0, row1), columns [k0, k1), times their scales if `scaled`; float32 or bf16.
void decode(const Matrix& x, int64_t row0, int64_t row1, int64_t k0, int64_t k1, bool scaled, void* out, int64_t ld,
            bool to_bf16, int num_threads);

// acc[i, j] = sum_k a[i, k] * b[j, k]: few rows of float32 activations (each padded with zeros to a multiple of kStep)
// against a whole operand, which is decoded in registers or in tiles that stay in the first-level cache.
void multiply_few_rows(const float* a, int64_t lda, int64_t m, const Matrix& b, float* acc, int64_t ldacc,
                       int num_threads);

// out = c + alpha * acc, rounded once. c may be null or `out` itself.
void store(const float* acc, int64_t ldacc, int64_t m, int64_t n, const void* c, int64_t ldc, float alpha, void* out,
           int64_t ldout, bool is_bf16, int num_threads);

}  // namespace unikernels_cpu
