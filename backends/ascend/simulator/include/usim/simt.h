// Builtins of SIMT functions: launch, vector types, conversions, math, barriers, warp functions, atomics (e.1).
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "usim/device.h"
#include "usim/elements.h"
#include "usim/debug.h"
#include "usim/simt_launch.h"
#include "usim/simt_vectors.h"
#include "usim/simt_convert.h"
#include "usim/simt_math.h"
#include "usim/simt_warp.h"
#include "usim/simt_atomic.h"
