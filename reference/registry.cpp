#include <utility>

#include "reference/alibi.hpp"
#include "reference/blockwise.hpp"
#include "reference/decay_fast_weights.hpp"
#include "reference/delta_fast_weights.hpp"
#include "reference/feature_map.hpp"
#include "reference/forgetting_attention.hpp"
#include "reference/gated_delta_fast_weights.hpp"
#include "reference/gated_fast_weights.hpp"
#include "reference/gated_linear_attention.hpp"
#include "reference/linear_attention.hpp"
#include "reference/local_attention.hpp"
#include "reference/softmax_attention.hpp"
#include "reference/variant.hpp"

namespace lethe::reference {
namespace {

using Index = Eigen::Index;

// The gradients of a variant without a state, as the table asks for them.
template <typename Function>
auto without_state(const Function& gradients) {
  return [gradients](const Head& head, const Matrix<double>& values, const Matrix<double>&, const Vector<double>&) {
    return gradients(head, values);
  };
}

// The same for a variant whose state has no normaliser.
template <typename Function>
auto without_normalizer(const Function& gradients) {
  return [gradients](const Head& head, const Matrix<double>& values, const Matrix<double>& state,
                     const Vector<double>&) { return gradients(head, values, state); };
}

// The softmax family by blocks, twice as many keys as queries in each, so that blocks differ from chunks.
Output by_blocks(const Head& head, Index chunk_length) {
  return blockwise::forward(head, Blocks{.query = chunk_length, .key = 2 * chunk_length});
}

// The same for a member whose gate is the constant exp(−slope).
auto by_blocks_with_slope(double slope) {
  return [slope](Head head, Index chunk_length) {
    head.log_forget.setConstant(head.key.rows(), -slope);
    return by_blocks(head, chunk_length);
  };
}

// A row whose queries and keys go through a feature map first.
Variant on_features(Variant row, const FeatureMap& map) {
  const auto mapped = [map](const Variant::Form& form) {
    return [=](const Head& head) { return form(with_features(head, map)); };
  };
  row.recurrent = mapped(row.recurrent);
  row.parallel = mapped(row.parallel);
  row.chunked = [=, form = row.chunked](const Head& head, Index length) {
    return form(with_features(head, map), length);
  };
  row.gradients = [=, form = row.gradients](const Head& head, const auto&... gradients) {
    return through_features(head, map, form(with_features(head, map), gradients...));
  };
  return row;
}

Variant linear_row(std::string name, Normalized normalized) {
  using enum Input;
  std::vector<Input> inputs{kQuery, kKey, kValue, kInitialState};
  if (normalized == Normalized::kYes) inputs.push_back(kInitialNormalizer);
  return {.name = std::move(name),
          .inputs = inputs,
          .recurrent = [=](const Head& head) { return linear_attention::recurrent(head, normalized); },
          .parallel = [=](const Head& head) { return linear_attention::parallel(head, normalized); },
          .chunked = [=](const Head& h, Index length) { return linear_attention::chunked(h, normalized, length); },
          .gradients =
              [=](const Head& head, const auto&... gradients) {
                return linear_attention::gradients(head, normalized, gradients...);
              }};
}

Variant gated_linear_row(std::string name, Normalized normalized) {
  Variant row = linear_row(std::move(name), normalized);
  row.inputs.push_back(Input::kLogForget);
  row.recurrent = [=](const Head& head) { return gated_linear_attention::recurrent(head, normalized); };
  row.parallel = [=](const Head& head) { return gated_linear_attention::parallel(head, normalized); };
  row.chunked = [=](const Head& h, Index length) { return gated_linear_attention::chunked(h, normalized, length); };
  row.gradients = [=](const Head& head, const auto&... gradients) {
    return gated_linear_attention::gradients(head, normalized, gradients...);
  };
  return row;
}

Variant gated_fast_weights_row(std::string name, Normalized normalized) {
  Variant row = gated_linear_row(std::move(name), normalized);
  row.recurrent = [=](const Head& head) { return gated_fast_weights::recurrent(head, normalized); };
  row.parallel = [=](const Head& head) { return gated_fast_weights::parallel(head, normalized); };
  row.chunked = [=](const Head& h, Index length) { return gated_fast_weights::chunked(h, normalized, length); };
  row.gradients = [=](const Head& head, const auto&... gradients) {
    return gated_fast_weights::gradients(head, normalized, gradients...);
  };
  return row;
}

Variant delta_row(std::string name, Normalized normalized) {
  Variant row = linear_row(std::move(name), normalized);
  row.inputs.push_back(Input::kWriteStrength);
  row.recurrent = [=](const Head& head) { return delta_fast_weights::recurrent(head, normalized); };
  row.parallel = [=](const Head& head) { return delta_fast_weights::parallel(head, normalized); };
  row.chunked = [=](const Head& h, Index length) { return delta_fast_weights::chunked(h, normalized, length); };
  row.gradients = [=](const Head& head, const auto&... gradients) {
    return delta_fast_weights::gradients(head, normalized, gradients...);
  };
  return row;
}

}  // namespace

const std::vector<Variant>& variants() {
  constexpr double kSlope = 0.25;
  constexpr Index kWindow = 7;
  using enum Input;
  static const std::vector<Variant> rows{
      {.name = "softmax_attention",
       .inputs = {kQuery, kKey, kValue},
       .recurrent = softmax_attention::recurrent<double>,
       .parallel = softmax_attention::parallel<double>,
       .chunked = by_blocks_with_slope(0.0),
       .gradients = without_state(softmax_attention::gradients<double>)},
      {.name = "alibi",
       .inputs = {kQuery, kKey, kValue},
       .recurrent = [](const Head& head) { return alibi::recurrent(head, kSlope); },
       .parallel = [](const Head& head) { return alibi::parallel(head, kSlope); },
       .chunked = by_blocks_with_slope(kSlope),
       .gradients =
           without_state([](const Head& h, const Matrix<double>& g) { return alibi::gradients(h, kSlope, g); })},
      {.name = "forgetting_attention",
       .inputs = {kQuery, kKey, kValue, kLogForget},
       .recurrent = forgetting_attention::recurrent<double>,
       .parallel = forgetting_attention::parallel<double>,
       .chunked = by_blocks,
       .gradients = without_state(forgetting_attention::gradients<double>)},
      {.name = "local_attention",
       .inputs = {kQuery, kKey, kValue},
       .recurrent = [](const Head& head) { return local_attention::recurrent(head, kWindow); },
       .parallel = [](const Head& head) { return local_attention::parallel(head, kWindow); },
       .chunked = [](const Head& head, Index length) { return local_attention::chunked(head, kWindow, length); },
       .gradients = without_state(
           [](const Head& h, const Matrix<double>& g) { return local_attention::gradients(h, kWindow, g); })},
      linear_row("linear_attention_unnormalized", Normalized::kNo),
      on_features(linear_row("linear_attention", Normalized::kYes), feature_map::elu_plus_one()),
      gated_linear_row("gated_linear_attention_unnormalized", Normalized::kNo),
      on_features(gated_linear_row("gated_linear_attention", Normalized::kYes), feature_map::elu_plus_one()),
      {.name = "decay_fast_weights",
       .inputs = {kQuery, kKey, kValue, kLogKeyGate, kLogValueGate, kInitialState},
       .recurrent = decay_fast_weights::recurrent<double>,
       .parallel = decay_fast_weights::parallel<double>,
       .chunked = decay_fast_weights::chunked<double>,
       .gradients = without_normalizer(decay_fast_weights::gradients<double>)},
      gated_fast_weights_row("gated_fast_weights", Normalized::kNo),
      on_features(gated_fast_weights_row("gated_fast_weights_normalized", Normalized::kYes),
                  feature_map::elu_plus_one()),
      delta_row("delta_fast_weights", Normalized::kNo),
      on_features(delta_row("delta_fast_weights_normalized", Normalized::kYes),
                  feature_map::sum_normalized(feature_map::elu_plus_one())),
      {.name = "gated_delta_fast_weights",
       .inputs = {kQuery, kKey, kValue, kLogForget, kLogKeyGate, kWriteStrength, kInitialState},
       .recurrent = gated_delta_fast_weights::recurrent<double>,
       .parallel = gated_delta_fast_weights::parallel<double>,
       .chunked = gated_delta_fast_weights::chunked<double>,
       .gradients = without_normalizer(gated_delta_fast_weights::gradients<double>)},
  };
  return rows;
}

}  // namespace lethe::reference
