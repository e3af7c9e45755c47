// Stands in front of TileLang's SIMD wrappers for kernels that use none of them: about half of the compile time.
#pragma once
