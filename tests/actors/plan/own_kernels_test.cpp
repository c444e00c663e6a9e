// Ops of a user's own whose kernels do what they should not: the step fails with the op and its
// line, and the session goes on.

#include "troupe/actors/session/session.hpp"
#include "troupe/runtime/graph/op_library.hpp"
#include "troupe/runtime/graph/ops.hpp"

#include <boost/test/unit_test.hpp>

#include <array>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

using namespace troupe;

namespace {

enum class deed : std::uint8_t { nothing, other_shape, refuses, throws, throws_seven };

class misbehaving_kernel final : public kernel {
 public:
  explicit misbehaving_kernel(deed d) : deed_(d) {}
  result<void> prepare(std::span<const tensor_spec>, std::span<const tensor_spec>) override {
    return {};
  }
  result<void> run(const tag&, std::span<const tensor>, std::span<tensor> out) override {
    switch (deed_) {
      case deed::nothing: out[0] = tensor(); break;
      case deed::other_shape: out[0] = tensor::make({dtype::f32, {3}}); break;
      case deed::refuses: return error(error_code::failed, "it does not like these");
      case deed::throws: throw std::runtime_error("the gate is shut");
      case deed::throws_seven: throw 7;
    }
    return {};
  }

 private:
  deed deed_;
};

void add_misbehaving(op_table& ops, kernel_table& kernels) {
  const auto add = [&](const char* name, auto make) {
    ops.add(name, {.inputs = 1,
                   .shapes = [](const attributes&, std::span<const tensor_spec> in, const tag*)
                       -> result<std::vector<tensor_spec>> { return std::vector{in[0]}; }});
    kernels.add(name, {make});
  };
  using made = result<std::unique_ptr<kernel>>;
  add("no_kernel",
      [](const attributes&, host_device&) -> made { return std::unique_ptr<kernel>(); });
  add("not_made", [](const attributes&, host_device&) -> made {
    return error(error_code::failed, "no such instruction set");
  });
  add("misbehaves", [](const attributes& a, host_device&) -> made {
    return std::unique_ptr<kernel>(
        std::make_unique<misbehaving_kernel>(static_cast<deed>(a.integer("deed"))));
  });
}
const op_library misbehaving{.name = "misbehaving", .version = "1", .add = add_misbehaving};

struct own_ops {
  // What a step says that needs this op.
  std::string failure(const std::string& type, deed d = deed::nothing, bool fuse = true) {
    graph g(s->ops());
    const auto x = input(g, {dtype::f32, {2}}, "x");
    const std::array operands{x};
    const attributes attrs =
        type == "misbehaves" ? attributes{{"deed", static_cast<std::int64_t>(d)}} : attributes{};
    const auto y = g.add(type, operands, attrs, "odd", source_location::current());
    BOOST_TEST_REQUIRE(!g.first_error(), (g.first_error() ? g.first_error()->text() : ""));
    auto steps = s->compile(g, std::array{y * 2.0F, x * 3.0F}, {.name = "odd_steps", .fuse = fuse});
    if (!steps) return steps.error().text();
    const std::pair<std::string_view, tensor> feeds[] = {{"x", tensor::of({1, 2}, {2})}};
    const auto out = (*steps)->step(feeds);
    return out ? "" : out.error().text();
  }
  void is_told(const std::string& said, std::string_view why) const {
    BOOST_TEST(said.find(why) != std::string::npos, said);
    BOOST_TEST(said.find("own_kernels_test.cpp:") != std::string::npos, said);
  }

  std::unique_ptr<session> s =
      std::move(*session::open({.gpus = "none", .libraries = {&misbehaving}}));
};

}  // namespace

BOOST_AUTO_TEST_SUITE(own_kernels)

BOOST_FIXTURE_TEST_CASE(an_op_for_which_no_kernel_is_made_is_named, own_ops) {
  is_told(failure("no_kernel"), "op 'odd' of type 'no_kernel': no kernel was made for it");
  is_told(failure("not_made"), "no such instruction set");
}

BOOST_FIXTURE_TEST_CASE(what_a_kernel_makes_is_what_its_rule_says, own_ops) {
  // Also where other ops go on with it in one kernel.
  for (const bool fuse : {false, true}) {
    is_told(failure("misbehaves", deed::nothing, fuse),
            "its kernel made nothing as output 0, which is f32[2]");
    is_told(failure("misbehaves", deed::other_shape, fuse),
            "its kernel made f32[3] as output 0, which is f32[2]");
  }
}

BOOST_FIXTURE_TEST_CASE(a_kernel_that_fails_or_throws_ends_the_step_with_its_reason, own_ops) {
  is_told(failure("misbehaves", deed::refuses), "it does not like these");
  const auto thrown = failure("misbehaves", deed::throws);
  BOOST_TEST(thrown.find("the gate is shut") != std::string::npos, thrown);
  const auto seven = failure("misbehaves", deed::throws_seven);
  BOOST_TEST(seven.find("an exception of unknown type") != std::string::npos, seven);
  // The session goes on.
  graph g(s->ops());
  const auto x = input(g, {dtype::f32, {2}}, "x");
  auto steps = s->compile(g, std::array{x * 3.0F});
  BOOST_TEST_REQUIRE(bool(steps));
  const std::pair<std::string_view, tensor> feeds[] = {{"x", tensor::of({1, 2}, {2})}};
  const auto out = (*steps)->step(feeds);
  BOOST_REQUIRE_MESSAGE(out, (out ? "" : out.error().text()));
  BOOST_TEST(out->at(0).data<float>()[1] == 6.0F);
}

BOOST_AUTO_TEST_SUITE_END()
