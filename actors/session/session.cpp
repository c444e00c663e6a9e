#include "troupe/actors/session/session.hpp"

#include "troupe/actors/session/job_client.hpp"
#include "troupe/actors/session/session_process.hpp"
#include "troupe/runtime/compile/graph_file.hpp"
#include "troupe/runtime/graph/op_library.hpp"
#include "troupe/runtime/jobs/placement.hpp"
#include "troupe/runtime/plan/device_name.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

namespace troupe {

namespace {

// What a session sees of its process and its cluster. Runners have a copy: they may compile in
// another thread while the session ends.
class surroundings_seen {
 public:
  surroundings_seen(std::shared_ptr<process> p, bool is_alone, std::vector<std::string> roles)
      : process_(std::move(p)), is_alone_(is_alone), roles_(std::move(roles)) {}

  // Empty where the process has ended meanwhile.
  view_changed look() const {
    const mailbox self(process_->system());
    view_changed view;
    self->monitor(process_->node());
    tell(nullptr, process_->node(), get_view{self.handle()});
    self->receive([&](view_changed& v) { view = std::move(v); }, [](const caf::down_msg&) {});
    self->demonitor(process_->node());
    after_message();
    return view;
  }
  // A job can be placed on those that a link reaches.
  std::vector<member_info> usable(const view_changed& view) const {
    auto nodes = is_alone_ ? std::vector<member_info>{} : nodes_in_order(view.members);
    std::erase_if(nodes, [&](const auto& n) { return !view.linked.contains(n.id); });
    return nodes;
  }
  // What the planner spreads ops by: the streams here, and what ops took before.
  compile_options with_times(compile_options o, const view_changed& view) const {
    if (o.streams == 0) o.streams = process_->streams();
    if (!o.times) o.times = view.times;
    return o;
  }

  // And where a graph that is run by feeds and fetches may stand. A node that lacks a library of
  // its part says so.
  compile_options with_nodes(const compile_options& o) const {
    const auto view = look();
    auto out = with_times(o, view);
    out.where = std::make_shared<const task_map>(
        tasks_of_nodes(usable(view), view.self, out.streams, roles_));
    return out;
  }

 private:
  std::shared_ptr<process> process_;
  bool is_alone_;
  std::vector<std::string> roles_;
};

class session_impl final : public session {
 public:
  session_impl(std::unique_ptr<process> p, const session_options& o)
      : process_(std::move(p)),
        is_alone_(o.cluster.empty()),
        seen_(process_, is_alone_, o.roles),
        op_times_file_(o.op_times_file),
        timeout_(o.timeout),
        looks_until_(o.timeout),
        is_cancelled_(o.is_cancelled) {
    if (op_times_file_.empty()) return;
    // Whatever is wrong with the file, ops are guessed anew.
    if (const auto bytes = process_->files().read(op_times_file_, op_times_bytes_max))
      tell(nullptr, process_->node(),
           set_times{std::make_shared<const op_times>(
               op_times::parse({reinterpret_cast<const char*>(bytes->data()), bytes->size()}))});
  }
  ~session_impl() override {
    if (process_->is_forked()) return;
    if (!op_times_file_.empty()) keep_op_times();
    // What it gave out and the program still has keeps the process; its jobs end here.
    process_->end("the session has ended");
  }

  void keep_op_times() {
    const auto view = seen_.look();
    if (!view.times || view.times->empty()) return;
    const auto text = view.times->text();
    const auto next = fmt::format("{}.new-{}", op_times_file_, view.self.pid);
    auto& files = process_->files();
    auto file = files.create(next, disk::create_mode::replace);
    if (!file || !(*file)->write(std::as_bytes(std::span(text))) || !(*file)->close()) return;
    (void)files.rename(next, op_times_file_);
  }

  process& own_process() const { return *process_; }
  const op_table& ops() const override { return process_->ops(); }
  bool is_alone() const noexcept override { return is_alone_; }
  std::unique_ptr<troupe::eager> eager(std::uint64_t seed) override {
    return std::make_unique<troupe::eager>(process_->ops(), process_->kernels(), process_->device(),
                                           seed);
  }

  std::vector<member_info> nodes() override {
    return process_->check_is_there() ? seen_.usable(seen_.look()) : std::vector<member_info>();
  }

