#include "troupe/runtime/flow/shape_stages.hpp"

#include "troupe/runtime/flow/function_id.hpp"
#include "troupe/runtime/flow/value_codec.hpp"

#include <algorithm>
#include <deque>
#include <utility>

namespace troupe {
namespace {

// Copies of what a shape holds, as items of one origin.
template <class Values>
tensor written(const Values& held, const item_origin& origin, const value_codec* type) {
  std::vector<flow_item> all;
  for (const auto& v : held) all.push_back({v.copy(), origin});
  return kept_items(all, type);
}
// The same again. False: these are no such bytes.
template <class Values>
bool held_again(const tensor& bytes, const value_codec* type, Values& held, item_origin& origin) {
  auto all = items_kept(bytes, type);
  if (!all) return false;
  if (!all->empty()) origin = all->front().origin;
  for (auto& it : *all) held.push_back(std::move(it.value));
  return true;
}
result<void> damaged_unless(bool is_right) {
  if (is_right) return {};
  return error(error_code::failed,
               "what it held does not fit: are .count, .step or .hold other ones now?");
}

class merge_stage final : public stage {
 public:
  merge_stage(std::uint32_t inputs, std::uint32_t loop, std::uint32_t feedback,
              std::uint64_t credit)
      : inputs_(inputs), loop_(loop), feedback_(feedback), credit_(credit) {}

  bool take(std::uint32_t port, any_value&& in, stage_output& out) override {
    next_ = (port + 1) % inputs_;
    out.put(0, std::move(in));
    return false;
  }
  std::uint32_t choose(const stage_output& out) override {
    look(out);
    if (loop_ != no_port && out.head(loop_) != nullptr) return loop_;
    if (loop_ != no_port && out.in_loop(feedback_) >= credit_) return no_port;
    for (std::uint32_t i = 0; i < inputs_; ++i)
      if (const auto port = (next_ + i) % inputs_; out.head(port) != nullptr) return port;
    return no_port;
  }
  bool end(std::uint32_t port, stage_output& out) override {
    if (port != loop_) ++ended_;
    look(out);
    return false;
  }
  bool is_over() const override { return is_over_; }
  result<tensor> keep(const item_types&) override {
    return saved_by([&](byte_writer& w) { w.number(next_), w.number(ended_); });
  }
  result<void> reopen(const tensor& kept, const item_types&) override {
    return damaged_unless(load_from(kept, [&](byte_reader& r) {
      next_ = r.number<std::uint32_t>() % inputs_;
      ended_ = r.number<std::uint32_t>();
    }));
  }

 private:
  // Nothing comes from outside any more, and nothing is under way in the loop.
  void look(const stage_output& out) {
    is_over_ = loop_ != no_port && ended_ + 1 == inputs_ && out.in_loop(feedback_) == 0;
  }

  std::uint32_t inputs_, loop_, feedback_, next_ = 0, ended_ = 0;
  std::uint64_t credit_;
  bool is_over_ = false;
};

class zip_stage final : public stage {
 public:
  zip_stage(std::uint32_t inputs, value_pack pack) : slots_(inputs), pack_(std::move(pack)) {}

  bool take(std::uint32_t port, any_value&& in, stage_output& out) override {
    slots_[port] = std::move(in);
    // The first input's item is the one that the others are added to.
    if (port == 0) origin_ = out.origin();
    if (++filled_ < slots_.size()) return false;
    filled_ = 0;
    out.set_origin(std::move(origin_));
    out.put_last(0, pack_(slots_));
    for (auto& s : slots_) s.reset();
    is_over_ = has_ended_;
    return false;
  }
  std::uint32_t choose(const stage_output& out) override {
    for (std::uint32_t i = 0; i < slots_.size(); ++i)
      if (!slots_[i] && out.head(i) != nullptr) return i;
    return no_port;
  }
  // What it has of that input is the last one.
  bool end(std::uint32_t port, stage_output&) override {
    has_ended_ = true;
    is_over_ = is_over_ || !slots_[port];
    return false;
  }
  bool is_over() const override { return is_over_; }
  result<tensor> keep(const item_types& types) override {
    std::vector<tensor> all;
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      std::vector<any_value> one;
      if (slots_[i]) one.push_back(slots_[i].copy());
      all.push_back(written(one, origin_, types[i]));
    }
    return saved_by([&](byte_writer& w) {
      for (const auto& t : all) write_tensor(w, t);
      w.number(has_ended_), w.number(is_over_);
    });
  }
  result<void> reopen(const tensor& kept, const item_types& types) override {
    std::vector<tensor> all;
    bool is_right = load_from(kept, [&](byte_reader& r) {
      for (std::size_t i = 0; i < slots_.size(); ++i) all.push_back(read_tensor(r));
      read_value(r, has_ended_), read_value(r, is_over_);
    });
    for (std::size_t i = 0; i < slots_.size() && is_right; ++i) {
      std::vector<any_value> one;
      item_origin origin;
      is_right = held_again(all[i], types[i], one, origin) && one.size() <= 1;
      if (one.empty()) continue;
      slots_[i] = std::move(one.front());
      ++filled_;
      if (i == 0) origin_ = std::move(origin);
    }
    return damaged_unless(is_right && filled_ < slots_.size());
  }

