// Host runtime names that TileLang's common.h mentions inside macros it defines; no kernel reaches them.
#pragma once
using aclError = int;
inline constexpr aclError ACL_SUCCESS = 0;
enum { ACL_RT_THREAD_LEVEL = 0 };
inline int aclrtGetLastError(int) { return 0; }
