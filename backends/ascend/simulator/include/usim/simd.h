// Builtins of SIMD functions (e.2). Everything is inlined into the kernel, so that registers stay plain local variables:
// the compiler keeps them out of the memory instrumentation and vectorises the lane loops.
#pragma once

#include <math.h>

#include "usim/device.h"
#include "usim/elements.h"
#include "usim/fp8.h"

#include "usim/simd_registers.h"
#include "usim/simd_memory.h"
#include "usim/simd_arithmetic.h"
#include "usim/simd_permute.h"
#include "usim/simd_reduce.h"
#include "usim/simd_convert.h"
#include "usim/simd_merge.h"

// TileLang's wrappers are inlined as well: an error then names the line of the kernel, not of the wrapper.
#undef __simd_callee__
#define __simd_callee__ __attribute__((always_inline))
