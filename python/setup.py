"""The extension, and both libraries beside it. `make build` makes the libraries first; KVLEASE_BUILD says where they lie."""

import glob
import os
import re
import shutil
import subprocess

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.path.abspath(os.environ.get("KVLEASE_BUILD") or os.path.join(HERE, "..", "build"))
LIBRARIES = ["libkvlease.so.0", "libkvlease-core.so"]
WORK = os.path.join(BUILD, "python", "obj")


class Build(build_ext):
    """The extension, then the libraries into its folder."""

    def run(self):
        for name in LIBRARIES:
            if not os.path.exists(os.path.join(BUILD, name)):
                raise SystemExit(f"{os.path.join(BUILD, name)}: is not there; `make build` in the folder above makes it")
        super().run()
        folder = os.path.dirname(self.get_ext_fullpath("kvlease._kvlease"))
        for name in LIBRARIES:
            path = os.path.join(folder, name)
            if os.path.lexists(path):
                os.remove(path)  # not into a file that a process has mapped
            shutil.copy(os.path.join(BUILD, name), path)


class Wheel(bdist_wheel):
    """Tagged with the oldest C library that has every symbol that the three files ask for."""

    def get_tag(self):
        python, abi, platform = super().get_tag()
        wanted = set()
        for path in [*(os.path.join(BUILD, name) for name in LIBRARIES), *glob.glob(f"{self.bdist_dir}/kvlease/*.so")]:
            symbols = subprocess.run(["objdump", "-T", path], check=True, capture_output=True, text=True).stdout
            wanted |= {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_(\d+\.\d+)", symbols)}
        newest = max(wanted)
        return python, abi, platform.replace("linux_", f"manylinux_{newest[0]}_{newest[1]}_")


setup(
    ext_modules=[
        Extension("kvlease._kvlease",
                  sorted(os.path.relpath(path, HERE) for path in glob.glob(os.path.join(HERE, "ext", "*.c"))),
                  depends=[os.path.join("ext", "ext.h"), "../cmd/libkvlease/include/kvlease.h"],
                  include_dirs=["../cmd/libkvlease/include"],
                  extra_compile_args=["-std=c11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden"],
                  extra_link_args=[os.path.join(BUILD, LIBRARIES[0]), "-Wl,-rpath,$ORIGIN", "-Wl,-z,now"],
                  py_limited_api=True)
    ],
    cmdclass={"build_ext": Build, "bdist_wheel": Wheel},
    options={
        "build": {"build_base": WORK},
        "egg_info": {"egg_base": WORK},
        "bdist_wheel": {"py_limited_api": "cp310", "bdist_dir": os.path.join(WORK, "wheel")},
    },
)
