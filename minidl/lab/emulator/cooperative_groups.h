// Groups of threads as CUDA's header of this name has them: the block, tiles of a warp, and sums within them.
namespace cooperative_groups {
struct thread_group {
    unsigned mask;                                       // lanes of the warp; 0: the whole block

    unsigned rank_in_block() const { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
    unsigned thread_rank() const { return mask ? __popc(mask & ((1u << lane()) - 1)) : rank_in_block(); }
    unsigned size() const { return mask ? __popc(mask) : blockDim.x * blockDim.y * blockDim.z; }
    unsigned num_threads() const { return size(); }
    bool is_valid() const { return true; }
    void sync() const {
        if (mask) __syncwarp(mask);
        else __syncthreads();
    }
};

struct thread_block : thread_group {
    static dim3 group_index() { return blockIdx; }
    static dim3 thread_index() { return threadIdx; }
    static dim3 dim_threads() { return blockDim; }
    static dim3 group_dim() { return blockDim; }
};
static inline thread_block this_thread_block() { return {{0}}; }

struct grid_group {
    static unsigned long long block_rank() {
        return blockIdx.x + (unsigned long long)gridDim.x * (blockIdx.y + (unsigned long long)gridDim.y * blockIdx.z);
    }
    static unsigned long long num_blocks() { return (unsigned long long)gridDim.x * gridDim.y * gridDim.z; }
    static unsigned long long thread_rank() {
        return block_rank() * this_thread_block().size() + this_thread_block().thread_rank();
    }
    static unsigned long long size() { return num_blocks() * this_thread_block().size(); }
    static unsigned long long num_threads() { return size(); }
    static bool is_valid() { return false; }             // no cooperative launch
};
static inline grid_group this_grid() { return {}; }

template <unsigned SIZE, class Of = void> struct thread_block_tile : thread_group {
    static_assert(SIZE && SIZE <= 32 && !(SIZE & (SIZE - 1)), "a tile has 1, 2, 4, 8, 16 or 32 threads here");
    static constexpr unsigned size() { return SIZE; }
    static constexpr unsigned num_threads() { return SIZE; }
    unsigned thread_rank() const { return lane() % SIZE; }
    unsigned meta_group_rank() const { return rank_in_block() / SIZE; }
    unsigned meta_group_size() const { return (this_thread_block().size() + SIZE - 1) / SIZE; }
    template <class T> T shfl(T value, unsigned rank) const { return __shfl_sync(mask, value, rank, SIZE); }
    template <class T> T shfl_down(T value, unsigned step) const { return __shfl_down_sync(mask, value, step, SIZE); }
    template <class T> T shfl_up(T value, unsigned step) const { return __shfl_up_sync(mask, value, step, SIZE); }
    template <class T> T shfl_xor(T value, unsigned step) const { return __shfl_xor_sync(mask, value, step, SIZE); }
    int any(int vote) const { return __any_sync(mask, vote); }
    int all(int vote) const { return __all_sync(mask, vote); }
    unsigned ballot(int vote) const { return __ballot_sync(mask, vote) >> lane() / SIZE * SIZE; }
};
template <unsigned SIZE, class Of> static inline thread_block_tile<SIZE> tiled_partition(const Of&) {
    return {{(unsigned)((1ull << SIZE) - 1) << lane() / SIZE * SIZE}};
}
static inline thread_group tiled_partition(const thread_group&, unsigned size) {
    return {(unsigned)((1ull << size) - 1) << lane() / size * size};
}

#define COMBINES(NAME, RESULT) \
    template <class T = void> struct NAME { T operator()(T a, T b) const { return RESULT; } };
COMBINES(plus, a + b) COMBINES(less, b < a ? b : a) COMBINES(greater, a < b ? b : a)
COMBINES(bit_and, a & b) COMBINES(bit_or, a | b) COMBINES(bit_xor, a ^ b)

template <unsigned SIZE, class Of, class T, class Combine>
static inline T reduce(const thread_block_tile<SIZE, Of>& tile, T value, Combine combine) {
    for (unsigned step = SIZE / 2; step; step /= 2) value = combine(value, tile.shfl_xor(value, step));
    return value;
}
template <class Group> static inline void sync(const Group& group) { group.sync(); }
}  // namespace cooperative_groups