  result<std::unique_ptr<training>> train(graph& g, value loss,
                                          const training_options& o) override {
    if (auto there = process_->check_is_there(); !there) return std::move(there.error());
    if (o.replicas > 1)
      return error(error_code::usage,
                   fmt::format("{} replicas: a variable has 0 or 1", o.replicas));
    if (o.replicas > 0 && (is_alone_ || o.on_failure != failure_policy::resume))
      return error(
          error_code::usage,
          "replicas are for jobs of a cluster that go on after failures (failure_policy::resume)");
    if (auto ok = check(make_spec(o, {})); !ok) return ok.error();
    if (auto ok = check_ends(o); !ok) return ok.error();
    std::vector<std::byte> saved;  // before any pass has seen it
    if (o.outlives_program) {
      auto bytes = encode_graph(g, {.name = o.compile.name,
                                    .loss = loss,
                                    .training = graph_training{spec_of(o), o.compile}});
      if (!bytes) return error(bytes.error()).while_doing("outlives_program");
      saved = std::move(*bytes);
    }
    auto found = find_roles(g, o, {});
    if (!found) return std::move(found.error());
    auto program =
        compile_program(g, loss, make_spec(o, place_roles(found->roles, found->view.self.id)),
                        seen_.with_times(o.compile, found->view));
    if (!program) return program.error();
    // Only now it is known what stands on devices.
    if (!is_alone_) found = find_roles(g, o, program->devices());
    if (!found) return std::move(found.error());
    const auto& [roles, view, able] = *found;
    const auto& nodes = able.nodes;
    auto where = place_roles(roles, view.self.id);
    add_nodes(where, [&](node_id n) {
      const auto at = std::ranges::find(nodes, n, &member_info::id);
      return at != nodes.end() ? &*at : n == view.self.id ? &view.self : nullptr;
    });
    if (auto ok = program->check_wishes(where); !ok)
      return with_left_out(ok.error(), able.left_out);
    if (auto fed = check_feeds(*program, o); !fed) return fed.error();
    auto request = std::make_shared<job_request>();
    request->program = std::move(*program);
    request->roles = roles;
    request->on_failure = o.on_failure;
    request->limits = o.limits;
    std::vector<std::string> notes;
    for (const auto& lack : able.left_out) notes.push_back("gets no work: " + lack);
    if (auto ready = open_checkpoints(o.checkpoints, view.self, *request, notes); !ready)
      return ready.error();
    if (o.outlives_program)
      request->recipe = std::make_shared<const std::vector<std::byte>>(
          encode(job_recipe{std::move(saved), request->on_failure, request->limits,
                            request->checkpoints, request->keep}));
    return make_training(*process_, std::move(request), std::move(notes), o.is_fed);
  }

  result<std::unique_ptr<training>> attach(const std::string& job,
                                           std::chrono::milliseconds timeout) override {
    if (auto there = process_->check_is_there(); !there) return std::move(there.error());
    if (is_alone_)
      return error(error_code::usage,
                   "this session is alone: jobs to attach to are in a cluster "
                   "(session_options::cluster)");
    return attach_training(*process_, job, timeout);
  }

  result<std::unique_ptr<stepper>> compile(graph& g, std::span<const value> fetches,
                                           const compile_options& o) override {
    if (auto there = process_->check_is_there(); !there) return std::move(there.error());
    auto compiled = compile_steps(g, fetches, seen_.with_nodes(o));
    if (!compiled) return compiled.error();
    return make_stepper(*process_, request_of(std::move(*compiled)));
  }

  std::unique_ptr<graph_runner> runner(const graph& g, const compile_options& o) override {
    return make_runner(*process_, g, [seen = seen_, o] { return seen.with_nodes(o); }, nullptr);
  }
  std::unique_ptr<graph_runner> runner(const graph& g, const variable_store& store,
                                       const compile_options& o) override {
    return make_runner(
        *process_, g, [seen = seen_, o] { return seen.with_nodes(o); }, store.core());
  }
  std::unique_ptr<variable_store> make_store() override { return make_variable_store(*process_); }

  // Why members would not have this process.
  std::string denied() { return seen_.look().denied; }

  // Waits until every node that the cluster knows is linked to this process; at the end one is
  // enough.
  bool wait_for_nodes(std::chrono::milliseconds timeout,
                      const std::function<bool()>& is_cancelled) {
    const deadline end(timeout);
    const mailbox pause(process_->system());
    for (;;) {
      const auto view = seen_.look();
      const auto linked = seen_.usable(view).size();
      if (linked > 0 && linked == nodes_in_order(view.members).size()) return true;
      if (end.is_over()) return linked > 0;
      if (is_cancelled && is_cancelled()) return false;
      pause->receive(caf::after(std::chrono::milliseconds(20)) >> [] {});
    }
  }

