// Kernel bodies over a small SIMD vocabulary. Included once per instruction set, after `Simd` has been defined in the
// same anonymous namespace: nothing here may have external linkage, or the linker could keep the wrong variant.
//
// Simd: V, width, zero, load, store, set1, mul, fma, sum, and
//   decode16(bytes, kind, V out[16 / width]): sixteen elements, scaled by 1/payload_factor(kind);
//   nan_bytes(mask, bytes): remembers whether any of 16 E4M3 bytes is NaN (decode16 reads those as 480).

namespace {

using namespace unikernels_cpu;

constexpr int kVectors = 16 / Simd::width;

void decode_slowly(const uint8_t* run, Kind kind, int64_t offset, int64_t n, float scale, float* out) {
    for (int64_t i = 0; i < n; ++i) {
        int64_t at = offset + i;
        float value = 0;
        switch (kind) {
            case Kind::fp8: value = e4m3_value(run[at]); break;
            case Kind::fp4: value = e2m1_value(at & 1 ? run[at >> 1] >> 4 : run[at >> 1] & 15u); break;
            case Kind::bf16: value = bf16_value(reinterpret_cast<const uint16_t*>(run)[at]); break;
            case Kind::fp32: value = reinterpret_cast<const float*>(run)[at]; break;
        }
        out[i] = value * scale;
    }
}

void decode_run(const uint8_t* run, Kind kind, int64_t offset, int64_t n, float scale, float* out) {
    if (kind == Kind::bf16 || kind == Kind::fp32 || (kind == Kind::fp4 && (offset & 1))) {
        decode_slowly(run, kind, offset, n, scale, out);  // the compiler vectorises the first two well
        return;
    }
    const uint8_t* source = kind == Kind::fp8 ? run + offset : run + offset / 2;
    const int64_t bytes = kind == Kind::fp8 ? 16 : 8;
    const auto factor = Simd::set1(Simd::payload_factor(kind));
    const auto scales = Simd::set1(scale);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16, source += bytes) {
        if (kind == Kind::fp8) {
            auto mask = Simd::no_nan();
            Simd::nan_bytes(mask, source);
            if (Simd::any_nan(mask)) {
                decode_slowly(source, kind, 0, 16, scale, out + i);
                continue;
            }
        }
        Simd::V part[kVectors];
        Simd::decode16(source, kind, part);
        for (int v = 0; v < kVectors; ++v)
            Simd::store(out + i + v * Simd::width, Simd::mul(Simd::mul(part[v], factor), scales));
    }
    decode_slowly(source, kind, 0, n - i, scale, out + i);
}

template <int Rows>
void dot_fused_rows(const Matrix& b, int64_t row, const float* block_scales, const float* a, int64_t lda, float* out) {
    const bool is_fp8 = b.kind == Kind::fp8;
    const int64_t step_bytes = is_fp8 ? kStep : kStep / 2;
    const uint8_t* source = b.data + row * b.stride_mn;
    Simd::V total[Rows];
    for (auto& one : total) one = Simd::zero();
    auto nan = Simd::no_nan();
    uint8_t last[kStep];
    const int64_t gran_k = b.scales.data ? b.scales.gran_k : b.k;
    for (int64_t k0 = 0, block = 0; k0 < b.k; k0 += gran_k, ++block) {
        const int64_t k1 = k0 + gran_k < b.k ? k0 + gran_k : b.k;
        Simd::V sum[Rows];
        for (auto& one : sum) one = Simd::zero();
        for (int64_t k = k0; k < k1; k += kStep, source += step_bytes) {
            const uint8_t* bytes = source;
            if (k + kStep > k1) {  // the tail: padded with zeros, as the activations are
                std::memset(last, 0, sizeof last);
                std::memcpy(last, source, static_cast<size_t>(is_fp8 ? k1 - k : (k1 - k + 1) / 2));
                bytes = last;
            }
            for (int half = 0; half < 2; ++half) {
                const uint8_t* sixteen = bytes + half * step_bytes / 2;
                Simd::V part[kVectors];
                if (is_fp8) {
                    Simd::nan_bytes(nan, sixteen);
                    Simd::decode16(sixteen, Kind::fp8, part);
                } else {
                    Simd::decode16(sixteen, Kind::fp4, part);
                }
                for (int i = 0; i < Rows; ++i)
                    for (int v = 0; v < kVectors; ++v)
                        sum[i] = Simd::fma(part[v], Simd::load(a + i * lda + k + 16 * half + v * Simd::width), sum[i]);
            }
        }
        const auto scale = Simd::set1((block_scales ? block_scales[block] : 1.0f) * Simd::payload_factor(b.kind));
        for (int i = 0; i < Rows; ++i) total[i] = Simd::fma(sum[i], scale, total[i]);
    }
    for (int i = 0; i < Rows; ++i)  // NaN times anything is NaN, so one NaN byte decides the whole dot product
        out[i] = Simd::any_nan(nan) ? std::numeric_limits<float>::quiet_NaN() : Simd::sum(total[i]);
}

void dot_fused(const Matrix& b, int64_t row, const float* block_scales, const float* a, int64_t lda, int num_rows,
               float* out) {
    switch (num_rows) {
        case 1: return dot_fused_rows<1>(b, row, block_scales, a, lda, out);
        case 2: return dot_fused_rows<2>(b, row, block_scales, a, lda, out);
        case 3: return dot_fused_rows<3>(b, row, block_scales, a, lda, out);
        default: return dot_fused_rows<4>(b, row, block_scales, a, lda, out);
    }
}

template <int M, int N>
void multiply_block(const float* a, int64_t lda, const float* b, int64_t ldb, int64_t k, float* acc, int64_t ldacc) {
    Simd::V sum[M][N];
    for (auto& line : sum)
        for (auto& one : line) one = Simd::zero();
    int64_t at = 0;
    for (; at + Simd::width <= k; at += Simd::width) {
        Simd::V right[N];
        for (int j = 0; j < N; ++j) right[j] = Simd::load(b + j * ldb + at);
        for (int i = 0; i < M; ++i) {
            const auto left = Simd::load(a + i * lda + at);
            for (int j = 0; j < N; ++j) sum[i][j] = Simd::fma(left, right[j], sum[i][j]);
        }
    }
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) {
            float rest = Simd::sum(sum[i][j]);
            for (int64_t t = at; t < k; ++t) rest += a[i * lda + t] * b[j * ldb + t];
            acc[i * ldacc + j] += rest;
        }
}

template <int N>
void multiply_rows(const float* a, int64_t lda, int64_t m, const float* b, int64_t ldb, int64_t k, float* acc,
                   int64_t ldacc) {
    int64_t i = 0;
    for (; i + 4 <= m; i += 4) multiply_block<4, N>(a + i * lda, lda, b, ldb, k, acc + i * ldacc, ldacc);
    for (; i < m; ++i) multiply_block<1, N>(a + i * lda, lda, b, ldb, k, acc + i * ldacc, ldacc);
}

void multiply_tile(const float* a, int64_t lda, int64_t m, const float* b, int64_t ldb, int64_t n, int64_t k,
                   float* acc, int64_t ldacc) {
    int64_t j = 0;
    for (; j + 3 <= n; j += 3) multiply_rows<3>(a, lda, m, b + j * ldb, ldb, k, acc + j, ldacc);
    for (; j < n; ++j) multiply_rows<1>(a, lda, m, b + j * ldb, ldb, k, acc + j, ldacc);
}

}  // namespace
