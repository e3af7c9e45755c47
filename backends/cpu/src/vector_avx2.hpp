// The vector type of the AVX2 + FMA + F16C build. Include only below a matching `#pragma GCC target`.
#pragma once

#include "codes.hpp"

namespace cpu_native {
namespace {  // each build needs its own copy: the linker must never merge code compiled for different machines

// Pieces on 128-bit registers that AVX2 and AVX-512 share.
struct X86Codes {
    // NaN codes are the only ones whose low seven bits are 0x7f: a running maximum finds them.
    struct NanCheck {
        __m128i largest = _mm_setzero_si128();
        CPU_NATIVE_INLINE void see(const uint8_t* codes) {
            const __m128i c = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
            largest = _mm_max_epu8(largest, _mm_and_si128(c, _mm_set1_epi8(0x7f)));
        }
        CPU_NATIVE_INLINE bool found() const {
            return _mm_movemask_epi8(_mm_cmpeq_epi8(largest, _mm_set1_epi8(0x7f))) != 0;
        }
    };

    static CPU_NATIVE_INLINE __m128i nibbles(const uint8_t* bytes) {
        const __m128i packed = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes));
        const __m128i low = _mm_and_si128(packed, _mm_set1_epi8(15));
        const __m128i high = _mm_and_si128(_mm_srli_epi16(packed, 4), _mm_set1_epi8(15));
        return _mm_unpacklo_epi8(low, high);
    }

    static CPU_NATIVE_INLINE void codes_of_fp4(const uint8_t* bytes, uint8_t* codes) {
        const __m128i table = _mm_load_si128(reinterpret_cast<const __m128i*>(e4m3_of_e2m1));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), _mm_shuffle_epi8(table, nibbles(bytes)));
    }

    // High bytes of the float16 numbers value / 256; their low bytes are zero.
    static CPU_NATIVE_INLINE __m128i high_bytes_of_fp4(const uint8_t* bytes) {
        const __m128i table = _mm_setr_epi8(0x00, 0x18, 0x1c, 0x1e, 0x20, 0x22, 0x24, 0x26,  //
                                            0x00, char(0x98), char(0x9c), char(0x9e), char(0xa0), char(0xa2), char(0xa4),
                                            char(0xa6));
        return _mm_shuffle_epi8(table, nibbles(bytes));
    }

    // An E4M3 code moved to the top of a float16 keeps its meaning up to the exponent bias: value / 256, subnormals
    // included. NaN codes become the number 1.875.
    static CPU_NATIVE_INLINE __m128i half_of_word(__m128i code_in_high_byte) {
        return _mm_and_si128(_mm_srai_epi16(code_in_high_byte, 1), _mm_set1_epi16(short(0xbfff)));
    }

    // Transposes 16 bytes of eight rows in units of one byte: eight registers of [2][8 rows].
    static CPU_NATIVE_INLINE void transpose_8x16(const uint8_t* const* rows, __m128i* out) {
        __m128i r[8];
        for (int i = 0; i < 8; ++i) r[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[i]));
        for (int half = 0; half < 2; ++half) {
            __m128i pair[4];
            for (int i = 0; i < 4; ++i)
                pair[i] = half ? _mm_unpackhi_epi8(r[2 * i], r[2 * i + 1]) : _mm_unpacklo_epi8(r[2 * i], r[2 * i + 1]);
            const __m128i low0 = _mm_unpacklo_epi16(pair[0], pair[1]), high0 = _mm_unpackhi_epi16(pair[0], pair[1]);
            const __m128i low1 = _mm_unpacklo_epi16(pair[2], pair[3]), high1 = _mm_unpackhi_epi16(pair[2], pair[3]);
            out[4 * half + 0] = _mm_unpacklo_epi32(low0, low1);
            out[4 * half + 1] = _mm_unpackhi_epi32(low0, low1);
            out[4 * half + 2] = _mm_unpacklo_epi32(high0, high1);
            out[4 * half + 3] = _mm_unpackhi_epi32(high0, high1);
        }
    }

    // Transposes eight words of eight rows: register k holds word k of all rows.
    static CPU_NATIVE_INLINE void transpose_8x8_words(const uint8_t* const* rows, int64_t offset, __m128i* out) {
        __m128i r[8];
        for (int i = 0; i < 8; ++i) r[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[i] + offset));
        for (int half = 0; half < 2; ++half) {
            __m128i pair[4];
            for (int i = 0; i < 4; ++i)
                pair[i] = half ? _mm_unpackhi_epi16(r[2 * i], r[2 * i + 1]) : _mm_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
            const __m128i low0 = _mm_unpacklo_epi32(pair[0], pair[1]), high0 = _mm_unpackhi_epi32(pair[0], pair[1]);
            const __m128i low1 = _mm_unpacklo_epi32(pair[2], pair[3]), high1 = _mm_unpackhi_epi32(pair[2], pair[3]);
            out[4 * half + 0] = _mm_unpacklo_epi64(low0, low1);
            out[4 * half + 1] = _mm_unpackhi_epi64(low0, low1);
            out[4 * half + 2] = _mm_unpacklo_epi64(high0, high1);
            out[4 * half + 3] = _mm_unpackhi_epi64(high0, high1);
        }
    }
};

