// The boundary between a compiled kernel and the simulator core: argument structs, register ids and one table of
// function pointers. Included by both sides; needs no standard library beyond <stdint.h>, so that kernels compile fast.
#pragma once

#include <stddef.h>
#include <stdint.h>

enum pipe_t : int { PIPE_S = 0, PIPE_V = 1, PIPE_M = 2, PIPE_MTE1 = 3, PIPE_MTE2 = 4, PIPE_MTE3 = 5, PIPE_ALL = 6, PIPE_FIX = 7 };

namespace usim {

// Raised whenever a struct or the table below changes; kernels compiled against another number are refused.
inline constexpr uint32_t kAbiVersion = 3;

// Every builtin the core executes. The list is instructions.def; nothing else enumerates builtins.
enum class Op : uint16_t {
#define USIM_INSTRUCTION(name, pipe, group, section) name,
#include "usim/instructions.def"
#undef USIM_INSTRUCTION
  count
};

enum class Type : uint8_t { none, f32, f16, bf16, e4m3, e5m2, e8m0, hif8, e2m1, e1m2, s8, u8, s16, u16, s32, u32, s64, u64 };

// Sticky special registers written by the scalar pipe and captured when an instruction is dispatched.
enum class Register : uint8_t { gm2l1_nz, l0c_nz, pad_value, atomic, hf32, hf32_round, mmad_direction };

// ---- arguments, one struct per instruction family; addresses of on-chip memories are byte offsets -------------------
struct GmToL1 { uint64_t dst; const void* src; uint64_t row_stride; uint64_t matrix_stride; uint32_t n, d; uint8_t esize; uint8_t column_major; uint8_t small_c0; };
struct FillL1 { uint64_t dst; uint32_t value; uint8_t esize; uint64_t repeat, blocks, gap; };
struct L1ToL0 { uint64_t dst, src; uint32_t m_start, k_start, m_step, k_step, src_stride, dst_stride; Type type; uint8_t to_b; uint8_t transpose; };
struct L1ToSlots { uint64_t slot, src; uint32_t x_start, y_start, x_step, y_step, src_stride, dst_stride; uint8_t to_b; };
struct Mmad { uint64_t c, a, b; uint32_t m, k, n; uint8_t unit_flag, disable_gemv, bias, init_zero, mx; Type type_a, type_b, type_c; };
struct Fixpipe { uint64_t src; uint64_t dst; uint32_t n, m, dst_stride, src_stride; uint8_t sub_block, dual; int unit_flag, quant, relu; uint8_t channel_split, nz2nd, nz2dn, clip, to_ub; Type src_type, dst_type; };
struct GmToUb { uint64_t dst; const void* src; uint32_t bursts, length, left, right; uint8_t const_pad, esize; uint64_t src_stride; uint32_t dst_stride; };
struct UbToGm { void* dst; uint64_t src; uint32_t bursts, length; uint64_t dst_stride; uint32_t src_stride; };
struct UbToL1 { uint64_t dst, src; uint32_t bursts, blocks, src_gap, dst_gap; };
struct Sync { int src, dst; int64_t id; int mode; };  // dst = the pipe that waits, locks or arrives where only one is named
struct ScalarAccess { uint64_t address; uint32_t bytes; uint8_t write; };

// A vector function: `run(closure, x, y, z)` executes one SIMT thread; SIMD functions are called once with 0, 0, 0.
struct VectorCall {
  void (*run)(const void* closure, uint32_t x, uint32_t y, uint32_t z);
  const void* closure;
  uint32_t closure_bytes;
  uint32_t dx, dy, dz;
  uint8_t simt;       // 0: SIMD
  uint8_t lockstep;   // SIMT function with barriers or warp functions: every thread needs its own stack
  const char* name;
};

// What a running program may know about its core. Filled by the core; read by builtin variables.
struct CoreView {
  uint8_t* ub;          // host address of UB byte 0 (AIC: of AIV 0, only to form destinations)
  int32_t block, grid;  // block_idx and the number of blocks
  int32_t sub_block;    // 0 or 1 on the vector cores of a mixed kernel
  int32_t is_cube;
  int32_t saturate;     // CTRL[48] = 0: conversions of mmad, half and bf16 saturate instead of giving Inf/NaN
};

struct ThreadIndex { uint32_t x, y, z; };

// State of the SIMT thread that is running; `linear` counts threads, warp = linear / 32.
struct ThreadView { ThreadIndex index, dim; uint32_t linear, count; };

// Exchange among the 32 lanes of a warp: each lane offers `bytes` (at most 16) and gets back what every lane offered.
struct WarpValues { alignas(16) uint8_t value[32][16]; uint32_t active; };

struct Api {
  uint32_t abi;
  void (*dispatch)(Op op, const void* args);
  void (*set_register)(Register r, uint64_t value);
  const CoreView* (*core)();
  void (*vector_call)(const VectorCall*);
  const ThreadView* (*thread)();
  void (*next_thread)(uint32_t x, uint32_t y, uint32_t z);  // plain SIMT loop, checks only: which thread runs now
  void (*sync_threads)();
  void (*sync_warp)();
  void (*memory_barrier)();  // SIMD function: loads behind it come after the stores before it
  const WarpValues* (*warp_exchange)(const void* value, uint32_t bytes);
  // Marks [address, address + bytes) as read, written or both by the running vector function or scalar program.
  // Builtins that touch UB or GM call it; plain C++ dereferences are reported by the compiler's instrumentation.
  void (*touch)(const void* address, uint32_t bytes, int write, int atomic);
  int64_t (*vector_cost)(uint32_t kind, uint64_t amount);  // counts work of the running vector function for timing
  [[noreturn]] void (*fail)(const char* kind, const char* message);
};

// Where loads and stores of checked kernels are reported: one entry per size, because this is the hot path of checking.
// `from` is the return address of the reporting call, which tells the line.
struct AccessHooks {
  void (*read[5])(const void* address, const void* from);  // 1, 2, 4, 8, 16 bytes
  void (*write[5])(const void* address, const void* from);
  void (*range)(const void* address, uint64_t bytes, int write, const void* from);
  void (*transfer)(const void* address, uint32_t bytes, int write, const void* from);  // of a builtin: never a local variable
};

}  // namespace usim
