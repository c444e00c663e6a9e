#pragma once
// What the compiler may do to a graph. The defaults are what a program wants; most of the rest is
// there to see what a pass gives.
//
// Threading: values; `report` is the caller's.

#include "troupe/runtime/plan/plan.hpp"
#include "troupe/runtime/plan/precision.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace troupe {

struct compile_report;
class op_times;
struct task_map;

struct compile_options {
  std::string name = "job";
  bool fuse = true;
  std::uint32_t credits = 2;  // per edge, at most
  // An edge whose credits would take more memory than this has fewer of them, at least one.
  std::size_t edge_bytes = std::size_t{64} << 20;
  // Training: where a variable's gradient is that of embedding() or gather() along axis 0, workers
  // push its rows and their indices, not the whole of it, if that is fewer bytes. Results have the
  // same bits.
  bool sparse_pushes = true;
  // Passes that change no result; --fuse, and these, may be switched off to see what each gives.
  bool fold = true, simplify = true, share = true;  // constants, x * 1, equal ops
  // Ops of a stream write into the memory of others whose results nobody needs any more. Then a
  // graph that is stepped has `credits` steps in flight in each stream, and a worker that trains
  // has one. Off: every output has memory of its own, for one more than the credits of its edges.
  bool share_memory = true;
  // Ops of users and readers that take long go to streams with less to do, so that independent ones
  // run side by side. Off: all ops of a worker are on its stream. The bits are the same.
  bool spread = true;
  // Host streams that a graph which is stepped may use; 0: those of the session.
  std::uint32_t streams = 0;
  // The number of its first step, for ops that depend on it: readers, random numbers.
  std::uint64_t first_step = 0;
  // How long such ops take, as the session has measured them; null: as guessed.
  std::shared_ptr<const op_times> times{};
  // Of a graph that is stepped or run by feeds and fetches: where ops may stand, the client's task
  // last. The session fills it in; null: with the client alone.
  std::shared_ptr<const task_map> where{};
  // Synchronous training: a gradient of a megabyte or more waits for the ops on its stream that
  // read the version it is made of, so that its shard needs one version at a time.
  bool order_reads = true;
  // Training with all_reduce: a gradient that is at least half of all bytes that a worker exchanges
  // is made before the others, and exchanged while they are.
  bool order_pushes = true;
  // Training with all_reduce: copies of a variable that wishes for a device are there, and
  // gradients are added up there, where the job keeps nothing of it for recovery or checkpoints.
  // Off: copies are on the host, and gradients go by links. The bits are the same.
  bool device_collectives = true;
  // Training with all_reduce: gradients of fewer bytes are added up together until they have so
  // many; 0: as many as were measured (256 KiB on hosts), or guessed (4 MiB on devices).
  std::size_t bucket_bytes = 0;
  // What happens where an op makes a NaN or an infinity; whoever looks for them reads every result
  // once more. A graph that is stepped knows `ignore` and `stop`. With `skip`, workers push whole
  // gradients (sparse_pushes).
  nan_policy on_nan = nan_policy::ignore;
  // Large sums may be cut along what is summed, and added up in parts: the gradient of a
  // convolution's weights by images, products that are long inside. Results differ from those
  // without it in the last bits, and are still the same for any number of threads and nodes.
  bool fast = false;
  // In what products, convolutions and attention of f32 compute: see runtime/plan/precision.hpp.
  // Not a pass that changes no result.
  precision_kind precision = precision_kind::f32;
  // Of trainings; nullopt: dynamic with f16, else none. Those with one push whole gradients
  // (sparse_pushes), leave out steps whose gradients are not finite, as on_nan `skip` does, but
  // those of all workers, and know no on_nan `stop`.
  std::optional<loss_scale_spec> loss_scale{};
  // An op that wishes for a device which does not run its type stands on the host, and the report
  // says so; off: that is an error.
  bool soft_placement = true;
  // Where ops stand that wish for no cpu or gpu: "/gpu:0". Empty: on the host.
  std::string device{};
  // What each pass did, if somebody asks (runtime/compile/compile_report.hpp); looked at during the
  // call only.
  compile_report* report = nullptr;
};

}  // namespace troupe
