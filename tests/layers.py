#!/usr/bin/env python3
"""The code base checks itself: layers, rooms, fences, blocking, marks.

    layers.py ROOT        prints every violation, exits 1 if there is one
    layers.py --self-test plants one violation of each rule in a tree of its own and expects each to be found

Rules: includes go downward (apps, tools -> actors -> runtime -> devices -> schema), and within runtime/ and actors/ from room to room as ROOMS
says; headers of layers are included as "troupe/LAYER/ROOM/NAME.hpp", others from the root; apps/ include the front door alone; a library stands only
inside its fence; runtime/ and actors/ do not block, except where EXCEPTIONS says why; CMake targets link downward; no TODO(now); the suites of a
file of tests are named as the file, since ctest asks for them by that name.
"""

import os
import re
import sys
import tempfile

RANK = {"schema": 0, "devices": 1, "runtime": 2, "actors": 3, "apps": 4, "tools": 4, "tests": 5}
TARGETS = {"troupe_schema": 0, "troupe_devices": 1, "troupe_cuda": 1, "troupe_cuda_kernels": 1, "troupe_images": 1, "troupe_runtime": 2, "troupe_onnx": 2, "troupe_flow": 2, "troupe_actors": 3, "troupe_pipelines": 3, "troupe_models": 3, "troupe": 3}

# Rooms of a layer, lowest first, each with those that it may include besides itself. A file beside the rooms belongs to none of them, and may be included by all.
ROOMS = {
    "runtime": {
        "text": "",
        "supervision": "",
        "plan": "text",
        "analysis": "text plan",
        "firing": "plan",
        "flow": "text plan",
        "shards": "plan",
        "graph": "plan",
        "layers": "plan graph",
        "trace": "plan",
        "insight": "text plan firing",
        "picture": "text insight",
        "stores": "text plan shards graph",
        "onnx": "text graph",
        "compile": "text plan analysis graph layers picture",
        "wire": "text plan shards trace",
        "cluster": "text wire",
        "checkpoint": "compile",
        "jobs": "text supervision plan shards graph compile wire checkpoint",
    },
    "actors": {
        "base": "",
        "messages": "",
        "net": "",
        "plan": "base messages",
        "cluster": "base messages net",
        "disk": "base messages",
        "job": "base messages",
        "node": "base messages plan job",
        "process": "base messages net plan cluster disk node",
        "session": "base messages job process",
        "flow": "base messages net process session",
        "models": "flow session",
        "inspect": "net cluster",
        "program": "session flow",
        "api": "session inspect program flow models",
    },
}
FRONT_DOOR = "actors/api/"  # what programs include, as <troupe/NAME.hpp>

# A library's headers, and the folders that may include them.
FENCES = [
    (r"caf/", ["actors/", "tests/", "tools/troupe-bench/", "tools/troupe-sim/"], "CAF"),
    (r"(oneapi/)?dnnl|omp\.h|c?blas|mkl|Eigen/", ["devices/", "tests/devices/", "tools/troupe-bench/"], "kernel libraries"),
    (r"cuda|cublas|cudnn|cub/|thrust/|nccl|nvrtc|nvml|nvtx", ["devices/cuda/", "devices/nccl/", "tests/gpu/"], "CUDA and NCCL"),
    (r"(zlib|zconf|zstd|zstd_errors|zdict)\.h$", ["devices/files/", "tests/devices/", "tests/fuzz/"], "packing libraries"),
    (r"(lib)?png|j(peglib|error|morecfg|config|pegint)\.h|turbojpeg", ["devices/images/", "tests/devices/", "tests/fuzz/", "tools/troupe-bench/"], "libpng and libjpeg-turbo"),
    (r"spdlog/", ["tools/troupe-node/"], "spdlog"),
    (r"tbb/", ["tools/troupe-bench/"], "oneTBB"),
    (r"boost/test/", ["tests/"], "the test library"),
    (r"google/protobuf/|.*\.pb\.h$", ["runtime/onnx/", "tests/runtime/", "tests/support/", "tests/fuzz/"], "protobuf"),
    (r"CLI/", ["actors/program/", "apps/", "tools/", "tests/multiprocess/"], "the command line parser"),
    (r"(sys/(socket|epoll|eventfd|un|uio|ioctl)|netinet/.*|netdb)\.h|boost/(asio|beast)",
     ["actors/", "apps/", "tools/", "tests/", "devices/async_host/"], "sockets (stand-ins for collectives of devices meet by them)"),
    (r"(thread|mutex|shared_mutex|condition_variable|chrono|random|ctime|time\.h|pthread\.h|semaphore|latch|barrier|future)$",
     ["devices/", "actors/", "apps/", "tools/", "tests/"], "threads, clocks and chance (runtime/ gets them passed in)"),
]

