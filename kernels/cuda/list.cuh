// Short lists of candidates (order keys, 0 = none) in shared memory: sort, then find a place in column order.

#define LIST_CAP 4096
#define SPARE_CAP 2048
#define RANK_MAX NT

// log2 of the threads that share one of n <= NT items.
DEV u32 share_shift(u32 n) {
    u32 shift = 0;
    while (shift < 5 && (n << (shift + 1)) <= NT) ++shift;
    return shift;
}

// Each key's place is the number of larger ones; up to NT keys, zeros are left out.
DEV void rank_sort(const Block& b, const u64* from, u32 n, u64* to) {
    u32 shift = share_shift(n), i = b.tid >> shift, part = b.tid & ((1u << shift) - 1), rank = 0;
    u64 mine = i < n ? from[i] : 0;
    if (i < n)
#pragma unroll 4
        for (u32 j = part; j < n; j += 1u << shift) rank += from[j] > mine;
    for (u32 d = 1; d < 1u << shift; d <<= 1) rank += __shfl_xor_sync(FULL, rank, d);
    if (mine && part == 0) to[rank] = mine;
    __syncthreads();
}

// Descending, in place; pads with zeros to a power of two.
PHASE void bitonic_sort(u64* keys, u32 n) {
    const u32 tid = threadIdx.x;
    u32 size = 64;
    while (size < n) size *= 2;
    for (u32 i = n + tid; i < size; i += NT) keys[i] = 0;
    __syncthreads();
    for (u32 k = 2; k <= size; k *= 2)
        for (u32 j = k / 2; j; j /= 2) {
            for (u32 p = tid; p < size / 2; p += NT) {
                u32 i = 2 * p - (p & (j - 1));
                u64 x = keys[i], y = keys[i + j];
                if ((x < y) == ((i & k) == 0)) { keys[i] = y; keys[i + j] = x; }
            }
            if (j > 32) __syncthreads(); else __syncwarp();  // a warp's pairs stay within its own 64 keys
            if (j == 1) __syncthreads();
        }
}

// Sorted keys of `from` (n entries, zeros among them): in `spare` or in place.
DEV u64* sort_list(const Block& b, u64* from, u32 n, u64* spare) {
    if (n <= RANK_MAX) { rank_sort(b, from, n, spare); return spare; }
    bitonic_sort(from, n);
    return from;
}

// Of n <= NT keys with masses: the running mass, in column order, up to the key of this thread's group, and that key's own.
// One thread a group answers, the others have 0 and 0.
DEV u64 running_in_column_order(const Block& b, const u64* keys, const u64* masses, u32 n, u64& own) {
    u32 shift = share_shift(n), i = b.tid >> shift, part = b.tid & ((1u << shift) - 1);
    u64 running = 0;
    u32 mine = i < n ? (u32)keys[i] : 0;  // the complement of the column: larger comes first
    if (i < n)
#pragma unroll 4
        for (u32 j = part; j < n; j += 1u << shift) running += (u32)keys[j] >= mine ? masses[j] : 0;
    for (u32 d = 1; d < 1u << shift; d <<= 1) running += __shfl_xor_sync(FULL, running, d);
    bool answers = i < n && part == 0;
    own = answers ? masses[i] : 0;
    return answers ? running : 0;
}
DEV u32 running_column(const Block& b, const u64* keys, u32 n) { return key_column(keys[b.tid >> share_shift(n)]); }

// Of m kept keys with masses: the column whose running mass in column order first exceeds target. Work: 3 * 512 words.
DEV u32 pick_in_column_order(Block& b, const Scale& scale, const u64* keys, u32 m, u64 target, u32 limit, u64* work,
                             u32& result) {
    u32* low = (u32*)work;
    u32* high = low + 512;
    u64* chosen = work + 512;
    u64* masses = work + 1024;
    u32 n = m;
    if (m > 512) {  // narrow to one of 512 ranges of columns
        u32 shift = limit > 512 ? 32 - __clz(limit - 1) - 9 : 0;
#pragma unroll 1
        for (u32 i = b.tid; i < 1024; i += NT) low[i] = 0;
        if (b.tid == 0) result = 0;
        __syncthreads();
#pragma unroll 1
        for (u32 i = b.tid; i < m; i += NT) {
            u32 bin = key_column(keys[i]) >> shift;
            add_u64(&low[bin], &high[bin], scale.mass(key_value(keys[i])));
        }
        __syncthreads();
        u64 mine = b.tid < 512 ? (u64)low[b.tid] | (u64)high[b.tid] << 32 : 0, total;
        u64 before = b.scan(mine, total);
        if (before <= target && target - before < mine) { masses[0] = before; masses[1] = b.tid; }
        __syncthreads();
        target -= masses[0];
        u32 bin = (u32)masses[1];
#pragma unroll 1
        for (u32 i = b.tid; i < m; i += NT)
            if (key_column(keys[i]) >> shift == bin) chosen[atomicAdd(&result, 1u)] = keys[i];
        __syncthreads();
        n = result;
        keys = chosen;
    }
#pragma unroll 1
    for (u32 i = b.tid; i < n; i += NT) masses[i] = scale.mass(key_value(keys[i]));
    __syncthreads();
    u64 own, running = running_in_column_order(b, keys, masses, n, own);
    if (running > target && running - own <= target) result = running_column(b, keys, n);
    __syncthreads();
    return result;
}
