// Shared memory that was not written after this: NaN of every type, -1 of integers.
//
// memory: dynamic shared memory of `words` words. A block that takes all of it has a multiprocessor to itself; two
// blocks per multiprocessor are sure to reach every one. Any block will do.
extern "C" __global__ void poison(int words) {
    extern __shared__ unsigned memory[];
    volatile unsigned* kept = memory;  // or the compiler would leave out what is not read
    for (int i = threadIdx.x; i < words; i += blockDim.x) kept[i] = 0xffffffffu;
}
