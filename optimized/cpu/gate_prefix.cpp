#include <c10/util/Exception.h>

#include "optimized/cpu/problem.hpp"

namespace lethe::cpu {
namespace {

template <typename Scalar>
void accumulate(const at::Tensor& log_forget, GatePrefix& prefix) {
  const int64_t length = log_forget.size(1), heads = log_forget.size(2);
  const Scalar* data = log_forget.const_data_ptr<Scalar>();
  at::parallel_for(0, log_forget.size(0) * heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head) {
      const Scalar* gate = data + head / heads * log_forget.stride(0) + head % heads * log_forget.stride(2);
      double sum = 0.0;
      int64_t first = 0;
      for (int64_t t = 0; t < length; ++t) {
        const double log_f = gate[t * log_forget.stride(1)];
        TORCH_CHECK(log_f <= 0.0, "log_forget: expected a natural logarithm <= 0, found ", log_f, " at position ", t);
        if (log_f < kCut) {
          first = t;
        } else {
          sum += log_f;
        }
        prefix.sum[head * length + t] = sum;
        prefix.first[head * length + t] = first;
      }
    }
  });
}

}  // namespace

GatePrefix gate_prefix(const at::Tensor& log_forget) {
  GatePrefix prefix{std::vector<double>(log_forget.numel()), std::vector<int64_t>(log_forget.numel())};
  if (log_forget.scalar_type() == at::kDouble) {
    accumulate<double>(log_forget, prefix);
  } else {
    accumulate<float>(log_forget, prefix);
  }
  return prefix;
}

}  // namespace lethe::cpu