BLOCKING = re.compile(
    r"\b(mutex|shared_mutex|recursive_mutex|condition_variable(_any)?|lock_guard|unique_lock|scoped_lock|sleep_for|sleep_until|"
    r"u?sleep|nanosleep|counting_semaphore|binary_semaphore|latch|barrier|futex|pthread_\w+|p?poll|p?select|epoll_p?wait)\b")
# What a member of ours may be called, too: blocks only as the system's, ::poll().
OF_THE_SYSTEM = ("sleep", "poll", "ppoll", "select", "pselect")

# (file, word): why it may block there. One that is no longer needed is a violation too.
EXCEPTIONS = {
    ("actors/base/scheduler.cpp", "mutex"): "the inbox of a worker: a worker without work must be able to sleep",
    ("actors/base/scheduler.cpp", "lock_guard"): "the same inbox",
    ("actors/base/scheduler.cpp", "unique_lock"): "the same inbox",
    ("actors/base/scheduler.cpp", "condition_variable"): "the same inbox",
    ("actors/session/fit.cpp", "sleep_for"): "in the program's own thread, before a step that failed is made again",
    ("actors/net/io_loop.cpp", "epoll_wait"): "where the I/O loop sleeps",
    ("actors/net/discovery.cpp", "poll"): "waits for answers of others, 20 ms at most, on a thread of its own or in a tool",
    ("actors/flow/standard_input.cpp", "poll"): "a source that has a thread of its own waits for its input, 20 ms at most",
    ("actors/models/onnx_stage.cpp", "mutex"): "replicas of a process share what is compiled: held while it is, before the first item or for a new shape",
    ("actors/models/onnx_stage.cpp", "lock_guard"): "the same",
    ("actors/plan/device_streams.hpp", "mutex"): "held for the copy of a handle or of a short list: memory comes back on any thread, and devices of a part have a worker each",
    ("actors/plan/device_streams.hpp", "lock_guard"): "the same",
    ("actors/plan/device_streams.cpp", "lock_guard"): "the same",
    ("runtime/plan/collective.hpp", "barrier"): "a kind of collective, which is a message to each rank: nobody sleeps",
    ("runtime/plan/collective.cpp", "barrier"): "the same kind",
    ("runtime/graph/collectives.hpp", "barrier"): "the op that a program calls for one",
    ("runtime/graph/ops/collectives.cpp", "barrier"): "the same op",
}

SOURCE = (".hpp", ".cpp", ".h", ".cu", ".cuh")
GENERATED = (".capnp.h", ".pb.h", ".inc")  # included from the build folder, at the path of their source


