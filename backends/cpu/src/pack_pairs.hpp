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

    // Reads the scales of sixteen rows along K in steps of 32, without divisions and without branches on their values.
    class ScaleBlocks {
    public:
        ScaleBlocks(const Operand& op, int64_t row0, int64_t k0) : op_(op), row0_(row0) {
            if (op.scales == nullptr) return;
            block_ = k0 / op.gran_k;
            left_ = (block_ + 1) * op.gran_k - k0;
            are_neighbours_ = op.is_ue8m0 && op.gran_mn == 1 && op.scale_pitch_mn == op.scale_bytes && row0 + pair_rows <= op.mn;
        }

        CPU_NATIVE_INLINE Scaling next() {
            const __m512i exponents = are_neighbours_ ? neighbours() : gathered();
            const __m512i above = _mm512_sub_epi32(exponents, _mm512_set1_epi32(int(least_exponent)));
            farthest_ = _mm512_max_epu32(farthest_, above);
            left_ -= scale_step;
            if (left_ == 0) ++block_, left_ = op_.gran_k;
            const __m512i added = _mm512_slli_epi32(_mm512_sub_epi32(exponents, _mm512_set1_epi32(127)), 7);
            const __m512i twice = _mm512_set4_epi32(0x0d0c0d0c, 0x09080908, 0x05040504, 0x01000100);
            return {_mm512_shuffle_epi8(added, twice)};
        }

        // Whether all scales so far were powers of two that `Scaling` can apply.
        bool are_usable() const {
            return _mm512_cmpgt_epu32_mask(farthest_, _mm512_set1_epi32(int(most_exponent - least_exponent))) == 0;
        }

    private:
        CPU_NATIVE_INLINE __m512i neighbours() const {
            const int shift = op_.scale_bytes / 2;  // as in scales_of_rows
            const uint8_t* at = op_.scales + (block_ >> shift) * op_.scale_pitch_k + row0_ * op_.scale_bytes;
            const __m512i words = op_.scale_bytes == 4
                                      ? _mm512_loadu_si512(at)
                                      : _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
            const unsigned bits = unsigned(block_ & (op_.scale_bytes - 1)) * 8;
            return _mm512_and_si512(_mm512_srli_epi32(words, bits), _mm512_set1_epi32(255));
        }

        // With the sign: negative ones are out of range.
        __m512i gathered() const {
            alignas(64) float column[pair_rows];
            for (int r = 0; r < pair_rows; ++r) column[r] = 1;
            scales_of_rows(op_, row0_, op_.mn - row0_ < pair_rows ? op_.mn - row0_ : pair_rows, block_, column);
            return _mm512_srli_epi32(_mm512_load_si512(column), 23);
        }

        const Operand& op_;
        const int64_t row0_;
        int64_t block_ = 0, left_ = 0;
        bool are_neighbours_ = false;
        __m512i farthest_ = _mm512_setzero_si512();
    };

    // False, `out` unspecified: a scale is out of range, a scaled code is NaN, or the panel is cut.
    template <class Chunk>
    static bool panel_of(const Operand& op, int64_t row0, int64_t k0, int64_t count, uint32_t* out) {
        if (op.is_k_major) return rows<Chunk>(op, row0, k0, count, out);
        return row0 + pair_rows <= op.mn && columns<Chunk>(op, row0, k0, count, out);
    }

    template <class Chunk>
    static bool rows(const Operand& op, int64_t row0, int64_t k0, int64_t count, uint32_t* out) {
        const bool is_whole = row0 + pair_rows <= op.mn;
        const uint8_t* line = op.data + row0 * op.pitch + k0 * Chunk::bits / 8;
        Chunk chunk;
        ScaleBlocks blocks(op, row0, k0);
        for (int64_t done = 0; done < count; done += Chunk::chunk, line += 64, out += Chunk::chunk / 2 * pair_rows) {
            const int steps = int(count - done < Chunk::chunk ? count - done : Chunk::chunk);
            alignas(64) uint8_t padded[pair_rows][64];
            const uint8_t* first = line;
            int64_t pitch = op.pitch;
            if (is_whole) {
#pragma GCC unroll 16
                for (int r = 0; r < pair_rows; ++r) __builtin_prefetch(line + r * pitch + prefetch_bytes);
            }
            if (!is_whole || steps < Chunk::chunk) {
                for (int r = 0; r < pair_rows; ++r)
                    copy_row<Chunk>(line + r * pitch, row0 + r < op.mn ? steps : 0, padded[r]);
                first = padded[0];
                pitch = 64;
            }
            if (op.scales == nullptr) {
                constexpr NoScaling none[4];
                chunk.rows(first, pitch, none, out);
                continue;
            }
            Scaling scaling[4] = {};
            for (int i = 0; i * scale_step < steps; ++i) scaling[i] = blocks.next();
            chunk.rows(first, pitch, scaling, out);
        }
        return !chunk.has_nan() && blocks.are_usable();
    }

    // Copies what may be read of the 64 bytes of a row; the rest is zeros.
    template <class Chunk>
    static void copy_row(const uint8_t* line, int steps, uint8_t* out) {
        std::memset(out, 0, 64);
        std::memcpy(out, line, size_t(steps * Chunk::bits + 7) / 8);
        if (steps * Chunk::bits % 8 != 0) out[steps * Chunk::bits / 8] &= 15;
    }

    template <class Chunk>
    static bool columns(const Operand& op, int64_t row0, int64_t k0, int64_t count, uint32_t* out) {
        const uint8_t* line = op.data + k0 * op.pitch + row0 * Chunk::bits / 8;
        Chunk chunk;
        ScaleBlocks blocks(op, row0, k0);
        Scaling scaling{};
        for (int64_t done = 0; done < count; done += 4, out += 2 * pair_rows) {
            const uint8_t* starts[4];
            for (int i = 0; i < 4; ++i, line += op.pitch) starts[i] = done + i < count ? line : zeros;
            if (op.scales == nullptr) {
                chunk.columns(starts, NoScaling{}, out);
                continue;
            }
            if (done % scale_step == 0) scaling = blocks.next();
            chunk.columns(starts, scaling, out);
        }
        return !chunk.has_nan() && blocks.are_usable();
    }
};

}  // namespace
}  // namespace cpu_native
