// A tile is a block of scales as bytes in cache: exponents[block][row]. Loads fill it from a source, stores empty it.
// Every step exists in a portable and an AVX2 build of the same text (tiles_body.hpp); see tile_steps().
#pragma once

#include <cstdint>

namespace scale_layouts {

constexpr int64_t tile_rows = 128;
constexpr int64_t tile_blocks = 64;  // a multiple of every word's byte count, so that words never straddle tiles

struct Tile {
    alignas(64) uint8_t exponents[tile_blocks][tile_rows];
};

constexpr uint32_t sign_and_mantissa = 0x807fffffu;
constexpr uint32_t infinity_bits = 0x7f800000u;
constexpr uint32_t nan_bits = 0x7fc00000u;
constexpr uint32_t two_pow_minus_127 = 0x00400000u;  // a subnormal float32; UE8M0 byte 0

inline bool has_exact_exponent(uint32_t bits) {
    return ((bits & sign_and_mantissa) == 0 && bits != infinity_bits) || bits == two_pow_minus_127;
}

struct TileSteps {
    // Loads return false if some value may have no exact exponent (2^-127 looks like one); the caller then looks closely.
    bool (*load_floats_row_major)(Tile&, const uint32_t*, int64_t row_stride, int64_t rows, int64_t blocks);
    bool (*load_floats_mn_major)(Tile&, const uint32_t*, int64_t column_stride, int64_t rows, int64_t blocks);
    void (*load_words2_mn_major)(Tile&, const uint16_t*, int64_t column_stride, int64_t rows, int64_t blocks);
    void (*load_words4_mn_major)(Tile&, const uint32_t*, int64_t column_stride, int64_t rows, int64_t blocks);
    // One column of words or floats, from the byte rows of its blocks.
    void (*store_words2)(uint16_t*, const uint8_t* const bytes[2], int64_t rows);
    void (*store_words4)(uint32_t*, const uint8_t* const bytes[4], int64_t rows);
    void (*store_floats)(uint32_t*, const uint8_t*, int64_t rows);
    // The same past the caches, for whole tiles at addresses aligned to streaming_alignment; null if there is no such way.
    void (*stream_words2)(uint16_t*, const uint8_t* const bytes[2]);
    void (*stream_words4)(uint32_t*, const uint8_t* const bytes[4]);
    void (*finish_streams)();
};

constexpr uintptr_t streaming_alignment = 64;  // a cache line: partial lines make streaming slower than caching

extern const TileSteps portable_steps;
extern const TileSteps* const avx2_steps;  // null where the build has no AVX2

}  // namespace scale_layouts
