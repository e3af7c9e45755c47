#include "operations.hpp"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <thread>

namespace unikernels_cpu {
namespace {

// Work below this many element steps is not worth a second thread (starting one costs tens of microseconds).
constexpr int64_t kMinWorkPerThread = 1 << 17;

bool decodes_as_portable(const Kernels& kernels) {
    uint8_t bytes[256];
    for (int i = 0; i < 256; ++i) bytes[i] = static_cast<uint8_t>(i);
    for (Kind kind : {Kind::fp8, Kind::fp4}) {
        const int64_t n = kind == Kind::fp8 ? 256 : 512;
        float expected[512], actual[512];
        kPortable.decode_run(bytes, kind, 0, n, 0.5f, expected);
        kernels.decode_run(bytes, kind, 0, n, 0.5f, actual);
        for (int64_t i = 0; i < n; ++i)
            if (std::memcmp(&expected[i], &actual[i], sizeof(float)) != 0 && expected[i] == expected[i]) return false;
    }
    return true;
}

const std::vector<const Kernels*>& usable() {
    static const std::vector<const Kernels*> found = [] {
        std::vector<const Kernels*> list;
#ifdef UNIKERNELS_X86
        // A variant that this machine is the first to run proves its decoding before it is trusted.
        for (const Kernels* one : {&kAvx512, &kAvx2})
            if (one->can_run() && decodes_as_portable(*one)) list.push_back(one);
#endif
        list.push_back(&kPortable);
        return list;
    }();
    return found;
}

std::atomic<const Kernels*> in_force{nullptr};

const Kernels& kernels() {
    const Kernels* chosen = in_force.load(std::memory_order_relaxed);
    return chosen ? *chosen : *usable().front();
}

// Calls body(begin, end) on disjoint ranges that cover [0, count). Threads live for the call only: that is safe after
// fork and when several Python threads call at once, and costs little beside the work it is used for.
template <typename Body>
void parallel_for(int64_t count, int64_t align, int64_t work, int num_threads, const Body& body) {
    const int64_t threads = std::max<int64_t>(1, std::min<int64_t>(num_threads, work / kMinWorkPerThread));
    const int64_t share = ((count + threads - 1) / threads + align - 1) / align * align;
    std::vector<std::thread> started;
    for (int64_t begin = share; begin < count; begin += share)
        started.emplace_back([&body, begin, end = std::min(count, begin + share)] { body(begin, end); });
    body(0, std::min(count, share));
    for (auto& thread : started) thread.join();
}

// Scales of one row's K blocks; [first, last) in blocks.
void row_scales(const Matrix& x, int64_t row, int64_t first, int64_t last, float* out) {
    const int64_t mn_block = row / x.scales.gran_mn;
    for (int64_t block = first; block < last; ++block) out[block - first] = scale_at(x.scales, mn_block, block);
}

int64_t num_k_blocks(const Matrix& x) { return (x.k + x.scales.gran_k - 1) / x.scales.gran_k; }

const uint8_t* row_run(const Matrix& x, int64_t row) {
    const int64_t size = x.kind == Kind::fp32 ? 4 : x.kind == Kind::bf16 ? 2 : 1;
    return x.data + row * x.stride_mn * size;
}

void decode_k_major_row(const Kernels& isa, const Matrix& x, int64_t row, int64_t k0, int64_t k1, bool scaled,
                        float* out) {
    const uint8_t* run = row_run(x, row);
    if (!scaled || x.scales.data == nullptr) {
        isa.decode_run(run, x.kind, k0, k1 - k0, 1.0f, out);
        return;
    }
    const int64_t gran_k = x.scales.gran_k, mn_block = row / x.scales.gran_mn;
    for (int64_t k = k0; k < k1;) {
        const int64_t block = k / gran_k, stop = std::min(k1, (block + 1) * gran_k);
        isa.decode_run(run, x.kind, k, stop - k, scale_at(x.scales, mn_block, block), out + (k - k0));
        k = stop;
    }
}

// MN-major: runs go along mn, so a tile is decoded run by run and transposed in cache.
void decode_mn_major_rows(const Kernels& isa, const Matrix& x, int64_t row0, int64_t row1, int64_t k0, int64_t k1,
                          bool scaled, float* out, int64_t ld) {
    constexpr int64_t kTile = 64;
    const int64_t size = x.kind == Kind::fp32 ? 4 : x.kind == Kind::bf16 ? 2 : 1;
    float tile[kTile * kTile];
    float factors[kTile];
    const bool has_scales = scaled && x.scales.data != nullptr;
    for (int64_t r = row0; r < row1; r += kTile) {
        const int64_t rows = std::min(kTile, row1 - r);
        for (int64_t k = k0; k < k1; k += kTile) {
            const int64_t columns = std::min(kTile, k1 - k);
            for (int64_t j = 0; j < columns; ++j)
                isa.decode_run(x.data + (k + j) * x.stride_k * size, x.kind, r, rows, 1.0f, tile + j * kTile);
            for (int64_t i = 0; i < rows; ++i) {
                float* line = out + (r + i - row0) * ld + (k - k0);
                if (has_scales) {
                    for (int64_t j = 0; j < columns; ++j)
                        factors[j] = scale_at(x.scales, (r + i) / x.scales.gran_mn, (k + j) / x.scales.gran_k);
                    for (int64_t j = 0; j < columns; ++j) line[j] = tile[j * kTile + i] * factors[j];
                } else {
                    for (int64_t j = 0; j < columns; ++j) line[j] = tile[j * kTile + i];
                }
            }
        }
    }
}

void decode_rows(const Kernels& isa, const Matrix& x, int64_t row0, int64_t row1, int64_t k0, int64_t k1, bool scaled,
                 float* out, int64_t ld) {
    if (!x.k_major) {
        decode_mn_major_rows(isa, x, row0, row1, k0, k1, scaled, out, ld);
        return;
    }
    for (int64_t row = row0; row < row1; ++row)
        decode_k_major_row(isa, x, row, k0, k1, scaled, out + (row - row0) * ld);
}

}  // namespace

std::vector<std::string> isa_variants() {
    std::vector<std::string> names;
    for (const Kernels* one : usable()) names.emplace_back(one->name);
    return names;
}

std::string isa_in_force() { return kernels().name; }

void use_isa(const std::string& name) {
    for (const Kernels* one : usable())
        if (name == one->name) {
            in_force = one;
            return;
        }
    throw std::invalid_argument("no instruction set '" + name + "' on this CPU");
}

void decode(const Matrix& x, int64_t row0, int64_t row1, int64_t k0, int64_t k1, bool scaled, void* out, int64_t ld,
            bool to_bf16, int num_threads) {
    const Kernels& isa = kernels();
    parallel_for(row1 - row0, 16, (row1 - row0) * (k1 - k0), num_threads, [&](int64_t begin, int64_t end) {
        if (!to_bf16) {
            decode_rows(isa, x, row0 + begin, row0 + end, k0, k1, scaled, static_cast<float*>(out) + begin * ld, ld);
            return;
        }
        constexpr int64_t kRows = 16, kColumns = 512;
        std::vector<float> buffer(kRows * kColumns);
        for (int64_t r = begin; r < end; r += kRows)
            for (int64_t k = k0; k < k1; k += kColumns) {
                const int64_t rows = std::min(kRows, end - r), columns = std::min(kColumns, k1 - k);
                decode_rows(isa, x, row0 + r, row0 + r + rows, k, k + columns, scaled, buffer.data(), kColumns);
                for (int64_t i = 0; i < rows; ++i) {
                    uint16_t* line = static_cast<uint16_t*>(out) + (r + i) * ld + (k - k0);
                    for (int64_t j = 0; j < columns; ++j) line[j] = bf16_bits(buffer[i * kColumns + j]);
                }
            }
    });
}

void multiply_few_rows(const float* a, int64_t lda, int64_t m, const Matrix& b, float* acc, int64_t ldacc,
                       int num_threads) {
    const Kernels& isa = kernels();
    const bool has_scales = b.scales.data != nullptr;
    const bool fuses = m <= kMaxFusedRows && b.k_major && (b.kind == Kind::fp8 || b.kind == Kind::fp4) &&
                       (!has_scales || b.scales.gran_k % kStep == 0);
    // Tiles of 15 weight rows (five times the kernel's three) by 256: 15 KiB, beside 16 KiB of 16 activation rows.
    constexpr int64_t kTileRows = 15, kTileColumns = 256;
    parallel_for(b.mn, kTileRows, b.mn * b.k * (1 + m / 4), num_threads, [&](int64_t begin, int64_t end) {
        if (fuses) {
            std::vector<float> scales(has_scales ? num_k_blocks(b) : 0);
            float line[kMaxFusedRows];
            for (int64_t row = begin; row < end; ++row) {
                if (has_scales) row_scales(b, row, 0, static_cast<int64_t>(scales.size()), scales.data());
                isa.dot_fused(b, row, has_scales ? scales.data() : nullptr, a, lda, static_cast<int>(m), line);
                for (int64_t i = 0; i < m; ++i) acc[i * ldacc + row] = line[i];
            }
            return;
        }
        std::vector<float> tile(kTileRows * kTileColumns);
        for (int64_t row = begin; row < end; row += kTileRows) {
            const int64_t rows = std::min(kTileRows, end - row);
            for (int64_t i = 0; i < m; ++i) std::fill_n(acc + i * ldacc + row, rows, 0.0f);
            for (int64_t k = 0; k < b.k; k += kTileColumns) {
                const int64_t columns = std::min(kTileColumns, b.k - k);
                decode_rows(isa, b, row, row + rows, k, k + columns, true, tile.data(), kTileColumns);
                isa.multiply_tile(a + k, lda, m, tile.data(), kTileColumns, rows, columns, acc + row, ldacc);
            }
        }
    });
}

void store(const float* acc, int64_t ldacc, int64_t m, int64_t n, const void* c, int64_t ldc, float alpha, void* out,
           int64_t ldout, bool is_bf16, int num_threads) {
    parallel_for(m, 1, m * n, num_threads, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const float* line = acc + i * ldacc;
            if (is_bf16) {
                uint16_t* to = static_cast<uint16_t*>(out) + i * ldout;
                const uint16_t* add = c ? static_cast<const uint16_t*>(c) + i * ldc : nullptr;
                for (int64_t j = 0; j < n; ++j) to[j] = bf16_bits((add ? bf16_value(add[j]) : 0.0f) + alpha * line[j]);
            } else {
                float* to = static_cast<float*>(out) + i * ldout;
                const float* add = c ? static_cast<const float*>(c) + i * ldc : nullptr;
                for (int64_t j = 0; j < n; ++j) to[j] = (add ? add[j] : 0.0f) + alpha * line[j];
            }
        }
    });
}

}  // namespace unikernels_cpu
