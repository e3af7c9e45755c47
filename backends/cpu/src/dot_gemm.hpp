// GEMM with few rows of A: every B row is read once, decoded in registers and multiplied with all A rows.
// Template over a float32 vector type V. B must be K-major, its scale blocks multiples of 32 along K.
#pragma once

#include "epilogue.hpp"
#include "rows.hpp"
#include "scratch.hpp"
#include "thread_pool.hpp"

namespace cpu_native {

template <class V>
struct DotGemm {
    static constexpr int lanes = V::lanes, vectors = 16 / lanes;
    static constexpr int64_t step = 32;           // K steps decoded at a time
    static constexpr int64_t rows_per_task = 16;  // of B

    static void run(const Operand& a, const Operand& b, const Output& out, int threads) {
        const int64_t pitch = (a.k + step - 1) / step * step;
        const int64_t num_blocks = b.scales != nullptr ? (b.k + b.gran_k - 1) / b.gran_k : 1;
        const size_t scales_bytes = Scratch::rounded(size_t(rows_per_task * num_blocks) * sizeof(float));
        Scratch scratch(Scratch::rounded(size_t(a.mn * pitch) * sizeof(float)) + scales_bytes * size_t(threads));
        float* a_rows = scratch.take<float>(size_t(a.mn * pitch));
        uint8_t* scales_of_workers = scratch.take<uint8_t>(scales_bytes * size_t(threads));
        for (int64_t row = 0; row < a.mn; ++row)
            std::memset(a_rows + row * pitch + a.k, 0, size_t(pitch - a.k) * sizeof(float));
        RowDecoder<V>::rows(a, 0, a.mn, true, a_rows, pitch);
        auto body = [&](int64_t task, int worker) {
            const int64_t first = task * rows_per_task;
            const int64_t count = b.mn - first < rows_per_task ? b.mn - first : rows_per_task;
            float* scales = reinterpret_cast<float*>(scales_of_workers + scales_bytes * size_t(worker));
            rows_of_b({a_rows, pitch, int(a.mn)}, b, first, count, scales, num_blocks, out);
        };
        run_tasks((b.mn + rows_per_task - 1) / rows_per_task, threads, body);
    }

private:
    struct Left {
        const float* values;
        int64_t pitch;
        int rows;
    };

    static void rows_of_b(const Left& a, const Operand& b, int64_t first, int64_t count, float* scales, int64_t num_blocks,
                          const Output& out) {
        alignas(64) float sums[most_dot_rows][rows_per_task];
        const uint32_t unfoldable = gather_scales(b, first, count, scales, num_blocks);
        uint32_t by_table = unfoldable;
        switch (b.kind) {
            case Kind::fp8: by_table |= by_count<Kind::fp8>(a, b, first, count, scales, num_blocks, sums); break;
            case Kind::fp4: by_count<Kind::fp4>(a, b, first, count, scales, num_blocks, sums); break;
            case Kind::bf16: by_count<Kind::bf16>(a, b, first, count, scales, num_blocks, sums); break;
            default: by_count<Kind::fp32>(a, b, first, count, scales, num_blocks, sums); break;
        }
        if (has_codes(b))
            for (int64_t i = 0; i < count; ++i)
                if (by_table >> i & 1) row_by_table(a, b, first + i, i, sums);
        for (int r = 0; r < a.rows; ++r) Epilogue<V>::write_row(out, r, first, sums[r], int(count));
    }

    // Fills scales[block][row], the factor of codes folded in; returns a bit per row whose scales do not allow that.
    static uint32_t gather_scales(const Operand& b, int64_t first, int64_t count, float* scales, int64_t num_blocks) {
        const float factor = has_codes(b) ? V::code_factor : 1.0f;
        if (b.scales == nullptr) {
            for (int64_t i = 0; i < rows_per_task; ++i) scales[i] = factor;
            return 0;
        }
        const bool are_neighbours = b.is_ue8m0 && b.gran_mn == 1 && b.scale_pitch_mn == b.scale_bytes &&
                                    count == rows_per_task && has_codes(b);
        uint32_t unfoldable = 0;
        for (int64_t block = 0; block < num_blocks; ++block) {
            float* column = scales + block * rows_per_task;
            if (are_neighbours && (b.scale_bytes == 2 ? exponents_of_words<uint16_t>(b, first, block, column)
                                                      : exponents_of_words<uint32_t>(b, first, block, column)))
                continue;
            scales_of_rows(b, first, count, block, column);
            for (int64_t i = 0; i < count; ++i) {
                const bool is_foldable = column[i] < largest_foldable_scale && column[i] > -largest_foldable_scale;
                unfoldable |= uint32_t(!is_foldable) << i;
                column[i] *= factor;
            }
        }
        return unfoldable;
    }

