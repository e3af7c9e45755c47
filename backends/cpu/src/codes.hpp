// The element formats: tables of values, bfloat16 rounding, reading one scale or one element.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "operand.hpp"

#define CPU_NATIVE_INLINE inline __attribute__((always_inline))

namespace cpu_native {

// Values of the 256 E4M3 codes (0x7f and 0xff are NaN) and of the 256 UE8M0 exponents (0 is 2^-127, 255 is NaN).
extern const float* const e4m3_values;
extern const float* const ue8m0_values;

// E4M3 codes of the sixteen E2M1 codes; all E2M1 values are E4M3 values. 0x8 becomes +0.
alignas(16) inline constexpr uint8_t e4m3_of_e2m1[16] = {0x00, 0x30, 0x38, 0x3c, 0x40, 0x44, 0x48, 0x4c,
                                                         0x00, 0xb0, 0xb8, 0xbc, 0xc0, 0xc4, 0xc8, 0xcc};

// Scales at or above this do not fit the kernels' folding of a factor 2^8 into them; such blocks are decoded by table.
inline constexpr float largest_foldable_scale = 0x1p119f;

inline float float_of_bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t(bits) << 16); }

inline uint16_t bf16_of_float(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t((bits >> 16) | 0x40);
    return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Scales of `count` rows in one K block. Divisions are kept out of the loops: they cost more than decoding a row.
inline void scales_of_rows(const Operand& op, int64_t row0, int64_t count, int64_t k_block, float* out) {
    const uint8_t* column = op.scales;
    if (op.is_ue8m0) {
        const int shift = op.scale_bytes / 2;  // words of 4 bytes: 2, of 2 bytes: 1
        column += (k_block >> shift) * op.scale_pitch_k + (k_block & (op.scale_bytes - 1));
    } else {
        column += k_block * op.scale_pitch_k;
    }
    int64_t row_block = row0, rows_left = 1;
    if (op.gran_mn != 1) {
        row_block = row0 / op.gran_mn;
        rows_left = op.gran_mn - row0 % op.gran_mn;
    }
    const uint8_t* at = column + row_block * op.scale_pitch_mn;
    for (int64_t i = 0; i < count; ++i) {
        if (op.is_ue8m0)
            out[i] = ue8m0_values[*at];
        else
            std::memcpy(out + i, at, sizeof(float));
        if (--rows_left == 0) {
            rows_left = op.gran_mn;
            at += op.scale_pitch_mn;
        }
    }
}

inline float scale_at(const Operand& op, int64_t row, int64_t k_block) {
    float scale;
    scales_of_rows(op, row, 1, k_block, &scale);
    return scale;
}

// E4M3 code of element (row, k) of an fp8 or fp4 operand.
inline uint8_t code_at(const Operand& op, int64_t row, int64_t k) {
    const int64_t outer = op.is_k_major ? row : k, inner = op.is_k_major ? k : row;
    const uint8_t* line = op.data + outer * op.pitch;
    if (op.kind == Kind::fp8) return line[inner];
    return e4m3_of_e2m1[(line[inner / 2] >> (inner % 2 * 4)) & 15];
}

inline float plain_value_at(const Operand& op, int64_t row, int64_t k) {
    const int64_t outer = op.is_k_major ? row : k, inner = op.is_k_major ? k : row;
    const uint8_t* line = op.data + outer * op.pitch;
    if (op.kind == Kind::bf16) {
        uint16_t bits;
        std::memcpy(&bits, line + 2 * inner, sizeof bits);
        return float_of_bf16(bits);
    }
    float value;
    std::memcpy(&value, line + 4 * inner, sizeof value);
    return value;
}

inline bool has_codes(const Operand& op) { return op.kind == Kind::fp8 || op.kind == Kind::fp4; }

}  // namespace cpu_native
