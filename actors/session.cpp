#include "actors/session.hpp"

#include "actors/job.hpp"
#include "actors/process.hpp"
#include "actors/tell.hpp"
#include "runtime/loop_rules.hpp"
#include "runtime/op_library.hpp"
#include "runtime/placement.hpp"

#include <caf/actor_system.hpp>
#include <caf/scoped_actor.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <deque>
#include <map>

namespace troupe {

namespace {

training_totals to_public(const job_totals& t) {
  training_totals out;
  for (const auto& w : t.workers) out.workers.push_back({w.fed, w.applied, w.dropped, w.in_flight});
  out.actors = t.actors;
  out.op_actors = t.op_actors;
  out.data_messages = t.data_messages;
  out.recoveries = t.recoveries;
  out.redone = t.redone;
  out.checkpoints = t.checkpoints;
  out.checkpoints_missing = t.checkpoints_missing;
  return out;
}

// What both kinds of job share: the program's mailbox, and the job that it hears of.
class job_client {
 public:
  explicit job_client(process& p) : process_(p), self_(p.system()) {}

  caf::actor mailbox() { return caf::actor_cast<caf::actor>(self_); }

  void stop(const std::string& reason) {
    if (!is_over_) tell(nullptr, process_.node(), stop_own_job{mailbox(), reason});
  }

 protected:
  process& process_;
  caf::scoped_actor self_;
  std::shared_ptr<const part_handles> handles_;
  bool is_over_ = false;
};

class training_impl final : public training, private job_client {
 public:
  training_impl(process& p, std::shared_ptr<const job_request> request, std::vector<std::string> notes) : job_client(p), notes_(std::move(notes)) {
    tell(nullptr, process_.node(), run_job{std::move(request), mailbox()});
  }
  ~training_impl() override {
    handles_.reset();
    if (!is_over_) {
      stop("the program has given it up");
      while (next(std::chrono::hours(24))) {
      }
    }
  }

  void stop(const std::string& reason) override { job_client::stop(reason); }

  std::optional<training_event> next(std::chrono::milliseconds timeout) override {
    using kind = training_event::kind;
    if (is_over_) return std::nullopt;
    training_event e;
    if (!notes_.empty()) {
      e.type = kind::note;
      e.text = std::move(notes_.front());
      notes_.erase(notes_.begin());
      return e;
    }
    self_->receive(
        [&](job_started&) { e.type = kind::started; },
        [&](const job_progress& m) {
          e.type = kind::loss;
          e.step = m.step;
          e.worker = m.worker;
          e.loss = m.loss;
        },
        [&](job_variables& m) {
          e.type = kind::variables;
          e.item = m.item;
          e.variables = std::move(m.values);
        },
        [&](worker_lost& m) {
          e.type = kind::worker_lost;
          e.text = std::move(m.text);
        },
        [&](job_recovering& m) {
          e.type = m.has_resumed ? kind::resumed : kind::recovering;
          e.step = m.step;
          e.text = std::move(m.text);
        },
        [&](job_note& m) {
          e.type = kind::note;
          e.text = std::move(m.text);
        },
        [&](const job_finished& m) {
          e.type = kind::finished;
          e.totals = to_public(m.totals);
          is_over_ = true;
        },
        [&](job_failed& m) {
          e.type = kind::failed;
          e.text = std::move(m.line);
          e.totals = to_public(m.totals);
          is_over_ = true;
        },
        caf::after(timeout) >> [&] {});
    after_message();
    return e;
  }

