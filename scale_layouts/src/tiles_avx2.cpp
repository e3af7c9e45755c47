#include "tiles_body.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#define SCALE_LAYOUTS_AVX2 __attribute__((target("avx2")))

namespace scale_layouts {
namespace {

// Loads 8 rows x 8 floats, adds their forbidden bits to `suspicious`, and writes the 8 exponents of each column.
SCALE_LAYOUTS_AVX2 inline __attribute__((always_inline)) void load_8x8(uint8_t* out, const uint32_t* source,
                                                                       int64_t row_stride, __m256i& suspicious) {
    const __m256i forbidden = _mm256_set1_epi32(int(sign_and_mantissa));
    const __m256i infinite = _mm256_set1_epi32(int(infinity_bits));
    __m256i e[8];
    for (int r = 0; r < 8; ++r) {
        const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + r * row_stride));
        suspicious = _mm256_or_si256(suspicious, _mm256_and_si256(bits, forbidden));
        suspicious = _mm256_or_si256(suspicious, _mm256_cmpeq_epi32(bits, infinite));
        e[r] = _mm256_and_si256(_mm256_srli_epi32(bits, 23), _mm256_set1_epi32(0xff));
    }
    // Packing works on each half alone: the low half ends with columns 0..3, the high half with columns 4..7.
    const __m256i rows_0_to_3 = _mm256_packus_epi16(_mm256_packus_epi32(e[0], e[1]), _mm256_packus_epi32(e[2], e[3]));
    const __m256i rows_4_to_7 = _mm256_packus_epi16(_mm256_packus_epi32(e[4], e[5]), _mm256_packus_epi32(e[6], e[7]));
    const __m256i by_column = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15,  //
                                               0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m256i top = _mm256_shuffle_epi8(rows_0_to_3, by_column);
    const __m256i bottom = _mm256_shuffle_epi8(rows_4_to_7, by_column);
    const __m256i columns_01_45 = _mm256_unpacklo_epi32(top, bottom);
    const __m256i columns_23_67 = _mm256_unpackhi_epi32(top, bottom);
    const __m128i pairs[4] = {_mm256_castsi256_si128(columns_01_45), _mm256_castsi256_si128(columns_23_67),
                              _mm256_extracti128_si256(columns_01_45, 1), _mm256_extracti128_si256(columns_23_67, 1)};
    for (int p = 0; p < 4; ++p) {
        _mm_storel_epi64(reinterpret_cast<__m128i*>(out + (2 * p) * tile_rows), pairs[p]);
        _mm_storel_epi64(reinterpret_cast<__m128i*>(out + (2 * p + 1) * tile_rows), _mm_unpackhi_epi64(pairs[p], pairs[p]));
    }
}

SCALE_LAYOUTS_AVX2 bool load_floats_row_major(Tile& tile, const uint32_t* source, int64_t row_stride, int64_t rows,
                                              int64_t blocks) {
    const int64_t whole_rows = rows & ~int64_t(7), whole_blocks = blocks & ~int64_t(7);
    __m256i suspicious = _mm256_setzero_si256();
    for (int64_t r = 0; r < whole_rows; r += 8)
        for (int64_t j = 0; j < whole_blocks; j += 8)
            load_8x8(&tile.exponents[j][r], source + r * row_stride + j, row_stride, suspicious);
    bool fine = _mm256_testz_si256(suspicious, suspicious);
    fine &= body::load_floats_row_major(tile, source, row_stride, 0, whole_rows, whole_blocks, blocks);
    fine &= body::load_floats_row_major(tile, source, row_stride, whole_rows, rows, 0, blocks);
    return fine;
}

SCALE_LAYOUTS_AVX2 bool load_floats_mn_major(Tile& tile, const uint32_t* source, int64_t column_stride, int64_t rows,
                                             int64_t blocks) {
    return body::load_floats_mn_major(tile, source, column_stride, rows, blocks);
}

SCALE_LAYOUTS_AVX2 void load_words2_mn_major(Tile& tile, const uint16_t* source, int64_t column_stride, int64_t rows,
                                             int64_t blocks) {
    body::load_words_mn_major(tile, source, column_stride, rows, blocks);
}

SCALE_LAYOUTS_AVX2 void load_words4_mn_major(Tile& tile, const uint32_t* source, int64_t column_stride, int64_t rows,
                                             int64_t blocks) {
    body::load_words_mn_major(tile, source, column_stride, rows, blocks);
}

SCALE_LAYOUTS_AVX2 void store_words2(uint16_t* out, const uint8_t* const bytes[2], int64_t rows) {
    body::store_words2(out, bytes, rows);
}

SCALE_LAYOUTS_AVX2 void store_words4(uint32_t* out, const uint8_t* const bytes[4], int64_t rows) {
    body::store_words4(out, bytes, rows);
}

SCALE_LAYOUTS_AVX2 void store_floats(uint32_t* out, const uint8_t* exponents, int64_t rows) {
    body::store_floats(out, exponents, rows);
}

SCALE_LAYOUTS_AVX2 inline __m128i load_16(const uint8_t* bytes) {
    return _mm_load_si128(reinterpret_cast<const __m128i*>(bytes));
}

SCALE_LAYOUTS_AVX2 void stream_words2(uint16_t* out, const uint8_t* const bytes[2]) {
    __m128i* words = reinterpret_cast<__m128i*>(out);
    for (int64_t r = 0; r < tile_rows; r += 16, words += 2) {
        const __m128i low = load_16(bytes[0] + r), high = load_16(bytes[1] + r);
        _mm_stream_si128(words, _mm_unpacklo_epi8(low, high));
        _mm_stream_si128(words + 1, _mm_unpackhi_epi8(low, high));
    }
}

SCALE_LAYOUTS_AVX2 void stream_words4(uint32_t* out, const uint8_t* const bytes[4]) {
    __m128i* words = reinterpret_cast<__m128i*>(out);
    for (int64_t r = 0; r < tile_rows; r += 16, words += 4) {
        const __m128i b0 = load_16(bytes[0] + r), b1 = load_16(bytes[1] + r);
        const __m128i b2 = load_16(bytes[2] + r), b3 = load_16(bytes[3] + r);
        const __m128i low_0 = _mm_unpacklo_epi8(b0, b1), high_0 = _mm_unpacklo_epi8(b2, b3);
        const __m128i low_8 = _mm_unpackhi_epi8(b0, b1), high_8 = _mm_unpackhi_epi8(b2, b3);
        _mm_stream_si128(words, _mm_unpacklo_epi16(low_0, high_0));
        _mm_stream_si128(words + 1, _mm_unpackhi_epi16(low_0, high_0));
        _mm_stream_si128(words + 2, _mm_unpacklo_epi16(low_8, high_8));
        _mm_stream_si128(words + 3, _mm_unpackhi_epi16(low_8, high_8));
    }
}

// Streamed stores are not ordered with the flag that tells other threads about them; this orders them.
void finish_streams() { _mm_sfence(); }

const TileSteps steps = {load_floats_row_major, load_floats_mn_major, load_words2_mn_major, load_words4_mn_major,
                         store_words2,          store_words4,         store_floats,         stream_words2,
                         stream_words4,         finish_streams};

}  // namespace

const TileSteps* const avx2_steps = &steps;

}  // namespace scale_layouts

#else

namespace scale_layouts {
const TileSteps* const avx2_steps = nullptr;
}

#endif
