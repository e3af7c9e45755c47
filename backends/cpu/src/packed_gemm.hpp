// GEMM on packed panels: A is packed once per call, B a few columns at a time into cache, both decoded on the way.
// Templates over a vector type V and a packer of its panels.
#pragma once

#include "epilogue.hpp"
#include "pack.hpp"
#include "scratch.hpp"
#include "thread_pool.hpp"

namespace cpu_native {

// Bounds of the scratch memory; see panel_bound_bytes of matmul.py.
inline constexpr int64_t packed_a_bytes = int64_t(16) << 20;
inline constexpr int64_t most_block_rows = 768;
inline constexpr int64_t least_block_rows = 16;

template <class V, class Pack>
struct PackedGemm {
    using Packed = typename V::Packed;
    static constexpr int lanes = V::lanes, group = V::group;
    static constexpr int64_t block_k = pass_k;
    static constexpr int64_t block_words = block_k / group * lanes;  // of one panel
    static constexpr int64_t unit = V::tile_vectors * lanes;       // columns of one micro-kernel tile
    static constexpr int64_t most_units = 12;                      // columns per task: bounds packed B and accumulators
    static constexpr int64_t cached_rows = 128;                    // rows of A per sweep: 128 KiB in the L2 cache

    static void run(const Operand& a, const Operand& b, const Output& out, int threads) {
        const int64_t m = a.mn, n = b.mn;
        const Job job(a, b, out);
        const int64_t row_bytes = job.num_passes * (block_words / lanes * int64_t(sizeof(Packed)) +
                                                    (job.a_is_deferred ? job.runs_per_pass * int64_t(sizeof(float)) : 0));
        int64_t block_rows = packed_a_bytes / (row_bytes * lanes) * lanes;
        block_rows = block_rows < least_block_rows ? least_block_rows : block_rows;
        block_rows = block_rows > most_block_rows ? most_block_rows : block_rows;
        block_rows = block_rows > m ? m : block_rows;
        const int64_t padded_rows = (block_rows + lanes - 1) / lanes * lanes;

        const int64_t num_units = (n + unit - 1) / unit;
        int64_t units_per_task = block_rows / 32 < 1 ? 1 : block_rows / 32;
        if (units_per_task > most_units) units_per_task = most_units;
        int64_t num_tasks = (num_units + units_per_task - 1) / units_per_task;
        if (threads > 1) num_tasks = (num_tasks + threads - 1) / threads * threads;
        if (num_tasks > num_units) num_tasks = num_units;
        units_per_task = (num_units + num_tasks - 1) / num_tasks;

        const size_t a_words = size_t(job.num_passes * padded_rows / lanes * block_words);
        const size_t a_scales = job.a_is_deferred ? size_t(job.num_passes * job.runs_per_pass * padded_rows) : 0;
        const size_t b_words = size_t(units_per_task * V::tile_vectors * block_words);
        const size_t sums = size_t(padded_rows * units_per_task * unit);
        const size_t b_scales = size_t(job.runs_per_pass * units_per_task * unit);
        const size_t per_worker = Scratch::rounded(b_words * sizeof(Packed)) +
                                  Scratch::rounded(sums * sizeof(float)) + Scratch::rounded(b_scales * sizeof(float));
        Scratch scratch(Scratch::rounded(a_words * sizeof(Packed)) + Scratch::rounded(a_scales * sizeof(float)) +
                        per_worker * size_t(threads));
        const Left left{scratch.take<Packed>(a_words), scratch.take<float>(a_scales)};
        uint8_t* workers = scratch.take<uint8_t>(per_worker * size_t(threads));

        for (int64_t row0 = 0; row0 < m; row0 += block_rows) {
            const int64_t rows = m - row0 < block_rows ? m - row0 : block_rows;
            pack_a(job, row0, rows, left, threads);
            auto body = [&](int64_t task, int worker) {
                uint8_t* memory = workers + per_worker * size_t(worker);
                Right right;
                right.packed = reinterpret_cast<Packed*>(memory);
                right.sums = reinterpret_cast<float*>(memory + Scratch::rounded(b_words * sizeof(Packed)));
                right.scales = reinterpret_cast<float*>(memory + Scratch::rounded(b_words * sizeof(Packed)) +
                                                        Scratch::rounded(sums * sizeof(float)));
                const int64_t first = task * num_units / num_tasks, last = (task + 1) * num_units / num_tasks;
                columns(job, left, row0, rows, first * unit, last * unit < n ? last * unit : n, right);
            };
            run_tasks(num_tasks, threads, body);
        }
    }

private:
    // Float32 scales are deferred: multiplied to the sums of a K block instead of rounding every element with them. A pass
    // is cut into runs of K steps within one such block. Only blocks of a and b that do not fit each other are folded in.
    struct Job {
        Operand a, b;          // without deferred scales
        Operand a_scales, b_scales;
        const Output& out;
        bool a_is_deferred, b_is_deferred;
        int64_t num_passes, run_k, runs_per_pass;

