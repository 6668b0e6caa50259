"""Run the tests as other processors see them: python -m tests.portable SETTING [arguments of pytest].

A setting only ever takes something away from the processor at hand: the processor's newer instructions,
from each library that would choose them by itself; the second thread; PyTorch's fused layers. Each
keeps its compiled code apart from that of ordinary runs.
"""

import os
import platform
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("MKL", "NUMBA", "OMP", "OPENBLAS")}

SETTINGS = {
    # Of x86 processors of 2008, as far as the libraries go back.
    "default": {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_CBWR": "COMPATIBLE",
        "NUMBA_CPU_FEATURES": "",
        "NUMBA_CPU_NAME": "generic",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "OPENBLAS_CORETYPE": "Nehalem",
        "PESKY_NO_MKLDNN": "1",
        **ONE_THREAD,
    },
    # Of 2013: with AVX2, without AVX-512 and bfloat16. Threads and fused layers as they come.
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_CBWR": "AVX2",
        "NUMBA_CPU_FEATURES": "",
        "NUMBA_CPU_NAME": "haswell",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
    },
    # This processor, in the background of a shell script: Ctrl-C is ignored and nothing is compiled yet.
    "background": {"PESKY_NO_MKLDNN": "1", **ONE_THREAD},
}
OF_X86 = {"MKL_CBWR", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "ONEDNN_MAX_CPU_ISA", "OPENBLAS_CORETYPE"}
# These compute nothing that the others do not.
LEFT_OUT = "not (subprocess or data or peers)"


def numpy_features():
    """Which instructions NumPy chooses on this processor, beyond those it was built for."""
    from numpy._core import _multiarray_umath as numpy

    return {name for name in numpy.__cpu_dispatch__ if numpy.__cpu_features__[name]}


def has_avx2():
    return bool({"AVX2", "X86_V3"} & numpy_features())


def environment_of(setting):
    """What a setting adds to the environment."""
    added = dict(SETTINGS[setting])
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return {name: value for name, value in added.items() if name not in OF_X86}
    newer = numpy_features()  # and no others: NumPy warns of names that this processor does not have
    if setting == "avx2":
        newer = {name for name in newer if "AVX512" in name or name == "X86_V4"}
    return added if setting == "background" else added | {"NPY_DISABLE_CPU_FEATURES": " ".join(newer)}


def run(setting, arguments):
    """Run pytest in a setting; return its exit code."""
    if setting == "avx2" and not has_avx2():
        print("test-portable: avx2 is left out, which this processor does not have")
        return 0
    print(f"test-portable: {setting}", flush=True)
    command = [sys.executable, "-m", "pytest", "-m", LEFT_OUT, *arguments]
    environment = os.environ | environment_of(setting)
    if setting != "background":
        environment["NUMBA_CACHE_DIR"] = str(Path(sys.prefix) / "portable" / setting)
        return subprocess.run(command, env=environment, check=False).returncode
    with tempfile.TemporaryDirectory() as empty:
        environment["NUMBA_CACHE_DIR"] = empty
        return subprocess.run(
            command, env=environment, check=False, preexec_fn=ignore_interrupts
        ).returncode


def ignore_interrupts():
    signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    chosen, *rest = sys.argv[1:] or [""]
    if chosen not in SETTINGS:
        sys.exit(f"test-portable: setting {chosen!r} is none of {', '.join(SETTINGS)}")
    sys.exit(run(chosen, rest))
