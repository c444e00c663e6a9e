// What CUDA's kernels compute, on the host, beside the host's own kernels.

#include "tests/cuda_kernels/chip_on_host.hpp"

#include <boost/test/unit_test.hpp>

#include <map>
#include <set>

using namespace troupe;
using namespace troupe::test;

namespace {

// Largest errors by op.
std::map<std::string, double> compare_all(dtype type, int multiprocessors) {
  std::map<std::string, double> errors;
  chip_on_host chip(multiprocessors);
  for (const auto& c : op_cases(type)) {
    const auto expected = run_on_host(c);
    BOOST_REQUIRE_MESSAGE(
        expected, c.name() << " on the host: " << (expected ? "" : expected.error().text()));
    const auto got = run_cuda_kernel(c, chip);
    BOOST_TEST(static_cast<bool>(got), c.name() << ": " << (got ? "" : got.error().text()));
    if (!got) continue;
    for (std::size_t i = 0; i < got->size(); ++i) {
      const auto e = largest_error((*got)[i], (*expected)[i]);
      BOOST_TEST(e <= c.tolerance, c.name() << ", result " << i << ": " << e);
      errors[c.op] = std::max(errors[c.op], e);
    }
  }
  return errors;
}

void show(dtype type, const std::map<std::string, double>& errors) {
  std::string text;
  for (const auto& [op, e] : errors)
    if (e > 0) text += fmt::format(" {} {:.1e}", op, e);
  BOOST_TEST_MESSAGE(to_string(type)
                     << ": " << errors.size()
                     << " ops; largest relative errors, where there are some:" << text);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cuda_kernels)

BOOST_AUTO_TEST_CASE(every_kernel_gives_what_the_hosts_gives) {
  team_threads = 1;
  for (const auto type : {dtype::f32, dtype::f64, dtype::i32, dtype::i64})
    show(type, compare_all(type, 2));
}

BOOST_AUTO_TEST_CASE(teams_of_several_threads_give_the_same) {
  for (const int threads : {3, 5}) {
    team_threads = threads;
    for (const auto type : {dtype::f32, dtype::f64, dtype::i32}) compare_all(type, 2);
  }
  team_threads = 1;
}

BOOST_AUTO_TEST_CASE(a_large_chip_reduces_in_parts) { compare_all(dtype::f32, 132); }

BOOST_AUTO_TEST_CASE(every_elementwise_op_gives_the_bits_of_the_hosts) {
  chip_on_host chip;
  int count = 0;
  for (const auto& c : element_cases()) {
    const auto expected = run_on_host(c), got = run_cuda_kernel(c, chip);
    BOOST_REQUIRE_MESSAGE(
        expected, c.name() << " on the host: " << (expected ? "" : expected.error().text()));
    BOOST_REQUIRE_MESSAGE(got, c.name() << ": " << (got ? "" : got.error().text()));
    BOOST_TEST(largest_error((*got)[0], (*expected)[0]) == 0, c.name());
    ++count;
  }
  BOOST_TEST_MESSAGE(count << " cases");
}

BOOST_AUTO_TEST_CASE(a_fused_group_without_NVRTC_runs_op_by_op) {
  chip_on_host chip;
  const auto a = numbers(dtype::f32, {7, 5}, 1), b = numbers(dtype::f32, {5}, 2);
  auto made = cuda::make_fused_cuda_kernel({{"add", {0, 1}, dtype::f32},
                                            {"greater", {-1, 0}, dtype::boolean},
                                            {"where", {-2, -1, 0}, dtype::f32}},
                                           chip);
  BOOST_REQUIRE(made);
  const std::vector<tensor_spec> in{a.spec(), b.spec()}, out{a.spec()};
  BOOST_REQUIRE((*made)->prepare(in, out));
  std::vector<std::byte> workspace((*made)->workspace_bytes());
  auto got = tensor::make(a.spec());
  const std::vector<const std::byte*> from{a.bytes().data(), b.bytes().data()};
  const std::vector<std::byte*> to{got.bytes().data()};
  cuda::launch_site at;
  at.workspace = workspace.data();
  BOOST_REQUIRE((*made)->enqueue(at, from, to));
  for (std::int64_t i = 0; i < a.elements(); ++i) {
    const float x = a.data<float>()[i], sum = x + b.data<float>()[i % 5];
    BOOST_TEST(got.data<float>()[i] == (sum > x ? sum : x));
  }
}

BOOST_AUTO_TEST_CASE(a_group_behind_a_product_gives_what_its_ops_give) {
  chip_on_host chip;
  const auto table = cuda::make_cuda_kernels();
  using steps = std::vector<cuda::group_step>;
  const auto f32 = dtype::f32;
  const auto a = numbers(f32, {2, 5, 7}, 1), b = numbers(f32, {7, 6}, 2),
             bias = numbers(f32, {6}, 3), other = numbers(f32, {2, 5, 6}, 4);
  const tensor_spec out{f32, {2, 5, 6}};
  const cuda::group_step product{"matmul", {}, {0, 1}, f32};
  // What the epilogue of a product can do, and what it cannot; also on a chip whose library has no
  // products with one.
  for (const bool has_epilogues : {true, false}) {
    for (const auto& group :
         std::vector<steps>{{product},
                            {product, {"add", {}, {-1, 2}, f32}},
                            {product, {"add", {}, {2, -1}, f32}, {"relu", {}, {-2}, f32}},
                            {product, {"add", {}, {-1, 2}, f32}, {"gelu_tanh", {}, {-2}, f32}},
                            {product,
                             {"add", {}, {-1, 2}, f32},
                             {"relu", {}, {-2}, f32},
                             {"mul", {}, {-3, 3}, f32}},
                            {product,
                             {"add", {}, {-1, 2}, f32},
                             {"sigmoid", {}, {-2}, f32},
                             {"mul", {}, {-3, -2}, f32}},
                            {product, {"add", {}, {-1, 3}, f32}},
                            {product, {"add", {}, {-1, 2}, f32}, {"mul", {}, {-2, -1}, f32}},
                            {product, {"relu", {}, {-1}, f32}},
                            {product,
                             {"add", {}, {-1, 2}, f32},
                             {"relu", {}, {-2}, f32},
                             {"sub", {}, {-3, -2}, f32}}}) {
      chip.has_epilogues = has_epilogues;
      const std::vector<tensor> in{a, b, bias, other};
      std::vector<tensor> values;
      for (const auto& s : group) {
        op_case c{s.op, s.attrs, {}, {out}, 0, 0};
        for (const auto o : s.operands)
          c.inputs.push_back(o >= 0 ? in[static_cast<std::size_t>(o)]
                                    : values[static_cast<std::size_t>(-1 - o)]);
        values.push_back((*run_on_host(c))[0]);
      }
      auto made = cuda::make_cuda_group(group, table, chip);
      BOOST_REQUIRE(made);
      const std::vector<tensor_spec> specs{a.spec(), b.spec(), bias.spec(), other.spec()};
      const auto ok = (*made)->prepare(specs, {&out, 1});
      BOOST_REQUIRE_MESSAGE(ok, (ok ? "" : ok.error().text()));
      std::vector<std::byte> workspace((*made)->workspace_bytes());
      auto got = tensor::make(out);
      std::vector<const std::byte*> from;
      for (const auto& t : in) from.push_back(t.bytes().data());
      const std::vector<std::byte*> to{got.bytes().data()};
      cuda::launch_site at;
      at.workspace = workspace.data();
      BOOST_REQUIRE((*made)->enqueue(at, from, to));
      std::string text;
      for (const auto& s : group) text += " " + s.op;
      BOOST_TEST(largest_error(got, values.back()) <= 1e-6, text);
    }
  }
  BOOST_TEST(chip.products == 20);
  BOOST_TEST(
      cuda::make_cuda_group({product, {"softmax", {}, {-1}, f32}}, table, chip).error().message() ==
      "op 1 of a fused group, softmax, is not element-wise: only the first may be of another kind");
}

BOOST_AUTO_TEST_CASE(logic_is_reduced) {
  chip_on_host chip;
  for (const auto* op : {"reduce_any", "reduce_all"})
    for (const auto& [x, axes, out] :
         {std::tuple{shape{7, 3}, std::vector<std::int64_t>{0}, shape{3}},
          {shape{2, 300}, {1}, shape{2}},
          {shape{5}, {}, shape{}}}) {
      op_case c{op,
                axes.empty() ? attributes{} : attributes{{"axes", axes}},
                {numbers(dtype::boolean, x, 3)},
                {{dtype::boolean, out}},
                0,
                0};
      const auto expected = run_on_host(c), got = run_cuda_kernel(c, chip);
      BOOST_REQUIRE(expected);
      BOOST_REQUIRE(got);
      BOOST_TEST(largest_error((*got)[0], (*expected)[0]) == 0);
    }
}

BOOST_AUTO_TEST_CASE(a_NaN_is_treated_as_on_the_host) {
  chip_on_host chip;
  auto x = numbers(dtype::f32, {6, 40}, 4);
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto i : {3, 41, 79, 85, 160}) x.data<float>()[i] = nan;
  for (std::int64_t i = 200; i < 240; ++i) x.data<float>()[i] = nan;
  for (const int threads : {1, 3}) {
    team_threads = threads;
    for (const auto& c : std::vector<op_case>{{"reduce_max",
                                               {{"axes", std::vector<std::int64_t>{1}}},
                                               {x},
                                               {{dtype::f32, {6}}},
                                               0,
                                               0},
                                              {"reduce_min",
                                               {{"axes", std::vector<std::int64_t>{0}}},
                                               {x},
                                               {{dtype::f32, {40}}},
                                               0,
                                               0},
                                              {"argmax", {}, {x}, {{dtype::i32, {6}}}, 0, 0},
                                              {"argmin", {}, {x}, {{dtype::i32, {6}}}, 0, 0},
                                              {"top_k",
                                               {{"k", std::int64_t{7}}},
                                               {x},
                                               {{dtype::f32, {6, 7}}, {dtype::i32, {6, 7}}},
                                               0,
                                               0}}) {
      const auto expected = run_on_host(c), got = run_cuda_kernel(c, chip);
      BOOST_REQUIRE(expected);
      BOOST_REQUIRE(got);
      for (std::size_t i = 0; i < got->size(); ++i)
        BOOST_TEST(largest_error((*got)[i], (*expected)[i]) == 0, c.name());
    }
  }
  team_threads = 1;
}

