// Numbers of the kernels: logits in their own dtype, ordered keys, Philox. No CUDA header is needed.
// Macros: DTYPE 0 = bf16, 1 = fp16, 2 = fp32.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;

#define FULL 0xffffffffu
#define DEV __device__ __forceinline__
#define PHASE static __device__ __noinline__  // called from several places: one copy of its code

struct alignas(16) Vec { u32 w[4]; };  // 16 bytes of logits

#if DTYPE == 2
typedef float Logit;
#define VEC 4
#define NEG_INF_WORD 0xff800000u
DEV u32 max_word(u32 a, u32 b) { return __float_as_uint(fmaxf(__uint_as_float(a), __uint_as_float(b))); }
DEV u32 max_nan_word(u32 a, u32 b) { u32 r; asm("max.NaN.f32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b)); return r; }
DEV bool has_nan(u32 w) { return __uint_as_float(w) != __uint_as_float(w); }
DEV float element(u32 word, int) { return __uint_as_float(word); }
DEV float to_float(Logit x) { return x; }
#define PER_WORD 1
#else
typedef u16 Logit;
#define VEC 8
#define PER_WORD 2
#if DTYPE == 0
#define NEG_INF_WORD 0xff80ff80u
DEV u32 max_word(u32 a, u32 b) { u32 r; asm("max.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b)); return r; }
DEV u32 max_nan_word(u32 a, u32 b) { u32 r; asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b)); return r; }
DEV bool has_nan(u32 w) { return (w & 0x7fffu) > 0x7f80u || (w & 0x7fff0000u) > 0x7f800000u; }
DEV float to_float(Logit x) { return __uint_as_float((u32)x << 16); }
DEV float element(u32 word, int half) { return __uint_as_float(half ? word & 0xffff0000u : word << 16); }
#else
#define NEG_INF_WORD 0xfc00fc00u
DEV u32 max_word(u32 a, u32 b) { u32 r; asm("max.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b)); return r; }
DEV u32 max_nan_word(u32 a, u32 b) { u32 r; asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b)); return r; }
DEV bool has_nan(u32 w) { return (w & 0x7fffu) > 0x7c00u || (w & 0x7fff0000u) > 0x7c000000u; }
DEV float to_float(Logit x) { float r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x)); return r; }
DEV float element(u32 word, int half) { return to_float((u16)(half ? word >> 16 : word & 0xffffu)); }
#endif
#endif

#define NEG_INF __uint_as_float(0xff800000u)
#define POS_INF __uint_as_float(0x7f800000u)
#define FLT_MAX_ __uint_as_float(0x7f7fffffu)
#define ORD_NEG_INF 0x007fffffu

// Order-preserving key of a float; -0 and +0 share one.
DEV u32 ordered(float x) {
    u32 b = __float_as_uint(x + 0.0f);
    return b ^ ((u32)((i32)b >> 31) | 0x80000000u);
}
DEV float unordered(u32 k) { return __uint_as_float(k & 0x80000000u ? k ^ 0x80000000u : ~k); }

// Total order of a row: value descending, column ascending = this key descending. No real key is 0.
DEV u64 order_key(float x, u32 column) { return ((u64)ordered(x) << 32) | (u32)~column; }
DEV float key_value(u64 key) { return unordered((u32)(key >> 32)); }
DEV u32 key_column(u64 key) { return ~(u32)key; }

DEV Vec load_vec(const void* p) {
    Vec v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]) : "l"(p));
    return v;
}

DEV float clamp_finite(float x, float limit) { return fminf(fmaxf(x, -limit), limit); }
DEV bool is_finite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }

// Philox4x32-10: key = seed, counter = (offset low, offset high, purpose, 0); words 0 and 1 are the 64 bits.
DEV u64 random_bits(u64 seed, u64 offset, u32 purpose) {
    u32 c0 = (u32)offset, c1 = (u32)(offset >> 32), c2 = purpose, c3 = 0;
    u32 k0 = (u32)seed, k1 = (u32)(seed >> 32);
#pragma unroll
    for (int i = 0; i < 10; ++i) {
        u64 a = (u64)0xD2511F53u * c0, b = (u64)0xCD9E8D57u * c2;
        c0 = (u32)(b >> 32) ^ c1 ^ k0; c1 = (u32)b;
        c2 = (u32)(a >> 32) ^ c3 ^ k1; c3 = (u32)a;
        k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
    }
    return (u64)c0 | ((u64)c1 << 32);
}
