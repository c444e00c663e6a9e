// Gradients are added up by collectives, and every node with workers has a copy of every variable:
// what crosses between nodes is one all-reduce a bucket.
//
// A shard becomes a first copy, which the program observes and checkpoints save, and one more on
// every other task that has workers (as replicas are, but for who sends them the sums). Gradients
// are put into buckets in the order in which they are made, so that a bucket leaves while those of
// the layers below it are still computed; a large one is a bucket of its own and is never copied.
//
// A variable that is on a device has its copies on the devices of that number of all tasks, and its
// gradients never leave them: one rank on each of these devices takes all of its buckets, in this
// order, with one communicator. Where another task than those of workers has the variable, it comes
// to the host.
//
// Of one task there is nothing to exchange: the shard adds up, in the same order and with the same
// bits.

#include "troupe/runtime/compile/passes/passes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace troupe::passes {
namespace {

// From here on a gradient is a bucket of its own, and so many bytes close a bucket of small ones,
// which are copied together. Not tuned.
constexpr std::size_t bucket_bytes = 256 * 1024;
// On devices, where an operation costs as much as many bytes. Not tuned.
constexpr std::size_t device_bucket_bytes = std::size_t{4} << 20;
// What devices gather of each part at once, so that memory for all of them is bounded: 16 MiB.
constexpr std::int64_t device_piece_elements = std::int64_t{4} << 20;
// 256 KiB: what is added up while it is in the second-level cache, and small enough for many to be
// on their way.
constexpr std::int64_t piece_elements = 64 * 1024;

struct exchanged {
  std::uint32_t shard = 0;
  std::vector<port_ref> gradients;  // by worker
  // Task and actor, the first copy's included.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> copies;
};

class reducer {
 public:
  reducer(draft d, const epoch_start& start, const places& where, const compile_options& options,
          pass_report* report)
      : d_(std::move(d)),
        start_(start),
        where_(where),
        options_(options),
        report_(report),
        tasks_(where.worker_task.begin(), where.worker_task.end()) {}

  draft run() {
    if (tasks_.size() < 2) return std::move(d_);
    for (auto& a : d_.actors)
      if (a.planned.kind == actor_kind::shard) settle_on_host(a);
    const auto consumers = consumers_of_shards();
    std::vector<exchanged> all;
    for (std::uint32_t i = 0; i < consumers.size(); ++i)
      if (d_.actors[i].planned.kind == actor_kind::shard) all.push_back(copy(i, consumers[i]));
    const auto made = [](const exchanged& e) { return e.gradients.front().actor; };
    std::stable_sort(all.begin(), all.end(),
                     [&](const auto& a, const auto& b) { return made(a) < made(b); });
    std::map<std::uint32_t, std::vector<const exchanged*>> by_device;  // stream
    std::vector<const exchanged*> on_host;
    for (const auto& e : all) {
      const auto stream = d_.actors[e.shard].planned.stream;
      (is_device_stream(stream) ? by_device[stream] : on_host).push_back(&e);
    }
    for (const auto& bucket : buckets(on_host, bucket_bytes)) exchange(bucket);
    for (const auto& [stream, on_device] : by_device)
      exchange_on_devices(stream, buckets(on_device, device_bucket_bytes));
    return std::move(d_);
  }

 private:
  using bucket = std::vector<const exchanged*>;

  // In the order in which the last gradient of each is made.
  std::vector<bucket> buckets(std::span<const exchanged* const> all,
                              std::size_t usual_bytes) const {
    const auto limit = options_.bucket_bytes != 0 ? options_.bucket_bytes : usual_bytes;
    std::vector<bucket> out;
    bucket open;
    std::size_t bytes = 0;
    for (const auto* e : all) {
      const auto size = spec_of(*e).size_bytes();
      const bool is_alone = size >= limit || !tasks_.contains(d_.actors[e->shard].planned.task);
      if (is_alone) {
        out.push_back({e});
        continue;
      }
      open.push_back(e);
      if ((bytes += size) < limit) continue;
      out.push_back(std::exchange(open, {}));
      bytes = 0;
    }
    if (!open.empty()) out.push_back(std::move(open));
    return out;
  }

