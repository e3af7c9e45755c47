// Compiled with -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma; reached only after a run-time check.
#define USIM_ISA kAvx512Kernels
#define USIM_ISA_NAME "avx512"
#define USIM_WIDTH 16
#define USIM_ROWS 8
#define USIM_PANELS 2
#include "mmad_kernels.inl"
