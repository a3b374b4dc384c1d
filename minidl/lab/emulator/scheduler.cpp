// Runs a kernel's grid on the CPU: one block after the other, the threads of a block as coroutines.
//
// A thread runs until it waits for its warp or its block. Warps, and the threads of each, take turns in a random order.
// Shared memory is full of NaN when a block starts, and that of the launch has edges that must stay. What a GPU would
// not survive, or leave undefined, is remembered as a message; the first one is run_grid's result.
#undef _FORTIFY_SOURCE                                   // its longjmp refuses to jump to another stack
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

struct Place { unsigned x, y, z; };

namespace {
constexpr int MOST_THREADS = 1024, WARP = 32, EXCHANGED = 32, BARRIERS = 16;
constexpr size_t MOST_SHARED = 232448, EDGE = 1 << 14;
// A thread's own memory: what CUDA gives it, and room for the emulator's functions. A guard is in front of each stack.
constexpr size_t LOCAL = 1 << 19, SPARE = 1 << 14, STACK = LOCAL + 4 * SPARE, STACK_GUARD = 1 << 16;
constexpr size_t STACK_STEP = STACK_GUARD + STACK;
constexpr unsigned char UNDEFINED[] = {0xff, 0x7b, 0xfb, 0};        // in each byte of what is undefined: NaN, large, 0
enum State : char { READY, AT_WARP, AT_BLOCK, AT_BARRIER, AT_PHASE, DONE };

// A barrier in shared memory. A phase ends when all threads and all bytes have arrived.
struct Phases { uint8_t arrivals, missing; uint16_t phase; int32_t bytes; };

struct Copy { void* to; const void* from; size_t size; bool valid; };

struct Thread {
    ucontext_t context;                                  // it starts here, on a stack of its own
    jmp_buf at;                                          // and goes on here
    bool started;
    State state;
    int barrier;                                         // at which it waits
    unsigned with;                                       // lanes of its warp that it waits for, and last waited for
    void* barrier_at;                                    // its last __syncthreads(), if watch.cpp is told of it
    long long steps;                                     // basic blocks that it entered, if watch.cpp counts them
    std::vector<std::vector<Copy>> copies;               // groups that are under way; the last one is open
};

Thread threads[MOST_THREADS];
unsigned char* stacks;                                    // of all threads, while a kernel runs
alignas(1024) unsigned char store[EDGE + MOST_SHARED + EDGE];
alignas(16) unsigned char offered[MOST_THREADS][EXCHANGED], exchanged[MOST_THREADS][EXCHANGED];
jmp_buf scheduler;
int current, arrived[BARRIERS];                          // the thread that runs; how many came to a numbered barrier
int block_turn, warp_turns[MOST_THREADS / WARP];         // raised by barriers: accesses of different turns are in order
void (*body)(void**);
void** given;
void (*missed)(int waits, int ended);                    // if set, called when a barrier waits for an ended thread
void (*stood_still)(int warp);                           // if set, called whenever no thread of a warp can go on
void (*overflowed)(void* from);                          // if set, called when a thread's stack is full
void (*strayed)(int lane, void* from);                   // if set, called when a lane reads of one that gave nothing
char message[384];
size_t guards;                                           // bytes around the kernel's shared arrays
volatile bool running;                                   // a thread, not the scheduler
int launch;                                              // of several of a kernel; all but the first print nothing
volatile sig_atomic_t interrupted;                       // by Ctrl-C, while a grid runs
struct sigaction before, fault_before;                   // the actions that were set before

void interrupt(int number) {
    interrupted = 1;
    if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) before.sa_handler(number);     // Python's
}

// swapcontext would ask the system for the mask of signals each time, which takes longer than most threads run.
void wait(State state) {
    Thread& me = threads[current];
    me.state = state;
    if (!_setjmp(me.at)) _longjmp(scheduler, 1);
}

// The end of a thread's stack that is the last to be used, behind its guard.
unsigned char* stack_of(int thread) { return stacks + thread * STACK_STEP + STACK_GUARD; }

void* interrupted_at(void* context) {
#ifdef __x86_64__
    return (void*)((ucontext_t*)context)->uc_mcontext.gregs[REG_RIP];
#else
    return (void*)((ucontext_t*)context)->uc_mcontext.pc;
#endif
}
}  // namespace

