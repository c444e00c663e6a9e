#include "troupe/devices/cuda/libraries/dnn.hpp"

#include "troupe/devices/cuda/cuda_error.hpp"
#include "troupe/devices/cuda/libraries/shared_library.hpp"

#include <fmt/format.h>
#if defined(TROUPE_HAS_CUDNN)
#include <cudnn.h>
#endif

#include <array>
#include <limits>
#include <mutex>
#include <span>
#include <utility>

namespace troupe::cuda {

#if !defined(TROUPE_HAS_CUDNN)

result<std::unique_ptr<dnn>> dnn::make(std::string device) {
  return error(
      error_code::not_found,
      fmt::format(
          "{}: no convolutions on CUDA: this program was built without cuDNN's headers (package libcudnn9-dev-cuda-13)",
          device));
}

#else

namespace {

constexpr std::size_t workspace_max = std::size_t{256} << 20;

struct api {
  decltype(&::cudnnCreate) create;
  decltype(&::cudnnDestroy) destroy;
  decltype(&::cudnnSetStream) set_stream;
  decltype(&::cudnnGetErrorString) text_of;
  decltype(&::cudnnCreateTensorDescriptor) create_tensor;
  decltype(&::cudnnDestroyTensorDescriptor) destroy_tensor;
  decltype(&::cudnnSetTensor4dDescriptor) set_tensor;
  decltype(&::cudnnCreateFilterDescriptor) create_filter;
  decltype(&::cudnnDestroyFilterDescriptor) destroy_filter;
  decltype(&::cudnnSetFilter4dDescriptor) set_filter;
  decltype(&::cudnnCreateConvolutionDescriptor) create_convolution;
  decltype(&::cudnnDestroyConvolutionDescriptor) destroy_convolution;
  decltype(&::cudnnSetConvolution2dDescriptor) set_convolution;
  decltype(&::cudnnSetConvolutionGroupCount) set_groups;
  decltype(&::cudnnSetConvolutionMathType) set_math;
  decltype(&::cudnnGetConvolutionForwardAlgorithm_v7) choose_forward;
  decltype(&::cudnnGetConvolutionBackwardDataAlgorithm_v7) choose_data;
  decltype(&::cudnnGetConvolutionBackwardFilterAlgorithm_v7) choose_filter;
  decltype(&::cudnnConvolutionForward) forward;
  decltype(&::cudnnConvolutionBackwardData) backward_data;
  decltype(&::cudnnConvolutionBackwardFilter) backward_filter;

  result<void> bind(const shared_library& l) {
    const auto all = [&](auto... each) -> result<void> {
      result<void> ok;
      (void)((ok = l.bind(*each.first, each.second), static_cast<bool>(ok)) && ...);
      return ok;
    };
#define TROUPE_CALL(member, name) \
  std::pair { &member, name }
    return all(TROUPE_CALL(create, "cudnnCreate"), TROUPE_CALL(destroy, "cudnnDestroy"),
               TROUPE_CALL(set_stream, "cudnnSetStream"),
               TROUPE_CALL(text_of, "cudnnGetErrorString"),
               TROUPE_CALL(create_tensor, "cudnnCreateTensorDescriptor"),
               TROUPE_CALL(destroy_tensor, "cudnnDestroyTensorDescriptor"),
               TROUPE_CALL(set_tensor, "cudnnSetTensor4dDescriptor"),
               TROUPE_CALL(create_filter, "cudnnCreateFilterDescriptor"),
               TROUPE_CALL(destroy_filter, "cudnnDestroyFilterDescriptor"),
               TROUPE_CALL(set_filter, "cudnnSetFilter4dDescriptor"),
               TROUPE_CALL(create_convolution, "cudnnCreateConvolutionDescriptor"),
               TROUPE_CALL(destroy_convolution, "cudnnDestroyConvolutionDescriptor"),
               TROUPE_CALL(set_convolution, "cudnnSetConvolution2dDescriptor"),
               TROUPE_CALL(set_groups, "cudnnSetConvolutionGroupCount"),
               TROUPE_CALL(set_math, "cudnnSetConvolutionMathType"),
               TROUPE_CALL(choose_forward, "cudnnGetConvolutionForwardAlgorithm_v7"),
               TROUPE_CALL(choose_data, "cudnnGetConvolutionBackwardDataAlgorithm_v7"),
               TROUPE_CALL(choose_filter, "cudnnGetConvolutionBackwardFilterAlgorithm_v7"),
               TROUPE_CALL(forward, "cudnnConvolutionForward"),
               TROUPE_CALL(backward_data, "cudnnConvolutionBackwardData"),
               TROUPE_CALL(backward_filter, "cudnnConvolutionBackwardFilter"));
#undef TROUPE_CALL
  }
  result<void> check(cudnnStatus_t status, std::string_view call, const call_site& where) const {
    if (status == CUDNN_STATUS_SUCCESS) return {};
    return call_failed(where, call, text_of(status), {});
  }
};

struct convolution_plan final : chip_services::plan {
  explicit convolution_plan(const api& a) : calls(a) {}
  ~convolution_plan() override {
    if (x != nullptr) calls.destroy_tensor(x);
    if (y != nullptr) calls.destroy_tensor(y);
    if (w != nullptr) calls.destroy_filter(w);
    if (how != nullptr) calls.destroy_convolution(how);
  }
  convolution_plan(const convolution_plan&) = delete;
  convolution_plan& operator=(const convolution_plan&) = delete;

