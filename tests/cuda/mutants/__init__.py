"""Ways to break the CUDA kernels and what launches them, each of which a device test must detect, and to delay them (delays.py), which no
test may notice: tools/gpu_mutants. README.md in this folder says which wrong formula each stands for.

A mutant changes one statement of one named function, wherever below optimized/ that function is defined. Mechanical ones are generated from rows
(name, function, statement, kind); the others are written by hand. Names stay as they are in results/h200/mutants.log, whatever the code is called
since. A change that alters no promised result is no mutant, nor is one that only makes a kernel slower. So some wrappers have none: ptxas restores
what wgmma_fence, wgmma_commit and wgmma_wait do for accumulators; this GPU keeps the order of mbarrier_init_fence, fence_async_shared and
fence_async_global without them; fence_registers, undefined, opaque, opaque_descriptor and keep_order steer the compiler alone; registers_grow and
registers_shrink change which threads have registers, not what is in them; prefetch_tensor_map and prefetch fetch what is fetched anyway. Others share
the mutant of a wrapper that differs in one word: store_tile that of load_tile, reduce_add_tile that of reduce_add_run, load_run, load_float and
load_pair that of load_global, bulk_commit that of bulk_wait_read, log2_approximate that of exp2_approximate, halves and unpack that of pack,
store_matrices that of store_matrices_transposed, load_matrices that of load_matrices_transposed, copy_word that of copy_chunk, copies_commit that of
copies_wait, in_uniform_register that of broadcast, mbarrier_init and mbarrier_arrive that of mbarrier_arrive_expect, mbarrier_wait and
mbarrier_try_wait that of mbarrier_wait_patiently, named_barrier_arrive that of named_barrier_sync, store_release that of load_acquire,
operand_descriptor and pin_uniform that of unswizzled_descriptor; those of wgmma are of its macro. Those of the matrix state's kernels have none of
their own (matrix_state.py has mutants of what calls them): load_global4, load_word, load_words, store_word, store_words, store_words_where,
load_floats, store_floats, store_run, multiply_add_8, larger_magnitudes, store_fragments, store_fragments_transposed, store_release_if, sync_threads,
transposed, transpose_matrix and elect; wgmma_steps is a macro as that of wgmma.
Nor is in the list what leaves the device with random numbers of tiles to walk: a main kernel on a stream that its plan is not on may never end.
"""

from . import backward, delays, forward, launches, matrix_state, plan, wrappers
from .mutant import Mutant as Mutant

# For each suite its program or library, and its tests: of several filters the first is quick and likely to fail, in all
# kernels. The longest sequences are left to tools/gpu_check. Of a library the tests are in Python: a file, and those that it imports. The
# capture of a graph may wait forever for kernels on another stream, and a compiler takes long: those tests come last.
PROGRAMS = {"ptx": "bin/test_ptx", "forward": "bin/test_cuda_forward", "plan": "bin/test_cuda_forward", "backward": "bin/test_cuda_backward",
            "matrix_state": "bin/test_cuda_matrix_state", "segments": "lib/liblethe_torch.so", "layers": "lib/liblethe_torch.so",
            "operators": "lib/liblethe_torch.so"}
PYTHON_TESTS = {"operators": ("test_operators.py",), "layers": ("test_layers.py", "test_operators.py"),
                "segments": ("test_matrix_segments.py", "test_matrix_state.py", "test_operators.py")}
FILTERS = {
    "ptx": ["*"],
    "forward": ["*OfAFewTokens*:*SharesKeysAmongAGroup*:*PrunesOnlyBlocks*", "*Forward.*:*ForwardOfShortRows.*:*ForwardWindows.*",
                "*ForwardPruning.*", "*ForwardPrecision.*"],
    "plan": ["*OfAFewTokens*:*SharesKeysAmongAGroup*", "*Prefix.*:*Boundary.*", "*ForwardPruning.*", "*ForwardWindows.ReadNothing*", "*Forward.*"],
    "backward": ["*OfAFewTokens*:*SumsOverAGroup*:*ComputesTheGatesGradient*:*BackwardSums.*:*ReadsNothing*-*After32*",
                 "*ItHasAlone*:*ServesItTwice*:*After32*", "*BackwardGate.*", "*BackwardGateOfLongHeads.*", "*InTheFixedOrder*",
                 "*Precision.HoldsTheBudgetForOpenGatesAndAnyNumbers*", "*Backward.*:*BackwardTiles.*:*BackwardOfShortRows.*:*BackwardWindows.*"],
    "matrix_state": ["*MatrixState.*:*MatrixStateWindows.*"],
    "segments": ["Segments.test_few_heads_and_many_give_equal_bits:Segments.test_gradients_of_many_heads_and_chunks_have_the_same_bits_alone"],
    "layers": ["Layers.test_results_and_gradients_equal_the_cpu"],
    "operators": [":".join(f"Operators.test_{name}" for name in (
        "runs_on_the_current_stream", "deterministic_algorithms_repeat_bit_by_bit",
        "gate_gradient_uses_float_sums_unless_torch_allows_16_bits", "runs_on_the_device_of_its_inputs",
        "backward_reads_the_boundary_of_forward", "a_bound_for_each_head_is_that_of_every_batch_entry",
        "a_threshold_of_minus_infinity_is_bit_equal_to_no_pruning", "pruning_changes_no_more_than_the_tolerance",
        "the_residual_gives_the_values_twice_the_digits", "empty_inputs_give_empty_outputs", "the_operator_names_what_runs",
        "strided_and_misaligned_inputs_equal_contiguous_ones", "kernels_equal_the_cpu")), "Operators"],
}
KERNELS = ("bfloat16_64", "bfloat16_128", "float16_64", "float16_128")  # as tests of each name them
LONG = "*HoldsTheBudget*AtALengthOf*"  # never run of a mutant
SECONDS = {"ptx": 60, "forward": 240, "plan": 240, "backward": 120, "matrix_state": 120, "segments": 120, "layers": 120,
           "operators": 120}  # that tests may take
HANGING_SECONDS = 60  # of one that is known to hang, which is run alone

MUTANTS = [mutant for part in (forward, plan, backward, launches, wrappers, matrix_state, delays) for mutant in part.MUTANTS]
