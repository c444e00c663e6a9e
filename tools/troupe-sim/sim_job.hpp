#pragma once
// The job that simulated clusters run: a small real training, and what it must give.
//
// Ten images of six pixels in three classes, two dense layers, and a variable of which every
// gradient is 1, so that it counts how many were applied. An epoch of global batches ends with a
// part that is empty.

#include "tools/troupe-sim/sim_cluster.hpp"
#include "troupe/devices/files/scratch_folder.hpp"
#include "troupe/runtime/graph/build.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace troupe {

struct sim_data {
  static result<sim_data> make();
  std::shared_ptr<scratch_folder> folder;
  idx_info info;
};

// What a job trains with. Number 0 is SGD, whose counter says how many gradients were applied; the
// others have each kind of optimizer, of schedule and of clipping, and a table that is read by
// index, whose gradients are pushed as rows.
struct sim_optimizer {
  optimizer_spec optimizer;
  learning_rate_schedule schedule{};
  double clip_global_norm = 0;
};
inline constexpr std::uint32_t sim_optimizers = 10;
sim_optimizer sim_optimizer_of(std::uint32_t number, update_kind update);

struct sim_job_shape {
  std::uint32_t workers = 2, shards = 2;
  update_kind update = update_kind::sync;
  std::uint64_t steps = 6, observe_every = 2;
  failure_policy on_failure = failure_policy::stop;
  bool has_replicas = false;
  bool all_reduce = false;
  bool calls_collectives = false;  // workers exchange sums of their logits in each step (sync)
  bool has_counter = true;         // without it the loss is what the gradients are made with
  std::uint32_t optimizer = 0;     // number of a sim_optimizer
  // f16, with a scale of the loss that is too large at first and soon again, so that steps are left
  // out.
  bool is_mixed = false;
  // 0: all ops are on the host; 1: on gpu:0 what a device runs; 2: the last layer on gpu:1.
  std::uint32_t gpus = 0;
  checkpoint_options checkpoints{};
  bool outlives = false;  // its program
};

inline constexpr double sim_counter_rate = 1.0 / 64;  // sums of it are exact

result<training_program> make_sim_program(const sim_tables& tables, const sim_data& data,
                                          const sim_job_shape& shape,
                                          const std::vector<member_info>& nodes, node_id client);
// Without checkpoints; whoever wants them opens the folder first (runtime/checkpoint/resume.hpp).
result<std::shared_ptr<job_request>> make_sim_request(const sim_tables& tables,
                                                      const sim_data& data,
                                                      const sim_job_shape& shape,
                                                      const std::vector<member_info>& nodes,
                                                      node_id client);

// A job that outlives its program, once its folder is open.
result<void> add_recipe(job_request& request, const sim_tables& tables, const sim_data& data,
                        const sim_job_shape& shape);

// Every loss and every observed variable, bit by bit.
struct sim_outcome {
  std::vector<float> losses;
  std::vector<std::pair<std::string, std::vector<float>>> variables;
};
sim_outcome collect(const sim_program& p);
std::vector<float> floats(const tensor& t);
bool same_bits(const std::vector<float>& a, const std::vector<float>& b);
// "": none.
std::string difference(const sim_outcome& got, const sim_outcome& wanted);

// How many gradients the counter has seen, all workers together, in what was observed last; not a
// whole number: torn.
double applied_by_counter(const sim_program& p);
// "": fed = applied + dropped + in flight for every worker, and (complete) every step was applied,
// or left out if is_mixed.
std::string check_ledger(const training_totals& totals, const sim_job_shape& shape,
                         bool is_complete);
// Credits are conserved: once all is quiet every output holds all of its credits, here and across
// processes.
std::string check_credits(sim_cluster& c);
// "": no actor of any job is left on a process that lives. Where it may take long until then,
// processes that end meanwhile are not asked.
std::string left_over(sim_cluster& c, bool may_take_long = false);

// All in one process, undisturbed: what every other run is compared with. Computed once for each
// kind of job.
class sim_reference {
 public:
  sim_reference(sim_tables& tables, const sim_data& data) : tables_(tables), data_(data) {}
  const sim_outcome& of(const sim_job_shape& shape);

 private:
  sim_tables& tables_;
  const sim_data& data_;
  // By workers, steps, observe_every, optimizer, is_mixed, calls_collectives, has_counter.
  std::map<std::tuple<std::uint32_t, std::uint64_t, std::uint64_t, std::uint32_t, bool, bool, bool>,
           sim_outcome>
      known_;
};

}  // namespace troupe
