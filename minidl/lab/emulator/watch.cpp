// Looks at each access to memory of a kernel that g++ has compiled with -fsanitize=thread, which calls the functions
// __tsan_* before it. No library of a sanitizer is linked: these here take its place.
//
// An access outside of all arrays ends its thread. Two accesses are a race if different threads make them to the same
// number, one of them writes, not both are atomic, and no barrier is between them. Blocks run one after the other here
// but at the same time on a GPU. Only a __threadfence() and an atomic of the first, and then an atomic of the second,
// put them in order.
//
// It also tells counts.cpp of each access; for minidl's own kernels, whose arrays no caller names, it does only that. A
// thread that takes too many steps ends, with all others; so do all at Ctrl-C. One that divides an integer by 0 ends.
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <sys/time.h>

#include "scheduler.cpp"

namespace {
constexpr int MOST_FINDINGS = 32, GUARD = 1024;
enum What : int { OUTSIDE, RACE, UNSET, ENDLESS, DIVIDED, MISSED };
enum Kind { ARRAY, SHARED, CONSTANT, IMAGE, FORBIDDEN };

struct Access {
    void* from;                                          // the instruction behind it; null for none
    int thread, block, block_turn, warp_turn;
    bool atomic;
};
struct Number { Access write, reads[2]; };               // the last write, and reads since by two different threads
struct Region {
    const unsigned char *start, *end;
    Kind kind;
    int unit;                                            // bytes of a number
    bool set;                                            // it has values before the kernel writes any
    std::vector<Number> numbers;
};
struct Finding {                                         // as watch.py reads it
    int what, size, writes, other_writes, thread, other_thread;
    unsigned block[3], other_block[3];
    const void* at;
    size_t line, other_line;                             // of the instructions: offsets in their library
};

Finding findings[MOST_FINDINGS];
int found, block;
std::vector<Region> regions;
std::vector<Place> blocks;                               // the place of each in the grid
std::vector<char> fenced, released;                      // of each block: it made a fence; and after it an atomic
bool acquired;                                           // this block made an atomic
bool finding;                                            // faults are looked for
bool ends;                                               // each thread ends at its next step
long long most_steps;                                    // of one thread, in basic blocks

size_t offset(void* instruction) {
    Dl_info info;
    return instruction && dladdr(instruction, &info) ? (char*)instruction - (char*)info.dli_fbase - 1 : 0;
}

void report(What what, const void* at, int size, bool writes, const Access& now, bool other_writes, const Access& other) {
    size_t line = offset(now.from), other_line = offset(other.from);
    for (int i = 0; i < found; ++i)                      // one of each pair of instructions is enough
        if (findings[i].what == what && findings[i].line == line && findings[i].other_line == other_line) return;
    if (found == MOST_FINDINGS) return;
    Place here = blocks[now.block], there = blocks[other.block];
    findings[found++] = {what, size, writes, other_writes, now.thread, other.thread, {here.x, here.y, here.z},
                         {there.x, there.y, there.z}, at, line, other_line};
}

volatile long long seen, seen_before;                    // steps and accesses of all threads; those at the last tick
pthread_t runner;                                        // the process's thread that runs the grid

void follow_block();

// A thread does not go on, and no other will.
void end_all(void* from) {
    if (!interrupted && !ends) {
        follow_block();
        report(ENDLESS, nullptr, 0, false, {from, current, block}, false, {});
    }
    ends = true;
    see(false, "a thread does not end");
    wait(DONE);                                          // nothing continues this thread
}

void take_step(void* from) {
    ++seen;
    if (!stacks) return;
    Thread& me = threads[current];
    if (interrupted || ends || (finding && ++me.steps > most_steps)) end_all(from);
}

struct sigaction divided_before;                         // what is done elsewhere

char* interrupted_at(void* context) {
#ifdef __x86_64__
    return (char*)((ucontext_t*)context)->uc_mcontext.gregs[REG_RIP];
#else
    return (char*)((ucontext_t*)context)->uc_mcontext.pc;
#endif
}

// Once per second of processor time. The compiler reports no step of an empty loop: a thread of which nothing was seen
// is in one. This interrupts the kernel's code, or a function that it calls, so that the scheduler can go on.
void tick(int number, siginfo_t*, void* context) {
    if (!pthread_equal(pthread_self(), runner)) {        // another thread of the process got it
        pthread_kill(runner, number);
        return;
    }
    if (!running || seen != seen_before) {
        seen_before = seen;
        return;
    }
    end_all(interrupted_at(context) + 1);
}

// An integer divided by 0: a processor reports it by a signal (x86); a GPU goes on with a number without meaning.
void divided(int number, siginfo_t*, void* context) {
    if (!running || !pthread_equal(pthread_self(), runner)) {          // not a kernel's: as if this were not here
        sigaction(number, &divided_before, nullptr);
        return;
    }
    follow_block();
    report(DIVIDED, nullptr, 0, false, {interrupted_at(context) + 1, current, block}, false, {});
    see(false, "an integer is divided by 0");
    wait(DONE);                                          // nothing continues this thread
}

void tell_of_divisions(bool tell) {
    static bool told;
    if (told == tell) return;
    told = tell;
    struct sigaction ours {};
    ours.sa_sigaction = divided;
    ours.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGFPE, tell ? &ours : &divided_before, tell ? &divided_before : nullptr);
}