        Job(const Operand& left, const Operand& right, const Output& output)
            : a(left), b(right), a_scales(left), b_scales(right), out(output),
              a_is_deferred(has_float_scales(left)), b_is_deferred(has_float_scales(right)) {
            run_k = deferred_block(left, right);
            if (run_k == 0) a_is_deferred = b_is_deferred = false;
            if (run_k == 0 || run_k > block_k) run_k = block_k;
            runs_per_pass = block_k / run_k;
            num_passes = a.k == 0 ? 1 : (a.k + block_k - 1) / block_k;
            if (a_is_deferred) a.scales = nullptr;
            if (b_is_deferred) b.scales = nullptr;
        }
        int64_t steps_of(int64_t pass) const { return a.k - pass * block_k < block_k ? a.k - pass * block_k : block_k; }
    };

    struct Left {
        Packed* packed;  // [pass][panel][k / group][lanes]
        float* scales;   // deferred: [pass][run][padded rows]
    };

    struct Right {
        Packed* packed;  // [panel][k / group][lanes]
        float* sums;     // [padded rows][pitch]
        float* scales;   // deferred: [run][pitch]
    };

    static void pack_a(const Job& job, int64_t row0, int64_t rows, const Left& left, int threads) {
        const int64_t panels = (rows + lanes - 1) / lanes, passes = (job.a.k + block_k - 1) / block_k;
        auto body = [&](int64_t task, int) {
            const int64_t pass = task / panels, panel = task % panels;
            Operand block = job.a;  // rows past the block must not be packed twice: they belong to the next one
            block.mn = row0 + rows;
            Pack::panel(block, row0 + panel * lanes, pass * block_k, job.steps_of(pass),
                        left.packed + (pass * panels + panel) * block_words);
            if (job.a_is_deferred) {
                float* scales = left.scales + (pass * job.runs_per_pass * panels + panel) * lanes;
                scales_of_panel(job.a_scales, row0 + panel * lanes, row0 + rows, pass, job, scales, panels * lanes);
            }
        };
        run_tasks(panels * passes, panels * passes < 16 ? 1 : threads, body);
    }

    // Scales of up to `lanes` rows for the runs of a pass, `pitch` apart.
    static void scales_of_panel(const Operand& op, int64_t row, int64_t end, int64_t pass, const Job& job, float* out,
                                int64_t pitch) {
        const int64_t count = end - row < lanes ? end - row : lanes, steps = job.steps_of(pass);
        for (int64_t k = 0; k < steps; k += job.run_k, out += pitch) {
            scales_of_rows(op, row, count, (pass * block_k + k) / op.gran_k, out);
            for (int64_t i = count; i < lanes; ++i) out[i] = 0;
        }
    }

    static void columns(const Job& job, const Left& left, int64_t row0, int64_t rows, int64_t column0, int64_t column1,
                        const Right& right) {
        const int64_t a_panels = (rows + lanes - 1) / lanes, b_panels = (column1 - column0 + lanes - 1) / lanes;
        const int64_t pitch = b_panels * lanes;
        std::memset(right.sums, 0, size_t(a_panels * lanes * pitch) * sizeof(float));
        for (int64_t pass = 0; pass * block_k < job.b.k; ++pass) {
            for (int64_t panel = 0; panel < b_panels; ++panel) {
                Pack::panel(job.b, column0 + panel * lanes, pass * block_k, job.steps_of(pass),
                            right.packed + panel * block_words);
                if (job.b_is_deferred)
                    scales_of_panel(job.b_scales, column0 + panel * lanes, column1, pass, job, right.scales + panel * lanes, pitch);
            }
            for (int64_t top = 0; top < rows; top += cached_rows) {
                const int64_t bottom = top + cached_rows < rows ? top + cached_rows : rows;
                for (int64_t panel = 0; panel < b_panels; panel += V::tile_vectors) {
                    const int64_t vectors = b_panels - panel < V::tile_vectors ? b_panels - panel : V::tile_vectors;
                    for (int64_t run = 0; run * job.run_k < job.steps_of(pass); ++run) {
                        const Sweep sweep{job, left, right, pass, run, a_panels, panel, pitch};
                        if (vectors == V::tile_vectors)
                            sweep.template over<V::tile_vectors>(top, bottom);
                        else if (vectors == 2)
                            sweep.template over<2>(top, bottom);
                        else
                            sweep.template over<1>(top, bottom);
                    }
                }
            }
        }
        for (int64_t row = 0; row < rows; ++row)
            Epilogue<V>::write_row(job.out, row0 + row, column0, right.sums + row * pitch, int(column1 - column0));
    }

