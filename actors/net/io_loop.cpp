#include "troupe/actors/net/io_loop.hpp"

#include "troupe/schema/error.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <limits>
#include <system_error>
#include <utility>

namespace troupe {
namespace {

constexpr int events_per_poll = 64;
constexpr std::int64_t ns_per_ms = 1'000'000;

std::uint32_t interest(bool want_read, bool want_write) noexcept {
  return (want_read ? static_cast<std::uint32_t>(EPOLLIN) : 0u) |
         (want_write ? static_cast<std::uint32_t>(EPOLLOUT) : 0u);
}

// The generation tells an event of a removed descriptor from one of its successor of the same
// number.
std::uint64_t event_key(int fd, std::uint32_t generation) noexcept {
  return std::uint64_t{generation} << 32 | static_cast<std::uint32_t>(fd);
}

[[noreturn]] void fail_system(const char* call) {
  throw std::system_error(errno, std::generic_category(), call);
}

}  // namespace

io_loop::io_loop() {
  // Where the standard descriptors are closed, the next ones opened would take their numbers, and
  // every error text would go into a socket.
  for (int fd = ::open("/dev/null", O_RDWR | O_CLOEXEC); fd >= 0;
       fd = ::open("/dev/null", O_RDWR | O_CLOEXEC))
    if (fd > STDERR_FILENO) {
      ::close(fd);
      break;
    }
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  if (epoll_ < 0) fail_system("epoll_create1");
  event_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_event e{};
  e.events = EPOLLIN;
  e.data.u64 = event_key(event_, 0);  // registrations begin with generation 1
  if (event_ < 0 || epoll_ctl(epoll_, EPOLL_CTL_ADD, event_, &e) != 0) {
    if (event_ >= 0) ::close(event_);
    ::close(epoll_);
    fail_system("eventfd");
  }
}

io_loop::~io_loop() {
  // Handlers may hold the last reference to objects that remove descriptors, so they go while the
  // loop is still whole.
  timers_.clear();
  deferred_.clear();
  while (!fds_.empty()) remove(fds_.begin()->first);
  ::close(event_);
  ::close(epoll_);
}

int io_loop::poll(int timeout_ms) {
  run_deferred();
  // wake() sets woken_ before it reads sleeps_, poll() sets sleeps_ before it reads woken_: one of
  // them sees the other.
  sleeps_.store(true, std::memory_order_seq_cst);
  const int wait =
      woken_.load(std::memory_order_seq_cst) || !deferred_.empty() ? 0 : wait_ms(timeout_ms);
  std::array<epoll_event, events_per_poll> events;
  const bool is_told = wait != 0 && on_sleep_;
  if (is_told) on_sleep_(true);
  const int found = epoll_wait(epoll_, events.data(), events_per_poll, wait);
  if (is_told) on_sleep_(false);
  sleeps_.store(false, std::memory_order_seq_cst);
  woken_.exchange(false, std::memory_order_seq_cst);

  int called = 0;
  for (int i = 0; i < found; ++i) {
    const auto& e = events[static_cast<std::size_t>(i)];
    const int fd = static_cast<int>(e.data.u64 & 0xffffffff);
    if (fd == event_) {
      std::uint64_t count = 0;
      [[maybe_unused]] const auto n = ::read(event_, &count, sizeof count);
      continue;
    }
    const auto at = fds_.find(fd);
    if (at == fds_.end() || event_key(fd, at->second.generation) != e.data.u64) continue;
    const auto keep = at->second.handler;
    const bool broken = (e.events & (EPOLLERR | EPOLLHUP)) != 0;
    keep->on_ready(broken || (e.events & EPOLLIN) != 0, broken || (e.events & EPOLLOUT) != 0);
    ++called;
    run_deferred();
  }
  return called + run_timers();
}

void io_loop::wake() noexcept {
  woken_.store(true, std::memory_order_seq_cst);
  if (!sleeps_.load(std::memory_order_seq_cst) ||
      !sleeps_.exchange(false, std::memory_order_seq_cst))
    return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto n = ::write(event_, &one, sizeof one);
}

std::int64_t io_loop::now_ns() const noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

timer_id io_loop::after(std::int64_t delay_ns, std::function<void()> fn) {
  const std::int64_t now = now_ns();
  const std::int64_t delay =
      std::clamp(delay_ns, std::int64_t{0}, std::numeric_limits<std::int64_t>::max() - now);
  const std::uint64_t id = ++timer_last_;
  timers_.emplace(timer_key{now + delay, id}, std::move(fn));
  deadlines_.emplace(id, now + delay);
  return timer_id{id};
}

void io_loop::cancel(timer_id id) {
  const auto at = deadlines_.find(static_cast<std::uint64_t>(id));
  if (at == deadlines_.end()) return;
  timers_.erase(timer_key{at->second, at->first});
  deadlines_.erase(at);
}

void io_loop::add(int fd, std::shared_ptr<fd_handler> handler, bool want_read, bool want_write) {
  expects(!fds_.contains(fd), "a descriptor was added to an io_loop twice");
  if (++generation_ == 0) ++generation_;
  epoll_event e{};
  e.events = interest(want_read, want_write);
  e.data.u64 = event_key(fd, generation_);
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &e) != 0) fail_system("epoll_ctl");
  fds_.emplace(fd, registration{std::move(handler), generation_});
}

void io_loop::change(int fd, bool want_read, bool want_write) {
  const auto at = fds_.find(fd);
  expects(at != fds_.end(), "a descriptor that is not in the io_loop was changed");
  epoll_event e{};
  e.events = interest(want_read, want_write);
  e.data.u64 = event_key(fd, at->second.generation);
  if (epoll_ctl(epoll_, EPOLL_CTL_MOD, fd, &e) != 0) fail_system("epoll_ctl");
}

void io_loop::remove(int fd) {
  const auto at = fds_.find(fd);
  if (at == fds_.end()) return;
  epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
  const auto keep = std::move(at->second.handler);  // its end may come back to the loop
  fds_.erase(at);
}

void io_loop::defer(std::function<void()> fn) { deferred_.push_back(std::move(fn)); }

// Until the next timer, rounded up so that no timer fires early.
int io_loop::wait_ms(int timeout_ms) const {
  if (timers_.empty() || timeout_ms == 0) return timeout_ms;
  const std::int64_t until = std::max<std::int64_t>(0, timers_.begin()->first.first - now_ns());
  const std::int64_t ms = std::min<std::int64_t>(until / ns_per_ms + (until % ns_per_ms != 0),
                                                 std::numeric_limits<int>::max());
  return timeout_ms < 0 ? static_cast<int>(ms) : std::min(timeout_ms, static_cast<int>(ms));
}

// Those that are due now; what they start with no delay comes with the next poll().
int io_loop::run_timers() {
  if (timers_.empty()) return 0;
  const std::int64_t now = now_ns();
  const std::uint64_t last = timer_last_;
  int called = 0;
  for (auto at = timers_.begin(); at != timers_.end() && at->first.first <= now;) {
    if (at->first.second > last) {
      ++at;
      continue;
    }
    const auto fn = std::move(at->second);
    deadlines_.erase(at->first.second);
    timers_.erase(at);
    fn();
    ++called;
    run_deferred();
    at = timers_.begin();
  }
  return called;
}

// What a deferred function defers comes with the next round, so that none can hold the loop up.
void io_loop::run_deferred() {
  if (deferred_.empty()) return;
  std::vector<std::function<void()>> now;
  now.swap(deferred_);
  for (auto& fn : now) fn();
}

}  // namespace troupe
