#pragma once
// Two nodes of this process, a worker and a place for shards, that find each other in a folder of
// their own, and a client.
//
// Threading: that of the test. Ends: the nodes leave, the folder goes.

#include "tests/support/wait.hpp"
#include "troupe/actors/process/process.hpp"
#include "troupe/actors/session/session.hpp"

#include <boost/test/unit_test.hpp>

#include <chrono>
#include <cstdlib>
#include <filesystem>
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

class two_nodes {
 public:
  explicit two_nodes(const std::string& cluster) {
    for (const auto* job : {"worker", "ps"}) {
      process_options o;
      o.cluster = cluster;
      o.job = job;
      auto node = process::start(o);
      BOOST_TEST_REQUIRE(bool(node), (node ? "" : node.error().text()));
      nodes_.push_back(std::move(*node));
    }
    auto opened = session::open({.cluster = cluster, .timeout = std::chrono::seconds(30)});
    BOOST_TEST_REQUIRE(bool(opened), (opened ? "" : opened.error().text()));
    client_ = std::move(*opened);
    wait_until("the client is linked to both nodes",
               [this] { return client_->nodes().size() >= nodes_.size(); });
  }
  ~two_nodes() {
    client_.reset();
    for (auto& node : nodes_) node->leave("the test is over");
  }
  two_nodes(const two_nodes&) = delete;
  two_nodes& operator=(const two_nodes&) = delete;

  session& client() { return *client_; }

 private:
  runtime_folder folder_;
  std::vector<std::unique_ptr<process>> nodes_;
  std::unique_ptr<session> client_;
};

}  // namespace troupe::test
