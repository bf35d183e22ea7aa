// The nucleus of a bf16 row by its values: the first pass counts each logit under its own value (shared memory, one native
// atomic a logit), so that a few thousand counts tell the mass of the row, where the nucleus ends and how many of its last
// value belong to it, all exactly. Short nuclei are then listed, long ones drawn from in a second pass over the logits.
// Magnitudes from 2^-16 to below 2^16 have bins, two each (sign); what is nearer to zero is listed by itself.

#define VALUES (DTYPE == 0 && !GREEDY_ONLY)
#define VALUE_BINS (2 * LIST_CAP)
#define LEAST_CODE 0x6f00u  // of 2^-16, rotated left by one as below: sign in the lowest bit
#define BEYOND 65536.0f
#define STRAYS_MAX (2 * SPARE_CAP - 2)
#define SHORT_NUCLEUS NT

#if VALUES
DEV void count_stray(Smem& s, u32 code) {
    if (code >= LEAST_CODE) return;
    if (code < 2) { atomicAdd(&s.zeros, 1u); return; }
    u32 at = atomicAdd(&s.strays, 1u);
    if (at < STRAYS_MAX) ((u32*)s.spare)[2 + at] = code;
}
// What has no bin (-inf and NaN, too) is counted behind the last one, in `spare`, where nobody looks: cheaper than branches.
DEV void count_values(Smem& s, const Vec (&d)[4]) {
    u32* bins = (u32*)s.list;
    u32 signs = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            u32 w = d[j].w[k], code = (w << 1 & 0xfffefffeu) | (w >> 15 & 0x00010001u);
            u32 low = (code & 0xffffu) - LEAST_CODE, high = (code >> 16) - LEAST_CODE;
            atomicAdd(&bins[min(low, (u32)VALUE_BINS)], 1u);
            atomicAdd(&bins[min(high, (u32)VALUE_BINS)], 1u);
            signs |= low | high;
        }
    if (signs >> 31)
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                count_stray(s, d[j].w[k] << 1 & 0xfffeu | d[j].w[k] >> 15 & 1);
                count_stray(s, d[j].w[k] >> 15 & 0xfffeu | d[j].w[k] >> 31);
            }
}

// Positions are values in descending order: the positive ones, then the negative ones.
DEV u32 bin_at(u32 position) {
    return position < VALUE_BINS / 2 ? VALUE_BINS - 2 - 2 * position : 2 * position - VALUE_BINS + 1;
}
DEV float value_of(u32 code) { return __uint_as_float((code >> 1 | (code & 1) << 15) << 16); }
DEV float value_at(u32 position) { return value_of(bin_at(position) + LEAST_CODE); }

struct ValueCut {
    u64 whole, kept;   // mass of what min_p leaves, and of the nucleus
    float value;       // the last one kept,
    u32 ties, count;   // so many times; logits at least as large
};

DEV bool values_suffice(const Sampler& q) { return q.xmax < BEYOND && q.scale.exponent<false>(-BEYOND) < -46.0f; }

