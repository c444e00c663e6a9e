#include "troupe/devices/host/widened_kernel.hpp"

#include "troupe/devices/half.hpp"
#include "troupe/devices/host/host_device.hpp"
#include "troupe/devices/host/piecewise_kernel.hpp"

#include <fmt/format.h>

#include <type_traits>
#include <utility>
#include <vector>

namespace troupe::host {
namespace {

bool is_half(dtype t) noexcept { return t == dtype::f16 || t == dtype::bf16; }
float widen(f16 x) noexcept { return to_f32(x); }
float widen(bf16 x) noexcept { return to_f32(x); }
template <class T>
T narrow(float x) noexcept {
  if constexpr (std::is_same_v<T, f16>)
    return to_f16(x);
  else
    return to_bf16(x);
}

template <class T>
void widen_all(float* to, const T* from, std::int64_t n) noexcept {
  for (std::int64_t i = 0; i < n; ++i) to[i] = widen(from[i]);
}
template <class T>
void narrow_all(T* to, const float* from, std::int64_t n) noexcept {
  for (std::int64_t i = 0; i < n; ++i) to[i] = narrow<T>(from[i]);
}

// Elements `first` to `end` - 1.
void widen_part(tensor& to, const tensor& from, std::int64_t first, std::int64_t end) noexcept {
  auto* out = to.data<float>() + first;
  if (from.type() == dtype::f16)
    widen_all(out, from.data<f16>() + first, end - first);
  else
    widen_all(out, from.data<bf16>() + first, end - first);
}
void narrow_part(tensor& to, const tensor& from, std::int64_t first, std::int64_t end) noexcept {
  const auto* in = from.data<float>() + first;
  if (to.type() == dtype::f16)
    narrow_all(to.data<f16>() + first, in, end - first);
  else
    narrow_all(to.data<bf16>() + first, in, end - first);
}

class widened_kernel final : public piecewise_kernel {
 public:
  widened_kernel(std::unique_ptr<kernel> inner, tile_team& team)
      : inner_(std::move(inner)),
        piecewise_(dynamic_cast<piecewise_kernel*>(inner_.get())),
        team_(team) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    is_wide_ = !inputs.empty() && is_half(inputs[0].type);
    const auto of = is_wide_ ? inputs[0].type : dtype::f32;
    for (const auto specs : {inputs, outputs})
      for (const auto& s : specs)
        if (is_half(s.type) && s.type != of)
          return unfit("a product, convolution or attention",
                       "operands and results of f16 or bf16 are all of one type", specs);
    if (!is_wide_) return inner_->prepare(inputs, outputs);
    for (const auto& s : outputs)
      if (s.type != of)
        return unfit(
            "a product, convolution or attention",
            fmt::format("the result of {} operands is {}, too", to_string(of), to_string(of)),
            outputs);
    make_wide(inputs, in_specs_, in_);
    make_wide(outputs, out_specs_, out_);
    return inner_->prepare(in_specs_, out_specs_);
  }

  result<void> run(const tag& t, std::span<const tensor> inputs,
                   std::span<tensor> outputs) override {
    if (!is_wide_) return inner_->run(t, inputs, outputs);
    return run_wide(t, inputs, outputs, nullptr);
  }

  bool makes_pieces() const noexcept override {
    return piecewise_ != nullptr && piecewise_->makes_pieces();
  }

  result<void> run_by_pieces(const tag& t, std::span<const tensor> inputs,
                             std::span<tensor> outputs, piece_user& user) override {
    if (!is_wide_) return piecewise_->run_by_pieces(t, inputs, outputs, user);
    return run_wide(t, inputs, outputs, &user);
  }

 private:
  // Rounds what is finished, while it is in the cache, and tells who is next.
  class rounding final : public piece_user {
   public:
    rounding(tensor& to, const tensor& from, piece_user* next)
        : to_(to), from_(from), next_(next) {}
    void finished(std::int64_t first, std::int64_t end, std::size_t worker) noexcept override {
      narrow_part(to_, from_, first, end);
      if (next_ != nullptr) next_->finished(first, end, worker);
    }

   private:
    tensor& to_;
    const tensor& from_;
    piece_user* next_;
  };

  // The tensors of the run before are used again where they fit.
  void make_wide(std::span<const tensor_spec> specs, std::vector<tensor_spec>& wide,
                 std::vector<tensor>& tensors) {
    wide.assign(specs.begin(), specs.end());
    tensors.resize(specs.size());
    for (std::size_t i = 0; i < wide.size(); ++i) {
      if (!is_half(wide[i].type)) continue;
      wide[i].type = dtype::f32;
      if (tensors[i].is_unique() && tensors[i].capacity_bytes() >= wide[i].size_bytes())
        tensors[i].reshape(wide[i]);
      else
        tensors[i] = tensor::make(wide[i]);
    }
  }

  static tile_cut cut_of(const tensor& t) noexcept {
    constexpr double element_ns = 0.3;
    constexpr std::int64_t grain = 1024;
    return tile_cut::by_cost(t.elements(), element_ns, tile_least_ns, grain);
  }

  result<void> run_wide(const tag& t, std::span<const tensor> inputs, std::span<tensor> outputs,
                        piece_user* user) {
    set_up_kernel_thread();
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!is_half(inputs[i].type())) {
        in_[i] = inputs[i];
        continue;
      }
      const auto cut = cut_of(inputs[i]);
      auto done = team_.run(cut.tiles(), [&](std::size_t tile, std::size_t) -> result<void> {
        widen_part(in_[i], inputs[i], cut.begin(tile), cut.begin(tile) + cut.size(tile));
        return {};
      });
      if (!done) return done;
    }
    auto done = [&]() -> result<void> {
      if (makes_pieces()) {
        rounding rest(outputs[0], out_[0], user);
        return piecewise_->run_by_pieces(t, in_, out_, rest);
      }
      if (auto ok = inner_->run(t, in_, out_); !ok) return ok;
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        const auto cut = cut_of(outputs[i]);
        auto rounded = team_.run(cut.tiles(), [&](std::size_t tile, std::size_t) -> result<void> {
          narrow_part(outputs[i], out_[i], cut.begin(tile), cut.begin(tile) + cut.size(tile));
          return {};
        });
        if (!rounded) return rounded;
      }
      return {};
    }();
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (!is_half(inputs[i].type())) in_[i] = tensor();
    return done;
  }

  std::unique_ptr<kernel> inner_;
  piecewise_kernel* piecewise_;
  tile_team& team_;
  bool is_wide_ = false;
  std::vector<tensor_spec> in_specs_, out_specs_;
  std::vector<tensor> in_, out_;  // f32
};

}  // namespace

std::unique_ptr<kernel> widened(std::unique_ptr<kernel> inner, tile_team& team) {
  return std::make_unique<widened_kernel>(std::move(inner), team);
}

}  // namespace troupe::host
