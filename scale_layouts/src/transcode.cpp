#include "transcode.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <memory>
#include <system_error>
#include <thread>

#include "tiles.hpp"
#include "tiles_body.hpp"

namespace scale_layouts {
namespace {

constexpr int64_t no_bad_scale = std::numeric_limits<int64_t>::max();
// Starting a thread costs about as long as moving this many scales.
constexpr int64_t scales_per_thread = 1 << 17;

const TileSteps* fastest_steps() {
#if defined(__x86_64__)
    if (avx2_steps != nullptr && __builtin_cpu_supports("avx2")) return avx2_steps;
#endif
    return &portable_steps;
}

std::atomic<const TileSteps*> chosen_steps = fastest_steps();

// Results larger than this leave the caches anyway: written past them, old contents need not be read first.
constexpr int64_t streaming_bytes = 1 << 20;

alignas(64) const uint8_t zero_row[tile_rows] = {};

bool is_streamed(const Job& job, const TileSteps& steps) {
    const int64_t size = job.source.groups * job.sink.rows * job.sink.blocks;
    return steps.finish_streams != nullptr && job.sink.row_stride == 1 && size >= streaming_bytes;
}

// Moves the rows [row_begin, row_begin + rows) of one group, tile_blocks source blocks at a time.
class RowBand {
public:
    RowBand(const Job& job, const TileSteps& steps, int64_t group, int64_t row_begin, int64_t rows)
        : job_(job),
          steps_(steps),
          group_(group),
          row_begin_(row_begin),
          rows_(rows),
          is_streamed_(rows == tile_rows && is_streamed(job, steps)) {
        if (job.valid_rows == nullptr) return;
        mask_ = job.valid_rows + group * job.sink.rows + row_begin;
        const int64_t valid = std::count_if(mask_, mask_ + rows, [](uint8_t v) { return v != 0; });
        none_valid_ = valid == 0;
        if (valid == rows) mask_ = nullptr;
    }

    int64_t run() {
        for (int64_t begin = 0; begin < job_.source.blocks; begin += tile_blocks) {
            blocks_ = std::min(tile_blocks, job_.source.blocks - begin);
            load(begin);
            if (job_.sink.kind != Kind::none) store(begin);
        }
        if (is_streamed_) steps_.finish_streams();
        return bad_;
    }

private:
    void load(int64_t begin) {
        if (none_valid_) {
            std::memset(tile_.exponents, 0, sizeof tile_.exponents);
            return;
        }
        switch (job_.source.kind) {
            case Kind::float32: return load_floats(begin);
            case Kind::bytes4: return load_words<uint32_t>(begin);
            case Kind::bytes2: return load_words<uint16_t>(begin);
            default: return load_words<uint8_t>(begin);
        }
    }

    template <typename Element>
    const Element* source_at(int64_t row, int64_t column) const {
        const Source& s = job_.source;
        return static_cast<const Element*>(s.data) + group_ * s.group_stride + row * s.row_stride +
               column * s.column_stride;
    }

    bool is_plain() const { return job_.gran_mn == 1 && mask_ == nullptr; }

    void load_floats(int64_t begin) {
        const Source& s = job_.source;
        if (is_plain() && (s.column_stride == 1 || s.row_stride == 1)) {
            const uint32_t* source = source_at<uint32_t>(row_begin_, begin);
            const bool fine = s.row_stride == 1
                                  ? steps_.load_floats_mn_major(tile_, source, s.column_stride, rows_, blocks_)
                                  : steps_.load_floats_row_major(tile_, source, s.row_stride, rows_, blocks_);
            if (fine) return;
        }
        for_each_run([&](int64_t row, int64_t first, int64_t count) {
            for (int64_t j = 0; j < blocks_; ++j) {
                const uint32_t bits = *source_at<uint32_t>(row, begin + j);
                if (!has_exact_exponent(bits))
                    bad_ = std::min(bad_, (group_ * s.rows + row) * s.blocks + begin + j);
                std::memset(&tile_.exponents[j][first], uint8_t(bits >> 23), size_t(count));
            }
        });
    }

