// Products of matrices, one for each element of the dimensions in front, which are broadcast; or
// their sum. As devices/host/ops/matmul.cpp, by cuBLASLt; f16 and bf16, too.

#include "troupe/devices/cuda/kernels/families.hpp"

#include <algorithm>
#include <array>
#include <vector>

namespace troupe::cuda {
namespace {

shape batches_of(const shape& s) {
  std::array<dim, shape::rank_max> dims{};
  const auto rank = s.rank() - 2;
  for (std::size_t i = 0; i < rank; ++i) dims[i] = s[i];
  return *shape::from(std::span(dims).first(rank));
}

// Size of a dimension counted from the end; 1 where there is none.
std::int64_t size_from_end(const shape& s, std::size_t i) {
  return i <= s.rank() ? s.size(s.rank() - i) : 1;
}

class matmul final : public kernel_of_chip {
 public:
  matmul(const attributes& attrs, chip_services& chip)
      : kernel_of_chip(chip), is_sum_(attrs.integer("sum_batches") != 0) {
    each_.transpose_a = attrs.integer("transpose_a") != 0;
    each_.transpose_b = attrs.integer("transpose_b") != 0;
    // Of a fused group (group.cpp): a third operand is the bias.
    each_.end = static_cast<epilogue>(attrs.integer("epilogue"));
    each_.mode = attrs.integer("tf32") != 0 ? product_mode::tf32 : product_mode::exact;
  }

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    const bool has_bias = each_.end != epilogue::none;
    if (auto ok = check_ports("matmul", inputs, has_bias ? 3 : 2, outputs, 1); !ok) return ok;
    const auto &a = inputs[0], &b = inputs[1], &c = outputs[0];
    auto p = each_;
    p.type = c.type;
    if (a.type != c.type || b.type != c.type ||
        (!is_float(c.type) && c.type != dtype::f16 && c.type != dtype::bf16))
      return unfit("matmul", "operands are all f32, f64, f16 or bf16", inputs);
    const auto ra = a.shape.rank(), rb = b.shape.rank(), rc = c.shape.rank();
    if (ra < 2 || rb < 2 || rc < 2)
      return unfit("matmul", "operands have two or more dimensions", inputs);
    p.stride_a = a.shape.size(ra - 1), p.stride_b = b.shape.size(rb - 1),
    p.stride_c = c.shape.size(rc - 1);
    p.m = a.shape.size(p.transpose_a ? ra - 1 : ra - 2);
    p.n = b.shape.size(p.transpose_b ? rb - 2 : rb - 1);
    p.k = a.shape.size(p.transpose_a ? ra - 2 : ra - 1);
    if (b.shape.size(p.transpose_b ? rb - 1 : rb - 2) != p.k || c.shape.size(rc - 2) != p.m ||
        c.shape.size(rc - 1) != p.n)
      return unfit("matmul", "inner dimensions differ", inputs);
    if (has_bias && (inputs[2] != tensor_spec{c.type, {p.n}} || p.k == 0 || is_sum_))
      return unfit("matmul", "a bias has as many elements as the result has columns", inputs);
    out_ = c;
    calls_.clear();
    plan_ = adding_plan_ = nullptr;
    if (auto ok = is_sum_ ? find_sum(a.shape, b.shape, p, inputs)
                          : find_batches(a.shape, b.shape, c.shape, p, inputs);
        !ok)
      return ok;
    if (p.m == 0 || p.n == 0 || p.k == 0 || p.batches == 0) calls_.clear();
    if (calls_.empty()) return {};
    const auto plan_of = [&](bool adds, chip_services::plan_ref& to) -> result<void> {
      p.adds = adds;
      auto made = chip_.plan_product(p);
      if (!made) return std::move(made.error()).while_doing("matmul");
      to = std::move(*made);
      return {};
    };
    if (auto ok = plan_of(false, plan_); !ok) return ok;
    return is_sum_ && calls_.size() > 1 ? plan_of(true, adding_plan_) : result<void>();
  }

  std::size_t workspace_bytes() const noexcept override {
    return std::max(plan_ != nullptr ? plan_->workspace_bytes : 0,
                    adding_plan_ != nullptr ? adding_plan_->workspace_bytes : 0);
  }

  result<void> enqueue(const launch_site& at, inputs_of inputs, outputs_of outputs) override {
    // Sums of nothing.
    if (calls_.empty()) return chip_.fill_zero(at, outputs[0], out_.size_bytes());
    const auto bytes = static_cast<std::int64_t>(size_of(out_.type));
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      const auto& c = calls_[i];
      const auto& plan = is_sum_ && i > 0 ? *adding_plan_ : *plan_;
      if (auto ok = chip_.multiply(at, plan, inputs[0] + c.a * bytes, inputs[1] + c.b * bytes,
                                   each_.end != epilogue::none ? inputs[2] : nullptr,
                                   outputs[0] + c.c * bytes, at.workspace);
          !ok)
        return ok;
    }
    return {};
  }

