// AVX-512 (foundation, BW, VL, DQ); this file is compiled with those flags and run only where the CPU has them.
#include "kernels.hpp"
#include "simd_x86.hpp"

namespace {

struct Simd : SimdX86 {
    using V = __m512;
    static constexpr int width = 16;
    static V zero() { return _mm512_setzero_ps(); }
    static V set1(float x) { return _mm512_set1_ps(x); }
    static V load(const float* p) { return _mm512_loadu_ps(p); }
    static void store(float* p, V x) { _mm512_storeu_ps(p, x); }
    static V mul(V a, V b) { return _mm512_mul_ps(a, b); }
    static V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
    static float sum(V x) { return _mm512_reduce_add_ps(x); }
    static void decode16(const uint8_t* bytes, unikernels_cpu::Kind kind, V* out) {
        const HalfPatterns half = halves(bytes, kind);
        *out = _mm512_cvtph_ps(_mm256_set_m128i(half.high, half.low));
    }
};

}  // namespace

#include "kernels_body.hpp"

namespace unikernels_cpu {
const Kernels kAvx512 = {"avx512",
                         [] {
                             return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                    __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                                    __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
                         },
                         decode_run, dot_fused, multiply_tile};
}