// Where the nucleus ends; false: among the values that have no bin.
DEV bool find_value_cut(Sampler& q, float top_p, bool keep_ties, float floor, ValueCut& c) {
    Block& b = q.b;
    const u32* bins = (const u32*)q.s.list;
    const u32 per = VALUE_BINS / (C * WARPS), first = (b.rank * WARPS + b.warp) * per;
    auto count_at = [&](u32 position) {
        u32 n = 0;
#pragma unroll
        for (u32 peer = 0; peer < C; ++peer) n += b.peek32(&bins[bin_at(position)], peer);
        return value_at(position) > floor ? n : 0;
    };
    u64 mass = 0, middle = 0;
    u32 count = 0, middle_count = q.s.zeros + q.s.strays;
    const bool over = q.s.strays > STRAYS_MAX;
#pragma unroll 4
    for (u32 i = b.lane; i < per; i += 32) {
        u32 n = count_at(first + i);
        count += n;
        mass += n * q.scale.mass(value_at(first + i));
    }
    if (middle_count && !over) {
        if (b.tid == 0 && 0 > floor) middle = q.s.zeros * q.scale.mass(0.0f);
        for (u32 i = b.tid; i < q.s.strays; i += NT) {
            float x = value_of(((const u32*)q.s.spare)[2 + i]);
            if (x > floor) middle += q.scale.mass(x);
        }
        middle = b.sum(middle);
    }
#pragma unroll
    for (int d = 16; d; d >>= 1) mass += __shfl_xor_sync(FULL, mass, d);
    count = __reduce_add_sync(FULL, count);
    if (b.lane == 0) { q.s.tile_mass[b.warp] = mass; q.s.tile_mass[WARPS + b.warp] = count; }
    if (b.tid == 0) { q.s.found = q.s.pick_index = 0; q.s.pick_rest = q.s.pick_mass = 0; }
    __syncthreads();
    u64 before = 0, total = 0;
    u32 count_before = 0, counts = 0;
#pragma unroll
    for (u32 w = 0; w < WARPS; ++w) {
        if (w == b.warp) { before = total; count_before = counts; }
        total += q.s.tile_mass[w];
        counts += (u32)q.s.tile_mass[WARPS + w];
    }
    bool beyond = over;
#if C > 1
    const u64* slot = b.show(total, (u64)middle_count << 32 | counts, middle, over);
    u64 totals = b.lane < C ? b.peek(slot, b.lane) : 0, both = b.lane < C ? b.peek(slot + 1, b.lane) : 0;
    u64 middles = b.lane < C ? b.peek(slot + 2, b.lane) : 0;
    beyond = b.peek_max(slot + 3) != 0;
    total = middle = 0;
    middle_count = 0;
#pragma unroll
    for (u32 r = 0; r < C; ++r) {
        u64 part = __shfl_sync(FULL, totals, r), n = __shfl_sync(FULL, both, r);
        if (r < b.rank) { before += part; count_before += (u32)n; }
        total += part;
        middle_count += (u32)(n >> 32);
        middle += __shfl_sync(FULL, middles, r);
    }
#endif
    if (first >= VALUE_BINS / 2) { before += middle; count_before += middle_count; }
    c.whole = total + middle;
    const u64 target = share(top_p, c.whole);
    if (before < target && target - before <= mass)
        for (u32 i = b.lane; ; i += 32) {  // ends: the warp holds the crossing
            u32 n = count_at(first + i), n_sum = n;
            u64 w = q.scale.mass(value_at(first + i)), sum = n * w;
#pragma unroll
            for (int d = 1; d < 32; d <<= 1) {
                u64 o = __shfl_up_sync(FULL, sum, d);
                u32 p = __shfl_up_sync(FULL, n_sum, d);
                if (b.lane >= d) { sum += o; n_sum += p; }
            }
            u64 running = before + sum - n * w;
            bool here = running < target && target - running <= n * w;
            if (here) {
                u64 ties = keep_ties ? n : (target - running + w - 1) / w;
                q.s.found = first + i + 1; q.s.pick_index = count_before + n_sum;
                q.s.pick_rest = ties; q.s.pick_mass = running + ties * w;
            }
            if (__any_sync(FULL, here)) break;
            before += __shfl_sync(FULL, sum, 31);
            count_before += __shfl_sync(FULL, n_sum, 31);
        }
    __syncthreads();
    u32 found = q.s.found;
    c.ties = (u32)q.s.pick_rest; c.kept = q.s.pick_mass; c.count = q.s.pick_index;
#if C > 1
    slot = b.show(found, c.kept, c.ties, c.count);
    found = (u32)b.peek_max(slot); c.kept = b.peek_max(slot + 1);
    c.ties = (u32)b.peek_max(slot + 2); c.count = (u32)b.peek_max(slot + 3);
#endif
    c.value = value_at(found - 1);
    return found && !beyond;
}

// The column after the last kept of the tied ones, given the tile that holds it and how many of that tile are kept.
DEV u32 tie_column(Sampler& q, float value, u32 tile, u32 need) {
    const u32 each = TILE_COLS / NT, first = (q.r.tile0 + tile) * TILE_COLS + q.b.tid * each;
    u32 hit = 0;
#pragma unroll
    for (u32 e = 0; e < each; ++e) hit |= (u32)(q.r.at(first + e) == value) << e;
    u64 total, running = q.b.scan(__popc(hit), total);
#pragma unroll
    for (u32 e = 0; e < each; ++e)
        if (hit >> e & 1 && ++running == need) q.s.result = first + e + 1;
    __syncthreads();
    return q.s.result;
}

