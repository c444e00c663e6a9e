#include "tools/troupe-tool/look_taker.hpp"

#include <algorithm>
#include <exception>
#include <utility>

namespace troupe {

namespace {

constexpr std::int64_t look_every_ns = 1'000'000'000;
// At least, from the end of a look to the next: where a node is silent looks take long, and two of
// them are to show what has changed in between.
constexpr std::int64_t rest_ns = 200'000'000;
// A scraper that comes each quarter of a minute has a look of its own each time.
constexpr std::int64_t wanted_ns = 3'000'000'000;

void note_time(cluster_look& look) {
  look.ended_ns = steady_now_ns();
  look.unix_seconds =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

look_taker::look_taker(std::function<result<cluster_snapshot>()> ask, std::function<void()> on_look)
    : ask_(std::move(ask)), on_look_(std::move(on_look)), thread_([this] { run(); }) {}

look_taker::~look_taker() {
  (void)stop();
  thread_.join();
}

void look_taker::want() {
  const std::lock_guard guard(lock_);
  wanted_until_ns_ = steady_now_ns() + wanted_ns;
  changed_.notify_all();
}

look_taker::shared_look look_taker::last() const {
  const std::lock_guard guard(lock_);
  return last_;
}

look_taker::shared_look look_taker::before() const {
  const std::lock_guard guard(lock_);
  return before_;
}

bool look_taker::stop() {
  const std::lock_guard guard(lock_);
  is_over_ = true;
  changed_.notify_all();
  return !is_asking_;
}

void look_taker::run() {
  std::unique_lock guard(lock_);
  while (!is_over_) {
    const auto now = steady_now_ns();
    const auto next = last_ != nullptr
                          ? std::max(last_->began_ns + look_every_ns, last_->ended_ns + rest_ns)
                          : now;
    if (now >= wanted_until_ns_) {
      changed_.wait(guard);
    } else if (now < next) {
      changed_.wait_for(guard, std::chrono::nanoseconds(next - now));
    } else {
      is_asking_ = true;
      guard.unlock();
      take();
      guard.lock();
      is_asking_ = false;
    }
  }
}

void look_taker::take() {
  auto look = std::make_shared<cluster_look>();
  const auto old = last();
  look->number = old != nullptr ? old->number + 1 : 1;
  look->failed = old != nullptr ? old->failed : 0;
  look->began_ns = steady_now_ns();
  try {
    auto answer = ask_();
    note_time(*look);
    if (answer) {
      look->snapshot = std::move(*answer);
      totals_.add(*look);
    } else {
      look->failure = answer.error();
    }
  } catch (const std::exception& e) {  // no memory for so large an answer
    note_time(*look);
    look->snapshot.reset();
    look->failure = error(error_code::failed, std::string("the cluster's answer: ") + e.what());
  }
  if (!look->snapshot) ++look->failed;
  {
    const std::lock_guard guard(lock_);
    before_ = good_;
    last_ = look;
    if (look->snapshot) good_ = std::move(look);
  }
  on_look_();
}

}  // namespace troupe
