// The ways to a row's token once its maximum is known: by a list, by one tile, by histograms (see sample.cu).

// All filters and the draw on a sorted list that holds every candidate, or, with whole > 0, the largest of a row whose
// mass is whole: then false if the nucleus does not end within the list.
DEV bool finish_list(Sampler& q, const Filters& f, const Output& out, u64* keys, u32 n, u64 whole, i32 status) {
    Block& b = q.b;
    u64* work = keys == q.s.list ? q.s.spare : q.s.list;
    u32 m = n;
    if (f.min_p > 0) {
        const float floor = f.floor(q.xmax);
        u32 mine = 0;
#pragma unroll 1
        for (u32 i = b.tid; i < n; i += NT) mine += key_value(keys[i]) > floor;
        m = b.sum32(mine);
    }
    if (f.top_k && (u32)f.top_k < m) {
        u32 k = f.top_k;
        if (f.keep_ties) {
            u32 mine = 0;
#pragma unroll 1
            for (u32 i = b.tid; i < m; i += NT) mine += key_value(keys[i]) >= key_value(keys[k - 1]);
            k = b.sum32(mine);
        }
        m = k;
    }
    const bool brief = m <= NT;  // one key a thread: its mass is taken once
    u64 total, sum = 0, own = 0;
    if (brief) {
        if (b.tid < m) own = q.scale.mass(key_value(keys[b.tid]));
        work[b.tid] = sum = own;
    } else {
        const u32 each = (m + NT - 1) / NT;
#pragma unroll 1
        for (u32 e = 0, i = b.tid * each; e < each && i < m; ++e, ++i) sum += q.scale.mass(key_value(keys[i]));
    }
    u64 running = b.scan(sum, total), mass = total;
    if (f.nucleus()) {
        u64 target = share(f.top_p, whole ? whole : total);
        if (target > total) return false;
        if (brief) {
            if (running < target && target - running <= own) { q.s.pick_index = b.tid + 1; q.s.pick_mass = running + own; }
        } else {
            const u32 each = (m + NT - 1) / NT;
#pragma unroll 1
            for (u32 e = 0, i = b.tid * each; e < each && i < m; ++e, ++i) {
                u64 w = q.scale.mass(key_value(keys[i]));
                if (running < target && target - running <= w) { q.s.pick_index = i + 1; q.s.pick_mass = running + w; }
                running += w;
            }
        }
        __syncthreads();
        u32 cut = q.s.pick_index;
        mass = q.s.pick_mass;
        if (f.keep_ties) {
            float last = key_value(keys[cut - 1]);
            u32 mine = 0;
#pragma unroll 1
            for (u32 i = b.tid; i < m; i += NT) mine += key_value(keys[i]) >= last;
            mine = b.sum32(mine);
            if (whole && mine == n) return false;  // ties may go on outside the list
            mass += (mine - cut) * q.scale.mass(last);
            cut = mine;
        }
        m = cut;
    }
    const Cut cut = {key_value(keys[m - 1]), key_column(keys[m - 1]) + 1};
    const u64 target = high64(f.bits, mass);
    if (!brief) {
        u32 column = pick_in_column_order(b, q.scale, keys, m, target, q.r.limit, work, q.s.result);
        if (b.tid == 0) out.drawn(column, cut, q.xmax, mass, f.temperature, status);
        return true;
    }
    u64 at_key, at = running_in_column_order(b, keys, work, m, at_key);
    if (at > target && at - at_key <= target) out.drawn(running_column(b, keys, m), cut, q.xmax, mass, f.temperature, status);
    return true;
}