// The second pass: masses above the value and its ties by tiles, then the draw.
DEV void draw_by_values(Sampler& q, const Filters& f, const Output& out, const ValueCut& c, i32 status) {
    Block& b = q.b;
    u32* tied = (u32*)q.s.spare;
    const float value = c.value;
    const Scale scale = q.scale;
    q.r.each_tile_backwards(b, [&](u32 t, const Vec (&d)[4], bool any) {
        u32 high = 0, low = 0, n = 0;
        u64 mass = 0;
        if (any) {
#pragma unroll
            for (int j = 0; j < 4; ++j)
#pragma unroll
                for (int e = 0; e < VEC; ++e) {
                    float x = element(d[j].w[e / PER_WORD], e % PER_WORD);
                    n += x == value;
                    x = x > value ? x : NEG_INF;
                    Scale::split(pow2(scale.exponent<false>(x)), high, low);
                }
            mass = Sampler::warp_sum(Scale::join(high, low, 4 * VEC));
            n = __reduce_add_sync(FULL, n);
        }
        if (b.lane == 0) { q.s.tile_mass[t - q.r.tile0] = mass; tied[t - q.r.tile0] = n; }
    });
    __syncthreads();
    const bool have = b.tid < q.r.tiles;
    const u64 w = scale.mass(value), above = have ? q.s.tile_mass[b.tid] : 0;
    const u32 mine = have ? tied[b.tid] : 0;
    u64 ties, own = b.sum(above), at = b.scan(mine, ties), before = 0, ties_before = 0;
#if C > 1
    const u64* slot = b.show(own, ties);
    u64 masses = b.lane < C ? b.peek(slot, b.lane) : 0, counts = b.lane < C ? b.peek(slot + 1, b.lane) : 0;
#pragma unroll
    for (u32 r = 0; r < C; ++r) {
        u64 part = __shfl_sync(FULL, masses, r), n = __shfl_sync(FULL, counts, r);
        if (r < b.rank) { before += part; ties_before += n; }
    }
#endif
    const u64 need = c.ties, here = need > ties_before ? min(need - ties_before, ties) : 0;  // of this slice
    const u64 kept = at < here ? min(here - at, (u64)mine) : 0;                              // of this thread's tile
    if (have) q.s.tile_mass[b.tid] = above + kept * w;
    own += here * w;
    before += min(need, ties_before) * w;
    Cut cut = {value, ties_before + ties <= need ? ~0u : 0u};
    if (here && ties_before + here == need) {
        if (kept && at + kept == here) { q.s.pick_index = b.tid; q.s.pick_rest = kept; }
        __syncthreads();
        cut.cols = tie_column(q, value, q.s.pick_index, (u32)q.s.pick_rest);
        if (b.tid == 0) out.descriptor(q.xmax, value, (i32)cut.cols - 1, c.kept, f.temperature);
        __syncthreads();  // the draw writes where this was read
    }
    u32 column;
    if (q.draw(cut, own, before, high64(f.bits, c.kept), column) && b.tid == 0) out.token((i32)column, status);
}

// A whole row under top-p, in a function of its own: other rows keep their registers.
PHASE void nucleus_row(const Sampler& from, const Filters& f, const Output& out) {
    Sampler q(from, *(Smem*)shared_bytes, (u32*)(shared_bytes + SMEM_FIXED));
    Sampler::Peak p = q.first_pass_with([&](const Vec (&d)[4]) { count_values(q.s, d); });
    STAGE(q, 2)
    u64 dense, changed;
    row_maximum(q, p, dense, changed);
    STAGE(q, 3)
    i32 status = q.nan ? NAN_SEEN : 0;
    if (!dense) {
        if (q.b.rank == 0 && q.b.tid == 0) out.nothing(status | DEAD);
        return;
    }
    if (q.xmax == POS_INF) return finish_one_hot(q, out, dense, 0, status | POS_INF_SEEN);
    q.scale = Scale::of(q.xmax, f.temperature);
    const Cut prior = {f.floor(q.xmax), 0};
    ValueCut c;
    if (q.scale.far || !values_suffice(q) || !find_value_cut(q, f.top_p, f.keep_ties, prior.value, c)) {
        by_histogram(q, f, out, prior, q.scale.far ? 0 : q.masses(prior), status);
        return;
    }
    STAGE(q, 4)
    if (c.count > SHORT_NUCLEUS || f.keep_ties) return draw_by_values(q, f, out, c, status);
    u64* keys;
    u32 n;
    if (q.b.tid == 0) q.s.listed = 0;
    q.b.cluster_sync();  // all counts have been read
    list_above(q, p, c.value, keys, n);
    STAGE(q, 5)
    if (keys) finish_list(q, f, out, keys, n, c.whole, status);  // keys: in the leader alone
}
#endif
