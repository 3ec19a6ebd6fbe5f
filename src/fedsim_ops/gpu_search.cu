// Exact K nearest candidates on a CUDA device; compiled by NVRTC when it is first used (see gpu.py).
//
// A search kernel computes the distances of all queries of a tile to a range of candidates in registers, and appends
// what may be among the K best to the query's list. `select` then sorts the lists, keeps K and lowers the limits.
// Distances are the float64 numbers that the CPU engine computes; (distance, row) decides everywhere.

struct Lists {        // one list of `room` entries per query
    double* distance;
    int* row;
    int* count;       // entries offered so far; more than `room` means that some were lost
    double* limit;    // the K-th best entry so far, which a new one has to beat
    int* limit_row;
    int room;
};

__device__ __forceinline__ void offer(const Lists& lists, int query, double distance, int row) {
    double limit = lists.limit[query];
    if (distance > limit || (distance == limit && row >= lists.limit_row[query])) return;
    int place = atomicAdd(lists.count + query, 1);
    if (place >= lists.room) return;
    size_t at = (size_t)query * lists.room + place;
    lists.distance[at] = distance;
    lists.row[at] = row;
}

// One block sorts the list of one query in shared memory (bitonic) and keeps the best k.
extern "C" __global__ void select_best(Lists lists, int k) {
    extern __shared__ double distance[];
    int* row = (int*)(distance + lists.room);
    int query = blockIdx.x, filled = min(lists.count[query], lists.room);
    if (filled == k && isfinite(lists.limit[query])) return;  // nothing new
    size_t begin = (size_t)query * lists.room;
    int size = 32;
    while (size < filled) size *= 2;
    for (int i = threadIdx.x; i < size; i += blockDim.x) {
        distance[i] = i < filled ? lists.distance[begin + i] : __longlong_as_double(0x7FF0000000000000);
        row[i] = i < filled ? lists.row[begin + i] : 0x7FFFFFFF;
    }
    for (int run = 2; run <= size; run *= 2)
        for (int gap = run / 2; gap > 0; gap /= 2) {
            __syncthreads();
            for (int i = threadIdx.x; i < size / 2; i += blockDim.x) {
                int low = 2 * i - (i & (gap - 1)), high = low + gap;
                double a = distance[low], b = distance[high];
                int a_row = row[low], b_row = row[high];
                bool later = a > b || (a == b && a_row > b_row);
                if (later == ((low & run) == 0)) {
                    distance[low] = b, distance[high] = a;
                    row[low] = b_row, row[high] = a_row;
                }
            }
        }
    __syncthreads();
    int kept = min(filled, k);
    for (int i = threadIdx.x; i < kept; i += blockDim.x) {
        lists.distance[begin + i] = distance[i];
        lists.row[begin + i] = row[i];
    }
    if (threadIdx.x == 0) {
        lists.count[query] = kept;
        if (kept == k) lists.limit[query] = distance[k - 1], lists.limit_row[query] = row[k - 1];
    }
}

#ifdef SLABS
// Hamming and Dice distances from the ones that two filters have in common: |a| + |b| - 2 |a & b|.
//
// Filters are stored in slabs of 128 bytes per row, 64 * GROUPS rows of queries or 128 rows of candidates together, with
// the 16-byte chunks of a row exchanged as the 128-byte swizzle of shared memory wants them: a tile is one copy.

#define COLUMNS 128
#define SLAB_BYTES 16384  // of 128 candidates
#define ROWS (64 * GROUPS)

struct Near {  // whether a number of common ones may beat the limit of one query
#if DICE
    float slope, start;
    __device__ Near(const Lists& lists, int query, int ones) {
        double limit = lists.limit[query];
        slope = isinf(limit) ? 0.0f : (float)(0.5 * (1.0 - limit)) * (1.0f - 1e-6f);
        start = isinf(limit) ? -1.0f : slope * ones - 1e-6f * (ones + 1024.0f * SLABS);  // more than float can err
    }
    __device__ __forceinline__ bool operator()(int common, int ones) const {
        return (float)common >= fmaf(slope, (float)ones, start);
    }
#else
    int least;
    __device__ Near(const Lists& lists, int query, int ones) {
        double limit = lists.limit[query];
        least = isinf(limit) ? -(1 << 28) : ones - (int)limit;
    }
    __device__ __forceinline__ bool operator()(int common, int ones) const { return 2 * common - ones >= least; }
#endif
};

__device__ __forceinline__ double filter_distance(int common, int ones, int other_ones) {
    int all = ones + other_ones, differing = all - 2 * common;
#if DICE
    return (double)differing / (double)max(all, 1);
#else
    return (double)differing;
#endif
}

