// Finds where a prefix of a row's total order reaches a count or a mass, whatever the row looks like: histograms over
// 2,048 ranges of ordered keys, narrowed until the last range fits the list, or is one value (then columns decide).

struct Pick {
    u64 above;  // measure of all keys above the range
    u64 inside;
    u32 low, high;  // range of ordered values that holds the crossing
    bool found;
};

DEV u64 measure(const Sampler& q, bool by_mass, float x) { return by_mass ? q.scale.mass(x) : 1; }

template <class F> DEV void each_value(Sampler& q, F f) {
    each_logit(q.r, q.b, f);
    q.o.each(q.b, f);
}

// One histogram round over [low, high].
PHASE Pick narrow(Sampler& q, bool by_mass, u64 target, Cut prior, Pick p) {
    u32* low = (u32*)q.s.spare;
    u32* high = low + SPARE_CAP;
    i32 shift = 21 - __clz(p.high - p.low);
    if (p.high == p.low || shift < 0) shift = 0;
#pragma unroll 1
    for (u32 i = q.b.tid; i < 2 * SPARE_CAP; i += NT) low[i] = 0;
    if (q.b.tid == 0) q.s.found = 0;
    __syncthreads();
    each_value(q, [&](float x, u32 column) {
        u32 key = ordered(x);  // NaN lies outside every range
        if (key < p.low || key > p.high || !prior.keeps(x, column)) return;
        u32 bin = (p.high - key) >> shift;
        add_u64(&low[bin], &high[bin], measure(q, by_mass, x));
    });
    q.b.cluster_sync();
    const u32 each = SPARE_CAP / NT;
    u64 bins[each], sum = 0, total;
#pragma unroll
    for (u32 e = 0; e < each; ++e) {
        bins[e] = 0;
        for (u32 peer = 0; peer < C; ++peer) {
            u32 i = q.b.tid * each + e;
            bins[e] += (u64)q.b.peek32(&low[i], peer) | (u64)q.b.peek32(&high[i], peer) << 32;
        }
        sum += bins[e];
    }
    u64 running = p.above + q.b.scan(sum, total);
#pragma unroll
    for (u32 e = 0; e < each; ++e) {
        if (running < target && target - running <= bins[e]) {
            q.s.found = 1; q.s.pick_index = q.b.tid * each + e; q.s.pick_rest = running; q.s.pick_mass = bins[e];
        }
        running += bins[e];
    }
    q.b.cluster_sync();  // also: nobody clears bins that a peer still reads
    p.found = q.s.found;
    p.above = q.s.pick_rest; p.inside = q.s.pick_mass;
    u32 picked = q.s.pick_index;
    __syncthreads();  // all have read before the next round writes
    if (!p.found) return p;
    p.high -= picked << shift;
    p.low = max(p.low, shift ? p.high - min(p.high, (1u << shift) - 1) : p.high);
    if (p.high == 0x7fffffffu && p.low < p.high) --p.high;  // where -0 would be: no key has it
    return p;
}

// Brings the lists of all CTAs together in every CTA; returns the sorted keys and their number, or null if too many.
DEV u64* merged_list(Sampler& q, u32& n) {
    __syncthreads();
    n = q.s.listed;
#if C > 1
    const u64* slot = q.b.show(n);
    u32 counts[C], all = 0;
    for (u32 p = 0; p < C; ++p) { counts[p] = (u32)q.b.peek(slot, p); all += counts[p]; }
    if (all > SPARE_CAP) return nullptr;
    for (u32 p = 0, at = 0; p < C; at += counts[p++])
#pragma unroll 1
        for (u32 i = q.b.tid; i < counts[p]; i += NT) q.s.spare[at + i] = q.b.peek(&q.s.list[i], p);
    n = all;
    q.b.cluster_sync();
    return sort_list(q.b, q.s.spare, n, q.s.list);
#else
    return n <= LIST_CAP ? sort_list(q.b, q.s.list, n, q.s.spare) : nullptr;
#endif
}

