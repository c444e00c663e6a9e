#include "troupe/runtime/flow/stage_replacement.hpp"

#include "troupe/runtime/flow/flow_counting.hpp"

#include <new>
#include <utility>

namespace troupe {
namespace {

class stage_on_trial final : public stage {
 public:
  stage_on_trial(std::unique_ptr<stage> now, std::unique_ptr<stage> before,
                 std::shared_ptr<stage_change> change)
      : now_(std::move(now)), before_(std::move(before)), change_(std::move(change)) {}

  bool take(std::uint32_t port, any_value&& in, stage_output& out) override {
    if (before_ != nullptr) follow_verdict();
    if (before_ == nullptr) return now_->take(port, std::move(in), out);
    item_ = {};
    try {
      item_.value = in.copy();
      item_.learnt = now_->save();
    } catch (const std::bad_alloc&) {  // then it is one without a trial
      item_ = {};
    }
    item_.port = port;
    item_.put = out.items_put();
    return guarded([&] { return now_->take(port, std::move(in), out); }, out);
  }
  bool go_on(stage_output& out) override {
    if (before_ == nullptr) return now_->go_on(out);
    return guarded([&] { return now_->go_on(out); }, out);
  }
  bool end(std::uint32_t port, stage_output& out) override { return now_->end(port, out); }
  std::uint32_t choose(const stage_output& out) override { return now_->choose(out); }
  std::int64_t wakes_at() const override { return now_->wakes_at(); }
  bool on_time(std::int64_t at_ns, stage_output& out) override { return now_->on_time(at_ns, out); }
  bool keeps_open() const override { return now_->keeps_open(); }
  bool is_over() const override { return now_->is_over(); }
  void close() override { now_->close(); }
  std::optional<tensor> save() const override { return now_->save(); }
  bool load(const tensor& saved) override { return now_->load(saved); }
  result<tensor> keep(const item_types& types) override {
    if (before_ != nullptr) follow_verdict();
    return now_->keep(types);
  }
  bool has_under_way() const override { return now_->has_under_way(); }

 private:
  using verdict = stage_change::verdict;
  // Of the item at hand, which is done when there is nothing more to put of it.
  struct item_at_hand {
    any_value value;
    std::optional<tensor> learnt;
    std::uint32_t port = 0;
    std::uint64_t put = 0;
  };

  template <class Call>
  bool guarded(const Call& call, stage_output& out) {
    std::optional<error> failed;
    bool has_more = false;
    try {
      has_more = call();
      failed = out.take_failure();
    } catch (const broken_invariant&) {
      throw;
    } catch (...) {
      failed = what_was_thrown();
    }
    auto none = verdict::none;
    if (!failed) {
      if (!has_more && change_->passed.fetch_add(1) + 1 >= change_->trial)
        change_->judged.compare_exchange_strong(none, verdict::stays);
      return has_more;
    }
    if (change_->judged.compare_exchange_strong(none, verdict::goes_back)) {
      change_->why_back = failed->message();
      change_->is_told_why.store(true);
    }
    if (change_->judged.load() == verdict::goes_back) {
      go_back(std::move(item_.learnt));
      if (item_.value && out.items_put() == item_.put)
        return now_->take(item_.port, std::move(item_.value), out);
    }
    out.fail(std::move(*failed));  // something of it has left, or the trial is over
    return false;
  }
  void follow_verdict() {
    const auto v = change_->judged.load();
    if (v == verdict::none) return;
    item_ = {};
    if (v == verdict::stays) before_.reset();
    if (v == verdict::goes_back) go_back(now_->save());
  }
  void go_back(std::optional<tensor> learnt) {
    if (learnt) before_->load(*learnt);
    now_ = std::move(before_);
  }

  std::unique_ptr<stage> now_, before_;  // null: the trial is over
  std::shared_ptr<stage_change> change_;
  item_at_hand item_;
};

}  // namespace

void stage_change::count(result<void> how) {
  const bool is_last = waiting.fetch_sub(1) == 1;
  if ((!how || is_last) && !is_told_.exchange(true)) done(std::move(how));
}

stage_change::~stage_change() {
  if (!is_told_.load()) done(error(error_code::failed, name + ": the topology is over"));
}

result<void> take_over(std::unique_ptr<stage>& before, stage_replacement&& r) {
  std::optional<tensor> learnt;
  try {
    learnt = before->save();
    if (learnt && !r.what->load(*learnt))
      return error(error_code::usage, r.change->name +
                                          ": the state of the function before does "
                                          "not fit the new one");
  } catch (const std::bad_alloc&) {
    return error(error_code::failed,
                 r.change->name + ": there is no memory to hand its state over");
  }
  if (r.change->trial == 0)
    before = std::move(r.what);
  else
    before = std::make_unique<stage_on_trial>(std::move(r.what), std::move(before), r.change);
  return {};
}

}  // namespace troupe