#if C == 1
// The allowed logits of a row with few of them, gathered one by one; sorted, or for greedy rows just the best in front.
DEV u64* gather_sparse(Sampler& q, bool greedy, u32& n, i32& status) {
#pragma unroll 1
    for (u32 i = 4 * q.b.tid; i < q.r.tiles * TILE_WORDS; i += 4 * NT) {
        const Vec v = *(const Vec*)(q.r.mask + i);
        u32 count = __popc(v.w[0]) + __popc(v.w[1]) + __popc(v.w[2]) + __popc(v.w[3]);
        if (!count) continue;
        u32 at = atomicAdd(&q.s.listed, count);
#pragma unroll
        for (u32 k = 0; k < 4; ++k)
            for (u32 w = v.w[k]; w; w &= w - 1) q.s.list[at++] = q.r.first_column() + (i + k) * 32 + __ffs(w) - 1;
    }
    __syncthreads();
    n = q.s.listed;
    if (OVERLAY) __syncthreads();  // all have read the number before anyone appends
    bool nan = false;
#pragma unroll 1
    for (u32 i = q.b.tid; i < n; i += NT) {
        u32 column = (u32)q.s.list[i];
        float x = to_float(q.r.base[column]);
        nan |= x != x;
        q.s.list[i] = x > NEG_INF ? order_key(x, column) : 0;
    }
    q.o.each(q.b, [&](float x, u32 column) {
        nan |= x != x;
        if (x > NEG_INF) q.append(order_key(x, column));
    });
    if (__syncthreads_or(nan)) status |= NAN_SEEN;
    u32 listed = q.s.listed, valid = 0;
    if (greedy) {
        u64 best = 0;
#pragma unroll 1
        for (u32 i = q.b.tid; i < listed; i += NT) best = best > q.s.list[i] ? best : q.s.list[i];
        best = q.b.max(best);
        if (q.b.tid == 0) q.s.spare[0] = best;
        n = best != 0;
        __syncthreads();
        return q.s.spare;
    }
#pragma unroll 1
    for (u32 i = q.b.tid; i < listed; i += NT) valid += q.s.list[i] != 0;
    n = q.b.sum32(valid);
    return GREEDY_ONLY ? nullptr : sort_list(q.b, q.s.list, listed, q.s.spare);
}
#endif

// After the first pass: the keys of the largest dense logit (with its tile) and of the largest changed one, 0 for none; NaN.
DEV void row_maximum(Sampler& q, const Sampler::Peak& p, u64& dense, u64& changed) {
    changed = 0;
    q.nan = has_nan(p.nan_word);
    q.o.each(q.b, [&](float x, u32 column) {
        q.nan |= x != x;
        if (x > NEG_INF) changed = changed > order_key(x, column) ? changed : order_key(x, column);
    });
    if (q.nan) q.s.nan = 1;  // seen by all after the barrier of the maximum
    dense = q.b.max(p.best > NEG_INF ? (u64)ordered(p.best) << 32 | (u32)~p.tile : 0);
    q.nan = q.s.nan;
    if (q.o.active) changed = q.b.max(changed);
#if C > 1
    const u64* slot = q.b.show(dense, changed, q.nan);
    dense = q.b.peek_max(slot);
    if (OVERLAY) changed = q.b.peek_max(slot + 1);
    q.nan = q.b.peek_max(slot + 2) != 0;
#endif
    q.xmax = unordered((u32)((dense > changed ? dense : changed) >> 32));
}

DEV void finish_one_hot(Sampler& q, const Output& out, u64 dense, u64 changed, i32 status) {
    u32 tile = ~(u32)dense;
    bool dense_wins = dense >> 32 >= changed >> 32 && dense;
    if (!dense_wins) {
        if (q.b.rank == 0 && q.b.tid == 0) out.one_hot(key_column(changed), key_value(changed), status);
        return;
    }
    if (tile - q.r.tile0 >= q.r.tiles || q.b.warp != 0) return;
    Vec d[4];
    float top = unordered((u32)(dense >> 32));
    u32 first = ~0u;
    if (q.r.load(tile, q.b.lane, d))
        each_element(d, tile, q.b.lane, [&](float x, u32 column) { if (x == top) first = min(first, column); });
    first = __reduce_min_sync(FULL, first);
    if (dense >> 32 == changed >> 32) first = min(first, key_column(changed));
    if (q.b.lane == 0) out.one_hot(first, top, status);
}