  const api& calls;
  convolution c;
  cudnnTensorDescriptor_t x = nullptr, y = nullptr;
  cudnnFilterDescriptor_t w = nullptr;
  cudnnConvolutionDescriptor_t how = nullptr;
  int algorithm = 0;
};

class cudnn final : public dnn {
 public:
  cudnn(const api& a, cudnnHandle_t handle, std::string device)
      : api_(a), handle_(handle), device_(std::move(device)) {}
  ~cudnn() override { api_.destroy(handle_); }

  result<chip_services::plan_ref> plan(const convolution& c) override {
    const std::lock_guard lock(mutex_);
    const call_site where{device_, {}};
    for (const auto* sizes : {c.x, c.w, c.y})
      for (int i = 0; i < 4; ++i)
        if (sizes[i] > std::numeric_limits<int>::max())
          return error(
              error_code::usage,
              fmt::format("{}: cuDNN takes no convolution with 2^31 elements along a dimension",
                          device_));
    auto made = std::make_shared<convolution_plan>(api_);
    made->c = c;
    const auto type = c.type == dtype::f64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
    const auto number = [](std::int64_t n) { return static_cast<int>(n); };
    const auto tensor = [&](cudnnTensorDescriptor_t& to,
                            const std::int64_t(&s)[4]) -> result<void> {
      if (auto ok = api_.check(api_.create_tensor(&to), "cudnnCreateTensorDescriptor", where); !ok)
        return ok;
      return api_.check(api_.set_tensor(to, CUDNN_TENSOR_NCHW, type, number(s[0]), number(s[1]),
                                        number(s[2]), number(s[3])),
                        "cudnnSetTensor4dDescriptor", where);
    };
    if (auto ok = tensor(made->x, c.x); !ok) return std::move(ok.error());
    if (auto ok = tensor(made->y, c.y); !ok) return std::move(ok.error());
    if (auto ok = api_.check(api_.create_filter(&made->w), "cudnnCreateFilterDescriptor", where);
        !ok)
      return std::move(ok.error());
    if (auto ok = api_.check(api_.set_filter(made->w, type, CUDNN_TENSOR_NCHW, number(c.w[0]),
                                             number(c.w[1]), number(c.w[2]), number(c.w[3])),
                             "cudnnSetFilter4dDescriptor", where);
        !ok)
      return std::move(ok.error());
    if (auto ok = api_.check(api_.create_convolution(&made->how),
                             "cudnnCreateConvolutionDescriptor", where);
        !ok)
      return std::move(ok.error());
    // A kernel's window is not turned around: what others call cross-correlation.
    if (auto ok = api_.check(
            api_.set_convolution(made->how, number(c.padding[0]), number(c.padding[1]),
                                 number(c.stride[0]), number(c.stride[1]), number(c.dilation[0]),
                                 number(c.dilation[1]), CUDNN_CROSS_CORRELATION, type),
            "cudnnSetConvolution2dDescriptor", where);
        !ok)
      return std::move(ok.error());
    if (auto ok = api_.check(api_.set_groups(made->how, number(c.groups)),
                             "cudnnSetConvolutionGroupCount", where);
        !ok)
      return std::move(ok.error());
    // The default would let f32 be rounded to tf32.
    if (auto ok =
            api_.check(api_.set_math(made->how, c.mode == product_mode::tf32 ? CUDNN_DEFAULT_MATH
                                                                             : CUDNN_FMA_MATH),
                       "cudnnSetConvolutionMathType", where);
        !ok)
      return std::move(ok.error());
    if (auto ok = choose(*made); !ok) return std::move(ok.error());
    return chip_services::plan_ref(std::move(made));
  }

