// The kernel families of the matrix state on CUDA. The first row that supports a call runs it.
#include <algorithm>

#include "optimized/cuda/matrix_state/families.hpp"

namespace lethe {

namespace {

size_t no_workspace(const Shape&, const MatrixStateForm&) { return 0; }
bool never(const Shape&, const MatrixStateForm&, bool) { return false; }

// Of over 64 columns chunk_normalizes() has no gradients apart: such a normalised call has columns of ones in place of z.
constexpr MatrixStateFamily kFamilies[] = {
    {kChunkCoverage, matrix_state::chunk_forward, matrix_state::chunk_backward,
     matrix_state::chunk_forward_workspace_bytes, matrix_state::chunk_workspace_bytes, matrix_state::chunk_normalizes},
    {kVectorCoverage, matrix_state::vector_forward, matrix_state::vector_backward, no_workspace,
     matrix_state::vector_workspace_bytes, never},
    {kDeltaCoverage, matrix_state::delta_forward, matrix_state::delta_backward,
     matrix_state::delta_forward_workspace_bytes, matrix_state::delta_workspace_bytes, never},
    {kDeltaKeyCoverage, matrix_state::delta_key_forward, matrix_state::delta_key_backward,
     matrix_state::delta_key_forward_workspace_bytes, matrix_state::delta_key_workspace_bytes, never},
    {kScanCoverage, matrix_state::scan_forward, matrix_state::scan_backward, no_workspace,
     matrix_state::scan_workspace_bytes, never},
};
static_assert(std::ranges::equal(kFamilies, kMatrixStateCoverage, {}, &MatrixStateCoverage::unsupported,
                                 &MatrixStateCoverage::unsupported),
              "a build without these kernels names the same families in the same order");

}  // namespace

std::span<const MatrixStateFamily> matrix_state_families() { return kFamilies; }

}  // namespace lethe
