// Included by one translation unit per instruction set, which defines USIM_ISA and the vector width in floats. Only
// internal linkage and no library templates here: code of one instruction set must never be linked into another.
#include "mmad_kernels.hpp"

namespace usim {
namespace {

typedef float Vector __attribute__((vector_size(USIM_WIDTH * 4)));
typedef float Unaligned __attribute__((vector_size(USIM_WIDTH * 4), aligned(4)));
constexpr int kParts = 16 / USIM_WIDTH;  // vectors in one row of 16 accumulators

inline float as_float(std::uint32_t u) { return __builtin_bit_cast(float, u); }

// Eight codes at a time in the compiler's vector types: the same source for every instruction set.
typedef std::uint16_t Halves8 __attribute__((vector_size(16)));
typedef std::uint32_t Words8 __attribute__((vector_size(32)));
typedef std::int32_t Ints8 __attribute__((vector_size(32)));
typedef float Floats8 __attribute__((vector_size(32)));

__attribute__((always_inline)) inline Words8 select(Ints8 mask, Words8 yes, Words8 no) { return (__builtin_bit_cast(Words8, mask) & yes) | (~__builtin_bit_cast(Words8, mask) & no); }
__attribute__((always_inline)) inline Words8 bits(Floats8 f) { return __builtin_bit_cast(Words8, f); }
__attribute__((always_inline)) inline void put(float* out, Words8 u) { __builtin_memcpy(out, &u, 32); }

// All 256 values of an 8-bit float: one table load per element beats computing them.
struct ByteTable {
  float value[256];
  constexpr ByteTable(int mantissa_bits, int bias, bool finite_only) : value() {
    for (int code = 0; code < 256; ++code) {
      const int exponent = (code & 0x7f) >> mantissa_bits, mantissa = code & ((1 << mantissa_bits) - 1);
      float magnitude = exponent == 0 ? static_cast<float>(mantissa) : static_cast<float>(mantissa + (1 << mantissa_bits));
      for (int e = (exponent == 0 ? 1 : exponent) - bias - mantissa_bits; e != 0; e += e < 0 ? 1 : -1) magnitude *= e < 0 ? 0.5f : 2.0f;
      const bool top = exponent == (0x7f >> mantissa_bits);
      if (finite_only ? (code & 0x7f) == 0x7f : top && mantissa != 0) magnitude = __builtin_nanf("");
      else if (!finite_only && top) magnitude = __builtin_inff();
      value[code] = code & 0x80 ? -magnitude : magnitude;
    }
  }
};
constexpr ByteTable kE4m3{3, 7, true}, kE5m2{2, 15, false};

inline void widen_fp8(const std::uint8_t* in, float* out, const ByteTable& table) {
  for (int e = 0; e < 32; ++e) out[e] = table.value[in[e]];
}
__attribute__((always_inline)) inline Words8 widen_half_bits(Words8 h) {
  const Words8 a = h & 0x7fff;
  const Words8 small = bits(__builtin_convertvector(__builtin_bit_cast(Ints8, a), Floats8) * 0x1p-24f);
  const Words8 normal = select(a >= 0x7c00, 0x7f800000u | (a & 0x3ff) << 13, (a << 13) + 0x38000000u);
  return select(a < 0x400, small, normal) | (h & 0x8000) << 16;
}
inline void widen_f16(const std::uint8_t* in, float* out) {
  for (int e = 0; e < 16; e += 8) {
    Halves8 raw;
    __builtin_memcpy(&raw, in + 2 * e, 16);
    put(out + e, widen_half_bits(__builtin_convertvector(raw, Words8)));
  }
}
inline void widen_bf16(const std::uint8_t* in, float* out) {
  for (int e = 0; e < 16; e += 8) {
    Halves8 raw;
    __builtin_memcpy(&raw, in + 2 * e, 16);
    put(out + e, __builtin_convertvector(raw, Words8) << 16);
  }
}
inline void widen_f32(const std::uint8_t* in, float* out) { __builtin_memcpy(out, in, 32); }

// e2m1: 0 .5 1 1.5 2 3 4 6; e1m2: 0 .25 .. 1.75. One byte holds two values, the low nibble first.
struct PairTable {
  float pair[256][2];
  constexpr explicit PairTable(bool e1m2) : pair() {
    constexpr float e2m1_values[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    for (int code = 0; code < 256; ++code)
      for (int part = 0; part < 2; ++part) {
        const int nibble = code >> (4 * part) & 15;
        const float magnitude = e1m2 ? static_cast<float>(nibble & 7) * 0.25f : e2m1_values[nibble & 7];
        pair[code][part] = nibble & 8 ? -magnitude : magnitude;
      }
  }
};
constexpr PairTable kE2m1{false}, kE1m2{true};

inline void widen_fp4(const std::uint8_t* in, float* out, const PairTable& table) {
  for (int b = 0; b < 32; ++b) __builtin_memcpy(out + 2 * b, table.pair[in[b]], 8);
}

inline void widen(Type type, const std::uint8_t* in, float* out) {
  switch (type) {
    case Type::bf16: return widen_bf16(in, out);
    case Type::e4m3: return widen_fp8(in, out, kE4m3);
    case Type::f16: return widen_f16(in, out);
    case Type::e5m2: return widen_fp8(in, out, kE5m2);
    case Type::e2m1: return widen_fp4(in, out, kE2m1);
    case Type::e1m2: return widen_fp4(in, out, kE1m2);
    default: return widen_f32(in, out);
  }
}

inline int group_elements(Type type) {
  switch (type) {
    case Type::f32: return 8;
    case Type::f16: case Type::bf16: return 16;
    case Type::e2m1: case Type::e1m2: return 64;
    default: return 32;
  }
}

void unpack(Type type, const std::uint8_t* tile, std::uint32_t blocks, std::uint32_t groups, float* rows, std::uint32_t pitch,
            const float* scales, std::uint32_t scale_pitch) {
  const auto c0 = static_cast<std::uint32_t>(group_elements(type));
  for (std::uint32_t g = 0; g < groups; ++g)
    for (std::uint32_t r = 0; r < blocks * 16; ++r) {
      float* out = rows + static_cast<std::uint64_t>(r) * pitch + g * c0;
      widen(type, tile + (static_cast<std::uint64_t>(g) * blocks * 16 + r) * 32, out);
      if (!scales) continue;
      const float* factors = scales + static_cast<std::uint64_t>(r) * scale_pitch + g * (c0 / 32);
      for (std::uint32_t b = 0; b < c0 / 32; ++b)
        for (int e = 0; e < 32; ++e) out[b * 32 + static_cast<std::uint32_t>(e)] *= factors[b];
    }
}

void panel(const float* rows, std::uint32_t pitch, std::uint32_t k, float* out) {
  std::uint32_t t = 0;
#ifdef USIM_TRANSPOSE8
  for (; t + 8 <= k; t += 8)
    for (int half = 0; half < 2; ++half) USIM_TRANSPOSE8(rows + half * 8 * static_cast<std::uint64_t>(pitch) + t, pitch, out + t * 16 + half * 8);
#endif
  for (; t < k; ++t)
    for (std::uint32_t r = 0; r < 16; ++r) out[t * 16 + r] = rows[static_cast<std::uint64_t>(r) * pitch + t];
}

// R rows by G panels at once; their accumulators stay in registers over the whole of k.
template <int R, int G>
inline void rows_times_panels(const float* rows, std::uint32_t pitch, const float* panels, std::uint32_t k, float* c, std::uint64_t c_stride, bool init_zero) {
  Vector acc[R][G][kParts];
  for (int r = 0; r < R; ++r)
    for (int g = 0; g < G; ++g)
      for (int p = 0; p < kParts; ++p)
        acc[r][g][p] = init_zero ? Vector{} : *reinterpret_cast<const Unaligned*>(c + static_cast<std::uint64_t>(g) * c_stride + r * 16 + p * USIM_WIDTH);
  const float* a[R];
  for (int r = 0; r < R; ++r) a[r] = rows + static_cast<std::uint64_t>(r) * pitch;
  for (std::uint32_t t = 0; t < k; ++t) {
    Vector b[G][kParts];
    for (int g = 0; g < G; ++g)
      for (int p = 0; p < kParts; ++p) b[g][p] = *reinterpret_cast<const Unaligned*>(panels + (static_cast<std::uint64_t>(g) * k + t) * 16 + p * USIM_WIDTH);
    for (int r = 0; r < R; ++r)
      for (int g = 0; g < G; ++g)
        for (int p = 0; p < kParts; ++p) acc[r][g][p] += a[r][t] * b[g][p];
  }
  for (int r = 0; r < R; ++r)
    for (int g = 0; g < G; ++g)
      for (int p = 0; p < kParts; ++p)
        *reinterpret_cast<Unaligned*>(c + static_cast<std::uint64_t>(g) * c_stride + r * 16 + p * USIM_WIDTH) = acc[r][g][p];
}

template <int G>
inline void all_rows(const float* rows, std::uint32_t pitch, const float* panels, std::uint32_t k, float* c, std::uint64_t c_stride, std::uint32_t count, bool init_zero) {
  std::uint32_t r = 0;
  for (; r + USIM_ROWS <= count; r += USIM_ROWS)
    rows_times_panels<USIM_ROWS, G>(rows + static_cast<std::uint64_t>(r) * pitch, pitch, panels, k, c + r * 16, c_stride, init_zero);
  for (; r < count; r += 4) rows_times_panels<4, G>(rows + static_cast<std::uint64_t>(r) * pitch, pitch, panels, k, c + r * 16, c_stride, init_zero);
}

void multiply(const float* rows, std::uint32_t pitch, const float* panels, std::uint32_t k, float* c, std::uint64_t c_stride, std::uint32_t count, std::uint32_t groups, bool init_zero) {
  std::uint32_t g = 0;
  for (; g + USIM_PANELS <= groups; g += USIM_PANELS)
    all_rows<USIM_PANELS>(rows, pitch, panels + static_cast<std::uint64_t>(g) * k * 16, k, c + g * c_stride, c_stride, count, init_zero);
  for (; g < groups; ++g) all_rows<1>(rows, pitch, panels + static_cast<std::uint64_t>(g) * k * 16, k, c + g * c_stride, c_stride, count, init_zero);
}

}  // namespace

extern const TileKernels USIM_ISA;
const TileKernels USIM_ISA = {USIM_ISA_NAME, unpack, panel, multiply};

}  // namespace usim
