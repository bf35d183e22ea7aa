// State of one row in one CTA and the passes over its logits.

#define TILES_MAX 512

// TRACE: clock of each CTA's first thread at each stage, the first CTA's for the launcher, to find where time goes.
#ifdef TRACE
#define STAGE(q, i) if (threadIdx.x == 0) (q).s.trace[i] = clock64();
#else
#define STAGE(q, i)
#endif

struct RowArgs {
    const float* temperature; const i32* top_k; const float* top_p; const float* min_p;
    const i64* seed; const i64* offset; const i32* purpose;
};

struct Smem {
    Scratch scratch;
    u32 listed, result, pick_index, found, nan, zeros, strays;
#ifdef TRACE
    u64 trace[16];
#endif
    u64 pick_rest, pick_mass;
    float edge[2];
    u64 tile_mass[TILES_MAX];
    u64 list[LIST_CAP];
    u64 spare[SPARE_CAP];  // sorted list, or the two words of a histogram's 2,048 bins
    OverlayList overlay;
};

struct Sampler {
    Smem& s;
    Block b;
    Row r;
    Overlay o;
    Scale scale;
    float xmax;
    bool nan;

    DEV Sampler(Smem& smem, const OverlayArgs& oa, const MaskArgs& m, u32* mask, u32* touched, u32 row)
        : s(smem), b(smem.scratch), o(smem.overlay, oa, m, r, touched, row), nan(false) { r.mask = mask; }
    // A copy for a phase of its own: given shared memory by its symbol, so that its address space is known there.
    DEV Sampler(const Sampler& q, Smem& smem, u32* mask)
        : s(smem), b(q.b, smem.scratch), r(q.r), o(q.o), scale(q.scale), xmax(q.xmax), nan(q.nan) { r.mask = mask; }

    DEV void append(u64 key) {
        u32 at = atomicAdd(&s.listed, 1u);
        if (at < LIST_CAP) s.list[at] = key;
    }

    // ---- lower bounds of the k-th largest from two lane maxima a thread ----

    // The highest of 256 bins from which on up at least k are counted; k becomes what is left of it within that bin.
    DEV u32 bin_from_top(const u32* bins, u32& k) const {
        u32 count[8], sum = 0, bin = 0, rest = k;
#pragma unroll
        for (u32 i = 0; i < 8; ++i) sum += count[i] = bins[255 - 8 * b.lane - i];
        u32 inclusive = sum;
#pragma unroll
        for (int d = 1; d < 32; d <<= 1) {
            u32 other = __shfl_up_sync(FULL, inclusive, d);
            if (b.lane >= d) inclusive += other;
        }
        u32 left = k - (inclusive - sum);
        bool here = inclusive >= k && inclusive - sum < k, found = false;
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            if (here && !found && left <= count[i]) { found = true; bin = 255 - 8 * b.lane - i; rest = left; }
            if (!found) left -= count[i];
        }
        u32 votes = __ballot_sync(FULL, here);
        if (!votes) return 0;
        k = __shfl_sync(FULL, rest, __ffs(votes) - 1);
        return __shfl_sync(FULL, bin, __ffs(votes) - 1);
    }
    DEV void count_in_warp(u32* bin) const {
        u32 same = __match_any_sync(FULL, (u64)bin);
        if (__ffs(same) - 1 == b.lane) atomicAdd(bin, (u32)__popc(same));
    }
    // The k-th largest of the 2 * NT lane maxima, by 16 leading bits of its key, for two k at once (0: none). Two digits
    // of 8 bits are counted in shared memory: three barriers, where a bisection by counting barriers took 32.
    DEV void kth_lanes(float lane0, float lane1, u32 k, u32 k2, u32& key, u32& key2) {
        u32* bins = (u32*)s.spare;
        u32 a = ordered(lane0) >> 16, c = ordered(lane1) >> 16;
        __syncthreads();  // the bins of an earlier call have been read
#pragma unroll 1
        for (u32 i = b.tid; i < 768; i += NT) bins[i] = 0;
        __syncthreads();
        count_in_warp(&bins[a >> 8]);  // nearly all share two or three bins
        count_in_warp(&bins[c >> 8]);
        __syncthreads();
        u32 high = bin_from_top(bins, k), high2 = k2 ? bin_from_top(bins, k2) : ~0u;
        if (a >> 8 == high) atomicAdd(&bins[256 + (a & 255)], 1u);
        if (c >> 8 == high) atomicAdd(&bins[256 + (c & 255)], 1u);
        if (a >> 8 == high2) atomicAdd(&bins[512 + (a & 255)], 1u);
        if (c >> 8 == high2) atomicAdd(&bins[512 + (c & 255)], 1u);
        __syncthreads();
        key = max(high << 8 | bin_from_top(bins + 256, k), ORD_NEG_INF >> 16);
        key2 = k2 ? max(high2 << 8 | bin_from_top(bins + 512, k2), ORD_NEG_INF >> 16) : 0;
    }
    DEV u32 kth_lane(float lane0, float lane1, u32 k) {
        u32 key, none;
        kth_lanes(lane0, lane1, k, 0, key, none);
        return key;
    }
    // Never -inf: that is what banned logits look like.
    static DEV float bound_of(u32 key16) { return key16 > (ORD_NEG_INF >> 16) ? unordered(key16 << 16) : -FLT_MAX_; }
    // A word that no word of smaller logits exceeds: max_word(w, P) != P wherever w holds a logit >= the bound.
    static DEV u32 gate_of(u32 key16) {
        float bound = unordered(key16 << 16);
        if (key16 <= (ORD_NEG_INF >> 16)) return NEG_INF_WORD;
#if DTYPE == 2
        return __float_as_uint(below(bound));
#else
        u16 h;
#if DTYPE == 0
        h = (u16)(__float_as_uint(bound) >> 16);
#else
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(bound));
#endif
        u32 key = h & 0x8000 ? (u16)~h : (u32)h | 0x8000u, least = (u16)~NEG_INF_WORD;
        key = key < least + 2 ? least : key - 2;
        u32 half = key & 0x8000 ? key & 0x7fff : (u16)~key;
        return half | half << 16;
