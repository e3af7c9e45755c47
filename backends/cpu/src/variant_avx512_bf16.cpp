// Shared headers come before the pragma: their inline functions must not be compiled for AVX-512.
#include <cmath>
#include <type_traits>

#include "codes.hpp"
#include "scratch.hpp"
#include "thread_pool.hpp"
#include "variants.hpp"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define CPU_NATIVE_BF16_PAIRS
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi,avx2,fma,f16c")
#include "vector_avx512.hpp"

#include "pack_pairs.hpp"

#include "variant_body.hpp"

namespace cpu_native {
namespace {
const Variant variant = make_variant<Avx512Bf16, Avx512, PairPacker>();
}
const Variant* const avx512_bf16_variant = &variant;
}  // namespace cpu_native

#else
namespace cpu_native {
const Variant* const avx512_bf16_variant = nullptr;
}
#endif