 private:
  std::vector<std::string> notes_;  // from before it started
};

class stepper_impl final : public stepper, private job_client {
 public:
  stepper_impl(process& p, std::shared_ptr<const job_request> request) : job_client(p), request_(std::move(request)) {
    const auto& actors = request_->job_plan.actors;
    for (std::uint32_t i = 0; i < actors.size(); ++i) {
      if (actors[i].kind == actor_kind::feed) feeds_.emplace(actors[i].name, feed_state{i, feed_room, 0});
      if (actors[i].kind == actor_kind::fetch) fetch_ = i;
      if (actors[i].kind == actor_kind::op && actors[i].ops.front().type == loop_condition_op) loop_conditions_.push_back(i);
    }
    tell(nullptr, process_.node(), run_job{request_, mailbox()});
    while (!handles_ && !is_over_) receive();
  }
  ~stepper_impl() override {
    handles_.reset();
    stop("the program has given it up");
    while (!is_over_) receive();
  }

  bool has_failed() const { return is_over_; }
  error failure() const { return {error_code::failed, failure_}; }

  result<void> feed(std::string_view name, tensor value) override {
    auto to = find(name, value);
    if (!to) return to.error();
    while ((*to)->room == 0 && !is_over_) {
      // This thread is the only one that could fetch.
      if (receive(ready_.empty() ? std::chrono::hours(24) : full_wait)) continue;
      return error(error_code::timed_out, fmt::format("input '{}' has had no room for {} s, and the values of {} steps wait to be fetched: fetch first",
                                                      name, full_wait.count(), ready_.size()));
    }
    if (is_over_) return failure();
    put(**to, std::move(value));
    return {};
  }

  result<std::vector<tensor>> fetch(std::chrono::milliseconds deadline) override {
    for (const auto& [name, f] : feeds_)
      if (f.fed <= fetched_ && !is_over_)
        return error(error_code::usage, fmt::format("step {} is fetched, and input '{}' was fed for {} steps: feed it first", fetched_, name, f.fed));
    if (!receive_until([&] { return !ready_.empty(); }, deadline)) return late(deadline, "has not ended");
    if (ready_.empty()) return failure();
    ++fetched_;
    auto values = std::move(ready_.front());
    ready_.pop_front();
    tell(nullptr, handles_->actors[fetch_], credit{0, 1});
    return values;
  }

  result<void> cancel() override {
    if (is_over_) return failure();
    for (const auto& [name, f] : feeds_)
      if (f.fed <= fetched_) return error(error_code::usage, fmt::format("no step is to be cancelled: input '{}' was fed for {} steps, and as many were fetched or cancelled", name, f.fed));
    for (const auto c : loop_conditions_) tell(nullptr, handles_->actors[c], cancel_step{fetched_});
    ++fetched_;
    if (ready_.empty()) {
      ++unwanted_;
      return {};
    }
    ready_.pop_front();
    tell(nullptr, handles_->actors[fetch_], credit{0, 1});
    return {};
  }

  result<std::vector<tensor>> step(std::span<const std::pair<std::string_view, tensor>> feeds, std::chrono::milliseconds deadline) override {
    const auto end = std::chrono::steady_clock::now() + deadline;
    std::vector<feed_state*> to;
    for (const auto& [name, value] : feeds) {
      auto at = find(name, value);
      if (!at) return at.error();
      if (std::find(to.begin(), to.end(), *at) != to.end()) return error(error_code::usage, fmt::format("input '{}' is given twice for one step", name));
      to.push_back(*at);
    }
    for (auto& [name, f] : feeds_) {
      if (f.fed > fetched_) return error(error_code::usage, fmt::format("input '{}' was fed ahead: fetch that step first", name));
      if (std::find(to.begin(), to.end(), &f) == to.end()) return error(error_code::usage, fmt::format("input '{}' is not fed", name));
    }
    if (!receive_until([&] { return std::all_of(to.begin(), to.end(), [](const auto* f) { return f->room > 0; }); }, deadline)) return late(deadline, "was not begun: steps before it have not ended");
    if (is_over_) return failure();
    for (std::size_t i = 0; i < feeds.size(); ++i) put(*to[i], feeds[i].second);
    const auto left = std::max(std::chrono::milliseconds(0), std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now()));
    auto values = fetch(left);
    if (values || values.error().code() != error_code::timed_out) return values;
    auto why = late(deadline, "has not ended, and was cancelled");
    if (auto cancelled = cancel(); !cancelled) return cancelled.error();
    return why;
  }

