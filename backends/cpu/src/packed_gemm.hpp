// GEMM on packed panels: A is packed once per call, B a few columns at a time into cache, both decoded on the way.
// Template over a vector type V.
#pragma once

#include "epilogue.hpp"
#include "pack.hpp"
#include "scratch.hpp"
#include "thread_pool.hpp"

namespace cpu_native {

// Bounds of the scratch memory; see scratch_bound() in module.cpp and docs of matmul.py.
inline constexpr int64_t packed_a_bytes = int64_t(16) << 20;
inline constexpr int64_t most_block_rows = 768;
inline constexpr int64_t least_block_rows = 16;

template <class V>
struct PackedGemm {
    using Packed = typename V::Packed;
    static constexpr int lanes = V::lanes, group = V::group;
    static constexpr int64_t block_k = 256;                        // K steps per pass: a B tile stays in the L1 cache
    static constexpr int64_t block_words = block_k / group * lanes;  // of one panel
    static constexpr int64_t unit = V::tile_vectors * lanes;       // columns of one micro-kernel tile
    static constexpr int64_t most_units = 12;                      // columns per task: bounds packed B and accumulators
    static constexpr int64_t cached_rows = 128;                    // rows of A per sweep: 128 KiB in the L2 cache

    static void run(const Operand& a, const Operand& b, const Output& out, int threads) {
        const int64_t m = a.mn, n = b.mn, k = a.k;
        const int64_t num_passes = k == 0 ? 1 : (k + block_k - 1) / block_k;
        int64_t block_rows = packed_a_bytes / (num_passes * block_words * int64_t(sizeof(Packed))) * lanes;
        block_rows = block_rows < least_block_rows ? least_block_rows : block_rows;
        block_rows = block_rows > most_block_rows ? most_block_rows : block_rows;
        block_rows = block_rows > m ? m : block_rows;
        const int64_t panels = (block_rows + lanes - 1) / lanes;

        const int64_t num_units = (n + unit - 1) / unit;
        int64_t units_per_task = block_rows / 32 < 1 ? 1 : block_rows / 32;
        if (units_per_task > most_units) units_per_task = most_units;
        int64_t num_tasks = (num_units + units_per_task - 1) / units_per_task;
        if (threads > 1) num_tasks = (num_tasks + threads - 1) / threads * threads;
        if (num_tasks > num_units) num_tasks = num_units;
        units_per_task = (num_units + num_tasks - 1) / num_tasks;

        const size_t a_words = size_t(num_passes * panels * block_words);
        const size_t b_words = size_t(units_per_task * V::tile_vectors * block_words);
        const size_t sums = size_t(panels * lanes * units_per_task * unit);
        const size_t per_worker = Scratch::rounded(b_words * sizeof(Packed)) + Scratch::rounded(sums * sizeof(float));
        Scratch scratch(Scratch::rounded(a_words * sizeof(Packed)) + per_worker * size_t(threads));
        Packed* packed_a = scratch.take<Packed>(a_words);
        uint8_t* workers = scratch.take<uint8_t>(per_worker * size_t(threads));

        for (int64_t row0 = 0; row0 < m; row0 += block_rows) {
            const int64_t rows = m - row0 < block_rows ? m - row0 : block_rows;
            pack_a(a, row0, rows, packed_a, threads);
            auto body = [&](int64_t task, int worker) {
                Packed* packed_b = reinterpret_cast<Packed*>(workers + per_worker * size_t(worker));
                float* acc = reinterpret_cast<float*>(workers + per_worker * size_t(worker) +
                                                      Scratch::rounded(b_words * sizeof(Packed)));
                const int64_t first = task * num_units / num_tasks, last = (task + 1) * num_units / num_tasks;
                columns(packed_a, b, out, row0, rows, first * unit, last * unit < n ? last * unit : n, packed_b, acc);
            };
            run_tasks(num_tasks, threads, body);
        }
    }

private:
    // Layout: [pass][panel][k / group][lanes].
    static void pack_a(const Operand& a, int64_t row0, int64_t rows, Packed* out, int threads) {
        const int64_t panels = (rows + lanes - 1) / lanes, passes = (a.k + block_k - 1) / block_k;
        auto body = [&](int64_t task, int) {
            const int64_t pass = task / panels, panel = task % panels;
            Operand block = a;  // rows past the block must not be packed twice: they belong to the next one
            block.mn = row0 + rows;
            Packer<V>::panel(block, row0 + panel * lanes, pass * block_k, steps_of(pass, a.k),
                             out + (pass * panels + panel) * block_words);
        };
        run_tasks(panels * passes, panels * passes < 16 ? 1 : threads, body);
    }