extern "C" {
Place threadIdx, blockIdx, blockDim, gridDim;
unsigned char* dynamic_shared = store + EDGE;

int lane() { return current % WARP; }
void block_barrier() { wait(AT_BLOCK); }
void warp_barrier(unsigned mask) {
    threads[current].with = mask;
    wait(AT_WARP);
}

// Numbered barriers are for `count` threads; some of them only arrive.
void arrive_at_barrier(int number, int count) {
    if (++arrived[number] < count) return;
    arrived[number] = 0;
    for (Thread& thread : threads)
        if (thread.state == AT_BARRIER && thread.barrier == number) thread.state = READY;
}

void await_barrier(int number, int count) {
    threads[current].barrier = number;
    threads[current].state = AT_BARRIER;
    arrive_at_barrier(number, count);
    if (threads[current].state == AT_BARRIER) wait(AT_BARRIER);
}

void see(bool right, const char* what) {
    if (!right && !*message)
        snprintf(message, sizeof message, "%s, by thread %d of block (%u, %u, %u)", what, current, blockIdx.x,
                 blockIdx.y, blockIdx.z);
}

void start_phases(Phases* barrier, int arrivals) {
    see(arrivals > 0 && arrivals < 256, "a barrier is started for no thread, or for more than 255");
    *barrier = {(uint8_t)arrivals, (uint8_t)arrivals, 0, 0};
}

void expect_in_phase(Phases* barrier, int arrivals, int bytes) {
    barrier->missing -= arrivals;
    barrier->bytes += bytes;
    if (barrier->missing || barrier->bytes) return;
    barrier->missing = barrier->arrivals;
    ++barrier->phase;
    for (Thread& thread : threads)
        if (thread.state == AT_PHASE) thread.state = READY;
}

void await_phase(const Phases* barrier, int parity) {
    while (barrier->phase % 2 == parity) wait(AT_PHASE);
}

void see_aligned(const void* address, size_t size, const char* what) {
    auto at = (const unsigned char*)address;
    bool own = at >= stacks && at < stacks + MOST_THREADS * STACK_STEP;
    if (own || (uintptr_t)at % std::min<size_t>(size, 16) == 0) return;
    char text[128];
    snprintf(text, sizeof text, "%s %zu bytes at an address that is no multiple of that", what, size);
    see(false, text);
}

const unsigned char* exchange(const void* mine, size_t size, unsigned mask) {
    memcpy(offered[current], mine, size);
    warp_barrier(mask);
    return exchanged[current / WARP * WARP];
}

unsigned exchanged_with() { return threads[current].with; }

// What a lane gets of one that took no part in the exchange. It differs from launch to launch, so that a result which
// depends on it does.
void take_undefined(void* value, size_t size, int lane) {
    memset(value, UNDEFINED[launch % sizeof UNDEFINED], size);
    if (strayed) strayed(lane, __builtin_return_address(0));
}

long long steps_of_thread() { return threads[current].steps; }

// The lanes of this warp that have not ended.
unsigned live_lanes() {
    unsigned live = 0;
    const int first = current / WARP * WARP, count = blockDim.x * blockDim.y * blockDim.z;
    for (int i = first; i < std::min(first + WARP, count); ++i) live |= (unsigned)(threads[i].state != DONE) << i % WARP;
    return live;
}

void set_launch(int number) { launch = number; }
int print_of_kernel(const char* format, ...) {
    if (launch) return 0;
    va_list values;
    va_start(values, format);
    const int count = vprintf(format, values);
    va_end(values);
    return count;
}

void queue_copy(void* to, const void* from, size_t size, bool valid) {
    threads[current].copies.back().push_back({to, from, size, valid});
}

void close_copies() { threads[current].copies.emplace_back(); }

// All but the `later` youngest closed groups.
void arrive_copies(int later) {
    auto& copies = threads[current].copies;
    while ((int)copies.size() - 1 > later) {
        for (const Copy& copy : copies.front())
            if (copy.valid) memcpy(copy.to, copy.from, copy.size);
            else memset(copy.to, 0, copy.size);
        copies.erase(copies.begin());
    }
}
}

