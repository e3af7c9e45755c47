// Packing: K runs of `lanes` rows become [k / group][lanes] packed words, decoded and scaled, for the micro-kernel.
// Templates over a vector type V (vector_*.hpp); rows and K steps outside the operand become zeros.
#pragma once

#include "codes.hpp"

namespace cpu_native {

template <class V>
struct Packer {
    static constexpr int lanes = V::lanes, group = V::group;
    static constexpr int chunk = 16;                         // K steps handled at a time
    static constexpr int64_t most_steps = 256;
    static constexpr int64_t prefetch_bytes = 256;
    static constexpr int period = lanes * group;             // values after which the row repeats
    static constexpr int vectors = chunk / lanes;            // that hold 16 values

    // Packs columns k0 .. k0 + count of rows row0 .. row0 + lanes, count <= most_steps; k0 is even for fp4.
    // `out` has room for an even number of K steps.
    static void panel(const Operand& op, int64_t row0, int64_t k0, int64_t count, typename V::Packed* out) {
        alignas(64) float scales[period], folded[period];
        int64_t block_end = count;  // relative to k0, as all K positions here
        bool is_foldable = true;
        for (int i = 0; i < period; ++i) scales[i] = 1, folded[i] = V::code_factor;
        int64_t block = 0;
        if (op.scales != nullptr) {
            block = k0 / op.gran_k;
            block_end = block * op.gran_k - k0;
        }
        const bool is_coded = has_codes(op);
        const Lines lines(op, row0, k0);
        for (int64_t done = 0; done < count;) {
            if (op.scales != nullptr && done >= block_end) {
                // Only the first block may have begun before k0.
                is_foldable = load_scales(op, row0, done == 0 ? block : ++block, scales, folded);
                block_end += op.gran_k;
            }
            int64_t steps = count - done < chunk ? count - done : chunk;
            if (steps > block_end - done) steps = block_end - done;
            if (is_coded)
                codes_chunk(op, lines, row0, k0, done, int(steps), scales, folded, is_foldable, out);
            else
                plain_chunk(op, lines, row0, k0, done, int(steps), scales, out);
            done += steps;
            out += (steps + group - 1) / group * lanes;
        }
    }

private:
    // Where the rows of a K-major panel lie; rows outside the operand are zeros.
    struct Lines {
        const uint8_t* at[lanes];
        Lines(const Operand& op, int64_t row0, int64_t k0) {
            const int64_t offset = op.kind == Kind::fp4 ? k0 / 2 : op.kind == Kind::bf16 ? 2 * k0 : k0;
            for (int r = 0; r < lanes; ++r) at[r] = row0 + r < op.mn ? op.data + (row0 + r) * op.pitch + offset : zeros;
        }
    };
    alignas(64) static constexpr uint8_t zeros[2 * most_steps] = {};

    static bool load_scales(const Operand& op, int64_t row0, int64_t block, float* scales, float* folded) {
        float column[lanes] = {};
        scales_of_rows(op, row0, op.mn - row0 < lanes ? op.mn - row0 : lanes, block, column);
        bool is_foldable = true;
        for (int r = 0; r < lanes; ++r) {
            is_foldable &= column[r] < largest_foldable_scale && column[r] > -largest_foldable_scale;
            for (int g = 0; g < group; ++g) {
                scales[r * group + g] = column[r];
                folded[r * group + g] = column[r] * V::code_factor;
            }
        }
        return is_foldable;
    }

    static void codes_chunk(const Operand& op, const Lines& lines, int64_t row0, int64_t k0, int64_t done, int steps, const float* scales,
                            const float* folded, bool is_foldable, typename V::Packed* out) {
        alignas(64) uint8_t codes[chunk * lanes];
        gather_codes(op, lines, row0, k0, done, steps, codes);
        const int words = (steps + group - 1) / group * lanes;
        typename V::NanCheck nan;
        if (is_foldable) {
            // Whole sets of 16 codes: an odd last K step of an 8-lane panel fills one padding step as well.
            constexpr int batch = period > 16 ? period : 16;
            constexpr int batch_vectors = batch / lanes;
            for (int i = 0; i < words * group; i += batch) {
                typename V::Vec values[batch_vectors];
                for (int part = 0; part < batch; part += 16) {
                    nan.see(codes + i + part);
                    V::decode16(codes + i + part, values + part / lanes);
                }
                for (int v = 0; v < batch_vectors; v += group) {
                    for (int g = 0; g < group; ++g) values[v + g] = V::mul(values[v + g], V::load(folded + g * lanes));
                    V::pack(values + v, out + i / group + v / group * lanes);
                }
            }
        }
        if (!is_foldable || nan.found()) by_table(codes, words, scales, out);
    }

