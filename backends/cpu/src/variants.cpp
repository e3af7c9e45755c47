#include "variants.hpp"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "codes.hpp"

namespace cpu_native {
namespace {

bool runs_here(const Variant* variant) {
    if (variant == nullptr) return false;
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    if (variant == avx2_variant) return has_avx2;
    const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (variant == avx512_variant) return has_avx512;
    // Of the CPUs that multiply bfloat16 one generation (Cooper Lake) cannot permute bytes; it is not worth a variant.
    return has_avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi");
#else
    return false;
#endif
}

bool agree(const std::vector<float>& x, const std::vector<float>& y, float tolerance) {
    for (size_t i = 0; i < x.size(); ++i) {
        if (std::isnan(x[i]) || std::isnan(y[i])) {
            if (std::isnan(x[i]) != std::isnan(y[i])) return false;
        } else if (x[i] != y[i] && std::fabs(x[i] - y[i]) > tolerance * std::fabs(y[i])) {
            return false;
        }
    }
    return true;
}

// A small problem whose rows hold all codes (NaN in its last rows only) and whose scales differ everywhere.
struct Sample {
    static constexpr int64_t rows = 37, k = 352, num_blocks = k / 32;
    std::vector<uint8_t> bytes, bf16_bytes, scales;

    explicit Sample(unsigned seed) : bytes(size_t(rows * k)), bf16_bytes(), scales(size_t(rows * num_blocks + 4)) {
        for (int64_t i = 0; i < rows * k; ++i) {
            const uint8_t code = uint8_t((i * 37 + (i >> 8) * 11 + seed) & 255);
            const bool may_be_nan = i / k >= rows - 2;
            bytes[size_t(i)] = (code & 0x7f) == 0x7f && !may_be_nan ? 0x35 : code;
        }
        bf16_bytes = bytes;
        for (size_t i = 1; i < bf16_bytes.size(); i += 2) bf16_bytes[i] = (bytes[i] & 0x83) | 0x3c;  // 2^-8 to 2^-1
        for (size_t i = 0; i < scales.size(); ++i) scales[i] = uint8_t(120 + (i * 5 + seed) % 13);
    }

    Operand operand(Kind kind) const {
        const int64_t pitch = kind == Kind::fp4 ? k / 2 : k;
        if (kind == Kind::bf16) return {bf16_bytes.data(), kind, rows, k / 2, true, k, nullptr, 2, true, 0, 0, 1, 32};
        return {bytes.data(), kind, rows, k, true, pitch, scales.data(), 2, true, num_blocks, 2, 1, 32};
    }
};

bool agrees_with_portable(const Variant& variant) {
    const Sample left(3), right(90);
    for (const Kind kind : {Kind::fp8, Kind::fp4, Kind::bf16}) {
        const Operand a = left.operand(kind), b = right.operand(kind);
        std::vector<float> x(size_t(a.mn * a.k)), y(x.size());
        variant.rows_to_fp32(a, 0, a.mn, true, x.data(), a.k);
        portable_variant.rows_to_fp32(a, 0, a.mn, true, y.data(), a.k);
        if (!agree(x, y, 0)) return false;
        std::vector<uint16_t> x_bf16(x.size()), y_bf16(x.size());
        variant.rows_to_bf16(a, 0, a.mn, true, x_bf16.data(), a.k);
        portable_variant.rows_to_bf16(a, 0, a.mn, true, y_bf16.data(), a.k);
        for (size_t i = 0; i < x.size(); ++i) x[i] = float_of_bf16(x_bf16[i]), y[i] = float_of_bf16(y_bf16[i]);
        if (!agree(x, y, 0)) return false;
        for (const int64_t m : {int64_t(3), a.mn}) {
            Operand part = a;
            part.mn = m;
            std::vector<float> got(size_t(m * b.mn)), wanted(got.size());
            Output out{got.data(), OutputType::fp32, b.mn, nullptr, OutputType::fp32, 0, 1.0f};
            (m < 4 ? variant.dot_gemm : variant.packed_gemm)(part, b, out, 1);
            out.data = wanted.data();
            portable_variant.packed_gemm(part, b, out, 1);
            // The sample's terms reach 1e5 and cancel; summation order moves results by far less than a wrong value.
            if (!agree(got, wanted, 1e-3f)) return false;
        }
    }
    return true;
}

VariantList make_list() {
    VariantList list{{&portable_variant}, 1};
    for (const Variant* variant : {avx2_variant, avx512_variant, avx512_bf16_variant})
        if (runs_here(variant) && agrees_with_portable(*variant)) list.items[list.count++] = variant;
    return list;
}

// Below this many products one thread is faster than waking another.
constexpr double products_worth_a_thread = 1 << 17;

}  // namespace

const VariantList& usable_variants() {
    static const VariantList list = make_list();
    return list;
}

const Variant* find_variant(const char* name) {
    const VariantList& list = usable_variants();
    if (name == nullptr) return list.items[list.count - 1];
    for (int i = 0; i < list.count; ++i)
        if (std::strcmp(list.items[i]->name, name) == 0) return list.items[i];
    return nullptr;
}

bool is_exact_in_bf16(const Operand& op) {
    if (op.kind == Kind::fp32) return false;
    if (op.scales == nullptr) return true;
    if (op.kind == Kind::bf16) return false;
    if (op.is_ue8m0) return true;
    const int64_t rows = (op.mn + op.gran_mn - 1) / op.gran_mn, blocks = (op.k + op.gran_k - 1) / op.gran_k;
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t block = 0; block < blocks; ++block) {
            uint32_t bits;
            std::memcpy(&bits, op.scales + row * op.scale_pitch_mn + block * op.scale_pitch_k, sizeof bits);
            const uint32_t exponent = (bits >> 23) & 255;
            if ((bits & 0x7fffff) != 0 || exponent == 0 || exponent == 255) return false;
        }
    return true;
}

// Whether elements are bfloat16 numbers and scales either fold into them exactly or can be deferred.
bool fit_bf16(const Operand& a, const Operand& b) {
    for (const Operand* op : {&a, &b})
        if (op->kind == Kind::fp32 || (op->kind == Kind::bf16 && op->scales != nullptr && op->is_ue8m0)) return false;
    return !(has_float_scales(a) || has_float_scales(b)) || deferred_block(a, b) != 0;
}

bool gemm(const Operand& a, const Operand& b, const Output& out, GemmOptions options) {
    if (a.mn == 0 || b.mn == 0) return true;
    if (double(a.mn) * double(b.mn) * double(a.k) < products_worth_a_thread) options.threads = 1;
    const VariantList& list = usable_variants();
    const Variant* variant = options.variant != nullptr ? options.variant : list.items[list.count - 1];
    const bool multiplies_bf16 = variant->multiplies_bf16 && options.allows_bf16 && fit_bf16(a, b);
    // Packing pairs is so cheap that it pays for a single row already.
    if (!multiplies_bf16 && !options.is_row_invariant && a.mn <= most_dot_rows && b.is_k_major && a.k <= most_dot_k &&
        (b.scales == nullptr || b.gran_k % 32 == 0)) {
        variant->dot_gemm(a, b, out, options.threads);
        return true;
    }
    if (variant->multiplies_bf16 && !multiplies_bf16) {
        if (options.variant != nullptr) return false;
        variant = list.items[list.count - 2];
    }
    variant->packed_gemm(a, b, out, options.threads);
    return true;
}

}  // namespace cpu_native
