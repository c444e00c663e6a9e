#include "troupe/devices/cuda/libraries/blas.hpp"

#include "troupe/devices/cuda/cuda_error.hpp"
#include "troupe/devices/cuda/libraries/column_product.hpp"
#include "troupe/devices/cuda/libraries/shared_library.hpp"

#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

namespace troupe::cuda {
namespace {

// What cuBLASLt's own guide advises for this generation of chips.
constexpr std::size_t workspace_max = std::size_t{32} << 20;

struct api {
  decltype(&::cublasLtCreate) create;
  decltype(&::cublasLtDestroy) destroy;
  decltype(&::cublasLtGetStatusString) text_of;
  decltype(&::cublasLtMatmul) matmul;
  decltype(&::cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&::cublasLtMatmulDescCreate) create_product;
  decltype(&::cublasLtMatmulDescDestroy) destroy_product;
  decltype(&::cublasLtMatmulDescSetAttribute) set_product;
  decltype(&::cublasLtMatrixLayoutCreate) create_layout;
  decltype(&::cublasLtMatrixLayoutDestroy) destroy_layout;
  decltype(&::cublasLtMatrixLayoutSetAttribute) set_layout;
  decltype(&::cublasLtMatmulPreferenceCreate) create_preference;
  decltype(&::cublasLtMatmulPreferenceDestroy) destroy_preference;
  decltype(&::cublasLtMatmulPreferenceSetAttribute) set_preference;

