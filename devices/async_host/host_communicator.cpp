#include "troupe/devices/async_host/host_communicator.hpp"

#include "troupe/devices/host/loops/combine.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace troupe {

class host_meeting_points::socket {
 public:
  explicit socket(int fd) noexcept : fd_(fd) {}
  ~socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  socket(const socket&) = delete;
  socket& operator=(const socket&) = delete;
  int fd() const noexcept { return fd_; }
  void shut() const noexcept { (void)::shutdown(fd_, SHUT_RDWR); }

 private:
  int fd_;
};

namespace {

constexpr char magic[8] = {'t', 'r', 'o', 'u', 'p', 'e', 'h', '2'};
constexpr std::size_t secret_bytes = 32;
constexpr int backlog = 128;
constexpr int hello_timeout_s = 2;  // of one that has come and says nothing
constexpr std::size_t text_bytes_max = 4096;
constexpr std::uint64_t bytes_max = 1ULL << 40;  // of a rank; what a header may claim

struct id_content {
  char mark[8];
  std::uint16_t port;
  std::byte secret[secret_bytes];
};
static_assert(sizeof(id_content) <= sizeof(communicator_id));

struct hello {
  std::byte secret[secret_bytes];
  std::int32_t rank, ranks;
};

enum class call_kind : std::uint32_t { all_reduce, reduce_scatter, all_gather, broadcast, finish };

// What a rank calls.
struct call_header {
  call_kind kind{};
  std::uint32_t type = 0, how = 0;
  std::int32_t root = 0;
  std::uint64_t bytes = 0;  // that it contributes
  char op[72] = {};
  bool is_same(const call_header& o) const noexcept {
    return kind == o.kind && type == o.type && how == o.how && root == o.root && bytes == o.bytes;
  }
};

// Else a text follows that says why.
enum class answer : std::uint64_t { fine, refused, rank_gone };
struct reply_header {
  answer a = answer::fine;
  std::uint64_t bytes = 0;
};

std::string_view name_of(call_kind k) noexcept {
  switch (k) {
    case call_kind::all_reduce: return "all_reduce";
    case call_kind::reduce_scatter: return "reduce_scatter";
    case call_kind::all_gather: return "all_gather";
    case call_kind::broadcast: return "broadcast";
    case call_kind::finish: return "finish";
  }
  return "?";
}

std::string_view name_of(device_reduction r) noexcept {
  switch (r) {
    case device_reduction::sum: return "sum";
    case device_reduction::mean: return "mean";
    case device_reduction::min: return "min";
    case device_reduction::max: return "max";
  }
  return "?";
}

std::string text_of(const call_header& h) {
  if (h.kind == call_kind::finish) return std::string(name_of(h.kind));
  const bool reduces = h.kind == call_kind::all_reduce || h.kind == call_kind::reduce_scatter;
  const auto type = h.type < dtype_count ? std::string(to_string(static_cast<dtype>(h.type)))
                                         : std::to_string(h.type);
  return fmt::format(
      "{} of {} bytes of {}{}{} for '{}'", name_of(h.kind), h.bytes, type,
      reduces ? fmt::format(" ({})", name_of(static_cast<device_reduction>(h.how))) : "",
      h.kind == call_kind::broadcast ? fmt::format(" from rank {}", h.root) : "",
      std::string_view(h.op, ::strnlen(h.op, sizeof h.op)));
}

bool send_all(int fd, const void* from, std::size_t bytes) noexcept {
  for (const auto* p = static_cast<const char*>(from); bytes > 0;) {
    const auto n = ::send(fd, p, bytes, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    p += n, bytes -= static_cast<std::size_t>(n);
  }
  return true;
}

bool receive_all(int fd, void* to, std::size_t bytes) noexcept {
  for (auto* p = static_cast<char*>(to); bytes > 0;) {
    const auto n = ::recv(fd, p, bytes, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    p += n, bytes -= static_cast<std::size_t>(n);
  }
  return true;
}

template <class T>
bool send_one(int fd, const T& value) noexcept {
  return send_all(fd, &value, sizeof value);
}
template <class T>
bool receive_one(int fd, T& value) noexcept {
  return receive_all(fd, &value, sizeof value);
}

sockaddr_in loopback(std::uint16_t port) noexcept {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(port);
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return a;
}

combine_kind combine_of(device_reduction how) noexcept {
  return how == device_reduction::min   ? combine_kind::min
         : how == device_reduction::max ? combine_kind::max
                                        : combine_kind::sum;
}

// HC-3: sums of `n` elements from `offset` on begin with the rank behind `owner`.
void reduce(dtype type, device_reduction how, std::byte* to,
            const std::vector<std::vector<std::byte>>& all, std::size_t offset, std::size_t n,
            std::size_t owner) {
  if (n == 0) return;
  const auto ranks = all.size(), first = ranks > 2 ? (owner + 1) % ranks : 0;
  std::vector<const std::byte*> operands;
  for (std::size_t i = 0; i < ranks; ++i)
    operands.push_back(all[(first + i) % ranks].data() + offset * size_of(type));
  combine(combine_of(how), type, to, operands, n);
  if (how == device_reduction::mean) divide(type, to, n, static_cast<double>(ranks));
}

}  // namespace

// One rank's connections. Work that is under way shares it.
class host_gang {
 public:
  using socket = host_meeting_points::socket;

  host_gang(std::string device, int rank, int ranks, communicator_changed changed)
      : name_(fmt::format("{}: rank {} of {}", device, rank, ranks)),
        rank_(rank),
        ranks_(ranks),
        changed_(std::move(changed)),
        of_(static_cast<std::size_t>(ranks)) {}

  int rank() const noexcept { return rank_; }
  int ranks() const noexcept { return ranks_; }
  const std::string& name() const noexcept { return name_; }

  // --- how they meet, on a thread of its own; `listener`: rank 0's ---

  void meet(const id_content& id, std::shared_ptr<socket> listener) {
    auto met = rank_ == 0 ? gather(id, *listener) : join(id);
    {
      const std::lock_guard hold(lock_);
      if (met)
        is_formed_ = true;
      else if (!failure_)
        failure_ = std::make_unique<error>(std::move(met.error()));
    }
    tell();
  }

  // Ends with it, wherever it waits.
  std::shared_ptr<socket> keep(std::shared_ptr<socket> s) {
    const std::lock_guard hold(lock_);
    if (is_aborted_) s->shut();
    open_.push_back(s);
    return s;
  }

  result<bool> is_ready() const {
    const std::lock_guard hold(lock_);
    if (is_aborted_) return aborted();
    if (failure_) return *failure_;
    return is_finishing_ ? has_finished_ : is_formed_;
  }
  bool is_finishing() const {
    const std::lock_guard hold(lock_);
    return is_finishing_;
  }

  void abort() noexcept {
    const std::lock_guard hold(lock_);
    is_aborted_ = true;
    for (const auto& s : open_) s->shut();
    none_enqueued_.notify_all();
  }

  // Nobody is called any more.
  void leave() noexcept {
    abort();
    const std::lock_guard hold(telling_);
    changed_ = nullptr;
  }

  // --- one collective, on the thread of its stream ---

  void add_enqueued() {
    const std::lock_guard hold(lock_);
    ++enqueued_;
  }
  // It will not run: its stream has failed before.
  void drop_enqueued() noexcept {
    const std::lock_guard hold(lock_);
    has_dropped_ = true;
    if (--enqueued_ == 0) none_enqueued_.notify_all();
  }

  result<void> run(const call_header& own, std::span<const std::byte> from,
                   std::span<std::byte> to) {
    auto done = carry_out(own, from, to);
    {
      const std::lock_guard hold(lock_);
      if (!done && !is_aborted_ && !failure_) failure_ = std::make_unique<error>(done.error());
      if (--enqueued_ == 0) none_enqueued_.notify_all();
      if (done) return done;
      if (is_aborted_) return aborted();
    }
    tell();
    return done;
  }

  // --- HC-4 ---

  result<void> begin_end() {
    const std::lock_guard hold(lock_);
    if (is_aborted_) return aborted();
    if (failure_) return *failure_;
    if (!is_formed_)
      return error(error_code::usage, name_ + ": finish is called before all ranks are there");
    if (std::exchange(is_finishing_, true))
      return error(error_code::usage, name_ + ": the communicator has been finished");
    return {};
  }

  // On a thread of its own.
  void end() {
    {
      std::unique_lock hold(lock_);
      none_enqueued_.wait(hold, [&] { return enqueued_ == 0 || is_aborted_ || failure_; });
      if (is_aborted_ || failure_) return;  // which has been told
    }
    auto done =
        has_dropped()
            ? result<void>(error(error_code::failed,
                                 name_ + ": a collective has not run, since its stream has failed"))
        : rank_ == 0 ? answer_goodbyes()
                     : say_goodbye();
    {
      const std::lock_guard hold(lock_);
      if (is_aborted_) return;
      if (done)
        has_finished_ = true;
      else
        failure_ = std::make_unique<error>(std::move(done.error()));
    }
    tell();
  }

 private:
  error aborted() const { return {error_code::failed, name_ + ": the communicator is aborted"}; }
  // DC-7.
  error lost(int rank) const {
    return {error_code::unreachable, fmt::format("{}: rank {} is gone", name_, rank)};
  }
  error refused(answer a, std::string_view why) const {
    return {a == answer::rank_gone ? error_code::unreachable : error_code::failed,
            fmt::format("{}: {}", name_, why)};
  }
  bool is_aborted() const {
    const std::lock_guard hold(lock_);
    return is_aborted_;
  }
  bool has_dropped() const {
    const std::lock_guard hold(lock_);
    return has_dropped_;
  }
  void tell() {
    const std::lock_guard hold(telling_);
    if (changed_) changed_();
  }

  // HC-1.
  result<void> gather(const id_content& id, const socket& listener) {
    for (int missing = ranks_ - 1; missing > 0;) {
      const auto fd = ::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0 && (errno == EINTR || errno == ECONNABORTED) && !is_aborted()) continue;
      if (fd < 0)
        return is_aborted() ? aborted()
                            : error(error_code::failed,
                                    fmt::format("{}: accept: {}", name_, std::strerror(errno)));
      auto s = keep(std::make_shared<socket>(fd));
      const timeval patience{hello_timeout_s, 0}, none{};
      (void)::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
      hello h{};
      if (!receive_one(fd, h) || std::memcmp(h.secret, id.secret, secret_bytes) != 0) {
        const std::lock_guard hold(lock_);
        std::erase(open_, s);
        continue;
      }
      if (h.ranks != ranks_ || h.rank < 1 || h.rank >= ranks_ ||
          of_[static_cast<std::size_t>(h.rank)] != nullptr)
        return error(
            error_code::failed,
            fmt::format(
                "{}: rank {} of {} connected{}", name_, h.rank, h.ranks,
                h.ranks == ranks_ ? ", but that rank has joined already or cannot exist" : ""));
      (void)::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none);
      send_at_once(fd);
      of_[static_cast<std::size_t>(h.rank)] = std::move(s);
      --missing;
    }
    for (int r = 1; r < ranks_; ++r)
      if (!send_one(peer(r), std::byte{1})) return is_aborted() ? aborted() : lost(r);
    return {};
  }

