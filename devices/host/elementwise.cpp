#include "devices/host/elementwise.hpp"

#include "devices/host/host_kernels.hpp"
#include "devices/host/vector_math.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <type_traits>

namespace troupe::host {

tile_extent extent_of(const shape& s, bool by_rows) noexcept {
  const auto n = s.elements();
  if (!by_rows || s.rank() == 0) return {1, n};
  const auto columns = s.size(s.rank() - 1);
  return {columns == 0 ? 0 : n / columns, columns};
}

void elementwise_kernel::set(const tiling& t, const tensor_spec& output) noexcept {
  tiling_ = t;
  const bool by_rows =
      std::find(t.forms.begin(), t.forms.begin() + t.operands, operand_form::row) != t.forms.begin() + t.operands;
  const auto extent = extent_of(output.shape, by_rows);
  rows_ = extent.rows;
  columns_ = extent.columns;
}

result<void> elementwise_kernel::run(const tag&, std::span<const tensor> inputs, std::span<tensor> outputs) {
  std::array<const std::byte*, elementwise_operands_max> operands{};
  for (std::size_t i = 0; i < tiling_.operands; ++i) operands[i] = inputs[i].bytes().data();
  tiling_.compute(outputs[0].bytes().data(), operands.data(), rows_, columns_);
  return {};
}

namespace {

using enum operand_form;

// The operations. Those of f64 that need a library call are not vectorised: nobody waits for them.
struct add_op {
  static auto apply(auto a, auto b) { return a + b; }
};
struct sub_op {
  static auto apply(auto a, auto b) { return a - b; }
};
struct mul_op {
  static auto apply(auto a, auto b) { return a * b; }
};
struct maximum_op {  // equal elements: a; a NaN on either side: NaN
  static auto apply(auto a, auto b) { return a >= b || a != a ? a : b; }
};
struct neg_op {
  static auto apply(auto x) { return -x; }
};
struct relu_op {  // a NaN stays
  static auto apply(auto x) { return x < decltype(x){} ? decltype(x){} : x; }
};
struct sigmoid_op {
  static float apply(float x) { return vector_math::sigmoid(x); }
  static double apply(double x) { return 1 / (1 + std::exp(-x)); }
};
struct tanh_op {
  static float apply(float x) { return vector_math::tanh(x); }
  static double apply(double x) { return std::tanh(x); }
};
struct relu_grad_op {
  static auto apply(auto dy, auto y) { return y > decltype(dy){} ? dy : decltype(dy){}; }
};
struct sigmoid_grad_op {
  static auto apply(auto dy, auto y) { return dy * (y * (1 - y)); }
};
struct tanh_grad_op {
  static auto apply(auto dy, auto y) { return dy * (1 - y * y); }
};
struct maximum_grad_a_op {
  static auto apply(auto dy, auto a, auto b) { return a >= b || a != a ? dy : decltype(dy){}; }
};
struct maximum_grad_b_op {
  static auto apply(auto dy, auto a, auto b) { return a >= b || a != a ? decltype(dy){} : dy; }
};

// One loop per operation, type and form of the last operand. In place is exact aliasing, which carries nothing from one
// element to the next: ivdep tells GCC, who would otherwise fall back to scalars when buffers overlap.
template <class Op, class T, operand_form Last, std::size_t Operands>
void tile(std::byte* out_bytes, const std::byte* const* operands, std::int64_t rows, std::int64_t columns) {
  auto* out = reinterpret_cast<T*>(out_bytes);
  const auto* a = reinterpret_cast<const T*>(operands[0]);
  [[maybe_unused]] const T* b = Operands > 1 ? reinterpret_cast<const T*>(operands[1]) : nullptr;
  [[maybe_unused]] const T* last = reinterpret_cast<const T*>(operands[Operands - 1]);
  if (Last != row) {
    columns *= rows;
    rows = 1;
  }
  if (rows == 0 || columns == 0) return;  // an empty scalar operand must not be read
  [[maybe_unused]] const T scalar_value = Last == scalar ? *last : T(0);
  for (std::int64_t r = 0; r < rows; ++r) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < columns; ++i) {
      if constexpr (Operands == 1) {
        out[i] = Op::apply(a[i]);
      } else {
        const T z = Last == scalar ? scalar_value : last[i];
        if constexpr (Operands == 2)
          out[i] = Op::apply(a[i], z);
        else
          out[i] = Op::apply(a[i], b[i], z);
      }
    }
    out += columns;
    a += columns;
    if (Operands > 2) b += columns;
    if (Operands > 1 && Last == full) last += columns;
  }
}

