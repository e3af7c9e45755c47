// device_assert as the rewriter calls it: inlined, so that the error names the kernel's line, and with its message.
#pragma once

#include <stdio.h>

#include "usim/device.h"

namespace usim {
__attribute__((always_inline)) inline void device_assert(bool condition, const char* text = "condition is false") {
  if (condition) return;
  static thread_local char message[1024];
  snprintf(message, sizeof(message), "device assertion failed: %s", text);
  api->fail("assert", message);
}
}  // namespace usim