// Tied columns of one value, lowest first: the column after the need-th of them.
PHASE u32 tie_limit(Sampler& q, float value, Cut prior, u64 need) {
#pragma unroll 1
    for (u32 i = q.b.tid; i < q.r.tiles; i += NT) q.s.tile_mass[i] = 0;
    if (q.b.tid == 0) q.s.result = 0;
    __syncthreads();
    each_value(q, [&](float x, u32 column) {
        if (x == value && prior.keeps(x, column)) atomicAdd((u32*)&q.s.tile_mass[column / TILE_COLS - q.r.tile0], 1u);
    });
    __syncthreads();
    u64 before, total, own = q.own_mass();
    q.b.cluster_sum(own, before);
    u32 limit = 0;
    if (before < need && need - before <= own) {
        need -= before;
        u64 mine = q.b.tid < q.r.tiles ? q.s.tile_mass[q.b.tid] : 0, at = q.b.scan(mine, total);
        if (at < need && need - at <= mine) { q.s.pick_index = q.b.tid; q.s.pick_rest = need - at; }
        __syncthreads();
        need = q.s.pick_rest;
        const float* changed = q.changed_tile(q.s.pick_index);
        const u32 each = TILE_COLS / NT;
        u32 first = (q.r.tile0 + q.s.pick_index) * TILE_COLS + q.b.tid * each, hit = 0;
#pragma unroll
        for (u32 e = 0; e < each; ++e) {
            float x = q.r.at(first + e);
            if (q.o.active) x = fmaxf(x, changed[q.b.tid * each + e]);
            hit |= (u32)(x == value && prior.keeps(x, first + e)) << e;
        }
        u64 running = q.b.scan(__popc(hit), total);
#pragma unroll
        for (u32 e = 0; e < each; ++e)
            if (hit >> e & 1 && ++running == need) q.s.result = first + e + 1;
        __syncthreads();
        limit = q.s.result;
    }
    return (u32)q.b.cluster_max(limit);
}

// The cut within a sorted list of the range that holds it, `above` being the measure of all above the range. tile_mass has
// the masses above the range; what the cut keeps of the list is added.
PHASE u64 settle(Sampler& q, bool by_mass, u64 target, u64 above, Cut prior, bool keep_ties, const u64* keys, u32 n,
                 Cut& cut) {
    const u32 each = (n + NT - 1) / NT;
    u64 sum = 0, total;
#pragma unroll 1
    for (u32 e = 0; e < each; ++e) {
        u32 i = q.b.tid * each + e;
        if (i < n) sum += measure(q, by_mass, key_value(keys[i]));
    }
    u64 running = above + q.b.scan(sum, total);
#pragma unroll 1
    for (u32 e = 0; e < each; ++e) {
        u32 i = q.b.tid * each + e;
        if (i >= n) break;
        u64 w = measure(q, by_mass, key_value(keys[i]));
        if (running < target && target - running <= w) q.s.result = i;
        running += w;
    }
    __syncthreads();
    u32 last = q.s.result;
    cut.value = key_value(keys[last]);
    cut.cols = key_column(keys[last]) + 1;
    if (keep_ties) cut.cols = prior.value == cut.value ? prior.cols : ~0u;
#pragma unroll 1
    for (u32 i = q.b.tid; i < n; i += NT) {
        float x = key_value(keys[i]);
        u32 column = key_column(keys[i]);
        if (cut.keeps(x, column) && q.r.owns(column)) q.add_to_tile(column, x);
    }
    __syncthreads();
    return q.own_mass();
}

// The shortest prefix whose count or mass reaches target, within prior; false if all of prior has less.
// Leaves tile_mass holding exactly what the cut keeps, own = this CTA's part of it.
PHASE bool select(Sampler& q, bool by_mass, u64 target, Cut prior, bool keep_ties, Cut& cut, u64& own) {
    Pick p = {0, 0, max(ordered(prior.value), 0x00800000u), ordered(q.xmax), true};
    if (by_mass && !q.scale.far)  // below this every mass is 0
        p.low = max(p.low, min(ordered(__fadd_rn(q.xmax, -46.0f / q.scale.c)), p.high));
    for (;;) {
        p = narrow(q, by_mass, target, prior, p);
        if (!p.found) return false;
        u64 least = measure(q, by_mass, unordered(p.low));
        bool single = p.low == p.high;
        if (!single && (least == 0 || p.inside / least > LIST_CAP)) continue;
        if (q.b.tid == 0) q.s.listed = 0;
        __syncthreads();
        float to = unordered(p.high);
        own = q.scale.far ? q.masses_exactly(Cut{to, 0}) : q.masses<true>(Cut{to, 0});
        each_value(q, [&](float x, u32 column) {
            u32 key = ordered(x);
            if (key >= p.low && key <= p.high && prior.keeps(x, column)) q.append(order_key(x, column));
        });
        u32 n;
        u64* keys = merged_list(q, n);
        if (!keys && !single) continue;
        if (!keys) {
            u64 need = by_mass ? (target - p.above + least - 1) / least : target - p.above;
            cut.value = to;
            cut.cols = keep_ties ? prior.value == to ? prior.cols : ~0u : tie_limit(q, to, prior, need);
            own = q.masses_exactly(cut);
            return true;
        }
        own = settle(q, by_mass, target, p.above, prior, keep_ties, keys, n, cut);
        return true;
    }
}
