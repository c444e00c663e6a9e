#!/usr/bin/env python3
"""bundle.py ROOT BUILD: tools/bundle packs the GPU programs, what it packed starts where nothing but it and the system is found, and `run` does as it says where there is no GPU."""

import os
import sys
import tarfile
import tempfile

import limits

NAMES = ["gpu_tests", "gpu_bench", "gpu_nccl", "engine_bench", "train_classifier", "train_language_model", "train_towers"]
REPORTS = """========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at void troupe::cuda::code::over_elements<troupe::cuda::code::fill<float>>(T1, long)+0x50
=========     by thread (0,0,0) in block (0,0,0)
=========         Host Frame: cublasLtMatmul [0x12] in /usr/lib/libcublasLt.so.13
=========
========= Invalid __global__ write of size 4 bytes
=========     at fused+0x1a0
=========     by thread (0,0,0) in block (0,0,0)
=========
========= Uninitialized __global__ memory read of size 4 bytes
=========     at sm90_xmma_gemm_f32f32_fused_kernel+0x100
=========         Host Frame: [0x1234] in /x/bin/gpu_tests
=========
========= Program hit CUDA_ERROR_INVALID_VALUE (error 1) due to "invalid argument" on CUDA API call to cuMemFoo.
=========         Host Frame: ncclInit [0x12] in /usr/lib/libnccl.so.2
=========
========= Program hit cudaErrorInvalidValue (error 1) due to "invalid argument" on CUDA API call to cudaMemcpyAsync.
=========         Host Frame: [0x1234] in /x/bin/gpu_tests
=========
"""
CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"


def run_in(top, *flags, **environment):
    environment = dict(os.environ, **environment)
    return limits.run([os.path.join(top, "run"), *flags], text=True, env=environment)


def counts(top, text):
    with tempfile.NamedTemporaryFile("w", suffix=".log") as log:
        log.write(text)
        log.flush()
        script = os.path.join(top, "share", "sanitizer_counts.awk")
        answer = limits.run(["awk", "-v", "tool=memcheck", "-f", script, log.name], text=True)
    return answer.returncode, answer.stdout.splitlines()


def check_counting(top):
    code, lines = counts(top, REPORTS + "========= ERROR SUMMARY: 5 errors\n")
    assert (code, lines[0]) == (1, "memcheck: 3 reports of our kernels and calls, 2 of libraries"), lines
    assert any("fill<float>" in line for line in lines) and not any("xmma" in line for line in lines), lines
    code, lines = counts(top, CLEAN)
    assert (code, lines) == (0, ["memcheck: 0 reports of our kernels and calls, 0 of libraries"]), lines
    code, lines = counts(top, "========= COMPUTE-SANITIZER\n")
    assert code == 1 and lines[0].endswith("(it did not come to its end)"), lines


def stand_in(folder, name, text):
    path = os.path.join(folder, name)
    if os.path.lexists(path):
        os.remove(path)
    with open(path, "w", encoding="utf-8") as file:
        file.write("#!/bin/sh\n" + text)
    os.chmod(path, 0o755)