    // The same for one block of MN-major exponents in the middle of their range; false if one is not. Vectorises.
    template <class Word>
    static bool exponents_of_words(const Operand& b, int64_t first, int64_t block, float* column) {
        static_assert(V::code_factor == 256 || V::code_factor == 1);
        constexpr uint32_t added = V::code_factor == 256 ? 8 : 0;  // folds the factor into the exponent
        Word words[rows_per_task];
        std::memcpy(words, b.scales + block / int64_t(sizeof(Word)) * b.scale_pitch_k + first * int64_t(sizeof(Word)),
                    sizeof words);
        const int shift = int(block % int64_t(sizeof(Word))) * 8;
        uint32_t worst = 0;
        for (int64_t i = 0; i < rows_per_task; ++i) {
            const uint32_t exponent = (uint32_t(words[i]) >> shift) & 255u;
            worst = exponent - 1 > worst ? exponent - 1 : worst;
            column[i] = std::bit_cast<float>((exponent + added) << 23);
        }
        return worst < 240;
    }

    static void row_by_table(const Left& a, const Operand& b, int64_t row, int64_t at, float (*sums)[rows_per_task]) {
        for (int r = 0; r < a.rows; ++r) {
            float sum = 0;
            for (int64_t k = 0; k < b.k; ++k) {
                const float scale = b.scales != nullptr ? scale_at(b, row, k / b.gran_k) : 1.0f;
                sum += a.values[r * a.pitch + k] * (e4m3_values[code_at(b, row, k)] * scale);
            }
            sums[r][at] = sum;
        }
    }

    // Returns a bit per row that holds a NaN code; its sums are rubbish then.
    template <Kind kind>
    static uint32_t by_count(const Left& a, const Operand& b, int64_t first, int64_t count, const float* scales,
                             int64_t num_blocks, float (*sums)[rows_per_task]) {
        switch (a.rows) {
            case 1: return all_rows<kind, 1, 4>(a, b, first, count, scales, num_blocks, sums);
            case 2: return all_rows<kind, 2, 2>(a, b, first, count, scales, num_blocks, sums);
            case 3: return all_rows<kind, 3, 1>(a, b, first, count, scales, num_blocks, sums);
            default: return all_rows<kind, 4, 1>(a, b, first, count, scales, num_blocks, sums);
        }
    }

    // `width` rows of B share the loads of A.
    template <Kind kind, int m, int width>
    static uint32_t all_rows(const Left& a, const Operand& b, int64_t first, int64_t count, const float* scales,
                             int64_t num_blocks, float (*sums)[rows_per_task]) {
        uint32_t has_nan = 0;
        int64_t i = 0;
        for (; i + width <= count; i += width)
            has_nan |= multiply<kind, m, width>(a, b, first + i, scales + i, num_blocks, sums, i) << i;
        for (; i < count; ++i)
            has_nan |= multiply<kind, m, 1>(a, b, first + i, scales + i, num_blocks, sums, i) << i;
        return has_nan;
    }

    template <Kind kind, int m, int width>
    static uint32_t multiply(const Left& a, const Operand& b, int64_t row, const float* scales, int64_t num_blocks,
                             float (*sums)[rows_per_task], int64_t at) {
        const uint8_t* lines[width];
        typename V::Vec totals[width][m];
        typename V::NanCheck nan[width];
        for (int w = 0; w < width; ++w) {
            lines[w] = b.data + (row + w) * b.pitch;
            for (int r = 0; r < m; ++r) totals[w][r] = V::zero();
        }
        const int64_t block_k = b.scales != nullptr ? b.gran_k : b.k;
        int64_t block = 0;
        if (block_k == step) {  // the common case, without a loop inside
            for (; (block + 1) * step <= b.k; ++block) {
                typename V::Vec parts[width][m];
                whole_step<kind, m, width, true>(lines, block * step, a.values + block * step, a.pitch, parts, nan);
                add_scaled<m, width>(parts, scales + block * rows_per_task, totals);
            }
        }
        for (; block < num_blocks; ++block) {
            const int64_t k0 = block * block_k, k1 = k0 + block_k < b.k ? k0 + block_k : b.k;
            typename V::Vec parts[width][m];
            clear<m, width>(parts);
            int64_t k = k0;
            for (; k + step <= k1; k += step) whole_step<kind, m, width>(lines, k, a.values + k, a.pitch, parts, nan);
            if (k < k1) last_step<kind, m, width>(lines, k, int(k1 - k), a.values + k, a.pitch, parts, nan);
            add_scaled<m, width>(parts, scales + block * rows_per_task, totals);
        }
        uint32_t has_nan = 0;
        for (int w = 0; w < width; ++w) {
            for (int r = 0; r < m; ++r) sums[r][at + w] = V::sum(totals[w][r]);
            has_nan |= uint32_t(nan[w].found()) << w;
        }
        return has_nan;
    }

