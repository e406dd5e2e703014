"""K-means by NumPy, by compiled NumPy and by kernels: a table, on this CPU and, if there is one, on a GPU.

Times are the shortest of several calls. ``--points`` gives n; points are 2-D around centres, as in PyTorch's post on
compiled NumPy. scikit-learn is timed too, if it is installed.
"""

import argparse
import time

import numpy as np
import torch

import opwright as ow
from opwright.gallery.kmeans import kmeans_assign, kmeans_sums
from opwright.gallery.kmeans.clustering import kmeans

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--points", type=int, default=2_000_000)
parser.add_argument("--clusters", type=int, default=2)
parser.add_argument("--threads", type=int, nargs="+", default=[1, torch.get_num_threads()])
parser.add_argument("--device", choices=["cpu", "cuda"], help="only there")
options = parser.parse_args()


def step(X, means):
    return np.argmin(np.linalg.norm(X - means[:, None], axis=2), axis=0)


def iteration(X, means):
    labels = np.argmin(np.linalg.norm(X - means[:, None], axis=2), axis=0)
    own = labels == np.arange(len(means))[:, None]
    return np.sum(np.where(own[:, :, None], X, X * 0), axis=1), np.sum(own, axis=1)


def seconds(function, *args):
    """The shortest call of ten, or of as many as fit into three seconds."""
    function(*args)
    best, begin = float("inf"), time.perf_counter()
    for _ in range(10):
        start = time.perf_counter()
        function(*args)
        if args and isinstance(args[0], torch.Tensor) and args[0].is_cuda:
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
        if time.perf_counter() - begin > 3:
            break
    return best


def row(what, time_, than=None):
    print(f"  {what:<46}{time_ * 1e3:>11.3f} ms{'' if than is None else f'{than / time_:>9.1f} ×'}", flush=True)


def on_the_cpu(X, means):
    tensors = torch.from_numpy(X), torch.from_numpy(means)
    numpys = seconds(step, X, means)
    row("step: NumPy", numpys)
    numpys_iteration = seconds(iteration, X, means)
    for threads in dict.fromkeys(options.threads):
        torch.set_num_threads(threads)
        # Inductor generates code for a fixed number of threads.
        torch.compiler.reset()
        compiled, compiled_iteration = ow.compile_numpy(step), ow.compile_numpy(iteration)
        with torch._inductor.config.patch({"cpp.threads": threads}):
            row(f"step: compiled NumPy, {threads} thread(s)", seconds(compiled, X, means), numpys)
            row(f"step: C++ kernel, {threads} thread(s)", seconds(kmeans_assign.kernels["cpp"], *tensors), numpys)
            row(
                f"sums: compiled NumPy, {threads} thread(s)",
                seconds(compiled_iteration, X, means),
                numpys_iteration,
            )
            row(
                f"sums: C++ kernel, {threads} thread(s)",
                seconds(kmeans_sums.kernels["cpp"], *tensors),
                numpys_iteration,
            )
    row("sums: NumPy", numpys_iteration)
    # The same ten iterations, from the same means.
    row(
        "ten iterations: kmeans of the gallery",
        seconds(lambda: kmeans(X, len(means), means=means, iterations=10, tolerance=-1)),
    )
    try:
        from sklearn.cluster import KMeans
    except ImportError:
        print("  (scikit-learn is not installed)")
        return
    other = KMeans(len(means), init=means, n_init=1, max_iter=10, tol=0)
    took = seconds(other.fit, X)
    row(f"{other.n_iter_} iterations: scikit-learn (stops at rest)", took)
    row("  per iteration", took / other.n_iter_)


def on_the_gpu(X, means):
    compiled, compiled_iteration = ow.compile_numpy(step), ow.compile_numpy(iteration)
    on_arrays = ow.compile_numpy(device="cuda")(step)
    x, m = torch.from_numpy(X).cuda(), torch.from_numpy(means).cuda()
    moved = x.numel() * x.element_size() + x.shape[0] * 8
    row("step: compiled NumPy, arrays copied to and fro", seconds(on_arrays, X, means))
    for name, call in (("compiled NumPy", compiled), ("Triton kernel", kmeans_assign.kernels["triton"])):
        took = seconds(call, x, m)
        row(f"step: {name}", took)
        print(f"{'':>50}{moved / took / 1e12:.2f} TB/s")
    generated = seconds(compiled_iteration, x, m)
    row("sums: compiled NumPy", generated)
    row("sums: Triton kernel", seconds(kmeans_sums.kernels["triton"], x, m), generated)
    row(
        "ten iterations: kmeans of the gallery",
        seconds(lambda x: kmeans(x, len(means), means=means, iterations=10, tolerance=-1), x),
    )


print(f"torch {torch.__version__}, NumPy {np.__version__}, {options.points} points, {options.clusters} clusters")
for dtype in (np.float32, np.float64):
    generator = np.random.default_rng(0)
    centres = generator.random((options.clusters, 2)) * 10
    X = (
        centres[generator.integers(options.clusters, size=options.points)]
        + generator.standard_normal((options.points, 2))
    ).astype(dtype)
    means = (centres + 0.5).astype(dtype)
    if options.device != "cuda":
        print(f"{np.dtype(dtype).name}, CPU")
        on_the_cpu(X, means)
    if torch.cuda.is_available() and options.device != "cpu":
        print(f"{np.dtype(dtype).name}, {torch.cuda.get_device_name()}")
        on_the_gpu(X, means)
