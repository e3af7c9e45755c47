// Shared headers come before the pragma: their inline functions must not be compiled for AVX-512.
#include <cmath>

#include "codes.hpp"
#include "scratch.hpp"
#include "thread_pool.hpp"
#include "variants.hpp"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#include "vector_avx512.hpp"

#include "variant_body.hpp"

namespace cpu_native {
namespace {
const Variant variant = make_variant<Avx512>();
}
const Variant* const avx512_variant = &variant;
}  // namespace cpu_native

#else
namespace cpu_native {
const Variant* const avx512_variant = nullptr;
}
#endif
