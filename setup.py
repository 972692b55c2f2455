"""The compiled inner loops, built where a C compiler is present.

``optional=True``: without a compiler the build goes on and
:mod:`cipherbayes.models.kernels` and
:mod:`cipherbayes.inference.noise_aware.compiled` use numpy instead.
"""

import sys

from setuptools import Extension, setup

# Nobody reads errno or the floating-point exception flags, which is all that the
# second and third say; NaN and infinity keep their meaning.
# No fused multiply-add: every operation is rounded by itself, so that what is
# computed of a record does not depend on where in a vector register it stands.
GNU = ["-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"]
# Nobody compares the bits of a posterior between machines.
FUSED = [*GNU[:-1], "-ffp-contract=fast", "-fvisibility=hidden"]
LOOPS = "src/cipherbayes/inference/noise_aware/loops"

setup(
    ext_modules=[
        Extension(
            "cipherbayes._kernels",
            sources=["src/cipherbayes/_kernels.c"],
            depends=["src/cipherbayes/_kernels.h"],
            extra_compile_args=["/O2"] if sys.platform == "win32" else GNU,
            py_limited_api=True,
            optional=True,
        ),
        Extension(
            "cipherbayes.inference.noise_aware._loops",
            sources=[
                f"{LOOPS}/{name}.c"
                for name in (
                    "module",
                    "information",
                    "context",
                    "exponential",
                    "leapfrog",
                    "slicing",
                    "linear",
                )
            ],
            depends=[f"{LOOPS}/loops.h"],
            extra_compile_args=["/O2"] if sys.platform == "win32" else FUSED,
            py_limited_api=True,
            optional=True,
        ),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