void set_ticks(int seconds) {
    struct sigaction ours {};
    ours.sa_sigaction = tick;
    ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART;
    if (seconds) sigaction(SIGVTALRM, &ours, nullptr);
    itimerval every = {{seconds, 0}, {seconds, 0}};
    setitimer(ITIMER_VIRTUAL, &every, nullptr);
}
}  // namespace

#include "counts.cpp"

namespace {
void follow_block() {
    if (!blocks.empty() && !memcmp(&blocks.back(), &blockIdx, sizeof blockIdx)) return;
    blocks.push_back(blockIdx);
    block = (int)blocks.size() - 1;
    fenced.push_back(0), released.push_back(0);
    acquired = false;
}

// Whether an earlier access is known to be over when this one is made.
bool in_order(const Access& before, const Access& now) {
    if (before.block != now.block) return released[before.block] && acquired;
    if (before.thread == now.thread || before.block_turn != now.block_turn) return true;
    return before.thread / WARP == now.thread / WARP && before.warp_turn != now.warp_turn;
}

bool race(const Access& before, const Access& now) {
    return before.from && !(before.atomic && now.atomic) && !in_order(before, now);
}

// unit: the most bytes that one instruction takes of it.
void look(const void* address, int size, int unit, bool writes, bool atomic, void* from) {
    ++seen;
    if (regions.empty()) return;                         // no launch: a library sets its own values as it is loaded
    auto at = (const unsigned char*)address;
    auto mine = stacks.get() + (size_t)current * STACK;
    if (at >= mine && at + size <= mine + STACK) return;                       // a variable of its own
    auto region = std::find_if(regions.begin(), regions.end(),
                               [=](const Region& r) { return at >= r.start && at + size <= r.end; });
    Kind kind = region == regions.end() ? ARRAY : region->kind;
    if (kind < CONSTANT)
        note_access(from, at, size, unit, (Way)((kind == ARRAY ? GLOBAL_LOAD : SHARED_LOAD) + (atomic ? 2 : writes)));
    if (!finding) return;
    follow_block();
    Access now = {from, current, block, block_turn, warp_turns[current / WARP], atomic};
    if (region == regions.end() || region->kind == FORBIDDEN) {
        report(OUTSIDE, at, size, writes, now, false, {});
        see(false, "memory outside of all arrays is accessed");
        wait(DONE);                                      // nothing continues this thread
    }
    if (region->kind == IMAGE) return;
    for (size_t i = (at - region->start) / region->unit; i <= (at + size - 1 - region->start) / region->unit; ++i) {
        Number& number = region->numbers[i];
        if (region->kind == SHARED && number.write.from && number.write.block != block) number.write = {};
        for (Access& read : number.reads)
            if (region->kind == SHARED && read.block != block) read = {};
        if (!writes && !number.write.from && !region->set) report(UNSET, at, size, false, now, false, {});
        if (race(number.write, now)) report(RACE, at, size, writes, now, true, number.write);
        if (writes) {
            for (const Access& read : number.reads)
                if (race(read, now)) report(RACE, at, size, true, now, false, read);
            number = {now, {}};
        } else {
            for (Access& read : number.reads)
                if (!read.from || in_order(read, now)) {
                    read = now;
                    break;
                }
        }
    }
}

void add(const unsigned char* start, const unsigned char* end, Kind kind, int unit = 1, bool set = false) {
    regions.push_back({start, end, kind, unit, set, {}});
    if (kind < IMAGE) regions.back().numbers.resize((end - start + unit - 1) / unit);
}

void miss(int waits, int ended) {
    follow_block();
    report(MISSED, nullptr, 0, false, {threads[waits].barrier_at, waits, block}, false, {nullptr, ended, block});
}

// The unit of a struct, which need not start at a multiple of its size: numbers of four bytes, or bytes.
int apart(size_t size) { return size % WORD ? 1 : WORD; }

// The parts of a library in memory, if it is the one that contains an address.
int add_image(dl_phdr_info* info, size_t, void* within) {
    auto each = [=](auto act) {
        for (int i = 0; i < info->dlpi_phnum; ++i)
            if (info->dlpi_phdr[i].p_type == PT_LOAD) {
                auto start = (const unsigned char*)info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
                act(start, start + info->dlpi_phdr[i].p_memsz);
            }
    };
    bool its = false;
    each([&](auto start, auto end) { its |= within >= start && within < end; });
    if (its) each([](auto start, auto end) { add(start, end, IMAGE); });
    return its;
}
}  // namespace

