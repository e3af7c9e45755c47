// GEMM with few rows of A: every B row is read once, decoded in registers and multiplied with all A rows.
// Template over a float32 vector type V. B must be K-major, its scale blocks multiples of 32 along K.
#pragma once

#include "epilogue.hpp"
#include "rows.hpp"
#include "scratch.hpp"
#include "thread_pool.hpp"

namespace cpu_native {

inline constexpr int64_t most_dot_rows = 4;
inline constexpr int64_t most_dot_k = int64_t(1) << 18;  // bounds the decoded A: 4 MiB

inline bool dot_gemm_takes(const Operand& a, const Operand& b) {
    return a.mn <= most_dot_rows && b.is_k_major && a.k <= most_dot_k && (b.scales == nullptr || b.gran_k % 32 == 0);
}

template <class V>
struct DotGemm {
    static constexpr int lanes = V::lanes, vectors = 32 / lanes;
    static constexpr int64_t rows_per_task = 32;

    static void run(const Operand& a, const Operand& b, const Output& out, int threads) {
        const int64_t pitch = (a.k + 31) / 32 * 32;
        Scratch scratch(Scratch::rounded(size_t(a.mn * pitch) * sizeof(float)));
        float* a_rows = scratch.take<float>(size_t(a.mn * pitch));
        for (int64_t row = 0; row < a.mn; ++row)
            std::memset(a_rows + row * pitch + a.k, 0, size_t(pitch - a.k) * sizeof(float));
        RowDecoder<V>::rows(a, 0, a.mn, true, a_rows, pitch);
        auto body = [&](int64_t task, int) {
            const int64_t first = task * rows_per_task;
            const int64_t count = b.mn - first < rows_per_task ? b.mn - first : rows_per_task;
            alignas(64) float sums[most_dot_rows][rows_per_task];
            for (int64_t i = 0; i < count; ++i) {
                float row_sums[most_dot_rows];
                one_row(a_rows, pitch, int(a.mn), b, first + i, row_sums);
                for (int64_t r = 0; r < a.mn; ++r) sums[r][i] = row_sums[r];
            }
            for (int64_t r = 0; r < a.mn; ++r) Epilogue<V>::write_row(out, r, first, sums[r], int(count));
        };
        run_tasks((b.mn + rows_per_task - 1) / rows_per_task, threads, body);
    }

private:
    static void one_row(const float* a, int64_t pitch, int m, const Operand& b, int64_t row, float* sums) {
        bool is_done;
        switch (b.kind) {
            case Kind::fp8: is_done = by_rows<Kind::fp8>(a, pitch, m, b, row, sums); break;
            case Kind::fp4: is_done = by_rows<Kind::fp4>(a, pitch, m, b, row, sums); break;
            case Kind::bf16: is_done = by_rows<Kind::bf16>(a, pitch, m, b, row, sums); break;
            default: is_done = by_rows<Kind::fp32>(a, pitch, m, b, row, sums); break;
        }
        if (is_done) return;
        for (int r = 0; r < m; ++r) {
            float sum = 0;
            for (int64_t k = 0; k < b.k; ++k) {
                const float scale = b.scales != nullptr ? scale_at(b, row, k / b.gran_k) : 1.0f;
                sum += a[r * pitch + k] * (e4m3_values[code_at(b, row, k)] * scale);
            }
            sums[r] = sum;
        }
    }

    template <Kind kind>
    static bool by_rows(const float* a, int64_t pitch, int m, const Operand& b, int64_t row, float* sums) {
        switch (m) {
            case 1: return multiply<kind, 1>(a, pitch, b, row, sums);
            case 2: return multiply<kind, 2>(a, pitch, b, row, sums);
            case 3: return multiply<kind, 3>(a, pitch, b, row, sums);
            default: return multiply<kind, 4>(a, pitch, b, row, sums);
        }
    }