    // One run of K steps, a few panels of B, many rows of A.
    struct Sweep {
        const Packed *a, *b;
        int64_t words;
        float* sums;
        int64_t pitch;
        const float *row_scales, *column_scales;  // null: not deferred

        Sweep(const Job& job, const Left& left, const Right& right, int64_t pass, int64_t run, int64_t a_panels,
              int64_t b_panel, int64_t pitch_)
            : pitch(pitch_) {
            const int64_t k = run * job.run_k, offset = k / group * lanes;
            const int64_t steps = job.steps_of(pass) - k < job.run_k ? job.steps_of(pass) - k : job.run_k;
            a = left.packed + pass * a_panels * block_words + offset;
            b = right.packed + b_panel * block_words + offset;
            words = (steps + group - 1) / group;
            sums = right.sums + b_panel * lanes;
            row_scales = job.a_is_deferred ? left.scales + (pass * job.runs_per_pass + run) * a_panels * lanes : nullptr;
            column_scales = job.b_is_deferred ? right.scales + run * pitch + b_panel * lanes : nullptr;
        }

        template <int vectors>
        void over(int64_t top, int64_t bottom) const {
            for (int64_t row = top; row < bottom;) {
                // Rows of a panel are shared out evenly: a lone row would wait for its few sums.
                const int64_t panel_end = (row / lanes + 1) * lanes, end = panel_end < bottom ? panel_end : bottom;
                const int64_t tiles = (end - row + V::tile_rows - 1) / V::tile_rows;
                const int64_t rows = (end - row + tiles - 1) / tiles;
                tile_of_rows<vectors, V::tile_rows>(rows, row);
                row += rows;
            }
        }

        template <int vectors, int most_rows>
        void tile_of_rows(int64_t rows, int64_t row) const {
            if constexpr (most_rows == 1) {
                tile<vectors, 1>(row);
            } else {
                if (rows == most_rows)
                    tile<vectors, most_rows>(row);
                else
                    tile_of_rows<vectors, most_rows - 1>(rows, row);
            }
        }

        // sums[rows][vectors * lanes] += A rows x B columns over `words` packed K steps.
        template <int vectors, int rows>
        void tile(int64_t row) const {
            const Packed* left = a + row / lanes * block_words + row % lanes;
            const Packed* right = b;
            typename V::Vec parts[rows][vectors];
#pragma GCC unroll 8
            for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
                for (int j = 0; j < vectors; ++j) parts[i][j] = V::zero();
            for (int64_t w = 0; w < words; ++w) {
                decltype(V::load_packed(right)) columns_of[vectors];
#pragma GCC unroll 4
                for (int j = 0; j < vectors; ++j) columns_of[j] = V::load_packed(right + j * block_words);
#pragma GCC unroll 8
                for (int i = 0; i < rows; ++i) {
                    const auto value = V::broadcast_packed(left + i);
#pragma GCC unroll 4
                    for (int j = 0; j < vectors; ++j) parts[i][j] = V::fma_packed(value, columns_of[j], parts[i][j]);
                }
                left += lanes;
                right += lanes;
            }
            float* at = sums + row * pitch;
            if (row_scales != nullptr || column_scales != nullptr)
                add_scaled<vectors, rows>(parts, row, at);
            else
                add<vectors, rows>(parts, at, pitch);
        }

        template <int vectors, int rows>
        static CPU_NATIVE_INLINE void add(const typename V::Vec (*parts)[vectors], float* at, int64_t pitch) {
#pragma GCC unroll 8
            for (int i = 0; i < rows; ++i, at += pitch)
#pragma GCC unroll 4
                for (int j = 0; j < vectors; ++j) V::store(at + j * lanes, V::add(V::load(at + j * lanes), parts[i][j]));
        }

        template <int vectors, int rows>
        CPU_NATIVE_INLINE void add_scaled(const typename V::Vec (*parts)[vectors], int64_t row, float* at) const {
            typename V::Vec columns_of[vectors];
            for (int j = 0; j < vectors; ++j)
                columns_of[j] = column_scales != nullptr ? V::load(column_scales + j * lanes) : V::broadcast(1);
#pragma GCC unroll 8
            for (int i = 0; i < rows; ++i, at += pitch) {
                const auto row_scale = V::broadcast(row_scales != nullptr ? row_scales[row + i] : 1);
#pragma GCC unroll 4
                for (int j = 0; j < vectors; ++j)
                    V::store(at + j * lanes, V::fma(V::mul(parts[i][j], row_scale), columns_of[j], V::load(at + j * lanes)));
            }
        }
    };
};

}  // namespace cpu_native
