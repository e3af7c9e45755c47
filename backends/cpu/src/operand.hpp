// One matrix operand as the kernels see it: where its elements and its block scales lie. Nothing is checked here.
#pragma once

#include <cstdint>

namespace cpu_native {

enum class Kind : int { bf16, fp8, fp4, fp32 };

// A logical [mn, k] matrix. K-major: row i starts at data + i * pitch. MN-major: column j starts at data + j * pitch.
// fp4 packs two E2M1 codes per byte along the contiguous axis, low nibble first.
struct Operand {
    const uint8_t* data;
    Kind kind;
    int64_t mn, k;
    bool is_k_major;
    int64_t pitch;  // bytes

    // Scale of element (i, j) belongs to block (i / gran_mn, j / gran_k).
    const uint8_t* scales;   // null: all scales are 1
    int scale_bytes;         // 4: float32 or int32 words; 2: int16 words
    bool is_ue8m0;           // words hold scale_bytes exponents, the first K block in the low byte
    int64_t scale_pitch_mn;  // bytes between row blocks
    int64_t scale_pitch_k;   // bytes between words along K
    int64_t gran_mn, gran_k;
};

// K steps of one pass of packed_gemm.hpp: a tile of B stays in the L1 cache.
inline constexpr int64_t pass_k = 256;

// Float32 scales of blocks at least this long along K can be multiplied to sums instead of elements.
inline constexpr int64_t least_deferred_block = 32;

inline bool has_float_scales(const Operand& op) { return op.scales != nullptr && !op.is_ue8m0; }

// K steps after which a float32 scale of either operand changes; 0 if the blocks of the two do not fit each other.
inline int64_t deferred_block(const Operand& a, const Operand& b) {
    const int64_t of_a = has_float_scales(a) ? a.gran_k : 0, of_b = has_float_scales(b) ? b.gran_k : 0;
    const int64_t shorter = of_a == 0 || (of_b != 0 && of_b < of_a) ? of_b : of_a;
    if (shorter == 0 || of_a % shorter != 0 || of_b % shorter != 0 || shorter % least_deferred_block != 0) return 0;
    return pass_k % shorter == 0 || shorter % pass_k == 0 ? shorter : 0;
}

// Limits of dot_gemm.hpp; the second bounds its decoded A to 4 MiB.
inline constexpr int64_t most_dot_rows = 4, most_dot_k = int64_t(1) << 18;

enum class OutputType : int { bf16, fp32 };

// out[i, j] = addend[i, j] + alpha * product[i, j]; the addend may be the output itself.
struct Output {
    void* data;
    OutputType type;
    int64_t pitch;  // elements
    const void* addend;
    OutputType addend_type;
    int64_t addend_pitch;
    float alpha;
};

// The head sum of MQA logits; see relu_sum.hpp. Pitches in elements.
struct ReluSum {
    const float* dots;
    int64_t dots_pitch_s, dots_pitch_h;
    const float* weights;
    int64_t weights_pitch_s, weights_pitch_h;
    float* out;
    int64_t out_pitch;
    int64_t num_rows, num_heads, num_columns;
};

}  // namespace cpu_native
