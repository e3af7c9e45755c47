// Sixteen rows of codes become bfloat16 pairs, [k / 2][16 rows] words: transposition, table look-up, exponent scaling.
// Include only below a matching `#pragma GCC target` (AVX512_VBMI, AVX512_BF16), after vector_avx512.hpp.
#pragma once

namespace cpu_native {
namespace {  // as in vector_avx2.hpp

inline constexpr int pair_rows = 16;
inline constexpr int64_t scale_step = 32;  // K steps of the shortest scale block

// Adds to the exponents of non-zero elements. The sum must be the exponent of a normal number.
struct Scaling {
    static constexpr bool scales = true;
    __m512i added;  // sixteen bits for both elements of a pair, by row
    CPU_NATIVE_INLINE __m512i apply(__m512i pairs) const {
        const __mmask32 is_nonzero = _mm512_test_epi16_mask(pairs, _mm512_set1_epi16(0x7fff));
        return _mm512_mask_add_epi16(pairs, is_nonzero, pairs, added);
    }
};

struct NoScaling {
    static constexpr bool scales = false;
    CPU_NATIVE_INLINE __m512i apply(__m512i pairs) const { return pairs; }
};

// out[l] = lane l of each of the four.
CPU_NATIVE_INLINE void transpose_lanes(const __m512i* in, __m512i* out) {
    const __m512i a = _mm512_shuffle_i32x4(in[0], in[1], 0x44), b = _mm512_shuffle_i32x4(in[2], in[3], 0x44);
    const __m512i c = _mm512_shuffle_i32x4(in[0], in[1], 0xee), d = _mm512_shuffle_i32x4(in[2], in[3], 0xee);
    out[0] = _mm512_shuffle_i32x4(a, b, 0x88), out[1] = _mm512_shuffle_i32x4(a, b, 0xdd);
    out[2] = _mm512_shuffle_i32x4(c, d, 0x88), out[3] = _mm512_shuffle_i32x4(c, d, 0xdd);
}

// Transposes 64 bytes of each of sixteen rows within groups of four rows and within lanes, in units of 1, 2 or 4 bytes:
// lane l of quads[q][g] holds units q * 4 / bytes ... of 16-byte piece l of rows 4 g .. 4 g + 3, rows first.
template <int bytes>
CPU_NATIVE_INLINE void transpose_quads(const uint8_t* rows, int64_t pitch, __m512i (*quads)[4]) {
#pragma GCC unroll 4
    for (int g = 0; g < 4; ++g) {
        __m512i r[4];
        for (int i = 0; i < 4; ++i, rows += pitch) r[i] = _mm512_loadu_si512(rows);
        __m512i low01, low23, high01, high23;
        if constexpr (bytes == 1) {
            low01 = _mm512_unpacklo_epi8(r[0], r[1]), low23 = _mm512_unpacklo_epi8(r[2], r[3]);
            high01 = _mm512_unpackhi_epi8(r[0], r[1]), high23 = _mm512_unpackhi_epi8(r[2], r[3]);
            quads[0][g] = _mm512_unpacklo_epi16(low01, low23), quads[1][g] = _mm512_unpackhi_epi16(low01, low23);
            quads[2][g] = _mm512_unpacklo_epi16(high01, high23), quads[3][g] = _mm512_unpackhi_epi16(high01, high23);
        } else if constexpr (bytes == 2) {
            low01 = _mm512_unpacklo_epi16(r[0], r[1]), low23 = _mm512_unpacklo_epi16(r[2], r[3]);
            high01 = _mm512_unpackhi_epi16(r[0], r[1]), high23 = _mm512_unpackhi_epi16(r[2], r[3]);
            quads[0][g] = _mm512_unpacklo_epi32(low01, low23), quads[1][g] = _mm512_unpackhi_epi32(low01, low23);
            quads[2][g] = _mm512_unpacklo_epi32(high01, high23), quads[3][g] = _mm512_unpackhi_epi32(high01, high23);
        } else {
            low01 = _mm512_unpacklo_epi32(r[0], r[1]), low23 = _mm512_unpacklo_epi32(r[2], r[3]);
            high01 = _mm512_unpackhi_epi32(r[0], r[1]), high23 = _mm512_unpackhi_epi32(r[2], r[3]);
            quads[0][g] = _mm512_unpacklo_epi64(low01, low23), quads[1][g] = _mm512_unpackhi_epi64(low01, low23);
            quads[2][g] = _mm512_unpacklo_epi64(high01, high23), quads[3][g] = _mm512_unpackhi_epi64(high01, high23);
        }
    }
}

CPU_NATIVE_INLINE void store_pairs(uint32_t* out, int64_t word, __m512i pairs) {
    _mm512_storeu_si512(out + word * pair_rows, pairs);
    asm volatile("" ::: "memory");  // GCC would keep all results until the end, most of them on the stack
}

// Exact bfloat16 bits of an E4M3 code without its sign.
constexpr uint16_t bf16_of_e4m3(unsigned code) {
    const unsigned exponent = code >> 3, mantissa = code & 7;
    if (code == 0x7f) return 0x7fc0;
    if (exponent != 0) return uint16_t((exponent + 120) << 7 | mantissa << 4);
    const unsigned top = mantissa >= 4 ? 2 : mantissa >= 2 ? 1 : 0;  // a subnormal number: mantissa * 2^-9
    return mantissa == 0 ? 0 : uint16_t((118 + top) << 7 | ((mantissa << (7 - top)) & 127));
}

// Look-up tables and byte orders.
struct PairTables {
    uint8_t low[128], high[128];  // bytes of the bfloat16 values of E4M3 codes
    uint16_t e2m1[32];            // bfloat16 values of the sixteen E2M1 codes, twice
    uint8_t columns[64];          // bytes of four columns to two words: [rows / 4][word][rows][2]
    uint16_t interleaved[32];     // words of two columns by turns