  result<void> convolve(const launch_site& at, const chip_services::plan& plan, void* x, void* w,
                        void* y, std::byte* workspace) override {
    const auto& p = static_cast<const convolution_plan&>(plan);
    const call_site where{at.device, at.op};
    const float one = 1, none = 0;
    const double wide_one = 1, wide_none = 0;
    const bool is_wide = p.c.type == dtype::f64;
    const void *alpha = is_wide ? static_cast<const void*>(&wide_one) : &one,
               *beta = is_wide ? static_cast<const void*>(&wide_none) : &none;
    const std::lock_guard lock(mutex_);
    if (auto ok = api_.check(api_.set_stream(handle_, static_cast<cudaStream_t>(at.on.stream)),
                             "cudnnSetStream", where);
        !ok)
      return ok;
    switch (p.c.part) {
      case convolution_part::output:
        return api_.check(api_.forward(handle_, alpha, p.x, x, p.w, w, p.how,
                                       static_cast<cudnnConvolutionFwdAlgo_t>(p.algorithm),
                                       workspace, p.workspace_bytes, beta, p.y, y),
                          "cudnnConvolutionForward", where);
      case convolution_part::input_gradient:
        return api_.check(
            api_.backward_data(handle_, alpha, p.w, w, p.y, y, p.how,
                               static_cast<cudnnConvolutionBwdDataAlgo_t>(p.algorithm), workspace,
                               p.workspace_bytes, beta, p.x, x),
            "cudnnConvolutionBackwardData", where);
      case convolution_part::weights_gradient:
        return api_.check(
            api_.backward_filter(handle_, alpha, p.x, x, p.y, y, p.how,
                                 static_cast<cudnnConvolutionBwdFilterAlgo_t>(p.algorithm),
                                 workspace, p.workspace_bytes, beta, p.w, w),
            "cudnnConvolutionBackwardFilter", where);
    }
    return {};
  }

 private:
  // The fastest by cuDNN's own estimate of those that DN-1 allows.
  template <class Performance>
  result<void> take(convolution_plan& made, std::span<const Performance> all) const {
    for (const auto& p : all) {
      if (p.status != CUDNN_STATUS_SUCCESS || p.determinism != CUDNN_DETERMINISTIC ||
          p.memory > workspace_max)
        continue;
      if (made.c.mode == product_mode::exact && p.mathType != CUDNN_FMA_MATH &&
          p.mathType != CUDNN_DEFAULT_MATH)
        continue;
      made.algorithm = static_cast<int>(p.algo);
      made.workspace_bytes = p.memory;
      if (made.c.mode == product_mode::exact) return {};
      // An algorithm is one together with this.
      return api_.check(api_.set_math(made.how, p.mathType), "cudnnSetConvolutionMathType",
                        {device_, {}});
    }
    const auto& c = made.c;
    return error(
        error_code::failed,
        fmt::format(
            "{}: cuDNN has no algorithm with equal bits in every run for images of {} x {} x {} x {} and weights of {} x {} x {} x {} of {}",
            device_, c.x[0], c.x[1], c.x[2], c.x[3], c.w[0], c.w[1], c.w[2], c.w[3],
            to_string(c.type)));
  }
  result<void> choose(convolution_plan& made) const {
    constexpr int most = 16;
    const call_site where{device_, {}};
    int found = 0;
    const auto all = [&](auto& list) {
      return std::span(std::as_const(list)).first(static_cast<std::size_t>(found));
    };
    switch (made.c.part) {
      case convolution_part::output: {
        std::array<cudnnConvolutionFwdAlgoPerf_t, most> list{};
        if (auto ok = api_.check(api_.choose_forward(handle_, made.x, made.w, made.how, made.y,
                                                     most, &found, list.data()),
                                 "cudnnGetConvolutionForwardAlgorithm_v7", where);
            !ok)
          return ok;
        return take<cudnnConvolutionFwdAlgoPerf_t>(made, all(list));
      }
      case convolution_part::input_gradient: {
        std::array<cudnnConvolutionBwdDataAlgoPerf_t, most> list{};
        if (auto ok = api_.check(api_.choose_data(handle_, made.w, made.y, made.how, made.x, most,
                                                  &found, list.data()),
                                 "cudnnGetConvolutionBackwardDataAlgorithm_v7", where);
            !ok)
          return ok;
        return take<cudnnConvolutionBwdDataAlgoPerf_t>(made, all(list));
      }
      case convolution_part::weights_gradient: {
        std::array<cudnnConvolutionBwdFilterAlgoPerf_t, most> list{};
        if (auto ok = api_.check(api_.choose_filter(handle_, made.x, made.y, made.how, made.w, most,
                                                    &found, list.data()),
                                 "cudnnGetConvolutionBackwardFilterAlgorithm_v7", where);
            !ok)
          return ok;
        return take<cudnnConvolutionBwdFilterAlgoPerf_t>(made, all(list));
      }
    }
    return {};
  }

  api api_;
  cudnnHandle_t handle_;
  std::string device_;
  std::mutex mutex_;
};

}  // namespace

result<std::unique_ptr<dnn>> dnn::make(std::string device) {
  constexpr std::array files{"libcudnn.so.9", "libcudnn.so"};
  auto library = shared_library::open(
      {"cuDNN", files, "cuDNN 9 for CUDA 13 (NVIDIA's package libcudnn9-cuda-13)"});
  if (!library) return std::move(library.error());
  api a{};
  if (auto ok = a.bind(*library); !ok) return std::move(ok.error());
  cudnnHandle_t handle = nullptr;
  if (auto ok = a.check(a.create(&handle), "cudnnCreate", {device, {}}); !ok)
    return std::move(ok.error());
  return std::unique_ptr<dnn>(std::make_unique<cudnn>(a, handle, std::move(device)));
}

#endif

}  // namespace troupe::cuda
