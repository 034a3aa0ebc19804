"""forgetting_attention on a GPU: every path against the CPU implementation, and inside Torch's systems.

usage: python3 tests/cuda/test_operators.py LIBRARY [unittest arguments]
"""
import importlib.util
import math
import os
import unittest

import torch
from on_gpu import CAPABILITY, HOPPER, NEEDS_HOPPER, load_library_or_skip

BUDGET = {torch.bfloat16: 5e-3, torch.float16: 1e-3, torch.float32: 1e-5, torch.float64: 1e-10}

GRAPHS = [(dtype, dim, options) for dtype in (torch.bfloat16, torch.float16) for dim in (64, 128) for options in ({}, {"log_pruning_tolerance": -5})]


def problem(dtype, batch=2, queries=200, keys=300, query_heads=4, heads=2, dim=64, value_dim=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
    gate = torch.nn.functional.logsigmoid(normal(batch, keys, query_heads))
    gate[:, 77] = -torch.inf
    return [normal(batch, queries, query_heads, dim).to(dtype), normal(batch, keys, heads, dim).to(dtype),
            normal(batch, keys, heads, value_dim or dim).to(dtype), gate.to(torch.promote_types(dtype, torch.float32))]


def run(inputs, device, **options):
    """Values, log normaliser, visited pairs, and the gradients for a fixed ∂loss/∂values."""
    inputs = [tensor.to(device).detach().requires_grad_() for tensor in inputs]
    values, normalizer, pairs = torch.ops.lethe.forgetting_attention_with_statistics(*inputs, **options)
    direction = torch.linspace(-1, 1, values.numel(), dtype=torch.float64).view(values.shape).sin()
    values.backward(direction.to(values.dtype).to(device))
    return [tensor.detach().cpu() for tensor in (values, normalizer, pairs, *(tensor.grad for tensor in inputs))]


def error(actual, expected):
    actual, expected = actual.double(), expected.double()
    return float((actual - expected).norm() / expected.norm())


def causal_pairs(inputs):
    """Of one head: query i of Tq sees Tk − Tq + i + 1 keys."""
    queries, keys = inputs[0].size(1), inputs[1].size(1)
    return queries * (keys - queries) + queries * (queries + 1) // 2


class Operators(unittest.TestCase):
    def check(self, inputs, **options):
        expected, actual = run([tensor.double() for tensor in inputs], "cpu", **options), run(inputs, "cuda", **options)
        budget = BUDGET[inputs[0].dtype]
        for name, a, e in zip(("values", "normalizer", "pairs", "query", "key", "value", "log_forget"), actual, expected):
            self.assertFalse(a.isnan().any(), name)
            if name == "pairs":  # the CPU's key blocks are half as long: it skips more of the keys before a cut
                self.assertTrue((e <= a).all() and (a <= causal_pairs(inputs)).all(), name)
            else:
                self.assertLessEqual(error(a, e), budget, name)

    def test_kernels_equal_the_cpu(self):
        for dtype in (torch.bfloat16, torch.float16):
            for dim in (64, 128):
                with self.subTest(dtype=dtype, dim=dim):
                    self.check(problem(dtype, dim=dim))

    def test_every_head_dim_equals_the_cpu(self):
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            for dim, value_dim in ((32, 32), (96, 96), (256, 256), (20, 20), (40, 72), (64, 32), (128, 64), (192, 100)):
                if dtype == torch.float32 and dim > 128:
                    continue
                with self.subTest(dtype=dtype, dim=dim, value_dim=value_dim):
                    self.check(problem(dtype, dim=dim, value_dim=value_dim))

    def test_heads_of_many_tiles_equal_the_cpu(self):
        for dtype, dim in ((torch.float32, 128), (torch.bfloat16, 64), (torch.bfloat16, 256)):
            self.check(problem(dtype, batch=1, queries=4200, keys=4200, query_heads=2, heads=1, dim=dim))

    def test_the_environment_asks_for_the_kernels_for_every_gpu(self):
        says = lambda: torch.ops.lethe.forgetting_attention_implementation(*(tensor.cuda() for tensor in problem(torch.bfloat16)[:3]))
        os.environ["LETHE_KERNELS"] = "portable"
        try:
            self.assertEqual(says(), "sm_80 kernels, not the sm_90a kernels: LETHE_KERNELS: found portable")
            for dtype in (torch.bfloat16, torch.float16):
                for dim, value_dim in ((64, 64), (128, 128), (40, 72), (72, 72), (88, 88)):
                    with self.subTest(dtype=dtype, dim=dim):
                        self.check(problem(dtype, dim=dim, value_dim=value_dim))
                        self.check(problem(dtype, dim=dim, value_dim=value_dim), log_pruning_tolerance=-math.inf)
            os.environ["LETHE_KERNELS"] = "fast"
            with self.assertRaisesRegex(RuntimeError, "LETHE_KERNELS: expected portable, or nothing, found fast"):
                says()
        finally:
            del os.environ["LETHE_KERNELS"]

    def test_what_the_kernels_do_not_cover_equals_the_cpu(self):
        for dtype, dim, value_dim in ((torch.float32, 136, 64), (torch.float64, 32, 48), (torch.bfloat16, 264, 264), (torch.float16, 64, 264)):
            with self.subTest(dtype=dtype, dim=dim):
                self.check(problem(dtype, dim=dim, value_dim=value_dim))

    def test_all_pairs_are_visited_without_a_cut_and_fewer_with_one(self):
        for dim in (64, 96, 192, 264):
            inputs = problem(torch.bfloat16, queries=500, keys=600, dim=dim)
            inputs[3][:, 77] = -0.5
            self.assertTrue((run(inputs, "cuda")[2] == causal_pairs(inputs)).all())
            inputs[3][:, 300] = -torch.inf
            visited = run(inputs, "cuda")[2]
            self.assertTrue((visited < causal_pairs(inputs)).all() and (visited == visited[0, 0]).all())

    def test_the_operator_names_what_runs(self):
        says = lambda device, **options: torch.ops.lethe.forgetting_attention_implementation(
            *(tensor.to(device) for tensor in problem(torch.bfloat16, **options)[:3]))
        self.assertEqual(says("cpu"), "CPU")
        of_device, of_dim = "device: expected compute capability 9.0, found {}.{}".format(*CAPABILITY), "head dim: expected 1 to 256, found 264"
        for dim, value_dim in ((64, 64), (96, 96), (1, 128), (20, 8), (136, 136), (64, 256)):
            self.assertEqual(says("cuda", dim=dim, value_dim=value_dim),
                             "sm_90a kernels" if HOPPER else f"sm_80 kernels, not the sm_90a kernels: {of_device}")
        self.assertEqual(says("cuda", dim=264),
                         f"portable, not the others: {of_dim}" if HOPPER else
                         f"portable, not the sm_90a kernels: {of_device}, not the sm_80 kernels: {of_dim}")

    def test_pruning_changes_no_more_than_the_tolerance(self):
        for dim in (64, 96, 192, 264):
            inputs = problem(torch.float16, queries=1000, keys=1000, dim=dim)
            whole, pruned = run(inputs, "cuda"), run(inputs, "cuda", log_pruning_tolerance=-10.0)
            self.assertLess(int(pruned[2].sum()), int(whole[2].sum()))
            for a, e in zip(pruned[:1] + pruned[3:], whole[:1] + whole[3:]):
                self.assertLess(error(a, e), 2e-3)

    def test_a_threshold_of_minus_infinity_is_bit_equal_to_no_pruning(self):
        unbounded = torch.full((2, 4), torch.inf)
        torch.use_deterministic_algorithms(True)  # else dq's order of summation differs
        try:
            for dtype in (torch.bfloat16, torch.float16):
                for dim in (64, 96, 192, 264):
                    inputs = problem(dtype, queries=900, keys=1000, dim=dim)
                    whole = run(inputs, "cuda")
                    thresholds = [{"log_pruning_tolerance": -math.inf}]
                    if dim != 264:  # whose tiles of 64 keys a cut may hide as a whole
                        thresholds.append({"log_pruning_tolerance": -10.0, "logit_bound": unbounded.cuda()})
                    for options in thresholds:
                        for a, e in zip(run(inputs, "cuda", **options), whole):
                            self.assertTrue(torch.equal(a, e), options)
        finally:
            torch.use_deterministic_algorithms(False)

    def test_constant_gates_are_alibi_and_zeros_are_softmax_attention(self):
        slopes = 2.0 ** -torch.arange(2.0, 10.0, 2.0, dtype=torch.float64)  # of four heads
        distance = torch.arange(700.0, dtype=torch.float64)
        distance = distance[:, None] - distance
        for dtype in (torch.bfloat16, torch.float16):
            for dim in (64, 128):
                query, key, value, _ = problem(dtype, queries=700, keys=700, heads=4, dim=dim)
                for slope in (slopes, torch.zeros_like(slopes)):
                    with self.subTest(dtype=dtype, dim=dim, slope=slope.tolist()):
                        logits = torch.where(distance >= 0, -slope[:, None, None] * distance, -math.inf)
                        wide = [tensor.double().transpose(1, 2).requires_grad_() for tensor in (query, key, value)]
                        expected = torch.nn.functional.scaled_dot_product_attention(*wide, attn_mask=logits)
                        direction = torch.linspace(-1, 1, value.numel(), dtype=torch.float64).mul(999).sin().view(value.shape).to(dtype)
                        expected.backward(direction.double().transpose(1, 2))
                        ours = [tensor.cuda().requires_grad_() for tensor in (query, key, value)]
                        gate = -slope.float().cuda().expand(2, 700, 4).contiguous()
                        values = torch.ops.lethe.forgetting_attention(*ours, gate)
                        values.backward(direction.cuda())
                        for a, e in zip((values, *(tensor.grad for tensor in ours)), (expected, *(tensor.grad for tensor in wide))):
                            self.assertLessEqual(error(a.detach().cpu(), e.detach().transpose(1, 2)), BUDGET[dtype])

    def test_a_bound_of_the_logits_prunes_as_the_norms_do(self):
        inputs = problem(torch.bfloat16, queries=600, keys=600)
        query, key = inputs[0].double(), inputs[1].double().repeat_interleave(2, 2)
        bound = query.norm(dim=-1).amax(1) * key.norm(dim=-1).amax(1) / 8
        by_norms, by_bound = (run(inputs, "cuda", log_pruning_tolerance=-5.0, **extra)
                              for extra in ({}, {"logit_bound": bound.cuda()}))
        self.assertTrue(torch.equal(by_norms[2], by_bound[2]))
        self.assertTrue(torch.equal(by_norms[0], by_bound[0]))

    def test_a_bound_for_each_head_is_that_of_every_batch_entry(self):
        inputs, bound = problem(torch.bfloat16, queries=600, keys=600), torch.tensor([0.0, 400.0, 1.0, 4.0], device="cuda")
        of_heads, of_all = (run(inputs, "cuda", log_pruning_tolerance=-5.0, logit_bound=bounds)[2] for bounds in (bound, bound.repeat(2, 1)))
        self.assertTrue(torch.equal(of_heads, of_all))
        self.assertLess(int(of_heads[1, 0]), int(of_heads[1, 1]))

    def test_backward_reads_the_boundary_of_forward(self):
        for dim in (64, 96, 192, 264):
            inputs = problem(torch.bfloat16, queries=100, keys=1000, dim=dim)
            inputs[3].fill_(-0.02)  # weights 900 tokens back are 10^-8: numbers, unless skipped
            far = [(run(inputs, "cuda", **options)[4][:, 0] != 0).any().item()
                   for options in ({}, {"log_pruning_tolerance": -2.0, "logit_bound": torch.zeros(4, device="cuda")})]
            self.assertEqual(far, [True, False], dim)

    def test_strided_and_misaligned_inputs_equal_contiguous_ones(self):
        inputs = [tensor.cuda() for tensor in problem(torch.bfloat16)]  # a copy would be contiguous and aligned again
        expected = run(inputs, "cuda")
        heads_first = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in inputs]
        odd = [torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device="cuda")[1:].view(tensor.shape).copy_(tensor)
               for tensor in inputs]
        self.assertNotEqual(odd[0].data_ptr() % 16, 0)
        rows_apart = [torch.nn.functional.pad(tensor, (0, 3))[..., :-3] for tensor in inputs]
        self.assertNotEqual(rows_apart[0].stride(1) % 8, 0)
        for other in (heads_first, odd, rows_apart):
            actual = run(other, "cuda")
            for a, e in zip(actual[:3], expected[:3]):
                self.assertTrue(torch.equal(a, e))
            for a, e in zip(actual[3:], expected[3:]):
                self.assertLessEqual(error(a, e), BUDGET[torch.bfloat16])

    def test_gradients_that_are_expanded_or_strided_equal_contiguous_ones(self):
        inputs = [tensor.cuda().requires_grad_() for tensor in problem(torch.bfloat16)]
        values = torch.ops.lethe.forgetting_attention(*inputs)
        ones, ramp = torch.ones_like(values), torch.linspace(-1, 1, values.numel(), device="cuda", dtype=values.dtype).view_as(values)
        strided = ramp.transpose(1, 2).contiguous().transpose(1, 2)
        for other, contiguous in ((ones[:1, :1, :1, :1].expand_as(values), ones), (strided, ramp)):
            actual, expected = (torch.autograd.grad(values, inputs, direction, retain_graph=True) for direction in (other, contiguous))
            for a, e in zip(actual, expected):
                self.assertLessEqual(error(a, e), BUDGET[torch.bfloat16])

    def test_deterministic_algorithms_repeat_bit_by_bit(self):
        for dim in (64, 128):
            # open gates, and more tiles than run at a time: many add to a query's gradient, in an order left to chance
            inputs = problem(torch.bfloat16, batch=1, queries=4096, keys=4096, query_heads=12, heads=12, dim=dim)
            inputs[3].fill_(-1e-4)
            torch.use_deterministic_algorithms(True)
            try:
                first, *others = [run(inputs, "cuda") for _ in range(4)]
            finally:
                torch.use_deterministic_algorithms(False)
            for other in others:
                for a, b in zip(first, other):
                    self.assertTrue(torch.equal(a, b), dim)

    @unittest.skipUnless(HOPPER, NEEDS_HOPPER)  # the other kernels sum in float alone
    def test_gate_gradient_uses_float_sums_unless_torch_allows_16_bits(self):
        allowed = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed
        self.assertFalse(allowed())  # the default
        torch.use_deterministic_algorithms(True)
        try:
            for dtype in (torch.bfloat16, torch.float16):
                for dim in (64, 128):
                    inputs = problem(dtype, dim=dim, queries=700, keys=700)
                    direction = torch.randn(inputs[0].shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)

                    def gradients(tensors, device):
                        tensors = [tensor.to(device).requires_grad_() for tensor in tensors]
                        values = torch.ops.lethe.forgetting_attention(*tensors)
                        return [gradient.cpu() for gradient in torch.autograd.grad(values, tensors, direction.to(values))]

                    expected = gradients([tensor.double() for tensor in inputs], "cpu")
                    of_float_sums = gradients(inputs, "cuda")
                    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
                    of_16_bit_sums = gradients(inputs, "cuda")
                    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(False)
                    with self.subTest(dtype=dtype, dim=dim):
                        self.assertLess(2 * error(of_float_sums[3], expected[3]), error(of_16_bit_sums[3], expected[3]))
                        for one, other in zip(of_float_sums[:3], of_16_bit_sums[:3]):
                            self.assertTrue(torch.equal(one, other))
        finally:
            torch.use_deterministic_algorithms(False)
            torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(False)

    def test_a_graph_replays_with_new_contents(self):
        for dtype, dim, options in GRAPHS:
            with self.subTest(dtype=dtype, dim=dim, **options):
                operator = lambda tensors: torch.ops.lethe.forgetting_attention_with_statistics(*tensors, **options)
                inputs = [tensor.cuda() for tensor in problem(dtype, queries=700, keys=800, dim=dim)]
                pairs = operator(inputs)[2]
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    replayed = operator(inputs)
                other = problem(dtype, queries=700, keys=800, dim=dim, seed=1)
                other[3] /= 10  # another boundary
                for tensor, new in zip(inputs, other):
                    tensor.copy_(new)
                graph.replay()
                self.assertEqual(torch.equal(replayed[2], pairs), not options)
                for a, e in zip(replayed, operator(inputs)):
                    self.assertTrue(torch.equal(a, e))

    def test_a_graph_of_forward_and_backward_replays_with_new_contents(self):
        torch.use_deterministic_algorithms(True)  # else dq's order of summation differs
        try:
            for dtype, dim, options in GRAPHS:
                with self.subTest(dtype=dtype, dim=dim, **options):
                    self.check_graph_of_gradients(dtype, dim, options)
        finally:
            torch.use_deterministic_algorithms(False)

    def check_graph_of_gradients(self, dtype, dim, options):
        def gradients(tensors, direction):
            return torch.autograd.grad(torch.ops.lethe.forgetting_attention(*tensors, **options), tensors, direction)

        inputs = [tensor.cuda().requires_grad_() for tensor in problem(dtype, queries=700, keys=800, dim=dim)]
        direction = torch.ones_like(inputs[0])
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            gradients(inputs, direction)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            replayed = gradients(inputs, direction)
        other = problem(dtype, queries=700, keys=800, dim=dim, seed=1)
        other[3] /= 10  # another boundary
        with torch.no_grad():
            for tensor, new in zip(inputs, other):
                tensor.copy_(new)
        graph.replay()
        for a, e in zip(replayed, gradients(inputs, direction)):
            self.assertTrue(torch.equal(a, e))

    def check_compiled(self, compiler, cases):
        """forward and backward of a layer, several times over, compiled by `torch.compile(**compiler)`, against the layer itself."""
        layer = lambda *tensors: torch.ops.lethe.forgetting_attention(*tensors, log_pruning_tolerance=-12.0) * 2
        compiled = torch.compile(layer, fullgraph=True, **compiler)
        for dtype, dim in cases:
            with self.subTest(dtype=dtype, dim=dim):
                for seed in range(3):  # a graph is recorded by the second call, and replayed by the third
                    eager, traced = ([tensor.cuda().requires_grad_() for tensor in problem(dtype, dim=dim, seed=seed)] for _ in range(2))
                    for function, tensors in ((layer, eager), (compiled, traced)):
                        function(*tensors).float().square().sum().backward()
                    for a, e in zip(traced, eager):
                        self.assertLessEqual(error(a.grad, e.grad), BUDGET[dtype] / 2)  # dq is summed in another order

    def test_traced_equals_eager(self):
        self.check_compiled({"backend": "aot_eager"},
                            ((torch.bfloat16, 64), (torch.float16, 128), (torch.bfloat16, 96), (torch.float32, 64)))

    @unittest.skipUnless(importlib.util.find_spec("triton"), "needs Triton, which torch.compile writes kernels for")
    def test_compiled_equals_eager(self):
        self.check_compiled({}, ((torch.bfloat16, 64), (torch.float32, 64)))

    @unittest.skipUnless(importlib.util.find_spec("triton"), "needs Triton, which torch.compile writes kernels for")
    def test_compiled_into_graphs_equals_eager(self):
        counters = torch._dynamo.utils.counters["inductor"]
        counters.clear()
        self.check_compiled({"mode": "reduce-overhead"}, ((torch.float16, 64), (torch.bfloat16, 128)))
        self.assertEqual(counters["cudagraph_skips"], 0)

    @unittest.skipUnless(torch.cuda.device_count() > 1, "needs a second GPU")
    def test_runs_on_the_device_of_its_inputs(self):
        for dtype in (torch.bfloat16, torch.float16):
            for dim in (64, 128):
                with self.subTest(dtype=dtype, dim=dim):
                    inputs = problem(dtype, dim=dim)
                    first, second = run(inputs, "cuda:0"), run(inputs, "cuda:1")
                    for a, e in zip(first[:3], second[:3]):
                        self.assertTrue(torch.equal(a, e))
                    for a, e in zip(first[3:], second[3:]):  # dq is summed in another order
                        self.assertLessEqual(error(a, e), BUDGET[dtype] / 2)
                    # without Torch's automatic derivative, which changes the current device itself
                    there, scale = [tensor.to("cuda:1") for tensor in inputs], dim**-0.5
                    forward, backward = torch.ops.lethe._forgetting_attention_forward, torch.ops.lethe._forgetting_attention_backward
                    values, normalizer, _, boundary, residual = forward(*there, scale, None, None, None, False, True)
                    direction = torch.linspace(-1, 1, values.numel(), dtype=torch.float64).view(values.shape).sin().to(values)
                    gradients = backward(direction, *there, values, residual, normalizer, boundary, scale, None)
                    for a, e in zip(gradients, first[3:]):
                        self.assertLessEqual(error(a.cpu(), e), BUDGET[dtype] / 2)

    def test_the_residual_gives_the_values_twice_the_digits(self):
        for dtype in (torch.bfloat16, torch.float16):
            for dim in (64, 128, 96, 264):
                inputs = [tensor.cuda() for tensor in problem(dtype, dim=dim)]
                values, *_, residual = torch.ops.lethe._forgetting_attention_forward(*inputs, dim ** -0.5, None, None, None, False, True)
                self.assertTrue(torch.equal(values, torch.ops.lethe.forgetting_attention(*inputs)))
                whole = values.float() + residual.float()
                self.assertLess(float((whole.to(dtype) != values).float().mean()), 0.01)  # but for ties
                self.assertGreater(float(residual.float().norm() / values.float().norm()), BUDGET[dtype] / 10)
                empty = torch.ops.lethe._forgetting_attention_forward(*inputs, dim ** -0.5, None, None, None, False, False)[-1]
                self.assertEqual(empty.numel(), 0)

    def test_runs_on_the_current_stream(self):
        def results(tensors):
            values = torch.ops.lethe.forgetting_attention(*tensors)
            return values, *torch.autograd.grad(values, tensors, torch.ones_like(values))

        inputs, others = ([tensor.cuda().requires_grad_() for tensor in problem(torch.float16, seed=seed)] for seed in (0, 1))
        copies = lambda tensors: [tensor.detach().clone().requires_grad_() for tensor in tensors]
        expected = results(inputs)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            results(copies(others))  # whose numbers its memory holds now
            stream.synchronize()
            torch.cuda._sleep(500_000_000)  # a quarter of a second, in which a kernel on another stream would still find them
            late = results(copies(inputs))
        stream.synchronize()
        self.assertTrue(torch.equal(late[0], expected[0]))
        for a, e in zip(late[1:], expected[1:]):
            self.assertLessEqual(error(a, e), BUDGET[torch.float16] / 2)  # dq is summed in another order

    def test_empty_inputs_give_empty_outputs(self):
        for shape in ({"batch": 0}, {"queries": 0}):
            values = torch.ops.lethe.forgetting_attention(*[tensor.cuda() for tensor in problem(torch.bfloat16, **shape)])
            self.assertEqual(values.numel(), 0)


if __name__ == "__main__":
    load_library_or_skip()
    unittest.main()