def check_run_with_stand_ins(top, work):
    """`run` on programs that do as if there were a GPU."""
    tools = os.path.join(work, "tools")
    os.makedirs(tools)
    programs = os.path.join(top, "bin")
    for name in NAMES:
        stand_in(programs, name, f'echo "{name} $*"\n')
    stand_in(tools, "compute-sanitizer", 'while [ $# -gt 0 ]; do case $1 in --log-file) printf "========= COMPUTE-SANITIZER\\n========= ERROR SUMMARY: 0 errors\\n" > "$2"; shift ;; esac; shift; done\n')
    stand_in(tools, "python3", 'case $1 in -c) echo /nowhere ;; *) echo "$@" ;; esac\n')
    path = tools + os.pathsep + os.environ["PATH"]
    output = os.path.join(work, "figures")
    answer = run_in(top, "all", "--output", output, PATH=path)
    assert answer.returncode == 0, answer
    with open(output, encoding="utf-8") as file:
        assert file.read() == answer.stdout, answer
    for line in ("gpu_tests --run_test=engine --log_level=message --color_output=no", "gpu_nccl --ranks 3 --stop", "engine_bench ", "synccheck: 0 reports of our kernels and calls, 0 of libraries",
                 f"{top}/share/beside_torch.py {programs} tiny perceptron cnn language_model"):
        assert line in answer.stdout.splitlines(), (line, answer.stdout)
    assert f"gpu_bench --picture {output}.pipeline.svg" in answer.stdout and answer.stdout.rstrip().splitlines()[-1].startswith("== all is well"), answer.stdout
    stand_in(programs, "gpu_nccl", "exit 3\n")
    stand_in(programs, "gpu_bench", "sleep 30\n")
    answer = run_in(top, "nccl", PATH=path)
    assert answer.returncode == 1 and "nccl --ranks 2 --kill: exit code 3" in answer.stdout and "something failed" in answer.stdout, answer
    answer = run_in(top, "bench", "--seconds", "6", PATH=path)
    assert answer.returncode == 1 and "bench: did not end within" in answer.stdout and "bench of sessions: not run, the 6 s are over" in answer.stdout, answer
    stand_in(tools, "compute-sanitizer", "exit 1\n")
    answer = run_in(top, "sanitizers", PATH=path)
    assert answer.returncode == 1 and "racecheck: no reports were written" in answer.stdout, answer


def main():
    root, build = sys.argv[1:3]
    if not all(os.path.exists(os.path.join(build, "bin", n)) for n in ("troupe-gpu", "driver_calls.so")):
        print("skipped: gpu_programs and driver_calls are not built")
        return 77
    with tempfile.TemporaryDirectory() as work:
        work = os.path.realpath(work)
        tarball = os.path.join(work, "bundle.tar.gz")
        pack = os.path.join(root, "tools", "bundle")
        limits.run([sys.executable, pack, "--build", build, "--output", tarball], check=True,
                   seconds=limits.BUILD)
        with tarfile.open(tarball) as tar:
            tar.extractall(work)
        top = os.path.join(work, "troupe-gpu")
        size = sum(os.lstat(os.path.join(folder, n)).st_size for folder, _, names in os.walk(top) for n in names)
        assert size <= 60 << 20, f"{size / 2**20:.1f} MiB unpacked"
        names = os.listdir(os.path.join(top, "lib"))
        assert not [n for n in names if n.startswith(("libcuda", "libcublas", "libcudnn", "libnvrtc", "libnccl", "libc.", "libstdc++"))], names
        # Each library that is packed is the one that is used.
        programs = os.path.join(top, "bin", "troupe-gpu")
        out = limits.run(["ldd", programs], check=True, text=True).stdout
        assert "not found" not in out, out
        for name in names:
            lines = [line for line in out.splitlines() if line.strip().startswith(name + " ")]
            assert all(top in os.path.realpath(line.split("=>")[1].split("(")[0].strip()) for line in lines), out
        answer = run_in(top, "--help")
        assert answer.returncode == 0 and "tests and benchmarks" in answer.stdout, answer
        for flags in (["--what"], ["nothing"], ["--seconds", "many"], ["--output"]):
            assert run_in(top, *flags).returncode == 2, flags
        for program in NAMES:
            answer = limits.run([os.path.join(top, "bin", program), "--help"], text=True)
            assert answer.returncode == 0, answer
        # Hidden, so that the answer is the same with a GPU.
        for what in ("tests", "engine", "nccl", "bench", "torch", "towers", "sanitizers", "all"):
            answer = run_in(top, what, CUDA_VISIBLE_DEVICES="")
            assert answer.returncode == 77 and "skipped: no CUDA device" in answer.stdout, answer
        print(answer.stdout.strip().splitlines()[-1])
        check_counting(top)
        check_run_with_stand_ins(top, work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