    template <typename Word>
    void load_words(int64_t begin) {
        constexpr int64_t per_word = sizeof(Word);
        const Source& s = job_.source;
        const int64_t first_word = begin / per_word;
        if constexpr (sizeof(Word) > 1) {
            if (is_plain() && s.row_stride == 1) {
                const Word* source = source_at<Word>(row_begin_, first_word);
                if constexpr (sizeof(Word) == 2)
                    steps_.load_words2_mn_major(tile_, source, s.column_stride, rows_, blocks_);
                else
                    steps_.load_words4_mn_major(tile_, source, s.column_stride, rows_, blocks_);
                return;
            }
        }
        for_each_run([&](int64_t row, int64_t first, int64_t count) {
            for (int64_t j = 0; j < blocks_; ++j) {
                const Word word = *source_at<Word>(row, first_word + j / per_word);
                std::memset(&tile_.exponents[j][first], uint8_t(word >> (8 * (j % per_word))), size_t(count));
            }
        });
    }

    // Calls visit(source row, first tile row, tile rows) for every source row of the band with a valid row; the others
    // are not touched, and their part of the tile is cleared.
    template <typename Visit>
    void for_each_run(Visit visit) {
        for (int64_t first = 0; first < rows_;) {
            const int64_t row = (row_begin_ + first) / job_.gran_mn;
            const int64_t last = std::min(rows_, (row + 1) * job_.gran_mn - row_begin_);
            const bool is_read =
                mask_ == nullptr || std::any_of(mask_ + first, mask_ + last, [](uint8_t v) { return v != 0; });
            if (is_read) visit(row, first, last - first);
            first = last;
        }
        if (mask_ == nullptr) return;
        for (int64_t r = 0; r < rows_; ++r) {
            if (mask_[r] != 0) continue;
            for (int64_t j = 0; j < blocks_; ++j) tile_.exponents[j][r] = 0;
        }
    }

    void store(int64_t begin) {
        const int64_t first = begin * job_.k_repeat;
        const int64_t last = std::min(job_.sink.blocks, (begin + blocks_) * job_.k_repeat);
        switch (job_.sink.kind) {
            case Kind::bytes4: return store_words<uint32_t>(begin, first, last);
            case Kind::bytes2: return store_words<uint16_t>(begin, first, last);
            case Kind::bytes1: return store_values<uint8_t>(begin, first, last);
            default: return store_values<uint32_t>(begin, first, last);
        }
    }

    template <typename Element>
    Element* sink_at(int64_t column) const {
        const Sink& s = job_.sink;
        return static_cast<Element*>(s.data) + group_ * s.group_stride + row_begin_ * s.row_stride +
               column * s.column_stride;
    }

    const uint8_t* exponents_of(int64_t sink_block, int64_t begin) const {
        return tile_.exponents[sink_block / job_.k_repeat - begin];
    }

    template <typename Word>
    void store_words(int64_t begin, int64_t first, int64_t last) {
        constexpr int64_t per_word = sizeof(Word);
        const int64_t stride = job_.sink.row_stride;
        for (int64_t block = first; block < last; block += per_word) {
            const uint8_t* bytes[per_word];
            for (int64_t b = 0; b < per_word; ++b)
                bytes[b] = block + b < last ? exponents_of(block + b, begin) : zero_row;
            Word* out = sink_at<Word>(block / per_word);
            if (is_streamed_ && reinterpret_cast<uintptr_t>(out) % streaming_alignment == 0) {
                if constexpr (sizeof(Word) == 2)
                    steps_.stream_words2(out, bytes);
                else
                    steps_.stream_words4(out, bytes);
                continue;
            }
            Word column[tile_rows];
            Word* words = stride == 1 ? out : column;
            if constexpr (sizeof(Word) == 2)
                steps_.store_words2(words, bytes, rows_);
            else
                steps_.store_words4(words, bytes, rows_);
            if (stride == 1) continue;
            for (int64_t r = 0; r < rows_; ++r) out[r * stride] = column[r];
        }
    }

