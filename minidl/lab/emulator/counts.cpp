// Counts what the accesses to memory of a kernel cost: requests of warps, sectors of global memory and wavefronts of
// shared memory, by the instruction; and branches that lanes of one warp leave by both ways. watch.cpp tells it of each
// access. The compiler tells of each basic block that a thread enters, and of the comparison before it leaves
// (-fsanitize-coverage=trace-pc,trace-cmp).
//
// Threads run one after the other here, but the lanes of a warp at once on a GPU. So what each lane does until it waits
// is recorded, and then the 32 lists are processed as a warp would: the lanes go on whose next instruction is the first
// in the code. They are one request. Lanes that have left a loop are behind it in the code, and wait for those that are
// still within: lanes that a branch has parted come together again where the branch ends.
#include <map>

namespace {
constexpr int SECTOR = 32, BANKS = 32, BANKS_OF_HALF = 16, WORD = 4;
enum Way : int { GLOBAL_LOAD, GLOBAL_STORE, GLOBAL_ATOMIC, SHARED_LOAD, SHARED_STORE, SHARED_ATOMIC, BARRIER, DIVERGENT,
                 ENTERED, WAYS };
// Which rules count: those of compute capability 1.x serve half of a warp at a time.
enum Rules : int { NONE, OF_WARPS, OF_HALVES };

struct Event {                                           // of one lane
    const void* from;                                    // the instruction behind it
    uintptr_t at;
    int size;
    Way way;                                             // ENTERED: a basic block, or its last comparison
};
struct Count {                                           // as counts.py reads it
    size_t line;                                         // of the instruction: its offset in the library
    int way, unused;
    long long requests, parts, least, asked;             // parts: sectors or wavefronts; least: those that must be
    long long most;                                      // the most parts of one request, of the first such block
    int warp, size, block[3], unused2;                   // its warp and block, and the bytes of an access
    uintptr_t at[WARP];                                  // and the addresses of its lanes, or 0
};

constexpr size_t MOST_EVENTS = 1 << 23;                  // kept at once: 200 MB

Rules rules;
bool counting, too_many;
size_t kept;
std::vector<Event> events[WARP];                         // since the running warp's lanes last came to a stop
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

// unit: the most that one instruction moves, since an access must start at a multiple of its own size.
void note_access(const void* from, const void* at, int size, int unit, Way way) {
    for (int done = 0; counting && done < size; done += unit)
        note(from, (const unsigned char*)at + done, std::min(unit, size - done), way);
}

// The accesses of `count` lanes from `first` on, of those that make one.
std::vector<Event> made(const std::vector<Event>& of_lane, int first, int count) {
    std::vector<Event> found;
    for (int lane = first; lane < first + count; ++lane)
        if (of_lane[lane].from) found.push_back(of_lane[lane]);
    return found;
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

// Whether in a part of a warp each lane reads the same place as lane ^ 1, or each the same place as lane ^ 2.
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

// For shared memory: adds the wavefronts that the lanes' accesses of `bytes` bytes take. One moves 128 bytes at most: a
// whole warp's, or, of wider accesses, a half or a quarter of it. Two such parts are read as one if they are in pairs.
void add_wavefronts(const std::vector<Event>& of_lane, int bytes, bool reads, Count& count) {
    int part = WARP * WORD / bytes;
    for (int first = 0, lanes; first < WARP; first += lanes) {
        lanes = reads && part < WARP && first % (2 * part) == 0 && in_pairs(of_lane, first, 2 * part) ? 2 * part : part;
        const std::vector<Event> together = made(of_lane, first, lanes);
        if (together.empty()) continue;
        count.parts += wavefronts(together);
        ++count.least;
    }
}

// Compute capability 1.3: half of a warp's accesses to global memory. Each transaction is of the segment of up to 128
// bytes that holds the first lane's access, with what other lanes want of it. It is halved while one half is enough.
int sectors_of_half(std::vector<Event> lanes) {
    int found = 0;
    while (!lanes.empty()) {
        uintptr_t size = std::min(128, SECTOR * lanes[0].size), segment = lanes[0].at / size, low = -1, high = 0;
        auto within = [&](const Event& each) { return each.at / size == segment; };
        for (const Event& each : lanes)
            if (within(each)) low = std::min(low, each.at), high = std::max(high, each.at + each.size - 1);
        lanes.erase(std::remove_if(lanes.begin(), lanes.end(), within), lanes.end());
        while (size > SECTOR && low / (size / 2) == high / (size / 2)) size /= 2;
        found += size / SECTOR;
    }
    return found;
}

// Compute capability 1.x: half of a warp's accesses to shared memory. One step reads one word for all lanes that want
// it, here the word that most want, and one of each other bank for one lane. If lanes write the same word, one does.
int steps_of_half(const std::vector<Event>& lanes, bool reads) {
    int steps = 0;
    for (int part = 0; part < lanes[0].size; part += WORD) {
        std::vector<uintptr_t> words;
        for (const Event& each : lanes) {
            const uintptr_t word = (each.at + part) / WORD;
            if (reads || std::find(words.begin(), words.end(), word) == words.end()) words.push_back(word);
        }
        for (; !words.empty(); ++steps) {
            auto wanted = [&](uintptr_t word) { return std::count(words.begin(), words.end(), word); };
            const uintptr_t all = *std::max_element(words.begin(), words.end(),
                                                    [&](uintptr_t a, uintptr_t b) { return wanted(a) < wanted(b); });
            unsigned banks = 1u << all % BANKS_OF_HALF;
            words.erase(std::remove_if(words.begin(), words.end(), [&](uintptr_t word) {
                const bool served = word == all || !(banks >> word % BANKS_OF_HALF & 1);
                banks |= 1u << word % BANKS_OF_HALF;
                return served;
            }), words.end());
        }
    }
    return steps;
}

// As sectors and add_wavefronts, by half of a warp at a time.
void add_halves(const std::vector<Event>& of_lane, Way way, Count& count) {
    for (int first = 0; first < WARP; first += WARP / 2) {
        const std::vector<Event> lanes = made(of_lane, first, WARP / 2);
        if (lanes.empty()) continue;
        count.parts += way <= GLOBAL_ATOMIC ? sectors_of_half(lanes) : steps_of_half(lanes, way == SHARED_LOAD);
        count.least += std::max(1, lanes[0].size / WORD);
    }
}

// What some lanes do at once; event: of each lane, or null.
void request(const Event* const (&event)[WARP], Way way, int warp) {
    std::vector<Event> of_lane(WARP);
    for (int lane = 0; lane < WARP; ++lane)
        if (event[lane] && event[lane]->way == way) of_lane[lane] = *event[lane];
    const std::vector<Event> lanes = made(of_lane, 0, WARP);
    if (lanes.empty() || (way == BARRIER && warp)) return;                     // only one warp's barriers are counted
    Count& count = counted.insert({{lanes[0].from, way}, {0, way}}).first->second;
    int widest = WORD;
    for (const Event& each : lanes) count.asked += each.size, widest = std::max(widest, each.size);
    ++count.requests;
    if (way >= BARRIER) return;
    const long long before = count.parts;
    if (rules == OF_HALVES) add_halves(of_lane, way, count);
    else if (way <= GLOBAL_ATOMIC) count.parts += sectors(lanes);
    else add_wavefronts(of_lane, widest, way == SHARED_LOAD, count);
    const int here[] = {(int)blockIdx.x, (int)blockIdx.y, (int)blockIdx.z};
    const long long parts = count.parts - before;
    const bool before_it = warp < count.warp && !memcmp(here, count.block, sizeof here);
    if (parts < count.most || (parts == count.most && !before_it)) return;
    count.most = parts;
    count.warp = warp, count.size = lanes[0].size;
    memcpy(count.block, here, sizeof here);
    for (int lane = 0; lane < WARP; ++lane) count.at[lane] = of_lane[lane].at;
}

// Called when no lane of a warp can go on.
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
        const void* behind = nullptr;
        bool parted = false;
        for (int lane = 0; lane < WARP; ++lane) {
            if (event[lane] && event[lane]->from != first) event[lane] = nullptr;
            if (!event[lane]) continue;
            ways |= 1u << event[lane]->way;
            if (++next[lane] == events[lane].size()) continue;
            const void* its = events[lane][next[lane]].from;
            parted |= behind && its != behind;
            behind = its;
        }
        for (int way = 0; way < WAYS; ++way)
            if (ways >> way & 1) request(event, (Way)way, warp);
        if (parted) ++counted.insert({{first, DIVERGENT}, {0, DIVERGENT}}).first->second.requests;
    }
    for (auto& each : events) each.clear();
    kept = 0;
}

void start_counting(Rules which) {
    rules = which;
    counting = rules != NONE;
    too_many = false;
    kept = 0;
    counted.clear();
    stood_still = counting ? merge : nullptr;
    for (auto& each : events) each.clear();
}
}  // namespace

extern "C" {
#define ENTERS(NAME, ...) \
    void __sanitizer_cov_trace_##NAME(__VA_ARGS__) { note(__builtin_return_address(0), nullptr, 1, ENTERED); }
ENTERS(pc)
ENTERS(cmp1, char, char) ENTERS(cmp2, short, short) ENTERS(cmp4, int, int) ENTERS(cmp8, int64_t, int64_t)
ENTERS(const_cmp1, char, char) ENTERS(const_cmp2, short, short) ENTERS(const_cmp4, int, int)
ENTERS(const_cmp8, int64_t, int64_t) ENTERS(cmpf, float, float) ENTERS(cmpd, double, double)
ENTERS(switch, uint64_t, void*)

void watch_barrier(void* from) {
    threads[current].barrier_at = from;
    note(from, nullptr, 0, BARRIER);
}

// count: -1 if the lanes of a warp do too much before they come to a stop.
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
