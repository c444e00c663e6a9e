#!/usr/bin/env python3
"""Another project finds Troupe as the README says, installed or as a folder: package.py SOURCE BUILD

Installed, its program is the README's own (readme_example.cpp), which must build without one line of CMake beside those of the
README, and so must the library of ops in apps/own_op/ by the CMake lines of its page. As a folder of the project it is only configured, since that would build Troupe anew: none of its warnings may reach the project.
"""

import json
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import unittest

import limits

SOURCE, BUILD = (os.path.abspath(a) for a in sys.argv[1:3])


def lines_of_readme(*folder):
    with open(os.path.join(SOURCE, *folder, "README.md")) as f:
        return re.search(r"```cmake\n(.*?)```", f.read(), re.S).group(1)


class package(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="troupe-package-")
        self.addCleanup(self.folder.cleanup)

    def path(self, *names):
        return os.path.join(self.folder.name, *names)

    def run_command(self, *command):
        done = limits.run(command, seconds=limits.BUILD, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(done.returncode, 0, f"{' '.join(command)}\n{done.stdout}")
        return done.stdout

    def write_project(self, lines):
        with open(self.path("CMakeLists.txt"), "w") as f:
            f.write("cmake_minimum_required(VERSION 3.25)\nproject(app LANGUAGES C CXX)\n"
                    f"add_executable(app {SOURCE}/tests/multiprocess/readme_example.cpp)\n"
                    f"target_include_directories(app PRIVATE {self.path()})\n" + lines)
        # Folders of its own that are called as ours are: a header there wins over no header of ours.
        for folder in ("actors", "devices", "runtime", "schema", "tools"):
            for name in ("plan/plan.hpp", "session/session.hpp", "tensor.hpp", "error.hpp", "graph/graph.hpp"):
                os.makedirs(os.path.dirname(self.path(folder, name)), exist_ok=True)
                with open(self.path(folder, name), "w") as f:
                    f.write("#error the user's own header was taken for one of Troupe's\n")
        os.makedirs(self.path("tests"))
        os.symlink(os.path.join(BUILD, "tests", "multiprocess"), self.path("tests", "multiprocess"))  # the README's C++

    def test_installed(self):
        self.run_command("cmake", "--install", BUILD, "--prefix", self.path("prefix"))
        self.assertEqual(sorted(os.listdir(self.path("prefix", "bin"))), ["onnx_run", "train_classifier", "train_embedding", "train_from_threads", "train_language_model", "train_towers", "troupe",
                                                                       "troupe-bench", "troupe-node", "troupe-sim"])
        with open(self.path("prefix", "share", "troupe", "troupe.json")) as f:  # for Grafana
            self.assertEqual(json.load(f)["uid"], "troupe")
        self.assertTrue(lines_of_readme().startswith("find_package(troupe"))
        self.write_project(lines_of_readme())
        self.run_command("cmake", "-G", "Ninja", "-S", self.path(), "-B", self.path("build"), f"-DCMAKE_PREFIX_PATH={self.path('prefix')}")
        self.run_command("cmake", "--build", self.path("build"))
        used = self.run_command("ninja", "-C", self.path("build"), "-t", "deps")
        self.assertIn(self.path("prefix", "include", "troupe", "actors", "session", "session.hpp"), used)
        self.assertNotIn(os.path.join(SOURCE, "actors"), used)

    def test_what_is_installed_is_the_front_door(self):
        self.run_command("cmake", "--install", BUILD, "--prefix", self.path("prefix"))
        include = self.path("prefix", "include")
        installed = [os.path.relpath(os.path.join(folder, name), include) for folder, _, names in os.walk(include) for name in names]
        with open(os.path.join(SOURCE, "actors", "api", "headers.txt")) as f:
            listed = [re.sub("^actors/api/troupe/", "", line) for line in f.read().split()]
        self.assertEqual(sorted(installed), sorted(f"troupe/{name}" for name in listed))

    def test_an_example_outside_of_the_tree(self):
        self.run_command("cmake", "--install", BUILD, "--prefix", self.path("prefix"))
        self.run_command("cmake", "-G", "Ninja", "-S", self.path("prefix", "share", "troupe", "examples", "apps"), "-B", self.path("build"),
                         f"-DCMAKE_PREFIX_PATH={self.path('prefix')}")
        self.run_command("cmake", "--build", self.path("build"), "--target", "train_embedding")
        said = self.run_command(self.path("build", "train_embedding"), "--steps", "2", "--batch", "2", "--json")
        self.assertIn("weights_hash", json.loads(said.splitlines()[-1]))

    def test_a_library_of_ops_outside_of_the_tree(self):
        self.run_command("cmake", "--install", BUILD, "--prefix", self.path("prefix"))
        os.makedirs(self.path("ops"))
        with open(self.path("ops", "CMakeLists.txt"), "w") as f:
            f.write(lines_of_readme("apps", "own_op"))
        shutil.copy(os.path.join(SOURCE, "apps", "own_op", "own_ops.cpp"), self.path("ops"))
        self.run_command("cmake", "-G", "Ninja", "-S", self.path("ops"), "-B", self.path("build"), "-DCMAKE_BUILD_TYPE=Release",
                         f"-DCMAKE_PREFIX_PATH={self.path('prefix')}")
        self.run_command("cmake", "--build", self.path("build"))
        library = self.path("build", "libown_ops.so")
        symbols = self.run_command("nm", "-D", "--defined-only", library)
        # Nothing else can meet a node's own, but what is of the one standard library: some linkers keep it visible.
        names = [s.split()[-1] for s in symbols.splitlines()]
        self.assertEqual([n for n in names if not re.match(r"_ZNK?S", n)], ["troupe_op_library"])
        program = [os.path.join(BUILD, "bin", "train_own_op"), "--steps", "20", "--batch", "2", "--width", "8", "--json"]
        hashes = [json.loads(self.run_command(*program, *more).splitlines()[-1])["weights_hash"] for more in ([], ["--load", library])]
        self.assertEqual(hashes[0], hashes[1])
        # A node of the installed programs takes it, too.
        node = subprocess.Popen([self.path("prefix", "bin", "troupe-node"), "--cluster", "package", "--load", library], stdout=subprocess.PIPE,
                                text=True, start_new_session=True,
                                env=dict(os.environ, XDG_RUNTIME_DIR=self.folder.name, TMPDIR=self.folder.name))
        try:
            self.assertTrue(select.select([node.stdout], [], [], limits.HANG)[0],
                            f"the node did not say within {limits.HANG:.0f} s that it listens")
            self.assertTrue(node.stdout.readline().startswith("listening "))
        finally:
            node.terminate()
            limits.output_of(node)
        self.assertEqual(node.returncode, 0)

    def test_the_library_for_images_alone(self):
        self.run_command("cmake", "--install", BUILD, "--prefix", self.path("prefix"))
        with open(self.path("CMakeLists.txt"), "w") as f:
            f.write("cmake_minimum_required(VERSION 3.25)\nproject(app LANGUAGES CXX)\nfind_package(troupe REQUIRED)\n"
                    "add_executable(app app.cpp)\ntarget_link_libraries(app PRIVATE troupe::images)\n")
        with open(self.path("app.cpp"), "w") as f:
            f.write("#include <troupe/images.hpp>\n#include <iostream>\nint main() { std::cout << troupe::decode_image({}, \"none\").error().text(); }\n")
        self.run_command("cmake", "-G", "Ninja", "-S", self.path(), "-B", self.path("build"), f"-DCMAKE_PREFIX_PATH={self.path('prefix')}")
        self.run_command("cmake", "--build", self.path("build"))
        self.assertEqual(self.run_command(self.path("build", "app")), "none: not an image that can be read: it is empty")

    def test_a_folder_of_the_project(self):
        self.write_project(lines_of_readme().replace("find_package(troupe REQUIRED)", f"add_subdirectory({SOURCE} troupe)"))
        self.run_command("cmake", "-G", "Ninja", "-S", self.path(), "-B", self.path("build"), "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON")
        with open(self.path("build", "compile_commands.json")) as f:
            commands = {c["file"]: c["command"] for c in json.load(f)}
        ours = commands[f"{SOURCE}/tests/multiprocess/readme_example.cpp"]
        self.assertNotIn("-W", ours)
        self.assertIn(f"-I{SOURCE}", ours)
        self.assertNotIn("-Werror", commands[f"{SOURCE}/actors/session/session.cpp"])
        self.assertNotIn(f"{SOURCE}/tests/support/main.cpp", commands)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