  // What cannot be added up on devices.
  void settle_on_host(draft_actor& shard) {
    auto& p = shard.planned;
    if (!is_device_stream(p.stream)) return;
    const bool has_workers = tasks_.contains(p.task);
    if (options_.device_collectives && has_workers) return;
    if (report_ != nullptr)
      report_->add(p.shard.variable, p.source, [&] {
        return has_workers
                   ? fmt::format(
                         "is held on the host, not on {}: the options ask for gradients to be "
                         "summed over links, not by devices",
                         stream_text(p.stream))
                   : fmt::format(
                         "is held on the host, not on {}: {}, which holds it, has no worker, and "
                         "devices can only sum gradients of workers' devices",
                         stream_text(p.stream), where_.task_names[p.task]);
      });
    p.stream = 0;
    shard.device.clear();
  }

  const tensor_spec& spec_of(const exchanged& e) const {
    return d_.actors[e.shard].planned.shard.spec;
  }

  std::vector<std::vector<port_ref>> consumers_of_shards() const {
    std::vector<std::vector<port_ref>> consumers(d_.actors.size());
    for (std::uint32_t c = 0; c < d_.actors.size(); ++c)
      for (std::uint32_t port = 0; port < d_.actors[c].from.size(); ++port)
        if (const auto from = d_.actors[c].from[port].actor;
            d_.actors[from].planned.kind == actor_kind::shard)
          consumers[from].push_back({c, port});
    return consumers;
  }

  // Workers read the copy of their task.
  exchanged copy(std::uint32_t shard, const std::vector<port_ref>& consumers) {
    const auto workers = where_.worker_task.size();
    exchanged e{shard, {}, {{d_.actors[shard].planned.task, shard}}};
    auto& from = d_.actors[shard].from;
    e.gradients.assign(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(workers));
    from.erase(from.begin() + 1, from.begin() + static_cast<std::ptrdiff_t>(workers));
    const auto before = d_.actors[shard].planned.shard.readers;
    std::vector<port_ref> now(before.size());
    for (const auto task : tasks_) {
      if (task == d_.actors[shard].planned.task) continue;
      const auto actor = static_cast<std::uint32_t>(d_.actors.size());
      std::vector<shard_reader> readers;
      for (std::size_t i = 0; i < before.size(); ++i)
        if (const auto w = before[i].worker;
            w >= 0 && where_.worker_task[static_cast<std::size_t>(w)] == task) {
          now[i] = {actor, static_cast<std::uint32_t>(readers.size())};
          readers.push_back(before[i]);
        }
      e.copies.emplace_back(task, actor);
      d_.actors.push_back(make_copy(d_.actors[shard], task, std::move(readers)));
    }
    auto& first = d_.actors[shard].planned;
    std::vector<shard_reader> left;
    for (std::size_t i = 0; i < before.size(); ++i) {
      const auto w = before[i].worker;
      if (const auto task = w < 0 ? first.task : where_.worker_task[static_cast<std::size_t>(w)];
          task != first.task)
        continue;
      now[i] = {shard, static_cast<std::uint32_t>(left.size())};
      left.push_back(before[i]);
    }
    first.shard.readers = std::move(left);
    first.shard.takes_sums = true;
    first.output_specs.resize(first.shard.readers.size());
    for (const auto& c : consumers) {
      auto& at = d_.actors[c.actor].from[c.port];
      at = now[at.port];
    }
    return e;
  }

