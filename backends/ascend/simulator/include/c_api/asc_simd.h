// What TileLang includes as the device interface of cube, copy, synchronisation and SIMD builtins.
#pragma once

#include <stdint.h>

#include <type_traits>

#include "usim/device.h"
#include "usim/elements.h"
#include "usim/copies.h"
#include "usim/sync.h"
#ifdef USIM_SIMD
#include "usim/simd.h"
#endif