namespace {
void enter() {
    for (;; wait(DONE)) body(given);                     // once per block
}

void go_on(Thread& thread) {
    if (_setjmp(scheduler)) return;
    if (thread.started) _longjmp(thread.at, 1);
    thread.started = true;
    setcontext(&thread.context);
}

void start(int number) {
    Thread& thread = threads[number];
    thread.started = false;
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = stack_of(number);
    thread.context.uc_stack.ss_size = STACK;
    makecontext(&thread.context, enter, 0);
}

void begin_block(Thread& thread) {
    thread.state = READY;
    thread.steps = 0;
    thread.barrier_at = nullptr;
    thread.copies.assign(1, {});
}

// Lets those lanes of a warp go on that wait for each other, all for the same lanes; what they offered is exchanged.
void release(const std::vector<int>& warp) {
    unsigned here = 0;
    for (int i : warp) here |= 1u << i % WARP;
    for (int first : warp) {
        const unsigned with = threads[first].with & here;
        if (threads[first].state != AT_WARP) continue;
        auto of_group = [=](int i) { return with >> i % WARP & 1; };
        if (!std::all_of(warp.begin(), warp.end(), [&](int i) {
                return !of_group(i) || (threads[i].state == AT_WARP && (threads[i].with & here) == with);
            })) continue;
        ++warp_turns[first / WARP];
        for (int i : warp)
            if (of_group(i)) {
                threads[i].state = READY;
                threads[i].with = with;
                memcpy(exchanged[i], offered[i], EXCHANGED);
            }
    }
}

// Runs a warp until none of its threads can go on without the rest of the block.
void run_warp(std::vector<int>& warp, std::mt19937& random) {
    for (bool ran = true; ran;) {
        ran = false;
        std::shuffle(warp.begin(), warp.end(), random);
        for (int i : warp) {
            if (threads[i].state != READY) continue;
            current = i;
            threadIdx = {i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
            running = true;
            go_on(threads[i]);
            running = false;
            ran = true;
        }
        if (ran && stood_still) stood_still(warp[0] / WARP);
        release(warp);
    }
}

// One warp after the other, as far as it comes: what one does between two barriers, others do long after or before.
void run_block(int count, std::mt19937& random) {
    std::fill(arrived, arrived + BARRIERS, 0);
    std::vector<std::vector<int>> warps((count + WARP - 1) / WARP);
    for (int i = 0; i < count; ++i) warps[i / WARP].push_back(i);
    while (true) {
        std::shuffle(warps.begin(), warps.end(), random);
        for (auto& warp : warps) run_warp(warp, random);
        int ready = 0, waiting = 0, done = 0;
        for (int i = 0; i < count; ++i) {
            ready += threads[i].state == READY;          // woken by a warp that ran after its own
            waiting += threads[i].state == AT_BLOCK;
            done += threads[i].state == DONE;
        }
        if (ready) continue;
        if (done == count) return;
        if (waiting + done < count) return see(false, "threads wait for each other for ever");
        auto first = [=](State state) {
            auto of_state = [=](const Thread& each) { return each.state == state; };
            return (int)(std::find_if(threads, threads + count, of_state) - threads);
        };
        if (done && missed && !*message) missed(first(AT_BLOCK), first(DONE));
        if (done) return see(false, "some threads of the block have ended while others wait at a barrier");
        ++block_turn;
        for (int i = 0; i < count; ++i) threads[i].state = READY;
    }
}

// Takes memory for the stacks of so many threads. It is kept reserved, and no guard is ever made accessible.
bool take_stacks(int count) {
    static unsigned char* reserved;
    static int accessible;
    if (!reserved) {
        const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        void* at = mmap(nullptr, MOST_THREADS * STACK_STEP, PROT_NONE, flags, -1, 0);
        if (at == MAP_FAILED) return false;
        reserved = (unsigned char*)at;
    }
    stacks = reserved;
    for (; accessible < count; ++accessible)
        if (mprotect(stack_of(accessible), STACK, PROT_READ | PROT_WRITE)) return false;
    return true;
}

// A thread's stack is full. It does not go on.
void end_overflowed(void* from) {
    if (overflowed) overflowed(from);
    char text[128];
    snprintf(text, sizeof text, "a thread takes more than %zu bytes for its local arrays and nested calls", LOCAL);
    see(false, text);
    wait(DONE);
}

// On a stack of its own, since that of the thread is full.
void fault(int number, siginfo_t* info, void* context) {
    auto at = (unsigned char*)info->si_addr, guard = running && stacks ? stack_of(current) - STACK_GUARD : nullptr;
    const bool full = guard && at >= guard && at < guard + STACK_GUARD;
    if (!full) sigaction(number, &fault_before, nullptr);                     // as if this were not here
    else end_overflowed((char*)interrupted_at(context) + 1);
}

const char* run_blocks(const int* sizes, unsigned char* shared, unsigned char* shared_end) {
    std::mt19937 random(sizes[7]);
    gridDim = {(unsigned)sizes[0], (unsigned)sizes[1], (unsigned)sizes[2]};
    blockDim = {(unsigned)sizes[3], (unsigned)sizes[4], (unsigned)sizes[5]};
    size_t bytes = sizes[6];
    long long count = (long long)sizes[3] * sizes[4] * sizes[5];
    const size_t all = bytes + (shared_end - shared) - guards;
    if (*std::min_element(sizes, sizes + 6) < 1 || sizes[1] > 65535 || sizes[2] > 65535 || sizes[5] > 64 ||
        count > MOST_THREADS || all > MOST_SHARED) {
        snprintf(message, sizeof message,
                 "the grid (%d, %d, %d), the block (%d, %d, %d) or its shared memory, %zu bytes, is larger than a GPU "
                 "takes, or empty; give a grid of up to (2147483647, 65535, 65535), a block of up to 1024 threads, 64 "
                 "along z, and up to %zu bytes",
                 sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], all, MOST_SHARED);
        return message;
    }
    if (!take_stacks((int)count)) return "there is no memory for the stacks of a block's threads; use smaller blocks";
    for (int i = 0; i < count; ++i) start(i);
    for (unsigned z = 0; z < gridDim.z; ++z)
        for (unsigned y = 0; y < gridDim.y; ++y)
            for (unsigned x = 0; x < gridDim.x; ++x) {
                blockIdx = {x, y, z};
                ++block_turn;
                memset(store, 0xff, EDGE + bytes + EDGE);
                memset(shared, 0xff, shared_end - shared);
                for (int i = 0; i < count; ++i) begin_block(threads[i]);
                run_block((int)count, random);
                if (*message) return message;
                auto whole = [](const unsigned char* edge) {
                    return std::all_of(edge, edge + EDGE, [](unsigned char byte) { return byte == 0xff; });
                };
                see(whole(store), "shared memory is written before its start");
                see(whole(dynamic_shared + bytes), "shared memory is written behind its end");
                if (*message) return message;
            }
    return message;
}
}  // namespace

