// What kernels.cu needs of CUDA to be compiled as plain C++ and run by one thread, block by block.

#include <algorithm>
#include <cmath>
#include <cstring>

using std::fabs;
using std::fma;
using std::fmax;
using std::fmin;
using std::min;

#define __device__ static
#define __global__
#define __forceinline__ inline
#define __shared__ static

struct place {
  unsigned x, y, z;
};
static place threadIdx{0, 0, 0}, blockIdx{0, 0, 0}, blockDim{1, 1, 1}, gridDim{1, 1, 1};

static inline void __syncthreads() {}
static inline void __threadfence() {}
static inline int __syncthreads_count(int predicate) { return predicate ? 1 : 0; }
static inline double __shfl_xor_sync(unsigned, double value, int) { return value; }

template <class number, class other>
static inline number atomicAdd(number* at, other value) {
  const number before = *at;
  *at += value;
  return before;
}

static inline long long __double_as_longlong(double x) {
  long long out;
  memcpy(&out, &x, 8);
  return out;
}

static inline double __longlong_as_double(long long x) {
  double out;
  memcpy(&out, &x, 8);
  return out;
}

extern "C" void set_block(unsigned number, unsigned count) {
  blockIdx.x = number;
  gridDim.x = count;
}