def without_comments(text):
    """Comments and the contents of texts become spaces, lines stay lines. Includes keep their names."""
    token = re.compile(r'//[^\n]*|/\*.*?\*/|R"([^(\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)

    def blank(m):
        line = text[text.rfind("\n", 0, m.start()) + 1:m.start()]
        if line.lstrip().startswith("#include"):
            return m.group(0)
        if m.group(0).startswith("'") and m.start() > 0 and text[m.start() - 1].isalnum():
            return m.group(0)  # a digit separator
        return re.sub(r"[^\n]", " ", m.group(0))

    return token.sub(blank, text)


def line_of(text, at):
    return text.count("\n", 0, at) + 1


def files_under(root):
    for top in sorted(RANK):
        for folder, folders, names in os.walk(os.path.join(root, top)):
            folders.sort()
            for name in sorted(names):
                yield os.path.relpath(os.path.join(folder, name), root)


def room_of(path):
    """(layer, room), both None where there are no rooms; a room is None for what stands beside them."""
    layer, *rest = path.split("/")
    if layer not in ROOMS:
        return None, None
    return layer, rest[0] if len(rest) > 1 and rest[0] in ROOMS[layer] else None


def check_rooms(path, target):
    layer, room = room_of(path)
    target_layer, target_room = room_of(target)
    if layer is None or layer != target_layer or target_room in (None, room):
        return None
    if room is None or target_room in ROOMS[layer][room].split():
        return None
    order = list(ROOMS[layer])
    how = "goes upward" if order.index(target_room) > order.index(room) else "is no way between rooms"
    return f'include "{target}" {how}: {layer}/{room}/ may include {ROOMS[layer][room].replace(" ", "/, ") or "no other room"} (ROOMS in tests/layers.py)'


def check_include(path, name, is_quoted, root):
    layer = path.split("/")[0]
    if not is_quoted and name.startswith("troupe/"):
        if name.count("/") != 1:
            return f"include <{name}>: in angle brackets stands the front door alone, <troupe/NAME.hpp>"
        if not os.path.exists(os.path.join(root, FRONT_DOOR, name)):
            return f"include <{name}> does not exist in {FRONT_DOOR}"
        return None if RANK[layer] > RANK["actors"] or path.startswith(FRONT_DOOR) else f"include <{name}>: the front door is for programs"
    if is_quoted:
        is_generated = name.endswith(GENERATED) and not name.startswith("troupe/")
        if layer == "apps" and name.split("/")[0] != "apps":
            return f'include "{name}": apps/ are programs as users write them, and include <troupe/NAME.hpp>'
        target = name.split("/")[0]
        if target == "troupe":
            name = name[len("troupe/"):]
            target = name.split("/")[0]
            if target not in RANK or RANK[target] > RANK["actors"]:
                return f'include "troupe/{name}": there is no such layer'
        elif target in RANK and RANK[target] <= RANK["actors"] and not is_generated:
            return f'include "{name}" is that of a user: ours begin with troupe/'
        if target not in RANK or "/" not in name:
            return f'include "{name}" does not start at the root of the repository'
        if RANK[target] > RANK[layer] or (RANK[target] == RANK[layer] and target != layer):
            return f'include "{name}" goes upward: {layer}/ may not know {target}/'
        problem = check_rooms(path, name)
        if problem:
            return problem
        if not is_generated and not os.path.exists(os.path.join(root, name)):
            return f'include "{name}" does not exist'
        if not name.endswith(".pb.h"):
            return None
    for pattern, allowed, what in FENCES:
        if re.match(pattern, name) and not any(path.startswith(a) for a in allowed):
            return f"include <{name}>: {what} may stand only in {', '.join(allowed)}"
    return None


def check_source(path, raw, root, used):
    text = without_comments(raw)
    for m in re.finditer(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">]', text, re.M):
        problem = check_include(path, m.group(2), m.group(1) == '"', root)
        if problem:
            yield line_of(text, m.start(2)), problem
    if path.split("/")[0] in ("runtime", "actors"):
        code = re.sub(r"^[ \t]*#[ \t]*include[^\n]*", lambda m: " " * len(m.group(0)), text, flags=re.M)
        for m in BLOCKING.finditer(code):
            if m.group(1) in OF_THE_SYSTEM and not re.search(r"(^|\W)::$", code[:m.start()]):
                continue
            if (path, m.group(1)) in EXCEPTIONS:
                used.add((path, m.group(1)))
            else:
                yield line_of(code, m.start()), f"'{m.group(1)}' blocks: runtime/ and actors/ wait by messages (or give a reason in EXCEPTIONS)"
    for m in re.finditer(r"\bTODO\b(\((\w+)\))?", raw):
        if m.group(2) not in ("soon", "someday", "perf"):
            yield line_of(raw, m.start()), f"{m.group(0)}: only TODO(soon|someday|perf) may be committed"
    if path.startswith("tests/") and path.endswith("_test.cpp"):
        yield from check_suites(os.path.basename(path)[:-len("_test.cpp")], text)


def check_suites(expected, text):
    depth = 0
    for m in re.finditer(r"\bBOOST_(?:AUTO|FIXTURE)_TEST_SUITE(?:_END|\s*\(\s*(\w+))", text):
        if m.group(1) and depth == 0 and m.group(1) != expected:
            yield line_of(text, m.start()), f"suite '{m.group(1)}': ctest runs '{expected}', as the file is called, and would leave it out"
        depth += 1 if m.group(1) else -1


def check_cmake(path, text):
    layer = path.split("/")[0]
    text = re.sub(r"#[^\n]*", lambda m: " " * len(m.group(0)), text)
    for m in re.finditer(r"target_link_libraries\s*\(([^)]*)\)", text):
        for word in m.group(1).split()[1:]:
            if TARGETS.get(word, -1) > RANK[layer]:
                yield line_of(text, m.start()), f"{word} is linked upward"
            if word == "troupe_caf" and layer not in ("actors", "tools", "tests"):
                yield line_of(text, m.start()), "CAF is linked outside of actors/"
            if word == "troupe_dnnl" and layer not in ("devices", "tools", "tests"):
                yield line_of(text, m.start()), "oneDNN is linked outside of devices/"
            if word.startswith("CUDA::") and layer not in ("devices", "tests"):
                yield line_of(text, m.start()), "CUDA is linked outside of devices/"


def check_tree(root, exceptions_must_be_used=True):
    problems, used, count = [], set(), 0
    for path in files_under(root):
        if path.endswith(SOURCE):
            with open(os.path.join(root, path), encoding="utf-8") as f:
                found = list(check_source(path, f.read(), root, used))
        elif path.endswith("CMakeLists.txt"):
            with open(os.path.join(root, path), encoding="utf-8") as f:
                found = list(check_cmake(path, f.read()))
        else:
            continue
        count += 1
        problems += [f"{path}:{line}: {what}" for line, what in found]
    if exceptions_must_be_used:
        problems += [f"{path}: the exception for '{word}' is not needed any more" for path, word in sorted(set(EXCEPTIONS) - used)]
    if count == 0:
        problems.append(f"{root}: no source files found")
    return problems, count


PLANTED = [
    ("runtime/a.cpp", '#include "troupe/actors/b.hpp"\n', "goes upward"),
    ("runtime/plan/a.hpp", '#include "troupe/runtime/graph/a.hpp"\n', "goes upward: runtime/plan/ may include text"),
    ("runtime/jobs/a.hpp", '#include "troupe/runtime/onnx/a.hpp"\n', "is no way between rooms"),
    ("actors/job/a.hpp", '#include "troupe/actors/node/a.hpp"\n', "goes upward"),
    ("runtime/a.cpp", '#include "devices/b.hpp"\n', "ours begin with troupe/"),
    ("apps/a.cpp", '#include "troupe/apps/a.cpp"\n', "as users write them"),
    ("tools/a.cpp", '#include "troupe/tools/a.cpp"\n', "there is no such layer"),
    ("apps/a.cpp", "#include <troupe/actors/a.hpp>\n", "the front door alone"),
    ("apps/a.cpp", "#include <troupe/a.hpp>\n", "does not exist in actors/api/"),
    ("tools/a.cpp", '#include "apps/b.hpp"\n', "goes upward"),
    ("schema/a.hpp", '#include "a.hpp"\n', "does not start at the root"),
    ("schema/a.hpp", '#include "troupe/schema/missing.hpp"\n', "does not exist"),
    ("runtime/a.cpp", "#include <caf/actor.hpp>\n", "CAF may stand only"),
    ("apps/a.cpp", "#include <caf/actor.hpp>\n", "CAF may stand only"),
    ("runtime/a.cpp", "#include <oneapi/dnnl/dnnl.hpp>\n", "kernel libraries may stand only"),
    ("devices/files/a.cpp", "#include <png.h>\n", "libpng and libjpeg-turbo may stand only"),
    ("runtime/a.cpp", "#include <jpeglib.h>\n", "libpng and libjpeg-turbo may stand only"),
    ("tests/runtime/a.cpp", "#include <turbojpeg.h>\n", "libpng and libjpeg-turbo may stand only"),
    ("apps/a.cpp", "#include <google/protobuf/message_lite.h>\n", "protobuf may stand only"),
    ("runtime/a.cpp", "#include <zstd.h>\n", "packing libraries may stand only"),
    ("devices/host/a.cpp", "#include <zlib.h>\n", "packing libraries may stand only"),
    ("actors/a.cpp", '#include "runtime/onnx/onnx_format.pb.h"\n', "protobuf may stand only"),
    ("actors/a.cpp", "#include <cuda_runtime.h>\n", "CUDA and NCCL may stand only"),
    ("devices/host/a.cpp", "#include <cuda_runtime_api.h>\n", "CUDA and NCCL may stand only"),
    ("runtime/a.cu", "__global__ void k();\n#include <cub/cub.cuh>\n", "CUDA and NCCL may stand only"),
    ("tests/devices/a.cpp", "#include <nvrtc.h>\n", "CUDA and NCCL may stand only"),
    ("actors/a.cpp", "#include <nccl.h>\n", "CUDA and NCCL may stand only"),
    ("actors/CMakeLists.txt", "target_link_libraries(troupe_actors PRIVATE CUDA::cudart_static)\n", "CUDA is linked outside"),
    ("runtime/a.cpp", "#include <sys/socket.h>\n", "may stand only"),
    ("runtime/a.cpp", "#include <chrono>\n", "passed in"),
    ("actors/a.cpp", "std::mutex m;\n", "blocks"),
    ("actors/a.cpp", "void f() { std::this_thread::sleep_for(x); }\n", "blocks"),
    ("actors/a.cpp", "void f() { ::poll(&fd, 1, -1); }\n", "blocks"),
    ("actors/a.cpp", "void f() { ::sleep(1); }\n", "blocks"),
    ("runtime/a.cpp", "// TODO(now) finish\n", "may be committed"),
    ("runtime/a.cpp", "// TODO finish\n", "may be committed"),
    ("tests/a/b_test.cpp", "BOOST_AUTO_TEST_SUITE(b)\nBOOST_AUTO_TEST_SUITE_END()\nBOOST_AUTO_TEST_SUITE(c)\n", "would leave it out"),
    ("runtime/CMakeLists.txt", "target_link_libraries(troupe_runtime PUBLIC troupe_actors)\n", "linked upward"),
    ("runtime/CMakeLists.txt", "target_link_libraries(troupe_runtime PRIVATE troupe_caf)\n", "outside of actors/"),
]
HARMLESS = [
    ("actors/a.cpp", '// no mutex here\nconst char* s = "mutex sleep_for"; /* condition_variable */ int big = 1\'000\'000;\n'),
    ("actors/a.cpp", "#include <caf/actor.hpp>\n#include <thread>\nvoid worker::sleep() { sleep(); }\n"),
    ("tests/devices/a.cpp", "#include <oneapi/dnnl/dnnl.hpp>\n#include <mutex>\n"),
    ("devices/images/a.cpp", "#include <png.h>\n#include <jpeglib.h>\n"),
    ("devices/cuda/a.cu", "#include <cub/cub.cuh>\n"),
    ("devices/nccl/a.cpp", "#include <nccl.h>\n"),
    ("runtime/a.cpp", "// TODO(perf) a table\n"),
    ("tests/a/b_test.cpp", "BOOST_FIXTURE_TEST_SUITE(b, c)\nBOOST_AUTO_TEST_SUITE(d)\n"),
    ("apps/CMakeLists.txt", "target_link_libraries(x PRIVATE troupe) # troupe_caf\n"),
]


def problems_of(path, text):
    with tempfile.TemporaryDirectory() as root:
        os.makedirs(os.path.join(root, os.path.dirname(path)))
        with open(os.path.join(root, path), "w", encoding="utf-8") as f:
            f.write(text)
        return check_tree(root, exceptions_must_be_used=False)[0]


def self_test():
    failures = []
    for path, text, expected in PLANTED:
        found = problems_of(path, text)
        if len(found) != 1 or expected not in found[0]:
            failures.append(f"{path}: {text!r} gave {found}, expected one with '{expected}'")
    for path, text in HARMLESS:
        if problems_of(path, text):
            failures.append(f"{path}: {text!r} gave {problems_of(path, text)}")
    return failures


def main():
    if len(sys.argv) != 2:
        print("usage: layers.py ROOT | --self-test", file=sys.stderr)
        return 2
    if sys.argv[1] == "--self-test":
        problems, what = self_test(), f"{len(PLANTED)} planted violations found"
    else:
        problems, count = check_tree(sys.argv[1])
        what = f"{count} files keep the rules"
    for p in problems:
        print(p)
    print(f"{len(problems)} violations" if problems else what)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