 private:
  static constexpr std::uint32_t feed_room = 4;  // as many as a feed actor holds
  static constexpr std::chrono::seconds full_wait{10};  // longer than any op should take

  struct feed_state {
    std::uint32_t actor = 0;
    std::uint32_t room = 0;
    std::uint64_t fed = 0;
  };

  result<feed_state*> find(std::string_view name, const tensor& value) {
    auto at = feeds_.find(name);
    if (at == feeds_.end()) return error(error_code::usage, fmt::format("the graph has no input '{}'{}", name, known_inputs()));
    if (!value) return error(error_code::usage, fmt::format("input '{}' was given no tensor", name));
    const auto& spec = request_->job_plan.actors[at->second.actor].output_specs.at(0);
    if (value.type() != spec.type || !spec.shape.admits(value.shape()))
      return error(error_code::usage, fmt::format("input '{}' takes {}, and was given {}", name, to_string(spec), to_string(value.spec())));
    return &at->second;
  }

  std::string known_inputs() const {
    constexpr std::size_t names_max = 8;
    if (feeds_.empty()) return ": what is fetched needs none";
    std::string text;
    std::size_t n = 0;
    for (const auto& [name, f] : feeds_)
      if (n++ < names_max) text += (text.empty() ? ": what is fetched needs '" : ", '") + name + "'";
    return n > names_max ? fmt::format("{} and {} more", text, n - names_max) : text;
  }

  void put(feed_state& to, tensor value) {
    --to.room;
    ++to.fed;
    tell(nullptr, handles_->actors[to.actor], tensor_ready{0, {}, std::move(value)});
  }

  error late(std::chrono::milliseconds deadline, std::string_view what) const {
    return {error_code::timed_out, fmt::format("step {} {}, after {} ms", fetched_, what, deadline.count())};
  }

  // Takes messages until `is_enough`, or the job is over. False: the time is.
  template <class Condition>
  bool receive_until(Condition&& is_enough, std::chrono::milliseconds deadline) {
    const auto end = std::chrono::steady_clock::now() + deadline;
    while (!is_enough() && !is_over_) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
      if (left.count() <= 0) return false;
      receive(left);
    }
    return true;
  }

