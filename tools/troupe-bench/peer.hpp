#pragma once
// The other process of a benchmark: this program again, started with --peer MODE, which serves one
// end of a connection.
//
// The two talk by lines over pipes: the peer prints one when it is ready, and answers each line
// that it reads. It ends when its input does, so none outlives the benchmark, however that ends.
//
//   --peer link CHECKSUMS        ready: "BARE_PORT LINK_PORT"   cpu: its CPU seconds so far
//                                                               buffers N: in which tensors of
//                                                               stream case N have arrived
//   --peer node CLUSTER [READS]  ready: its address             cpu
//   --peer stages CLUSTER NAME   the same, of a node that runs stages of pipelines
//   --peer relay PORT            ready: its port; what it reads there it writes to PORT
//
// Threading: start, ask and destroy from one thread.

#include "troupe/schema/error.hpp"

#include <memory>
#include <string>
#include <vector>

namespace troupe {

class peer_process {
 public:
  static result<std::unique_ptr<peer_process>> start(const std::vector<std::string>& arguments);
  ~peer_process();  // ends it
  peer_process(const peer_process&) = delete;
  peer_process& operator=(const peer_process&) = delete;

  const std::string& ready() const { return ready_; }
  result<std::string> ask(const std::string& line);
  result<double> cpu_seconds();

 private:
  peer_process() = default;
  result<std::string> read_line();

  int pid_ = -1, to_ = -1, from_ = -1;
  std::string ready_, rest_;
};

// Of this process, user and system.
double own_cpu_seconds();

// main() of the peer.
int run_peer(const std::vector<std::string>& arguments);

}  // namespace troupe
