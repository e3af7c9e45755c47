#include "codes.hpp"

#include <array>
#include <cmath>
#include <limits>

namespace cpu_native {
namespace {

std::array<float, 256> make_e4m3_values() {
    std::array<float, 256> table;
    for (int code = 0; code < 256; ++code) {
        const int exponent = (code >> 3) & 15, mantissa = code & 7;
        float magnitude = exponent == 0 ? std::ldexp(float(mantissa), -9) : std::ldexp(float(8 + mantissa), exponent - 10);
        if ((code & 0x7f) == 0x7f) magnitude = std::numeric_limits<float>::quiet_NaN();
        table[code] = code & 0x80 ? -magnitude : magnitude;
    }
    return table;
}

std::array<float, 256> make_ue8m0_values() {
    std::array<float, 256> table;
    for (int e = 0; e < 255; ++e) table[e] = std::ldexp(1.0f, e - 127);
    table[255] = std::numeric_limits<float>::quiet_NaN();
    return table;
}

const std::array<float, 256> e4m3_table = make_e4m3_values();
const std::array<float, 256> ue8m0_table = make_ue8m0_values();

}  // namespace

const float* const e4m3_values = e4m3_table.data();
const float* const ue8m0_values = ue8m0_table.data();

}  // namespace cpu_native
