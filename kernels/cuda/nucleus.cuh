// Flat rows under top-p (C = 1): a sample kept from the first pass tells about where the nucleus ends; the pass over the
// masses then counts exactly what lies above that bracket and bins what lies in it, so one more pass is enough.

#define SAMPLING (C == 1 && !GREEDY_ONLY)
#define SAMPLED_TILES 256
#define BINS SPARE_CAP
#define NUCLEUS_LIST 96  // a nucleus within about so many of the largest is found on their list
#define TOPS 384  // lane maxima among so many of the largest stand for themselves, the sample for the rest
#define DEPTH 45.0f  // the bins of the estimate span so many powers of two below the maximum

#if SAMPLING
// Estimates the bracket [edge[1], edge[0]] of the crossing from the sample below `bound` and the lane maxima above it.
// True if it reaches below the NUCLEUS_LIST-th largest, so that a list of the largest logits will hardly do.
DEV bool nucleus_beyond(Sampler& q, const Sampler::Peak& p, float top_p, u32 step) {
    u32 key, list_key;
    q.kth_lanes(p.lane0(), p.lane1(), TOPS, NUCLEUS_LIST, key, list_key);
    const float bound = q.bound_of(key), list_bound = q.bound_of(list_key);
    u32* tops = (u32*)q.s.spare;
    u32* rests = tops + BINS;
    const float* samples = (const float*)q.s.list;
    const float each = (float)(4 * VEC * step), width = DEPTH / BINS;
    __syncthreads();
#pragma unroll 1
    for (u32 i = q.b.tid; i < 2 * BINS; i += NT) tops[i] = 0;
    __syncthreads();
    auto bin_of = [&](float x) { return min((u32)fmaxf(-q.scale.exponent<false>(x) / width, 0.0f), BINS - 1u); };
    if (p.lane0() >= bound) atomicAdd(&tops[bin_of(p.lane0())], 1u);
    if (p.lane1() >= bound) atomicAdd(&tops[bin_of(p.lane1())], 1u);
#pragma unroll 1
    for (u32 i = q.b.tid; i < (q.r.tiles + step - 1) / step * 32; i += NT)
        if (samples[i] < bound && samples[i] > NEG_INF) atomicAdd(&rests[bin_of(samples[i])], 1u);
    __syncthreads();
    const u32 per = BINS / NT, lanes = 2 * NT;
    float mass[per];
    u32 count = 0, before = 0;
    u64 sum = 0, hidden = 0, squares = 0, total;
#pragma unroll
    for (u32 e = 0; e < per; ++e) count += tops[q.b.tid * per + e];
    before = (u32)q.b.scan(count, total);
#pragma unroll
    for (u32 e = 0; e < per; ++e) {  // a logit with n larger ones shares its lane with one of them by n / lanes
        u32 i = q.b.tid * per + e;
        float w = pow2(-(i + 0.5f) * width), top = w * tops[i], one = w * each;
        float beneath = top * before / max(lanes - before, lanes / 4);
        mass[e] = top + beneath + one * rests[i];
        sum += (u64)(mass[e] * 1048576.0f);
        hidden += (u64)(beneath * 1048576.0f);
        squares += (u64)(one * one * rests[i] * 1048576.0f);
        before += tops[i];
    }
    // The error that counts is that of (mass above the cut) - p * (whole mass): (1 - p)^2 above it, p^2 below it.
    u64 running = q.b.scan(sum, total), square_total, square = q.b.scan(squares, square_total);
    float target = top_p * (float)total;
    if ((float)running < target && target <= (float)(running + sum)) q.s.pick_rest = square;
    if (q.b.tid == 0) { q.s.edge[0] = q.xmax; q.s.edge[1] = q.xmax - (DEPTH + 1) / q.scale.c; }
    __syncthreads();
    float square_above = (float)q.s.pick_rest, square_below = (float)(square_total - q.s.pick_rest);
    float variance = (1 - top_p) * (1 - top_p) * square_above + top_p * top_p * square_below;
    float spread = 4.0f * sqrtf(variance * 1048576.0f) + 0.3f * (1 - top_p) * (float)q.b.sum(hidden) + 0.002f * (float)total;
    float first = target - spread, last = target + spread;
    __syncthreads();
#pragma unroll
    for (u32 e = 0; e < per; ++e) {
        float from = (float)running, to = from + (float)(u64)(mass[e] * 1048576.0f);
        u32 i = q.b.tid * per + e;
        if (from < first && first <= to) q.s.edge[0] = q.xmax - i * width / q.scale.c;
        if (from < last && last <= to) q.s.edge[1] = q.xmax - (i + 1) * width / q.scale.c;
        running += (u64)(mass[e] * 1048576.0f);
    }
    __syncthreads();
    return q.s.edge[1] < list_bound;
}

