// The peers' own kernels behind a C interface, for the side-by-side table: FlashInfer's samplers (headers of its wheel)
// and xgrammar's mask kernel (its .cu file with the torch part cut off). Built by benchmarks/peers/build.sh.
#include <flashinfer/sampling.cuh>
#include "xgrammar_kernel.cuh"

using namespace flashinfer::sampling;

extern "C" {
int fi_softmax(float* logits, float* out, unsigned rows, unsigned width, void* work, size_t bytes, cudaStream_t s) {
    return OnlineSoftmax<float>(logits, out, rows, width, nullptr, 1.0f, work, bytes, false, s);
}
int fi_sample(float* probs, int* out, bool* valid, unsigned rows, unsigned width, uint64_t seed, cudaStream_t s) {
    return SamplingFromProb<float, int>(probs, out, valid, nullptr, rows, width, true, nullptr, seed, nullptr, 0, s);
}
int fi_top_k(float* probs, int* out, bool* valid, unsigned rows, unsigned width, unsigned k, uint64_t seed, cudaStream_t s) {
    return TopKSamplingFromProb<float, int>(probs, out, valid, nullptr, nullptr, rows, k, width, true, nullptr, seed, nullptr, 0, s);
}
int fi_top_p(float* probs, int* out, bool* valid, unsigned rows, unsigned width, float p, uint64_t seed, cudaStream_t s) {
    return TopPSamplingFromProb<float, int>(probs, out, valid, nullptr, nullptr, rows, p, width, true, nullptr, seed, nullptr, 0, s);
}
int fi_min_p(float* probs, int* out, bool* valid, unsigned rows, unsigned width, float p, uint64_t seed, cudaStream_t s) {
    return MinPSamplingFromProb<float, int>(probs, nullptr, out, valid, nullptr, rows, p, width, true, nullptr, seed, nullptr, 0, s);
}
int fi_top_k_top_p(float* probs, int* out, bool* valid, unsigned rows, unsigned width, int k, float p, uint64_t seed, cudaStream_t s) {
    return TopKTopPSamplingFromProb<float, int>(probs, nullptr, nullptr, out, valid, nullptr, rows, k, p, width, true, nullptr, seed, nullptr, 0, s);
}
// The first step of its top-k-first path: the k largest of each row, sorted.
int fi_largest_f32(float* logits, int* ids, float* values, unsigned rows, unsigned k, unsigned width, void* states, cudaStream_t s) {
    return TopKDispatch<float, int>(logits, ids, values, rows, k, width, (RadixRowState*)states, true, true, TopKTieBreak::None, s, false);
}
int fi_largest_bf16(__nv_bfloat16* logits, int* ids, __nv_bfloat16* values, unsigned rows, unsigned k, unsigned width, void* states, cudaStream_t s) {
    return TopKDispatch<__nv_bfloat16, int>(logits, ids, values, rows, k, width, (RadixRowState*)states, true, true, TopKTieBreak::None, s, false);
}
int xg_mask_f32(float* logits, const int* mask, int width, int words, int rows, cudaStream_t s) {
    xg_stream = s;
    ApplyTokenBitmaskInplaceDispatchToPackedT<float>(logits, mask, nullptr, width, width, words, rows);
    return cudaGetLastError();
}
int xg_mask_bf16(__nv_bfloat16* logits, const int* mask, int width, int words, int rows, cudaStream_t s) {
    xg_stream = s;
    ApplyTokenBitmaskInplaceDispatchToPackedT<__nv_bfloat16>(logits, mask, nullptr, width, width, words, rows);
    return cudaGetLastError();
}
}
