#pragma once
// Marks functions that run on the host and on CUDA devices alike. To any other compiler it is
// nothing.

#if defined(__CUDACC__)
#define TROUPE_DEVICE __host__ __device__
#else
#define TROUPE_DEVICE
#endif
