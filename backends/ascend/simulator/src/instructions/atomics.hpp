// Read-modify-write of GM elements by copies (c.9). Kernels that arm atomics run on one thread, so that the order of
// the additions, and with it the last bit of float sums, is the same in every run.
#pragma once

#include <cstdint>
#include <cstring>

#include "usim/types.h"

namespace usim {

inline std::uint32_t atomic_bytes(std::uint16_t mode) {
  constexpr std::uint8_t sizes[] = {1, 4, 2, 2, 4, 1, 2};  // dtype codes of CTRL[8:6]
  return sizes[mode & 0xff];
}

template <class T, class Load, class Store>
void apply_atomic_typed(std::uint16_t mode, std::uint8_t* dst, const std::uint8_t* src, std::uint64_t bytes, Load load, Store store) {
  for (std::uint64_t b = 0; b < bytes; b += sizeof(T)) {
    T old_bits, new_bits;
    std::memcpy(&old_bits, dst + b, sizeof(T));
    std::memcpy(&new_bits, src + b, sizeof(T));
    const auto x = load(old_bits), y = load(new_bits);
    const int op = mode >> 8;
    const T result = store(op == 0 ? static_cast<decltype(x)>(x + y) : op == 1 ? (x > y ? x : y) : (x < y ? x : y));
    std::memcpy(dst + b, &result, sizeof(T));
  }
}

inline void apply_atomic(std::uint16_t mode, std::uint8_t* dst, const std::uint8_t* src, std::uint64_t bytes) {
  const auto same = [](auto v) { return v; };
  switch (mode & 0xff) {
    case 1: return apply_atomic_typed<float>(mode, dst, src, bytes, same, same);
    case 2: return apply_atomic_typed<std::uint16_t>(mode, dst, src, bytes, half_to_float, [](float v) { return float_to_half(v, false); });
    case 3: return apply_atomic_typed<std::int16_t>(mode, dst, src, bytes, [](std::int16_t v) { return int(v); }, [](int v) { return static_cast<std::int16_t>(v); });
    case 4: return apply_atomic_typed<std::int32_t>(mode, dst, src, bytes, [](std::int32_t v) { return std::int64_t{v}; }, [](std::int64_t v) { return static_cast<std::int32_t>(v); });
    case 5: return apply_atomic_typed<std::int8_t>(mode, dst, src, bytes, [](std::int8_t v) { return int(v); }, [](int v) { return static_cast<std::int8_t>(v); });
    case 6: return apply_atomic_typed<std::uint16_t>(mode, dst, src, bytes, bf16_to_float, [](float v) { return float_to_bf16(v, false); });
    default: return;
  }
}

}  // namespace usim
