// What the kernels read: an operand by pointers and strides, with its block scales. Nothing is owned or checked here.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

// Functions are static: each file is compiled for its own instruction set, and the linker must not mix them.
namespace unikernels_cpu {

enum class Kind : int { bf16 = 0, fp8 = 1, fp4 = 2, fp32 = 3 };

struct Scales {
    const void* data = nullptr;   // null: every scale is 1
    int bytes_per_word = 0;       // 0: float32; 2 or 4: packed UE8M0, first block in the least significant byte
    int64_t stride_mn = 0, stride_k = 0;  // in words (floats)
    int64_t gran_mn = 1, gran_k = 1;
};

struct Matrix {
    const uint8_t* data;
    Kind kind;
    int64_t mn, k;             // logical sizes
    int64_t stride_mn, stride_k;  // in stored elements; the packed axis of fp4 counts bytes
    bool k_major;
    Scales scales;
};

// UE8M0: 2^(e-127); 0 is 2^-127 (a float32 denormal), 255 is NaN.
static inline float ue8m0(uint32_t exponent) {
    uint32_t bits = exponent == 0 ? 0x00400000u : exponent == 255 ? 0x7fc00000u : exponent << 23;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float scale_at(const Scales& s, int64_t mn_block, int64_t k_block) {
    if (s.data == nullptr) return 1.0f;
    if (s.bytes_per_word == 0)
        return static_cast<const float*>(s.data)[mn_block * s.stride_mn + k_block * s.stride_k];
    int64_t word = mn_block * s.stride_mn + (k_block / s.bytes_per_word) * s.stride_k;
    return ue8m0(static_cast<const uint8_t*>(s.data)[word * s.bytes_per_word + k_block % s.bytes_per_word]);
}

static inline float bf16_value(uint16_t bits) {
    uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
}

static inline uint16_t bf16_bits(float value) {  // nearest, ties to even; NaN stays NaN
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
    return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline float e4m3_value(uint8_t byte) {
    uint32_t magnitude = byte & 0x7fu;
    if (magnitude == 0x7fu) return std::numeric_limits<float>::quiet_NaN();
    // As a float16 bit pattern the byte reads 2^-8 of its value; do the same exactly in float32 arithmetic.
    float value = magnitude < 8 ? static_cast<float>(magnitude) * 0x1p-9f
                                : static_cast<float>(8 + (magnitude & 7u)) * ue8m0(127 + (magnitude >> 3) - 10);
    return byte & 0x80u ? -value : value;
}

static inline float e2m1_value(uint32_t code) {
    constexpr float values[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    float value = values[code & 7u];
    return code > 8u ? -value : value;  // code 8 is +0
}

}  // namespace unikernels_cpu
