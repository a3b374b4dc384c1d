// Looks at each access to memory of a kernel that g++ has compiled with -fsanitize=thread, which calls the functions
// __tsan_* before it. No library of a sanitizer is linked: these here take its place.
//
// An access outside of all arrays, or at an address that is not a multiple of its size, ends its thread. Two accesses
// are a race if different threads make them to the same number, one of them writes, not both are atomic, and no barrier
// is between them. Blocks run one after the other here but at the same time on a GPU. Only a __threadfence() and an
// atomic of the first, and then an atomic of the second, put them in order.
//
// It also tells counts.cpp of each access; for minidl's own kernels, whose arrays no caller names, it does only that. A
// thread that takes too many steps ends, with all others; so do all at Ctrl-C. One that divides an integer by 0 ends.
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <sys/time.h>

#include "scheduler.cpp"

namespace {
constexpr int MOST_FINDINGS = 32, MOST_DOUBTS = 1 << 14, GUARD = 1024;
enum What : int { OUTSIDE, RACE, UNSET, ENDLESS, DIVIDED, MISSED, MISALIGNED, OVERFLOWED, STRAYED };
enum Kind { ARRAY, SHARED, CONSTANT, IMAGE, FORBIDDEN };
enum Does { READS, WRITES, UPDATES, EXCHANGES, COMPARES };     // from UPDATES on atomic; EXCHANGES needs no value

struct Access {
    void* from;                                          // the instruction behind it; null for none
    int thread, block, block_turn;
    unsigned warp_turn : 31, atomic : 1;
};
// The last write, the last that was not atomic, and reads since then by two different threads.
struct Number { Access write, plain, reads[2]; };
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

// A plain read, and an atomic of another thread: a race, unless the thread of the read goes on to compare what it read
// by an atomicCAS, as CUDA's guide does for atomics of its own.
struct Doubt { const void* at; int size; bool writes; Access now, other, read; };

Finding findings[MOST_FINDINGS];
std::vector<Doubt> doubts;
int found, block;
std::vector<Region> regions;
std::vector<Place> blocks;                               // the place of each in the grid
std::vector<char> fenced, released;                      // of each block: it made a fence; and after it an atomic
bool acquired;                                           // this block made an atomic
bool finding;                                            // faults are looked for
bool ends;                                               // each thread ends at its next step
long long most_steps;                                    // of one thread, in basic blocks
int widest;                                              // alignment that accesses of 16 bytes must have
const unsigned char *own_shared, *own_shared_end;        // the kernel's own shared arrays, of the last launch

void follow_block() {
    if (!blocks.empty() && !memcmp(&blocks.back(), &blockIdx, sizeof blockIdx)) return;
    blocks.push_back(blockIdx);
    block = (int)blocks.size() - 1;
    fenced.push_back(0), released.push_back(0);
    acquired = false;
}

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

void report_doubts() {
    for (const Doubt& each : doubts)
        report(RACE, each.at, each.size, each.writes, each.now, !each.writes, each.other);
    doubts.clear();
}

void doubt(const Doubt& race) {
    if (doubts.size() == MOST_DOUBTS) report_doubts();
    doubts.push_back(race);
}

// What one thread does wrong, at an instruction.
void report_alone(What what, void* from, const void* at = nullptr, int size = 0, bool writes = false) {
    follow_block();
    report(what, at, size, writes, {from, current, block}, false, {});
}

void end_thread(const char* what) {
    see(false, what);
    wait(DONE);                                          // nothing continues it
}

volatile long long seen, seen_before;                    // steps and accesses of all threads; those at the last tick
pthread_t runner;                                        // the process's thread that runs the grid

// A thread does not go on, and no other will.
void end_all(void* from) {
    if (!interrupted && !ends) report_alone(ENDLESS, from);
    ends = true;
    end_thread("a thread does not end");
}

void take_step(void* from) {
    ++seen;
    if (!stacks) return;
    Thread& me = threads[current];
    if (interrupted || ends || (finding && ++me.steps > most_steps)) end_all(from);
    if ((size_t)((unsigned char*)__builtin_frame_address(0) - stack_of(current)) < SPARE) end_overflowed(from);
}

struct sigaction divided_before;                         // what is done elsewhere

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
    end_all((char*)interrupted_at(context) + 1);
}

