#pragma once
// One whole input of an attention operator as plain data: the only contract that reference/ and optimized/ share.

#include <cstdint>
#include <string>
#include <vector>

namespace lethe {

/// Sizes of one problem. key, value have `heads` heads; query and log_forget have `query_heads`, a multiple of it.
struct Shape {
  int64_t batch = 1;
  int64_t query_length = 1;  ///< queries are at the last query_length positions of the keys
  int64_t key_length = 1;    ///< query_length <= key_length
  int64_t heads = 1;
  int64_t query_heads = 1;
  int64_t key_dim = 1;
  int64_t value_dim = 1;
};

/// Storage type of query, key and value.
enum class Dtype { kFloat64, kFloat32, kBFloat16, kFloat16 };

/// "float64", "float32", "bfloat16", "float16".
std::string dtype_name(Dtype dtype);

/// `value` rounded to the nearest number (ties to even) that `dtype` holds; overflow gives ±inf, subnormals are kept.
double round_to(Dtype dtype, double value);

/// What random_problem draws log_forget from (natural log, ≤ 0).
enum class Gate {
  kOpen,     ///< log f ~ -1e-4 · U(0, 2): hardly forgets
  kInitial,  ///< log sigmoid(N(0, 0.78²)): the gate of an untrained 760M layer, mean about -0.76
  kStrong,   ///< log f ~ -U(1, 9): forgets within a token or two
  kSpiky,    ///< open, with one token in 16 at log f ~ -U(5, 40)
  kZero,     ///< log f = 0: plain softmax attention
  kCutting   ///< open, with one token in 16 at log f = -inf: a document boundary
};

/// "open", "initial", "strong", "spiky", "zero", "cutting".
std::string gate_name(Gate gate);

/// The whole input. Flat row-major arrays, already rounded to `dtype` (log_forget to float32, or float64 for kFloat64).
struct Problem {
  Shape shape;
  Dtype dtype = Dtype::kFloat64;
  double scale = 1.0;              ///< of q·k
  std::vector<double> query;       ///< [B, Tq, Hq, K]
  std::vector<double> key;         ///< [B, Tk, H, K]
  std::vector<double> value;       ///< [B, Tk, H, V]
  std::vector<double> log_forget;  ///< [B, Tk, Hq], natural log, ≤ 0
};

/// A reproducible problem: query, key, value ~ N(0, 1), gate as asked, scale 1/√key_dim. The same seed gives the same
/// numbers on every platform (own generator and own normal deviates; nothing of the standard library's distributions).
///
/// throws  std::invalid_argument where query_heads is no multiple of heads, query_length > key_length, or a size is < 1
Problem random_problem(const Shape& shape, Dtype dtype, Gate gate, uint64_t seed);

}  // namespace lethe
