// AVX2, FMA and F16C; this file is compiled with those flags and run only where the CPU has them.
#include "kernels.hpp"
#include "simd_x86.hpp"

namespace {

struct Simd : SimdX86 {
    using V = __m256;
    static constexpr int width = 8;
    static V zero() { return _mm256_setzero_ps(); }
    static V set1(float x) { return _mm256_set1_ps(x); }
    static V load(const float* p) { return _mm256_loadu_ps(p); }
    static void store(float* p, V x) { _mm256_storeu_ps(p, x); }
    static V mul(V a, V b) { return _mm256_mul_ps(a, b); }
    static V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
    static float sum(V x) {
        __m128 r = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        r = _mm_add_ps(r, _mm_movehl_ps(r, r));
        return _mm_cvtss_f32(_mm_add_ss(r, _mm_movehdup_ps(r)));
    }
    static void decode16(const uint8_t* bytes, unikernels_cpu::Kind kind, V* out) {
        const HalfPatterns half = halves(bytes, kind);
        out[0] = _mm256_cvtph_ps(half.low);
        out[1] = _mm256_cvtph_ps(half.high);
    }
};

}  // namespace

#include "kernels_body.hpp"

namespace unikernels_cpu {
const Kernels kAvx2 = {"avx2",
                       [] {
                           return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                                  __builtin_cpu_supports("f16c");
                       },
                       decode_run, dot_fused, multiply_tile};
}
