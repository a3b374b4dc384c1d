// The activations: a struct act_<name> for each row of ACTIVATIONS and OF_X (ops/common/curves.py). Its `value` takes
// x. Its `grad` is gy times the derivative and takes the result y, or x for OF_X. ACT, a constant of the compilation,
// says which one ACT_VALUE and ACT_GRAD are, in kernels that do other work too; AFTER, whether it follows that work.
#ifndef ACT
#define ACT tanh
#endif
#ifndef AFTER
#define AFTER 0
#endif

#define JOINED(a, b) a##b
#define JOIN(a, b) JOINED(a, b)
#define ACT_VALUE JOIN(act_, ACT)::value
#define ACT_GRAD JOIN(act_, ACT)::grad

// 1 / x for x >= 1, within 2 units in the last place, in a third of a division's instructions
__device__ __forceinline__ float reciprocal(float x) { return __fdividef(1.0f, x); }
__device__ __forceinline__ double reciprocal(double x) { return __drcp_rn(x); }

#include "include/activations.cuh"

__device__ __forceinline__ REAL after(REAL x) { return AFTER ? ACT_VALUE(x) : x; }
__device__ __forceinline__ REAL before(REAL gy, REAL y) { return AFTER ? ACT_GRAD(gy, y) : gy; }
