"""The layers' operators on a GPU, against the CPU implementation in float64.

usage: python3 tests/cuda/test_layers.py LIBRARY [--device DEVICE] [unittest arguments]
  DEVICE  where they run (default cuda); "--device cpu" tries the tests themselves without a GPU
"""
import sys
import unittest

import torch
from test_operators import BUDGET, error, load_library_or_skip

DEVICE = "cuda"
EPSILON = 1e-3


def normal(*shape, dtype, pad=0, shift=0):
    """Random numbers of this shape; rows `pad` elements longer than they show, the first one `shift` elements behind an aligned address."""
    generator = torch.Generator().manual_seed(sum(shape))
    numbers = torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).to(DEVICE)
    pitch, rows = shape[-1] + pad, numbers.numel() // shape[-1]
    storage = torch.full((shift + rows * pitch,), torch.nan, dtype=dtype, device=DEVICE)
    strides = [pitch]
    for size in shape[-2:0:-1]:
        strides.insert(0, strides[0] * size)
    return storage.as_strided(shape, (*strides[:len(shape) - 1], 1), shift).copy_(numbers)


def add_rms_norm_calls(dtype):
    """Widths of each number of threads a row, of partly filled ones, of no piece and of more than registers hold."""
    wide = torch.promote_types(dtype, torch.float32)
    for rows, width in ((1, 768), (3001, 768), (700, 1024), (999, 1536), (33, 2048), (17, 4096), (9, 6144), (50, 40), (31, 37), (1, 1), (5, 8000)):
        for residual_dtype in {wide, dtype}:
            yield normal(rows, width, dtype=residual_dtype), normal(rows, width, dtype=dtype), normal(width, dtype=wide), EPSILON, dtype
    yield normal(65, 768, dtype=wide), None, normal(768, dtype=wide), EPSILON, dtype
    yield normal(65, 77, dtype=dtype), None, normal(77, dtype=wide), EPSILON, dtype
    yield normal(5, 13, 64, dtype=wide), normal(5, 13, 64, dtype=dtype, pad=8), normal(64, dtype=wide, shift=1), EPSILON, dtype
    yield normal(65, 64, dtype=wide, shift=1), normal(65, 64, dtype=dtype, shift=1), normal(64, dtype=wide), EPSILON, dtype


def swiglu_calls(dtype):
    for rows, width in ((1, 1792), (700, 1792), (100, 2560), (64, 3584), (513, 8), (31, 37), (1, 1)):
        yield (normal(rows, 2 * width, dtype=dtype),)
    yield (normal(5, 13, 128, dtype=dtype, pad=64),)
    yield (normal(65, 128, dtype=dtype, pad=1),)
    yield (normal(65, 128, dtype=dtype, shift=1),)


def gated_output_calls(dtype):
    """Heads of a power of two of pieces and others; rows of fewer and more pieces than a block has threads."""
    wide = torch.promote_types(dtype, torch.float32)
    for batch, length, heads, dim in ((1, 1, 12, 64), (2, 701, 12, 64), (1, 400, 16, 64), (3, 99, 24, 64), (1, 77, 12, 128), (1, 9, 3, 32),
                                      (1, 5, 64, 64), (1, 5, 80, 64), (2, 5, 3, 20), (1, 70, 9, 7), (1, 3, 2, 300)):
        o, gate, norm = normal(batch, length, heads, dim, dtype=dtype), normal(batch, length, heads * dim,
                                                                               dtype=dtype), normal(heads * dim, dtype=wide)
        yield o, gate, norm, EPSILON
    for heads, dim in ((3, 64), (3, 5)):
        o, norm = normal(2, 50, heads, dim, dtype=dtype), normal(heads * dim, dtype=wide)
        yield o, normal(2, 50, heads * dim, dtype=dtype, pad=64), norm, EPSILON
        yield o, normal(2, 50, heads * dim, dtype=dtype, shift=1), norm, EPSILON
        yield o, normal(2, 50, heads * dim, dtype=dtype), None, EPSILON
        yield o, None, norm, EPSILON


