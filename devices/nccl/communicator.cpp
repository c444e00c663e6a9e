#include "troupe/devices/nccl/communicator.hpp"

#include "troupe/devices/cuda/cuda_error.hpp"
#include "troupe/devices/cuda/libraries/shared_library.hpp"

#include <fmt/format.h>
#if defined(TROUPE_HAS_NCCL)
#include <nccl.h>
#endif

#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>

namespace troupe::nccl {

#if !defined(TROUPE_HAS_NCCL)

namespace {
error not_built() {
  return {error_code::not_found,
          "no NCCL: this program was built without its headers (package libnccl-dev)"};
}
}  // namespace
result<unique_id> make_unique_id() { return not_built(); }
result<std::string> version() { return not_built(); }
result<std::unique_ptr<communicator>> communicator::begin(const unique_id&, int, int, std::string) {
  return not_built();
}

#else

namespace {

struct api {
  decltype(&::ncclGetVersion) version;
  decltype(&::ncclGetUniqueId) make_id;
  decltype(&::ncclCommInitRankConfig) init;
  decltype(&::ncclCommGetAsyncError) state;
  decltype(&::ncclCommAbort) abort;
  decltype(&::ncclCommFinalize) finalize;
  decltype(&::ncclCommDestroy) destroy;
  decltype(&::ncclGetErrorString) text_of;
  decltype(&::ncclGetLastError) last_error;
  decltype(&::ncclAllReduce) all_reduce;
  decltype(&::ncclReduceScatter) reduce_scatter;
  decltype(&::ncclAllGather) all_gather;
  decltype(&::ncclBroadcast) broadcast;

  result<void> bind(const cuda::shared_library& l) {
    const auto all = [&](auto... each) -> result<void> {
      result<void> ok;
      (void)((ok = l.bind(*each.first, each.second), static_cast<bool>(ok)) && ...);
      return ok;
    };
    return all(std::pair{&version, "ncclGetVersion"}, std::pair{&make_id, "ncclGetUniqueId"},
               std::pair{&init, "ncclCommInitRankConfig"},
               std::pair{&state, "ncclCommGetAsyncError"}, std::pair{&abort, "ncclCommAbort"},
               std::pair{&finalize, "ncclCommFinalize"}, std::pair{&destroy, "ncclCommDestroy"},
               std::pair{&text_of, "ncclGetErrorString"},
               std::pair{&last_error, "ncclGetLastError"}, std::pair{&all_reduce, "ncclAllReduce"},
               std::pair{&reduce_scatter, "ncclReduceScatter"},
               std::pair{&all_gather, "ncclAllGather"}, std::pair{&broadcast, "ncclBroadcast"});
  }
};

// Opened each time that somebody asks: the system keeps one copy.
result<api> open() {
  constexpr std::array files{"libnccl.so.2", "libnccl.so"};
  auto library = cuda::shared_library::open({"NCCL", files, "NCCL 2 (NVIDIA's package libnccl2)"});
  if (!library) return std::move(library.error());
  api a{};
  if (auto ok = a.bind(*library); !ok) return std::move(ok.error());
  return a;
}

ncclDataType_t type_of(dtype t) noexcept {
  switch (t) {
    case dtype::f32: return ncclFloat32;
    case dtype::f64: return ncclFloat64;
    case dtype::i32: return ncclInt32;
    case dtype::i64: return ncclInt64;
    case dtype::f16: return ncclFloat16;
    case dtype::bf16: return ncclBfloat16;
    case dtype::u8:
    case dtype::boolean: break;
  }
  return ncclUint8;
}

ncclRedOp_t op_of(reduce r) noexcept {
  switch (r) {
    case reduce::mean: return ncclAvg;
    case reduce::min: return ncclMin;
    case reduce::max: return ncclMax;
    case reduce::sum: break;
  }
  return ncclSum;
}

class rank_of_nccl final : public communicator {
 public:
  rank_of_nccl(const api& a, int rank, int ranks, std::string device)
      : api_(a),
        rank_(rank),
        ranks_(ranks),
        name_(fmt::format("{}: rank {} of {}", device, rank, ranks)) {}
  ~rank_of_nccl() override { abort(); }

  result<void> start(const unique_id& id) {
    static_assert(sizeof(ncclUniqueId) == sizeof(id.bytes));
    ncclUniqueId all{};
    std::memcpy(&all, id.bytes.data(), sizeof all);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    return settle(api_.init(&communicator_, ranks_, all, rank_, &config), "ncclCommInitRankConfig",
                  {});
  }

  int rank() const noexcept override { return rank_; }
  int ranks() const noexcept override { return ranks_; }

  result<bool> is_ready() override {
    const std::lock_guard lock(mutex_);
    if (auto ok = usable(); !ok) return std::move(ok.error());
    auto state = ncclSuccess;
    const auto status = api_.state(communicator_, &state);
    if (status == ncclSuccess && state == ncclInProgress) return false;
    if (status == ncclSuccess && state == ncclSuccess) {
      has_finished_ = is_finishing_;
      return true;
    }
    failure_ = failed(status != ncclSuccess ? status : state, "a collective or its beginning", {});
    return *failure_;  // NC-3
  }

