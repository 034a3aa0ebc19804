"""Of what launches the kernels, and of Torch's binding."""

from .mutant import dropped, generated, never, swapped

MUTANTS = generated(
    "forward",
    ("launch_forward_any_scale", "launch_forward_tiles", "divisor_scale(arguments.scale) *",
     swapped("divisor_scale(arguments.scale)", "arguments.scale")),
    ("launch_forward_once", "launch", "forward<Element, kDim, false, kEdges>, forward<Element, kDim, true, kEdges>",
     swapped(", forward<Element, kDim, true, kEdges>", "")),
    ("map_strides", "tensor_map", "operand.head_stride, kBytes * operand.token_stride",
     swapped("head_stride, kBytes * operand.token_stride", "token_stride, kBytes * operand.head_stride")),
    ("map_past_the_end", "tensor_map", "CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE",
     swapped("CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE", "CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA")),
) + generated(
    "backward",
    ("launch_backward_group", "launch", "int(shape.query_heads / shape.heads)", swapped("int(shape.query_heads / shape.heads)", "1")),
) + generated(
    "operators",
    ("launch_plan_stream", "launch_gate", "32 * kWarps, 0, a.stream>>>", swapped("a.stream", "nullptr")),
    ("dispatch_second_call", "compute_capability", "known[device] = major * 10 + minor;", swapped("* 10 + minor", "")),
    ("torch_empty", "unsupported_by", "return is_empty(call.shape) ? kEmpty : family.unsupported(call.shape, call.dtype, call.compute_capability);",
     swapped("is_empty(call.shape)", "false")),
    ("torch_misaligned", "is_addressable", "reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % kAlignment == 0",
     swapped("reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % kAlignment == 0", "true")),
    ("torch_no_tolerance", "forgetting_attention_forward", "in.log_pruning_tolerance.value_or(", swapped("in.log_pruning_tolerance.value_or", "")),
    ("torch_boundary_anew", "backward", ".boundary_given = true,", never("true")),
    ("torch_one_bound", "forgetting_attention_forward", ".expand({shape.batch, shape.query_heads}).contiguous()", swapped(".contiguous()", "")),
    ("torch_heads", "shape_of", "key.size(2), query.size(2)", swapped("key.size(2)", "query.size(2)")),
    ("torch_any_order", "forgetting_attention_backward", "at::globalContext().deterministicAlgorithms()",
     swapped("at::globalContext().deterministicAlgorithms()", "false")),
    ("torch_rounded_sums", "forgetting_attention_backward", ".float_sums = !sums_in_16_bits_allowed()",
     swapped("!sums_in_16_bits_allowed()", "false")),
    ("torch_forward_device", "forgetting_attention_forward", "const c10::cuda::CUDAGuard device(query.device());", dropped, {"gpus": 2}),
)
