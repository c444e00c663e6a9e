// The program's end of a graph that it steps.

#include "troupe/actors/session/fetched_steps.hpp"
#include "troupe/actors/session/job_client.hpp"
#include "troupe/runtime/plan/loop_rules.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace troupe {

namespace {

class stepper_impl final : public stepper, private job_client {
 public:
  stepper_impl(process& p, std::shared_ptr<const job_request> request)
      : job_client(p), request_(std::move(request)), ready_(request_->job_plan) {
    const auto& actors = request_->job_plan.actors;
    for (std::uint32_t i = 0; i < actors.size(); ++i) {
      if (actors[i].kind == actor_kind::feed)
        feeds_.add(actors[i].name, i, actors[i].output_specs.at(0));
      if (actors[i].kind == actor_kind::op && actors[i].ops.front().type == loop_condition_op)
        has_loops_ = true;
    }
    tell(nullptr, process_.node(), run_job{request_, own_mailbox()});
    while (!handles_ && !is_over_) receive();
  }
  ~stepper_impl() override {
    if (!process_.check_is_there()) return;  // the session's end has ended the job
    handles_.reset();
    stop(std::string(job_done_reason));
    while (!is_over_) receive();
  }

  bool has_failed() const { return is_over_; }
  error failure() const { return {error_code::failed, failure_}; }

  result<void> feed(std::string_view name, tensor value) override {
    if (auto there = process_.check_is_there(); !there) return there;
    auto to = feeds_.find(name, value);
    if (!to) return to.error();
    while ((*to)->room == 0 && !is_over_) {
      // This thread is the only one that could fetch.
      if (receive(ready_.empty() ? std::chrono::hours(24) : full_wait)) continue;
      return error(
          error_code::timed_out,
          fmt::format(
              "input '{}' has had no room for {} s, and the values of {} steps wait to be fetched: fetch first",
              name, full_wait.count(), ready_.size()));
    }
    if (is_over_) return failure();
    put(**to, std::move(value));
    return {};
  }

  result<std::vector<tensor>> fetch(std::chrono::milliseconds limit) override {
    if (auto there = process_.check_is_there(); !there) return std::move(there.error());
    for (const auto& [name, f] : feeds_)
      if (f.fed <= fetched_ && !is_over_)
        return error(
            error_code::usage,
            fmt::format("step {} cannot be fetched yet: input '{}' was fed for {} steps; feed it "
                        "first",
                        fetched_, name, f.fed));
    if (!receive_until([&] { return !ready_.empty(); }, deadline(limit)))
      return late(limit, "has not ended");
    if (ready_.empty()) return failure();
    ++fetched_;
    auto values = ready_.pop();
    give_credits();
    return values;
  }

  result<void> cancel() override {
    if (auto there = process_.check_is_there(); !there) return there;
    if (is_over_) return failure();
    for (const auto& [name, f] : feeds_)
      if (f.fed <= fetched_)
        return error(
            error_code::usage,
            fmt::format(
                "there is no step to cancel: input '{}' was fed for {} steps, and all of them were "
                "fetched or cancelled",
                name, f.fed));
    if (has_loops_) tell(nullptr, process_.node(), cancel_own_run{own_mailbox(), fetched_});
    ++fetched_;
    if (ready_.empty()) {
      ++unwanted_;
      return {};
    }
    ready_.pop();
    give_credits();
    return {};
  }

  result<std::vector<tensor>> step(std::span<const std::pair<std::string_view, tensor>> feeds,
                                   std::chrono::milliseconds limit) override {
    const deadline end(limit);
    if (auto there = process_.check_is_there(); !there) return std::move(there.error());
    if (is_over_) return failure();
    for (const auto& [name, f] : feeds_)
      if (f.fed > fetched_)
        return error(error_code::usage,
                     fmt::format("input '{}' was fed ahead: fetch that step first", name));
    auto found = feeds_.find_all(feeds);
    if (!found) return found.error();
    const auto& to = *found;
    if (!receive_until(
            [&] {
              return std::all_of(to.begin(), to.end(), [](const auto* f) { return f->room > 0; });
            },
            end))
      return late(limit, "was not begun: steps before it have not ended");
    if (is_over_) return failure();
    for (std::size_t i = 0; i < feeds.size(); ++i) put(*to[i], feeds[i].second);
    auto values = fetch(end.left());
    if (values || values.error().code() != error_code::timed_out) return values;
    auto why = late(limit, "has not ended, and was cancelled");
    if (auto cancelled = cancel(); !cancelled) return cancelled.error();
    return why;
  }

 private:
  static constexpr std::chrono::seconds full_wait{10};  // longer than any op should take

  void give_credits() {
    if (!handles_) return;  // the graph is being ended
    ready_.each_fetch(
        [&](std::uint32_t fetch) { tell(nullptr, handles_->actors[fetch], credit{0, 1}); });
  }

  void put(fed_input& to, tensor value) {
    --to.room;
    ++to.fed;
    tell(nullptr, handles_->actors[to.actor], tensor_ready{0, 0, {}, std::move(value)});
  }

  error late(std::chrono::milliseconds limit, std::string_view what) const {
    return {error_code::timed_out,
            fmt::format("step {} {}, after {} ms", fetched_, what, limit.count())};
  }

  // Takes messages until `is_enough`, or the job is over. False: the time is.
  template <class Condition>
  bool receive_until(Condition&& is_enough, const deadline& end) {
    while (!is_enough() && !is_over_) {
      const auto left = end.left();
      if (left.count() <= 0) return false;
      receive(left);
    }
    return true;
  }

  // False: no message came within the time.
  bool receive(std::chrono::milliseconds timeout = std::chrono::hours(24)) {
    bool has_come = true;
    self_->receive([&](job_started& m) { handles_ = std::move(m.handles); },
                   [&](fetched& m) {
                     ready_.take(m);
                     for (; unwanted_ > 0 && !ready_.empty(); --unwanted_) {
                       ready_.pop();
                       give_credits();
                     }
                   },
                   [&](const feed_ready& m) { feeds_.on_ready(m); },
                   [&](const job_finished&) {
                     is_over_ = true;
                     failure_ = "the job has ended";
                   },
                   [&](job_failed& m) {
                     is_over_ = true;
                     failure_ = std::move(m.line);
                   },
                   caf::after(timeout) >> [&] { has_come = false; });
    after_message();
    return has_come;
  }

  std::shared_ptr<const job_request> request_;
  fed_inputs feeds_;
  bool has_loops_ = false;
  fetched_steps ready_;
  std::uint64_t fetched_ = 0;   // steps, and cancelled ones
  std::uint64_t unwanted_ = 0;  // cancelled steps whose values have not come
  std::string failure_;
};

}  // namespace

result<std::unique_ptr<stepper>> make_stepper(process& p,
                                              std::shared_ptr<const job_request> request) {
  auto s = std::make_unique<stepper_impl>(p, std::move(request));
  if (s->has_failed()) return s->failure();
  return std::unique_ptr<stepper>(std::move(s));
}

}  // namespace troupe