    constexpr PairTables() : low(), high(), e2m1(), columns(), interleaved() {
        for (unsigned code = 0; code < 128; ++code) {
            low[code] = uint8_t(bf16_of_e4m3(code));
            high[code] = uint8_t(bf16_of_e4m3(code) >> 8);
        }
        for (unsigned i = 0; i < 32; ++i) {
            const unsigned code = e4m3_of_e2m1[i & 15];
            e2m1[i] = uint16_t(bf16_of_e4m3(code & 127) | (code & 128) << 8);
            interleaved[i] = uint16_t(i / 2 + i % 2 * 32);
        }
        for (unsigned i = 0; i < 64; ++i) columns[i] = uint8_t(16 * (i / 8 % 2 * 2 + i % 2) + i / 16 * 4 + i % 8 / 2);
    }
};
alignas(64) inline constexpr PairTables pair_tables;

// Every type of chunk below has
//   chunk           K steps handled at a time by `rows`, from 64 bytes of each row of a K-major operand
//   bits            of a stored element
//   rows            (address and pitch of sixteen rows, scaling of each 32 K steps, out)
//   columns         (addresses of four columns of an MN-major operand, sixteen rows each, scaling, out): four K steps
//   has_nan         whether a scaled element was NaN, which is then wrong in `out`

class Fp8Chunk {
public:
    static constexpr int chunk = 64, bits = 8;

    Fp8Chunk() {}  // written out: GCC compiles implicit members without the pragma's target

    // The high byte of NaN is above that of every number.
    bool has_nan() const { return _mm512_cmpge_epu8_mask(largest_, _mm512_set1_epi8(0x7f)) != 0; }

    template <class S>
    CPU_NATIVE_INLINE void rows(const uint8_t* rows, int64_t pitch, const S* scaling, uint32_t* out) {
        __m512i quads[4][4];
        transpose_quads<2>(rows, pitch, quads);
#pragma GCC unroll 4
        for (int q = 0; q < 4; ++q) {
            __m512i codes[4];
            transpose_lanes(quads[q], codes);
#pragma GCC unroll 4
            for (int piece = 0; piece < 4; ++piece) look_up(codes[piece], scaling[piece / 2], out, 8 * piece + 2 * q);
        }
    }

    template <class S>
    CPU_NATIVE_INLINE void columns(const uint8_t* const* columns, const S& scaling, uint32_t* out) {
        columns_of(_mm_loadu_si128(reinterpret_cast<const __m128i*>(columns[0])),
                   _mm_loadu_si128(reinterpret_cast<const __m128i*>(columns[1])),
                   _mm_loadu_si128(reinterpret_cast<const __m128i*>(columns[2])),
                   _mm_loadu_si128(reinterpret_cast<const __m128i*>(columns[3])), scaling, out);
    }

