// The vector types of the AVX-512 builds: float32, and bfloat16 pairs (AVX512_BF16) for exact operands.
// Include only below a matching `#pragma GCC target`, after vector_avx2.hpp.
#pragma once

#include "vector_avx2.hpp"

namespace cpu_native {
namespace {  // as in vector_avx2.hpp

struct Avx512 : X86Codes {
    static constexpr const char* name = "avx512";
    static constexpr int lanes = 16;
    static constexpr int group = 1;
    static constexpr int tile_rows = 8;
    static constexpr int tile_vectors = 3;
    static constexpr float code_factor = 256;
    static constexpr bool has_exact_nan = false;

    using Packed = float;
    using Vec = __m512;

    static CPU_NATIVE_INLINE Vec zero() { return _mm512_setzero_ps(); }
    static CPU_NATIVE_INLINE Vec broadcast(float x) { return _mm512_set1_ps(x); }
    static CPU_NATIVE_INLINE Vec load(const float* p) { return _mm512_loadu_ps(p); }
    static CPU_NATIVE_INLINE void store(float* p, Vec x) { _mm512_storeu_ps(p, x); }
    static CPU_NATIVE_INLINE Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
    static CPU_NATIVE_INLINE Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
    static CPU_NATIVE_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
    static CPU_NATIVE_INLINE Vec relu(Vec a) { return _mm512_max_ps(_mm512_setzero_ps(), a); }
    static CPU_NATIVE_INLINE float sum(Vec a) { return _mm512_reduce_add_ps(a); }

    static CPU_NATIVE_INLINE Vec load_packed(const Packed* p) { return load(p); }
    static CPU_NATIVE_INLINE Vec broadcast_packed(const Packed* p) { return broadcast(*p); }
    static CPU_NATIVE_INLINE Vec fma_packed(Vec a, Vec b, Vec c) { return fma(a, b, c); }

    static CPU_NATIVE_INLINE void decode16(const uint8_t* codes, Vec* out) {
        const __m128i c = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
        const __m256i words = _mm256_srai_epi16(_mm256_slli_epi16(_mm256_cvtepu8_epi16(c), 8), 1);
        out[0] = _mm512_cvtph_ps(_mm256_and_si256(words, _mm256_set1_epi16(short(0xbfff))));
    }
    static CPU_NATIVE_INLINE void decode16_fp4(const uint8_t* bytes, Vec* out) {
        out[0] = _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(high_bytes_of_fp4(bytes)), 8));
    }
    static CPU_NATIVE_INLINE void load16_bf16(const uint8_t* bytes, Vec* out) {
        const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
        out[0] = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
    }
    static CPU_NATIVE_INLINE void transpose16(const uint8_t* const* rows, uint8_t* out) {
        __m128i top[8], bottom[8];
        transpose_8x16(rows, top);
        transpose_8x16(rows + 8, bottom);
        __m128i* columns = reinterpret_cast<__m128i*>(out);
        for (int i = 0; i < 8; ++i) {
            _mm_storeu_si128(columns + 2 * i, _mm_unpacklo_epi64(top[i], bottom[i]));
            _mm_storeu_si128(columns + 2 * i + 1, _mm_unpackhi_epi64(top[i], bottom[i]));
        }
    }
    static CPU_NATIVE_INLINE void transpose16_words(const uint8_t* const* rows, uint16_t* out) {
        for (int half = 0; half < 2; ++half)
            for (int side = 0; side < 2; ++side) {
                __m128i steps[8];
                transpose_8x8_words(rows + 8 * side, 16 * half, steps);
                for (int i = 0; i < 8; ++i)
                    _mm_storeu_si128(reinterpret_cast<__m128i*>(out) + 2 * (8 * half + i) + side, steps[i]);
            }
    }
    static CPU_NATIVE_INLINE void pack(const Vec* values, Packed* out) { store(out, values[0]); }
    static CPU_NATIVE_INLINE void store_bf16(uint16_t* out, Vec x) {
        const __m512i bits = _mm512_castps_si512(x);
        const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
        const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
        const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
        const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
        const __m512i words = _mm512_srli_epi32(_mm512_mask_blend_epi32(is_nan, rounded, quiet), 16);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_cvtepi32_epi16(words));
    }
};

#ifdef CPU_NATIVE_BF16_PAIRS
// A packed word holds the bfloat16 values of two K steps of one row. Only for operands that bfloat16 holds exactly.
struct Avx512Bf16 : Avx512 {
    static constexpr const char* name = "avx512_bf16";
    static constexpr int group = 2;

    using Packed = uint32_t;

    static CPU_NATIVE_INLINE __m512i load_packed(const Packed* p) { return _mm512_loadu_si512(p); }
    static CPU_NATIVE_INLINE __m512i broadcast_packed(const Packed* p) { return _mm512_set1_epi32(int(*p)); }
    static CPU_NATIVE_INLINE Vec fma_packed(__m512i a, __m512i b, Vec c) {
        return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b);
    }
    // Units of two codes: [8][16 rows][2].
    static CPU_NATIVE_INLINE void transpose16(const uint8_t* const* rows, uint8_t* out) {
        for (int side = 0; side < 2; ++side) {
            __m128i steps[8];
            transpose_8x8_words(rows + 8 * side, 0, steps);
            for (int i = 0; i < 8; ++i) _mm_storeu_si128(reinterpret_cast<__m128i*>(out) + 2 * i + side, steps[i]);
        }
    }
    // Units of two words: [8][16 rows][2].
    static CPU_NATIVE_INLINE void transpose16_words(const uint8_t* const* rows, uint16_t* out) {
        for (int half = 0; half < 2; ++half)
            for (int quad = 0; quad < 4; ++quad) {
                __m128i r[4];
                for (int i = 0; i < 4; ++i)
                    r[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[4 * quad + i] + 16 * half));
                const __m128i low0 = _mm_unpacklo_epi32(r[0], r[1]), high0 = _mm_unpackhi_epi32(r[0], r[1]);
                const __m128i low1 = _mm_unpacklo_epi32(r[2], r[3]), high1 = _mm_unpackhi_epi32(r[2], r[3]);
                const __m128i steps[4] = {_mm_unpacklo_epi64(low0, low1), _mm_unpackhi_epi64(low0, low1),
                                          _mm_unpacklo_epi64(high0, high1), _mm_unpackhi_epi64(high0, high1)};
                for (int i = 0; i < 4; ++i)
                    _mm_storeu_si128(reinterpret_cast<__m128i*>(out) + 4 * (4 * half + i) + quad, steps[i]);
            }
    }
    // Two vectors of [lanes / 2][2 K steps] become `lanes` words. The values are exact, so cutting off is no rounding;
    // unlike vcvtne2ps2bf16 it keeps subnormal numbers.
    static CPU_NATIVE_INLINE void pack(const Vec* values, Packed* out) {
        const __m256i low = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(values[0]), 16));
        const __m256i high = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(values[1]), 16));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), low);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out) + 1, high);
    }
};
#endif

}  // namespace
}  // namespace cpu_native