// Bins of a bracket of ordered keys. Where every bin holds one value only (16-bit logits), counts say all.
#define VALUE_BITS (DTYPE == 0 ? 16 : DTYPE == 1 ? 13 : 0)  // low bits of a key that the logits' dtype leaves fixed

struct Bins {
    u32* words;  // [2 * BINS] shared
    u32 top, shift;
    bool counted;

    DEV Bins(u32* w, u32 low, u32 high, bool exact_values) : words(w), top(high), shift(high > low ? (u32)max(21 - __clz(high - low), 0) : 0) {
        counted = exact_values && VALUE_BITS && (high >> VALUE_BITS) - (low >> VALUE_BITS) < BINS;
        if (counted) shift = VALUE_BITS;
    }
    DEV u32 of(u32 key) const { return counted ? (top >> shift) - (key >> shift) : (top - key) >> shift; }
    DEV u32 highest(u32 bin) const {  // key
        if (!counted) return top - (bin << shift);
        u32 k = (top >> shift) - bin;
        return k << shift | (k >> (31 - shift) ? 0 : (1u << shift) - 1);
    }
    DEV u32 lowest(u32 bin) const {
        u32 k = highest(bin);
        return counted ? k : k - min(k, (1u << shift) - 1);
    }
    DEV void put(const Scale& scale, float x) const {
        u32 bin = of(ordered(x));
        if (counted) atomicAdd(&words[bin], 1u); else add_u64(&words[bin], &words[BINS + bin], scale.mass(x));
    }
    DEV u64 mass(const Scale& scale, u32 bin) const {
        if (!counted) return (u64)words[bin] | (u64)words[BINS + bin] << 32;
        return words[bin] ? words[bin] * scale.mass(unordered(highest(bin))) : 0;
    }
};

// f(x, column) for the logits of a tile in [from, to]: found by packed maxima first, then one by one.
template <class F> DEV void each_within(const Sampler& q, const Vec (&d)[4], u32 tile, u32 gate, float from, float to, F f) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        if (!Sampler::passes(max_of(d[j]), gate)) continue;
        u32 hits = 0;
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
            float x = element(d[j].w[e / PER_WORD], e % PER_WORD);
            hits |= (u32)(x >= from && x <= to) << e;
        }
#pragma unroll 1
        for (; hits; hits &= hits - 1)
            f(element_of(d[j], __ffs(hits) - 1), (tile * TILE_VECS + j * 32 + q.b.lane) * VEC + __ffs(hits) - 1);
    }
}

// Masses of the row: tile_mass has what lies above `high`, the bins what lies in [low, high].
DEV u64 bracket_pass(Sampler& q, float floor, float low, float high, const Bins& bins) {
    const u32 gate = Sampler::gate_of(ordered(low) >> 16);
    const Scale scale = q.scale;
    const float least = fmaxf(low, unordered(ordered(floor) + (ordered(floor) == 0x7ffffffeu ? 2 : 1)));  // just above the floor
    u64 whole = 0;
    q.r.each_tile_backwards(q.b, [&](u32 t, const Vec (&d)[4], bool any) {
        u64 above = 0;
        if (any) {
            u32 h = 0, l = 0, ah = 0, al = 0, n = 0;
#pragma unroll
            for (int j = 0; j < 4; ++j)
#pragma unroll
                for (int e = 0; e < VEC; ++e) {
                    float x = element(d[j].w[e / PER_WORD], e % PER_WORD);
                    x = x > floor ? x : NEG_INF;
                    u32 one = 0, two = 0;
                    Scale::split(pow2(scale.exponent<false>(x)), one, two);
                    h += one; l += two;
                    if (x > high) { ah += one; al += two; ++n; }
                }
            whole += Sampler::warp_sum(Scale::join(h, l, 4 * VEC));
            above = Sampler::warp_sum(Scale::join(ah, al, n));
            if (bins.counted) {  // few lanes at a time, so predicated additions cost less than finding them
#pragma unroll
                for (int j = 0; j < 4; ++j)
#pragma unroll
                    for (int e = 0; e < VEC; ++e) {
                        float x = element(d[j].w[e / PER_WORD], e % PER_WORD);
                        if (x >= least && x <= high) atomicAdd(&bins.words[bins.of(ordered(x))], 1u);
                    }
            } else {
                each_within(q, d, t, gate, least, high, [&](float x, u32) { bins.put(scale, x); });
            }
        }
        if (q.b.lane == 0) q.s.tile_mass[t - q.r.tile0] = above;
    });
    if (q.b.lane) whole = 0;
    if (q.o.active) __syncthreads();
    q.o.each(q.b, [&](float x, u32 c) {
        if (!(x > floor)) return;
        whole += scale.mass(x);
        if (x > high) q.add_to_tile(c, x); else if (x >= low) bins.put(scale, x);
    });
    return q.b.sum(whole);  // its barrier also completes the bins
}

