#pragma once
// What the ends of a job in the program share: its mailbox, and the inputs that it feeds. Used in
// actors/ only.
//
// Threading: one thread at a time.

#include "troupe/actors/base/deadline.hpp"
#include "troupe/actors/base/mailbox.hpp"
#include "troupe/actors/base/tell.hpp"
#include "troupe/actors/job/job_actor.hpp"
#include "troupe/actors/process/process.hpp"
#include "troupe/actors/session/session.hpp"

#include <caf/actor.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace troupe {

// An input as the program sees it: how many items its actor has room for.
struct fed_input {
  std::uint32_t actor = 0;  // in the plan
  tensor_spec spec;
  std::uint32_t room = feed_room;
  std::uint64_t fed = 0;
  std::uint64_t found = 0;  // by which call of find_all() last
};

class fed_inputs {
 public:
  using feeds = std::span<const std::pair<std::string_view, tensor>>;

  void add(std::string name, std::uint32_t actor, tensor_spec spec) {
    const auto at = inputs_.emplace(std::move(name), fed_input{actor, std::move(spec)}).first;
    by_actor_[actor] = &at->second;
  }
  bool has(std::string_view name) const { return inputs_.find(name) != inputs_.end(); }
  // Errors: usage: another name, no tensor, another type or shape.
  result<fed_input*> find(std::string_view name, const tensor& value);
  // One for each feed. Errors: as find(); an input twice, or not at all. Nothing has changed.
  result<std::vector<fed_input*>> find_all(feeds values);
  void on_ready(const feed_ready& m);

  auto begin() { return inputs_.begin(); }
  auto end() { return inputs_.end(); }
  bool empty() const noexcept { return inputs_.empty(); }

 private:
  std::string known() const;

  std::map<std::string, fed_input, std::less<>> inputs_;
  std::unordered_map<std::uint32_t, fed_input*> by_actor_;
  std::uint64_t calls_ = 0;  // of find_all()
};

// What both kinds of job share: the program's mailbox, and the job that it hears of. The session
// may end before it: then the job ends, which it is told, and its process stays until it has gone,
// too.
class job_client {
 public:
  explicit job_client(process& p)
      : keeps_(p.weak_from_this().lock()), process_(p), self_(p.system()) {}
  ~job_client() {
    if (process_.is_forked()) leave_alone(handles_);
  }
  job_client(const job_client&) = delete;
  job_client& operator=(const job_client&) = delete;

  caf::actor own_mailbox() { return self_.handle(); }

  void stop(const std::string& reason) {
    if (!is_over_ && process_.check_is_there())
      tell(nullptr, process_.node(), stop_own_job{own_mailbox(), reason});
  }

 private:
  std::shared_ptr<process> keeps_;  // null: who has made it sees to that

 protected:
  process& process_;
  mailbox self_;
  std::shared_ptr<const part_handles> handles_;
  bool is_over_ = false;
};

std::unique_ptr<training> make_training(process& p, std::shared_ptr<const job_request> request,
                                        std::vector<std::string> notes, bool is_fed);
// Errors: as session::attach() has them.
result<std::unique_ptr<training>> attach_training(process& p, const std::string& job,
                                                  std::chrono::milliseconds timeout);
// What a graph that is compiled now may use: the options of the program, with the streams of this
// process, what ops took so far, and the nodes that are linked to it. From any thread, as long as
// the session lives.
using surroundings = std::function<compile_options()>;
// A plan of compile_steps(), on the nodes of its tasks.
std::shared_ptr<const job_request> request_of(plan p);

// `store`: null, or whose variables the runs read and change.
std::unique_ptr<graph_runner> make_runner(process& p, const graph& g, surroundings around,
                                          std::shared_ptr<const store_core> store);
std::unique_ptr<variable_store> make_variable_store(process& p);
result<std::unique_ptr<stepper>> make_stepper(process& p,
                                              std::shared_ptr<const job_request> request);

}  // namespace troupe
