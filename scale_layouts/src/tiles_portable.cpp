#include "tiles_body.hpp"

namespace scale_layouts {
namespace {

bool load_floats_row_major(Tile& tile, const uint32_t* source, int64_t row_stride, int64_t rows, int64_t blocks) {
    return body::load_floats_row_major(tile, source, row_stride, 0, rows, 0, blocks);
}

bool load_floats_mn_major(Tile& tile, const uint32_t* source, int64_t column_stride, int64_t rows, int64_t blocks) {
    return body::load_floats_mn_major(tile, source, column_stride, rows, blocks);
}

template <typename Word>
void load_words_mn_major(Tile& tile, const Word* source, int64_t column_stride, int64_t rows, int64_t blocks) {
    body::load_words_mn_major(tile, source, column_stride, rows, blocks);
}

void store_words2(uint16_t* out, const uint8_t* const bytes[2], int64_t rows) { body::store_words2(out, bytes, rows); }

void store_words4(uint32_t* out, const uint8_t* const bytes[4], int64_t rows) { body::store_words4(out, bytes, rows); }

void store_floats(uint32_t* out, const uint8_t* exponents, int64_t rows) { body::store_floats(out, exponents, rows); }

}  // namespace

const TileSteps portable_steps = {load_floats_row_major,         load_floats_mn_major, load_words_mn_major<uint16_t>,
                                  load_words_mn_major<uint32_t>, store_words2,         store_words4,
                                  store_floats,                  nullptr,              nullptr,
                                  nullptr};

}  // namespace scale_layouts