// sizes: of the grid (3), of a block (3), bytes of dynamic shared memory, and a seed for the order of threads. shared
// to shared_end: the kernel's own shared arrays. The result is empty if all went well.
extern "C" const char* run_grid(const int* sizes, unsigned char* shared, unsigned char* shared_end,
                                void (*thread)(void**), void** arguments) {
    body = thread;
    given = arguments;
    *message = 0;
    memset(exchanged, 0xff, sizeof exchanged);           // nothing of the launch before
    alignas(16) static unsigned char faults[1 << 16];
    stack_t for_faults {}, stack_before;
    for_faults.ss_sp = faults, for_faults.ss_size = sizeof faults;
    sigaltstack(&for_faults, &stack_before);
    struct sigaction on_fault {};
    on_fault.sa_sigaction = fault;
    on_fault.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(SIGSEGV, &on_fault, &fault_before);
    interrupted = 0;
    struct sigaction ours {};
    ours.sa_handler = interrupt;
    sigaction(SIGINT, &ours, &before);
    const char* result = run_blocks(sizes, shared, shared_end);
    sigaction(SIGINT, &before, nullptr);
    sigaction(SIGSEGV, &fault_before, nullptr);
    sigaltstack(&stack_before, nullptr);
    if (stacks) madvise(stacks, MOST_THREADS * STACK_STEP, MADV_DONTNEED);     // a process may hold many kernels
    stacks = nullptr;
    return result;
}