    // Returns false if the row holds a NaN code or a scale too large to fold; sums are rubbish then.
    template <Kind kind, int m>
    static bool multiply(const float* a, int64_t pitch, const Operand& b, int64_t row, float* sums) {
        const uint8_t* line = b.data + row * b.pitch;
        constexpr float factor = kind == Kind::fp8 || kind == Kind::fp4 ? V::code_factor : 1.0f;
        typename V::Vec total[m];
        typename V::NanCheck nan;
        bool is_foldable = true;
        for (int r = 0; r < m; ++r) total[r] = V::zero();
        const int64_t block_k = b.scales != nullptr ? b.gran_k : b.k;
        const uint8_t* scale_line = b.scales != nullptr ? b.scales + row / b.gran_mn * b.scale_pitch_mn : nullptr;
        int64_t block = 0;
        for (int64_t k0 = 0; k0 < b.k; k0 += block_k, ++block) {
            const int64_t k1 = k0 + block_k < b.k ? k0 + block_k : b.k;
            float scale = factor;
            if (scale_line != nullptr) {
                const float value = scale_of(b, scale_line, block);
                is_foldable &= value < largest_foldable_scale && value > -largest_foldable_scale;
                scale = value * factor;
            }
            typename V::Vec part[m];
            for (int r = 0; r < m; ++r) part[r] = V::zero();
            int64_t k = k0;
            for (; k + 32 <= k1; k += 32) step<kind, m>(line, k, a, pitch, part, nan);
            if (k < k1) tail<kind, m>(line, k, int(k1 - k), a, pitch, part, nan);
            const auto scales = V::broadcast(scale);
            for (int r = 0; r < m; ++r) total[r] = V::fma(part[r], scales, total[r]);
        }
        for (int r = 0; r < m; ++r) sums[r] = V::sum(total[r]);
        return is_foldable && !nan.found();
    }

    static CPU_NATIVE_INLINE float scale_of(const Operand& b, const uint8_t* line, int64_t block) {
        if (b.is_ue8m0) {
            const int shift = b.scale_bytes / 2;  // 4 bytes: 2, 2 bytes: 1
            return ue8m0_values[line[(block >> shift) * b.scale_pitch_k + (block & (b.scale_bytes - 1))]];
        }
        float value;
        std::memcpy(&value, line + block * b.scale_pitch_k, sizeof value);
        return value;
    }

    template <Kind kind, int m>
    static CPU_NATIVE_INLINE void step(const uint8_t* line, int64_t k, const float* a, int64_t pitch, typename V::Vec* part,
                                       typename V::NanCheck& nan) {
        typename V::Vec values[vectors];
        for (int half = 0; half < 2; ++half) {
            typename V::Vec* out = values + half * (vectors / 2);
            const int64_t at = k + 16 * half;
            if constexpr (kind == Kind::fp8) {
                nan.see(line + at);
                V::decode16(line + at, out);
            } else if constexpr (kind == Kind::fp4) {
                V::decode16_fp4(line + at / 2, out);
            } else if constexpr (kind == Kind::bf16) {
                V::load16_bf16(line + 2 * at, out);
            } else {
                for (int i = 0; i < vectors / 2; ++i) out[i] = V::load(reinterpret_cast<const float*>(line) + at + i * lanes);
            }
        }
        for (int r = 0; r < m; ++r)
            for (int i = 0; i < vectors; ++i)
                part[r] = V::fma(values[i], V::load(a + r * pitch + k + i * lanes), part[r]);
    }

    // The last, partial 32 elements of a row: A is padded with zeros, B is copied to padded memory.
    template <Kind kind, int m>
    static void tail(const uint8_t* line, int64_t k, int count, const float* a, int64_t pitch, typename V::Vec* part,
                     typename V::NanCheck& nan) {
        alignas(64) uint8_t padded[32 * 4] = {};
        constexpr int bits = kind == Kind::fp4 ? 4 : kind == Kind::fp8 ? 8 : kind == Kind::bf16 ? 16 : 32;
        std::memcpy(padded, line + k * bits / 8, size_t(count * bits + 7) / 8);
        if (kind == Kind::fp4 && count % 2 != 0) padded[count / 2] &= 15;
        step<kind, m>(padded, 0, a + k, pitch, part, nan);
    }
};

}  // namespace cpu_native