 private:
  // Nodes that lack one get no work, but for what gradients alone need, which the nodes themselves
  // look at.
  static std::vector<planned_library> libraries_of(const graph& g) {
    std::vector<std::string_view> types;
    for (const auto& n : g.nodes()) types.push_back(n.type);
    return troupe::libraries_of(types, g.ops());
  }

  struct found_roles {
    role_map roles;
    view_changed view;
    able_nodes able;
  };

  // Where a training begins; as long as there are too few nodes for it, more are waited for, as
  // open() waits for the first. Where nodes are there and cannot take it (they lack a library, or
  // take no trainings) it is told at once: that is a mistake, mostly.
  result<found_roles> find_roles(const graph& g, const training_options& o,
                                 const device_wishes& wishes) {
    const mailbox pause(process_->system());
    for (bool has_waited = false;; has_waited = true) {
      bool may_come = false;
      auto found = try_roles(g, o, wishes, may_come);
      if (found || is_alone_ || !may_come) return found;
      if (is_cancelled_ && is_cancelled_())
        return error(error_code::failed,
                     "interrupted while it looked for nodes: " + found.error().text());
      if (looks_until_.is_over())
        return has_waited ? error(found.error().code(),
                                  fmt::format("{} (more were looked for, {} ms in all)",
                                              found.error().text(), timeout_.count()))
                          : std::move(found.error());
      pause->receive(caf::after(std::chrono::milliseconds(20)) >> [] {});
    }
  }

  result<found_roles> try_roles(const graph& g, const training_options& o,
                                const device_wishes& wishes, bool& may_come) {
    auto view = seen_.look();
    auto there = seen_.usable(view);
    if (!is_alone_ && there.empty())
      return with_left_out(error(error_code::unreachable,
                                 "the cluster has no node that takes work: start troupe-node"),
                           not_reached(view));
    auto able = with_libraries(std::move(there), libraries_of(g));
    if (!is_alone_ && able.nodes.empty())
      return error(error_code::usage,
                   able.left_out.empty()
                       ? std::string("no node takes trainings: those of --job data run stages of "
                                     "pipelines alone; start troupe-node without it")
                       : fmt::format("no node can take the work: {}", some_of(able.left_out)));
    auto roles =
        first_roles(able.nodes, view.self.id, o.workers, o.shards,
                    o.on_failure != failure_policy::stop, o.replicas > 0, o.all_reduce, wishes);
    may_come = !roles && able.left_out.empty();
    if (!roles) {
      auto left_out = able.left_out;
      for (auto& line : not_reached(view)) left_out.push_back(std::move(line));
      return with_left_out(roles.error(), left_out);
    }
    return found_roles{std::move(*roles), std::move(view), std::move(able)};
  }

  static error with_left_out(const error& e, const std::vector<std::string>& left_out) {
    return left_out.empty()
               ? e
               : error(e.code(), fmt::format("{}; left out: {}", e.text(), some_of(left_out)));
  }

  // Nodes that the cluster has, or had until lately, and that no link leads to from here.
  std::vector<std::string> not_reached(const view_changed& view) const {
    std::vector<std::string> lines;
    if (is_alone_) return lines;
    for (const auto& m : view.members) {
      if (m.kind != member_kind::node || m.state == member_state::left ||
          view.linked.contains(m.id))
        continue;
      lines.push_back(fmt::format(
          "{} at {}, which this program does not reach{}", m.name,
          m.address.empty() ? "an unknown address" : m.address,
          m.reason.empty() ? "" : fmt::format(" ({}: {})", to_string(m.state), m.reason)));
    }
    return lines;
  }

  static std::string some_of(const std::vector<std::string>& lines) {
    constexpr std::size_t lines_max = 4;
    const auto shown = std::span(lines).first(std::min(lines.size(), lines_max));
    return fmt::format(
        "{}{}", fmt::join(shown, "; "),
        lines.size() > lines_max ? fmt::format("; and {} more", lines.size() - lines_max) : "");
  }

  static training_spec make_spec(const training_options& o, const task_map& where) {
    auto spec = spec_of(o);
    set_places(spec, where);
    return spec;
  }

  // What must be given for a training to end early, or to outlive its program.
  result<void> check_ends(const training_options& o) const {
    const auto usage = [](std::string text) { return error(error_code::usage, std::move(text)); };
    if (!o.outlives_program) return {};
    if (o.is_fed)
      return usage(
          "outlives_program: the program feeds this training, and nobody would without it: read "
          "its samples with idx_batch or text_batch");
    if (is_alone_)
      return usage(
          "outlives_program: this session is alone, and nobody could go on with the job: "
          "join a cluster (session_options::cluster)");
    if (o.on_failure != failure_policy::resume)
      return usage(
          "outlives_program: a job that goes on without its program is resumed after "
          "failures, too: set on_failure to failure_policy::resume");
    if (o.checkpoints.folder.empty())
      return usage(
          "outlives_program: what the job has learnt when it ends without a program is in "
          "its last checkpoint: set checkpoints.folder");
    return {};
  }

