// The end of a GEMM: float32 accumulators become output elements, rounded once.
#pragma once

#include <cmath>

#include "codes.hpp"

namespace cpu_native {

template <class V>
struct Epilogue {
    // Writes `columns` elements of row `row`, starting at column `column`.
    static void write_row(const Output& out, int64_t row, int64_t column, const float* product, int columns) {
        const int64_t at = row * out.pitch + column, addend_at = row * out.addend_pitch + column;
        int i = 0;
        const auto alpha = V::broadcast(out.alpha);
        for (; i + V::lanes <= columns; i += V::lanes) {
            auto value = V::load(product + i);
            if (out.addend != nullptr)
                value = V::fma(value, alpha, load_addend(out, addend_at + i));
            else if (out.alpha != 1)
                value = V::mul(value, alpha);
            if (out.type == OutputType::bf16)
                V::store_bf16(static_cast<uint16_t*>(out.data) + at + i, value);
            else
                V::store(static_cast<float*>(out.data) + at + i, value);
        }
        for (; i < columns; ++i) {
            float value = product[i];
            if (out.addend != nullptr) {
                const float addend = out.addend_type == OutputType::bf16
                                         ? float_of_bf16(static_cast<const uint16_t*>(out.addend)[addend_at + i])
                                         : static_cast<const float*>(out.addend)[addend_at + i];
                value = std::fma(value, out.alpha, addend);
            } else {
                value *= out.alpha;
            }
            if (out.type == OutputType::bf16)
                static_cast<uint16_t*>(out.data)[at + i] = bf16_of_float(value);
            else
                static_cast<float*>(out.data)[at + i] = value;
        }
    }

private:
    static typename V::Vec load_addend(const Output& out, int64_t at) {
        if (out.addend_type == OutputType::fp32) return V::load(static_cast<const float*>(out.addend) + at);
        alignas(64) float values[V::lanes];
        for (int i = 0; i < V::lanes; ++i) values[i] = float_of_bf16(static_cast<const uint16_t*>(out.addend)[at + i]);
        return V::load(values);
    }
};

}  // namespace cpu_native
