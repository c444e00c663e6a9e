#include "troupe/devices/cuda/cuda_chip.hpp"

#include "troupe/devices/cuda/cuda_error.hpp"
#include "troupe/devices/cuda/libraries/blas.hpp"
#include "troupe/devices/cuda/libraries/dnn.hpp"
#include "troupe/devices/cuda/libraries/nvrtc_program.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace troupe::cuda {
namespace {

// A binary as the driver has it.
struct loaded_kernel {
  cudaLibrary_t library = nullptr;
  cudaKernel_t kernel = nullptr;
};

struct elements_plan final : chip_services::plan {
  cudaKernel_t kernel = nullptr;
};

// What is made once, and whose error every later caller gets, too.
template <class T>
class once {
 public:
  template <class Make>
  result<T*> get(Make make) {
    const std::lock_guard lock(mutex_);
    if (value_ == nullptr && !failure_) {
      auto made = make();
      if (made)
        value_ = std::move(*made);
      else
        failure_ = std::move(made.error());
    }
    if (failure_) return *failure_;
    return value_.get();
  }

 private:
  std::mutex mutex_;
  std::unique_ptr<T> value_;
  std::optional<error> failure_;
};

// Constants come and go on a stream of their own. To get one there the caller waits for that copy
// alone: plans are made before steps run. To let one go waits for nothing: cudaFree would wait for
// all that the chip does, a collective that waits for another rank included.
class constant_stream {
 public:
  static result<std::unique_ptr<constant_stream>> make(const std::string& device) {
    auto made = std::make_unique<constant_stream>();
    auto stream = std::make_shared<owned>();
    if (auto ok = check(cudaStreamCreateWithFlags(&stream->handle, cudaStreamNonBlocking),
                        "cudaStreamCreateWithFlags", {device, {}});
        !ok)
      return std::move(ok.error());
    made->stream_ = std::move(stream);
    return made;
  }
  result<std::shared_ptr<const std::byte>> keep(std::span<const std::byte> bytes,
                                                const std::string& device) {
    void* at = nullptr;
    if (auto ok = check(cudaMallocAsync(&at, bytes.size(), stream_->handle), "cudaMallocAsync",
                        {device, {}});
        !ok)
      return std::move(ok.error());
    std::shared_ptr<const std::byte> kept(
        static_cast<const std::byte*>(at), [stream = stream_](const std::byte* p) {
          (void)cudaFreeAsync(const_cast<std::byte*>(p), stream->handle);
        });
    if (auto ok = check(cudaMemcpyAsync(at, bytes.data(), bytes.size(), cudaMemcpyHostToDevice,
                                        stream_->handle),
                        "cudaMemcpyAsync", {device, {}});
        !ok)
      return std::move(ok.error());
    if (auto ok =
            check(cudaStreamSynchronize(stream_->handle), "cudaStreamSynchronize", {device, {}});
        !ok)
      return std::move(ok.error());
    return kept;
  }

 private:
  struct owned {
    cudaStream_t handle = nullptr;
    ~owned() {
      if (handle != nullptr) (void)cudaStreamDestroy(handle);
    }
  };
  std::shared_ptr<owned> stream_;  // constants may outlive their chip's handle
};

class chip_of_runtime final : public cuda_chip {
 public:
  chip_of_runtime(std::string device, chip c, chip_options options)
      : device_(std::move(device)), chip_(std::move(c)), options_(std::move(options)) {}
  ~chip_of_runtime() override {
    (void)make_current();
    for (auto& [bytes, k] : kernels_) (void)cudaLibraryUnload(k.library);
  }

  const chip& hardware() const noexcept override { return chip_; }
  int multiprocessors() const noexcept override { return chip_.multiprocessors; }
  result<void> make_current() const override {
    return check(cudaSetDevice(chip_.index), "cudaSetDevice", {device_, {}});
  }

  result<plan_ref> plan_product(const product& p) override {
    auto lib = blas_.get([&] { return blas::make(device_); });
    if (!lib) return std::move(lib.error());
    return (*lib)->plan(p);
  }
  result<void> multiply(const launch_site& at, const plan& p, const void* a, const void* b,
                        const void* bias, void* c, std::byte* workspace) override {
    auto lib = blas_.get([&] { return blas::make(device_); });
    if (!lib) return std::move(lib.error());
    return (*lib)->multiply(at, p, a, b, bias, c, workspace);
  }
  result<plan_ref> plan_convolution(const convolution& c) override {
    auto lib = dnn_.get([&] { return dnn::make(device_); });
    if (!lib) return std::move(lib.error());
    return (*lib)->plan(c);
  }
  result<void> convolve(const launch_site& at, const plan& p, void* x, void* w, void* y,
                        std::byte* workspace) override {
    auto lib = dnn_.get([&] { return dnn::make(device_); });
    if (!lib) return std::move(lib.error());
    return (*lib)->convolve(at, p, x, w, y, workspace);
  }

