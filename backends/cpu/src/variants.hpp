// The builds of the kernels for different instruction sets, and the choice among them.
#pragma once

#include "operand.hpp"

namespace cpu_native {

struct Variant {
    const char* name;
    bool multiplies_bf16;  // elements must be bfloat16 numbers, float32 scales apply to whole K blocks
    void (*packed_gemm)(const Operand& a, const Operand& b, const Output& out, int threads);
    void (*dot_gemm)(const Operand& a, const Operand& b, const Output& out, int threads);
    void (*rows_to_fp32)(const Operand&, int64_t row0, int64_t row1, bool apply_scales, float* out, int64_t pitch);
    void (*rows_to_bf16)(const Operand&, int64_t row0, int64_t row1, bool apply_scales, uint16_t* out, int64_t pitch);
    void (*relu_sum)(const ReluSum&, int threads);
};

extern const Variant portable_variant;
extern const Variant* const avx2_variant;  // null where the compiler cannot build it
extern const Variant* const avx512_variant;
extern const Variant* const avx512_bf16_variant;

// Variants this machine runs and whose results agree with the portable one, best last. The check runs once.
struct VariantList {
    const Variant* items[4];
    int count;
};
const VariantList& usable_variants();

// The variant to use; null name: the best one. An unknown or unusable name gives null.
const Variant* find_variant(const char* name);

// Whether every element of the operand, scales applied, is a bfloat16 number (range aside): scales are powers of two.
bool is_exact_in_bf16(const Operand& op);

struct GemmOptions {
    int threads;
    const Variant* variant;  // null: the best one that computes these operands exactly
    bool allows_bf16;        // whether that may be one that multiplies bfloat16 pairs
    bool is_row_invariant;   // keep the bits of a row of the product the same for any number of rows of A
};

// out = addend + alpha * A B^T. False, nothing written: the variant asked for does not compute these operands exactly.
bool gemm(const Operand& a, const Operand& b, const Output& out, GemmOptions options);

}  // namespace cpu_native
