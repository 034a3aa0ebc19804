#include <c10/util/Exception.h>

#include "optimized/cpu/gates.hpp"
#include "optimized/gate.hpp"

namespace lethe::cpu {
namespace {

template <typename Scalar>
void accumulate(const Scalar* gate, int64_t stride, int64_t begin, int64_t length, double* sums,
                std::vector<StrongGate>& strong) {
  double sum = 0.0;
  for (int64_t t = begin; t < length; ++t) {
    const double log_f = gate[t * stride];
    TORCH_CHECK(log_f <= 0.0, "log_forget: expected a natural logarithm <= 0, found ", log_f, " at position ", t);
    if (log_f < kStrongGate) {
      strong.push_back({t, log_f});
    } else {
      sum += log_f;
    }
    sums[t - begin] = sum;
  }
}

std::vector<int64_t> offsets_of(const std::vector<int64_t>& first_visited, int64_t length) {
  std::vector<int64_t> offsets(first_visited.size() + 1, 0);
  for (size_t head = 0; head < first_visited.size(); ++head)
    offsets[head + 1] = offsets[head] + length - first_visited[head];
  return offsets;
}

}  // namespace

GatePrefix::GatePrefix(const at::Tensor& log_forget, std::vector<int64_t> first_visited)
    : first_visited_(std::move(first_visited)), offset_(offsets_of(first_visited_, log_forget.size(1))),
      sums_(offset_.back()), strong_(first_visited_.size()) {
  const int64_t length = log_forget.size(1), heads = log_forget.size(2);
  first_visited_of_all_ = length;
  for (const int64_t first : first_visited_) first_visited_of_all_ = std::min(first_visited_of_all_, first);
  at::parallel_for(0, static_cast<int64_t>(first_visited_.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head) {
      const int64_t start = head / heads * log_forget.stride(0) + head % heads * log_forget.stride(2);
      const auto run = [&](const auto* gates) {
        accumulate(gates + start, log_forget.stride(1), first_visited_[head], length, sums_.data() + offset_[head],
                   strong_[head]);
      };
      log_forget.scalar_type() == at::kDouble ? run(log_forget.const_data_ptr<double>())
                                              : run(log_forget.const_data_ptr<float>());
    }
  });
}

int64_t HeadGates::strong_up_to(int64_t position) const {
  if (strong.empty()) return 0;
  return std::upper_bound(strong.begin(), strong.end(), position,
                          [](int64_t p, const StrongGate& gate) { return p < gate.position; }) -
         strong.begin();
}

bool HeadGates::is_below(int64_t i, int64_t j, double threshold) const {
  double decay = sum(i) - sum(j);
  for (int64_t n = strong_up_to(i); n > 0 && strong[n - 1].position > j && !(decay < threshold); --n)
    decay += strong[n - 1].log_forget;
  return decay < threshold || std::isinf(decay);
}

int64_t frame_rows(const HeadGates& gates, int64_t position, int64_t rows) {
  int64_t most = std::min(rows, kFrameRows), count = 1;
  const int64_t next = gates.strong_up_to(position);
  if (next < std::ssize(gates.strong)) most = std::min(most, gates.strong[next].position - position);
  while (count < most && gates.sum(position) - gates.sum(position + count) <= kFrameDecay) ++count;
  return count;
}

}  // namespace lethe::cpu
