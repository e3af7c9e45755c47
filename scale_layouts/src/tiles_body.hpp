// The steps of tiles.hpp, written once for the compiler to vectorise. Every function is always inlined, so that it takes
// the instruction set of the function that calls it.
#pragma once

#include <cstring>

#include "tiles.hpp"

#define SCALE_LAYOUTS_INLINE inline __attribute__((always_inline))

namespace scale_layouts::body {

// Flags of a column of floats: whether a bit is set that no exact exponent has, or a value is infinite.
SCALE_LAYOUTS_INLINE bool load_floats_mn_major(Tile& tile, const uint32_t* source, int64_t column_stride, int64_t rows,
                                               int64_t blocks) {
    uint32_t suspicious = 0;
    for (int64_t j = 0; j < blocks; ++j) {
        const uint32_t* column = source + j * column_stride;
        uint8_t* out = tile.exponents[j];
        for (int64_t r = 0; r < rows; ++r) {
            const uint32_t bits = column[r];
            suspicious |= (bits & sign_and_mantissa) | uint32_t(bits == infinity_bits);
            out[r] = uint8_t(bits >> 23);
        }
    }
    return suspicious == 0;
}

SCALE_LAYOUTS_INLINE bool load_floats_row_major(Tile& tile, const uint32_t* source, int64_t row_stride, int64_t row_begin,
                                                int64_t row_end, int64_t block_begin, int64_t block_end) {
    uint32_t suspicious = 0;
    for (int64_t r = row_begin; r < row_end; ++r) {
        const uint32_t* row = source + r * row_stride;
        for (int64_t j = block_begin; j < block_end; ++j) {
            const uint32_t bits = row[j];
            suspicious |= (bits & sign_and_mantissa) | uint32_t(bits == infinity_bits);
            tile.exponents[j][r] = uint8_t(bits >> 23);
        }
    }
    return suspicious == 0;
}

template <typename Word>
SCALE_LAYOUTS_INLINE void load_words_mn_major(Tile& tile, const Word* source, int64_t column_stride, int64_t rows,
                                              int64_t blocks) {
    constexpr int64_t per_word = sizeof(Word);
    for (int64_t j = 0; j < blocks; ++j) {
        const Word* column = source + (j / per_word) * column_stride;
        const int shift = 8 * int(j % per_word);
        uint8_t* out = tile.exponents[j];
        for (int64_t r = 0; r < rows; ++r) out[r] = uint8_t(column[r] >> shift);
    }
}

SCALE_LAYOUTS_INLINE void store_words2(uint16_t* out, const uint8_t* const bytes[2], int64_t rows) {
    const uint8_t *low = bytes[0], *high = bytes[1];
    for (int64_t r = 0; r < rows; ++r) out[r] = uint16_t(low[r] | (high[r] << 8));
}

SCALE_LAYOUTS_INLINE void store_words4(uint32_t* out, const uint8_t* const bytes[4], int64_t rows) {
    const uint8_t *b0 = bytes[0], *b1 = bytes[1], *b2 = bytes[2], *b3 = bytes[3];
    for (int64_t r = 0; r < rows; ++r)
        out[r] = uint32_t(b0[r]) | uint32_t(b1[r]) << 8 | uint32_t(b2[r]) << 16 | uint32_t(b3[r]) << 24;
}

SCALE_LAYOUTS_INLINE uint32_t float_bits(uint8_t exponent) {
    const uint32_t bits = exponent == 0 ? two_pow_minus_127 : uint32_t(exponent) << 23;
    return exponent == 255 ? nan_bits : bits;
}

SCALE_LAYOUTS_INLINE void store_floats(uint32_t* out, const uint8_t* exponents, int64_t rows) {
    for (int64_t r = 0; r < rows; ++r) out[r] = float_bits(exponents[r]);
}

// Transposes an 8 x 8 block of bytes, one row per word: halves of words change places, then quarters, then bytes.
SCALE_LAYOUTS_INLINE void transpose_8x8(uint64_t rows[8]) {
    constexpr uint64_t low_parts[3] = {0x00000000ffffffffu, 0x0000ffff0000ffffu, 0x00ff00ff00ff00ffu};
    for (int step = 0, distance = 4; step < 3; ++step, distance /= 2) {
        for (int i = 0; i < 8; ++i) {
            if (i & distance) continue;
            const uint64_t change = ((rows[i] >> (8 * distance)) ^ rows[i + distance]) & low_parts[step];
            rows[i + distance] ^= change;
            rows[i] ^= change << (8 * distance);
        }
    }
}

// Writes the bytes of a tile row by row. Whole 8 x 8 blocks are moved, so bytes past `rows` and `blocks` are undefined.
SCALE_LAYOUTS_INLINE void transpose(const Tile& tile, uint8_t (*by_row)[tile_blocks], int64_t rows, int64_t blocks) {
    for (int64_t r = 0; r < rows; r += 8) {
        for (int64_t j = 0; j < blocks; j += 8) {
            uint64_t part[8];
            for (int i = 0; i < 8; ++i) std::memcpy(&part[i], &tile.exponents[j + i][r], 8);
            transpose_8x8(part);
            for (int i = 0; i < 8; ++i) std::memcpy(&by_row[r + i][j], &part[i], 8);
        }
    }
}

}  // namespace scale_layouts::body
