#include "troupe/devices/cuda/fused_source.hpp"
#include "troupe/devices/cuda/libraries/nvrtc_program.hpp"
#include "troupe/devices/host/host_device.hpp"

#include <boost/test/unit_test.hpp>
#include <fmt/format.h>

#include <fstream>
#include <map>

using namespace troupe;
using namespace troupe::cuda;

namespace {

std::unique_ptr<kernel_compiler> compiler(std::filesystem::path folder = {}) {
  auto made = kernel_compiler::make(std::move(folder));
  if (!made) {
    BOOST_TEST_MESSAGE("skipped: " << made.error().text());
    return nullptr;
  }
  return std::move(*made);
}

std::string source_of(const std::string& op, const std::vector<dtype>& types,
                      const std::vector<shape>& shapes, const shape& out) {
  element_step s{op, {}, types.back()};
  std::vector<tensor_spec> in;
  for (std::size_t i = 0; i + 1 < types.size(); ++i) {
    s.operands.push_back(static_cast<std::int32_t>(i));
    in.push_back({types[i], shapes[i % shapes.size()]});
  }
  const auto made = make_fused_source({&s, 1}, in, {types.back(), out});
  BOOST_REQUIRE_MESSAGE(made, op << ": " << (made ? "" : made.error().text()));
  return made->text;
}

struct temporary {
  std::filesystem::path path;
  temporary() {
    std::string name = (std::filesystem::temp_directory_path() / "troupe-cuda-XXXXXX").string();
    BOOST_REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~temporary() { std::filesystem::remove_all(path); }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(fused_source)

BOOST_AUTO_TEST_CASE(every_elementwise_op_of_the_host_has_a_source_for_the_same_types) {
  host_device device;
  const auto table = make_host_kernels();
  for (const auto op : element_ops()) {
    const auto* row = table.find(std::string(op));
    BOOST_REQUIRE_MESSAGE(row != nullptr, op);
    const auto all = element_overloads(op);
    BOOST_TEST(!all.empty());
    std::map<std::vector<dtype>, bool> has;
    for (const auto& types : all) has[types] = true;
    // The host says which types it takes: all combinations are asked.
    const auto operands = all[0].size() - 1;
    std::vector<std::size_t> digits(operands + 1, 0);
    for (bool more = true; more;) {
      std::vector<dtype> types;
      for (const auto d : digits) types.push_back(static_cast<dtype>(d));
      std::vector<tensor_spec> in;
      for (std::size_t i = 0; i < operands; ++i) in.push_back({types[i], {3}});
      const tensor_spec out{types.back(), {3}};
      auto k = row->make({}, device);
      BOOST_REQUIRE(k);
      const bool on_host = static_cast<bool>((*k)->prepare(in, {&out, 1}));
      BOOST_TEST(on_host == has.contains(types),
                 op << " of " << to_string(in[0]) << " to " << to_string(out));
      more = false;
      for (auto& d : digits) {
        if (++d < dtype_count) {
          more = true;
          break;
        }
        d = 0;
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(the_source_of_every_elementwise_op_and_type_compiles_for_sm_90) {
  auto c = compiler();
  if (c == nullptr) return;
  // All overloads of an op in one source take a fifth of the time: an op each in its own namespace.
  std::size_t overloads = 0;
  std::string all = "#include \"troupe/devices/element_ops.hpp\"\n";
  for (const auto op : element_ops())
    for (const auto& types : element_overloads(op)) {
      auto text = source_of(std::string(op), types, {{4, 5}}, {4, 5});
      text.erase(0, text.find('\n') + 1);
      const auto entry = text.find("extern \"C\" ");
      text.erase(entry, 11);
      all += fmt::format("namespace op_{} {{\n{}}}\n", overloads++, text);
    }
  const auto made = c->compile(all, 9, 0, "every op");
  BOOST_REQUIRE_MESSAGE(made, (made ? "" : made.error().text()));
  BOOST_TEST_MESSAGE(overloads << " kernels, NVRTC " << c->version() << ", " << (*made)->size()
                               << " bytes");
}

BOOST_AUTO_TEST_CASE(broadcasting_compiles_for_old_and_new_chips) {
  auto c = compiler();
  if (c == nullptr) return;
  const std::vector<dtype> types{dtype::f32, dtype::f32, dtype::f32};
  const auto bias = source_of("add", types, {{7, 13}, {13}}, {7, 13});
  BOOST_TEST(bias.find("rest %") != std::string::npos);
  const auto scalar = source_of("mul", types, {{7, 13}, {}}, {7, 13});
  BOOST_TEST(scalar.find("v1 = *p1") != std::string::npos);
  BOOST_TEST(scalar.find("pack") != std::string::npos);
  const auto both = source_of("sub", types, {{7, 1, 3}, {1, 5, 1}}, {7, 5, 3});
  for (const auto& source : {bias, scalar, both})
    for (const auto& [major, minor] : {std::pair{7, 5}, {8, 0}, {9, 0}, {12, 0}, {12, 9}}) {
      const auto made = c->compile(source, major, minor, "broadcast");
      BOOST_TEST(static_cast<bool>(made), (made ? "" : made.error().text()));
    }
  BOOST_TEST(!c->compile(bias, 5, 0, "broadcast"));
}

BOOST_AUTO_TEST_CASE(sizes_are_arguments_and_not_in_the_source) {
  const std::vector<dtype> types{dtype::f32, dtype::f32, dtype::f32};
  BOOST_TEST(source_of("add", types, {{128, 10}, {10}}, {128, 10}) ==
             source_of("add", types, {{96, 11}, {11}}, {96, 11}));
}

BOOST_AUTO_TEST_CASE(a_chain_reads_each_port_once) {
  // relu(a + b) * a
  const std::vector<element_step> steps{
      {"add", {0, 1}, dtype::f32}, {"relu", {-1}, dtype::f32}, {"mul", {-2, 0}, dtype::f32}};
  const std::vector<tensor_spec> in{{dtype::f32, {6, 4}}, {dtype::f32, {4}}, {dtype::i32, {}}};
  const auto made = make_fused_source(steps, in, {dtype::f32, {6, 4}});
  BOOST_REQUIRE(made);
  BOOST_TEST(made->ports == (std::vector<std::size_t>{0, 1}), boost::test_tools::per_element());
  BOOST_TEST(made->numbers == (std::vector<std::int64_t>{4, 1}), boost::test_tools::per_element());
  BOOST_TEST(made->elements == 24);
  BOOST_TEST(made->text.find("add_op::apply(v0, v1)") != std::string::npos);
  BOOST_TEST(made->text.find("mul_op::apply(s1, v0)") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(what_does_not_fit_is_an_error_that_names_the_op) {
  const std::vector<tensor_spec> in{{dtype::f32, {6}}, {dtype::i32, {6}}};
  const auto text = [&](std::vector<element_step> steps, tensor_spec out) {
    const auto made = make_fused_source(steps, in, out);
    return made ? std::string("fits") : made.error().message();
  };
  BOOST_TEST(text({{"matmul", {0, 0}, dtype::f32}}, in[0]) ==
             "no CUDA kernel for matmul in a fused group: it is not element-wise");
  BOOST_TEST(text({{"add", {0, 1}, dtype::f32}}, in[0]) ==
             "add: there is no kernel for f32, i32 that gives f32");
  BOOST_TEST(text({{"add", {0, 5}, dtype::f32}}, in[0]) ==
             "op 0 of a fused group takes operand 5, which is neither a port nor an earlier op");
  BOOST_TEST(text({{"add", {0, -1}, dtype::f32}}, in[0]) ==
             "op 0 of a fused group takes operand -1, which is neither a port nor an earlier op");
  BOOST_TEST(text({{"relu", {0}, dtype::f32}}, {dtype::f32, {5}}) ==
             "an operand of a fused group cannot be broadcast to f32[5]");
  BOOST_TEST(text({}, in[0]) == "a fused group has no ops");
}

BOOST_AUTO_TEST_CASE(a_mistake_in_a_source_is_an_error_with_the_words_of_nvrtc) {
  auto c = compiler();
  if (c == nullptr) return;
  const auto made =
      c->compile("extern \"C\" __global__ void k() { undeclared(); }", 9, 0, "group 7");
  BOOST_REQUIRE(!made);
  BOOST_TEST(made.error().message().starts_with("group 7: NVRTC"));
  BOOST_TEST(made.error().message().find("undeclared") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(binaries_are_kept_in_memory_and_in_a_folder_and_damaged_ones_are_made_anew) {
  const temporary folder;
  const std::string source = "extern \"C\" __global__ void k(float* x) { *x = 1; }";
  std::vector<char> first;
  {
    auto c = compiler(folder.path / "kernels");
    if (c == nullptr) return;
    auto made = c->compile(source, 9, 0, "k");
    BOOST_REQUIRE(made);
    first = **made;
    BOOST_REQUIRE(c->compile(source, 9, 0, "k"));
    BOOST_TEST(c->stats().compiled == 1U);
    BOOST_TEST(c->stats().from_memory == 1U);
  }
  std::filesystem::path file;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path / "kernels"))
    file = entry.path();
  BOOST_TEST(file.extension() == ".bin");
  {
    auto c = compiler(folder.path / "kernels");
    const auto made = c->compile(source, 9, 0, "k");
    BOOST_REQUIRE(made);
    BOOST_TEST((**made == first));
    BOOST_TEST(c->stats().from_folder == 1U);
    BOOST_REQUIRE(c->compile(source, 8, 0, "k"));  // another chip, another entry
    BOOST_TEST(c->stats().compiled == 1U);
  }
  const auto whole = std::filesystem::file_size(file);
  const auto damage = [&](auto how) {
    how();
    auto c = compiler(folder.path / "kernels");
    const auto made = c->compile(source, 9, 0, "k");
    BOOST_REQUIRE(made);
    BOOST_TEST(c->stats().compiled == 1U);
    BOOST_TEST(std::filesystem::file_size(file) == whole);
  };
  damage([&] { std::filesystem::resize_file(file, whole / 2); });
  damage([&] { std::filesystem::resize_file(file, 0); });
  damage([&] {
    std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
    f.seekp(200);
    f.put('x');
    f.put('y');
  });
}

BOOST_AUTO_TEST_CASE(a_folder_that_cannot_be_written_is_no_error) {
  auto c = compiler("/proc/troupe");
  if (c == nullptr) return;
  BOOST_TEST(static_cast<bool>(c->compile("extern \"C\" __global__ void k() {}", 9, 0, "k")));
}

BOOST_AUTO_TEST_SUITE_END()
