// Generated kernels as programs: their source is compiled by the C++ compiler that built this test,
// with blocks and threads as loops, and run beside the host's kernels.

#include "tests/cuda_kernels/op_cases.hpp"
#include "tests/support/source_folder.hpp"
#include "tests/support/wait.hpp"
#include "troupe/devices/cuda/fused_source.hpp"

#include <boost/test/unit_test.hpp>

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

using namespace troupe;
using namespace troupe::test;

namespace {

using cuda::element_step;
using cuda::fused_source;

struct group_case {
  std::vector<element_step> steps;
  std::vector<tensor> inputs;
  tensor_spec output;
  double tolerance = 0;
};

// What CUDA has and C++ has not. A thread is an iteration: those of generated kernels share
// nothing.
constexpr const char* prelude = R"(
#include "troupe/devices/element_ops.hpp"
#define __device__
#define __global__
#define __launch_bounds__(n)
struct three { unsigned x; };
static three threadIdx, blockIdx, blockDim, gridDim;
using namespace troupe;
)";

// A function run_N(arguments, blocks) for the source.
std::string as_cpp(const fused_source& s, std::size_t n) {
  auto text = s.text;
  text.erase(0, text.find('\n') + 1);  // its include
  const auto entry = text.find("extern \"C\" ");
  text.erase(entry, 11);
  const auto open = text.find("fused(", entry), close = text.find(')', open);
  // "const float* p0, ..., float* out, long long elements, long long n0"
  std::string call, rest = text.substr(open + 6, close - open - 6);
  std::size_t argument = 0;
  for (std::size_t at = 0; at < rest.size();) {
    const auto comma = rest.find(", ", at), end = comma == std::string::npos ? rest.size() : comma;
    const auto one = rest.substr(at, end - at);
    const auto type = one.substr(0, one.rfind(' '));
    call += fmt::format("{}*({}*)arguments[{}]", argument == 0 ? "" : ", ",
                        type.ends_with("*") ? type : "const " + type, argument);
    ++argument;
    at = comma == std::string::npos ? rest.size() : comma + 2;
  }
  return fmt::format(
      "namespace case_{0} {{\n{1}}}\n"
      "extern \"C\" __attribute__((visibility(\"default\"))) void run_{0}(void** arguments, unsigned blocks) {{\n"
      "  gridDim.x = blocks; blockDim.x = 256;\n"
      "  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x)\n"
      "    for (threadIdx.x = 0; threadIdx.x < 256; ++threadIdx.x) case_{0}::fused({2});\n"
      "}}\n",
      n, text, call);
}

std::vector<group_case> cases() {
  std::vector<group_case> all;
  for (const auto& c : element_cases()) {
    group_case g{{{c.op, {}, c.outputs[0].type}}, c.inputs, c.outputs[0], 0};
    for (std::size_t i = 0; i < c.inputs.size(); ++i)
      g.steps[0].operands.push_back(static_cast<std::int32_t>(i));
    all.push_back(std::move(g));
  }
  const auto f32 = dtype::f32;
  const auto x = [&](const shape& s, unsigned seed) { return numbers(f32, s, seed); };
  const auto add = [&](std::vector<element_step> steps, std::vector<tensor> in, const shape& out) {
    const auto type = steps.back().type;
    all.push_back({std::move(steps), std::move(in), {type, out}, 0});
  };
  // Shapes: nothing, one element, tails of packs, several turns of all threads, broadcasts on every
  // side and in the middle.
  for (const auto& s : std::vector<shape>{{}, {1}, {3}, {4}, {5}, {1023}, {5000}, {0}})
    add({{"add", {0, 1}, f32}}, {x(s, 1), x(s, 2)}, s);
  add({{"sub", {0, 1}, f32}}, {x({7, 1, 3}, 1), x({1, 5, 1}, 2)}, {7, 5, 3});
  add({{"sub", {0, 1}, f32}}, {x({2, 1, 3, 1, 2}, 1), x({5, 1, 4, 1}, 2)}, {2, 5, 3, 4, 2});
  add({{"mul", {0, 1}, f32}}, {x({40, 1}, 1), x({1, 50}, 2)}, {40, 50});
  add({{"mul", {0, 1}, f32}}, {x({}, 1), x({40, 50}, 2)}, {40, 50});
  add({{"clip", {0, 1, 2}, f32}}, {x({4, 6}, 1), x({6}, 2), x({4, 1}, 3)}, {4, 6});
  // Chains and trees, several types in one.
  add({{"add", {0, 1}, f32}, {"gelu", {-1}, f32}, {"mul", {-2, 0}, f32}},
      {x({70, 33}, 1), x({33}, 2)}, {70, 33});
  add({{"greater", {0, 1}, dtype::boolean}, {"where", {-1, 0, 1}, f32}, {"cast", {-2}, dtype::f16}},
      {x({70, 33}, 1), x({70, 33}, 2)}, {70, 33});
  add({{"cast", {0}, f32}, {"mul", {-1, 1}, f32}, {"cast", {-2}, dtype::bf16}},
      {numbers(dtype::u8, {9, 5}, 1), x({}, 2)}, {9, 5});
  add({{"exp", {1}, f32}, {"square", {0}, f32}, {"sub", {-2, -1}, f32}}, {x({12, 4}, 1), x({4}, 2)},
      {12, 4});
  return all;
}

