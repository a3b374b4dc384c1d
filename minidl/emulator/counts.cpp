// Counts what the accesses to memory of a kernel cost: requests of warps, sectors of global memory and wavefronts of
// shared memory, by the instruction. watch.cpp tells it of each access, and of each basic block that a thread enters
// (-fsanitize-coverage=trace-pc).
//
// Threads run one after the other here, but the lanes of a warp at once on a GPU. So what each lane does until it waits
// is written down, and then the 32 lists are gone through as a warp would: of all lanes those go on whose next
// instruction is the first in the code. They are one request. Lanes that have left a loop stand behind it, and wait for
// those that are still within: what branches have parted comes together again where the branches end.
#include <map>

namespace {
constexpr int SECTOR = 32, BANKS = 32, WORD = 4;
enum Way : int { GLOBAL_LOAD, GLOBAL_STORE, GLOBAL_ATOMIC, SHARED_LOAD, SHARED_STORE, SHARED_ATOMIC, BARRIER, NOTHING };

struct Event {                                           // of one lane
    const void* from;                                    // the instruction behind it
    uintptr_t at;
    int size;
    Way way;                                             // NOTHING: it enters a basic block
};
struct Count {                                           // as counts.py reads it
    size_t line;                                         // of the instruction: its offset in the library
    int way, unused;
    long long requests, parts, least, asked;             // parts: sectors, or wavefronts, of which `least` must be
};

bool counting;
std::vector<Event> events[WARP];                         // since the lanes of the warp that runs last stood still
std::map<std::pair<const void*, Way>, Count> counted;
std::vector<Count> told;

void note(const void* from, const void* at, int size, Way way) {
    if (counting) events[current % WARP].push_back({from, (uintptr_t)at, size, way});
}

// unit: the most that one instruction moves, since bytes must start on a multiple of their number.
void note_access(const void* from, const void* at, int size, int unit, Way way) {
    for (int done = 0; counting && done < size; done += unit)
        note(from, (const unsigned char*)at + done, std::min(unit, size - done), way);
}

// Different sectors that some accesses touch.
int sectors(const std::vector<Event>& lanes) {
    std::vector<uintptr_t> touched;
    for (const Event& each : lanes) touched.push_back(each.at / SECTOR);
    std::sort(touched.begin(), touched.end());
    return (int)(std::unique(touched.begin(), touched.end()) - touched.begin());
}

// Different words of the bank that has most of them: one wavefront reads or writes one word of each bank.
int wavefronts(const std::vector<Event>& lanes) {
    std::vector<uintptr_t> words;
    for (const Event& each : lanes)
        for (uintptr_t word = each.at / WORD; word <= (each.at + each.size - 1) / WORD; ++word) words.push_back(word);
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    int of_bank[BANKS] = {};
    for (uintptr_t word : words) ++of_bank[word % BANKS];
    return *std::max_element(of_bank, of_bank + BANKS);
}

// What some lanes do at once; event: of each lane, or null.
void request(const Event* const (&event)[WARP], Way way, int warp) {
    std::vector<Event> lanes, together;
    const void* from = nullptr;
    int widest = WORD;
    for (const Event* each : event)
        if (each && each->way == way) {
            lanes.push_back(*each);
            from = each->from;
            widest = std::max(widest, each->size);
        }
    if (lanes.empty() || (way == BARRIER && warp)) return;                     // of a block's barriers those of one warp
    Count& count = counted.insert({{from, way}, {0, way}}).first->second;
    ++count.requests;
    for (const Event& each : lanes) count.asked += each.size;
    if (way <= GLOBAL_ATOMIC) count.parts += sectors(lanes);
    if (way < SHARED_LOAD || way > SHARED_ATOMIC) return;
    int at_once = WARP * WORD / widest;                  // lanes that move 128 bytes: a warp, a half or a quarter of one
    for (int first = 0; first < WARP; first += at_once) {
        together.clear();
        for (int lane = first; lane < first + at_once; ++lane)
            if (event[lane] && event[lane]->way == way) together.push_back(*event[lane]);
        if (together.empty()) continue;
        count.parts += wavefronts(together);
        ++count.least;
    }
}

// All lanes of a warp stand still.
void merge(int warp) {
    size_t next[WARP] = {};
    while (true) {
        const void* first = nullptr;
        const Event* event[WARP] = {};
        for (int lane = 0; lane < WARP; ++lane)
            if (next[lane] < events[lane].size()) {
                event[lane] = &events[lane][next[lane]];
                if (!first || event[lane]->from < first) first = event[lane]->from;
            }
        if (!first) break;
        unsigned ways = 0;
        for (int lane = 0; lane < WARP; ++lane) {
            if (event[lane] && event[lane]->from != first) event[lane] = nullptr;
            if (!event[lane]) continue;
            ++next[lane];
            ways |= 1u << event[lane]->way;
        }
        for (int way = 0; way < NOTHING; ++way)
            if (ways >> way & 1) request(event, (Way)way, warp);
    }
    for (auto& each : events) each.clear();
}

void start_counting(bool counts) {
    counting = counts;
    counted.clear();
    stood_still = counts ? merge : nullptr;
    for (auto& each : events) each.clear();
}
}  // namespace

extern "C" {
void __sanitizer_cov_trace_pc() { note(__builtin_return_address(0), nullptr, 0, NOTHING); }

void watch_barrier(void* from) { note(from, nullptr, 0, BARRIER); }

const Count* watch_counts(int* count) {
    told.clear();
    for (auto& [key, each] : counted) {
        told.push_back(each);
        told.back().line = offset((void*)key.first);
    }
    *count = (int)told.size();
    return told.data();
}
}
