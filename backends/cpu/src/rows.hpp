// Dense decoding: rows of an operand as float32 or bfloat16, K contiguous. Template over a float32 vector type V.
#pragma once

#include "pack.hpp"

namespace cpu_native {

template <class V>
struct RowDecoder {
    static_assert(V::group == 1);
    static constexpr int lanes = V::lanes, vectors = 16 / lanes;
    static constexpr int chunk = 256;  // elements handled at a time

    // Decodes rows row0 .. row1 into out[row - row0][k]; pitch in elements. apply_scales=false leaves scales out.
    template <class Element>
    static void rows(const Operand& op, int64_t row0, int64_t row1, bool apply_scales, Element* out, int64_t pitch) {
        if (op.is_k_major) {
            for (int64_t row = row0; row < row1; ++row) one_row(op, row, apply_scales, out + (row - row0) * pitch);
        } else {
            Operand source = op;
            if (!apply_scales) source.scales = nullptr;
            for (int64_t row = row0; row < row1; row += lanes) panel_of_columns(source, row, row0, row1, out, pitch);
        }
    }

private:
    template <class Element>
    static void one_row(const Operand& op, int64_t row, bool apply_scales, Element* out) {
        const bool is_scaled = apply_scales && op.scales != nullptr;
        for (int64_t k = 0; k < op.k;) {
            int64_t count = op.k - k < chunk ? op.k - k : chunk;
            float scale = 1;
            if (is_scaled) {
                const int64_t block = k / op.gran_k, block_end = (block + 1) * op.gran_k;
                if (count > block_end - k) count = block_end - k;
                scale = scale_at(op, row, block);
            }
            alignas(64) float values[chunk];
            run(op, row, k, int(count), scale, values);
            write(values, int(count), out + k);
            k += count;
        }
    }

    static void run(const Operand& op, int64_t row, int64_t k, int count, float scale, float* values) {
        const uint8_t* line = op.data + row * op.pitch;
        int done = 0;
        typename V::NanCheck nan;
        if (op.kind == Kind::bf16) {
            for (; done + 16 <= count; done += 16) {
                typename V::Vec loaded[vectors];
                V::load16_bf16(line + 2 * (k + done), loaded);
                for (int i = 0; i < vectors; ++i)
                    V::store(values + done + i * lanes, V::mul(loaded[i], V::broadcast(scale)));
            }
        } else if (has_codes(op) && scale < largest_foldable_scale && scale > -largest_foldable_scale &&
                   !(op.kind == Kind::fp4 && k % 2 != 0)) {
            const auto factor = V::broadcast(scale * V::code_factor);
            for (; done + 16 <= count; done += 16) {
                typename V::Vec decoded[vectors];
                if (op.kind == Kind::fp8) {
                    nan.see(line + k + done);
                    V::decode16(line + k + done, decoded);
                } else {
                    V::decode16_fp4(line + (k + done) / 2, decoded);
                }
                for (int i = 0; i < vectors; ++i) V::store(values + done + i * lanes, V::mul(decoded[i], factor));
            }
        }
        if (nan.found()) done = 0;
        for (; done < count; ++done)
            values[done] = scale * (has_codes(op) ? e4m3_values[code_at(op, row, k + done)] : plain_value_at(op, row, k + done));
    }

    static void write(const float* values, int count, float* out) { std::memcpy(out, values, size_t(count) * sizeof(float)); }
    static void write(const float* values, int count, uint16_t* out) {
        int i = 0;
        for (; i + lanes <= count; i += lanes) V::store_bf16(out + i, V::load(values + i));
        for (; i < count; ++i) out[i] = bf16_of_float(values[i]);
    }

    template <class Element>
    static void panel_of_columns(const Operand& op, int64_t row, int64_t row0, int64_t row1, Element* out, int64_t pitch) {
        constexpr int64_t steps = 64;
        alignas(64) float packed[steps * lanes];
        const int rows = int(row1 - row < lanes ? row1 - row : lanes);
        for (int64_t k = 0; k < op.k; k += steps) {
            const int count = int(op.k - k < steps ? op.k - k : steps);
            Packer<V>::panel(op, row, k, count, packed);
            for (int r = 0; r < rows; ++r) {
                alignas(64) float line[steps];
                for (int s = 0; s < count; ++s) line[s] = packed[s * lanes + r];
                write(line, count, out + (row - row0 + r) * pitch + k);
            }
        }
    }
};

}  // namespace cpu_native
