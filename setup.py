"""The compiled inner loops, built where a C compiler is present.

``optional=True``: without a compiler the build goes on and
:mod:`cipherbayes.kernels` uses numpy instead.
"""

import sys

from setuptools import Extension, setup

# Nobody reads errno or the floating-point exception flags, which is all that the
# last two say; NaN and infinity keep their meaning.
GNU = ["-O3", "-fno-math-errno", "-fno-trapping-math"]

setup(
    ext_modules=[
        Extension(
            "cipherbayes._kernels",
            sources=["src/cipherbayes/_kernels.c"],
            extra_compile_args=["/O2"] if sys.platform == "win32" else GNU,
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