    template <int m, int width>
    static CPU_NATIVE_INLINE void clear(typename V::Vec (*parts)[m]) {
#pragma GCC unroll 4
        for (int w = 0; w < width; ++w)
#pragma GCC unroll 4
            for (int r = 0; r < m; ++r) parts[w][r] = V::zero();
    }

    template <int m, int width>
    static CPU_NATIVE_INLINE void add_scaled(const typename V::Vec (*parts)[m], const float* scales,
                                             typename V::Vec (*totals)[m]) {
#pragma GCC unroll 4
        for (int w = 0; w < width; ++w) {
            const auto scale = V::broadcast(scales[w]);
#pragma GCC unroll 4
            for (int r = 0; r < m; ++r) totals[w][r] = V::fma(parts[w][r], scale, totals[w][r]);
        }
    }

    // parts += the products of 32 K steps, or parts = them.
    template <Kind kind, int m, int width, bool starts = false>
    static CPU_NATIVE_INLINE void whole_step(const uint8_t* const* lines, int64_t k, const float* a, int64_t pitch,
                                             typename V::Vec (*parts)[m], typename V::NanCheck* nan) {
#pragma GCC unroll 4
        for (int64_t half = 0; half < step; half += 16) {
            typename V::Vec values[width][vectors];
#pragma GCC unroll 4
            for (int w = 0; w < width; ++w) load16<kind>(lines[w], k + half, values[w], nan[w]);
#pragma GCC unroll 4
            for (int r = 0; r < m; ++r)
#pragma GCC unroll 4
                for (int i = 0; i < vectors; ++i) {
                    const auto left = V::load(a + r * pitch + half + i * lanes);
#pragma GCC unroll 4
                    for (int w = 0; w < width; ++w)
                        parts[w][r] = starts && half == 0 && i == 0 ? V::mul(values[w][i], left)
                                                                    : V::fma(values[w][i], left, parts[w][r]);
                }
        }
    }

    template <Kind kind>
    static CPU_NATIVE_INLINE void load16(const uint8_t* line, int64_t k, typename V::Vec* out, typename V::NanCheck& nan) {
        if constexpr (kind == Kind::fp8) {
            nan.see(line + k);
            V::decode16(line + k, out);
        } else if constexpr (kind == Kind::fp4) {
            V::decode16_fp4(line + k / 2, out);
        } else if constexpr (kind == Kind::bf16) {
            V::load16_bf16(line + 2 * k, out);
        } else {
            for (int i = 0; i < vectors; ++i) out[i] = V::load(reinterpret_cast<const float*>(line) + k + i * lanes);
        }
    }

    // The last, partial step of a row: A is padded with zeros, B is copied to padded memory.
    template <Kind kind, int m, int width>
    static void last_step(const uint8_t* const* lines, int64_t k, int count, const float* a, int64_t pitch,
                          typename V::Vec (*parts)[m], typename V::NanCheck* nan) {
        constexpr int bits = kind == Kind::fp4 ? 4 : kind == Kind::fp8 ? 8 : kind == Kind::bf16 ? 16 : 32;
        alignas(64) uint8_t padded[width][step * bits / 8] = {};
        const uint8_t* padded_lines[width];
        for (int w = 0; w < width; ++w) {
            std::memcpy(padded[w], lines[w] + k * bits / 8, size_t(count * bits + 7) / 8);
            if (kind == Kind::fp4 && count % 2 != 0) padded[w][count / 2] &= 15;
            padded_lines[w] = padded[w];
        }
        whole_step<kind, m, width>(padded_lines, 0, a, pitch, parts, nan);
    }
};

}  // namespace cpu_native