struct Filters {
    const uint4* queries;
    const int* query_ones;
    const uint4* candidates;
    const int* candidate_ones;  // of rows beyond n: large
    const int* order;           // the candidate's row in the table
    int n, first, last;         // first and last tile of 128 candidates
};

#if TENSOR
__device__ __forceinline__ unsigned address(const void* pointer) { return (unsigned)__cvta_generic_to_shared(pointer); }
__device__ __forceinline__ void barrier_init(void* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(barrier)), "r"(arrivals));
}
__device__ __forceinline__ void barrier_arrive(void* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(barrier)) : "memory");
}
__device__ __forceinline__ void barrier_wait(void* barrier, int phase) {
    asm volatile(
        "{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra AGAIN;\n}"
        ::"r"(address(barrier)), "r"(phase) : "memory");
}
__device__ __forceinline__ void expect_bytes(void* barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(barrier)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy_bulk(void* to, const void* from, int bytes, void* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     address(to)), "l"(from), "r"(bytes), "r"(address(barrier)) : "memory");
}
__device__ __forceinline__ unsigned long long matrix(const void* tile) {  // rows of 128 bytes, 128-byte swizzle
    return (1ULL << 62) | (64ULL << 32) | (1ULL << 16) | ((address(tile) & 0x3FFFF) >> 4);
}

#define FOUR(i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3])
#define SIXTEEN(i) FOUR(i), FOUR(i + 4), FOUR(i + 8), FOUR(i + 12)
__device__ __forceinline__ void multiply_bits(int (&d)[64], unsigned long long a, unsigned long long b, int add) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k256.s32.b1.b1.and.popc "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,"
        "%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,"
        "%56,%57,%58,%59,%60,%61,%62,%63}, %64, %65, add;\n}"
        : SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48)
        : "l"(a), "l"(b), "r"(add));
}

#define QUEUE 576  // entries per warp: drained from 64 on, and four blocks add up to 512

// An entry is a pair that may be near enough: place of the candidate, row within the warp, number of common ones.
__device__ __forceinline__ void drain(
    const Filters& filters, const Lists& lists, const unsigned long long* queue, int filled, int first_row) {
    __syncwarp();
    for (int i = threadIdx.x % 32; i < filled; i += 32) {
        int place = (int)(queue[i] >> 32), query = first_row + ((queue[i] >> 24) & 15), common = queue[i] & 0xFFFFFF;
        if (place >= filters.n) continue;
        int ones = filters.query_ones[query], other_ones = filters.candidate_ones[place];
        offer(lists, query, filter_distance(common, ones, other_ones), filters.order[place]);
    }
    __syncwarp();
}