// An integer divided by 0: a processor reports it by a signal (x86); a GPU goes on with a number without meaning.
void divided(int number, siginfo_t*, void* context) {
    if (!running || !pthread_equal(pthread_self(), runner)) {          // not a kernel's: as if this were not here
        sigaction(number, &divided_before, nullptr);
        return;
    }
    report_alone(DIVIDED, (char*)interrupted_at(context) + 1);
    end_thread("an integer is divided by 0");
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
// Whether an earlier access is known to be over when this one is made.
bool in_order(const Access& before, const Access& now) {
    if (before.block != now.block) return released[before.block] && acquired;
    if (before.thread == now.thread || before.block_turn != now.block_turn) return true;
    return before.thread / WARP == now.thread / WARP && before.warp_turn != now.warp_turn;
}

bool race(const Access& before, const Access& now) {
    return before.from && !(before.atomic && now.atomic) && !in_order(before, now);
}

// unit: the most bytes that one instruction takes of it. aligned: of what its address must be a multiple.
void look(const void* address, int size, int unit, int aligned, Does does, void* from) {
    ++seen;
    const bool writes = does != READS, atomic = does >= UPDATES;
    if (regions.empty()) return;                         // no launch: a library sets its own values as it is loaded
    auto at = (const unsigned char*)address;
    auto mine = stacks ? stack_of(current) : nullptr;
    if (mine && at >= mine && at + size <= mine + STACK) return;               // a variable of its own
    auto region = std::find_if(regions.begin(), regions.end(),
                               [=](const Region& r) { return at >= r.start && at + size <= r.end; });
    Kind kind = region == regions.end() ? ARRAY : region->kind;
    if (kind < CONSTANT)
        note_access(from, at, size, unit, (Way)((kind == ARRAY ? GLOBAL_LOAD : SHARED_LOAD) + (atomic ? 2 : writes)));
    if (!finding) return;
    follow_block();
    Access now = {from, current, block, block_turn, (unsigned)warp_turns[current / WARP], atomic};
    if (region == regions.end() || region->kind == FORBIDDEN) {
        report_alone(OUTSIDE, from, at, size, writes);
        end_thread("memory outside of all arrays is accessed");
    }
    if (region->kind == IMAGE) return;
    if (does == COMPARES && !doubts.empty())
        doubts.erase(std::remove_if(doubts.begin(), doubts.end(), [=](const Doubt& each) {
            return each.at == at && each.read.thread == current && each.read.block == block;
        }), doubts.end());
    if ((uintptr_t)at % std::min(aligned, widest)) {
        report_alone(MISALIGNED, from, at, size, writes);
        end_thread("an address is not a multiple of the bytes that are accessed");
    }
    for (size_t i = (at - region->start) / region->unit; i <= (at + size - 1 - region->start) / region->unit; ++i) {
        Number& number = region->numbers[i];
        if (region->kind == SHARED)
            for (Access* before : {&number.write, &number.plain, &number.reads[0], &number.reads[1]})
                if (before->block != block) *before = {};
        if (does != WRITES && does != EXCHANGES && !number.write.from && !region->set)
            report_alone(UNSET, from, at, size);
        if (does == COMPARES)
            for (Access& read : number.reads)
                if (read.thread == current && read.block == block) read = {};
        if (!number.write.atomic) {
            if (race(number.write, now)) report(RACE, at, size, writes, now, true, number.write);
        } else if (race(number.plain, now)) {
            report(RACE, at, size, writes, now, true, number.plain);
        } else if (race(number.write, now)) {
            if (writes) report(RACE, at, size, writes, now, true, number.write);
            else doubt({at, size, false, now, number.write, now});
        }
        if (writes) {
            for (const Access& read : number.reads)
                if (atomic && race(read, now)) doubt({at, size, true, now, read, read});
                else if (race(read, now)) report(RACE, at, size, true, now, false, read);
            number.write = now;
            if (!atomic) number = {now, now, {}};        // an atomic is in no order to what other blocks did before
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

void overflow(void* from) { report_alone(OVERFLOWED, from); }

void stray(int lane, void* from) { report_alone(STRAYED, from, nullptr, lane); }

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
    doubts.clear();
    acquired = ends = false;
    set_ticks(0);
    tell_of_divisions(false);
    missed = nullptr, overflowed = nullptr, strayed = nullptr;
    regions.clear(), blocks.clear(), fenced.clear(), released.clear();
}

void watch_start(int finds, Rules counts) {
    watch_end();
    finding = finds;
    start_counting(counts);
}

// steps: most of a thread. aligned: what the addresses of accesses of 16 bytes are a multiple of: 16, or 8 if the source
// has structs that need no more.
void watch_limits(long long steps, int aligned) { most_steps = steps, widest = aligned; }

void watch_array(const unsigned char* start, size_t size, int unit, int set, int constant) {
    add(start, start + size, constant ? CONSTANT : ARRAY, unit, set);
}

// Its own shared arrays are between two guards; kernel: any address in its library.
void watch_launch(const unsigned char* shared, const unsigned char* shared_end, int dynamic, void* kernel) {
    runner = pthread_self();
    set_ticks(1);
    tell_of_divisions(true);
    if (finding) missed = miss, overflowed = overflow, strayed = stray;
    own_shared = shared, own_shared_end = shared_end;
    guards = 2 * GUARD;
    add(shared + GUARD, shared_end - GUARD, SHARED);
    add(shared, shared_end, FORBIDDEN);
    add(dynamic_shared, dynamic_shared + dynamic, SHARED);
    add(store, store + sizeof store, FORBIDDEN);
    dl_iterate_phdr(add_image, kernel);                  // its constants
    dl_iterate_phdr(add_image, (void*)store);            // threadIdx and the like
}

const Finding* watch_findings(int* count) {
    report_doubts();
    *count = found;
    return findings;
}

// Whether an address is in the shared memory of the last launch, or beside its arrays.
int watch_in_shared(const unsigned char* at) {
    return (at >= store && at < store + sizeof store) || (at >= own_shared && at < own_shared_end);
}

void watch_atomic(const void* at, int size, Does does, void* from) {
    follow_block();
    acquired = true;
    if (fenced[block]) released[block] = 1;
    look(at, size, size, size, does, from);
}

// A copy that the kernel makes by instructions for up to 16 bytes.
void watch_copy(void* to, const void* from, size_t size, int reads) {
    int unit = std::min((int)size, 16);
    if (reads) look(from, (int)size, unit, 1, READS, __builtin_return_address(0));
    look(to, (int)size, unit, 1, WRITES, __builtin_return_address(0));
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
    void __tsan_read##SIZE(void* at) { look(at, SIZE, SIZE, SIZE, READS, HERE); }                         \
    void __tsan_write##SIZE(void* at) { look(at, SIZE, SIZE, SIZE, WRITES, HERE); }                       \
    void __tsan_unaligned_read##SIZE(void* at) { look(at, SIZE, apart(SIZE), 1, READS, HERE); }           \
    void __tsan_unaligned_write##SIZE(void* at) { look(at, SIZE, apart(SIZE), 1, WRITES, HERE); }
ACCESSES(1) ACCESSES(2) ACCESSES(4) ACCESSES(8) ACCESSES(16)
void __tsan_read_range(void* at, size_t size) { look(at, (int)size, apart(size), 1, READS, HERE); }
void __tsan_write_range(void* at, size_t size) { look(at, (int)size, apart(size), 1, WRITES, HERE); }
}
