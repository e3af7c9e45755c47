// Any CPU: plain C++ over sixteen floats.
#include "kernels.hpp"

namespace {

struct Simd {
    struct V { float lane[16]; };
    static constexpr int width = 16;
    static V zero() { return {}; }
    static V set1(float x) { V r; for (auto& l : r.lane) l = x; return r; }
    static V load(const float* p) { V r; std::memcpy(r.lane, p, sizeof r.lane); return r; }
    static void store(float* p, const V& x) { std::memcpy(p, x.lane, sizeof x.lane); }
    static V mul(const V& a, const V& b) { V r; for (int i = 0; i < 16; ++i) r.lane[i] = a.lane[i] * b.lane[i]; return r; }
    static V fma(const V& a, const V& b, const V& c) {
        V r;
        for (int i = 0; i < 16; ++i) r.lane[i] = a.lane[i] * b.lane[i] + c.lane[i];
        return r;
    }
    static float sum(const V& x) { float r = 0; for (float l : x.lane) r += l; return r; }
    static float payload_factor(unikernels_cpu::Kind) { return 1.0f; }
    static void decode16(const uint8_t* bytes, unikernels_cpu::Kind kind, V* out) {
        for (int i = 0; i < 16; ++i)
            out->lane[i] = kind == unikernels_cpu::Kind::fp8
                               ? unikernels_cpu::e4m3_value(bytes[i])
                               : unikernels_cpu::e2m1_value(i & 1 ? bytes[i >> 1] >> 4 : bytes[i >> 1] & 15u);
    }
    static bool no_nan() { return false; }
    static void nan_bytes(bool& mask, const uint8_t* bytes) { for (int i = 0; i < 16; ++i) mask |= (bytes[i] & 0x7f) == 0x7f; }
    static bool any_nan(bool mask) { return mask; }
};

}  // namespace

#include "kernels_body.hpp"

namespace unikernels_cpu {
const Kernels kPortable = {"portable", [] { return true; }, decode_run, dot_fused, multiply_tile};
}