// The lowest key of those that the dtype cannot tell apart.. upwards: a bracket's end must be a value it can have.
DEV u32 round_key(u32 key) {
    return key >> 31 ? key & ~((1u << VALUE_BITS) - 1) : key | ((1u << VALUE_BITS) - 1);
}

// The cut of the nucleus and its masses by tiles, given the estimate; false (own = the row's mass): it was wrong.
DEV bool select_nucleus(Sampler& q, float top_p, Cut prior, bool keep_ties, Cut& cut, u64& own) {
    const float high = unordered(round_key(ordered(q.s.edge[0]))), low = fmaxf(q.s.edge[1], -FLT_MAX_);
    const Bins bins((u32*)q.s.spare, ordered(low), ordered(high), !q.o.active);  // changed logits have any fp32 value
#pragma unroll 1
    for (u32 i = q.b.tid; i < 2 * BINS; i += NT) bins.words[i] = 0;
    if (q.b.tid == 0) { q.s.found = 0; q.s.listed = 0; }
    __syncthreads();
    own = bracket_pass(q, prior.value, low, high, bins);
    STAGE(q, 9)
    u64 target = share(top_p, own), above = q.own_mass(), total, sum = 0, mass[BINS / NT];
#pragma unroll
    for (u32 e = 0; e < BINS / NT; ++e) sum += mass[e] = bins.mass(q.scale, q.b.tid * (BINS / NT) + e);
    u64 running = above + q.b.scan(sum, total);
#pragma unroll
    for (u32 e = 0; e < BINS / NT; ++e) {
        if (running < target && target - running <= mass[e]) {
            q.s.found = 1; q.s.pick_index = q.b.tid * (BINS / NT) + e; q.s.pick_rest = running;
        }
        running += mass[e];
    }
    __syncthreads();
    const bool found = q.s.found;
    const u32 top = bins.highest(q.s.pick_index), bottom = max(bins.lowest(q.s.pick_index), ordered(low));
    above = q.s.pick_rest;
    __syncthreads();
    if (!found) return false;
    const u32 gate = Sampler::gate_of(bottom >> 16);
    const float to = unordered(top == 0x7fffffffu ? top - 1 : top);
    const Scale scale = q.scale;
    q.r.each_tile(q.b, [&](u32 t, const Vec (&d)[4], bool any) {
        if (!any) return;
        u32 h = 0, l = 0;
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
            for (int e = 0; e < VEC; ++e) {
                float x = element(d[j].w[e / PER_WORD], e % PER_WORD);
                x = x > to && x <= high ? x : NEG_INF;  // above the range, hence kept by prior
                Scale::split(pow2(scale.exponent<false>(x)), h, l);
            }
        u64 more = Sampler::warp_sum(Scale::join(h, l, 4 * VEC));
        each_within(q, d, t, gate, unordered(bottom), to, [&](float x, u32 column) {
            if (prior.keeps(x, column)) q.append(order_key(x, column));
        });
        if (q.b.lane == 0) q.s.tile_mass[t - q.r.tile0] += more;
    });
    if (q.o.active) __syncthreads();
    q.o.each(q.b, [&](float x, u32 column) {
        if (ordered(x) < bottom || x > high || !prior.keeps(x, column)) return;
        if (ordered(x) > top) q.add_to_tile(column, x); else q.append(order_key(x, column));
    });
    STAGE(q, 10)
    u32 n;
    u64* keys = merged_list(q, n);
    if (!keys) return false;
    STAGE(q, 11)
    own = settle(q, true, target, above, prior, keep_ties, keys, n, cut);
    return true;
}
#endif