struct Avx2 : X86Codes {
    static constexpr const char* name = "avx2";
    static constexpr int lanes = 8;
    static constexpr int group = 1;
    static constexpr int tile_rows = 4;
    static constexpr int tile_vectors = 3;
    static constexpr float code_factor = 256;
    static constexpr bool has_exact_nan = false;

    using Packed = float;
    using Vec = __m256;

    static CPU_NATIVE_INLINE Vec zero() { return _mm256_setzero_ps(); }
    static CPU_NATIVE_INLINE Vec broadcast(float x) { return _mm256_set1_ps(x); }
    static CPU_NATIVE_INLINE Vec load(const float* p) { return _mm256_loadu_ps(p); }
    static CPU_NATIVE_INLINE void store(float* p, Vec x) { _mm256_storeu_ps(p, x); }
    static CPU_NATIVE_INLINE Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
    static CPU_NATIVE_INLINE Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
    static CPU_NATIVE_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
    // max returns its second operand if one is NaN, so NaN passes.
    static CPU_NATIVE_INLINE Vec relu(Vec a) { return _mm256_max_ps(_mm256_setzero_ps(), a); }
    static CPU_NATIVE_INLINE float sum(Vec a) {
        __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
        x = _mm_add_ps(x, _mm_movehl_ps(x, x));
        return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
    }

    static CPU_NATIVE_INLINE Vec load_packed(const Packed* p) { return load(p); }
    static CPU_NATIVE_INLINE Vec broadcast_packed(const Packed* p) { return _mm256_broadcast_ss(p); }
    static CPU_NATIVE_INLINE Vec fma_packed(Vec a, Vec b, Vec c) { return fma(a, b, c); }

    static CPU_NATIVE_INLINE void decode16(const uint8_t* codes, Vec* out) {
        const __m128i c = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)), zeros = _mm_setzero_si128();
        out[0] = _mm256_cvtph_ps(half_of_word(_mm_unpacklo_epi8(zeros, c)));
        out[1] = _mm256_cvtph_ps(half_of_word(_mm_unpackhi_epi8(zeros, c)));
    }
    static CPU_NATIVE_INLINE void decode16_fp4(const uint8_t* bytes, Vec* out) {
        const __m128i high = high_bytes_of_fp4(bytes), zeros = _mm_setzero_si128();
        out[0] = _mm256_cvtph_ps(_mm_unpacklo_epi8(zeros, high));
        out[1] = _mm256_cvtph_ps(_mm_unpackhi_epi8(zeros, high));
    }
    static CPU_NATIVE_INLINE void load16_bf16(const uint8_t* bytes, Vec* out) {
        for (int i = 0; i < 2; ++i) {
            const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes) + i);
            out[i] = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
        }
    }
    static CPU_NATIVE_INLINE void transpose16(const uint8_t* const* rows, uint8_t* out) {
        __m128i columns[8];
        transpose_8x16(rows, columns);
        for (int i = 0; i < 8; ++i) _mm_storeu_si128(reinterpret_cast<__m128i*>(out) + i, columns[i]);
    }
    static CPU_NATIVE_INLINE void transpose16_words(const uint8_t* const* rows, uint16_t* out) {
        for (int half = 0; half < 2; ++half) {
            __m128i steps[8];
            transpose_8x8_words(rows, 16 * half, steps);
            for (int i = 0; i < 8; ++i) _mm_storeu_si128(reinterpret_cast<__m128i*>(out) + 8 * half + i, steps[i]);
        }
    }
    static CPU_NATIVE_INLINE void pack(const Vec* values, Packed* out) { store(out, values[0]); }
    static CPU_NATIVE_INLINE void store_bf16(uint16_t* out, Vec x) {
        const __m256i bits = _mm256_castps_si256(x);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        __m256i words = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
        const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
        const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
        words = _mm256_srli_epi32(_mm256_blendv_epi8(words, quiet, is_nan), 16);
        const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(words, words), 0x08);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(packed));
    }
};

}  // namespace
}  // namespace cpu_native