#if !GREEDY_ONLY
// All of the row that reach a common bound, in the leader, sorted. False: too many.
DEV bool list_above(Sampler& q, const Sampler::Peak& p, float bound, u64*& keys, u32& n) {
    q.relist(p, bound);
    __syncthreads();
    STAGE(q, 13)
    n = q.s.listed;
    keys = nullptr;
#if C > 1
    const u64* slot = q.b.show(n);
    u32 there = q.b.lane < C ? (u32)q.b.peek(slot, q.b.lane) : 0, counts[C];
    n = 0;
    bool over = false;
#pragma unroll
    for (u32 peer = 0; peer < C; ++peer) {
        counts[peer] = __shfl_sync(FULL, there, peer);
        over |= counts[peer] > LIST_CAP;
        n += counts[peer];
    }
    if (over || n > SPARE_CAP) return false;
    if (q.b.rank == 0) {
        u32 at = 0;
#pragma unroll
        for (u32 peer = 0; peer < C; ++peer) {  // each peer's list by its own threads, all at once
            if (q.b.tid / (NT / C) == peer)
                for (u32 i = q.b.tid % (NT / C); i < counts[peer]; i += NT / C) q.s.spare[at + i] = q.b.peek(&q.s.list[i], peer);
            at += counts[peer];
        }
    }
    q.b.cluster_sync();  // all lists have been read
    if (q.b.rank == 0) keys = sort_list(q.b, q.s.spare, n, q.s.list);
#else
    if (n > LIST_CAP) return false;
    keys = sort_list(q.b, q.s.list, n, q.s.spare);
#endif
    return true;
}

// At least the k largest of the row (all that reach a common bound), in the leader, sorted; bound: that bound. False: too
// many, the row goes on by histograms.
DEV bool merge_candidates(Sampler& q, Sampler::Peak& p, u32 k, u64*& keys, u32& n) {
    u32 key, part;
    q.kth_lanes(p.lane0(), p.lane1(), k, C > 1 ? (k + C - 1) / C : 0, key, part);
#if C > 1  // the best common bound: any CTA's k-th, or the least of all their (k / C)-ths
    const u64* slot = q.b.show(key, ~part);
    key = max((u32)q.b.peek_max(slot), ~(u32)q.b.peek_max(slot + 1));
#endif
    STAGE(q, 12)
    return list_above(q, p, q.bound_of(key), keys, n);
}

// Rows whose filters end outside any list, and those of extreme temperatures. A copy of the state: its original stays in registers.
PHASE void by_histogram(Sampler q, const Filters& f, const Output& out, Cut cut, u64 own, i32 status) {
    if (q.scale.far) own = q.masses_exactly(cut);
    u64 before, whole = q.b.cluster_sum(own, before);
    if (f.top_k && select(q, false, f.top_k, cut, f.keep_ties, cut, own)) whole = q.b.cluster_sum(own, before);
    if (f.nucleus() && select(q, true, share(f.top_p, whole), cut, f.keep_ties, cut, own))
        whole = q.b.cluster_sum(own, before);
    u32 column;
    if (q.draw(cut, own, before, high64(f.bits, whole), column) && q.b.tid == 0)
        out.drawn(column, cut, q.xmax, whole, f.temperature, status);
}
#endif

#if SAMPLING
PHASE bool draw_nucleus(const Sampler& from, const Filters& f, const Output& out, Cut cut, u64& own, i32 status) {
    Sampler q(from, *(Smem*)shared_bytes, (u32*)(shared_bytes + SMEM_FIXED));
    if (!select_nucleus(q, f.top_p, cut, f.keep_ties, cut, own)) return false;
    u32 column;
    if (q.draw(cut, own, 0, high64(f.bits, own), column) && q.b.tid == 0)
        out.drawn(column, cut, q.xmax, own, f.temperature, status);
    return true;
}
#endif