  draft_actor make_copy(const draft_actor& shard, std::uint32_t task,
                        std::vector<shard_reader> readers) const {
    draft_actor a;
    a.owner = owner_kind::shard;
    a.index = shard.index;
    a.planned = shard.planned;
    a.planned.name = fmt::format("copy/{}/{}", task, shard.planned.shard.variable);
    a.planned.task = task;
    auto& s = a.planned.shard;
    s.follows = true;
    s.readers = std::move(readers);
    s.cut_every = 0;
    s.cuts_at_end = false;
    s.steps.resize(1);
    if (!s.start.empty()) s.start.resize(1);
    s.handed.clear();
    if (s.restore == restore_kind::handed) s.restore = start_.restore;
    a.planned.output_specs.assign(s.readers.size(), s.spec);
    a.from.resize(1);
    for (const auto& h : start_.handed) {
      if (h.variable != s.variable ||
          std::find(h.to_tasks.begin(), h.to_tasks.end(), task) == h.to_tasks.end())
        continue;
      const auto name = fmt::format("hand_over/{}", s.variable);
      const auto at = std::find_if(d_.actors.begin(), d_.actors.end(),
                                   [&](const auto& x) { return x.planned.name == name; });
      expects(at != d_.actors.end(), "who keeps a variable hands it over");
      s.restore = restore_kind::handed;
      for (std::uint32_t port = 0; port < hand_over_ports(s); ++port)
        a.from.push_back({static_cast<std::uint32_t>(at - d_.actors.begin()), port});
    }
    return a;
  }

  // One collective for the gradients of `bucket`: a rank on every task that has workers, or their
  // first copies.
  void exchange(const bucket& bucket) {
    auto tasks = tasks_;
    for (const auto* e : bucket) tasks.insert(d_.actors[e->shard].planned.task);
    const std::vector<std::uint32_t> ranks(tasks.begin(), tasks.end());
    planned_collective c;
    c.tensors = static_cast<std::uint32_t>(bucket.size());
    c.spec.parts = parts_on(ranks);
    std::vector<tensor_spec> tensors;
    for (const auto* e : bucket) tensors.push_back(spec_of(*e));
    c.spec.elements = offset_in_vector(tensors, tensors.size());
    c.spec.piece_elements = piece_elements;
    const bool all_contribute = tasks.size() == tasks_.size();
    const auto bytes = static_cast<std::size_t>(c.spec.elements) * sizeof(float);
    c.spec.algorithm = choose_algorithm(c.spec.kind, bytes, c.spec.ranks(), parts_of(c.spec),
                                        options_.fast && all_contribute);
    const auto first = add_ranks(bucket, c, tensors, ranks, fmt::format("{}", buckets_), 0);
    ++buckets_;
    if (report_ != nullptr)
      report_->add(d_.actors[first].planned.name, d_.actors[first].planned.source, [&] {
        return fmt::format("and {} more are put in: they add up {} {} of {} bytes in all, by {}",
                           ranks.size() - 1, bucket.size(),
                           bucket.size() == 1 ? "gradient" : "gradients", bytes,
                           to_string(c.spec.algorithm));
      });
  }

  // One rank on that device of every task that has workers, for all buckets.
  void exchange_on_devices(std::uint32_t stream, const std::vector<bucket>& buckets) {
    const std::vector<std::uint32_t> ranks(tasks_.begin(), tasks_.end());
    planned_collective c;
    c.spec.algorithm = collective_algorithm::exchange;
    c.spec.piece_elements = device_piece_elements;
    c.spec.parts = parts_on(ranks);
    bucket all;
    std::vector<tensor_spec> tensors;
    for (const auto& b : buckets) {
      c.buckets.push_back(static_cast<std::uint32_t>(b.size()));
      all.insert(all.end(), b.begin(), b.end());
      for (const auto* e : b) tensors.push_back(spec_of(*e));
    }
    c.tensors = static_cast<std::uint32_t>(all.size());
    c.spec.elements = offset_in_vector(tensors, tensors.size());
    // a + b is b + a.
    const bool are_two = ranks.size() == 2 && where_.worker_task.size() == 2;
    c.is_in_order = !options_.fast && !are_two;
    const auto first = add_ranks(all, c, tensors, ranks, stream_text(stream), stream);
    if (report_ != nullptr)
      report_->add(d_.actors[first].planned.name, d_.actors[first].planned.source, [&] {
        return fmt::format(
            "and {} more are put in: they add up {} {} of {} bytes in all on their devices, in {} {}, {}",
            ranks.size() - 1, all.size(), all.size() == 1 ? "gradient" : "gradients",
            static_cast<std::size_t>(c.spec.elements) * sizeof(float), c.buckets.size(),
            c.buckets.size() == 1 ? "operation" : "operations",
            c.is_in_order ? "which gather the gradients of all workers and add them in the "
                            "workers' order"
            : are_two     ? "by the devices' own all-reduce, since the sum of two does not depend "
                            "on their order"
                          : "by the devices' own all-reduce");
      });
  }

