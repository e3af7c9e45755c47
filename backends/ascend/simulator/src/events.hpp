// What a run leaves behind for the timing pass: per core, in program order, one Event per dispatched instruction.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace usim {

// Meaning of `a` by instruction (unused entries are 0):
//   GM to L1          rows, row bytes, row pitch in GM, bytes written to L1, column-major
//   fill L1           bytes
//   L1 to L0          fractals copied, transposed, element bits        L1 to slots  32-byte blocks
//   mmad              m, k, n, Type of a, Type of b, unit flag + 256 x (L0C byte / 1024), HF32 on, direction
//   fixpipe           m, n, bytes per output element, dual mode, unit flag + 256 x (L0C byte / 1024), nz2dn, row pitch in
//                     bytes, atomic
//   GM to UB, UB to GM bursts, burst bytes, GM pitch in bytes, atomic   UB to L1  bursts, blocks of 32 bytes
//   notify, wait      source pipe, destination pipe, id
//   lock, unlock      id, mode; cross-core: mode, id
//   vector call       threads, UB bytes read, UB bytes written, GM bytes read, GM bytes written, barriers, warp ops,
//                     arithmetic work (filled in after the function ran; 0 = not counted)
struct Event {
  std::uint16_t op = 0;
  std::uint8_t pipe = 0;
  std::uint8_t skipped = 0;      // 1: a no-op by its own arguments (zero extent)
  std::uint32_t site = 0;        // offset of the call in the kernel's code; resolves to a source line
  std::uint64_t address = 0;     // first GM byte touched, relative to the tensor; 0 if none
  std::uint32_t tensor = ~0u;    // index of the GM tensor, ~0: none
  std::uint32_t scalar = 0;      // scalar-pipe instructions dispatched since the previous event
  std::uint32_t a[8] = {};
};

struct CoreRecording {
  std::uint32_t block = 0, core = 0;  // core: 0 AIC, 1 AIV0, 2 AIV1
  std::vector<Event> events;
};

}  // namespace usim