    static void by_table(const uint8_t* codes, int words, const float* scales, typename V::Packed* out) {
        for (int w = 0; w < words; w += lanes) {
            alignas(64) float values[period];
            for (int i = 0; i < period; ++i) values[i] = e4m3_values[codes[w * group + i]] * scales[i];
            pack_floats(values, out + w);
        }
    }

    static void pack_floats(const float* values, typename V::Packed* out) {
        typename V::Vec vectors_of[group];
        for (int g = 0; g < group; ++g) vectors_of[g] = V::load(values + g * lanes);
        V::pack(vectors_of, out);
    }

    // Fills codes[steps / group][lanes][group]; padded with zeros up to `chunk` steps.
    static void gather_codes(const Operand& op, const Lines& lines, int64_t row0, int64_t k0, int64_t done, int steps,
                             uint8_t* codes) {
        const bool is_fp4 = op.kind == Kind::fp4;
        if (op.is_k_major && steps == chunk && !(is_fp4 && done % 2 != 0)) {
            const int64_t offset = is_fp4 ? done / 2 : done;
            // The next pass reads these rows one tile further on, too short a run for the hardware to foresee.
            if (offset % 64 == 0)
                for (int r = 0; r < lanes; ++r) __builtin_prefetch(lines.at[r] + offset + prefetch_bytes);
            const uint8_t* rows[lanes];
            alignas(16) uint8_t expanded[lanes][chunk];
            for (int r = 0; r < lanes; ++r) {
                rows[r] = lines.at[r] + offset;
                if (is_fp4) {
                    V::codes_of_fp4(rows[r], expanded[r]);
                    rows[r] = expanded[r];
                }
            }
            V::transpose16(rows, codes);
            return;
        }
        const int64_t k = k0 + done;
        const bool is_whole = row0 + lanes <= op.mn;
        if (!op.is_k_major && group == 1 && is_whole) {
            for (int s = 0; s < steps; ++s) {
                const uint8_t* line = op.data + (k + s) * op.pitch;
                if (!is_fp4)
                    std::memcpy(codes + s * lanes, line + row0, lanes);
                else
                    for (int r = 0; r < lanes; ++r)
                        codes[s * lanes + r] = e4m3_of_e2m1[(line[(row0 + r) / 2] >> (r % 2 * 4)) & 15];
            }
            std::memset(codes + steps * lanes, 0, size_t(chunk - steps) * lanes);
            return;
        }
        std::memset(codes, 0, size_t(chunk) * lanes);
        const int rows = int(op.mn - row0 < lanes ? op.mn - row0 : lanes);
        for (int s = 0; s < steps; ++s)
            for (int r = 0; r < rows; ++r) codes[(s / group * lanes + r) * group + s % group] = code_at(op, row0 + r, k + s);
    }

    static void plain_chunk(const Operand& op, const Lines& lines, int64_t row0, int64_t k0, int64_t done, int steps,
                            const float* scales, typename V::Packed* out) {
        alignas(64) float values[chunk * lanes];
        if (op.kind == Kind::bf16 && op.is_k_major && steps == chunk) {
            alignas(64) uint16_t words_of_rows[chunk * lanes];
            const uint8_t* rows[lanes];
            if (done % 32 == 0)
                for (int r = 0; r < lanes; ++r) __builtin_prefetch(lines.at[r] + 2 * done + 2 * prefetch_bytes);
            for (int r = 0; r < lanes; ++r) rows[r] = lines.at[r] + 2 * done;
            V::transpose16_words(rows, words_of_rows);
            for (int i = 0; i < chunk * lanes; i += 16) {
                typename V::Vec loaded[vectors];
                V::load16_bf16(reinterpret_cast<const uint8_t*>(words_of_rows + i), loaded);
                for (int v = 0; v < vectors; ++v) V::store(values + i + v * lanes, loaded[v]);
            }
        } else {
            const int rows = int(op.mn - row0 < lanes ? op.mn - row0 : lanes);
            if (rows < lanes || steps % group != 0) std::memset(values, 0, sizeof values);
            for (int r = 0; r < rows; ++r)
                for (int s = 0; s < steps; ++s)
                    values[(s / group * lanes + r) * group + s % group] = plain_value_at(op, row0 + r, k0 + done + s);
        }
        const int words = (steps + group - 1) / group * lanes;
        for (int w = 0; w < words; w += lanes) {
            float* word_values = values + w * group;
            if (op.scales != nullptr)
                for (int i = 0; i < period; ++i) word_values[i] *= scales[i];
            pack_floats(word_values, out + w);
        }
    }
};

}  // namespace cpu_native