  std::vector<std::vector<std::uint32_t>> parts_on(const std::vector<std::uint32_t>& ranks) const {
    std::vector<std::vector<std::uint32_t>> parts(ranks.size());
    for (std::uint32_t w = 0; w < where_.worker_task.size(); ++w)
      parts[static_cast<std::size_t>(std::find(ranks.begin(), ranks.end(), where_.worker_task[w]) -
                                     ranks.begin())]
          .push_back(w);
    return parts;
  }

  // Their results go to the copies. Returns the first of them.
  std::uint32_t add_ranks(const bucket& all, const planned_collective& c,
                          const std::vector<tensor_spec>& tensors,
                          const std::vector<std::uint32_t>& ranks, const std::string& which,
                          std::uint32_t stream) {
    const auto first = static_cast<std::uint32_t>(d_.actors.size());
    for (std::uint32_t r = 0; r < ranks.size(); ++r) {
      d_.actors.push_back(make_rank(all, c, tensors, ranks, r, first));
      d_.actors.back().planned.name = fmt::format("all_reduce/{}/{}", which, r);
      d_.actors.back().planned.stream = stream;
    }
    for (std::uint32_t t = 0; t < all.size(); ++t)
      for (const auto& [task, actor] : all[t]->copies) {
        const auto r =
            static_cast<std::uint32_t>(std::find(ranks.begin(), ranks.end(), task) - ranks.begin());
        d_.actors[actor].from[0] = {first + r, t};
      }
    return first;
  }

  draft_actor make_rank(std::span<const exchanged* const> bucket, planned_collective c,
                        const std::vector<tensor_spec>& tensors,
                        const std::vector<std::uint32_t>& ranks, std::uint32_t rank,
                        std::uint32_t first) const {
    c.spec.rank = rank;
    c.workers = c.spec.parts[rank];
    const auto peers = peers_of(c);
    c.peers_from = peers.from;
    c.peers_to = peers.to;
    draft_actor a;
    const auto& shard = d_.actors[bucket.front()->shard].planned;
    const auto& own = c.spec.parts[rank];
    a.index = own.empty() ? 0 : own.front();
    a.planned.kind = actor_kind::collective;
    a.planned.source = shard.source;
    a.planned.task = ranks[rank];
    a.planned.steps = shard.steps;
    a.planned.start = start_.worker_steps.empty() ? 0 : start_.worker_steps[0];
    a.planned.output_specs = tensors;
    a.planned.output_specs.insert(a.planned.output_specs.end(), c.peers_to.size(), piece_spec(c));
    for (const auto w : own)
      for (const auto* e : bucket) a.from.push_back(e->gradients[w]);
    for (const auto peer : c.peers_from) {
      auto other = c;
      other.spec.rank = peer;
      const auto to = peers_of(other).to;
      a.from.push_back(
          {first + peer, c.tensors + static_cast<std::uint32_t>(
                                         std::find(to.begin(), to.end(), rank) - to.begin())});
    }
    a.planned.collective = std::move(c);
    return a;
  }

  draft d_;
  const epoch_start& start_;
  const places& where_;
  const compile_options& options_;
  pass_report* report_;
  std::set<std::uint32_t> tasks_;
  std::uint32_t buckets_ = 0;
};

}  // namespace

draft all_reduce(draft d, const epoch_start& start, const places& where,
                 const compile_options& options, pass_report* report) {
  return reducer(std::move(d), start, where, options, report).run();
}

}  // namespace troupe::passes
