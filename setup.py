"""The compiled inner loops, built where a C compiler is present.

``optional=True``: without a compiler the build goes on and
:mod:`cipherbayes.models.kernels` uses numpy instead.
"""

import sys

from setuptools import Extension, setup

# Nobody reads errno or the floating-point exception flags, which is all that the
# second and third say; NaN and infinity keep their meaning.
# No fused multiply-add: every operation is rounded by itself, so that what is
# computed of a record does not depend on where in a vector register it stands.
GNU = ["-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"]

setup(
    ext_modules=[
        Extension(
            "cipherbayes._kernels",
            sources=["src/cipherbayes/_kernels.c"],
            depends=["src/cipherbayes/_loops.h"],
            extra_compile_args=["/O2"] if sys.platform == "win32" else GNU,
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