 private:
  std::vector<any_value> slots_;
  value_pack pack_;
  item_origin origin_;
  std::size_t filled_ = 0;
  bool has_ended_ = false, is_over_ = false;
};

class pass_stage final : public stage {
 public:
  bool take(std::uint32_t, any_value&& in, stage_output& out) override {
    out.put(0, std::move(in));
    return false;
  }
  std::uint32_t choose(const stage_output& out) override {
    const auto inputs = out.inputs();
    for (std::uint32_t i = 0; i < inputs; ++i)
      if (const auto port = (next_ + i) % inputs; out.head(port) != nullptr) {
        next_ = (port + 1) % inputs;
        return port;
      }
    return no_port;
  }

 private:
  std::uint32_t next_ = 0;
};

class deal_stage final : public stage {
 public:
  deal_stage(std::function<std::uint64_t(any_value&)> hash,
             std::shared_ptr<const replica_control> control)
      : hash_(std::move(hash)), control_(std::move(control)) {}

  bool take(std::uint32_t, any_value&& in, stage_output& out) override {
    const auto ports = working_ports(control_.get(), out.ports());
    std::uint32_t to = 0;
    if (hash_) {
      to = static_cast<std::uint32_t>(hash_(in) % ports);
    } else {
      // The one with least to do; in turn where several have as little.
      auto least = std::numeric_limits<std::int64_t>::max();
      for (std::uint32_t i = 0; i < ports; ++i) {
        const auto p = (next_ + i) % ports;
        if (!out.wants_more(p)) continue;
        if (const auto n = out.load_of(p); n < least) least = n, to = p;
      }
      next_ = (to + 1) % ports;
    }
    flow_item it{std::move(in), out.origin()};
    it.origin.ticket = ticket_;
    if (++ticket_ == no_port) ticket_ = 0;
    out.put_item(to, std::move(it));
    return false;
  }
  // By hash it is known only afterwards who gets an item: all must have room.
  std::uint32_t choose(const stage_output& out) override {
    const auto ports = working_ports(control_.get(), out.ports());
    for (std::uint32_t p = 0; p < ports; ++p) {
      if (hash_ && !out.has_room(p)) return no_port;
      if (!hash_ && out.wants_more(p)) return 0;
    }
    return hash_ ? 0 : no_port;
  }
  std::optional<tensor> save() const override {
    return saved_by([&](byte_writer& w) { w.number(next_), w.number(ticket_); });
  }
  bool load(const tensor& saved) override {
    return load_from(saved, [&](byte_reader& r) {
      next_ = r.number<std::uint32_t>();
      ticket_ = r.number<std::uint32_t>();
    });
  }

 private:
  std::function<std::uint64_t(any_value&)> hash_;
  std::shared_ptr<const replica_control> control_;
  std::uint32_t next_ = 0, ticket_ = 0;
};

class gather_stage final : public stage {
 public:
  gather_stage(std::uint32_t inputs, bool keeps_order)
      : inputs_(inputs), keeps_order_(keeps_order) {}

  bool take(std::uint32_t port, any_value&& in, stage_output& out) override {
    auto origin = out.origin();
    const bool ends = ends_;
    if (keeps_order_ && ends && ++next_ == no_port) next_ = 0;
    cursor_ = (port + 1) % inputs_;
    if (!in) return false;
    origin.ticket = 0;
    out.put_item(0, {std::move(in), std::move(origin)});
    return false;
  }
  // What a replica makes at its end has no ticket: it comes when all tickets have.
  std::uint32_t choose(const stage_output& out) override {
    std::uint32_t late = no_port, waiting = 0;
    for (std::uint32_t i = 0; i < inputs_; ++i) {
      const auto port = keeps_order_ ? i : (cursor_ + i) % inputs_;
      const auto* head = out.head(port);
      if (head == nullptr) {
        waiting += out.has_ended(port) ? 0 : 1;
        continue;
      }
      const auto ticket = head->origin.ticket;
      if (!keeps_order_ || ticket == next_) {
        ends_ = head->origin.ends_ticket;
        return port;
      }
      if (ticket == no_port && late == no_port) late = port;
    }
    if (waiting > 0 || late == no_port) return no_port;
    ends_ = false;
    return late;
  }
  std::optional<tensor> save() const override {
    return saved_by([&](byte_writer& w) { w.number(next_), w.number(cursor_); });
  }
  bool load(const tensor& saved) override {
    return load_from(saved, [&](byte_reader& r) {
      next_ = r.number<std::uint32_t>();
      cursor_ = r.number<std::uint32_t>() % inputs_;
    });
  }

