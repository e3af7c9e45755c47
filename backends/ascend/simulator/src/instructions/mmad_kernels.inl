// Included by one translation unit per instruction set, which defines USIM_ISA and the vector width in floats. Only
// internal linkage and no library templates here: code of one instruction set must never be linked into another.
#include "mmad_kernels.hpp"

namespace usim {
namespace {

typedef float Vector __attribute__((vector_size(USIM_WIDTH * 4)));
typedef float Unaligned __attribute__((vector_size(USIM_WIDTH * 4), aligned(4)));
constexpr int kParts = 16 / USIM_WIDTH;  // vectors in one row of 16 accumulators

inline float as_float(std::uint32_t u) { return __builtin_bit_cast(float, u); }

inline void widen_e4m3(const std::uint8_t* in, float* out) {
  for (int e = 0; e < 32; ++e) {
    const std::uint32_t code = in[e], a = code & 0x7f;
    const float small = static_cast<float>(static_cast<int>(a)) * 0x1p-9f;
    const std::uint32_t normal = a == 0x7f ? 0x7fc00000u : (a << 20) + (120u << 23);
    const std::uint32_t bits = a < 8 ? __builtin_bit_cast(std::uint32_t, small) : normal;
    out[e] = as_float(bits | (code & 0x80) << 24);
  }
}
inline float widen_half_bits(std::uint32_t h) {
  const std::uint32_t a = h & 0x7fff, sign = (h & 0x8000) << 16;
  const float small = static_cast<float>(static_cast<int>(a)) * 0x1p-24f;
  const std::uint32_t normal = a >= 0x7c00 ? 0x7f800000u | (a & 0x3ff) << 13 : (a << 13) + 0x38000000u;
  return as_float(sign | (a < 0x400 ? __builtin_bit_cast(std::uint32_t, small) : normal));
}
inline void widen_e5m2(const std::uint8_t* in, float* out) {
  for (int e = 0; e < 32; ++e) out[e] = widen_half_bits(static_cast<std::uint32_t>(in[e]) << 8);
}
inline void widen_f16(const std::uint8_t* in, float* out) {
  std::uint16_t h[16];
  __builtin_memcpy(h, in, 32);
  for (int e = 0; e < 16; ++e) out[e] = widen_half_bits(h[e]);
}
inline void widen_bf16(const std::uint8_t* in, float* out) {
  std::uint16_t h[16];
  __builtin_memcpy(h, in, 32);
  for (int e = 0; e < 16; ++e) out[e] = as_float(static_cast<std::uint32_t>(h[e]) << 16);
}
inline void widen_f32(const std::uint8_t* in, float* out) { __builtin_memcpy(out, in, 32); }
inline void widen_fp4(const std::uint8_t* in, float* out, float half_step) {
  // e2m1: 0 .5 1 1.5 2 3 4 6; e1m2: 0 .25 .. 1.75, a plain multiple of the step.
  for (int e = 0; e < 64; ++e) {
    const std::uint32_t code = in[e / 2] >> (e % 2 * 4) & 15, a = code & 7;
    const std::uint32_t e2m1 = a < 2 ? (a ? 0x3f000000u : 0u) : ((a << 22) + (126u << 23));
    const float value = half_step == 0.0f ? as_float(e2m1) : static_cast<float>(static_cast<int>(a)) * half_step;
    out[e] = code & 8 ? -value : value;
  }
}

inline void widen(Type type, const std::uint8_t* in, float* out) {
  switch (type) {
    case Type::bf16: return widen_bf16(in, out);
    case Type::e4m3: return widen_e4m3(in, out);
    case Type::f16: return widen_f16(in, out);
    case Type::e5m2: return widen_e5m2(in, out);
    case Type::e2m1: return widen_fp4(in, out, 0.0f);
    case Type::e1m2: return widen_fp4(in, out, 0.25f);
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

// R rows at once; their accumulators stay in registers over the whole of k.
template <int R>
inline void rows_times_panel(const float* rows, std::uint32_t pitch, const float* panel_, std::uint32_t k, float* c, bool init_zero) {
  Vector acc[R][kParts];
  for (int r = 0; r < R; ++r)
    for (int p = 0; p < kParts; ++p) acc[r][p] = init_zero ? Vector{} : *reinterpret_cast<const Unaligned*>(c + r * 16 + p * USIM_WIDTH);
  const float* a[R];
  for (int r = 0; r < R; ++r) a[r] = rows + static_cast<std::uint64_t>(r) * pitch;
  for (std::uint32_t t = 0; t < k; ++t) {
    Vector b[kParts];
    for (int p = 0; p < kParts; ++p) b[p] = *reinterpret_cast<const Unaligned*>(panel_ + t * 16 + p * USIM_WIDTH);
    for (int r = 0; r < R; ++r)
      for (int p = 0; p < kParts; ++p) acc[r][p] += a[r][t] * b[p];
  }
  for (int r = 0; r < R; ++r)
    for (int p = 0; p < kParts; ++p) *reinterpret_cast<Unaligned*>(c + r * 16 + p * USIM_WIDTH) = acc[r][p];
}

void multiply(const float* rows, std::uint32_t pitch, const float* panel_, std::uint32_t k, float* c, std::uint32_t count, bool init_zero) {
  std::uint32_t r = 0;
  for (; r + USIM_ROWS <= count; r += USIM_ROWS) rows_times_panel<USIM_ROWS>(rows + static_cast<std::uint64_t>(r) * pitch, pitch, panel_, k, c + r * 16, init_zero);
  for (; r < count; r += 4) rows_times_panel<4>(rows + static_cast<std::uint64_t>(r) * pitch, pitch, panel_, k, c + r * 16, init_zero);
}

}  // namespace

extern const TileKernels USIM_ISA;
const TileKernels USIM_ISA = {USIM_ISA_NAME, unpack, panel, multiply};

}  // namespace usim