  result<plan_ref> plan_elements(const fused_source& source, std::string_view what) override {
    if (!options_.uses_nvrtc)
      return error(error_code::not_found, fmt::format("{}: NVRTC is switched off", device_));
    auto compiler = compiler_.get([&] { return kernel_compiler::make(options_.binary_folder); });
    if (!compiler) return std::move(compiler.error());
    auto made = (*compiler)->compile(source.text, chip_.major, chip_.minor, what);
    if (!made) return std::move(made.error());
    const std::lock_guard lock(mutex_);
    auto& known = kernels_[*made];
    if (known.kernel == nullptr) {
      const call_site where{device_, what};
      if (auto ok = check(cudaLibraryLoadData(&known.library, (*made)->data(), nullptr, nullptr, 0,
                                              nullptr, nullptr, 0),
                          "cudaLibraryLoadData", where);
          !ok) {
        kernels_.erase(*made);
        return std::move(ok.error());
      }
      if (auto ok = check(cudaLibraryGetKernel(&known.kernel, known.library, source.entry.c_str()),
                          "cudaLibraryGetKernel", where);
          !ok) {
        (void)cudaLibraryUnload(known.library);
        kernels_.erase(*made);
        return std::move(ok.error());
      }
    }
    auto p = std::make_shared<elements_plan>();
    p->kernel = known.kernel;
    return plan_ref(std::move(p));
  }

  // Arguments in the order of fused_source: pointers of ports, of the result, the number of
  // elements, numbers.
  result<void> run_elements(const launch_site& at, const plan& p, const fused_source& source,
                            std::span<const std::byte* const> inputs, std::byte* output) override {
    constexpr std::size_t most = 2048;  // fused_source.cpp has limits on both
    std::array<const void*, most> pointers;
    std::array<void*, 2 * most> arguments;
    expects(source.ports.size() < most && source.numbers.size() + 1 < most,
            "a group's arguments fit a launch");
    std::size_t n = 0;
    std::uintptr_t bits = 0;
    const auto add = [&](const void* p) {
      bits |= reinterpret_cast<std::uintptr_t>(p);
      pointers[n] = p;
      arguments[n] = &pointers[n];
      ++n;
    };
    for (const auto port : source.ports) add(inputs[port]);
    add(output);
    // A chip that meets another address fails for good.
    expects(bits % 16 == 0, "operands and results of CUDA kernels lie at multiples of 16 bytes");
    auto elements = static_cast<long long>(source.elements);
    arguments[n++] = &elements;
    static_assert(sizeof(long long) == sizeof(std::int64_t));
    // Read only.
    for (const auto& number : source.numbers) arguments[n++] = const_cast<std::int64_t*>(&number);
    constexpr std::int64_t threads = 256, waves = 32;  // as code/launch.cuh
    const auto each = threads * source.elements_per_thread;
    const auto blocks = std::clamp<std::int64_t>((source.elements + each - 1) / each, 1,
                                                 waves * chip_.multiprocessors);
    const auto* kernel = static_cast<const elements_plan&>(p).kernel;
    return check(cudaLaunchKernel(reinterpret_cast<const void*>(kernel),
                                  dim3(static_cast<unsigned int>(blocks)),
                                  dim3(static_cast<unsigned int>(threads)), arguments.data(), 0,
                                  static_cast<cudaStream_t>(at.on.stream)),
                 "cudaLaunchKernel", {at.device, at.op});
  }

  result<void> copy(const launch_site& at, void* to, const void* from, std::size_t bytes) override {
    if (bytes == 0 || to == from) return {};
    return check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice,
                                 static_cast<cudaStream_t>(at.on.stream)),
                 "cudaMemcpyAsync", {at.device, at.op});
  }
  // Not of a device's limit: constants are few.
  result<std::shared_ptr<const std::byte>> keep(std::span<const std::byte> bytes) override {
    auto on = constants_.get([&] { return constant_stream::make(device_); });
    if (!on) return std::move(on.error());
    return (*on)->keep(bytes, device_);
  }
  result<void> fill_zero(const launch_site& at, void* to, std::size_t bytes) override {
    if (bytes == 0) return {};
    return check(cudaMemsetAsync(to, 0, bytes, static_cast<cudaStream_t>(at.on.stream)),
                 "cudaMemsetAsync", {at.device, at.op});
  }
  result<void> check_launch(const launch_site& at, int status) override {
    return check(status, "the launch of its kernel", {at.device, at.op});
  }
  std::size_t sort_workspace_bytes(std::int64_t n) override {
    return code::sort_workspace_bytes(n);
  }

 private:
  std::string device_;
  chip chip_;
  chip_options options_;
  once<blas> blas_;
  once<dnn> dnn_;
  once<kernel_compiler> compiler_;
  once<constant_stream> constants_;
  std::mutex mutex_;
  std::unordered_map<binary, loaded_kernel> kernels_;
};

}  // namespace

std::filesystem::path default_binary_folder() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/')
    return std::filesystem::path(cache) / "troupe" / "kernels";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/')
    return std::filesystem::path(home) / ".cache" / "troupe" / "kernels";
  return {};
}

result<std::unique_ptr<cuda_chip>> cuda_chip::make(std::string device, int index,
                                                   const chip_options& options) {
  if (auto ok = check_index(ask_driver(), device, index); !ok) return std::move(ok.error());
  auto chips = find_chips();
  if (!chips) return std::move(chips.error());
  auto& c = (*chips)[static_cast<std::size_t>(index)];
  if (auto ok = check_capability(device, c.name, c.major, c.minor); !ok)
    return std::move(ok.error());
  auto made = std::make_unique<chip_of_runtime>(std::move(device), std::move(c), options);
  if (auto ok = made->make_current(); !ok) return std::move(ok.error());
  return std::unique_ptr<cuda_chip>(std::move(made));
}

}  // namespace troupe::cuda
