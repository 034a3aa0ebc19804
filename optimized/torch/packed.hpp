#pragma once
// Packed sequences: several of them one after another along T, in a batch of one.

#include <ATen/core/Tensor.h>

#include <optional>

namespace lethe {

/// A window that hides nothing, for calls of packed sequences without one: families choose other kernels for tiles of several sequences.
inline constexpr int64_t kWindowOfSequences = int64_t{1} << 40;

/// Gates that let nothing pass into a sequence from those before it: log f of each first token is −∞, a cut. Nothing else changes: a query never
/// reads the gate of its sequence's first token, since D_ij = Σ_{j < l ≤ i} log f_l.
///
/// reads    gate [1,T,…]: log f, the argument `gate_name`, any float dtype; absent: 0, [1,T,heads] in the accumulation dtype of `like`. Both on
///          the device of `like`. cu_seqlens [N+1] int32 or int64: 0 ≤ … ≤ T, the first token of each sequence, then T; equal neighbours are an
///          empty sequence. Its numbers are checked, on a GPU too; not while a CUDA graph is captured, in a compiled graph, or on a GPU without
///          kernels of ours: there those outside [0, T] count as the nearer end
/// returns  a gate of the same shape, differentiable: the gradient at a first token is 0
/// throws   c10::Error "cu_seqlens: expected …, found …"; "name: expected a batch of one …" for `like`, the argument `name`; "gate_name: expected …"
///          for a gate of another device, of no float dtype, or of other tokens
/// cost     one copy of the gate; of numbers on a GPU, a wait for it, but where the tensor is one of the last four that the thread
///          has found right and Torch knows of no write since
at::Tensor gate_of_sequences(const char* gate_name, const std::optional<at::Tensor>& gate, const at::Tensor& cu_seqlens,
                             const char* name, const at::Tensor& like);

/// The causal pairs of each sequence inside the blocks of queries × keys from the boundary on.
///
/// reads    boundary [1,Hq,M] int32, the first key block of each block of `query_rows` queries; cu_seqlens as above, for `length` tokens
/// returns  [N,Hq] int64
/// cost     O(T·Hq) time and memory
at::Tensor visited_pairs_of_sequences(const at::Tensor& boundary, const at::Tensor& cu_seqlens,
                                      const c10::SymInt& length, int64_t query_rows, int64_t key_rows);

}  // namespace lethe