template <class Op, class T, std::size_t Operands>
tile_function tile_for(operand_form last) {
  if (Operands > 1 && last == row) return tile<Op, T, row, Operands>;
  if (Operands > 1 && last == scalar) return tile<Op, T, scalar, Operands>;
  return tile<Op, T, full, Operands>;
}

// nullopt: b cannot be broadcast to a.
std::optional<operand_form> form_of(const shape& b, const shape& a) {
  if (b == a) return full;
  if (b.rank() == 0) return scalar;
  if (b.rank() == 1 && a.rank() > 0 && b.size(0) == a.size(a.rank() - 1)) return row;
  return std::nullopt;
}

// All operands but the last have the output's shape; the last one too, or it is broadcast where the op allows it.
template <class Op, std::size_t Operands, bool Broadcasts>
class elementwise final : public elementwise_kernel {
 public:
  explicit elementwise(std::string_view op) : op_(op) {}

  result<void> prepare(std::span<const tensor_spec> inputs, std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports(op_, inputs, Operands, outputs, 1); !ok) return ok;
    const auto& out = outputs[0];
    for (const auto& in : inputs)
      if (in.type != out.type || (in.shape != out.shape && (!Broadcasts || &in != &inputs.back())))
        return unfit(op_, "operands do not fit each other", inputs);
    const auto form = form_of(inputs.back().shape, out.shape);
    if (!form) return unfit(op_, "the last operand has another shape and cannot be broadcast", inputs);
    tiling t{.compute = nullptr, .forms = {}, .operands = Operands};
    t.forms[Operands - 1] = *form;
    if (out.type == dtype::f32)
      t.compute = tile_for<Op, float, Operands>(*form);
    else if (out.type == dtype::f64)
      t.compute = tile_for<Op, double, Operands>(*form);
    else
      return unfit(op_, "element types are f32 and f64", inputs);
    set(t, out);
    return {};
  }

 private:
  std::string_view op_;  // a literal
};

template <class Op, std::size_t Operands, bool Broadcasts = false>
void add_row(kernel_table& table, std::string_view op) {
  table.add(std::string(op),
            {[op](const attributes&, host_device&) -> result<std::unique_ptr<kernel>> {
               return std::unique_ptr<kernel>(std::make_unique<elementwise<Op, Operands, Broadcasts>>(op));
             },
             true});
}

}  // namespace

void add_elementwise_kernels(kernel_table& table) {
  add_row<add_op, 2, true>(table, "add");
  add_row<sub_op, 2, true>(table, "sub");
  add_row<mul_op, 2, true>(table, "mul");
  add_row<maximum_op, 2, true>(table, "maximum");
  add_row<neg_op, 1>(table, "neg");
  add_row<relu_op, 1>(table, "relu");
  add_row<sigmoid_op, 1>(table, "sigmoid");
  add_row<tanh_op, 1>(table, "tanh");
  add_row<relu_grad_op, 2>(table, "relu_grad");
  add_row<sigmoid_grad_op, 2>(table, "sigmoid_grad");
  add_row<tanh_grad_op, 2>(table, "tanh_grad");
  table.add(
      "maximum_grad",
      {[](const attributes& attrs, host_device&) -> result<std::unique_ptr<kernel>> {
         if (attrs.integer("side") == 0)
           return std::unique_ptr<kernel>(std::make_unique<elementwise<maximum_grad_a_op, 3, true>>("maximum_grad"));
         return std::unique_ptr<kernel>(std::make_unique<elementwise<maximum_grad_b_op, 3, true>>("maximum_grad"));
       },
       true});
}

}  // namespace troupe::host
