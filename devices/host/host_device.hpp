#pragma once
// The host as a device: what the kernels of one node process share, and the table of its kernels.
//
// Ownership: one host_device per node process, built by main() or a test, outliving every kernel
// made with it.
// Threading: dataset() may be called from any thread; who asks for a dataset that another thread
// loads waits for it. team() is set up before the first kernel runs.
//
// HD-1  While anybody holds a dataset, asking for it again gives the same object: workers of one
//       process read files once.

#include "troupe/devices/files/idx_file.hpp"
#include "troupe/devices/host/tile_team.hpp"
#include "troupe/devices/kernel.hpp"
#include "troupe/schema/error.hpp"

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace troupe {

class host_device {
 public:
  host_device() = default;
  host_device(const host_device&) = delete;
  host_device& operator=(const host_device&) = delete;

  // The images and labels in `folder`, loaded unless somebody still holds them. Labels are below
  // `classes`.
  result<std::shared_ptr<const idx_dataset>> dataset(const std::string& folder, bool test,
                                                     std::int64_t classes = 10);
  // Those that somebody holds, for whoever wants them to stay a while longer.
  std::vector<std::shared_ptr<const idx_dataset>> datasets_in_use();

  // Of the elements of one that somebody holds, XXH3-64: what nodes compare. nullopt: nobody does.
  std::optional<std::uint64_t> dataset_hash(const std::string& folder, bool test,
                                            std::int64_t classes = 10);

  // Threads that kernels share; alone, until somebody sets it up.
  tile_team& team() noexcept { return team_; }

 private:
  tile_team team_;
  std::mutex loading_, mutex_;  // mutex_: of the map, and for no longer than a look
  struct known_dataset {
    std::weak_ptr<const idx_dataset> data;
    std::uint64_t hash = 0;
  };
  std::unordered_map<std::string, known_dataset> datasets_;
};

// What every thread that runs kernels does first; those that call oneDNN do it themselves, too, at
// the cost of a few cycles. One thread for OpenMP, on which oneDNN is built: libraries always
// compute on one (equal bits for any number of threads), and large ops are cut into tiles by us.
// Numbers below 1.2e-38 are zero: the momentum of a unit that has died decays until its floats are
// denormal, and stays so for ever, at a hundred times the price of an addition.
void set_up_kernel_thread() noexcept;

// Every op that the host can run, by name: a file per family in ops/. What they take is said by
// runtime/graph/ops.hpp and checked by the shape rules; what follows is the order of operations,
// where it decides about bits.
//
//   add sub mul ... where cast       each element by itself: equal operands, equal bits, wherever
//                                    it stands (K-2)
//   reduce_sum, along rows           per 4096 elements 16 partial sums of every 16th element, then
//                                    those pairwise: k with k+8, k+4, k+2, k+1
//   reduce_sum, along columns        per 256 rows row after row both: these in f64 (of f32), one
//                                    after the other
//   scatter_add, put_last            in the order of the indices
//   cumulative_sum                   one after the other
//   softmax_cross_entropy            rows one after the other, in f64
//   standardize, softmax, ...        sums in f64: along rows 8 partial sums of every 8th element,
//                                    then those pairwise; else one after the other
//   max_pool2d_grad, avg_pool2d_grad in the order of the windows
//   matmul, conv2d                   f32 by oneDNN, on one thread; f64 by loops, along K one after
//                                    the other
//
// Large ops are cut into tiles (tile_team.hpp), never along what is summed: rows or columns of
// products, images of convolutions and pooling, output channels of the gradient of weights, rows of
// normalisation, softmax and sums, elements of all others.
kernel_table make_host_kernels();

}  // namespace troupe