  result<void> join(const id_content& id) {
    const auto fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
      return error(error_code::failed, fmt::format("{}: socket: {}", name_, std::strerror(errno)));
    of_[0] = keep(std::make_shared<socket>(fd));
    send_at_once(fd);
    const auto at = loopback(id.port);
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0)
      return is_aborted() ? aborted()
                          : error(error_code::failed, fmt::format("{}: rank 0 does not answer: {}",
                                                                  name_, std::strerror(errno)));
    hello h{{}, rank_, ranks_};
    std::memcpy(h.secret, id.secret, secret_bytes);
    std::byte welcome{};
    if (!send_one(fd, h) || !receive_one(fd, welcome)) return is_aborted() ? aborted() : lost(0);
    return {};
  }

  static void send_at_once(int fd) noexcept {
    const int on = 1;
    (void)::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  int peer(int rank) const noexcept { return of_[static_cast<std::size_t>(rank)]->fd(); }

  result<void> carry_out(const call_header& own, std::span<const std::byte> from,
                         std::span<std::byte> to) {
    std::vector<std::vector<std::byte>> all(static_cast<std::size_t>(ranks_));
    all[static_cast<std::size_t>(rank_)].assign(from.begin(), from.end());
    if (auto ok = rank_ == 0 ? take_from_all(own, all) : hand_to_first(own, all); !ok) return ok;
    const auto type = static_cast<dtype>(own.type);
    const auto how = static_cast<device_reduction>(own.how);
    const auto n = to.size() / size_of(type);
    const auto ranks = static_cast<std::size_t>(ranks_);
    switch (own.kind) {
      case call_kind::all_reduce: {
        const auto each = (n + ranks - 1) / ranks;
        for (std::size_t owner = 0, at = 0; at < n; ++owner, at += each)
          reduce(type, how, to.data() + at * size_of(type), all, at, std::min(each, n - at), owner);
        return {};
      }
      case call_kind::reduce_scatter:
        reduce(type, how, to.data(), all, n * static_cast<std::size_t>(rank_), n,
               static_cast<std::size_t>(rank_));
        return {};
      case call_kind::all_gather:
        for (std::size_t r = 0; r < ranks; ++r)
          std::ranges::copy(all[r], to.begin() + static_cast<std::ptrdiff_t>(r * from.size()));
        return {};
      case call_kind::broadcast:
        std::ranges::copy(all[static_cast<std::size_t>(own.root)], to.begin());
        return {};
      case call_kind::finish: break;  // end() has it
    }
    return {};
  }

  // What rank r calls, and its part. False: it is gone.
  bool hear(int r, call_header& h, std::vector<std::byte>& bytes) const {
    if (!receive_one(peer(r), h) || h.bytes > bytes_max) return false;
    bytes.resize(h.bytes);
    return receive_all(peer(r), bytes.data(), bytes.size());
  }
  static std::string refuse(const call_header& own, int r, const call_header& h) {
    return fmt::format("ranks call different collectives: rank 0 {}, rank {} {}", text_of(own), r,
                       text_of(h));
  }

  result<void> take_from_all(const call_header& own, std::vector<std::vector<std::byte>>& all) {
    std::string refusal;
    for (int r = 1; r < ranks_; ++r) {
      call_header h;
      if (!hear(r, h, all[static_cast<std::size_t>(r)])) return lost(r);
      if (refusal.empty() && !own.is_same(h)) refusal = refuse(own, r, h);
    }
    refusal.resize(std::min(refusal.size(), text_bytes_max));
    const reply_header reply{refusal.empty() ? answer::fine : answer::refused, refusal.size()};
    for (int r = 1; r < ranks_; ++r) {
      bool is_sent = send_one(peer(r), reply) && send_all(peer(r), refusal.data(), refusal.size());
      for (const auto& bytes : all)
        is_sent = is_sent && (!refusal.empty() || send_all(peer(r), bytes.data(), bytes.size()));
      if (!is_sent) return lost(r);
    }
    return refusal.empty() ? result<void>() : refused(reply.a, refusal);
  }

  result<void> hand_to_first(const call_header& own, std::vector<std::vector<std::byte>>& all) {
    auto& mine = all[static_cast<std::size_t>(rank_)];
    if (!send_one(peer(0), own) || !send_all(peer(0), mine.data(), mine.size())) return lost(0);
    if (auto ok = hear_answer(); !ok) return ok;
    for (auto& bytes : all) {
      bytes.resize(own.bytes);
      if (!receive_all(peer(0), bytes.data(), bytes.size())) return lost(0);
    }
    return {};
  }
  result<void> hear_answer() const {
    reply_header reply;
    if (!receive_one(peer(0), reply)) return lost(0);
    if (reply.a == answer::fine) return {};
    std::string refusal(std::min<std::size_t>(reply.bytes, text_bytes_max), ' ');
    if (!receive_all(peer(0), refusal.data(), refusal.size())) return lost(0);
    return refused(reply.a, refusal);
  }

  // HC-4. Where it cannot be sent any more, rank 0 may have said why before it went.
  result<void> say_goodbye() const {
    (void)send_one(peer(0), call_header{.kind = call_kind::finish});
    return hear_answer();
  }

  // In the order in which they come, so that one who is late does not hide one who is gone.
  result<void> answer_goodbyes() const {
    std::vector<int> missing(static_cast<std::size_t>(ranks_ - 1));
    std::iota(missing.begin(), missing.end(), 1);
    std::string refusal;
    auto a = answer::fine;
    for (std::vector<pollfd> polled; refusal.empty() && !missing.empty();) {
      polled.clear();
      for (const auto r : missing)
        polled.push_back({.fd = peer(r), .events = POLLIN, .revents = 0});
      if (::poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR)
        return error(error_code::failed, fmt::format("{}: poll: {}", name_, std::strerror(errno)));
      for (std::size_t i = polled.size(); i-- > 0;) {
        if (polled[i].revents == 0) continue;
        const auto r = missing[i];
        call_header h;
        std::vector<std::byte> bytes;
        if (!hear(r, h, bytes))
          a = answer::rank_gone, refusal = fmt::format("rank {} is gone", r);
        else if (h.kind != call_kind::finish)
          a = answer::refused, refusal = refuse({.kind = call_kind::finish}, r, h);
        missing.erase(missing.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    // And nobody is told that others are gone whom the abort has cut off.
    if (is_aborted()) return aborted();
    refusal.resize(std::min(refusal.size(), text_bytes_max));
    const reply_header reply{a, refusal.size()};
    // Who has gone after its goodbye is not missed.
    for (int r = 1; r < ranks_; ++r)
      (void)(send_one(peer(r), reply) && send_all(peer(r), refusal.data(), refusal.size()));
    return a == answer::fine ? result<void>() : refused(a, refusal);
  }

  const std::string name_;
  const int rank_, ranks_;
  std::mutex telling_;  // of changed_
  communicator_changed changed_;
  mutable std::mutex lock_;
  std::condition_variable none_enqueued_;  // or it ends otherwise
  std::size_t enqueued_ = 0;               // collectives that have not run
  bool is_formed_ = false, is_aborted_ = false, is_finishing_ = false, has_finished_ = false,
       has_dropped_ = false;
  std::unique_ptr<error> failure_;
  std::vector<std::shared_ptr<socket>> open_;  // what abort() shuts
  // Rank 0: by rank; others: rank 0's. By the thread that meets, then by the stream's, then by the
  // one that ends.
  std::vector<std::shared_ptr<socket>> of_;
};

namespace {

// In the queue of a stream, which runs it or, once it has failed, drops it.
class enqueued_call {
 public:
  explicit enqueued_call(std::shared_ptr<host_gang> g) : gang_(std::move(g)) {
    gang_->add_enqueued();
  }
  ~enqueued_call() {
    if (!has_run_) gang_->drop_enqueued();
  }
  enqueued_call(const enqueued_call&) = delete;
  enqueued_call& operator=(const enqueued_call&) = delete;
  result<void> run(const call_header& h, std::span<const std::byte> from, std::span<std::byte> to) {
    has_run_ = true;
    return gang_->run(h, from, to);
  }

 private:
  std::shared_ptr<host_gang> gang_;
  bool has_run_ = false;
};

class rank_on_host final : public device_communicator {
 public:
  explicit rank_on_host(std::shared_ptr<host_gang> g) : gang_(std::move(g)) {}
  ~rank_on_host() override {
    gang_->leave();
    if (meeting_.joinable()) meeting_.join();
    if (ending_.joinable()) ending_.join();
  }
  void meet(const id_content& id, std::shared_ptr<host_gang::socket> listener) {
    if (listener) gang_->keep(listener);
    meeting_ = std::thread([g = gang_, id, l = std::move(listener)] { g->meet(id, l); });
  }

  int rank() const noexcept override { return gang_->rank(); }
  int ranks() const noexcept override { return gang_->ranks(); }
  result<bool> is_ready() override { return gang_->is_ready(); }
  void abort() noexcept override { gang_->abort(); }
  result<void> finish() override {
    if (auto ok = gang_->begin_end(); !ok) return ok;
    ending_ = std::thread([g = gang_] { g->end(); });
    return {};
  }

  result<void> all_reduce(device_stream& on, std::string_view op, std::span<const std::byte> from,
                          std::span<std::byte> to, dtype type, device_reduction how) override {
    return call(on, {.kind = call_kind::all_reduce, .how = static_cast<std::uint32_t>(how)}, op,
                from, to, type, from.size() == to.size());
  }
  result<void> reduce_scatter(device_stream& on, std::string_view op,
                              std::span<const std::byte> from, std::span<std::byte> to, dtype type,
                              device_reduction how) override {
    return call(on, {.kind = call_kind::reduce_scatter, .how = static_cast<std::uint32_t>(how)}, op,
                from, to, type, from.size() == to.size() * static_cast<std::size_t>(ranks()));
  }
  result<void> all_gather(device_stream& on, std::string_view op, std::span<const std::byte> from,
                          std::span<std::byte> to, dtype type) override {
    return call(on, {.kind = call_kind::all_gather}, op, from, to, type,
                from.size() * static_cast<std::size_t>(ranks()) == to.size());
  }
  result<void> broadcast(device_stream& on, std::string_view op, std::span<const std::byte> from,
                         std::span<std::byte> to, dtype type, int root) override {
    if (root < 0 || root >= ranks())
      return error(error_code::usage,
                   fmt::format("{}: op {}: there is no rank {}", gang_->name(), op, root));
    return call(on, {.kind = call_kind::broadcast, .root = root}, op, from, to, type,
                from.size() == to.size());
  }

 private:
  result<void> call(device_stream& on, call_header h, std::string_view op,
                    std::span<const std::byte> from, std::span<std::byte> to, dtype type,
                    bool fits) {
    auto ready = gang_->is_ready();
    if (!ready) return std::move(ready.error());
    if (gang_->is_finishing())
      return error(error_code::usage,
                   fmt::format("{}: op {}: the communicator has been finished", gang_->name(), op));
    if (!*ready)
      return error(error_code::usage, fmt::format("{}: op {} is called before all ranks are there",
                                                  gang_->name(), op));
    h.type = static_cast<std::uint32_t>(type);
    h.bytes = from.size();
    op.copy(h.op, sizeof h.op - 1);
    const bool reduces = h.kind == call_kind::all_reduce || h.kind == call_kind::reduce_scatter;
    if (!fits || from.size() % size_of(type) != 0)
      return error(error_code::usage,
                   fmt::format("{}: {} into {} bytes", gang_->name(), text_of(h), to.size()));
    if (reduces && !can_combine(type))
      return error(error_code::usage, fmt::format("{}: {}: only f32, f64, i32 and i64 can be "
                                                  "reduced",
                                                  gang_->name(), text_of(h)));
    if (reduces && static_cast<device_reduction>(h.how) == device_reduction::mean &&
        type != dtype::f32 && type != dtype::f64)
      return error(error_code::usage,
                   fmt::format("{}: {}: a mean is of f32 or f64", gang_->name(), text_of(h)));
    return on.enqueue(
        op, {{&from, 1}, {&to, 1}},
        [c = std::make_shared<enqueued_call>(gang_), h, from, to] { return c->run(h, from, to); });
  }

  std::shared_ptr<host_gang> gang_;
  std::thread meeting_, ending_;
};

}  // namespace

host_meeting_points::host_meeting_points() = default;
host_meeting_points::~host_meeting_points() = default;

result<communicator_id> host_meeting_points::make_id(const std::string& device) {
  const auto failed = [&](std::string_view call) {
    return error(error_code::failed, fmt::format("{}: {}: {}", device, call, std::strerror(errno)));
  };
  auto s = std::make_unique<socket>(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (s->fd() < 0) return failed("socket");
  auto at = loopback(0);
  socklen_t size = sizeof at;
  if (::bind(s->fd(), reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0)
    return failed("bind");
  if (::listen(s->fd(), backlog) != 0) return failed("listen");
  if (::getsockname(s->fd(), reinterpret_cast<sockaddr*>(&at), &size) != 0)
    return failed("getsockname");
  id_content content{};
  std::memcpy(content.mark, magic, sizeof magic);
  content.port = ntohs(at.sin_port);
  std::random_device random;
  for (auto& b : content.secret) b = static_cast<std::byte>(random());
  communicator_id id;
  std::memcpy(id.bytes.data(), &content, sizeof content);
  const std::lock_guard hold(lock_);
  made_.emplace(std::string(reinterpret_cast<const char*>(id.bytes.data()), id.bytes.size()),
                std::move(s));
  return id;
}

result<std::unique_ptr<device_communicator>> host_meeting_points::begin(
    const communicator_id& id, int rank, int ranks, const std::string& device,
    communicator_changed changed) {
  if (ranks < 1 || rank < 0 || rank >= ranks)
    return error(error_code::usage,
                 fmt::format("{}: there is no rank {} of {}", device, rank, ranks));
  id_content content;
  std::memcpy(&content, id.bytes.data(), sizeof content);
  if (std::memcmp(content.mark, magic, sizeof magic) != 0)
    return error(
        error_code::usage,
        fmt::format("{}: the id of the communicator is not one of asynchronous host devices",
                    device));
  std::shared_ptr<socket> listener;
  if (rank == 0) {
    const std::lock_guard hold(lock_);
    const auto at =
        made_.find(std::string(reinterpret_cast<const char*>(id.bytes.data()), id.bytes.size()));
    if (at == made_.end())
      return error(
          error_code::usage,
          fmt::format("{}: rank 0 must begin, once, in the process that made its communicator's id",
                      device));
    listener = std::move(at->second);
    made_.erase(at);
  }
  auto made = std::make_unique<rank_on_host>(
      std::make_shared<host_gang>(device, rank, ranks, std::move(changed)));
  made->meet(content, std::move(listener));
  return std::unique_ptr<device_communicator>(std::move(made));
}

}  // namespace troupe
