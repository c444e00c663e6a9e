// Every op on a device: beside the host's kernel of the same types, and f32 beside f64 on the host.

#include "tests/gpu/gpu.hpp"
#include "troupe/devices/cuda/optimizers.hpp"

#include <map>

using namespace troupe;
using namespace troupe::test;

namespace {

struct largest {
  double from_host = 0, from_f64 = 0;
  int cases = 0;
};
using table_of_errors = std::map<std::pair<std::string, std::string>, largest>;  // by op and type

// The same case in f64; nothing where some operand is neither f32 nor of whole numbers.
std::optional<op_case> in_f64(const op_case& c) {
  op_case wide = c;
  bool has_f32 = false;
  for (auto& t : wide.inputs) {
    if (t.type() == dtype::f16 || t.type() == dtype::bf16) return std::nullopt;
    if (t.type() != dtype::f32) continue;
    has_f32 = true;
    auto w = tensor::make({dtype::f64, t.shape()});
    for (std::int64_t i = 0; i < t.elements(); ++i)
      w.data<double>()[i] = static_cast<double>(t.data<float>()[i]);
    t = std::move(w);
  }
  for (auto& s : wide.outputs)
    if (s.type == dtype::f32) s.type = dtype::f64;
  return has_f32 && c.op != "cast" && !c.op.starts_with("random") && c.op != "dropout_mask"
             ? std::optional(wide)
             : std::nullopt;
}

void run(const std::vector<op_case>& cases, table_of_errors& table,
         const cuda::chip_options& options = {}) {
  gpu machine(1, {}, options);
  auto stream = machine.stream();
  for (const auto& c : cases) {
    const auto expected = run_on_host(c);
    BOOST_REQUIRE_MESSAGE(
        expected, c.name() << " on the host: " << (expected ? "" : expected.error().text()));
    const auto got = run_on_device(c, machine[0], *stream);
    BOOST_TEST(static_cast<bool>(got), c.name() << ": " << (got ? "" : got.error().text()));
    if (!got) {
      if (!stream->failed()) stream = machine.stream();  // the next case has one that works
      continue;
    }
    auto& e =
        table[{c.op, std::string(to_string(c.outputs.empty() ? dtype::f32 : c.outputs[0].type))}];
    ++e.cases;
    for (std::size_t i = 0; i < got->size(); ++i) {
      const auto d = largest_error((*got)[i], (*expected)[i]);
      BOOST_TEST(d <= c.tolerance, c.name() << ", result " << i << ": " << d << " from the host's");
      e.from_host = std::max(e.from_host, d);
    }
    if (const auto wide = in_f64(c))
      if (const auto exact = run_on_host(*wide))
        for (std::size_t i = 0; i < got->size(); ++i)
          if (c.outputs[i].type == dtype::f32)
            e.from_f64 = std::max(e.from_f64, largest_error((*got)[i], (*exact)[i]));
  }
}

void show(const table_of_errors& table) {
  std::string text =
      "| op | type | cases | from the host's | from f64 on the host |\n|---|---|---|---|---|\n";
  for (const auto& [key, e] : table)
    text += fmt::format("| {} | {} | {} | {} | {} |\n", key.first, key.second, e.cases,
                        e.from_host == 0 ? "equal bits" : fmt::format("{:.1e}", e.from_host),
                        e.from_f64 == 0 ? "" : fmt::format("{:.1e}", e.from_f64));
  BOOST_TEST_MESSAGE(text);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(ops)

BOOST_AUTO_TEST_CASE(every_op_gives_what_the_host_gives) {
  table_of_errors table;
  for (const auto type : {dtype::f32, dtype::f64, dtype::i32, dtype::i64})
    run(op_cases(type), table);
  show(table);
}

BOOST_AUTO_TEST_CASE(every_elementwise_op_gives_what_the_host_gives) {
  table_of_errors table;
  run(element_cases(), table);
  show(table);
}

BOOST_AUTO_TEST_CASE(every_elementwise_op_gives_the_same_without_NVRTC) {
  table_of_errors table;
  run(element_cases(), table, {.binary_folder = {}, .uses_nvrtc = false});
}

BOOST_AUTO_TEST_CASE(an_optimizer_gives_the_bits_of_the_hosts) {
  gpu machine;
  auto stream = machine.stream();
  constexpr std::int64_t n = 100'003;
  const auto w = numbers(dtype::f32, {n}, 1), m = numbers(dtype::f32, {n}, 2),
             v = numbers(dtype::f32, {n}, 3, 0.5, 1), g = numbers(dtype::f32, {n}, 4);
  const auto place = [&](const tensor& t) {
    auto at = stream->allocate(t.size_bytes(), "variable");
    BOOST_REQUIRE(at);
    TROUPE_FINE(stream->copy("variable", bytes_of(*at), memory_kind::device, t.bytes(),
                             memory_kind::pageable));
    return *at;
  };
  const auto d_w = place(w), d_m = place(m), d_v = place(v), d_g = place(g);
  const auto variable = [](device_memory at) {
    return cuda::code::variable{reinterpret_cast<const float*>(at.bytes),
                                reinterpret_cast<float*>(at.bytes)};
  };
  const float* parts[] = {reinterpret_cast<const float*>(d_g.bytes)};
  const adam_numbers k{0.01F, 0.3F, 0.1F, 0.99F, 0.01F, 1e-8F, 0.02F, 0.999F};
  auto sum = cuda::gradient_of({parts, 1.5F, 0.5F});
  BOOST_REQUIRE(sum);
  TROUPE_FINE(stream->enqueue("adam", {}, [&] {
    return cuda::adam_step(machine[0].chip(), stream->site("adam", nullptr, {}), variable(d_w),
                           variable(d_m), variable(d_v), *sum, n, k);
  }));
  const auto workspace = stream->allocate(cuda::norm_workspace_bytes(n), "norm"),
             norm = stream->allocate(sizeof(double), "norm");
  BOOST_REQUIRE((workspace && norm));
  TROUPE_FINE(stream->enqueue("norm", {}, [&] {
    return cuda::norm_of(machine[0].chip(), stream->site("norm", workspace->bytes, {}), *sum, n,
                         reinterpret_cast<double*>(norm->bytes));
  }));
  auto got = tensor::make({dtype::f32, {n}}), length = tensor::make({dtype::f64, {}});
  TROUPE_FINE(stream->copy("variable", got.bytes(), memory_kind::pageable, bytes_of(d_w),
                           memory_kind::device));
  TROUPE_FINE(stream->copy("norm", length.bytes(), memory_kind::pageable, bytes_of(*norm),
                           memory_kind::device));
  TROUPE_FINE(stream->synchronize());
  auto h_w =
           tensor::of<float>(dtype::f32, w.shape(), {w.data<float>(), static_cast<std::size_t>(n)}),
       h_m =
           tensor::of<float>(dtype::f32, m.shape(), {m.data<float>(), static_cast<std::size_t>(n)}),
       h_v =
           tensor::of<float>(dtype::f32, v.shape(), {v.data<float>(), static_cast<std::size_t>(n)});
  const float* h_parts[] = {g.data<float>()};
  const gradient_sum h_sum{h_parts, 1.5F, 0.5F};
  const auto in_place = [](tensor& t) { return stepped{t.data<float>(), t.data<float>()}; };
  adam_step(in_place(h_w), in_place(h_m), in_place(h_v), h_sum, n, k);
  BOOST_TEST(largest_error(got, h_w) == 0);
  BOOST_TEST(std::abs(length.data<double>()[0] - norm_of(h_sum, n)) <=
             1e-12 * length.data<double>()[0]);
  for (const auto at : {d_w, d_m, d_v, d_g, *workspace, *norm}) stream->free(at);
}

BOOST_AUTO_TEST_CASE(a_fused_group_gives_the_bits_of_its_ops) {
  gpu machine;
  auto stream = machine.stream();
  const auto a = numbers(dtype::f32, {70, 33}, 1), b = numbers(dtype::f32, {33}, 2);
  auto made = cuda::make_fused_cuda_kernel(
      {{"add", {0, 1}, dtype::f32}, {"gelu", {-1}, dtype::f32}, {"mul", {-2, 0}, dtype::f32}},
      machine[0].chip());
  BOOST_REQUIRE(made);
  const std::vector<tensor_spec> in{a.spec(), b.spec()}, out{a.spec()};
  TROUPE_FINE((*made)->prepare(in, out));
  auto m_a = stream->allocate(a.size_bytes(), "a"), m_b = stream->allocate(b.size_bytes(), "b");
  BOOST_REQUIRE((m_a && m_b));
  TROUPE_FINE(
      stream->copy("a", bytes_of(*m_a), memory_kind::device, a.bytes(), memory_kind::pageable));
  TROUPE_FINE(
      stream->copy("b", bytes_of(*m_b), memory_kind::device, b.bytes(), memory_kind::pageable));
  const std::vector<const std::byte*> from{m_a->bytes, m_b->bytes};
  const std::vector<std::byte*> to{m_a->bytes};  // in place
  TROUPE_FINE(stream->enqueue(
      "group", {}, [&] { return (*made)->enqueue(stream->site("group", nullptr, {}), from, to); }));
  auto got = tensor::make(a.spec());
  TROUPE_FINE(stream->copy("group", got.bytes(), memory_kind::pageable, bytes_of(*m_a),
                           memory_kind::device));
  TROUPE_FINE(stream->synchronize());
  stream->free(*m_a);
  stream->free(*m_b);
  const auto sum = run_on_host({"add", {}, {a, b}, {a.spec()}, 0, 0});
  const auto gelu = run_on_host({"gelu", {}, {(*sum)[0]}, {a.spec()}, 0, 0});
  const auto expected = run_on_host({"mul", {}, {(*gelu)[0], a}, {a.spec()}, 0, 0});
  BOOST_TEST(largest_error(got, (*expected)[0]) == 0);
}

BOOST_AUTO_TEST_CASE(large_ones_use_every_thread_more_than_once) {
  gpu machine;
  auto stream = machine.stream();
  const shape big{3, 1'000'003};
  const auto x = numbers(dtype::f32, big, 1), y = numbers(dtype::f32, {1'000'003}, 2);
  const tensor_spec out{dtype::f32, big};
  for (const auto& c : std::vector<op_case>{
           {"add", {}, {x, y}, {out}, 0, 0},
           {"relu", {}, {x}, {out}, 0, 0},
           {"transpose", {}, {x}, {{dtype::f32, {1'000'003, 3}}}, 0, 0},
           {"reduce_sum", {}, {x}, {{dtype::f32, {}}}, 1e-5, 0},
           {"reduce_max",
            {{"axes", std::vector<std::int64_t>{0}}},
            {x},
            {{dtype::f32, {1'000'003}}},
            0,
            0},
           {"softmax", {}, {x}, {out}, 1e-5, 0},
           {"cumulative_sum", {{"axis", std::int64_t{1}}}, {x}, {out}, 1e-3, 0},
           {"dropout_mask", {{"seed", std::int64_t{3}}, {"rate", 0.5}}, {x}, {out}, 0, 4}}) {
    const auto expected = run_on_host(c), got = run_on_device(c, machine[0], *stream);
    BOOST_REQUIRE(expected);
    BOOST_REQUIRE_MESSAGE(got, c.name() << ": " << (got ? "" : got.error().text()));
    BOOST_TEST(largest_error((*got)[0], (*expected)[0]) <= c.tolerance, c.name());
  }
}

// f16 and bf16, which the host does not multiply: beside f32 of the same numbers.
BOOST_AUTO_TEST_CASE(half_precision_is_multiplied_with_f32_sums) {
  gpu machine;
  auto stream = machine.stream();
  for (const auto& [type, tolerance] : {std::pair{dtype::f16, 2e-3}, {dtype::bf16, 1.6e-2}}) {
    const auto a = numbers(type, {96, 200}, 1), b = numbers(type, {200, 72}, 2);
    const auto wide = [](const tensor& t) {
      auto w = tensor::make({dtype::f32, t.shape()});
      for (std::int64_t i = 0; i < t.elements(); ++i)
        w.data<float>()[i] = static_cast<float>(number_at(t, i));
      return w;
    };
    const auto got =
        run_on_device({"matmul", {}, {a, b}, {{type, {96, 72}}}, 0, 0}, machine[0], *stream);
    BOOST_REQUIRE_MESSAGE(got, (got ? "" : got.error().text()));
    const auto expected =
        run_on_host({"matmul", {}, {wide(a), wide(b)}, {{dtype::f32, {96, 72}}}, 0, 0});
    BOOST_REQUIRE(expected);
    const auto e = largest_error(wide((*got)[0]), (*expected)[0]);
    BOOST_TEST(e <= tolerance, to_string(type) << ": " << e);
  }
}

BOOST_AUTO_TEST_CASE(a_product_with_bias_and_activation_in_one_call) {
  gpu machine;
  auto stream = machine.stream();
  const auto a = numbers(dtype::f32, {33, 64}, 1), b = numbers(dtype::f32, {64, 48}, 2),
             bias = numbers(dtype::f32, {48}, 3);
  const auto product = run_on_host({"matmul", {}, {a, b}, {{dtype::f32, {33, 48}}}, 0, 0});
  const auto sum = run_on_host({"add", {}, {(*product)[0], bias}, {{dtype::f32, {33, 48}}}, 0, 0});
  for (const auto& [end, op] : {std::pair{cuda::epilogue::bias, ""},
                                {cuda::epilogue::bias_relu, "relu"},
                                {cuda::epilogue::bias_gelu_tanh, "gelu_tanh"}}) {
    cuda::product p{.type = dtype::f32,
                    .end = end,
                    .m = 33,
                    .n = 48,
                    .k = 64,
                    .stride_a = 64,
                    .stride_b = 48,
                    .stride_c = 48};
    const auto plan = machine[0].chip().plan_product(p);
    BOOST_REQUIRE_MESSAGE(plan, (plan ? "" : plan.error().text()));
    const auto place = [&](const tensor& t) {
      auto m = stream->allocate(t.size_bytes(), "x");
      BOOST_REQUIRE(m);
      TROUPE_FINE(
          stream->copy("x", bytes_of(*m), memory_kind::device, t.bytes(), memory_kind::pageable));
      return *m;
    };
    const auto m_a = place(a), m_b = place(b), m_bias = place(bias), m_c = place((*sum)[0]);
    const auto workspace = stream->allocate((*plan)->workspace_bytes, "workspace");
    BOOST_REQUIRE(workspace);
    TROUPE_FINE(stream->enqueue("matmul", {}, [&] {
      return machine[0].chip().multiply(stream->site("matmul", nullptr, {}), **plan, m_a.bytes,
                                        m_b.bytes, m_bias.bytes, m_c.bytes, workspace->bytes);
    }));
    auto got = tensor::make({dtype::f32, {33, 48}});
    TROUPE_FINE(
        stream->copy("x", got.bytes(), memory_kind::pageable, bytes_of(m_c), memory_kind::device));
    TROUPE_FINE(stream->synchronize());
    const auto expected =
        *op == 0 ? sum : run_on_host({op, {}, {(*sum)[0]}, {{dtype::f32, {33, 48}}}, 0, 0});
    BOOST_TEST(largest_error(got, (*expected)[0]) <= 1e-5, "epilogue " << op);
    for (const auto m : {m_a, m_b, m_bias, m_c, *workspace}) stream->free(m);
  }
}

BOOST_AUTO_TEST_SUITE_END()
