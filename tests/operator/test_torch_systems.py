"""The operators inside Torch's systems: autocast, torch.func, vmap, compiled autograd; and their errors for refused calls.

usage: test_torch_systems.py <path of liblethe_torch.so> [unittest arguments]
"""

import sys
import unittest

import torch

lethe = None  # torch.ops.lethe, once the library is loaded


def normal(*shape, dtype=torch.float64, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def gate(*shape, dtype=torch.float64, seed=3):
    return torch.nn.functional.logsigmoid(normal(*shape, seed=seed)).to(dtype)


def calls(lead=(), batch=2, length=5, dtype=torch.float64):
    """Name -> (function of tensors, its tensors), each tensor with `lead` in front of its shape."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    query, key, value = (normal(*lead, batch, length, 2, dim, dtype=dtype, seed=seed) for seed, dim in enumerate((4, 4, 3)))
    head_gate, key_gate = gate(*lead, batch, length, 2, dtype=wide), gate(*lead, batch, length, 2, 4, dtype=wide)
    beta, state = -gate(*lead, batch, length, 2, dtype=wide, seed=4), normal(*lead, batch, 2, 4, 3, dtype=wide, seed=5)
    return {
        "attention": (lambda q, k, v, g: lethe.forgetting_attention(q, k, v, g, log_pruning_tolerance=-8.0), (query, key, value, head_gate)),
        "gated state": (lambda q, k, v, g, s: lethe.gated_state(q, k, v, g, None, s), (query, key, value, key_gate, state)),
        "values of a state": (lambda q, k, v: lethe.gated_state(q, k, v, None, None)[0], (query, key, value)),
        "delta state": (lambda q, k, v, b: lethe.delta_state(q, k, v, b)[1], (query, key, value, beta)),
    }


def loss(function):
    """Σ sin of every result, whose gradient depends on the position."""

    def of(*tensors):
        results = function(*tensors)
        return sum(result.sin().sum() for result in (results if isinstance(results, tuple) else (results,)))

    return of


def gradients_of(function, tensors):
    tensors = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    return torch.autograd.grad(function(*tensors), tensors)


class Transforms(unittest.TestCase):
    def setUp(self):  # Torch's loop over elements is an error
        torch._C._functorch._set_vmap_fallback_enabled(False)
        self.addCleanup(torch._C._functorch._set_vmap_fallback_enabled, True)

    def check(self, actual, expected):
        self.assertEqual(len(actual), len(expected))
        for a, e in zip(actual, expected):
            torch.testing.assert_close(a, e, rtol=1e-10, atol=1e-12)

    def test_func_grad_and_vjp_equal_backward(self):
        for dtype in (torch.float64, torch.bfloat16):
            for name, (function, tensors) in calls(dtype=dtype).items():
                with self.subTest(name, dtype=dtype):
                    expected = gradients_of(loss(function), tensors)
                    every = tuple(range(len(tensors)))
                    self.check(torch.func.grad(loss(function), argnums=every)(*tensors), expected)
                    _, pull = torch.func.vjp(loss(function), *tensors)
                    self.check(pull(torch.ones((), dtype=torch.func.vjp(loss(function), *tensors)[0].dtype)), expected)

    def test_jacrev_is_the_jacobian_row_by_row(self):
        for name, (function, tensors) in calls(batch=1, length=3).items():
            with self.subTest(name):
                flat = lambda query: torch.cat([r.flatten() for r in (lambda r: r if isinstance(r, tuple) else (r,))(function(query, *tensors[1:]))])
                self.check([torch.func.jacrev(flat)(tensors[0])], [torch.autograd.functional.jacobian(flat, tensors[0])])

    def test_per_sample_gradients_equal_a_loop(self):
        for dtype in (torch.float64, torch.bfloat16):
            for name, (function, tensors) in calls(lead=(3,), dtype=dtype).items():
                with self.subTest(name, dtype=dtype):
                    every = tuple(range(len(tensors)))
                    actual = torch.func.vmap(torch.func.grad(loss(function), argnums=every))(*tensors)
                    expected = [torch.stack(rows) for rows in zip(*(gradients_of(loss(function), sample) for sample in zip(*tensors)))]
                    self.check(actual, expected)

    def test_vmap_maps_any_dimension_of_some_arguments(self):
        for name, (function, tensors) in calls(lead=(3,)).items():
            with self.subTest(name):
                mapped = (tensors[0].movedim(0, 2), *(tensor[0] for tensor in tensors[1:]))
                actual = torch.func.vmap(function, in_dims=(2, *[None] * (len(tensors) - 1)))(*mapped)
                rows = [function(query, *mapped[1:]) for query in tensors[0]]
                expected = [torch.stack(r) for r in zip(*rows)] if isinstance(rows[0], tuple) else [torch.stack(rows)]
                self.check(actual if isinstance(actual, tuple) else [actual], expected)

    def test_vmap_takes_a_logit_bound_of_each_element_or_of_all(self):
        query, key, value, log_forget = calls(lead=(3,), length=300)["attention"][1]
        bounds = torch.tensor([[1.0, 2.0], [8.0, 40.0], [200.0, 0.0]])
        pairs = lambda q, k, v, g, bound: lethe.forgetting_attention_with_statistics(q, k, v, g, log_pruning_tolerance=-5.0, logit_bound=bound)[2]
        for bound, dim in ((bounds, 0), (bounds[0], None), (bounds.unsqueeze(1).expand(3, 2, 2), 0)):
            actual = torch.func.vmap(pairs, in_dims=(0, 0, 0, 0, dim))(query, key, value, log_forget, bound)
            expected = [pairs(query[i], key[i], value[i], log_forget[i], bound[i] if dim == 0 else bound) for i in range(3)]
            self.assertTrue(torch.equal(actual, torch.stack(expected)))
            self.assertLess(int(actual.min()), 300 * 301 // 2)  # some are pruned

    def test_errors_under_vmap_name_the_batch_of_all_calls(self):
        function, (query, key, value, log_forget) = calls(lead=(3,))["attention"]
        with self.assertRaisesRegex(RuntimeError, r"log_forget: expected shape \[6, 5, 2\], found \[6, 4, 2\].*B counts the elements of all 3 calls"):
            torch.func.vmap(function)(query, key, value, log_forget[:, :, :4])

    def test_what_has_no_derivative_is_refused_by_name(self):
        for name, (function, tensors) in calls().items():
            tangents = tuple(torch.ones_like(tensor) for tensor in tensors)
            operator = "lethe::_forgetting_attention" if name == "attention" else "lethe::_matrix_state"
            for case, call in (("jvp", lambda: torch.func.jvp(loss(function), tensors, tangents)),
                               ("hvp", lambda: torch.autograd.functional.hvp(loss(function), tensors, tangents)),
                               ("hessian", lambda: torch.func.hessian(loss(function))(*tensors))):
                with self.subTest(name, case=case), self.assertRaisesRegex(RuntimeError, operator):
                    call()

    def test_compiled_autograd_gives_the_gradients_of_backward(self):
        for dtype in (torch.float64, torch.bfloat16):
            for name, (function, tensors) in calls(dtype=dtype).items():
                with self.subTest(name, dtype=dtype):
                    torch._dynamo.reset()
                    expected = gradients_of(loss(function), tensors)
                    for _ in range(2):  # the second from the cache
                        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
                        with torch._dynamo.config.patch(compiled_autograd=True):
                            value = loss(function)(*leaves)
                            torch.compile(lambda y: y.backward(), backend="aot_eager")(value)
                        for leaf, gradient in zip(leaves, expected):
                            torch.testing.assert_close(leaf.grad, gradient)

    def test_a_second_backward_is_refused_unless_the_graph_is_kept(self):
        for name, (function, tensors) in calls().items():
            with self.subTest(name):
                leaves = [tensor.clone().requires_grad_() for tensor in tensors]
                value = loss(function)(*leaves)
                first = torch.autograd.grad(value, leaves, retain_graph=True)
                self.check(torch.autograd.grad(value, leaves), first)
                with self.assertRaisesRegex(RuntimeError, "second time"):
                    torch.autograd.grad(value, leaves)

    def test_an_input_changed_in_place_is_refused(self):
        for name, (function, tensors) in calls().items():
            with self.subTest(name):
                leaves = [tensor.clone().requires_grad_() for tensor in tensors]
                query = leaves[0] * 1
                value = loss(function)(query, *leaves[1:])
                query.mul_(2)
                with self.assertRaisesRegex(RuntimeError, "inplace"):
                    value.backward()


class Autocast(unittest.TestCase):
    def test_casts_operands_to_its_type_and_the_rest_to_float32(self):
        for dtype in (torch.bfloat16, torch.float16):
            for name, (function, tensors) in calls(dtype=torch.float32).items():
                with self.subTest(name, dtype=dtype):
                    narrow = [tensor.to(dtype) for tensor in tensors[:3]]
                    with torch.no_grad():
                        expected = function(*narrow, *tensors[3:])
                        with torch.autocast("cpu", dtype=dtype):
                            of_wide, of_narrow = function(*tensors), function(*narrow, *(t.to(dtype) for t in tensors[3:]))
                    for actual in (of_wide, of_narrow):
                        for a, e in zip(*((r if isinstance(r, tuple) else (r,)) for r in (actual, expected))):
                            self.assertEqual(a.dtype, e.dtype)
                    for a, e in zip(*((r if isinstance(r, tuple) else (r,)) for r in (of_wide, expected))):
                        self.assertTrue(torch.equal(a, e))

    def test_leaves_float64_as_it_is(self):
        for name, (function, tensors) in calls().items():
            with self.subTest(name), torch.autocast("cpu"):
                result = function(*tensors)
                self.assertEqual((result[0] if isinstance(result, tuple) else result).dtype, torch.float64)

    def test_a_backward_inside_a_region_keeps_its_dtypes(self):
        found = []

        def backward(grad_values, query, key, value, *rest):  # an implementation that multiplies by Torch, as the portable one does
            found.append(torch.matmul(query, key.mT).dtype)
            return tuple(torch.zeros_like(tensor) for tensor in (query, key, value, rest[0]))

        library = torch.library.Library("lethe", "IMPL")
        self.addCleanup(library._destroy)
        library.impl("_forgetting_attention_backward", backward, "CPU", allow_override=True)
        tensors = [tensor.requires_grad_() for tensor in calls(dtype=torch.float32)["attention"][1]]
        values = lethe.forgetting_attention(*tensors)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            values.sum().backward()
        self.assertEqual(found, [torch.float32])

    def test_trains_a_layer_whose_gate_comes_out_of_a_linear_map(self):
        x, weights, gates = normal(2, 6, 16, dtype=torch.float32), normal(16, 16, dtype=torch.float32), normal(2, 16, dtype=torch.float32)

        def layer(w, g):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                query = torch.nn.functional.linear(x, w).view(2, 6, 2, 8)
                log_forget = torch.nn.functional.logsigmoid(torch.nn.functional.linear(x, g))
                assert log_forget.dtype == torch.bfloat16  # autocast's type of it
                return lethe.forgetting_attention(query, query, query, log_forget) + lethe.gated_state(query, query, query, log_forget, None)[0]

        def packed():
            with torch.autocast("cpu", dtype=torch.bfloat16):
                query, log_forget = x.view(1, 12, 2, 8), -x[..., :2].reshape(1, 12, 2).square().bfloat16()
                one = lethe.forgetting_attention(query, query, query, log_forget, cu_seqlens=torch.tensor([0, 12]))
                return one, lethe.forgetting_attention(query, query, query, log_forget)

        self.assertTrue(torch.equal(*packed()))

        for function in (layer, torch.compile(layer, backend="aot_eager", fullgraph=True)):
            weights.grad = gates.grad = None
            self.assertEqual(layer(weights, gates).dtype, torch.bfloat16)
            function(weights.requires_grad_(), gates.requires_grad_()).float().square().sum().backward()
            self.assertTrue(weights.grad.isfinite().all() and gates.grad.isfinite().all())
            self.assertEqual((weights.grad.dtype, gates.grad.dtype), (torch.float32, torch.float32))
            self.assertGreater(float(gates.grad.norm()), 0.0)


class Arguments(unittest.TestCase):
    def test_beta_may_have_the_dtype_of_queries(self):
        for dtype in (torch.bfloat16, torch.float16):
            query, key, value, beta = calls(dtype=dtype)["delta state"][1]
            narrow = beta.to(dtype).requires_grad_()
            wide = narrow.detach().float().requires_grad_()
            of_narrow, of_wide = (lethe.delta_state(query, key, value, b) for b in (narrow, wide))
            for a, e in zip(of_narrow, of_wide):
                self.assertTrue(torch.equal(a, e))
            for results in (of_narrow, of_wide):
                results[1].sum().backward()
            self.assertEqual(narrow.grad.dtype, dtype)
            self.assertTrue(torch.equal(narrow.grad, wide.grad.to(dtype)))

    def test_absent_and_nested_tensors_are_refused_by_name(self):
        query, log_forget = normal(2, 5, 2, 8, dtype=torch.float32), gate(2, 5, 2, dtype=torch.float32)
        nested = torch.nested.nested_tensor([normal(5, 2, 8, dtype=torch.float32)] * 2)
        attention, gated, delta = lethe.forgetting_attention, lethe.gated_state, lethe.delta_state
        for message, call in (
            ("log_forget: expected a tensor, found none", lambda: attention(query, query, query, None)),
            ("query: expected a tensor, found none", lambda: attention(None, query, query, log_forget)),
            ("value: expected a tensor, found none", lambda: gated(query, query, None, None, None)),
            ("beta: expected a tensor, found none", lambda: delta(query, query, query, None)),
            ("query: expected a strided, not nested tensor, found a nested one", lambda: attention(nested, query, query, log_forget)),
            ("key: expected a strided, not nested tensor, found a nested one", lambda: gated(query, nested, query, None, None)),
        ):
            with self.subTest(message), self.assertRaises(RuntimeError) as caught:
                call()
            self.assertEqual(str(caught.exception).split("\n")[0], message)

    def test_a_scale_beyond_the_dtype_of_the_logits_is_refused(self):
        for dtype in (torch.float32, torch.bfloat16):
            _, tensors = calls(dtype=dtype)["attention"]
            with self.assertRaisesRegex(RuntimeError, "scale: expected a finite number in float32, found 1e\\+39"):
                lethe.forgetting_attention(*tensors, scale=1e39)
        _, tensors = calls()["attention"]
        self.assertTrue(lethe.forgetting_attention(*tensors, scale=1e39).isfinite().all())


if __name__ == "__main__":
    torch.ops.load_library(sys.argv.pop(1))
    lethe = torch.ops.lethe
    unittest.main()