#endif
    }
    static DEV bool passes(u32 word, u32 gate) {
#if DTYPE == 2
        return __uint_as_float(word) > __uint_as_float(gate);
#else
        return max_word(word, gate) != gate;
#endif
    }
    // Lists the slice's logits >= bound. Only threads whose maximum reaches it have met any, nearly always in their best tile
    // alone: those tiles' vectors are loaded again, shared out over all threads; the pass before keeps no lists.
    template <class P> DEV void relist(const P& p, float bound) {
        u32* those = (u32*)s.spare + 1024;  // (tile, lane); the bins of kth_lanes lie below
        const u32 room = 2 * SPARE_CAP - 1024, gate = gate_of(ordered(bound) >> 16);
        if (b.tid == 0) s.found = 0;
        __syncthreads();
        if (p.best >= bound) {
            u32 at = atomicAdd(&s.found, 1u);
            if (at < room) those[at] = p.tile << 5 | b.lane;
            if (p.second >= bound)
                for (u32 t = r.tile0 + b.warp; t < r.tile0 + r.tiles; t += WARPS) {
                    if (t == p.tile) continue;
                    at = atomicAdd(&s.found, 1u);
                    if (at < room) those[at] = t << 5 | b.lane;
                }
        }
        __syncthreads();
        const u32 items = s.found * 4;
        if (items > room * 4) {  // about the whole slice
            each_logit(r, b, [&](float x, u32 column) { if (x >= bound) append(order_key(x, column)); });
        } else {
#pragma unroll 1
            for (u32 i = b.tid; i < items; i += NT) {
                u32 v = (those[i >> 2] >> 5) * TILE_VECS + (i & 3) * 32 + (those[i >> 2] & 31);
                Vec d = r.load_one(v);
                if (!passes(max_of(d), gate)) continue;
#pragma unroll 1
                for (u32 e = 0; e < VEC; ++e) {
                    float x = element_of(d, e);
                    if (x >= bound) append(order_key(x, v * VEC + e));
                }
            }
        }
        o.each(b, [&](float x, u32 column) { if (x >= bound) append(order_key(x, column)); });
    }

    // ---- first pass: maxima, NaN, and for top-k the candidates ----

    typedef ::Peak Peak;

    // samples: one logit of each lane and tile is kept, of every step-th tile.
    DEV Peak first_pass(float* samples = nullptr, u32 step = 1) {
        Peak p;
        r.each_tile(b, [&](u32 t, const Vec (&d)[4], bool any) {
            if (any) p.add(d, t);
            u32 i = t - r.tile0;
            if (samples && i % step == 0) samples[i / step * 32 + b.lane] = any ? element(d[0].w[0], 0) : NEG_INF;
        });
        return p;
    }

    template <class F> DEV Peak first_pass_with(F f) {  // f(data) for each tile with something allowed
        Peak p;
        r.each_tile(b, [&](u32 t, const Vec (&d)[4], bool any) {
            if (any) { p.add(d, t); f(d); }
        });
        return p;
    }

    // ---- masses by tiles ----

    static DEV u64 warp_sum(u64 v) {  // of values below 2^50
        u32 low = __reduce_add_sync(FULL, (u32)v & 0x1ffffffu), high = __reduce_add_sync(FULL, (u32)(v >> 25));
        return ((u64)high << 25) + low;
    }
    // Mass of what a tile has above `floor`; CUT: there is a floor, or a NaN to leave out.
    template <bool CUT> DEV u64 mass_of(const Vec (&d)[4], float floor) const {
        u32 high = 0, low = 0;
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
            for (int e = 0; e < VEC; ++e) {
                float x = element(d[j].w[e / PER_WORD], e % PER_WORD);
                if (CUT) x = x > floor ? x : NEG_INF;
                Scale::split(pow2(scale.exponent<false>(x)), high, low);
            }
        return warp_sum(Scale::join(high, low, 4 * VEC));
    }
    template <bool CUT> DEV void mass_pass(float floor) {
        r.each_tile_backwards(b, [&](u32 t, const Vec (&d)[4], bool any) {
            u64 mass = any ? mass_of<CUT>(d, floor) : 0;
            if (b.lane == 0) s.tile_mass[t - r.tile0] = mass;
        });
    }
    DEV void add_to_tile(u32 column, float x) {
        u32* word = (u32*)&s.tile_mass[column / TILE_COLS - r.tile0];
        add_u64(word, word + 1, scale.mass(x));
    }
    // By single columns, ties included: in little code, for few rows. Returns this CTA's mass.
    DEV u64 masses_exactly(Cut cut) {
#pragma unroll 1
        for (u32 i = b.tid; i < r.tiles; i += NT) s.tile_mass[i] = 0;
        __syncthreads();
        auto add = [&](float x, u32 column) {
            if (cut.keeps(x, column)) add_to_tile(column, x);
        };
        each_logit(r, b, add);
        o.each(b, add);
        __syncthreads();
        return own_mass();
    }
    // Fills tile_mass with what lies above the cut. Not for far scales. Returns this CTA's mass.
    template <bool ALWAYS_CUT = false> DEV u64 masses(Cut cut) {
        if (ALWAYS_CUT || nan || cut.value > NEG_INF) mass_pass<true>(cut.value);
        else mass_pass<false>(cut.value);
        if (o.active) __syncthreads();
        o.each(b, [&](float x, u32 column) { if (cut.keeps(x, column)) add_to_tile(column, x); });
        __syncthreads();
        return own_mass();
    }
    DEV u64 own_mass() {
        u64 mine = 0;
#pragma unroll 1
        for (u32 i = b.tid; i < r.tiles; i += NT) mine += s.tile_mass[i];
        return b.sum(mine);
    }

    // The changed logits of a tile of the slice by column, others -inf, in `list`. Calling o.at for single columns would leave
    // some lanes in a call while others wait: the shuffles of a scan behind it then met a warp that was not whole.
    DEV const float* changed_tile(u32 tile) {
        float* values = (float*)s.list;
        if (!o.active) return values;
        const u32 first = (r.tile0 + tile) * TILE_COLS;
        for (u32 i = b.tid; i < TILE_COLS; i += NT) values[i] = NEG_INF;
        __syncthreads();
        o.each(b, [&](float x, u32 column) { if (column - first < TILE_COLS) values[column - first] = x; });
        __syncthreads();
        return values;
    }

    // The column at which the running mass of the whole row exceeds target; only the CTA that owns it returns true.
    DEV bool draw(Cut cut, u64 own, u64 before, u64 target, u32& column) {
        if (target < before || target - before >= own) return false;
        target -= before;
        u64 total, mine = b.tid < r.tiles ? s.tile_mass[b.tid] : 0, at = b.scan(mine, total);
        if (at <= target && target - at < mine) { s.pick_index = b.tid; s.pick_rest = target - at; }
        __syncthreads();
        target = s.pick_rest;
        const float* changed = changed_tile(s.pick_index);
        const u32 each = TILE_COLS / NT;
        u32 first = (r.tile0 + s.pick_index) * TILE_COLS + b.tid * each;
        u64 w[each], sum = 0;
#pragma unroll
        for (u32 e = 0; e < each; ++e) {
            float x = r.at(first + e);
            if (o.active) x = fmaxf(x, changed[b.tid * each + e]);
            w[e] = cut.keeps(x, first + e) ? scale.mass(x) : 0;
            sum += w[e];
        }
        u64 running = b.scan(sum, total);
#pragma unroll
        for (u32 e = 0; e < each; ++e) {
            if (running <= target && target - running < w[e]) s.result = first + e;
            running += w[e];
        }
        __syncthreads();
        column = s.result;
        return true;
    }
};