BOOST_AUTO_TEST_CASE(KC_3_an_index_outside_is_reported_and_memory_left_alone) {
  chip_on_host chip;
  const auto x = numbers(dtype::f32, {5, 4}, 1);
  const auto bad = [](std::int32_t value) {
    auto t = tensor::make({dtype::i32, {3}});
    t.data<std::int32_t>()[0] = 1, t.data<std::int32_t>()[1] = value, t.data<std::int32_t>()[2] = 2;
    return t;
  };
  struct wrong {
    op_case c;
    std::int64_t low, high;
  };
  const auto rows = numbers(dtype::f32, {3, 4}, 2);
  for (const std::int32_t value : {5, -1, -6, 2'000'000'000}) {
    for (const auto& w : std::vector<wrong>{
             {{"gather", {}, {x, bad(value)}, {{dtype::f32, {3, 4}}}, 0, 0}, 0, 4},
             {{"scatter_add", {}, {x, bad(value), rows}, {{dtype::f32, {5, 4}}}, 0, 0}, 0, 4},
             {{"softmax_cross_entropy",
               {},
               {rows, bad(value), numbers(dtype::f32, {}, 1)},
               {{dtype::f32, {}}, {dtype::f32, {3, 4}}},
               0,
               0},
              0,
              3}}) {
      cuda::code::fault f;
      BOOST_REQUIRE(run_cuda_kernel(w.c, chip, &f));
      BOOST_TEST(f.state == 2U, w.c.op);
      BOOST_TEST(f.op == 9U);
      BOOST_TEST(f.at == 1);
      BOOST_TEST(f.value == value);
      BOOST_TEST(f.low == w.low);
      BOOST_TEST(f.high == w.high);
    }
  }
}

BOOST_AUTO_TEST_CASE(KC_4_ops_without_a_kernel_say_so) {
  chip_on_host chip;
  const auto made = cuda::make_cuda_kernels().make("text_batch", {}, chip);
  BOOST_REQUIRE(!made);
  BOOST_TEST(made.error().message() == "no CUDA kernel for text_batch; placed on the host");
  BOOST_TEST((made.error().code() == error_code::not_found));
  const auto group = cuda::make_fused_cuda_kernel({{"matmul", {0, 1}, dtype::f32}}, chip);
  BOOST_REQUIRE(!group);
  BOOST_TEST(group.error().message() ==
             "no CUDA kernel for matmul in a fused group; placed on the host");
}

// The table of README's reading list: which of the host's ops have a kernel here, and which have
// none.
BOOST_AUTO_TEST_CASE(the_table_of_ops_is_that_of_the_host_but_for_those_that_read_files) {
  const auto cuda_ops = cuda::make_cuda_kernels().ops();
  const std::set<std::string> on_cuda(cuda_ops.begin(), cuda_ops.end());
  std::set<std::string> tested, missing;
  for (const auto& c : op_cases(dtype::f32)) tested.insert(c.op);
  for (const auto& c : element_cases()) tested.insert(c.op);
  for (const auto* op : {"reduce_any", "reduce_all"}) tested.insert(op);
  std::set<std::string> host;
  const auto host_table = make_host_kernels();
  for (const auto& [op, row] : host_table.rows()) {
    host.insert(op);
    if (!on_cuda.contains(op)) missing.insert(op);
  }
  const std::set<std::string> expected_missing{"idx_batch", "index_batch", "pack_rows",
                                               "text_batch"};
  BOOST_TEST(missing == expected_missing, boost::test_tools::per_element());
  for (const auto& op : on_cuda) {
    BOOST_TEST(host.contains(op), op);
    BOOST_TEST(tested.contains(op), op << " has no case");
  }
  std::string text;
  for (const auto& op : on_cuda) text += " " + op;
  std::string none;
  for (const auto& op : missing) none += " " + op;
  BOOST_TEST_MESSAGE("CUDA kernels for " << on_cuda.size() << " ops:" << text
                                         << "\nplaced on the host:" << none);
}

BOOST_AUTO_TEST_SUITE_END()
