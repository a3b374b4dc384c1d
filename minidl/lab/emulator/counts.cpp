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

constexpr size_t MOST_EVENTS = 1 << 23;                  // kept at once: 200 MB

bool counting, too_many;
size_t kept;
std::vector<Event> events[WARP];                         // since the lanes of the warp that runs last stood still
std::map<std::pair<const void*, Way>, Count> counted;
std::vector<Count> told;

void note(const void* from, const void* at, int size, Way way) {
    if (!at) take_step((void*)from);                     // not an access
    if (!counting) return;
    events[current % WARP].push_back({from, (uintptr_t)at, size, way});
    if (++kept <= MOST_EVENTS) return;
    counting = false;
    too_many = true;
    for (auto& each : events) std::vector<Event>().swap(each);
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

// Whether in a part of a warp all neighbours, or all lanes with their neighbours but one, read from the same place.
bool in_pairs(const std::vector<Event>& of_lane, int first, int lanes) {
    for (int step : {1, 2}) {
        bool same = true;
        for (int lane = first; lane < first + lanes; ++lane) {
            const Event &mine = of_lane[lane], &other = of_lane[lane ^ step];
            same &= !mine.from || !other.from || mine.at == other.at;
        }
        if (same) return true;
    }
    return false;
}

// Of shared memory: adds the wavefronts in which the lanes' accesses of so many bytes are done. One moves 128 bytes at
// most: a warp's, of wider accesses those of a half or a quarter of it. Two of these are read as one where in pairs.
void add_wavefronts(const std::vector<Event>& of_lane, int bytes, bool reads, Count& count) {
    int part = WARP * WORD / bytes;
    for (int first = 0, lanes; first < WARP; first += lanes) {
        lanes = reads && part < WARP && first % (2 * part) == 0 && in_pairs(of_lane, first, 2 * part) ? 2 * part : part;
        std::vector<Event> together;
        for (int lane = first; lane < first + lanes; ++lane)
            if (of_lane[lane].from) together.push_back(of_lane[lane]);
        if (together.empty()) continue;
        count.parts += wavefronts(together);
        ++count.least;
    }
}

// What some lanes do at once; event: of each lane, or null.
void request(const Event* const (&event)[WARP], Way way, int warp) {
    std::vector<Event> lanes, of_lane(WARP);
    const void* from = nullptr;
    int widest = WORD;
    for (int lane = 0; lane < WARP; ++lane)
        if (event[lane] && event[lane]->way == way) {
            lanes.push_back(*event[lane]);
            of_lane[lane] = *event[lane];
            from = event[lane]->from;
            widest = std::max(widest, event[lane]->size);
        }
    if (lanes.empty() || (way == BARRIER && warp)) return;                     // of a block's barriers those of one warp
    Count& count = counted.insert({{from, way}, {0, way}}).first->second;
    ++count.requests;
    for (const Event& each : lanes) count.asked += each.size;
    if (way <= GLOBAL_ATOMIC) count.parts += sectors(lanes);
    if (way >= SHARED_LOAD && way <= SHARED_ATOMIC) add_wavefronts(of_lane, widest, way == SHARED_LOAD, count);
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
    kept = 0;
}

void start_counting(bool counts) {
    counting = counts;
    too_many = false;
    kept = 0;
    counted.clear();
    stood_still = counts ? merge : nullptr;
    for (auto& each : events) each.clear();
}
}  // namespace

extern "C" {
void __sanitizer_cov_trace_pc() { note(__builtin_return_address(0), nullptr, 0, NOTHING); }

void watch_barrier(void* from) { note(from, nullptr, 0, BARRIER); }

// count: -1 where the lanes of a warp do too much before they stand still.
const Count* watch_counts(int* count) {
    told.clear();
    *count = -1;
    if (too_many) return nullptr;
    for (auto& [key, each] : counted) {
        told.push_back(each);
        told.back().line = offset((void*)key.first);
    }
    *count = (int)told.size();
    return told.data();
}
}
