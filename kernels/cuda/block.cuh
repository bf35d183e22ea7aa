// Reductions and scans over a CTA of NT threads and a cluster of C CTAs. Macros: NT, C.
// Two buffers in turn let each reduction need one barrier: nobody can reach the next but one before all have read.

#ifndef C
#define C 1
#endif
#define WARPS (NT / 32)

struct Scratch {
    u64 part[2][WARPS];
    u64 box[2][4];  // what this CTA shows to its cluster
    u32 turn_box;
};

struct Block {
    Scratch& s;
    u32 tid, lane, warp, rank;
    int turn, box_turn;

    DEV Block(Scratch& scratch) : s(scratch), tid(threadIdx.x), lane(threadIdx.x & 31), warp(threadIdx.x >> 5),
        rank(0), turn(0), box_turn(0) {
#if C > 1
        asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    }
    DEV Block(const Block& b, Scratch& scratch) : s(scratch), tid(b.tid), lane(b.lane), warp(b.warp), rank(b.rank),
        turn(b.turn), box_turn(b.box_turn) {}
    template <class Op> DEV u64 reduce(u64 v, Op op) {
#pragma unroll
        for (int d = 16; d; d >>= 1) v = op(v, __shfl_xor_sync(FULL, v, d));
        if (lane == 0) s.part[turn][warp] = v;
        __syncthreads();
        v = s.part[turn][lane % WARPS];
#pragma unroll
        for (int d = WARPS / 2; d; d >>= 1) v = op(v, __shfl_xor_sync(FULL, v, d));
        turn ^= 1;
        return v;
    }
    DEV u64 sum(u64 v) { return reduce(v, [](u64 a, u64 b) { return a + b; }); }
    DEV u64 max(u64 v) { return reduce(v, [](u64 a, u64 b) { return a > b ? a : b; }); }
    DEV u32 sum32(u32 v) {
        v = __reduce_add_sync(FULL, v);
        if (lane == 0) s.part[turn][warp] = v;
        __syncthreads();
        v = __reduce_add_sync(FULL, lane < WARPS ? (u32)s.part[turn][lane] : 0u);
        turn ^= 1;
        return v;
    }
    // Exclusive prefix sum in thread order; total for all.
    DEV u64 scan(u64 v, u64& total) {
        u64 inclusive = v;
#pragma unroll
        for (int d = 1; d < 32; d <<= 1) {
            u64 o = __shfl_up_sync(FULL, inclusive, d);
            if (lane >= d) inclusive += o;
        }
        if (lane == 31) s.part[turn][warp] = inclusive;
        __syncthreads();
        u64 w = lane < WARPS ? s.part[turn][lane] : 0, before = w;
#pragma unroll
        for (int d = 1; d < WARPS; d <<= 1) {
            u64 o = __shfl_up_sync(FULL, before, d);
            if (lane >= d) before += o;
        }
        total = __shfl_sync(FULL, before, WARPS - 1);
        u64 base = __shfl_sync(FULL, before - w, warp);
        turn ^= 1;
        return base + inclusive - v;
    }
    DEV void cluster_sync() {
#if C > 1
        asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
        __syncthreads();
#endif
    }
    DEV u32 remote(const void* p, u32 peer) {
        u32 a = (u32)__cvta_generic_to_shared(p);
#if C > 1
        asm("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(a) : "r"(peer));
#endif
        return a;
    }
    DEV u64 peek(const u64* p, u32 peer) {
#if C > 1
        u64 v;
        asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(v) : "r"(remote(p, peer)) : "memory");
        return v;
#else
        return *p;
#endif
    }
    DEV u32 peek32(const u32* p, u32 peer) {
#if C > 1
        u32 v;
        asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v) : "r"(remote(p, peer)) : "memory");
        return v;
#else
        return *p;
#endif
    }
    // Shows up to four block-uniform values to the cluster; returns the slot to peek at.
    DEV const u64* show(u64 a, u64 b = 0, u64 c = 0, u64 d = 0) {
        u64* slot = s.box[box_turn];
        box_turn ^= 1;
        if (tid == 0) { slot[0] = a; slot[1] = b; slot[2] = c; slot[3] = d; }
        cluster_sync();
        return slot;
    }
    // The largest of what all CTAs showed at a slot: one lane a peer, so that their latencies overlap.
    DEV u64 peek_max(const u64* slot) {
        u64 v = lane < C ? peek(slot, lane) : 0;
#pragma unroll
        for (int d = 1; d < C; d <<= 1) { u64 o = __shfl_xor_sync(FULL, v, d); v = v > o ? v : o; }
        return __shfl_sync(FULL, v, 0);
    }
    DEV u64 cluster_max(u64 v) {
#if C > 1
        v = peek_max(show(v));
#endif
        return v;
    }
    DEV u64 cluster_sum(u64 v, u64& before) {
        before = 0;
#if C > 1
        const u64* slot = show(v);
        u64 o = lane < C ? peek(slot, lane) : 0;
        v = 0;
#pragma unroll
        for (u32 r = 0; r < C; ++r) {
            u64 part = __shfl_sync(FULL, o, r);
            if (r < rank) before += part;
            v += part;
        }
#endif
        return v;
    }
};

// One 64-bit sum in shared memory by native 32-bit atomics: the carry is seen in the returned low word.
DEV void add_u64(u32* lo, u32* hi, u64 v) {
    u32 low = (u32)v, high = (u32)(v >> 32);
    if (low) { u32 old = atomicAdd(lo, low); high += old + low < old; }
    if (high) atomicAdd(hi, high);
}
