#include "reference/alibi.hpp"
#include "reference/blockwise.hpp"
#include "reference/forgetting_attention.hpp"
#include "reference/softmax_attention.hpp"
#include "reference/variant.hpp"

namespace lethe::reference {

const std::vector<Variant>& variants() {
  constexpr double kSlope = 0.25;
  using enum Input;
  static const std::vector<Variant> rows{
      {.name = "softmax_attention",
       .inputs = {kQuery, kKey, kValue},
       .recurrent = softmax_attention::recurrent<double>,
       .parallel = softmax_attention::parallel<double>,
       .chunked = {},
       .gradients = softmax_attention::gradients<double>},
      {.name = "alibi",
       .inputs = {kQuery, kKey, kValue},
       .recurrent = [](const Head& head) { return alibi::recurrent(head, kSlope); },
       .parallel = [](const Head& head) { return alibi::parallel(head, kSlope); },
       .chunked = {},
       .gradients = [](const Head& head, const Matrix<double>& g) { return alibi::gradients(head, kSlope, g); }},
      {.name = "forgetting_attention",
       .inputs = {kQuery, kKey, kValue, kLogForget},
       .recurrent = forgetting_attention::recurrent<double>,
       .parallel = forgetting_attention::parallel<double>,
       .chunked = [](const Head& head) { return blockwise::forward(head, Blocks{.query = 16, .key = 32}); },
       .gradients = forgetting_attention::gradients<double>},
  };
  return rows;
}

}  // namespace lethe::reference