  void abort() noexcept override {
    const std::lock_guard lock(mutex_);
    end();
  }

  result<void> finish() override {
    const std::lock_guard lock(mutex_);
    if (auto ok = usable(); !ok) return ok;
    if (std::exchange(is_finishing_, true))
      return error(error_code::usage, fmt::format("{}: the communicator has been finished", name_));
    return settle(api_.finalize(communicator_), "ncclCommFinalize", {});
  }

  result<void> all_reduce(void* stream, std::string_view op, const void* from, void* to,
                          std::size_t count, dtype type, reduce how) override {
    return call("ncclAllReduce", op, [&] {
      return api_.all_reduce(from, to, count, type_of(type), op_of(how), communicator_,
                             static_cast<cudaStream_t>(stream));
    });
  }
  result<void> reduce_scatter(void* stream, std::string_view op, const void* from, void* to,
                              std::size_t count, dtype type, reduce how) override {
    return call("ncclReduceScatter", op, [&] {
      return api_.reduce_scatter(from, to, count, type_of(type), op_of(how), communicator_,
                                 static_cast<cudaStream_t>(stream));
    });
  }
  result<void> all_gather(void* stream, std::string_view op, const void* from, void* to,
                          std::size_t count, dtype type) override {
    return call("ncclAllGather", op, [&] {
      return api_.all_gather(from, to, count, type_of(type), communicator_,
                             static_cast<cudaStream_t>(stream));
    });
  }
  result<void> broadcast(void* stream, std::string_view op, const void* from, void* to,
                         std::size_t count, dtype type, int root) override {
    if (root < 0 || root >= ranks_)
      return error(error_code::usage,
                   fmt::format("{}: op {}: there is no rank {}", name_, op, root));
    return call("ncclBroadcast", op, [&] {
      return api_.broadcast(from, to, count, type_of(type), root, communicator_,
                            static_cast<cudaStream_t>(stream));
    });
  }

 private:
  template <class Call>
  result<void> call(std::string_view what, std::string_view op, Call c) {
    const std::lock_guard lock(mutex_);
    if (auto ok = usable(); !ok) return ok;
    if (is_finishing_)
      return error(error_code::usage,
                   fmt::format("{}: op {}: the communicator has been finished", name_, op));
    return settle(c(), what, op);
  }
  // In progress is not an error: is_ready() has the end of it.
  result<void> settle(ncclResult_t status, std::string_view call, std::string_view op) const {
    if (status == ncclSuccess || status == ncclInProgress) return {};
    return failed(status, call, op);
  }
  error failed(ncclResult_t status, std::string_view call, std::string_view op) const {
    const char* more = communicator_ != nullptr ? api_.last_error(communicator_) : nullptr;
    auto e = cuda::call_failed({name_, op}, call, api_.text_of(status),
                               more != nullptr ? std::string_view(more) : std::string_view());
    // NC-6. A socket that another rank has closed may be told as an error of the system, too.
    const bool may_follow = status == ncclRemoteError || status == ncclSystemError;
    return may_follow ? error(error_code::unreachable, e.message()) : e;
  }
  result<void> usable() const {
    if (failure_) return *failure_;
    if (communicator_ == nullptr)
      return error(error_code::failed, fmt::format("{}: the communicator is aborted", name_));
    return {};
  }
  void end() noexcept {
    if (communicator_ != nullptr)
      (void)(has_finished_ ? api_.destroy : api_.abort)(std::exchange(communicator_, nullptr));
  }

  api api_;
  int rank_, ranks_;
  std::string name_;
  std::mutex mutex_;  // abort() may come while another call runs, none of which waits
  ncclComm_t communicator_ = nullptr;
  std::optional<error> failure_;  // the first that is_ready() found
  bool is_finishing_ = false, has_finished_ = false;
};

}  // namespace

result<unique_id> make_unique_id() {
  auto a = open();
  if (!a) return std::move(a.error());
  ncclUniqueId id{};
  if (const auto status = a->make_id(&id); status != ncclSuccess) {
    const char* more = a->last_error(nullptr);
    return cuda::call_failed({}, "ncclGetUniqueId", a->text_of(status),
                             more != nullptr ? std::string_view(more) : std::string_view());
  }
  unique_id out;
  std::memcpy(out.bytes.data(), &id, sizeof id);
  return out;
}

result<std::string> version() {
  auto a = open();
  if (!a) return std::move(a.error());
  int v = 0;
  if (const auto status = a->version(&v); status != ncclSuccess)
    return cuda::call_failed({}, "ncclGetVersion", a->text_of(status), {});
  return fmt::format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100);
}

result<std::unique_ptr<communicator>> communicator::begin(const unique_id& id, int rank, int ranks,
                                                          std::string device) {
  if (ranks < 1 || rank < 0 || rank >= ranks)
    return error(error_code::usage,
                 fmt::format("{}: there is no rank {} of {}", device, rank, ranks));
  auto a = open();
  if (!a) return std::move(a.error());
  auto made = std::make_unique<rank_of_nccl>(*a, rank, ranks, std::move(device));
  if (auto ok = made->start(id); !ok) return std::move(ok.error());
  return std::unique_ptr<communicator>(std::move(made));
}

#endif

}  // namespace troupe::nccl
