// What one call of the packer moves: a source of scales, a sink for them, and the repetition in between.
// No layout is known here: strides describe everything.
#pragma once

#include <array>
#include <cstdint>

namespace scale_layouts {

// Element kinds: floats, or words of that many UE8M0 bytes, the first block in the least significant byte.
enum class Kind : int { none = -1, float32 = 0, bytes1 = 1, bytes2 = 2, bytes4 = 4 };

struct Source {
    const void* data;
    Kind kind;
    int64_t groups, rows, blocks;  // blocks are scales, not words
    int64_t group_stride, row_stride, column_stride;  // in elements
};

struct Sink {
    void* data;
    Kind kind;
    int64_t rows, blocks;
    int64_t group_stride, row_stride, column_stride;
};

struct Job {
    Source source;
    Sink sink;
    int64_t gran_mn;            // sink rows per source row
    int64_t k_repeat;           // sink blocks per source block
    const uint8_t* valid_rows;  // [groups, sink.rows], or null; rows with 0 are not read and become exponent 0
};

// Returns -1, or the smallest row-major index [group, row, block] of a float that has no exact UE8M0 exponent.
int64_t transcode(const Job& job, int num_threads);

// Leaves vector instructions out of later calls, so that tests reach both builds of the steps on one machine.
void use_portable_steps(bool only_portable);

}  // namespace scale_layouts