def scaled_heads_calls(dtype):
    """Heads of one, two and four elements a lane, of none and of more than a warp's; fewer heads than a block has warps and more; rows left over."""
    wide = torch.promote_types(dtype, torch.float32)
    for batch, length, heads, dim in ((1, 1, 24, 64), (2, 701, 24, 64), (1, 99, 12, 128), (3, 50, 3, 32), (1, 9, 9, 256), (2, 5, 3, 20),
                                      (1, 7, 2, 300)):
        yield normal(batch, length, heads * dim, dtype=dtype), normal(batch, length, heads, dtype=wide)
    yield normal(2, 50, 192, dtype=dtype, pad=64), normal(2, 50, 3, dtype=wide, pad=5)
    yield normal(2, 50, 192, dtype=dtype, pad=1), normal(2, 50, 3, dtype=wide)
    yield normal(2, 50, 192, dtype=dtype, shift=1), normal(2, 50, 3, dtype=wide)


def gated_skip_calls(dtype):
    wide = torch.promote_types(dtype, torch.float32)
    for x, scale in scaled_heads_calls(dtype):
        heads = scale.shape[2]
        o = normal(*x.shape[:2], heads, x.shape[2] // heads, dtype=dtype)
        yield o, x, normal(heads, dtype=wide), normal(*x.shape, dtype=dtype, pad=8)


def short_convolution_calls(dtype):
    """Runs that are whole, partly filled and shorter than the convolution; channels of whole pieces and others; every width."""
    wide = torch.promote_types(dtype, torch.float32)
    for batch, length, channels, width in ((1, 1, 64, 4), (2, 700, 768, 4), (1, 257, 3328, 4), (3, 33, 96, 3), (2, 64, 64, 2), (5, 2, 40, 4),
                                           (2, 131, 37, 4)):
        x, weight, bias = normal(batch, length, channels, dtype=dtype), normal(channels, width, dtype=wide), normal(channels, dtype=wide)
        yield x, weight, bias, normal(batch, width - 1, channels, dtype=dtype), True
        yield x, weight, None, None, False
    weight = normal(64, 4, dtype=wide)
    yield normal(2, 50, 64, dtype=dtype, pad=64), weight, None, None, True
    yield normal(2, 50, 64, dtype=dtype, shift=1), weight, None, None, True


CALLS = {"add_rms_norm": add_rms_norm_calls, "swiglu": swiglu_calls, "gated_output": gated_output_calls, "scaled_heads": scaled_heads_calls,
         "gated_skip": gated_skip_calls, "short_convolution": short_convolution_calls}


def moved(arguments, device, dtype=None):
    """The arguments on a device, tensors and dtypes in `dtype` if given."""
    convert = lambda a: a.to(device, dtype or a.dtype) if torch.is_tensor(a) else dtype if dtype and isinstance(a, torch.dtype) else a
    return [convert(a) for a in arguments]


def results(name, arguments, grads=None):
    """Results, and the gradients of the tensors for a fixed ∂loss of each result (`grads`: a function of a result)."""
    arguments = [a.detach().requires_grad_() if torch.is_tensor(a) else a for a in arguments]
    outputs = getattr(torch.ops.lethe, name)(*arguments)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    fixed = lambda r: torch.linspace(-1, 1, r.numel(), dtype=torch.float64, device=r.device).mul(99).sin().view(r.shape).to(r)
    torch.autograd.backward(outputs, [(grads or fixed)(output) for output in outputs])
    return [output.detach() for output in outputs] + [a.grad for a in arguments if torch.is_tensor(a)]


def described(name, arguments):
    return f"{name}({', '.join(f'{list(a.shape)}/{list(a.stride())} {a.dtype}' if torch.is_tensor(a) else str(a) for a in arguments)})"


class Layers(unittest.TestCase):
    def setUp(self):
        torch.use_deterministic_algorithms(True)  # new memory holds NaN: every number that a kernel leaves out is seen

    def tearDown(self):
        torch.use_deterministic_algorithms(False)

    def for_calls(self, dtypes, check):
        for dtype in dtypes:
            for name, calls in CALLS.items():
                for arguments in calls(dtype):
                    with self.subTest(described(name, arguments)):
                        check(dtype, name, arguments)

    def test_results_and_gradients_equal_the_cpu(self):
        def check(dtype, name, arguments):
            expected = results(name, moved(arguments, "cpu", torch.float64))
            for i, (a, e) in enumerate(zip(results(name, arguments), expected)):
                self.assertEqual((a.device.type, a.shape), (torch.device(DEVICE).type, e.shape))
                self.assertLessEqual(error(a.cpu(), e), BUDGET[dtype], f"result {i}")
        self.for_calls(BUDGET, check)

    def test_equal_calls_give_equal_bits(self):
        def check(_, name, arguments):
            for a, b in zip(results(name, arguments), results(name, arguments)):
                self.assertTrue(torch.equal(a, b))
        self.for_calls((torch.bfloat16, torch.float32), check)

    def test_gradients_that_are_strided_equal_contiguous_ones(self):
        wider = lambda r: torch.stack((torch.ones_like(r).cumsum(-1), r), -1)[..., 0]
        def check(_, name, arguments):
            contiguous = results(name, arguments, lambda r: wider(r).contiguous())
            for a, b in zip(results(name, arguments, wider), contiguous):
                self.assertTrue(torch.equal(a, b))
            of_a_sum = results(name, arguments, lambda r: torch.ones((), dtype=r.dtype, device=r.device).expand(r.shape))
            for a, b in zip(of_a_sum, results(name, arguments, torch.ones_like)):
                self.assertTrue(torch.equal(a, b))
        self.for_calls((torch.bfloat16,), check)

    def test_the_sum_needs_no_gradient(self):
        for dtype, arguments in ((dtype, next(add_rms_norm_calls(dtype))) for dtype in (torch.bfloat16, torch.float32)):
            def normed_alone(device, dtype=None):
                given = [a.detach().requires_grad_() if torch.is_tensor(a) else a for a in moved(arguments, device, dtype)]
                torch.ops.lethe.add_rms_norm(*given)[0].sin().sum().backward()
                return [a.grad for a in given if torch.is_tensor(a)]
            for a, e in zip(normed_alone(DEVICE), normed_alone("cpu", torch.float64)):
                self.assertLessEqual(error(a.cpu(), e), 2 * BUDGET[dtype])

    def test_passes_opcheck(self):
        for name, calls in CALLS.items():
            arguments = next(calls(torch.bfloat16))
            given = tuple(a.detach().requires_grad_() if torch.is_tensor(a) else a for a in arguments)
            for operator in (name, f"_{name}_forward"):
                torch.library.opcheck(getattr(torch.ops.lethe, operator).default, given)

    def test_no_rows_give_none_and_a_weight_gradient_of_zero(self):
        f = torch.bfloat16
        empty = lambda *shape, dtype=f: torch.zeros(*shape, dtype=dtype, device=DEVICE)
        for name, arguments in (("add_rms_norm", (empty(0, 8), empty(0, 8), empty(8, dtype=torch.float32), EPSILON, f)),
                                ("swiglu", (empty(0, 8),)),
                                ("gated_output", (empty(0, 3, 2, 4), empty(0, 3, 8), empty(8, dtype=torch.float32), EPSILON)),
                                ("scaled_heads", (empty(0, 3, 8), empty(0, 3, 2, dtype=torch.float32))),
                                ("gated_skip", (empty(0, 3, 2, 4), empty(0, 3, 8), empty(2, dtype=torch.float32), empty(0, 3, 8))),
                                ("short_convolution", (empty(2, 0, 8), empty(8, 4, dtype=torch.float32), empty(8, dtype=torch.float32),
                                                       empty(2, 3, 8), True))):
            self.assertEqual(sum(float(r.abs().sum()) for r in results(name, arguments)), 0)

    @unittest.skipIf("cpu" in sys.argv, "graphs are a GPU's")
    def test_a_graph_replays_with_new_contents_on_its_stream(self):
        for name, calls in CALLS.items():
            arguments = next(calls(torch.bfloat16))
            for tensor in arguments:
                if torch.is_tensor(tensor):
                    tensor.mul_(2)
            stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
            torch.use_deterministic_algorithms(False)
            with torch.cuda.stream(stream):
                results(name, arguments)  # warm
                with torch.cuda.graph(graph, stream=stream):
                    captured = results(name, arguments)
                for tensor in arguments:
                    if torch.is_tensor(tensor):
                        tensor.div_(2)
                graph.replay()
            stream.synchronize()
            for a, e in zip(captured, results(name, arguments)):
                self.assertTrue(torch.equal(a, e), name)


if __name__ == "__main__":
    if sys.argv[2:3] == ["--device"]:
        DEVICE = sys.argv.pop(3)
        del sys.argv[2]
        torch.ops.load_library(sys.argv.pop(1))
    else:
        load_library_or_skip()
    unittest.main()
