#pragma once
// Nodes of this process that find each other in a folder of their own, and a client.
//
// Threading: that of the test. Ends: the nodes leave, the folder goes.

#include "tests/support/wait.hpp"
#include "troupe/actors/process/process.hpp"
#include "troupe/actors/session/session.hpp"

#include <boost/test/unit_test.hpp>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe::test {

// Where the processes of a cluster find each other, for as long as it lives.
struct runtime_folder {
  runtime_folder() {
    auto pattern = (std::filesystem::temp_directory_path() / "troupe-nodes-XXXXXX").string();
    BOOST_TEST_REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path = pattern;
    if (const char* before = std::getenv("XDG_RUNTIME_DIR")) before_ = before;
    ::setenv("XDG_RUNTIME_DIR", path.c_str(), 1);
  }
  ~runtime_folder() {
    if (before_)
      ::setenv("XDG_RUNTIME_DIR", before_->c_str(), 1);
    else
      ::unsetenv("XDG_RUNTIME_DIR");
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  runtime_folder(const runtime_folder&) = delete;
  runtime_folder& operator=(const runtime_folder&) = delete;
  std::string path;

 private:
  std::optional<std::string> before_;
};

// Of nodes and programs that nobody stops: on a busy machine a thread may stand still for a second,
// and with a lease of a second it is then rightly held dead.
inline constexpr std::chrono::seconds own_lease{30};

struct own_node {
  std::string job{}, name{};
  std::vector<std::string> labels{};
  std::uint32_t streams = 1;
  std::string gpus = "none";
  std::function<caf::actor(const work_host&, job_id, node_id)> host_work{};
};

class own_nodes {
 public:
  own_nodes(std::string cluster, const std::vector<own_node>& nodes,
            std::vector<const op_library*> libraries = {})
      : cluster_(std::move(cluster)), libraries_(std::move(libraries)) {
    for (const auto& n : nodes) add(n);
    auto opened = session::open({.cluster = cluster_,
                                 .timeout = std::chrono::seconds(30),
                                 .lease = own_lease,
                                 .libraries = libraries_});
    BOOST_TEST_REQUIRE(bool(opened), (opened ? "" : opened.error().text()));
    client_ = std::move(*opened);
    wait_for_links();
  }
  ~own_nodes() {
    client_.reset();
    for (auto& node : nodes_) node->leave("the test is over");
  }
  own_nodes(const own_nodes&) = delete;
  own_nodes& operator=(const own_nodes&) = delete;

  session& client() { return *client_; }
  // One after the other: their order is that of their tasks.
  void add(const own_node& n) {
    process_options o;
    o.cluster = cluster_;
    o.job = n.job;
    o.name = n.name;
    o.labels = n.labels;
    o.streams = n.streams;
    o.gpus = n.gpus;
    o.libraries = libraries_;
    o.host_work = n.host_work;
    o.lease = own_lease;
    auto node = process::start(o);
    BOOST_TEST_REQUIRE(bool(node), (node ? "" : node.error().text()));
    nodes_.push_back(std::move(*node));
    if (client_) wait_for_links();
  }
  // Without a word to its jobs.
  void leave(std::size_t node) {
    nodes_[node]->leave("the test says so");
    nodes_.erase(nodes_.begin() + static_cast<std::ptrdiff_t>(node));
  }

 private:
  void wait_for_links() {
    wait_until("the client is linked to all nodes",
               [this] { return client_->nodes().size() >= nodes_.size(); });
  }

  runtime_folder folder_;
  std::string cluster_;
  std::vector<const op_library*> libraries_;
  std::vector<std::unique_ptr<process>> nodes_;
  std::unique_ptr<session> client_;
};

// A worker, and a place for shards.
class two_nodes : public own_nodes {
 public:
  explicit two_nodes(const std::string& cluster)
      : own_nodes(cluster, {{.job = "worker"}, {.job = "ps"}}) {}
};

}  // namespace troupe::test
