// Makes a Variant from vector types. Include below the `#pragma GCC target` of the build.
#pragma once

#include "dot_gemm.hpp"
#include "packed_gemm.hpp"
#include "relu_sum.hpp"
#include "rows.hpp"
#include "variants.hpp"

namespace cpu_native {

// V runs the packed kernel, on panels made by Pack; F (float32) everything else.
template <class V, class F = V, class Pack = Packer<V>>
constexpr Variant make_variant() {
    return {V::name,
            V::group != 1,
            &PackedGemm<V, Pack>::run,
            &DotGemm<F>::run,
            &RowDecoder<F>::template rows<float>,
            &RowDecoder<F>::template rows<uint16_t>,
            &ReluSumKernel<F>::run};
}

}  // namespace cpu_native