// By the host's kernels, op by op.
tensor expected_of(const group_case& c) {
  std::vector<tensor> values;
  for (const auto& s : c.steps) {
    op_case one{s.op, {}, {}, {{s.type, c.output.shape}}, 0, 0};
    for (const auto o : s.operands)
      one.inputs.push_back(o >= 0 ? c.inputs[static_cast<std::size_t>(o)]
                                  : values[static_cast<std::size_t>(-1 - o)]);
    auto r = run_on_host(one);
    BOOST_REQUIRE_MESSAGE(r, one.name() << ": " << (r ? "" : r.error().text()));
    values.push_back((*r)[0]);
  }
  return values.back();
}

struct temporary {
  std::filesystem::path path;
  temporary() {
    std::string name =
        (std::filesystem::temp_directory_path() / "troupe-generated-XXXXXX").string();
    BOOST_REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~temporary() { std::filesystem::remove_all(path); }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(generated)

BOOST_AUTO_TEST_CASE(FS_1_every_generated_kernel_computes_what_the_hosts_kernels_do) {
  const auto all = cases();
  std::vector<fused_source> sources;
  std::map<std::string, std::size_t> number_of;  // by text
  std::vector<std::size_t> number;
  std::string text = prelude;
  for (const auto& c : all) {
    std::vector<tensor_spec> specs;
    for (const auto& t : c.inputs) specs.push_back(t.spec());
    auto made = cuda::make_fused_source(c.steps, specs, c.output);
    BOOST_REQUIRE_MESSAGE(made, (made ? "" : made.error().text()));
    const auto [at, is_new] = number_of.try_emplace(made->text, number_of.size());
    if (is_new) text += as_cpp(*made, at->second);
    number.push_back(at->second);
    sources.push_back(std::move(*made));
  }
  const temporary folder;
  std::ofstream(folder.path / "generated.cpp") << text;
  const auto library = folder.path / "generated.so";
  const auto command = fmt::format(
      "{} {} -std=c++20 -w -O0 -fPIC -shared -ffp-contract=off -I{}/include -o {} {} > {} 2>&1",
      TROUPE_CXX, TROUPE_CXX_ARCH, test::build_folder(), library.string(),
      (folder.path / "generated.cpp").string(), (folder.path / "log").string());
  const bool is_built = [&] {
    const test::waiting_for named("the compiler of the kernels");
    return std::system(command.c_str()) == 0;
  }();
  std::string log;
  if (!is_built) std::getline(std::ifstream(folder.path / "log"), log, '\0');
  BOOST_REQUIRE_MESSAGE(is_built, log.substr(0, 4000));
  void* handle = ::dlopen(library.c_str(), RTLD_NOW);
  BOOST_REQUIRE(handle != nullptr);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto& c = all[i];
    const auto& s = sources[i];
    auto* run = reinterpret_cast<void (*)(void**, unsigned)>(
        ::dlsym(handle, fmt::format("run_{}", number[i]).c_str()));
    BOOST_REQUIRE(run != nullptr);
    const auto expected = expected_of(c);
    for (const unsigned blocks : {1U, 3U}) {
      auto got = tensor::make(c.output, c.output.size_bytes() + 64);
      std::memset(got.bytes().data(), 0xA5, c.output.size_bytes() + 64);
      std::vector<const void*> pointers;
      for (const auto p : s.ports) pointers.push_back(c.inputs[p].bytes().data());
      pointers.push_back(got.bytes().data());
      std::vector<void*> arguments;
      for (auto& p : pointers) arguments.push_back(&p);
      auto elements = static_cast<long long>(s.elements);
      arguments.push_back(&elements);
      std::vector<long long> sizes(s.numbers.begin(), s.numbers.end());
      for (auto& n : sizes) arguments.push_back(&n);
      run(arguments.data(), blocks);
      std::string ops;
      for (const auto& step : c.steps) ops += " " + step.op;
      BOOST_TEST(largest_error(got, expected) <= c.tolerance,
                 ops << " of " << to_string(c.inputs[0].spec()) << " in " << blocks << " blocks");
      for (std::size_t b = 0; b < 64; ++b)
        BOOST_REQUIRE(got.bytes().data()[c.output.size_bytes() + b] == std::byte{0xA5});
    }
  }
  ::dlclose(handle);
  BOOST_TEST_MESSAGE(all.size() << " cases of " << number_of.size() << " sources");
}

BOOST_AUTO_TEST_SUITE_END()
