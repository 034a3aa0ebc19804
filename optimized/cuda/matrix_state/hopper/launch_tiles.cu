// The launches of the gradients' kernel for a state of two tiles of columns and a gate a token (launches.cuh, most_columns_of_gradients()).
#include "optimized/cuda/matrix_state/hopper/gradients.cuh"
#include "optimized/cuda/matrix_state/hopper/launches.cuh"

#include <stdexcept>

namespace lethe::matrix_state {

void launch_gradients_of_two_tiles(const MatrixStateBackward& a, int64_t ctas, bool overlapping,
                                   const StateGradientArguments& p) {
  by_type(a, [&](auto element, auto gated, auto blocks) {
    constexpr int kBlocks = blocks.value;
    const auto launch_gradients = [&](auto kept) {
      constexpr bool kKept = decltype(kept)::value;
      using Call = Gradients<decltype(element), true, kBlocks, false, kKept, true>;
      launch(sweep_gradients<decltype(element), true, kBlocks, false, kKept, true>, ctas, Call::Shared::kThreads,
             Call::kBytes, overlapping, a.stream, p);
    };
    if constexpr (!gated.value) throw std::invalid_argument("key_gate: expected one a token, found none");
    else a.form.kept_states ? launch_gradients(std::true_type{}) : launch_gradients(std::false_type{});
  });
}

}  // namespace lethe::matrix_state