 private:
  std::uint32_t inputs_, next_ = 0, cursor_ = 0;
  bool keeps_order_, ends_ = false;
};

class batch_stage final : public stage {
 public:
  batch_stage(std::uint64_t count, std::int64_t within_ns, bool as_they_come, value_pack pack)
      : count_(count), within_ns_(within_ns), as_they_come_(as_they_come), pack_(std::move(pack)) {}

  bool take(std::uint32_t, any_value&& in, stage_output& out) override {
    const auto now = within_ns_ > 0 ? out.now_ns() : 0;
    if (now >= leaves_at_ && !as_they_come_) {
      const auto at_hand = out.origin();
      leave(out);
      out.set_origin(at_hand);
    }
    if (kept_.empty()) {
      origin_ = out.origin();
      if (within_ns_ > 0) leaves_at_ = now + within_ns_;
      if (as_they_come_) leaves_at_ = 0;
    }
    kept_.push_back(std::move(in));
    if (kept_.size() >= count_) leave(out);
    return false;
  }
  bool end(std::uint32_t, stage_output& out) override {
    if (!kept_.empty()) leave(out);
    return false;
  }
  bool on_time(std::int64_t, stage_output& out) override {
    if (!kept_.empty()) leave(out);
    return false;
  }
  std::int64_t wakes_at() const override { return leaves_at_; }
  result<tensor> keep(const item_types& types) override {
    return written(kept_, origin_, types.front());
  }
  // What waits has waited long: it leaves with the next item, or when its time has come anew.
  result<void> reopen(const tensor& kept, const item_types& types) override {
    const bool is_right = held_again(kept, types.front(), kept_, origin_) &&
                          kept_.size() < std::max<std::uint64_t>(1, count_);
    if ((within_ns_ > 0 || as_they_come_) && !kept_.empty()) leaves_at_ = 0;
    return damaged_unless(is_right);
  }

 private:
  void leave(stage_output& out) {
    leaves_at_ = never_ns;
    out.set_origin(std::move(origin_));
    out.put_last(0, pack_(kept_));
    kept_.clear();
  }
  std::uint64_t count_;
  std::int64_t within_ns_, leaves_at_ = never_ns;
  bool as_they_come_;
  value_pack pack_;
  std::vector<any_value> kept_;
  item_origin origin_;
};

class window_stage final : public stage {
 public:
  window_stage(std::uint64_t count, std::uint64_t step, value_pack pack)
      : count_(count), step_(step), until_(count), pack_(std::move(pack)) {}

  bool take(std::uint32_t, any_value&& in, stage_output& out) override {
    kept_.push_back(std::move(in));
    if (kept_.size() > count_) kept_.pop_front();
    if (--until_ > 0) return false;
    until_ = step_;
    std::vector<any_value> all;
    for (const auto& v : kept_) all.push_back(v.copy());
    out.put_last(0, pack_(all));
    return false;
  }
  result<tensor> keep(const item_types& types) override {
    const auto held = written(kept_, {}, types.front());
    return saved_by([&](byte_writer& w) { write_tensor(w, held), w.number(until_); });
  }
  result<void> reopen(const tensor& kept, const item_types& types) override {
    tensor held;
    item_origin any;
    const bool is_right = load_from(kept, [&](byte_reader& r) {
      held = read_tensor(r);
      until_ = r.number<std::uint64_t>();
    });
    return damaged_unless(is_right && until_ > 0 && held_again(held, types.front(), kept_, any) &&
                          kept_.size() <= count_);
  }

 private:
  std::uint64_t count_, step_, until_;
  value_pack pack_;
  std::deque<any_value> kept_;
};

class time_window_stage final : public stage {
 public:
  time_window_stage(std::int64_t every_ns, value_pack pack)
      : every_ns_(every_ns), pack_(std::move(pack)) {}

