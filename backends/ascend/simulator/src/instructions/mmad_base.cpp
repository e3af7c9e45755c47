#define USIM_ISA kBaseKernels
#define USIM_ISA_NAME "base"
#define USIM_WIDTH 4
#define USIM_ROWS 4
#define USIM_PANELS 1
#include "mmad_kernels.inl"
