#!/usr/bin/env python3
"""bundle.py ROOT BUILD: tools/bundle packs the GPU programs, and what it packed starts where nothing but it and the system is found."""

import os
import subprocess
import sys
import tarfile
import tempfile


def main():
    root, build = sys.argv[1:3]
    if not all(os.path.exists(os.path.join(build, "bin", n)) for n in ("gpu_tests", "gpu_bench", "gpu_nccl")):
        print("skipped: gpu_tests, gpu_bench and gpu_nccl are not built")
        return 77
    with tempfile.TemporaryDirectory() as work:
        tarball = os.path.join(work, "bundle.tar.gz")
        subprocess.run([sys.executable, os.path.join(root, "tools", "bundle"), "--build", build, "--output", tarball], check=True)
        assert os.path.getsize(tarball) <= 60 << 20, "more than 60 MiB"
        with tarfile.open(tarball) as tar:
            tar.extractall(work)
        top = os.path.join(work, "troupe-gpu")
        names = os.listdir(os.path.join(top, "lib"))
        assert not [n for n in names if n.startswith(("libcuda", "libcublas", "libcudnn", "libnvrtc", "libnccl", "libc."))], names
        # Each library that is packed is the one that is used.
        for program in ("gpu_tests", "gpu_bench", "gpu_nccl"):
            out = subprocess.run(["ldd", os.path.join(top, "bin", program)], check=True, capture_output=True, text=True).stdout
            assert "not found" not in out, out
            for name in names:
                lines = [line for line in out.splitlines() if line.strip().startswith(name + " ")]
                assert all(os.path.realpath(top) in os.path.realpath(line.split("=>")[1].split("(")[0].strip()) for line in lines), out
        run = os.path.join(top, "run")
        answer = subprocess.run([run, "--help"], capture_output=True, text=True, check=False)
        assert answer.returncode == 0 and "tests and benchmarks" in answer.stdout, answer
        for program, flag in (("gpu_bench", "--help"), ("gpu_nccl", "--help"), ("gpu_tests", "--list_content")):
            answer = subprocess.run([os.path.join(top, "bin", program), flag], capture_output=True, text=True, check=False)
            assert answer.returncode == 0, answer
        # Hidden, so that the answer is the same with a GPU.
        hidden = dict(os.environ, CUDA_VISIBLE_DEVICES="")
        for what in ("tests", "nccl", "bench", "all"):
            answer = subprocess.run([run, what], capture_output=True, text=True, check=False, env=hidden)
            assert answer.returncode == 77 and "skipped: no CUDA device" in answer.stdout, answer
            print(answer.stdout.strip().splitlines()[-1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
