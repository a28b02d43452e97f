// Marks functions that host and device compile alike.
#pragma once

#ifdef __CUDACC__
#define HEADWATER_HD __host__ __device__ inline
#else
#define HEADWATER_HD inline
#endif
