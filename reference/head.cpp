#include "reference/head.hpp"

#include <stdexcept>

namespace lethe {

Head head_of(const Problem& problem, int64_t batch, int64_t query_head) {
  const Shape& s = problem.shape;
  if (batch < 0 || batch >= s.batch || query_head < 0 || query_head >= s.query_heads) {
    throw std::out_of_range("head_of: expected batch < " + std::to_string(s.batch) + " and query_head < " +
                            std::to_string(s.query_heads) + ", found " + std::to_string(batch) + " and " +
                            std::to_string(query_head));
  }
  const int64_t head = query_head / (s.query_heads / s.heads);
  const auto slice = [batch](const std::vector<double>& tensor, int64_t length, int64_t heads, int64_t which,
                             int64_t dim) {
    using Rows = Eigen::Map<const Matrix<double>, 0, Eigen::OuterStride<>>;
    return Matrix<double>(
        Rows(tensor.data() + (batch * length * heads + which) * dim, length, dim, Eigen::OuterStride<>(heads * dim)));
  };
  Head h;
  h.query = slice(problem.query, s.query_length, s.query_heads, query_head, s.key_dim);
  h.key = slice(problem.key, s.key_length, s.heads, head, s.key_dim);
  h.value = slice(problem.value, s.key_length, s.heads, head, s.value_dim);
  h.log_forget = slice(problem.log_forget, s.key_length, s.query_heads, query_head, 1);
  h.scale = problem.scale;
  return h;
}

}  // namespace lethe
