// Panels of bfloat16 pairs for packed_gemm.hpp with AVX512_VBMI; what pair_chunks.hpp does not cover goes to pack.hpp.
// Include only below a matching `#pragma GCC target`, after vector_avx512.hpp.
#pragma once

#include <type_traits>

#include "pack.hpp"
#include "pair_chunks.hpp"

namespace cpu_native {
namespace {  // as in vector_avx2.hpp

struct PairPacker {
    static constexpr int64_t prefetch_bytes = 256;  // a pass of packed_gemm.hpp further on, for fp8

    // Same contract as Packer<Avx512Bf16>::panel, except that `out` has room for a multiple of 128 K steps.
    static void panel(const Operand& op, int64_t row0, int64_t k0, int64_t count, uint32_t* out) {
        bool is_done = false;
        if (k0 % scale_step == 0 && (op.scales == nullptr || op.gran_k % scale_step == 0)) {
            if (op.kind == Kind::fp8) is_done = panel_of<Fp8Chunk>(op, row0, k0, count, out);
            if (op.kind == Kind::fp4) is_done = panel_of<Fp4Chunk>(op, row0, k0, count, out);
            if (op.kind == Kind::bf16 && op.scales == nullptr) is_done = panel_of<Bf16Chunk>(op, row0, k0, count, out);
        }
        if (!is_done) Packer<Avx512Bf16>::panel(op, row0, k0, count, out);
    }

private:
    // bfloat16 exponents of non-zero codes are 118 to 135; with scale exponents in this range they stay normal numbers.
    static constexpr uint32_t least_exponent = 10, most_exponent = 246;
    alignas(64) static constexpr uint8_t zeros[64] = {};

    // False, `out` unspecified: a scale is out of range, a scaled code is NaN, or the panel is cut.
    template <class Chunk>
    static bool panel_of(const Operand& op, int64_t row0, int64_t k0, int64_t count, uint32_t* out) {
        if (op.is_k_major) return rows<Chunk>(op, row0, k0, count, out);
        return row0 + pair_rows <= op.mn && columns<Chunk>(op, row0, k0, count, out);
    }

    template <class Chunk>
    static bool rows(const Operand& op, int64_t row0, int64_t k0, int64_t count, uint32_t* out) {
        const uint8_t* lines[pair_rows];
        int64_t advance[pair_rows];
        for (int r = 0; r < pair_rows; ++r) {
            const bool is_inside = row0 + r < op.mn;
            lines[r] = is_inside ? op.data + (row0 + r) * op.pitch + k0 * Chunk::bits / 8 : zeros;
            advance[r] = is_inside ? 64 : 0;
        }
        Chunk chunk;
        for (int64_t done = 0; done < count; done += Chunk::chunk, out += Chunk::chunk / 2 * pair_rows) {
            const int steps = int(count - done < Chunk::chunk ? count - done : Chunk::chunk);
            alignas(64) uint8_t padded[pair_rows][64];
            const uint8_t* starts[pair_rows];
            for (int r = 0; r < pair_rows; ++r) {
                starts[r] = steps == Chunk::chunk ? lines[r] : padded_row<Chunk>(lines[r], steps, advance[r] != 0, padded[r]);
                lines[r] += advance[r];
                __builtin_prefetch(lines[r] + prefetch_bytes - 64);
            }
            if (op.scales == nullptr) {
                constexpr NoScaling none[4];
                chunk.rows(starts, none, out);
                continue;
            }
            Scaling scaling[4] = {};
            for (int i = 0; i * scale_step < steps; ++i)
                if (!load_scaling(op, row0, (k0 + done + i * scale_step) / op.gran_k, scaling[i])) return false;
            chunk.rows(starts, scaling, out);
        }
        return !chunk.has_nan();
    }

    // The last bytes of a row, which must not be read past their end.
    template <class Chunk>
    static const uint8_t* padded_row(const uint8_t* line, int steps, bool is_inside, uint8_t* out) {
        std::memset(out, 0, 64);
        if (is_inside) std::memcpy(out, line, size_t(steps * Chunk::bits + 7) / 8);
        if (steps * Chunk::bits % 8 != 0) out[steps * Chunk::bits / 8] &= 15;
        return out;
    }

    template <class Chunk>
    static bool columns(const Operand& op, int64_t row0, int64_t k0, int64_t count, uint32_t* out) {
        const uint8_t* line = op.data + k0 * op.pitch + row0 * Chunk::bits / 8;
        Chunk chunk;
        Scaling scaling{};
        for (int64_t done = 0; done < count; done += 4, out += 2 * pair_rows) {
            const uint8_t* starts[4];
            for (int i = 0; i < 4; ++i, line += op.pitch) starts[i] = done + i < count ? line : zeros;
            if (op.scales == nullptr) {
                chunk.columns(starts, NoScaling{}, out);
                continue;
            }
            if (done % scale_step == 0 && !load_scaling(op, row0, (k0 + done) / op.gran_k, scaling)) return false;
            chunk.columns(starts, scaling, out);
        }
        return !chunk.has_nan();
    }

    // Reads the scales of sixteen rows; false if one is no power of two that `Scaling` can apply.
    static CPU_NATIVE_INLINE bool load_scaling(const Operand& op, int64_t row0, int64_t block, Scaling& scaling) {
        __m512i exponents;
        if (op.is_ue8m0 && op.gran_mn == 1 && op.scale_pitch_mn == op.scale_bytes && row0 + pair_rows <= op.mn) {
            const int shift = op.scale_bytes / 2;  // as in scales_of_rows
            const uint8_t* at = op.scales + (block >> shift) * op.scale_pitch_k + row0 * op.scale_bytes;
            const __m512i words = op.scale_bytes == 4
                                      ? _mm512_loadu_si512(at)
                                      : _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
            const unsigned bits = unsigned(block & (op.scale_bytes - 1)) * 8;
            exponents = _mm512_and_si512(_mm512_srli_epi32(words, bits), _mm512_set1_epi32(255));
        } else {
            alignas(64) float column[pair_rows];
            for (int r = 0; r < pair_rows; ++r) column[r] = 1;
            scales_of_rows(op, row0, op.mn - row0 < pair_rows ? op.mn - row0 : pair_rows, block, column);
            exponents = _mm512_srli_epi32(_mm512_load_si512(column), 23);  // with the sign: negative ones are out of range
        }
        const __m512i above = _mm512_sub_epi32(exponents, _mm512_set1_epi32(int(least_exponent)));
        if (_mm512_cmpgt_epu32_mask(above, _mm512_set1_epi32(int(most_exponent - least_exponent))) != 0) return false;
        const __m512i added = _mm512_slli_epi32(_mm512_sub_epi32(exponents, _mm512_set1_epi32(127)), 7);
        scaling.added = _mm512_or_si512(_mm512_slli_epi32(added, 16), _mm512_and_si512(added, _mm512_set1_epi32(0xffff)));
        return true;
    }
};

}  // namespace
}  // namespace cpu_native