    static int64_t steps_of(int64_t pass, int64_t k) { return k - pass * block_k < block_k ? k - pass * block_k : block_k; }

    static void columns(const Packed* packed_a, const Operand& b, const Output& out, int64_t row0, int64_t rows,
                        int64_t column0, int64_t column1, Packed* packed_b, float* acc) {
        const int64_t a_panels = (rows + lanes - 1) / lanes, b_panels = (column1 - column0 + lanes - 1) / lanes;
        const int64_t pitch = b_panels * lanes;
        std::memset(acc, 0, size_t(a_panels * lanes * pitch) * sizeof(float));
        for (int64_t pass = 0; pass * block_k < b.k; ++pass) {
            const int64_t steps = steps_of(pass, b.k), words = (steps + group - 1) / group;
            for (int64_t panel = 0; panel < b_panels; ++panel)
                Packer<V>::panel(b, column0 + panel * lanes, pass * block_k, steps, packed_b + panel * block_words);
            const Packed* a_pass = packed_a + pass * a_panels * block_words;
            for (int64_t top = 0; top < rows; top += cached_rows) {
                const int64_t bottom = top + cached_rows < rows ? top + cached_rows : rows;
                for (int64_t panel = 0; panel < b_panels; panel += V::tile_vectors) {
                    const Packed* b_tile = packed_b + panel * block_words;
                    float* acc_tile = acc + panel * lanes;
                    const int64_t vectors = b_panels - panel < V::tile_vectors ? b_panels - panel : V::tile_vectors;
                    if (vectors == V::tile_vectors)
                        sweep<V::tile_vectors>(a_pass, top, bottom, b_tile, words, acc_tile, pitch);
                    else if (vectors == 2)
                        sweep<2>(a_pass, top, bottom, b_tile, words, acc_tile, pitch);
                    else
                        sweep<1>(a_pass, top, bottom, b_tile, words, acc_tile, pitch);
                }
            }
        }
        for (int64_t row = 0; row < rows; ++row)
            Epilogue<V>::write_row(out, row0 + row, column0, acc + row * pitch, int(column1 - column0));
    }

    template <int vectors>
    static void sweep(const Packed* a_pass, int64_t top, int64_t bottom, const Packed* b_tile, int64_t words, float* acc,
                      int64_t pitch) {
        for (int64_t row = top; row < bottom; row += V::tile_rows) {
            const Packed* a_tile = a_pass + row / lanes * block_words + row % lanes;
            const int64_t rows = bottom - row < V::tile_rows ? bottom - row : V::tile_rows;
            tile_of_rows<vectors, V::tile_rows>(rows, a_tile, b_tile, words, acc + row * pitch, pitch);
        }
    }

    template <int vectors, int most_rows>
    static void tile_of_rows(int64_t rows, const Packed* a_tile, const Packed* b_tile, int64_t words, float* acc,
                             int64_t pitch) {
        if constexpr (most_rows == 1) {
            tile<vectors, 1>(a_tile, b_tile, words, acc, pitch);
        } else {
            if (rows == most_rows)
                tile<vectors, most_rows>(a_tile, b_tile, words, acc, pitch);
            else
                tile_of_rows<vectors, most_rows - 1>(rows, a_tile, b_tile, words, acc, pitch);
        }
    }

    // acc[rows][vectors * lanes] += A rows x B columns over `words` packed K steps.
    template <int vectors, int rows>
    static void tile(const Packed* a, const Packed* b, int64_t words, float* acc, int64_t pitch) {
        typename V::Vec sums[rows][vectors];
#pragma GCC unroll 8
        for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
            for (int j = 0; j < vectors; ++j) sums[i][j] = V::zero();
        for (int64_t w = 0; w < words; ++w) {
            decltype(V::load_packed(b)) columns_of[vectors];
#pragma GCC unroll 4
            for (int j = 0; j < vectors; ++j) columns_of[j] = V::load_packed(b + j * block_words);
#pragma GCC unroll 8
            for (int i = 0; i < rows; ++i) {
                const auto value = V::broadcast_packed(a + i);
#pragma GCC unroll 4
                for (int j = 0; j < vectors; ++j) sums[i][j] = V::fma_packed(value, columns_of[j], sums[i][j]);
            }
            a += lanes;
            b += lanes;
        }
#pragma GCC unroll 8
        for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
            for (int j = 0; j < vectors; ++j) {
                float* at = acc + i * pitch + j * lanes;
                V::store(at, V::add(V::load(at), sums[i][j]));
            }
    }
};

}  // namespace cpu_native