  static result<void> check_feeds(const training_program& program, const training_options& o) {
    const auto inputs = program.inputs();
    if (!inputs.empty() && !o.is_fed)
      return error(
                 error_code::usage,
                 fmt::format(
                     "the loss depends on input '{}', which nobody feeds: read samples with idx_batch or text_batch, or set training_options::is_fed and feed it",
                     inputs.front().first))
          .at(inputs.front().second.file, inputs.front().second.line);
    if (o.is_fed && inputs.empty())
      return error(error_code::usage,
                   "training_options::is_fed is set, and the loss depends on no input");
    return {};
  }

  // The job's folder is ours from here to the job's end: locked, and its next epoch claimed.
  result<void> open_checkpoints(const checkpoint_options& o, const member_info& self,
                                job_request& request, std::vector<std::string>& notes) {
    if (o.folder.empty()) return {};
    auto opened = open_job_folder(
        process_->files(), o, *request.program,
        {self.name, self.host, self.pid, static_cast<std::uint64_t>(std::time(nullptr))});
    if (!opened) return opened.error();
    take_over(std::move(*opened), o, request, notes);
    return {};
  }

  static constexpr std::uint64_t op_times_bytes_max = 8 << 20;

  std::shared_ptr<process> process_;
  bool is_alone_;
  surroundings_seen seen_;
  std::string op_times_file_;
  // For nodes, from the beginning.
  std::chrono::milliseconds timeout_;
  deadline looks_until_;
  std::function<bool()> is_cancelled_;
};

}  // namespace

process& process_of(session& s) { return static_cast<session_impl&>(s).own_process(); }

training_spec spec_of(const training_options& o) {
  training_spec spec;
  spec.workers = o.workers;
  spec.shards = o.shards;
  spec.update = o.update;
  spec.all_reduce = o.all_reduce;
  spec.optimizer = o.optimizer;
  spec.schedule = o.schedule;
  spec.clip_global_norm = o.clip_global_norm;
  spec.seed = o.seed;
  spec.steps = o.steps;
  spec.observe_every = o.observe_every;
  spec.is_recoverable = o.on_failure != failure_policy::stop || o.may_finish;
  spec.has_replicas = o.replicas > 0;
  spec.has_cuts = !o.checkpoints.folder.empty();
  spec.cut_every = o.checkpoints.every_steps;
  return spec;
}

result<std::unique_ptr<session>> session::open(const session_options& o) {
  for (const auto& role : o.roles)
    if (auto d = parse_device(role); !d || !d->job || !d->task || d->names_more_than_a_task())
      return error(
          error_code::usage,
          fmt::format("session_options::roles: '{}' is no role: write /job:NAME/task:N", role));
  if (!o.roles.empty() && !o.cluster.empty())
    return error(error_code::usage,
                 "session_options::roles are for a session alone: in a cluster nodes have them");
  process_options p;
  p.cluster = o.cluster;
  p.kind = member_kind::client;
  p.join = o.join;
  p.token_file = o.token_file;
  p.protect = o.protect;
  // No lease is as long as the longest that can be counted in nanoseconds.
  p.lease = std::clamp<std::chrono::milliseconds>(o.lease, -wait_max, wait_max);
  p.streams = o.threads;
  p.gpus = o.gpus;
  p.gpu_memory_bytes = o.gpu_memory_bytes;
  p.gpu_backends = o.gpu_backends;
  p.libraries = o.libraries;
  p.load = o.load;
  auto started = process::start(p);
  if (!started) return started.error();
  auto s = std::make_unique<session_impl>(std::move(*started), o);
  if (!o.cluster.empty() && !s->wait_for_nodes(o.timeout, o.is_cancelled)) {
    if (o.is_cancelled && o.is_cancelled())
      return error(error_code::failed, "interrupted while it looked for the cluster");
    if (const auto why = s->denied(); !why.empty())
      return error(error_code::denied,
                   fmt::format("no node of cluster '{}' lets this program in: {}", o.cluster, why));
    return error(error_code::unreachable,
                 fmt::format("no node of cluster '{}' was found within {} ms: start one with "
                             "troupe-node --cluster {}, or name one with --join HOST:PORT",
                             o.cluster, o.timeout.count(), o.cluster));
  }
  return std::unique_ptr<session>(std::move(s));
}

}  // namespace troupe
