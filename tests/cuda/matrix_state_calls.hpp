#pragma once
// The calls of test_cuda_matrix_state.cpp, each with the family of kernels that it must run by.

#include <ostream>

#include "optimized/cuda/matrix_state.hpp"

namespace lethe {

constexpr int64_t kHeads = 2;

struct Call {
  const char *name, *family;
  MatrixStateForm form;
  int64_t rows, columns;
  Dtype dtype = Dtype::kBFloat16;
  int64_t length = 130;  // two chunks of 64 tokens and two tokens of a third
  bool states = true;    // an initial state, a gradient of the last one; without them zeros
  int64_t batch = 2;

  int64_t all_heads() const { return batch * kHeads; }
};
inline void PrintTo(const Call& call, std::ostream* out) { *out << call.name; }
inline Shape shape_of(const Call& call) {
  return {.batch = call.batch,
          .query_length = call.length,
          .key_length = call.length,
          .heads = kHeads,
          .query_heads = kHeads,
          .key_dim = call.rows,
          .value_dim = call.columns};
}

constexpr MatrixStateForm kNone{}, kToken{.key_gate = MatrixStateForm::Gate::kToken},
    kKey{.key_gate = MatrixStateForm::Gate::kKey}, kBoth{.key_gate = MatrixStateForm::Gate::kKey, .value_gate = true},
    kNormalized{.key_gate = MatrixStateForm::Gate::kToken, .normalize = true}, kDelta{.delta = true},
    kTokenDelta{.key_gate = MatrixStateForm::Gate::kToken, .delta = true},
    kKeyDelta{.key_gate = MatrixStateForm::Gate::kKey, .delta = true};
constexpr const char *kChunks = "chunk kernels", *kVectors = "vector gate kernels", *kDeltas = "delta chunk kernels",
                     *kDeltaKeys = "delta key gate kernels", *kScans = "scan kernels";

inline const Call kCalls[] = {
    {"none_64x64", kChunks, kNone, 64, 64},
    {"token_64x64", kChunks, kToken, 64, 64},
    {"token_float16_64x64", kChunks, kToken, 64, 64, Dtype::kFloat16},
    {"none_in_segments_64x64", kChunks, kNone, 64, 64, Dtype::kBFloat16, 1100},
    {"none_in_segments_128x64", kChunks, kNone, 128, 64, Dtype::kBFloat16, 600},
    {"token_in_segments_64x64", kChunks, kToken, 64, 64, Dtype::kBFloat16, 1100},
    {"token_in_segments_float16_40x24", kChunks, kToken, 40, 24, Dtype::kFloat16, 600},
    {"normalized_in_segments_64x64", kChunks, kNormalized, 64, 64, Dtype::kBFloat16, 600},
    {"token_in_segments_128x64", kChunks, kToken, 128, 64, Dtype::kBFloat16, 600},
    {"token_in_segments_float16_128x64", kChunks, kToken, 128, 64, Dtype::kFloat16, 600},
    {"none_of_many_chunks_64x128", kChunks, kNone, 64, 128, Dtype::kBFloat16, 600},
    {"none_of_many_chunks_128x128", kChunks, kNone, 128, 128, Dtype::kFloat16, 600},
    {"token_in_segments_64x128", kChunks, kToken, 64, 128, Dtype::kFloat16, 600},
    {"token_in_segments_128x128", kChunks, kToken, 128, 128, Dtype::kBFloat16, 600},
    {"token_in_segments_40x72", kChunks, kToken, 40, 72, Dtype::kBFloat16, 600},
    {"token_in_segments_without_states_96x72", kChunks, kToken, 96, 72, Dtype::kFloat16, 600, false},
    {"none_64x128", kChunks, kNone, 64, 128},
    {"token_40x24", kChunks, kToken, 40, 24},
    {"token_128x64", kChunks, kToken, 128, 64},
    {"token_128x128", kChunks, kToken, 128, 128},
    {"token_256x64", kChunks, kToken, 256, 64},
    {"normalized_64x64", kChunks, kNormalized, 64, 64},
    {"key_64x64", kVectors, kKey, 64, 64},
    {"key_40x24", kVectors, kKey, 40, 24},
    {"key_128x128", kVectors, kKey, 128, 128},
    {"key_float16_64x64", kVectors, kKey, 64, 64, Dtype::kFloat16},
    {"key_and_value_32x64", kVectors, kBoth, 32, 64},
    {"key_and_value_64x64", kVectors, kBoth, 64, 64},
    // two heads for each multiprocessor of an H200: a CTA a head, of two chunks and of one
    {"key_and_value_of_whole_heads_32x64", kVectors, kBoth, 32, 64, Dtype::kBFloat16, 33, true, 132},
    {"key_and_value_of_whole_heads_40x24", kVectors, kBoth, 40, 24, Dtype::kBFloat16, 17, true, 132},
    {"delta_64x64", kDeltas, kDelta, 64, 64},
    {"delta_128x128", kDeltas, kDelta, 128, 128},
    {"delta_token_64x64", kDeltas, kTokenDelta, 64, 64},
    {"delta_token_40x24", kDeltas, kTokenDelta, 40, 24},
    {"delta_token_128x128", kDeltas, kTokenDelta, 128, 128},
    // more chunks than a sweep has stages; one chunk, alone and with a token of the next; no states
    {"delta_of_many_chunks_128x128", kDeltas, kDelta, 128, 128, Dtype::kFloat16, 450},
    {"delta_token_of_many_chunks_128x128", kDeltas, kTokenDelta, 128, 128, Dtype::kFloat16, 450},
    {"delta_token_of_many_chunks_64x64", kDeltas, kTokenDelta, 64, 64, Dtype::kBFloat16, 640},
    {"delta_token_of_float16_64x64", kDeltas, kTokenDelta, 64, 64, Dtype::kFloat16, 450},
    {"delta_of_float16_128x64", kDeltas, kDelta, 128, 64, Dtype::kFloat16, 450},
    {"delta_token_of_64_tokens_64x64", kDeltas, kTokenDelta, 64, 64, Dtype::kBFloat16, 64},
    {"delta_token_of_65_tokens_128x64", kDeltas, kTokenDelta, 128, 64, Dtype::kBFloat16, 65},
    {"delta_token_without_states_64x64", kDeltas, kTokenDelta, 64, 64, Dtype::kBFloat16, 200, false},
    {"delta_without_states_128x128", kDeltas, kDelta, 128, 128, Dtype::kBFloat16, 200, false},
    {"delta_key_64x64", kDeltaKeys, kKeyDelta, 64, 64},
    {"delta_key_40x24", kDeltaKeys, kKeyDelta, 40, 24},
    {"delta_key_128x128", kDeltaKeys, kKeyDelta, 128, 128},
    {"delta_key_of_many_chunks_64x64", kDeltaKeys, kKeyDelta, 64, 64, Dtype::kFloat16, 450},
    {"delta_key_of_many_chunks_128x128", kDeltaKeys, kKeyDelta, 128, 128, Dtype::kBFloat16, 450},
    {"delta_key_without_states_64x64", kDeltaKeys, kKeyDelta, 64, 64, Dtype::kBFloat16, 200, false},
    {"delta_key_without_states_128x128", kDeltaKeys, kKeyDelta, 128, 128, Dtype::kBFloat16, 130, false},
    {"scan_token_64x64", kScans, kToken, 64, 64, Dtype::kFloat32},
    {"scan_key_and_value_128x64", kScans, kBoth, 128, 64, Dtype::kFloat32},
    {"scan_delta_key_64x128", kScans, kKeyDelta, 64, 128, Dtype::kFloat32},
    {"scan_delta_key_128x128", kScans, kKeyDelta, 128, 128, Dtype::kFloat32},
    {"scan_of_a_few_tokens_40x24", kScans, kKey, 40, 24, Dtype::kBFloat16, 10},
    {"step_token_64x64", kScans, kToken, 64, 64, Dtype::kFloat16, 1},
    {"step_delta_key_128x128", kScans, kKeyDelta, 128, 128, Dtype::kFloat32, 1},
};

}  // namespace lethe
