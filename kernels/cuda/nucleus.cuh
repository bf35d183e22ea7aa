// Flat rows under top-p (C = 1): a sample kept from the first pass tells about where the nucleus ends; the pass over the
// masses then counts exactly what lies above that bracket and bins what lies in it, so one more pass is enough.

#define SAMPLING (C == 1 && !GREEDY_ONLY)
#define SAMPLED_TILES 256
#define BINS SPARE_CAP
#define DEPTH 45.0f  // the bins of the estimate span so many powers of two below the maximum

#if SAMPLING
// Estimates the bracket [edge[1], edge[0]] of the crossing from the sample below `bound` and the lane maxima above it.
// True if it reaches below the bound, so that a list of the largest logits will hardly do.
DEV bool nucleus_beyond(Sampler& q, const Sampler::Peak& p, float bound, float top_p, u32 step) {
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
    const u32 per = BINS / NT;
    float mass[per];
    u64 sum = 0, listed = 0, squares = 0, total;
#pragma unroll
    for (u32 e = 0; e < per; ++e) {
        u32 i = q.b.tid * per + e;
        float w = pow2(-(i + 0.5f) * width), top = w * tops[i], one = w * each;
        mass[e] = top + one * rests[i];
        sum += (u64)(mass[e] * 1048576.0f);
        listed += (u64)(top * 1048576.0f);
        squares += (u64)(one * one * rests[i] * 1048576.0f);
    }
    u64 running = q.b.scan(sum, total);
    float spread = 3.0f * sqrtf((float)q.b.sum(squares) * 1048576.0f) + 0.06f * (float)q.b.sum(listed) + 0.002f * (float)total;
    float target = top_p * (float)total, first = target - spread, last = target + spread;
    if (q.b.tid == 0) { q.s.edge[0] = q.xmax; q.s.edge[1] = q.xmax - (DEPTH + 1) / q.scale.c; }
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
    return q.s.edge[1] < bound;
}

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
        for (; hits; hits &= hits - 1)
            f(element_of(d[j], __ffs(hits) - 1), (tile * TILE_VECS + j * 32 + q.b.lane) * VEC + __ffs(hits) - 1);
    }
}

// Masses of the row: tile_mass has what lies above `high`, the bins (by ordered keys) what lies in [low, high].
DEV u64 bracket_pass(Sampler& q, float floor, float low, float high, u32 key, u32 shift) {
    u32* words = (u32*)q.s.spare;
    const u32 gate = Sampler::gate_of(ordered(low) >> 16);
    u64 whole = 0;
    const Scale scale = q.scale;
    auto put = [&](float x, u32) {
        u32 bin = (key - ordered(x)) >> shift;
        add_u64(&words[bin], &words[BINS + bin], scale.mass(x));
    };
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
            each_within(q, d, t, gate, low, high, [&](float x, u32 c) { if (x > floor) put(x, c); });
        }
        if (q.b.lane == 0) q.s.tile_mass[t - q.r.tile0] = above;
    });
    if (q.b.lane) whole = 0;
    if (q.o.active) __syncthreads();
    q.o.each(q.b, [&](float x, u32 c) {
        if (!(x > floor)) return;
        whole += q.scale.mass(x);
        if (x > high) q.add_to_tile(c, x); else if (x >= low) put(x, c);
    });
    return q.b.sum(whole);  // its barrier also completes the bins
}

// The cut of the nucleus and its masses by tiles, given the estimate; false (own = the row's mass): it was wrong.
DEV bool select_nucleus(Sampler& q, float top_p, Cut prior, bool keep_ties, Cut& cut, u64& own) {
    u32* words = (u32*)q.s.spare;
    float high = q.s.edge[0], low = fmaxf(q.s.edge[1], -FLT_MAX_);
    u32 key = ordered(high), from = ordered(low);
    u32 shift = key > from ? (u32)max(21 - __clz(key - from), 0) : 0;
#pragma unroll 1
    for (u32 i = q.b.tid; i < 2 * BINS; i += NT) words[i] = 0;
    if (q.b.tid == 0) { q.s.found = 0; q.s.listed = 0; }
    __syncthreads();
    u64 whole = bracket_pass(q, prior.value, low, high, key, shift), target = share(top_p, whole), above = q.own_mass();
    const u32 per = BINS / NT;
    u64 bins[per], sum = 0, total;
#pragma unroll
    for (u32 e = 0; e < per; ++e) {
        u32 i = q.b.tid * per + e;
        bins[e] = (u64)words[i] | (u64)words[BINS + i] << 32;
        sum += bins[e];
    }
    u64 running = above + q.b.scan(sum, total);
#pragma unroll
    for (u32 e = 0; e < per; ++e) {
        if (running < target && target - running <= bins[e]) {
            q.s.found = 1; q.s.pick_index = q.b.tid * per + e; q.s.pick_rest = running;
        }
        running += bins[e];
    }
    __syncthreads();
    own = whole;
    const bool found = q.s.found;
    const u32 top = key - (q.s.pick_index << shift), bottom = max(from, top - min(top, (1u << shift) - 1));
    above = q.s.pick_rest;
    __syncthreads();
    if (!found) return false;
    const u32 gate = Sampler::gate_of(bottom >> 16);
    auto sort_out = [&](float x, u32 column) {
        u32 k = ordered(x);
        if (k < bottom || x > high || !prior.keeps(x, column)) return;
        if (k > top) q.add_to_tile(column, x); else q.append(order_key(x, column));
    };
    q.r.each_tile(q.b, [&](u32 t, const Vec (&d)[4], bool any) {
        if (any) each_within(q, d, t, gate, unordered(bottom), high, sort_out);
    });
    q.o.each(q.b, sort_out);
    u32 n;
    u64* keys = merged_list(q, n);
    if (!keys) return false;
    own = settle(q, true, target, above, prior, keep_ties, keys, n, cut);
    return true;
}
#endif
