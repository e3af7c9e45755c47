// The integer half of decoding, shared by the AVX2 and AVX-512 variants: sixteen elements become float16 patterns.
//
// An E4M3 byte moved into a float16 (sign, then its seven bits from bit 13 down) reads 2^-8 of its value, subnormals
// included; VCVTPH2PS converts float16 subnormals exactly whatever the flush-to-zero mode. An E2M1 value has a float16
// pattern whose low byte is zero, so one byte shuffle finds it.

#include <immintrin.h>

namespace {

struct HalfPatterns {
    __m128i low, high;  // elements 0..7 and 8..15
};

inline HalfPatterns halves(const uint8_t* bytes, unikernels_cpu::Kind kind) {
    const __m128i zero = _mm_setzero_si128();
    if (kind == unikernels_cpu::Kind::fp8) {
        const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
        const __m128i keep = _mm_set1_epi16(static_cast<short>(0xbfff));
        return {_mm_and_si128(_mm_srai_epi16(_mm_unpacklo_epi8(zero, x), 1), keep),
                _mm_and_si128(_mm_srai_epi16(_mm_unpackhi_epi8(zero, x), 1), keep)};
    }
    const __m128i x = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes));
    const __m128i table = _mm_setr_epi8(0, 0x38, 0x3c, 0x3e, 0x40, 0x42, 0x44, 0x46, 0, static_cast<char>(0xb8),
                                        static_cast<char>(0xbc), static_cast<char>(0xbe), static_cast<char>(0xc0),
                                        static_cast<char>(0xc2), static_cast<char>(0xc4), static_cast<char>(0xc6));
    const __m128i nibble = _mm_set1_epi8(15);
    const __m128i even = _mm_shuffle_epi8(table, _mm_and_si128(x, nibble));
    const __m128i odd = _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(x, 4), nibble));
    const __m128i ordered = _mm_unpacklo_epi8(even, odd);
    return {_mm_unpacklo_epi8(zero, ordered), _mm_unpackhi_epi8(zero, ordered)};
}

struct SimdX86 {
    static float payload_factor(unikernels_cpu::Kind kind) { return kind == unikernels_cpu::Kind::fp8 ? 256.0f : 1.0f; }
    static __m128i no_nan() { return _mm_setzero_si128(); }
    static void nan_bytes(__m128i& mask, const uint8_t* bytes) {
        const __m128i low7 = _mm_set1_epi8(0x7f);
        const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
        mask = _mm_or_si128(mask, _mm_cmpeq_epi8(_mm_and_si128(x, low7), low7));
    }
    static bool any_nan(__m128i mask) { return _mm_movemask_epi8(mask) != 0; }
};

}  // namespace