  result<void> bind(const shared_library& l) {
    const auto all = [&](auto... each) -> result<void> {
      result<void> ok;
      (void)((ok = l.bind(*each.first, each.second), static_cast<bool>(ok)) && ...);
      return ok;
    };
    return all(std::pair{&create, "cublasLtCreate"}, std::pair{&destroy, "cublasLtDestroy"},
               std::pair{&text_of, "cublasLtGetStatusString"}, std::pair{&matmul, "cublasLtMatmul"},
               std::pair{&heuristic, "cublasLtMatmulAlgoGetHeuristic"},
               std::pair{&create_product, "cublasLtMatmulDescCreate"},
               std::pair{&destroy_product, "cublasLtMatmulDescDestroy"},
               std::pair{&set_product, "cublasLtMatmulDescSetAttribute"},
               std::pair{&create_layout, "cublasLtMatrixLayoutCreate"},
               std::pair{&destroy_layout, "cublasLtMatrixLayoutDestroy"},
               std::pair{&set_layout, "cublasLtMatrixLayoutSetAttribute"},
               std::pair{&create_preference, "cublasLtMatmulPreferenceCreate"},
               std::pair{&destroy_preference, "cublasLtMatmulPreferenceDestroy"},
               std::pair{&set_preference, "cublasLtMatmulPreferenceSetAttribute"});
  }
  result<void> check(cublasStatus_t status, std::string_view call, const call_site& where) const {
    if (status == CUBLAS_STATUS_SUCCESS) return {};
    return call_failed(where, call, text_of(status), {});
  }
};

cudaDataType_t type_of(dtype t) noexcept {
  switch (t) {
    case dtype::f64: return CUDA_R_64F;
    case dtype::f16: return CUDA_R_16F;
    case dtype::bf16: return CUDA_R_16BF;
    default: return CUDA_R_32F;
  }
}

cublasLtEpilogue_t epilogue_of(epilogue e) noexcept {
  switch (e) {
    case epilogue::bias: return CUBLASLT_EPILOGUE_BIAS;
    case epilogue::bias_relu: return CUBLASLT_EPILOGUE_RELU_BIAS;
    case epilogue::bias_gelu_tanh: return CUBLASLT_EPILOGUE_GELU_BIAS;
    case epilogue::none: break;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

// What is made for a product: descriptors, and the algorithms for addresses that are multiples of
// 16 bytes and for any others.
struct product_plan final : chip_services::plan {
  explicit product_plan(const api& a) : calls(a) {}
  ~product_plan() override {
    if (operation != nullptr) calls.destroy_product(operation);
    for (auto* l : {first, second, d})
      if (l != nullptr) calls.destroy_layout(l);
  }
  product_plan(const product_plan&) = delete;
  product_plan& operator=(const product_plan&) = delete;

  const api& calls;
  product p;
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, d = nullptr;
  struct choice {
    cublasLtMatmulAlgo_t algorithm{};
    std::size_t workspace_bytes = 0;
    bool is_there = true;
  };
  choice aligned, any;
};

class cublaslt final : public blas {
 public:
  cublaslt(const api& a, cublasLtHandle_t handle, std::string device)
      : api_(a), handle_(handle), device_(std::move(device)) {}
  ~cublaslt() override { api_.destroy(handle_); }

  result<chip_services::plan_ref> plan(const product& p) override {
    auto made = std::make_shared<product_plan>(api_);
    made->p = p;
    const call_site where{device_, {}};
    const bool is_wide = p.type == dtype::f64;
    const auto compute = is_wide ? CUBLAS_COMPUTE_64F
                         : p.mode == product_mode::tf32 && p.type == dtype::f32
                             ? CUBLAS_COMPUTE_32F_FAST_TF32
                             : CUBLAS_COMPUTE_32F;
    if (auto ok = api_.check(
            api_.create_product(&made->operation, compute, is_wide ? CUDA_R_64F : CUDA_R_32F),
            "cublasLtMatmulDescCreate", where);
        !ok)
      return std::move(ok.error());
    const auto c = in_columns(p);
    const cublasOperation_t of_first = c.transpose_first ? CUBLAS_OP_T : CUBLAS_OP_N,
                            of_second = c.transpose_second ? CUBLAS_OP_T : CUBLAS_OP_N;
    const auto end = epilogue_of(p.end);
    const auto set = [&](cublasLtMatmulDescAttributes_t what, const auto& value) {
      return api_.check(api_.set_product(made->operation, what, &value, sizeof value),
                        "cublasLtMatmulDescSetAttribute", where);
    };
    if (auto ok = set(CUBLASLT_MATMUL_DESC_TRANSA, of_first); !ok) return std::move(ok.error());
    if (auto ok = set(CUBLASLT_MATMUL_DESC_TRANSB, of_second); !ok) return std::move(ok.error());
    if (auto ok = set(CUBLASLT_MATMUL_DESC_EPILOGUE, end); !ok) return std::move(ok.error());
    if (auto ok = lay_out(made->first, p, c.first, where); !ok) return std::move(ok.error());
    if (auto ok = lay_out(made->second, p, c.second, where); !ok) return std::move(ok.error());
    if (auto ok = lay_out(made->d, p, c.d, where); !ok) return std::move(ok.error());
    if (auto ok = choose(*made); !ok) return std::move(ok.error());
    made->workspace_bytes = std::max(made->aligned.workspace_bytes, made->any.workspace_bytes);
    return chip_services::plan_ref(std::move(made));
  }

  result<void> multiply(const launch_site& at, const chip_services::plan& plan, const void* a,
                        const void* b, const void* bias, void* c, std::byte* workspace) override {
    const auto& made = static_cast<const product_plan&>(plan);
    const call_site where{at.device, at.op};
    if (made.p.end != epilogue::none)
      if (auto ok = api_.check(api_.set_product(made.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                &bias, sizeof bias),
                               "cublasLtMatmulDescSetAttribute", where);
          !ok)
        return ok;
    constexpr std::uintptr_t alignment = 16;
    const auto all = reinterpret_cast<std::uintptr_t>(a) | reinterpret_cast<std::uintptr_t>(b) |
                     reinterpret_cast<std::uintptr_t>(c) | reinterpret_cast<std::uintptr_t>(bias);
    const auto& choice = all % alignment == 0 ? made.aligned : made.any;
    if (!choice.is_there)
      return error(
          error_code::failed,
          fmt::format(
              "{}: op {}: cuBLASLt has no algorithm for operands that do not lie at multiples of {} bytes",
              at.device, at.op, alignment));
    const float one = 1, adds = made.p.adds ? 1.0F : 0.0F;
    const double wide_one = 1, wide_adds = made.p.adds ? 1.0 : 0.0;
    const bool is_wide = made.p.type == dtype::f64;
    const void *alpha = is_wide ? static_cast<const void*>(&wide_one) : &one,
               *beta = is_wide ? static_cast<const void*>(&wide_adds) : &adds;
    return api_.check(api_.matmul(handle_, made.operation, alpha, b, made.first, a, made.second,
                                  beta, c, made.d, c, made.d, &choice.algorithm, workspace,
                                  choice.workspace_bytes, static_cast<cudaStream_t>(at.on.stream)),
                      "cublasLtMatmul", where);
  }

 private:
  result<void> lay_out(cublasLtMatrixLayout_t& to, const product& p, const column_matrix& m,
                       const call_site& where) const {
    if (auto ok =
            api_.check(api_.create_layout(&to, type_of(p.type), static_cast<std::uint64_t>(m.rows),
                                          static_cast<std::uint64_t>(m.columns), m.stride),
                       "cublasLtMatrixLayoutCreate", where);
        !ok)
      return ok;
    if (p.batches == 1) return {};
    const auto batches = static_cast<std::int32_t>(p.batches);
    if (auto ok = api_.check(
            api_.set_layout(to, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batches, sizeof batches),
            "cublasLtMatrixLayoutSetAttribute", where);
        !ok)
      return ok;
    return api_.check(
        api_.set_layout(to, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &m.step, sizeof m.step),
        "cublasLtMatrixLayoutSetAttribute", where);
  }

  result<void> choose(product_plan& made) {
    const std::lock_guard lock(mutex_);
    for (const auto& known : chosen_)
      if (known.p == made.p) {
        made.aligned = known.aligned;
        made.any = known.any;
        return {};
      }
    if (auto ok = ask(made, 16, made.aligned); !ok) return ok;
    // Operands of ports are aligned, those of single batches need not be: where nothing takes
    // these, they are an error when they come.
    if (auto ok = ask(made, static_cast<std::uint32_t>(size_of(made.p.type)), made.any); !ok)
      made.any.is_there = false;
    constexpr std::size_t kept_max = 1024;  // shapes of one job; beyond, they are asked for again
    if (chosen_.size() >= kept_max) chosen_.erase(chosen_.begin());
    chosen_.push_back({made.p, made.aligned, made.any});
    return {};
  }

  result<void> ask(const product_plan& made, std::uint32_t alignment,
                   product_plan::choice& to) const {
    const call_site where{device_, {}};
    cublasLtMatmulPreference_t preference = nullptr;
    if (auto ok = api_.check(api_.create_preference(&preference), "cublasLtMatmulPreferenceCreate",
                             where);
        !ok)
      return ok;
    struct at_end {
      const api& a;
      cublasLtMatmulPreference_t p;
      ~at_end() { a.destroy_preference(p); }
    } destroyer{api_, preference};
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
      return api_.check(api_.set_preference(preference, what, &value, sizeof value),
                        "cublasLtMatmulPreferenceSetAttribute", where);
    };
    const std::uint64_t workspace = workspace_max;
    if (auto ok = set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace); !ok) return ok;
    for (const auto what :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      if (auto ok = set(what, alignment); !ok) return ok;
    cublasLtMatmulHeuristicResult_t best{};
    int found = 0;
    if (auto ok = api_.check(api_.heuristic(handle_, made.operation, made.first, made.second,
                                            made.d, made.d, preference, 1, &best, &found),
                             "cublasLtMatmulAlgoGetHeuristic", where);
        !ok)
      return ok;
    if (found == 0 || best.state != CUBLAS_STATUS_SUCCESS)
      return error(error_code::failed,
                   fmt::format("{}: cuBLASLt has no algorithm for a product of {} x {} x {} of {}",
                               device_, made.p.m, made.p.k, made.p.n, to_string(made.p.type)));
    to.algorithm = best.algo;
    to.workspace_bytes = best.workspaceSize;
    return {};
  }

  struct known {
    product p;
    product_plan::choice aligned, any;
  };
  api api_;
  cublasLtHandle_t handle_;
  std::string device_;
  std::mutex mutex_;
  std::vector<known> chosen_;
};

}  // namespace

result<std::unique_ptr<blas>> blas::make(std::string device) {
  constexpr std::array files{"libcublasLt.so.13", "libcublasLt.so"};
  auto library = shared_library::open(
      {"cuBLASLt", files, "the cuBLAS library of CUDA 13 (NVIDIA's package libcublas-13-0)"});
  if (!library) return std::move(library.error());
  api a{};
  if (auto ok = a.bind(*library); !ok) return std::move(ok.error());
  cublasLtHandle_t handle = nullptr;
  if (auto ok = a.check(a.create(&handle), "cublasLtCreate", {device, {}}); !ok)
    return std::move(ok.error());
  return std::unique_ptr<blas>(std::make_unique<cublaslt>(a, handle, std::move(device)));
}

}  // namespace troupe::cuda
