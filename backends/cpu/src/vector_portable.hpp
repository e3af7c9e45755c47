// The vector type of the portable build: eight floats in an array, table look-ups for codes. Plain C++.
#pragma once

#include "codes.hpp"

namespace cpu_native {
namespace {

struct Portable {
    static constexpr const char* name = "portable";
    static constexpr int lanes = 8;
    static constexpr int group = 1;       // K steps that share one packed word
    static constexpr int tile_rows = 4;   // of the micro-kernel
    static constexpr int tile_vectors = 1;
    static constexpr float code_factor = 1;  // decode16 gives value / code_factor
    static constexpr bool has_exact_nan = true;  // decode16 gives NaN for NaN codes

    using Packed = float;
    struct Vec {
        float v[lanes];
    };

    static Vec zero() { return {}; }
    static Vec broadcast(float x) {
        Vec out;
        for (int i = 0; i < lanes; ++i) out.v[i] = x;
        return out;
    }
    static Vec load(const float* p) {
        Vec out;
        std::memcpy(out.v, p, sizeof out.v);
        return out;
    }
    static void store(float* p, const Vec& x) { std::memcpy(p, x.v, sizeof x.v); }
    static Vec add(Vec a, const Vec& b) {
        for (int i = 0; i < lanes; ++i) a.v[i] += b.v[i];
        return a;
    }
    static Vec mul(Vec a, const Vec& b) {
        for (int i = 0; i < lanes; ++i) a.v[i] *= b.v[i];
        return a;
    }
    static Vec fma(const Vec& a, const Vec& b, Vec c) {
        for (int i = 0; i < lanes; ++i) c.v[i] += a.v[i] * b.v[i];
        return c;
    }
    static Vec relu(Vec a) {
        for (int i = 0; i < lanes; ++i) a.v[i] = a.v[i] > 0 ? a.v[i] : (a.v[i] <= 0 ? 0.0f : a.v[i]);
        return a;
    }
    static float sum(const Vec& a) {
        return ((a.v[0] + a.v[4]) + (a.v[2] + a.v[6])) + ((a.v[1] + a.v[5]) + (a.v[3] + a.v[7]));
    }

    // The product step of the micro-kernel on packed words.
    static Vec load_packed(const Packed* p) { return load(p); }
    static Vec broadcast_packed(const Packed* p) { return broadcast(*p); }
    static Vec fma_packed(const Vec& a, const Vec& b, const Vec& c) { return fma(a, b, c); }

    struct NanCheck {
        void see(const uint8_t*) {}
        bool found() const { return false; }
    };

    static void decode16(const uint8_t* codes, Vec* out) {
        for (int i = 0; i < 16; ++i) out[i / lanes].v[i % lanes] = e4m3_values[codes[i]];
    }
    // 16 codes of eight bytes of fp4.
    static void codes_of_fp4(const uint8_t* bytes, uint8_t* codes) {
        for (int i = 0; i < 8; ++i) {
            codes[2 * i] = e4m3_of_e2m1[bytes[i] & 15];
            codes[2 * i + 1] = e4m3_of_e2m1[bytes[i] >> 4];
        }
    }
    static void decode16_fp4(const uint8_t* bytes, Vec* out) {
        uint8_t codes[16];
        codes_of_fp4(bytes, codes);
        decode16(codes, out);
    }
    static void load16_bf16(const uint8_t* bytes, Vec* out) {
        for (int i = 0; i < 16; ++i) {
            uint16_t bits;
            std::memcpy(&bits, bytes + 2 * i, sizeof bits);
            out[i / lanes].v[i % lanes] = float_of_bf16(bits);
        }
    }
    // Rearranges 16 bytes of each of `lanes` rows to [16 / group][lanes][group].
    static void transpose16(const uint8_t* const* rows, uint8_t* out) {
        for (int k = 0; k < 16; ++k)
            for (int r = 0; r < lanes; ++r) out[k * lanes + r] = rows[r][k];
    }
    // The same for 16 words of two bytes.
    static void transpose16_words(const uint8_t* const* rows, uint16_t* out) {
        for (int r = 0; r < lanes; ++r)
            for (int k = 0; k < 16; ++k) std::memcpy(out + k * lanes + r, rows[r] + 2 * k, sizeof *out);
    }
    static void pack(const Vec* values, Packed* out) { store(out, values[0]); }
    static void store_bf16(uint16_t* out, const Vec& x) {
        for (int i = 0; i < lanes; ++i) out[i] = bf16_of_float(x.v[i]);
    }
};

}  // namespace
}  // namespace cpu_native