// Four warpgroups hold 64 queries each; one more warp copies tiles of candidates into a ring of STAGES slabs. The
// warpgroups run at their own pace, so one compares its results while others keep the tensor cores busy.
extern "C" __global__ void __launch_bounds__(128 * GROUPS + 32, 1) search_filters(Filters filters, Lists lists) {
    extern __shared__ char memory[];
    char* queries = memory + (-address(memory) & 1023);  // the swizzle repeats every 1,024 bytes
    char* ring = queries + SLABS * GROUPS * 8192;
    unsigned long long* queues = (unsigned long long*)(ring + STAGES * SLAB_BYTES);
    unsigned long long* full = queues + 4 * GROUPS * QUEUE;
    unsigned long long *empty = full + STAGES, *ready = empty + STAGES;
    int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;  // uniform, as the compiler must know
    if (threadIdx.x == 0) {
        barrier_init(ready, 1);
        for (int stage = 0; stage < STAGES; stage++) barrier_init(full + stage, 1), barrier_init(empty + stage, GROUPS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (warp == 4 * GROUPS) {
        if (lane > 0) return;
        expect_bytes(ready, SLABS * GROUPS * 8192);
        const char* from = (const char*)filters.queries + (size_t)blockIdx.x * SLABS * GROUPS * 8192;
        for (int slab = 0; slab < SLABS; slab++)
            copy_bulk(queries + slab * GROUPS * 8192, from + slab * GROUPS * 8192, GROUPS * 8192, ready);
        int step = 0;
        for (int tile = filters.first + blockIdx.y; tile < filters.last; tile += gridDim.y)
            for (int slab = 0; slab < SLABS; slab++, step++) {
                int stage = step % STAGES;
                barrier_wait(empty + stage, (step / STAGES + 1) & 1);
                expect_bytes(full + stage, SLAB_BYTES);
                const char* here = (const char*)filters.candidates + ((size_t)tile * SLABS + slab) * SLAB_BYTES;
                copy_bulk(ring + stage * SLAB_BYTES, here, SLAB_BYTES, full + stage);
            }
        return;
    }
    int group = warp / 4, first_row = blockIdx.x * ROWS + 16 * warp, row = first_row + lane / 4;
    const Near near(lists, row, filters.query_ones[row]), near_below(lists, row + 8, filters.query_ones[row + 8]);
    unsigned long long* queue = queues + warp * QUEUE;
    int filled = 0, step = 0;
    int d[64];
    barrier_wait(ready, 0);
    for (int tile = filters.first + blockIdx.y; tile < filters.last; tile += gridDim.y) {
        for (int slab = 0; slab < SLABS; slab++, step++) {
            int stage = step % STAGES;
            barrier_wait(full + stage, (step / STAGES) & 1);
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
            unsigned long long a = matrix(queries + (slab * GROUPS + group) * 8192), b = matrix(ring + stage * SLAB_BYTES);
#pragma unroll
            for (int part = 0; part < 4; part++) multiply_bits(d, a + 2 * part, b + 2 * part, slab + part);
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            if (slab > 0) {
                asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
                if (threadIdx.x % 128 == 0) barrier_arrive(empty + (step - 1) % STAGES);
            }
        }
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        if (threadIdx.x % 128 == 0) barrier_arrive(empty + (step - 1) % STAGES);
        int corner = tile * COLUMNS + 2 * (lane & 3);
#pragma unroll
        for (int block = 0; block < 16; block++) {
            int column = corner + 8 * block;
            int2 ones = __ldg((const int2*)(filters.candidate_ones + column));
            bool hit[4] = {near(d[4 * block], ones.x), near(d[4 * block + 1], ones.y),
                           near_below(d[4 * block + 2], ones.x), near_below(d[4 * block + 3], ones.y)};
            if (!__any_sync(~0u, hit[0] | hit[1] | hit[2] | hit[3])) continue;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                unsigned hits = __ballot_sync(~0u, hit[i]);
                if (hit[i])
                    queue[filled + __popc(hits & ((1u << lane) - 1))] =
                        ((unsigned long long)(column + i % 2) << 32) | ((lane / 4 + 8 * (i / 2)) << 24) | d[4 * block + i];
                filled += __popc(hits);
            }
            if (block % 4 == 3 && filled >= 64) drain(filters, lists, queue, filled, first_row), filled = 0;
        }
    }
    drain(filters, lists, queue, filled, first_row);
}
#else
// For devices without binary warpgroup products: popcounts of 64 queries and 128 candidates, 4 x 8 pairs per thread.
extern "C" __global__ void __launch_bounds__(256) search_filters(Filters filters, Lists lists) {
    __shared__ uint4 left[64 * 8], right[COLUMNS * 8];
    int x = threadIdx.x % 16, y = threadIdx.x / 16;
    for (int tile = filters.first + blockIdx.y; tile < filters.last; tile += gridDim.y) {
        int common[4][8] = {};
        for (int slab = 0; slab < SLABS; slab++) {
            __syncthreads();
            const uint4* from = filters.queries + ((size_t)blockIdx.x * SLABS + slab) * 512;
            for (int i = threadIdx.x; i < 512; i += 256) left[i] = from[i];
            from = filters.candidates + ((size_t)tile * SLABS + slab) * 1024;
            for (int i = threadIdx.x; i < 1024; i += 256) right[i] = from[i];
            __syncthreads();
            for (int chunk = 0; chunk < 8; chunk++) {
                uint4 a[4];
                for (int i = 0; i < 4; i++) a[i] = left[(y + 16 * i) * 8 + (chunk ^ (y & 7))];
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    uint4 b = right[(x + 16 * j) * 8 + (chunk ^ (x & 7))];
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        common[i][j] += __popc(a[i].x & b.x) + __popc(a[i].y & b.y) + __popc(a[i].z & b.z) + __popc(a[i].w & b.w);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int query = blockIdx.x * 64 + y + 16 * i, ones = filters.query_ones[query];
            const Near near(lists, query, ones);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                int place = tile * COLUMNS + x + 16 * j, other = filters.candidate_ones[place];
                if (place < filters.n && near(common[i][j], other))
                    offer(lists, query, filter_distance(common[i][j], ones, other), filters.order[place]);
            }
        }
    }
}
#endif
#endif

#ifdef DIMENSIONS
// Straight-line distances in float64, summed over the dimensions in order and without fused operations, as on the CPU.

#define POINTS (DIMENSIONS > 16 ? 4096 / DIMENSIONS : 256)  // copied to shared memory together

struct Points {
    const double* queries;
    const double* candidates;
    const int* order;
    int first, last;
};

extern "C" __global__ void __launch_bounds__(128) search_points(Points points, Lists lists) {
    __shared__ double block[POINTS * DIMENSIONS];
    int query = blockIdx.x * 128 + threadIdx.x;
    double place[DIMENSIONS], limit = lists.limit[query];
    for (int axis = 0; axis < DIMENSIONS; axis++) place[axis] = points.queries[(size_t)query * DIMENSIONS + axis];
    double most = limit < 0 ? -1.0 : limit * limit * (1 + 1e-15) + 1e-300;  // a root may be rounded
    for (int first = points.first + blockIdx.y * POINTS; first < points.last; first += gridDim.y * POINTS) {
        int size = min(POINTS, points.last - first);
        __syncthreads();
        for (int i = threadIdx.x; i < size * DIMENSIONS; i += 128)
            block[i] = points.candidates[(size_t)first * DIMENSIONS + i];
        __syncthreads();
#pragma unroll 4
        for (int i = 0; i < size; i++) {
            double total = 0;
#pragma unroll
            for (int axis = 0; axis < DIMENSIONS; axis++) {
                double gap = __dsub_rn(place[axis], block[i * DIMENSIONS + axis]);
                total = __dadd_rn(total, __dmul_rn(gap, gap));
            }
            if (total <= most) offer(lists, query, __dsqrt_rn(total), points.order[first + i]);
        }
    }
}
#endif

#ifdef WORDS
// Edit distances by Myers' bit-parallel algorithm: a thread holds the column of one query in WORDS words of 32 bits, and
// all threads of a warp read the same candidate.

struct Texts {
    const unsigned* equal;  // (blocks of 128 queries, characters, WORDS, 128)
    const int* query_lengths;
    const int4* chars;      // every candidate starts at a multiple of four
    const int* starts;      // in units of four characters
    const int* lengths;
    const int* order;
    int characters, first, last;
};

extern "C" __global__ void __launch_bounds__(512) search_texts(Texts texts, Lists lists) {
    int query = blockIdx.x * 128 + threadIdx.x, length = texts.query_lengths[query];
    const unsigned* table = texts.equal + (size_t)blockIdx.x * texts.characters * WORDS * 128 + threadIdx.x;
    double limit = lists.limit[query];
#if NORMALISED
    float most = isinf(limit) ? 2.0f : limit < 0 ? -1.0f : (float)limit * (1 + 1e-6f) + 1e-30f;
#define NEAR(edits) ((float)(edits) <= most * (float)max(length, size))
#else
    int most = isinf(limit) ? 0x7FFFFFFF : (int)limit;
#define NEAR(edits) ((edits) <= most)
#endif
    for (int place = texts.first + blockIdx.y * 4 + threadIdx.y; place < texts.last; place += gridDim.y * 4) {
        int size = __ldg(texts.lengths + place);
        if (!__any_sync(~0u, NEAR(abs(length - size)))) continue;  // the lengths differ by too much
        unsigned plus[WORDS], minus[WORDS];
#pragma unroll
        for (int word = 0; word < WORDS; word++) plus[word] = ~0u, minus[word] = 0;
        const int4* chars = texts.chars + __ldg(texts.starts + place);
        for (int column = 0; column < size; column += 4) {
            int4 four = __ldg(chars + column / 4);
            int code[4] = {four.x, four.y, four.z, four.w};
            unsigned equal[4][WORDS];
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int word = 0; word < WORDS; word++) equal[i][word] = __ldg(table + (code[i] * WORDS + word) * 128);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (column + i >= size) break;
                unsigned rise_in = 1, fall_in = 0;
#pragma unroll
                for (int word = 0; word < WORDS; word++) {
                    unsigned hit = equal[i][word], down = plus[word], up = minus[word];
                    unsigned seed = hit | fall_in, hit_or_up = hit | up;
                    unsigned diagonal = (((seed & down) + down) ^ down) | seed | up;
                    unsigned rise = up | ~(diagonal | down), fall = down & diagonal;
                    unsigned next_rise = (rise << 1) | rise_in, next_fall = (fall << 1) | fall_in;
                    rise_in = rise >> 31, fall_in = fall >> 31;
                    plus[word] = next_fall | ~(hit_or_up | next_rise);
                    minus[word] = next_rise & hit_or_up;
                }
            }
        }
        int edits = size;
#pragma unroll
        for (int word = 0; word < WORDS; word++) {
            int used = length - 32 * word;
            unsigned mask = used >= 32 ? ~0u : used > 0 ? (1u << used) - 1 : 0;
            edits += __popc(plus[word] & mask) - __popc(minus[word] & mask);
        }
        if (NEAR(edits)) {
#if NORMALISED
            double distance = (double)edits / (double)max(max(length, size), 1);
#else
            double distance = edits;
#endif
            offer(lists, query, distance, texts.order[place]);
        }
    }
}
#endif