 private:
  struct call {
    std::int64_t a, b, c;  // elements from the beginning
  };

  result<void> find_batches(const shape& a, const shape& b, const shape& c, product& p,
                            std::span<const tensor_spec> inputs) {
    const auto batches = batches_of(c);
    if (!p.transpose_a && batches_of(b).elements() == 1 &&
        batches_of(a).elements() == batches.elements()) {
      p.m *= batches.elements();  // all rows of all batches are one matrix
      calls_.push_back({0, 0, 0});
      return {};
    }
    if (!find_calls(batches_of(a), batches_of(b), batches, p))
      return unfit("matmul", "batches cannot be broadcast", inputs);
    return {};
  }

  result<void> find_sum(const shape& a, const shape& b, product& p,
                        std::span<const tensor_spec> inputs) {
    const auto of_a = batches_of(a), of_b = batches_of(b);
    if (of_a == of_b && p.transpose_a && !p.transpose_b) {
      p.k *= of_a.elements();  // A^T B, summed, is one product over all rows of all batches
      calls_.push_back({0, 0, 0});
      return {};
    }
    std::array<dim, shape::rank_max> dims{};
    const auto rank = std::max(of_a.rank(), of_b.rank());
    for (std::size_t i = 1; i <= rank; ++i) {
      const auto n = size_from_end(of_a, i);
      dims[rank - i] = {n == 1 ? size_from_end(of_b, i) : n, 0};
    }
    const auto all = shape::from(std::span(dims).first(rank));
    if (!all || !find_calls(of_a, of_b, *all, p))
      return unfit("matmul", "batches cannot be broadcast", inputs);
    // One after the other, added up: results of batches would share an address.
    std::vector<call> single;
    for (const auto& c : calls_)
      for (std::int64_t i = 0; i < p.batches; ++i)
        single.push_back({c.a + i * p.step_a, c.b + i * p.step_b, 0});
    calls_ = std::move(single);
    p.batches = 1;
    p.step_a = p.step_b = p.step_c = 0;
    return {};
  }

  // One call with many batches where both operands move alike from batch to batch; else a call for
  // each row of such.
  bool find_calls(const shape& a, const shape& b, const shape& batches, product& p) {
    const auto each_a = p.m * p.k, each_b = p.k * p.n, each_c = p.m * p.n;
    std::vector<call> places;
    if (a.rank() > batches.rank() || b.rank() > batches.rank()) return false;
    const auto count = batches.elements();
    for (std::int64_t i = 0; i < count; ++i) {
      auto rest = i;
      std::int64_t at_a = 0, at_b = 0, step_a = 1, step_b = 1;
      for (std::size_t d = 1; d <= batches.rank(); ++d) {
        const auto n = size_from_end(batches, d), na = size_from_end(a, d),
                   nb = size_from_end(b, d), x = rest % n;
        if ((na != n && na != 1) || (nb != n && nb != 1)) return false;
        rest /= n;
        at_a += na == 1 ? 0 : x * step_a;
        at_b += nb == 1 ? 0 : x * step_b;
        step_a *= na;
        step_b *= nb;
      }
      places.push_back({at_a * each_a, at_b * each_b, i * each_c});
    }
    if (places.empty()) {
      p.batches = 0;
      return true;
    }
    std::size_t run = places.size();
    if (places.size() > 1) {
      p.step_a = places[1].a - places[0].a;
      p.step_b = places[1].b - places[0].b;
      const auto follows = [&](std::size_t i) {
        return places[i].a - places[i - 1].a == p.step_a &&
               places[i].b - places[i - 1].b == p.step_b;
      };
      run = 1;
      while (run < places.size() && follows(run)) ++run;
      bool is_regular = places.size() % run == 0;
      for (std::size_t i = 1; is_regular && i < places.size(); ++i)
        is_regular = i % run == 0 || follows(i);
      if (!is_regular) run = 1;
    }
    p.batches = static_cast<std::int64_t>(run);
    p.step_c = run > 1 ? each_c : 0;
    if (run == 1) p.step_a = p.step_b = 0;
    for (std::size_t i = 0; i < places.size(); i += run) calls_.push_back(places[i]);
    return true;
  }

  bool is_sum_;
  product each_;
  tensor_spec out_;
  std::vector<call> calls_;
  chip_services::plan_ref plan_, adding_plan_;
};

}  // namespace

void add_matmul_kernel(cuda_kernel_table& table) { add_row<matmul>(table, "matmul"); }

}  // namespace troupe::cuda