extern "C" {
// A launch: all is forgotten, then each array is named if faults are to be found, then `watch_launch` names what the
// kernel itself has. After the launch `watch_end` forgets all but the counts again.
void watch_end() {
    found = 0;
    acquired = ends = false;
    set_ticks(0);
    tell_of_divisions(false);
    missed = nullptr;
    regions.clear(), blocks.clear(), fenced.clear(), released.clear();
}

void watch_start(int finds, Rules counts) {
    watch_end();
    finding = finds;
    start_counting(counts);
}

void watch_steps(long long most) { most_steps = most; }

void watch_array(const unsigned char* start, size_t size, int unit, int set, int constant) {
    add(start, start + size, constant ? CONSTANT : ARRAY, unit, set);
}

// Its own shared arrays are between two guards; kernel: any address in its library.
void watch_launch(const unsigned char* shared, const unsigned char* shared_end, int dynamic, void* kernel) {
    runner = pthread_self();
    set_ticks(1);
    tell_of_divisions(true);
    missed = finding ? miss : nullptr;
    add(shared + GUARD, shared_end - GUARD, SHARED);
    add(shared, shared_end, FORBIDDEN);
    add(dynamic_shared, dynamic_shared + dynamic, SHARED);
    add(store, store + sizeof store, FORBIDDEN);
    dl_iterate_phdr(add_image, kernel);                  // its constants
    dl_iterate_phdr(add_image, (void*)store);            // threadIdx and the like
}

const Finding* watch_findings(int* count) {
    *count = found;
    return findings;
}

void watch_atomic(const void* at, int size, void* from) {
    follow_block();
    acquired = true;
    if (fenced[block]) released[block] = 1;
    look(at, size, size, true, true, from);
}

// A copy that the kernel makes by instructions for up to 16 bytes.
void watch_copy(void* to, const void* from, size_t size, int reads) {
    int unit = std::min((int)size, 16);
    if (reads) look(from, (int)size, unit, false, false, __builtin_return_address(0));
    look(to, (int)size, unit, true, false, __builtin_return_address(0));
}

void watch_fence() {
    follow_block();
    fenced[block] = 1;
}

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
#define HERE __builtin_return_address(0)
#define ACCESSES(SIZE)                                                                                   \
    void __tsan_read##SIZE(void* at) { look(at, SIZE, SIZE, false, false, HERE); }                        \
    void __tsan_write##SIZE(void* at) { look(at, SIZE, SIZE, true, false, HERE); }                        \
    void __tsan_unaligned_read##SIZE(void* at) { look(at, SIZE, apart(SIZE), false, false, HERE); }       \
    void __tsan_unaligned_write##SIZE(void* at) { look(at, SIZE, apart(SIZE), true, false, HERE); }
ACCESSES(1) ACCESSES(2) ACCESSES(4) ACCESSES(8) ACCESSES(16)
void __tsan_read_range(void* at, size_t size) { look(at, (int)size, apart(size), false, false, HERE); }
void __tsan_write_range(void* at, size_t size) { look(at, (int)size, apart(size), true, false, HERE); }
}