  // False: no message came within the time.
  bool receive(std::chrono::milliseconds timeout = std::chrono::hours(24)) {
    bool has_come = true;
    self_->receive(
        [&](job_started& m) { handles_ = std::move(m.handles); },
        [&](fetched& m) {
          if (unwanted_ == 0) return ready_.push_back(std::move(m.values));
          --unwanted_;
          if (!handles_) return;  // the graph is being ended
          tell(nullptr, handles_->actors[fetch_], credit{0, 1});
        },
        [&](const feed_ready& m) {
          for (auto& [name, f] : feeds_)
            if (f.actor == m.feed) ++f.room;
        },
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
  std::map<std::string, feed_state, std::less<>> feeds_;
  std::vector<std::uint32_t> loop_conditions_;
  std::uint32_t fetch_ = 0;
  std::uint64_t fetched_ = 0;   // steps, and cancelled ones
  std::uint64_t unwanted_ = 0;  // cancelled steps whose values have not come
  std::deque<std::vector<tensor>> ready_;
  std::string failure_;
};

class session_impl final : public session {
 public:
  explicit session_impl(std::unique_ptr<process> p, bool is_alone) : process_(std::move(p)), is_alone_(is_alone) {}

  const op_table& ops() const override { return process_->ops(); }
  std::unique_ptr<troupe::eager> eager(std::uint64_t seed) override {
    return std::make_unique<troupe::eager>(process_->ops(), process_->kernels(), process_->device(), seed);
  }

  std::vector<member_info> nodes() override { return usable(look()); }

  result<std::unique_ptr<training>> train(graph& g, value loss, const training_options& o) override {
    const auto view = look();
    auto there = usable(view);
    if (!is_alone_ && there.empty()) return error(error_code::unreachable, "the cluster has no node that takes work: start troupe-node");
    const auto able = with_libraries(std::move(there), libraries_of(g));
    const auto& nodes = able.nodes;
    if (!is_alone_ && nodes.empty()) return error(error_code::usage, fmt::format("no node can take the work: {}", some_of(able.left_out)));
    const bool may_share = o.on_failure != failure_policy::stop;
    if (o.replicas > 1) return error(error_code::usage, fmt::format("{} replicas: a variable has 0 or 1", o.replicas));
    if (o.replicas > 0 && (is_alone_ || o.on_failure != failure_policy::resume))
      return error(error_code::usage, "replicas are for jobs of a cluster that go on after failures (failure_policy::resume)");
    if (auto ok = check(make_spec(o, {})); !ok) return ok.error();
    auto roles = first_roles(nodes, view.self.id, o.workers, o.shards, may_share, o.replicas > 0);
    if (!roles && !able.left_out.empty()) return error(roles.error().code(), fmt::format("{}; left out: {}", roles.error().text(), some_of(able.left_out)));
    if (!roles) return roles.error();
    auto program = compile_program(g, loss, make_spec(o, place_roles(*roles, view.self.id)), o.compile);
    if (!program) return program.error();
    if (auto fed = check_unfed(*program, place_roles(*roles, view.self.id)); !fed) return fed.error();
    auto request = std::make_shared<job_request>();
    request->program = std::move(*program);
    request->roles = std::move(*roles);
    request->on_failure = o.on_failure;
    request->limits = o.limits;
    std::vector<std::string> notes;
    for (const auto& lack : able.left_out) notes.push_back("gets no work: " + lack);
    if (auto ready = open_checkpoints(o.checkpoints, view.self, *request, notes); !ready) return ready.error();
    return std::unique_ptr<training>(std::make_unique<training_impl>(*process_, std::move(request), std::move(notes)));
  }

  result<std::unique_ptr<stepper>> compile(graph& g, std::span<const value> fetches, const compile_options& o) override {
    auto compiled = compile_steps(g, fetches, o);
    if (!compiled) return compiled.error();
    auto request = std::make_shared<job_request>(job_request{std::move(*compiled), {look().self.id}, true});
    auto s = std::make_unique<stepper_impl>(*process_, std::move(request));
    if (s->has_failed()) return s->failure();
    return std::unique_ptr<stepper>(std::move(s));
  }

  // Why members would not have this process.
  std::string denied() { return look().denied; }

  // Waits until every node that the cluster knows is linked to this process; at the end one is enough.
  bool wait_for_nodes(std::chrono::milliseconds timeout, const std::function<bool()>& is_cancelled) {
    const auto end = std::chrono::steady_clock::now() + timeout;
    caf::scoped_actor pause{process_->system()};
    for (;;) {
      const auto view = look();
      const auto linked = usable(view).size();
      if (linked > 0 && linked == nodes_in_order(view.members).size()) return true;
      if (std::chrono::steady_clock::now() > end) return linked > 0;
      if (is_cancelled && is_cancelled()) return false;
      pause->receive(caf::after(std::chrono::milliseconds(20)) >> [] {});
    }
  }

 private:
  // Nodes that lack one get no work, but for what gradients alone need, which the nodes themselves look at.
  static std::vector<planned_library> libraries_of(const graph& g) {
    std::vector<std::string_view> types;
    for (const auto& n : g.nodes()) types.push_back(n.type);
    return troupe::libraries_of(types, g.ops());
  }

  static std::string some_of(const std::vector<std::string>& lines) {
    constexpr std::size_t lines_max = 4;
    const auto shown = std::span(lines).first(std::min(lines.size(), lines_max));
    return fmt::format("{}{}", fmt::join(shown, "; "), lines.size() > lines_max ? fmt::format("; and {} more", lines.size() - lines_max) : "");
  }

  static training_spec make_spec(const training_options& o, const task_map& where) {
    auto spec = spec_of(o);
    spec.tasks = static_cast<std::uint32_t>(where.task_names.size());
    spec.task_names = where.task_names;
    spec.worker_task = where.worker_task;
    spec.shard_task = where.shard_task;
    spec.client_task = where.client_task;
    return spec;
  }

  static result<void> check_unfed(const training_program& program, const task_map& where) {
    const auto placed = program.place(where, {});
    if (!placed) return placed.error();
    for (const auto& a : placed->actors)
      if (a.kind == actor_kind::feed)
        return error(error_code::usage, fmt::format("the loss depends on input '{}', which nobody feeds in training: read samples with idx_batch or text_batch", a.name)).at(a.source.file, a.source.line);
    return {};
  }

  // The job's folder is ours from here to the job's end: locked, and its next epoch claimed.
  result<void> open_checkpoints(const checkpoint_options& o, const member_info& self, job_request& request, std::vector<std::string>& notes) {
    if (o.folder.empty()) return {};
    auto opened = open_job_folder(process_->files(), o, *request.program,
                                  {self.name, self.host, self.pid, static_cast<std::uint64_t>(std::time(nullptr))});
    if (!opened) return opened.error();
    take_over(std::move(*opened), o, request, notes);
    return {};
  }

  view_changed look() {
    caf::scoped_actor self{process_->system()};
    view_changed view;
    tell(nullptr, process_->node(), get_view{caf::actor_cast<caf::actor>(self)});
    self->receive([&](view_changed& v) { view = std::move(v); });
    after_message();
    return view;
  }
  // A job can be placed on those that a link reaches.
  std::vector<member_info> usable(const view_changed& view) const {
    auto nodes = is_alone_ ? std::vector<member_info>{} : nodes_in_order(view.members);
    std::erase_if(nodes, [&](const auto& n) { return !view.linked.contains(n.id); });
    return nodes;
  }

  std::unique_ptr<process> process_;
  bool is_alone_;
};

}  // namespace

training_spec spec_of(const training_options& o) {
  training_spec spec;
  spec.workers = o.workers;
  spec.shards = o.shards;
  spec.update = o.update;
  spec.optimizer = o.optimizer;
  spec.schedule = o.schedule;
  spec.clip_global_norm = o.clip_global_norm;
  spec.seed = o.seed;
  spec.steps = o.steps;
  spec.observe_every = o.observe_every;
  spec.is_recoverable = o.on_failure != failure_policy::stop;
  spec.has_replicas = o.replicas > 0;
  spec.has_cuts = !o.checkpoints.folder.empty();
  spec.cut_every = o.checkpoints.every_steps;
  return spec;
}

result<std::unique_ptr<session>> session::open(const session_options& o) {
  process_options p;
  p.cluster = o.cluster;
  p.kind = member_kind::client;
  p.join = o.join;
  p.token_file = o.token_file;
  p.streams = o.threads;
  p.libraries = o.libraries;
  p.load = o.load;
  auto started = process::start(p);
  if (!started) return started.error();
  auto s = std::make_unique<session_impl>(std::move(*started), o.cluster.empty());
  if (!o.cluster.empty() && !s->wait_for_nodes(o.timeout, o.is_cancelled)) {
    if (o.is_cancelled && o.is_cancelled()) return error(error_code::failed, "interrupted while it looked for the cluster");
    if (const auto why = s->denied(); !why.empty())
      return error(error_code::denied, fmt::format("no node of cluster '{}' lets this program in: {}", o.cluster, why));
    return error(error_code::unreachable, fmt::format("no node of cluster '{}' was found within {} ms: start one with "
                                                      "troupe-node --cluster {}, or name one with --join HOST:PORT", o.cluster, o.timeout.count(), o.cluster));
  }
  return std::unique_ptr<session>(std::move(s));
}

}  // namespace troupe