    // Floats or single exponents, one element per block.
    template <typename Element>
    void store_values(int64_t begin, int64_t first, int64_t last) {
        const Sink& s = job_.sink;
        if (s.row_stride == 1) {
            for (int64_t block = first; block < last; ++block) {
                if constexpr (sizeof(Element) == 1)
                    std::memcpy(sink_at<uint8_t>(block), exponents_of(block, begin), size_t(rows_));
                else
                    steps_.store_floats(sink_at<uint32_t>(block), exponents_of(block, begin), rows_);
            }
            return;
        }
        uint8_t by_row[tile_rows][tile_blocks];
        body::transpose(tile_, by_row, rows_, blocks_);
        const int64_t repeat = job_.k_repeat, num_blocks = last - first;
        for (int64_t r = 0; r < rows_; ++r) {
            Element* row = sink_at<Element>(first) + r * s.row_stride;
            if (repeat == 1 && s.column_stride == 1) {
                if constexpr (sizeof(Element) == 1)
                    std::memcpy(row, by_row[r], size_t(num_blocks));
                else
                    steps_.store_floats(row, by_row[r], num_blocks);
                continue;
            }
            for (int64_t j = 0, written = 0; written < num_blocks; ++j) {
                Element value = by_row[r][j];
                if constexpr (sizeof(Element) > 1) value = body::float_bits(by_row[r][j]);
                for (const int64_t end = std::min(written + repeat, num_blocks); written < end; ++written)
                    row[written * s.column_stride] = value;
            }
        }
    }

    const Job& job_;
    const TileSteps& steps_;
    const int64_t group_, row_begin_, rows_;
    const bool is_streamed_;
    const uint8_t* mask_ = nullptr;  // of this band; null if all its rows are valid
    bool none_valid_ = false;
    int64_t blocks_ = 0;  // source blocks in the tile
    int64_t bad_ = no_bad_scale;
    Tile tile_;
};

// Row bands of one job, taken one by one by every thread that helps.
class SharedBands {
public:
    explicit SharedBands(const Job& job)
        : job_(job),
          steps_(*chosen_steps.load(std::memory_order_relaxed)),
          bands_per_group_((job.sink.rows + tile_rows - 1) / tile_rows),
          num_bands_(job.source.groups * bands_per_group_) {}

    int64_t num_bands() const { return num_bands_; }

    void work() {
        for (int64_t band; (band = next_.fetch_add(1)) < num_bands_;) {
            // Bands are taken in order, so a band taken after a bad scale was found cannot hold an earlier one.
            if (first_bad_.load() == no_bad_scale) run(band);
            if (done_.fetch_add(1) + 1 == num_bands_) done_.notify_all();
        }
    }

    // Returns when every band is done, whoever did it.
    int64_t wait() const {
        for (int64_t done; (done = done_.load()) < num_bands_;) done_.wait(done);
        const int64_t bad = first_bad_.load();
        return bad == no_bad_scale ? -1 : bad;
    }

private:
    void run(int64_t band) {
        const int64_t row_begin = band % bands_per_group_ * tile_rows;
        const int64_t rows = std::min(tile_rows, job_.sink.rows - row_begin);
        const int64_t bad = RowBand(job_, steps_, band / bands_per_group_, row_begin, rows).run();
        int64_t known = first_bad_.load();
        while (bad < known && !first_bad_.compare_exchange_weak(known, bad)) {
        }
    }

    const Job job_;
    const TileSteps& steps_;
    const int64_t bands_per_group_, num_bands_;
    std::atomic<int64_t> next_ = 0, done_ = 0, first_bad_ = no_bad_scale;
};

}  // namespace

void use_portable_steps(bool only_portable) { chosen_steps = only_portable ? &portable_steps : fastest_steps(); }

int64_t transcode(const Job& job, int num_threads) {
    const int64_t num_scales = job.source.groups * job.sink.rows * std::max(job.source.blocks, job.sink.blocks);
    const int64_t workers = std::min<int64_t>(num_threads, num_scales / scales_per_thread);
    if (workers < 2) {
        SharedBands bands(job);
        bands.work();
        return bands.wait();
    }
    // Helpers are not joined: on a busy machine (OpenMP threads of torch keep cores spinning for a while) one may start
    // long after the work is done. It then finds no band left, and touches nothing but the shared object.
    const auto bands = std::make_shared<SharedBands>(job);
    try {
        for (int64_t worker = 1; worker < std::min(workers, bands->num_bands()); ++worker)
            std::thread([bands] { bands->work(); }).detach();
    } catch (const std::system_error&) {
        // No thread to be had: this one does what is left.
    }
    bands->work();
    return bands->wait();
}

}  // namespace scale_layouts