    template <class S>
    CPU_NATIVE_INLINE void columns_of(__m128i c0, __m128i c1, __m128i c2, __m128i c3, const S& scaling, uint32_t* out) {
        const __m256i first = _mm256_inserti128_si256(_mm256_castsi128_si256(c0), c1, 1);
        const __m256i last = _mm256_inserti128_si256(_mm256_castsi128_si256(c2), c3, 1);
        look_up(_mm512_permutexvar_epi8(order_, _mm512_inserti64x4(_mm512_castsi256_si512(first), last, 1)), scaling, out, 0);
    }

private:
    // Lane l of `codes`: rows 4 l .. 4 l + 3, two codes each, of two neighbouring words.
    template <class S>
    CPU_NATIVE_INLINE void look_up(__m512i codes, const S& scaling, uint32_t* out, int64_t word) {
        const __m512i low = _mm512_permutex2var_epi8(low0_, codes, low1_);
        __m512i high = _mm512_permutex2var_epi8(high0_, codes, high1_);
        if constexpr (S::scales) largest_ = _mm512_max_epu8(largest_, high);
        constexpr int first_or_second_and_third = 0xf8;
        high = _mm512_ternarylogic_epi32(high, codes, _mm512_set1_epi8(char(0x80)), first_or_second_and_third);
        store_pairs(out, word, scaling.apply(_mm512_unpacklo_epi8(low, high)));
        store_pairs(out, word + 1, scaling.apply(_mm512_unpackhi_epi8(low, high)));
    }

    __m512i low0_ = _mm512_loadu_si512(pair_tables.low), low1_ = _mm512_loadu_si512(pair_tables.low + 64);
    __m512i high0_ = _mm512_loadu_si512(pair_tables.high), high1_ = _mm512_loadu_si512(pair_tables.high + 64);
    __m512i order_ = _mm512_loadu_si512(pair_tables.columns);
    __m512i largest_ = _mm512_setzero_si512();
};

class Fp4Chunk {
public:
    static constexpr int chunk = 128, bits = 4;

    Fp4Chunk() {}

    bool has_nan() const { return false; }

    template <class S>
    CPU_NATIVE_INLINE void rows(const uint8_t* rows, int64_t pitch, const S* scaling, uint32_t* out) {
        const __m512i values = _mm512_loadu_si512(pair_tables.e2m1);  // by the low five bits, of which bit 4 is arbitrary
        const __m512i first_bytes = _mm512_set4_epi32(0x03030303, 0x02020202, 0x01010101, 0);  // of a lane: four rows
        const __m512i shifts = _mm512_set1_epi32(4 << 16);            // odd words take the high nibble
        __m512i quads[4][4];
        transpose_quads<1>(rows, pitch, quads);
#pragma GCC unroll 4
        for (int q = 0; q < 4; ++q) {
            __m512i bytes[4];
            transpose_lanes(quads[q], bytes);
#pragma GCC unroll 4
            for (int piece = 0; piece < 4; ++piece)
#pragma GCC unroll 4
                for (int d = 0; d < 4; ++d) {
                    const __m512i twice = _mm512_shuffle_epi8(bytes[piece], _mm512_add_epi8(first_bytes, _mm512_set1_epi8(char(4 * d))));
                    const __m512i nibbles = _mm512_srlv_epi16(twice, shifts);
                    const __m512i pairs = _mm512_permutexvar_epi16(nibbles, values);
                    store_pairs(out, 16 * piece + 4 * q + d, scaling[piece].apply(pairs));
                }
        }
    }

    template <class S>
    CPU_NATIVE_INLINE void columns(const uint8_t* const* columns, const S& scaling, uint32_t* out) {
        alignas(16) uint8_t codes[4][16];
        for (int i = 0; i < 4; ++i) X86Codes::codes_of_fp4(columns[i], codes[i]);
        const uint8_t* lines[4] = {codes[0], codes[1], codes[2], codes[3]};
        as_fp8_.columns(lines, scaling, out);
    }

private:
    Fp8Chunk as_fp8_;
};

class Bf16Chunk {
public:
    static constexpr int chunk = 32, bits = 16;

    Bf16Chunk() {}

    bool has_nan() const { return false; }

    template <class S>
    CPU_NATIVE_INLINE void rows(const uint8_t* rows, int64_t pitch, const S*, uint32_t* out) {
        __m512i quads[4][4];
        transpose_quads<4>(rows, pitch, quads);
#pragma GCC unroll 4
        for (int q = 0; q < 4; ++q) {
            __m512i pairs[4];
            transpose_lanes(quads[q], pairs);
#pragma GCC unroll 4
            for (int piece = 0; piece < 4; ++piece) store_pairs(out, 4 * piece + q, pairs[piece]);
        }
    }

    template <class S>
    CPU_NATIVE_INLINE void columns(const uint8_t* const* columns, const S&, uint32_t* out) {
#pragma GCC unroll 2
        for (int word = 0; word < 2; ++word) {
            const __m256i even = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(columns[2 * word]));
            const __m256i odd = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(columns[2 * word + 1]));
            store_pairs(out, word, _mm512_permutex2var_epi16(_mm512_castsi256_si512(even), order_, _mm512_castsi256_si512(odd)));
        }
    }

private:
    __m512i order_ = _mm512_loadu_si512(pair_tables.interleaved);
};

}  // namespace
}  // namespace cpu_native