  bool take(std::uint32_t, any_value&& in, stage_output& out) override {
    const auto now = out.now_ns();
    if (now >= ends_at_ && !kept_.empty()) leave(out);
    if (kept_.empty()) {
      ends_at_ = now - now % every_ns_ + every_ns_;
      origin_ = out.origin();
    }
    kept_.push_back(std::move(in));
    return false;
  }
  bool end(std::uint32_t, stage_output& out) override {
    if (!kept_.empty()) leave(out);
    return false;
  }
  bool on_time(std::int64_t, stage_output& out) override {
    if (!kept_.empty()) leave(out);
    return false;
  }
  std::int64_t wakes_at() const override { return kept_.empty() ? never_ns : ends_at_; }
  result<tensor> keep(const item_types& types) override {
    return written(kept_, origin_, types.front());
  }
  // Its window is over: the clock may be another one.
  result<void> reopen(const tensor& kept, const item_types& types) override {
    return damaged_unless(held_again(kept, types.front(), kept_, origin_));
  }

 private:
  void leave(stage_output& out) {
    const auto at_hand = out.origin();
    out.set_origin(std::move(origin_));
    out.put(0, pack_(kept_));
    out.set_origin(at_hand);
    kept_.clear();
  }
  std::int64_t every_ns_, ends_at_ = 0;
  value_pack pack_;
  std::vector<any_value> kept_;
  item_origin origin_;
};

// Takes whether there is room or not; what it keeps goes on when there is, which is when the
// consumer has taken the one item that its edge holds.
class drop_oldest_stage final : public stage {
 public:
  explicit drop_oldest_stage(std::uint64_t count) : count_(count) {}

  bool take(std::uint32_t, any_value&& in, stage_output& out) override {
    kept_.push_back({std::move(in), out.origin()});
    if (kept_.size() > count_) {
      kept_.pop_front();
      out.count_dropped(1);
    }
    return true;
  }
  bool go_on(stage_output& out) override {
    if (kept_.empty()) return false;
    auto it = std::move(kept_.front());
    kept_.pop_front();
    out.put_item(0, std::move(it));
    return !kept_.empty();
  }
  bool end(std::uint32_t, stage_output&) override { return !kept_.empty(); }

 private:
  std::uint64_t count_;
  std::deque<flow_item> kept_;
};

class first_stage final : public stage {
 public:
  explicit first_stage(std::uint64_t count) : left_(count) {}
  bool take(std::uint32_t, any_value&& in, stage_output& out) override {
    if (left_ == 0) return false;
    --left_;
    out.put_last(0, std::move(in));
    return false;
  }
  bool is_over() const override { return left_ == 0; }
  std::optional<tensor> save() const override {
    return saved_by([&](byte_writer& w) { w.number(left_); });
  }
  bool load(const tensor& saved) override {
    return load_from(saved, [&](byte_reader& r) { left_ = r.number<std::uint64_t>(); });
  }

 private:
  std::uint64_t left_;
};

}  // namespace

std::unique_ptr<stage> make_merge(std::uint32_t inputs, std::uint32_t loop, std::uint32_t feedback,
                                  std::uint64_t credit) {
  return std::make_unique<merge_stage>(inputs, loop, feedback, credit);
}
std::unique_ptr<stage> make_zip(std::uint32_t inputs, value_pack pack) {
  return std::make_unique<zip_stage>(inputs, std::move(pack));
}
std::unique_ptr<stage> make_pass() { return std::make_unique<pass_stage>(); }
std::unique_ptr<stage> make_deal(std::function<std::uint64_t(any_value&)> hash,
                                 std::shared_ptr<const replica_control> control) {
  return std::make_unique<deal_stage>(std::move(hash), std::move(control));
}
std::unique_ptr<stage> make_gather(std::uint32_t inputs, bool keeps_order) {
  return std::make_unique<gather_stage>(inputs, keeps_order);
}
std::unique_ptr<stage> make_batch(std::uint64_t count, std::int64_t within_ns, bool as_they_come,
                                  value_pack pack) {
  return std::make_unique<batch_stage>(count, within_ns, as_they_come, std::move(pack));
}
std::unique_ptr<stage> make_window(std::uint64_t count, std::uint64_t step, value_pack pack) {
  return std::make_unique<window_stage>(count, step, std::move(pack));
}
std::unique_ptr<stage> make_time_window(std::int64_t every_ns, value_pack pack) {
  return std::make_unique<time_window_stage>(every_ns, std::move(pack));
}
std::unique_ptr<stage> make_drop_oldest(std::uint64_t count) {
  return std::make_unique<drop_oldest_stage>(count);
}
std::unique_ptr<stage> make_first(std::uint64_t count) {
  return std::make_unique<first_stage>(count);
}

}  // namespace troupe
